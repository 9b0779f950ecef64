/* read.c: a read is planned over segments and answered when all its parts are there.
 *
 * Part of an open segment or a hole: copied at once into the request's own buffer. Part of a sealed
 * segment: a cache_read, answered from slices; it completes at once or from the thread that brought
 * the bytes. `pending` counts unanswered parts plus guards; whoever takes it to zero finishes.
 *
 *   plan -> all there: return 1
 *        -> waiting -> finish: err 0        -> done
 *                   -> a part failed with -EAGAIN or -ESTALE (store trouble; the segment moved):
 *                      parts released, planned again after a while until the deadline -> ... or done
 *                   -> deadline: parts cancelled with -EIO;  interrupt: with -EINTR
 *
 * A read(2) through the page cache is two requests when the first fails: the kernel's read-ahead, then the
 * page itself. So that it takes one deadline and not two, a request for a range that was given up a moment
 * ago gets only LATE_WAIT_MS.
 *
 * No lock is held over any of this but inode.mu for the list of open segments. */
#include "fs/data/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/volume/config.h"

enum { AGAIN_MS = 200, STALE_TRIES_MAX = 8, LATE_MS = 300, LATE_WAIT_MS = 20 };

struct data_part {
    bool cached;
    bool started; /* the cache knows it: to be cancelled, released */
    struct cache_read cr;
    uint64_t off, len; /* file offsets; !cached: at buf + (off - r->off) */
};

static void finish(struct data_read *r);

static void unguard(struct data_read *r)
{
    if (atomic_fetch_sub(&r->pending, 1) == 1)
        finish(r);
}

static void note_error(struct data_read *r, int err)
{
    int none = 0;
    atomic_compare_exchange_strong(&r->first_err, &none, err);
}

static void part_done(struct cache_read *cr)
{
    struct data_read *r = cr->arg;
    if (cr->err < 0)
        note_error(r, cr->err);
    unguard(r);
}

static int part_add(struct data_read *r, uint64_t off, uint64_t len, struct data_part **ret)
{
    if ((r->parts & (r->parts + 1)) == 0 || r->parts == 0) { /* 0, 1, 3, 7...: grow */
        size_t cap = r->parts ? (size_t)r->parts * 2 + 1 : 1;
        struct data_part *more = realloc(r->part, (cap + 1) * sizeof *more);
        if (!more)
            return -ENOMEM;
        r->part = more;
    }
    struct data_part *p = &r->part[r->parts++];
    memset(p, 0, sizeof *p);
    p->off = off;
    p->len = len;
    *ret = p;
    return 0;
}

static int buffer(struct data_read *r, uint64_t off, uint64_t len, char **ret)
{
    if (!r->buf)
        r->buf = malloc(r->len ? r->len : 1);
    if (!r->buf)
        return -ENOMEM;
    struct data_part *p;
    int e = part_add(r, off, len, &p);
    *ret = (char *)r->buf + (off - r->off);
    return e;
}

/* The device file of an open segment, to be read up to *ret_end. Where many are open, that of an idle one is not
 * opened for appending, but borrowed: *ret_fd. */
static int open_for_read(struct data_read *r, struct openseg *o, struct segfd **ret_fd,
                         uint64_t *ret_end)
{
    *ret_fd = NULL;
    if (!o->sf) {
        LOCK_SCOPE(&r->i->io);
        if (!o->sf && !o->lost && files_many(r->d)) {
            *ret_end = o->base + o->idle_len;
            int e = segfd_get(r->d->v->segfds, &o->id, false, ret_fd);
            return e == -ENOENT ? -EIO : e;
        }
        int e = openseg_file_locked(o, r->i);
        if (e < 0)
            return e;
    }
    *ret_end = o->base + segfile_len(o->sf);
    return 0;
}

/* The stretch at `off` of an open segment. 1: taken, *ret_len set; 0: no open segment there; -EAGAIN: it was cut
 * meanwhile. */
static int plan_open(struct data_read *r, uint64_t off, uint64_t end, uint64_t *ret_len)
{
    struct openseg *o = openseg_find(r->i, off, false);
    if (!o)
        return 0;
    struct segfd *fd;
    uint64_t stored = 0;
    char *to;
    int e = open_for_read(r, o, &fd, &stored);
    if (e == 0 && stored <= off)
        e = -EAGAIN;
    uint64_t len = e == 0 ? min_u64(end, stored) - off : 0;
    if (e == 0)
        e = buffer(r, off, len, &to);
    if (e == 0)
        e = fd ? segfd_read(fd, off - o->base, to, (size_t)len)
               : segfile_read(o->sf, off - o->base, to, (size_t)len);
    if (fd)
        segfd_put(r->d->v->segfds, fd);
    openseg_unref(o);
    if (e < 0)
        return e == -ENODATA ? -EIO : e;
    *ret_len = len;
    return 1;
}

static int plan_hole(struct data_read *r, uint64_t off, uint64_t end, uint64_t *ret_len)
{
    uint64_t base = end;
    struct seg_rec rec;
    /* One that begins just here is empty, or it would have been met as such. */
    int e = seg_after(r->d->v->kv, r->i->ino, off + 1, &base, &rec);
    if (e < 0 && e != -ENOENT)
        return e;
    uint64_t len = (e == 0 ? min_u64(base, end) : end) - off;
    if (r->i->data) { /* an open one may begin inside */
        LOCK_SCOPE(&r->i->mu);
        list_each(&idata(r->i)->segs, n)
        {
            struct openseg *o = list_entry(n, struct openseg, link);
            if (o->base > off && o->base < off + len)
                len = o->base - off;
        }
    }
    char *to;
    e = buffer(r, off, len, &to);
    if (e == 0)
        memset(to, 0, (size_t)len);
    *ret_len = len;
    return e;
}

/* The last open segment in memory at or before `off` ends before it. */
static bool behind_open(struct inode *i, uint64_t off)
{
    bool behind = false;
    if (!i->data)
        return false;
    LOCK_SCOPE(&i->mu);
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->base <= off)
            behind = off >= o->base + openseg_len(o);
    }
    return behind;
}

/* One stretch from `off` on. 0 with *ret_len; -EAGAIN: a segment changed state meanwhile, look again. */
static int plan_one(struct data_read *r, uint64_t off, uint64_t end, uint64_t *ret_len)
{
    int e = plan_open(r, off, end, ret_len);
    if (e != 0)
        return e < 0 ? e : 0;
    struct cache_seg seg;
    uint64_t seg_end = 0;
    e = data_locate(r->d, r->i->ino, off, &seg, &seg_end);
    if (e == 0) {
        struct data_part *p;
        uint64_t len = min_u64(end, seg_end) - off;
        e = part_add(r, off, len, &p);
        if (e < 0)
            return e;
        p->cached = true;
        p->cr.seg = seg;
        p->cr.off = off;
        p->cr.len = len;
        p->cr.done = part_done;
        p->cr.arg = r;
        *ret_len = len;
        return 0;
    }
    if (e == -EBUSY) /* an open segment begins before `off`: it covers it now, or ends before it */
        return behind_open(r->i, off) ? plan_hole(r, off, end, ret_len) : -EAGAIN;
    return e == -ENODATA ? plan_hole(r, off, end, ret_len) : e;
}

static int plan(struct data_read *r)
{
    uint64_t size = atomic_load_explicit(&r->i->size, memory_order_acquire);
    uint64_t end = r->off >= size ? r->off : min_u64(size, r->off + r->len);
    unsigned again = 0;
    for (uint64_t off = r->off; off < end;) {
        uint64_t len = 0;
        int e = plan_one(r, off, end, &len);
        if (e == -EAGAIN && again++ < 1000)
            continue;
        if (e < 0)
            return e == -EAGAIN ? -EIO : e;
        assert(len > 0);
        off += len;
    }
    return 0;
}

static int build_answer(struct data_read *r)
{
    unsigned n = 0;
    for (unsigned k = 0; k < r->parts; k++)
        n += r->part[k].cached ? r->part[k].cr.iov_n : 1;
    r->iov = malloc((n ? n : 1) * sizeof *r->iov);
    if (!r->iov)
        return -ENOMEM;
    r->iov_n = 0;
    r->drop_behind = false;
    for (unsigned k = 0; k < r->parts; k++) {
        struct data_part *p = &r->part[k];
        if (!p->cached) {
            r->iov[r->iov_n++] = (struct iovec){(char *)r->buf + (p->off - r->off), (size_t)p->len};
            continue;
        }
        memcpy(&r->iov[r->iov_n], p->cr.iov, p->cr.iov_n * sizeof(struct iovec));
        r->iov_n += p->cr.iov_n;
        r->drop_behind = true;
    }
    return 0;
}

static void release_parts(struct data_read *r)
{
    for (unsigned k = 0; k < r->parts; k++)
        if (r->part[k].cached && r->part[k].started && r->part[k].cr.err == 0)
            cache_read_release(r->d->v->cache, &r->part[k].cr);
    free(r->part);
    free(r->buf);
    free(r->iov);
    r->part = NULL;
    r->buf = NULL;
    r->iov = NULL;
    r->parts = r->iov_n = 0;
}

/* Plans and starts one try. Returns 1 when everything has answered already. The deadline is armed
 * while our own guard keeps the try from finishing. */
static int start_once(struct data_read *r)
{
    atomic_store(&r->first_err, 0);
    atomic_store(&r->handoff, false);
    atomic_store(&r->pending, 1); /* ours */
    r->armed = false;
    int e = plan(r);
    if (e < 0)
        note_error(r, e);
    struct cache_reader *reader = e == 0 ? handle_reader(r->d, r->i->ino, r->fh) : NULL;
    for (unsigned k = 0; e == 0 && k < r->parts; k++) {
        struct data_part *p = &r->part[k];
        if (!p->cached)
            continue;
        atomic_fetch_add(&r->pending, 1);
        p->started = true;
        if (cache_read_start(r->d->v->cache, reader, &p->cr) == 1)
            atomic_fetch_sub(&r->pending, 1);
    }
    uint64_t limit = r->d->v->conf->read_deadline;
    if (limit && atomic_load(&r->pending) > 1) {
        r->armed = true;
        timer_set(r->d->v->timers, &r->deadline, r->started_ns + (int64_t)limit * NS_PER_MS);
    }
    return atomic_fetch_sub(&r->pending, 1) == 1;
}

static bool may_try_again(struct data_read *r, int err)
{
    if (atomic_load(&r->cancelled) || atomic_load(&r->d->stopping))
        return false;
    if (err == -ESTALE) /* in a broker mount as often as somebody writes there */
        return r->tries < STALE_TRIES_MAX || !r->d->v->topics_profile;
    if (err != -EAGAIN)
        return false;
    uint64_t limit = r->d->v->conf->read_deadline;
    return !limit || clock_mono_ns() - r->started_ns < (int64_t)limit * NS_PER_MS;
}

static void answer(struct data_read *r, int err)
{
    if (err == 0)
        err = build_answer(r);
    if (err == -EAGAIN || err == -ESTALE || err == -ETIMEDOUT || err == -EBADMSG ||
        err == -ENOENT || err == -ECANCELED)
        err = -EIO;
    r->err = err;
    if (err < 0)
        release_parts(r);
}

static void note_late(struct data_read *r)
{
    struct data *d = r->d;
    int64_t now = clock_mono_ns();
    LOCK_SCOPE(&d->mu);
    d->late[d->late_next++ % LATE_READS] =
        (struct late_read){r->i->ino, r->off, r->off + r->len, now};
    atomic_store(&d->late_ns, now);
}

static void complete(struct data_read *r)
{
    int err = atomic_load(&r->first_err);
    if (may_try_again(r, err)) {
        r->tries++;
        release_parts(r);
        timer_set(r->d->v->timers, &r->again,
                  clock_mono_ns() + (err == -ESTALE ? 1 : AGAIN_MS) * NS_PER_MS);
        return;
    }
    if (err == -EAGAIN && !atomic_load(&r->cancelled))
        note_late(r);
    answer(r, atomic_load(&r->cancelled) && err == -EAGAIN ? -EINTR : err);
    atomic_fetch_sub(&r->d->reads, 1);
    r->done(r);
}

/* All parts have answered; a thread without locks. A deadline that is firing at this moment still uses
 * the request: then whichever of the two comes second completes it. */
static void finish(struct data_read *r)
{
    if (r->armed && !timer_cancel(r->d->v->timers, &r->deadline) &&
        !atomic_exchange(&r->handoff, true))
        return;
    complete(r);
}

/* Keeps the try from finishing, unless it is finishing already. */
static bool guard(struct data_read *r)
{
    int n = atomic_load(&r->pending);
    while (n > 0)
        if (atomic_compare_exchange_weak(&r->pending, &n, n + 1))
            return true;
    return false;
}

/* Ends all parts with `err`; the caller has a guard, which goes. */
static void give_up(struct data_read *r, int err)
{
    note_error(r, err);
    for (unsigned k = 0; k < r->parts; k++)
        if (r->part[k].cached && r->part[k].started)
            (void)cache_read_cancel(r->d->v->cache, &r->part[k].cr, err);
    unguard(r);
}

/* From when on the deadline counts. */
static int64_t started(struct data_read *r)
{
    struct data *d = r->d;
    int64_t now = clock_mono_ns(), since = now - LATE_MS * NS_PER_MS;
    int64_t limit = (int64_t)d->v->conf->read_deadline * NS_PER_MS;
    if (atomic_load(&d->late_ns) == 0 || atomic_load(&d->late_ns) < since)
        return now;
    LOCK_SCOPE(&d->mu);
    for (unsigned k = 0; k < LATE_READS; k++) {
        const struct late_read *l = &d->late[k];
        if (l->at_ns >= since && l->ino == r->i->ino && l->off <= r->off && r->off < l->end)
            return now - limit + LATE_WAIT_MS * NS_PER_MS;
    }
    return now;
}

static void on_deadline(struct timer *t)
{
    struct data_read *r = container_of(t, struct data_read, deadline);
    counter_add(r->d->deadlines, 1);
    note_late(r);
    log_rate(LC_DATA, LOG_LV_WARN, 10,
             "inode %016llx: read at %llu: the store did not deliver within the deadline; EIO",
             (unsigned long long)r->i->ino, (unsigned long long)r->off);
    if (guard(r))
        give_up(r, -ETIMEDOUT);
    if (atomic_exchange(&r->handoff, true))
        complete(r);
}

static void run_again(struct task *t)
{
    struct data_read *r = container_of(t, struct data_read, again_task);
    if (start_once(r))
        finish(r);
}

/* Planning may read a device, and deadlines must not wait for that. */
static void on_again(struct timer *t)
{
    struct data_read *r = container_of(t, struct data_read, again);
    exec_submit(r->d->v->pool, &r->again_task);
}

static void run_cancel(struct task *t)
{
    give_up(container_of(t, struct data_read, task), -EINTR);
}

int data_read_start(struct data *d, struct data_read *r)
{
    r->d = d;
    r->part = NULL;
    r->parts = 0;
    r->buf = NULL;
    r->iov = NULL;
    r->iov_n = 0;
    r->err = 0;
    r->tries = 0;
    r->drop_behind = false;
    atomic_store(&r->cancelled, false);
    r->started_ns = started(r);
    r->deadline = (struct timer){.fire = on_deadline};
    r->again = (struct timer){.fire = on_again};
    r->task.run = run_cancel;
    r->again_task.run = run_again;
    atomic_fetch_add(&d->reads, 1);
    if (!start_once(r))
        return 0;
    if (r->armed || may_try_again(r, atomic_load(&r->first_err))) {
        finish(r);
        return 0;
    }
    atomic_fetch_sub(&d->reads, 1);
    answer(r, atomic_load(&r->first_err));
    return r->err < 0 ? r->err : 1;
}

void data_read_cancel(struct data *d, struct data_read *r)
{
    if (atomic_exchange(&r->cancelled, true))
        return;
    if (guard(r)) /* off this thread: done may run from it */
        exec_submit(d->v->fetch, &r->task);
    /* Otherwise it is finishing, or waits for its next try, which sees the flag. */
}

void data_read_release(struct data *d, struct data_read *r)
{
    (void)d;
    release_parts(r);
}

uint64_t data_drop_behind(struct data *d, const struct data_read *r, uint64_t *ret_from)
{
    *ret_from = 0;
    if (!r->drop_behind || r->fh & HANDLE_DIRECT)
        return 0;
    struct cache_reader *self = handle_reader(d, r->i->ino, r->fh);
    uint64_t end = r->off + r->len;
    if (cache_follower_distance(d->v->cache, r->i->ino, r->off, self) < 4 * MiB)
        return 0;
    *ret_from = r->off;
    return end;
}
