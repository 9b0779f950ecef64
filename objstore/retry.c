/* retry.c: repeats what may succeed later, with full-jitter back-off, inside the caller's deadline.
 *
 * A call is in one state, guarded by retry.mu:
 *
 *   state    who moves it on
 *   FLIGHT   the store's completion: finished, or BACKOFF
 *   BACKOFF  its timer: FLIGHT again, or finished when it was cancelled or the store is closing
 *   DOOMED   submitted while closing; close() finishes it
 *
 * What is repeated: failures marked retryable, up to ATTEMPTS_MAX attempts. A reset
 * connection is repeated at once the first time; a refused checksum once. -ENOENT, -EEXIST, -EACCES
 * and the like are answers, unless the diag says that they may pass. Near the deadline the wait is
 * shortened, so that the time that is left is used.
 *
 * A GET goes on behind the bytes that have arrived, with If-Match of the first answer's ETag. When
 * the object has changed in between, a caller without `progress` gets it from the start; one that
 * has already used the first bytes gets -EBADMSG "ChangedObject".
 *
 * Unknown outcomes: when one attempt may have taken effect, diag.unknown_outcome is set on every
 * error that follows. So a conditional write that meets its own first success reports -EEXIST with
 * unknown_outcome, and the caller reads back.
 *
 * Lock: retry.mu (RANK_STORE_RETRY), held while submitting and cancelling below, never over `done`.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/lock.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum { ATTEMPTS_MAX = 8 };

enum state { FLIGHT, BACKOFF, DOOMED };

struct retry {
    struct objstore os;
    struct objstore *below;
    struct timers *timers;
    int64_t min_ns, max_ns;
    void (*observe)(void *arg, const struct obj_req *attempt);
    void *observe_arg;
    struct lock mu;
    pthread_cond_t changed; /* live fell to 0, or a doomed call came */
    struct list calls;
    unsigned live; /* calls whose `done` has not returned */
    bool closing;
};

struct call {
    struct layer_call lc;
    struct retry *rt;
    struct timer timer;
    enum state state;
    bool canceled, unknown, reset_seen, badmsg_seen;
    unsigned attempts;
    uint64_t got, base;      /* GET: bytes in place; of these, before this attempt */
    char etag[OBJ_ETAG_MAX]; /* GET: of the first answer; "" none yet */
    struct iovec *iov;       /* GET: what is left to fill, when resuming */
    char *last_key;          /* LIST: rows up to here were passed on */
};

static bool is_get(const struct call *c)
{
    return c->lc.up->op == OBJ_GET;
}

static void on_progress(struct obj_req *in, uint64_t got)
{
    struct call *c = in->arg;
    struct obj_req *up = c->lc.up;
    if (!c->etag[0])
        memcpy(c->etag, in->info.etag, sizeof c->etag);
    c->got = c->base + got;
    if (up->progress) {
        up->info = in->info;
        up->progress(up, c->got);
    }
}

/* A page that failed half way is asked for again: its first rows must not be seen twice. */
static void on_each(struct obj_req *in, const struct obj_entry *e)
{
    struct call *c = in->arg;
    if (c->lc.up->op == OBJ_LIST) {
        if (c->last_key && strcmp(e->key, c->last_key) <= 0)
            return;
        size_t n = strlen(e->key) + 1;
        if (!c->last_key)
            c->last_key = layer_alloc(OBJ_KEY_MAX);
        memcpy(c->last_key, e->key, n < OBJ_KEY_MAX ? n : OBJ_KEY_MAX - 1);
    }
    c->lc.up->each(c->lc.up, e);
}

static void on_done(struct obj_req *in);
static void on_timer(struct timer *t);

static void resume_iov(struct call *c)
{
    const struct obj_req *up = c->lc.up;
    uint64_t skip = c->got;
    unsigned i = 0, n = 0;
    if (!c->iov)
        c->iov = layer_alloc(up->iov_n * sizeof *c->iov);
    for (; i < up->iov_n && skip >= up->iov[i].iov_len; i++)
        skip -= up->iov[i].iov_len;
    for (; i < up->iov_n; i++, skip = 0)
        c->iov[n++] = (struct iovec){.iov_base = (char *)up->iov[i].iov_base + skip,
                                     .iov_len = up->iov[i].iov_len - skip};
    c->lc.in.iov = c->iov;
    c->lc.in.iov_n = n;
    c->lc.in.off = up->off + c->got;
    c->lc.in.len = up->len - c->got;
}

static void start_locked(struct call *c)
{
    struct obj_req *in = &c->lc.in;
    layer_call_init(&c->lc, c->lc.up, on_done);
    if (in->each)
        in->each = on_each;
    if (is_get(c)) {
        in->progress = on_progress;
        c->base = c->got;
        if (c->got > 0) {
            resume_iov(c);
            if (c->etag[0] && !(in->flags & OBJ_IF_MATCH)) {
                in->flags |= OBJ_IF_MATCH;
                in->etag = c->etag;
            }
        }
    }
    c->state = FLIGHT;
    c->attempts++;
    obj_submit(c->rt->below, in);
}

/* The connection broke under the request, which is what idle ones do. One that could not be made at
 * all says "Unreachable". */
static bool is_reset(const struct obj_req *r)
{
    return r->err == -EIO && r->diag.http_status == 0 && strcmp(r->diag.code, "Unreachable") != 0;
}

static bool may_pass(struct call *c, const struct obj_req *in)
{
    switch (in->err) {
    case -ECANCELED:
    case -EINVAL:
    case -EOPNOTSUPP:
        return false;
    case -EBADMSG:
        if (c->badmsg_seen)
            return false;
        c->badmsg_seen = true;
        return true;
    default:
        return in->diag.retryable;
    }
}

static int64_t random_below(int64_t n)
{
    uint64_t v;
    random_bytes(&v, sizeof v);
    return n > 0 ? (int64_t)(v % (uint64_t)n) : 0;
}

/* How long to wait before the next attempt; -1: there is none. */
static int64_t verdict(struct call *c, const struct obj_req *in)
{
    const struct obj_req *up = c->lc.up;
    if (in->err == 0 || c->canceled || c->rt->closing || !may_pass(c, in) ||
        c->attempts >= ATTEMPTS_MAX)
        return -1;
    int64_t wait, cap = c->rt->min_ns;
    for (unsigned i = 1; i < c->attempts && cap < c->rt->max_ns; i++)
        cap *= 2;
    wait = random_below(cap < c->rt->max_ns ? cap : c->rt->max_ns);
    if (is_reset(in) && !c->reset_seen) {
        c->reset_seen = true;
        wait = 0;
    }
    int64_t asked = (int64_t)in->diag.retry_after_ms * NS_PER_MS;
    if (wait < asked)
        wait = asked;
    if (up->deadline_ns) {
        int64_t left = up->deadline_ns - clock_mono_ns();
        if (left <= 0)
            return -1;
        if (wait > left / 2)
            wait = left / 2;
        if (left < NS_PER_MS)
            return -1;
    }
    return wait;
}

/* Takes the call out; the caller of this runs finish() after releasing the lock. */
static void unlink_locked(struct call *c)
{
    list_del(&c->lc.link);
    c->lc.up->layer = NULL;
}

static void finish(struct call *c)
{
    struct retry *rt = c->rt;
    struct obj_req *up = c->lc.up;
    layer_call_results(&c->lc);
    up->attempts = c->attempts;
    if (up->err < 0 && c->unknown)
        up->diag.unknown_outcome = true;
    up->done(up);
    free(c->iov);
    free(c->last_key);
    free(c);
    lock_acquire(&rt->mu);
    if (--rt->live == 0)
        pthread_cond_broadcast(&rt->changed);
    lock_release(&rt->mu);
}

/* -EEXIST on the rest of a GET means: the object is not the one whose first bytes we have. */
static void resumed_other_object(struct call *c)
{
    struct obj_req *in = &c->lc.in;
    if (c->lc.up->progress) {
        layer_fail(in, -EBADMSG, false, "ChangedObject",
                   "the object was replaced while it was being read");
        c->badmsg_seen = true; /* an answer, not to be repeated */
        return;
    }
    c->got = 0;
    c->etag[0] = 0;
    in->err = -EIO;
    in->diag.retryable = true;
}

static void on_done(struct obj_req *in)
{
    struct call *c = in->arg;
    struct retry *rt = c->rt;
    if (rt->observe)
        rt->observe(rt->observe_arg, in);
    lock_acquire(&rt->mu);
    if (in->err < 0 && in->diag.unknown_outcome)
        c->unknown = true;
    if (is_get(c) && c->base > 0 && in->err == -EEXIST && !(c->lc.up->flags & OBJ_IF_MATCH))
        resumed_other_object(c);
    int64_t wait = verdict(c, in);
    if (wait >= 0 && is_get(c) && c->got >= c->lc.up->len) {
        if (in->err != -EBADMSG)
            in->err = 0; /* all bytes had arrived when it failed */
        wait = -1;
    }
    if (wait >= 0) {
        obj_req_done(in);
        c->state = BACKOFF;
        timer_set(rt->timers, &c->timer, clock_mono_ns() + wait);
    } else {
        unlink_locked(c);
    }
    lock_release(&rt->mu);
    if (wait < 0)
        finish(c);
}

static void on_timer(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    struct retry *rt = c->rt;
    lock_acquire(&rt->mu);
    bool end = c->canceled || rt->closing;
    if (end) {
        layer_fail(&c->lc.in, -ECANCELED, false, "", "given up");
        unlink_locked(c);
    } else {
        start_locked(c);
    }
    lock_release(&rt->mu);
    if (end)
        finish(c);
}

static void retry_submit(struct objstore *os, struct obj_req *r)
{
    struct retry *rt = container_of(os, struct retry, os);
    struct call *c = layer_alloc(sizeof *c);
    c->rt = rt;
    c->lc.up = r;
    c->timer.fire = on_timer;
    LOCK_SCOPE(&rt->mu);
    r->layer = c;
    rt->live++;
    list_add_tail(&rt->calls, &c->lc.link);
    if (rt->closing) {
        layer_fail(&c->lc.in, -ECANCELED, false, "", "the store is closed");
        c->state = DOOMED;
        pthread_cond_broadcast(&rt->changed);
    } else {
        start_locked(c);
    }
}

static void retry_cancel(struct objstore *os, struct obj_req *r)
{
    struct retry *rt = container_of(os, struct retry, os);
    LOCK_SCOPE(&rt->mu);
    struct call *c = r->layer;
    if (!c || c->canceled)
        return;
    c->canceled = true;
    if (c->state == FLIGHT)
        obj_cancel(rt->below, &c->lc.in);
    else if (c->state == BACKOFF && timer_cancel(rt->timers, &c->timer))
        timer_set(rt->timers, &c->timer, clock_mono_ns());
}

/* A call that nothing else will finish: doomed, or backing off with its timer now cancelled. */
static struct call *orphan_locked(struct retry *rt)
{
    list_each(&rt->calls, it)
    {
        struct call *c = list_entry(it, struct call, lc.link);
        if (c->state == DOOMED || (c->state == BACKOFF && timer_cancel(rt->timers, &c->timer))) {
            layer_fail(&c->lc.in, -ECANCELED, false, "", "the store is closed");
            unlink_locked(c);
            return c;
        }
    }
    return NULL;
}

static void finish_orphans(struct retry *rt)
{
    for (;;) {
        lock_acquire(&rt->mu);
        rt->closing = true;
        struct call *c = orphan_locked(rt);
        lock_release(&rt->mu);
        if (!c)
            return;
        finish(c);
    }
}

static void retry_close(struct objstore *os)
{
    struct retry *rt = container_of(os, struct retry, os);
    finish_orphans(rt);
    obj_close(rt->below); /* ends all that are in flight */
    lock_acquire(&rt->mu);
    while (rt->live > 0) {
        lock_release(&rt->mu);
        finish_orphans(rt);
        lock_acquire(&rt->mu);
        if (rt->live > 0 && list_empty(&rt->calls))
            lock_wait(&rt->mu, &rt->changed);
    }
    lock_release(&rt->mu);
    pthread_cond_destroy(&rt->changed);
    lock_destroy(&rt->mu);
    free(rt);
}

static struct objstore *retry_below(struct objstore *os)
{
    return container_of(os, struct retry, os)->below;
}

static const struct objstore_ops retry_ops = {
    .name = "retry",
    .submit = retry_submit,
    .cancel = retry_cancel,
    .close = retry_close,
    .below = retry_below,
};

int retry_push(struct objstore **os, const struct store_conf *conf)
{
    struct retry *rt = calloc(1, sizeof *rt);
    if (!rt)
        return -ENOMEM;
    rt->os.ops = &retry_ops;
    rt->below = *os;
    rt->timers = conf->timers;
    rt->min_ns = (conf->backoff_min_ms ? conf->backoff_min_ms : 100) * NS_PER_MS;
    rt->max_ns = (conf->backoff_max_ms ? conf->backoff_max_ms : 30000) * NS_PER_MS;
    lock_init(&rt->mu, "retry.mu", RANK_STORE_RETRY, false);
    cond_init(&rt->changed);
    list_init(&rt->calls);
    *os = &rt->os;
    return 0;
}

bool retry_observe(struct objstore *os, void (*fn)(void *arg, const struct obj_req *attempt),
                   void *arg)
{
    if (os->ops != &retry_ops)
        return false;
    struct retry *rt = container_of(os, struct retry, os);
    rt->observe = fn;
    rt->observe_arg = arg;
    return true;
}
