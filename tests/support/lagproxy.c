/* lagproxy.c: a TCP proxy that knows just enough HTTP/1.1 to delay every request exactly once.
 *
 *   lagproxy --upstream HOST:PORT [--port P] [--median MS] [--p999 MS] [--seed S]
 *            [--bandwidth BYTES_PER_SECOND] [--log FILE]
 *
 * Listens on 127.0.0.1 (port 0: one is chosen) and prints "listening 127.0.0.1:PORT". Each
 * response's first byte is released no earlier than request arrival + delay, the delay drawn per
 * request from a log-normal distribution with that median and 99.9th percentile; then the bytes stream unhindered.
 * A request has arrived with its last body byte, or with its head when the answer comes earlier.
 * Interim answers (100 Continue) pass at once. Nothing in a message is changed, so a signature
 * over the proxy's own host:port stays valid. --bandwidth is one token bucket for all connections
 * and both directions. --log writes one line per answered request:
 *   METHOD PATH RANGE STATUS BODY_BYTES MS_TO_END MS_TO_FIRST_BYTE     (RANGE is - without one)
 * and " cut" behind it when the connection ended before the answer; STATUS 0 when none had begun.
 *
 * Each client connection has an upstream connection of its own and two flows, one per direction:
 *   HEAD   collecting a message head in the buffer
 *   HELD   (answers) the head is complete and waits for its deadline; nothing is sent
 *   BODY   `left` bytes follow; big ones go through a pipe with splice(2), never through our memory
 *   CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER   chunked coding, followed but not changed
 *   TO_EOF everything until the end of the stream
 * Invariants: buffer bytes [out, passed) may be sent, [passed, in) are not understood yet; bytes in
 * the pipe come after the buffer's and neither is filled while the other must go first; the front
 * of the ring of pending requests is the one that the next final answer belongs to.
 *
 * What the bytes mean is decided in lagproxy_http.c; this file moves them.
 * One thread, edge-triggered epoll: a side's `readable` and `writable` stay set until EAGAIN. A
 * connection that used up its turn stays runnable, so that none starves the others.
 * Bounds: MAX_CONNS connections (more are accepted when one ends), MAX_PENDING pipelined requests,
 * BUF_SIZE for a head.
 */
#include "tests/support/lagproxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_CONNS = 2048,
    BUF_SIZE = 256 << 10,
    PIPE_SIZE = 1 << 20,
    SPLICE_MIN = 64 << 10,
    TURN = 4 << 20,
    EVENTS = 128,
};
static const int64_t linger_ns = 2000000000, refill_ns = 1000000;

enum outcome { MOVED, SOURCE_FAILED, SINK_FAILED };

static struct {
    struct sockaddr_storage upstream;
    socklen_t upstream_len;
    uint64_t bandwidth;
    int port, epoll_fd, listen_fd;
    int64_t tokens, refilled_at;
    unsigned open, high;
    bool accept_waits;
} px;

static struct conn *conns[MAX_CONNS];
static volatile sig_atomic_t stopping;

/* ---- flows ---- */

static bool would_block(int err)
{
    return err == EAGAIN || err == EWOULDBLOCK || err == EINTR;
}

/* How much may be sent now; 0 puts the connection on the list that the refill wakes. */
static size_t allowance(struct conn *c, size_t want)
{
    if (px.bandwidth == 0) {
        return want;
    }
    if (px.tokens <= 0) {
        c->starved = true;
        return 0;
    }
    return want < SPLICE_MIN ? want : SPLICE_MIN;
}

static void refill(int64_t now)
{
    if (px.bandwidth == 0 || now - px.refilled_at < refill_ns) {
        return;
    }
    px.tokens += (int64_t)((double)(now - px.refilled_at) / 1e9 * (double)px.bandwidth);
    if (px.tokens > (int64_t)(px.bandwidth / 50)) {
        px.tokens = (int64_t)(px.bandwidth / 50); /* At most 20 ms are saved up. */
    }
    px.refilled_at = now;
}

/* Bytes into the buffer or the pipe. Returns bytes, 0 nothing to do, -1 the source failed. */
static ssize_t fill(struct flow *f)
{
    ssize_t n;

    if (!f->src->readable || f->src->eof || f->piped > 0) {
        return 0;
    }
    if (f->out == f->in) {
        f->scanned -= f->scanned < f->out ? f->scanned : f->out;
        f->out = f->passed = f->in = 0;
    }
    if (f->state == BODY && f->in == 0 && f->left >= SPLICE_MIN) {
        size_t want = f->left < PIPE_SIZE ? (size_t)f->left : PIPE_SIZE;
        n = splice(f->src->fd, NULL, f->pipe[1], NULL, want, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n > 0) {
            f->piped = (size_t)n;
            f->left -= (size_t)n;
        }
    } else {
        if (f->in == BUF_SIZE && f->out > 0) {
            memmove(f->buf, f->buf + f->out, f->in - f->out);
            f->passed -= f->out;
            f->scanned -= f->scanned < f->out ? f->scanned : f->out;
            f->in -= f->out;
            f->out = 0;
        }
        if (f->in == BUF_SIZE) {
            return f->state == HEAD && f->passed == 0 ? -1 : 0; /* A head that does not end. */
        }
        n = read(f->src->fd, f->buf + f->in, BUF_SIZE - f->in);
        if (n > 0) {
            f->in += (size_t)n;
        }
    }
    if (n == 0) {
        f->src->eof = true;
    } else if (n < 0 && would_block(errno)) {
        f->src->readable = false;
        return 0;
    }
    return n;
}

/* Sends what has passed. Returns bytes, 0 nothing to do, -1 the destination failed. */
static ssize_t drain(struct conn *c, struct flow *f)
{
    size_t ready = f->passed - f->out, may;
    bool from_pipe = ready == 0;
    ssize_t n;

    if (from_pipe) {
        ready = f->piped;
    }
    if (ready == 0 || !f->dst->writable) {
        return 0;
    }
    may = allowance(c, ready);
    if (may == 0) {
        return 0;
    }
    if (from_pipe) {
        n = splice(f->pipe[0], NULL, f->dst->fd, NULL, may, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    } else {
        n = send(f->dst->fd, f->buf + f->out, may, MSG_NOSIGNAL);
    }
    if (n < 0 && would_block(errno)) {
        f->dst->writable = false;
        return 0;
    }
    if (n <= 0) {
        return -1;
    }
    if (from_pipe) {
        f->piped -= (size_t)n;
    } else {
        f->out += (size_t)n;
    }
    if (px.bandwidth) {
        px.tokens -= n;
    }
    return n;
}

/* Moves a flow on until nothing moves or its turn is over. */
static enum outcome pump(struct conn *c, struct flow *f)
{
    size_t moved = 0;

    for (;;) {
        ssize_t got = fill(f), sent;
        parse(c, f);
        sent = drain(c, f);
        if (got < 0 || sent < 0) {
            return got < 0 ? SOURCE_FAILED : SINK_FAILED;
        }
        if (f->state == BODY && f->left == 0 && f->piped == 0) {
            message_done(c, f);
            continue;
        }
        if (got == 0 && sent == 0) {
            break;
        }
        moved += (size_t)sent;
        if (moved >= TURN) {
            c->runnable = true;
            break;
        }
    }
    return MOVED;
}

static bool flow_ended(const struct flow *f)
{
    return f->src->eof && f->piped == 0 &&
           (f->out == f->in || (f->out == f->passed && f->state == HEAD));
}

/* ---- connections ---- */

static void conn_close(struct conn *c, bool reset)
{
    if (c->count && c->down.state == BODY) {
        c->pending[c->first].bytes -= c->down.left;
    }
    while (c->count) { /* Also what was never answered: the store has seen it. */
        log_front(c, true);
    }
    if (reset) {
        struct linger now = {.l_onoff = 1};
        setsockopt(c->client.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    close(c->client.fd);
    close(c->server.fd);
    for (int i = 0; i < 2; i++) {
        close(c->up.pipe[i]);
        close(c->down.pipe[i]);
    }
    free(c->up.buf);
    free(c->down.buf);
    c->up.buf = c->down.buf = NULL;
    c->used = false;
    px.open--;
}

/* The answer stream has ended: what the client still sends is thrown away for a while, since a
 * close with unread bytes would be a reset that destroys the answer on its way. */
static void linger(struct conn *c)
{
    char sink[16384];
    ssize_t n = 1;

    while (c->client.readable && n > 0) {
        n = read(c->client.fd, sink, sizeof(sink));
        if (n < 0 && would_block(errno)) {
            c->client.readable = false;
        }
    }
    if (n == 0 || (n < 0 && c->client.readable) || now_ns() >= c->deadline) {
        conn_close(c, false);
    }
}

static void conn_run(struct conn *c)
{
    c->runnable = c->starved = false;
    if (!c->lingering) {
        enum outcome up = MOVED;
        bool failed = pump(c, &c->down) != MOVED;
        if (!failed && !flow_ended(&c->down)) {
            up = pump(c, &c->up);
        }
        if (failed || up == SOURCE_FAILED) {
            conn_close(c, true);
            return;
        }
        if (up == SINK_FAILED) {
            /* The server may have answered before it stopped listening: its answer comes first. */
            c->client.eof = true;
            c->up.out = c->up.passed = c->up.in = c->up.piped = 0;
        }
        if (flow_ended(&c->up) && !c->server.shut) {
            c->server.shut = true;
            shutdown(c->server.fd, SHUT_WR);
        }
        if (!flow_ended(&c->down)) {
            return;
        }
        if (c->count && c->down.state == TO_EOF) {
            log_front(c, false);
        }
        shutdown(c->client.fd, SHUT_WR);
        c->lingering = true;
        c->deadline = now_ns() + linger_ns;
    }
    linger(c);
}

static int side_open(struct side *s, int fd, uint64_t tag)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = tag};
    int one = 1;

    *s = (struct side){.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return epoll_ctl(px.epoll_fd, EPOLL_CTL_ADD, fd, &ev);
}

static int flow_open(struct flow *f, struct side *src, struct side *dst, bool is_answer)
{
    *f = (struct flow){.src = src, .dst = dst, .is_answer = is_answer, .pipe = {-1, -1}};
    f->buf = malloc(BUF_SIZE);
    if (!f->buf || pipe2(f->pipe, O_NONBLOCK | O_CLOEXEC) != 0) {
        return -1;
    }
    (void)fcntl(f->pipe[0], F_SETPIPE_SZ, PIPE_SIZE); /* A smaller pipe is slower, not wrong. */
    return 0;
}

/* Takes one waiting client. False when none is left or there is no place for it. */
static bool accept_one(void)
{
    unsigned i = 0;
    struct conn *c;
    int fd, up;

    while (i < MAX_CONNS && conns[i] && conns[i]->used) {
        i++;
    }
    if (i == MAX_CONNS) {
        return false; /* accept_waits stays set for when a place is free. */
    }
    fd = accept4(px.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        px.accept_waits = !would_block(errno);
        return false;
    }
    if (!conns[i] && !(conns[i] = calloc(1, sizeof(*c)))) {
        close(fd);
        return true;
    }
    c = conns[i];
    up = socket(px.upstream.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->used = true;
    c->lingering = c->runnable = c->starved = false;
    c->first = c->count = 0;
    c->deadline = 0;
    px.open++;
    px.high = i >= px.high ? i + 1 : px.high;
    if (flow_open(&c->up, &c->client, &c->server, false) != 0 ||
        flow_open(&c->down, &c->server, &c->client, true) != 0 ||
        side_open(&c->client, fd, (uint64_t)i * 2) != 0 || up < 0 ||
        (connect(up, (struct sockaddr *)&px.upstream, px.upstream_len) != 0 &&
         errno != EINPROGRESS) ||
        side_open(&c->server, up, (uint64_t)i * 2 + 1) != 0) {
        c->client.fd = fd;
        c->server.fd = up;
        conn_close(c, true);
    }
    return true;
}

static void on_event(uint64_t tag, uint32_t events)
{
    struct conn *c = conns[tag / 2];
    struct side *s = tag % 2 ? &c->server : &c->client;

    if (!c->used) {
        return;
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        s->readable = true;
    }
    if (events & (EPOLLOUT | EPOLLERR)) {
        s->writable = true;
    }
    c->runnable = true;
}

/* Nanoseconds until something must happen without an event; -1: nothing. */
static int64_t run_all(void)
{
    int64_t now = now_ns(), wait = -1;
    static unsigned turn; /* Who is first changes, so that a small bandwidth is shared fairly. */

    refill(now);
    turn++;
    for (unsigned k = 0; k < px.high; k++) {
        struct conn *c = conns[(k + turn) % px.high];
        int64_t w = -1;
        if (!c->used) {
            continue;
        }
        if (c->runnable || (c->starved && px.tokens > 0) || (c->deadline && now >= c->deadline)) {
            conn_run(c);
        }
        if (!c->used) {
            continue;
        }
        if (c->runnable) {
            w = 0;
        } else if (c->starved) {
            w = refill_ns;
        } else if (c->deadline) {
            w = c->deadline > now ? c->deadline - now : 0;
        }
        if (w >= 0 && (wait < 0 || w < wait)) {
            wait = w;
        }
    }
    return wait;
}

static void serve(void)
{
    struct epoll_event events[EVENTS];
    int64_t wait = -1;

    while (!stopping) {
        struct timespec ts = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        int n;

        if (lag.log && wait != 0) {
            fflush(lag.log);
        }
        n = epoll_pwait2(px.epoll_fd, events, EVENTS, wait < 0 ? NULL : &ts, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == UINT64_MAX) {
                px.accept_waits = true;
            } else {
                on_event(events[i].data.u64, events[i].events);
            }
        }
        wait = run_all();
        if (px.accept_waits && px.open < MAX_CONNS) {
            while (accept_one()) {
            }
        }
    }
}

/* ---- start ---- */

static int listen_on(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = UINT64_MAX};
    socklen_t len = sizeof(a);
    int one = 1;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    px.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    px.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (px.epoll_fd < 0 || px.listen_fd < 0) {
        return -1;
    }
    setsockopt(px.listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(px.listen_fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        listen(px.listen_fd, SOMAXCONN) != 0 ||
        getsockname(px.listen_fd, (struct sockaddr *)&a, &len) != 0 ||
        epoll_ctl(px.epoll_fd, EPOLL_CTL_ADD, px.listen_fd, &ev) != 0) {
        return -1;
    }
    printf("listening 127.0.0.1:%d\n", ntohs(a.sin_port));
    fflush(stdout);
    return 0;
}

static int resolve(const char *text)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char host[256];
    const char *colon = strrchr(text, ':');

    if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host)) {
        return -1;
    }
    copy_text(host, sizeof(host), text, (size_t)(colon - text));
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        return -1;
    }
    memcpy(&px.upstream, found->ai_addr, found->ai_addrlen);
    px.upstream_len = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static void on_signal(int sig)
{
    (void)sig;
    stopping = 1;
}

static int usage(void)
{
    fputs("usage: lagproxy --upstream HOST:PORT [--port P] [--median MS] [--p999 MS] [--seed S]\n"
          "                [--bandwidth BYTES_PER_SECOND] [--log FILE]\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    enum { UPSTREAM = 1, PORT, MEDIAN, P999, SEED, BANDWIDTH, LOG };
    static const struct option longs[] = {
        {"upstream", required_argument, NULL, UPSTREAM},
        {"port", required_argument, NULL, PORT},
        {"median", required_argument, NULL, MEDIAN},
        {"p999", required_argument, NULL, P999},
        {"seed", required_argument, NULL, SEED},
        {"bandwidth", required_argument, NULL, BANDWIDTH},
        {"log", required_argument, NULL, LOG},
        {0},
    };
    const double z_p999 = 3.0902; /* The 99.9th percentile of the normal distribution. */
    struct sigaction sa = {.sa_handler = on_signal};
    const char *upstream = NULL;
    double p999_ms = 120;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case UPSTREAM:
            upstream = optarg;
            break;
        case PORT:
            px.port = atoi(optarg);
            break;
        case MEDIAN:
            lag.median_ms = strtod(optarg, NULL);
            break;
        case P999:
            p999_ms = strtod(optarg, NULL);
            break;
        case SEED:
            lag.seed = strtoull(optarg, NULL, 10);
            break;
        case BANDWIDTH:
            px.bandwidth = strtoull(optarg, NULL, 10);
            break;
        case LOG:
            lag.log = fopen(optarg, "ae");
            if (!lag.log) {
                fprintf(stderr, "lagproxy: %s: %s\n", optarg, strerror(errno));
                return 1;
            }
            break;
        default:
            return usage();
        }
    }
    if (!upstream || resolve(upstream) != 0 || lag.median_ms < 0) {
        return usage();
    }
    lag.sigma = lag.median_ms > 0 && p999_ms > lag.median_ms ? log(p999_ms / lag.median_ms) / z_p999
                                                             : 0;
    px.refilled_at = now_ns();
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    if (listen_on(px.port) != 0) {
        fprintf(stderr, "lagproxy: port %d: %s\n", px.port, strerror(errno));
        return 1;
    }
    serve();
    printf("{\"requests\":%" PRIu64 ",\"bytes\":%" PRIu64 "}\n", lag.requests, lag.bytes);
    if (lag.log) {
        fclose(lag.log);
    }
    return 0;
}
