/* objstore.c: the checked wrappers over the face of every store, and helpers for callers.
 *
 * A wrapper asserts the form of a request (a malformed one is a bug of the caller, not an error of
 * the store), clears its results, traces it at debug level and dispatches to the layer. No state and
 * no lock of its own; obj_run keeps a lock and a condition on its stack for the time of one request.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "objstore/objstore.h"

const char *obj_op_name(enum obj_op op)
{
    static const char *const names[OBJ_OP_COUNT] = {
        [OBJ_PUT] = "put",
        [OBJ_GET] = "get",
        [OBJ_HEAD] = "head",
        [OBJ_LIST] = "list",
        [OBJ_DELETE] = "delete",
        [OBJ_DELETE_BATCH] = "delete",
        [OBJ_MP_CREATE] = "multipart",
        [OBJ_MP_PART] = "multipart",
        [OBJ_MP_COMPLETE] = "multipart",
        [OBJ_MP_ABORT] = "multipart",
        [OBJ_MP_LIST] = "multipart",
    };
    assert((unsigned)op < OBJ_OP_COUNT);
    return names[op];
}

void obj_req_done(struct obj_req *r)
{
    free(r->next_token);
    free(r->new_upload_id);
    r->next_token = NULL;
    r->new_upload_id = NULL;
}

static void check_body(const struct obj_req *r)
{
    assert(r->body_n == 0 || r->body);
    for (unsigned i = 0; i < r->body_n; i++)
        assert(r->body[i].mem || r->body[i].fd >= 0 || r->body[i].len == 0);
}

static void check_range(const struct obj_req *r)
{
    uint64_t end;
    uint64_t room = 0;

    assert(r->len > 0 && !__builtin_add_overflow(r->off, r->len, &end));
    assert(r->iov && r->iov_n > 0 && r->iov_n <= OBJ_IOV_MAX);
    for (unsigned i = 0; i < r->iov_n; i++)
        room += r->iov[i].iov_len;
    assert(room == r->len);
}

static void check_form(const struct obj_req *r)
{
    assert((unsigned)r->op < OBJ_OP_COUNT && r->done);
    assert(!r->next_token && !r->new_upload_id);
    assert(!(r->flags & OBJ_IF_ABSENT) || r->op == OBJ_PUT || r->op == OBJ_MP_COMPLETE);
    assert(!(r->flags & OBJ_IF_MATCH) || r->op == OBJ_PUT || r->op == OBJ_DELETE ||
           r->op == OBJ_GET);
    assert(!(r->flags & OBJ_IF_MATCH) || (r->etag && !(r->flags & OBJ_IF_ABSENT)));
    assert(!(r->flags & OBJ_HAS_SHA256) || r->op == OBJ_PUT || r->op == OBJ_MP_PART);

    switch (r->op) {
    case OBJ_LIST:
    case OBJ_MP_LIST:
        assert(r->each); /* a NULL key is the empty prefix */
        return;
    case OBJ_DELETE_BATCH:
        assert(r->keys && r->keys_n > 0 && r->keys_n <= OBJ_BATCH_MAX);
        for (unsigned i = 0; i < r->keys_n; i++)
            assert(r->keys[i] && r->keys[i][0]);
        return;
    default:
        assert(r->key && r->key[0]);
    }
    switch (r->op) {
    case OBJ_PUT:
        check_body(r);
        break;
    case OBJ_GET:
        check_range(r);
        break;
    case OBJ_MP_PART:
        assert(r->upload_id && r->part_no >= 1 && r->part_no <= S3_PARTS_MAX);
        check_body(r);
        break;
    case OBJ_MP_COMPLETE:
        assert(r->upload_id && r->part_etags && r->parts_n >= 1 && r->parts_n <= S3_PARTS_MAX);
        break;
    case OBJ_MP_ABORT:
        assert(r->upload_id);
        break;
    default:
        break;
    }
}

void obj_submit(struct objstore *os, struct obj_req *r)
{
    check_form(r);
    r->err = 0;
    r->diag = (struct obj_diag){0};
    r->info = (struct obj_info){0};
    r->failed_n = 0;
    log_debug(LC_STORE, "%s: %s %s", os->ops->name, obj_op_name(r->op), r->key ? r->key : "-");
    os->ops->submit(os, r);
}

void obj_cancel(struct objstore *os, struct obj_req *r)
{
    os->ops->cancel(os, r);
}

void obj_status(struct objstore *os, struct objstore_status *ret)
{
    /* A layer passes *ret down through this same function; only the outermost call clears it. */
    static _Thread_local unsigned depth;

    if (depth++ == 0)
        *ret = (struct objstore_status){0};
    while (os && !os->ops->status)
        os = os->ops->below ? os->ops->below(os) : NULL;
    if (os)
        os->ops->status(os, ret);
    depth--;
}

void obj_close(struct objstore *os)
{
    if (!os)
        return;
    assert(lock_none_mine());
    os->ops->close(os);
}

struct run {
    struct lock lock;
    pthread_cond_t ended;
    bool done;
};

static void run_done(struct obj_req *r)
{
    struct run *run = r->arg;

    /* Signalled inside the lock: the waiter frees both as soon as it has the lock again. */
    LOCK_SCOPE(&run->lock);
    run->done = true;
    pthread_cond_signal(&run->ended);
}

int obj_run(struct objstore *os, struct obj_req *r)
{
    struct run run = {.done = false};
    void (*caller_done)(struct obj_req *) = r->done;
    void *caller_arg = r->arg;

    assert(lock_none_mine());
    lock_init(&run.lock, "obj-run", RANK_STORE, false);
    cond_init(&run.ended);
    r->done = run_done;
    r->arg = &run;
    obj_submit(os, r);
    lock_acquire(&run.lock);
    while (!run.done)
        lock_wait(&run.lock, &run.ended);
    lock_release(&run.lock);
    pthread_cond_destroy(&run.ended);
    lock_destroy(&run.lock);
    r->done = caller_done;
    r->arg = caller_arg;
    return r->err;
}

const char *obj_diag_text(const struct obj_req *r, char *buf, size_t cap)
{
    const struct obj_diag *d = &r->diag;
    size_t at = 0;

    assert(cap > 0);
    buf[0] = '\0';
    if (r->err == 0) {
        snprintf(buf, cap, "ok");
        return buf;
    }
#define ADD(...)                                                           \
    do {                                                                   \
        int n_ = snprintf(buf + at, cap - at, __VA_ARGS__);                \
        at = n_ < 0 || (size_t)n_ >= cap - at ? cap - 1 : at + (size_t)n_; \
    } while (0)
    if (d->http_status)
        ADD("%d ", d->http_status);
    ADD("%s", d->code[0] ? d->code : err_name(r->err));
    if (d->message[0])
        ADD(": %s", d->message);
    if (d->request_id[0])
        ADD(" (request %s)", d->request_id);
#undef ADD
    return buf;
}
