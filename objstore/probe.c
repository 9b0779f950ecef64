/* probe.c: finds out what a store does, by effect: after every refusal the object is read back, since
 * a store may say "no" and do it, or say "yes" and not. Called once for a volume, at its first mount.
 *
 * Two objects under probe/RANDOM are written and deleted again, on every path. No state; blocks.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum { BYTES = 4096, CUT_OFF = 1000, CUT_LEN = 100, CLEAN_UP_MS = 1000 };

struct probe {
    struct objstore *os;
    int64_t until_ns;
    char key[64], sum_key[64];
    uint8_t content[4][BYTES]; /* what the first object may hold: 0 first, 1 second... */
    char *why;
    size_t why_cap;
};

__attribute__((format(printf, 2, 3))) static void say(struct probe *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->why, p->why_cap, fmt, ap);
    va_end(ap);
    for (char *c = p->why; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
}

static bool code_is(const struct obj_req *r, const char *const *codes)
{
    for (; *codes; codes++)
        if (!strcmp(r->diag.code, *codes))
            return true;
    return false;
}

/* The remedy for a failure that is no finding. */
static void explain(struct probe *p, const struct obj_req *r, const char *doing)
{
    static const char *const clock_off[] = {"RequestTimeTooSkewed", "RequestExpired", NULL};
    static const char *const expired[] = {"ExpiredToken", "ExpiredTokenException",
                                          "TokenRefreshRequired", NULL};
    static const char *const bad_token[] = {"InvalidToken", NULL};
    static const char *const unknown_key[] = {"InvalidAccessKeyId", NULL};
    static const char *const signature[] = {"SignatureDoesNotMatch", NULL};
    static const char *const region[] = {"AuthorizationHeaderMalformed", "PermanentRedirect",
                                         "TemporaryRedirect", "IllegalLocationConstraintException",
                                         NULL};
    char diag[300];
    const char *remedy = "";
    obj_diag_text(r, diag, sizeof diag);
    if (r->err == -ENODEV)
        remedy = "the bucket does not exist: create it, or correct its name in the store URL";
    else if (code_is(r, clock_off))
        remedy = "the clock of this machine is off: set it (NTP)";
    else if (code_is(r, expired))
        remedy = "the session token has expired: renew the credentials";
    else if (code_is(r, bad_token))
        remedy = "the session token is not valid: renew the credentials";
    else if (code_is(r, unknown_key))
        remedy = "the access key is not known to this store: check profile and endpoint";
    else if (code_is(r, signature))
        remedy = "the secret key does not belong to the access key: check the credentials";
    else if (code_is(r, region) || (r->diag.http_status >= 300 && r->diag.http_status < 400))
        remedy = "wrong region or endpoint: set region= or endpoint= in the store URL";
    else if (r->err == -EACCES && r->diag.http_status == 0)
        remedy = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a "
                 "profile";
    else if (r->err == -EACCES)
        remedy =
            "access denied: the key needs to get, put, list and delete objects under the prefix";
    else if (r->err == -ENOSPC)
        remedy = "the store is full or its quota is exceeded: free some space";
    else if (!strcmp(r->diag.code, "Untrusted"))
        remedy = "the store's TLS certificate is not trusted";
    else if (r->err == -ETIMEDOUT)
        remedy = "the store does not answer in time: check endpoint and network";
    else if (r->diag.http_status == 0)
        remedy = "the store cannot be reached: check endpoint and network";
    else if (r->diag.http_status >= 500)
        remedy = "the store has an internal error: try again later";
    else
        remedy = "the store does not answer as an object store should";
    say(p, "%s (%s: %s)", remedy, doing, diag);
}

static int64_t deadline(const struct probe *p)
{
    return p->until_ns;
}

/* Answers, as opposed to failures of the probe itself. */
static bool is_answer(const struct obj_req *r)
{
    if (r->err == -ENODEV)
        return false;
    if (r->err == -ENOENT || r->err == -EEXIST || r->err == -EBADMSG || r->err == -EOPNOTSUPP)
        return true;
    /* Stores that know no condition or checksum may refuse it as malformed. */
    return r->err < 0 && r->diag.http_status >= 400 && r->diag.http_status < 500 &&
           r->err != -EACCES && !r->diag.retryable;
}

struct put {
    const char *key;
    unsigned content;
    unsigned flags;
    const char *etag;
    bool wrong_sum;
};

static int put(struct probe *p, struct put what, struct obj_req *r)
{
    struct obj_body b = {.mem = p->content[what.content], .fd = -1, .len = BYTES};
    *r = (struct obj_req){.op = OBJ_PUT,
                          .key = what.key,
                          .flags = what.flags | OBJ_HAS_SHA256,
                          .etag = what.etag,
                          .body = &b,
                          .body_n = 1,
                          .deadline_ns = deadline(p)};
    sha256_once(b.mem, BYTES, r->sha256);
    if (what.wrong_sum)
        r->sha256[0] ^= 1;
    int e = obj_run(p->os, r);
    r->body = NULL;
    return e;
}

/* A PUT that must work. */
static int must_put(struct probe *p, struct put what, char etag[OBJ_ETAG_MAX], const char *doing)
{
    struct obj_req r;
    int e = put(p, what, &r);
    if (e < 0)
        explain(p, &r, doing);
    else
        memcpy(etag, r.info.etag, OBJ_ETAG_MAX);
    return e;
}

/* Which content does the first object hold? The index, or -errno with `why`. */
static int holds(struct probe *p)
{
    uint8_t got[BYTES];
    struct iovec iov = {.iov_base = got, .iov_len = BYTES};
    struct obj_req r = {.op = OBJ_GET,
                        .key = p->key,
                        .len = BYTES,
                        .iov = &iov,
                        .iov_n = 1,
                        .deadline_ns = deadline(p)};
    int e = obj_run(p->os, &r);
    if (e < 0) {
        explain(p, &r, "reading a test object back");
        return e;
    }
    for (int i = 0; i < 4; i++)
        if (!memcmp(got, p->content[i], BYTES))
            return i;
    say(p, "the store returned other bytes than were written: it is not usable");
    return -EBADMSG;
}

/* A write that must be refused and change nothing. 1: so it was; 0: it was not; -errno. */
static int refused(struct probe *p, struct put what, int held)
{
    struct obj_req r;
    int e = put(p, what, &r);
    if (e < 0 && !is_answer(&r)) {
        explain(p, &r, "testing conditional writes");
        return e;
    }
    int now = holds(p);
    if (now < 0)
        return now;
    return e == -EEXIST && now == held;
}

static int probe_if_absent(struct probe *p, struct store_caps *ret)
{
    int r = refused(p, (struct put){.key = p->key, .content = 1, .flags = OBJ_IF_ABSENT}, 0);
    ret->if_absent = r == 1;
    return r;
}

static int probe_if_match(struct probe *p, struct store_caps *ret, const char *first)
{
    char second[OBJ_ETAG_MAX];
    struct obj_req rq;
    int r = must_put(p, (struct put){.key = p->key, .content = 2}, second, "replacing an object");
    if (r < 0)
        return r;
    struct put stale = {.key = p->key, .content = 1, .flags = OBJ_IF_MATCH, .etag = first};
    r = refused(p, stale, 2);
    if (r != 1 || !strcmp(first, second))
        return r < 0 ? r : 0;
    /* The right ETag must be taken, or nothing could ever be replaced. */
    r = put(p, (struct put){.key = p->key, .content = 3, .flags = OBJ_IF_MATCH, .etag = second},
            &rq);
    if (r < 0 && !is_answer(&rq)) {
        explain(p, &rq, "replacing an object by its ETag");
        return r;
    }
    int now = holds(p);
    ret->if_match = r == 0 && now == 3;
    return now < 0 ? now : 0;
}

static int probe_checksum(struct probe *p, struct store_caps *ret)
{
    struct obj_req r;
    int e = put(p, (struct put){.key = p->sum_key, .wrong_sum = true}, &r);
    if (e < 0 && !is_answer(&r)) {
        explain(p, &r, "testing checksums");
        return e;
    }
    struct obj_req h = {.op = OBJ_HEAD, .key = p->sum_key, .deadline_ns = deadline(p)};
    int there = obj_run(p->os, &h);
    if (there < 0 && !is_answer(&h)) {
        explain(p, &h, "testing checksums");
        return there;
    }
    ret->checksum = e < 0 && there == -ENOENT;
    return 0;
}

static int probe_range(struct probe *p, struct store_caps *ret)
{
    int held = holds(p);
    if (held < 0)
        return held;
    uint8_t got[CUT_LEN];
    struct iovec iov = {.iov_base = got, .iov_len = CUT_LEN};
    struct obj_req r = {.op = OBJ_GET,
                        .key = p->key,
                        .off = CUT_OFF,
                        .len = CUT_LEN,
                        .iov = &iov,
                        .iov_n = 1,
                        .deadline_ns = deadline(p)};
    int e = obj_run(p->os, &r);
    if (e < 0 && !is_answer(&r) && r.diag.http_status != 200) {
        explain(p, &r, "reading a range");
        return e;
    }
    ret->range = e == 0 && !memcmp(got, p->content[held] + CUT_OFF, CUT_LEN);
    return 0;
}

/* 0, or the first failure; *why is written for it when `tell`. */
static int clean_up(struct probe *p, bool tell)
{
    const char *keys[] = {p->key, p->sum_key};
    int first = 0;
    if (!tell) /* a store that does not answer is not waited for again */
        p->until_ns = clock_mono_ns() + CLEAN_UP_MS * NS_PER_MS;
    for (int i = 0; i < 2; i++) {
        struct obj_req r = {.op = OBJ_DELETE, .key = keys[i], .deadline_ns = deadline(p)};
        int e = obj_run(p->os, &r);
        if (e < 0 && first == 0) {
            first = e;
            if (tell)
                explain(p, &r, "deleting a test object");
        }
    }
    return first;
}

int store_probe(struct objstore *os, unsigned timeout_ms, struct store_caps *ret, char *why,
                size_t why_cap)
{
    struct probe *p = calloc(1, sizeof *p);
    char first[OBJ_ETAG_MAX];
    uint64_t v[2];
    if (why_cap)
        why[0] = 0;
    if (!p)
        return -ENOMEM;
    random_bytes(v, sizeof v);
    *p = (struct probe){.os = os,
                        .until_ns = clock_mono_ns() + (int64_t)timeout_ms * NS_PER_MS,
                        .why = why,
                        .why_cap = why_cap};
    snprintf(p->key, sizeof p->key, PROBE_PREFIX "%016llx%016llx/a", (unsigned long long)v[0],
             (unsigned long long)v[1]);
    snprintf(p->sum_key, sizeof p->sum_key, PROBE_PREFIX "%016llx%016llx/b",
             (unsigned long long)v[0], (unsigned long long)v[1]);
    random_bytes(p->content, sizeof p->content);
    *ret = (struct store_caps){0};

    int r = must_put(p, (struct put){.key = p->key}, first, "writing a test object");
    if (r == 0) {
        int held = holds(p);
        r = held < 0 ? held : 0;
        if (held > 0) {
            say(p, "the store did not keep what was written");
            r = -EBADMSG;
        }
    }
    if (r == 0)
        r = probe_if_absent(p, ret);
    if (r == 0 && !ret->if_absent) /* it may have been replaced: start the next test afresh */
        r = must_put(p, (struct put){.key = p->key}, first, "replacing an object");
    if (r >= 0)
        r = probe_if_match(p, ret, first);
    if (r >= 0)
        r = probe_checksum(p, ret);
    if (r >= 0)
        r = probe_range(p, ret);
    int gone = clean_up(p, r >= 0);
    if (r >= 0)
        r = gone;
    free(p);
    return r < 0 ? r : 0;
}
