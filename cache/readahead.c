/* readahead.c: streams: where each reader is, how fast it goes, and what is fetched before it asks.
 *
 * A reader (one open handle) has up to STREAMS_PER_READER streams, made as needed, because brokers
 * let several consumers read one descriptor. A read belongs to the stream whose position is near;
 * else it restarts a stream that showed no sequence yet, or the one used longest ago.
 *
 * Evidence: a read from the start of a file or, first thing, of a segment is a sequence at once; two
 * large adjoining reads, or three small ones, are one as well. A random reader never gets there: it
 * gets the blocks that it asks for, and nothing else.
 *
 * A stream reads ahead to
 *     start of the slice it is in + window (+ one slice, past the watermark or once it has stalled),
 * whole slices at a time, several neighbours in one span when the window is large. `window` starts at
 * window_min and doubles when the reader had to wait (at most once per eighth of the store's latency,
 * so it reaches the needed depth within about one round trip), halves when read-ahead was wasted, and
 * comes down slowly while it is far above what rate x latency asks for.
 *
 * Bound of a stream: an equal share of ahead_max among the streams that own unread frames, at most
 * window_max; the only such stream may go beyond that to half of the pool. A stream that follows
 * another through the same bytes owns nothing and takes no share.
 */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include "fs/base/clock.h"

enum {
    LARGE_READ = 64 * 1024, /* counts double as evidence: a page-wise random reader has none */
    PLAN_STEPS = 128,       /* spans and skips in one go */
    CALM_SLICES = 16,       /* without a stall, before a window may come down */
    SPANS_AHEAD = 12,       /* slices share a span only when a window holds that many spans */
    WARM_SLICES = 2,        /* a device needs no more */
    FOLLOWERS_SEEN = 256
};

#define STALL_NS_MIN  (2 * NS_PER_MS)
#define LOCATE_NS_MIN (100 * NS_PER_MS) /* between two questions for what does not exist yet */

struct cache_reader *cache_reader_open(struct cache *c, uint64_t ino)
{
    (void)c;
    struct cache_reader *rd = calloc(1, sizeof *rd);
    if (rd)
        rd->ino = ino;
    return rd;
}

/* Gives up what `st` has read ahead: others may still want it, else it is the first to go. */
static void stream_abandon(struct cache *c, struct stream *st, struct later *l)
{
    st->evidence = 0;
    list_each_safe(&st->unread, it, tmp)
    {
        struct frame *f = list_entry(it, struct frame, mine);
        frame_disown(c, f);
        if (f->state == FRAME_VALID) {
            frame_place(c, f);
        } else if (f->span && !span_wanted(f->span) && frame_next_use(c, f) == INT64_MAX) {
            (void)span_cancel(f->span, l);
        }
    }
    assert(st->unread_n == 0);
}

static void stream_restart(struct cache *c, struct stream *st, const struct cache_read *r,
                           int64_t now, struct later *l)
{
    stream_abandon(c, st, l);
    bool fresh = st->reads == 0;
    bool from_start = r->off == 0 || (fresh && r->off == r->seg.base);
    st->evidence = from_start ? SEQUENTIAL : 0;
    st->pos = st->mark_pos = r->off;
    st->mark_ns = now;
    st->rate = 0;
    st->ra_end = 0;
    st->ra_seg.end = 0;
    st->stop_ns = 0;
    st->calm = st->reads = 0;
    st->window = c->conf.window_min;
}

static bool stream_near(const struct stream *st, const struct cache_read *r)
{
    uint64_t far = st->evidence >= SEQUENTIAL ? NEAR_BYTES : min_u64(NEAR_BYTES, 8 * r->len);
    return st->reads > 0 && r->off <= st->pos + far && r->off + far >= st->pos;
}

/* `joined`: the read continues what the stream did before. */
static void stream_advance(struct cache *c, struct stream *st, const struct cache_read *r,
                           bool joined, int64_t now)
{
    uint64_t end = r->off + r->len;
    if (end <= st->pos)
        return;
    if (joined && st->evidence < SEQUENTIAL)
        st->evidence += r->off <= st->pos && r->len >= LARGE_READ ? 2 : 1;
    bool crossed = end / slice_bytes(c) != st->pos / slice_bytes(c);
    st->pos = end;
    if (!crossed)
        return;
    if (now > st->mark_ns && end > st->mark_pos) {
        double got = (double)(end - st->mark_pos) * 1e9 / (double)(now - st->mark_ns);
        uint64_t rate = got < 1 ? 1 : got > 1e12 ? (uint64_t)1e12 : (uint64_t)got;
        st->rate = st->rate ? (st->rate + rate + 1) / 2 : rate;
        st->mark_pos = end;
        st->mark_ns = now;
    }
    if (++st->calm < CALM_SLICES)
        return;
    st->calm = 0;
    double needed = 2.0 * (double)st->rate * (double)c->latency_ns / 1e9 + (double)slice_bytes(c);
    uint64_t half = st->window / 2;
    if (half >= c->conf.window_min && (double)half >= needed)
        st->window = half;
}

/* Finds or makes the stream that `r` belongs to and moves it on. NULL: no memory, no read-ahead. */
struct stream *stream_note(struct cache *c, struct cache_reader *rd, const struct cache_read *r,
                           int64_t now, struct later *l)
{
    assert(rd->ino == r->seg.ino);
    struct stream *st = NULL, *victim = NULL;
    for (unsigned i = 0; i < rd->n && !st; i++) {
        struct stream *s = rd->stream[i];
        if (stream_near(s, r))
            st = s;
        else if (!victim || (s->evidence < SEQUENTIAL) > (victim->evidence < SEQUENTIAL) ||
                 ((s->evidence < SEQUENTIAL) == (victim->evidence < SEQUENTIAL) &&
                  s->last_ns < victim->last_ns))
            victim = s;
    }
    bool joined = st != NULL;
    if (!st) {
        bool more = rd->n == 0 || (victim->evidence >= SEQUENTIAL && rd->n < STREAMS_PER_READER);
        st = more ? calloc(1, sizeof *st) : victim;
        if (!st)
            return NULL;
        if (more) {
            st->reader = rd;
            st->ino = rd->ino;
            list_init(&st->unread);
            list_init(&st->link);
            rd->stream[rd->n++] = st;
        }
        stream_restart(c, st, r, now, l);
    }
    stream_advance(c, st, r, joined, now);
    st->reads++;
    st->last_ns = now;
    list_del(&st->link);
    list_add_head(stream_bucket(c, st->ino), &st->link);
    return st;
}

void cache_reader_close(struct cache *c, struct cache_reader *rd)
{
    if (!rd)
        return;
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    for (unsigned i = 0; i < rd->n; i++)
        rd->stream[i]->evidence = 0; /* none of them will come by any more */
    for (unsigned i = 0; i < rd->n; i++) {
        struct stream *st = rd->stream[i];
        stream_abandon(c, st, &l);
        list_del(&st->link);
        if (st->planning)
            st->closed = true;
        else
            free(st);
    }
    lock_release(&c->mu);
    free(rd);
    later_run(&l);
}

/* Frames that `st` may own unread. */
static uint32_t stream_share(const struct cache *c, const struct stream *st)
{
    uint32_t others = c->owners_n - (st->unread_n > 0);
    uint64_t most = c->conf.window_max / BLOCK_BYTES, two = 2ull * c->slice_blocks;
    if (others > 0)
        return (uint32_t)max_u64(1, min_u64(most, c->ahead_max / (others + 1)));
    uint64_t room = c->ahead_max > two ? c->ahead_max - two : 0;
    return (uint32_t)max_u64(c->ahead_max / 2, min_u64(most, room));
}

static uint64_t stream_bound(const struct cache *c, const struct stream *st)
{
    return stream_share(c, st) * BLOCK_BYTES;
}

static bool readahead_allowed(const struct cache *c, const struct cache_seg *seg)
{
    return !c->closing && (c->readahead_on || !seg->cold) && list_empty(&c->starved);
}

/* A sequential reader had to wait. */
void stream_stalled(struct cache *c, struct stream *st, const struct cache_seg *seg, int64_t now)
{
    int64_t stall_ns = c->latency_ns / 8 > STALL_NS_MIN ? c->latency_ns / 8 : STALL_NS_MIN;
    counter_add(c->stalls, 1);
    st->calm = 0;
    if (!seg->cold || !readahead_allowed(c, seg) || now - st->grown_ns < stall_ns)
        return;
    st->grown_ns = now;
    st->window = max_u64(st->window, min_u64(st->window * 2, stream_bound(c, st)));
}

/* Something it read ahead went unread: halve, but only once for all blocks of one occasion. */
void stream_wasted(struct cache *c, struct stream *st, int64_t now)
{
    if (st->shrunk_ns && now - st->shrunk_ns < NS_PER_SEC)
        return;
    st->shrunk_ns = now;
    st->window = max_u64(st->window / 2, c->conf.window_min);
}

/* Absent blocks from `blk` to the end of its slice that may come along with a demand fetch. */
uint32_t stream_extension(struct cache *c, struct stream *st, const struct cache_seg *seg,
                          uint32_t blk)
{
    if (st->evidence < SEQUENTIAL || !readahead_allowed(c, seg))
        return 0;
    uint32_t total = seg_blocks(seg), share = stream_share(c, st), n = 0;
    while ((blk + n) % c->slice_blocks != 0 && blk + n < total && st->unread_n + n < share &&
           !frame_find(c, seg, blk + n))
        n++;
    return n;
}

/* Up to where `st`, which is inside `cur`, should have been fetched. */
static uint64_t readahead_limit(const struct cache *c, const struct stream *st,
                                const struct cache_seg *cur)
{
    uint64_t slice = slice_bytes(c), window = min_u64(st->window, stream_bound(c, st));
    uint64_t passed = (st->pos >= cur->base ? st->pos - cur->base : st->pos) % slice;
    uint64_t limit = st->pos - passed + window;
    if (!cur->cold)
        return min_u64(limit, st->pos - passed + slice) +
               (passed * 100 >= c->conf.watermark_percent * slice ? (WARM_SLICES - 1) * slice : 0);
    if (passed * 100 >= c->conf.watermark_percent * slice || st->window > c->conf.window_min)
        limit += slice;
    return limit;
}

static bool seg_holds(const struct cache_seg *seg, uint64_t off)
{
    return off >= seg->base && off < seg->end;
}

/* Where the next read-ahead starts: never behind the block that is being read. */
static uint64_t readahead_from(const struct stream *st, const struct cache_seg *cur)
{
    uint64_t at = st->pos;
    if (seg_holds(cur, at))
        at -= (at - cur->base) % BLOCK_BYTES;
    return max_u64(at, st->ra_end);
}

bool readahead_wanted(struct cache *c, const struct stream *st, const struct cache_seg *cur)
{
    if (st->evidence < SEQUENTIAL || st->planning || !readahead_allowed(c, cur))
        return false;
    if (st->stop_ns && clock_mono_ns() - st->stop_ns < LOCATE_NS_MIN)
        return false;
    return readahead_from(st, cur) < readahead_limit(c, st, cur);
}

/* Learns which segment holds ra_end. Drops the lock meanwhile. False: read-ahead ends here. */
static bool locate_next(struct cache *c, struct stream *st, struct later *l)
{
    struct cache_seg seg;
    uint64_t off = st->ra_end, ino = st->ino, forgets = c->forgets;
    lock_release(&c->mu);
    later_run(l);
    int r = c->conf.source.locate(c->conf.source.ctx, ino, off, &seg);
    lock_acquire(&c->mu);
    if (st->closed)
        return false;
    if (forgets != c->forgets || off != st->ra_end)
        return true; /* the answer may be old: ask again if it still matters */
    if (r < 0 || seg.ino != ino || !seg_holds(&seg, off)) {
        st->stop_ns = clock_mono_ns();
        return false;
    }
    st->ra_seg = seg;
    st->stop_ns = 0;
    return true;
}

/* End (in blocks) of the span that should start at `blk`; 0: not yet, more will fit later. */
static uint32_t span_end(const struct cache *c, const struct stream *st,
                         const struct cache_seg *seg, uint32_t blk, uint64_t limit)
{
    uint32_t sb = c->slice_blocks, total = seg_blocks(seg);
    uint64_t window = min_u64(st->window, stream_bound(c, st));
    uint32_t most = (uint32_t)min_u64(SPAN_SLICES_MAX, SPAN_BLOCKS_MAX / sb);
    uint32_t group = (uint32_t)min_u64(most, window / (SPANS_AHEAD * slice_bytes(c)));
    uint64_t end = (blk / sb + 1ull) * sb;
    for (; group > 1 && end < total; group--) {
        if (seg->base + (end + sb) * BLOCK_BYTES > limit) {
            if (st->ra_end > st->pos + window / 2)
                return 0;
            break;
        }
        end += sb;
    }
    /* A short last slice costs no request of its own. */
    if (end < total && total - end < sb / 2 && total - blk <= most * sb)
        end = total;
    return (uint32_t)min_u64(end, total);
}

/* Starts one span at ra_end, or skips what is there already. False: stop for now. */
static bool readahead_step(struct cache *c, struct stream *st, const struct cache_seg *seg,
                           uint64_t limit, struct later *l)
{
    struct frame *frame[SPAN_BLOCKS_MAX];
    uint32_t blk = (uint32_t)((st->ra_end - seg->base) / BLOCK_BYTES);
    uint32_t end = span_end(c, st, seg, blk, limit), n = 0, got = 0;
    if (end == 0)
        return false;
    while (blk < end && frame_find(c, seg, blk))
        blk++;
    while (blk + n < end && !frame_find(c, seg, blk + n))
        n++;
    st->ra_end = min_u64(seg->base + blk * BLOCK_BYTES, seg->end);
    if (n == 0)
        return true;
    if (st->unread_n + n > stream_share(c, st) || c->unread_n + n > c->ahead_max)
        return false;
    uint64_t ahead = st->ra_end > st->pos ? st->ra_end - st->pos : 0;
    int64_t use = st->rate ? (int64_t)((double)ahead * 1e9 / (double)st->rate) : 0;
    while (got < n && (frame[got] = frame_take_ahead(c, use)))
        got++;
    for (uint32_t i = 0; i < got && got == n; i++) {
        frame_assign(c, frame[i], seg, blk + i);
        frame_own(c, frame[i], st);
    }
    if (got < n || span_make(c, seg, blk, frame, n, false, l) < 0) {
        for (uint32_t i = 0; i < got; i++)
            frame_free(c, frame[i]);
        return false;
    }
    st->ra_end = min_u64(seg->base + (blk + n) * BLOCK_BYTES, seg->end);
    return true;
}

/* Starts what `st` should have in flight. The caller has set st->planning, which also keeps `st` alive
 * while the lock is dropped for locate. */
void readahead_plan(struct cache *c, struct stream *st, const struct cache_seg *cur,
                    struct later *l)
{
    assert(st->planning);
    for (unsigned i = 0; i < PLAN_STEPS && !st->closed; i++) {
        if (st->evidence < SEQUENTIAL || !readahead_allowed(c, cur))
            break;
        uint64_t limit = readahead_limit(c, st, cur);
        st->ra_end = readahead_from(st, cur);
        if (st->ra_end >= limit)
            break;
        const struct cache_seg *seg = seg_holds(cur, st->ra_end)           ? cur
                                      : seg_holds(&st->ra_seg, st->ra_end) ? &st->ra_seg
                                                                           : NULL;
        if (seg ? !readahead_allowed(c, seg) || !readahead_step(c, st, seg, limit, l)
                : !locate_next(c, st, l))
            break;
    }
    st->planning = false;
    if (st->closed)
        free(st);
}

uint64_t cache_follower_distance(struct cache *c, uint64_t ino, uint64_t off,
                                 const struct cache_reader *self)
{
    uint64_t nearest = UINT64_MAX;
    unsigned n = 0;
    LOCK_SCOPE(&c->mu);
    list_each(stream_bucket(c, ino), it)
    {
        const struct stream *st = list_entry(it, struct stream, link);
        if (n++ == FOLLOWERS_SEEN)
            break;
        if (st->ino != ino || st->pos > off)
            continue;
        if (st->reader == self && off - st->pos <= NEAR_BYTES)
            continue; /* the stream that asks */
        nearest = min_u64(nearest, off - st->pos);
    }
    return nearest;
}

void cache_set_readahead(struct cache *c, bool on)
{
    LOCK_SCOPE(&c->mu);
    c->readahead_on = on;
}
