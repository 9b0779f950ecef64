/* write.c: the append path.
 *
 * FUSE worker: inode.io -> pwrite to the tail's device file -> length published -> hash lock taken,
 * inode.io dropped -> [reply] -> the same bytes are hashed, in order -> hash lock dropped.
 * So the next append's pwrite runs while this one is hashed, and hashing is in nobody's latency.
 *
 * No metadata write and no store request, except when a segment begins or ends.
 */
#include "fs/data/internal.h"

#include <assert.h>
#include <errno.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/volume/config.h"

#define DELAY_MAX_NS (10 * NS_PER_SEC)

/* Above the slow mark the room that is left below the refuse mark is spread over slow_spread: writers
 * together get room / slow_spread bytes a second, by delaying their replies. The pace thus settles
 * where eviction frees as much as is written, without a rate that anybody has to guess. */
int write_admit(struct data *d, uint32_t device, size_t len, int64_t *ret_reply_at_ns)
{
    struct devs *devs = d->v->devs;
    *ret_reply_at_ns = 0;
    int r = dev_room(devs, device, len);
    if (r < 0) {
        counter_add(d->refused, 1);
        data_kick(d);
        return r;
    }
    double fill = dev_fill(devs, device);
    if (fill < DEV_SLOW)
        return 0;
    struct dev_info info = {0};
    (void)dev_info_of(devs, device, &info);
    double room = (DEV_REFUSE - fill) * (double)info.budget;
    double rate = room > 4096 ? room / ((double)d->v->conf->slow_spread / 1e3) : 512;
    int64_t now = clock_mono_ns(), cost = (int64_t)((double)len / rate * 1e9);
    lock_acquire(&d->mu);
    if (d->pace_ns < now)
        d->pace_ns = now;
    /* Nobody waits longer, however many they are: at the refuse mark ENOSPC ends it. */
    int64_t latest = now + DELAY_MAX_NS;
    d->pace_ns = cost < latest - d->pace_ns ? d->pace_ns + cost : latest;
    *ret_reply_at_ns = d->pace_ns;
    lock_release(&d->mu);
    counter_add(d->slowed, 1);
    return 0;
}

bool data_devices_failed(struct data *d)
{
    uint32_t id;
    int r = dev_pick(d->v->devs, &id);
    if (r == 0)
        dev_unpick(d->v->devs, id);
    return r == -EIO;
}

void data_space_freed(struct data *d)
{
    void (*fn)(void *) = NULL;
    void *arg = NULL;
    lock_acquire(&d->mu);
    if (devs_fill(d->v->devs) < DEV_SLOW) {
        d->pace_ns = 0;
        fn = d->space_fn;
        arg = d->space_arg;
    }
    lock_release(&d->mu);
    if (fn)
        fn(arg);
}

void data_on_space(struct data *d, void (*fn)(void *arg), void *arg)
{
    LOCK_SCOPE(&d->mu);
    d->space_fn = fn;
    d->space_arg = arg;
}

/* A sealed local segment at the end of the file that has room is extended rather than followed by a
 * crumb. -ENOENT: begin a new one at `size`. */
static int extend_sealed(struct data *d, struct inode *i, uint64_t size, struct openseg **ret)
{
    uint64_t base;
    struct seg_rec rec;
    if (size == 0)
        return -ENOENT;
    int r = seg_before(d->v->kv, i->ino, size - 1, &base, &rec);
    if (r < 0)
        return r;
    if (rec.end != size || !rec.local || rec.state == SEG_OPEN ||
        dev_is_draining(d->v->devs, rec.device))
        return -ENOENT;
    uint64_t len = size - base, least = max_u64(SEGMENT_BYTES_MIN / 4, rec.capacity / 16);
    if (rec.capacity < len + least)
        return -ENOENT;
    r = openseg_reopen_locked(d, i, base, &rec, ret);
    if (r == -EIO || r == -EBADMSG)
        return -ENOENT; /* a damaged file is not appended to; the next one begins */
    return r;
}

/* The open segment that ends at `size` and has room. inode.io held; with a reference. */
static int tail_for(struct data *d, struct inode *i, uint64_t size, struct openseg **ret)
{
    struct openseg *o = openseg_find(i, size, true);
    if (o && o->base + openseg_len(o) == size && !o->sealing && !o->failed) {
        int r = openseg_file_for_write(o, i);
        if (r < 0) {
            openseg_unref(o);
            return r;
        }
        if (segfile_capacity(o->sf) > size - o->base) {
            *ret = o;
            return 0;
        }
        openseg_seal_before(o, i);
        openseg_seal_locked(o, i); /* full when the last daemon died, before it could be sealed */
    }
    if (o)
        openseg_unref(o);
    int r = extend_sealed(d, i, size, ret);
    if (r == -ENOENT)
        r = openseg_create_locked(d, i, size, 0, ret);
    return r;
}

static void publish(struct inode *i, uint64_t size)
{
    int64_t now = clock_wall_ns();
    atomic_store_explicit(&i->mtime_ns, now, memory_order_relaxed);
    atomic_store_explicit(&i->ctime_ns, now, memory_order_relaxed);
    i->rec_ahead = true;
    if (size > atomic_load_explicit(&i->size, memory_order_relaxed))
        atomic_store_explicit(&i->size, size, memory_order_release);
}

/* Appends what fits into the tail. inode.io held. */
static int append_some(struct data *d, struct data_write *w, uint64_t size)
{
    struct openseg *o;
    int r = tail_for(d, w->i, size, &o);
    if (r < 0)
        return r;
    uint64_t pos = size - o->base, room = segfile_capacity(o->sf) - pos;
    const char *buf = (const char *)w->buf + w->done;
    size_t n = (size_t)min_u64(w->len - w->done, room), done = 0;
    int64_t reply_at;
    r = write_admit(d, o->id.device, n, &reply_at);
    if (reply_at > w->reply_at_ns)
        w->reply_at_ns = reply_at;
    if (r == 0)
        r = segfile_append(o->sf, buf, n, &done);
    if (done) {
        atomic_fetch_add_explicit(&d->totals.logical, (int64_t)done, memory_order_relaxed);
        atomic_fetch_add_explicit(&d->totals.local, (int64_t)done, memory_order_relaxed);
        atomic_fetch_add_explicit(&d->totals.pending, (int64_t)done, memory_order_relaxed);
        w->done += done;
        publish(w->i, size + done);
        openseg_wrote(o, done);
        struct data_piece *p = &w->piece[w->pieces++];
        *p = (struct data_piece){o, pos, buf, done, false};
        if (done == room) {
            openseg_seal_before(o, w->i);
            o->sealing = true;
            p->full = true;
        }
    } else {
        openseg_unref(o);
    }
    if (r < 0 && r != -ENOSPC)
        dev_fail(d->v->devs, o->id.device, "write", r);
    return r;
}

/* The hash lock is held, and goes: the bytes written so far are hashed, full segments are sealed. */
static void hash_pieces(struct data *d, struct data_write *w)
{
    for (unsigned k = 0; k < w->pieces; k++) {
        struct data_piece *p = &w->piece[k];
        if (p->buf)
            segfile_hash(p->seg->sf, p->pos, p->buf, p->len);
    }
    lock_release(&idata(w->i)->hash);
    w->hashing = false;
    bool full = false;
    for (unsigned k = 0; k < w->pieces; k++) {
        struct data_piece *p = &w->piece[k];
        if (p->full) {
            openseg_seal_submit(p->seg, w->i);
            full = true;
        }
        openseg_unref(p->seg);
    }
    w->pieces = 0;
    if (full)
        data_kick(d);
}

void write_piece_room(struct data *d, struct data_write *w)
{
    if (w->pieces < ARRAY_LEN(w->piece))
        return;
    lock_acquire(&idata(w->i)->hash);
    hash_pieces(d, w);
}

static int append_begin(struct data *d, struct data_write *w)
{
    uint64_t size = atomic_load(&w->i->size);
    if (w->off != size) {
        /* The request was sent again after the daemon's death: bytes that are there are done. */
        if (w->resent && w->off < size && w->len <= size - w->off) {
            w->done = w->len;
            return 0;
        }
        if (!(w->resent && w->off < size))
            return -EPERM;
        w->done = (size_t)(size - w->off);
    }
    int r = 0;
    while (r == 0 && w->done < w->len) {
        write_piece_room(d, w);
        r = append_some(d, w, w->off + w->done);
    }
    return w->done > 0 ? 0 : r;
}

/* Broker profile, a file that a rule makes append-only. What was sent again after the daemon's death may lie
 * before the end: the same bytes to the same place. */
static bool may_append(const struct data_write *w)
{
    uint64_t size = atomic_load(&w->i->size);
    return w->off == size || (w->resent && w->off < size);
}

int data_write_begin(struct data *d, struct data_write *w)
{
    w->done = 0;
    w->pieces = 0;
    w->reply_at_ns = 0;
    w->hashing = false;
    if (w->len == 0)
        return 0;
    if (w->len > DATA_SIZE_MAX || w->off > DATA_SIZE_MAX - w->len)
        return -EFBIG;
    if (!w->on_worker)
        files_make_room(d);
    lock_acquire(&w->i->io);
    int r = openseg_any_lost(w->i)                                     ? -EIO
            : d->v->topics_profile                                     ? append_begin(d, w)
            : policy_append_only(d->v->policy, w->i) && !may_append(w) ? -EPERM
                                                                       : rewrite_begin(d, w);
    if (w->pieces > 0) {
        lock_acquire(&idata(w->i)->hash);
        w->hashing = true;
    }
    lock_release(&w->i->io);
    return r;
}

void data_write_end(struct data *d, struct data_write *w)
{
    if (w->hashing)
        hash_pieces(d, w);
}
