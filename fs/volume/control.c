/* control.c: see control.h.
 *
 *   thread "control"       accepts; refuses when there are too many
 *   thread "control-conn"  one per connection: checks who it is, reads one request, answers, ends
 *
 * A command is a `struct run`: one tier_cmd per file, which the tiering thread moves along. Its
 * callbacks only touch atomics and an eventfd; the connection's thread sleeps in poll on the client
 * (hang-up: cancel), that eventfd, and the server's stop eventfd (cancel). A run lives until the
 * connection and every tier_cmd have let go of it.
 *
 * Lock: control.mu (RANK_CONTROL) guards the counts of connections and commands.
 */
#include "fs/volume/control_int.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/ctlproto.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/volume/check.h"
#include "fs/volume/volume.h"

/* ---- answers ---- */

int64_t control_send_deadline(void)
{
    return clock_mono_ns() + CONTROL_SEND_MS * NS_PER_MS;
}

int control_answer(struct conn *n, int code, uint64_t ino, const char *text)
{
    char line[1024];
    int len = snprintf(line, sizeof(line), "%d %llu %s", code, (unsigned long long)ino, text);
    if ((size_t)len >= sizeof(line))
        len = sizeof(line) - 1;
    /* Not cut short by a stop: what is known is told. */
    return ctl_send(n->fd, CTL_RESULT, line, (size_t)len, control_send_deadline(), -1);
}

int control_answer_error(struct conn *n, uint64_t ino, int err)
{
    if (err == -ENOENT)
        return control_answer(n, CODE_FAILED, ino, "the file has gone; try again");
    if (err == -EBADMSG)
        return control_answer(n, CODE_FAILED, ino, "its metadata is damaged; see the daemon's log");
    char text[96];
    snprintf(text, sizeof(text), "failed (%s); see the daemon's log", err_name(err));
    return control_answer(n, CODE_FAILED, ino, text);
}

/* ---- documents ---- */

static void serve_document(struct conn *n, uint64_t ino)
{
    struct control *c = n->c;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) {
        (void)control_answer_error(n, ino, -ENOMEM);
        return;
    }
    int err = ino ? c->ops.inode(c->ops.ctx, ino, f) : c->ops.status(c->ops.ctx, f);
    if (fclose(f) && !err)
        err = -ENOMEM;
    if (err) {
        (void)control_answer_error(n, ino, err);
    } else {
        for (size_t at = 0; !err && at < len; at += DATA_BYTES)
            err = ctl_send(n->fd, CTL_DATA, text + at,
                           len - at < DATA_BYTES ? len - at : DATA_BYTES, control_send_deadline(),
                           c->stop_fd);
        if (!err)
            (void)control_answer(n, CODE_OK, ino, "");
    }
    free(text);
}

/* ---- commands ---- */

struct run;

struct item {
    struct tier_cmd cmd;
    struct run *run;
    _Atomic uint64_t done, total;
    _Atomic bool ended; /* err and why are set */
    int err;
    char why[320];
};

struct run {
    int event_fd;
    _Atomic unsigned refs;    /* the connection, and each item that has not ended */
    _Atomic unsigned pending; /* items that have not ended */
    unsigned n;
    struct item item[];
};

static void run_unref(struct run *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1) {
        (void)close(r->event_fd);
        free(r);
    }
}

static void run_wake(struct run *r)
{
    uint64_t one = 1;
    /* Fails only when it is readable already. */
    (void)!write(r->event_fd, &one, sizeof(one));
}

static void on_progress(struct tier_cmd *cmd, uint64_t done, uint64_t total)
{
    struct item *i = cmd->arg;
    bool same = atomic_exchange(&i->done, done) == done;
    same &= atomic_exchange(&i->total, total) == total;
    if (!same)
        run_wake(i->run);
}

static void on_done(struct tier_cmd *cmd, int err, const char *why)
{
    struct item *i = cmd->arg;
    struct run *r = i->run;
    i->err = err;
    snprintf(i->why, sizeof(i->why), "%s", why ? why : "");
    atomic_store(&i->ended, true);
    atomic_fetch_sub(&r->pending, 1);
    run_wake(r);
    run_unref(r);
}

static int send_progress(struct conn *n, struct run *r)
{
    uint64_t done = 0, total = 0;
    for (unsigned k = 0; k < r->n; k++) {
        done += atomic_load(&r->item[k].done);
        total += atomic_load(&r->item[k].total);
    }
    char line[64];
    int len = snprintf(line, sizeof(line), "%llu %llu", (unsigned long long)done,
                       (unsigned long long)total);
    return ctl_send(n->fd, CTL_PROGRESS, line, (size_t)len, control_send_deadline(), n->c->stop_fd);
}

/* Waits until all items have ended. Returns false when the client has gone or the server stops. */
static bool run_watch(struct conn *n, struct run *r)
{
    int64_t last_ns = 0;
    bool fresh = false;
    while (atomic_load(&r->pending)) {
        int64_t wait_ms = -1, now = clock_mono_ns();
        if (fresh)
            wait_ms = (last_ns + PROGRESS_MS * NS_PER_MS - now) / NS_PER_MS;
        if (fresh && wait_ms <= 0) {
            if (send_progress(n, r))
                return false;
            last_ns = now;
            fresh = false;
            continue;
        }
        struct pollfd p[3] = {{.fd = n->fd, .events = POLLIN | POLLRDHUP},
                              {.fd = n->c->stop_fd, .events = POLLIN},
                              {.fd = r->event_fd, .events = POLLIN}};
        if (poll(p, 3, (int)wait_ms) < 0 && errno != EINTR)
            return false;
        /* Nothing more may come from the client: either it has gone or it is not one of ours. */
        if (p[0].revents || p[1].revents)
            return false;
        if (p[2].revents) {
            uint64_t count;
            (void)!read(r->event_fd, &count, sizeof(count));
            fresh = true;
        }
    }
    return true;
}

static void run_cancel(struct conn *n, struct run *r)
{
    for (unsigned k = 0; k < r->n; k++)
        if (!atomic_load(&r->item[k].ended))
            n->c->ops.cancel(n->c->ops.ctx, &r->item[k].cmd);
    while (atomic_load(&r->pending)) {
        struct pollfd p = {.fd = r->event_fd, .events = POLLIN};
        uint64_t count;
        (void)poll(&p, 1, -1);
        (void)!read(r->event_fd, &count, sizeof(count));
    }
}

static void run_answer(struct conn *n, struct run *r)
{
    for (unsigned k = 0; k < r->n; k++) {
        struct item *i = &r->item[k];
        if (!i->err)
            continue;
        if (*i->why && i->err != -ENOENT) {
            for (char *p = i->why; *p; p++)
                if (*p == '\n' || *p == '\r')
                    *p = ' ';
            (void)control_answer(n, CODE_FAILED, i->cmd.ino, i->why);
        } else {
            (void)control_answer_error(n, i->cmd.ino, i->err);
        }
        return;
    }
    (void)control_answer(n, CODE_OK, 0, "");
}

static bool command_enter(struct control *c)
{
    LOCK_SCOPE(&c->mu);
    if (c->commands == CONTROL_COMMANDS_MAX)
        return false;
    c->commands++;
    return true;
}

static void command_leave(struct control *c)
{
    LOCK_SCOPE(&c->mu);
    c->commands--;
}

static void serve_command(struct conn *n, enum tier_cmd_kind kind, const uint64_t *ino,
                          unsigned count)
{
    struct control *c = n->c;
    struct run *r = calloc(1, sizeof(*r) + count * sizeof(r->item[0]));
    if (!r || (r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        (void)control_answer_error(n, 0, r ? -errno : -ENOMEM);
        free(r);
        return;
    }
    r->n = count;
    atomic_store(&r->refs, count + 1);
    atomic_store(&r->pending, count);
    for (unsigned k = 0; k < count; k++) {
        struct item *i = &r->item[k];
        i->run = r;
        i->cmd = (struct tier_cmd){
            .kind = kind, .ino = ino[k], .progress = on_progress, .done = on_done, .arg = i};
        c->ops.command(c->ops.ctx, &i->cmd);
    }
    if (!run_watch(n, r))
        run_cancel(n, r);
    run_answer(n, r);
    run_unref(r);
}

/* ---- requests ---- */

static bool take_inode(char **p, uint64_t *ret)
{
    char *word = *p;
    if (*word < '0' || *word > '9' || strlen(word) < strspn(word, "0123456789 "))
        return false;
    char *end;
    errno = 0;
    *ret = strtoull(word, &end, 10);
    *p = *end == ' ' ? end + 1 : end;
    return !errno && *ret;
}

static void serve_request(struct conn *n, const struct ctl_frame *f)
{
    static const char *const verbs[] = {[TIER_SEAL] = "seal",
                                        [TIER_UPLOAD] = "upload",
                                        [TIER_EVICT] = "evict",
                                        [TIER_WARM] = "warm"};
    char *p = f->body;
    if (f->type != CTL_REQUEST || strlen(p) != f->len) {
        (void)control_answer(n, CODE_USAGE, 0,
                             "not a request; use the sluicefs program of this version");
        return;
    }
    if (control_is_check(n->c, p)) {
        if (!command_enter(n->c)) {
            (void)control_answer(n, CODE_REFUSED, 0,
                                 "too many commands at once; wait for one to end");
            return;
        }
        control_check(n, p);
        command_leave(n->c);
        return;
    }
    char *verb = strsep(&p, " ");
    uint64_t ino[CONTROL_FILES_MAX];
    unsigned count = 0;
    bool ok = true;
    while (ok && p && *p && count < CONTROL_FILES_MAX)
        ok = take_inode(&p, &ino[count++]);
    if (!ok || (p && *p)) {
        (void)control_answer(n, CODE_USAGE, 0,
                             ok ? "too many files in one request; send fewer"
                                : "not an inode number; use the sluicefs program");
        return;
    }
    if (!strcmp(verb, "status") && !count) {
        serve_document(n, 0);
        return;
    }
    if (!strcmp(verb, "inode") && count == 1) {
        serve_document(n, ino[0]);
        return;
    }
    if (!strcmp(verb, "reload") && !count) {
        char text[900];
        int err = n->c->ops.reload(n->c->ops.ctx, text, sizeof(text));
        (void)control_answer(n, err ? CODE_USAGE : CODE_OK, 0, text);
        return;
    }
    if (!strcmp(verb, "stop") && !count) {
        (void)control_answer(n, CODE_OK, 0, "stopping");
        n->c->ops.stop(n->c->stop_ctx);
        return;
    }
    if (!strcmp(verb, "handover") && !count) {
        if (!n->c->ops.hand_over(n->c->stop_ctx, false)) {
            (void)control_answer(
                n, CODE_REFUSED, 0,
                "no daemon could take over (supervise is off, or the kernel is older than "
                "6.9); unmount and mount");
            return;
        }
        (void)control_answer(n, CODE_OK, 0,
                             "handing over"); /* later nobody may be here to say so */
        (void)n->c->ops.hand_over(n->c->stop_ctx, true);
        return;
    }
    for (size_t k = 0; k < ARRAY_LEN(verbs); k++) {
        if (strcmp(verb, verbs[k]) || !count)
            continue;
        if (!command_enter(n->c)) {
            (void)control_answer(n, CODE_REFUSED, 0,
                                 "too many commands at once; wait for one to end");
            return;
        }
        serve_command(n, (enum tier_cmd_kind)k, ino, count);
        command_leave(n->c);
        return;
    }
    (void)control_answer(n, CODE_USAGE, 0,
                         "not a known request; use the sluicefs program of this version");
}

/* ---- connections ---- */

static bool peer_allowed(int fd)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) &&
           (who.uid == 0 || who.uid == geteuid());
}

static void serve(struct conn *n)
{
    struct ctl_frame f;
    if (!peer_allowed(n->fd)) {
        (void)control_answer(n, CODE_REFUSED, 0, "belongs to another user; ask them or root");
        return;
    }
    int err = ctl_recv(n->fd, &f, clock_mono_ns() + CONTROL_REQUEST_MS * NS_PER_MS, n->c->stop_fd);
    if (!err)
        serve_request(n, &f);
    else if (err == -EPROTONOSUPPORT)
        (void)control_answer(n, CODE_USAGE, 0, "the daemon is of another version; mount again");
    else if (err == -EBADMSG || err == -EMSGSIZE)
        (void)control_answer(n, CODE_USAGE, 0, "not a request; use the sluicefs program");
    if (err && err != -ENODATA)
        log_debug(LC_CONTROL, "a request could not be read: %s", err_name(err));
    if (!err)
        free(f.body);
}

static void conn_end(struct conn *n)
{
    struct control *c = n->c;
    (void)close(n->fd);
    free(n);
    LOCK_SCOPE(&c->mu);
    c->connections--;
    (void)pthread_cond_broadcast(&c->changed);
}

static void *conn_main(void *arg)
{
    struct conn *n = arg;
    (void)pthread_setname_np(pthread_self(), "control-conn");
    serve(n);
    conn_end(n);
    return NULL;
}

static bool conn_enter(struct control *c)
{
    LOCK_SCOPE(&c->mu);
    if (c->connections == CONTROL_CONNECTIONS_MAX)
        return false;
    c->connections++;
    return true;
}

static void refuse_busy(struct control *c, int fd)
{
    struct conn n = {c, fd};
    static const char text[] = "4 0 too many connections at once; try again";
    /* A fresh socket's buffer takes this at once. */
    (void)ctl_send(n.fd, CTL_RESULT, text, sizeof(text) - 1, clock_mono_ns() + NS_PER_MS, -1);
    (void)close(fd);
}

static void take_connection(struct control *c, int fd)
{
    pthread_attr_t attr;
    pthread_t t;
    if (!conn_enter(c)) {
        refuse_busy(c, fd);
        return;
    }
    struct conn *n = malloc(sizeof(*n));
    if (n)
        *n = (struct conn){c, fd};
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (!n || pthread_create(&t, &attr, conn_main, n)) {
        log_rate(LC_CONTROL, LOG_LV_WARN, 60, "a command was refused: no memory for a thread");
        (void)close(fd);
        free(n);
        LOCK_SCOPE(&c->mu);
        c->connections--;
    }
    (void)pthread_attr_destroy(&attr);
}

static void *accept_main(void *arg)
{
    struct control *c = arg;
    (void)pthread_setname_np(pthread_self(), "control");
    for (;;) {
        struct pollfd p[2] = {{.fd = c->listen_fd, .events = POLLIN},
                              {.fd = c->stop_fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            log_rate(LC_CONTROL, LOG_LV_WARN, 60, "waiting for commands: %s", err_name(errno));
        if (p[1].revents)
            return NULL;
        if (!p[0].revents)
            continue;
        int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_connection(c, fd);
        } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            /* Out of descriptors: the connection stays in the backlog; look again a little later. */
            log_rate(LC_CONTROL, LOG_LV_WARN, 60, "a command waits: %s", err_name(errno));
            struct pollfd stop = {.fd = c->stop_fd, .events = POLLIN};
            (void)poll(&stop, 1, PROGRESS_MS);
        }
    }
}

/* ---- opening and closing ---- */

int control_open(int state_fd, const struct control_ops *ops, void *stop_ctx, struct control **ret)
{
    struct control *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    *c = (struct control){.ops = *ops, .stop_ctx = stop_ctx, .state_fd = state_fd};
    lock_init(&c->mu, "control", RANK_CONTROL, false);
    cond_init(&c->changed);
    c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->listen_fd = c->stop_fd < 0 ? -errno : ctl_listen(state_fd);
    int err = c->listen_fd < 0 ? c->listen_fd : 0;
    if (!err) {
        sigset_t all, old; /* signals belong to one thread of the daemon */
        sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &old);
        err = -pthread_create(&c->thread, NULL, accept_main, c);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (!err) {
        *ret = c;
        return 0;
    }
    if (c->listen_fd >= 0)
        (void)close(c->listen_fd);
    if (c->stop_fd >= 0)
        (void)close(c->stop_fd);
    lock_destroy(&c->mu);
    free(c);
    return err;
}

void control_stop(struct control *c)
{
    uint64_t one = 1;
    if (c)
        (void)!write(c->stop_fd, &one, sizeof(one));
}

void control_close(struct control *c)
{
    if (!c)
        return;
    control_stop(c);
    (void)pthread_join(c->thread, NULL);
    lock_acquire(&c->mu);
    while (c->connections)
        lock_wait(&c->mu, &c->changed);
    lock_release(&c->mu);
    (void)unlinkat(c->state_fd, CTL_SOCKET_NAME, 0);
    (void)close(c->listen_fd);
    (void)close(c->stop_fd);
    (void)pthread_cond_destroy(&c->changed);
    lock_destroy(&c->mu);
    free(c);
}

/* ---- of a volume ---- */

static int volume_status_op(void *ctx, FILE *f)
{
    return volume_status_json(ctx, f);
}

static int volume_inode_op(void *ctx, uint64_t ino, FILE *f)
{
    return volume_inode_json(ctx, ino, f);
}

static void volume_command_op(void *ctx, struct tier_cmd *c)
{
    tier_command(((struct volume *)ctx)->tier, c);
}

static void volume_cancel_op(void *ctx, struct tier_cmd *c)
{
    tier_command_cancel(((struct volume *)ctx)->tier, c);
}

static int volume_reload_op(void *ctx, char *text, size_t cap)
{
    return policy_reload(((struct volume *)ctx)->policy, text, cap);
}

static int volume_check_op(void *ctx, const char *request, _Atomic bool *cancelled,
                           void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                           FILE *f, char *text, size_t cap)
{
    return volume_check(ctx, request, cancelled, progress, arg, f, text, cap);
}

struct control_ops control_ops_of(struct volume *v)
{
    return (struct control_ops){.ctx = v,
                                .status = volume_status_op,
                                .inode = volume_inode_op,
                                .command = volume_command_op,
                                .cancel = volume_cancel_op,
                                .check = volume_check_op,
                                .reload = volume_reload_op};
}
