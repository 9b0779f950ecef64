/* rawget.c: parallel ranged GETs with nothing in between: the floor of cold reads.
 *
 *   rawget (--url URL [--size B] | --urls FILE) --range B --inflight N
 *          [--bytes TOTAL | --seconds S] [--from OFF] [--random SEED] [--rate B/s] [--region R] [--timeout S]
 *
 * The objects are a list (FILE: one "URL SIZE" a line) that is read in order, range after range,
 * starting over at its end, with N requests in flight on N kept connections, until TOTAL bytes
 * (default: the whole list once) or S seconds. --random asks for ranges in random order instead.
 * --rate starts no request earlier than its bytes are due: a load of a known size to set beside
 * something else. SIGTERM ends the run early; what was done is reported. Bytes are counted and
 * dropped.
 *
 * With AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment requests are signed (SigV4,
 * unsigned payload, region R, default us-east-1). One JSON line on stdout. One thread.
 * Exit: 0, 1 when a request failed or --timeout (default 600 s) was reached, 2 usage.
 */
#include <curl/curl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/benchlib.h"

enum { MAX_INFLIGHT = 512, URL_MAX = 2048, MAX_SAMPLES = 1 << 20 };

struct object {
    char *url;
    uint64_t size, before; /* bytes of the list in front of it */
};

struct slot {
    CURL *easy;
    uint64_t asked, got;
    bool busy;
    char error[CURL_ERROR_SIZE];
};

static struct {
    struct object *objects;
    size_t count;
    uint64_t list_bytes, range, inflight, bytes, from, random, rate;
    double seconds, timeout;
    bool is_random;
    const char *region;
} o = {.range = 4 << 20, .inflight = 8, .timeout = 600, .region = "us-east-1"};

static struct {
    uint64_t issued, bytes, requests, errors;
    float *total_ms, *first_ms;
    size_t samples;
    double start;
} run;

static volatile sig_atomic_t stopping;

static void on_signal(int sig)
{
    (void)sig;
    stopping = 1;
}

static bool add_object(const char *url, uint64_t size)
{
    struct object *more = realloc(o.objects, (o.count + 1) * sizeof(*more));

    if (!more) {
        return false;
    }
    o.objects = more;
    more[o.count] = (struct object){.url = strdup(url), .size = size, .before = o.list_bytes};
    o.list_bytes += size;
    return more[o.count++].url != NULL;
}

static bool read_list(const char *path)
{
    char line[URL_MAX + 32], url[URL_MAX];
    uint64_t size;
    bool ok = true;
    FILE *f = fopen(path, "re");

    if (!f) {
        perror(path);
        return false;
    }
    while (ok && fgets(line, sizeof(line), f)) {
        ok = sscanf(line, "%2047s %" SCNu64, url, &size) == 2 && size > 0 && add_object(url, size);
    }
    fclose(f);
    return ok && o.count > 0;
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    struct slot *s = user;

    (void)data;
    s->got += one * n;
    return one * n;
}

static const struct object *object_at(uint64_t place)
{
    size_t low = 0, high = o.count - 1;

    while (low < high) {
        size_t mid = (low + high + 1) / 2;
        if (o.objects[mid].before <= place) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return &o.objects[low];
}

static uint64_t next_random(void)
{
    uint64_t x = o.random += 0x9E3779B97F4A7C15u;

    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static bool slot_open(struct slot *s, struct curl_slist *headers)
{
    const char *key = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    char text[512];

    s->easy = curl_easy_init();
    if (!s->easy) {
        return false;
    }
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->error);
    curl_easy_setopt(s->easy, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(s->easy, CURLOPT_LOW_SPEED_TIME, 30L);
    if (key && secret) {
        snprintf(text, sizeof(text), "aws:amz:%s:s3", o.region);
        curl_easy_setopt(s->easy, CURLOPT_AWS_SIGV4, text);
        curl_easy_setopt(s->easy, CURLOPT_USERNAME, key);
        curl_easy_setopt(s->easy, CURLOPT_PASSWORD, secret);
        curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, headers);
    }
    return true;
}

static void slot_start(CURLM *multi, struct slot *s)
{
    uint64_t place = (o.from + run.issued) % o.list_bytes;
    const struct object *obj;
    char range[64];
    uint64_t at;

    if (o.is_random) {
        place = next_random() % o.list_bytes / o.range * o.range;
    }
    obj = object_at(place);
    at = place - obj->before;
    s->asked = obj->size - at < o.range ? obj->size - at : o.range;
    if (o.bytes && s->asked > o.bytes - run.issued) {
        s->asked = o.bytes - run.issued;
    }
    s->got = 0;
    s->busy = true;
    snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, at, at + s->asked - 1);
    curl_easy_setopt(s->easy, CURLOPT_URL, obj->url);
    curl_easy_setopt(s->easy, CURLOPT_RANGE, range);
    curl_multi_add_handle(multi, s->easy);
    run.issued += s->asked;
}

static void slot_done(CURLM *multi, const CURLMsg *m)
{
    struct slot *s;
    long status = 0;
    double total = 0, first = 0;

    curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &s);
    curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(m->easy_handle, CURLINFO_TOTAL_TIME, &total);
    curl_easy_getinfo(m->easy_handle, CURLINFO_STARTTRANSFER_TIME, &first);
    curl_multi_remove_handle(multi, s->easy);
    s->busy = false;
    run.requests++;
    run.bytes += s->got;
    if (m->data.result != CURLE_OK || (status != 206 && status != 200) || s->got != s->asked) {
        if (run.errors++ == 0) {
            fprintf(stderr, "rawget: status %ld, %" PRIu64 " of %" PRIu64 " bytes: %s\n", status,
                    s->got, s->asked, s->error[0] ? s->error : "no transport error");
        }
    } else if (run.samples < MAX_SAMPLES) {
        run.total_ms[run.samples] = (float)(total * 1e3);
        run.first_ms[run.samples++] = (float)(first * 1e3);
    }
}

/* Seconds until the next request is due; negative: never again. */
static double next_due(double now)
{
    if (stopping || run.errors || (o.seconds > 0 && now - run.start >= o.seconds) ||
        (o.bytes && run.issued >= o.bytes)) {
        return -1;
    }
    if (o.rate) {
        double wait = (double)run.issued / (double)o.rate - (now - run.start);
        return wait > 0 ? wait : 0;
    }
    return 0;
}

static bool loop(CURLM *multi, struct slot *slots)
{
    for (;;) {
        double now = bench_now(), due = next_due(now);
        int active = 0, left, busy = 0, wait_ms;
        CURLMsg *m;

        for (uint64_t i = 0; i < o.inflight && due == 0; i++) {
            if (!slots[i].busy) {
                slot_start(multi, &slots[i]);
                due = next_due(now);
            }
        }
        curl_multi_perform(multi, &active);
        while ((m = curl_multi_info_read(multi, &left))) {
            if (m->msg == CURLMSG_DONE) {
                slot_done(multi, m);
                active = -1; /* A slot is free: look again before waiting. */
            }
        }
        for (uint64_t i = 0; i < o.inflight; i++) {
            busy += slots[i].busy;
        }
        due = next_due(bench_now());
        if (due < 0 && busy == 0) {
            return true;
        }
        if (now - run.start > o.timeout) {
            return false;
        }
        if (active < 0 && due == 0) {
            continue;
        }
        wait_ms = due > 0 && due < 0.2 ? (int)(due * 1e3) + 1 : 200;
        curl_multi_poll(multi, NULL, 0, wait_ms, NULL);
    }
}

static void report(void)
{
    double seconds = bench_now() - run.start;

    bench_sort(run.total_ms, run.samples);
    bench_sort(run.first_ms, run.samples);
    printf("{\"bytes\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"seconds\":%.6f,\"mb_per_s\":%.2f,\"cpu_s\":%.3f,\"first_p50_ms\":%.3f,"
           "\"first_p999_ms\":%.3f,\"p50_ms\":%.3f,\"p99_ms\":%.3f}\n",
           run.bytes, run.requests, run.errors, seconds, (double)run.bytes / seconds / 1e6,
           bench_cpu(), bench_quantile(run.first_ms, run.samples, 0.5),
           bench_quantile(run.first_ms, run.samples, 0.999),
           bench_quantile(run.total_ms, run.samples, 0.5),
           bench_quantile(run.total_ms, run.samples, 0.99));
}

static bool parse(int argc, char **argv)
{
    enum {
        RANGE = 1,
        INFLIGHT,
        BYTES,
        FROM,
        RANDOM,
        RATE,
        SIZE,
        URL,
        URLS,
        SECONDS,
        REGION,
        TIMEOUT
    };
    static const struct option longs[] = {
        {"range", required_argument, NULL, RANGE},
        {"inflight", required_argument, NULL, INFLIGHT},
        {"bytes", required_argument, NULL, BYTES},
        {"from", required_argument, NULL, FROM},
        {"random", required_argument, NULL, RANDOM},
        {"rate", required_argument, NULL, RATE},
        {"size", required_argument, NULL, SIZE},
        {"url", required_argument, NULL, URL},
        {"urls", required_argument, NULL, URLS},
        {"seconds", required_argument, NULL, SECONDS},
        {"region", required_argument, NULL, REGION},
        {"timeout", required_argument, NULL, TIMEOUT},
        {0},
    };
    uint64_t size = 0;
    uint64_t *sizes[] = {
        [RANGE] = &o.range,   [INFLIGHT] = &o.inflight, [BYTES] = &o.bytes, [FROM] = &o.from,
        [RANDOM] = &o.random, [RATE] = &o.rate,         [SIZE] = &size};
    const char *url = NULL, *urls = NULL;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case URL:
            url = optarg;
            break;
        case URLS:
            urls = optarg;
            break;
        case SECONDS:
            o.seconds = strtod(optarg, NULL);
            break;
        case REGION:
            o.region = optarg;
            break;
        case TIMEOUT:
            o.timeout = strtod(optarg, NULL);
            break;
        default:
            if (c < RANGE || c > SIZE || !bench_size(optarg, sizes[c])) {
                return false;
            }
            o.is_random |= c == RANDOM;
        }
    }
    if (optind != argc || o.range == 0 || o.inflight == 0 || o.inflight > MAX_INFLIGHT) {
        return false;
    }
    return urls ? !url && read_list(urls) : url && add_object(url, size ? size : o.range);
}

int main(int argc, char **argv)
{
    struct sigaction sa = {.sa_handler = on_signal};
    struct curl_slist *headers = NULL;
    struct slot *slots;
    CURLM *multi;
    bool done = false, ready = true;

    if (!parse(argc, argv)) {
        fputs("usage: rawget --url URL [--size B] | --urls FILE  --range B --inflight N\n"
              "              [--bytes TOTAL | --seconds S] [--from OFF] [--random SEED]\n"
              "              [--rate B/s] [--region R] [--timeout S]\n",
              stderr);
        return 2;
    }
    if (!o.bytes && o.seconds <= 0) {
        o.bytes = o.list_bytes;
    }
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    multi = curl_multi_init();
    headers = curl_slist_append(NULL, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
    slots = calloc(o.inflight, sizeof(*slots));
    run.total_ms = malloc(MAX_SAMPLES * sizeof(*run.total_ms));
    run.first_ms = malloc(MAX_SAMPLES * sizeof(*run.first_ms));
    ready = multi && headers && slots && run.total_ms && run.first_ms;
    for (uint64_t i = 0; ready && i < o.inflight; i++) {
        ready = slot_open(&slots[i], headers);
    }
    if (ready) {
        curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)o.inflight);
        run.start = bench_now();
        done = loop(multi, slots);
        report();
    }
    for (uint64_t i = 0; slots && i < o.inflight; i++) {
        if (slots[i].busy) {
            curl_multi_remove_handle(multi, slots[i].easy);
        }
        curl_easy_cleanup(slots[i].easy);
    }
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
    curl_global_cleanup();
    for (size_t i = 0; i < o.count; i++) {
        free(o.objects[i].url);
    }
    free(o.objects);
    free(slots);
    free(run.total_ms);
    free(run.first_ms);
    return done && run.errors == 0 ? 0 : 1;
}
