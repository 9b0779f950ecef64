/* io.c: see io.h. `door` is set once before threads exist. */
#include "fs/base/io.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/lock.h"

static int px_open(int dirfd, const char *path, int flags, mode_t mode)
{
    int fd = openat(dirfd, path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int px_close(int fd)
{
    return close(fd) ? -errno : 0;
}

static ssize_t px_pread(int fd, void *buf, size_t len, uint64_t off)
{
    ssize_t n = pread(fd, buf, len, (off_t)off);
    return n < 0 ? -errno : n;
}

static ssize_t px_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    ssize_t n = pwrite(fd, buf, len, (off_t)off);
    return n < 0 ? -errno : n;
}

static int px_sync(int fd, bool data_only)
{
    return (data_only ? fdatasync(fd) : fsync(fd)) ? -errno : 0;
}

static int px_truncate(int fd, uint64_t len)
{
    return ftruncate(fd, (off_t)len) ? -errno : 0;
}

static int px_stat(int fd, struct stat *ret)
{
    return fstat(fd, ret) ? -errno : 0;
}

static int px_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    return renameat(dirfd, from, todirfd, to) ? -errno : 0;
}

static int px_unlink(int dirfd, const char *path, int flags)
{
    return unlinkat(dirfd, path, flags) ? -errno : 0;
}

static int px_mkdir(int dirfd, const char *path, mode_t mode)
{
    return mkdirat(dirfd, path, mode) ? -errno : 0;
}

static int px_scan(int dirfd, const char *path, int (*each)(void *, const char *), void *arg)
{
    int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        int r = -errno;
        close(fd);
        return r;
    }
    int r = 0;
    for (;;) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            r = -errno;
            break;
        }
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        r = each(arg, e->d_name);
        if (r)
            break;
    }
    closedir(d);
    return r;
}

static int px_fallocate(int fd, int mode, uint64_t off, uint64_t len)
{
    return fallocate(fd, mode, (off_t)off, (off_t)len) ? -errno : 0;
}

static int px_writeback(int fd, uint64_t off, uint64_t len, bool wait)
{
    unsigned flags = SYNC_FILE_RANGE_WRITE;
    if (wait)
        flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    return sync_file_range(fd, (off_t)off, (off_t)len, flags) ? -errno : 0;
}

static int px_drop(int fd, uint64_t off, uint64_t len)
{
    return -posix_fadvise(fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
}

static int px_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize)
{
    struct statvfs v;
    if (fstatvfs(fd, &v))
        return -errno;
    *total = (uint64_t)v.f_blocks * v.f_frsize;
    *avail = (uint64_t)v.f_bavail * v.f_frsize;
    *bsize = (uint32_t)v.f_bsize;
    return 0;
}

static int px_stored(int fd, uint64_t from, uint64_t to, uint64_t *ret)
{
    enum { PAGE = 4096, EXTENTS_MAX = 4096 }; /* what is behind so many counts as stored */
    *ret = 0;
    for (unsigned n = 0; from < to && n < EXTENTS_MAX; n++) {
        off_t data = lseek(fd, (off_t)from, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0;
        off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (hole < 0)
            return errno == EINVAL ? -EOPNOTSUPP : -errno;
        if ((uint64_t)data >= to)
            return 0;
        uint64_t lo = (uint64_t)data / PAGE * PAGE, hi = (uint64_t)hole < to ? (uint64_t)hole : to;
        hi = (hi + PAGE - 1) / PAGE * PAGE;
        *ret += hi - lo;
        from = hi;
    }
    *ret += from < to ? to - from : 0;
    return 0;
}

static int px_dio_align(int fd, uint32_t *mem, uint32_t *off)
{
#ifdef STATX_DIOALIGN
    struct statx sx = {0};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx))
        return -errno;
    if (!(sx.stx_mask & STATX_DIOALIGN))
        return -EOPNOTSUPP;
    *mem = sx.stx_dio_mem_align;
    *off = sx.stx_dio_offset_align;
    return 0;
#else
    (void)fd, (void)mem, (void)off;
    return -EOPNOTSUPP;
#endif
}

static void px_park(int fd)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0)
        return; /* then what it names stays in use until the end */
    (void)dup3(null, fd, O_CLOEXEC);
    close(null);
}

const struct io_ops io_posix = {
    .open = px_open,
    .close = px_close,
    .pread = px_pread,
    .pwrite = px_pwrite,
    .sync = px_sync,
    .truncate = px_truncate,
    .stat = px_stat,
    .rename = px_rename,
    .unlink = px_unlink,
    .mkdir = px_mkdir,
    .scan = px_scan,
    .fallocate = px_fallocate,
    .writeback = px_writeback,
    .drop = px_drop,
    .stored = px_stored,
    .fsinfo = px_fsinfo,
    .dio_align = px_dio_align,
    .park = px_park,
};

static const struct io_ops *door = &io_posix;

void io_use(const struct io_ops *ops)
{
    door = ops ? ops : &io_posix;
}

int io_open(int dirfd, const char *path, int flags, mode_t mode)
{
    assert(lock_disk_ok());
    int r;
    do
        r = door->open(dirfd, path, flags, mode);
    while (r == -EINTR);
    return r;
}

void io_close(int fd)
{
    if (fd >= 0)
        (void)door->close(fd);
}

void io_park(int fd)
{
    assert(lock_disk_ok());
    if (fd >= 0 && door->park)
        door->park(fd);
}

ssize_t io_pread(int fd, void *buf, size_t len, uint64_t off)
{
    assert(lock_disk_ok());
    ssize_t n;
    do
        n = door->pread(fd, buf, len, off);
    while (n == -EINTR);
    return n;
}

int io_sync(int fd, bool data_only)
{
    assert(lock_disk_ok());
    /* Not repeated on EINTR: a failed flush may have marked pages clean. */
    return door->sync(fd, data_only);
}

int io_truncate(int fd, uint64_t len)
{
    assert(lock_disk_ok());
    int r;
    do
        r = door->truncate(fd, len);
    while (r == -EINTR);
    return r;
}

int io_stat(int fd, struct stat *ret)
{
    return door->stat(fd, ret);
}

int io_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    assert(lock_disk_ok());
    return door->rename(dirfd, from, todirfd, to);
}

int io_unlink(int dirfd, const char *path, int flags)
{
    assert(lock_disk_ok());
    return door->unlink(dirfd, path, flags);
}

int io_mkdir(int dirfd, const char *path, mode_t mode)
{
    assert(lock_disk_ok());
    return door->mkdir(dirfd, path, mode);
}

int io_scan(int dirfd, const char *path, int (*each)(void *arg, const char *name), void *arg)
{
    assert(lock_disk_ok());
    return door->scan(dirfd, path, each, arg);
}

int io_fallocate(int fd, int mode, uint64_t off, uint64_t len)
{
    assert(lock_disk_ok());
    int r;
    do
        r = door->fallocate(fd, mode, off, len);
    while (r == -EINTR);
    return r;
}

int io_writeback(int fd, uint64_t off, uint64_t len, bool wait)
{
    assert(lock_disk_ok());
    return door->writeback(fd, off, len, wait);
}

int io_drop(int fd, uint64_t off, uint64_t len)
{
    return door->drop(fd, off, len);
}

int io_stored(int fd, uint64_t from, uint64_t to, uint64_t *ret)
{
    return door->stored ? door->stored(fd, from, to, ret) : -EOPNOTSUPP;
}

int io_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize)
{
    return door->fsinfo(fd, total, avail, bsize);
}

uint64_t io_files_max(void)
{
    struct rlimit lim;
    return getrlimit(RLIMIT_NOFILE, &lim) == 0 ? lim.rlim_cur : 1024;
}

void io_dio_align(int fd, uint32_t *mem, uint32_t *off)
{
    if (!door->dio_align || door->dio_align(fd, mem, off) < 0)
        *mem = *off = 4096;
}

int io_pread_full(int fd, void *buf, size_t len, uint64_t off)
{
    uint8_t *p = buf;
    while (len) {
        ssize_t n = io_pread(fd, p, len, off);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -ENODATA;
        p += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int io_pwrite_full(int fd, const void *buf, size_t len, uint64_t off, size_t *done)
{
    assert(lock_disk_ok());
    const uint8_t *p = buf;
    size_t at = 0;
    int r = 0;
    while (at < len) {
        ssize_t n = door->pwrite(fd, p + at, len - at, off + at);
        if (n == -EINTR)
            continue;
        if (n <= 0) {
            r = n < 0 ? (int)n : -EIO;
            break;
        }
        at += (size_t)n;
    }
    if (done)
        *done = at;
    return r;
}

int io_sync_dir(int dirfd, const char *path)
{
    int fd = io_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    int r = io_sync(fd, false);
    io_close(fd);
    return r;
}

int io_replace_file(int dirfd, const char *path, const void *buf, size_t len, mode_t mode)
{
    char tmp[512], dir[512];
    uint32_t nonce;
    random_bytes(&nonce, sizeof nonce);
    int n = snprintf(tmp, sizeof tmp, "%s.tmp%08x", path, nonce);
    if (n < 0 || (size_t)n >= sizeof tmp)
        return -ENAMETOOLONG;
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");

    int fd = io_open(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (fd < 0)
        return fd;
    int r = io_pwrite_full(fd, buf, len, 0, NULL);
    if (r == 0)
        r = io_sync(fd, true);
    io_close(fd);
    if (r == 0)
        r = io_rename(dirfd, tmp, dirfd, path);
    if (r < 0) {
        (void)io_unlink(dirfd, tmp, 0); /* already failing: the first error wins */
        return r;
    }
    return io_sync_dir(dirfd, dir);
}

bool io_replace_left(const char *name, const char *file)
{
    size_t n = strlen(file), suffix = strlen(".tmp");
    return !strncmp(name, file, n) && !strncmp(name + n, ".tmp", suffix) &&
           strspn(name + n + suffix, "0123456789abcdef") == 8 && !name[n + suffix + 8];
}

int io_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
    int fd = io_open(dirfd, path, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    size_t cap = 4096, len = 0;
    char *buf = malloc(cap + 1);
    int r = buf ? 0 : -ENOMEM;
    while (r == 0) {
        ssize_t n = io_pread(fd, buf + len, cap - len, len);
        if (n <= 0) {
            r = (int)n;
            break;
        }
        len += (size_t)n;
        if (len > max) {
            r = -EFBIG;
        } else if (len == cap) {
            char *more = realloc(buf, cap * 2 + 1);
            if (!more) {
                r = -ENOMEM;
            } else {
                buf = more;
                cap *= 2;
            }
        }
    }
    io_close(fd);
    if (r < 0) {
        free(buf);
        return r;
    }
    buf[len] = 0;
    *ret = buf;
    if (ret_len)
        *ret_len = len;
    return 0;
}
