/* test_simdisk.c: the disk of the simulation forgets what a real one may forget, and nothing else. */
#include "tests/sim/simdisk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/io.h"

static struct simdisk *d;
static int root;

static void setup(void)
{
    d = simdisk_new();
    simdisk_use(d);
    root = simdisk_root(d);
}

static void teardown(void)
{
    simdisk_use(NULL);
    simdisk_free(d);
}

TestSuite(simdisk, .init = setup, .fini = teardown);

static int make(const char *path, const char *text)
{
    int fd = io_open(root, path, O_RDWR | O_CREAT, 0600);
    cr_assert(fd >= 0, "%s: %d", path, fd);
    cr_assert_eq(io_pwrite_full(fd, text, strlen(text), 0, NULL), 0);
    return fd;
}

/* NULL: no such file. */
static char *text_of(const char *path)
{
    char *s;
    int r = io_read_file(root, path, 1 << 26, &s, NULL);
    cr_assert(r == 0 || r == -ENOENT, "%s: %d", path, r);
    return r ? NULL : s;
}

static bool is(const char *path, const char *want)
{
    char *s = text_of(path);
    bool ok = s && want ? strcmp(s, want) == 0 : !s && !want;
    free(s);
    return ok;
}

static void crash(enum simdisk_crash kind, uint64_t seed)
{
    simdisk_crash(d, NULL, kind, seed);
    root = simdisk_root(d);
}

Test(simdisk, calls_behave_like_system_calls)
{
    char buf[16] = "";
    cr_assert_eq(io_open(root, "no", O_RDONLY, 0), -ENOENT);
    cr_assert_eq(io_open(root, "no/x", O_RDWR | O_CREAT, 0600), -ENOENT);
    int fd = make("a", "hello");
    cr_assert_eq(io_open(root, "a", O_RDWR | O_CREAT | O_EXCL, 0600), -EEXIST);
    cr_assert_eq(io_open(root, "a/b", O_RDONLY, 0), -ENOTDIR);
    cr_assert_eq(io_open(root, ".", O_RDWR, 0), -EISDIR);
    cr_assert_eq(io_pread(fd, buf, 16, 3), 2);
    cr_assert_str_eq(buf, "lo");
    cr_assert_eq(io_pread(fd, buf, 16, 5), 0);
    cr_assert_eq(io_pwrite_full(fd, "x", 1, 8, NULL), 0);
    cr_assert_eq(io_pread(fd, buf, 16, 0), 9);
    cr_assert(memcmp(buf, "hello\0\0\0x", 9) == 0);
    cr_assert_eq(io_truncate(fd, 2), 0);
    cr_assert_eq(io_truncate(fd, 4), 0);
    cr_assert_eq(io_pread(fd, buf, 16, 0), 4);
    cr_assert(memcmp(buf, "he\0\0", 4) == 0, "what was cut does not come back");
    struct stat st;
    cr_assert_eq(io_stat(fd, &st), 0);
    cr_assert(S_ISREG(st.st_mode) && st.st_size == 4 && (st.st_mode & 07777) == 0600);
    cr_assert_eq(io_mkdir(root, "dir", 0700), 0);
    cr_assert_eq(io_mkdir(root, "dir", 0700), -EEXIST);
    int sub = make("dir/b", "1");
    cr_assert_eq(io_unlink(root, "dir", AT_REMOVEDIR), -ENOTEMPTY);
    cr_assert_eq(io_unlink(root, "dir", 0), -EISDIR);
    cr_assert_eq(io_rename(root, "dir", root, "dir/c"), -EINVAL);
    cr_assert_eq(io_rename(root, "a", root, "dir/b"), 0);
    cr_assert_eq(io_pread(sub, buf, 16, 0), 1, "an unlinked open file lives on");
    cr_assert(is("a", NULL));
    cr_assert_eq(io_rename(root, "a", root, "z"), -ENOENT);
    cr_assert_eq(io_unlink(root, "dir/../dir/./b", 0), 0);
    cr_assert_eq(io_unlink(root, "dir", AT_REMOVEDIR), 0);
    int ro = io_open(root, "r", O_RDONLY | O_CREAT, 0600);
    cr_assert_eq(io_pwrite_full(ro, "x", 1, 0, NULL), -EBADF);
    io_close(ro);
    cr_assert_eq(io_truncate(ro, 0), -EBADF);
}

static int collect(void *arg, const char *name)
{
    strcat(strcat(arg, name), " ");
    return strcmp(name, "stop") == 0 ? 5 : 0;
}

Test(simdisk, scans_are_in_order_and_stop_when_told)
{
    char names[64] = "";
    io_close(make("b", ""));
    io_close(make("a", ""));
    io_close(make("c", ""));
    cr_assert_eq(io_scan(root, ".", collect, names), 0);
    cr_assert_str_eq(names, "a b c ");
    cr_assert_eq(io_rename(root, "b", root, "stop"), 0);
    cr_assert_eq(io_rename(root, "c", root, "zz"), 0);
    names[0] = 0;
    cr_assert_eq(io_scan(root, "/", collect, names), 5);
    cr_assert_str_eq(names, "a stop ");
}

Test(simdisk, death_of_the_process_keeps_everything_but_descriptors)
{
    int fd = make("a", "1");
    cr_assert_eq(io_mkdir(root, "d", 0700), 0);
    io_close(make("d/b", "2"));
    crash(SIMDISK_KILL, 1);
    cr_assert_eq(io_truncate(fd, 0), -EBADF);
    cr_assert(is("a", "1") && is("d/b", "2"));
}

Test(simdisk, what_was_synced_survives_every_power_cut)
{
    cr_assert_eq(io_mkdir(root, "d", 0700), 0);
    int fd = make("d/a", "1");
    cr_assert_eq(io_sync(fd, true), 0);
    cr_assert_eq(io_sync_dir(root, "d"), 0);
    cr_assert_eq(io_sync_dir(root, "."), 0);
    for (uint64_t seed = 0; seed < 200; seed++) {
        crash(SIMDISK_POWER, seed);
        cr_assert(is("d/a", "1"), "seed %llu", (unsigned long long)seed);
    }
}

Test(simdisk, unsynced_sectors_and_sizes_are_kept_or_dropped_each_by_itself)
{
    enum { N = 8 };
    bool mixed = false, grown = false, shorter = false, zeros_inside = false;
    for (uint64_t seed = 0; seed < 300; seed++) {
        static char old[512 * N + 1], new[2 * 512 * N + 1];
        memset(old, 'o', 512 * N);
        memset(new, 'n', 2 * 512 * N);
        int fd = make("a", old);
        cr_assert_eq(io_truncate(fd, 512 * N), 0);
        cr_assert_eq(io_sync(fd, true), 0);
        cr_assert_eq(io_pwrite_full(fd, new, 2 * 512 * N, 0, NULL), 0);
        crash(SIMDISK_POWER, seed);
        char *s;
        size_t len;
        cr_assert_eq(io_read_file(root, "a", 1 << 20, &s, &len), 0);
        cr_assert(len >= 512 * N && len <= 2 * 512 * N);
        int n_new = 0;
        for (size_t i = 0; i < len; i++) {
            cr_assert(s[i] == 'n' || s[i] == (i < 512 * N ? 'o' : 0), "byte %zu", i);
            cr_assert_eq(s[i], s[i / 512 * 512], "a sector is whole");
            n_new += s[i] == 'n' && i < 512 * N && i % 512 == 0;
            zeros_inside |= s[i] == 0;
        }
        mixed |= n_new > 0 && n_new < N;
        grown |= len == 2 * 512 * N;
        shorter |= len > 512 * N && len < 2 * 512 * N;
        free(s);
    }
    cr_assert(mixed && grown && shorter && zeros_inside);
}

Test(simdisk, an_unsynced_truncate_happened_or_did_not)
{
    int whole = 0, cut = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        static char old[2049];
        memset(old, 'o', 2048);
        int fd = make("a", old);
        cr_assert_eq(io_sync(fd, true), 0);
        cr_assert_eq(io_truncate(fd, 100), 0);
        crash(SIMDISK_POWER, seed);
        char *s;
        size_t len;
        cr_assert_eq(io_read_file(root, "a", 1 << 20, &s, &len), 0);
        cr_assert(len == 100 || len == 2048, "%zu", len);
        cr_assert(memcmp(s, old, len) == 0);
        whole += len == 2048;
        cut += len == 100;
        free(s);
        cr_assert_eq(io_unlink(root, "a", 0), 0);
    }
    cr_assert(whole > 10 && cut > 10);
}

Test(simdisk, unsynced_names_are_kept_or_dropped)
{
    int there = 0, gone = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        io_close(make("a", ""));
        crash(SIMDISK_POWER, seed);
        bool has = !is("a", NULL);
        there += has;
        gone += !has;
        if (has)
            cr_assert_eq(io_unlink(root, "a", 0), 0);
        cr_assert_eq(io_sync_dir(root, "."), 0);
    }
    cr_assert(there > 10 && gone > 10, "%d there, %d gone", there, gone);
}

Test(simdisk, a_new_files_sync_makes_its_name_durable_on_ext4_only)
{
    for (int ext4 = 0; ext4 < 2; ext4++) {
        simdisk_ext4_names(d, ext4);
        int gone = 0;
        for (uint64_t seed = 0; seed < 60; seed++) {
            cr_assert_eq(io_mkdir(root, "d", 0700), 0);
            int fd = make("d/a", "1");
            cr_assert_eq(io_sync(fd, true), 0);
            crash(SIMDISK_POWER, seed);
            gone += !is("d/a", "1");
            (void)io_unlink(root, "d/a", 0);
            (void)io_unlink(root, "d", AT_REMOVEDIR);
            cr_assert_eq(io_sync_dir(root, "."), 0);
        }
        cr_assert(ext4 ? gone == 0 : gone > 10, "ext4 %d: %d", ext4, gone);
    }
}

Test(simdisk, replacing_a_file_is_atomic_at_every_power_cut)
{
    cr_assert_eq(io_replace_file(root, "f", "old", 3, 0600), 0);
    int olds = 0, news = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        int fd = make("tmp", "new");
        cr_assert_eq(io_sync(fd, true), 0);
        cr_assert_eq(io_rename(root, "tmp", root, "f"), 0);
        crash(SIMDISK_POWER, seed);
        char *s = text_of("f");
        cr_assert(s != NULL, "seed %llu: gone", (unsigned long long)seed);
        cr_assert(!strcmp(s, "old") || !strcmp(s, "new"));
        olds += !strcmp(s, "old");
        news += !strcmp(s, "new");
        free(s);
        cr_assert_eq(io_replace_file(root, "f", "old", 3, 0600), 0);
    }
    cr_assert(olds > 10 && news > 10, "%d old, %d new", olds, news);
    cr_assert_eq(io_replace_file(root, "f", "new", 3, 0600), 0);
    crash(SIMDISK_POWER, 7);
    cr_assert(is("f", "new"));
}

Test(simdisk, the_same_seed_gives_the_same_disk)
{
    char *out[2];
    size_t len[2];
    for (int i = 0; i < 2; i++) {
        struct simdisk *other = simdisk_new();
        simdisk_use(other);
        root = simdisk_root(other);
        for (int j = 0; j < 20; j++) {
            char name[16], text[2000];
            snprintf(name, sizeof name, "f%d", j);
            memset(text, 'a' + j, sizeof text);
            text[1999] = 0;
            io_close(make(name, text));
        }
        simdisk_crash(other, NULL, SIMDISK_POWER, 42);
        FILE *f = open_memstream(&out[i], &len[i]);
        simdisk_list(other, f);
        fclose(f);
        simdisk_free(other);
    }
    cr_assert_str_eq(out[0], out[1]);
    cr_assert(strchr(out[0], 'f'));
    free(out[0]);
    free(out[1]);
    simdisk_use(d);
}

Test(simdisk, one_machine_may_crash_beside_another)
{
    cr_assert_eq(io_mkdir(root, "one", 0700), 0);
    cr_assert_eq(io_mkdir(root, "two", 0700), 0);
    cr_assert_eq(io_sync_dir(root, "."), 0);
    for (uint64_t seed = 0; seed < 50; seed++) {
        io_close(make("one/a", "1"));
        int fd = make("two/a", "2");
        simdisk_crash(d, "/one", SIMDISK_POWER, seed);
        cr_assert(is("two/a", "2"));
        cr_assert_eq(io_pwrite_full(fd, "3", 1, 0, NULL), 0, "its descriptors work on");
        io_close(fd);
    }
}

Test(simdisk, a_failed_sync_marks_clean_what_it_did_not_write)
{
    char buf[4] = "";
    static char zeros[1024];
    memset(zeros, 'z', sizeof zeros);
    int fd = make("a", "");
    cr_assert_eq(io_pwrite_full(fd, zeros, 1024, 0, NULL), 0);
    cr_assert_eq(io_sync(fd, true), 0);
    cr_assert_eq(io_pwrite_full(fd, "new", 3, 0, NULL), 0);
    cr_assert(simdisk_fail(d, SD_SYNC, "a", 1, 1, EIO));
    cr_assert_eq(io_sync(fd, true), -EIO);
    cr_assert_eq(io_sync(fd, true), 0, "the lie");
    cr_assert(io_pread(fd, buf, 3, 0) == 3 && !strcmp(buf, "new"));
    cr_assert_eq(io_drop(fd, 0, 0), 0);
    cr_assert(io_pread(fd, buf, 3, 0) == 3 && !strcmp(buf, "zzz"), "the truth");
}

Test(simdisk, faults_come_when_planned_and_where)
{
    cr_assert(simdisk_fail(d, SD_OPEN, "b", 2, 1, EMFILE));
    io_close(make("a", ""));
    io_close(make("b", ""));
    io_close(make("a", ""));
    cr_assert_eq(io_open(root, "b", O_RDONLY, 0), -EMFILE);
    io_close(make("b", ""));
    int fd = make("c", "");
    uint64_t before = simdisk_calls(d, SD_PWRITE);
    cr_assert(simdisk_fail(d, SD_PWRITE, NULL, 1, 2, ENOSPC));
    size_t done;
    cr_assert_eq(io_pwrite_full(fd, "12345678", 8, 0, &done), -ENOSPC);
    cr_assert(is("c", ""), "a part ends at a page's border: here there is none");
    cr_assert_eq(io_pwrite_full(fd, "12345678", 8, 0, NULL), -ENOSPC);
    cr_assert_eq(io_pwrite_full(fd, "12345678", 8, 0, NULL), 0);
    cr_assert_eq(simdisk_calls(d, SD_PWRITE), before + 3);
    cr_assert(simdisk_fail(d, SD_ANY, NULL, 3, 100, EIO));
    simdisk_fail_none(d);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(io_truncate(fd, 0), 0);
}

Test(simdisk, short_writes_are_finished_by_the_full_one)
{
    static char text[5001];
    memset(text, 'x', 5000);
    simdisk_short_writes(d, 2, 3);
    uint64_t before = simdisk_calls(d, SD_PWRITE);
    for (int i = 0; i < 20; i++)
        io_close(make("a", text));
    cr_assert(is("a", text));
    cr_assert(simdisk_calls(d, SD_PWRITE) > before + 20);
}

Test(simdisk, space_ends_and_comes_back)
{
    simdisk_space(d, 1000);
    int fd = make("a", "");
    static char text[2001];
    memset(text, 'x', 2000);
    size_t done;
    cr_assert_eq(io_pwrite_full(fd, text, 2000, 0, &done), -ENOSPC);
    cr_assert_eq(done, 1000);
    uint64_t total, avail;
    uint32_t bsize;
    cr_assert_eq(io_fsinfo(fd, &total, &avail, &bsize), 0);
    cr_assert(total == 1000 && avail == 0);
    cr_assert_eq(io_pwrite_full(fd, text, 500, 100, NULL), 0, "inside it there is room");
    cr_assert_eq(io_truncate(fd, 10), 0);
    cr_assert_eq(io_pwrite_full(fd, text, 500, 10, NULL), 0);
    cr_assert_eq(io_fallocate(fd, 0, 0, 1001), -ENOSPC);
    cr_assert_eq(io_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 20), 0);
    char c = 1;
    cr_assert(io_pread(fd, &c, 1, 15) == 1 && c == 0);
    io_close(fd);
    cr_assert_eq(io_unlink(root, "a", 0), 0);
    cr_assert_eq(io_sync_dir(root, "."), 0);
    crash(SIMDISK_KILL, 0);
    cr_assert_eq(io_fsinfo(root, &total, &avail, &bsize), 0);
    cr_assert_eq(avail, 1000, "an unreachable file is collected");
}
