/* size.c: truncate, seek, stat, statfs. fallocate is in punch.c.
 *
 * A shorter truncate drops the segments behind the new end and cuts the one it falls into: an open one
 * in its device file, a sealed local one after it was opened again, a remote one only in its record:
 * its object keeps more bytes than the file has, and nothing is downloaded. */
#include "fs/data/internal.h"
#include "fs/data/hooks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include "fs/base/clock.h"
#include "fs/policy/policy.h"
#include "fs/volume/config.h"

/* Removes a whole sealed segment behind the new end. */
static void drop_segment(struct data *d, struct inode *i, uint64_t base, const struct seg_rec *rec,
                         uint64_t topic, struct kv_batch *b, struct seg_change *c)
{
    int64_t later = clock_wall_ns() + (int64_t)d->v->conf->delete_delay * NS_PER_MS;
    *c = (struct seg_change){
        .ino = i->ino,
        .base = base,
        .had = true,
        .old = *rec,
        .old_len = rec->end - base,
    };
    if (rec->local)
        seg_queue_unlink(b, i->ino, base, rec);
    if (rec->has_object)
        seg_queue_delete_in(b, &rec->object, topic, i->ino, base, later);
    if (rec->has_pending)
        seg_queue_delete_in(b, &rec->pending, topic, i->ino, base, later);
    struct key k = key_blocks(i->ino, base, rec->version);
    kv_del(b, k.b, k.len);
    if (rec->has_object && rec->object.version != rec->version) {
        k = key_blocks(i->ino, base, rec->object.version);
        kv_del(b, k.b, k.len);
    }
    seg_queue_sealed_del(b, i->ino, base, rec);
    k = key_evict(rec->committed_ns, i->ino, base);
    kv_del(b, k.b, k.len);
    k = key_open(i->ino, base);
    kv_del(b, k.b, k.len);
    seg_change_put(b, c);
    k = key_seg(i->ino, base);
    topic_mark(b, topic, &k); /* the manifest may have it, if only as one without object */
}

/* Takes an open segment out of the inode's list, for good. inode.io held. */
static void unlist(struct inode *i, struct openseg *o)
{
    lock_acquire(&i->mu);
    list_del(&o->link);
    bool waits =
        o->seal_waits; /* nobody finds it any more to start its seal, which ends its life */
    o->seal_waits = false;
    lock_release(&i->mu);
    if (waits)
        exec_submit(o->d->v->bulk, &o->seal_task);
    openseg_unref(o); /* the list's */
}

/* Applies a change of segments together with the inode's record, which says how far the file reaches after it.
 * `gone`: the open segment that this takes away, or NULL. */
static int apply_with_size(struct data *d, struct inode *i, struct openseg *gone,
                           struct kv_batch *b)
{
    LOCK_SCOPE(&i->mu);
    struct inode_rec was = i->rec;
    if (gone)
        gone->storing = true;
    inode_store_locked(d->v->ns, i, b);
    int r = kv_apply(d->v->kv, b, NULL, NULL);
    if (gone)
        gone->storing = false;
    if (r < 0) {
        i->rec = was; /* what is stored: the next record must not tell less */
        i->rec_ahead = true;
    }
    return r;
}

int seg_drop(struct data *d, struct inode *i, uint64_t base, const struct seg_rec *rec,
             uint64_t topic, bool sized)
{
    struct kv_batch b;
    struct seg_change c;
    kv_batch_init(&b);
    struct openseg *o = rec->state == SEG_OPEN ? openseg_at(i, base) : NULL;
    drop_segment(d, i, base, rec, topic, &b, &c);
    if (o)
        c.old_len = openseg_len(o);
    int r = sized ? apply_with_size(d, i, o, &b) : kv_apply(d->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    if (r == 0)
        seg_change_done(&d->totals, &c);
    if (r == 0 && o) /* not before: what could not be dropped stays readable */
        unlist(i, o);
    if (o)
        openseg_unref(o);
    return r;
}

static void shrinking(struct inode *i, bool on, uint64_t reach)
{
    LOCK_SCOPE(&i->mu);
    idata(i)->shrinking = on;
    idata(i)->reach = reach;
}

/* Removes every segment that begins at or behind `from`, from the end. inode.io held (or the inode is unreachable).
 * Batches of one segment each: a crash in between leaves a shorter file, which is a prefix. So each of them says how
 * far the file still reaches: to what begins there, and with the last one, when the segment at `last` is before it, to
 * `from`, where that is cut next. UINT64_MAX: none is. `sized` false: nobody will ask. */
static int drop_from(struct data *d, struct inode *i, uint64_t from, uint64_t topic, uint64_t last,
                     bool sized)
{
    for (;;) {
        uint64_t base, before;
        struct seg_rec rec, other;
        int r = seg_before(d->v->kv, i->ino, UINT64_MAX, &base, &rec);
        if (r == -ENOENT || (r == 0 && base < from))
            return 0;
        if (r == 0 && sized) {
            r = base ? seg_before(d->v->kv, i->ino, base - 1, &before, &other) : -ENOENT;
            shrinking(i, true, r == 0 && before == last ? from : base);
            r = r == -ENOENT ? 0 : r;
        }
        if (r == 0)
            r = seg_drop(d, i, base, &rec, topic, sized);
        if (r < 0)
            return r;
    }
}

int data_gone(void *ctx, struct inode *i, struct kv_batch *b)
{
    struct data *d = ctx;
    (void)b; /* segment by segment, so that a huge file is no huge batch */
    uint64_t topic = 0;
    (void)topic_of(d->v->ns, i->ino, &topic);
    lock_acquire(&i->io);
    int r = drop_from(d, i, 0, topic, UINT64_MAX, false);
    lock_release(&i->io);
    cache_forget(d->v->cache, i->ino, 0);
    if (r == 0) /* else whoever meets it next would kick for ever */
        data_kick(d);
    return r;
}

/* Shortens an open segment. What was appended before has been hashed then. */
static int shorten(struct data *d, struct inode *i, struct openseg *o, uint64_t len)
{
    uint64_t was = segfile_len(o->sf);
    if (len >= was)
        return 0;
    lock_acquire(&idata(i)->hash);
    lock_release(&idata(i)->hash);
    int r = segfile_truncate(o->sf, len);
    if (r < 0)
        return r;
    int64_t less = (int64_t)(was - len);
    atomic_fetch_sub(&d->totals.logical, less);
    atomic_fetch_sub(&d->totals.local, less);
    atomic_fetch_sub(&d->totals.pending, less);
    openseg_wrote(o, 0);
    return 0;
}

bool spot_cuttable(const struct spot *s)
{
    return !s->o && !s->rec.local && s->rec.state == SEG_COMMITTED && s->rec.has_object &&
           s->rec.object.version == s->rec.version;
}

int spot_cut(struct data *d, struct inode *i, struct spot *s, uint64_t end, uint64_t topic)
{
    if (s->o)
        return shorten(d, i, s->o, end - s->base);
    struct seg_change c = {.ino = i->ino,
                           .base = s->base,
                           .had = true,
                           .has = true,
                           .old = s->rec,
                           .now = s->rec,
                           .old_len = s->rec.end - s->base,
                           .now_len = end - s->base};
    c.now.end = end;
    struct kv_batch b;
    kv_batch_init(&b);
    seg_change_put(&b, &c);
    struct key k = key_seg(i->ino, s->base);
    topic_mark(&b, topic, &k);
    int r = apply_with_size(d, i, NULL, &b);
    kv_batch_done(&b);
    if (r == 0)
        seg_change_done(&d->totals, &c);
    return r;
}

/* The segment that an end at `size` cuts, ready to be cut; -ENOENT: there is none. */
static int find_cut(struct data *d, struct inode *i, uint64_t size, struct spot *s)
{
    if (size == 0)
        return -ENOENT;
    int r = spot_before(d, i, size - 1, s);
    if (r < 0)
        return r;
    r = s->end <= size ? -ENOENT : spot_cuttable(s) ? 0 : spot_open(d, i, s);
    if (r < 0)
        spot_done(s);
    return r;
}

int inode_changed(struct data *d, struct inode *i, const struct kv_origin *who)
{
    struct kv_batch b;
    kv_batch_init(&b);
    int64_t now = clock_wall_ns();
    atomic_store(&i->mtime_ns, now);
    atomic_store(&i->ctime_ns, now);
    lock_acquire(&i->mu);
    inode_store_locked(d->v->ns, i, &b);
    openseg_mark(d, i, UINT64_MAX, &b); /* the file may end in a hole behind them now */
    int r = kv_apply(d->v->kv, &b, who, NULL);
    lock_release(&i->mu);
    kv_batch_done(&b);
    return r;
}

/* Shortening failed on the way: what is still there shows again, with the hole at the end that the record tells of. Left
 * behind the end it would come to light when the file is extended. */
static void show_rest(struct data *d, struct inode *i, uint64_t size, uint64_t was)
{
    struct spot last;
    lock_acquire(&i->mu);
    uint64_t end = i->rec.size;
    lock_release(&i->mu);
    if (spot_before(d, i, UINT64_MAX, &last) == 0) {
        spot_done(&last);
        end = max_u64(end, last.end);
    }
    atomic_store(&i->size, max_u64(size, min_u64(was, end)));
}

/* An open segment is about to be cut at `size`, and what was behind it has been dropped. What says that the file is longer
 * must not come back with a loss of power that keeps the cut: zeros would lie between. */
static int tell_end(struct data *d, struct inode *i, uint64_t size, bool dropped)
{
    lock_acquire(&i->mu);
    bool told = i->rec.size > size;
    lock_release(&i->mu);
    int r = 0;
    if (told) {
        struct kv_batch b;
        kv_batch_init(&b);
        shrinking(i, true, size);
        r = apply_with_size(d, i, NULL, &b);
        kv_batch_done(&b);
    }
    return r == 0 && (told || dropped) ? kv_sync(d->v->kv, kv_seq(d->v->kv)) : r;
}

/* The visible length goes first: a reader sees a shorter file, never other bytes. */
static int shrink(struct data *d, struct inode *i, uint64_t size, bool drops)
{
    struct spot s;
    uint64_t topic = 0, was = atomic_load(&i->size);
    (void)topic_of(d->v->ns, i->ino, &topic);
    int r = inode_data_need(i);
    if (r < 0)
        return r;
    int cut = find_cut(d, i, size, &s);
    if (cut < 0 && cut != -ENOENT)
        return cut; /* nothing has changed */
    atomic_store(&i->size, size);
    shrinking(i, true, size);
    r = drop_from(d, i, size, topic, cut == 0 && s.o ? s.base : UINT64_MAX, true);
    if (r == 0 && cut == 0 && s.o)
        r = tell_end(d, i, size, drops);
    shrinking(i, false, 0);
    if (cut == 0) {
        if (r == 0)
            r = spot_cut(d, i, &s, size, topic);
        spot_done(&s);
    }
    if (r < 0)
        show_rest(d, i, size, was);
    return r;
}

/* Does the file end in an open segment, whose device file then says where? */
static bool ends_open(struct inode *i, uint64_t size)
{
    LOCK_SCOPE(&i->mu);
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->base < size && size <= o->base + openseg_len(o))
            return true;
    }
    return false;
}

int truncate_locked(struct data *d, struct inode *i, uint64_t size, const struct kv_origin *who)
{
    uint64_t was = atomic_load(&i->size);
    uint64_t base;
    struct seg_rec rec;
    int r = size < was ? seg_after(d->v->kv, i->ino, size, &base, &rec) : -ENOENT;
    if (r < 0 && r != -ENOENT)
        return r;
    /* The inode's record is to tell of a hole behind them: it becomes durable by itself, and would stay where
     * their bytes are lost. And what held the end of the file until now may have been flushed: what holds it
     * from now on is to be, too. */
    bool drops = r == 0, ends_anew = drops || !i->data || !ends_open(i, size);
    r = i->data && ends_anew ? inode_sync_before(i, size, true) : 0;
    if (r == 0 && size < was)
        r = shrink(d, i, size, drops);
    if (r < 0)
        return r;
    atomic_store(&i->size, size);
    return inode_changed(d, i, who);
}

int data_truncate(struct data *d, struct inode *i, uint64_t size, const struct kv_origin *who)
{
    if (d->v->topics_profile)
        return size == atomic_load(&i->size) ? 0 : -EPERM;
    if (policy_append_only(d->v->policy, i) && size != atomic_load(&i->size))
        return -EPERM;
    if (size > DATA_SIZE_MAX)
        return -EFBIG;
    files_make_room(d);
    lock_acquire(&i->io);
    bool shorter = size < atomic_load(&i->size);
    int r = truncate_locked(d, i, size, who);
    lock_release(&i->io);
    if (shorter)
        cache_forget(d->v->cache, i->ino, size);
    return r;
}

/* Is `off` inside stored bytes, and where does that stretch (or hole) end? */
static int extent_at(struct data *d, struct inode *i, uint64_t off, uint64_t size, bool *ret_data,
                     uint64_t *ret_end)
{
    struct openseg *o = openseg_find(i, off, false);
    if (o) {
        *ret_data = true;
        *ret_end = min_u64(size, o->base + openseg_len(o));
        openseg_unref(o);
        return 0;
    }
    uint64_t base;
    struct seg_rec rec;
    int r = seg_before(d->v->kv, i->ino, off, &base, &rec);
    if (r == 0 && rec.state != SEG_OPEN && off < rec.end) {
        *ret_data = true;
        *ret_end = min_u64(size, rec.end);
        return 0;
    }
    if (r < 0 && r != -ENOENT)
        return r;
    r = seg_after(d->v->kv, i->ino, off, &base, &rec);
    *ret_data = false;
    *ret_end = r == 0 ? min_u64(base, size) : size;
    return r < 0 && r != -ENOENT ? r : 0;
}

int64_t data_seek(struct data *d, struct inode *i, uint64_t off, int whence)
{
    uint64_t size = atomic_load(&i->size), from = off;
    if (whence != SEEK_DATA && whence != SEEK_HOLE)
        return -EINVAL;
    while (off < size) {
        bool stored;
        uint64_t end;
        int r = extent_at(d, i, off, size, &stored, &end);
        if (r < 0)
            return r;
        if (stored == (whence == SEEK_DATA))
            return (int64_t)off;
        off = end;
    }
    return whence == SEEK_HOLE && from < size ? (int64_t)size : -ENXIO;
}

struct sum {
    uint64_t bytes;
};

static int add_stored(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct sum *s = arg;
    struct seg_rec rec;
    uint64_t base;
    if (key_parse_seg(key, klen, NULL, &base) && seg_rec_decode(val, vlen, &rec) == 0 &&
        rec.state != SEG_OPEN)
        s->bytes += rec.end - base;
    return 0;
}

void data_stat(struct data *d, struct inode *i, struct stat *ret)
{
    inode_stat(i, ret);
    ret->st_blksize = d->v->topics_profile ? 128 * 1024 : 4096;
    if (!S_ISREG(ret->st_mode))
        return;
    uint64_t bytes = (uint64_t)ret->st_size;
    if (!d->v->topics_profile) { /* there may be holes */
        struct sum s = {0};
        struct key k = key_seg(i->ino, 0);
        (void)kv_walk(d->v->kv, k.b, 9, k.b, 9, add_stored, &s);
        bytes = s.bytes;
        if (i->data) {
            LOCK_SCOPE(&i->mu);
            list_each(&idata(i)->segs, n)
            {
                struct openseg *o = list_entry(n, struct openseg, link);
                bytes += o->sf ? segfile_stored(o->sf) : o->idle_stored;
            }
        }
    }
    ret->st_blocks = (blkcnt_t)((bytes + 511) / 512);
}

void data_statfs(struct data *d, struct statvfs *ret)
{
    struct devs *devs = d->v->devs;
    uint64_t budget = 0, used = devs_used(devs), fs_free = 0;
    for (unsigned k = 0; k < devs_count(devs); k++) {
        struct dev_info info;
        if (devs_info(devs, k, &info) && info.state == DEV_OK && !info.draining) {
            budget += info.budget;
            fs_free += info.fs_free;
        }
    }
    /* A write can get what is below the refuse level now, and what eviction would free for it. */
    int64_t local = atomic_load(&d->totals.local), pending = atomic_load(&d->totals.pending);
    int64_t logical = atomic_load(&d->totals.logical);
    uint64_t evictable = local > pending ? (uint64_t)(local - pending) : 0;
    uint64_t limit = (uint64_t)(DEV_REFUSE * (double)budget);
    uint64_t room = limit > used ? limit - used : 0;
    uint64_t avail = min_u64(room, fs_free) + evictable;
    struct kv_usage kv;
    kv_usage(d->v->kv, &kv);
    if (kv.full) /* no new segment */
        avail = 0;
    memset(ret, 0, sizeof *ret);
    ret->f_bsize = ret->f_frsize = 4096;
    uint64_t logical_blocks = ((uint64_t)(logical > 0 ? logical : 0) + 4095) / 4096;
    ret->f_bfree = ret->f_bavail = avail / 4096;
    ret->f_blocks = logical_blocks + ret->f_bfree;
    uint64_t inodes = ns_inodes_used(d->v->ns);
    ret->f_files = inodes + (1u << 30);
    ret->f_ffree = ret->f_favail = 1u << 30;
    ret->f_namemax = NAME_BYTES_MAX;
}
