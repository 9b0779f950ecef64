/* daemon.c: the life of a mount.
 *
 * The first daemon of a mount:
 *   prepare    options, paths, mount point; no thread, nothing changed yet
 *   detach     (background) fork; the parent waits at a pipe for one line: ready, or why not; fork
 *              again: what was the daemon so far becomes its supervisor (supervisor.c)
 *   open       volume_open: may take seconds at a first mount; nothing is mounted yet, so a store
 *              that does not answer never leaves a dead mount
 *   mount      FUSE session, worker threads; ready once statfs through the mount was answered; the
 *              supervisor gets copies of the connection and of the kernel's INIT
 *   serve      until SIGTERM or SIGINT, or until somebody unmounts
 *   drain      unmount lazily (dirty mapped pages come as writes, so the workers still serve); workers
 *              leave; reads that wait for the store are given up; what is left is answered
 *   stop       volume_stop makes everything durable; then all is freed
 *
 * A daemon that takes over (after a death, or an upgrade) finds the connection in its environment:
 *
 *   prepare -> open -> attach (session with the INIT copy, then the kernel is asked to send again what
 *   the daemon before has not answered, then the workers) -> serve ...
 *
 * It never looks at its mount point: only it could answer. Until it serves it ends by _exit, as if
 * killed: the mount is not its own to take away. A daemon that hands over does the same after it has
 * answered what can be answered soon; reads that wait for the store are left to be sent again.
 *
 * Signals: one thread takes them all (sigwait), every other thread blocks them. SIGTERM, SIGINT:
 * stop; a second one shortens the drain, never the syncing. SIGHUP: open the log file again.
 *
 * Lock: life.mu (RANK_REPLY) guards what main waits for.
 */
#include "fs/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/daemon/life.h"
#include "fs/daemon/mountopts.h"
#include "fs/daemon/mountpoint.h"
#include "fs/volume/control.h"

enum { REASON_BYTES = 1024 };

/* What the child tells the waiting parent. */
struct report {
    int code;
    char why[REASON_BYTES];
};

/* What a supervisor left for us; taken before the options are read. */
static struct supervised inherited = {.channel = -1, .fuse_fd = -1, .init_fd = -1, .inval_fd = -1};
static char *inherited_mountpoint;

/* ---- telling ---- */

static int tell(struct life *l, int code, const char *why)
{
    if (l->report_fd < 0) {
        if (code)
            fprintf(stderr, "sluicefs: %s\n", why);
        return code;
    }
    struct report r = {.code = code};
    snprintf(r.why, sizeof(r.why), "%s", why);
    if (write(l->report_fd, &r, sizeof(r)) != (ssize_t)sizeof(r))
        log_warn(LC_MAIN, "the command that started this daemon has gone");
    (void)close(l->report_fd);
    l->report_fd = -1;
    return code;
}

static void tell_manager(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (!path || (path[0] != '/' && path[0] != '@'))
        return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n >= sizeof(to.sun_path))
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = '\0';
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
        log_warn(LC_MAIN, "NOTIFY_SOCKET: not told %s: %s", state, strerror(errno));
}

/* What a service manager is to hear comes from the process that it started. */
static void announce(const struct life *l, enum supervisor_word w)
{
    if (l->sup.channel >= 0) {
        int err = supervised_tell(&l->sup, w);
        if (err)
            log_warn(LC_MAIN, "the supervisor does not hear: %s", err_name(err));
    } else if (l->foreground) {
        tell_manager(w == SUPERVISOR_READY ? "READY=1" : "STOPPING=1");
    }
}

/* ---- prepare ---- */

static int prepare(struct life *l, struct config *conf, char *why, size_t cap)
{
    if (mountopts_parse(conf->fuse_options, conf, &l->opts, why, cap))
        return EXIT_USAGE;
    if (l->opts.remount) {
        snprintf(why, cap,
                 "mount option remount: a running daemon takes no new settings; run mount -i -o "
                 "remount,... for flags like ro, or unmount and mount again");
        return EXIT_USAGE;
    }
    if (l->opts.foreground)
        l->foreground = true;
    if (conf->debug && log_set_debug(conf->debug)) {
        snprintf(why, cap, "debug: unknown component in %s; see sluicefs help mount", conf->debug);
        return EXIT_USAGE;
    }
    /* The daemon changes to /, so that it keeps no directory busy. */
    if (config_paths(conf, why, cap))
        return EXIT_FAILED;
    if (mountopts_finish(conf, &l->opts)) {
        snprintf(why, cap, "memory: not enough to start; free some");
        return EXIT_FAILED;
    }
    return l->sup.attached ? EXIT_OK : mountpoint_check(&conf->mountpoint, why, cap);
}

/* ---- detach ---- */

static int wait_for_child(int fd, pid_t pid)
{
    struct report r;
    size_t got = 0;
    while (got < sizeof(r)) {
        ssize_t n = read(fd, (char *)&r + got, sizeof(r) - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    (void)close(fd);
    if (got == sizeof(r)) {
        r.why[sizeof(r.why) - 1] = '\0';
        if (r.code)
            fprintf(stderr, "sluicefs: %s\n", r.why);
        return r.code;
    }
    int status = 0;
    (void)waitpid(pid, &status, 0);
    fprintf(stderr, "sluicefs: daemon: ended before the mount was ready (%s %d); see its log\n",
            WIFSIGNALED(status) ? "signal" : "exit",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return EXIT_FAILED;
}

/* In the child: 0. In the parent: 1, with the exit code. */
static int go_background(struct life *l, int *ret_code)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC)) {
        fprintf(stderr, "sluicefs: daemon: no pipe (%s); close some files\n", strerror(errno));
        *ret_code = EXIT_FAILED;
        return 1;
    }
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        fprintf(stderr, "sluicefs: daemon: fork failed (%s); free some memory\n", strerror(errno));
        *ret_code = EXIT_FAILED;
        return 1;
    }
    if (pid) {
        (void)close(p[1]);
        *ret_code = wait_for_child(p[0], pid);
        return 1;
    }
    (void)close(p[0]);
    l->report_fd = p[1];
    (void)setsid();
    return 0;
}

static void stdio_to_null(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    for (int k = 0; k < 3; k++)
        (void)dup2(fd, k);
    if (fd > 2)
        (void)close(fd);
}

/* ---- log ---- */

static int log_open(struct life *l, int create)
{
    if (!l->log_path)
        return 0;
    int fd = open(l->log_path, O_WRONLY | O_APPEND | create | O_CLOEXEC, 0640);
    if (fd < 0)
        return -errno;
    if (l->log_fd < 0) {
        l->log_fd = fd;
        log_set_fd(fd);
    } else { /* atomically: other threads are writing */
        (void)dup3(fd, l->log_fd, O_CLOEXEC);
        (void)close(fd);
    }
    return 0;
}

static int log_prepare(struct life *l, const struct config *conf, char *why, size_t cap)
{
    l->log_fd = -1;
    if (conf->log_file) {
        l->log_path = strdup(conf->log_file);
        int err = log_open(l, O_CREAT);
        if (!err ||
            conf->connection_survived) /* a mount that is in use is not given up for its log */
            return EXIT_OK;
        snprintf(
            why, cap,
            "setting log_file: %.500s cannot be opened (%s); give a file in a directory that is "
            "there and writable",
            conf->log_file, err_name(err));
        return EXIT_USAGE;
    }
    /* The state directory may not be there yet, or be somebody else's: made after volume_open. */
    if (!l->foreground && asprintf(&l->log_path, "%s/log", conf->state) < 0)
        l->log_path = NULL;
    (void)log_open(l, 0);
    return EXIT_OK;
}

__attribute__((format(printf, 2, 0))) static void fuse_log_to_ours(enum fuse_log_level level,
                                                                   const char *fmt, va_list ap)
{
    char line[512];
    vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\n")] = '\0';
    if (level <= FUSE_LOG_ERR)
        log_err(LC_FUSE, "%s", line);
    else if (level == FUSE_LOG_WARNING)
        log_warn(LC_FUSE, "%s", line);
    else
        log_debug(LC_FUSE, "%s", line);
}

/* ---- signals ---- */

static void signal_set(sigset_t *s)
{
    sigemptyset(s);
    sigaddset(s, SIGTERM);
    sigaddset(s, SIGINT);
    sigaddset(s, SIGHUP);
}

static void *signal_main(void *arg)
{
    struct life *l = arg;
    sigset_t set;
    signal_set(&set);
    for (;;) {
        int sig = 0;
        if (sigwait(&set, &sig))
            continue;
        if (sig == SIGHUP) {
            (void)log_open(l, O_CREAT); /* a failure leaves the old one */
            continue;
        }
        if (!atomic_load(&l->serving)) {
            (void)tell(l, EXIT_FAILED,
                       "mount: ended by a signal before anything was mounted; try again");
            _exit(EXIT_FAILED);
        }
        lock_acquire(&l->mu);
        l->stops++;
        (void)pthread_cond_broadcast(&l->changed);
        lock_release(&l->mu);
    }
    return NULL;
}

static int signals_start(struct life *l)
{
    sigset_t set;
    pthread_t t;
    signal_set(&set);
    sigaddset(&set, SIGUSR1); /* the workers' wake-up: no other thread takes it */
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    int err = -pthread_create(&t, NULL, signal_main, l);
    if (!err) {
        (void)pthread_setname_np(t, "signals");
        (void)pthread_detach(t);
    }
    return err;
}

/* ---- opening ---- */

/* `sluicefs umount`: as SIGTERM. */
static void stop_asked(void *arg)
{
    struct life *l = arg;
    log_info(LC_MAIN, "asked to stop by a command");
    lock_acquire(&l->mu);
    l->stops += !l->stops;
    (void)pthread_cond_broadcast(&l->changed);
    lock_release(&l->mu);
}

/* `sluicefs upgrade`. */
static bool hand_over_asked(void *arg, bool now)
{
    struct life *l = arg;
    if (!l->d.conf->supervised || !now)
        return l->d.conf->supervised;
    lock_acquire(&l->mu);
    l->handing_over = true;
    (void)pthread_cond_broadcast(&l->changed);
    lock_release(&l->mu);
    return true;
}

static int open_parts(struct life *l, char *why, size_t cap)
{
    struct daemon *d = &l->d;
    int code = EXIT_FAILED;
    int err = volume_open(d->conf, &d->v, why, cap, &code);
    if (err)
        return code ? code : EXIT_FAILED;
    if (l->log_fd < 0)
        (void)log_open(l, O_CREAT); /* without it: to standard error, as before */
    metrics_init(d);
    data_on_space(d->v->data, delayed_release, d);
    err = exec_open("reply", 2, 0, &d->reply);
    if (!err)
        err = order_open(&d->order);
    if (!err)
        err = notify_open(d, &d->notify);
    if (!err)
        err = virt_open_all(d, &d->virt);
    if (err) {
        snprintf(why, cap, "daemon: threads could not be started (%s); free memory or raise limits",
                 err_name(err));
        return EXIT_FAILED;
    }
    struct control_ops ops = control_ops_of(d->v);
    ops.stop = stop_asked;
    ops.hand_over = hand_over_asked;
    err = control_open(d->v->state_fd, &ops, l, &d->control);
    if (err)
        snprintf(why, cap,
                 "state directory %s: the control socket cannot be made there (%s); choose a "
                 "directory on a local file system",
                 d->conf->state, err_name(err));
    return err ? EXIT_FAILED : EXIT_OK;
}

static int run(struct life *l, const char *argv0)
{
    char why[REASON_BYTES] = "";
    struct daemon *d = &l->d;
    struct rlimit nofile;
    if (!getrlimit(RLIMIT_NOFILE, &nofile)) {
        nofile.rlim_cur = nofile.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &nofile);
    }
    fuse_set_log_func(fuse_log_to_ours);
    int code = EXIT_FAILED;
    if (signals_start(l))
        snprintf(why, sizeof(why),
                 "daemon: no thread could be started; free memory or raise limits");
    else
        code = open_parts(l, why, sizeof(why));
    /* From here on a signal must not end the process: it would leave a dead mount behind. */
    atomic_store(&l->serving, true);
    if (!code)
        code = l->sup.attached ? life_attach(l, argv0, why, sizeof(why))
                               : life_mount(l, argv0, why, sizeof(why));
    if (code && l->sup.attached) {
        log_err(LC_MAIN, "%s", why);
        _exit(code);
    }
    if (code) {
        life_close(l);
        return tell(l, code, why);
    }
    log_info(LC_MAIN, "volume %s %s %s", d->v->id_text,
             l->sup.attached ? "was taken over at" : "is mounted at", d->conf->mountpoint);
    if (!l->foreground) {
        (void)!chdir("/");
        stdio_to_null();
    }
    announce(l, SUPERVISOR_READY);
    (void)tell(l, EXIT_OK, "");

    life_wait(l);
    if (life_is_handover(l))
        life_hand_over(l);
    announce(l, SUPERVISOR_STOPPING);
    log_info(LC_MAIN, "%s: stopping", d->conf->mountpoint);
    life_close(l);
    log_info(LC_MAIN, "%s: stopped", d->conf->mountpoint);
    return EXIT_OK;
}

/* ---- the supervisor's part ---- */

static void supervisor_word(void *arg, enum supervisor_word w)
{
    struct life *l = arg;
    if (l->foreground)
        tell_manager(w == SUPERVISOR_READY ? "READY=1" : "STOPPING=1");
    if (w != SUPERVISOR_READY)
        return;
    if (l->log_fd < 0)
        (void)log_open(l, 0); /* the daemon has made it */
    if (!l->foreground) {
        (void)!chdir("/");
        stdio_to_null();
    }
}

static void supervisor_reopen_log(void *arg)
{
    (void)log_open(arg, O_CREAT); /* a failure leaves the old one */
}

bool daemon_inherit(void)
{
    return supervised_from_environment(&inherited, &inherited_mountpoint);
}

int daemon_inherit_into(struct config *conf)
{
    if (!inherited.attached)
        return 0;
    char *mp = strdup(inherited_mountpoint);
    if (!mp)
        return -ENOMEM;
    free(conf->mountpoint);
    conf->mountpoint = mp;
    conf->connection_survived = true;
    return 0;
}

int daemon_main(struct config *conf, bool foreground, const char *argv0)
{
    /* Static: detached threads (signals, a late unmount) may outlive this call by a moment. */
    static struct life l;
    char why[REASON_BYTES] = "";
    l.foreground = foreground;
    l.report_fd = -1;
    l.sup = inherited;
    l.d.conf = conf;
    l.d.uid = geteuid();
    l.d.gid = getegid();
    l.d.init_fd = -1;
    l.d.inval_fd = -1;
    lock_init(&l.mu, "life", RANK_REPLY, false);
    cond_init(&l.changed);
    lock_init(&l.d.mu, "requests", RANK_REPLY, false);
    list_init(&l.d.reads);
    delayed_init(&l.d);

    int code = prepare(&l, conf, why, sizeof(why));
    if (code)
        return tell(&l, code, why);
    if (!l.foreground && !l.sup.attached && go_background(&l, &code))
        return code;
    code = log_prepare(&l, conf, why, sizeof(why));
    if (code)
        return tell(&l, code, why);
    if (conf->supervise && !l.sup.attached) {
        struct supervisor_hooks hooks = {&l, supervisor_word, supervisor_reopen_log};
        int r = supervise(conf, l.report_fd, &hooks, &l.sup, &code);
        if (r > 0)
            return code;
        if (r < 0)
            log_warn(LC_MAIN, "no supervisor could be started: %s", err_name(r));
    }
    conf->supervisor = l.sup.channel >= 0 ? (int)l.sup.parent : 0;
    conf->takeovers = l.sup.lives;
    return run(&l, argv0);
}
