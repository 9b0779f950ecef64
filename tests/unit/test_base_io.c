/* The door to local files: short counts, EINTR, replacing a file when any call fails. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/io.h"
#include "tests/support/faultio.c"

static char dir[64];
static int dfd;

static void open_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/sluice-io-XXXXXX");
    cr_assert(mkdtemp(dir));
    dfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_geq(dfd, 0);
}

static int unlink_each(void *arg, const char *name)
{
    (void)arg;
    return unlinkat(dfd, name, 0) && unlinkat(dfd, name, AT_REMOVEDIR) ? -errno : 0;
}

static void drop_dir(void)
{
    faultio_stop();
    (void)io_scan(dfd, ".", unlink_each, NULL);
    (void)rmdir(dir);
    close(dfd);
}

TestSuite(io, .init = open_dir, .fini = drop_dir);

static int count_each(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
    return 0;
}

static int names(void)
{
    int n = 0;
    cr_assert_eq(io_scan(dfd, ".", count_each, &n), 0);
    return n;
}

/* A door that gives little and is interrupted often. */
static unsigned calls;

static ssize_t little_pread(int fd, void *buf, size_t len, uint64_t off)
{
    if (++calls % 3 == 0)
        return -EINTR;
    return io_posix.pread(fd, buf, len > 7 ? 1 + calls % 7 : len, off);
}

static ssize_t little_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
    if (++calls % 3 == 0)
        return -EINTR;
    return io_posix.pwrite(fd, buf, len > 7 ? 1 + calls % 7 : len, off);
}

static int interrupted_open(int dirfd, const char *path, int flags, mode_t mode)
{
    return ++calls % 2 ? -EINTR : io_posix.open(dirfd, path, flags, mode);
}

Test(io, full_calls_survive_short_counts_and_interrupts)
{
    char out[4000], in[4000];
    struct io_ops ops = io_posix;
    size_t done = 0;
    ops.pread = little_pread;
    ops.pwrite = little_pwrite;
    ops.open = interrupted_open;
    io_use(&ops);
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)(i * 7 + i / 256);
    int fd = io_open(dfd, "f", O_RDWR | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(io_pwrite_full(fd, out, sizeof out, 100, &done), 0);
    cr_assert_eq(done, sizeof out);
    cr_assert_eq(io_pread_full(fd, in, sizeof in, 100), 0);
    cr_assert_arr_eq(in, out, sizeof in);
    cr_assert_eq(io_pread_full(fd, in, sizeof in, 101), -ENODATA, "the file ends before");
    cr_assert_eq(io_pread_full(fd, in, 0, 1 << 20), 0, "nothing can always be read");
    io_close(fd);
    char *text;
    size_t len;
    cr_assert_eq(io_read_file(dfd, "f", 5000, &text, &len), 0);
    cr_assert_eq(len, sizeof out + 100);
    cr_assert_arr_eq(text + 100, out, sizeof out);
    free(text);
    io_use(NULL);
}

Test(io, a_failed_write_tells_how_far_it_came)
{
    char out[1000] = {1};
    size_t done = 1;
    int fd = io_open(dfd, "f", O_RDWR | O_CREAT, 0600);
    faultio_start((struct faultio){FAULT_WRITE, 3, ENOSPC, false, true});
    cr_assert_eq(io_pwrite_full(fd, out, sizeof out, 0, &done), -ENOSPC);
    cr_assert_eq(done, 750);
    faultio_stop();
    struct stat st;
    cr_assert_eq(io_stat(fd, &st), 0);
    cr_assert_eq(st.st_size, 750);
    io_close(fd);
    io_close(-1);
}

static ssize_t no_progress(int fd, const void *buf, size_t len, uint64_t off)
{
    (void)fd, (void)buf, (void)len, (void)off;
    return 0;
}

Test(io, a_write_without_progress_is_an_error_and_no_loop)
{
    struct io_ops ops = io_posix;
    ops.pwrite = no_progress;
    io_use(&ops);
    cr_assert_eq(io_pwrite_full(1, "x", 1, 0, NULL), -EIO);
    io_use(NULL);
}

Test(io, a_failed_flush_is_not_repeated)
{
    int fd = io_open(dfd, "f", O_RDWR | O_CREAT, 0600);
    faultio_start((struct faultio){FAULT_SYNC, 1, EINTR, false, false});
    cr_assert_eq(io_sync(fd, true), -EINTR);
    cr_assert_eq(faultio_calls(), 1);
    faultio_stop();
    io_close(fd);
}

Test(io, descriptors_are_closed_at_exec)
{
    int fd = io_open(dfd, "f", O_RDWR | O_CREAT, 0600);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    io_close(fd);
    cr_assert_eq(io_open(dfd, "missing", O_RDONLY, 0), -ENOENT);
}

static void is_one_of(const char *name, const char *a, const char *b)
{
    char *text;
    size_t len;
    cr_assert_eq(io_read_file(dfd, name, 100000, &text, &len), 0);
    cr_assert(strcmp(text, a) == 0 || strcmp(text, b) == 0, "%zu bytes of neither", len);
    free(text);
}

static void replace_with_each_call_failing(const char *path, bool short_writes)
{
    char *old = malloc(9001), *new = malloc(8001);
    memset(old, 'o', 9000);
    old[9000] = 0;
    memset(new, 'n', 8000);
    new[8000] = 0;
    int before = names();
    bool failed = true;
    for (long at = 1; failed; at++) {
        cr_assert_lt(at, 60);
        cr_assert_eq(io_replace_file(dfd, path, old, 9000, 0600), 0);
        faultio_start((struct faultio){FAULT_ANY, at, EIO, false, short_writes});
        int r = io_replace_file(dfd, path, new, 8000, 0600);
        failed = faultio_calls() >= at;
        faultio_stop();
        cr_assert_eq(r, failed ? -EIO : 0, "call %ld: %d", at, r);
        is_one_of(path, failed ? old : new, new);
        cr_assert_leq(names(), before + 1, "call %ld leaves a temporary file", at);
    }
    free(old);
    free(new);
}

Test(io, replacing_a_file_leaves_the_old_or_the_new_whichever_call_fails)
{
    replace_with_each_call_failing("f", false);
    replace_with_each_call_failing("f", true);
}

Test(io, what_a_dead_replacement_left_is_known_by_its_name)
{
    cr_assert(io_replace_left("a.tmp01234567", "a"));
    cr_assert(io_replace_left("volume.x.tmpdeadbeef", "volume.x"));
    static const char *const others[] = {"a",
                                         "a.tmp",
                                         "a.tmp0123456",
                                         "a.tmp012345678",
                                         "a.tmp0123456g",
                                         "a.tm01234567",
                                         "ab.tmp01234567",
                                         "a.b.tmp01234567"};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        cr_assert_not(io_replace_left(others[k], "a"), "%s", others[k]);
}

Test(io, replacing_syncs_the_data_before_the_name_and_the_directory_after)
{
    cr_assert_eq(io_replace_file(dfd, "a", "1", 1, 0640), 0);
    struct stat st;
    cr_assert_eq(fstatat(dfd, "a", &st, 0), 0);
    cr_assert_eq(st.st_mode & 0777, 0640 & ~umask(022));
    /* open, write, fdatasync, rename, open of the directory, fsync: six calls and two flushes */
    faultio_start((struct faultio){FAULT_ANY, 0, 0, false, false});
    cr_assert_eq(io_replace_file(dfd, "a", "2", 1, 0600), 0);
    cr_assert_eq(faultio_calls(), 6);
    faultio_start((struct faultio){FAULT_SYNC, 0, 0, false, false});
    cr_assert_eq(io_replace_file(dfd, "a", "3", 1, 0600), 0);
    cr_assert_eq(faultio_calls(), 2);
    faultio_stop();
    cr_assert_eq(io_mkdir(dfd, "d", 0700), 0);
    cr_assert_eq(io_replace_file(dfd, "d/b", "4", 1, 0600), 0);
    cr_assert_eq(io_unlink(dfd, "d/b", 0), 0);
}

/* Whether the directory that is synced is the right one when a path begins with its only slash. */
static char opened[2][300];
static unsigned opens;

static int noting_open(int dirfd, const char *path, int flags, mode_t mode)
{
    (void)dirfd, (void)mode;
    if (opens < 2)
        snprintf(opened[opens++], sizeof *opened, "%s", path);
    return io_posix.open(dfd, flags & O_DIRECTORY ? "." : "x", flags, 0600);
}

static int no_rename(int dirfd, const char *from, int todirfd, const char *to)
{
    (void)dirfd, (void)from, (void)todirfd, (void)to;
    return 0;
}

Test(io, replacing_a_file_in_the_root_directory_syncs_the_root)
{
    struct io_ops ops = io_posix;
    ops.open = noting_open;
    ops.rename = no_rename;
    io_use(&ops);
    cr_assert_eq(io_replace_file(AT_FDCWD, "/file", "1", 1, 0600), 0);
    io_use(NULL);
    cr_assert_eq(strncmp(opened[0], "/file.tmp", 9), 0);
    cr_assert_str_eq(opened[1], "/");
}

Test(io, a_path_that_is_too_long_is_refused_before_anything_happens)
{
    char path[600];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    cr_assert_eq(io_replace_file(dfd, path, "1", 1, 0600), -ENAMETOOLONG);
    cr_assert_eq(names(), 0);
}

Test(io, reading_a_whole_file_keeps_its_bound)
{
    static const size_t size[] = {0, 1, 4095, 4096, 4097, 10000};
    char *text, *data = malloc(10000);
    size_t len;
    memset(data, 'd', 10000);
    cr_assert_eq(io_read_file(dfd, "missing", 10, &text, NULL), -ENOENT);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        cr_assert_eq(io_replace_file(dfd, "f", data, size[i], 0600), 0);
        cr_assert_eq(io_read_file(dfd, "f", size[i], &text, &len), 0);
        cr_assert_eq(len, size[i]);
        cr_assert_eq(memcmp(text, data, len), 0);
        cr_assert_eq(text[len], 0);
        free(text);
        if (size[i])
            cr_assert_eq(io_read_file(dfd, "f", size[i] - 1, &text, &len), -EFBIG);
    }
    faultio_start((struct faultio){FAULT_READ, 2, EIO, false, false});
    cr_assert_eq(io_read_file(dfd, "f", 20000, &text, &len), -EIO);
    faultio_stop();
    free(data);
}

static int stop_at_once(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
    return 42;
}

Test(io, a_scan_stops_when_told)
{
    int n = 0;
    cr_assert_eq(io_replace_file(dfd, "a", "", 0, 0600), 0);
    cr_assert_eq(io_replace_file(dfd, "b", "", 0, 0600), 0);
    cr_assert_eq(names(), 2);
    cr_assert_eq(io_scan(dfd, ".", stop_at_once, &n), 42);
    cr_assert_eq(n, 1);
    cr_assert_eq(io_scan(dfd, "a", count_each, &n), -ENOTDIR);
    cr_assert_eq(io_scan(dfd, "missing", count_each, &n), -ENOENT);
}

static int no_align(int fd, uint32_t *mem, uint32_t *off)
{
    (void)fd, (void)mem, (void)off;
    return -EOPNOTSUPP;
}

Test(io, direct_reads_have_an_alignment_also_where_nobody_knows)
{
    struct io_ops ops = io_posix;
    uint32_t mem = 0, off = 0;
    ops.dio_align = no_align;
    io_use(&ops);
    io_dio_align(0, &mem, &off);
    cr_assert(mem == 4096 && off == 4096);
    ops.dio_align = NULL;
    mem = off = 0;
    io_dio_align(0, &mem, &off);
    cr_assert(mem == 4096 && off == 4096);
    io_use(NULL);
    uint64_t total, avail;
    uint32_t bsize;
    cr_assert_eq(io_fsinfo(dfd, &total, &avail, &bsize), 0);
    cr_assert(total >= avail && bsize > 0);
}
