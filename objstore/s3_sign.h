/* s3_sign.h: AWS Signature Version 4 as pure functions of request, key and time.
 *
 * Nothing here blocks, locks or keeps state; any thread. Strings are NUL-terminated; names and
 * values may hold any other byte.
 */
#ifndef SLUICE_OBJSTORE_S3_SIGN_H
#define SLUICE_OBJSTORE_S3_SIGN_H

#include <stdint.h>
#include "fs/base/hash.h"
#include "objstore/sbuf.h"

enum {
    S3_KEY_ID_MAX = 256,
    S3_SECRET_MAX = 512,
    S3_TOKEN_MAX = 8192, /* session tokens of some identity providers are several KiB */
    S3_PARAMS_MAX = 12,
    S3_HEADERS_MAX = 24
};

struct s3_key {
    char id[S3_KEY_ID_MAX];
    char secret[S3_SECRET_MAX];
    char token[S3_TOKEN_MAX]; /* "": a long-lived key */
};

/* A name and a value: of a query parameter (raw bytes) or of a header (name in lower case). */
struct s3_pair {
    const char *name, *value;
};

struct s3_sign_in {
    const char *method;
    const char *path;              /* as on the wire, percent-encoded already; begins with '/' */
    const char *query;             /* as on the wire: made by s3_query; "" without one */
    const struct s3_pair *headers; /* all that shall be signed, host and x-amz-date among them */
    unsigned headers_n;            /* at most S3_HEADERS_MAX */
    const char *payload_hash;      /* hex, or UNSIGNED-PAYLOAD */
    const char *region, *service;
    const char *amz_date; /* YYYYMMDDTHHMMSSZ, same as the header */
    const struct s3_key *key;
};

#define S3_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"
#define S3_AMZ_DATE_MAX     17u

/* Appends `s` percent-encoded as S3 wants it: all but A-Z a-z 0-9 - . _ ~ (and '/' if asked). */
void s3_encode(struct sbuf *b, const char *s, bool keep_slash);

/* Appends the canonical query string: encoded, sorted, '=' always there. It is also what is sent. */
void s3_query(struct sbuf *b, const struct s3_pair *params, unsigned n);

/* Seconds since 1970 as YYYYMMDDTHHMMSSZ. */
void s3_amz_date(int64_t unix_sec, char out[static S3_AMZ_DATE_MAX]);

/* Appends the canonical request: what is hashed and signed. Made public for the tests. */
void s3_canonical(struct sbuf *b, const struct s3_sign_in *in);

/* Appends the value of the Authorization header. */
void s3_sign(struct sbuf *b, const struct s3_sign_in *in);

void s3_hex(const uint8_t *p, size_t n, char *out);           /* 2n characters and a NUL */
void s3_base64(const uint8_t *p, size_t n, char *out);        /* 4*ceil(n/3) and a NUL */
bool s3_md5(const void *p, size_t n, uint8_t out[static 16]); /* false: this machine forbids MD5 */

#endif
