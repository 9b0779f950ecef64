/* dev.c: devices: identity, opening, state.
 *
 *   <device>/sluicefs-device     identity, 40 bytes (segfmt.h)
 *   <device>/segments/XX/        segment files (segfile.c)
 *   <device>/quarantine/         files that nobody can explain, moved there on demand
 *   <device>/failed/             which segments' flush failed (segfail.c)
 *
 * Space is in devspace.c, changes while mounted in devchange.c.
 *
 * Locks: one per device (RANK_DEVICE) over the texts and the list of segments whose flush failed. All
 * else is atomic or constant after devs_open.
 */
#include "fs/seg/seg_int.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"

int dev_refuse(int r, char *why, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (why && cap)
        vsnprintf(why, cap, fmt, ap);
    va_end(ap);
    return r;
}

/* ---- opening ---- */

static int see_foreign(void *arg, const char *name)
{
    (void)arg;
    /* A fresh ext file system has lost+found in it, which is still an empty directory to a user; and
     * a crash while the identity was written leaves its temporary file. */
    return strcmp(name, "lost+found") != 0 && !io_replace_left(name, DEV_IDENT_FILE);
}

/* Reads the identity file. 0 with *ret_id 0: there is none. */
static int read_ident(const struct devs *d, const char *path, int dirfd, uint32_t *ret_id,
                      char *why, size_t cap)
{
    AUTO_FREE char *raw = NULL;
    size_t len = 0;
    uint8_t volume[16];
    *ret_id = 0;
    /* Opened for writing too: a read-only file system is noticed here and not at the first write. */
    int fd = io_open(dirfd, DEV_IDENT_FILE, O_RDWR | O_NOFOLLOW, 0);
    if (fd == -ENOENT)
        return 0;
    int r = fd;
    if (fd >= 0) {
        io_close(fd);
        r = io_read_file(dirfd, DEV_IDENT_FILE, 4096, &raw, &len);
    }
    if (r < 0)
        return dev_refuse(r, why, cap,
                          "device %s: " DEV_IDENT_FILE
                          " cannot be opened for writing (%s); make the "
                          "directory writable for the user that mounts",
                          path, err_name(r));
    r = dev_ident_decode((const uint8_t *)raw, len, volume, ret_id);
    if (r == -EPROTONOSUPPORT)
        return dev_refuse(r, why, cap,
                          "device %s: was written by a newer version; upgrade this program", path);
    if (r < 0)
        return dev_refuse(r, why, cap,
                          "device %s: " DEV_IDENT_FILE
                          " is damaged; restore it from a backup or give "
                          "another, empty directory",
                          path);
    if (memcmp(volume, d->volume, sizeof volume) != 0)
        return dev_refuse(-EEXIST, why, cap,
                          "device %s: belongs to another volume; give another directory", path);
    return 0;
}

/* The name of a new directory outlives a loss of power. */
static int sync_parent(const char *path)
{
    AUTO_FREE char *dir = strdup(path);
    char *slash = dir ? strrchr(dir, '/') : NULL;
    if (!dir)
        return -ENOMEM;
    if (!slash)
        return io_sync_dir(AT_FDCWD, ".");
    slash[slash == dir] = 0;
    return io_sync_dir(AT_FDCWD, dir);
}

/* Opens the directory of device `v`; state OK with *ret_found (0: no identity yet), or MISSING. */
int dev_open_dir(const struct devs *d, struct dev *v, bool create, uint32_t known,
                 uint32_t *ret_found, char *why, size_t cap)
{
    const char *path = v->path;
    bool missing_ok = !create && known != 0;
    *ret_found = 0;
    v->dirfd = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (v->dirfd == -ENOENT && create && known == 0) {
        int r = io_mkdir(AT_FDCWD, path, 0700);
        if (r < 0)
            return dev_refuse(r, why, cap,
                              "device %s: cannot be created (%s); see that its parent directory is "
                              "there, writable, "
                              "and has room",
                              path, err_name(r));
        r = sync_parent(path);
        if (r < 0)
            return dev_refuse(r, why, cap,
                              "device %s: cannot be made durable (%s); check its file system", path,
                              err_name(r));
        v->dirfd = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    }
    if (v->dirfd == -ENOENT && missing_ok) {
        snprintf(v->error, sizeof v->error, "the directory is not there");
        atomic_store(&v->state, DEV_MISSING);
        v->dirfd = -1;
        return 0;
    }
    if (v->dirfd < 0) {
        int r = v->dirfd;
        v->dirfd = -1;
        return dev_refuse(r, why, cap, "device %s: cannot be opened (%s); %s", path, err_name(r),
                          r == -ENOENT ? "mount its file system or create the directory"
                                       : "check that it is a directory and its permissions");
    }
    int r = read_ident(d, path, v->dirfd, ret_found, why, cap);
    if (r < 0)
        return r;
    if (*ret_found == 0 && known != 0) {
        /* Most often the mount point of a file system that is not mounted. */
        if (!missing_ok)
            return dev_refuse(-ENOENT, why, cap,
                              "device %s: is not the one it was (no " DEV_IDENT_FILE "); mount "
                              "its file system there",
                              path);
        snprintf(v->error, sizeof v->error,
                 "no " DEV_IDENT_FILE " in it: its file system is not mounted");
        atomic_store(&v->state, DEV_MISSING);
        io_close(v->dirfd);
        v->dirfd = -1;
        return 0;
    }
    if (*ret_found != 0 && known != 0 && *ret_found != known)
        return dev_refuse(-EEXIST, why, cap,
                          "device %s: holds device %u where device %u belongs; correct the paths",
                          path, *ret_found, known);
    if (*ret_found == 0 && !create)
        return dev_refuse(-ENOENT, why, cap,
                          "device %s: is not one of this volume; add it as a new device", path);
    if (*ret_found == 0) {
        r = io_scan(v->dirfd, ".", see_foreign, NULL);
        if (r > 0)
            return dev_refuse(-ENOTEMPTY, why, cap,
                              "device %s: is not empty and not a device; give an empty "
                              "directory",
                              path);
        if (r < 0)
            return dev_refuse(r, why, cap,
                              "device %s: cannot be listed (%s); check its permissions", path,
                              err_name(r));
    }
    return 0;
}

/* Can files be made in this directory, and is there room for one? */
static int try_file(int dirfd)
{
    static const uint8_t page[4096];
    int fd = io_open(dirfd, ".", O_TMPFILE | O_WRONLY, 0600);
    if (fd == -EOPNOTSUPP || fd == -EISDIR)
        return 0; /* a file system without nameless files: seen when it is used */
    int r = fd < 0 ? fd : io_pwrite_full(fd, page, sizeof page, 0, NULL);
    if (fd >= 0)
        io_close(fd);
    return r;
}

static int look_absent(const char *path, char *why, size_t cap)
{
    AUTO_FREE char *dir = strdup(path);
    char *slash = dir ? strrchr(dir, '/') : NULL;
    while (slash && slash > dir && !slash[1]) {
        *slash = 0;
        slash = strrchr(dir, '/');
    }
    if (!slash)
        return 0;
    slash[slash == dir] = 0;
    int fd = io_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    int r = fd < 0 ? fd : try_file(fd);
    if (fd >= 0)
        io_close(fd);
    if (r < 0)
        return dev_refuse(
            r, why, cap,
            "device %s: cannot be created (%s); see that its parent directory is there, writable, "
            "and has room",
            path, err_name(r));
    return 0;
}

int devs_look(const uint8_t volume[16], const struct dev_conf *conf, unsigned n, char *why,
              size_t why_cap)
{
    struct devs d = {0};
    memcpy(d.volume, volume, sizeof d.volume);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct dev v = {.path = (char *)conf[i].path, .dirfd = -1};
        uint32_t found = 0;
        int fd = io_open(AT_FDCWD, v.path, O_RDONLY | O_DIRECTORY, 0);
        if (fd == -ENOENT) {
            r = look_absent(v.path, why, why_cap);
            continue;
        }
        if (fd >= 0)
            io_close(fd);
        r = dev_open_dir(&d, &v, true, 0, &found, why, why_cap);
        if (r == 0)
            r = try_file(v.dirfd);
        if (r < 0 && !*why)
            dev_refuse(r, why, why_cap,
                       "device %s: cannot be prepared (%s); check free space and permissions",
                       v.path, err_name(r));
        if (v.dirfd >= 0)
            io_close(v.dirfd);
    }
    return r;
}

int dev_write_ident(const struct devs *d, const struct dev *v)
{
    uint8_t raw[DEV_IDENT_BYTES];
    dev_ident_encode(d->volume, v->id, raw);
    return io_replace_file(v->dirfd, DEV_IDENT_FILE, raw, sizeof raw, 0600);
}

int dev_prepare(struct dev *v, uint64_t budget)
{
    uint64_t avail;
    uint32_t bsize;
    int r = io_mkdir(v->dirfd, "segments", 0700);
    if (r == 0)
        r = io_sync_dir(v->dirfd, ".");
    if (r < 0 && r != -EEXIST)
        return r;
    r = io_fsinfo(v->dirfd, &v->total, &avail, &bsize);
    if (r < 0)
        return r;
    v->budget = budget ? budget : v->total / 10 * 9;
    atomic_store(&v->fs_avail, (int64_t)avail);
    atomic_store(&v->avail_next_ns, clock_mono_ns() + DEV_FRESH_NS);
    return 0;
}

/* One directory that is named twice, through a symbolic link. */
static bool same_dir(const struct dev *a, const struct dev *b)
{
    struct stat x, y;
    return a->dirfd >= 0 && b->dirfd >= 0 && io_stat(a->dirfd, &x) == 0 &&
           io_stat(b->dirfd, &y) == 0 && x.st_ino && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

int devs_open(const uint8_t volume[16], const struct dev_conf *conf, unsigned n, bool create,
              uint32_t *ids, struct stats *stats, struct devs **ret, char *why, size_t why_cap)
{
    if (n == 0 || n > DEVICES_MAX)
        return dev_refuse(-EINVAL, why, why_cap, "device: %u are given; a volume has 1 to %d", n,
                          DEVICES_MAX);
    struct devs *d = calloc(1, sizeof *d);
    if (!d)
        return dev_refuse(-ENOMEM, why, why_cap, "device: no memory; free some");
    memcpy(d->volume, volume, sizeof d->volume);
    static const char help[] = "bytes of segment data moved to and from devices";
    d->written = stats ? stats_counter(stats, "device_bytes_total", "direction=\"written\"", help)
                       : &d->own_written;
    d->read = stats ? stats_counter(stats, "device_bytes_total", "direction=\"read\"", help)
                    : &d->own_read;
    d->sync_seconds = stats ? stats_histogram(stats, "device_sync_seconds", "",
                                              "time that one flush of a segment file took")
                            : &d->own_sync;
    uint32_t top = 0;
    int r = 0;
    for (unsigned i = 0; i < n; i++) {
        d->dev[i].dirfd = -1;
        lock_init(&d->dev[i].lock, "device", RANK_DEVICE, false);
        d->n++;
    }
    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct dev *v = &d->dev[i];
        uint32_t found = 0;
        v->path = strdup(conf[i].path);
        v->budget = conf[i].budget;
        if (!v->path) {
            r = dev_refuse(-ENOMEM, why, why_cap, "device: no memory; free some");
            break;
        }
        r = dev_open_dir(d, v, create, ids[i], &found, why, why_cap);
        v->id = ids[i] ? ids[i] : found;
        if (v->id > top)
            top = v->id;
        for (unsigned j = 0; r == 0 && j < i; j++)
            if ((v->id && d->dev[j].id == v->id) || same_dir(&d->dev[j], v))
                r = dev_refuse(-EEXIST, why, why_cap,
                               "device %s: is the same as %s; give each once", d->dev[j].path,
                               v->path);
    }
    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct dev *v = &d->dev[i];
        if (v->id == 0) {
            v->id = ++top;
            r = dev_write_ident(d, v);
        }
        if (r == 0 && v->dirfd >= 0)
            r = dev_prepare(v, conf[i].budget);
        if (r < 0)
            dev_refuse(r, why, why_cap,
                       "device %s: cannot be prepared (%s); check free space and permissions",
                       v->path, err_name(r));
    }
    if (r < 0) {
        devs_close(d);
        return r;
    }
    for (unsigned i = 0; i < n; i++)
        ids[i] = d->dev[i].id;
    *ret = d;
    return 0;
}

void devs_close(struct devs *d)
{
    if (!d)
        return;
    for (unsigned i = 0; i < d->n; i++) {
        io_close(d->dev[i].dirfd);
        lock_destroy(&d->dev[i].lock);
        free(d->dev[i].failed);
        free(d->dev[i].path);
    }
    free(d);
}

/* ---- looking up ---- */

struct dev *dev_place(struct devs *d, uint32_t id)
{
    for (unsigned i = 0; i < d->n; i++)
        if (d->dev[i].id == id)
            return atomic_load(&d->dev[i].retired) ? NULL : &d->dev[i];
    return NULL;
}

struct dev *dev_get(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    return v && v->dirfd >= 0 ? v : NULL;
}

int dev_dirfd(struct devs *d, uint32_t id)
{
    struct dev *v = dev_get(d, id);
    return v ? v->dirfd : -ENODEV;
}

unsigned devs_count(struct devs *d)
{
    return d->n;
}

bool devs_info(struct devs *d, unsigned i, struct dev_info *ret)
{
    assert(i < d->n);
    struct dev *v = &d->dev[i];
    *ret = (struct dev_info){.id = v->id, .path = v->path};
    if (atomic_load(&v->retired))
        return false;
    uint64_t total, avail = 0;
    uint32_t bsize;
    if (v->dirfd < 0 || io_fsinfo(v->dirfd, &total, &avail, &bsize) < 0)
        avail = 0;
    ret->budget = v->budget;
    ret->used = dev_used(v);
    ret->fs_free = avail;
    ret->state = (enum dev_state)atomic_load(&v->state);
    ret->draining = atomic_load(&v->draining);
    ret->drained = ret->draining && atomic_load(&v->drained);
    ret->drain_stuck = ret->draining && atomic_load(&v->stuck);
    ret->drain_left = atomic_load(&v->drain_left);
    ret->drain_total = max_u64(atomic_load(&v->drain_total), ret->drain_left);
    LOCK_SCOPE(&v->lock);
    memcpy(ret->error, v->error, sizeof ret->error);
    memcpy(ret->drain_note, v->drain_note, sizeof ret->drain_note);
    return true;
}

bool dev_info_of(struct devs *d, uint32_t id, struct dev_info *ret)
{
    for (unsigned i = 0; i < d->n; i++)
        if (d->dev[i].id == id)
            return devs_info(d, i, ret);
    return false;
}

/* ---- failures ---- */

void dev_mark_failed(struct dev *v, const char *what, int err)
{
    {
        LOCK_SCOPE(&v->lock);
        if (atomic_load(&v->state) != DEV_OK)
            return;
        snprintf(v->error, sizeof v->error, "%s: %s", what, err_name(err));
        atomic_store(&v->state, DEV_FAILED);
    }
    log_err(LC_SEG, "device %u (%s): %s: %s: it takes no new segments until the next mount", v->id,
            v->path, what, err_name(err));
}

void dev_fail(struct devs *d, uint32_t id, const char *what, int err)
{
    struct dev *v = dev_get(d, id);
    if (v)
        dev_mark_failed(v, what, err);
}

void dev_say_only(struct devs *d, uint32_t id, uint64_t segments, uint64_t bytes)
{
    struct dev *v = dev_place(d, id);
    if (!v)
        return;
    char was[sizeof v->error];
    {
        LOCK_SCOPE(&v->lock);
        memcpy(was, v->error, sizeof was);
        snprintf(v->error, sizeof v->error, "%.60s; %llu segments, %llu bytes, are only on it", was,
                 (unsigned long long)segments, (unsigned long long)bytes);
    }
    log_err(
        LC_SEG,
        "device %u (%s): %s: %llu segments with at least %llu bytes are only on it and cannot be "
        "read until it is back; sluicefs device remove --lost gives them up",
        id, v->path, was, (unsigned long long)segments, (unsigned long long)bytes);
}
