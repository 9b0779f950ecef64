/* span.c: one fetch under way, from its making to its end, and calls that wait for the lock's release.
 *
 * A span is made under the lock with its frames (LOADING), handed to the source after the lock was
 * dropped, and gone after cache_span_done. Blocks arrive in order: `arrived` counts them; the
 * source's thread hashes a block without the lock and then publishes it.
 *
 * Life time: the source's thread may end the span while another thread is just telling the source to
 * cancel it, or is still inside fetch. `calls` counts such threads; whoever is last frees the span.
 *
 * A span that was given up (cancelled, or stopped by the source after a damaged block) may have got
 * a waiter meanwhile: its blocks that have not arrived are then fetched again by a new span. That
 * ends, since a new span was not cancelled, and one after damage holds fewer blocks.
 *
 * Why `later` and not plain calls: `done` callbacks release and start reads, which complete other
 * reads... A thread that is already running a list only appends to it, so the stack stays flat.
 */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/hash.h"

static _Thread_local struct later *running;

void later_init(struct later *l)
{
    list_init(&l->fetch);
    list_init(&l->cancel);
    list_init(&l->done);
}

static struct list *pop(struct list *head)
{
    struct list *n = head->next;
    if (n == head)
        return NULL;
    list_del(n);
    return n;
}

static void splice(struct list *to, struct list *from)
{
    for (struct list *n; (n = pop(from));)
        list_add_tail(to, n);
}

static void span_free_locked(struct span *s)
{
    struct cache *c = s->c;
    assert(s->done && s->calls == 0);
    c->spans_n--;
    pthread_cond_broadcast(&c->changed);
    free(s);
}

/* A source callback on `s` has returned. */
static void span_called(struct span *s)
{
    struct cache *c = s->c;
    lock_acquire(&c->mu);
    s->started = true;
    if (--s->calls == 0 && s->done)
        span_free_locked(s);
    else if (c->closing)
        pthread_cond_broadcast(&c->changed);
    lock_release(&c->mu);
}

/* Makes the calls that were left for after the lock. No lock is held. */
void later_run(struct later *l)
{
    assert(lock_none_mine());
    if (running) {
        splice(&running->fetch, &l->fetch);
        splice(&running->cancel, &l->cancel);
        splice(&running->done, &l->done);
        return;
    }
    running = l;
    for (struct list *n;;) {
        if ((n = pop(&l->fetch))) {
            struct span *s = list_entry(n, struct span, later);
            s->c->conf.source.fetch(s->c->conf.source.ctx, &s->pub);
            span_called(s);
        } else if ((n = pop(&l->done))) {
            struct cache_read *r = list_entry(n, struct cache_read, wait);
            r->done(r);
        } else if ((n = pop(&l->cancel))) {
            struct span *s = list_entry(n, struct span, later);
            s->c->conf.source.cancel(s->c->conf.source.ctx, &s->pub);
            span_called(s);
        } else {
            break;
        }
    }
    running = NULL;
}

/* Makes a span of `n` neighbouring LOADING frames and leaves its fetch in `l`. 0 or -ENOMEM (then
 * the frames are still the caller's). */
int span_make(struct cache *c, const struct cache_seg *seg, uint32_t blk, struct frame **frame,
              unsigned n, bool urgent, struct later *l)
{
    assert(n > 0 && n <= SPAN_BLOCKS_MAX);
    struct span *s = calloc(
        1, sizeof *s + n * (sizeof(struct frame *) + sizeof(struct iovec) + sizeof(uint64_t)));
    if (!s)
        return -ENOMEM;
    struct iovec *iov = (struct iovec *)(s + 1);
    s->frame = (struct frame **)(iov + n);
    s->pub.hash = (uint64_t *)(s->frame + n);
    for (unsigned i = 0; i < n; i++) {
        struct frame *f = frame[i];
        assert(f->state == FRAME_LOADING && f->blk == blk + i);
        s->frame[i] = f;
        f->span = s;
        iov[i] = (struct iovec){.iov_base = frame_mem(c, f), .iov_len = f->len};
        s->pub.len += f->len;
    }
    s->pub.seg = *seg;
    s->pub.pos = blk * BLOCK_BYTES;
    s->pub.iov = iov;
    s->pub.iov_n = n;
    s->pub.urgent = urgent;
    s->c = c;
    s->fetch_ns = clock_mono_ns();
    s->calls = 1;
    list_add_tail(&c->spans, &s->link);
    c->spans_n++;
    list_add_tail(&l->fetch, &s->later);
    return 0;
}

/* Somebody waits for a block of it. */
bool span_wanted(const struct span *s)
{
    for (unsigned i = s->arrived; i < s->pub.iov_n; i++)
        if (s->frame[i]->pins > 0)
            return true;
    return false;
}

/* Asks the source to give up a span that nobody waits for. False: too early, or already asked. */
bool span_cancel(struct span *s, struct later *l)
{
    if (s->cancelled || !s->started || s->done || s->calls > 0)
        return false;
    s->cancelled = true;
    s->calls++;
    list_add_tail(&l->cancel, &s->later);
    return true;
}

static void wake(struct cache *c, struct frame *f, struct later *l)
{
    struct list waiters;
    list_init(&waiters);
    splice(&waiters, &f->waiters);
    for (struct list *n; (n = pop(&waiters));)
        read_advance(c, list_entry(n, struct cache_read, wait), l);
}

static void frame_valid(struct cache *c, struct frame *f, struct later *l)
{
    f->span = NULL;
    f->state = FRAME_VALID;
    counter_add(f->ahead ? c->ahead_bytes : c->demand_bytes, f->len);
    if (f->unread && f->hashed)
        frame_arrived_unread(c, f);
    f->pins++; /* a reader that fails for another block drops its pin while it is woken */
    wake(c, f, l);
    frame_unpin(c, f);
}

/* The block cannot be had: its readers get `err`, the next read tries again. */
void span_fail_frame(struct cache *c, struct frame *f, int err, struct later *l)
{
    f->span = NULL;
    frame_unhash(c, f);
    f->pins++; /* likewise */
    f->state = FRAME_FAILED;
    f->err = err;
    wake(c, f, l);
    frame_unpin(c, f);
}

/* Remembers the latency of the store: at once when it rises, slowly when it falls. */
static void note_latency(struct cache *c, const struct span *s)
{
    if (!s->pub.seg.cold)
        return;
    int64_t ns = clock_mono_ns() - s->fetch_ns;
    int64_t faded = c->latency_ns - c->latency_ns / 32;
    c->latency_ns = ns > faded ? ns : faded;
}

int cache_span_progress(struct cache_span *span, uint64_t got)
{
    struct span *s = (struct span *)span;
    struct cache *c = s->c;
    uint64_t bad[SPAN_BLOCKS_MAX / 64] = {0};
    unsigned first = s->arrived, n = first, bad_n = 0;
    assert(got <= span->len);
    while (n < span->iov_n && min_u64((n + 1) * BLOCK_BYTES, span->len) <= got)
        n++;
    if (n == first)
        return 0;
    for (unsigned i = first; i < n; i++) {
        const struct iovec *v = &span->iov[i];
        if (span->hash[i] != 0 && hash64(v->iov_base, v->iov_len) != span->hash[i]) {
            bad[i / 64] |= 1ull << i % 64;
            bad_n++;
        }
    }

    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    if (first == 0)
        note_latency(c, s);
    s->arrived = n;
    for (unsigned i = first; i < n; i++) {
        if (bad[i / 64] >> i % 64 & 1)
            span_fail_frame(c, s->frame[i], -EIO, &l);
        else
            frame_valid(c, s->frame[i], &l);
    }
    if (bad_n > 0)
        s->damaged = true;
    starved_pump(c, &l);
    lock_release(&c->mu);

    if (bad_n > 0)
        counter_add(c->damaged_blocks, bad_n);
    for (unsigned i = first; bad_n > 0 && i < n; i++)
        if (bad[i / 64] >> i % 64 & 1 && c->conf.damaged)
            c->conf.damaged(c->conf.source.ctx, &span->seg, span->pos + i * BLOCK_BYTES);
    later_run(&l);
    return bad_n > 0 ? -EBADMSG : 0;
}

/* Fetches the waited-for blocks from `i` on again, one span per run; frees the others. */
static void refetch(struct span *s, unsigned i, int err, struct later *l)
{
    struct cache *c = s->c;
    while (i < s->pub.iov_n) {
        unsigned n = 0;
        while (i + n < s->pub.iov_n && s->frame[i + n]->pins > 0)
            n++;
        if (n == 0) {
            span_fail_frame(c, s->frame[i++], err, l);
            continue;
        }
        uint32_t blk = s->frame[i]->blk;
        if (span_make(c, &s->pub.seg, blk, s->frame + i, n, true, l) < 0)
            for (unsigned k = 0; k < n; k++)
                span_fail_frame(c, s->frame[i + k], -EIO, l);
        i += n;
    }
}

void cache_span_done(struct cache_span *span, int err)
{
    struct span *s = (struct span *)span;
    struct cache *c = s->c;
    if (err == 0)
        (void)cache_span_progress(span, span->len);

    struct later l;
    later_init(&l);
    int told = err == -ETIMEDOUT || err == -EAGAIN || err == -ESTALE ? err : -EIO;
    lock_acquire(&c->mu);
    assert(!s->done);
    s->done = true;
    list_del(&s->link);
    if ((s->cancelled && err == -ECANCELED) || s->damaged) {
        refetch(s, s->arrived, told, &l);
    } else {
        for (unsigned i = s->arrived; i < span->iov_n; i++)
            span_fail_frame(c, s->frame[i], told, &l);
    }
    starved_pump(c, &l);
    if (s->calls == 0)
        span_free_locked(s);
    lock_release(&c->mu);
    later_run(&l);
}
