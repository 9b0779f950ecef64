/* s3_request.c: turns an obj_req into an HTTP request.
 *
 * s3_build does what stays the same over time; s3_seal, right before sending, adds date, token and
 * signature. Everything that we set is signed. Pure but for the body, which reads the caller's
 * memory and files.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include "fs/base/io.h"
#include "objstore/s3.h"

static void header(struct s3_op *op, const char *name, const char *value)
{
    assert(op->sign_n < S3_HEADERS_MAX);
    struct sbuf *v = &op->values[op->sign_n];
    sbuf_str(v, value);
    op->sign[op->sign_n++].name = name;
}

static const char *text_of(const char *s)
{
    return s ? s : "";
}

/* The key as the bucket knows it. */
static int full_key(struct s3_op *op, const char *key, struct sbuf *b)
{
    sbuf_str(b, op->s3->prefix);
    sbuf_str(b, key);
    if (b->len >= OBJ_KEY_MAX) {
        snprintf(op->why, sizeof(op->why), "prefix and key have %zu bytes; S3 allows %u", b->len,
                 OBJ_KEY_MAX - 1);
        return -EINVAL;
    }
    return b->bad ? -ENOMEM : 0;
}

static int object_path(struct s3_op *op)
{
    struct sbuf key = {0};
    int r = full_key(op, op->r->key, &key);

    if (r == 0) {
        sbuf_fmt(&op->path, "%s/", op->s3->root);
        s3_encode(&op->path, key.p, true);
    }
    sbuf_free(&key);
    return r;
}

static void bucket_path(struct s3_op *op)
{
    sbuf_str(&op->path, op->s3->root[0] ? op->s3->root : "/");
}

static void hash_hex(struct s3_op *op, const uint8_t h[static SHA256_BYTES])
{
    s3_hex(h, SHA256_BYTES, op->payload);
}

static void checksum_header(struct s3_op *op, const uint8_t h[static SHA256_BYTES])
{
    char b64[4 * ((SHA256_BYTES + 2) / 3) + 1];

    s3_base64(h, SHA256_BYTES, b64);
    header(op, "x-amz-checksum-sha256", b64);
}

/* A body that we wrote ourselves: hash, checksum and, where this machine allows it, MD5. */
static void xml_body(struct s3_op *op)
{
    uint8_t h[SHA256_BYTES];
    uint8_t md5[16];
    char b64[32];

    sha256_once(sbuf_cstr(&op->xml), op->xml.len, h);
    hash_hex(op, h);
    if (op->r->op == OBJ_DELETE_BATCH) {
        checksum_header(op, h);
        if (s3_md5(sbuf_cstr(&op->xml), op->xml.len, md5)) {
            s3_base64(md5, sizeof(md5), b64);
            header(op, "content-md5", b64);
        }
    }
    op->http.has_body = true;
    op->http.body_len = op->xml.len;
}

static void data_body(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    uint64_t len = 0;
    bool memory = true;
    bool known = r->flags & OBJ_HAS_SHA256;
    uint8_t h[SHA256_BYTES];

    for (unsigned i = 0; i < r->body_n; i++) {
        len += r->body[i].len;
        memory = memory && (r->body[i].mem || r->body[i].len == 0);
    }
    op->http.has_body = true;
    op->http.body_len = len;
    if (known) {
        memcpy(h, r->sha256, sizeof(h));
    } else if (memory && len <= S3_HASH_BELOW) {
        struct sha256 *s = sha256_new();
        for (unsigned i = 0; s && i < r->body_n; i++)
            sha256_add(s, r->body[i].mem, (size_t)r->body[i].len);
        if (s) {
            sha256_final(s, h);
            sha256_free(s);
            known = true;
        }
    }
    if (!known) {
        snprintf(op->payload, sizeof(op->payload), "%s", S3_UNSIGNED_PAYLOAD);
        return;
    }
    hash_hex(op, h);
    /* AWS takes a part's checksum header only from an upload that was created with that algorithm
     * and then wants every checksum again at its end. It checks the signed hash instead; other
     * servers may check only the header. */
    if (r->op == OBJ_PUT || !op->s3->aws)
        checksum_header(op, h);
}

static void conditions(struct s3_op *op)
{
    if (op->r->flags & OBJ_IF_ABSENT)
        header(op, "if-none-match", "*");
    if (op->r->flags & OBJ_IF_MATCH)
        header(op, "if-match", op->r->etag);
}

static int list_query(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    struct sbuf prefix = {0}, after = {0};
    struct s3_pair p[S3_PARAMS_MAX] = {{"list-type", "2"}, {"encoding-type", "url"}};
    unsigned n = 2;
    char max[16];
    int err = full_key(op, text_of(r->key), &prefix);

    snprintf(max, sizeof(max), "%u", r->max_keys && r->max_keys < 1000 ? r->max_keys : 1000);
    p[n++] = (struct s3_pair){"max-keys", max};
    if (prefix.len)
        p[n++] = (struct s3_pair){"prefix", prefix.p};
    if (r->token) {
        p[n++] = (struct s3_pair){"continuation-token", r->token};
    } else if (r->start_after && !err) {
        err = full_key(op, r->start_after, &after);
        p[n++] = (struct s3_pair){"start-after", sbuf_cstr(&after)};
    }
    s3_query(&op->query, p, n);
    sbuf_free(&prefix);
    sbuf_free(&after);
    return err;
}

/* The token of a page of uploads is its two markers, encoded, with '&' between. */
static int uploads_query(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    struct sbuf prefix = {0};
    struct s3_pair p[S3_PARAMS_MAX] = {{"uploads", ""}, {"encoding-type", "url"}};
    unsigned n = 2;
    char *key_marker = r->token ? strdup(r->token) : NULL;
    int err = full_key(op, text_of(r->key), &prefix);

    if (prefix.len)
        p[n++] = (struct s3_pair){"prefix", prefix.p};
    if (key_marker) {
        char *id_marker = strchr(key_marker, '&');
        if (id_marker)
            *id_marker++ = '\0';
        if (!id_marker || !s3_decode(key_marker, false) || !s3_decode(id_marker, false)) {
            snprintf(op->why, sizeof(op->why), "the continuation token is not one of ours");
            err = -EINVAL;
        } else {
            p[n++] = (struct s3_pair){"key-marker", key_marker};
            if (*id_marker)
                p[n++] = (struct s3_pair){"upload-id-marker", id_marker};
        }
    } else if (r->token) {
        err = -ENOMEM;
    }
    if (!err)
        s3_query(&op->query, p, n);
    sbuf_free(&prefix);
    free(key_marker);
    return err;
}

static int delete_batch(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    struct sbuf key = {0};
    int err = 0;

    sbuf_str(&op->xml, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                       "<Quiet>true</Quiet>");
    for (unsigned i = 0; i < r->keys_n && !err; i++) {
        sbuf_clear(&key);
        err = full_key(op, r->keys[i], &key);
        sbuf_str(&op->xml, "<Object><Key>");
        if (!err && !s3_xml_escape(&op->xml, key.p)) {
            snprintf(op->why, sizeof(op->why),
                     "a key has a control character, which XML cannot carry: delete it alone");
            err = -EOPNOTSUPP;
        }
        sbuf_str(&op->xml, "</Key></Object>");
    }
    sbuf_str(&op->xml, "</Delete>");
    sbuf_free(&key);
    bucket_path(op);
    s3_query(&op->query, (struct s3_pair[]){{"delete", ""}}, 1);
    if (!err)
        xml_body(op);
    return err;
}

static int complete(struct s3_op *op)
{
    const struct obj_req *r = op->r;

    sbuf_str(&op->xml,
             "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (unsigned i = 0; i < r->parts_n; i++) {
        sbuf_fmt(&op->xml, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        if (!s3_xml_escape(&op->xml, r->part_etags[i]))
            return -EINVAL;
        sbuf_str(&op->xml, "</ETag></Part>");
    }
    sbuf_str(&op->xml, "</CompleteMultipartUpload>");
    s3_query(&op->query, (struct s3_pair[]){{"uploadId", r->upload_id}}, 1);
    xml_body(op);
    conditions(op);
    return object_path(op);
}

static int part(struct s3_op *op)
{
    char no[16];

    snprintf(no, sizeof(no), "%u", op->r->part_no);
    s3_query(&op->query, (struct s3_pair[]){{"partNumber", no}, {"uploadId", op->r->upload_id}}, 2);
    data_body(op);
    return object_path(op);
}

static int build(struct s3_op *op)
{
    const struct obj_req *r = op->r;
    char range[64];

    switch (r->op) {
    case OBJ_PUT:
        op->method = "PUT";
        data_body(op);
        conditions(op);
        return object_path(op);
    case OBJ_GET:
        op->method = "GET";
        snprintf(range, sizeof(range), "bytes=%llu-%llu", (unsigned long long)r->off,
                 (unsigned long long)(r->off + r->len - 1));
        header(op, "range", range);
        conditions(op);
        return object_path(op);
    case OBJ_HEAD:
        op->method = "HEAD";
        return object_path(op);
    case OBJ_LIST:
        op->method = "GET";
        bucket_path(op);
        return list_query(op);
    case OBJ_DELETE:
        op->method = "DELETE";
        conditions(op);
        return object_path(op);
    case OBJ_DELETE_BATCH:
        op->method = "POST";
        return delete_batch(op);
    case OBJ_MP_CREATE:
        op->method = "POST";
        s3_query(&op->query, (struct s3_pair[]){{"uploads", ""}}, 1);
        op->http.has_body = true;
        return object_path(op);
    case OBJ_MP_PART:
        op->method = "PUT";
        return part(op);
    case OBJ_MP_COMPLETE:
        op->method = "POST";
        return complete(op);
    case OBJ_MP_ABORT:
        op->method = "DELETE";
        s3_query(&op->query, (struct s3_pair[]){{"uploadId", r->upload_id}}, 1);
        return object_path(op);
    case OBJ_MP_LIST:
        op->method = "GET";
        bucket_path(op);
        return uploads_query(op);
    case OBJ_OP_COUNT:
        break;
    }
    assert(!"an operation");
    return -EINVAL;
}

int s3_build(struct s3_op *op)
{
    uint8_t h[SHA256_BYTES];
    int r;

    header(op, "host", op->s3->host);
    r = build(op);
    if (r < 0)
        return r;
    if (!op->payload[0]) {
        sha256_once("", 0, h);
        hash_hex(op, h);
    }
    header(op, "x-amz-content-sha256", op->payload);
    return op->path.bad || op->query.bad || op->xml.bad ? -ENOMEM : 0;
}

int s3_seal(struct s3_op *op, int64_t wall_ms)
{
    struct http_req *q = &op->http;
    bool bad = false;

    s3_amz_date(wall_ms / 1000, op->amz_date);
    header(op, "x-amz-date", op->amz_date);
    if (op->key->token[0])
        header(op, "x-amz-security-token", op->key->token);
    for (unsigned i = 0; i < op->sign_n; i++)
        op->sign[i].value = sbuf_cstr(&op->values[i]);
    const struct s3_sign_in in = {.method = op->method,
                                  .path = sbuf_cstr(&op->path),
                                  .query = sbuf_cstr(&op->query),
                                  .headers = op->sign,
                                  .headers_n = op->sign_n,
                                  .payload_hash = op->payload,
                                  .region = op->s3->region,
                                  .service = "s3",
                                  .amz_date = op->amz_date,
                                  .key = op->key};
    sbuf_str(&op->auth, "Authorization: ");
    s3_sign(&op->auth, &in);
    sbuf_fmt(&op->url, "%s%s%s%s", op->s3->base, in.path, op->query.len ? "?" : "", in.query);

    q->method = op->method;
    q->url = sbuf_cstr(&op->url);
    q->headers_n = 0;
    for (unsigned i = 0; i < op->sign_n; i++) {
        sbuf_fmt(&op->lines[i], "%s: %s", op->sign[i].name, op->sign[i].value);
        q->headers[q->headers_n++] = sbuf_cstr(&op->lines[i]);
        bad = bad || op->lines[i].bad || op->values[i].bad;
    }
    q->headers[q->headers_n++] = sbuf_cstr(&op->auth);
    return bad || op->auth.bad || op->url.bad ? -ENOMEM : 0;
}

ssize_t s3_body(struct http_req *q, void *buf, size_t cap, uint64_t off)
{
    struct s3_op *op = container_of(q, struct s3_op, http);
    const struct obj_req *r = op->r;

    if (op->xml.len) {
        size_t n = op->xml.len - (size_t)off;
        n = n < cap ? n : cap;
        memcpy(buf, op->xml.p + off, n);
        return (ssize_t)n;
    }
    if (off < op->piece_off) { /* sent again from the start */
        op->piece = 0;
        op->piece_off = 0;
    }
    while (op->piece < r->body_n && off - op->piece_off >= r->body[op->piece].len)
        op->piece_off += r->body[op->piece++].len;
    assert(op->piece < r->body_n);
    const struct obj_body *b = &r->body[op->piece];
    uint64_t at = off - op->piece_off;
    size_t n = cap < S3_PIECE ? cap : S3_PIECE;
    if (n > b->len - at)
        n = (size_t)(b->len - at);
    if (b->mem) {
        memcpy(buf, (const char *)b->mem + at, n);
        return (ssize_t)n;
    }
    ssize_t got = io_pread(b->fd, buf, n, b->off + at);
    if (got <= 0)
        snprintf(op->why, sizeof(op->why),
                 got == 0 ? "the file to send is shorter than its range"
                          : "the file to send cannot be read");
    return got == 0 ? -EIO : got;
}
