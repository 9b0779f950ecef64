/* lagproxy_http.c: as much of HTTP/1.1 as is needed to know where each answer begins and ends.
 *
 * The states of a flow and the invariants of its buffer are in lagproxy.c. Here: a request head
 * adds an entry to the connection's ring, with its delay; an answer head finds the entry at the
 * front and waits in HELD for its deadline; the end of the answer logs and removes it. A message's
 * length follows from Content-Length, the chunked coding, the status (1xx, 204, 304) and the method
 * (HEAD).
 */
#include "tests/support/lagproxy.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct lag lag = {.median_ms = 70, .seed = 1};

static double random_unit(void)
{
    uint64_t x = lag.seed += 0x9E3779B97F4A7C15u;

    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return ((double)(x >> 11) + 0.5) / 9007199254740992.0;
}

static int64_t draw_delay(void)
{
    const double tau = 6.283185307179586;
    double z = sqrt(-2 * log(random_unit())) * cos(tau * random_unit());

    return (int64_t)(lag.median_ms * exp(lag.sigma * z) * 1e6);
}

/* The value of a header within a head, without surrounding blanks; NULL when it is not there. */
static const char *header(const char *head, size_t len, const char *name, size_t *value_len)
{
    const char *end = head + len, *line = head;
    size_t name_len = strlen(name);

    while ((line = memchr(line, '\n', (size_t)(end - line))) && ++line < end) {
        const char *v = line + name_len, *stop;
        if ((size_t)(end - line) <= name_len || *v != ':' ||
            strncasecmp(line, name, name_len) != 0) {
            continue;
        }
        v++;
        stop = memchr(v, '\n', (size_t)(end - v));
        if (!stop) {
            stop = end;
        }
        while (v < stop && (*v == ' ' || *v == '\t')) {
            v++;
        }
        while (stop > v && (stop[-1] == '\r' || stop[-1] == ' ' || stop[-1] == '\t')) {
            stop--;
        }
        *value_len = (size_t)(stop - v);
        return v;
    }
    return NULL;
}

static bool is_chunked(const char *head, size_t len)
{
    size_t n;
    const char *v = header(head, len, "transfer-encoding", &n);

    return v && n >= 7 && strncasecmp(v + n - 7, "chunked", 7) == 0;
}

static bool content_length(const char *head, size_t len, uint64_t *out)
{
    size_t n;
    const char *v = header(head, len, "content-length", &n);

    if (!v || n == 0 || n > 19) {
        return false;
    }
    *out = strtoull(v, NULL, 10);
    return true;
}

void copy_text(char *out, size_t size, const char *from, size_t len)
{
    if (len >= size) {
        len = size - 1;
    }
    memcpy(out, from, len);
    out[len] = '\0';
}

static struct request *front(struct conn *c)
{
    return c->count ? &c->pending[c->first] : NULL;
}

void log_front(struct conn *c, bool cut)
{
    struct request *r = front(c);
    int64_t now = now_ns(), first = r->first_byte_at ? r->first_byte_at - r->head_at : 0;

    lag.requests++;
    lag.bytes += r->bytes;
    if (lag.log) {
        fprintf(lag.log, "%s %s %s %d %" PRIu64 " %.3f %.3f%s\n", r->method, r->path, r->range,
                r->status, r->bytes, (double)(now - r->head_at) / 1e6, (double)first / 1e6,
                cut ? " cut" : "");
    }
    c->first = (c->first + 1) % MAX_PENDING;
    c->count--;
}

void message_done(struct conn *c, struct flow *f)
{
    f->state = HEAD;
    f->scanned = f->passed;
    if (f->is_answer) {
        log_front(c, false);
    } else {
        struct request *r = &c->pending[(c->first + c->count - 1) % MAX_PENDING];
        if (c->count) { /* Else it was answered before it had arrived. */
            r->complete = true;
            r->done_at = now_ns();
        }
    }
}

static void start_body(struct conn *c, struct flow *f, uint64_t len)
{
    f->left = len;
    f->state = BODY;
    if (len == 0) {
        message_done(c, f);
    }
}

/* A complete request head: remembers it and what follows it. False when the ring is full. */
static bool request_head(struct conn *c, struct flow *f, const char *head, size_t len)
{
    struct request *r = &c->pending[(c->first + c->count) % MAX_PENDING];
    const char *sp = memchr(head, ' ', len), *sp2, *v;
    uint64_t body = 0;
    size_t n;

    if (c->count == MAX_PENDING) {
        return false;
    }
    memset(r, 0, offsetof(struct request, path));
    copy_text(r->method, sizeof(r->method), head, sp ? (size_t)(sp - head) : 0);
    sp2 = sp ? memchr(sp + 1, ' ', len - (size_t)(sp + 1 - head)) : NULL;
    copy_text(r->path, sizeof(r->path), sp ? sp + 1 : "-", sp2 ? (size_t)(sp2 - sp - 1) : 1);
    v = header(head, len, "range", &n);
    copy_text(r->range, sizeof(r->range), v ? v : "-", v ? n : 1);
    r->is_head = strcmp(r->method, "HEAD") == 0;
    r->head_at = now_ns();
    r->delay = draw_delay();
    c->count++;
    if (is_chunked(head, len)) {
        f->state = CHUNK_SIZE;
    } else {
        content_length(head, len, &body);
        start_body(c, f, body);
    }
    return true;
}

/* A complete answer head whose time has come. */
static void answer_released(struct conn *c, struct flow *f, const char *head, size_t len)
{
    struct request *r = front(c);
    uint64_t body;

    r->first_byte_at = now_ns();
    f->passed += len;
    c->deadline = 0;
    if (r->is_head || r->status == 204 || r->status == 304) {
        start_body(c, f, 0);
    } else if (is_chunked(head, len)) {
        f->state = CHUNK_SIZE;
    } else if (content_length(head, len, &body)) {
        r->bytes = body;
        start_body(c, f, body);
    } else {
        f->state = TO_EOF;
    }
}

/* A complete answer head. True when bytes may pass. */
static bool answer_head(struct conn *c, struct flow *f, const char *head, size_t len)
{
    struct request *r = front(c);
    int status = len > 12 ? atoi(head + 9) : 0;

    if (!r) {
        f->state = TO_EOF; /* An answer that nobody asked for ends a connection. */
        return true;
    }
    if (status >= 100 && status < 200) {
        f->passed += len;
        f->scanned = f->passed;
        return true;
    }
    if (f->state == HEAD) {
        r->status = status;
        f->state = HELD;
        c->deadline = (r->complete ? r->done_at : r->head_at) + r->delay;
    }
    if (now_ns() < c->deadline) {
        return false;
    }
    answer_released(c, f, head, len);
    return true;
}

/* Finds the head that starts at `passed`. True when something moved. */
static bool parse_head(struct conn *c, struct flow *f)
{
    const char *head = f->buf + f->passed, *end;
    size_t from = f->scanned > f->passed + 3 ? f->scanned - 3 : f->passed, len;

    end = memmem(f->buf + from, f->in - from, "\r\n\r\n", 4);
    if (!end) {
        f->scanned = f->in;
        return false;
    }
    len = (size_t)(end + 4 - head);
    if (f->is_answer) {
        return answer_head(c, f, head, len);
    }
    if (!request_head(c, f, head, len)) {
        return false;
    }
    f->passed += len;
    f->scanned = f->passed;
    return true;
}

/* One line of the chunked coding at `passed`. True when it was there. */
static bool parse_line(struct conn *c, struct flow *f)
{
    const char *line = f->buf + f->passed;
    const char *end = memchr(line, '\n', f->in - f->passed);
    size_t len;

    if (!end) {
        return false;
    }
    len = (size_t)(end + 1 - line);
    f->passed += len;
    if (f->state == CHUNK_SIZE) {
        f->left = strtoull(line, NULL, 16);
        f->state = f->left ? CHUNK_DATA : TRAILER;
    } else if (f->state == CHUNK_END) {
        f->state = CHUNK_SIZE;
    } else if (len <= 2) { /* The empty line after the trailer. */
        message_done(c, f);
    }
    return true;
}

/* Moves `passed` forward as far as the bytes in the buffer are understood and released. */
void parse(struct conn *c, struct flow *f)
{
    bool moved = true;

    while (moved && f->passed < f->in) {
        size_t have = f->in - f->passed, n;
        switch (f->state) {
        case HEAD:
        case HELD:
            moved = parse_head(c, f);
            break;
        case BODY:
        case CHUNK_DATA:
            n = f->left < have ? (size_t)f->left : have;
            f->passed += n;
            f->left -= n;
            if (f->is_answer && f->state == CHUNK_DATA) {
                front(c)->bytes += n;
            }
            if (f->left == 0 && f->state == BODY) {
                message_done(c, f);
            } else if (f->left == 0) {
                f->state = CHUNK_END;
            }
            break;
        case CHUNK_SIZE:
        case CHUNK_END:
        case TRAILER:
            moved = parse_line(c, f);
            break;
        case TO_EOF:
            if (f->is_answer && front(c)) {
                front(c)->bytes += have;
            }
            f->passed = f->in;
            break;
        }
    }
}
