/* http.h: an event loop for HTTP requests over one pool of warm connections.
 *
 * Knows nothing of S3. One thread ("store") runs every transfer and every callback. A request is
 * memory of its owner, handed over by http_submit and given back by its `done`, exactly once, which
 * may free it. Requests wait in queues of the loop (there are as many as callers submitted; each is
 * its caller's memory) until a connection may be used; urgent ones go first and always find room:
 *   HTTP_INTERNAL  starts at once, beside the limit (credentials)
 *   HTTP_URGENT    may use every connection
 *   HTTP_NORMAL    all but one in eight, at least one
 *   HTTP_UPLOAD    at most three quarters
 * Normal requests and uploads take turns.
 *
 * Time-outs are of no progress: no byte moved in either direction for `idle_ms`. There is no limit
 * of the whole duration but deadline_ns.
 */
#ifndef SLUICE_OBJSTORE_HTTP_H
#define SLUICE_OBJSTORE_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "fs/base/list.h"

enum http_class { HTTP_INTERNAL, HTTP_URGENT, HTTP_NORMAL, HTTP_UPLOAD };

enum http_end {
    HTTP_DONE,      /* an answer came: status; its body may be cut when status >= 300 */
    HTTP_UNREACHED, /* no connection: name not found, refused, connect time-out; nothing was sent */
    HTTP_BROKEN,    /* the connection broke, or the answer ended before its length */
    HTTP_STALLED,   /* no progress for idle_ms */
    HTTP_EXPIRED,   /* deadline_ns has come */
    HTTP_CANCELLED,
    HTTP_REFUSED,   /* a callback returned an error: it is in `err` */
    HTTP_UNTRUSTED, /* TLS: the server's certificate was not accepted */
    HTTP_FAILED     /* anything else; text says what */
};

enum { HTTP_HOLD = 1, HTTP_TEXT_MAX = 160, HTTP_HEADERS_MAX = 28 };

struct http_req {
    /* ---- set by the owner before http_submit ---- */
    enum http_class class;
    unsigned idle_ms;
    int64_t deadline_ns; /* clock_mono_ns; 0: none */

    /* Loop thread, right before the request goes out: sets the four fields below. 0; HTTP_HOLD: not
     * now, nothing that waits may start before http_resume; or -errno: ends as HTTP_REFUSED. */
    int (*prepare)(struct http_req *q);
    /* Bytes of the body from `off`, at most cap: how many, or -errno. Loop thread. */
    ssize_t (*body)(struct http_req *q, void *buf, size_t cap, uint64_t off);
    /* A header of the answer. name NULL: a new answer begins, `status` is set, forget the one
     * before. NULL: not wanted. Loop thread. */
    void (*header)(struct http_req *q, const char *name, const char *value);
    /* Bytes of the answer's body: 0, or -errno to break off. Loop thread. */
    int (*data)(struct http_req *q, const char *p, size_t n);
    void (*done)(struct http_req *q);

    /* ---- set by prepare; borrowed until done ---- */
    const char *method, *url;
    const char *headers[HTTP_HEADERS_MAX]; /* "Name: value" */
    unsigned headers_n;
    bool has_body;
    uint64_t body_len;

    /* ---- results ---- */
    enum http_end end;
    int status;               /* 0: no answer */
    int err;                  /* HTTP_REFUSED */
    bool sent;                /* a byte of the request may have reached the server */
    bool resent;              /* it was sent a second time on a fresh connection */
    char text[HTTP_TEXT_MAX]; /* for humans; "" when HTTP_DONE */

    /* ---- of the loop ---- */
    struct list node;
    _Atomic bool cancelled;
    bool started;           /* it went out on a connection */
    struct http_slot *slot; /* not NULL: running */
    int64_t progress_ns;    /* when a byte last moved */
    uint64_t body_off;
    int unsent; /* bytes in the socket's send queue when last looked */
};

struct http_conf {
    unsigned connections;  /* at least 1 */
    unsigned connect_ms;   /* time-out of connecting */
    const char *ca_bundle; /* file of trusted certificates; NULL: the system's */
    const char *user_agent;
};

struct http;

/* Starts the thread. 0, -ENOMEM, -EAGAIN. */
int http_open(const struct http_conf *conf, struct http **ret);

/* Ends every request (HTTP_CANCELLED), then the thread. Not from the loop thread. NULL is allowed. */
void http_close(struct http *h);

/* Any thread; takes a lock of RANK_STORE_LOW. Never blocks on the network. */
void http_submit(struct http *h, struct http_req *q);

/* Asks that q end soon; `done` still comes. Any thread, no lock; the caller guarantees that q is not
 * done yet. */
void http_cancel(struct http *h, struct http_req *q);

/* Loop thread: what prepare answered HTTP_HOLD to may be tried again. */
void http_resume(struct http *h);

/* *silent_ns: for how long the one under way that stands still longest has moved no byte. */
void http_counts(struct http *h, uint64_t *queued, uint64_t *in_flight, int64_t *silent_ns);

#endif
