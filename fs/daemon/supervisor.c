/* supervisor.c: see supervisor.h.
 *
 *   STARTING   a daemon has been started and has not said READY
 *   SERVING    it has
 *   PAUSED     it died before it was ready; another is started when `retry_ns` has come
 *   stopping   (flag) SIGTERM or SIGINT came, or the daemon said STOPPING: its end is ours
 * `fuse_fd` >= 0 says that there is a connection to hand on; before and without it an end of the daemon
 * is an end of the mount.
 *
 * One thread; it waits in poll for signals (signalfd), words of the daemon and the next try. The daemon
 * is a process group of its own, so that Ctrl-C reaches it once, through us.
 */
#include "fs/daemon/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/daemon/daemon.h"
#include "fs/daemon/invalidator.h"
#include "fs/daemon/mountpoint.h"
#include "fs/volume/config.h"

#define ATTACH_NAME "SLUICEFS_ATTACH"

enum {
    REOPEN_MS = 30000, /* a volume that cannot be opened again is given up */
    RETRY_MS = 100,    /* first pause between tries, doubled up to */
    RETRY_MAX_MS = 3000,
    DEATHS_WITHIN_MS = 60000,
    COMMAND_BYTES_MAX = 1024 * 1024
};

struct super {
    const struct config *conf;
    struct supervisor_hooks hooks;
    int signal_fd;
    sigset_t old_mask;
    char *program; /* as it was started; may have been replaced since */
    char *args;    /* NUL-separated command line */
    size_t args_len;
    char *cwd;

    pid_t pid; /* 0: no daemon */
    int channel;
    bool ready;
    bool was_ready; /* some daemon has been */
    bool stopping;
    int fuse_fd, init_fd;
    int inval[2]; /* a daemon's end, the invalidator's end */
    pid_t invalidator;

    unsigned lives;
    int64_t *death_ns; /* ring of the last `restarts` deaths */
    unsigned deaths;
    int64_t reopen_ns; /* since when there is no daemon that serves; 0: there is */
    int64_t retry_ns;
    unsigned retry_ms;
};

/* ---- the daemon's side ---- */

bool supervised_from_environment(struct supervised *ret, char **ret_mountpoint)
{
    *ret = (struct supervised){.channel = -1, .fuse_fd = -1, .init_fd = -1, .inval_fd = -1};
    *ret_mountpoint = NULL;
    const char *text = getenv(ATTACH_NAME);
    if (!text)
        return true;
    int at = 0;
    if (sscanf(text, "%d,%d,%d,%d,%u:%n", &ret->fuse_fd, &ret->init_fd, &ret->channel,
               &ret->inval_fd, &ret->lives, &at) != 5 ||
        fcntl(ret->inval_fd, F_SETFD, FD_CLOEXEC) || !at ||
        fcntl(ret->fuse_fd, F_SETFD, FD_CLOEXEC) || fcntl(ret->init_fd, F_SETFD, FD_CLOEXEC) ||
        fcntl(ret->channel, F_SETFD, FD_CLOEXEC))
        return false;
    *ret_mountpoint = strdup(text + at);
    ret->parent = getppid();
    ret->attached = true;
    (void)unsetenv(ATTACH_NAME);
    return *ret_mountpoint;
}

static int tell(int channel, enum supervisor_word w, const int *fds, unsigned n)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } u = {0};
    uint32_t word = w;
    struct iovec iov = {&word, sizeof(word)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        m.msg_control = u.room;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    }
    while (sendmsg(channel, &m, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int supervised_tell(const struct supervised *s, enum supervisor_word w)
{
    return s->channel < 0 ? 0 : tell(s->channel, w, NULL, 0);
}

int supervised_hand_connection(const struct supervised *s, int fuse_fd, int init_fd)
{
    return tell(s->channel, SUPERVISOR_CONNECTION, (int[]){fuse_fd, init_fd}, 2);
}

/* ---- what a next daemon is started from ---- */

static char *program_path(void)
{
    static const char gone[] = " (deleted)";
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (n <= 0)
        return NULL;
    path[n] = '\0';
    size_t tail = sizeof(gone) - 1;
    if ((size_t)n > tail && !strcmp(path + n - tail, gone))
        path[(size_t)n - tail] = '\0';
    return strdup(path);
}

static int remember(struct super *s)
{
    s->program = program_path();
    s->cwd = getcwd(NULL, 0);
    s->death_ns = calloc(s->conf->restarts, sizeof(*s->death_ns));
    if (!s->program || !s->cwd || !s->death_ns)
        return -ENOMEM;
    return io_read_file(AT_FDCWD, "/proc/self/cmdline", COMMAND_BYTES_MAX, &s->args, &s->args_len);
}

/* ---- starting a daemon ---- */

/* In the child: dies with its supervisor, hears nothing of the terminal. With a session it has its own
 * share of the processors too (autogroup): in one with its writers, workers of a higher priority take
 * the processor from the writer before it has begun to wait, and 4 KiB appends take twice as long. */
static void child_ties(const struct super *s, pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    (void)setsid();
    (void)sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

/* In the child: becomes a daemon that takes over. The copies made here survive the exec. */
static void child_exec(struct super *s, int channel)
{
    char *text, **argv = calloc(s->args_len + 2, sizeof(*argv));
    size_t n = 0;
    for (size_t at = 0; argv && at < s->args_len; at += strlen(s->args + at) + 1)
        argv[n++] = s->args + at;
    if (!argv || asprintf(&text, "%d,%d,%d,%d,%u:%s", fcntl(s->fuse_fd, F_DUPFD, 3),
                          fcntl(s->init_fd, F_DUPFD, 3), fcntl(channel, F_DUPFD, 3),
                          fcntl(s->inval[0], F_DUPFD, 3), s->lives, s->conf->mountpoint) < 0)
        _exit(EXIT_FAILED);
    (void)setenv(ATTACH_NAME, text, 1);
    if (chdir(s->cwd))
        log_warn(LC_MAIN, "%s: %s; relative paths will not be found", s->cwd, strerror(errno));
    (void)execv(s->program, argv);
    log_err(LC_MAIN, "%s: cannot be started: %s", s->program, strerror(errno));
    _exit(EXIT_FAILED);
}

/* 1: this is the daemon (the first one); 0: it was started; -errno. */
static int start(struct super *s, struct supervised *first)
{
    int p[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p))
        return -errno;
    pid_t parent = getpid();
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        int err = -errno;
        (void)close(p[0]);
        (void)close(p[1]);
        return err;
    }
    if (!pid) {
        child_ties(s, parent);
        (void)close(p[0]);
        if (!first) {
            child_exec(s, p[1]);
            _exit(127);
        }
        (void)close(s->inval[1]);
        *first = (struct supervised){.channel = p[1],
                                     .parent = parent,
                                     .fuse_fd = -1,
                                     .init_fd = -1,
                                     .inval_fd = s->inval[0]};
        return 1;
    }
    (void)close(p[1]);
    s->pid = pid;
    s->channel = p[0];
    s->ready = false;
    return 0;
}

/* ---- giving up, stopping ---- */

static void start_invalidator(struct super *s)
{
    pid_t pid = invalidator_start(s->inval[1], s->fuse_fd);
    if (pid < 0)
        log_warn(LC_MAIN,
                 "no process to drop cached pages: %s; reading cold files fills the page "
                 "cache",
                 err_name((int)pid));
    s->invalidator = pid > 0 ? pid : 0;
}

static void drop_connection(struct super *s)
{
    /* Not waited for: it may be in the kernel until a READ ends. */
    if (s->invalidator)
        (void)kill(s->invalidator, SIGKILL);
    s->invalidator = 0;
    if (s->fuse_fd >= 0) {
        (void)close(s->fuse_fd);
        (void)close(s->init_fd);
    }
    s->fuse_fd = s->init_fd = -1;
}

static void detach(struct super *s)
{
    drop_connection(s); /* whoever waits in the mount gets ENOTCONN */
    int err = mountpoint_detach(s->conf->mountpoint);
    if (err && err != -EINVAL)
        log_err(LC_MAIN, "%s: could not be unmounted: %s; run umount %s", s->conf->mountpoint,
                err_name(err), s->conf->mountpoint);
}

/* The dead mount stays, else programs would write into the directory below it without an error. */
static int give_up(struct super *s, const char *why)
{
    log_err(LC_MAIN,
            "%s: %s; giving up, the mount point answers ENOTCONN: see above, then mount again",
            s->conf->mountpoint, why);
    drop_connection(s);
    return EXIT_FAILED;
}

/* ---- words ---- */

static void take_connection(struct super *s, struct msghdr *m)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    int fds[2];
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(fds)))
        return;
    memcpy(fds, CMSG_DATA(c), sizeof(fds));
    drop_connection(s);
    s->fuse_fd = fds[0];
    s->init_fd = fds[1];
    start_invalidator(s);
}

/* Everything the daemon has said so far. */
static void hear(struct super *s)
{
    while (s->channel >= 0) {
        union {
            struct cmsghdr head;
            char room[CMSG_SPACE(2 * sizeof(int))];
        } u;
        uint32_t word = 0;
        struct iovec iov = {&word, sizeof(word)};
        struct msghdr m = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = u.room,
                           .msg_controllen = sizeof(u.room)};
        ssize_t n = recvmsg(s->channel, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n != sizeof(word)) {
            (void)close(s->channel);
            s->channel = -1;
            return;
        }
        if (word == SUPERVISOR_CONNECTION) {
            take_connection(s, &m);
        } else if (word == SUPERVISOR_STOPPING) {
            s->stopping = true;
            drop_connection(s);
            s->hooks.word(s->hooks.arg, word);
        } else if (word == SUPERVISOR_READY) {
            s->ready = true;
            s->reopen_ns = 0;
            s->retry_ms = 0;
            if (!s->was_ready)
                s->hooks.word(s->hooks.arg, word);
            s->was_ready = true;
        }
    }
}

/* ---- an end ---- */

static const char *end_text(int status, char *out, size_t cap)
{
    if (WIFSIGNALED(status))
        snprintf(out, cap, "was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, cap, "ended with exit code %d", WEXITSTATUS(status));
    return out;
}

/* Ends as the daemon did, for whoever waits for us. */
static int end_alike(int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    struct rlimit none = {0};
    sigset_t one;
    (void)setrlimit(RLIMIT_CORE, &none); /* the daemon left its own */
    (void)signal(WTERMSIG(status), SIG_DFL);
    (void)raise(WTERMSIG(status));
    sigemptyset(&one);
    sigaddset(&one, WTERMSIG(status));
    (void)sigprocmask(SIG_UNBLOCK, &one, NULL);
    return EXIT_FAILED;
}

static bool too_many_deaths(struct super *s)
{
    unsigned max = (unsigned)s->conf->restarts;
    int64_t now = clock_mono_ns(), *oldest = &s->death_ns[s->deaths++ % max];
    *oldest = now; /* the next one to be overwritten is the oldest of the last `max` */
    return s->deaths >= max && now - s->death_ns[s->deaths % max] < DEATHS_WITHIN_MS * NS_PER_MS;
}

/* The daemon has ended. True: so do we, with *ret_code. */
static bool ended(struct super *s, int status, int *ret_code)
{
    char text[96];
    bool served = s->ready;
    s->pid = 0;
    s->ready = false;
    if (s->channel >= 0)
        (void)close(s->channel);
    s->channel = -1;
    end_text(status, text, sizeof(text));
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_OK;
    if (good || (s->fuse_fd < 0 && !s->stopping)) {
        *ret_code = end_alike(status);
        return true;
    }
    if (s->stopping) {
        log_err(LC_MAIN, "%s: the daemon %s while it was stopping", s->conf->mountpoint, text);
        detach(s);
        *ret_code = EXIT_FAILED;
        return true;
    }
    s->lives++;
    if (!s->reopen_ns)
        s->reopen_ns = clock_mono_ns();
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_HANDOVER) {
        log_info(LC_MAIN, "%s: the daemon hands the mount over", s->conf->mountpoint);
        s->retry_ns = 0;
        return false;
    }
    log_warn(LC_MAIN, "%s: the daemon %s; another one takes the mount over", s->conf->mountpoint,
             text);
    if (WIFSIGNALED(status) || served) {
        if (too_many_deaths(s)) {
            char why[96];
            snprintf(why, sizeof(why), "the daemon died %llu times within a minute",
                     (unsigned long long)s->conf->restarts);
            *ret_code = give_up(s, why);
            return true;
        }
    }
    if (served) {
        s->retry_ns = 0;
        return false;
    }
    if (clock_mono_ns() - s->reopen_ns > REOPEN_MS * NS_PER_MS) {
        *ret_code = give_up(s, "the volume could not be opened again for half a minute");
        return true;
    }
    /* At once the first time, then with growing pauses. */
    s->retry_ns = s->retry_ms ? clock_mono_ns() + s->retry_ms * NS_PER_MS : 0;
    s->retry_ms = s->retry_ms ? 2 * s->retry_ms : RETRY_MS;
    if (s->retry_ms > RETRY_MAX_MS)
        s->retry_ms = RETRY_MAX_MS;
    return false;
}

/* ---- signals ---- */

/* True: all is over. */
static bool take_signals(struct super *s, int *ret_code)
{
    struct signalfd_siginfo si;
    while (read(s->signal_fd, &si, sizeof(si)) == sizeof(si)) {
        int sig = (int)si.ssi_signo, status;
        if (sig == SIGHUP)
            s->hooks.reopen_log(s->hooks.arg);
        if (sig == SIGTERM || sig == SIGINT)
            s->stopping = s->stopping || s->was_ready;
        if (sig != SIGCHLD && s->pid)
            (void)kill(s->pid, sig);
        if (sig != SIGCHLD)
            continue;
        hear(s); /* its last words */
        if (s->invalidator && waitpid(s->invalidator, &status, WNOHANG) == s->invalidator)
            start_invalidator(s);
        if (s->pid && waitpid(s->pid, &status, WNOHANG) == s->pid && ended(s, status, ret_code))
            return true;
    }
    if (s->stopping && !s->pid) {
        log_info(LC_MAIN, "%s: stopped while no daemon was there", s->conf->mountpoint);
        detach(s);
        *ret_code = EXIT_FAILED;
        return true;
    }
    return false;
}

static int signals_open(struct super *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, &s->old_mask);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? -errno : 0;
}

/* ---- the loop ---- */

static int watch(struct super *s)
{
    int code = EXIT_FAILED;
    for (;;) {
        int64_t now = clock_mono_ns(), wait = -1;
        if (!s->pid && now >= s->retry_ns) {
            int err = start(s, NULL);
            if (err) {
                log_err(LC_MAIN, "%s: no process for a daemon: %s", s->conf->mountpoint,
                        err_name(err));
                s->retry_ns = now + RETRY_MAX_MS * NS_PER_MS;
            }
        }
        if (!s->pid)
            wait = (s->retry_ns - now) / NS_PER_MS + 1;
        struct pollfd p[2] = {{.fd = s->signal_fd, .events = POLLIN},
                              {.fd = s->channel, .events = POLLIN}};
        (void)poll(p, 2, (int)wait);
        hear(s);
        if (take_signals(s, &code))
            return code;
    }
}

int supervise(const struct config *conf, int close_fd, const struct supervisor_hooks *hooks,
              struct supervised *ret, int *ret_code)
{
    struct super s = {.conf = conf,
                      .hooks = *hooks,
                      .signal_fd = -1,
                      .channel = -1,
                      .fuse_fd = -1,
                      .init_fd = -1,
                      .inval = {-1, -1}};
    int err = remember(&s);
    if (!err)
        err = invalidator_sockets(&s.inval[0], &s.inval[1]);
    if (!err)
        err = signals_open(&s);
    if (!err)
        err = start(&s, ret);
    if (err == 0) {
        if (close_fd >= 0)
            (void)close(close_fd);
        (void)prctl(PR_SET_NAME, "sluicefs-super");
        *ret_code = watch(&s);
    }
    if (err != 0 && s.signal_fd >= 0) {
        (void)close(s.signal_fd);
        (void)sigprocmask(SIG_SETMASK, &s.old_mask, NULL);
    }
    if (err <= 0) {
        drop_connection(&s);
        io_close(s.inval[0]);
        io_close(s.inval[1]);
    }
    free(s.program);
    free(s.args);
    free(s.cwd);
    free(s.death_ns);
    return err < 0 ? err : !err;
}
