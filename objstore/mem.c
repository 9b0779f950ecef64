/* mem.c: a client of the memory store; see mem.h.
 *
 * A client is a FIFO of requests; mem_step takes one out under the client's lock and runs it without
 * the lock: the bucket (mem_bucket.c) belongs to the stepping thread.
 *
 * Lock: client.mu (RANK_STORE_LOW) guards the FIFO. `r->layer` is the client while the request is
 * in the FIFO and NULL from then on, so a late cancel does nothing.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/lock.h"
#include "objstore/layer.h"
#include "objstore/mem_bucket.h"
#include "objstore/stack.h"

struct mem {
    struct objstore os;
    struct mem_bucket *b;
    bool owns_bucket;
    struct lock mu;
    struct obj_req *head, **tail;
    unsigned pending;
    uint64_t random; /* xorshift state; 0: FIFO */
};

static const struct objstore_ops mem_ops;

static bool is_write(enum obj_op op)
{
    return op != OBJ_GET && op != OBJ_HEAD && op != OBJ_LIST && op != OBJ_MP_LIST;
}

static void mem_submit(struct objstore *os, struct obj_req *r)
{
    struct mem *m = container_of(os, struct mem, os);
    LOCK_SCOPE(&m->mu);
    layer_clear(r);
    r->layer = m;
    *m->tail = r;
    m->tail = &r->next;
    m->pending++;
}

static void mem_cancel(struct objstore *os, struct obj_req *r)
{
    struct mem *m = container_of(os, struct mem, os);
    LOCK_SCOPE(&m->mu);
    if (r->layer == m)
        r->err = -ECANCELED; /* mem_step answers it without performing */
}

static uint64_t next_random(struct mem *m)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

/* Takes a request out of the FIFO; NULL: none. *ret_canceled: it was given up meanwhile. */
static struct obj_req *take(struct mem *m, bool *ret_canceled)
{
    LOCK_SCOPE(&m->mu);
    if (!m->head)
        return NULL;
    unsigned skip = m->random ? (unsigned)(next_random(m) % m->pending) : 0;
    struct obj_req **at = &m->head;
    while (skip--)
        at = &(*at)->next;
    struct obj_req *r = *at;
    *at = r->next;
    if (!*at)
        m->tail = at;
    m->pending--;
    *ret_canceled = r->err == -ECANCELED;
    r->err = 0;
    r->layer = NULL;
    return r;
}

static struct mem *mem_of(struct objstore *os)
{
    while (os->ops != &mem_ops) {
        assert(os->ops->below);
        os = os->ops->below(os);
    }
    return container_of(os, struct mem, os);
}

bool mem_step(struct objstore *os)
{
    struct mem *m = mem_of(os);
    bool canceled;
    struct obj_req *r = take(m, &canceled);
    if (!r)
        return false;
    if (canceled)
        layer_fail(r, -ECANCELED, false, "", "given up");
    else if (r->deadline_ns && r->deadline_ns <= clock_mono_ns())
        layer_fail(r, -ETIMEDOUT, false, "ETIMEDOUT", "the deadline has passed");
    else
        mem_perform(m->b, r);
    r->done(r);
    return true;
}

static void mem_status(struct objstore *os, struct objstore_status *st)
{
    struct mem *m = container_of(os, struct mem, os);
    LOCK_SCOPE(&m->mu);
    st->in_flight += m->pending;
}

static void mem_close(struct objstore *os)
{
    struct mem *m = container_of(os, struct mem, os);
    struct obj_req *r;
    bool canceled;
    while ((r = take(m, &canceled))) {
        bool coin = m->random && is_write(r->op) && !canceled;
        if (coin && (next_random(m) >> 32 & 1)) {
            mem_perform(m->b, r);
            obj_req_done(r);
        }
        layer_fail(r, -ECANCELED, false, "", "the store is closed");
        r->diag.unknown_outcome = coin;
        r->done(r);
    }
    if (m->owns_bucket)
        mem_bucket_close(m->b);
    lock_destroy(&m->mu);
    free(m);
}

static const struct objstore_ops mem_ops = {
    .name = "mem",
    .submit = mem_submit,
    .cancel = mem_cancel,
    .status = mem_status,
    .close = mem_close,
};

int mem_attach(struct mem_bucket *b, struct objstore **ret)
{
    struct mem *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->os.ops = &mem_ops;
    m->b = b;
    m->tail = &m->head;
    lock_init(&m->mu, "mem.mu", RANK_STORE_LOW, false);
    *ret = &m->os;
    return 0;
}

int mem_open(const struct store_conf *conf, struct objstore **ret)
{
    (void)conf;
    struct mem_bucket *b = NULL;
    int r = mem_bucket_open(&b);
    if (r == 0)
        r = mem_attach(b, ret);
    if (r < 0) {
        mem_bucket_close(b);
        return r;
    }
    mem_of(*ret)->owns_bucket = true;
    return 0;
}

struct mem_bucket *mem_bucket_of(struct objstore *os)
{
    return mem_of(os)->b;
}

void mem_random_order(struct objstore *os, uint64_t seed)
{
    mem_of(os)->random = seed;
}
