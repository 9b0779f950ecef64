/* faultio.c: see faultio.h. Files under unit tests include it as text: they are one file a program. */
#include "tests/support/faultio.h"

#include <stdatomic.h>
#include "fs/base/io.h"

static struct faultio fault;
static atomic_long fault_calls;

/* 0, or the error this call has to return. */
static int fault_due(unsigned kind)
{
    if (!(fault.mask & kind))
        return 0;
    long n = atomic_fetch_add(&fault_calls, 1) + 1;
    return fault.at && (n == fault.at || (fault.all && n > fault.at)) ? -fault.err : 0;
}

static int fault_open(int dirfd, const char *path, int flags, mode_t mode)
{
    int r = fault_due(FAULT_OPEN);
    return r ? r : io_posix.open(dirfd, path, flags, mode);
}

static ssize_t fault_pread(int fd, void *buf, size_t len, uint64_t off)
{
    int r = fault_due(FAULT_READ);
    return r ? r : io_posix.pread(fd, buf, len, off);
}

static ssize_t fault_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    int r = fault_due(FAULT_WRITE);
    if (fault.short_writes && len > 1)
        len /= 2;
    return r ? r : io_posix.pwrite(fd, buf, len, off);
}

static int fault_sync(int fd, bool data_only)
{
    int r = fault_due(FAULT_SYNC);
    return r ? r : io_posix.sync(fd, data_only);
}

static int fault_truncate(int fd, uint64_t len)
{
    int r = fault_due(FAULT_TRUNCATE);
    return r ? r : io_posix.truncate(fd, len);
}

static int fault_stat(int fd, struct stat *ret)
{
    int r = fault_due(FAULT_STAT);
    return r ? r : io_posix.stat(fd, ret);
}

static int fault_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    int r = fault_due(FAULT_NAME);
    return r ? r : io_posix.rename(dirfd, from, todirfd, to);
}

static int fault_unlink(int dirfd, const char *path, int flags)
{
    int r = fault_due(FAULT_NAME);
    return r ? r : io_posix.unlink(dirfd, path, flags);
}

static int fault_mkdir(int dirfd, const char *path, mode_t mode)
{
    int r = fault_due(FAULT_NAME);
    return r ? r : io_posix.mkdir(dirfd, path, mode);
}

static int fault_scan(int dirfd, const char *path, int (*each)(void *, const char *), void *arg)
{
    int r = fault_due(FAULT_NAME);
    return r ? r : io_posix.scan(dirfd, path, each, arg);
}

static int fault_fallocate(int fd, int mode, uint64_t off, uint64_t len)
{
    int r = fault_due(FAULT_SPACE);
    return r ? r : io_posix.fallocate(fd, mode, off, len);
}

static int fault_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize)
{
    int r = fault_due(FAULT_SPACE);
    return r ? r : io_posix.fsinfo(fd, total, avail, bsize);
}

static int fault_writeback(int fd, uint64_t off, uint64_t len, bool wait)
{
    int r = fault_due(FAULT_CACHE);
    return r ? r : io_posix.writeback(fd, off, len, wait);
}

static int fault_drop(int fd, uint64_t off, uint64_t len)
{
    int r = fault_due(FAULT_CACHE);
    return r ? r : io_posix.drop(fd, off, len);
}

void faultio_start(struct faultio f)
{
    static struct io_ops ops;
    ops = io_posix;
    ops.open = fault_open;
    ops.pread = fault_pread;
    ops.pwrite = fault_pwrite;
    ops.sync = fault_sync;
    ops.truncate = fault_truncate;
    ops.stat = fault_stat;
    ops.rename = fault_rename;
    ops.unlink = fault_unlink;
    ops.mkdir = fault_mkdir;
    ops.scan = fault_scan;
    ops.fallocate = fault_fallocate;
    ops.fsinfo = fault_fsinfo;
    ops.writeback = fault_writeback;
    ops.drop = fault_drop;
    fault = f;
    atomic_store(&fault_calls, 0);
    io_use(&ops);
}

long faultio_calls(void)
{
    return atomic_load(&fault_calls);
}

void faultio_stop(void)
{
    io_use(NULL);
}
