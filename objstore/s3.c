/* s3.c: the S3 backend: one bucket, one event loop, requests signed right before they go out.
 *
 *     submit -> s3_op -> http queue -> prepare (credentials, build, sign) -> answer -> done
 *
 * An s3_op lives from submit to done. r->layer points at it in between; `lock` guards that pointer
 * alone, so that a cancel that races with done finds either a live operation or nothing. All else
 * of an operation belongs to the loop thread after submit.
 *
 * Clock and credentials mend themselves: a refusal for clock skew takes the store's Date as the
 * clock from then on, a refusal of the key has the credentials read again; either marks the failed
 * request as worth repeating, at most once for each cause. Repeating is the retry layer's work.
 */
#include "objstore/s3.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"

enum { CONNECT_MS = 10000, SKEW_MS = 5 * 60 * 1000 };

static void op_free(struct s3_op *op)
{
    sbuf_free(&op->path);
    sbuf_free(&op->query);
    sbuf_free(&op->url);
    sbuf_free(&op->auth);
    for (unsigned i = 0; i < op->sign_n; i++) {
        /* The token is among them. */
        if (op->values[i].p)
            explicit_bzero(op->values[i].p, op->values[i].cap);
        if (op->lines[i].p)
            explicit_bzero(op->lines[i].p, op->lines[i].cap);
        sbuf_free(&op->values[i]);
        sbuf_free(&op->lines[i]);
    }
    sbuf_free(&op->xml);
    sbuf_free(&op->answer);
    if (op->key)
        explicit_bzero(op->key, sizeof(*op->key));
    free(op->key);
    free(op);
}

static int prepare(struct http_req *q)
{
    struct s3_op *op = container_of(q, struct s3_op, http);
    struct s3 *s3 = op->s3;
    int r;

    if (!op->key)
        op->key = malloc(sizeof(*op->key));
    if (!op->key)
        return -ENOMEM;
    explicit_bzero(op->key, sizeof(*op->key)); /* released whether it is filled or not */
    r = s3_cred_get(s3->cred, op->key, &op->transient, op->why, sizeof(op->why));
    if (r)
        return r;
    r = s3_build(op);
    if (r < 0)
        return r;
    op->clock_off_ms = s3->clock_off_ms;
    return s3_seal(op, clock_wall_ns() / NS_PER_MS + op->clock_off_ms);
}

static bool is_one_of(const char *code, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(code, words[i]) == 0)
            return true;
    return false;
}

/* A refusal that goes away once clock or credentials are mended: true, and they are. */
static bool mend(struct s3_op *op, const struct obj_diag *d)
{
    static const char *const stale[] = {"ExpiredToken",       "ExpiredTokenException",
                                        "InvalidAccessKeyId", "XAdminUserNotFound",
                                        "InvalidToken",       "TokenRefreshRequired"};
    struct s3 *s3 = op->s3;
    bool silent = d->code[0] == '\0'; /* HEAD: no body says why */

    if (op->http.end != HTTP_DONE || op->http.status < 400)
        return false;
    if ((strcmp(d->code, "RequestTimeTooSkewed") == 0 || (silent && d->http_status == 403)) &&
        op->head.date_ms) {
        int64_t off = op->head.date_ms - clock_wall_ns() / NS_PER_MS;
        int64_t wrong = off - op->clock_off_ms;
        if (wrong > SKEW_MS || wrong < -SKEW_MS) {
            s3->clock_off_ms = off;
            return true;
        }
    }
    return is_one_of(d->code, stale, ARRAY_LEN(stale)) && s3_cred_refused(s3->cred, op->key);
}

static void op_done(struct http_req *q)
{
    struct s3_op *op = container_of(q, struct s3_op, http);
    struct obj_req *r = op->r;
    struct s3 *s3 = op->s3;

    r->err = s3_answer(op);
    if (r->err == -EACCES && mend(op, &r->diag))
        r->diag.retryable = true;
    if (r->err)
        log_debug(LC_STORE, "s3: %s %s: %s %s", obj_op_name(r->op), r->key ? r->key : "-",
                  r->diag.code, r->diag.message);
    else
        r->diag = (struct obj_diag){0};
    lock_acquire(&s3->lock);
    r->layer = NULL;
    lock_release(&s3->lock);
    op_free(op);
    r->done(r);
}

static enum http_class class_of(const struct obj_req *r)
{
    if (r->flags & OBJ_URGENT)
        return HTTP_URGENT;
    return r->op == OBJ_PUT || r->op == OBJ_MP_PART ? HTTP_UPLOAD : HTTP_NORMAL;
}

static unsigned idle_ms_of(const struct s3 *s3, const struct obj_req *r)
{
    switch (r->op) {
    case OBJ_GET:
        return s3->timeout_get_ms;
    case OBJ_PUT:
    case OBJ_MP_PART:
    case OBJ_MP_COMPLETE: /* the store puts the parts together */
        return s3->timeout_put_ms;
    default:
        return s3->timeout_small_ms;
    }
}

static void s3_submit(struct objstore *os, struct obj_req *r)
{
    struct s3 *s3 = container_of(os, struct s3, os);
    struct s3_op *op = calloc(1, sizeof(*op));

    /* There is no caller to hand an error to: done never runs inside submit. */
    if (!op) {
        log_err(LC_STORE, "out of memory");
        abort();
    }
    op->s3 = s3;
    op->r = r;
    op->http.class = class_of(r);
    op->http.idle_ms = idle_ms_of(s3, r);
    op->http.deadline_ns = r->deadline_ns;
    op->http.prepare = prepare;
    op->http.body = s3_body;
    op->http.header = s3_header;
    op->http.data = s3_data;
    op->http.done = op_done;
    lock_acquire(&s3->lock);
    r->layer = op;
    lock_release(&s3->lock);
    http_submit(s3->http, &op->http);
}

static void s3_cancel(struct objstore *os, struct obj_req *r)
{
    struct s3 *s3 = container_of(os, struct s3, os);

    LOCK_SCOPE(&s3->lock);
    struct s3_op *op = r->layer;
    if (op)
        http_cancel(s3->http, &op->http);
}

static void s3_status(struct objstore *os, struct objstore_status *st)
{
    struct s3 *s3 = container_of(os, struct s3, os);
    uint64_t queued, in_flight;

    http_counts(s3->http, &queued, &in_flight, &st->silent_ns);
    st->queued += queued;
    st->in_flight += in_flight;
}

static void s3_release(struct s3 *s3)
{
    http_close(s3->http);
    s3_cred_free(s3->cred);
    lock_destroy(&s3->lock);
    free(s3);
}

static void s3_close(struct objstore *os)
{
    s3_release(container_of(os, struct s3, os));
}

static const struct objstore_ops s3_ops = {
    .name = "s3",
    .submit = s3_submit,
    .cancel = s3_cancel,
    .status = s3_status,
    .close = s3_close,
};

/* ---- opening ---- */

static bool from_env(const char *name, char *out, size_t cap)
{
    const char *v = getenv(name);

    if (!v || !*v || strlen(v) >= cap)
        return false;
    memcpy(out, v, strlen(v) + 1);
    return true;
}

static void find_region(struct s3 *s3, const struct store_conf *conf)
{
    size_t cap = sizeof(s3->region);

    if (conf->url.region[0])
        snprintf(s3->region, cap, "%s", conf->url.region);
    else if (!from_env("AWS_REGION", s3->region, cap) &&
             !from_env("AWS_DEFAULT_REGION", s3->region, cap) &&
             !s3_profile_setting(conf->profile, "region", s3->region, cap))
        snprintf(s3->region, cap, "us-east-1");
}

/* The endpoint that the environment or the profile names, checked as one in the URL is. 1: found,
 * 0: none, -EINVAL. */
static int endpoint_outside(const struct store_conf *conf, struct store_url *found, char *why,
                            size_t why_cap)
{
    char value[1024];
    char ignore[16] = "";
    char reason[200];
    struct sbuf url = {0};
    int r;

    from_env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", ignore, sizeof(ignore));
    if (strcasecmp(ignore, "true") == 0)
        return 0;
    if (!from_env("AWS_ENDPOINT_URL_S3", value, sizeof(value)) &&
        !from_env("AWS_ENDPOINT_URL", value, sizeof(value)) &&
        !s3_profile_setting(conf->profile, "endpoint_url", value, sizeof(value)))
        return 0;
    sbuf_str(&url, "s3://bucket?endpoint=");
    s3_encode(&url, value, false);
    r = url.bad ? -ENOMEM : store_url_parse(url.p, found, reason, sizeof(reason));
    if (r < 0)
        snprintf(why, why_cap, "AWS_ENDPOINT_URL or endpoint_url: %s", reason);
    sbuf_free(&url);
    return r < 0 ? r : 1;
}

static int find_endpoint(struct s3 *s3, const struct store_conf *conf, char *why, size_t why_cap)
{
    const struct store_url *u = &conf->url;
    struct store_url other = *u;
    bool path_style = u->path_style;
    const char *secure = "https://";

    if (!u->endpoint[0]) {
        int r = endpoint_outside(conf, &other, why, why_cap);
        if (r < 0)
            return r;
        s3->aws = r == 0;
        if (r > 0 && !u->addressing_set)
            path_style = true;
    }
    if (s3->aws) {
        const char *tld = strncmp(s3->region, "cn-", 3) == 0 ? ".cn" : "";
        snprintf(other.endpoint, sizeof(other.endpoint), "https://s3.%s.amazonaws.com%s",
                 s3->region, tld);
        /* A wildcard certificate covers one label: a dotted bucket cannot be a host over TLS. */
        if (!u->addressing_set && strchr(u->bucket, '.'))
            path_style = true;
    }
    const char *host = strstr(other.endpoint, "://") + 3;
    if (strncmp(other.endpoint, secure, strlen(secure)) != 0)
        secure = "http://";
    snprintf(s3->host, sizeof(s3->host), "%s%s%s", path_style ? "" : u->bucket,
             path_style ? "" : ".", host);
    snprintf(s3->base, sizeof(s3->base), "%s%s", secure, s3->host);
    snprintf(s3->root, sizeof(s3->root), "%s%s", path_style ? "/" : "",
             path_style ? u->bucket : "");
    snprintf(s3->prefix, sizeof(s3->prefix), "%s%s", u->prefix, u->prefix[0] ? "/" : "");
    return 0;
}

int s3_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap)
{
    struct s3 *s3 = calloc(1, sizeof(*s3));
    struct http_conf http = {
        .connections = conf->connections ? conf->connections : 16,
        .connect_ms = CONNECT_MS,
        .ca_bundle = getenv("AWS_CA_BUNDLE"),
        .user_agent = "sluicefs/" SLUICE_VERSION,
    };
    int r = -ENOMEM;

    assert(conf->url.kind == STORE_S3);
    if (!s3) {
        snprintf(why, why_cap, "out of memory");
        return r;
    }
    if (http.ca_bundle && !*http.ca_bundle)
        http.ca_bundle = NULL;
    s3->os.ops = &s3_ops;
    lock_init(&s3->lock, "s3", RANK_STORE_LOW, false);
    s3->timeout_get_ms = conf->timeout_get_ms ? conf->timeout_get_ms : 10000;
    s3->timeout_put_ms = conf->timeout_put_ms ? conf->timeout_put_ms : 30000;
    s3->timeout_small_ms = conf->timeout_small_ms ? conf->timeout_small_ms : 10000;
    find_region(s3, conf);
    r = find_endpoint(s3, conf, why, why_cap);
    if (r < 0)
        goto fail;
    r = http_open(&http, &s3->http);
    if (r < 0) {
        snprintf(why, why_cap, "cannot start the store's thread: %s", err_name(r));
        goto fail;
    }
    s3->cred = s3_cred_new(s3->http, conf->profile, s3->region);
    if (!s3->cred) {
        r = -ENOMEM;
        snprintf(why, why_cap, "out of memory");
        goto fail;
    }
    *ret = &s3->os;
    return 0;
fail:
    s3_release(s3);
    return r;
}
