/* test_kv.h: a metadata store in a temporary directory, and a door to the disk that counts calls and
 * makes chosen ones fail. */
#ifndef SLUICE_TEST_KV_H
#define SLUICE_TEST_KV_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/meta/kv.h"

static char kv_dir[64];
static int kv_dirfd = -1;
static char why[256];

static inline int rm_one(const char *p, const struct stat *st, int t, struct FTW *f)
{
    (void)st;
    (void)t;
    (void)f;
    return remove(p);
}

static inline void dir_make(void)
{
    snprintf(kv_dir, sizeof kv_dir, "/tmp/sluice-kv-XXXXXX");
    cr_assert(mkdtemp(kv_dir) != NULL);
    kv_dirfd = open(kv_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(kv_dirfd >= 0);
}

static inline void dir_remove(void)
{
    close(kv_dirfd);
    nftw(kv_dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline struct kv_conf conf_plain(void)
{
    return (struct kv_conf){.dirfd = kv_dirfd,
                            .dir = kv_dir,
                            .map_bytes = 1 << 24,
                            .checkpoint_ms = 3600 * 1000,
                            .keep_origins = true,
                            .lmdb_nosync = true};
}

static inline struct kv *must_open(const struct kv_conf *conf)
{
    struct kv *kv = NULL;
    int r = kv_open(conf, &kv, why, sizeof why);
    cr_assert(r == 0, "open: %s: %s", err_name(r), why);
    return kv;
}

static inline int put_u(struct kv *kv, const char *key, const char *val, uint64_t unique,
                        uint64_t *seq)
{
    struct kv_batch b;
    kv_batch_init(&b);
    if (val)
        kv_put(&b, key, strlen(key), val, strlen(val));
    else
        kv_del(&b, key, strlen(key));
    struct kv_origin o = {.unique = unique, .op = 9, .result = unique + 1};
    int r = kv_apply(kv, &b, unique ? &o : NULL, seq);
    kv_batch_done(&b);
    return r;
}

/* val NULL: delete. */
static inline int put(struct kv *kv, const char *key, const char *val)
{
    return put_u(kv, key, val, 0, NULL);
}

static inline void expect(struct kv *kv, const char *key, const char *want)
{
    char buf[4096] = "";
    ssize_t n = kv_get(kv, key, strlen(key), buf, sizeof buf - 1);
    if (!want) {
        cr_assert(n == -ENOENT, "%s: %zd instead of absent", key, n);
        return;
    }
    cr_assert(n >= 0, "%s: %s", key, err_name((int)n));
    buf[n] = 0;
    cr_assert_str_eq(buf, want, "%s", key);
}

/* All rows with a prefix as "key=value " text. */
struct text {
    char s[8192];
    size_t len;
};

static inline int text_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    struct text *t = arg;
    t->len += (size_t)snprintf(t->s + t->len, sizeof t->s - t->len, "%.*s=%.*s ", (int)kl,
                               (const char *)k, (int)vl, (const char *)v);
    return 0;
}

static inline void expect_walk(struct kv *kv, const char *prefix, const char *from,
                               const char *want)
{
    struct text t = {0};
    cr_assert_eq(kv_walk(kv, prefix, strlen(prefix), from, strlen(from), text_row, &t), 0);
    cr_assert_str_eq(t.s, want);
}

/* The journal file with the highest id. */
static inline int newest_cb(void *arg, const char *name)
{
    char *best = arg;
    if (strcmp(name, best) > 0)
        snprintf(best, 64, "%s", name);
    return 0;
}

static inline void newest_journal(char path[static 160])
{
    char best[64] = "";
    cr_assert_eq(io_scan(kv_dirfd, "journal", newest_cb, best), 0);
    snprintf(path, 160, "%s/journal/%s", kv_dir, best);
}

static inline size_t file_read(const char *path, uint8_t *buf, size_t cap)
{
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0);
    ssize_t n = read(fd, buf, cap);
    close(fd);
    cr_assert(n >= 0 && (size_t)n < cap);
    return (size_t)n;
}

static inline void file_write(const char *path, const uint8_t *buf, size_t len)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    cr_assert(fd >= 0 && write(fd, buf, len) == (ssize_t)len);
    close(fd);
}

/* ---- the lying door ---- */

static struct {
    _Atomic long calls; /* so far */
    long fail_at;       /* this one fails (1-based); 0: none */
    long fail_n;        /* so many in a row */
    int err;
    bool after; /* half the work is done first (pwrite) */
    _Atomic long syncs;
    _Atomic int fail_sync; /* so many fdatasyncs fail */
    _Atomic int fail_pwrite, fail_truncate;
    _Atomic int slow_sync_us;
} door;

static inline bool door_fails(void)
{
    long n = atomic_fetch_add(&door.calls, 1) + 1;
    return door.fail_at && n >= door.fail_at && n < door.fail_at + door.fail_n;
}

static inline bool take_one(_Atomic int *n)
{
    int v = atomic_load(n);
    while (v > 0)
        if (atomic_compare_exchange_weak(n, &v, v - 1))
            return true;
    return false;
}

static int d_open(int dirfd, const char *path, int flags, mode_t mode)
{
    return door_fails() ? -door.err : io_posix.open(dirfd, path, flags, mode);
}

static ssize_t d_pread(int fd, void *buf, size_t len, uint64_t off)
{
    return door_fails() ? -door.err : io_posix.pread(fd, buf, len, off);
}

static ssize_t d_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    if (take_one(&door.fail_pwrite)) {
        (void)io_posix.pwrite(fd, buf, len / 2, off);
        return -door.err;
    }
    if (door_fails()) {
        if (door.after)
            (void)io_posix.pwrite(fd, buf, len / 2, off);
        return -door.err;
    }
    return io_posix.pwrite(fd, buf, len, off);
}

/* Flushes are counted, not done: these tests kill processes, not machines. */
static int d_sync(int fd, bool data_only)
{
    (void)fd;
    if (data_only) {
        atomic_fetch_add(&door.syncs, 1);
        int us = atomic_load(&door.slow_sync_us);
        if (us)
            usleep((useconds_t)us);
        if (take_one(&door.fail_sync))
            return -EIO;
    }
    return door_fails() ? -door.err : 0;
}

static int d_truncate(int fd, uint64_t len)
{
    if (take_one(&door.fail_truncate))
        return -EIO;
    return door_fails() ? -door.err : io_posix.truncate(fd, len);
}

static int d_unlink(int dirfd, const char *path, int flags)
{
    return door_fails() ? -door.err : io_posix.unlink(dirfd, path, flags);
}

static int d_mkdir(int dirfd, const char *path, mode_t mode)
{
    return door_fails() ? -door.err : io_posix.mkdir(dirfd, path, mode);
}

static int d_scan(int dirfd, const char *path, int (*each)(void *, const char *), void *arg)
{
    return door_fails() ? -door.err : io_posix.scan(dirfd, path, each, arg);
}

static inline void door_use(void)
{
    static struct io_ops ops;
    ops = io_posix;
    ops.open = d_open;
    ops.pread = d_pread;
    ops.pwrite = d_pwrite;
    ops.sync = d_sync;
    ops.truncate = d_truncate;
    ops.unlink = d_unlink;
    ops.mkdir = d_mkdir;
    ops.scan = d_scan;
    memset(&door, 0, sizeof door);
    door.err = EIO;
    io_use(&ops);
}

#endif
