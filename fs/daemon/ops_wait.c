/* ops_wait.c: operations of the broker profile that something stands in the way of: a segment that is
 * being sealed, one that has to be brought back from the store, or a flush. No worker waits for any of
 * them. Lengths and holes are changed here from the start, since that may flush; a write comes here when it
 * met something.
 *
 *   RUN      the operation is tried on the device pool: it ends, or says what blocks it
 *   SEALING  until data's `ready`, which comes from the device
 *   REMOTE   a WARM of just that segment is with tiering. A timer looks every LOOK_MS whether the
 *            mount is stopping or the program is about to be killed (then it answers at once, and only
 *            the memory stays until the command has ended), and begins the next try after a command
 *            that failed. The store may be away for any time: a write waits for it as a cold
 *            read does, until `read_deadline`, which a broker mount does not have by default.
 *   ROOM     a page of a mapping met a full device. Nobody can be told, so it waits until there is room.
 *
 * Exactly one party moves an operation on: the command's end if it can take the timer back, else the
 * timer. The bytes of a write are copied; as many operations wait as there are requests in the kernel,
 * which is one per file and its write-back limit.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"
#include "fs/tier/tier.h"

enum { LOOK_MS = 200, FREE_TRIES = 16 };

enum wait_kind { WAIT_WRITE, WAIT_ALLOCATE, WAIT_SETATTR };

struct waiting {
    enum wait_kind kind;
    struct daemon *d;
    fuse_req_t req;
    struct inode *i; /* pinned */
    pid_t tid;       /* 0: nobody waits for it */
    struct call call;
    int64_t started_ns;

    struct data_write w; /* WAIT_WRITE: what is left */
    struct mark mark;    /* and all of it */
    size_t done;
    int mode; /* WAIT_ALLOCATE */
    uint64_t off, len;
    struct stat attr; /* WAIT_SETATTR */
    int to_set;
    struct kv_origin who;

    int err;             /* of the last try */
    uint64_t blocked;    /* where it met something */
    unsigned free_tries; /* nothing was in the way when we looked */
    struct task task;
    struct data_wait seal;
    struct tier_cmd warm;
    int warm_err;
    _Atomic bool warming, answered;
    struct timer look;
    char buf[];
};

/* ---- the end ---- */

static void wait_answer(struct waiting *x, int err)
{
    write_mark_end(x->d, &x->mark, x->w.fh);
    if (x->kind == WAIT_SETATTR && !err) {
        reply_attr(x->req, x->i); /* consumes the pin */
        x->i = NULL;
    } else if (x->kind == WAIT_WRITE && x->done && write_is_synced(x->d, &x->w)) {
        if (sync_write(x->req, x->i, x->done, &x->call)) {
            x->i = NULL;
            return;
        }
        reply_err(x->req, -ENOMEM);
    } else if (x->kind == WAIT_WRITE && (!err || x->done)) {
        (void)fuse_reply_write(x->req, x->done);
    } else {
        reply_err(x->req, err);
    }
    if (x->i)
        inode_put(x->d->v->ns, x->i);
    x->i = NULL;
    call_done(x->d, &x->call);
}

static void wait_reply(struct waiting *x, int err)
{
    wait_answer(x, err);
    free(x);
}

/* Nobody wants the answer any more, or it would come too late. 0: go on. */
static int given_up(struct waiting *x)
{
    if (x->d->stopping)
        return -ENOTCONN;
    return thread_is_dying(x->tid) ? -EINTR : 0;
}

/* What ends the waiting for a segment that could not be brought back. 0: try again. */
static int warm_verdict(struct waiting *x)
{
    int64_t limit = (int64_t)x->d->v->conf->read_deadline * NS_PER_MS;
    if (x->warm_err == 0)
        return 0;
    if (x->warm_err == -ENOSPC && !(x->kind == WAIT_WRITE && x->w.from_page_cache))
        return -ENOSPC;
    log_rate(LC_FUSE, LOG_LV_WARN, 10,
             "inode %016llx: a segment that is written to cannot be brought back yet: %s",
             (unsigned long long)x->i->ino, err_name(x->warm_err));
    bool late = limit && clock_mono_ns() - x->started_ns > limit;
    bool damaged = x->warm_err == -EBADMSG || x->warm_err == -ENOENT;
    return late || damaged || data_devices_failed(x->d->v->data) ? -EIO : 0;
}

/* ---- waiting ---- */

static void look_later(struct waiting *x)
{
    timer_set(x->d->v->timers, &x->look, clock_mono_ns() + LOOK_MS * NS_PER_MS);
}

static void look_fire(struct timer *t)
{
    struct waiting *x = container_of(t, struct waiting, look);
    bool answered = atomic_load(&x->answered);
    if (!atomic_load(&x->warming)) {
        if (answered)
            free(x);
        else
            exec_submit(x->d->v->pool, &x->task);
        return;
    }
    int err = answered ? 0 : given_up(x);
    if (err) {
        wait_answer(x, err);
        atomic_store(&x->answered, true);
        tier_command_cancel(x->d->v->tier, &x->warm);
    }
    look_later(x);
}

static void warm_done(struct tier_cmd *c, int err, const char *why)
{
    (void)why;
    struct waiting *x = container_of(c, struct waiting, warm);
    struct daemon *d = x->d;
    x->warm_err = err;
    /* After a failure the timer begins the next try, which is the back-off. */
    bool end = atomic_load(&x->answered);
    bool mine = (err == 0 || end) && timer_cancel(d->v->timers, &x->look);
    if (mine && atomic_load(&x->answered)) {
        free(x);
        return;
    }
    atomic_store(&x->warming, false); /* from here on it is the timer's, unless it is ours */
    if (mine)
        exec_submit(d->v->pool, &x->task);
}

static void seal_ready(struct data_wait *w)
{
    struct waiting *x = container_of(w, struct waiting, seal);
    exec_submit(x->d->v->pool, &x->task);
}

static uint64_t blocked_len(const struct waiting *x)
{
    return x->kind == WAIT_WRITE ? x->w.len : 1;
}

/* Where the last try met something. */
static void wait_for(struct waiting *x)
{
    struct daemon *d = x->d;
    uint64_t at;
    if (x->err != -EAGAIN) { /* no room */
        look_later(x);
        return;
    }
    switch (data_blocked(d->v->data, x->i, x->blocked, blocked_len(x), &x->seal, &at)) {
    case DATA_SEALING:
        return;
    case DATA_REMOTE:
        x->free_tries = 0;
        x->warm = (struct tier_cmd){
            .kind = TIER_WARM, .ino = x->i->ino, .off = at, .len = 1, .done = warm_done};
        atomic_store(&x->warming, true);
        look_later(x);
        tier_command(d->v->tier, &x->warm);
        return;
    case DATA_FREE:
        if (++x->free_tries < FREE_TRIES)
            exec_submit(d->v->pool, &x->task);
        else
            look_later(x);
        return;
    }
}

static bool may_wait(const struct waiting *x, int err)
{
    return err == -EAGAIN || (err == -ENOSPC && x->kind == WAIT_WRITE && x->w.from_page_cache);
}

/* ---- a try ---- */

static int try_once(struct waiting *x)
{
    struct daemon *d = x->d;
    size_t done = 0;
    int64_t at;
    bool open;
    int err;
    switch (x->kind) {
    case WAIT_WRITE:
        err = write_rounds(d, &x->w, &done, &at, &open);
        if (open)
            data_write_end(d->v->data, &x->w);
        x->done += done;
        x->blocked = x->w.off;
        return err;
    case WAIT_ALLOCATE:
        return data_fallocate(d->v->data, x->i, x->mode, x->off, x->len, &x->blocked);
    case WAIT_SETATTR:
        break;
    }
    return set_attributes(d, x->i, &x->attr, x->to_set, &x->who);
}

static void wait_run(struct task *t)
{
    struct waiting *x = container_of(t, struct waiting, task);
    int err = given_up(x);
    if (!err)
        err = warm_verdict(x);
    if (err) {
        wait_reply(x, err);
        return;
    }
    x->warm_err = 0;
    x->err = try_once(x);
    if (may_wait(x, x->err))
        wait_for(x);
    else
        wait_reply(x, x->err);
}

/* ---- beginning ---- */

static int wait_new(fuse_req_t req, struct inode *i, enum wait_kind kind, size_t bytes,
                    struct waiting **ret)
{
    if (daemon_of(req)->stopping)
        return -ENOTCONN;
    struct waiting *x = *ret = calloc(1, sizeof(*x) + bytes);
    if (!x)
        return -ENOMEM;
    x->kind = kind;
    x->d = daemon_of(req);
    x->req = req;
    x->i = i;
    x->tid = fuse_req_ctx(req)->pid;
    x->started_ns = clock_mono_ns();
    x->task.run = wait_run;
    x->seal.ready = seal_ready;
    x->look.fire = look_fire;
    return 0;
}

/* The worker looked at nothing that would tell what is in the way: the first try on the pool does. */
static void wait_begin(struct waiting *x)
{
    x->call = call_take(x->d);
    exec_submit(x->d->v->pool, &x->task);
}

int later_write(fuse_req_t req, const struct data_write *w, size_t done, int err, struct mark *m)
{
    if (err != -EAGAIN && !(err == -ENOSPC && w->from_page_cache))
        return err;
    struct waiting *x;
    int r = wait_new(req, w->i, WAIT_WRITE, w->len, &x);
    if (r < 0)
        return r;
    memcpy(x->buf, w->buf, w->len);
    x->w = *w;
    x->w.buf = x->buf;
    x->w.on_worker = false;
    x->done = done;
    if (w->from_page_cache)
        x->tid = 0;
    if (m->on)
        mark_move(x->d->order, &x->mark, m);
    wait_begin(x);
    return 0;
}

int later_allocate(fuse_req_t req, struct inode *i, int mode, uint64_t off, uint64_t len)
{
    struct waiting *x;
    int r = wait_new(req, i, WAIT_ALLOCATE, 0, &x);
    if (r < 0)
        return r;
    x->mode = mode;
    x->off = off;
    x->len = len;
    wait_begin(x);
    return 0;
}

int later_setattr(fuse_req_t req, struct inode *i, const struct stat *attr, int to_set,
                  const struct kv_origin *who)
{
    struct waiting *x;
    int r = wait_new(req, i, WAIT_SETATTR, 0, &x);
    if (r < 0)
        return r;
    x->attr = *attr;
    x->to_set = to_set;
    x->who = *who;
    x->blocked = attr->st_size > 0 ? (uint64_t)attr->st_size - 1 : 0;
    wait_begin(x);
    return 0;
}
