/* ops_write.c: write, and the two ways in which its reply may come later.
 *
 *   begin -> 0, reply now          the usual case; the bytes are hashed after the reply, in the worker
 *   begin -> 0, reply_at_ns set    the device is nearly full: the reply waits in `delayed`, the worker
 *                                  does not. One timer serves the whole list; room that becomes free
 *                                  releases all of it. At DELAYED_MAX a writer is not slowed down; one
 *                                  that got a signal is answered within HURRY_MS, so that it can end
 *   begin -> -EAGAIN               broker profile: something stands in the way, see ops_wait.c
 *
 *   a rule says flush_interval = 0 the reply comes after a flush, from the device pool (ops_file.c)
 *
 * With O_SYNC or O_DSYNC the kernel sends an FSYNC after the write.
 *
 * Lock: daemon.mu for the list of delayed replies; never held over a reply, nor over a call of libfuse,
 * whose locks the interrupt callback runs under.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/tier/tier.h"

enum { SMALL_WRITE_BYTES = 32 * 1024, HURRY_MS = 500 };

/* ---- slowed-down writers ---- */

struct delayed {
    struct list link;
    struct daemon *d;
    fuse_req_t req;
    size_t count;
    int64_t at_ns; /* d->mu */
    struct call call;
};

/* Moves what is due at `now` to `out`; the earliest of the rest, or INT64_MAX. */
static int64_t delayed_due_locked(struct daemon *d, int64_t now, struct list *out)
{
    int64_t next = INT64_MAX;
    list_each_safe(&d->delayed, it, tmp)
    {
        struct delayed *w = list_entry(it, struct delayed, link);
        if (w->at_ns <= now) {
            list_del(it);
            list_add_tail(out, it);
            d->delayed_n--;
        } else if (w->at_ns < next) {
            next = w->at_ns;
        }
    }
    return next;
}

static void delayed_answer(struct daemon *d, int64_t now)
{
    struct list out;
    list_init(&out);
    lock_acquire(&d->mu);
    int64_t next = delayed_due_locked(d, now, &out);
    if (next != INT64_MAX)
        timer_set(d->v->timers, &d->delayed_timer, next);
    lock_release(&d->mu);
    list_each_safe(&out, it, tmp)
    {
        struct delayed *w = list_entry(it, struct delayed, link);
        fuse_req_interrupt_func(w->req, NULL, NULL); /* waits for a callback under way */
        (void)fuse_reply_write(w->req, w->count);
        call_done(d, &w->call);
        free(w);
    }
}

static void delayed_fire(struct timer *t)
{
    delayed_answer(container_of(t, struct daemon, delayed_timer), clock_mono_ns());
}

void delayed_release(void *daemon)
{
    delayed_answer(daemon, INT64_MAX);
}

void delayed_init(struct daemon *d)
{
    list_init(&d->delayed);
    d->delayed_timer.fire = delayed_fire;
}

static void delayed_hurry(fuse_req_t req, void *arg)
{
    (void)req;
    struct delayed *w = arg;
    struct daemon *d = w->d;
    int64_t now = clock_mono_ns();
    LOCK_SCOPE(&d->mu);
    if (w->at_ns > now + HURRY_MS * NS_PER_MS)
        w->at_ns = now + HURRY_MS * NS_PER_MS;
    timer_set(d->v->timers, &d->delayed_timer, now); /* it finds the earliest then */
}

/* True: the reply will come later. */
static bool delay_reply(struct daemon *d, fuse_req_t req, size_t count, int64_t at_ns)
{
    struct delayed *w = malloc(sizeof(*w));
    if (!w)
        return false;
    *w = (struct delayed){.d = d, .req = req, .count = count, .at_ns = at_ns};
    /* Now: once it is in the list it may be answered and gone at any time. */
    fuse_req_interrupt_func(req, delayed_hurry, w);
    lock_acquire(&d->mu);
    if (d->delayed_n < DELAYED_MAX && !d->stopping) {
        bool first = true;
        w->call = call_take(d);
        list_each(&d->delayed, it)
        {
            if (list_entry(it, struct delayed, link)->at_ns <= w->at_ns) {
                first = false;
                break;
            }
        }
        list_add_tail(&d->delayed, &w->link);
        d->delayed_n++;
        if (first)
            timer_set(d->v->timers, &d->delayed_timer, w->at_ns);
        lock_release(&d->mu);
        return true;
    }
    lock_release(&d->mu);
    fuse_req_interrupt_func(req, NULL, NULL);
    free(w);
    return false;
}

/* ---- write ---- */

int write_rounds(struct daemon *d, struct data_write *w, size_t *total, int64_t *at, bool *open)
{
    *total = 0;
    *at = 0;
    *open = false;
    for (;;) {
        int err = data_write_begin(d->v->data, w);
        if (err)
            return err;
        *total += w->done;
        counter_add(d->write_bytes, w->done);
        if (w->reply_at_ns > *at)
            *at = w->reply_at_ns;
        if (w->done == w->len) {
            *open = true;
            return 0;
        }
        data_write_end(d->v->data, w); /* cut at segment borders */
        w->buf = (const char *)w->buf + w->done;
        w->off += w->done;
        w->len -= w->done;
    }
}

bool write_is_synced(struct daemon *d, const struct data_write *w)
{
    return !w->from_page_cache && (policy_writes(d->v->policy, w->i) & POLICY_SYNC);
}

void write_mark_end(struct daemon *d, struct mark *m, uint64_t fh)
{
    if (mark_end(d->order, m))
        notify_refused(d->notify, fh, m->ino, m->lo, m->hi);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
              struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    struct data_write w = {.fh = fi->fh,
                           .off = (uint64_t)off,
                           .buf = buf,
                           .len = size,
                           .resent = call_now.resent,
                           .on_worker = true,
                           .from_page_cache = fi->writepage};
    int err = is_virt(ino) ? -EPERM : inode_get(d->v->ns, ino, &w.i);
    if (err) {
        reply_err(req, err);
        return;
    }
    size_t total;
    int64_t at;
    bool open;
    struct mark m = {0};
    if (!w.from_page_cache) /* such a page stays in the cache until it was written */
        mark_begin(d->order, &m, ino, w.off, w.off + size, call_now.unique);
    err = write_rounds(d, &w, &total, &at, &open);
    if (err) {
        err = later_write(req, &w, total, err, &m);
        if (!err)
            return;
    }
    write_mark_end(d, &m, fi->fh);
    if (err && !total) {
        inode_put(d->v->ns, w.i);
        reply_err(req, err);
        if (err == -EPERM && w.from_page_cache)
            notify_refused(d->notify, fi->fh, ino, (uint64_t)off, (uint64_t)off + size);
        return;
    }
    if (write_is_synced(d, &w)) {
        if (open)
            data_write_end(d->v->data, &w);
        if (!sync_write(req, w.i, total, NULL)) {
            inode_put(d->v->ns, w.i);
            reply_err(req, -ENOMEM);
        }
        return;
    }
    bool small = w.len <= SMALL_WRITE_BYTES;
    if (open && small) {
        /* Hashing takes less than waking another worker for the next request would. */
        data_write_end(d->v->data, &w);
        inode_put(d->v->ns, w.i);
        session_soon_back(d);
    }
    if (!at || !delay_reply(d, req, total, at))
        (void)fuse_reply_write(req, total);
    if (open && small)
        return;
    if (open)
        data_write_end(d->v->data, &w);
    inode_put(d->v->ns, w.i);
}
