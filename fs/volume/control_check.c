/* control_check.c: requests that take long and are not about files: fsck, gc, device. The work runs on a thread of its own,
 * "control-check", and the connection's thread watches the client meanwhile: a hang-up, or the server's end,
 * sets `cancelled`. No lock: the two share atomics and an eventfd. */
#include "fs/volume/control_int.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/base/clock.h"
#include "fs/base/ctlproto.h"

/* Runs on a thread of its own, so that the connection's can watch the client meanwhile. */
struct check {
    struct conn *n;
    const char *request;
    int event_fd;
    _Atomic bool cancelled, ended;
    _Atomic uint64_t done, total;
    char *doc, text[320];
    size_t doc_len;
    int err;
};

static void check_progress(void *arg, uint64_t done, uint64_t total)
{
    struct check *k = arg;
    uint64_t one = 1;
    atomic_store(&k->total, total);
    if (atomic_exchange(&k->done, done) != done)
        (void)!write(k->event_fd, &one, sizeof(one));
}

static void *check_main(void *arg)
{
    struct check *k = arg;
    struct control_ops *ops = &k->n->c->ops;
    uint64_t one = 1;
    (void)pthread_setname_np(pthread_self(), "control-check");
    FILE *f = open_memstream(&k->doc, &k->doc_len);
    k->err = f ? ops->check(ops->ctx, k->request, &k->cancelled, check_progress, k, f, k->text,
                            sizeof(k->text))
               : -ENOMEM;
    if (f && fclose(f) && !k->err)
        k->err = -ENOMEM;
    atomic_store(&k->ended, true);
    (void)!write(k->event_fd, &one, sizeof(one));
    return NULL;
}

static void check_watch(struct check *k)
{
    struct conn *n = k->n;
    int64_t last_ns = 0;
    while (!atomic_load(&k->ended)) {
        struct pollfd p[3] = {{.fd = k->event_fd, .events = POLLIN},
                              {.fd = n->fd, .events = POLLIN | POLLRDHUP},
                              {.fd = n->c->stop_fd, .events = POLLIN}};
        bool gone = atomic_load(&k->cancelled);
        if (poll(p, gone ? 1 : 3, -1) < 0 && errno != EINTR)
            gone = true;
        if (!gone && (p[1].revents || p[2].revents))
            gone = true;
        if (p[0].revents) {
            uint64_t count;
            (void)!read(k->event_fd, &count, sizeof(count));
        }
        int64_t now = clock_mono_ns();
        if (!gone && !atomic_load(&k->ended) && now - last_ns > PROGRESS_MS * NS_PER_MS) {
            char line[64];
            int len = snprintf(line, sizeof(line), "%llu %llu",
                               (unsigned long long)atomic_load(&k->done),
                               (unsigned long long)atomic_load(&k->total));
            gone = ctl_send(n->fd, CTL_PROGRESS, line, (size_t)len, control_send_deadline(),
                            n->c->stop_fd) < 0;
            last_ns = now;
        }
        if (gone)
            atomic_store(&k->cancelled, true);
    }
}

static int code_of(const char *request, int err)
{
    bool refused = strncmp(request, "device ", 7) == 0 &&
                   (err == -EBUSY || err == -EEXIST || err == -ENOTEMPTY || err == -E2BIG);
    return !err ? CODE_OK : refused ? CODE_REFUSED : CODE_FAILED;
}

void control_check(struct conn *n, const char *request)
{
    struct check k = {.n = n, .request = request};
    pthread_t t;
    int err = 0;
    k.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (k.event_fd < 0 || (err = pthread_create(&t, NULL, check_main, &k))) {
        (void)control_answer_error(n, 0, k.event_fd < 0 ? -errno : -err);
        if (k.event_fd >= 0)
            (void)close(k.event_fd);
        return;
    }
    check_watch(&k);
    (void)pthread_join(t, NULL);
    (void)close(k.event_fd);
    for (char *p = k.text; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
    /* A refusal may come with a list of what is in the way. */
    for (size_t at = 0; !err && at < k.doc_len; at += DATA_BYTES)
        err = ctl_send(n->fd, CTL_DATA, k.doc + at,
                       k.doc_len - at < DATA_BYTES ? k.doc_len - at : DATA_BYTES,
                       control_send_deadline(), n->c->stop_fd);
    if (k.err == -EINVAL)
        (void)control_answer(n, CODE_USAGE, 0,
                             "not a known request; use the sluicefs program of this version");
    else if (k.err && !*k.text)
        (void)control_answer_error(n, 0, k.err);
    else if (!err)
        (void)control_answer(n, code_of(request, k.err), 0, k.text);
    free(k.doc);
}

bool control_is_check(const struct control *c, const char *request)
{
    return c->ops.check && (!strncmp(request, "fsck", 4) || !strncmp(request, "gc", 2) ||
                            !strncmp(request, "device ", 7));
}
