/* http_slot.c: one transfer: the curl handle, its callbacks, and what it says.
 *
 * A slot is a reused curl handle with its headers and error text; it carries one request at a time.
 * The callbacks count progress, take the body from the owner and give it the answer.
 *
 * A server that refuses a large upload answers, closes and resets. What counts is its answer: when
 * sending fails, an error status that was read already is the result; and when curl gave the socket
 * up unread, the answer is taken from its receive queue as it is closed (`words`). Over TLS that
 * second way is not open: a broken connection is reported then.
 */
#include "objstore/http_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fs/base/clock.h"

enum {
    RECV_BUFFER = 256 * 1024,
    SEND_BUFFER = 256 * 1024,
    EXPECT_ABOVE = 1024 * 1024, /* larger bodies wait for 100-continue, at most EXPECT_MS */
    EXPECT_MS = 1000
};

/* ---- callbacks of curl ---- */

static void progress(struct http_req *q)
{
    q->progress_ns = clock_mono_ns();
}

static size_t on_read(char *buf, size_t size, size_t n, void *arg)
{
    struct http_req *q = arg;
    uint64_t left = q->body_len - q->body_off;
    size_t cap = size * n;

    progress(q);
    if (cap > left)
        cap = (size_t)left;
    if (cap == 0)
        return 0;
    ssize_t got = q->body(q, buf, cap, q->body_off);
    if (got <= 0) {
        q->err = got < 0 ? (int)got : -EIO;
        return CURL_READFUNC_ABORT;
    }
    q->body_off += (uint64_t)got;
    return (size_t)got;
}

static int on_seek(void *arg, curl_off_t off, int origin)
{
    struct http_req *q = arg;

    if (origin != SEEK_SET || off < 0 || (uint64_t)off > q->body_len)
        return CURL_SEEKFUNC_FAIL;
    q->body_off = (uint64_t)off;
    return CURL_SEEKFUNC_OK;
}

/* Before the request goes out on a connection: again after a kept connection turned out dead. */
static int on_start(void *arg, char *to, char *from, int to_port, int from_port)
{
    struct http_req *q = arg;

    (void)to, (void)from, (void)to_port, (void)from_port;
    q->resent = q->started;
    q->started = true;
    return CURL_PREREQFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct http_req *q = arg;
    size_t len = size * n;
    char copy[8192];

    progress(q);
    while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r' || line[len - 1] == ' '))
        len--;
    if (len >= sizeof(copy))
        return size * n; /* nothing that we read is that long */
    memcpy(copy, line, len);
    copy[len] = '\0';
    if (strncmp(copy, "HTTP/", 5) == 0) {
        const char *sp = strchr(copy, ' ');
        int status = sp ? (int)strtol(sp + 1, NULL, 10) : 0;
        if (status >= 200) {
            q->status = status;
            if (q->header)
                q->header(q, NULL, NULL);
        }
        return size * n;
    }
    char *colon = strchr(copy, ':');
    if (!colon || q->status < 200 || !q->header)
        return size * n;
    *colon++ = '\0';
    while (*colon == ' ' || *colon == '\t')
        colon++;
    q->header(q, copy, colon);
    return size * n;
}

static size_t on_write(char *p, size_t size, size_t n, void *arg)
{
    struct http_req *q = arg;

    progress(q);
    int r = q->data ? q->data(q, p, size * n) : 0;
    if (r < 0) {
        q->err = r;
        return size * n == 0 ? 1 : 0; /* any other count breaks off */
    }
    return size * n;
}

static int on_close(void *arg, curl_socket_t fd)
{
    struct http *h = arg;
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } a = {.in6 = {0}};
    socklen_t len = sizeof(a);

    if (h->words_n < LAST_WORDS_KEPT && getsockname(fd, &a.any, &len) == 0) {
        struct last_words *w = &h->words[h->words_n];
        ssize_t n = recv(fd, w->text, LAST_WORDS_MAX, MSG_DONTWAIT);
        if (n > 0 && strncmp(w->text, "HTTP/1.", 7) == 0) {
            w->len = (size_t)n;
            w->text[n] = '\0';
            w->local_port = ntohs(a.any.sa_family == AF_INET6 ? a.in6.sin6_port : a.in.sin_port);
            h->words_n++;
        }
    }
    return close(fd);
}

void http_slot_last_words(struct http *h, struct http_slot *s, struct http_req *q)
{
    long port = 0;
    struct last_words *w = h->words;

    curl_easy_getinfo(s->easy, CURLINFO_LOCAL_PORT, &port);
    while (w < h->words + h->words_n && w->local_port != port)
        w++;
    if (w == h->words + h->words_n)
        return;
    char *p = w->text;
    while (strncmp(p, "HTTP/1.", 7) == 0) { /* a 100 may stand before */
        for (char *eol; (eol = strstr(p, "\r\n")) != NULL; p = eol + 2) {
            if (eol == p) {
                p += 2;
                break;
            }
            on_header(p, 1, (size_t)(eol + 2 - p), q);
        }
        if (q->status)
            break;
    }
    if (q->status)
        on_write(p, 1, w->len - (size_t)(p - w->text), q);
}

/* ---- slots ---- */

struct http_slot *http_slot_get(struct http *h)
{
    struct http_slot *s;

    if (!list_empty(&h->free_slots)) {
        s = list_entry(h->free_slots.next, struct http_slot, node);
        list_del(&s->node);
        return s;
    }
    s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->easy = curl_easy_init();
    if (!s->easy) {
        free(s);
        return NULL;
    }
    list_init(&s->node);
    return s;
}

void http_slot_put(struct http *h, struct http_slot *s)
{
    curl_slist_free_all(s->headers);
    s->headers = NULL;
    curl_easy_reset(s->easy);
    list_add_tail(&h->free_slots, &s->node);
}

static bool add_header(struct http_slot *s, const char *line)
{
    struct curl_slist *more = curl_slist_append(s->headers, line);

    if (more)
        s->headers = more;
    return more != NULL;
}

static bool slot_headers(struct http_slot *s, const struct http_req *q)
{
    bool ok = true;

    for (unsigned i = 0; i < q->headers_n; i++)
        ok = ok && add_header(s, q->headers[i]);
    if (q->has_body) {
        /* curl would add a Content-Type to some and an Expect to all bodies above 1 MiB. */
        ok = ok && add_header(s, q->body_len > EXPECT_ABOVE ? "Expect: 100-continue" : "Expect:");
        ok = ok && add_header(s, "Transfer-Encoding:");
    }
    return ok && add_header(s, "Accept:");
}

bool http_slot_setup(struct http *h, struct http_slot *s, struct http_req *q)
{
    CURL *e = s->easy;
    CURLcode bad = CURLE_OK;
#define SET(option, value) bad = bad ? bad : curl_easy_setopt(e, option, value)

    if (!slot_headers(s, q))
        return false;
    s->error[0] = '\0';
    SET(CURLOPT_PRIVATE, (char *)q);
    SET(CURLOPT_ERRORBUFFER, s->error);
    SET(CURLOPT_URL, q->url);
    SET(CURLOPT_HTTPHEADER, s->headers);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* one transfer a connection */
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_CONTENT_DECODING, 0L);
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_BUFFERSIZE, (long)RECV_BUFFER);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)h->conf.connect_ms);
    SET(CURLOPT_USERAGENT, h->user_agent);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, q);
    SET(CURLOPT_WRITEFUNCTION, on_write);
    SET(CURLOPT_WRITEDATA, q);
    SET(CURLOPT_PREREQFUNCTION, on_start);
    SET(CURLOPT_PREREQDATA, q);
    SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
    SET(CURLOPT_CLOSESOCKETDATA, h);
    if (h->ca_bundle)
        SET(CURLOPT_CAINFO, h->ca_bundle);
    if (q->class == HTTP_INTERNAL) /* metadata services are on the link, never behind a proxy */
        SET(CURLOPT_NOPROXY, "169.254.169.254,169.254.170.2,169.254.170.23,localhost,127.0.0.1");
    if (q->has_body) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)SEND_BUFFER);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->body_len);
        SET(CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MS);
        SET(CURLOPT_READFUNCTION, on_read);
        SET(CURLOPT_READDATA, q);
        SET(CURLOPT_SEEKFUNCTION, on_seek);
        SET(CURLOPT_SEEKDATA, q);
    } else if (strcmp(q->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else {
        SET(CURLOPT_HTTPGET, 1L);
    }
    if (strcmp(q->method, "HEAD") != 0)
        SET(CURLOPT_CUSTOMREQUEST, q->method);
#undef SET
    return bad == CURLE_OK;
}

void http_slot_free(struct http_slot *s)
{
    curl_easy_cleanup(s->easy);
    free(s);
}
