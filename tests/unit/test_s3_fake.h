/* test_s3_fake.h: an HTTP server of one function for unit tests: every request goes to `answer`,
 * which writes what it likes to the socket. One thread a connection. */
#ifndef SLUICE_TEST_S3_FAKE_H
#define SLUICE_TEST_S3_FAKE_H

#include <arpa/inet.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FAKE_HEAD_MAX = 32768, FAKE_CONNS_MAX = 64 };

struct fake {
    int fd;
    unsigned port;
    pthread_t acceptor;
    pthread_t conns[FAKE_CONNS_MAX];
    int conn_fds[FAKE_CONNS_MAX];
    unsigned conns_n;
    _Atomic unsigned requests;
    /* head: request line and headers. n: ordinal from 1. False: close the connection. */
    bool (*answer)(struct fake *f, int fd, const char *head, const char *body, size_t body_len,
                   unsigned n);
    bool early; /* answer as soon as the head is there, without reading the body */
    void *arg;
};

struct fake_conn {
    struct fake *f;
    int fd;
};

__attribute__((format(printf, 2, 3))) static inline void fake_write(int fd, const char *fmt, ...)
{
    char buf[65536];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof(buf), fmt, ap);
    va_end(ap);
    for (int at = 0; at < n;) {
        ssize_t w = send(fd, buf + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (w <= 0)
            return;
        at += (int)w;
    }
}

/* Status line, extra header lines ("A: b\r\n" each), body. */
static inline void fake_answer(int fd, const char *status, const char *headers, const char *body)
{
    fake_write(fd, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n%s", status, strlen(body), headers,
               body);
}

static inline void *fake_serve(void *arg)
{
    struct fake_conn *c = arg;
    struct fake *f = c->f;
    char *head = malloc(FAKE_HEAD_MAX);
    bool open = true;

    while (open) {
        size_t n = 0;
        head[0] = '\0';
        while (n < FAKE_HEAD_MAX - 1 && !strstr(head, "\r\n\r\n")) {
            ssize_t r = recv(c->fd, head + n, 1, 0);
            if (r <= 0) {
                open = false;
                break;
            }
            n += (size_t)r;
            head[n] = '\0';
        }
        if (!open)
            break;
        const char *len = strcasestr(head, "\r\ncontent-length: ");
        size_t body_len = len ? strtoul(len + 18, NULL, 10) : 0;
        char *body = malloc(body_len + 1);
        if (!f->early) {
            if (strcasestr(head, "100-continue"))
                fake_write(c->fd, "HTTP/1.1 100 Continue\r\n\r\n");
            for (size_t at = 0; at < body_len;) {
                ssize_t r = recv(c->fd, body + at, body_len - at, 0);
                if (r <= 0) {
                    body_len = at;
                    open = false;
                    break;
                }
                at += (size_t)r;
            }
        }
        body[body_len] = '\0';
        open = open &&
               f->answer(f, c->fd, head, body, body_len, atomic_fetch_add(&f->requests, 1) + 1);
        free(body);
    }
    free(head);
    shutdown(c->fd, SHUT_RDWR);
    free(c);
    return NULL;
}

static inline void *fake_accept(void *arg)
{
    struct fake *f = arg;

    for (;;) {
        int fd = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || f->conns_n == FAKE_CONNS_MAX)
            return NULL;
        struct fake_conn *c = malloc(sizeof(*c));
        *c = (struct fake_conn){f, fd};
        f->conn_fds[f->conns_n] = fd;
        pthread_create(&f->conns[f->conns_n++], NULL, fake_serve, c);
    }
}

static inline void fake_start(struct fake *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);

    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (f->fd < 0 || bind(f->fd, (struct sockaddr *)&a, len) < 0 || listen(f->fd, 64) < 0 ||
        getsockname(f->fd, (struct sockaddr *)&a, &len) < 0)
        abort();
    f->port = ntohs(a.sin_port);
    pthread_create(&f->acceptor, NULL, fake_accept, f);
}

static inline void fake_stop(struct fake *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->acceptor, NULL);
    close(f->fd);
    for (unsigned i = 0; i < f->conns_n; i++) {
        shutdown(f->conn_fds[i], SHUT_RDWR);
        pthread_join(f->conns[i], NULL);
        close(f->conn_fds[i]);
    }
}

#endif
