/* ops_read.c: read, and how a waiting one is given up.
 *
 *   PARKED     a WRITE of the same pages came before it (order.h); then as if it had just come
 *   STARTED    data_read_start is under way or has returned 0
 *   FINISHED   complete: the reply is being sent or was sent; no cancel is useful any more
 *
 * A read that is complete at once is answered by its worker; the others from the `reply` pool, so
 * that copying a megabyte into the kernel never holds up a thread of the store or the cache.
 *
 * Life of a read_op: one reference of the request (dropped after the reply), one while its timer is
 * set, one per canceller at work. The last one releases the cache memory and the inode: a cancel may
 * therefore meet a finished read, never a released one.
 *
 * Interrupts. The kernel sends one INTERRUPT for the first signal of whatever kind; language
 * runtimes send themselves signals all the time. A reply of EINTR would end a read(2) that should go
 * on, so an INTERRUPT only makes us look: is the thread gone, or is a signal pending that will kill
 * it? If so the read is given up, else we look again until it ends, since no second INTERRUPT comes.
 *
 * Lock: daemon.mu for the list of reads. The interrupt callback runs under libfuse's own locks and
 * does nothing but set a timer.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

enum {
    LOOK_AGAIN_MS = 200,
    /* Two of the kernel's read-ahead windows: the reader is in the older one. */
    KEEP_ALONE_BYTES = 2 * READAHEAD_KIB * 1024,
    KEEP_FOLLOWED_BYTES = 6 * READAHEAD_KIB * 1024 /* and the distance of a close follower */
};

struct read_op {
    struct data_read r;
    struct daemon *d;
    fuse_req_t req;
    pid_t tid; /* the reading thread; 0: not of our pid namespace, or read-ahead */
    struct task task, start_task;
    struct timer look;
    struct list link; /* daemon.reads; on it until released */
    bool cancelled;   /* by reads_cancel_all; under daemon.mu */
    uint64_t unique;
    struct parked parked;
    _Atomic unsigned refs;
    _Atomic bool finished;
    _Atomic bool unwanted; /* a cancel came, maybe before data_read_start */
    struct call call;
};

static void op_unref(struct read_op *op)
{
    if (atomic_fetch_sub(&op->refs, 1) != 1)
        return;
    struct daemon *d = op->d;
    lock_acquire(&d->mu);
    list_del(&op->link);
    lock_release(&d->mu);
    atomic_fetch_sub(&d->reads_n, 1);
    data_read_release(d->v->data, &op->r);
    inode_put(d->v->ns, op->r.i);
    atomic_fetch_sub(&d->pending, 1);
    free(op);
}

/* ---- is the reader going to die? ---- */

/* The hexadecimal mask behind `name` in /proc/PID/status; 0 when it is not there. */
static uint64_t status_mask(const char *text, const char *name)
{
    const char *p = strstr(text, name);
    return p ? strtoull(p + strlen(name), NULL, 16) : 0;
}

static uint64_t sig_bit(int sig)
{
    return 1ull << (sig - 1);
}

bool thread_is_dying(pid_t tid)
{
    char path[48], text[4096];
    if (tid <= 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) /* gone, or /proc does not show other users' threads */
        return kill(tid, 0) && errno == ESRCH;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return n < 0 && errno == ESRCH;
    text[n] = '\0';
    uint64_t pending = status_mask(text, "\nSigPnd:") | status_mask(text, "\nShdPnd:");
    if (pending & sig_bit(SIGKILL))
        return true;
    uint64_t harmless = status_mask(text, "\nSigBlk:") | status_mask(text, "\nSigIgn:") |
                        status_mask(text, "\nSigCgt:") | sig_bit(SIGCHLD) | sig_bit(SIGURG) |
                        sig_bit(SIGWINCH) | sig_bit(SIGCONT) | sig_bit(SIGSTOP) | sig_bit(SIGTSTP) |
                        sig_bit(SIGTTIN) | sig_bit(SIGTTOU);
    return pending & ~harmless;
}

static void look_later(struct read_op *op, int64_t at)
{
    struct timers *ts = op->d->v->timers;
    atomic_fetch_add(&op->refs, 1);
    timer_set(ts, &op->look, at);
    if (atomic_load(&op->finished) && timer_cancel(ts, &op->look))
        op_unref(op);
}

static void finish(struct read_op *op);

/* With a reference. */
static void give_up(struct read_op *op)
{
    atomic_store(&op->unwanted, true);
    if (order_leave(op->d->order, &op->parked)) {
        op->r.err = -EINTR;
        finish(op);
    } else {
        data_read_cancel(op->d->v->data, &op->r);
    }
}

static void look_fire(struct timer *t)
{
    struct read_op *op = container_of(t, struct read_op, look);
    if (!atomic_load(&op->finished)) {
        if (thread_is_dying(op->tid))
            give_up(op);
        else
            look_later(op, clock_mono_ns() + LOOK_AGAIN_MS * NS_PER_MS);
    }
    op_unref(op);
}

/* Called by libfuse at most once: there is one INTERRUPT per request. */
static void interrupted(fuse_req_t req, void *arg)
{
    (void)req;
    look_later(arg, clock_mono_ns());
}

/* ---- the reply ---- */

static void drop_behind(struct read_op *op, size_t got)
{
    struct daemon *d = op->d;
    uint64_t from;
    /* A direct handle has pages only from sendfile, which nobody else finds there. */
    bool alone = (op->r.fh & HANDLE_DIRECT) || data_drop_behind(d->v->data, &op->r, &from) > from;
    notify_read(d->notify, op->r.fh, op->r.i->ino, op->r.off, op->r.off + got,
                alone ? KEEP_ALONE_BYTES : KEEP_FOLLOWED_BYTES);
}

static void finish(struct read_op *op)
{
    struct daemon *d = op->d;
    /* After this no interrupt is being or will be handled: it waits for one under way. */
    fuse_req_interrupt_func(op->req, NULL, NULL);
    atomic_store(&op->finished, true);
    if (timer_cancel(d->v->timers, &op->look))
        op_unref(op);
    if (op->r.err) {
        reply_err(op->req, op->r.err == -EINTR && d->stopping ? -ENOTCONN : op->r.err);
    } else {
        size_t got = 0;
        for (unsigned k = 0; k < op->r.iov_n; k++)
            got += op->r.iov[k].iov_len;
        (void)fuse_reply_iov(op->req, op->r.iov, (int)op->r.iov_n);
        counter_add(d->read_bytes, got);
        if (op->r.drop_behind && got)
            drop_behind(op, got);
    }
    call_count(d, &op->call);
    op_unref(op);
}

static void reply_run(struct task *t)
{
    struct read_op *op = container_of(t, struct read_op, task);
    finish(op);
}

static void read_done(struct data_read *r)
{
    struct read_op *op = container_of(r, struct read_op, r);
    exec_submit(op->d->reply, &op->task);
}

/* ---- read ---- */

/* Also again, when a write that was in the way has ended. */
static void start(struct read_op *op)
{
    struct daemon *d = op->d;
    uint64_t ino = op->r.i->ino;
    if (order_read(d->order, &op->parked, ino, op->r.off, op->r.off + op->r.len, op->unique))
        return;
    atomic_fetch_add(&op->refs, 1);
    int err = atomic_load(&op->unwanted) ? -EINTR : data_read_start(d->v->data, &op->r);
    if (err == 0 && atomic_load(&op->unwanted))
        data_read_cancel(d->v->data, &op->r); /* the first one may have come before the start */
    if (err < 0)
        op->r.err = err;
    if (err)
        finish(op);
    op_unref(op);
}

static void start_run(struct task *t)
{
    start(container_of(t, struct read_op, start_task));
}

static void write_ended(struct parked *p)
{
    struct read_op *op = container_of(p, struct read_op, parked);
    exec_submit(op->d->v->pool, &op->start_task);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    if (is_virt(ino)) {
        virt_read(req, ino, size, off, fi->fh);
        return;
    }
    if (size > FUSE_IO_BYTES_MAX || off < 0) {
        reply_err(req, -EINVAL);
        return;
    }
    struct read_op *op = calloc(1, sizeof(*op));
    int err = op ? inode_get(d->v->ns, ino, &op->r.i) : -ENOMEM;
    if (err) {
        free(op);
        reply_err(req, err);
        return;
    }
    op->d = d;
    op->req = req;
    op->tid = fuse_req_ctx(req)->pid;
    op->task.run = reply_run;
    op->look.fire = look_fire;
    op->r.fh = fi->fh;
    op->r.off = (uint64_t)off;
    op->r.len = size;
    op->r.done = read_done;
    op->unique = call_now.unique;
    op->start_task.run = start_run;
    op->parked.go = write_ended;
    op->call = call_take(d);
    atomic_store(&op->refs, 1);
    atomic_fetch_add(&d->reads_n, 1);
    lock_acquire(&d->mu);
    list_add_tail(&d->reads, &op->link);
    lock_release(&d->mu);

    /* Before the start: afterwards the request may be answered and gone at any time. */
    fuse_req_interrupt_func(req, interrupted, op);
    start(op);
}

void reads_cancel_all(struct daemon *d)
{
    for (;;) {
        struct read_op *found = NULL;
        lock_acquire(&d->mu);
        list_each(&d->reads, it)
        {
            struct read_op *op = list_entry(it, struct read_op, link);
            if (op->cancelled || atomic_load(&op->finished))
                continue;
            unsigned refs = atomic_load(&op->refs);
            while (refs && !atomic_compare_exchange_weak(&op->refs, &refs, refs + 1))
                ;
            if (!refs)
                continue;
            op->cancelled = true;
            found = op;
            break;
        }
        lock_release(&d->mu);
        if (!found)
            return;
        give_up(found);
        op_unref(found);
    }
}

uint64_t reads_first_in(struct daemon *d, uint64_t ino, uint64_t from, uint64_t to)
{
    LOCK_SCOPE(&d->mu);
    list_each(&d->reads, it)
    {
        struct read_op *op = list_entry(it, struct read_op, link);
        if (op->r.i->ino != ino || atomic_load(&op->finished))
            continue;
        if (op->r.off < to && op->r.off + op->r.len > from)
            to = op->r.off > from ? op->r.off : from;
    }
    return to;
}
