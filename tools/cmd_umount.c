/* cmd_umount.c: ends a mount and its daemon.
 *
 *   not lazy   the kernel unmounts, which it refuses while files are open; the daemon sees that, makes
 *              everything durable and ends
 *   lazy       the daemon is asked to stop: it detaches the mount at once, answers what is under way,
 *              makes everything durable and ends; open files then fail with ENOTCONN
 *   dead       no daemon is behind it: the mount is detached
 *
 * Then the end of the daemon is waited for, by a descriptor of its process that was opened before; of
 * its supervisor's, if it has one, which ends last.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/daemon/mountpoint.h"
#include "tools/json.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { UNMOUNT_MS = 60000, END_MS = 15000, STOP_MS = 5000 };

/* ---- who uses it ---- */

static bool below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

static bool link_is_below(const char *link, const char *dir)
{
    char to[PATH_MAX];
    ssize_t n = readlink(link, to, sizeof(to) - 1);
    if (n <= 0)
        return false;
    to[n] = '\0';
    return below(to, dir);
}

/* The mount's own processes hold the directory below it, which has the same name. */
static bool is_covered(const char *pid, const char *fd, const char *mountpoint, int mount_id)
{
    char path[PATH_MAX], to[PATH_MAX], line[256];
    snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, fd);
    ssize_t n = readlink(path, to, sizeof(to) - 1);
    if (n <= 0)
        return false;
    to[n] = '\0';
    if (strcmp(to, mountpoint) != 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, fd);
    FILE *f = fopen(path, "re");
    int id = mount_id;
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "mnt_id: %d", &id) == 1)
            break;
    if (f)
        (void)fclose(f);
    return id != mount_id;
}

/* How a process uses the mount, or NULL. Only links are read: nothing touches the mount. */
static const char *use_of(const char *pid, const char *mountpoint, int mount_id)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "/proc/%s/cwd", pid);
    if (link_is_below(path, mountpoint))
        return "working directory";
    snprintf(path, sizeof(path), "/proc/%s/root", pid);
    if (link_is_below(path, mountpoint))
        return "root directory";
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *d = opendir(path);
    bool open_file = false;
    for (struct dirent *e; d && !open_file && (e = readdir(d));) {
        snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, e->d_name);
        open_file = link_is_below(path, mountpoint) &&
                    !is_covered(pid, e->d_name, mountpoint, mount_id);
    }
    if (d)
        (void)closedir(d);
    if (open_file)
        return "open file";
    snprintf(path, sizeof(path), "/proc/%s/maps", pid);
    FILE *f = fopen(path, "re");
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    bool mapped = false;
    while (f && !mapped && getline(&line, &cap, f) > 0) {
        const char *name = strchr(line, '/');
        mapped = name && below(name, mountpoint);
    }
    if (f)
        (void)fclose(f);
    return mapped ? "mapped file" : NULL;
}

static void users_text(const char *mountpoint, char *out, size_t cap)
{
    enum { SHOWN = 3 };
    struct mount_list all = {0};
    const struct mount_row *row = mounts_read(&all) == EXIT_OK ? mounts_at(&all, mountpoint) : NULL;
    int mount_id = row ? row->id : -1;
    mounts_free(&all);
    char self[16];
    snprintf(self, sizeof(self), "%d", (int)getpid());
    unsigned n = 0;
    size_t len = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || !strcmp(e->d_name, self))
            continue;
        const char *use = use_of(e->d_name, mountpoint, mount_id);
        if (!use || ++n > SHOWN)
            continue;
        char path[PATH_MAX], name[32] = "?";
        snprintf(path, sizeof(path), "/proc/%.20s/comm", e->d_name);
        FILE *f = fopen(path, "re");
        if (f && !fgets(name, sizeof(name), f))
            name[0] = '\0';
        if (f)
            (void)fclose(f);
        name[strcspn(name, "\n")] = '\0';
        len += (size_t)snprintf(out + len, cap - len, "%s%.20s (%s, %s)", len ? ", " : "",
                                e->d_name, name, use);
    }
    if (d)
        (void)closedir(d);
    if (!n)
        snprintf(out, cap, "processes that you may not see");
    else if (n > SHOWN)
        snprintf(out + len, cap - len, " and %u more", n - SHOWN);
}

/* ---- unmounting ---- */

/* In a child: an errno, and behind EPERM what fusermount3 complains about. */
static void unmount_child(const void *arg, int out)
{
    int err = umount2(arg, UMOUNT_NOFOLLOW) ? errno : 0;
    if (write(out, &err, sizeof(err)) != (ssize_t)sizeof(err) || err != EPERM)
        return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(out, STDERR_FILENO);
    (void)execlp("fusermount3", "fusermount3", "-u", "--", (const char *)arg, (char *)NULL);
    dprintf(STDERR_FILENO, "fusermount3: %s", strerror(errno));
}

static int unmount_strictly(const char *mountpoint)
{
    char buf[1024];
    int err = 0;
    ssize_t n = child_read(unmount_child, mountpoint, UNMOUNT_MS, buf, sizeof(buf) - 1);
    if (n == -ETIMEDOUT)
        return tool_fail(EXIT_FAILED,
                         "%s: not unmounted within a minute; the daemon still takes bytes, or "
                         "hangs: see its log, or run sluicefs umount -l",
                         mountpoint);
    if (n < (ssize_t)sizeof(err))
        return tool_fail(EXIT_FAILED, "%s: cannot be unmounted (%s); try again", mountpoint,
                         strerror(n < 0 ? (int)-n : EIO));
    memcpy(&err, buf, sizeof(err));
    buf[n] = '\0';
    const char *said = buf + sizeof(err);
    if (!err || (err == EPERM && !*said))
        return EXIT_OK;
    if (err == EBUSY || strstr(said, "busy")) {
        char users[512];
        users_text(mountpoint, users, sizeof(users));
        return tool_fail(EXIT_REFUSED,
                         "%s: is in use by %s; close that, or run sluicefs umount -l (open files "
                         "then fail)",
                         mountpoint, users);
    }
    if (err == EPERM)
        return tool_fail(EXIT_REFUSED,
                         "%s: may not be unmounted by you (%.*s); ask its owner or root",
                         mountpoint, (int)strcspn(said, "\n"), said);
    return tool_fail(EXIT_FAILED, "%s: cannot be unmounted (%s); try sluicefs umount -l",
                     mountpoint, strerror(err));
}

static int detach(const char *mountpoint)
{
    int err = mountpoint_detach(mountpoint);
    if (!err)
        return EXIT_OK;
    return tool_fail(err == -EPERM || err == -EACCES ? EXIT_REFUSED : EXIT_FAILED,
                     "%s: cannot be detached (%s); ask its owner or root", mountpoint,
                     strerror(-err));
}

static int ask_to_stop(const struct target *t)
{
    struct reply r;
    bool said;
    struct ask a = {.request = "stop", .wait_ms = STOP_MS, .stop_fd = -1};
    int code = control_ask(t, &a, &r, &said);
    if (code && !said)
        (void)tool_fail(code, "%s: %s", t->mountpoint, r.text);
    reply_free(&r);
    return code;
}

/* ---- the daemon's end ---- */

/* 0: cannot be seen. */
static pid_t parent_of(pid_t pid)
{
    char path[48], line[256];
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !parent && fgets(line, sizeof(line), f))
        if (sscanf(line, "PPid: %d", &parent) == 1)
            break;
    if (f)
        (void)fclose(f);
    return parent;
}

/* A descriptor of the process that ends last; -1 when it cannot be had (another user's, another container). */
static int daemon_process(const struct target *t)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    AUTO_CLOSE int fd = control_connect(t);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || who.pid <= 0)
        return -1;
    pid_t parent = json_u64(json_get(t->status, "supervisor")) ? parent_of(who.pid) : 0;
    return (int)syscall(SYS_pidfd_open, parent > 0 ? parent : who.pid, 0);
}

static bool mounted_elsewhere(const struct mount_list *l, const struct mount_row *m)
{
    for (unsigned k = 0; k < l->n; k++)
        if (&l->row[k] != m && !strcmp(l->row[k].dev, m->dev))
            return true;
    return false;
}

static int wait_for_end(int process, const char *mountpoint)
{
    int64_t until = clock_mono_ns() + END_MS * NS_PER_MS;
    for (;;) {
        struct pollfd p = {.fd = process, .events = POLLIN};
        int64_t left = (until - clock_mono_ns()) / NS_PER_MS;
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0)
            return EXIT_OK;
        if (n == 0)
            return tool_fail(EXIT_FAILED,
                             "%s: unmounted, but its daemon still runs; see its log, and whether "
                             "another container has the mount",
                             mountpoint);
        if (errno != EINTR)
            return tool_fail(EXIT_FAILED, "%s: its daemon cannot be waited for (%s); look for it",
                             mountpoint, strerror(errno));
    }
}

/* ---- the command ---- */

static int end_mount(const struct mount_list *l, const struct mount_row *m, bool lazy)
{
    struct target t = {.mountpoint = m->path};
    int err = mount_status(m->path, &t.status);
    if (err == -ENOTCONN || (err == -ETIMEDOUT && lazy))
        return detach(m->path);
    free(t.status);
    if (err == -ETIMEDOUT)
        return tool_fail(EXIT_NO_MOUNT,
                         "%s: the daemon does not answer; see its log, or run sluicefs umount -l "
                         "to detach the mount anyway",
                         m->path);
    int code = EXIT_OK;
    AUTO_CLOSE int process = -1;
    bool shared = mounted_elsewhere(l, m) || strcmp(m->root, "/");
    if (err || shared) {
        /* Not ours to ask, or only one of several places: the kernel decides. */
        code = lazy ? detach(m->path) : unmount_strictly(m->path);
        return code;
    }
    code = target_find(m->path, &t);
    if (!code) {
        process = daemon_process(&t);
        code = lazy ? ask_to_stop(&t) : unmount_strictly(m->path);
    }
    target_free(&t);
    if (!code && process >= 0)
        code = wait_for_end(process, m->path);
    return code;
}

static int umount_run(int argc, char **argv)
{
    static const struct option options[] = {
        {"lazy", no_argument, NULL, 'l'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int opt;
    bool lazy = false;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":lh", options, NULL)) != -1) {
        if (opt == 'h')
            return tool_help(&cmd_umount);
        if (opt != 'l')
            return tool_bad_option(&cmd_umount, opt, argv[optind - 1]);
        lazy = true;
    }
    if (argc - optind != 1)
        return tool_fail(EXIT_USAGE, "umount: wants one mount point; see sluicefs umount --help");
    struct mount_list l;
    int code = mounts_read(&l);
    if (code)
        return code;
    AUTO_FREE char *full = path_absolute(argv[optind]);
    const struct mount_row *m = full ? mounts_at(&l, full) : NULL;
    if (!m) { /* a symbolic link to it */
        AUTO_FREE char *real = realpath(argv[optind], NULL);
        m = real ? mounts_at(&l, real) : NULL;
    }
    code = m ? end_mount(&l, m, lazy)
             : tool_fail(EXIT_NO_MOUNT,
                         "%s: no sluicefs is mounted there; \"sluicefs status\" lists the mounts",
                         argv[optind]);
    mounts_free(&l);
    return code;
}

const struct tool_cmd cmd_umount = {
    .name = "umount",
    .usage = "[-l] MOUNTPOINT",
    .summary = "unmount, and wait until everything is durable",
    .help = "Unmounts, waits until the daemon has made everything durable locally and has ended.\n"
            "Uploads that are under way go on at the next mount. While files are open it refuses\n"
            "(exit code 4) and says who has them. A mount whose daemon has died is taken away.\n\n"
            "  -l, --lazy   also with open files: they fail from then on\n",
    .run = umount_run,
};
