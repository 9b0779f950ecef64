/* s3_sign.c: AWS Signature Version 4, written from its public description.
 *
 *     canonical request -> SHA-256 -> string to sign -> HMAC by a key derived from secret, day,
 *     region and service -> Authorization header
 *
 * The query is sorted and encoded once and used both on the wire and in the canonical form, so the
 * two cannot differ. The same holds for the path: S3 takes it as sent, without normalising.
 * Derived keys live on the stack and are cleared.
 */
#include "objstore/s3_sign.h"

#include <assert.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <time.h>

static bool plain(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void s3_encode(struct sbuf *b, const char *s, bool keep_slash)
{
    static const char hex[] = "0123456789ABCDEF";

    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (plain(c) || (c == '/' && keep_slash))
            sbuf_char(b, (char)c);
        else
            sbuf_add(b, (char[3]){'%', hex[c >> 4], hex[c & 15]}, 3);
    }
}

void s3_hex(const uint8_t *p, size_t n, char *out)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = hex[p[i] >> 4];
        out[2 * i + 1] = hex[p[i] & 15];
    }
    out[2 * n] = '\0';
}

void s3_base64(const uint8_t *p, size_t n, char *out)
{
    EVP_EncodeBlock((unsigned char *)out, p, (int)n);
}

bool s3_md5(const void *p, size_t n, uint8_t out[static 16])
{
    unsigned len = 16;

    return EVP_Digest(p, n, out, &len, EVP_md5(), NULL) == 1;
}

void s3_query(struct sbuf *b, const struct s3_pair *params, unsigned n)
{
    struct sbuf part[S3_PARAMS_MAX] = {0};

    assert(n <= S3_PARAMS_MAX);
    for (unsigned i = 0; i < n; i++) {
        s3_encode(&part[i], params[i].name, false);
        sbuf_char(&part[i], '=');
        s3_encode(&part[i], params[i].value, false);
        b->bad |= part[i].bad;
    }
    /* Sorted by encoded name, then value. '=' would sort wrongly against characters below it, but
     * only '-' and '.' and digits are below it and a name that goes on with one of them must come
     * behind the shorter name: compare names first. */
    for (unsigned i = 1; i < n; i++) {
        struct sbuf x = part[i];
        unsigned j = i;
        for (; j > 0 && !b->bad; j--) {
            size_t xn = strcspn(x.p, "=");
            size_t yn = strcspn(part[j - 1].p, "=");
            int c = memcmp(x.p, part[j - 1].p, xn < yn ? xn : yn);
            if (c == 0)
                c = xn != yn ? (xn < yn ? -1 : 1) : strcmp(x.p + xn, part[j - 1].p + yn);
            if (c >= 0)
                break;
            part[j] = part[j - 1];
        }
        part[j] = x;
    }
    for (unsigned i = 0; i < n; i++) {
        if (i)
            sbuf_char(b, '&');
        sbuf_str(b, sbuf_cstr(&part[i]));
        sbuf_free(&part[i]);
    }
}

void s3_amz_date(int64_t unix_sec, char out[static S3_AMZ_DATE_MAX])
{
    time_t t = (time_t)unix_sec;
    struct tm tm;

    gmtime_r(&t, &tm);
    strftime(out, S3_AMZ_DATE_MAX, "%Y%m%dT%H%M%SZ", &tm);
}

/* Order of the headers by name; they are few. */
static void sort_headers(const struct s3_sign_in *in, const struct s3_pair *out[])
{
    assert(in->headers_n <= S3_HEADERS_MAX);
    for (unsigned i = 0; i < in->headers_n; i++) {
        unsigned j = i;
        for (; j > 0 && strcmp(out[j - 1]->name, in->headers[i].name) > 0; j--)
            out[j] = out[j - 1];
        out[j] = &in->headers[i];
    }
}

/* A header's value without white space at the ends and with runs of spaces made one. */
static void add_trimmed(struct sbuf *b, const char *v)
{
    while (*v == ' ' || *v == '\t')
        v++;
    for (; *v; v++) {
        if (*v == ' ' && (v[1] == ' ' || v[1] == '\0'))
            continue;
        sbuf_char(b, *v);
    }
}

static void add_signed_names(struct sbuf *b, const struct s3_pair *const sorted[], unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (i)
            sbuf_char(b, ';');
        sbuf_str(b, sorted[i]->name);
    }
}

void s3_canonical(struct sbuf *b, const struct s3_sign_in *in)
{
    const struct s3_pair *sorted[S3_HEADERS_MAX];

    sort_headers(in, sorted);
    sbuf_fmt(b, "%s\n%s\n%s\n", in->method, in->path, in->query);
    for (unsigned i = 0; i < in->headers_n; i++) {
        sbuf_fmt(b, "%s:", sorted[i]->name);
        add_trimmed(b, sorted[i]->value);
        sbuf_char(b, '\n');
    }
    sbuf_char(b, '\n');
    add_signed_names(b, sorted, in->headers_n);
    sbuf_fmt(b, "\n%s", in->payload_hash);
}

static void hmac(const void *key, size_t key_n, const char *text, size_t n,
                 uint8_t out[static SHA256_BYTES])
{
    unsigned len = SHA256_BYTES;
    void *r = HMAC(EVP_sha256(), key, (int)key_n, (const unsigned char *)text, n, out, &len);
    assert(r && len == SHA256_BYTES);
    (void)r;
}

void s3_sign(struct sbuf *b, const struct s3_sign_in *in)
{
    const struct s3_pair *sorted[S3_HEADERS_MAX];
    struct sbuf canonical = {0}, scope = {0}, to_sign = {0};
    uint8_t h[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    char secret[4 + S3_SECRET_MAX];

    s3_canonical(&canonical, in);
    sha256_once(sbuf_cstr(&canonical), canonical.len, h);
    s3_hex(h, sizeof(h), hex);
    sbuf_fmt(&scope, "%.8s/%s/%s/aws4_request", in->amz_date, in->region, in->service);
    sbuf_fmt(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", in->amz_date, sbuf_cstr(&scope), hex);

    int n = snprintf(secret, sizeof(secret), "AWS4%s", in->key->secret);
    hmac(secret, (size_t)n, in->amz_date, 8, h);
    hmac(h, sizeof(h), in->region, strlen(in->region), h);
    hmac(h, sizeof(h), in->service, strlen(in->service), h);
    hmac(h, sizeof(h), "aws4_request", 12, h);
    hmac(h, sizeof(h), sbuf_cstr(&to_sign), to_sign.len, h);
    s3_hex(h, sizeof(h), hex);
    explicit_bzero(secret, sizeof(secret));

    sbuf_fmt(b, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=", in->key->id,
             sbuf_cstr(&scope));
    sort_headers(in, sorted);
    add_signed_names(b, sorted, in->headers_n);
    sbuf_fmt(b, ", Signature=%s", hex);
    b->bad |= canonical.bad || scope.bad || to_sign.bad;
    sbuf_free(&canonical);
    sbuf_free(&scope);
    sbuf_free(&to_sign);
}
