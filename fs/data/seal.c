/* seal.c: how an open segment ends. Whoever closes it sets `sealing` under inode.io: nothing is appended any
 * more. Its task then flushes what lies before it in the file, writes its hashes and its last proof,
 * flushes, and stores it as sealed, with the inode's size, in one batch. In the order of the file: a task whose
 * turn has not come is begun by the one before it. A failure stays with the segment until the next mount: it is
 * readable, and is neither written to nor sealed again.
 *
 * The size in an inode's record (data_stored_size) is settled here as well: it never claims bytes that only an
 * open segment holds. */
#include "fs/data/internal.h"
#include "fs/data/hooks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"

void openseg_seal_locked(struct openseg *o, struct inode *i)
{
    assert(lock_is_mine(&i->io) && !o->sealing);
    lock_acquire(&idata(i)->hash); /* what was appended before has been hashed now */
    lock_release(&idata(i)->hash);
    o->sealing = true;
    openseg_seal_submit(o, i);
}

void openseg_seal_before(struct openseg *o, struct inode *i)
{
    assert(lock_is_mine(&i->io));
    for (;;) {
        struct openseg *first = NULL;
        lock_acquire(&i->mu);
        list_each(&idata(i)->segs, n)
        {
            struct openseg *at = list_entry(n, struct openseg, link);
            if (at == o)
                break;
            if (!at->sealing) {
                first = at;
                openseg_ref(first);
                break;
            }
        }
        lock_release(&i->mu);
        if (!first)
            return;
        if (openseg_file_locked(first, i) == 0)
            openseg_seal_locked(first, i);
        else
            first->failed = first->sealing = true; /* as a seal that failed: nobody passes it */
        openseg_unref(first);
    }
}

/* A seal that failed holds up nobody in the broker profile, where holes are nothing special. */
static bool passes(const struct openseg *o, const struct openseg *failed)
{
    return failed->failed && !o->d->v->topics_profile;
}

/* Lets go of what openseg_seal_submit took. No lock held. */
static void seal_over(struct openseg *o, struct inode *i)
{
    struct data *d = o->d;
    atomic_fetch_sub(&d->seals, 1);
    openseg_unref(o);
    inode_put(d->v->ns, i);
}

void openseg_seal_submit(struct openseg *o, struct inode *i)
{
    assert(o->sealing);
    inode_pin(o->d->v->ns, i);
    o->i = i;
    openseg_ref(o);
    atomic_fetch_add(&o->d->seals, 1);
    /* In order of the file: a sealed segment behind one that a loss of power cuts would be a hole. */
    lock_acquire(&i->mu);
    if (atomic_load(&o->d->stopping)) { /* asked for under the lock: see seals_put_off */
        lock_release(&i->mu);
        seal_over(o, i);
        return;
    }
    bool gone = list_empty(&o->link); /* cut away since it was full: it waits for nobody */
    list_each(&idata(i)->segs, n)
    {
        struct openseg *first = list_entry(n, struct openseg, link);
        if (gone || first == o)
            break;
        if (first->sealing && !passes(o, first)) {
            o->seal_waits = true;
            break;
        }
    }
    bool wait = o->seal_waits;
    lock_release(&i->mu);
    if (!wait)
        exec_submit(o->d->v->bulk, &o->seal_task);
}

struct openseg *openseg_next_waiting_locked(struct inode *i)
{
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->seal_waits) {
            o->seal_waits = false;
            return o;
        }
        if (o->sealing && !passes(o, o))
            return NULL;
    }
    return NULL;
}

/* An empty open segment leaves no record. */
static int seal_empty(struct openseg *o, struct kv_batch *b, struct seg_change *c)
{
    c->has = o->rec.has_object;
    if (c->has) { /* it was shortened to nothing: keep nothing of it either */
        c->has = false;
        seg_queue_delete(b, &o->rec.object, o->ino, o->base, clock_wall_ns());
        struct key k = key_blocks(o->ino, o->base, o->rec.object.version);
        kv_del(b, k.b, k.len);
    }
    seg_queue_unlink(b, o->ino, o->base, &o->rec);
    return 0;
}

/* Broker profile: a seal failed, and what waited behind it is open again, one segment a call, since
 * somebody may want to write there. inode.io held; the caller drops its reference and pin. */
static struct openseg *seal_give_back(struct inode *i)
{
    LOCK_SCOPE(&i->mu);
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->seal_waits) {
            o->seal_waits = false;
            o->sealing = false;
            return o;
        }
    }
    return NULL;
}

static void seal_failed(struct openseg *o, int r)
{
    struct data *d = o->d;
    struct inode *i = o->i;
    int none = 0;
    atomic_compare_exchange_strong(&idata(i)->err, &none, r);
    log_err(LC_DATA,
            "inode %016llx: segment at %llu could not be sealed: %s; it stays on the device and is "
            "sealed at the next mount",
            (unsigned long long)o->ino, (unsigned long long)o->base, err_name(r));
    while (!d->v->topics_profile) {
        lock_acquire(&i->io);
        struct openseg *back = seal_give_back(i);
        lock_release(&i->io);
        if (!back)
            break;
        seal_over(back, i);
    }
}

void openseg_mark(struct data *d, struct inode *i, uint64_t upto, struct kv_batch *b)
{
    uint64_t topic;
    assert(lock_is_mine(&i->mu));
    if (!i->data || i->rec.nlink == 0 || topic_of(d->v->ns, i->ino, &topic) < 0)
        return;
    list_each(&idata(i)->segs, n)
    {
        const struct openseg *o = list_entry(n, struct openseg, link);
        struct key k = key_seg(i->ino, o->base);
        if (o->base <= upto)
            topic_mark(b, topic, &k);
    }
}

static int seal_store(struct openseg *o, const uint64_t *hashes, size_t n, struct seg_change *c)
{
    struct data *d = o->d;
    struct kv_batch b;
    kv_batch_init(&b);
    if (c->now_len == 0) {
        (void)seal_empty(o, &b, c);
    } else {
        c->now.state = SEG_SEALED;
        c->now.end = o->base + c->now_len;
        c->now.behind = 0; /* all before it was flushed first */
        c->now.sealed_ns = clock_wall_ns();
        c->now.hash = seg_hash(hashes, n);
        seg_blocks_put(&b, o->ino, o->base, c->now.version, hashes, n);
        struct key u = key_upload(c->now.sealed_ns, o->ino, o->base);
        kv_put(&b, u.b, u.len, "\1", 1);
    }
    struct key w = key_open(o->ino, o->base);
    kv_del(&b, w.b, w.len);
    seg_change_put(&b, c);
    lock_acquire(&o->i->mu); /* until the record is applied: no older one may follow */
    o->storing = true;
    inode_store_locked(d->v->ns, o->i, &b); /* of an unlinked one, too: a handle may outlive us */
    openseg_mark(d, o->i, o->base, &b);
    int r = kv_apply(d->v->kv, &b, NULL, NULL);
    if (r == 0)
        list_del(&o->link);
    o->storing = false;
    lock_release(&o->i->mu);
    kv_batch_done(&b);
    return r;
}

uint64_t data_stored_size(void *ctx, struct inode *i)
{
    const struct data *d = ctx;
    bool shrinking = i->data && idata(i)->shrinking;
    uint64_t size = shrinking ? idata(i)->reach : atomic_load(&i->size);
    uint64_t told = min_u64(size, i->rec.size);
    if (!i->data)
        return size;
    for (struct list *n = idata(i)->segs.prev; n != &idata(i)->segs; n = n->prev) {
        struct openseg *o = list_entry(n, struct openseg, link);
        uint64_t len = openseg_len(o);
        if (len == 0)
            continue; /* has no bytes that could be lost, and tells nothing of those before it */
        bool safe = d->v->topics_profile || openseg_flushed(o);
        /* A hole behind it may be told only when its own bytes cannot be lost any more. */
        if (o->storing || (o->base + len < size && safe))
            break;
        size = min_u64(size, o->base);
    }
    /* What the record says already stays true until the file is cut: a hole at the end that was made durable
     * is no less so because something was written behind it. */
    return max_u64(size, told);
}

/* The volume is being stopped: what waits stays open, flushed, and is sealed by the next mount. */
static void seals_put_off(struct inode *i)
{
    for (;;) {
        struct openseg *waiting = NULL;
        lock_acquire(&i->mu);
        list_each(&idata(i)->segs, n)
        {
            struct openseg *o = list_entry(n, struct openseg, link);
            if (o->seal_waits) {
                o->seal_waits = false;
                waiting = o;
                break;
            }
        }
        lock_release(&i->mu);
        if (!waiting)
            break;
        seal_over(waiting, i);
    }
    seal_waits_wake(i);
}

void openseg_run_seal(struct task *t)
{
    struct openseg *o = container_of(t, struct openseg, seal_task);
    struct data *d = o->d;
    struct inode *i = o->i;
    if (atomic_load(&d->stopping)) {
        seals_put_off(i);
        seal_over(o, i);
        return;
    }
    uint64_t *hashes = NULL;
    size_t n = 0;
    int r = openseg_len(o) ? inode_sync_before(i, o->base, false) : 0;
    if (r == 0 && openseg_len(o))
        r = segfile_seal(o->sf, &hashes, &n);
    struct seg_change c = {
        .ino = o->ino,
        .base = o->base,
        .had = true,
        .has = true,
        .old = o->rec,
        .now = o->rec,
        .old_len = openseg_len(o),
        .now_len = openseg_len(o),
    };
    lock_acquire(&i->io); /* not while the inode is being removed or truncated */
    lock_acquire(&i->mu);
    bool gone = list_empty(&o->link);
    lock_release(&i->mu);
    if (gone)
        r = 0; /* cut away or punched out meanwhile */
    if (r == 0 && !gone)
        r = seal_store(o, hashes, n, &c);
    free(hashes);
    if (r == 0 && !gone)
        seg_change_done(&d->totals, &c);
    if (r < 0) {
        o->failed = true;
        atomic_store(&d->unflushed, true);
    }
    lock_acquire(&i->mu);
    struct openseg *next = r == 0 ? openseg_next_waiting_locked(i) : NULL;
    lock_release(&i->mu);
    lock_release(&i->io);
    if (next)
        exec_submit(d->v->bulk, &next->seal_task);
    if (r < 0)
        seal_failed(o, r);
    seal_waits_wake(i);
    if (r == 0) {
        segfile_release_cache(o->sf, 0);
        if (!gone)
            openseg_unref(o); /* the list's */
    }
    seal_over(o, i);
    data_kick(d);
}

/* ---- on request ---- */

int data_seal(struct data *d, struct inode *i)
{
    return data_seal_upto(d, i, UINT64_MAX);
}

int data_seal_upto(struct data *d, struct inode *i, uint64_t base)
{
    int r = 0, closed = 0;
    lock_acquire(&i->io);
    while (r == 0 && i->data) {
        struct openseg *o = NULL;
        lock_acquire(&i->mu);
        list_each(&idata(i)->segs, n)
        {
            struct openseg *at = list_entry(n, struct openseg, link);
            if (at->failed || at->base > base)
                break; /* what lies behind it cannot be sealed before it */
            if (!at->sealing) {
                o = at;
                openseg_ref(o);
                break;
            }
        }
        lock_release(&i->mu);
        if (!o)
            break;
        bool later = !o->sf && files_many(d) && atomic_load(&d->seals) >= SEALS_WHEN_MANY;
        r = later ? -EAGAIN : openseg_file_locked(o, i);
        if (r == 0) {
            openseg_seal_locked(o, i);
            closed++;
        }
        openseg_unref(o);
    }
    lock_release(&i->io);
    return r < 0 ? r : closed;
}

bool data_seal_failed(struct inode *i, uint64_t base)
{
    lock_acquire(&i->io);
    struct openseg *o = openseg_at(i, base);
    bool failed = o && o->failed;
    lock_release(&i->io);
    if (o)
        openseg_unref(o);
    return failed;
}

bool data_sealing(struct inode *i)
{
    if (!i->data)
        return false;
    LOCK_SCOPE(&i->mu);
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->sealing && !o->failed)
            return true;
    }
    return false;
}

void data_seal_largest(struct data *d, unsigned want)
{
    enum { PICK_MAX = 16 };
    struct {
        uint64_t ino, len;
    } pick[PICK_MAX];
    unsigned n = 0;
    want = want < PICK_MAX ? want : PICK_MAX;
    lock_acquire(&d->mu);
    list_each(&d->all, l)
    {
        struct openseg *o = list_entry(l, struct openseg, all);
        uint64_t len = atomic_load(&o->len_hint);
        if (!len || atomic_load(&o->kept))
            continue; /* kept: sealing it frees nothing */
        unsigned at = n < want ? n++ : want;
        for (; at > 0 && pick[at - 1].len < len; at--)
            if (at < want)
                pick[at] = pick[at - 1];
        if (at < want) {
            pick[at].ino = o->ino;
            pick[at].len = len;
        }
    }
    lock_release(&d->mu);
    for (unsigned k = 0; k < n; k++) {
        struct inode *i;
        if (inode_get(d->v->ns, pick[k].ino, &i) < 0)
            continue;
        (void)data_seal(d, i);
        inode_put(d->v->ns, i);
    }
}
