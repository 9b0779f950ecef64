/* bucket.c: see bucket.h. No state but the last error's text. A request that is given up is cancelled under
 * the lock that its end takes, so that it is never cancelled after its end. */
#include "fs/volume/bucket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/lock.h"
#include "fs/volume/volume.h"

enum { CHANGED_TRIES = 5, POLL_MS = 50 };

struct wait {
    struct lock mu;
    pthread_cond_t ended;
    bool done;
};

static void run_done(struct obj_req *r)
{
    struct wait *w = r->arg;
    LOCK_SCOPE(&w->mu);
    w->done = true;
    pthread_cond_broadcast(&w->ended);
}

static int submit_and_wait(struct bucket *b, struct obj_req *r)
{
    struct wait w = {.done = false};
    bool given_up = false;
    lock_init(&w.mu, "bucket", RANK_FETCH, false);
    cond_init(&w.ended);
    r->done = run_done;
    r->arg = &w;
    obj_submit(b->store, r);
    lock_acquire(&w.mu);
    while (!w.done) {
        if (b->stepped) {
            lock_release(&w.mu);
            volume_pause(b->stepped, 0);
            lock_acquire(&w.mu);
        } else if (!b->cancelled) {
            lock_wait(&w.mu, &w.ended);
        } else {
            (void)lock_wait_until(&w.mu, &w.ended, clock_mono_ns() + POLL_MS * NS_PER_MS);
        }
        if (!w.done && !given_up && b->cancelled && atomic_load(b->cancelled)) {
            given_up = true;
            obj_cancel(b->store, r);
        }
    }
    lock_release(&w.mu);
    pthread_cond_destroy(&w.ended);
    lock_destroy(&w.mu);
    return r->err;
}

static int run(struct bucket *b, struct obj_req *r)
{
    char text[320];
    r->deadline_ns = clock_mono_ns() + (int64_t)b->timeout_ms * NS_PER_MS;
    int e = submit_and_wait(b, r);
    b->unclear = e < 0 && (r->diag.unknown_outcome || e == -ETIMEDOUT);
    if (e < 0)
        snprintf(b->why, sizeof b->why, "%s: %s", r->key && *r->key ? r->key : "the store",
                 obj_diag_text(r, text, sizeof text));
    return e;
}

int bucket_head(struct bucket *b, const char *key, struct obj_info *ret)
{
    struct obj_req r = {.op = OBJ_HEAD, .key = key};
    int e = run(b, &r);
    if (ret)
        *ret = r.info;
    obj_req_done(&r);
    return e;
}

static int get(struct bucket *b, const char *key, uint64_t off, void *buf, size_t len,
               const char *etag)
{
    struct iovec iov = {buf, len};
    struct obj_req r = {.op = OBJ_GET,
                        .flags = etag ? OBJ_IF_MATCH : 0,
                        .key = key,
                        .etag = etag,
                        .off = off,
                        .len = len,
                        .iov = &iov,
                        .iov_n = 1};
    int e = run(b, &r);
    obj_req_done(&r);
    return e;
}

int bucket_read(struct bucket *b, const char *key, uint64_t off, void *buf, size_t len)
{
    return get(b, key, off, buf, len, NULL);
}

int bucket_get(struct bucket *b, const char *key, uint64_t max, uint8_t **ret, size_t *ret_len,
               char etag[OBJ_ETAG_MAX])
{
    int e = -EEXIST;
    for (int tries = 0; e == -EEXIST && tries < CHANGED_TRIES; tries++) {
        struct obj_info info;
        e = bucket_head(b, key, &info);
        if (e < 0)
            return e;
        if (info.size > max) {
            snprintf(b->why, sizeof b->why, "%s: is %llu bytes long", key,
                     (unsigned long long)info.size);
            return -EFBIG;
        }
        uint8_t *buf = malloc((size_t)info.size + 1);
        if (!buf)
            return -ENOMEM;
        e = info.size ? get(b, key, 0, buf, (size_t)info.size, *info.etag ? info.etag : NULL) : 0;
        if (e < 0) { /* -EEXIST: replaced in between */
            free(buf);
            continue;
        }
        *ret = buf;
        *ret_len = (size_t)info.size;
        if (etag)
            memcpy(etag, info.etag, OBJ_ETAG_MAX);
    }
    return e;
}

int bucket_put(struct bucket *b, const char *key, const void *buf, size_t len, unsigned flags,
               const char *etag, char ret_etag[OBJ_ETAG_MAX])
{
    struct obj_body body = {.mem = buf, .fd = -1, .len = len};
    struct obj_req r = {.op = OBJ_PUT,
                        .flags = OBJ_URGENT | OBJ_HAS_SHA256 | flags,
                        .key = key,
                        .etag = etag,
                        .body = &body,
                        .body_n = 1};
    sha256_once(buf, len, r.sha256);
    int e = run(b, &r);
    if (e == 0 && ret_etag)
        memcpy(ret_etag, r.info.etag, OBJ_ETAG_MAX);
    obj_req_done(&r);
    return e;
}

int bucket_delete(struct bucket *b, const char *const *keys, unsigned n)
{
    struct obj_req r = {.op = OBJ_DELETE_BATCH, .keys = keys, .keys_n = n};
    int e = run(b, &r);
    if (e == 0 && r.failed_n) {
        snprintf(b->why, sizeof b->why, "%u of %u objects were not deleted", r.failed_n, n);
        e = -EIO;
    }
    obj_req_done(&r);
    return e;
}

int bucket_abort(struct bucket *b, const char *key, const char *upload_id)
{
    struct obj_req r = {.op = OBJ_MP_ABORT, .key = key, .upload_id = upload_id};
    int e = run(b, &r);
    obj_req_done(&r);
    return e;
}

/* ---- listing: a page is collected on the store's thread, then handed out on ours ---- */

struct page {
    struct obj_req req;
    struct obj_entry *row; /* key and upload_id owned */
    size_t n, cap;
    bool failed;
};

static void collect(struct obj_req *r, const struct obj_entry *e)
{
    struct page *p = container_of(r, struct page, req);
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 256;
        struct obj_entry *more = realloc(p->row, cap * sizeof *more);
        if (!more) {
            p->failed = true;
            return;
        }
        p->row = more;
        p->cap = cap;
    }
    struct obj_entry *row = &p->row[p->n];
    *row = *e;
    row->key = strdup(e->key);
    row->upload_id = e->upload_id ? strdup(e->upload_id) : NULL;
    p->n++;
    p->failed |= !row->key || (e->upload_id && !row->upload_id);
}

static void page_clear(struct page *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free((char *)(uintptr_t)p->row[i].key);
        free((char *)(uintptr_t)p->row[i].upload_id);
    }
    p->n = 0;
    p->failed = false;
}

int bucket_list(struct bucket *b, const char *prefix, bool uploads,
                int (*each)(void *arg, const struct obj_entry *e), void *arg)
{
    struct page p = {0};
    char *token = NULL, *last = NULL;
    int e;
    do {
        p.req = (struct obj_req){
            .op = uploads ? OBJ_MP_LIST : OBJ_LIST, .key = prefix, .token = token, .each = collect};
        page_clear(&p);
        e = b->cancelled && atomic_load(b->cancelled) ? -ECANCELED : run(b, &p.req);
        free(token);
        token = p.req.next_token;
        p.req.next_token = NULL;
        obj_req_done(&p.req);
        if (e == 0 && p.failed)
            e = -ENOMEM;
        /* A retried page may come twice; and a store that goes backwards must not loop for ever. */
        for (size_t i = 0; e == 0 && i < p.n; i++) {
            if (!uploads && last && strcmp(p.row[i].key, last) <= 0)
                continue;
            e = each(arg, &p.row[i]);
        }
        if (e == 0 && p.n && !uploads) {
            free(last);
            last = strdup(p.row[p.n - 1].key);
            e = last ? 0 : -ENOMEM;
        }
    } while (e == 0 && token);
    page_clear(&p);
    free(p.row);
    free(token);
    free(last);
    return e;
}
