/* fault.c: injected faults; see fault.h for the plan.
 *
 * A call is in one state, guarded by fault.mu:
 *   BELOW    submitted to the layer below; its completion finishes it
 *   TIMED    its timer will run it: fail, perform (delay) or both
 *   STALLED  as TIMED, with no timer or that of its deadline; fault_release sets it to now
 *   DOOMED   submitted while closing; close() finishes it
 * Everything that a rule hits goes through the timer, since `done` never runs inside submit and a
 * body may have to be read to be damaged.
 *
 * Lock: fault.mu (RANK_STORE_FAULT), held while submitting and cancelling below, never over `done`.
 * The plan file is read under it: a test layer may do that.
 */
#include "objstore/fault.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "objstore/fault_plan.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum state { BELOW, TIMED, STALLED, DOOMED };

struct fault {
    struct objstore os;
    struct objstore *below;
    struct timers *timers;
    char path[4096]; /* "": no file */
    struct timespec mtime;
    off_t size;
    struct lock mu;
    pthread_cond_t changed;
    struct fault_plan plan;
    struct list calls;
    unsigned live, hits;
    bool closing;
};

struct call {
    struct layer_call lc;
    struct fault *f;
    struct timer timer;
    enum state state;
    bool hit, canceled;
    struct fault_rule rule; /* as it was when the call was hit */
    bool flipped;
    uint8_t byte;          /* CORRUPT of a body: the changed byte */
    struct obj_body *body; /* CORRUPT */
    struct iovec *iov;     /* TRUNCATE */
};

/* Reads the plan's file when it has changed. Plain system calls: the lock is no disk_ok one. */
static int reload_locked(struct fault *f, char *why, size_t cap)
{
    struct stat st;
    if (!f->path[0] || stat(f->path, &st) < 0)
        return 0; /* gone: the old plan stays */
    if (st.st_size == f->size && st.st_mtim.tv_sec == f->mtime.tv_sec &&
        st.st_mtim.tv_nsec == f->mtime.tv_nsec)
        return 0;
    f->size = st.st_size;
    f->mtime = st.st_mtim;
    char *text = layer_alloc(FAULT_PLAN_BYTES_MAX);
    struct fault_plan *p = layer_alloc(sizeof *p);
    FILE *in = fopen(f->path, "re");
    size_t n = in ? fread(text, 1, FAULT_PLAN_BYTES_MAX - 1, in) : 0;
    text[n] = 0;
    int r = in ? fault_plan_parse(text, p, why, cap) : -EIO;
    if (in)
        fclose(in);
    else
        snprintf(why, cap, "fault plan cannot be read");
    if (r == 0) {
        f->plan = *p;
        f->hits = 0;
    }
    free(text);
    free(p);
    return r;
}

static bool key_matches(const struct fault_rule *ru, const struct obj_req *r)
{
    if (r->op == OBJ_DELETE_BATCH) {
        for (unsigned i = 0; i < r->keys_n; i++)
            if (fnmatch(ru->key, r->keys[i], 0) == 0)
                return true;
        return false;
    }
    return fnmatch(ru->key, r->key ? r->key : "", 0) == 0;
}

static const struct fault_rule *rule_for_locked(struct fault *f, const struct obj_req *r)
{
    const struct fault_rule *hit = NULL;
    if (f->plan.n == 0 || (f->plan.trigger[0] && access(f->plan.trigger, F_OK) < 0))
        return NULL;
    for (unsigned i = 0; i < f->plan.n; i++) {
        struct fault_rule *ru = &f->plan.rule[i];
        if (!(ru->ops & 1u << r->op) || !key_matches(ru, r))
            continue;
        ru->seen++;
        if (!hit && ru->seen >= ru->nth && (!ru->count || ru->seen - ru->nth < ru->count))
            hit = ru;
    }
    if (hit)
        f->hits++;
    return hit;
}

/* ---- calls ---- */

static void unlink_locked(struct call *c)
{
    list_del(&c->lc.link);
    c->lc.up->layer = NULL;
}

static void finish(struct call *c)
{
    struct fault *f = c->f;
    layer_call_results(&c->lc);
    c->lc.up->done(c->lc.up);
    free(c->body);
    free(c->iov);
    free(c);
    lock_acquire(&f->mu);
    f->live--;
    pthread_cond_broadcast(&f->changed);
    lock_release(&f->mu);
}

static void flip_received(struct call *c)
{
    const struct obj_req *r = c->lc.up;
    uint64_t at = c->rule.n;
    for (unsigned i = 0; i < r->iov_n; at -= r->iov[i++].iov_len)
        if (at < r->iov[i].iov_len) {
            ((uint8_t *)r->iov[i].iov_base)[at] ^= 0x20;
            c->flipped = true;
            return;
        }
}

static void xml_received(struct call *c)
{
    static const char text[] = "<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>";
    const struct obj_req *r = c->lc.up;
    for (unsigned i = 0; i < r->iov_n; i++)
        for (size_t at = 0; at < r->iov[i].iov_len; at++)
            ((char *)r->iov[i].iov_base)[at] = text[at % (sizeof text - 1)];
}

static void on_progress(struct obj_req *in, uint64_t got)
{
    struct call *c = in->arg;
    struct obj_req *up = c->lc.up;
    if (c->hit && c->rule.action == FAULT_XML)
        xml_received(c);
    if (c->hit && c->rule.action == FAULT_CORRUPT && !c->flipped && got > c->rule.n)
        flip_received(c);
    if (up->progress) {
        up->info = in->info;
        up->progress(up, got);
    }
}

static void fail_by_rule(struct call *c)
{
    struct obj_req *in = &c->lc.in;
    layer_fail(in, c->rule.err, c->rule.retryable, c->rule.code, "injected fault");
    in->diag.http_status = c->rule.http;
    in->diag.unknown_outcome = c->rule.unknown;
}

static void on_done(struct obj_req *in)
{
    struct call *c = in->arg;
    struct fault *f = c->f;
    if (c->hit && in->err == 0) {
        if (c->rule.action == FAULT_CORRUPT && in->op == OBJ_GET && !c->flipped)
            flip_received(c);
        if (c->rule.action == FAULT_XML && in->op == OBJ_GET)
            xml_received(c);
        if (c->rule.action == FAULT_ETAG)
            snprintf(in->info.etag, sizeof in->info.etag, "\"another\"");
        if (c->rule.action == FAULT_LOST_REPLY ||
            (c->rule.action == FAULT_TRUNCATE && in->op == OBJ_GET)) {
            obj_req_done(in);
            layer_fail(in, -EIO, true, "ECONNRESET", "injected fault: connection reset");
            in->diag.unknown_outcome = c->rule.action == FAULT_LOST_REPLY;
        }
    }
    lock_acquire(&f->mu);
    unlink_locked(c);
    lock_release(&f->mu);
    finish(c);
}

/* The body with byte n changed, as up to three stretches in place of one. */
static void damage_body(struct call *c)
{
    struct obj_req *in = &c->lc.in;
    uint64_t at = c->rule.n;
    unsigned i = 0, n = 0;
    while (i < in->body_n && at >= in->body[i].len)
        at -= in->body[i++].len;
    if (i == in->body_n)
        return;
    const struct obj_body *b = &in->body[i];
    if (b->mem)
        c->byte = ((const uint8_t *)b->mem)[at];
    else if (pread(b->fd, &c->byte, 1, (off_t)(b->off + at)) != 1)
        return;
    c->byte ^= 0x20;
    c->body = layer_alloc((in->body_n + 2) * sizeof *c->body);
    for (unsigned k = 0; k < in->body_n; k++) {
        c->body[n++] = in->body[k];
        if (k != i)
            continue;
        c->body[n - 1].len = at;
        c->body[n++] = (struct obj_body){.mem = &c->byte, .fd = -1, .len = 1};
        c->body[n] = *b;
        if (b->mem)
            c->body[n].mem = (const uint8_t *)b->mem + at + 1;
        c->body[n].off = b->off + at + 1;
        c->body[n++].len = b->len - at - 1;
    }
    in->body = c->body;
    in->body_n = n;
    if (c->rule.silent)
        in->flags &= ~(unsigned)OBJ_HAS_SHA256;
}

/* The first n bytes of the range only, n > 0. on_done makes a reset of it. */
static void shorten_get(struct call *c)
{
    struct obj_req *in = &c->lc.in;
    uint64_t n = min_u64(c->rule.n, in->len), left = n;
    unsigned i = 0;
    c->iov = layer_alloc(in->iov_n * sizeof *c->iov);
    for (; left; i++) {
        c->iov[i] = in->iov[i];
        if (c->iov[i].iov_len > left)
            c->iov[i].iov_len = left;
        left -= c->iov[i].iov_len;
    }
    in->len = n;
    in->iov = c->iov;
    in->iov_n = i;
}

static void perform_locked(struct call *c)
{
    layer_call_init(&c->lc, c->lc.up, on_done);
    if (c->lc.in.op == OBJ_GET)
        c->lc.in.progress = on_progress;
    if (c->hit && c->rule.action == FAULT_CORRUPT && c->lc.in.body_n)
        damage_body(c);
    if (c->hit && c->rule.action == FAULT_TRUNCATE && c->lc.in.op == OBJ_GET)
        shorten_get(c);
    c->state = BELOW;
    obj_submit(c->f->below, &c->lc.in);
}

static void on_timer(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    struct fault *f = c->f;
    int64_t deadline = c->lc.up->deadline_ns;
    lock_acquire(&f->mu);
    bool end = true;
    if (c->canceled || f->closing)
        layer_fail(&c->lc.in, -ECANCELED, false, "", "given up");
    else if (c->state == STALLED && deadline && clock_mono_ns() >= deadline)
        layer_fail(&c->lc.in, -ETIMEDOUT, false, "ETIMEDOUT", "injected fault: stalled");
    else if (c->rule.action == FAULT_FAIL)
        fail_by_rule(c);
    else if (c->rule.action == FAULT_TRUNCATE && c->rule.n == 0)
        layer_fail(&c->lc.in, -EIO, true, "ECONNRESET", "injected fault: connection reset");
    else
        end = false;
    if (end)
        unlink_locked(c);
    else
        perform_locked(c);
    lock_release(&f->mu);
    if (end)
        finish(c);
}

static void fault_submit(struct objstore *os, struct obj_req *r)
{
    struct fault *f = container_of(os, struct fault, os);
    struct call *c = layer_alloc(sizeof *c);
    char why[300];
    c->f = f;
    c->lc.up = r;
    c->timer.fire = on_timer;
    LOCK_SCOPE(&f->mu);
    r->layer = c;
    f->live++;
    list_add_tail(&f->calls, &c->lc.link);
    if (f->closing) {
        layer_fail(&c->lc.in, -ECANCELED, false, "", "the store is closed");
        c->state = DOOMED;
        pthread_cond_broadcast(&f->changed);
        return;
    }
    if (reload_locked(f, why, sizeof why) < 0)
        log_debug(LC_STORE, "%s", why);
    const struct fault_rule *ru = rule_for_locked(f, r);
    if (!ru || (ru->action == FAULT_TRUNCATE && r->op != OBJ_GET)) {
        perform_locked(c);
        return;
    }
    int64_t now = clock_mono_ns();
    c->hit = true;
    c->rule = *ru;
    c->state = ru->action == FAULT_STALL ? STALLED : TIMED;
    if (ru->action != FAULT_STALL)
        timer_set(f->timers, &c->timer,
                  ru->action == FAULT_DELAY ? now + (int64_t)ru->n * NS_PER_MS : now);
    else
        timer_set(f->timers, &c->timer, r->deadline_ns ? r->deadline_ns : INT64_MAX);
}

static void fault_cancel(struct objstore *os, struct obj_req *r)
{
    struct fault *f = container_of(os, struct fault, os);
    LOCK_SCOPE(&f->mu);
    struct call *c = r->layer;
    if (!c || c->canceled)
        return;
    c->canceled = true;
    if (c->state == BELOW)
        obj_cancel(f->below, &c->lc.in);
    else if (c->state != DOOMED && timer_cancel(f->timers, &c->timer))
        timer_set(f->timers, &c->timer, clock_mono_ns());
}

static void release_locked(struct fault *f)
{
    list_each(&f->calls, it)
    {
        struct call *c = list_entry(it, struct call, lc.link);
        if (c->state == STALLED && timer_cancel(f->timers, &c->timer)) {
            c->state = TIMED;
            timer_set(f->timers, &c->timer, clock_mono_ns());
        }
    }
}

static void finish_orphans(struct fault *f)
{
    for (struct call *c;; finish(c)) {
        lock_acquire(&f->mu);
        f->closing = true;
        c = NULL;
        list_each(&f->calls, it)
        {
            struct call *k = list_entry(it, struct call, lc.link);
            if (k->state == DOOMED || (k->state != BELOW && timer_cancel(f->timers, &k->timer))) {
                layer_fail(&k->lc.in, -ECANCELED, false, "", "the store is closed");
                unlink_locked(k);
                c = k;
                break;
            }
        }
        lock_release(&f->mu);
        if (!c)
            return;
    }
}

static void fault_close(struct objstore *os)
{
    struct fault *f = container_of(os, struct fault, os);
    finish_orphans(f);
    obj_close(f->below);
    for (;;) {
        finish_orphans(f);
        lock_acquire(&f->mu);
        if (f->live == 0)
            break;
        lock_wait(&f->mu, &f->changed);
        lock_release(&f->mu);
    }
    lock_release(&f->mu);
    pthread_cond_destroy(&f->changed);
    lock_destroy(&f->mu);
    free(f);
}

static struct objstore *fault_below(struct objstore *os)
{
    return container_of(os, struct fault, os)->below;
}

static const struct objstore_ops fault_ops = {
    .name = "fault",
    .submit = fault_submit,
    .cancel = fault_cancel,
    .close = fault_close,
    .below = fault_below,
};

int fault_push(struct objstore **os, const struct store_conf *conf)
{
    struct fault *f = calloc(1, sizeof *f);
    char why[300];
    if (!f)
        return -ENOMEM;
    f->os.ops = &fault_ops;
    f->below = *os;
    f->timers = conf->timers;
    snprintf(f->path, sizeof f->path, "%s", conf->fault_plan ? conf->fault_plan : "");
    lock_init(&f->mu, "fault.mu", RANK_STORE_FAULT, false);
    cond_init(&f->changed);
    list_init(&f->calls);
    lock_acquire(&f->mu);
    int r = reload_locked(f, why, sizeof why);
    lock_release(&f->mu);
    if (r < 0) {
        log_debug(LC_STORE, "%s", why);
        pthread_cond_destroy(&f->changed);
        lock_destroy(&f->mu);
        free(f);
        return r;
    }
    *os = &f->os;
    return 0;
}

static struct fault *fault_of(struct objstore *os)
{
    while (os->ops != &fault_ops) {
        assert(os->ops->below);
        os = os->ops->below(os);
    }
    return container_of(os, struct fault, os);
}

int fault_plan_set(struct objstore *os, const char *text, char *why, size_t why_cap)
{
    struct fault *f = fault_of(os);
    struct fault_plan *p = layer_alloc(sizeof *p);
    int r = fault_plan_parse(text, p, why, why_cap);
    if (r == 0) {
        LOCK_SCOPE(&f->mu);
        f->plan = *p;
        f->hits = 0;
        release_locked(f);
    }
    free(p);
    return r;
}

void fault_release(struct objstore *os)
{
    struct fault *f = fault_of(os);
    LOCK_SCOPE(&f->mu);
    release_locked(f);
}

unsigned fault_hits(struct objstore *os)
{
    struct fault *f = fault_of(os);
    LOCK_SCOPE(&f->mu);
    return f->hits;
}

unsigned fault_stalled(struct objstore *os)
{
    struct fault *f = fault_of(os);
    LOCK_SCOPE(&f->mu);
    unsigned n = 0;
    list_each(&f->calls, it) n += list_entry(it, struct call, lc.link)->state == STALLED;
    return n;
}
