/* mounts.c: from a path to its mount and daemon.
 *
 * Touching a path in a mount whose daemon hangs never returns. So whatever may touch one runs in a
 * child process with a deadline, which is killed when that passes; the kernel lets a killed process go.
 * The kernel itself names the mount of a descriptor (fdinfo: mnt_id), so nothing is guessed from
 * paths, and bind mounts are understood. Only where a path cannot even be opened (a dead mount), it is
 * compared with the list of mounts as text.
 */
#include "tools/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/ctlproto.h"
#include "tools/json.h"
#include "tools/tool.h"

enum { TOUCH_MS = 5000, STATUS_BYTES_MAX = 1024 * 1024 };

/* ---- mountinfo ---- */

/* Undoes the octal escapes of mountinfo. */
static char *unescaped(const char *s)
{
    char *copy = strdup(s ? s : ""), *out = copy;
    for (char *p = copy; p && *p;) {
        if (p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] && p[3]) {
            *out++ = (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
            p += 4;
        } else {
            *out++ = *p++;
        }
    }
    if (copy)
        *out = '\0';
    return copy;
}

/* "ID PARENT DEV ROOT PATH OPTIONS [MORE...] - TYPE SOURCE SUPER": 1: one of ours, 0: not, -1: memory. */
static int parse_line(char *line, struct mount_row *ret)
{
    char *save = NULL, *f[6], *word;
    line[strcspn(line, "\n")] = '\0';
    for (int k = 0; k < 6; k++)
        if (!(f[k] = strtok_r(k ? NULL : line, " ", &save)))
            return 0;
    while ((word = strtok_r(NULL, " ", &save)) && strcmp(word, "-"))
        ;
    const char *type = word ? strtok_r(NULL, " ", &save) : NULL;
    const char *source = type ? strtok_r(NULL, " ", &save) : NULL;
    if (!type || strcmp(type, "fuse.sluicefs"))
        return 0;
    *ret = (struct mount_row){.id = (int)strtol(f[0], NULL, 10),
                              .root = unescaped(f[3]),
                              .path = unescaped(f[4]),
                              .source = unescaped(source)};
    snprintf(ret->dev, sizeof(ret->dev), "%s", f[2]);
    return ret->root && ret->path && ret->source ? 1 : -1;
}

int mounts_read(struct mount_list *ret)
{
    *ret = (struct mount_list){0};
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return tool_fail(EXIT_FAILED, "/proc/self/mountinfo: cannot be read (%s); mount /proc",
                         strerror(errno));
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    int code = EXIT_OK;
    while (!code && getline(&line, &cap, f) > 0) {
        struct mount_row row = {0};
        int r = parse_line(line, &row);
        struct mount_row *more = r > 0 ? reallocarray(ret->row, ret->n + 1, sizeof(row)) : ret->row;
        if (r > 0 && more) {
            ret->row = more;
            ret->row[ret->n++] = row;
        } else if (r) {
            code = tool_fail(EXIT_FAILED, "mounts: no memory; free some");
        }
    }
    (void)fclose(f);
    return code;
}

void mounts_free(struct mount_list *l)
{
    for (unsigned k = 0; k < l->n; k++) {
        free(l->row[k].root);
        free(l->row[k].path);
        free(l->row[k].source);
    }
    free(l->row);
    *l = (struct mount_list){0};
}

const struct mount_row *mounts_at(const struct mount_list *l, const char *path)
{
    for (unsigned k = l->n; k-- > 0;)
        if (!strcmp(l->row[k].path, path))
            return &l->row[k];
    return NULL;
}

static const struct mount_row *by_id(const struct mount_list *l, int id)
{
    for (unsigned k = 0; k < l->n; k++)
        if (l->row[k].id == id)
            return &l->row[k];
    return NULL;
}

/* The deepest mount above a path, by text. */
static const struct mount_row *above(const struct mount_list *l, const char *path)
{
    const struct mount_row *best = NULL;
    for (unsigned k = 0; k < l->n; k++) {
        size_t n = strlen(l->row[k].path);
        if (!strncmp(path, l->row[k].path, n) && (path[n] == '/' || !path[n]) &&
            (!best || n >= strlen(best->path)))
            best = &l->row[k];
    }
    return best;
}

char *path_absolute(const char *path)
{
    AUTO_FREE char *copy = strdup(path);
    size_t n = copy ? strlen(copy) : 0;
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = '\0';
    if (!n)
        return copy ? strdup("") : NULL;
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    if (!strcmp(name, "..") || !strcmp(name, ".") || !*name)
        return realpath(path, NULL);
    AUTO_FREE char *dir = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    char *full;
    if (!dir || asprintf(&full, "%s/%s", strcmp(dir, "/") ? dir : "", name) < 0)
        return NULL;
    return full;
}

/* ---- touching, with a deadline ---- */

ssize_t child_read(void (*fn)(const void *arg, int out), const void *arg, unsigned ms, char *buf,
                   size_t max)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC))
        return -errno;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        int err = -errno;
        (void)close(p[0]);
        (void)close(p[1]);
        return err;
    }
    if (!pid) {
        (void)close(p[0]);
        fn(arg, p[1]);
        _exit(0);
    }
    (void)close(p[1]);
    int64_t until = clock_mono_ns() + ms * NS_PER_MS;
    size_t got = 0;
    ssize_t n = 1;
    while (n > 0 && got < max) {
        struct pollfd w = {.fd = p[0], .events = POLLIN};
        int64_t left = (until - clock_mono_ns()) / NS_PER_MS;
        int r = poll(&w, 1, left > 0 ? (int)left : 0);
        if (r < 0 && errno == EINTR)
            continue;
        n = r > 0 ? read(p[0], buf + got, max - got) : -1;
        if (r <= 0)
            errno = r ? errno : ETIMEDOUT;
        if (n > 0)
            got += (size_t)n;
    }
    int err = n < 0 ? -errno : 0;
    (void)close(p[0]);
    if (err)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return err ? err : (ssize_t)got;
}

struct probe {
    int err;
    int mnt_id;
    uint64_t ino;
    mode_t mode;
};

static int mount_id(int fd)
{
    char path[64], line[256];
    int id = -1;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(path, "re");
    while (f && id < 0 && fgets(line, sizeof(line), f))
        if (sscanf(line, "mnt_id: %d", &id) != 1)
            id = -1;
    if (f)
        (void)fclose(f);
    return id;
}

static void probe_path(const void *arg, int out)
{
    struct probe p = {.mnt_id = -1};
    struct stat st;
    AUTO_CLOSE int fd = open(arg, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        p.mnt_id = mount_id(fd);
    if (fd < 0 || fstat(fd, &st)) {
        p.err = -errno;
    } else {
        p.ino = st.st_ino;
        p.mode = st.st_mode;
    }
    (void)!write(out, &p, sizeof(p));
}

/* An int, 0 or -errno, and then the file. */
static void copy_file(const void *arg, int out)
{
    char buf[16384];
    AUTO_CLOSE int fd = open(arg, O_RDONLY | O_CLOEXEC);
    int err = fd < 0 ? -errno : 0;
    ssize_t n = err ? 0 : read(fd, buf, sizeof(buf));
    if (n < 0)
        err = -errno;
    if (write(out, &err, sizeof(err)) != (ssize_t)sizeof(err))
        return;
    while (n > 0 && write(out, buf, (size_t)n) == n)
        n = read(fd, buf, sizeof(buf));
}

/* ---- the daemon of a mount ---- */

static int say_dead(const char *mountpoint)
{
    return tool_fail(EXIT_NO_MOUNT,
                     "%s: no daemon is behind this mount; run sluicefs umount %s, then mount again",
                     mountpoint, mountpoint);
}

static int say_hangs(const char *mountpoint)
{
    return tool_fail(EXIT_NO_MOUNT,
                     "%s: the daemon does not answer; see its log, or end it with kill",
                     mountpoint);
}

static int say_not_ours(const char *path)
{
    return tool_fail(EXIT_NO_MOUNT,
                     "%s: not in a mount of sluicefs; \"sluicefs status\" lists them", path);
}

int mount_status(const char *mountpoint, char **ret)
{
    char path[PATH_MAX];
    int err;
    AUTO_FREE char *buf = malloc(STATUS_BYTES_MAX + 1);
    if (!buf)
        return -ENOMEM;
    if ((size_t)snprintf(path, sizeof(path), "%s/.sluice/status.json",
                         strcmp(mountpoint, "/") ? mountpoint : "") >= sizeof(path))
        return -ENAMETOOLONG;
    ssize_t n = child_read(copy_file, path, TOUCH_MS, buf, STATUS_BYTES_MAX);
    if (n < (ssize_t)sizeof(err))
        return n < 0 ? (int)n : -EIO;
    memcpy(&err, buf, sizeof(err));
    if (err)
        return err == -ECONNABORTED || err == -ENODEV ? -ENOTCONN : err;
    buf[n] = '\0';
    *ret = strdup(buf + sizeof(err));
    return *ret ? 0 : -ENOMEM;
}

static int read_status(const char *mountpoint, struct target *ret)
{
    int err = mount_status(mountpoint, &ret->status);
    if (err == -ETIMEDOUT)
        return say_hangs(mountpoint);
    if (err == -ENOTCONN)
        return say_dead(mountpoint);
    if (err == -EACCES)
        return tool_fail(EXIT_REFUSED,
                         "%s: belongs to another user; ask them, or mount with -o allow_other",
                         mountpoint);
    if (err)
        return tool_fail(EXIT_FAILED, "%s: its status cannot be read (%s); see the daemon's log",
                         mountpoint, strerror(-err));
    ret->control = json_text(json_get(ret->status, "control"));
    if (!ret->control)
        return tool_fail(EXIT_FAILED, "%s: no memory; free some", mountpoint);
    return EXIT_OK;
}

static int find_in(const char *path, const struct mount_list *l, struct target *ret)
{
    struct probe p = {0};
    AUTO_FREE char *full = path_absolute(path);
    const struct mount_row *m = full ? mounts_at(l, full) : NULL;
    if (m) {
        ret->is_root = true;
        ret->ino = 1;
        ret->mode = S_IFDIR;
    } else {
        ssize_t n = child_read(probe_path, path, TOUCH_MS, (char *)&p, sizeof(p));
        bool dead = n == (ssize_t)sizeof(p) && (p.err == -ENOTCONN || p.err == -ECONNABORTED);
        const struct mount_row *over = full ? above(l, full) : NULL;
        if (n == -ETIMEDOUT)
            return over ? say_hangs(over->path)
                        : tool_fail(EXIT_FAILED, "%s: does not answer; try again later", path);
        if (dead)
            return over ? say_dead(over->path) : say_not_ours(path);
        if (n != (ssize_t)sizeof(p) || (p.err && p.mnt_id < 0))
            return tool_fail(EXIT_FAILED, "%s: %s; check the path", path,
                             strerror(n < 0   ? (int)-n
                                      : p.err ? -p.err
                                              : EIO));
        m = by_id(l, p.mnt_id);
        if (!m)
            return say_not_ours(path);
        if (p.err)
            return say_dead(m->path);
        ret->ino = p.ino;
        ret->mode = p.mode;
    }
    /* The virtual files are in the root: a bind mount of a part does not show it. */
    const struct mount_row *whole = !strcmp(m->root, "/") ? m : NULL;
    for (unsigned k = 0; !whole && k < l->n; k++)
        if (!strcmp(l->row[k].dev, m->dev) && !strcmp(l->row[k].root, "/"))
            whole = &l->row[k];
    if (ret->is_root && whole != m) {
        ret->is_root = false;
        ssize_t n = child_read(probe_path, path, TOUCH_MS, (char *)&p, sizeof(p));
        if (n != (ssize_t)sizeof(p) || p.err)
            return say_dead(m->path);
        ret->ino = p.ino;
    }
    if (!whole)
        return tool_fail(EXIT_NO_MOUNT,
                         "%s: only a part of the volume is mounted here; name a path below its "
                         "mount point",
                         path);
    ret->mountpoint = strdup(whole->path);
    if (!ret->mountpoint)
        return tool_fail(EXIT_FAILED, "%s: no memory; free some", path);
    return read_status(ret->mountpoint, ret);
}

int target_find(const char *path, struct target *ret)
{
    struct mount_list l;
    *ret = (struct target){0};
    int code = mounts_read(&l);
    if (!code)
        code = find_in(path, &l, ret);
    mounts_free(&l);
    return code;
}

void target_free(struct target *t)
{
    free(t->mountpoint);
    free(t->control);
    free(t->status);
    *t = (struct target){0};
}

/* ---- requests ---- */

int control_connect(const struct target *t)
{
    return ctl_connect(t->control);
}

static int say_no_socket(const struct target *t, int err)
{
    if (err == -EACCES || err == -EPERM)
        return tool_fail(EXIT_REFUSED, "%s: belongs to another user; ask them or root",
                         t->mountpoint);
    if (err == -ENOENT || err == -ECONNREFUSED)
        return tool_fail(EXIT_NO_MOUNT,
                         "%s: its daemon takes no commands (%s: %s); is it stopping, or in another "
                         "container?",
                         t->mountpoint, t->control, strerror(-err));
    return tool_fail(EXIT_FAILED, "%s: its daemon cannot be asked (%s); try again", t->mountpoint,
                     strerror(-err));
}

static int take_result(const struct ctl_frame *f, struct reply *ret)
{
    char *end, *text;
    long code = strtol(f->body, &end, 10);
    if (*end != ' ' || code < 0 || code > 255)
        return -EBADMSG;
    ret->ino = strtoull(end + 1, &text, 10);
    ret->code = (int)code;
    snprintf(ret->text, sizeof(ret->text), "%s", *text == ' ' ? text + 1 : text);
    return 0;
}

static int add_document(struct reply *r, size_t *len, const struct ctl_frame *f)
{
    char *more = realloc(r->document, *len + f->len + 1);
    if (!more)
        return -ENOMEM;
    memcpy(more + *len, f->body, f->len);
    *len += f->len;
    more[*len] = '\0';
    r->document = more;
    return 0;
}

static int read_reply(int fd, const struct ask *a, struct reply *ret)
{
    enum { CANCEL_MS = 3000 };
    unsigned wait_ms = a->wait_ms;
    int stop_fd = a->stop_fd;
    size_t len = 0;
    for (;;) {
        struct ctl_frame f;
        int64_t until = wait_ms ? clock_mono_ns() + wait_ms * NS_PER_MS : INT64_MAX;
        int err = ctl_recv(fd, &f, until, stop_fd);
        if (err == -ECANCELED && stop_fd >= 0) {
            /* The server takes this as a hang-up, gives the command up and still answers. */
            (void)shutdown(fd, SHUT_WR);
            stop_fd = -1;
            wait_ms = CANCEL_MS;
            continue;
        }
        if (err)
            return err == -ETIMEDOUT && stop_fd != a->stop_fd ? -EINTR : err;
        unsigned long long done, total;
        if (f.type == CTL_PROGRESS && a->progress &&
            sscanf(f.body, "%llu %llu", &done, &total) == 2)
            a->progress(a->arg, done, total);
        if (f.type == CTL_DATA)
            err = add_document(ret, &len, &f);
        if (f.type == CTL_RESULT)
            err = take_result(&f, ret);
        bool last = f.type == CTL_RESULT;
        free(f.body);
        if (err || last)
            return err;
    }
}

/* *ret_connected: what then fails is an answer that does not come. */
static int ask_once(const struct target *t, const struct ask *a, struct reply *ret,
                    bool *ret_connected)
{
    enum { SEND_MS = 5000 };
    reply_free(ret);
    AUTO_CLOSE int fd = control_connect(t);
    *ret_connected = fd >= 0;
    if (fd < 0)
        return fd;
    int err = ctl_send(fd, CTL_REQUEST, a->request, strlen(a->request),
                       clock_mono_ns() + SEND_MS * NS_PER_MS, -1);
    /* A refusal may have come before the request was read. */
    return !err || err == -EPIPE ? read_reply(fd, a, ret) : err;
}

static bool daemon_died(int err)
{
    return err == -ENODATA || err == -EPIPE || err == -ECONNRESET;
}

int control_ask(const struct target *t, const struct ask *a, struct reply *ret, bool *ret_said)
{
    enum { TAKE_OVER_MS = 5000, NAP_MS = 50 };
    bool connected;
    *ret = (struct reply){0};
    int err = ask_once(t, a, ret, &connected);
    if (!connected) {
        *ret_said = true;
        return say_no_socket(t, err);
    }
    int64_t until = clock_mono_ns() + TAKE_OVER_MS * NS_PER_MS;
    while (a->again && daemon_died(err) && clock_mono_ns() < until) {
        struct pollfd p = {.fd = a->stop_fd, .events = POLLIN};
        if (poll(&p, 1, NAP_MS) > 0)
            break; /* given up */
        int more = ask_once(t, a, ret, &connected);
        if (connected && daemon_died(more))
            until = clock_mono_ns() + TAKE_OVER_MS * NS_PER_MS;
        err = connected ? more : err;
    }
    *ret_said = err;
    if (!err)
        return ret->code;
    if (err == -EINTR)
        return tool_fail(EXIT_FAILED, "%s: given up; what was begun may still come to its end",
                         t->mountpoint);
    if (daemon_died(err))
        return tool_fail(EXIT_NO_MOUNT, "%s: the daemon ended before it answered; see its log",
                         t->mountpoint);
    if (err == -ETIMEDOUT)
        return say_hangs(t->mountpoint);
    return tool_fail(EXIT_FAILED,
                     "%s: the daemon's answer makes no sense (%s); are both of one version?",
                     t->mountpoint, strerror(-err));
}

void reply_free(struct reply *r)
{
    free(r->document);
    *r = (struct reply){0};
}
