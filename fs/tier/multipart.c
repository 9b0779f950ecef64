/* multipart.c: one large body as parallel parts: create, up to PARALLEL parts at once, complete with
 * If-None-Match; any failure aborts, so that nothing invisible stays behind in the bucket.
 *
 * A part is read once for its SHA-256 (device pool) and once for sending. Everything but that runs on
 * the actor. A daemon that dies in the middle leaves the parts; `id` is in no record, the store's own
 * expiry of unfinished uploads or `gc` removes them.
 */
#include "fs/tier/multipart.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/io.h"

enum { PARALLEL = 4, PIECE_BYTES = 256 * 1024 };

struct part {
    struct multipart *m;
    struct store_call call;
    struct task task;
    struct obj_body body[2];
    unsigned body_n, no; /* no: from 1 */
    int err;
};

struct multipart {
    struct tier *t;
    const char *key;
    const struct obj_body *body;
    unsigned body_n, flags;
    uint64_t total, part_bytes;
    unsigned parts, next, busy;
    char *id;
    char (*etag)[OBJ_ETAG_MAX];
    const char **etags;
    struct store_call call;
    int err;
    struct obj_diag diag;
    void (*done)(void *arg, int err, const struct obj_diag *diag);
    void *arg;
};

static void finish(struct multipart *m)
{
    void (*done)(void *, int, const struct obj_diag *) = m->done;
    void *arg = m->arg;
    int err = m->err;
    struct obj_diag diag = m->diag;
    free(m->id);
    free(m->etag);
    free(m->etags);
    free(m);
    done(arg, err, &diag);
}

static void note(struct multipart *m, int err, const struct obj_diag *diag)
{
    if (m->err == 0) {
        m->err = err;
        m->diag = diag ? *diag : (struct obj_diag){0};
    }
}

static void aborted(struct store_call *call)
{
    struct multipart *m = container_of(call, struct multipart, call);
    obj_req_done(&call->req); /* a failed abort changes nothing for the segment */
    finish(m);
}

static void abort_upload(struct multipart *m)
{
    m->call = (struct store_call){.done = aborted};
    m->call.req = (struct obj_req){
        .op = OBJ_MP_ABORT,
        .key = m->key,
        .upload_id = m->id,
        .deadline_ns = clock_mono_ns() + 30 * NS_PER_SEC,
    };
    call_submit(m->t, &m->call);
}

static void completed(struct store_call *call)
{
    struct multipart *m = container_of(call, struct multipart, call);
    int err = call->req.err;
    if (err < 0)
        note(m, err, &call->req.diag);
    bool unclear = err < 0 && (call->req.diag.unknown_outcome || err == -ETIMEDOUT);
    obj_req_done(&call->req);
    if (err < 0 && !unclear && err != -EEXIST)
        abort_upload(m);
    else
        finish(m); /* an unclear answer is looked at before anything is removed */
}

static void complete(struct multipart *m)
{
    for (unsigned i = 0; i < m->parts; i++)
        m->etags[i] = m->etag[i];
    m->call = (struct store_call){.done = completed};
    m->call.req = (struct obj_req){
        .op = OBJ_MP_COMPLETE,
        .flags = m->flags & OBJ_IF_ABSENT,
        .key = m->key,
        .upload_id = m->id,
        .part_etags = m->etags,
        .parts_n = m->parts,
        .deadline_ns = clock_mono_ns() + 120 * NS_PER_SEC,
    };
    call_submit(m->t, &m->call);
}

/* The stretch [off, off+len) of the whole body. */
static unsigned slice_body(const struct multipart *m, uint64_t off, uint64_t len,
                           struct obj_body out[2])
{
    unsigned n = 0;
    for (unsigned i = 0; i < m->body_n && len > 0; i++) {
        const struct obj_body *b = &m->body[i];
        if (off >= b->len) {
            off -= b->len;
            continue;
        }
        assert(n < 2);
        out[n] = *b;
        out[n].len = min_u64(b->len - off, len);
        if (b->mem)
            out[n].mem = (const char *)b->mem + off;
        else
            out[n].off += off;
        len -= out[n++].len;
        off = 0;
    }
    return n;
}

static void next_parts(struct multipart *m);

static void part_end(struct part *p, int err, const struct obj_diag *diag)
{
    struct multipart *m = p->m;
    if (err < 0)
        note(m, err, diag);
    m->busy--;
    obj_req_done(&p->call.req);
    free(p);
    next_parts(m);
}

static void part_sent(struct store_call *call)
{
    struct part *p = container_of(call, struct part, call);
    if (call->req.err == 0)
        memcpy(p->m->etag[p->no - 1], call->req.info.etag, OBJ_ETAG_MAX);
    part_end(p, call->req.err, &call->req.diag);
}

static void part_hash_failed(struct task *task)
{
    struct part *p = container_of(task, struct part, task);
    part_end(p, p->err, NULL);
}

static int hash_body(const struct obj_body *body, unsigned n, uint8_t out[SHA256_BYTES])
{
    struct sha256 *sha = sha256_new();
    uint8_t *buf = malloc(PIECE_BYTES);
    int r = sha && buf ? 0 : -ENOMEM;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        if (body[i].mem) {
            sha256_add(sha, body[i].mem, (size_t)body[i].len);
            continue;
        }
        for (uint64_t at = 0; r == 0 && at < body[i].len; at += PIECE_BYTES) {
            size_t len = (size_t)min_u64(PIECE_BYTES, body[i].len - at);
            r = io_pread_full(body[i].fd, buf, len, body[i].off + at);
            if (r == 0)
                sha256_add(sha, buf, len);
        }
    }
    if (r == 0)
        sha256_final(sha, out);
    sha256_free(sha);
    free(buf);
    return r;
}

static void run_part(struct task *task)
{
    struct part *p = container_of(task, struct part, task);
    struct multipart *m = p->m;
    p->call.req = (struct obj_req){
        .op = OBJ_MP_PART,
        .flags = OBJ_HAS_SHA256,
        .key = m->key,
        .upload_id = m->id,
        .part_no = p->no,
        .body = p->body,
        .body_n = p->body_n,
    };
    p->err = hash_body(p->body, p->body_n, p->call.req.sha256);
    if (p->err < 0) {
        p->task.run = part_hash_failed;
        exec_submit(m->t->actor, &p->task);
        return;
    }
    p->call.done = part_sent;
    call_submit(m->t, &p->call);
}

static void next_parts(struct multipart *m)
{
    while (m->err == 0 && m->busy < PARALLEL && m->next < m->parts) {
        struct part *p = calloc(1, sizeof *p);
        if (!p) {
            note(m, -ENOMEM, NULL);
            break;
        }
        uint64_t off = (uint64_t)m->next * m->part_bytes;
        p->m = m;
        p->no = ++m->next;
        p->body_n = slice_body(m, off, min_u64(m->part_bytes, m->total - off), p->body);
        p->task.run = run_part;
        m->busy++;
        exec_submit(m->t->v->bulk, &p->task);
    }
    if (m->busy > 0)
        return;
    if (m->err < 0)
        abort_upload(m);
    else
        complete(m);
}

static void created(struct store_call *call)
{
    struct multipart *m = container_of(call, struct multipart, call);
    if (call->req.err < 0) {
        note(m, call->req.err, &call->req.diag);
        obj_req_done(&call->req);
        finish(m);
        return;
    }
    m->id = strdup(call->req.new_upload_id ? call->req.new_upload_id : "");
    obj_req_done(&call->req);
    if (!m->id) {
        note(m, -ENOMEM, NULL);
        finish(m);
        return;
    }
    next_parts(m);
}

int multipart_put(struct tier *t, const char *key, const struct obj_body *body, unsigned body_n,
                  unsigned flags, void (*done)(void *arg, int err, const struct obj_diag *diag),
                  void *arg)
{
    struct multipart *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->t = t;
    m->key = key;
    m->body = body;
    m->body_n = body_n;
    m->flags = flags;
    m->done = done;
    m->arg = arg;
    for (unsigned i = 0; i < body_n; i++)
        m->total += body[i].len;
    m->part_bytes = MULTIPART_PART_BYTES;
    m->parts = (unsigned)((m->total + m->part_bytes - 1) / m->part_bytes);
    assert(m->parts > 0 && m->parts <= S3_PARTS_MAX);
    m->etag = calloc(m->parts, sizeof *m->etag);
    m->etags = calloc(m->parts, sizeof *m->etags);
    if (!m->etag || !m->etags) {
        free(m->etag);
        free(m->etags);
        free(m);
        return -ENOMEM;
    }
    m->call = (struct store_call){.done = created};
    m->call.req = (struct obj_req){
        .op = OBJ_MP_CREATE,
        .key = key,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    call_submit(t, &m->call);
    return 0;
}
