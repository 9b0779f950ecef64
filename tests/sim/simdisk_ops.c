/* simdisk_ops.c: the calls of io_ops, on paths and descriptors of the disk in use; see simdisk_int.h. */
#include "tests/sim/simdisk_int.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"

/* ---- paths and descriptors ---- */

struct node *sd_fd_node(struct simdisk *d, int fd)
{
    return fd >= FD_BASE && fd < FD_BASE + FDS ? d->fds[fd - FD_BASE].node : NULL;
}

int sd_fd_new(struct simdisk *d, struct node *n, int flags, const char *path)
{
    for (int i = 0; i < FDS; i++) {
        if (!d->fds[i].node) {
            d->fds[i].node = n;
            d->fds[i].flags = flags;
            d->fds[i].path = sd_must(strdup(path));
            return FD_BASE + i;
        }
    }
    return -EMFILE;
}

void sd_fd_free(struct simdisk *d, int fd)
{
    free(d->fds[fd - FD_BASE].path);
    d->fds[fd - FD_BASE].path = NULL;
    d->fds[fd - FD_BASE].node = NULL;
}

/* The directory that holds the last component, and that component ("" for the directory itself). */
int sd_resolve(struct simdisk *d, int dirfd, const char *path, struct node **ret_dir,
               char name[static 256])
{
    struct node *n = dirfd == AT_FDCWD || path[0] == '/' ? d->root : sd_fd_node(d, dirfd);
    if (!n)
        return -EBADF;
    name[0] = 0;
    for (;;) {
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        if (len == 0)
            break;
        if (name[0]) { /* the previous component was not the last */
            struct entry *e = sd_names_find(&n->cur_names, name);
            if (!e)
                return -ENOENT;
            n = e->node;
            name[0] = 0;
        }
        if (!S_ISDIR(n->mode))
            return -ENOTDIR;
        if (len > 255)
            return -ENAMETOOLONG;
        if (len == 2 && path[0] == '.' && path[1] == '.') {
            n = n->parent ? n->parent : n;
        } else if (len != 1 || path[0] != '.') {
            memcpy(name, path, len);
            name[len] = 0;
        }
        path += len;
    }
    if (!S_ISDIR(n->mode))
        return -ENOTDIR;
    *ret_dir = n;
    return 0;
}

struct node *sd_child(struct node *dir, const char *name)
{
    if (!name[0])
        return dir;
    struct entry *e = sd_names_find(&dir->cur_names, name);
    return e ? e->node : NULL;
}

static const char *fd_path(struct simdisk *d, int fd)
{
    return sd_fd_node(d, fd) ? d->fds[fd - FD_BASE].path : "";
}

/* ---- the calls ---- */

static struct simdisk *enter(void)
{
    struct simdisk *d = sd_in_use;
    assert(d);
    pthread_mutex_lock(&d->mu);
    return d;
}

static int leave(struct simdisk *d, int r)
{
    pthread_mutex_unlock(&d->mu);
    return r;
}

static int open_node(struct simdisk *d, int dirfd, const char *path, int flags, mode_t mode)
{
    char name[256];
    struct node *dir;
    if ((flags & O_TMPFILE) == O_TMPFILE)
        return -EOPNOTSUPP;
    int r = sd_resolve(d, dirfd, path, &dir, name);
    if (r < 0)
        return r;
    struct node *n = sd_child(dir, name);
    if (n && (flags & O_CREAT) && (flags & O_EXCL))
        return -EEXIST;
    if (!n && !(flags & O_CREAT))
        return -ENOENT;
    if (n && (flags & O_DIRECTORY) && !S_ISDIR(n->mode))
        return -ENOTDIR;
    if (n && S_ISDIR(n->mode) && (flags & O_ACCMODE) != O_RDONLY)
        return -EISDIR;
    int fd = sd_fd_new(d, n ? n : dir, flags, path);
    if (fd < 0)
        return fd;
    if (!n) {
        n = sd_node_new(d, S_IFREG | (mode & 07777), NULL);
        d->fds[fd - FD_BASE].node = n;
        sd_change(d, NULL, NULL, dir, name, n);
    }
    if (flags & O_TRUNC && S_ISREG(n->mode))
        (void)sd_node_truncate(d, n, 0);
    sd_maybe_sweep(d);
    return fd;
}

static int sd_open(int dirfd, const char *path, int flags, mode_t mode)
{
    struct simdisk *d = enter();
    int r = sd_fault(d, SD_OPEN, path);
    return leave(d, r < 0 ? r : open_node(d, dirfd, path, flags, mode));
}

static int sd_close(int fd)
{
    struct simdisk *d = enter();
    if (!sd_fd_node(d, fd))
        return leave(d, -EBADF);
    sd_fd_free(d, fd);
    return leave(d, 0);
}

/* The regular file behind fd, if it may be read (written). */
static int fd_file(struct simdisk *d, int fd, bool write, struct node **ret)
{
    struct node *n = sd_fd_node(d, fd);
    if (!n)
        return -EBADF;
    int acc = d->fds[fd - FD_BASE].flags & O_ACCMODE;
    if (acc == (write ? O_RDONLY : O_WRONLY))
        return -EBADF;
    if (!S_ISREG(n->mode))
        return -EISDIR;
    *ret = n;
    return 0;
}

static ssize_t sd_pread(int fd, void *buf, size_t len, uint64_t off)
{
    struct simdisk *d = enter();
    struct node *n = NULL;
    int r = sd_fault(d, SD_PREAD, fd_path(d, fd));
    if (r == 0)
        r = fd_file(d, fd, false, &n);
    if (r < 0)
        return leave(d, r);
    size_t got = off < n->size ? (size_t)min_u64(len, n->size - off) : 0;
    if (got)
        memcpy(buf, n->cur + off, got);
    /* Past the page cache: what a failed sync called clean is read from the medium. */
    if (d->fds[fd - FD_BASE].flags & O_DIRECT)
        for (uint64_t s = off / SECTOR; s * SECTOR < off + got; s++)
            if (n->state[s] == LOST) {
                uint64_t from = max_u64(s * SECTOR, off), to = min_u64((s + 1) * SECTOR, off + got);
                memcpy((uint8_t *)buf + (from - off), n->dur + from, to - from);
            }
    leave(d, 0);
    return (ssize_t)got;
}

/* A short write ends at a page border, as those of the kernel do. */
static size_t cut_short(struct simdisk *d, uint64_t off, size_t len)
{
    uint64_t first = (off / 4096 + 1) * 4096, last = (off + len - 1) / 4096 * 4096;
    if (len == 0 || first > last)
        return len;
    return (size_t)(first + sd_rng(&d->short_rng) % ((last - first) / 4096 + 1) * 4096 - off);
}

static ssize_t sd_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    struct simdisk *d = enter();
    struct node *n = NULL;
    int failed = sd_fault(d, SD_PWRITE, fd_path(d, fd));
    int r = fd_file(d, fd, true, &n);
    uint64_t end = 0;
    if (r == 0 && add_u64(off, len, &end))
        r = -EFBIG;
    if (r < 0)
        return leave(d, r);
    if (d->frozen)
        len = 0;
    else if (failed == SD_FAULT_SHORT)
        len = cut_short(d, off, len);
    else if (failed == -EINTR)
        len = 0;
    else if (failed)
        len = len <= 8 ? 0 : len / 2; /* what lies within one word is written whole or not */
    else if (d->short_one_in && sd_rng(&d->short_rng) % d->short_one_in == 0)
        len = cut_short(d, off, len);
    if (sd_no_space(d, n, off + len)) {
        uint64_t left = d->space > d->used ? d->space - d->used : 0;
        if (n->size + left <= off)
            return leave(d, failed < 0 ? failed : -ENOSPC);
        len = n->size + left - off;
    }
    r = sd_room(n, off + len);
    if (r == 0 && len) {
        memcpy(n->cur + off, buf, len);
        if (off > n->size) /* the gap reads as zeros and is to be written like the rest */
            sd_dirty(n, n->size, off);
        sd_dirty(n, off, off + len);
        if (off + len > n->size)
            sd_set_size(d, n, off + len);
    }
    leave(d, 0);
    return failed < 0 ? failed : r < 0 ? r : (ssize_t)len;
}

static int sd_sync(int fd, bool data_only)
{
    (void)data_only;
    struct simdisk *d = enter();
    int r = sd_fault(d, SD_SYNC, fd_path(d, fd));
    struct node *n = sd_fd_node(d, fd);
    if (!n)
        return leave(d, -EBADF);
    if (r < 0) {
        if (!d->frozen)
            sd_node_sync_failed(n);
        return leave(d, r);
    }
    sd_node_sync(n);
    sd_names_sync(d, n);
    return leave(d, 0);
}

static int sd_truncate(int fd, uint64_t len)
{
    struct simdisk *d = enter();
    struct node *n = NULL;
    int r = sd_fault(d, SD_TRUNCATE, fd_path(d, fd));
    if (r == 0)
        r = fd_file(d, fd, true, &n);
    return leave(d, r < 0 ? r : sd_node_truncate(d, n, len));
}

static int sd_stat(int fd, struct stat *ret)
{
    struct simdisk *d = enter();
    int r = sd_fault(d, SD_STAT, fd_path(d, fd));
    struct node *n = sd_fd_node(d, fd);
    if (!n)
        r = -EBADF;
    if (r == 0)
        *ret = (struct stat){
            .st_dev = 0x51d,
            .st_ino = n->ino,
            .st_mode = n->mode,
            .st_nlink = 1,
            .st_size = (off_t)n->size,
            .st_blksize = 4096,
            .st_blocks = (blkcnt_t)((n->size + SECTOR - 1) / SECTOR),
            .st_mtim = {.tv_sec = n->mtime_ns / NS_PER_SEC, .tv_nsec = n->mtime_ns % NS_PER_SEC}};
    return leave(d, r);
}

static int rename_node(struct simdisk *d, int dirfd, const char *from, int todirfd, const char *to)
{
    char a[256], b[256];
    struct node *da, *db;
    int r = sd_resolve(d, dirfd, from, &da, a);
    if (r == 0)
        r = sd_resolve(d, todirfd, to, &db, b);
    if (r < 0)
        return r;
    struct node *n = a[0] ? sd_child(da, a) : NULL, *old = b[0] ? sd_child(db, b) : NULL;
    if (!n)
        return -ENOENT;
    if (!b[0])
        return -EEXIST;
    if (n == old)
        return 0;
    if (old && S_ISDIR(old->mode) != S_ISDIR(n->mode))
        return S_ISDIR(old->mode) ? -EISDIR : -ENOTDIR;
    if (old && old->cur_names.n)
        return -ENOTEMPTY;
    for (struct node *p = db; p; p = p->parent)
        if (p == n)
            return -EINVAL;
    sd_change(d, da, a, db, b, n);
    if (S_ISDIR(n->mode))
        n->parent = db;
    return 0;
}

static int sd_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    struct simdisk *d = enter();
    int r = sd_fault(d, SD_RENAME, from);
    return leave(d, r < 0 ? r : rename_node(d, dirfd, from, todirfd, to));
}

static int unlink_node(struct simdisk *d, int dirfd, const char *path, int flags)
{
    char name[256];
    struct node *dir;
    int r = sd_resolve(d, dirfd, path, &dir, name);
    if (r < 0)
        return r;
    struct node *n = name[0] ? sd_child(dir, name) : NULL;
    if (!n)
        return -ENOENT;
    if (!(flags & AT_REMOVEDIR) && S_ISDIR(n->mode))
        return -EISDIR;
    if ((flags & AT_REMOVEDIR) && !S_ISDIR(n->mode))
        return -ENOTDIR;
    if (n->cur_names.n)
        return -ENOTEMPTY;
    sd_change(d, dir, name, NULL, NULL, NULL);
    sd_maybe_sweep(d);
    return 0;
}

static int sd_unlink(int dirfd, const char *path, int flags)
{
    struct simdisk *d = enter();
    int r = sd_fault(d, SD_UNLINK, path);
    return leave(d, r < 0 ? r : unlink_node(d, dirfd, path, flags));
}

static int sd_mkdir(int dirfd, const char *path, mode_t mode)
{
    struct simdisk *d = enter();
    char name[256];
    struct node *dir;
    int r = sd_fault(d, SD_MKDIR, path);
    if (r == 0)
        r = sd_resolve(d, dirfd, path, &dir, name);
    if (r == 0 && (!name[0] || sd_child(dir, name)))
        r = -EEXIST;
    if (r == 0)
        sd_change(d, NULL, NULL, dir, name, sd_node_new(d, S_IFDIR | (mode & 07777), dir));
    return leave(d, r);
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int sd_scan(int dirfd, const char *path, int (*each)(void *, const char *), void *arg)
{
    struct simdisk *d = enter();
    char name[256];
    struct node *dir;
    int r = sd_fault(d, SD_SCAN, path);
    if (r == 0)
        r = sd_resolve(d, dirfd, path, &dir, name);
    struct node *n = r == 0 ? sd_child(dir, name) : NULL;
    if (r == 0 && !n)
        r = -ENOENT;
    if (r == 0 && !S_ISDIR(n->mode))
        r = -ENOTDIR;
    if (r < 0)
        return leave(d, r);
    size_t count = n->cur_names.n;
    char **v = sd_must(calloc(count + 1, sizeof *v));
    for (size_t i = 0; i < count; i++)
        v[i] = sd_must(strdup(n->cur_names.v[i].name));
    leave(d, 0);
    qsort(v, count, sizeof *v, name_cmp);
    for (size_t i = 0; i < count; i++) {
        if (r == 0)
            r = each(arg, v[i]);
        free(v[i]);
    }
    free(v);
    return r;
}

static int sd_fallocate(int fd, int mode, uint64_t off, uint64_t len)
{
    struct simdisk *d = enter();
    struct node *n = NULL;
    uint64_t end = 0;
    int r = sd_fault(d, SD_FALLOCATE, fd_path(d, fd));
    if (r == 0)
        r = fd_file(d, fd, true, &n);
    if (r == 0 && (len == 0 || add_u64(off, len, &end)))
        r = -EINVAL;
    if (r < 0)
        return leave(d, r);
    bool keep = mode & FALLOC_FL_KEEP_SIZE;
    int what = mode & ~FALLOC_FL_KEEP_SIZE;
    if ((what == FALLOC_FL_PUNCH_HOLE && keep) || what == FALLOC_FL_ZERO_RANGE) {
        uint64_t to = min_u64(end, n->size);
        if (off < to) {
            memset(n->cur + off, 0, to - off);
            sd_dirty(n, off, to);
        }
    } else if (what != 0) {
        return leave(d, -EOPNOTSUPP);
    }
    if (!keep && end > n->size) {
        r = sd_no_space(d, n, end) ? -ENOSPC : sd_room(n, end);
        if (r == 0)
            sd_set_size(d, n, end);
    }
    return leave(d, r);
}

/* sync_file_range promises nothing that survives loss of power. */
static int sd_writeback(int fd, uint64_t off, uint64_t len, bool wait)
{
    (void)off;
    (void)len;
    (void)wait;
    struct simdisk *d = enter();
    return leave(d, sd_fd_node(d, fd) ? 0 : -EBADF);
}

/* Clean pages go; what a failed sync called clean is read from the medium again. */
static int sd_drop(int fd, uint64_t off, uint64_t len)
{
    struct simdisk *d = enter();
    struct node *n = sd_fd_node(d, fd);
    if (!n)
        return leave(d, -EBADF);
    uint64_t end = len == 0 || add_u64(off, len, &end) ? n->cap : min_u64(off + len, n->cap);
    for (uint64_t s = (off + SECTOR - 1) / SECTOR; (s + 1) * SECTOR <= end; s++) {
        if (n->state[s] == LOST) {
            memcpy(n->cur + s * SECTOR, n->dur + s * SECTOR, SECTOR);
            n->state[s] = CLEAN;
        }
    }
    return leave(d, 0);
}

static int sd_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize)
{
    struct simdisk *d = enter();
    if (!sd_fd_node(d, fd))
        return leave(d, -EBADF);
    *total = d->space ? d->space : 1ull << 40;
    *avail = *total > d->used ? *total - d->used : 0;
    *bsize = 4096;
    return leave(d, 0);
}

static int sd_dio_align(int fd, uint32_t *mem, uint32_t *off)
{
    (void)fd;
    *mem = *off = SECTOR;
    return 0;
}

const struct io_ops sd_ops = {
    .open = sd_open,
    .close = sd_close,
    .pread = sd_pread,
    .pwrite = sd_pwrite,
    .sync = sd_sync,
    .truncate = sd_truncate,
    .stat = sd_stat,
    .rename = sd_rename,
    .unlink = sd_unlink,
    .mkdir = sd_mkdir,
    .scan = sd_scan,
    .fallocate = sd_fallocate,
    .writeback = sd_writeback,
    .drop = sd_drop,
    .fsinfo = sd_fsinfo,
    .dio_align = sd_dio_align,
};
