/* pool.c: the frames of the slice cache and who may take them.
 *
 * A frame holds one block. It is in one state:
 *
 *   state    in tables      on list                     moved on by
 *   -------  -------------  --------------------------  ------------------------------------------
 *   EMPTY    no             FREE                        frame_take_*: to LOADING
 *   LOADING  unless forgot  none                        its span: VALID or FAILED
 *   VALID    unless forgot  pins == 0: DEAD, ORPHAN,    eviction, expiry, forget at pins == 0:
 *                           CLAIMED; else none          EMPTY. Content is immutable
 *   FAILED   no             none                        last unpin: EMPTY
 *
 * A frame that is VALID and unpinned is on the list that says how soon it is needed again:
 *   DEAD     a sequential stream has passed it, or whoever read it ahead is gone: first to go
 *   ORPHAN   no stream is behind it; in order of last use
 *   CLAIMED  some sequential stream is behind it and will come by (unread read-ahead is here)
 * Lists are hints: streams come and go, so a candidate is judged again before it is evicted.
 *
 * Next use of a frame = distance to the nearest sequential stream behind it / that stream's rate.
 * Eviction takes FREE, then a DEAD or ORPHAN frame that is still unclaimed, then the farthest next
 * use among a random sample of the claimed. Demand always gets a frame when there is an unpinned
 * one. Read-ahead gets one only if it will be used sooner than the victim, and never holds more than
 * ahead_max frames unread; so the reserve for demand cannot be eaten by it.
 */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "fs/base/clock.h"

enum { SAMPLE = 32, RECHECK = 8 };

#define RATE_UNKNOWN (64 * MiB) /* assumed until a stream's rate is measured */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static uint32_t key_bucket(const struct cache *c, uint64_t ino, uint64_t base, uint32_t version,
                           uint32_t blk)
{
    uint64_t h = mix(ino) ^ base;
    return (uint32_t)mix(h * 31 + ((uint64_t)version << 32 | blk)) & c->table_mask;
}

struct list *ino_bucket(struct cache *c, uint64_t ino)
{
    return &c->ino_table[(uint32_t)mix(ino) & c->table_mask];
}

struct list *stream_bucket(struct cache *c, uint64_t ino)
{
    return &c->streams[mix(ino) % STREAM_BUCKETS];
}

static void set_used(struct cache *c)
{
    uint64_t used = (uint64_t)(c->frames - c->count[ON_FREE]) * BLOCK_BYTES;
    atomic_store_explicit(&c->used, used, memory_order_relaxed);
}

static void list_leave(struct cache *c, struct frame *f)
{
    if (f->where == ON_NONE)
        return;
    list_del(&f->where_link);
    c->count[f->where]--;
    f->where = ON_NONE;
}

static void list_enter(struct cache *c, struct frame *f, enum frame_list where)
{
    assert(f->where == ON_NONE && f->pins == 0);
    list_add_tail(&c->list[where], &f->where_link);
    c->count[where]++;
    f->where = (uint8_t)where;
}

int pool_open(struct cache *c)
{
    /* A table of at most twice as many buckets as frames: pointer and list head each. */
    uint64_t per_frame = BLOCK_BYTES + sizeof(struct frame) +
                         2 * (sizeof(*c->key_table) + sizeof(*c->ino_table));
    uint64_t n = c->conf.pool_bytes / per_frame;
    if (n > UINT32_MAX / 4)
        return -EINVAL;
    c->frames = (uint32_t)n;
    c->ahead_max = c->frames - (c->frames + 7) / 8;
    uint32_t buckets = 1;
    while (buckets < c->frames)
        buckets *= 2;
    c->table_mask = buckets - 1;
    c->frame = calloc(c->frames, sizeof *c->frame);
    c->key_table = calloc(buckets, sizeof *c->key_table);
    c->ino_table = calloc(buckets, sizeof *c->ino_table);
    if (!c->frame || !c->key_table || !c->ino_table)
        return -ENOMEM;
    void *p = mmap(NULL, c->frames * BLOCK_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    c->pool = p;
    for (unsigned i = 0; i < FRAME_LISTS; i++)
        list_init(&c->list[i]);
    for (uint32_t i = 0; i < buckets; i++)
        list_init(&c->ino_table[i]);
    for (uint32_t i = 0; i < c->frames; i++) {
        struct frame *f = &c->frame[i];
        list_init(&f->ino_link);
        list_init(&f->where_link);
        list_init(&f->mine);
        list_init(&f->fifo);
        list_init(&f->waiters);
        f->where = ON_NONE;
        list_enter(c, f, ON_FREE);
    }
    return 0;
}

void pool_close(struct cache *c)
{
    if (c->pool)
        (void)munmap(c->pool, c->frames * BLOCK_BYTES);
    free(c->frame);
    free(c->key_table);
    free(c->ino_table);
}

struct frame *frame_find(struct cache *c, const struct cache_seg *seg, uint32_t blk)
{
    struct frame *f = c->key_table[key_bucket(c, seg->ino, seg->base, seg->version, blk)];
    while (f && !(f->ino == seg->ino && f->base == seg->base && f->version == seg->version &&
                  f->blk == blk))
        f = f->key_next;
    return f;
}

/* Frames that a demand read could have now. */
uint32_t frames_available(const struct cache *c)
{
    return c->count[ON_FREE] + c->count[ON_DEAD] + c->count[ON_ORPHAN] + c->count[ON_CLAIMED];
}

void frame_unhash(struct cache *c, struct frame *f)
{
    if (!f->hashed)
        return;
    struct frame **at = &c->key_table[key_bucket(c, f->ino, f->base, f->version, f->blk)];
    while (*at != f)
        at = &(*at)->key_next;
    *at = f->key_next;
    f->key_next = NULL;
    list_del(&f->ino_link);
    f->hashed = false;
}

/* Gives an unlisted, unpinned frame its key; it is LOADING from now on. */
void frame_assign(struct cache *c, struct frame *f, const struct cache_seg *seg, uint32_t blk)
{
    assert(f->state == FRAME_EMPTY && f->where == ON_NONE && !f->hashed && f->pins == 0);
    f->ino = seg->ino;
    f->base = seg->base;
    f->version = seg->version;
    f->blk = blk;
    f->len = seg_block_len(seg, blk);
    f->cold = seg->cold;
    f->sequential = f->ahead = false;
    f->err = 0;
    f->state = FRAME_LOADING;
    struct frame **at = &c->key_table[key_bucket(c, f->ino, f->base, f->version, f->blk)];
    f->key_next = *at;
    *at = f;
    list_add_tail(ino_bucket(c, f->ino), &f->ino_link);
    f->hashed = true;
}

/* Marks a loading frame as read ahead for `st`. */
void frame_own(struct cache *c, struct frame *f, struct stream *st)
{
    assert(!f->unread && f->state == FRAME_LOADING);
    f->ahead = f->unread = f->sequential = true;
    c->unread_n++;
    f->owner = st;
    list_add_tail(&st->unread, &f->mine);
    if (st->unread_n++ == 0)
        c->owners_n++;
}

/* The frame stays unread, but nobody in particular waits for it. */
void frame_disown(struct cache *c, struct frame *f)
{
    struct stream *st = f->owner;
    if (!st)
        return;
    list_del(&f->mine);
    f->owner = NULL;
    if (--st->unread_n == 0)
        c->owners_n--;
}

static void unread_end(struct cache *c, struct frame *f, bool used)
{
    if (!f->unread)
        return;
    struct stream *st = f->owner;
    frame_disown(c, f);
    list_del(&f->fifo);
    f->unread = false;
    c->unread_n--;
    if (!used && f->state != FRAME_VALID)
        return; /* it never came */
    counter_add(used ? c->used_bytes : c->wasted_bytes, f->len);
    if (!used && st)
        stream_wasted(c, st, clock_mono_ns());
}

/* From any state to EMPTY and on no list. */
static void frame_reset(struct cache *c, struct frame *f)
{
    assert(f->pins == 0 && list_empty(&f->waiters));
    list_leave(c, f);
    frame_unhash(c, f);
    unread_end(c, f, false);
    f->span = NULL;
    f->state = FRAME_EMPTY;
}

void frame_free(struct cache *c, struct frame *f)
{
    frame_reset(c, f);
    list_enter(c, f, ON_FREE);
    set_used(c);
}

/* Nanoseconds until some stream is expected to want the frame; INT64_MAX: none will. */
int64_t frame_next_use(struct cache *c, const struct frame *f)
{
    uint64_t from = frame_off(f), end = from + f->len;
    int64_t now = clock_mono_ns(), idle_max = (int64_t)c->conf.unread_ms * NS_PER_MS;
    double best = 0;
    bool found = false;
    unsigned n = 0;
    list_each(stream_bucket(c, f->ino), it)
    {
        const struct stream *st = list_entry(it, struct stream, link);
        if (n++ == PREDICT_LIMIT)
            break;
        uint64_t slack = f->unread && f->owner == st ? NEAR_BYTES : 0;
        if (st->ino != f->ino || st->evidence < SEQUENTIAL || st->pos >= end + slack)
            continue;
        int64_t idle = now - st->last_ns;
        if (idle > idle_max)
            continue;
        uint64_t distance = from > st->pos ? from - st->pos : 0;
        double t = (double)distance * 1e9 / (double)(st->rate ? st->rate : RATE_UNKNOWN);
        t += (double)idle;
        if (!found || t < best)
            best = t;
        found = true;
    }
    return !found || best >= 9e18 ? INT64_MAX : (int64_t)best;
}

/* Puts an unpinned valid frame on the list it belongs to. */
void frame_place(struct cache *c, struct frame *f)
{
    list_leave(c, f);
    assert(f->state == FRAME_VALID && f->hashed);
    if (frame_next_use(c, f) != INT64_MAX)
        list_enter(c, f, ON_CLAIMED);
    else
        list_enter(c, f, f->sequential ? ON_DEAD : ON_ORPHAN);
}

void frame_pin(struct cache *c, struct frame *f)
{
    list_leave(c, f);
    unread_end(c, f, true);
    f->pins++;
    if (f->span && !f->span->pub.urgent)
        __atomic_store_n(&f->span->pub.urgent, true, __ATOMIC_RELAXED);
}

void frame_unpin(struct cache *c, struct frame *f)
{
    assert(f->pins > 0);
    if (--f->pins > 0 || f->state == FRAME_LOADING)
        return;
    if (f->hashed)
        frame_place(c, f);
    else
        frame_free(c, f);
}

static struct frame *evict(struct cache *c, struct frame *f)
{
    counter_add(c->evicted_bytes, f->len);
    frame_reset(c, f);
    return f;
}

/* The head of `where` that no stream has come up behind since it was put there. */
static struct frame *unclaimed(struct cache *c, enum frame_list where)
{
    for (unsigned i = 0; i < RECHECK && !list_empty(&c->list[where]); i++) {
        struct frame *f = list_entry(c->list[where].next, struct frame, where_link);
        if (frame_next_use(c, f) == INT64_MAX)
            return f;
        list_leave(c, f);
        list_enter(c, f, ON_CLAIMED);
    }
    return NULL;
}

/* The frame with the farthest next use of a sample, and when that is. */
static struct frame *farthest(struct cache *c, int64_t *ret_use)
{
    struct frame *best = NULL;
    if (list_empty(&c->list[ON_CLAIMED]))
        return NULL;
    for (unsigned i = 0; i <= SAMPLE; i++) {
        c->random = c->random * 1664525u + 1013904223u;
        struct frame *f = &c->frame[((uint64_t)c->random * c->frames) >> 32];
        if (i == SAMPLE)
            f = list_entry(c->list[ON_CLAIMED].next, struct frame, where_link);
        if (f->where != ON_CLAIMED)
            continue;
        int64_t use = frame_next_use(c, f);
        if (!best || use > *ret_use) {
            best = f;
            *ret_use = use;
        }
    }
    return best;
}

/* A frame for a block that is wanted in use_ns; NULL: every candidate is wanted sooner. */
static struct frame *take(struct cache *c, int64_t use_ns)
{
    struct frame *f = NULL;
    if (!list_empty(&c->list[ON_FREE])) {
        f = list_entry(c->list[ON_FREE].next, struct frame, where_link);
        list_leave(c, f);
    } else if ((f = unclaimed(c, ON_DEAD)) || (f = unclaimed(c, ON_ORPHAN))) {
        evict(c, f);
    } else {
        int64_t use = 0;
        f = farthest(c, &use);
        if (f && use > use_ns)
            evict(c, f);
        else
            f = NULL;
    }
    set_used(c);
    return f;
}

/* Never NULL while frames_available() > 0: unclaimed() leaves at least one claimed frame behind when
 * it finds none itself. */
struct frame *frame_take_demand(struct cache *c)
{
    return take(c, -1);
}

struct frame *frame_take_ahead(struct cache *c, int64_t use_ns)
{
    return c->unread_n < c->ahead_max ? take(c, use_ns) : NULL;
}

static void timer_arm(struct cache *c)
{
    if (c->timer_armed || c->closing || !c->conf.timers || list_empty(&c->unread))
        return;
    struct frame *f = list_entry(c->unread.next, struct frame, fifo);
    c->timer_armed = true;
    timer_set(c->conf.timers, &c->timer, f->at_ns + (int64_t)c->conf.unread_ms * NS_PER_MS);
}

/* An unread frame has become valid: from now on its time runs. */
void frame_arrived_unread(struct cache *c, struct frame *f)
{
    f->at_ns = clock_mono_ns();
    list_add_tail(&c->unread, &f->fifo);
    timer_arm(c);
}

/* True: its owner still reads and will be there within another life time. */
static bool unread_renews(struct cache *c, const struct frame *f, int64_t now)
{
    int64_t life = (int64_t)c->conf.unread_ms * NS_PER_MS;
    return f->owner && now - f->owner->last_ns < life && frame_next_use(c, f) < life;
}

/* Timer: frees read-ahead that nobody asked for in time. */
void pool_expire(struct timer *t)
{
    struct cache *c = container_of(t, struct cache, timer);
    int64_t life = (int64_t)c->conf.unread_ms * NS_PER_MS;
    struct later l;
    later_init(&l);
    lock_acquire(&c->mu);
    int64_t now = clock_mono_ns();
    while (!list_empty(&c->unread)) {
        struct frame *f = list_entry(c->unread.next, struct frame, fifo);
        if (f->at_ns + life > now)
            break;
        if (unread_renews(c, f, now)) {
            list_del(&f->fifo);
            list_add_tail(&c->unread, &f->fifo);
            f->at_ns = now;
        } else {
            frame_free(c, f);
        }
    }
    starved_pump(c, &l);
    lock_release(&c->mu);
    later_run(&l);

    lock_acquire(&c->mu); /* last: once this is seen, cache_close may free everything */
    c->timer_armed = false;
    timer_arm(c);
    pthread_cond_broadcast(&c->changed);
    lock_release(&c->mu);
}
