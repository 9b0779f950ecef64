/* meter.c: counts every request that reaches the backend, its bytes and its time.
 *
 *   store_requests_total{op,outcome}    outcome: ok not_found conflict denied throttled timeout
 *                                       canceled error
 *   store_bytes_total{direction}        "in": body bytes of GETs that arrived, also of failed ones;
 *                                       "out": bodies of PUTs and parts that succeeded
 *   store_request_seconds{op}           from submit to done
 *
 * No lock: a call is written by submit, then only by the completion. It is freed after the `done` of
 * the layer above has returned, so a cancel from above always finds it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/stats.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum outcome { OK, NOT_FOUND, CONFLICT, DENIED, THROTTLED, TIMEOUT, CANCELED, ERROR, OUTCOMES };

static const char *const outcome_name[OUTCOMES] = {
    "ok", "not_found", "conflict", "denied", "throttled", "timeout", "canceled", "error",
};

struct meter {
    struct objstore os;
    struct objstore *below;
    struct counter *requests[OBJ_OP_COUNT][OUTCOMES];
    struct counter *in, *out;
    struct histogram *seconds[OBJ_OP_COUNT];
};

struct call {
    struct layer_call lc;
    struct meter *m;
    int64_t started_ns;
    uint64_t got;
};

static enum outcome outcome_of(const struct obj_req *r)
{
    if (layer_is_throttle(r) || (r->err < 0 && r->diag.http_status == 503))
        return THROTTLED;
    switch (r->err) {
    case 0:
        return OK;
    case -ENOENT:
        return NOT_FOUND;
    case -EEXIST:
        return CONFLICT;
    case -EACCES:
        return DENIED;
    case -ETIMEDOUT:
        return TIMEOUT;
    case -ECANCELED:
        return CANCELED;
    default:
        return ERROR;
    }
}

static void on_progress(struct obj_req *in, uint64_t got)
{
    struct call *c = in->arg;
    struct obj_req *up = c->lc.up;
    counter_add(c->m->in, got - c->got);
    c->got = got;
    if (up->progress) {
        up->info = in->info;
        up->progress(up, got);
    }
}

static void on_done(struct obj_req *in)
{
    struct call *c = in->arg;
    struct meter *m = c->m;
    counter_add(m->requests[in->op][outcome_of(in)], 1);
    histogram_add(m->seconds[in->op], clock_mono_ns() - c->started_ns);
    if (in->err == 0 && in->op == OBJ_GET)
        counter_add(m->in, in->len - c->got);
    if (in->err == 0 && (in->op == OBJ_PUT || in->op == OBJ_MP_PART))
        counter_add(m->out, obj_body_len(in));
    layer_call_results(&c->lc);
    c->lc.up->done(c->lc.up);
    free(c);
}

static void meter_submit(struct objstore *os, struct obj_req *r)
{
    struct meter *m = container_of(os, struct meter, os);
    struct call *c = layer_alloc(sizeof *c);
    c->m = m;
    c->started_ns = clock_mono_ns();
    layer_call_init(&c->lc, r, on_done);
    if (r->op == OBJ_GET)
        c->lc.in.progress = on_progress;
    r->layer = c;
    obj_submit(m->below, &c->lc.in);
}

static void meter_cancel(struct objstore *os, struct obj_req *r)
{
    struct meter *m = container_of(os, struct meter, os);
    struct call *c = r->layer;
    obj_cancel(m->below, &c->lc.in);
}

static void meter_close(struct objstore *os)
{
    struct meter *m = container_of(os, struct meter, os);
    obj_close(m->below); /* returns after the last `done` has */
    free(m);
}

static struct objstore *meter_below(struct objstore *os)
{
    return container_of(os, struct meter, os)->below;
}

static const struct objstore_ops meter_ops = {
    .name = "meter",
    .submit = meter_submit,
    .cancel = meter_cancel,
    .close = meter_close,
    .below = meter_below,
};

int meter_push(struct objstore **os, const struct store_conf *conf)
{
    if (!conf->stats)
        return 0;
    struct meter *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->os.ops = &meter_ops;
    m->below = *os;
    char labels[80];
    for (int op = 0; op < OBJ_OP_COUNT; op++) {
        for (int o = 0; o < OUTCOMES; o++) {
            snprintf(labels, sizeof labels, "op=\"%s\",outcome=\"%s\"", obj_op_name(op),
                     outcome_name[o]);
            m->requests[op][o] = stats_counter(conf->stats, "store_requests_total", labels,
                                               "Requests to the object store by outcome.");
        }
        snprintf(labels, sizeof labels, "op=\"%s\"", obj_op_name(op));
        m->seconds[op] = stats_histogram(conf->stats, "store_request_seconds", labels,
                                         "Time from submit to completion of a store request.");
    }
    m->in = stats_counter(conf->stats, "store_bytes_total", "direction=\"in\"",
                          "Body bytes exchanged with the object store.");
    m->out = stats_counter(conf->stats, "store_bytes_total", "direction=\"out\"",
                           "Body bytes exchanged with the object store.");
    *os = &m->os;
    return 0;
}
