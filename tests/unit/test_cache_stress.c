/* test_cache_stress.c: many threads against a source with threads of its own; every byte is checked.
 * Bounded by time; what it must find are races, lost answers and wrong bytes. */
#include "test_cache_source.h"

#include <stdio.h>
#include <stdlib.h>

enum { INODES = 6, WORKERS = 6, FETCHERS = 3, RUN_MS = 2500 };

static struct world w;

static struct {
    pthread_mutex_t mu;
    pthread_cond_t work, answered;
    struct cache_span *queue[HELD_MAX];
    unsigned n;
    bool stop, failing;
    uint64_t fetches, reads, failed, cancelled;
} f = {.mu = PTHREAD_MUTEX_INITIALIZER,
       .work = PTHREAD_COND_INITIALIZER,
       .answered = PTHREAD_COND_INITIALIZER};

/* Criterion's assertions belong to the main thread. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "cache stress: %s\n", what);
        abort();
    }
}

static void push_span(void *ctx, struct cache_span *s)
{
    (void)ctx;
    pthread_mutex_lock(&f.mu);
    must(f.n < HELD_MAX, "too many spans");
    f.queue[f.n++] = s;
    f.fetches++;
    pthread_cond_signal(&f.work);
    pthread_mutex_unlock(&f.mu);
}

/* Ends it when it is still queued, as a real source would. */
static void drop_span(void *ctx, struct cache_span *s)
{
    (void)ctx;
    bool mine = false;
    pthread_mutex_lock(&f.mu);
    for (unsigned i = 0; i < f.n; i++) {
        if (f.queue[i] == s) {
            f.queue[i] = f.queue[--f.n];
            mine = true;
            break;
        }
    }
    pthread_mutex_unlock(&f.mu);
    if (mine)
        cache_span_done(s, -ECANCELED);
}

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static void *fetcher(void *arg)
{
    uint32_t x = (uint32_t)(uintptr_t)arg;
    for (;;) {
        pthread_mutex_lock(&f.mu);
        while (f.n == 0 && !f.stop)
            pthread_cond_wait(&f.work, &f.mu);
        if (f.n == 0) {
            pthread_mutex_unlock(&f.mu);
            return NULL;
        }
        unsigned i = next_random(&x) % f.n;
        struct cache_span *s = f.queue[i];
        f.queue[i] = f.queue[--f.n];
        pthread_mutex_unlock(&f.mu);

        uint64_t stop_at = next_random(&x) % 16 == 0 ? s->len / 2 : s->len, got = 0;
        bool damage = next_random(&x) % 64 == 0;
        (void)__atomic_load_n(&s->urgent, __ATOMIC_RELAXED);
        int r = 0;
        for (unsigned k = 0; k < s->iov_n && got < stop_at && r == 0; k++) {
            fill(s->iov[k].iov_base, s->seg.ino, s->seg.base + s->pos + got, s->iov[k].iov_len);
            s->hash[k] = hash64(s->iov[k].iov_base, s->iov[k].iov_len);
            if (damage && k == s->iov_n / 2)
                ((uint8_t *)s->iov[k].iov_base)[5] ^= 1;
            got += s->iov[k].iov_len;
            r = cache_span_progress(s, got);
        }
        cache_span_done(s, r < 0 ? r : got < s->len ? -EIO : 0);
    }
}

struct job {
    struct cache_read r; /* first */
    bool answered;
};

static void job_done(struct cache_read *r)
{
    pthread_mutex_lock(&f.mu);
    ((struct job *)r)->answered = true;
    pthread_cond_broadcast(&f.answered);
    pthread_mutex_unlock(&f.mu);
}

static void worker_read(struct cache_reader *rd, uint64_t ino, uint64_t off, uint64_t len,
                        bool cancel)
{
    struct job j = {.r = {.seg = seg_at(&w, ino, off), .off = off, .done = job_done}};
    j.r.len = min_u64(len, j.r.seg.end - off);
    if (cache_read_start(w.c, rd, &j.r) == 0) {
        if (cancel && cache_read_cancel(w.c, &j.r, 0))
            __atomic_add_fetch(&f.cancelled, 1, __ATOMIC_RELAXED);
        pthread_mutex_lock(&f.mu);
        while (!j.answered)
            pthread_cond_wait(&f.answered, &f.mu);
        pthread_mutex_unlock(&f.mu);
    }
    if (j.r.err == 0) {
        must(iov_right(&j.r), "wrong bytes");
        cache_read_release(w.c, &j.r);
        __atomic_add_fetch(&f.reads, 1, __ATOMIC_RELAXED);
    } else {
        must(j.r.err == -EIO || (cancel && j.r.err == -EINTR), "unexpected error");
        __atomic_add_fetch(&f.failed, 1, __ATOMIC_RELAXED);
    }
}

static void *worker(void *arg)
{
    uint32_t x = (uint32_t)(uintptr_t)arg;
    int64_t end = clock_mono_ns() + RUN_MS * NS_PER_MS;
    while (clock_mono_ns() < end) {
        uint64_t ino = 2 + next_random(&x) % INODES;
        struct cache_reader *rd = cache_reader_open(w.c, ino);
        uint64_t off = next_random(&x) % 3 ? 0 : next_random(&x) % w.file_bytes;
        for (unsigned n = next_random(&x) % 40; n > 0 && off < w.file_bytes; n--) {
            uint64_t len = 1 + next_random(&x) % FUSE_IO_BYTES_MAX;
            worker_read(rd, ino, off, len, next_random(&x) % 16 == 0);
            if (next_random(&x) % 4 == 0)
                off = next_random(&x) % w.file_bytes;
            else
                off = min_u64(off + len, seg_at(&w, ino, off).end);
            if (next_random(&x) % 64 == 0)
                cache_forget(w.c, ino, next_random(&x) % w.file_bytes);
            if (next_random(&x) % 64 == 0)
                (void)cache_follower_distance(w.c, ino, off, rd);
            if (next_random(&x) % 128 == 0)
                cache_set_readahead(w.c, next_random(&x) % 4 != 0);
        }
        cache_reader_close(w.c, rd);
    }
    return NULL;
}

static void run(uint64_t pool)
{
    memset(&w, 0, sizeof w);
    w.seg_bytes = 9 * MiB + 4104;
    w.file_bytes = 40 * MiB + 5;
    pthread_mutex_init(&w.mu, NULL);
    cr_assert_eq(stats_open(&w.stats), 0);
    cr_assert_eq(timers_open(true, &w.timers), 0);
    struct cache_conf conf = world_conf(&w, pool);
    conf.source.fetch = push_span;
    conf.source.cancel = drop_span;
    conf.damaged = NULL;
    conf.unread_ms = 20;
    conf.slice_bytes = MiB;
    conf.window_min = MiB;
    cr_assert_eq(cache_open(&conf, &w.c), 0);
    f.stop = false;
    pthread_t t[WORKERS + FETCHERS];
    for (unsigned i = 0; i < WORKERS + FETCHERS; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, i < WORKERS ? worker : fetcher,
                                    (void *)(uintptr_t)(i * 7919 + 1)),
                     0);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(t[i], NULL);
    cache_close(w.c);
    pthread_mutex_lock(&f.mu);
    f.stop = true;
    pthread_cond_broadcast(&f.work);
    pthread_mutex_unlock(&f.mu);
    for (unsigned i = WORKERS; i < WORKERS + FETCHERS; i++)
        pthread_join(t[i], NULL);
    cr_assert_gt(f.reads, 0);
    timers_close(w.timers);
    stats_close(w.stats);
}

Test(cache_stress, every_answer_holds_the_right_bytes, .timeout = 120)
{
    run(24 * MiB);
}

Test(cache_stress, a_pool_of_two_slices_makes_progress, .timeout = 120)
{
    run(8 * MiB);
}
