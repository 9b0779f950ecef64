/* s3_answer.c: reads answers, and the one place where an HTTP outcome becomes an error of ours.
 *
 * A GET's bytes go straight to the caller's memory, but only after status and Content-Range were
 * found to be exactly those of the question; error documents and all other answers are gathered in
 * op->answer, bounded. Everything runs on the loop thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "objstore/s3.h"

/* ---- headers ---- */

static bool number(const char **p, uint64_t *ret)
{
    char *end;

    if (**p < '0' || **p > '9')
        return false;
    errno = 0;
    *ret = strtoull(*p, &end, 10);
    *p = end;
    return errno == 0;
}

/* "bytes 0-9/100", or a '*' for an unknown total. */
static void content_range(struct s3_head *h, const char *v)
{
    h->has_range = false;
    if (strncasecmp(v, "bytes ", 6) != 0)
        return;
    v += 6;
    if (!number(&v, &h->range_from) || *v++ != '-' || !number(&v, &h->range_to) || *v++ != '/')
        return;
    h->total_known = *v != '*';
    if (!h->total_known)
        h->has_range = v[1] == '\0';
    else
        h->has_range = number(&v, &h->range_total) && *v == '\0';
}

static int64_t http_date_ms(const char *v)
{
    struct tm tm = {0};
    const char *end = strptime(v, "%a, %d %b %Y %H:%M:%S GMT", &tm);

    return end && !*end ? (int64_t)timegm(&tm) * 1000 : 0;
}

static unsigned retry_after(const char *v)
{
    enum { HOUR_MS = 3600 * 1000 };
    uint64_t s;
    int64_t ms = 0;

    if (number(&v, &s))
        ms = *v ? 0 : s > HOUR_MS / 1000 ? HOUR_MS : (int64_t)s * 1000;
    else if ((ms = http_date_ms(v)) != 0)
        ms -= clock_wall_ns() / NS_PER_MS;
    return ms <= 0 ? 0 : ms > HOUR_MS ? HOUR_MS : (unsigned)ms;
}

static void copy(char *to, size_t cap, const char *v)
{
    snprintf(to, cap, "%s", v);
    for (; *to; to++)
        if ((unsigned char)*to < ' ' || *to == 0x7f)
            *to = ' ';
}

void s3_header(struct http_req *q, const char *name, const char *value)
{
    struct s3_op *op = container_of(q, struct s3_op, http);
    struct s3_head *h = &op->head;

    if (!name) { /* a new answer */
        *h = (struct s3_head){0};
        sbuf_clear(&op->answer);
        op->answer.max = q->status < 300 ? S3_ANSWER_MAX : S3_ERROR_BODY_MAX;
    } else if (strcasecmp(name, "etag") == 0) {
        if (strlen(value) < sizeof(h->etag))
            copy(h->etag, sizeof(h->etag), value);
    } else if (strcasecmp(name, "content-length") == 0) {
        h->has_length = number(&value, &h->length) && !*value;
    } else if (strcasecmp(name, "content-range") == 0) {
        content_range(h, value);
    } else if (strcasecmp(name, "date") == 0) {
        h->date_ms = http_date_ms(value);
    } else if (strcasecmp(name, "retry-after") == 0) {
        h->retry_after_ms = retry_after(value);
    } else if (strcasecmp(name, "x-amz-request-id") == 0) {
        copy(h->request_id, sizeof(h->request_id), value);
    } else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
        copy(h->region, sizeof(h->region), value);
    }
}

/* ---- the body of a GET ---- */

static int contradiction(struct s3_op *op, int err, const char *what)
{
    snprintf(op->why, sizeof(op->why), "%s", what);
    return err;
}

/* Before the first byte is placed: is this the range we asked for? */
static int check_range(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    const struct s3_head *h = &op->head;

    if (op->http.status == 200) {
        if (r->off != 0 || !h->has_length || h->length != r->len)
            return contradiction(op, -EOPNOTSUPP,
                                 "the store answered a range with the whole object");
        return 0;
    }
    if (op->http.status != 206)
        return contradiction(op, -EBADMSG, "a read was answered with neither 200 nor 206");
    if (!h->has_range || h->range_from != r->off || h->range_to != r->off + r->len - 1)
        return contradiction(op, -EBADMSG, "Content-Range is not the range that was asked for");
    if (h->total_known && h->range_total <= h->range_to)
        return contradiction(op, -EBADMSG, "Content-Range ends behind the object");
    if (h->has_length && h->length != r->len)
        return contradiction(op, -EBADMSG, "Content-Length is not that of the range");
    return 0;
}

static void tell(struct s3_op *op)
{
    if (op->got == op->told)
        return;
    op->told = op->got;
    if (op->r->progress)
        op->r->progress(op->r, op->got);
}

static int place(struct s3_op *op, const char *p, size_t n)
{
    struct obj_req *r = op->r;

    if (op->got == 0) {
        int err = check_range(op);
        if (err)
            return err;
        /* Now already: whoever goes on after a break needs to know of what. */
        memcpy(r->info.etag, op->head.etag, sizeof(r->info.etag));
        r->info.size = op->http.status == 200 ? r->len
                       : op->head.total_known ? op->head.range_total
                                              : 0;
    }
    if (n > r->len - op->got)
        return contradiction(op, -EBADMSG, "more bytes came than were asked for");
    op->got += n;
    while (n > 0) {
        const struct iovec *v = &r->iov[op->iov_i];
        size_t room = v->iov_len - op->iov_off;
        size_t m = n < room ? n : room;
        memcpy((char *)v->iov_base + op->iov_off, p, m);
        p += m;
        n -= m;
        op->iov_off += m;
        if (op->iov_off == v->iov_len) {
            op->iov_i++;
            op->iov_off = 0;
        }
    }
    if (op->got - op->told >= S3_PROGRESS_STEP || op->got == r->len)
        tell(op);
    return 0;
}

int s3_data(struct http_req *q, const char *p, size_t n)
{
    struct s3_op *op = container_of(q, struct s3_op, http);

    if (n == 0)
        return 0;
    if (op->r->op == OBJ_GET && q->status < 300)
        return place(op, p, n);
    if (q->status >= 300 && n > op->answer.max - op->answer.len)
        n = op->answer.max - op->answer.len; /* the code stands in the first bytes */
    sbuf_add(&op->answer, p, n);
    return op->answer.bad ? contradiction(op, -EBADMSG, "the answer is too long") : 0;
}

/* ---- classification ---- */

static bool changes(enum obj_op op)
{
    return op != OBJ_GET && op != OBJ_HEAD && op != OBJ_LIST && op != OBJ_MP_LIST;
}

/* What a code means whatever status it came with. */
static const struct {
    const char *code;
    short err;
    bool retryable, unknown;
} by_code[] = {
    {"AccessDenied", -EACCES, false, false},
    {"InvalidAccessKeyId", -EACCES, false, false},
    {"XAdminUserNotFound", -EACCES, false, false},
    {"SignatureDoesNotMatch", -EACCES, false, false},
    {"ExpiredToken", -EACCES, false, false},
    {"ExpiredTokenException", -EACCES, false, false},
    {"InvalidToken", -EACCES, false, false},
    {"TokenRefreshRequired", -EACCES, false, false},
    {"RequestTimeTooSkewed", -EACCES, false, false},
    {"BadDigest", -EBADMSG, false, false},
    {"InvalidDigest", -EBADMSG, false, false},
    {"XAmzContentSHA256Mismatch", -EBADMSG, false, false},
    {"XAmzContentChecksumMismatch", -EBADMSG, false, false},
    {"PreconditionFailed", -EEXIST, false, false},
    {"ConditionalRequestConflict", -EIO, true, false},
    {"OperationAborted", -EIO, true, false},
    {"NoSuchKey", -ENOENT, false, false},
    {"NoSuchBucket", -ENODEV, false, false},
    {"NoSuchUpload", -ENOENT, false, false},
    {"QuotaExceeded", -ENOSPC, false, false},
    {"QuotaExceededException", -ENOSPC, false, false},
    {"XMinioStorageFull", -ENOSPC, false, false},
    {"XMinioAdminBucketQuotaExceeded", -ENOSPC, false, false},
    {"InsufficientStorage", -ENOSPC, false, false},
    {"StorageFull", -ENOSPC, false, false},
    {"NotImplemented", -EOPNOTSUPP, false, false},
    {"MethodNotAllowed", -EOPNOTSUPP, false, false},
    {"InvalidRange", -EBADMSG, false, false},
    {"RequestTimeout", -EIO, true, false},
    {"IncompleteBody", -EIO, true, false},
    {"SlowDown", -EIO, true, false},
    {"Throttling", -EIO, true, false},
    {"ThrottlingException", -EIO, true, false},
    {"RequestLimitExceeded", -EIO, true, false},
    {"BandwidthLimitExceeded", -EIO, true, false},
    {"TooManyRequests", -EIO, true, false},
    {"ServiceUnavailable", -EIO, true, false},
    {"InternalError", -EIO, true, true},
};

static const struct {
    short status, err;
    bool retryable, unknown;
} by_status[] = {
    {401, -EACCES, false, false},     {403, -EACCES, false, false}, {404, -ENOENT, false, false},
    {405, -EOPNOTSUPP, false, false}, {408, -EIO, true, true},      {412, -EEXIST, false, false},
    {416, -EBADMSG, false, false},    {429, -EIO, true, false},     {500, -EIO, true, true},
    {501, -EOPNOTSUPP, false, false}, {502, -EIO, true, true},      {503, -EIO, true, true},
    {504, -EIO, true, true},          {507, -ENOSPC, false, false},
};

static int classify_status(const struct s3_outcome *o, struct obj_diag *d)
{
    for (size_t i = 0; i < ARRAY_LEN(by_code); i++)
        if (strcmp(o->error.code, by_code[i].code) == 0) {
            d->retryable = by_code[i].retryable;
            d->unknown_outcome = by_code[i].unknown && changes(o->op);
            return by_code[i].err;
        }
    for (size_t i = 0; i < ARRAY_LEN(by_status); i++)
        if (o->status == by_status[i].status) {
            d->retryable = by_status[i].retryable;
            d->unknown_outcome = by_status[i].unknown && changes(o->op);
            return by_status[i].err;
        }
    return -EIO;
}

static void region_message(const struct s3_outcome *o, struct obj_diag *d)
{
    const char *region = o->region[0] ? o->region : o->error.region;

    if (region[0])
        snprintf(d->message, sizeof(d->message),
                 "the bucket is in region %.63s: set region= to it in the store URL", region);
    else
        snprintf(d->message, sizeof(d->message),
                 "the store redirects (%d): the bucket is in another region or at another "
                 "endpoint; set region= or endpoint= in the store URL",
                 o->status);
}

static int classify_answer(const struct s3_outcome *o, struct obj_diag *d)
{
    const char *code = o->error.code;
    int err;

    d->http_status = o->status;
    d->retry_after_ms = o->retry_after_ms;
    snprintf(d->code, sizeof(d->code), "%s", code);
    snprintf(d->message, sizeof(d->message), "%s", o->error.message);
    if (o->status < 300 && !code[0])
        return 0;
    if (o->status >= 300 && o->status < 400 && o->status != 304) {
        region_message(o, d);
        return -EIO;
    }
    if (strcmp(code, "AuthorizationHeaderMalformed") == 0 ||
        strcmp(code, "IllegalLocationConstraintException") == 0) {
        if (o->region[0] || o->error.region[0])
            region_message(o, d);
        return -EIO;
    }
    err = classify_status(o, d);
    /* What is to be gone is gone. */
    if (err == -ENOENT && (o->op == OBJ_DELETE || o->op == OBJ_MP_ABORT)) {
        *d = (struct obj_diag){0};
        return 0;
    }
    /* Sent twice, and the first may be the one that made the condition fail. */
    if (err == -EEXIST && o->resent && changes(o->op))
        d->unknown_outcome = true;
    return err;
}

/* What failed on our side (memory, the file that is sent) in the words of obj_req.err. */
static int of_contract(int err)
{
    switch (err) {
    case -EACCES:
    case -EBADMSG:
    case -EOPNOTSUPP:
    case -EINVAL:
        return err;
    default:
        return -EIO;
    }
}

int s3_classify(const struct s3_outcome *o, struct obj_diag *d)
{
    int err = -EIO;

    *d = (struct obj_diag){0};
    if (o->end == HTTP_DONE)
        return classify_answer(o, d);
    snprintf(d->message, sizeof(d->message), "%s", o->text);
    switch (o->end) {
    case HTTP_UNREACHED:
        d->retryable = true;
        snprintf(d->code, sizeof(d->code), "Unreachable");
        return -EIO;
    case HTTP_REFUSED:
        d->http_status = o->status;
        d->retryable = o->transient;
        snprintf(d->code, sizeof(d->code), "%s", err_name(o->local_err));
        err = of_contract(o->local_err);
        /* An answer came but it cannot be made out. */
        d->unknown_outcome = o->status && changes(o->op);
        return err;
    case HTTP_BROKEN:
        d->retryable = true;
        d->unknown_outcome = o->sent && changes(o->op);
        snprintf(d->code, sizeof(d->code), "ECONNRESET");
        return -EIO;
    case HTTP_STALLED:
    case HTTP_EXPIRED:
        d->retryable = o->end == HTTP_STALLED;
        d->unknown_outcome = o->sent && changes(o->op);
        err = -ETIMEDOUT;
        break;
    case HTTP_CANCELLED:
        d->unknown_outcome = o->sent && changes(o->op);
        err = -ECANCELED;
        break;
    case HTTP_UNTRUSTED:
        snprintf(d->code, sizeof(d->code), "Untrusted");
        snprintf(d->message, sizeof(d->message),
                 "TLS: the store's certificate is not trusted (AWS_CA_BUNDLE names other CAs): "
                 "%.70s",
                 o->text);
        return -EIO;
    default:
        d->unknown_outcome = o->sent && changes(o->op);
        break;
    }
    snprintf(d->code, sizeof(d->code), "%s", err_name(err));
    return err;
}

/* ---- results ---- */

static int give_row(void *arg, const struct obj_entry *e)
{
    struct s3_op *op = arg;
    struct obj_entry row = *e;
    size_t n = strlen(op->s3->prefix);
    const char *wanted = op->r->key ? op->r->key : "";

    if (strncmp(e->key, op->s3->prefix, n) != 0 || strncmp(e->key + n, wanted, strlen(wanted)) != 0)
        return contradiction(op, -EBADMSG, "a listing holds a key that is not under its prefix");
    row.key = e->key + n;
    if (row.key[0] == '\0')
        return 0; /* the prefix's own directory marker: not one of our objects */
    op->r->each(op->r, &row);
    return 0;
}

static int page_result(struct s3_op *op)
{
    struct obj_req *r = op->r;
    struct s3_page page;
    struct sbuf token = {0};
    int err = s3_xml_list(sbuf_cstr(&op->answer), op->answer.len, &page, give_row, op);

    if (err)
        return err;
    if (page.truncated && r->op == OBJ_LIST) {
        sbuf_str(&token, page.token.p);
    } else if (page.truncated) {
        s3_encode(&token, page.key_marker.p, false);
        sbuf_char(&token, '&');
        s3_encode(&token, sbuf_cstr(&page.upload_marker), false);
    }
    if (page.truncated && r->token && !token.bad && strcmp(r->token, token.p) == 0)
        err = contradiction(op, -EBADMSG, "the listing does not get on: same token again");
    s3_page_free(&page);
    if (token.bad || err) {
        sbuf_free(&token);
        return err ? err : -ENOMEM;
    }
    r->next_token = token.p;
    return 0;
}

/* Reads what a 2xx answer says. An error document behind 200 goes to *error. */
static int success(struct s3_op *op, struct s3_error *error)
{
    struct obj_req *r = op->r;
    const char *p = sbuf_cstr(&op->answer);
    size_t n = op->answer.len;

    if (r->op != OBJ_GET)
        memcpy(r->info.etag, op->head.etag, sizeof(r->info.etag));
    switch (r->op) {
    case OBJ_GET:
        if (op->got < r->len) {
            op->transient = true;
            return contradiction(op, -EIO, "the answer ended before the range");
        }
        return 0;
    case OBJ_HEAD:
        r->info.size = op->head.length;
        return op->head.has_length ? 0 : contradiction(op, -EBADMSG, "HEAD came without a length");
    case OBJ_PUT:
        r->info.size = op->http.body_len;
        return 0;
    case OBJ_MP_PART:
        r->info.size = op->http.body_len;
        return r->info.etag[0] ? 0 : contradiction(op, -EBADMSG, "a part came without an ETag");
    case OBJ_LIST:
    case OBJ_MP_LIST:
        return page_result(op);
    case OBJ_DELETE_BATCH:
        if (n == 0)
            return 0; /* quiet: some servers send nothing at all */
        if (s3_xml_deleted(p, n, &r->failed_n, error) == 0)
            return r->failed_n ? -EIO : 0;
        if (s3_xml_error(p, n, error) == 0)
            return -EIO;
        r->failed_n = r->keys_n;
        return -EBADMSG;
    case OBJ_MP_CREATE:
        return s3_xml_upload_id(p, n, &r->new_upload_id);
    case OBJ_MP_COMPLETE:
        return s3_xml_complete(p, n, r->info.etag, error);
    default:
        return 0;
    }
}

/* Blanks `secret` where it stands in `text`, also where the text was cut within it. One of a few characters
 * hides nothing and would take parts of common words along. */
static void blank(char *text, const char *secret)
{
    enum { SECRET_MIN = 4, TELLING = 6 }; /* of its beginning, fewer give nothing away */
    size_t n = strlen(secret);

    if (n < SECRET_MIN)
        return;
    for (char *at = text; (at = strstr(at, secret)); at += n)
        memset(at, '*', n);
    size_t len = strlen(text);
    for (size_t part = n - 1 < len ? n - 1 : len; n > TELLING && part >= TELLING; part--)
        if (memcmp(text + len - part, secret, part) == 0) {
            memset(text + len - part, '*', part);
            return;
        }
}

/* Some servers answer a refused request with what it was signed with. The code stays as it is: it is compared
 * (s3.c), and is a word of the protocol. */
static void keep_secrets(const struct s3_op *op, struct obj_diag *d)
{
    static const char name[] = "Signature=";
    const char *sig = strstr(sbuf_cstr(&op->auth), name);
    const char *secrets[] = {
        op->key ? op->key->id : "",
        op->key ? op->key->secret : "",
        op->key ? op->key->token : "",
        sig ? sig + sizeof(name) - 1 : "",
    };

    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        blank(d->message, secrets[i]);
        blank(d->request_id, secrets[i]);
    }
}

int s3_answer(struct s3_op *op)
{
    struct http_req *q = &op->http;
    struct obj_req *r = op->r;
    struct s3_outcome o = {
        .op = r->op,
        .end = q->end,
        .status = q->status,
        .local_err = q->err,
        .sent = q->sent,
        .resent = q->resent,
        .region = op->head.region,
        .retry_after_ms = op->head.retry_after_ms,
    };

    tell(op);
    if (q->end == HTTP_DONE && q->status >= 300) {
        if (op->answer.len)
            s3_xml_error(op->answer.p, op->answer.len, &o.error);
    } else if (q->end == HTTP_DONE) {
        int err = success(op, &o.error);
        if (err && !o.error.code[0]) { /* found here, not said by the store */
            o.end = HTTP_REFUSED;
            o.local_err = err;
            if (!op->why[0])
                contradiction(op, err, "the answer cannot be understood");
        }
    }
    o.text = op->why[0] ? op->why : o.local_err == -ENOMEM ? "out of memory" : q->text;
    o.transient = op->transient || o.local_err == -ENOMEM;
    int err = s3_classify(&o, &r->diag);
    if (r->op == OBJ_DELETE_BATCH && err && !r->failed_n)
        r->failed_n = r->keys_n;
    if (err)
        snprintf(r->diag.request_id, sizeof(r->diag.request_id), "%s",
                 o.error.request_id[0] ? o.error.request_id : op->head.request_id);
    keep_secrets(op, &r->diag);
    return err;
}
