/* mounted.c: a daemon between an open volume and its end: mounting, or taking over; waiting; draining and
 * closing, or handing over. See the states in daemon.c.
 *
 * Stopping is bounded: DETACH_MS + LEAVE_MS + DRAIN_MS + STOP_GRACE_MS < 10 s, whatever the store or
 * open files do. Whoever still has files open gets ENOTCONN afterwards.
 */
#include "fs/daemon/life.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/daemon/daemon.h"
#include "fs/daemon/mountpoint.h"
#include "fs/meta/kv.h"
#include "fs/volume/control.h"

enum {
    DETACH_MS = 2500,     /* unmounting, with the workers still serving */
    BUSY_MS = 300,        /* after the unmount: files are open, it will not end by itself */
    LEAVE_MS = 1500,      /* workers finish what they are doing */
    DRAIN_MS = 1500,      /* replies that come later */
    STOP_GRACE_MS = 3000, /* uploads under way */
    HAND_OVER_MS = 100,   /* requests under way when another daemon is to take over */
};

/* ---- mount ---- */

static void workers_ended(void *arg)
{
    struct life *l = arg;
    lock_acquire(&l->mu);
    l->ended = true;
    (void)pthread_cond_broadcast(&l->changed);
    lock_release(&l->mu);
}

static void *detach_main(void *arg)
{
    struct life *l = arg;
    const char *path = l->d.conf->mountpoint;
    /* Dirty mapped pages: written back while the workers still serve. */
    (void)mountpoint_sync(path);
    int err = mountpoint_detach(path);
    if (err && err != -EINVAL && !session_ended(&l->d))
        log_err(LC_MAIN, "%s could not be unmounted: %s; run umount %s", path, err_name(err), path);
    lock_acquire(&l->mu);
    l->detached = true;
    (void)pthread_cond_broadcast(&l->changed);
    lock_release(&l->mu);
    return NULL;
}

static int make_session(struct life *l, const char *argv0, char *why, size_t cap)
{
    struct daemon *d = &l->d;
    char *argv[] = {(char *)argv0, "-o", l->opts.fuse, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    d->se = fuse_session_new(&args, &sluice_ops, sizeof(sluice_ops), d);
    fuse_opt_free_args(&args);
    if (d->se)
        return EXIT_OK;
    snprintf(why, cap, "mount options %.500s: refused by libfuse; see its message above",
             l->opts.fuse);
    return EXIT_USAGE;
}

/* From here on another daemon can take over. */
static void hand_connection(struct life *l)
{
    struct daemon *d = &l->d;
    if (l->sup.channel < 0)
        return;
    if (!session_can_resend(d)) {
        log_info(LC_MAIN,
                 "this kernel cannot send requests again (6.9 can): if the daemon dies, its "
                 "mount dies with it");
        return;
    }
    int err = supervised_hand_connection(&l->sup, fuse_session_fd(d->se), d->init_fd);
    if (err)
        log_warn(LC_MAIN,
                 "the supervisor did not get the connection: %s; if the daemon dies, its "
                 "mount dies with it",
                 err_name(err));
    d->conf->supervised = !err;
    d->inval_fd = err ? -1 : l->sup.inval_fd;
}

/* Takes over the connection of a daemon before us. */
int life_attach(struct life *l, const char *argv0, char *why, size_t cap)
{
    struct daemon *d = &l->d;
    int code = make_session(l, argv0, why, cap);
    if (code)
        return code;
    char path[32];
    snprintf(path, sizeof(path), "/dev/fd/%d", l->sup.fuse_fd);
    d->init_fd = l->sup.init_fd;
    d->inval_fd = l->sup.inval_fd;
    d->conf->supervised = true; /* the supervisor has the connection */
    int err = fuse_session_mount(d->se, path) ? -EIO : session_attach(d);
    /* Before any request is read: one that we are working on would be sent again as well. */
    if (!err)
        err = session_resend(d);
    if (err == -ENOENT || err == -ENODEV) /* unmounted meanwhile: the workers will see it */
        err = 0;
    if (!err)
        err = session_start(d, workers_ended, l);
    if (err) {
        snprintf(why, cap, "mount point %s: the connection could not be taken over (%s)",
                 d->conf->mountpoint, err_name(err));
        return EXIT_FAILED;
    }
    return EXIT_OK;
}

int life_mount(struct life *l, const char *argv0, char *why, size_t cap)
{
    struct daemon *d = &l->d;
    const char *mp = d->conf->mountpoint;
    int code = make_session(l, argv0, why, cap);
    if (code)
        return code;
    if (fuse_session_mount(d->se, mp)) {
        snprintf(why, cap, "mount point %s: the kernel refused the mount; %s", mp,
                 access("/dev/fuse", R_OK | W_OK)
                     ? "/dev/fuse cannot be opened: load the fuse module or ask for access"
                     : "see the message above (fusermount3 must be installed for users, and "
                       "user_allow_other set in /etc/fuse.conf for allow_other)");
        return EXIT_FAILED;
    }
    int err = session_start(d, workers_ended, l);
    if (!err)
        err = mountpoint_answers(mp);
    if (err) {
        snprintf(why, cap, "mount point %s: mounted, but does not answer (%s); try again", mp,
                 err_name(err));
        return EXIT_FAILED;
    }
    mountpoint_readahead(mp, READAHEAD_KIB);
    hand_connection(l);
    return EXIT_OK;
}

/* ---- drain and stop ---- */

/* Waits until the workers have left, or the unmount was made and files are still open. */
static void wait_detached(struct life *l)
{
    int64_t until = clock_mono_ns() + DETACH_MS * NS_PER_MS;
    bool busy_counts = false;
    LOCK_SCOPE(&l->mu);
    while (!l->ended && l->stops < 2) {
        if (l->detached && !busy_counts) {
            busy_counts = true;
            until = clock_mono_ns() + BUSY_MS * NS_PER_MS;
        }
        if (!lock_wait_until(&l->mu, &l->changed, until))
            break;
    }
}

/* False: the unmount still hangs in the kernel, and its thread goes on using what is ours. */
static bool detach_joined(struct life *l, pthread_t t)
{
    int64_t until = clock_mono_ns() + BUSY_MS * NS_PER_MS;
    lock_acquire(&l->mu);
    while (!l->detached && lock_wait_until(&l->mu, &l->changed, until))
        ;
    bool over = l->detached;
    lock_release(&l->mu);
    (void)(over ? pthread_join(t, NULL) : pthread_detach(t));
    return over;
}

static bool drain(struct life *l)
{
    struct daemon *d = &l->d;
    int64_t until = clock_mono_ns() + DRAIN_MS * NS_PER_MS;
    atomic_store(&d->stopping, true);
    for (;;) {
        delayed_release(d);
        reads_cancel_all(d);
        if (!atomic_load(&d->pending))
            return true;
        if (clock_mono_ns() >= until)
            return false;
        struct timespec nap = {.tv_nsec = 5 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
}

static bool connection_is_dead(struct fuse_session *se)
{
    struct pollfd p = {.fd = fuse_session_fd(se)};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* Ends the connection while replies may still be under way: the number stays taken, so that no reply
 * can go into a file that happens to get it. A pipe that nobody reads looks like a dead connection,
 * also to libfuse, which then has nothing to unmount. */
static void connection_cut(struct fuse_session *se)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC))
        return;
    (void)close(p[0]);
    (void)dup3(p[1], fuse_session_fd(se), O_CLOEXEC);
    (void)close(p[1]);
}

/* True: nothing of the request side is left, everything may be freed. */
static bool session_drain(struct life *l)
{
    struct daemon *d = &l->d;
    if (!d->se)
        return true;
    pthread_t t;
    bool detaching = !session_ended(d) && !pthread_create(&t, NULL, detach_main, l);
    if (detaching)
        wait_detached(l);
    bool left = session_stop(d, clock_mono_ns() + LEAVE_MS * NS_PER_MS);
    bool drained = drain(l);
    if (!left || !drained)
        log_warn(LC_MAIN, "%u requests could not be answered before the end",
                 atomic_load(&d->pending));
    if (d->session && !connection_is_dead(d->se))
        connection_cut(d->se);
    return (!detaching || detach_joined(l, t)) && left && drained;
}

void life_wait(struct life *l)
{
    LOCK_SCOPE(&l->mu);
    while (!l->ended && !l->stops && !l->handing_over)
        lock_wait(&l->mu, &l->changed);
}

/* Another daemon is to take over, and no stop came in between. */
bool life_is_handover(struct life *l)
{
    LOCK_SCOPE(&l->mu);
    return l->handing_over && !l->ended && !l->stops;
}

/* Requests that were read and can be answered soon are answered, all else is sent again. What was
 * acknowledged is where a death would leave it, and the journal durable. */
_Noreturn void life_hand_over(struct life *l)
{
    struct daemon *d = &l->d;
    int64_t until = clock_mono_ns() + HAND_OVER_MS * NS_PER_MS;
    log_info(LC_MAIN, "%s: handing over to another daemon", d->conf->mountpoint);
    (void)session_stop(d, until);
    delayed_release(d);
    while (atomic_load(&d->pending) > atomic_load(&d->reads_n) && clock_mono_ns() < until) {
        struct timespec nap = {.tv_nsec = NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    int err = kv_sync(d->v->kv, kv_seq(d->v->kv));
    if (err)
        log_err(LC_MAIN, "%s: the journal is not durable: %s", d->conf->mountpoint, err_name(err));
    _exit(EXIT_HANDOVER);
}

static bool hurried(struct life *l)
{
    LOCK_SCOPE(&l->mu);
    return l->stops > 1;
}

/* What was opened is closed, in reverse order. */
void life_close(struct life *l)
{
    struct daemon *d = &l->d;
    control_stop(d->control);
    bool clean = session_drain(l);
    notify_close(d->notify);
    if (d->v)
        volume_stop(d->v, hurried(l) ? 0 : STOP_GRACE_MS);
    control_close(d->control);
    if (!clean) {
        log_info(LC_MAIN, "everything acknowledged is durable; ending");
        _exit(EXIT_OK);
    }
    session_free(d);
    exec_close(d->reply);
    if (d->v)
        data_on_space(d->v->data, NULL, NULL);
    volume_close(d->v);
    order_close(d->order);
    if (d->se && connection_is_dead(d->se))
        fuse_session_unmount(d->se); /* only closes */
    if (d->se)
        fuse_session_destroy(d->se);
    virt_close_all(d->virt);
}
