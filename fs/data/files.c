/* files.c: how many device files are open for appending.
 *
 * Each open segment that was written or read lately has its device file open. Programs may begin more of them than
 * a process may have descriptors, faster than they are flushed: a tree of small files is unpacked, segments are
 * small and fill faster than they are sealed. So:
 *
 *   open files      what happens
 *   <= most / 2     nothing
 *   >  most / 2     a task on the device pool flushes and closes those that were used longest ago. A read of
 *                   a segment whose file is closed opens none; a seal does only while few are under way
 *   >= most         a write opens none: -EAGAIN. It goes on from the device pool (fs/daemon/ops_wait.c), and
 *                   helps to close some there first. So who begins files is as quick as the device flushes them
 *
 * `most` is half of what the process may have, and no more than are flushed in FLUSH_NS, as flushes went lately: a
 * stop has to flush them all, one after another where they are of one file, and is to end in 10 s. A file that is
 * being sealed is closed by the end of its seal; one whose flush failed stays open: its note of that on the device
 * may have failed, too. If all are of that kind (`stuck_ns`), writes go on until the process has no descriptors left.
 *
 * Lock: data.mu, over the list of open segments and over choosing among them. Opened and closed under inode.io. */
#include "fs/data/internal.h"

#include "fs/base/clock.h"
#include "fs/base/io.h"

enum { BATCH = 32, LOOKS_MAX = 4096, LEAST = 256 };
#define FLUSH_NS (2 * NS_PER_SEC) /* a busy disk may take several times as long */

static double gauge_open(void *arg)
{
    struct data *d = arg;
    return (double)atomic_load(&d->open_files);
}

void files_init(struct data *d)
{
    stats_gauge(d->v->stats, "device_files_open", "", "device files open for appending", gauge_open,
                d);
    /* A quarter is for reading (segfd.c), the rest for connections and the state. */
    d->files_max = (unsigned)min_u64(OPEN_FILES_MAX, io_files_max() / 2);
}

void files_flushed(struct data *d, int64_t ns)
{
    int64_t was = atomic_load(&d->flush_ns);
    atomic_store(&d->flush_ns, was + (ns - was) / 64); /* of two at once, one is forgotten */
}

static unsigned most(struct data *d)
{
    int64_t ns = atomic_load(&d->flush_ns);
    uint64_t in_time = ns > 0 ? (uint64_t)(FLUSH_NS / ns) : UINT64_MAX;
    return (unsigned)min_u64(d->files_max, max_u64(in_time, LEAST));
}

bool files_many(struct data *d)
{
    return atomic_load(&d->open_files) > most(d) / 2;
}

bool files_full(struct data *d)
{
    return atomic_load(&d->open_files) >= most(d) && clock_mono_ns() >= atomic_load(&d->stuck_ns);
}

/* ---- closing ---- */

static bool may_close(const struct openseg *o, int64_t used_before)
{
    return o->sf && !atomic_load(&o->sealing) && !atomic_load(&o->failed) &&
           !atomic_load(&o->flush_busy) && atomic_load(&o->refs) == 1 &&
           atomic_load(&o->used_ns) <= used_before;
}

/* Takes up to BATCH files to close, with references. Those that were looked at come last the next time. */
static unsigned pick(struct data *d, bool urgent, struct openseg **out)
{
    int64_t now = clock_mono_ns(), used_before = urgent ? now : now - NS_PER_SEC;
    unsigned n = 0, looks = 0;
    bool moves = false;
    LOCK_SCOPE(&d->mu);
    for (; n < BATCH && looks < LOOKS_MAX && looks < d->all_n; looks++) {
        struct openseg *o = list_entry(d->all.next, struct openseg, all);
        list_del(&o->all);
        list_add_tail(&d->all, &o->all);
        moves |= o->sf && !atomic_load(&o->failed) &&
                 (atomic_load(&o->sealing) || atomic_load(&o->refs) > 1);
        if (may_close(o, used_before) && openseg_ref_live(o)) {
            atomic_store(&o->flush_busy, true);
            out[n++] = o;
        }
    }
    if (urgent)
        d->fruitless = n || moves ? 0 : d->fruitless + looks;
    if (d->fruitless > d->all_n) {
        d->fruitless = 0;
        atomic_store(&d->stuck_ns, now + NS_PER_SEC);
    }
    return n;
}

/* Unless it is used again. */
static bool close_idle(struct data *d, uint64_t ino, uint64_t base)
{
    struct inode *i;
    if (inode_get(d->v->ns, ino, &i) < 0)
        return false;
    struct segfile *sf = NULL;
    lock_acquire(&i->io);
    struct openseg *o = openseg_at(i, base);
    if (o) {
        lock_acquire(&i->mu);
        lock_acquire(&d->mu);
        if (o->sf && !o->sealing && atomic_load(&o->refs) == 2 && atomic_load(&o->dirty_ns) == 0) {
            sf = o->sf;
            o->idle_len = segfile_len(sf);
            o->idle_stored = segfile_stored(sf);
            o->idle_flushed = segfile_synced(sf);
            o->sf = NULL;
            atomic_fetch_sub(&d->open_files, 1);
        }
        lock_release(&d->mu);
        lock_release(&i->mu);
        openseg_unref(o);
    }
    lock_release(&i->io);
    segfile_close(sf);
    inode_put(d->v->ns, i);
    return sf != NULL;
}

unsigned files_close_some(struct data *d, bool urgent)
{
    struct openseg *o[BATCH];
    unsigned n = pick(d, urgent, o), closed = 0;
    for (unsigned k = 0; k < n; k++)
        if (!segfile_synced(o[k]->sf)) /* so that the first flush takes the others along */
            segfile_release_cache(o[k]->sf, UINT64_MAX);
    for (unsigned k = 0; k < n; k++) {
        uint64_t ino = o[k]->ino, base = o[k]->base;
        int r = openseg_flush_in_order(o[k], false);
        if (r < 0)
            atomic_store(&o[k]->used_ns, clock_mono_ns()); /* not the next one again */
        atomic_store(&o[k]->flush_busy, false);
        openseg_unref(o[k]);
        if (r == 0)
            closed += close_idle(d, ino, base);
    }
    return closed;
}

void files_make_room(struct data *d)
{
    if (files_full(d))
        (void)files_close_some(d, true);
}

void files_run_trim(struct task *t)
{
    struct data *d = container_of(t, struct data, trim);
    bool full = atomic_load(&d->open_files) >= most(d);
    if (files_close_some(d, full) && files_many(d) && !atomic_load(&d->stopping))
        exec_submit(d->v->pool, &d->trim);
    else
        atomic_store(&d->trimming, false); /* the next tick looks again */
}

void data_trim(struct data *d)
{
    if (files_many(d) && !atomic_load(&d->stopping) && !atomic_exchange(&d->trimming, true))
        exec_submit(d->v->pool, &d->trim);
}
