/* layer.h: what the policy layers (breaker, retry, meter, fault) have in common. Internal.
 *
 * A layer holds a request of the layer above (`up`) in a call of its own and submits `in` below. Its
 * lock ranks below those of all layers under it, so it is held while a request is submitted or
 * cancelled further down: that serialises submit, cancel and `done` of one call. `up->layer` points
 * at the call until, under the lock, the call is taken out; only then `up->done` runs. So a cancel
 * that meets a `done` under way finds NULL and does nothing.
 */
#ifndef SLUICE_OBJSTORE_LAYER_H
#define SLUICE_OBJSTORE_LAYER_H

#include "fs/base/list.h"
#include "objstore/objstore.h"

/* Objects of store_probe, which sends wrong sums on purpose: that they are refused is no trouble. */
#define PROBE_PREFIX "probe/"

struct layer_call {
    struct list link; /* in one list of its layer */
    struct obj_req *up;
    struct obj_req in; /* in.arg is the call */
};

/* Zeroed memory; aborts when there is none, since submit cannot fail. */
void *layer_alloc(size_t n);

/* Makes c->in a fresh copy of the caller's part of c->up, with `each` and `progress` passed up. */
void layer_call_init(struct layer_call *c, struct obj_req *up, void (*done)(struct obj_req *in));

/* Moves the results of c->in to c->up. */
void layer_call_results(struct layer_call *c);

/* Fills err and diag. `code` and `message` are copied. */
void layer_fail(struct obj_req *r, int err, bool retryable, const char *code, const char *message);

/* Clears the result fields, as at submit. */
void layer_clear(struct obj_req *r);

/* The store asks to slow down (as opposed to: it is broken). */
bool layer_is_throttle(const struct obj_req *r);

uint64_t obj_body_len(const struct obj_req *r);

/* The retry layer tells `fn` the outcome of every attempt, with no lock held; the breaker listens.
 * False: `os` is not a retry layer. Before the first request only. */
bool retry_observe(struct objstore *os, void (*fn)(void *arg, const struct obj_req *attempt),
                   void *arg);

#endif
