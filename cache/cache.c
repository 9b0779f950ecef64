/* cache.c: the face of the slice cache: open and close, reads, forget.
 *
 * A read is in one state:
 *
 *   state    holds                            on list                moved on by
 *   -------  -------------------------------  ---------------------  -----------------------------
 *   QUEUED   nothing                          cache.starved          starved_pump, cancel
 *   WAITING  a pin on each of its blocks      waiters of its first   arrival or failure of that
 *                                             block not yet VALID    block, cancel
 *   DONE     pins if err is 0                 none (or `later`)      cache_read_release
 *
 * No deadlock at a full pool: a read gets all frames it lacks at once or none and then holds nothing;
 * one that has its frames needs only its spans to end. Frames come back when a read is released, given
 * up or fails, and when unwanted spans end, which a starved read asks for. The queue is in order; a
 * read that lacks no frame does not have to stand in it.
 *
 * `done` runs on the thread that brought the last block (cache_span_progress, cache_span_done), that
 * gave frames back (cache_read_release, cache_read_cancel, cache_forget), on the timer's, or, when
 * memory for a fetch has run out, inside cache_read_start.
 *
 * Lock: cache.mu (RANK_CACHE), the only one. Never held over source callbacks, done, damaged, hashing.
 */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include "fs/base/clock.h"

static double gauge_used(void *arg)
{
    struct cache *c = arg;
    return (double)atomic_load_explicit(&c->used, memory_order_relaxed);
}

static void metrics_register(struct cache *c)
{
    struct stats *s = c->conf.stats;
    const char *reads = "Reads by how they were answered.";
    const char *ahead = "Read-ahead that was read, or was dropped unread.";
    const char *fetched = "Bytes that arrived, by why they were fetched.";
    c->hits = stats_counter(s, "cache_reads_total", "outcome=\"hit\"", reads);
    c->waits = stats_counter(s, "cache_reads_total", "outcome=\"wait\"", reads);
    c->misses = stats_counter(s, "cache_reads_total", "outcome=\"miss\"", reads);
    c->used_bytes = stats_counter(s, "readahead_bytes_total", "outcome=\"used\"", ahead);
    c->wasted_bytes = stats_counter(s, "readahead_bytes_total", "outcome=\"wasted\"", ahead);
    c->demand_bytes = stats_counter(s, "cache_fetched_bytes_total", "kind=\"demand\"", fetched);
    c->ahead_bytes = stats_counter(s, "cache_fetched_bytes_total", "kind=\"readahead\"", fetched);
    c->evicted_bytes =
        stats_counter(s, "cache_evicted_bytes_total", "", "Bytes evicted to make room for others.");
    c->stalls = stats_counter(s, "cache_stalls_total", "",
                              "Sequential reads that had to wait for their bytes.");
    c->damaged_blocks =
        stats_counter(s, "cache_damaged_blocks_total", "", "Blocks that did not match their hash.");
    c->wait_time = stats_histogram(s, "cache_read_wait_seconds", "",
                                   "How long reads waited that were not answered at once.");
    stats_gauge(s, "cache_bytes", "", "Pool memory in use.", gauge_used, c);
}

static bool conf_valid(const struct cache_conf *conf)
{
    return conf->pool_bytes >= 8 * MiB && conf->slice_bytes >= BLOCK_BYTES &&
           conf->slice_bytes % BLOCK_BYTES == 0 &&
           conf->slice_bytes <= SPAN_BLOCKS_MAX / 2 * BLOCK_BYTES &&
           conf->watermark_percent <= 100 && conf->window_min > 0 &&
           conf->window_max >= conf->window_min && conf->unread_ms > 0 && conf->stats &&
           conf->source.locate && conf->source.fetch && conf->source.cancel;
}

int cache_open(const struct cache_conf *conf, struct cache **ret)
{
    if (!conf_valid(conf))
        return -EINVAL;
    struct cache *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->conf = *conf;
    int r = pool_open(c);
    if (r < 0) {
        pool_close(c);
        free(c);
        return r;
    }
    lock_init(&c->mu, "cache.mu", RANK_CACHE, false);
    cond_init(&c->changed);
    for (unsigned i = 0; i < STREAM_BUCKETS; i++)
        list_init(&c->streams[i]);
    list_init(&c->unread);
    list_init(&c->spans);
    list_init(&c->starved);
    c->slice_blocks = (uint32_t)(conf->slice_bytes / BLOCK_BYTES);
    c->random = 1;
    c->readahead_on = true;
    c->timer.fire = pool_expire;
    metrics_register(c);
    *ret = c;
    return 0;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    assert(list_empty(&c->starved));
    c->closing = true;
    while (c->spans_n > 0) {
        list_each(&c->spans, it)(void) span_cancel(list_entry(it, struct span, link), &l);
        if (list_empty(&l.cancel)) {
            lock_wait(&c->mu, &c->changed);
            continue;
        }
        lock_release(&c->mu);
        later_run(&l);
        lock_acquire(&c->mu);
    }
    while (c->timer_armed) {
        if (timer_cancel(c->conf.timers, &c->timer))
            c->timer_armed = false;
        else
            lock_wait(&c->mu, &c->changed); /* it is firing */
    }
    assert(frames_available(c) == c->frames); /* every answered read was released */
    lock_release(&c->mu);
    stats_gauge(c->conf.stats, "cache_bytes", "", "", NULL, NULL);
    pool_close(c);
    pthread_cond_destroy(&c->changed);
    lock_destroy(&c->mu);
    free(c);
}

/* Points the read's iov at its blocks, all of which are VALID. */
static void read_fill(struct cache *c, struct cache_read *r)
{
    uint64_t at = r->off, end = r->off + r->len;
    for (unsigned i = 0; i < r->iov_n; i++) {
        const struct frame *f = r->pins[i];
        uint64_t skip = at - frame_off(f), n = min_u64(f->len - skip, end - at);
        r->iov[i] = (struct iovec){.iov_base = frame_mem(c, f) + skip, .iov_len = n};
        r->was_cold |= f->cold;
        at += n;
    }
    assert(at == end);
    r->err = 0;
    r->state = READ_DONE;
}

static void read_unpin(struct cache *c, struct cache_read *r)
{
    for (unsigned i = 0; i < r->iov_n; i++)
        frame_unpin(c, r->pins[i]);
    r->iov_n = 0;
}

static void read_fail(struct cache *c, struct cache_read *r, int err)
{
    read_unpin(c, r);
    r->err = err;
    r->state = READ_DONE;
}

static void read_answer(struct cache *c, struct cache_read *r, struct later *l)
{
    assert(r->state == READ_DONE);
    histogram_add(c->wait_time, clock_mono_ns() - r->began_ns);
    list_add_tail(&l->done, &r->wait);
}

/* Goes over the blocks that have arrived; ends the read, or waits for the next block. */
void read_advance(struct cache *c, struct cache_read *r, struct later *l)
{
    assert(r->state == READ_WAITING);
    for (; r->missing < r->iov_n; r->missing++) {
        struct frame *f = r->pins[r->missing];
        if (f->state == FRAME_LOADING) {
            list_add_tail(&f->waiters, &r->wait);
            return;
        }
        if (f->state == FRAME_FAILED) {
            read_fail(c, r, f->err);
            read_answer(c, r, l);
            return;
        }
    }
    read_fill(c, r);
    read_answer(c, r, l);
}

/* Takes the frame out of the tables; it is freed as soon as nobody uses it. */
static void frame_forget(struct cache *c, struct frame *f)
{
    frame_unhash(c, f);
    if (f->pins == 0 && f->state == FRAME_VALID)
        frame_free(c, f);
}

/* Fetches the missing blocks [i, end) of a read, and for a sequential stream the rest of the slice. */
static void fetch_run(struct cache *c, struct cache_read *r, unsigned i, unsigned end, uint32_t blk,
                      struct stream *st, struct later *l)
{
    struct frame *run[SPAN_BLOCKS_MAX];
    unsigned n = 0, more = 0;
    for (; i + n < end; n++) {
        struct frame *f = frame_take_demand(c);
        assert(f);
        frame_assign(c, f, &r->seg, blk + n);
        frame_pin(c, f);
        r->pins[i + n] = run[n] = f;
    }
    if (st && end == r->iov_n)
        more = stream_extension(c, st, &r->seg, blk + n);
    for (struct frame *f; more > 0 && (f = frame_take_ahead(c, 0)); more--, n++) {
        frame_assign(c, f, &r->seg, blk + n);
        frame_own(c, f, st);
        run[n] = f;
    }
    if (span_make(c, &r->seg, blk, run, n, true, l) < 0)
        for (unsigned k = 0; k < n; k++)
            span_fail_frame(c, run[k], -EIO, l);
}

/* Pins or starts fetching everything the read needs. QUEUED: there are no frames for it (or others
 * stand in line); nothing was changed then. `queued`: it is the head of that line. */
static enum read_state read_try(struct cache *c, struct cache_read *r, struct stream *st,
                                bool queued, bool *ret_missed, struct later *l)
{
    uint32_t first = (uint32_t)((r->off - r->seg.base) / BLOCK_BYTES);
    uint32_t last = (uint32_t)((r->off + r->len - 1 - r->seg.base) / BLOCK_BYTES);
    unsigned n = last - first + 1, need = 0, listed = 0;
    bool ready = true;
    assert(n <= CACHE_READ_IOV_MAX);
    for (unsigned i = 0; i < n; i++) {
        struct frame *f = frame_find(c, &r->seg, first + i);
        if (f && f->len < seg_block_len(&r->seg, first + i)) {
            frame_forget(c, f); /* the segment's last block, before the segment grew */
            f = NULL;
        }
        r->pins[i] = f;
        need += f == NULL;
        listed += f && f->where != ON_NONE;
        ready &= f && f->state == FRAME_VALID;
    }
    *ret_missed = need > 0;
    if (need > 0 &&
        ((!queued && !list_empty(&c->starved)) || frames_available(c) - listed < need)) {
        r->state = READ_QUEUED;
        return READ_QUEUED;
    }
    r->iov_n = n;
    for (unsigned i = 0; i < n; i++)
        if (r->pins[i])
            frame_pin(c, r->pins[i]);
    for (unsigned i = 0; i < n;) {
        unsigned end = i;
        while (end < n && !r->pins[end])
            end++;
        if (end > i)
            fetch_run(c, r, i, end, first + i, st, l);
        i = end + (end == i);
    }
    for (unsigned i = 0; st && i < n; i++)
        ((struct frame *)r->pins[i])->sequential = st->evidence >= SEQUENTIAL;
    if (ready) {
        read_fill(c, r);
        return READ_DONE;
    }
    r->state = READ_WAITING;
    r->missing = 0;
    read_advance(c, r, l);
    return READ_WAITING;
}

/* Lets reads that found no frames try again, in order. */
void starved_pump(struct cache *c, struct later *l)
{
    while (!list_empty(&c->starved)) {
        struct cache_read *r = list_entry(c->starved.next, struct cache_read, wait);
        bool missed;
        list_del(&r->wait);
        switch (read_try(c, r, NULL, true, &missed, l)) {
        case READ_QUEUED:
            list_add_head(&c->starved, &r->wait);
            return;
        case READ_DONE:
            read_answer(c, r, l);
            break;
        default:
            break;
        }
    }
}

/* Asks for the end of spans that nobody waits for, newest first, so that a read gets frames. */
static void make_room(struct cache *c, unsigned need, struct later *l)
{
    unsigned got = 0;
    for (struct list *it = c->spans.prev; it != &c->spans && got < need; it = it->prev) {
        struct span *s = list_entry(it, struct span, link);
        if (!span_wanted(s) && span_cancel(s, l))
            got += s->pub.iov_n - s->arrived;
    }
}

int cache_read_start(struct cache *c, struct cache_reader *reader, struct cache_read *r)
{
    assert(r->len > 0 && r->len <= FUSE_IO_BYTES_MAX && r->off >= r->seg.base &&
           r->off < r->seg.end && r->len <= r->seg.end - r->off);
    const struct cache_seg seg = r->seg; /* once the lock is dropped, `r` may be gone */
    struct later l;
    later_init(&l);
    list_init(&r->wait);
    r->state = READ_NEW;
    r->iov_n = 0;
    r->err = 0;
    r->was_cold = false;
    r->began_ns = clock_mono_ns();
    int64_t now = r->began_ns;
    bool missed, plan;

    lock_acquire(&c->mu);
    struct stream *st = reader ? stream_note(c, reader, r, now, &l) : NULL;
    enum read_state state = read_try(c, r, st, false, &missed, &l);
    if (state == READ_QUEUED) {
        list_add_tail(&c->starved, &r->wait);
        make_room(c, CACHE_READ_IOV_MAX, &l);
    }
    counter_add(state == READ_DONE ? c->hits : missed ? c->misses : c->waits, 1);
    if (state != READ_DONE && st && st->evidence >= SEQUENTIAL && st->reads > 1)
        stream_stalled(c, st, &seg, now);
    plan = st && readahead_wanted(c, st, &seg);
    if (plan)
        st->planning = true;
    lock_release(&c->mu);
    later_run(&l);

    if (plan) {
        lock_acquire(&c->mu);
        readahead_plan(c, st, &seg, &l);
        lock_release(&c->mu);
        later_run(&l);
    }
    return state == READ_DONE;
}

/* A fetch that has brought nothing yet, that nobody waits for and that no reader will come to. */
static bool span_useless(const struct span *s)
{
    if (s->arrived > 0 || span_wanted(s))
        return false;
    for (unsigned i = 0; i < s->pub.iov_n; i++)
        if (s->frame[i]->unread && s->frame[i]->owner)
            return false;
    return true;
}

bool cache_read_cancel(struct cache *c, struct cache_read *r, int err)
{
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    if (r->state != READ_QUEUED && r->state != READ_WAITING) {
        lock_release(&c->mu);
        return false;
    }
    list_del(&r->wait);
    struct span *span[CACHE_READ_IOV_MAX];
    unsigned n = r->iov_n;
    for (unsigned i = 0; i < n; i++)
        span[i] = ((struct frame *)r->pins[i])->span;
    read_fail(c, r, err ? err : -EINTR);
    for (unsigned i = 0; i < n; i++)
        if (span[i] && span_useless(span[i]))
            (void)span_cancel(span[i], &l);
    starved_pump(c, &l);
    lock_release(&c->mu);
    r->done(r);
    later_run(&l);
    return true;
}

void cache_read_release(struct cache *c, struct cache_read *r)
{
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    assert(r->state == READ_DONE && r->err == 0 && r->iov_n > 0);
    read_unpin(c, r);
    starved_pump(c, &l);
    lock_release(&c->mu);
    later_run(&l);
}

/* All blocks of the span that have not arrived were forgotten. */
static bool span_forgotten(const struct span *s)
{
    for (unsigned i = s->arrived; i < s->pub.iov_n; i++)
        if (s->frame[i]->hashed || s->frame[i]->pins > 0)
            return false;
    return true;
}

void cache_forget(struct cache *c, uint64_t ino, uint64_t from)
{
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    c->forgets++;
    list_each_safe(ino_bucket(c, ino), it, tmp)
    {
        struct frame *f = list_entry(it, struct frame, ino_link);
        if (f->ino == ino && frame_off(f) + f->len > from)
            frame_forget(c, f);
    }
    list_each(stream_bucket(c, ino), it)
    {
        struct stream *st = list_entry(it, struct stream, link);
        if (st->ino != ino || st->ra_end <= from)
            continue;
        st->ra_end = 0; /* from the reader's position on, skipping what is still there */
        st->ra_seg.end = 0;
        st->stop_ns = 0;
    }
    list_each(&c->spans, it)
    {
        struct span *s = list_entry(it, struct span, link);
        if (s->pub.seg.ino == ino && span_forgotten(s))
            (void)span_cancel(s, &l);
    }
    starved_pump(c, &l);
    lock_release(&c->mu);
    later_run(&l);
}

void cache_usage(struct cache *c, uint64_t *ret_used, uint64_t *ret_size)
{
    *ret_used = atomic_load_explicit(&c->used, memory_order_relaxed);
    *ret_size = c->frames * BLOCK_BYTES;
}
