/* test_cache_source.h: a scripted source for the tests of the slice cache. It holds every span until
 * the test says how it goes on. Bytes are a function of inode and file offset. */
#ifndef TEST_CACHE_SOURCE_H
#define TEST_CACHE_SOURCE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "cache/cache.h"
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/hash.h"
#include "fs/base/stats.h"

enum { HELD_MAX = 4096 };

struct world {
    struct cache *c;
    struct stats *stats;
    struct timers *timers;
    pthread_mutex_t mu;
    struct cache_span *held[HELD_MAX]; /* in order of start; NULL: ended */
    unsigned held_n, cancels, damaged, locates;
    bool end_cancelled; /* cancel ends the span with -ECANCELED at once */
    uint64_t fetched;
    uint64_t seg_bytes, file_bytes; /* for locate: equal segments */
    bool warm;
    uint64_t damaged_pos;
};

static inline uint64_t word_at(uint64_t ino, uint64_t off)
{
    uint64_t x = (ino << 48 ^ off) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

static inline void fill(void *p, uint64_t ino, uint64_t off, size_t len)
{
    uint8_t *b = p;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t w = word_at(ino, off + i);
        memcpy(b + i, &w, len - i < 8 ? len - i : 8);
    }
}

static inline bool iov_right(const struct cache_read *r)
{
    uint64_t off = r->off, n = 0;
    for (unsigned i = 0; i < r->iov_n; i++) {
        const uint8_t *b = r->iov[i].iov_base;
        for (size_t k = 0; k < r->iov[i].iov_len; k += k + 512 < r->iov[i].iov_len ? 509 : 1) {
            uint64_t at = off + k, w = word_at(r->seg.ino, at & ~7ull);
            if (b[k] != ((uint8_t *)&w)[at & 7])
                return false;
        }
        off += r->iov[i].iov_len;
        n += r->iov[i].iov_len;
    }
    return n == r->len;
}

static inline struct cache_seg seg_at(struct world *w, uint64_t ino, uint64_t off)
{
    uint64_t base = off / w->seg_bytes * w->seg_bytes;
    return (struct cache_seg){.ino = ino,
                              .base = base,
                              .end = min_u64(base + w->seg_bytes, w->file_bytes),
                              .version = 1,
                              .cold = !w->warm};
}

static inline int src_locate(void *ctx, uint64_t ino, uint64_t off, struct cache_seg *ret)
{
    struct world *w = ctx;
    __atomic_add_fetch(&w->locates, 1, __ATOMIC_RELAXED);
    if (off >= w->file_bytes)
        return -ENODATA;
    *ret = seg_at(w, ino, off);
    return 0;
}

static inline void src_fetch(void *ctx, struct cache_span *s)
{
    struct world *w = ctx;
    pthread_mutex_lock(&w->mu);
    cr_assert_lt(w->held_n, HELD_MAX);
    w->held[w->held_n++] = s;
    w->fetched += s->len;
    pthread_mutex_unlock(&w->mu);
}

/* Puts the right bytes and hashes for the first `got` bytes. */
static inline void span_bytes(struct cache_span *s, uint64_t got)
{
    uint64_t off = s->seg.base + s->pos, at = 0;
    for (unsigned i = 0; i < s->iov_n && at < got; i++) {
        fill(s->iov[i].iov_base, s->seg.ino, off + at, s->iov[i].iov_len);
        s->hash[i] = hash64(s->iov[i].iov_base, s->iov[i].iov_len);
        at += s->iov[i].iov_len;
    }
}

static inline void src_end(struct world *w, unsigned i, int err)
{
    struct cache_span *s = w->held[i];
    cr_assert_not_null(s);
    w->held[i] = NULL;
    if (err == 0) {
        span_bytes(s, s->len);
        cr_assert_eq(cache_span_progress(s, s->len), 0);
    }
    cache_span_done(s, err);
}

static inline void src_cancel(void *ctx, struct cache_span *s)
{
    struct world *w = ctx;
    w->cancels++;
    if (!w->end_cancelled)
        return;
    for (unsigned i = 0; i < w->held_n; i++)
        if (w->held[i] == s)
            src_end(w, i, -ECANCELED);
}

static inline void src_damaged(void *ctx, const struct cache_seg *seg, uint64_t pos)
{
    struct world *w = ctx;
    (void)seg;
    w->damaged++;
    w->damaged_pos = pos;
}

static inline struct cache_conf world_conf(struct world *w, uint64_t pool)
{
    return (struct cache_conf){.pool_bytes = pool,
                               .slice_bytes = 4 * MiB,
                               .watermark_percent = 50,
                               .window_min = 4 * MiB,
                               .window_max = 64 * MiB,
                               .unread_ms = 60000,
                               .stats = w->stats,
                               .timers = w->timers,
                               .source = {src_locate, src_fetch, src_cancel, w},
                               .damaged = src_damaged};
}

/* Virtual clock, stepped timers. */
static inline void world_open(struct world *w, uint64_t pool)
{
    memset(w, 0, sizeof *w);
    clock_virtual_set(NS_PER_SEC);
    pthread_mutex_init(&w->mu, NULL);
    w->seg_bytes = 128 * MiB;
    w->file_bytes = 1024 * MiB;
    cr_assert_eq(stats_open(&w->stats), 0);
    cr_assert_eq(timers_open(false, &w->timers), 0);
    struct cache_conf conf = world_conf(w, pool);
    cr_assert_eq(cache_open(&conf, &w->c), 0);
}

/* Ends all spans with success until none is left; returns how many. */
static inline unsigned world_settle(struct world *w)
{
    unsigned n = 0;
    for (unsigned i = 0; i < w->held_n; i++)
        if (w->held[i]) {
            src_end(w, i, 0);
            n++;
        }
    return n;
}

static inline void world_close(struct world *w)
{
    w->end_cancelled = true;
    world_settle(w);
    cache_close(w->c);
    timers_close(w->timers);
    stats_close(w->stats);
    pthread_mutex_destroy(&w->mu);
}

static inline void world_advance(struct world *w, int64_t ms)
{
    int64_t next;
    clock_virtual_advance(ms * NS_PER_MS);
    (void)timers_step(w->timers, &next);
}

struct req {
    struct cache_read r; /* first */
    struct world *w;
    unsigned done;
    int started;
};

static inline void req_done(struct cache_read *r)
{
    ((struct req *)r)->done++;
}

static inline int req_start(struct world *w, struct cache_reader *rd, struct req *q, uint64_t ino,
                            uint64_t off, uint64_t len)
{
    memset(q, 0, sizeof *q);
    q->w = w;
    q->r.seg = seg_at(w, ino, off);
    q->r.off = off;
    q->r.len = min_u64(len, q->r.seg.end - off);
    q->r.done = req_done;
    q->started = cache_read_start(w->c, rd, &q->r);
    return q->started;
}

/* The read is answered rightly; lets it go. */
static inline void req_finish(struct req *q)
{
    cr_assert(q->started == 1 || q->done == 1, "not answered");
    cr_assert_eq(q->r.err, 0);
    cr_assert(iov_right(&q->r), "wrong bytes");
    cache_read_release(q->w->c, &q->r);
}

/* A read whose fetches are ended as they come. */
static inline void read_through(struct world *w, struct cache_reader *rd, uint64_t ino,
                                uint64_t off, uint64_t len)
{
    struct req q;
    if (req_start(w, rd, &q, ino, off, len) == 0)
        world_settle(w);
    req_finish(&q);
}

static inline uint64_t stat_of(struct world *w, const char *name, const char *labels)
{
    return counter_get(stats_counter(w->stats, name, labels, ""));
}

static inline uint64_t used_bytes(struct world *w)
{
    uint64_t used, size;
    cache_usage(w->c, &used, &size);
    return used;
}

#endif
