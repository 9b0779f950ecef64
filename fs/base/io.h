/* io.h: the only door from the core to local files, so that the simulation can put a disk with
 * unflushed writes and crashes behind it, and the fault tests can make each call fail once.
 *
 * All functions return 0 (or a count or descriptor) or -errno. The plain calls map one to one onto
 * system calls; EINTR and short counts are handled inside the _full ones, never by callers.
 * Each asserts lock_disk_ok(): no short lock may be held. Any thread.
 */
#ifndef SLUICE_BASE_IO_H
#define SLUICE_BASE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct stat;

struct io_ops {
    int (*open)(int dirfd, const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *buf, size_t len, uint64_t off);
    ssize_t (*pwrite)(int fd, const void *buf, size_t len, uint64_t off);
    int (*sync)(int fd, bool data_only);
    int (*truncate)(int fd, uint64_t len);
    int (*stat)(int fd, struct stat *ret);
    int (*rename)(int dirfd, const char *from, int todirfd, const char *to);
    int (*unlink)(int dirfd, const char *path, int flags);
    int (*mkdir)(int dirfd, const char *path, mode_t mode);
    /* Calls `each` for every entry but . and ..; stops when it returns non-zero and returns that. */
    int (*scan)(int dirfd, const char *path, int (*each)(void *arg, const char *name), void *arg);
    int (*fallocate)(int fd, int mode, uint64_t off, uint64_t len);
    int (*writeback)(int fd, uint64_t off, uint64_t len, bool wait); /* sync_file_range */
    int (*drop)(int fd, uint64_t off, uint64_t len);                 /* POSIX_FADV_DONTNEED */
    /* Size, free bytes for us and block size of the file system that holds fd. */
    int (*fsinfo)(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize);
    /* What O_DIRECT on fd asks of memory addresses and of offsets; 0, 0: it takes none. May be NULL. */
    int (*dio_align)(int fd, uint32_t *mem, uint32_t *off);
    /* Bytes in [from, to) that are no hole, in whole pages. May be NULL: not known. */
    int (*stored)(int fd, uint64_t from, uint64_t to, uint64_t *ret);
    /* Lets go of what fd names, keeps its number. May be NULL: nothing is held up by it. */
    void (*park)(int fd);
};

extern const struct io_ops io_posix;

/* Replaces the door (tests; before any thread uses it). NULL restores io_posix. */
void io_use(const struct io_ops *ops);

int io_open(int dirfd, const char *path, int flags, mode_t mode); /* O_CLOEXEC is added */
void io_close(int fd);                                            /* -1 is ignored */
/* For a descriptor that others may still be about to use: it names nothing of use any more (calls on it
 * fail), but its number is not given out again before io_close. */
void io_park(int fd);
ssize_t io_pread(int fd, void *buf, size_t len, uint64_t off);
int io_sync(int fd, bool data_only);
int io_truncate(int fd, uint64_t len);
int io_stat(int fd, struct stat *ret);
int io_rename(int dirfd, const char *from, int todirfd, const char *to);
int io_unlink(int dirfd, const char *path, int flags);
int io_mkdir(int dirfd, const char *path, mode_t mode);
int io_scan(int dirfd, const char *path, int (*each)(void *arg, const char *name), void *arg);
int io_fallocate(int fd, int mode, uint64_t off, uint64_t len);
int io_writeback(int fd, uint64_t off, uint64_t len, bool wait);
int io_drop(int fd, uint64_t off, uint64_t len);
int io_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize);
/* -EOPNOTSUPP: not known. Moves the descriptor's own offset, which nothing here uses. */
int io_stored(int fd, uint64_t from, uint64_t to, uint64_t *ret);

/* Never fails: 4096 for both where the system does not say. */
void io_dio_align(int fd, uint32_t *mem, uint32_t *off);

/* How many descriptors this process may have open. */
uint64_t io_files_max(void);

/* Reads exactly `len` bytes: 0, -errno, or -ENODATA when the file ends before. */
int io_pread_full(int fd, void *buf, size_t len, uint64_t off);

/* Writes all: 0, or -errno; after an error any prefix may have been written (*done says how much
 * when not NULL). */
int io_pwrite_full(int fd, const void *buf, size_t len, uint64_t off, size_t *done);

/* Makes the names in a directory durable. `path` relative to dirfd; "." for dirfd itself. */
int io_sync_dir(int dirfd, const char *path);

/* Replaces `path` by these bytes: temporary file, fdatasync, rename, fsync of the directory. Either
 * the old or the new content is there after a crash at any point. */
int io_replace_file(int dirfd, const char *path, const void *buf, size_t len, mode_t mode);

/* True if `name` is what io_replace_file of `file` leaves behind when the process dies in it: whoever
 * asks whether a directory is empty leaves it out. */
bool io_replace_left(const char *name, const char *file);

/* Reads a whole small file into malloc'ed memory (a NUL is put behind it). -EFBIG above `max`. */
int io_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);

#endif
