/* mountpoint.c: see mountpoint.h. Pure system calls, no state, no locks.
 *
 * The daemon never asks its own mount for anything itself: a thread that waits for the answer cannot be
 * killed, so after a kill -9 at that moment the process would keep the connection open and wait for
 * itself for ever, and everybody in the mount with it. A child that holds no descriptor of ours asks
 * instead; when the daemon dies, the connection breaks and the child ends.
 */
#include "fs/daemon/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/daemon/daemon.h"

extern char **environ;

enum { ASK_MS = 3000, END_MS = 30000 };

/* The last component may be a dead mount, which nothing can look into: only its parent is resolved. */
static char *resolve(const char *path)
{
    AUTO_FREE char *copy = strdup(path);
    if (!copy)
        return NULL;
    size_t n = strlen(copy);
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = '\0';
    char *full = realpath(copy, NULL);
    if (full)
        return full;
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    AUTO_FREE char *dir = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (!dir || asprintf(&full, "%s/%s", strcmp(dir, "/") ? dir : "", name) < 0)
        return NULL;
    return full;
}

/* Undoes the octal escapes of /proc/self/mountinfo. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* The topmost file system mounted exactly there is one of ours. */
static bool ours_is_mounted(const char *path)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return false;
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    bool ours = false;
    while (getline(&line, &cap, f) > 0) {
        char *save = NULL, *field = strtok_r(line, " ", &save);
        for (int k = 0; field && k < 4; k++)
            field = strtok_r(NULL, " ", &save);
        if (!field)
            continue;
        unescape(field);
        bool here = !strcmp(field, path);
        while (field && strcmp(field, "-"))
            field = strtok_r(NULL, " ", &save);
        const char *type = field ? strtok_r(NULL, " ", &save) : NULL;
        if (here && type)
            ours = !strcmp(type, "fuse.sluicefs");
    }
    (void)fclose(f);
    return ours;
}

int mountpoint_detach(const char *path)
{
    if (!umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW))
        return 0;
    if (errno != EPERM)
        return -errno;
    char *argv[] = {"fusermount3", "-u", "-q", "-z", "--", (char *)path, NULL};
    pid_t pid;
    int err = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
    if (err)
        return -err;
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EPERM;
}

/* The mount's daemon has gone. stat(2) would be answered from the kernel's cache for a day; statfs(2)
 * always asks. A child asks, since a daemon that was stopped would never answer. */
static bool is_dead(const char *path)
{
    pid_t pid = fork();
    if (pid < 0)
        return false;
    if (!pid) {
        struct statfs fs;
        _exit(statfs(path, &fs) && (errno == ENOTCONN || errno == ECONNABORTED));
    }
    int status = 0;
    for (int ms = 0; ms < ASK_MS; ms += 5) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) && WEXITSTATUS(status);
        if (got < 0 && errno != EINTR)
            return false;
        struct timespec nap = {.tv_nsec = 5 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, 0);
    return false;
}

static int already_mounted(const char *full, char *why, size_t why_cap)
{
    snprintf(why, why_cap, "mount point %s: SluiceFS is already mounted there; unmount it first",
             full);
    return EXIT_REFUSED;
}

/* Opens the directory itself, not what may be mounted on it meanwhile: nothing is asked of a mount, whose
 * daemon may not answer yet. fd, -EEXIST: there is a mount of ours, or another error. */
static int open_below(const char *full)
{
    char again[64];
    int at = open(full, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return -errno;
    /* Looked at when it is open: it is the root of a mount, or below every later one. */
    int fd = -EEXIST;
    if (!ours_is_mounted(full)) {
        snprintf(again, sizeof(again), "/proc/self/fd/%d", at);
        fd = open(again, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fd = fd < 0 ? -errno : fd;
    }
    (void)close(at);
    return fd;
}

/* Two mounts that are being made at once would lie one upon the other: the directory below is locked, as long
 * as this process and its children live. A daemon that is just ending still has its lock for a moment. */
static int claim(const char *full, char *why, size_t why_cap)
{
    for (int ms = 0; ms < END_MS; ms += 10) {
        int fd = open_below(full);
        if (fd == -EEXIST)
            return already_mounted(full, why, why_cap);
        if (fd < 0)
            return EXIT_OK; /* whether it can be mounted on is seen next, and by mounting */
        if (!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
            return EXIT_OK; /* and stays open */
        (void)close(fd);
        struct timespec nap = {.tv_nsec = 10 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    snprintf(why, why_cap,
             "mount point %s: another sluicefs is just mounting or ending there; try again", full);
    return EXIT_REFUSED;
}

int mountpoint_check(char **path, char *why, size_t why_cap)
{
    if (!*path || !**path) {
        snprintf(why, why_cap, "mount point: missing; give a directory as the last argument");
        return EXIT_USAGE;
    }
    char *full = resolve(*path);
    if (!full) {
        snprintf(why, why_cap, "mount point %s: does not exist; create the directory first", *path);
        return EXIT_USAGE;
    }
    free(*path);
    *path = full;

    if (ours_is_mounted(full)) {
        if (!is_dead(full))
            return already_mounted(full, why, why_cap);
        int gone = mountpoint_detach(full);
        if (gone) {
            snprintf(why, why_cap,
                     "mount point %s: a daemon died and left its mount behind, which could not be "
                     "removed (%s); run umount %s",
                     full, err_name(gone), full);
            return EXIT_REFUSED;
        }
        log_info(LC_MAIN, "%s: removed the mount of a daemon that had died", full);
    }
    int code = claim(full, why, why_cap);
    if (code)
        return code;
    struct stat st;
    if (stat(full, &st)) {
        int err = errno;
        snprintf(why, why_cap, "mount point %s: %s; %s", full, strerror(err),
                 err == ENOENT ? "create the directory first" : "choose another directory");
        return EXIT_USAGE;
    }
    if (!S_ISDIR(st.st_mode)) {
        snprintf(why, why_cap, "mount point %s: is not a directory; choose a directory", full);
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

/* In a child made by fork while other threads run: system calls only. */
static int in_child(int (*ask)(const char *path), const char *path)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (!pid) {
        (void)close_range(0, ~0u, 0);
        _exit(ask(path));
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

static int ask_statfs(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) ? errno : 0;
}

static int ask_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || syncfs(fd) ? errno : 0;
}

int mountpoint_answers(const char *path)
{
    return in_child(ask_statfs, path);
}

int mountpoint_sync(const char *path)
{
    return in_child(ask_sync, path);
}

void mountpoint_readahead(const char *path, unsigned kib)
{
    struct statx st;
    char file[96], text[16];
    /* Only the number of the mount, which the kernel knows without asking us. */
    if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &st))
        return;
    snprintf(file, sizeof(file), "/sys/class/bdi/%u:%u/read_ahead_kb", st.stx_dev_major,
             st.stx_dev_minor);
    AUTO_CLOSE int fd = open(file, O_WRONLY | O_CLOEXEC);
    int n = snprintf(text, sizeof(text), "%u", kib);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        log_debug(LC_FUSE, "kernel read-ahead stays as it is: %s: %s", file, strerror(errno));
}
