/* test_kv_full.c: a state directory whose file system is full: it says so, removals pass, it can be
 * mounted, and what was freed can be used again. Needs the right to mount a small tmpfs. */
#include "tests/unit/test_kv.h"

#include <sched.h>
#include <sys/mount.h>

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
}

TestSuite(kv_full, .init = setup, .fini = dir_remove);

static bool small_disk(const char *size)
{
    char opt[32];
    snprintf(opt, sizeof opt, "size=%s", size);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", kv_dir, "tmpfs", 0, opt) != 0)
        return false;
    close(kv_dirfd);
    kv_dirfd = open(kv_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return kv_dirfd >= 0;
}

static int change_one(struct kv *kv, int i, bool del)
{
    static const char val[3000];
    char key[16];
    size_t klen = (size_t)snprintf(key, sizeof key, "k%06d", i);
    struct kv_batch b;
    kv_batch_init(&b);
    if (del)
        kv_del(&b, key, klen);
    else
        kv_put(&b, key, klen, val, sizeof val);
    int r = kv_apply(kv, &b, NULL, NULL);
    kv_batch_done(&b);
    return r;
}

static int count_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    (void)k;
    (void)kl;
    (void)v;
    cr_assert_eq(vl, 3000);
    ++*(int *)arg;
    return 0;
}

static void run(const char *size, uint64_t overlay_bytes, bool reopen_full)
{
    if (!small_disk(size))
        cr_skip_test("no right to mount a tmpfs");
    struct kv_conf c = conf_plain();
    c.map_bytes = 1 << 20;
    c.overlay_bytes_max = overlay_bytes;
    struct kv *kv = must_open(&c);
    int n = 0, rows = 0, r;
    while ((r = change_one(kv, n, false)) == 0)
        n++;
    cr_assert(r == -ENOSPC && n > 100, "%d after %d", r, n);
    if (reopen_full) {
        kv_crash(kv);
        kv = must_open(&c);
    }
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, count_row, &rows), 0);
    cr_assert_eq(rows, n, "all that was acknowledged, and only that");
    for (int i = 0; i < n; i++)
        cr_assert_eq(change_one(kv, i, true), 0, "removal %d of %d", i, n);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    kv_close(kv);
    kv = must_open(&c);
    rows = 0;
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, count_row, &rows), 0);
    cr_assert_eq(rows, 0);
    for (int i = 0; i < n / 4; i++)
        cr_assert_eq(change_one(kv, i, false), 0, "the freed space is used again: %d", i);
    kv_close(kv);
    umount(kv_dir);
}

Test(kv_full, removals_pass_on_a_full_disk)
{
    run("12m", 100000, false);
}

Test(kv_full, a_full_disk_can_be_opened_and_emptied)
{
    run("16m", 100000, true);
}

Test(kv_full, a_burst_between_two_checkpoints_finds_its_room_too)
{
    run("24m", 0, false);
}
