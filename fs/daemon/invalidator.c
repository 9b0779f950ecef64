/* invalidator.c: see invalidator.h. Requests and answers carry a number, so that the answer to a daemon that
 * has died is not taken for one's own. */
#include "fs/daemon/invalidator.h"

#include <errno.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/base/clock.h"

struct ask {
    uint64_t number, ino, off, len;
};

struct answer {
    uint64_t number;
    int64_t err; /* 0 or -errno */
};

int invalidator_sockets(int *ret_daemon, int *ret_process)
{
    int p[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p))
        return -errno;
    *ret_daemon = p[0];
    *ret_process = p[1];
    return 0;
}

static int tell_kernel(int fuse_fd, const struct ask *a)
{
    struct fuse_notify_inval_inode_out body = {
        .ino = a->ino, .off = (int64_t)a->off, .len = (int64_t)a->len};
    struct fuse_out_header head = {.len = sizeof(head) + sizeof(body),
                                   .error = FUSE_NOTIFY_INVAL_INODE};
    struct iovec iov[] = {{&head, sizeof(head)}, {&body, sizeof(body)}};
    return writev(fuse_fd, iov, 2) < 0 ? -errno : 0;
}

_Noreturn static void serve(int sock, int fuse_fd)
{
    struct ask a;
    for (;;) {
        ssize_t n = recv(sock, &a, sizeof(a), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(a))
            _exit(0);
        struct answer r = {a.number, tell_kernel(fuse_fd, &a)};
        /* Nobody reads what a dead daemon asked for: not waited for. */
        (void)send(sock, &r, sizeof(r), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

pid_t invalidator_start(int process_end, int fuse_fd)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid)
        return pid;
    sigset_t all;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL); /* only the end of the supervisor ends it */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "sluicefs-inval");
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The two descriptors, as 0 and 1; all others go. */
    int a = dup(process_end), b = dup(fuse_fd);
    if (a < 0 || b < 0 || getppid() != parent)
        _exit(1);
    (void)dup2(a, 0);
    (void)dup2(b, 1);
    (void)close_range(2, ~0u, 0);
    serve(0, 1);
}

int invalidator_ask(int daemon_end, uint64_t ino, uint64_t off, uint64_t len)
{
    static _Atomic uint64_t last;
    uint64_t none = 0;
    /* Begins where no daemon before has been. */
    (void)atomic_compare_exchange_strong(&last, &none, (uint64_t)clock_mono_ns());
    struct ask a = {atomic_fetch_add(&last, 1) + 1, ino, off, len};
    struct answer r = {0};
    while (send(daemon_end, &a, sizeof(a), MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return -errno;
    do {
        ssize_t n = recv(daemon_end, &r, sizeof(r), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(r))
            return n < 0 ? -errno : -EPIPE;
    } while (r.number != a.number);
    return (int)r.err;
}
