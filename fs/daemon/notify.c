/* notify.c: the one thread that tells the kernel to forget cached pages.
 *
 * Why a thread: an invalidation waits for pages that are locked by a READ under way, so whoever makes
 * it must not be needed for the answer of any READ, and holds no lock.
 *
 * What is dropped, and when. A READ through a cached handle is mostly read-ahead: at its answer the
 * reader is still in the window before it, and pages dropped now would be asked for again, one by
 * one. So each handle has a tail: the ranges it was answered last, oldest first. What exceeds `keep`
 * bytes (two read-ahead windows; more while another reader follows close by) or KEEP_RANGES (a
 * random reader) is dropped, the rest when the handle is flushed or released.
 *
 *   tail      in the table   queued           ends by
 *   reading   yes            has an excess    release -> closing
 *   closing   no             yes              the thread: dropped, freed
 *
 * Only the thread frees tails, so it may use one without the lock. There are at most as many as open
 * handles. A tail whose ring is full, since the thread lags behind, merges its two oldest ranges: a
 * page too many that is forgotten is read again.
 *
 * Lock: mu (RANK_NOTIFY), never held over the call into the kernel.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/daemon/invalidator.h"

enum { NOTIFY_BUCKETS = 4096, TAIL_RANGES = 24, KEEP_RANGES = 12, PAGE_BYTES = 4096 };

struct range {
    uint64_t lo, hi;
};

struct tail {
    struct tail *next; /* hash chain */
    struct list queue; /* notify.queue */
    uint64_t fh, ino;
    uint64_t bytes, keep; /* in the ring; how many may stay */
    bool closing;
    unsigned first, n;
    struct range ring[TAIL_RANGES];
};

struct notify {
    struct daemon *d;
    struct lock mu;
    pthread_cond_t work; /* the queue is no longer empty, or stop */
    pthread_t thread;
    bool stop;
    struct list queue;
    struct tail *bucket[NOTIFY_BUCKETS];
};

static struct tail **slot(struct notify *n, uint64_t fh)
{
    struct tail **p = &n->bucket[(fh * 0x9e3779b97f4a7c15ull) >> 52];
    while (*p && (*p)->fh != fh)
        p = &(*p)->next;
    return p;
}

static struct range *nth(struct tail *t, unsigned k)
{
    return &t->ring[(t->first + k) % TAIL_RANGES];
}

static void push(struct tail *t, uint64_t lo, uint64_t hi)
{
    if (t->n && nth(t, t->n - 1)->hi == lo) {
        nth(t, t->n - 1)->hi = hi;
        t->bytes += hi - lo;
        return;
    }
    if (t->n == TAIL_RANGES) {
        struct range *a = nth(t, 0), *b = nth(t, 1);
        t->bytes -= (a->hi - a->lo) + (b->hi - b->lo);
        b->lo = a->lo < b->lo ? a->lo : b->lo;
        b->hi = a->hi > b->hi ? a->hi : b->hi;
        t->bytes += b->hi - b->lo;
        t->first = (t->first + 1) % TAIL_RANGES;
        t->n--;
    }
    *nth(t, t->n++) = (struct range){lo, hi};
    t->bytes += hi - lo;
}

/* Takes the oldest stretch that may go. Whole pages only, unless it is a whole range. */
static bool take_excess(struct tail *t, struct range *ret)
{
    if (!t->n || (t->bytes <= t->keep && t->n <= KEEP_RANGES))
        return false;
    struct range *r = nth(t, 0);
    uint64_t len = r->hi - r->lo;
    if (t->n <= KEEP_RANGES && t->bytes - t->keep < len)
        len = (t->bytes - t->keep) / PAGE_BYTES * PAGE_BYTES;
    if (!len)
        return false;
    *ret = (struct range){r->lo, r->lo + len};
    t->bytes -= len;
    r->lo += len;
    if (r->lo == r->hi) {
        t->first = (t->first + 1) % TAIL_RANGES;
        t->n--;
    }
    return true;
}

static void enqueue_locked(struct notify *n, struct tail *t)
{
    if (!list_empty(&t->queue))
        return;
    list_add_tail(&n->queue, &t->queue);
    (void)pthread_cond_signal(&n->work);
}

void notify_read(struct notify *n, uint64_t fh, uint64_t ino, uint64_t from, uint64_t to,
                 uint64_t keep)
{
    LOCK_SCOPE(&n->mu);
    struct tail **p = slot(n, fh);
    struct tail *t = *p;
    if (!t) {
        t = calloc(1, sizeof(*t));
        if (!t) {
            counter_add(n->d->drop_lost, 1);
            return;
        }
        t->fh = fh;
        t->ino = ino;
        list_init(&t->queue);
        *p = t;
    }
    t->keep = keep;
    push(t, from, to);
    if (t->bytes > keep + PAGE_BYTES || t->n > KEEP_RANGES)
        enqueue_locked(n, t);
}

void notify_flush(struct notify *n, uint64_t fh)
{
    LOCK_SCOPE(&n->mu);
    struct tail *t = *slot(n, fh);
    if (!t)
        return;
    t->keep = 0;
    enqueue_locked(n, t);
}

void notify_refused(struct notify *n, uint64_t fh, uint64_t ino, uint64_t from, uint64_t to)
{
    notify_read(n, fh, ino, from / PAGE_BYTES * PAGE_BYTES, to, 0);
    notify_flush(n, fh);
}

void notify_release(struct notify *n, uint64_t fh)
{
    LOCK_SCOPE(&n->mu);
    struct tail **p = slot(n, fh);
    struct tail *t = *p;
    if (!t)
        return;
    *p = t->next;
    t->keep = 0;
    t->closing = true;
    enqueue_locked(n, t);
}

/* A page under a READ is locked for as long as the store takes, and so is the last one of a WRITE: what is behind
 * the first of them stays. */
static void drop_pages(struct daemon *d, uint64_t ino, struct range r)
{
    uint64_t end = order_first_in(d->order, ino, r.lo, reads_first_in(d, ino, r.lo, r.hi));
    if (end < r.hi)
        counter_add(d->drop_lost, 1);
    if (end == r.lo) /* a length of 0 would mean "to the end" */
        return;
    int err = d->inval_fd >= 0
                  ? invalidator_ask(d->inval_fd, ino, r.lo, end - r.lo)
                  : fuse_lowlevel_notify_inval_inode(d->se, ino, (off_t)r.lo, (off_t)(end - r.lo));
    if (err && err != -ENOENT && !d->stopping && !fuse_session_exited(d->se))
        log_rate(LC_FUSE, LOG_LV_WARN, 60,
                 "inode %llu: the kernel did not drop cached pages: %s; reading cold files fills "
                 "the page cache",
                 (unsigned long long)ino, err_name(err));
}

static void *notify_main(void *arg)
{
    struct notify *n = arg;
    /* Where allowed: it has to keep pace with readers on a busy machine. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), -10);
    lock_acquire(&n->mu);
    while (!n->stop) {
        if (list_empty(&n->queue)) {
            lock_wait(&n->mu, &n->work);
            continue;
        }
        struct tail *t = list_entry(n->queue.next, struct tail, queue);
        struct range r;
        if (take_excess(t, &r)) {
            lock_release(&n->mu);
            drop_pages(n->d, t->ino, r);
            lock_acquire(&n->mu);
            /* The others first. */
            list_del(&t->queue);
            list_add_tail(&n->queue, &t->queue);
        } else {
            list_del(&t->queue);
            if (t->closing)
                free(t);
        }
    }
    lock_release(&n->mu);
    return NULL;
}

int notify_open(struct daemon *d, struct notify **ret)
{
    struct notify *n = calloc(1, sizeof(*n));
    if (!n)
        return -ENOMEM;
    n->d = d;
    lock_init(&n->mu, "notify", RANK_NOTIFY, false);
    cond_init(&n->work);
    list_init(&n->queue);
    int err = -pthread_create(&n->thread, NULL, notify_main, n);
    if (err) {
        lock_destroy(&n->mu);
        free(n);
        return err;
    }
    (void)pthread_setname_np(n->thread, "fuse-notify");
    *ret = n;
    return 0;
}

void notify_close(struct notify *n)
{
    if (!n)
        return;
    lock_acquire(&n->mu);
    n->stop = true;
    (void)pthread_cond_signal(&n->work);
    lock_release(&n->mu);
    if (n->d->inval_fd >= 0) /* it may wait for an answer; nobody asks after us */
        (void)shutdown(n->d->inval_fd, SHUT_RDWR);
    (void)pthread_join(n->thread, NULL);
    list_each_safe(&n->queue, it, tmp)
    {
        struct tail *t = list_entry(it, struct tail, queue);
        if (t->closing)
            free(t);
    }
    for (unsigned k = 0; k < NOTIFY_BUCKETS; k++) {
        for (struct tail *t = n->bucket[k], *next; t; t = next) {
            next = t->next;
            free(t);
        }
    }
    (void)pthread_cond_destroy(&n->work);
    lock_destroy(&n->mu);
    free(n);
}
