/* lagproxy.h: what the two halves of the lag proxy share; see lagproxy.c for the whole picture.
 *
 * lagproxy_http.c understands messages and decides which bytes may pass; its only I/O is the log.
 * lagproxy.c moves bytes. Everything belongs to the proxy's single thread; nothing blocks.
 */
#ifndef SLUICE_TESTS_LAGPROXY_H
#define SLUICE_TESTS_LAGPROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum {
    MAX_PENDING = 32,
    TEXT_MAX = 1200,
};

enum state { HEAD, HELD, BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, TO_EOF };

struct side {
    int fd;
    bool readable, writable, eof, shut;
};

struct flow {
    struct side *src, *dst;
    bool is_answer;
    enum state state;
    uint64_t left;
    size_t out, passed, in, scanned;
    int pipe[2];
    size_t piped;
    char *buf;
};

struct request {
    int64_t head_at, done_at, first_byte_at;
    int64_t delay;
    uint64_t bytes;
    int status;
    bool complete, is_head;
    char method[16], range[64], path[TEXT_MAX];
};

struct conn {
    struct conn *next_free;
    struct side client, server;
    struct flow up, down;
    struct request pending[MAX_PENDING];
    unsigned first, count;
    int64_t deadline; /* of a HELD answer or of lingering; 0: none */
    bool used, runnable, starved, lingering;
};

/* Settings and totals of the delays and the log. `sigma` belongs to the log-normal distribution. */
struct lag {
    double median_ms, sigma;
    uint64_t seed;
    FILE *log;
    uint64_t requests, bytes;
};
extern struct lag lag;

static inline int64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Moves f->passed forward as far as the bytes in the buffer are understood and released. A HELD
 * answer sets c->deadline, when parse is to be called again. */
void parse(struct conn *c, struct flow *f);

/* The last byte of a message's body has been taken from the source. */
void message_done(struct conn *c, struct flow *f);

/* Ends the front request with a line in the log; there must be one. */
void log_front(struct conn *c, bool cut);

/* Copies text that may be longer than there is room for; always terminated. */
void copy_text(char *out, size_t size, const char *from, size_t len);

#endif
