/* objtest.h: what the tests of the object store share: a temporary directory, a pump for the memory
 * store, and one-line requests that wait. Header only; every failure aborts the test. */
#ifndef SLUICE_TESTS_OBJTEST_H
#define SLUICE_TESTS_OBJTEST_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/hash.h"
#include "fs/base/stats.h"
#include "objstore/fault.h"
#include "objstore/mem.h"
#include "objstore/objstore.h"
#include "objstore/stack.h"

struct objtest {
    struct objstore *os;
    struct store_conf conf;
    struct exec *pool;
    struct timers *timers;
    struct stats *stats;
    char dir[256]; /* of the test; the store is `dir`/store */
    pthread_t pump;
    bool pumping;
    atomic_bool stop;
};

static inline void ot_sleep_ms(long ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

static inline int ot_rm(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void ot_tmp_dir(char *buf, size_t cap)
{
    const char *base = getenv("TMPDIR");
    snprintf(buf, cap, "%s/objtest-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(buf))
        abort();
}

static inline void ot_rm_dir(const char *path)
{
    (void)nftw(path, ot_rm, 16, FTW_DEPTH | FTW_PHYS);
}

/* The memory store has no thread: this one steps it. */
static inline void *ot_pump(void *arg)
{
    struct objtest *t = arg;
    while (!atomic_load(&t->stop))
        if (!mem_step(t->os))
            ot_sleep_ms(1);
    return NULL;
}

static inline void ot_prepare(struct objtest *t, enum store_kind kind)
{
    memset(t, 0, sizeof *t);
    ot_tmp_dir(t->dir, sizeof t->dir);
    if (exec_open("pool", 4, 0, &t->pool) || timers_open(true, &t->timers) || stats_open(&t->stats))
        abort();
    t->conf = (struct store_conf){.stats = t->stats,
                                  .timers = t->timers,
                                  .device_pool = t->pool,
                                  .fault_plan = "",
                                  .backoff_min_ms = 2,
                                  .backoff_max_ms = 20};
    t->conf.url.kind = kind;
    snprintf(t->conf.url.path, sizeof t->conf.url.path, "%s/store", t->dir);
}

static inline void ot_open(struct objtest *t)
{
    char why[300];
    int r = store_open(&t->conf, &t->os, why, sizeof why);
    if (r < 0) {
        fprintf(stderr, "store_open: %s\n", why);
        abort();
    }
    if (t->conf.url.kind == STORE_MEM) {
        atomic_store(&t->stop, false);
        if (pthread_create(&t->pump, NULL, ot_pump, t))
            abort();
        t->pumping = true;
    }
}

static inline void ot_shut(struct objtest *t)
{
    if (t->pumping) {
        atomic_store(&t->stop, true);
        pthread_join(t->pump, NULL);
        t->pumping = false;
    }
    obj_close(t->os);
    t->os = NULL;
}

static inline void ot_done(struct objtest *t)
{
    if (t->os)
        ot_shut(t);
    timers_close(t->timers);
    exec_close(t->pool);
    stats_close(t->stats);
    ot_rm_dir(t->dir);
}

/* ---- requests ---- */

static inline int64_t ot_deadline(int ms)
{
    return clock_mono_ns() + ms * NS_PER_MS;
}

static inline int ot_put(struct objstore *os, const char *key, const void *p, size_t len,
                         unsigned flags, const char *etag, struct obj_req *ret)
{
    struct obj_body b = {.mem = len ? p : "", .fd = -1, .len = len};
    struct obj_req r = {.op = OBJ_PUT,
                        .key = key,
                        .flags = flags,
                        .etag = etag,
                        .body = &b,
                        .body_n = 1,
                        .deadline_ns = ot_deadline(20000)};
    if (flags & OBJ_HAS_SHA256)
        sha256_once(p, len, r.sha256);
    int e = obj_run(os, &r);
    if (ret)
        *ret = r;
    return e;
}

static inline int ot_get(struct objstore *os, const char *key, uint64_t off, void *p, size_t len,
                         struct obj_req *ret)
{
    struct iovec iov = {.iov_base = p, .iov_len = len};
    struct obj_req r = {.op = OBJ_GET,
                        .key = key,
                        .off = off,
                        .len = len,
                        .iov = &iov,
                        .iov_n = 1,
                        .deadline_ns = ot_deadline(20000)};
    int e = obj_run(os, &r);
    if (ret)
        *ret = r;
    return e;
}

static inline int ot_head(struct objstore *os, const char *key, struct obj_info *ret)
{
    struct obj_req r = {.op = OBJ_HEAD, .key = key, .deadline_ns = ot_deadline(20000)};
    int e = obj_run(os, &r);
    if (ret)
        *ret = r.info;
    return e;
}

static inline int ot_delete(struct objstore *os, const char *key, unsigned flags, const char *etag)
{
    struct obj_req r = {.op = OBJ_DELETE,
                        .key = key,
                        .flags = flags,
                        .etag = etag,
                        .deadline_ns = ot_deadline(20000)};
    return obj_run(os, &r);
}

/* Rows as "key:size " text, one after another. */
struct ot_rows {
    char text[8192];
    unsigned n;
    char last_upload[OBJ_UPLOAD_ID_MAX];
};

static inline void ot_each(struct obj_req *r, const struct obj_entry *e)
{
    struct ot_rows *rows = r->arg;
    size_t at = strlen(rows->text);
    snprintf(rows->text + at, sizeof rows->text - at, "%s:%llu ", e->key,
             (unsigned long long)e->size);
    if (e->upload_id)
        snprintf(rows->last_upload, sizeof rows->last_upload, "%s", e->upload_id);
    rows->n++;
}

struct ot_async {
    struct obj_req r;
    struct obj_body body;
    struct iovec iov;
    atomic_int done; /* how often `done` ran */
    atomic_ullong got;
    struct ot_rows rows;
};

static inline void ot_async_done(struct obj_req *r)
{
    struct ot_async *a = container_of(r, struct ot_async, r);
    atomic_fetch_add(&a->done, 1);
}

static inline void ot_async_progress(struct obj_req *r, uint64_t got)
{
    struct ot_async *a = container_of(r, struct ot_async, r);
    atomic_store(&a->got, got);
}

/* Waits for a condition, at most 10 s. */
#define ot_until(cond)                                                                 \
    do {                                                                               \
        int ot_left_ = 10000;                                                          \
        while (!(cond) && ot_left_-- > 0)                                              \
            ot_sleep_ms(1);                                                            \
        if (!(cond)) {                                                                 \
            fprintf(stderr, "%s:%d: waited in vain: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

static inline void ot_start(struct objstore *os, struct ot_async *a, enum obj_op op,
                            const char *key, unsigned flags, void *p, size_t len)
{
    memset(&a->r, 0, sizeof a->r);
    a->r.op = op;
    a->r.key = key;
    a->r.flags = flags;
    a->r.done = ot_async_done;
    if (op == OBJ_PUT) {
        a->body = (struct obj_body){.mem = len ? p : "", .fd = -1, .len = len};
        a->r.body = &a->body;
        a->r.body_n = 1;
    } else if (op == OBJ_GET) {
        a->iov = (struct iovec){.iov_base = p, .iov_len = len};
        a->r.iov = &a->iov;
        a->r.iov_n = 1;
        a->r.len = len;
        a->r.progress = ot_async_progress;
    }
    atomic_store(&a->done, 0);
    atomic_store(&a->got, 0);
    obj_submit(os, &a->r);
}

static inline int ot_list(struct objstore *os, const char *prefix, const char *after,
                          const char *token, unsigned max, struct ot_rows *rows, char **ret_token)
{
    struct ot_async a;
    struct ot_rows *out = rows;
    memset(&a, 0, sizeof a);
    memset(rows, 0, sizeof *rows);
    /* obj_run takes `arg`, so this waits by itself. */
    a.r = (struct obj_req){.op = OBJ_LIST,
                           .key = prefix,
                           .start_after = after,
                           .token = token,
                           .max_keys = max,
                           .each = ot_each,
                           .done = ot_async_done,
                           .arg = out,
                           .deadline_ns = ot_deadline(20000)};
    obj_submit(os, &a.r);
    ot_until(atomic_load(&a.done));
    if (ret_token) {
        *ret_token = a.r.next_token;
        a.r.next_token = NULL;
    }
    obj_req_done(&a.r);
    return a.r.err;
}

static inline int ot_mp_list(struct objstore *os, const char *prefix, struct ot_rows *rows)
{
    struct ot_async a;
    memset(&a, 0, sizeof a);
    memset(rows, 0, sizeof *rows);
    a.r = (struct obj_req){.op = OBJ_MP_LIST,
                           .key = prefix,
                           .each = ot_each,
                           .done = ot_async_done,
                           .arg = rows,
                           .deadline_ns = ot_deadline(20000)};
    obj_submit(os, &a.r);
    ot_until(atomic_load(&a.done));
    obj_req_done(&a.r);
    return a.r.err;
}

#endif
