/* appendbench.c: appends to files and prints rate and latency; the load of figures 1, 2 and 7.
 *
 *   appendbench FILE [--size B] [--bytes N | --seconds S] [--fdatasync] [--threads T] [--rate B/s]
 *                    [--keep]
 *
 * T writers (default 1) append pieces of B bytes (default 4K) with O_APPEND, each to a file of its
 * own
 * (FILE.0, FILE.1, ... when T > 1), until each has written N bytes or S seconds are over. With
 * --fdatasync every append is followed by one and both count as one operation. --rate paces each
 * writer. Files are new at the start and removed at the end unless --keep. One JSON line on
 * stdout; microseconds are those of single operations, over all writers.
 *
 * Writers share nothing but the start signal. Exit: 0, 1 a system call failed, 2 usage.
 */
#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/benchlib.h"

enum { MAX_THREADS = 256, SAMPLES = 1 << 20 };

struct writer {
    pthread_t thread;
    char path[4096];
    float *us;
    size_t samples;
    uint64_t ops, bytes;
    double seconds;
    int err;
};

static struct {
    const char *file;
    uint64_t size, bytes, threads, rate;
    double seconds;
    bool sync, keep;
} o = {.size = 4096, .threads = 1};

static pthread_barrier_t start_line;

/* Once the samples are full every second one is given up and every second operation kept, and so
 * on: memory stays bounded and the samples stay spread over the whole run. */
static void keep_sample(struct writer *w, uint64_t *stride, double us)
{
    if (w->ops % *stride != 0) {
        return;
    }
    if (w->samples == SAMPLES) {
        for (size_t i = 0; i < SAMPLES / 2; i++) {
            w->us[i] = w->us[2 * i];
        }
        w->samples = SAMPLES / 2;
        *stride *= 2;
    }
    w->us[w->samples++] = (float)us;
}

static int append_all(struct writer *w, int fd, const char *piece)
{
    uint64_t stride = 1;
    double start = bench_now(), end = start;

    while (o.bytes ? w->bytes < o.bytes : end - start < o.seconds) {
        double before = bench_now();
        if (write(fd, piece, o.size) != (ssize_t)o.size || (o.sync && fdatasync(fd) != 0)) {
            return errno ? errno : EIO;
        }
        end = bench_now();
        keep_sample(w, &stride, (end - before) * 1e6);
        w->ops++;
        w->bytes += o.size;
        if (o.rate) {
            bench_sleep((double)w->bytes / (double)o.rate - (end - start));
            end = bench_now();
        }
    }
    w->seconds = end - start;
    return 0;
}

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    char *piece = malloc(o.size);
    int fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);

    w->us = calloc(SAMPLES, sizeof(*w->us));
    if (!piece || !w->us || fd < 0) {
        w->err = fd < 0 ? errno : ENOMEM;
    } else {
        memset(piece, 'a', o.size);
    }
    pthread_barrier_wait(&start_line);
    if (!w->err) {
        w->err = append_all(w, fd, piece);
    }
    if (fd >= 0 && close(fd) != 0 && !w->err) {
        w->err = errno;
    }
    free(piece);
    return NULL;
}

static int report(struct writer *w)
{
    uint64_t ops = 0, bytes = 0;
    size_t samples = 0;
    double rate = 0, seconds = 0;
    float *us;

    assert(o.threads > 0);
    us = calloc(o.threads, SAMPLES * sizeof(*us));
    for (uint64_t i = 0; i < o.threads; i++) {
        if (w[i].err) {
            fprintf(stderr, "appendbench: %s: %s\n", w[i].path, strerror(w[i].err));
            free(us);
            return 1;
        }
        if (us) {
            memcpy(us + samples, w[i].us, w[i].samples * sizeof(*us));
            samples += w[i].samples;
        }
        ops += w[i].ops;
        bytes += w[i].bytes;
        rate += (double)w[i].ops / w[i].seconds;
        seconds = w[i].seconds > seconds ? w[i].seconds : seconds;
    }
    if (!us) {
        return 1;
    }
    bench_sort(us, samples);
    printf("{\"ops\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"seconds\":%.4f,\"ops_per_s\":%.1f,"
           "\"mb_per_s\":%.2f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"p999_us\":%.2f,\"max_us\":%.2f,"
           "\"cpu_s\":%.3f}\n",
           ops, bytes, seconds, rate, rate * (double)o.size / 1e6, bench_quantile(us, samples, 0.5),
           bench_quantile(us, samples, 0.99), bench_quantile(us, samples, 0.999),
           bench_quantile(us, samples, 1), bench_cpu());
    free(us);
    return 0;
}

static bool parse(int argc, char **argv)
{
    enum { SIZE = 1, BYTES, THREADS, RATE, SECONDS, SYNC, KEEP };
    static const struct option longs[] = {
        {"size", required_argument, NULL, SIZE},
        {"bytes", required_argument, NULL, BYTES},
        {"threads", required_argument, NULL, THREADS},
        {"rate", required_argument, NULL, RATE},
        {"seconds", required_argument, NULL, SECONDS},
        {"fdatasync", no_argument, NULL, SYNC},
        {"keep", no_argument, NULL, KEEP},
        {0},
    };
    uint64_t *sizes[] = {
        [SIZE] = &o.size, [BYTES] = &o.bytes, [THREADS] = &o.threads, [RATE] = &o.rate};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == SECONDS) {
            o.seconds = strtod(optarg, NULL);
        } else if (c == SYNC) {
            o.sync = true;
        } else if (c == KEEP) {
            o.keep = true;
        } else if (c < SIZE || c > RATE || !bench_size(optarg, sizes[c])) {
            return false;
        }
    }
    o.file = argv[optind];
    return optind + 1 == argc && o.size > 0 && o.threads > 0 && o.threads <= MAX_THREADS &&
           (o.bytes > 0 || o.seconds > 0);
}

int main(int argc, char **argv)
{
    struct writer *w;
    int status;

    if (!parse(argc, argv)) {
        fputs("usage: appendbench FILE [--size B] [--bytes N | --seconds S] [--fdatasync]\n"
              "                   [--threads T] [--rate B/s] [--keep]\n",
              stderr);
        return 2;
    }
    w = calloc(o.threads, sizeof(*w));
    if (!w || pthread_barrier_init(&start_line, NULL, (unsigned)o.threads) != 0) {
        free(w);
        return 1;
    }
    for (uint64_t i = 0; i < o.threads; i++) {
        int n = o.threads == 1 ? snprintf(w[i].path, sizeof(w[i].path), "%s", o.file)
                               : snprintf(w[i].path, sizeof(w[i].path), "%s.%" PRIu64, o.file, i);
        if (n < 0 || (size_t)n >= sizeof(w[i].path) ||
            pthread_create(&w[i].thread, NULL, writer_main, &w[i]) != 0) {
            fputs("appendbench: cannot start the writers\n", stderr);
            exit(1);
        }
    }
    for (uint64_t i = 0; i < o.threads; i++) {
        pthread_join(w[i].thread, NULL);
    }
    status = report(w);
    for (uint64_t i = 0; i < o.threads; i++) {
        if (!o.keep) {
            unlink(w[i].path);
        }
        free(w[i].us);
    }
    free(w);
    return status;
}
