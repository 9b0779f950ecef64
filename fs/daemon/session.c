/* session.c: the worker threads between /dev/fuse and the operations, INIT, and what every request
 * has in common: its number, its metrics.
 *
 * The loop is our own instead of libfuse's for three reasons: the number of threads is fixed (no
 * thread is created while the machine is under load), they end without being cancelled in the middle
 * of something, and the raw request header is at hand: it holds `unique` and the mark of a request
 * that the kernel sends again after a daemon's death, both of which libfuse keeps to itself.
 *
 * Only as many workers wait for the next request as are of use (IDLE_WORKERS); the others are parked.
 * The kernel wakes waiting readers in turn, so with all of them waiting each request would wake the
 * thread that has slept longest, with cold caches: appends of 4 KiB ran at 0.7 of the rate.
 *
 *   reading   in `waiting`: will take the next request
 *   working   runs an operation; whoever leaves `waiting` at 0 by taking a request unparks one. It may
 *             count itself as waiting when nothing but a reply is left to do (session_soon_back), since
 *             a writer sends its next request before the worker of the last one is back
 *   parked    in `parked`, asleep on `unpark`
 *
 * A worker that parks looks at `waiting` once more after it has counted itself, and one that takes a
 * request looks at `parked` after it has left `waiting`: one of the two sees the other.
 *
 * The device is not cloned per thread: requests of a cloned descriptor die with its owner.
 *
 * Metrics: a request is counted when its operation returns, or, if the operation took it along
 * (call_take), when its later reply has gone out (call_done).
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fs/base/log.h"

#ifndef FUSE_UNIQUE_RESEND
#define FUSE_UNIQUE_RESEND (1ULL << 63)
#endif

enum { IDLE_WORKERS = 2, WORKER_NICE = -10 };

enum {
    INIT_EXT = 1 << 30,        /* in flags: flags2 follows */
    INIT2_HAS_RESEND = 1 << 7, /* FUSE_HAS_RESEND, bit 39 of both */
    NOTIFY_RESEND = 7,         /* FUSE_NOTIFY_RESEND */
    INIT_BYTES_MAX = 4096,
    REQUEST_BYTES = FUSE_IO_BYTES_MAX + 4096 /* with its header */
};

_Thread_local struct call call_now;

struct worker {
    pthread_t thread;
    struct daemon *d;
    void *memory; /* REQUEST_BYTES: of the request it works on */
    _Atomic bool left;
};

struct session {
    unsigned n;
    _Atomic unsigned running;
    _Atomic int waiting, parked;
    sem_t unpark;
    void (*ended)(void *arg);
    void *arg;
    struct worker worker[];
};

/* ---- metrics ---- */

static const char *const op_names[OPCODES] = {
    [0] = "other",
    [FUSE_LOOKUP] = "lookup",
    [FUSE_FORGET] = "forget",
    [FUSE_GETATTR] = "getattr",
    [FUSE_SETATTR] = "setattr",
    [FUSE_READLINK] = "readlink",
    [FUSE_SYMLINK] = "symlink",
    [FUSE_MKNOD] = "mknod",
    [FUSE_MKDIR] = "mkdir",
    [FUSE_UNLINK] = "unlink",
    [FUSE_RMDIR] = "rmdir",
    [FUSE_RENAME] = "rename",
    [FUSE_LINK] = "link",
    [FUSE_OPEN] = "open",
    [FUSE_READ] = "read",
    [FUSE_WRITE] = "write",
    [FUSE_STATFS] = "statfs",
    [FUSE_RELEASE] = "release",
    [FUSE_FSYNC] = "fsync",
    [FUSE_SETXATTR] = "setxattr",
    [FUSE_GETXATTR] = "getxattr",
    [FUSE_LISTXATTR] = "listxattr",
    [FUSE_REMOVEXATTR] = "removexattr",
    [FUSE_FLUSH] = "flush",
    [FUSE_INIT] = "init",
    [FUSE_OPENDIR] = "opendir",
    [FUSE_READDIR] = "readdir",
    [FUSE_RELEASEDIR] = "releasedir",
    [FUSE_FSYNCDIR] = "fsyncdir",
    [FUSE_ACCESS] = "access",
    [FUSE_CREATE] = "create",
    [FUSE_INTERRUPT] = "interrupt",
    [FUSE_DESTROY] = "destroy",
    [FUSE_IOCTL] = "ioctl",
    [FUSE_POLL] = "poll",
    [FUSE_BATCH_FORGET] = "forget_multi",
    [FUSE_FALLOCATE] = "fallocate",
    [FUSE_READDIRPLUS] = "readdirplus",
    [FUSE_RENAME2] = "rename2",
    [FUSE_LSEEK] = "lseek",
    [FUSE_COPY_FILE_RANGE] = "copy_file_range",
};

static double pending_gauge(void *arg)
{
    struct daemon *d = arg;
    return atomic_load(&d->pending);
}

static double reads_gauge(void *arg)
{
    struct daemon *d = arg;
    return atomic_load(&d->reads_n);
}

void metrics_init(struct daemon *d)
{
    struct stats *s = d->v->stats;
    for (unsigned op = 0; op < OPCODES; op++) {
        if (!op_names[op])
            continue;
        char label[64];
        snprintf(label, sizeof(label), "op=\"%s\"", op_names[op]);
        d->requests[op] =
            stats_counter(s, "fuse_requests_total", label, "Requests of the kernel, answered");
        d->seconds[op] = stats_histogram(s, "fuse_request_seconds", label,
                                         "Time from reading a request to its reply");
    }
    d->read_bytes = stats_counter(s, "fuse_read_bytes_total", "", "Bytes given to READ requests");
    d->write_bytes =
        stats_counter(s, "fuse_write_bytes_total", "", "Bytes taken from WRITE requests");
    d->drop_lost = stats_counter(s, "fuse_drop_behind_lost_total", "",
                                 "Ranges of cold bytes left in the page cache");
    stats_gauge(s, "fuse_requests_pending", "", "Requests that will be answered later",
                pending_gauge, d);
    stats_gauge(s, "fuse_reads_pending", "", "READ requests that wait for bytes", reads_gauge, d);
}

void call_count(struct daemon *d, const struct call *c)
{
    unsigned op = c->op < OPCODES && op_names[c->op] ? c->op : 0;
    counter_add(d->requests[op], 1);
    histogram_add(d->seconds[op], clock_mono_ns() - c->start_ns);
}

struct call call_take(struct daemon *d)
{
    call_now.taken = true;
    atomic_fetch_add(&d->pending, 1);
    return call_now;
}

void call_done(struct daemon *d, const struct call *c)
{
    call_count(d, c);
    atomic_fetch_sub(&d->pending, 1);
}

/* ---- INIT ---- */

static void want(struct fuse_conn_info *conn, uint32_t flag, bool on)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    if (!on)
        fuse_unset_feature_flag(conn, flag);
    else if (fuse_get_feature_flag(conn, flag))
        (void)fuse_set_feature_flag(conn, flag);
#else
    if (!on)
        conn->want &= ~flag;
    else
        conn->want |= conn->capable & flag;
#endif
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    (void)userdata;
    /* Sizes and times change by our own hand only: what is cached stays true until we invalidate. */
    want(conn, FUSE_CAP_AUTO_INVAL_DATA, false);
    want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA, true);
    /* With it open(2) of a running program truncates it before the kernel refuses. */
    want(conn, FUSE_CAP_ATOMIC_O_TRUNC, false);
    /* Acknowledged bytes must be here, not in the kernel. */
    want(conn, FUSE_CAP_WRITEBACK_CACHE, false);
    /* Pieces of one O_DIRECT write would arrive out of order and look like gaps. */
    want(conn, FUSE_CAP_ASYNC_DIO, false);
    /* Requests and replies are copied: buffers come from the pool, and splice was slower. */
    want(conn, FUSE_CAP_SPLICE_MOVE, false);
    want(conn, FUSE_CAP_SPLICE_WRITE, false);
    want(conn, FUSE_CAP_SPLICE_READ, false);
    /* Locks stay with the kernel, which frees them when their holder dies. */
    want(conn, FUSE_CAP_POSIX_LOCKS, false);
    want(conn, FUSE_CAP_FLOCK_LOCKS, false);
    /* Setuid bits: the kernel sends the SETATTR itself. */
    want(conn, FUSE_CAP_HANDLE_KILLPRIV, false);
#ifdef FUSE_CAP_HANDLE_KILLPRIV_V2
    want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2, false);
#endif
    want(conn, FUSE_CAP_POSIX_ACL, false);
    want(conn, FUSE_CAP_IOCTL_DIR, false);
    want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
    want(conn, FUSE_CAP_READDIRPLUS, true);
    want(conn, FUSE_CAP_READDIRPLUS_AUTO, true);
    want(conn, FUSE_CAP_ASYNC_READ, true);
    want(conn, FUSE_CAP_EXPORT_SUPPORT, true);
    want(conn, FUSE_CAP_CACHE_SYMLINKS, true);
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
    want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP, true);
#endif
    conn->max_write = FUSE_IO_BYTES_MAX;
    conn->max_background = 1024;
    conn->congestion_threshold = 768;
    conn->time_gran = 1;
    log_debug(LC_FUSE, "kernel speaks FUSE %u.%u, max_readahead %u", conn->proto_major,
              conn->proto_minor, conn->max_readahead);
}

const struct fuse_lowlevel_ops sluice_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
    .getxattr = op_getxattr,
    .setxattr = op_setxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .create = op_create,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
};

/* ---- workers ---- */

static void call_begin(const void *mem, size_t len)
{
    struct fuse_in_header h;
    call_now = (struct call){.start_ns = clock_mono_ns()};
    if (len < sizeof(h))
        return;
    memcpy(&h, mem, sizeof(h));
    call_now.op = h.opcode;
    call_now.unique = h.unique & ~FUSE_UNIQUE_RESEND;
    call_now.resent = h.unique & FUSE_UNIQUE_RESEND;
}

static _Thread_local bool counted; /* in `waiting`, before it waits */

void session_soon_back(struct daemon *d)
{
    if (!d->session || counted)
        return;
    counted = true;
    atomic_fetch_add(&d->session->waiting, 1);
}

static bool unpark_one(struct session *s)
{
    int n = atomic_load(&s->parked);
    while (n > 0)
        if (atomic_compare_exchange_weak(&s->parked, &n, n - 1))
            return true;
    return false;
}

/* Sleeps while enough others wait for requests. A signal ends it too. */
static void park(struct session *s)
{
    if (atomic_load(&s->waiting) - counted < IDLE_WORKERS)
        return;
    if (counted)
        atomic_fetch_sub(&s->waiting, 1);
    counted = false;
    atomic_fetch_add(&s->parked, 1);
    if (atomic_load(&s->waiting) == 0 && unpark_one(s))
        return; /* they have all gone to work meanwhile; ours, or in place of ours */
    while (sem_wait(&s->unpark) < 0)
        if (unpark_one(s))
            return; /* a signal: the session may be over */
}

/* Memory that is there already, not libfuse's: when a process is killed while the kernel copies a request
 * into memory that it has to find first, the kernel gives up and answers the request with EIO. A fork
 * would make each page one to be copied first, so children do not get it. */
static void *request_memory(void)
{
    void *p = mmap(NULL, REQUEST_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (madvise(p, REQUEST_BYTES, MADV_DONTFORK) < 0) {
        (void)munmap(p, REQUEST_BYTES);
        return NULL;
    }
    return p;
}

static int read_request(struct daemon *d, struct fuse_buf *buf)
{
    ssize_t n = read(fuse_session_fd(d->se), buf->mem, REQUEST_BYTES);
    if (n < 0) /* ENOENT: it was interrupted before it came */
        return errno == ENOENT ? -EAGAIN : -errno;
    buf->size = (size_t)n;
    return (int)n;
}

static int receive(struct daemon *d, struct fuse_buf *buf)
{
    struct session *s = d->session;
    session_soon_back(d);
    int n = read_request(d, buf);
    counted = false;
    if (atomic_fetch_sub(&s->waiting, 1) == 1 && unpark_one(s))
        (void)sem_post(&s->unpark);
    return n;
}

/* ---- taking over ---- */

static void keep_init(struct daemon *d, const void *mem, size_t len)
{
    int fd = memfd_create("sluicefs-init", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, mem, len) != (ssize_t)len) {
        (void)close(fd);
        fd = -1;
    }
    if (fd < 0)
        log_warn(LC_FUSE, "no copy of the kernel's first request: %s", strerror(errno));
    int old = atomic_exchange(&d->init_fd, fd);
    if (old >= 0)
        (void)close(old);
}

/* The body is older or newer than our header, never shorter than its first four fields. */
struct init_request {
    struct fuse_in_header h;
    uint32_t major, minor, readahead, flags, flags2;
};

bool session_can_resend(struct daemon *d)
{
    struct init_request r;
    int fd = atomic_load(&d->init_fd);
    return fd >= 0 && pread(fd, &r, sizeof(r), 0) == sizeof(r) && r.flags & INIT_EXT &&
           r.flags2 & INIT2_HAS_RESEND;
}

int session_attach(struct daemon *d)
{
    char mem[INIT_BYTES_MAX];
    ssize_t n = pread(atomic_load(&d->init_fd), mem, sizeof(mem), 0);
    if (n < (ssize_t)sizeof(struct init_request))
        return n < 0 ? -errno : -EBADMSG;
    struct fuse_buf buf = {.mem = mem, .size = (size_t)n};
    /* The kernel has its answer since long: this one it does not know, which libfuse overlooks. */
    fuse_session_process_buf(d->se, &buf);
    return fuse_session_exited(d->se) ? -EPROTO : 0;
}

int session_resend(struct daemon *d)
{
    struct fuse_out_header h = {.len = sizeof(h), .error = NOTIFY_RESEND};
    return write(fuse_session_fd(d->se), &h, sizeof(h)) == sizeof(h) ? 0 : -errno;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct daemon *d = w->d;
    struct session *s = d->session;
    struct fuse_buf buf = {.mem = w->memory};
    sigset_t wake;
    sigemptyset(&wake);
    sigaddset(&wake, SIGUSR1);
    (void)pthread_sigmask(SIG_UNBLOCK, &wake, NULL);
    /* Where allowed: an append beside a cold scan does not queue behind the scan's threads. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + WORKER_NICE);

    while (!fuse_session_exited(d->se)) {
        park(s);
        if (fuse_session_exited(d->se))
            break;
        int n = receive(d, &buf);
        if (n == -EINTR || n == -EAGAIN)
            continue;
        if (n <= 0) {
            if (n < 0 && n != -ECONNABORTED && n != -ENODEV)
                log_err(LC_FUSE, "reading requests failed: %s; the mount ends", err_name(n));
            fuse_session_exit(d->se);
            break;
        }
        call_begin(buf.mem, (size_t)n);
        if (call_now.op == FUSE_INIT)
            keep_init(d, buf.mem, (size_t)n);
        fuse_session_process_buf(d->se, &buf);
        if (!call_now.taken)
            call_count(d, &call_now);
    }
    if (counted)
        atomic_fetch_sub(&s->waiting, 1);
    counted = false;
    if (unpark_one(s)) /* who does the same, and so on */
        (void)sem_post(&s->unpark);
    atomic_store(&w->left, true);
    if (atomic_fetch_sub(&s->running, 1) == 1)
        s->ended(s->arg);
    return NULL;
}

static void wake_handler(int sig)
{
    (void)sig;
}

int session_start(struct daemon *d, void (*ended)(void *arg), void *arg)
{
    /* Without SA_RESTART: it gets a worker out of its read of /dev/fuse. */
    struct sigaction sa = {.sa_handler = wake_handler};
    (void)sigaction(SIGUSR1, &sa, NULL);

    unsigned n = (unsigned)d->conf->workers;
    struct session *s = calloc(1, sizeof(*s) + n * sizeof(s->worker[0]));
    if (!s)
        return -ENOMEM;
    s->ended = ended;
    s->arg = arg;
    if (sem_init(&s->unpark, 0, 0) < 0) {
        free(s);
        return -errno;
    }
    d->session = s;
    atomic_store(&s->running, 1); /* ours, until all are started */
    int err = 0;
    for (; s->n < n; s->n++) {
        struct worker *w = &s->worker[s->n];
        w->d = d;
        atomic_fetch_add(&s->running, 1);
        w->memory = request_memory();
        err = w->memory ? -pthread_create(&w->thread, NULL, worker_main, w) : -ENOMEM;
        if (err) {
            if (w->memory)
                (void)munmap(w->memory, REQUEST_BYTES);
            atomic_fetch_sub(&s->running, 1);
            break;
        }
        char name[16];
        snprintf(name, sizeof(name), "fuse-%u", s->n);
        (void)pthread_setname_np(w->thread, name);
    }
    if (atomic_fetch_sub(&s->running, 1) == 1 && s->n)
        ended(arg);
    if (s->n && err)
        log_warn(LC_FUSE, "only %u of %u worker threads could be started: %s", s->n, n,
                 err_name(err));
    return s->n ? 0 : err;
}

bool session_ended(struct daemon *d)
{
    return !d->session || atomic_load(&d->session->running) == 0;
}

bool session_stop(struct daemon *d, int64_t until_mono_ns)
{
    struct session *s = d->session;
    fuse_session_exit(d->se);
    while (!session_ended(d)) {
        /* Repeated, since a worker may be between its look at the flag and its read. */
        for (unsigned i = 0; i < s->n; i++)
            if (!atomic_load(&s->worker[i].left))
                (void)pthread_kill(s->worker[i].thread, SIGUSR1);
        if (clock_mono_ns() >= until_mono_ns)
            return false;
        struct timespec nap = {.tv_nsec = 5 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

void session_free(struct daemon *d)
{
    struct session *s = d->session;
    if (!s)
        return;
    for (unsigned i = 0; i < s->n; i++) {
        (void)pthread_join(s->worker[i].thread, NULL);
        (void)munmap(s->worker[i].memory, REQUEST_BYTES);
    }
    (void)sem_destroy(&s->unpark);
    free(s);
    d->session = NULL;
}
