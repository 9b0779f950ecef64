/* rewrite.c: writes anywhere (broker profile): overwrites, extensions, stretches of holes.
 *
 * A write is cut at segment borders. The last segment that begins at or before its offset decides:
 *   covers it, open       overwritten in place
 *   covers it, sealing    -EAGAIN: the caller waits for the end of the seal (data_blocked)
 *   covers it, local      opened again as a new version, which is flushed, then as open
 *   covers it, remote     -EAGAIN: the caller brings it back (data_blocked, tier WARM)
 *   covers it, local, on a device that is being drained: the same: it is copied to another device first,
 *                         as long as there is room; so a file that is written all the time leaves, too
 *   ends before it        extended, when it can be written to, has room and the gap is small
 *   else                  a new segment
 *
 * A FUSE worker waits for no flush: where one is needed first, it gets -EAGAIN (data_write.on_worker),
 * nothing is in the way (DATA_FREE), and the next try is on the device pool.
 *
 * Holes are gaps between segments, so they cost nothing on a device and nothing in the bucket: a gap of
 * `hole_grid` bytes or more is never written into a segment. A new segment begins at a multiple of that,
 * so that a file filled in random order ends as so many segments at most and not as one per page.
 */
#include "fs/data/internal.h"

#include <assert.h>
#include <errno.h>
#include "fs/base/clock.h"
#include "fs/volume/config.h"

/* ---- looking ---- */

struct openseg *openseg_at(struct inode *i, uint64_t base)
{
    if (!i->data)
        return NULL;
    LOCK_SCOPE(&i->mu);
    struct openseg *found = NULL;
    struct list *head = &idata(i)->segs; /* ascending; the end is asked for most */
    for (struct list *n = head->prev; n != head; n = n->prev) {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->base < base)
            break;
        if (o->base == base)
            found = o;
    }
    if (found)
        openseg_ref(found);
    return found;
}

void spot_done(struct spot *s)
{
    if (s->o)
        openseg_unref(s->o);
    s->o = NULL;
}

/* Fills what follows from the record. */
static int spot_fill(struct inode *i, struct spot *s)
{
    if (s->rec.state != SEG_OPEN) {
        s->end = s->rec.end;
        return 0;
    }
    s->o = openseg_at(i, s->base);
    if (!s->o)
        return -EIO; /* its record says open, and load found nothing to open */
    s->end = s->base + openseg_len(s->o);
    return 0;
}

int spot_before(struct data *d, struct inode *i, uint64_t off, struct spot *s)
{
    assert(lock_is_mine(&i->io));
    *s = (struct spot){0};
    int r = seg_before(d->v->kv, i->ino, off, &s->base, &s->rec);
    return r < 0 ? r : spot_fill(i, s);
}

int spot_after(struct data *d, struct inode *i, uint64_t off, struct spot *s)
{
    assert(lock_is_mine(&i->io));
    *s = (struct spot){0};
    int r = seg_after(d->v->kv, i->ino, off, &s->base, &s->rec);
    return r < 0 ? r : spot_fill(i, s);
}

int spot_next(struct data *d, struct inode *i, uint64_t off, uint64_t end, struct spot *s)
{
    int r = spot_before(d, i, off, s);
    if (r == 0 && s->end > off)
        return 0;
    if (r == 0)
        spot_done(s);
    else if (r != -ENOENT)
        return r;
    r = spot_after(d, i, off, s);
    if (r == 0 && s->base >= end) {
        spot_done(s);
        return -ENOENT;
    }
    return r;
}

static bool has_to_come_first(struct data *d, const struct spot *s)
{
    return !s->o && (!s->rec.local || dev_should_leave(d->v->devs, s->rec.device,
                                                       s->rec.header_bytes + (s->end - s->base)));
}

int spot_open(struct data *d, struct inode *i, struct spot *s)
{
    if (s->o) {
        if (s->o->failed)
            return -EIO;
        return s->o->sealing ? -EAGAIN : openseg_file_for_write(s->o, i);
    }
    if (has_to_come_first(d, s))
        return -EAGAIN;
    return openseg_reopen_locked(d, i, s->base, &s->rec, &s->o);
}

/* ---- where a write goes ---- */

/* Worth extending: not for the sake of a crumb, and not over a gap that should stay a hole. */
static bool may_extend(struct data *d, struct inode *i, const struct spot *s, uint64_t off)
{
    uint64_t room = s->rec.capacity > s->end - s->base ? s->rec.capacity - (s->end - s->base) : 0;
    if (off - s->base >= s->rec.capacity || off - s->end >= hole_grid(d))
        return false;
    if (s->o) {
        LOCK_SCOPE(&i->mu);
        return !s->o->sealing && !s->o->failed && !openseg_begun_before(i, s->o);
    }
    return s->rec.local && !dev_is_draining(d->v->devs, s->rec.device) &&
           room >= max_u64(SEGMENT_BYTES_MIN / 4, s->rec.capacity / 16);
}

/* The open segment at the end of the file, when it takes a write at `off`: with a reference. Nothing lies
 * behind it, so no record has to be looked up: this is what an appender meets. */
static struct openseg *tail_hit(struct inode *i, uint64_t off)
{
    if (!i->data)
        return NULL;
    LOCK_SCOPE(&i->mu);
    struct list *last = idata(i)->segs.prev;
    if (last == &idata(i)->segs)
        return NULL;
    struct openseg *o = list_entry(last, struct openseg, link);
    uint64_t end = o->base + openseg_len(o);
    if (!o->sf || o->sealing || o->failed || off < o->base || off > end ||
        end != atomic_load(&i->size) || off - o->base >= o->rec.capacity ||
        openseg_begun_before(i, o))
        return NULL;
    openseg_ref(o);
    return o;
}

/* The open segment for a write at `off`, with a reference; how far it may reach. */
static int seg_for_write(struct data *d, struct inode *i, uint64_t off, bool on_worker,
                         struct openseg **ret, uint64_t *ret_next)
{
    struct spot s;
    struct seg_rec rec;
    uint64_t next, from = 0;
    *ret_next = UINT64_MAX;
    *ret = tail_hit(i, off);
    if (*ret)
        return 0;
    int r = seg_after(d->v->kv, i->ino, off + 1, &next, &rec);
    if (r == -ENOENT)
        next = UINT64_MAX;
    else if (r < 0)
        return r;
    *ret_next = next;
    r = spot_before(d, i, off, &s);
    if (r == 0) {
        bool covers = off < s.end;
        if (covers || may_extend(d, i, &s, off)) {
            /* That it is open again has to be durable. */
            bool waits = on_worker && !s.o && s.rec.local;
            r = waits ? -EAGAIN : spot_open(d, i, &s);
            if (r == 0) {
                *ret = s.o;
                return 0;
            }
            /* A damaged file is not appended to: the next one begins. */
            if (covers || (r != -EIO && r != -EBADMSG)) {
                spot_done(&s);
                return r;
            }
        }
        from = s.end;
        spot_done(&s);
    } else if (r != -ENOENT) {
        return r;
    }
    uint64_t base = max_u64(from, off / hole_grid(d) * hole_grid(d));
    return openseg_create_locked(d, i, base, next == UINT64_MAX ? 0 : next - base, ret);
}

/* ---- writing ---- */

/* An overwrite does not show in the length; so that a restart takes the device file's time and not the
 * record's, the note "stored at this length" goes. */
static int unnote(struct data *d, struct openseg *o)
{
    if (o->noted_len == 0)
        return 0;
    struct kv_batch b;
    kv_batch_init(&b);
    seg_open_put(&b, o->ino, o->base, 0);
    int r = kv_apply(d->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    if (r == 0)
        o->noted_len = 0;
    return r;
}

static int rewrite_some(struct data *d, struct data_write *w)
{
    struct openseg *o = NULL;
    uint64_t off = w->off + w->done, next;
    int r = seg_for_write(d, w->i, off, w->on_worker, &o, &next);
    if (r < 0)
        return r;
    assert(o);
    uint64_t pos = off - o->base, len = segfile_len(o->sf);
    if (w->on_worker && pos != len && segfile_write_flushes(o->sf, pos)) {
        openseg_unref(o);
        return -EAGAIN;
    }
    uint64_t cap = min_u64(segfile_capacity(o->sf), next - o->base);
    const char *buf = (const char *)w->buf + w->done;
    size_t n = (size_t)min_u64(w->len - w->done, cap - pos), done = 0;
    /* Bytes of a mapping have no writer who could be slowed down or told: the room above the refuse
     * mark, which statfs does not show, is theirs. */
    int64_t reply_at = 0;
    if (!w->from_page_cache)
        r = write_admit(d, o->id.device, n, &reply_at);
    if (reply_at > w->reply_at_ns)
        w->reply_at_ns = reply_at;
    if (r == 0 && pos < len)
        r = unnote(d, o);
    if (r == 0)
        r = pos == len ? segfile_append(o->sf, buf, n, &done)
                       : segfile_write(o->sf, pos, buf, n, &done);
    uint64_t grown = segfile_len(o->sf) - len;
    if (!done) {
        openseg_unref(o);
        return r < 0 ? r : -EIO;
    }
    atomic_fetch_add(&d->totals.logical, (int64_t)grown);
    atomic_fetch_add(&d->totals.local, (int64_t)grown);
    atomic_fetch_add(&d->totals.pending, (int64_t)grown);
    w->done += done;
    int64_t now = clock_wall_ns();
    atomic_store(&w->i->mtime_ns, now);
    atomic_store(&w->i->ctime_ns, now);
    w->i->rec_ahead = true;
    if (off + done > atomic_load(&w->i->size))
        atomic_store_explicit(&w->i->size, off + done, memory_order_release);
    openseg_wrote(o, done);
    struct data_piece *p = &w->piece[w->pieces++];
    *p = (struct data_piece){o, pos, pos == len ? buf : NULL, done, false};
    if (o->base + segfile_len(o->sf) == off + done && pos + done == segfile_capacity(o->sf)) {
        o->sealing = true;
        p->full = true;
    }
    return r;
}

int rewrite_begin(struct data *d, struct data_write *w)
{
    int r = 0;
    while (r == 0 && w->done < w->len) {
        write_piece_room(d, w);
        r = rewrite_some(d, w);
    }
    if (w->from_page_cache && w->i->data)
        atomic_store(&idata(w->i)->mapped_ns, clock_mono_ns());
    return w->done > 0 ? 0 : r;
}

/* ---- waiting for what stands in the way ---- */

enum data_blocked data_blocked(struct data *d, struct inode *i, uint64_t off, uint64_t len,
                               struct data_wait *w, uint64_t *ret_off)
{
    enum data_blocked what = DATA_FREE;
    struct spot s;
    lock_acquire(&i->io);
    for (uint64_t at = off; what == DATA_FREE && at < off + len; at = s.end) {
        if (spot_next(d, i, at, off + len, &s) < 0)
            break;
        if (s.o && s.o->sealing && !s.o->failed) {
            what = DATA_SEALING;
            LOCK_SCOPE(&i->mu);
            list_add_tail(&idata(i)->waits, &w->link);
        } else if (has_to_come_first(d, &s)) {
            what = DATA_REMOTE;
            *ret_off = s.base;
        }
        spot_done(&s);
        if (s.end <= at)
            break; /* an empty one that begins here */
    }
    lock_release(&i->io);
    return what;
}

void seal_waits_wake(struct inode *i)
{
    struct list out;
    list_init(&out);
    lock_acquire(&i->mu);
    list_each_safe(&idata(i)->waits, l, next)
    {
        list_del(l);
        list_add_tail(&out, l);
    }
    lock_release(&i->mu);
    list_each_safe(&out, l, next)
    {
        list_del(l);
        struct data_wait *w = list_entry(l, struct data_wait, link);
        w->ready(w);
    }
}
