/* test_s3_real.c: the S3 backend against a real server.
 *
 *     test_s3_real s3://BUCKET/PREFIX?endpoint=... [bench | untrusted]
 *
 * The bucket must exist; the key comes from the environment. Everything is written under a fresh
 * prefix and removed again. Prints one line per failed check and "N passed, N failed".
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "fs/base/clock.h"
#include "fs/base/cleanup.h"
#include "fs/base/lock.h"
#include "objstore/stack.h"

static unsigned passed, failed;

#define CHECK(cond, ...)                                            \
    do {                                                            \
        if (cond) {                                                 \
            passed++;                                               \
        } else {                                                    \
            failed++;                                               \
            printf("FAILED %s:%d %s: ", __func__, __LINE__, #cond); \
            printf(__VA_ARGS__);                                    \
            printf("\n");                                           \
        }                                                           \
    } while (0)

static struct objstore *store;
static struct store_conf conf;
static char diag_buf[512];

static const char *diag(const struct obj_req *r)
{
    return obj_diag_text(r, diag_buf, sizeof(diag_buf));
}

static struct objstore *open_store(const struct store_conf *c)
{
    char why[256];
    struct objstore *os;

    if (s3_open(c, &os, why, sizeof(why)) < 0) {
        printf("cannot open: %s\n", why);
        exit(1);
    }
    return os;
}

/* ---- many requests at once ---- */

struct batch {
    struct lock lock;
    pthread_cond_t ended;
    unsigned left;
};

static void batch_done(struct obj_req *r)
{
    struct batch *b = r->arg;
    LOCK_SCOPE(&b->lock);
    b->left--;
    pthread_cond_signal(&b->ended);
}

static void batch_start(struct batch *b, struct objstore *os, struct obj_req *r, unsigned n)
{
    lock_init(&b->lock, "batch", RANK_STORE, false);
    cond_init(&b->ended);
    b->left = n;
    for (unsigned i = 0; i < n; i++) {
        r[i].done = batch_done;
        r[i].arg = b;
        obj_submit(os, &r[i]);
    }
}

static void batch_wait(struct batch *b)
{
    lock_acquire(&b->lock);
    while (b->left)
        lock_wait(&b->lock, &b->ended);
    lock_release(&b->lock);
    pthread_cond_destroy(&b->ended);
    lock_destroy(&b->lock);
}

static void run_all(struct objstore *os, struct obj_req *r, unsigned n)
{
    struct batch b;
    batch_start(&b, os, r, n);
    batch_wait(&b);
}

static void no_done(struct obj_req *r)
{
    (void)r;
}

static int run(struct objstore *os, struct obj_req *r)
{
    r->done = no_done;
    return obj_run(os, r);
}

/* ---- short forms ---- */

static int put(const char *key, const void *p, size_t n, unsigned flags, const char *etag,
               struct obj_req *out)
{
    struct obj_body body = {.mem = p, .len = n};
    struct obj_req r = {
        .op = OBJ_PUT, .key = key, .body = &body, .body_n = 1, .flags = flags, .etag = etag};
    int err = run(store, &r);
    if (out)
        *out = r;
    return err;
}

static int get(struct objstore *os, const char *key, uint64_t off, void *p, size_t n,
               struct obj_req *out)
{
    struct iovec v = {p, n};
    struct obj_req r = {.op = OBJ_GET, .key = key, .off = off, .len = n, .iov = &v, .iov_n = 1};
    int err = run(os, &r);
    if (out)
        *out = r;
    return err;
}

static int head(const char *key, uint64_t *size)
{
    struct obj_req r = {.op = OBJ_HEAD, .key = key};
    int err = run(store, &r);
    if (size)
        *size = r.info.size;
    return err;
}

static int del(const char *key)
{
    struct obj_req r = {.op = OBJ_DELETE, .key = key};
    return run(store, &r);
}

static void *pattern(size_t n, unsigned seed)
{
    uint32_t *p = malloc(n + 4);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n / 4 + 1; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        p[i] = x;
    }
    return p;
}

/* ---- the checks ---- */

static void small_objects(void)
{
    char buf[64] = {0};
    uint64_t size = 99;
    struct obj_req r;

    CHECK(put("small", "hello world", 11, 0, NULL, &r) == 0, "%s", diag(&r));
    CHECK(r.info.etag[0] == '"', "%s", r.info.etag);
    CHECK(get(store, "small", 0, buf, 11, &r) == 0 && !memcmp(buf, "hello world", 11), "%s",
          diag(&r));
    CHECK(r.info.size == 11, "%llu", (unsigned long long)r.info.size);
    CHECK(get(store, "small", 4, buf, 3, &r) == 0 && !memcmp(buf, "o w", 3), "%s", diag(&r));
    CHECK(r.info.size == 11, "%llu", (unsigned long long)r.info.size);
    CHECK(head("small", &size) == 0 && size == 11, "%llu", (unsigned long long)size);
    CHECK(put("small", "", 0, 0, NULL, &r) == 0, "%s", diag(&r));
    CHECK(head("small", &size) == 0 && size == 0, "%llu", (unsigned long long)size);
    CHECK(put("small", "0123456789", 10, 0, NULL, NULL) == 0, "overwrite");
    memset(buf, 'x', sizeof(buf));
    CHECK(get(store, "small", 5, buf, 10, &r) == -EBADMSG, "range over the end: %s", diag(&r));
    CHECK(get(store, "small", 100, buf, 10, &r) == -EBADMSG, "range behind it: %s", diag(&r));
    CHECK(buf[0] == 'x', "bytes of a failed read were placed");
    CHECK(get(store, "missing", 0, buf, 4, &r) == -ENOENT && r.diag.http_status == 404, "%s",
          diag(&r));
    CHECK(strcmp(r.diag.code, "NoSuchKey") == 0, "%s", r.diag.code);
    CHECK(head("missing", NULL) == -ENOENT, "head of nothing");
    CHECK(del("small") == 0, "delete");
    CHECK(del("small") == 0, "delete of nothing");
    CHECK(head("small", NULL) == -ENOENT, "deleted");
}

/* Of the request that is running: obj_run has the request's arg for itself. */
static struct {
    uint64_t last;
    unsigned calls;
    bool back;
} watch;

static void on_progress(struct obj_req *r, uint64_t got)
{
    (void)r;
    watch.back = watch.back || got <= watch.last;
    watch.last = got;
    watch.calls++;
}

static void large_objects(void)
{
    enum { SIZE = 9 * 1024 * 1024 + 123 };
    uint8_t *data = pattern(SIZE, 1);
    uint8_t *back = calloc(1, SIZE);
    char path[] = "/tmp/s3real-XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    if (pwrite(fd, data + 100000, SIZE - 200000, 7) != SIZE - 200000)
        abort();
    struct obj_body body[] = {
        {.mem = data, .len = 100000},
        {.fd = fd, .off = 7, .len = SIZE - 200000},
        {.mem = data + SIZE - 100000, .len = 100000},
    };
    struct obj_req r = {
        .op = OBJ_PUT, .key = "large", .body = body, .body_n = 3, .flags = OBJ_HAS_SHA256};
    sha256_once(data, SIZE, r.sha256);
    CHECK(run(store, &r) == 0, "%s", diag(&r));
    r.flags = 0; /* unsigned payload */
    r.key = "large2";
    CHECK(run(store, &r) == 0, "%s", diag(&r));

    struct iovec v[] = {
        {back, 1}, {back + 1, 999999}, {back + 1000000, 4096}, {back + 1004096, SIZE - 1004096}};
    struct obj_req g = {
        .op = OBJ_GET, .key = "large", .len = SIZE, .iov = v, .iov_n = 4, .progress = on_progress};
    CHECK(run(store, &g) == 0 && memcmp(data, back, SIZE) == 0, "%s", diag(&g));
    CHECK(g.info.size == SIZE, "%llu", (unsigned long long)g.info.size);
    CHECK(watch.calls > 10 && !watch.back && watch.last == SIZE, "%u calls", watch.calls);
    memset(back, 0, SIZE);
    CHECK(get(store, "large2", 1234567, back, 3000000, &g) == 0 &&
              memcmp(data + 1234567, back, 3000000) == 0,
          "%s", diag(&g));
    /* A file that is shorter than the range that shall be sent. With the hash of the whole: one
     * server stores what has come of an upload that was cut when it has nothing to check it by. */
    body[1].len = SIZE;
    r.key = "large3";
    r.flags = OBJ_HAS_SHA256;
    CHECK(run(store, &r) == -EIO && !r.diag.retryable, "%s", diag(&r));
    CHECK(head("large3", NULL) == -ENOENT, "a cut upload was stored");
    free(data);
    free(back);
    close(fd);
    del("large");
    del("large2");
}

static char (*seen)[32];
static unsigned seen_n;
static bool order_broken;

static void on_row(struct obj_req *r, const struct obj_entry *e)
{
    (void)r;
    if (seen_n && strcmp(seen[seen_n - 1], e->key) >= 0)
        order_broken = true;
    if (seen_n < 3000)
        snprintf(seen[seen_n], 32, "%s", e->key);
    seen_n++;
}

/* All pages; how many there were. */
static unsigned list_all(const char *prefix, const char *after, unsigned max)
{
    char *token = NULL;
    unsigned pages = 0;
    int err;

    seen_n = 0;
    order_broken = false;
    do {
        struct obj_req r = {.op = OBJ_LIST,
                            .key = prefix,
                            .start_after = after,
                            .token = token,
                            .max_keys = max,
                            .each = on_row};
        err = run(store, &r);
        CHECK(err == 0, "%s", diag(&r));
        free(token);
        token = r.next_token;
        r.next_token = NULL;
        obj_req_done(&r);
        pages++;
    } while (!err && token);
    free(token);
    return pages;
}

static void listings(void)
{
    enum { N = 2500 };
    static char names[N][16];
    static const char *keys[N];
    struct obj_req *r = calloc(N, sizeof(*r));
    struct obj_body body = {.mem = "x", .len = 1};
    unsigned bad = 0;

    seen = calloc(3000, 32);
    for (unsigned i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "many/k%05u", i);
        keys[i] = names[i];
        r[i] = (struct obj_req){.op = OBJ_PUT, .key = names[i], .body = &body, .body_n = 1};
    }
    run_all(store, r, N);
    for (unsigned i = 0; i < N; i++)
        bad += r[i].err != 0;
    CHECK(bad == 0, "%u of %u puts failed", bad, N);
    CHECK(list_all("many/", NULL, 0) == 3, "pages");
    CHECK(seen_n == N && !order_broken, "%u rows", seen_n);
    CHECK(strcmp(seen[0], "many/k00000") == 0 && strcmp(seen[N - 1], "many/k02499") == 0, "ends");
    CHECK(list_all("many/k000", NULL, 7) == 15 && seen_n == 100, "%u rows", seen_n);
    CHECK(list_all("many/", "many/k02489", 0) == 1 && seen_n == 10, "%u rows", seen_n);
    CHECK(list_all("none/", NULL, 0) == 1 && seen_n == 0, "%u rows", seen_n);
    CHECK(list_all(NULL, NULL, 0) == 3 && seen_n == N, "%u rows", seen_n);
    for (unsigned i = 0; i < N; i += OBJ_BATCH_MAX) {
        struct obj_req d = {.op = OBJ_DELETE_BATCH,
                            .keys = keys + i,
                            .keys_n = N - i < OBJ_BATCH_MAX ? N - i : OBJ_BATCH_MAX};
        CHECK(run(store, &d) == 0 && d.failed_n == 0, "%s, %u failed", diag(&d), d.failed_n);
        if (i == 0)
            CHECK(run(store, &d) == 0 && d.failed_n == 0, "again: %s", diag(&d));
    }
    list_all("many/", NULL, 0);
    CHECK(seen_n == 0, "%u rows left", seen_n);
    free(r);
}

static void conditions(void)
{
    struct obj_req r;
    char old[OBJ_ETAG_MAX];

    CHECK(put("cond", "one", 3, OBJ_IF_ABSENT, NULL, &r) == 0, "%s", diag(&r));
    memcpy(old, r.info.etag, sizeof(old));
    CHECK(put("cond", "two", 3, OBJ_IF_ABSENT, NULL, &r) == -EEXIST, "%s", diag(&r));
    CHECK(!r.diag.retryable && !r.diag.unknown_outcome && r.diag.http_status == 412, "%s",
          diag(&r));
    CHECK(put("cond", "two", 3, OBJ_IF_MATCH, old, &r) == 0, "%s", diag(&r));
    CHECK(put("cond", "three", 5, OBJ_IF_MATCH, old, &r) == -EEXIST, "%s", diag(&r));
    char buf[3];
    struct iovec v = {buf, 3};
    struct obj_req g = {.op = OBJ_GET,
                        .key = "cond",
                        .len = 3,
                        .iov = &v,
                        .iov_n = 1,
                        .flags = OBJ_IF_MATCH,
                        .etag = old};
    CHECK(run(store, &g) == -EEXIST, "%s", diag(&g));
    CHECK(get(store, "cond", 0, buf, 3, &g) == 0 && !memcmp(buf, "two", 3), "%s", diag(&g));
    del("cond");

    for (int round = 0; round < 3; round++) {
        struct obj_req race[8];
        struct obj_body body[8];
        char text[8][8];
        char key[32];
        unsigned winners = 0;
        unsigned others = 0;
        unsigned winner = 9;
        snprintf(key, sizeof(key), "race%d", round);
        for (unsigned i = 0; i < 8; i++) {
            snprintf(text[i], 8, "racer%u", i);
            body[i] = (struct obj_body){.mem = text[i], .len = 6};
            race[i] = (struct obj_req){
                .op = OBJ_PUT, .key = key, .body = &body[i], .body_n = 1, .flags = OBJ_IF_ABSENT};
        }
        run_all(store, race, 8);
        for (unsigned i = 0; i < 8; i++) {
            if (race[i].err == 0) {
                winner = i;
                winners++;
            } else if (race[i].err != -EEXIST && !race[i].diag.retryable) {
                others++;
            }
        }
        char back[6] = "";
        CHECK(winners == 1 && others == 0, "%u winners, %u other errors", winners, others);
        CHECK(get(store, key, 0, back, 6, NULL) == 0 && winner < 8 &&
                  !memcmp(back, text[winner], 6),
              "%.6s", back);
        del(key);
    }
}

/* Over TLS the answer of a server that refuses early and resets can be lost with the connection. */
static bool refused_as(const struct obj_req *r, int err, int status)
{
    bool tls = strncmp(conf.url.endpoint, "https:", 6) == 0;

    if (tls && r->err == -EIO && r->diag.http_status == 0)
        return r->diag.retryable && r->diag.unknown_outcome;
    return r->err == err && r->diag.http_status == status && !r->diag.retryable;
}

static unsigned uploads_n;
static char upload_seen[OBJ_UPLOAD_ID_MAX];
static int64_t upload_ms;

static void on_upload(struct obj_req *r, const struct obj_entry *e)
{
    (void)r;
    if (strcmp(e->key, "mp/a") == 0) {
        snprintf(upload_seen, sizeof(upload_seen), "%s", e->upload_id);
        upload_ms = e->modified_ms;
    }
    uploads_n++;
}

static void multipart(void)
{
    enum { PART = 5 * 1024 * 1024, TAIL = 777 };
    uint8_t *data = pattern(2 * PART + TAIL, 2);
    uint8_t *back = calloc(1, 2 * PART + TAIL);
    char etags[3][OBJ_ETAG_MAX];
    const char *etag_list[3] = {etags[0], etags[1], etags[2]};
    struct obj_req r = {.op = OBJ_MP_CREATE, .key = "mp/a"};

    CHECK(run(store, &r) == 0 && r.new_upload_id, "%s", diag(&r));
    char *id = r.new_upload_id;
    if (!id)
        return;
    struct obj_req l = {.op = OBJ_MP_LIST, .key = "mp/", .each = on_upload};
    CHECK(run(store, &l) == 0 && uploads_n == 1 && strcmp(upload_seen, id) == 0, "%s, %u uploads",
          diag(&l), uploads_n);
    CHECK(llabs(upload_ms - clock_wall_ns() / NS_PER_MS) < 3600000, "%lld", (long long)upload_ms);
    obj_req_done(&l);
    struct obj_req part[3];
    struct obj_body body[3];
    for (unsigned i = 0; i < 3; i++) {
        body[i] = (struct obj_body){.mem = data + i * PART, .len = i < 2 ? PART : TAIL};
        part[i] = (struct obj_req){.op = OBJ_MP_PART,
                                   .key = "mp/a",
                                   .upload_id = id,
                                   .part_no = i + 1,
                                   .body = &body[i],
                                   .body_n = 1,
                                   .flags = OBJ_HAS_SHA256};
        sha256_once(body[i].mem, body[i].len, part[i].sha256);
    }
    part[0].sha256[0] ^= 1;
    struct obj_req wrong = part[0];
    CHECK(run(store, &wrong) == -EBADMSG, "a part with a wrong hash: %s", diag(&wrong));
    part[0].sha256[0] ^= 1;
    run_all(store, part, 3);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(part[i].err == 0, "%s", diag(&part[i]));
        memcpy(etags[i], part[i].info.etag, OBJ_ETAG_MAX);
    }
    CHECK(head("mp/a", NULL) == -ENOENT, "there before it is complete");
    struct obj_req c = {.op = OBJ_MP_COMPLETE,
                        .key = "mp/a",
                        .upload_id = id,
                        .part_etags = etag_list,
                        .parts_n = 3};
    CHECK(run(store, &c) == 0 && strstr(c.info.etag, "-3"), "%s %s", diag(&c), c.info.etag);
    struct obj_req g;
    CHECK(get(store, "mp/a", 0, back, 2 * PART + TAIL, &g) == 0 &&
              memcmp(data, back, 2 * PART + TAIL) == 0,
          "%s", diag(&g));
    free(id);

    r = (struct obj_req){.op = OBJ_MP_CREATE, .key = "mp/a"};
    CHECK(run(store, &r) == 0, "%s", diag(&r));
    id = r.new_upload_id;
    struct obj_req p = {
        .op = OBJ_MP_PART, .key = "mp/a", .upload_id = id, .part_no = 1, .body = body, .body_n = 1};
    CHECK(run(store, &p) == 0, "%s", diag(&p));
    memcpy(etags[0], p.info.etag, OBJ_ETAG_MAX);
    c = (struct obj_req){.op = OBJ_MP_COMPLETE,
                         .key = "mp/a",
                         .upload_id = id,
                         .part_etags = etag_list,
                         .parts_n = 1,
                         .flags = OBJ_IF_ABSENT};
    CHECK(run(store, &c) == -EEXIST, "completing over an object: %s", diag(&c));
    struct obj_req a = {.op = OBJ_MP_ABORT, .key = "mp/a", .upload_id = id};
    CHECK(run(store, &a) == 0, "%s", diag(&a));
    CHECK(run(store, &a) == 0, "abort again: %s", diag(&a));
    run(store, &p);
    CHECK(refused_as(&p, -ENOENT, 404), "a part after the abort: %s", diag(&p));
    free(id);
    /* Under a key that holds no object: one server takes the completion of an upload that is gone
     * for a repeated one when there is an object. */
    r = (struct obj_req){.op = OBJ_MP_CREATE, .key = "mp/b"};
    CHECK(run(store, &r) == 0, "%s", diag(&r));
    id = r.new_upload_id;
    a.key = c.key = "mp/b";
    a.upload_id = c.upload_id = id;
    c.flags = 0;
    CHECK(run(store, &a) == 0, "%s", diag(&a));
    CHECK(run(store, &c) == -ENOENT, "completion after the abort: %s", diag(&c));
    free(id);
    free(data);
    free(back);
    del("mp/a");
}

static void wrong_hash(void)
{
    struct obj_body body = {.mem = "what was sent", .len = 13};
    struct obj_req r = {
        .op = OBJ_PUT, .key = "hash", .body = &body, .body_n = 1, .flags = OBJ_HAS_SHA256};
    sha256_once("what was meant", 14, r.sha256);
    CHECK(run(store, &r) == -EBADMSG && !r.diag.retryable, "%s", diag(&r));
    CHECK(head("hash", NULL) == -ENOENT, "stored all the same");
}

static void odd_keys(void)
{
    static const char *const keys[] = {
        "odd/space key",         "odd/plus+key",
        "odd/percent%41",        "odd/tilde~",
        "odd/quote'\"",          "odd/amp&lt;",
        "odd/question?x=",       "odd/hash#1",
        "odd/<angle>",           "odd/star*",
        "odd/tab\tkey",          "odd/new\nline",
        "odd/\xc3\xa9t\xc3\xa9", "odd/\xe6\x97\xa5\xe6\x9c\xac",
        "odd/a=b;c,d:e@f$g!",    "odd/(paren)[br]{cu}|^`",
    };
    enum { N = sizeof(keys) / sizeof(keys[0]) };
    for (unsigned i = 0; i < N; i++) {
        struct obj_req r;
        char back[64] = "";
        size_t n = strlen(keys[i]);
        CHECK(put(keys[i], keys[i], n, 0, NULL, &r) == 0, "%s: %s", keys[i], diag(&r));
        CHECK(get(store, keys[i], 0, back, n, &r) == 0 && !memcmp(back, keys[i], n), "%s: %s",
              keys[i], diag(&r));
    }
    list_all("odd/", NULL, 5);
    CHECK(seen_n == N, "%u rows of %u", seen_n, N);
    for (unsigned i = 0; i < N; i++) {
        bool found = false;
        for (unsigned j = 0; j < seen_n; j++)
            found = found || strcmp(seen[j], keys[i]) == 0;
        CHECK(found, "%s is not listed", keys[i]);
    }
    struct obj_req d = {.op = OBJ_DELETE_BATCH, .keys = keys, .keys_n = N};
    CHECK(run(store, &d) == 0, "%s", diag(&d));
    list_all("odd/", NULL, 0);
    CHECK(seen_n == 0, "%u rows left", seen_n);
}

static void refused(void)
{
    enum { SIZE = 20 * 1024 * 1024, ROUNDS = 10 };
    uint8_t *data = pattern(SIZE, 3);
    char secret[256];
    char id[256];
    snprintf(secret, sizeof(secret), "%s", getenv("AWS_SECRET_ACCESS_KEY"));
    snprintf(id, sizeof(id), "%s", getenv("AWS_ACCESS_KEY_ID"));
    setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret", 1);
    struct objstore *other = open_store(&conf);
    setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
    struct obj_body body = {.mem = data, .len = SIZE};
    for (int i = 0; i < ROUNDS; i++) {
        struct obj_req r = {.op = OBJ_PUT, .key = "refused", .body = &body, .body_n = 1};
        run(other, &r);
        CHECK(refused_as(&r, -EACCES, 403), "%s", diag(&r));
    }
    obj_close(other);
    CHECK(head("refused", NULL) == -ENOENT, "stored all the same");

    setenv("AWS_ACCESS_KEY_ID", "nobody", 1);
    other = open_store(&conf);
    setenv("AWS_ACCESS_KEY_ID", id, 1);
    char buf[4];
    struct obj_req r;
    CHECK(get(other, "x", 0, buf, 4, &r) == -EACCES && !r.diag.retryable, "%s", diag(&r));
    obj_close(other);

    struct store_conf none = conf;
    snprintf(none.url.bucket, sizeof(none.url.bucket), "no-such-bucket-here");
    other = open_store(&none);
    CHECK(get(other, "x", 0, buf, 4, &r) == -ENODEV && !strcmp(r.diag.code, "NoSuchBucket"), "%s",
          diag(&r));
    obj_close(other);

    /* A large conditional upload that is refused. */
    CHECK(put("there", "x", 1, 0, NULL, NULL) == 0, "put");
    for (int i = 0; i < 3; i++) {
        put("there", data, SIZE, OBJ_IF_ABSENT, NULL, &r);
        CHECK(refused_as(&r, -EEXIST, 412), "%s", diag(&r));
    }
    del("there");
    free(data);
}

static void cancels(void)
{
    enum { N = 200, SIZE = 4 * 1024 * 1024 };
    uint8_t *data = pattern(SIZE, 4);
    struct obj_req *r = calloc(N, sizeof(*r));
    struct iovec v = {data, SIZE};
    struct batch b;
    unsigned cancelled = 0;
    unsigned ok = 0;

    CHECK(put("cancel", data, SIZE, 0, NULL, NULL) == 0, "put");
    for (unsigned i = 0; i < N; i++)
        r[i] = (struct obj_req){.op = OBJ_GET,
                                .key = "cancel",
                                .len = SIZE,
                                .iov = &v,
                                .iov_n = 1,
                                .flags = i % 3 ? 0 : OBJ_URGENT};
    batch_start(&b, store, r, N);
    /* Cancelling a request that is done is a mistake: the lock holds `done` back meanwhile. */
    lock_acquire(&b.lock);
    unsigned left = b.left;
    lock_release(&b.lock);
    (void)left;
    for (unsigned i = N; i-- > N / 2;)
        obj_cancel(store, &r[i]);
    batch_wait(&b);
    for (unsigned i = 0; i < N; i++) {
        cancelled += r[i].err == -ECANCELED;
        ok += r[i].err == 0;
    }
    CHECK(cancelled + ok == N && cancelled > 0 && ok >= N / 2, "%u cancelled, %u ok", cancelled,
          ok);
    /* Closing ends what is under way. */
    struct objstore *other = open_store(&conf);
    for (unsigned i = 0; i < N; i++)
        r[i].err = 1;
    batch_start(&b, other, r, N);
    obj_close(other);
    CHECK(b.left == 0, "%u never ended", b.left);
    batch_wait(&b);
    free(r);
    free(data);
    del("cancel");
}

/* A server that takes connections and never answers. */
static void timeouts(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, 64) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        abort();
    struct store_conf c = conf;
    snprintf(c.url.endpoint, sizeof(c.url.endpoint), "http://127.0.0.1:%u", ntohs(a.sin_port));
    c.url.path_style = true;
    c.timeout_get_ms = c.timeout_put_ms = c.timeout_small_ms = 300;
    struct objstore *mute = open_store(&c);
    char buf[4];
    struct obj_req r;
    int64_t t = clock_mono_ns();
    CHECK(get(mute, "x", 0, buf, 4, &r) == -ETIMEDOUT && r.diag.retryable &&
              !r.diag.unknown_outcome,
          "%s", diag(&r));
    CHECK(clock_mono_ns() - t < 5 * NS_PER_SEC, "took too long");
    struct obj_body body = {.mem = "abc", .len = 3};
    r = (struct obj_req){.op = OBJ_PUT, .key = "x", .body = &body, .body_n = 1};
    CHECK(run(mute, &r) == -ETIMEDOUT && r.diag.unknown_outcome, "%s", diag(&r));
    c.timeout_get_ms = 60000;
    obj_close(mute);
    mute = open_store(&c);
    struct iovec v = {buf, 4};
    t = clock_mono_ns();
    r = (struct obj_req){.op = OBJ_GET,
                         .key = "x",
                         .len = 4,
                         .iov = &v,
                         .iov_n = 1,
                         .deadline_ns = t + 200 * NS_PER_MS};
    CHECK(run(mute, &r) == -ETIMEDOUT, "%s", diag(&r));
    CHECK(clock_mono_ns() - t < 5 * NS_PER_SEC, "took too long");
    close(fd);
    obj_close(mute);
    mute = open_store(&c);
    r = (struct obj_req){.op = OBJ_PUT, .key = "x", .body = &body, .body_n = 1};
    CHECK(run(mute, &r) == -EIO && r.diag.retryable && !r.diag.unknown_outcome, "%s", diag(&r));
    obj_close(mute);
}

/* Without the server's certificate among the trusted ones. */
static void untrusted(void)
{
    char buf[4];
    struct obj_req r;

    CHECK(get(store, "x", 0, buf, 4, &r) == -EIO && !r.diag.retryable && !r.diag.http_status, "%s",
          diag(&r));
    CHECK(strstr(r.diag.message, "AWS_CA_BUNDLE"), "%s", diag(&r));
}

static void bench(void)
{
    enum { SIZE = 64 * 1024 * 1024, N = 8, SLICE = 4 * 1024 * 1024 };
    uint8_t *data = pattern(SIZE, 5);
    static struct obj_req r[256];
    static char key[N][16];
    static struct iovec v[256];
    struct obj_body body = {.mem = data, .len = SIZE};
    uint8_t *back = malloc(SIZE);
    struct timespec c0, c1;

    for (unsigned i = 0; i < N; i++) {
        snprintf(key[i], sizeof(key[i]), "bench%u", i);
        r[i] = (struct obj_req){.op = OBJ_PUT, .key = key[i], .body = &body, .body_n = 1};
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c0);
    int64_t t = clock_mono_ns();
    run_all(store, r, N);
    double s = (double)(clock_mono_ns() - t) / 1e9;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c1);
    printf("PUT %u x 64 MiB: %.0f MB/s, our CPU %.2f s of %.2f s\n", N, N * SIZE / s / 1e6,
           (double)(c1.tv_sec - c0.tv_sec) + (double)(c1.tv_nsec - c0.tv_nsec) / 1e9, s);
    unsigned n = 0;
    for (unsigned i = 0; i < N; i++)
        for (unsigned j = 0; j < SIZE / SLICE; j++, n++) {
            v[n] = (struct iovec){back + j * SLICE, SLICE};
            r[n] = (struct obj_req){.op = OBJ_GET,
                                    .key = key[i],
                                    .off = j * SLICE,
                                    .len = SLICE,
                                    .iov = &v[n],
                                    .iov_n = 1,
                                    .flags = OBJ_URGENT};
        }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c0);
    t = clock_mono_ns();
    run_all(store, r, n);
    s = (double)(clock_mono_ns() - t) / 1e9;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c1);
    printf("GET %u x 4 MiB: %.0f MB/s, our CPU %.2f s of %.2f s\n", n, n * (double)SLICE / s / 1e6,
           (double)(c1.tv_sec - c0.tv_sec) + (double)(c1.tv_nsec - c0.tv_nsec) / 1e9, s);
    t = clock_mono_ns();
    for (unsigned i = 0; i < 500; i++)
        get(store, key[0], i * 4096, back, 4096, NULL);
    printf("GET 4 KiB, one after the other: %.2f ms\n", (double)(clock_mono_ns() - t) / 500 / 1e6);
    for (unsigned i = 0; i < N; i++)
        del(key[i]);
    free(data);
    free(back);
}

int main(int argc, char **argv)
{
    char why[256];
    uint64_t id;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2) {
        fprintf(stderr, "usage: %s s3://BUCKET/PREFIX?endpoint=URL [bench | untrusted]\n", argv[0]);
        return 2;
    }
    if (!getenv("AWS_SECRET_ACCESS_KEY") || !getenv("AWS_ACCESS_KEY_ID")) {
        printf("skipped: no key in the environment\n");
        return 77;
    }
    if (store_url_parse(argv[1], &conf.url, why, sizeof(why)) < 0) {
        printf("%s\n", why);
        return 2;
    }
    conf.timeout_put_ms = 60000;
    conf.timeout_small_ms = 30000;
    random_bytes(&id, sizeof(id));
    size_t n = strlen(conf.url.prefix);
    snprintf(conf.url.prefix + n, sizeof(conf.url.prefix) - n, "%st-%016llx", n ? "/" : "",
             (unsigned long long)id);
    store = open_store(&conf);
    if (argc > 2 && strcmp(argv[2], "bench") == 0) {
        bench();
    } else if (argc > 2 && strcmp(argv[2], "untrusted") == 0) {
        untrusted();
    } else {
        small_objects();
        large_objects();
        listings();
        conditions();
        multipart();
        wrong_hash();
        odd_keys();
        refused();
        cancels();
        timeouts();
    }
    obj_close(store);
    free(seen);
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
