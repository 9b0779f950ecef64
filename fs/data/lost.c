/* lost.c: what was only on a device that is given up becomes damage with a name: the range reads as EIO,
 * never as zeros, and the rest of the file goes on.
 *
 *   the segment                                     becomes
 *   ---------------------------------------------   ------------------------------------------------------
 *   topics, an object holds a prefix of it          that object's segment, and behind it a lost one
 *   without bytes                                   nothing
 *   any other                                       a lost one
 *
 * A lost segment is COMMITTED, not local, and its object (if any) is of another version: nothing can be
 * fetched (fs/data/source.c says so). An open one takes its inode's size along, so that the file does not
 * get shorter: what is behind the end of the last known byte nobody can say.
 */
#include "fs/data/internal.h"

#include <errno.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/volume/config.h"

struct giving {
    struct data *d;
    struct inode *i;
    uint64_t base;
    struct seg_rec rec;
    struct openseg *o; /* out of the list; its reference is ours */
    uint64_t len;
};

/* Takes it out of the list, with the list's reference. */
static struct openseg *unlist(struct inode *i, uint64_t base)
{
    struct openseg *o = openseg_at(i, base);
    if (!o)
        return NULL;
    lock_acquire(&i->mu);
    list_del(&o->link);
    lock_release(&i->mu);
    openseg_unref(o); /* ours */
    return o;
}

/* Its entries in queues, and what only the lost version needed. */
static void leave_queues(struct giving *g, struct kv_batch *b)
{
    const struct seg_rec *r = &g->rec;
    struct key k = key_open(g->i->ino, g->base);
    if (r->state == SEG_OPEN)
        kv_del(b, k.b, k.len);
    else
        seg_queue_sealed_del(b, g->i->ino, g->base, r);
    if (r->has_pending)
        seg_queue_delete(b, &r->pending, g->i->ino, g->base,
                         clock_wall_ns() + (int64_t)g->d->v->conf->delete_delay * NS_PER_MS);
    if (!r->has_object || r->object.version != r->version) {
        k = key_blocks(g->i->ino, g->base, r->version);
        kv_del(b, k.b, k.len);
    }
}

static struct seg_rec lost_rec(const struct giving *g, uint64_t base, uint64_t end)
{
    struct seg_rec lost = {
        .state = SEG_COMMITTED,
        .has_object = true,
        .version = g->rec.version + 1,
        .end = end,
        .object = {.end = base}, /* of version 0: there is none */
        .created_ns = g->rec.created_ns,
    };
    if (base == g->base && g->rec.has_object)
        lost.object = g->rec.object;
    return lost;
}

static struct seg_rec object_rec(const struct giving *g)
{
    struct seg_rec r = g->rec;
    r.state = SEG_COMMITTED;
    r.local = r.has_pending = false;
    r.end = r.object.end;
    r.version = r.object.version;
    r.hash = r.object.hash;
    return r;
}

static int store(struct giving *g, struct seg_change c[2], unsigned n)
{
    struct data *d = g->d;
    struct kv_batch b;
    kv_batch_init(&b);
    b.frees = true;
    leave_queues(g, &b);
    for (unsigned k = 0; k < n; k++)
        seg_change_put(&b, &c[k]);
    uint64_t topic = 0;
    lock_acquire(&g->i->mu);
    inode_store_locked(d->v->ns, g->i, &b);
    for (unsigned k = 0; k < n && g->i->rec.nlink && topic_of(d->v->ns, g->i->ino, &topic) == 0;
         k++) {
        struct key seg = key_seg(c[k].ino, c[k].base);
        topic_mark(&b, topic, &seg);
    }
    int r = kv_apply(d->v->kv, &b, NULL, NULL);
    lock_release(&g->i->mu);
    kv_batch_done(&b);
    for (unsigned k = 0; k < n && r == 0; k++)
        seg_change_done(&d->totals, &c[k]);
    return r;
}

static int give_up(struct giving *g, struct data_lost *ret)
{
    uint64_t end = g->base + g->len, from = g->base;
    struct seg_change c[2] = {
        {.ino = g->i->ino, .base = g->base, .had = true, .old = g->rec, .old_len = g->len}};
    unsigned n = 1;
    bool prefix = g->d->v->topics_profile && g->rec.has_object && g->rec.object.end > g->base &&
                  g->rec.object.end <= end;
    if (prefix) {
        c[0].has = true;
        c[0].now = object_rec(g);
        c[0].now_len = g->rec.object.end - g->base;
        from = g->rec.object.end;
    }
    if (from < end) {
        struct seg_change *l = prefix ? &c[n++] : &c[0];
        l->ino = g->i->ino;
        l->base = from;
        l->has = true;
        l->now = lost_rec(g, from, end);
        l->now_len = end - from;
    }
    *ret = (struct data_lost){.off = from, .len = end - from, .unknown_end = g->o && g->o->lost};
    return store(g, c, n);
}

int data_give_up(struct data *d, struct inode *i, uint64_t base, uint32_t device,
                 struct data_lost *ret)
{
    struct giving g = {.d = d, .i = i, .base = base};
    *ret = (struct data_lost){0};
    lock_acquire(&i->io);
    int r = seg_get(d->v->kv, i->ino, base, &g.rec);
    bool ours = r == 0 && g.rec.local && g.rec.device == device &&
                (g.rec.state == SEG_OPEN || g.rec.state == SEG_SEALED);
    if (!ours) {
        lock_release(&i->io);
        return r == -ENOENT ? 0 : r;
    }
    if (g.rec.state == SEG_OPEN)
        g.o = unlist(i, base);
    g.len = g.o ? openseg_len(g.o) : g.rec.end - base;
    r = give_up(&g, ret);
    bool waits = g.o && r == 0 && g.o->seal_waits;
    if (g.o && r < 0)
        openseg_list(i, g.o);
    if (waits) { /* nobody finds it any more to start its seal, which ends its life */
        g.o->seal_waits = false;
        exec_submit(d->v->bulk, &g.o->seal_task);
    }
    if (r == 0 && i->data) { /* whoever flushes next is told */
        int none = 0;
        atomic_compare_exchange_strong(&idata(i)->err, &none, -EIO);
    }
    struct openseg *next = NULL;
    if (r == 0 && i->data) { /* a seal behind it need not wait any more */
        LOCK_SCOPE(&i->mu);
        next = openseg_next_waiting_locked(i);
    }
    lock_release(&i->io);
    if (next)
        exec_submit(d->v->bulk, &next->seal_task);
    if (g.o && r == 0)
        openseg_unref(g.o);
    if (r == 0 && i->data)
        seal_waits_wake(i);
    cache_forget(d->v->cache, i->ino, base);
    return r;
}
