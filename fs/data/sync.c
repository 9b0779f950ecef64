/* sync.c: fsync and fdatasync, FLUSH; what has to be flushed before something else.
 *
 * fsync = flush of every open or sealing segment of the file that has unflushed bytes (or may have, of an
 * earlier daemon), then the journal if anything in it is not durable yet (a new name, a new segment). In the
 * steady state of an appender the second step finds nothing to do, so an fdatasync costs one flush of one
 * device file.
 *
 * A segment is flushed only after those before it, whoever asks: fsync, the background, a seal. Else a loss
 * of power could take their bytes and leave what lies behind them: zeros that nobody wrote.
 *
 * Runs on the device pool; concurrent waiters for the journal share one flush. */
#include "fs/data/internal.h"

#include <errno.h>
#include <stdlib.h>
#include "fs/base/log.h"

static void sync_done(struct kv_waiter *w, int err)
{
    struct data_sync *s = container_of(w, struct data_sync, waiter);
    s->done(s, s->err ? s->err : err);
}

/* The next open segment from `from` on, before `end`, that is not known to be flushed; with a reference. The search
 * begins behind `after`, unless that has left the list. */
static struct openseg *next_unflushed(struct inode *i, const struct openseg *after, uint64_t from,
                                      uint64_t end)
{
    LOCK_SCOPE(&i->mu);
    struct list *head = &idata(i)->segs;
    struct list *n = after && !list_empty(&after->link) ? after->link.next : head->next;
    for (; n != head; n = n->next) {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->base >= end)
            break;
        if (o->base >= from && !o->lost && !openseg_flushed(o)) {
            openseg_ref(o);
            return o;
        }
    }
    return NULL;
}

/* inode.io held. 1: it is open; 0: it was dropped meanwhile; -errno. */
static int open_listed(struct inode *i, struct openseg *o)
{
    lock_acquire(&i->mu);
    bool gone = list_empty(&o->link);
    lock_release(&i->mu);
    int r = gone ? 0 : openseg_file_locked(o, i);
    return r < 0 ? r : !gone;
}

static int sync_one(struct inode *i, struct openseg *o, bool io_held)
{
    int r = 1;
    if (!o->sf) {
        if (!io_held)
            lock_acquire(&i->io);
        r = open_listed(i, o);
        if (!io_held)
            lock_release(&i->io);
    }
    if (r <= 0)
        return r;
    lock_acquire(&idata(i)->hash); /* appended bytes have been hashed: the proof covers them */
    lock_release(&idata(i)->hash);
    return openseg_sync(o);
}

/* One after another, none behind one that failed: it might stay where that one's bytes are lost. A reference
 * keeps each while no lock is held. */
int inode_sync_before(struct inode *i, uint64_t end, bool io_held)
{
    struct openseg *o, *last = NULL;
    int r = 0;
    for (uint64_t from = 0; r == 0 && i->data && (o = next_unflushed(i, last, from, end));) {
        if (last)
            openseg_unref(last);
        last = o;
        from = o->base + 1;
        r = sync_one(i, o, io_held);
    }
    if (last)
        openseg_unref(last);
    return r;
}

int inode_sync(struct inode *i)
{
    int r = inode_sync_before(i, UINT64_MAX, false);
    return r == 0 && openseg_any_lost(i) ? -EIO : r;
}

static void run_sync(struct task *t)
{
    struct data_sync *s = container_of(t, struct data_sync, task);
    struct data *d = s->d;
    s->err = inode_sync(s->i);
    if (s->i->data) {
        int late = atomic_exchange(&idata(s->i)->err, 0);
        if (!s->err)
            s->err = late;
    }
    kv_sync_async(d->v->kv, kv_seq(d->v->kv), &s->waiter);
}

void data_fsync(struct data *d, struct data_sync *s)
{
    s->d = d;
    s->err = 0;
    s->task.run = run_sync;
    s->waiter.done = sync_done;
    exec_submit(d->v->pool, &s->task);
}

int data_flush(struct data *d, struct inode *i)
{
    (void)d;
    return i->data ? atomic_exchange(&idata(i)->err, 0) : 0;
}
