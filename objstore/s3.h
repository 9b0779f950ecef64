/* s3.h: inside the S3 backend: what its files share. Nothing else includes it but its tests.
 *
 *   s3.c          opening, life of an operation, status
 *   s3_request.c  obj_req -> method, path, query, headers, body
 *   s3_answer.c   status, headers and body -> results; s3_classify: every error in one place
 */
#ifndef SLUICE_OBJSTORE_S3_H
#define SLUICE_OBJSTORE_S3_H

#include "fs/base/lock.h"
#include "objstore/http.h"
#include "objstore/s3_cred.h"
#include "objstore/s3_sign.h"
#include "objstore/s3_xml.h"
#include "objstore/stack.h"

enum {
    S3_ERROR_BODY_MAX = 16 * 1024,
    S3_ANSWER_MAX = 8 * 1024 * 1024, /* a page of 1000 keys, each escaped to 3 KiB and more */
    S3_HASH_BELOW = 1024 * 1024,     /* bodies in memory up to this are hashed here */
    S3_PIECE = 256 * 1024,           /* one pread of a body */
    S3_PROGRESS_STEP = 64 * 1024
};

struct s3 {
    struct objstore os;
    struct http *http;
    struct s3_cred *cred;
    char base[1300];   /* http[s]://host[:port], the bucket in the host if virtual */
    char host[1284];   /* of the Host header */
    char root[260];    /* "/bucket", or "" if virtual */
    char prefix[1026]; /* "prefix/", or "" */
    char region[64];
    bool aws; /* no endpoint was given: it is the real one */
    unsigned timeout_get_ms, timeout_put_ms, timeout_small_ms;
    int64_t clock_off_ms; /* store's clock minus ours; loop thread only */
    struct lock lock;     /* guards r->layer of every request here: cancel against done */
};

/* Headers of an answer that matter. */
struct s3_head {
    char etag[OBJ_ETAG_MAX], request_id[80], region[64];
    bool has_length, has_range;
    uint64_t length;
    uint64_t range_from, range_to, range_total; /* Content-Range: both ends inclusive */
    bool total_known;
    int64_t date_ms; /* 0: not said */
    unsigned retry_after_ms;
};

struct s3_op {
    struct http_req http;
    struct s3 *s3;
    struct obj_req *r;

    /* request; built in prepare */
    const char *method;
    struct sbuf path, query, url, auth;
    struct sbuf lines[HTTP_HEADERS_MAX];
    struct s3_pair sign[S3_HEADERS_MAX]; /* names static, values in `values` */
    struct sbuf values[S3_HEADERS_MAX];
    unsigned sign_n;
    char payload[2 * SHA256_BYTES + 1];
    struct sbuf xml;    /* a body that we wrote */
    struct s3_key *key; /* that it is signed with; NULL before prepare: it is large */
    char amz_date[S3_AMZ_DATE_MAX];
    int64_t clock_off_ms; /* that was used */
    unsigned piece;       /* cursor into r->body: piece i begins at piece_off */
    uint64_t piece_off;

    /* answer */
    struct s3_head head;
    struct sbuf answer;
    uint64_t got, told; /* GET: bytes in place; of which progress was told */
    unsigned iov_i;     /* GET: cursor */
    size_t iov_off;
    bool transient; /* a local failure that may pass */
    char why[160];  /* reason of a failure found here */
};

/* Fills op->path, query, sign, xml, payload for op->r. 0; -EINVAL, -EOPNOTSUPP (op->why), -ENOMEM. */
int s3_build(struct s3_op *op);

/* Dates, signs and sets op->http's fields. Needs op->key. 0 or -ENOMEM. */
int s3_seal(struct s3_op *op, int64_t wall_ms);

/* Bytes of the request's body (http_req.body). */
ssize_t s3_body(struct http_req *q, void *buf, size_t cap, uint64_t off);

/* Callbacks of http_req for the answer. */
void s3_header(struct http_req *q, const char *name, const char *value);
int s3_data(struct http_req *q, const char *p, size_t n);

/* What is known at the end of a request, for s3_classify. */
struct s3_outcome {
    enum obj_op op;
    enum http_end end;
    int status;
    int local_err;  /* HTTP_REFUSED: found on our side */
    bool transient; /* local_err may pass */
    bool sent, resent;
    const char *text;   /* of the connection, or of local_err */
    const char *region; /* x-amz-bucket-region, or "" */
    unsigned retry_after_ms;
    struct s3_error error; /* of the body; code "" when there was none */
};

/* 0 or the error of obj_req.err with its diagnosis. Pure: what depends on clock and credentials is
 * added by s3.c. */
int s3_classify(const struct s3_outcome *o, struct obj_diag *diag);

/* Fills r's results from a finished request; returns err. */
int s3_answer(struct s3_op *op);

#endif
