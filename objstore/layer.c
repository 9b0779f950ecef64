/* layer.c: see layer.h. Stateless. */
#include "objstore/layer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *layer_alloc(size_t n)
{
    void *p = calloc(1, n);
    if (!p)
        abort();
    return p;
}

static void pass_progress(struct obj_req *in, uint64_t got)
{
    struct layer_call *c = in->arg;
    c->up->info = in->info;
    c->up->progress(c->up, got);
}

static void pass_each(struct obj_req *in, const struct obj_entry *e)
{
    struct layer_call *c = in->arg;
    c->up->each(c->up, e);
}

void layer_clear(struct obj_req *r)
{
    r->err = 0;
    memset(&r->diag, 0, sizeof r->diag);
    memset(&r->info, 0, sizeof r->info);
    r->next_token = NULL;
    r->new_upload_id = NULL;
    r->failed_n = 0;
    r->attempts = 0;
    r->next = NULL;
    r->layer = NULL;
}

void layer_call_init(struct layer_call *c, struct obj_req *up, void (*done)(struct obj_req *))
{
    c->up = up;
    c->in = *up;
    layer_clear(&c->in);
    c->in.done = done;
    c->in.arg = c;
    if (up->progress)
        c->in.progress = pass_progress;
    if (up->each)
        c->in.each = pass_each;
}

void layer_call_results(struct layer_call *c)
{
    struct obj_req *up = c->up, *in = &c->in;
    up->err = in->err;
    up->diag = in->diag;
    up->info = in->info;
    up->next_token = in->next_token;
    up->new_upload_id = in->new_upload_id;
    up->failed_n = in->failed_n;
    up->attempts = in->attempts;
    in->next_token = in->new_upload_id = NULL;
}

void layer_fail(struct obj_req *r, int err, bool retryable, const char *code, const char *message)
{
    assert(err < 0);
    r->err = err;
    memset(&r->diag, 0, sizeof r->diag);
    r->diag.retryable = retryable;
    snprintf(r->diag.code, sizeof r->diag.code, "%s", code);
    snprintf(r->diag.message, sizeof r->diag.message, "%s", message);
}

bool layer_is_throttle(const struct obj_req *r)
{
    if (r->err == 0)
        return false;
    return r->diag.http_status == 429 || !strcmp(r->diag.code, "SlowDown") ||
           !strncmp(r->diag.code, "Throttl", 7) || !strcmp(r->diag.code, "RequestLimitExceeded") ||
           !strcmp(r->diag.code, "BandwidthLimitExceeded") ||
           !strcmp(r->diag.code, "TooManyRequests");
}

uint64_t obj_body_len(const struct obj_req *r)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < r->body_n; i++)
        n += r->body[i].len;
    return n;
}
