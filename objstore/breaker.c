/* breaker.c: knows whether the store is well, and keeps requests from a store that is not.
 *
 *   state      requests                                          left when
 *   ---------  ------------------------------------------------  -----------------------------------
 *   CLOSED     pass, at most `limit` at once; others queue       RUN_MAX failures in a row, or more
 *                                                                than half of the last outcomes
 *   OPEN       background: -EIO at once; urgent: queue           the probe timer: HALF_OPEN
 *   HALF_OPEN  as OPEN; one queued urgent request and a GET of   any answer: CLOSED, queue goes on;
 *              our own are let through                           any failure: OPEN, for longer
 *
 * Outcomes are those of single attempts when a retry layer is below (retry_observe), else those of
 * whole requests. Failure: no answer though one may come later, a time-out, 5xx, no such bucket.
 * "Not found", "condition failed" and refused keys are answers: the store works. Throttling is
 * neither: it halves `limit`, every success widens it again (AIMD), never below 1.
 *
 * A store that says nothing has no outcomes: a request that has waited for SILENT_MS, or was given up
 * after that, without a good outcome of any other since, colours the health as a bad outcome does.
 *
 * Queues: URGENT_MAX and BACKGROUND_MAX; beyond, -EIO retryable. A queued request ends at its
 * deadline with -ETIMEDOUT. Urgent ones go first.
 *
 * A call is in one state, guarded by breaker.mu:
 *   FLIGHT   below; its completion finishes it
 *   WAIT     in `urgent` or `background`; a timer runs when it has a deadline
 *   ENDING   in no queue, err is set; its timer is due and finishes it (done never runs in submit)
 *   DOOMED   submitted while closing; close() finishes it
 *
 * Lock: breaker.mu (RANK_STORE), held while submitting and cancelling below, never over `done`.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum {
    RUN_MAX = 5,
    RECENT = 20,
    RECENT_MIN = 10, /* fewer outcomes prove nothing about a share */
    URGENT_MAX = 8192,
    BACKGROUND_MAX = 8192,
    DEGRADED_MS = 10000, /* a bad outcome colours the health for so long */
    SILENT_MS = 2500,    /* no byte for so long, and no good outcome: it may have stopped */
    RECENT_MS = 10000,
    CUT_MS = 500, /* at most one halving in this time */
    PROBE_MIN_MS = 1000,
    PROBE_MAX_MS = 30000,
};

/* Any key does: "not found" is an answer. A GET, because a HEAD cannot say "no such bucket". */
#define PROBE_KEY "volume"

enum state { CLOSED, OPEN, HALF_OPEN };
enum call_state { FLIGHT, WAIT, ENDING, DOOMED };

struct outcome {
    int64_t at_ns;
    bool failed;
};

struct breaker {
    struct objstore os;
    struct objstore *below;
    struct timers *timers;
    bool observed; /* by attempts; else by requests */
    int64_t probe_timeout_ns;

    struct lock mu;
    pthread_cond_t changed; /* live fell, or a doomed call came */
    enum state state;
    bool closing;
    struct list urgent, background, others; /* others: FLIGHT, ENDING, DOOMED */
    unsigned waiting_urgent, waiting_background, in_flight;
    unsigned live; /* calls, own probe and armed timer: what close() waits for */
    double limit, ceiling;
    int64_t last_cut_ns;

    struct outcome recent[RECENT];
    unsigned recent_at, run;
    int64_t bad_ns;  /* the last outcome that was not good; 0: never */
    int64_t good_ns; /* the last that was */
    char reason[200];
    enum objstore_health health;
    int64_t since_ns;

    struct timer probe_timer;
    unsigned probe_armed; /* fires to come; 2 when one was under way as it was set anew */
    bool probe_busy;
    unsigned probe_n; /* openings in a row */
    int64_t next_probe_ns;
    struct obj_req probe;
    struct iovec probe_iov;
    uint8_t probe_byte;
};

struct call {
    struct layer_call lc;
    struct breaker *b;
    struct timer timer;
    enum call_state state;
    int64_t started_ns; /* FLIGHT */
    bool timed;         /* WAIT: the timer was set, for the deadline */
    bool canceled;
};

static void on_done(struct obj_req *in);
static void on_timer(struct timer *t);
static void probe_done(struct obj_req *r);

/* ---- health ---- */

/* Something has waited since then. */
static void silent_locked(struct breaker *b, int64_t since_ns, int64_t now)
{
    if (b->state != CLOSED || now - since_ns < SILENT_MS * NS_PER_MS || b->good_ns > since_ns)
        return;
    snprintf(b->reason, sizeof b->reason, "no answer for %.1f s",
             (double)(now - since_ns) / NS_PER_SEC);
    b->bad_ns = now;
}

static void health_locked(struct breaker *b, int64_t silent_ns)
{
    int64_t now = clock_mono_ns();
    enum objstore_health h = OBJ_HEALTH_OK;
    silent_locked(b, now - silent_ns, now);
    if (b->state != CLOSED)
        h = OBJ_HEALTH_DOWN;
    else if (b->limit < b->ceiling || (b->bad_ns && now - b->bad_ns < DEGRADED_MS * NS_PER_MS))
        h = OBJ_HEALTH_DEGRADED;
    if (h != b->health) {
        b->health = h;
        b->since_ns = now;
    }
}

static void reason_locked(struct breaker *b, const struct obj_req *r, const char *what)
{
    char text[160];
    snprintf(b->reason, sizeof b->reason, "%s%s", what, obj_diag_text(r, text, sizeof text));
    b->bad_ns = clock_mono_ns();
}

/* ---- calls ---- */

static void start_locked(struct breaker *b, struct call *c)
{
    layer_call_init(&c->lc, c->lc.up, on_done);
    c->state = FLIGHT;
    c->started_ns = clock_mono_ns();
    list_add_tail(&b->others, &c->lc.link);
    b->in_flight++;
    obj_submit(b->below, &c->lc.in);
}

/* The call is in no queue; its timer is not set. */
static void end_soon_locked(struct breaker *b, struct call *c, int err, const char *code,
                            const char *message)
{
    layer_fail(&c->lc.in, err, err == -EIO || err == -ETIMEDOUT, code, message);
    c->state = ENDING;
    list_add_tail(&b->others, &c->lc.link);
    timer_set(b->timers, &c->timer, clock_mono_ns());
}

/* Takes a call out of its queue. False: its deadline timer is firing and will finish it. */
static bool unqueue_locked(struct breaker *b, struct call *c)
{
    list_del(&c->lc.link);
    if (c->lc.up->flags & OBJ_URGENT)
        b->waiting_urgent--;
    else
        b->waiting_background--;
    if (!c->timed || timer_cancel(b->timers, &c->timer))
        return true;
    c->state = ENDING;
    layer_fail(&c->lc.in, -ETIMEDOUT, true, "ETIMEDOUT", "the deadline came before a turn");
    list_add_tail(&b->others, &c->lc.link);
    return false;
}

static struct call *first_of(struct list *l)
{
    return list_empty(l) ? NULL : list_entry(l->next, struct call, lc.link);
}

static void pump_locked(struct breaker *b)
{
    while (b->state == CLOSED && !b->closing && b->in_flight < (unsigned)b->limit) {
        struct call *c = first_of(&b->urgent);
        if (!c)
            c = first_of(&b->background);
        if (!c)
            return;
        if (unqueue_locked(b, c))
            start_locked(b, c);
    }
}

static void down_text(const struct breaker *b, char text[static 160])
{
    snprintf(text, 160, "store is down: %.140s", b->reason);
}

static void queue_locked(struct breaker *b, struct call *c)
{
    bool urgent = c->lc.up->flags & OBJ_URGENT;
    unsigned *n = urgent ? &b->waiting_urgent : &b->waiting_background;
    if (*n >= (urgent ? URGENT_MAX : BACKGROUND_MAX)) {
        end_soon_locked(b, c, -EIO, "EBUSY", "too many requests wait for the store");
        return;
    }
    ++*n;
    c->state = WAIT;
    list_add_tail(urgent ? &b->urgent : &b->background, &c->lc.link);
    c->timed = c->lc.up->deadline_ns != 0;
    if (c->timed)
        timer_set(b->timers, &c->timer, c->lc.up->deadline_ns);
}

/* ---- opening, probing, closing ---- */

static void disarm_probe_locked(struct breaker *b)
{
    if (b->probe_armed && timer_cancel(b->timers, &b->probe_timer)) {
        b->probe_armed--;
        b->live--;
    }
}

static void arm_probe_locked(struct breaker *b)
{
    uint64_t v;
    int64_t wait = PROBE_MIN_MS;
    for (unsigned i = 0; i < b->probe_n && wait < PROBE_MAX_MS; i++)
        wait *= 2;
    if (wait > PROBE_MAX_MS)
        wait = PROBE_MAX_MS;
    random_bytes(&v, sizeof v);
    wait = wait * NS_PER_MS / 2 + (int64_t)(v % (uint64_t)(wait * NS_PER_MS / 2));
    if (wait < PROBE_MIN_MS * NS_PER_MS && b->probe_n == 0)
        wait = PROBE_MIN_MS * NS_PER_MS;
    b->next_probe_ns = clock_mono_ns() + wait;
    disarm_probe_locked(b);
    b->probe_armed++;
    b->live++;
    timer_set(b->timers, &b->probe_timer, b->next_probe_ns);
}

static void open_locked(struct breaker *b)
{
    if (b->closing)
        return;
    if (b->state == HALF_OPEN)
        b->probe_n++;
    else
        b->probe_n = 0;
    b->state = OPEN;
    arm_probe_locked(b);
    log_debug(LC_STORE, "breaker open: %s", b->reason);
    char text[160];
    down_text(b, text);
    for (struct call *c; (c = first_of(&b->background));)
        if (unqueue_locked(b, c))
            end_soon_locked(b, c, -EIO, "StoreDown", text);
}

static void close_locked(struct breaker *b)
{
    log_debug(LC_STORE, "breaker closed: the store answers");
    b->state = CLOSED;
    b->run = 0;
    memset(b->recent, 0, sizeof b->recent);
    b->next_probe_ns = 0;
    disarm_probe_locked(b);
    pump_locked(b);
}

static bool too_many_failed(const struct breaker *b, int64_t now)
{
    unsigned n = 0, failed = 0;
    for (unsigned i = 0; i < RECENT; i++) {
        const struct outcome *o = &b->recent[i];
        if (o->at_ns && now - o->at_ns < RECENT_MS * NS_PER_MS) {
            n++;
            failed += o->failed;
        }
    }
    return n >= RECENT_MIN && failed * 2 > n;
}

enum verdict { GOOD, FAILED, THROTTLED, REFUSED, NOTHING };

static enum verdict judge(const struct obj_req *r)
{
    if (layer_is_throttle(r))
        return THROTTLED;
    switch (r->err) {
    case -ECANCELED:
    case -EINVAL:
    case -EOPNOTSUPP:
        return NOTHING;
    case 0:
    case -ENOENT:
    case -EEXIST:
        return GOOD;
    case -EBADMSG:
        if (r->key && !strncmp(r->key, PROBE_PREFIX, strlen(PROBE_PREFIX)))
            return GOOD;
        return REFUSED;
    case -EACCES:
    case -ENOSPC:
        return REFUSED;
    case -ENODEV:
        return FAILED;
    case -ETIMEDOUT: /* a deadline that passed in some queue says nothing */
        return r->diag.retryable ? FAILED : NOTHING;
    default: /* no answer and no hope is local: the body's file, the TLS set-up */
        return r->diag.http_status >= 500 || (r->diag.http_status == 0 && r->diag.retryable)
                   ? FAILED
                   : REFUSED;
    }
}

static void throttled_locked(struct breaker *b, int64_t now)
{
    if (b->last_cut_ns && now - b->last_cut_ns < CUT_MS * NS_PER_MS)
        return;
    b->last_cut_ns = now;
    double from = b->in_flight < b->limit ? b->in_flight : b->limit;
    b->limit = from / 2 > 1 ? from / 2 : 1;
}

static void outcome_locked(struct breaker *b, const struct obj_req *r)
{
    int64_t now = clock_mono_ns();
    enum verdict v = judge(r);
    if (v == NOTHING)
        return;
    if (v == GOOD) {
        b->run = 0;
        b->good_ns = now;
        if (b->limit < b->ceiling) {
            b->limit += 1 / b->limit;
            if (b->limit > b->ceiling)
                b->limit = b->ceiling;
        }
    } else {
        reason_locked(b, r, v == THROTTLED ? "throttled: " : "");
    }
    if (v == THROTTLED)
        throttled_locked(b, now);
    if (v != FAILED && b->state != CLOSED)
        close_locked(b); /* whatever it says, it answers */
    if (v == GOOD || v == FAILED) {
        b->recent[b->recent_at++ % RECENT] = (struct outcome){now, v == FAILED};
        b->run = v == FAILED ? b->run + 1 : 0;
    }
    if (v == FAILED && (b->state == HALF_OPEN ||
                        (b->state == CLOSED && (b->run >= RUN_MAX || too_many_failed(b, now)))))
        open_locked(b);
    health_locked(b, 0);
    pump_locked(b);
}

static void observe(void *arg, const struct obj_req *attempt)
{
    struct breaker *b = arg;
    LOCK_SCOPE(&b->mu);
    outcome_locked(b, attempt);
}

static void live_down(struct breaker *b)
{
    LOCK_SCOPE(&b->mu);
    b->live--;
    pthread_cond_broadcast(&b->changed);
}

static void probe_done(struct obj_req *r)
{
    struct breaker *b = r->arg;
    lock_acquire(&b->mu);
    b->probe_busy = false;
    if (!b->observed)
        outcome_locked(b, r);
    if (b->state == HALF_OPEN && !b->closing) {
        b->state = OPEN; /* it proved nothing: try again */
        arm_probe_locked(b);
    }
    lock_release(&b->mu);
    live_down(b);
}

static void probe_fire(struct timer *t)
{
    struct breaker *b = container_of(t, struct breaker, probe_timer);
    lock_acquire(&b->mu);
    b->probe_armed--;
    /* A fire that was under way when the timer was set anew comes too early, and is let pass. */
    if (b->state == OPEN && !b->closing && clock_mono_ns() >= b->next_probe_ns) {
        b->state = HALF_OPEN;
        b->next_probe_ns = 0;
        struct call *c = first_of(&b->urgent);
        if (c && unqueue_locked(b, c))
            start_locked(b, c);
        if (!b->probe_busy) { /* also beside an urgent one, which may be cancelled */
            b->probe_busy = true;
            b->live++;
            b->probe_iov = (struct iovec){.iov_base = &b->probe_byte, .iov_len = 1};
            b->probe = (struct obj_req){.op = OBJ_GET,
                                        .len = 1,
                                        .iov = &b->probe_iov,
                                        .iov_n = 1,
                                        .flags = OBJ_URGENT,
                                        .key = PROBE_KEY,
                                        .deadline_ns = clock_mono_ns() + b->probe_timeout_ns,
                                        .done = probe_done,
                                        .arg = b};
            obj_submit(b->below, &b->probe);
        }
    }
    lock_release(&b->mu);
    live_down(b);
}

/* ---- requests ---- */

static void unlink_locked(struct call *c)
{
    list_del(&c->lc.link);
    c->lc.up->layer = NULL;
}

static void finish(struct call *c)
{
    struct breaker *b = c->b;
    layer_call_results(&c->lc);
    c->lc.up->done(c->lc.up);
    free(c);
    live_down(b);
}

static void on_done(struct obj_req *in)
{
    struct call *c = in->arg;
    struct breaker *b = c->b;
    lock_acquire(&b->mu);
    b->in_flight--;
    unlink_locked(c);
    if (!b->observed)
        outcome_locked(b, in);
    pump_locked(b);
    lock_release(&b->mu);
    finish(c);
}

/* ENDING, or the deadline of a WAIT. */
static void on_timer(struct timer *t)
{
    struct call *c = container_of(t, struct call, timer);
    struct breaker *b = c->b;
    lock_acquire(&b->mu);
    if (c->state == WAIT) {
        char text[160];
        if (b->state == CLOSED)
            snprintf(text, sizeof text, "the deadline came before a turn");
        else
            down_text(b, text);
        c->timed = false;
        (void)unqueue_locked(b, c);
        list_add_tail(&b->others, &c->lc.link);
        layer_fail(&c->lc.in, -ETIMEDOUT, true, "ETIMEDOUT", text);
    }
    if (c->canceled)
        layer_fail(&c->lc.in, -ECANCELED, false, "", "given up");
    unlink_locked(c);
    lock_release(&b->mu);
    finish(c);
}

static void breaker_submit(struct objstore *os, struct obj_req *r)
{
    struct breaker *b = container_of(os, struct breaker, os);
    struct call *c = layer_alloc(sizeof *c);
    c->b = b;
    c->lc.up = r;
    c->timer.fire = on_timer;
    LOCK_SCOPE(&b->mu);
    r->layer = c;
    b->live++;
    if (b->closing) {
        layer_fail(&c->lc.in, -ECANCELED, false, "", "the store is closed");
        c->state = DOOMED;
        list_add_tail(&b->others, &c->lc.link);
        pthread_cond_broadcast(&b->changed);
    } else if (b->state == CLOSED || (r->flags & OBJ_URGENT)) {
        queue_locked(b, c);
        pump_locked(b);
    } else {
        char text[160];
        down_text(b, text);
        end_soon_locked(b, c, -EIO, "StoreDown", text);
    }
}

static void breaker_cancel(struct objstore *os, struct obj_req *r)
{
    struct breaker *b = container_of(os, struct breaker, os);
    LOCK_SCOPE(&b->mu);
    struct call *c = r->layer;
    if (!c || c->canceled)
        return;
    c->canceled = true;
    if (c->state == FLIGHT) {
        silent_locked(b, c->started_ns, clock_mono_ns()); /* given up: no outcome will tell */
        obj_cancel(b->below, &c->lc.in);
    } else if (c->state == WAIT && unqueue_locked(b, c))
        end_soon_locked(b, c, -ECANCELED, "", "given up");
}

static void breaker_status(struct objstore *os, struct objstore_status *st)
{
    struct breaker *b = container_of(os, struct breaker, os);
    obj_status(b->below, st);
    LOCK_SCOPE(&b->mu);
    health_locked(b, st->silent_ns);
    st->health = b->health;
    st->since_ns = b->since_ns;
    st->queued += b->waiting_urgent + b->waiting_background;
    st->in_flight = b->in_flight;
    st->next_probe_ns = b->next_probe_ns;
    if (b->health == OBJ_HEALTH_OK)
        st->reason[0] = 0;
    else
        memcpy(st->reason, b->reason, sizeof st->reason);
}

/* A call that nothing else will finish, taken out; NULL: none. */
static struct call *orphan_locked(struct breaker *b)
{
    struct call *c;
    while ((c = first_of(&b->urgent)) || (c = first_of(&b->background)))
        if (unqueue_locked(b, c)) {
            list_add_tail(&b->others, &c->lc.link);
            c->state = DOOMED;
        }
    list_each(&b->others, it)
    {
        c = list_entry(it, struct call, lc.link);
        if (c->state == DOOMED || (c->state == ENDING && timer_cancel(b->timers, &c->timer))) {
            layer_fail(&c->lc.in, -ECANCELED, false, "", "the store is closed");
            unlink_locked(c);
            return c;
        }
    }
    return NULL;
}

static void finish_orphans(struct breaker *b)
{
    for (struct call *c;; finish(c)) {
        lock_acquire(&b->mu);
        b->closing = true;
        disarm_probe_locked(b);
        c = orphan_locked(b);
        lock_release(&b->mu);
        if (!c)
            return;
    }
}

static void breaker_close(struct objstore *os)
{
    struct breaker *b = container_of(os, struct breaker, os);
    finish_orphans(b);
    obj_close(b->below); /* ends all that are in flight */
    for (;;) {
        finish_orphans(b);
        lock_acquire(&b->mu);
        if (b->live == 0)
            break;
        lock_wait(&b->mu, &b->changed);
        lock_release(&b->mu);
    }
    lock_release(&b->mu);
    pthread_cond_destroy(&b->changed);
    lock_destroy(&b->mu);
    free(b);
}

static struct objstore *breaker_below(struct objstore *os)
{
    return container_of(os, struct breaker, os)->below;
}

static const struct objstore_ops breaker_ops = {
    .name = "breaker",
    .submit = breaker_submit,
    .cancel = breaker_cancel,
    .status = breaker_status,
    .close = breaker_close,
    .below = breaker_below,
};

int breaker_push(struct objstore **os, const struct store_conf *conf)
{
    struct breaker *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    b->os.ops = &breaker_ops;
    b->below = *os;
    b->timers = conf->timers;
    b->probe_timeout_ns = (conf->timeout_small_ms ? conf->timeout_small_ms : 10000) * NS_PER_MS;
    b->limit = b->ceiling = 4 * (conf->connections ? conf->connections : 16);
    b->since_ns = clock_mono_ns();
    b->probe_timer.fire = probe_fire;
    lock_init(&b->mu, "breaker.mu", RANK_STORE, false);
    cond_init(&b->changed);
    list_init(&b->urgent);
    list_init(&b->background);
    list_init(&b->others);
    b->observed = retry_observe(*os, observe, b);
    *os = &b->os;
    return 0;
}
