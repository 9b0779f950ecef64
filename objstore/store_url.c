/* store_url.c: parses a store URL strictly; every refusal names the part and the remedy.
 *
 *     dir:///absolute/path
 *     s3://bucket[/prefix][?endpoint=URL&region=NAME&addressing=path|virtual]
 *     mem:            (tests)
 *
 * Values are percent-decoded. Pure function of its text: what the environment adds (region,
 * endpoint) is added by s3_open.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/cleanup.h"
#include "objstore/stack.h"

struct parse {
    char *why;
    size_t why_cap;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct parse *p, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    snprintf(p->why, p->why_cap, "store URL: %s", text);
    return -EINVAL;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decodes [s, s+n) into `to`. */
static int decode(const struct parse *p, const char *part, const char *s, size_t n, char *to,
                  size_t cap)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex_digit(s[i + 1]) : -1;
            int lo = i + 2 < n ? hex_digit(s[i + 2]) : -1;
            if (hi < 0 || lo < 0 || (hi == 0 && lo == 0))
                return refuse(p, "%s has a malformed %%-escape; write '%%25' for a percent sign",
                              part);
            c = (char)(hi << 4 | lo);
            i += 2;
        }
        if (len + 1 >= cap)
            return refuse(p, "%s is longer than %zu bytes", part, cap - 1);
        to[len++] = c;
    }
    to[len] = '\0';
    return 0;
}

static bool all_of(const char *s, const char *extra)
{
    for (; *s; s++) {
        bool alnum = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                     (*s >= '0' && *s <= '9');
        if (!alnum && !strchr(extra, *s))
            return false;
    }
    return true;
}

static int parse_dir(const struct parse *p, const char *s, struct store_url *ret)
{
    ret->kind = STORE_DIR;
    if (strncmp(s, "//", 2) != 0 || s[2] != '/')
        return refuse(p, "a directory needs an absolute path; write dir:///path");
    s += 2;
    if (strchr(s, '?'))
        return refuse(p, "a directory takes no parameters; write '%%3F' for a question mark");
    int r = decode(p, "path", s, strlen(s), ret->path, sizeof(ret->path));
    if (r < 0)
        return r;
    for (size_t n = strlen(ret->path); n > 1 && ret->path[n - 1] == '/'; n--)
        ret->path[n - 1] = '\0';
    return 0;
}

static int check_prefix(const struct parse *p, char *prefix)
{
    size_t n = strlen(prefix);

    while (n > 0 && prefix[n - 1] == '/')
        prefix[--n] = '\0';
    for (const char *s = prefix; n > 0;) {
        size_t len = strcspn(s, "/");
        if (len == 0 || (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.'))
            return refuse(p, "prefix '%s' has an empty, '.' or '..' component; leave it out",
                          prefix);
        if (!s[len])
            break;
        s += len + 1;
    }
    /* Room for '/' and a key. */
    if (n > OBJ_KEY_MAX / 2)
        return refuse(p, "prefix is longer than %u bytes", OBJ_KEY_MAX / 2);
    return 0;
}

static int check_endpoint(const struct parse *p, char *endpoint)
{
    char *host = strstr(endpoint, "://");

    if (!host || (strncmp(endpoint, "http://", 7) != 0 && strncmp(endpoint, "https://", 8) != 0))
        return refuse(p, "endpoint '%s' must begin with http:// or https://", endpoint);
    host += 3;
    if (strchr(host, '@'))
        return refuse(p, "endpoint contains credentials; put them into ~/.aws/credentials or "
                         "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    size_t n = strlen(host);
    if (n > 0 && host[n - 1] == '/')
        host[--n] = '\0';
    if (n == 0 || host[0] == ':')
        return refuse(p, "endpoint has no host; write http://host:port");
    if (strchr(host, '/') || strchr(host, '?') || strchr(host, '#'))
        return refuse(p, "endpoint has a path or parameters; only http[s]://host[:port] works");
    if (!all_of(host, ".-_:[]"))
        return refuse(p, "endpoint has a character that no host name has");
    const char *port = strrchr(host, ':');
    const char *bracket = strchr(host, ']');
    if (port && (!bracket || port > bracket)) {
        char *end;
        long v = strtol(port + 1, &end, 10);
        if (end == port + 1 || *end || v < 1 || v > 65535 || port[1] == '-')
            return refuse(p, "endpoint port '%s' is not a number from 1 to 65535", port + 1);
    }
    return 0;
}

static bool looks_secret(const char *name)
{
    static const char *const words[] = {"key", "secret", "token", "password", "credential"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcasestr(name, words[i]))
            return true;
    return false;
}

enum { GOT_ENDPOINT = 1, GOT_REGION = 2, GOT_ADDRESSING = 4 };

static int parse_param(const struct parse *p, const char *s, size_t n, unsigned *got,
                       struct store_url *ret)
{
    const char *eq = memchr(s, '=', n);
    size_t name_n = eq ? (size_t)(eq - s) : n;
    const char *value = eq ? eq + 1 : s + n;
    size_t value_n = (size_t)(s + n - value);
    char name[64];
    char way[16];
    unsigned bit;
    int r;

    snprintf(name, sizeof(name), "%.*s", (int)(name_n < 60 ? name_n : 60), s);
    if (looks_secret(name))
        return refuse(p,
                      "parameter '%s': a URL must not hold credentials; put them into "
                      "~/.aws/credentials or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                      name);
    if (strcmp(name, "endpoint") == 0)
        bit = GOT_ENDPOINT;
    else if (strcmp(name, "region") == 0)
        bit = GOT_REGION;
    else if (strcmp(name, "addressing") == 0)
        bit = GOT_ADDRESSING;
    else
        return refuse(p, "unknown parameter '%s'; use endpoint, region, addressing", name);
    if (*got & bit)
        return refuse(p, "parameter '%s' is given twice", name);
    if (value_n == 0)
        return refuse(p, "parameter '%s' has no value", name);
    *got |= bit;
    switch (bit) {
    case GOT_ENDPOINT:
        r = decode(p, "endpoint", value, value_n, ret->endpoint, sizeof(ret->endpoint));
        return r < 0 ? r : check_endpoint(p, ret->endpoint);
    case GOT_REGION:
        r = decode(p, "region", value, value_n, ret->region, sizeof(ret->region));
        if (r == 0 && !all_of(ret->region, "-_"))
            r = refuse(p, "region '%s' is not a region's name (like us-east-1)", ret->region);
        return r;
    default:
        r = decode(p, "addressing", value, value_n, way, sizeof(way));
        if (r < 0)
            return r;
        ret->path_style = strcmp(way, "path") == 0;
        ret->addressing_set = true;
        if (!ret->path_style && strcmp(way, "virtual") != 0)
            return refuse(p, "addressing '%s' is unknown; use path or virtual", way);
        return 0;
    }
}

static int parse_s3(const struct parse *p, const char *s, struct store_url *ret)
{
    unsigned got = 0;
    int r;

    ret->kind = STORE_S3;
    if (strncmp(s, "//", 2) != 0)
        return refuse(p, "write s3://bucket/prefix");
    s += 2;
    if (strchr(s, '#'))
        return refuse(p, "it has a fragment; write '%%23' for a '#' in the prefix");
    size_t bucket_n = strcspn(s, "/?");
    if (memchr(s, '@', bucket_n))
        return refuse(p, "the bucket part contains credentials or '@'; put credentials into "
                         "~/.aws/credentials or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    if (bucket_n >= 64 || bucket_n < 3)
        return refuse(p, "the bucket's name must have 3 to 63 characters");
    memcpy(ret->bucket, s, bucket_n);
    ret->bucket[bucket_n] = '\0';
    if (!all_of(ret->bucket, ".-_") || ret->bucket[0] == '.' || ret->bucket[0] == '-' ||
        strstr(ret->bucket, ".."))
        return refuse(p, "bucket '%s' is not a bucket's name (letters, digits, '.', '-')",
                      ret->bucket);
    s += bucket_n;
    if (*s == '/')
        s++;
    size_t prefix_n = strcspn(s, "?");
    r = decode(p, "prefix", s, prefix_n, ret->prefix, sizeof(ret->prefix));
    if (r < 0)
        return r;
    r = check_prefix(p, ret->prefix);
    s += prefix_n;
    if (*s == '?')
        s++;
    while (r == 0 && *s) {
        size_t n = strcspn(s, "&");
        if (n == 0)
            return refuse(p, "there is an empty parameter between '&'");
        r = parse_param(p, s, n, &got, ret);
        s += n;
        if (*s == '&')
            s++;
    }
    if (r == 0 && !ret->addressing_set)
        ret->path_style = (got & GOT_ENDPOINT) != 0;
    return r;
}

int store_url_parse(const char *text, struct store_url *ret, char *why, size_t why_cap)
{
    struct parse p = {.why = why, .why_cap = why_cap};
    size_t scheme_n = strcspn(text, ":");
    int r;

    assert(why_cap > 0);
    why[0] = '\0';
    *ret = (struct store_url){0};
    if (text[scheme_n] != ':')
        r = refuse(&p, "it has no scheme; use dir:///path or s3://bucket/prefix");
    else if (scheme_n == 3 && strncmp(text, "dir", 3) == 0)
        r = parse_dir(&p, text + 4, ret);
    else if (scheme_n == 2 && strncmp(text, "s3", 2) == 0)
        r = parse_s3(&p, text + 3, ret);
    else if (strcmp(text, "mem:") == 0)
        ret->kind = STORE_MEM, r = 0;
    else
        r = refuse(&p, "unknown scheme '%.*s'; use dir:///path or s3://bucket/prefix",
                   (int)(scheme_n < 32 ? scheme_n : 32), text);
    if (r < 0)
        *ret = (struct store_url){0};
    return r;
}
