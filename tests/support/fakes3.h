/* fakes3.h: runs tests/support/fakes3.py and gives it orders. Header only; failures abort.
 *
 * The server ends with the test program: it reads a pipe whose other end we hold. */
#ifndef SLUICE_TESTS_FAKES3_H
#define SLUICE_TESTS_FAKES3_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct fakes3 {
    pid_t pid;
    int stop; /* closing it ends the server */
    int port, control;
};

extern char **environ;

/* 0, or -1: python3 is not there. `region` and `token` may be NULL. */
static inline int fakes3_start(struct fakes3 *f, const char *log, const char *region,
                               const char *token)
{
    char script[1024];
    int in[2], out[2];
    snprintf(script, sizeof script, "%.*s/fakes3.py", (int)(strrchr(__FILE__, '/') - __FILE__),
             __FILE__);
    if (access(script, R_OK) || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return -1;
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, in[0], 0);
    posix_spawn_file_actions_adddup2(&fa, out[1], 1);
    char *argv[] = {"python3",
                    script,
                    "--until-eof",
                    "--log",
                    (char *)log,
                    "--region",
                    (char *)(region ? region : "us-east-1"),
                    "--token",
                    (char *)(token ? token : ""),
                    NULL};
    int r = posix_spawnp(&f->pid, "python3", &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(in[0]);
    close(out[1]);
    f->stop = in[1];
    FILE *from = fdopen(out[0], "r");
    if (r || fscanf(from, "port %d control %d", &f->port, &f->control) != 2) {
        close(f->stop);
        fclose(from);
        return -1;
    }
    fclose(from);
    return 0;
}

static inline void fakes3_stop(struct fakes3 *f)
{
    close(f->stop);
    waitpid(f->pid, NULL, 0);
}

/* Sends one control request; the answer's body goes to `out` when not NULL. Aborts unless 200. */
static inline void fakes3_control(struct fakes3 *f, const char *method, const char *path,
                                  const char *json, char *out, size_t cap)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)f->control),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char buf[16384];
    size_t at = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
        abort();
    int n = snprintf(buf, sizeof buf, "%s %s HTTP/1.1\r\nContent-Length: %zu\r\n\r\n%s", method,
                     path, strlen(json), json);
    if (write(fd, buf, (size_t)n) != n)
        abort();
    for (ssize_t got; at < sizeof buf - 1 && (got = read(fd, buf + at, sizeof buf - 1 - at)) > 0;)
        at += (size_t)got;
    buf[at] = 0;
    close(fd);
    const char *body = strstr(buf, "\r\n\r\n");
    if (strncmp(buf, "HTTP/1.1 200", 12) != 0 || !body) {
        fprintf(stderr, "fakes3 %s %s: %s\n", method, path, buf);
        abort();
    }
    if (out)
        snprintf(out, cap, "%s", body + 4);
}

static inline void fakes3_order(struct fakes3 *f, const char *json)
{
    fakes3_control(f, "POST", "/orders", json, NULL, 0);
}

static inline void fakes3_clear(struct fakes3 *f)
{
    fakes3_control(f, "DELETE", "/orders", "", NULL, 0);
}

#endif
