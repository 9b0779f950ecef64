/* The directory store on a disk that misbehaves: each call fails once, with EIO and ENOSPC; reads that fail;
 * one without direct I/O. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdatomic.h>
#include "fs/base/io.h"
#include "tests/support/dirtest.h"

static struct {
    struct io_ops ops;
    atomic_int countdown; /* the call that brings it to 0 fails; negative: none */
    atomic_int failed;
    int err;
    bool no_direct_open, no_direct_write;
    atomic_int drops;
} bad;

static int strike(void)
{
    if (atomic_fetch_sub(&bad.countdown, 1) != 1)
        return 0;
    atomic_fetch_add(&bad.failed, 1);
    return bad.err;
}

static int bad_open(int dirfd, const char *path, int flags, mode_t mode)
{
    if (bad.no_direct_open && (flags & O_DIRECT))
        return -EINVAL;
    int r = strike();
    return r ? r : io_posix.open(dirfd, path, flags, mode);
}

static bool is_direct(int fd)
{
    return bad.no_direct_write && (fcntl(fd, F_GETFL) & O_DIRECT);
}

static ssize_t bad_pread(int fd, void *buf, size_t len, uint64_t off)
{
    int r = is_direct(fd) ? -EINVAL : strike();
    return r ? r : io_posix.pread(fd, buf, len, off);
}

static ssize_t bad_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    int r = is_direct(fd) ? -EINVAL : strike();
    return r ? r : io_posix.pwrite(fd, buf, len, off);
}

static int bad_sync(int fd, bool data_only)
{
    int r = strike();
    return r ? r : io_posix.sync(fd, data_only);
}

static int bad_truncate(int fd, uint64_t len)
{
    int r = strike();
    return r ? r : io_posix.truncate(fd, len);
}

static int bad_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    int r = strike();
    return r ? r : io_posix.rename(dirfd, from, todirfd, to);
}

static int bad_mkdir(int dirfd, const char *path, mode_t mode)
{
    int r = strike();
    return r ? r : io_posix.mkdir(dirfd, path, mode);
}

static int bad_fallocate(int fd, int mode, uint64_t off, uint64_t len)
{
    int r = strike();
    return r ? r : io_posix.fallocate(fd, mode, off, len);
}

static int bad_drop(int fd, uint64_t off, uint64_t len)
{
    atomic_fetch_add(&bad.drops, 1);
    return io_posix.drop(fd, off, len);
}

static void bad_disk(int err)
{
    bad.ops = io_posix;
    bad.ops.open = bad_open;
    bad.ops.pread = bad_pread;
    bad.ops.pwrite = bad_pwrite;
    bad.ops.sync = bad_sync;
    bad.ops.truncate = bad_truncate;
    bad.ops.rename = bad_rename;
    bad.ops.mkdir = bad_mkdir;
    bad.ops.fallocate = bad_fallocate;
    bad.ops.drop = bad_drop;
    bad.err = err;
    atomic_store(&bad.countdown, -1);
    atomic_store(&bad.failed, 0);
    io_use(&bad.ops);
}

/* The bare backend: no retries in between. */
static struct objstore *bare(struct objtest *t)
{
    struct objstore *os;
    char why[300];
    cr_assert_eq(dir_open(&t->conf, &os, why, sizeof why), 0, "%s", why);
    return os;
}

/* Each call that can fail does so once, in turn, with EIO and with ENOSPC. */
Test(dir_disk, any_failing_call_leaves_the_old_object_or_the_new)
{
    enum { LEN = 1500000 };
    static const int errs[] = {-EIO, -ENOSPC};
    static uint8_t old[LEN], new[LEN], got[LEN];
    struct objtest t;
    memset(old, 'o', LEN);
    memset(new, 'n', LEN);
    ot_prepare(&t, STORE_DIR);
    struct objstore *os = bare(&t);
    for (size_t k = 0; k < ARRAY_LEN(errs); k++) {
        for (int n = 1;; n++) {
            struct obj_req r;
            cr_assert_eq(ot_put(os, "a/k", old, LEN, 0, NULL, NULL), 0);
            cr_assert_eq(ot_delete(os, "b/c/new", 0, NULL), 0);
            bad_disk(errs[k]);
            atomic_store(&bad.countdown, n);
            int e = ot_put(os, "a/k", new, LEN, OBJ_HAS_SHA256, NULL, &r);
            bool hit = atomic_load(&bad.failed);
            io_use(NULL);
            cr_assert_eq(ot_get(os, "a/k", 0, got, LEN, NULL), 0);
            bool is_new = !memcmp(got, new, LEN);
            cr_assert(is_new || !memcmp(got, old, LEN), "call %d: neither old nor new", n);
            if (e == 0)
                cr_assert(is_new, "call %d: success that is none", n);
            else
                cr_assert_eq(e, errs[k], "call %d", n);
            if (is_new && e < 0)
                cr_assert(r.diag.unknown_outcome, "call %d", n);
            cr_assert_eq(count_tmp(&t, "put-"), 0, "call %d leaves a file", n);

            bad_disk(errs[k]);
            atomic_store(&bad.countdown, n);
            e = ot_put(os, "b/c/new", new, 10, OBJ_IF_ABSENT, NULL, &r);
            io_use(NULL);
            int there = ot_head(os, "b/c/new", NULL);
            cr_assert(there == 0 || there == -ENOENT);
            cr_assert(e < 0 || there == 0, "call %d", n);
            cr_assert(e == 0 || there < 0 || r.diag.unknown_outcome, "call %d", n);
            if (!hit) {
                cr_assert_gt(n, 12);
                break;
            }
        }
    }
    obj_close(os);
    ot_done(&t);
}

Test(dir_disk, an_upload_is_made_with_its_key_or_not_at_all)
{
    struct objtest t;
    ot_prepare(&t, STORE_DIR);
    struct objstore *os = bare(&t);
    for (int n = 1;; n++) {
        struct obj_req r = {.op = OBJ_MP_CREATE, .key = "mp"};
        bad_disk(-EIO);
        atomic_store(&bad.countdown, n);
        int e = obj_run(os, &r);
        bool hit = atomic_load(&bad.failed);
        io_use(NULL);
        cr_assert_eq(count_tmp(&t, "put-"), 0, "call %d leaves a folder", n);
        cr_assert_eq(count_tmp(&t, "mp-"), e == 0, "call %d leaves an upload", n);
        obj_req_done(&r);
        if (!hit) {
            cr_assert_gt(n, 5);
            break;
        }
        cr_assert_eq(e, -EIO, "call %d", n);
    }
    obj_close(os);
    ot_done(&t);
}

Test(dir_disk, a_failed_read_is_an_error_and_not_data)
{
    enum { LEN = 600000 };
    static uint8_t a[LEN], b[LEN];
    struct objtest t;
    ot_prepare(&t, STORE_DIR);
    struct objstore *os = bare(&t);
    memset(a, 'a', LEN);
    cr_assert_eq(ot_put(os, "k", a, LEN, 0, NULL, NULL), 0);
    for (int n = 1;; n++) {
        bad_disk(-EIO);
        atomic_store(&bad.countdown, n);
        memset(b, 0, LEN);
        int e = ot_get(os, "k", 0, b, LEN, NULL);
        bool hit = atomic_load(&bad.failed);
        io_use(NULL);
        cr_assert_eq(e, hit ? -EIO : 0);
        if (!hit) {
            cr_assert_eq(memcmp(a, b, LEN), 0);
            break;
        }
    }
    obj_close(os);
    ot_done(&t);
}

/* File systems without O_DIRECT, at open or at the first read or write. */
Test(dir_disk, without_direct_io_the_pages_are_dropped)
{
    const size_t n = 3 * 1024 * 1024 + 77;
    uint8_t *a = malloc(n), *b = malloc(n);
    struct objtest t;
    char path[512];
    memset(a, 'd', n);
    ot_prepare(&t, STORE_DIR);
    struct objstore *os = bare(&t);
    for (int late = 0; late < 2; late++) {
        bad_disk(0);
        bad.no_direct_open = !late;
        bad.no_direct_write = late;
        cr_assert_eq(ot_put(os, "k", a, n, OBJ_HAS_SHA256, NULL, NULL), 0);
        cr_assert_gt(atomic_load(&bad.drops), 0);
        memset(b, 0, n);
        cr_assert_eq(ot_get(os, "k", 3, b, n - 3, NULL), 0);
        cr_assert_eq(memcmp(a, b, n - 3), 0);
        io_use(NULL);
        path_of(&t, path, sizeof path, "k");
        cr_assert_eq(resident_pages(path), 0, "%zu pages", resident_pages(path));
    }
    bad.no_direct_open = bad.no_direct_write = false;
    obj_close(os);
    ot_done(&t);
    free(a);
    free(b);
}
