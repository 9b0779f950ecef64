/* How many device files are open for appending (fs/data/files.c): the bound, and what a failed flush does to it. */
#include "fs/data/internal.h"
#include "tests/unit/small_world.h"

enum { MOST = 4, FILES = 12 };

static struct inode *held[FILES];
static uint64_t file[FILES];

/* Files that programs have open, with a few bytes each. */
static void world(void)
{
    small_make(true);
    W.conf.flush_interval = 3600 * 1000;
    small_open();
    W.v->data->files_max = MOST;
    for (unsigned k = 0; k < FILES; k++) {
        char name[16];
        snprintf(name, sizeof name, "f%u", k);
        file[k] = small_create(ROOT_INO, name, S_IFREG);
        cr_assert_eq(inode_get(W.v->ns, file[k], &held[k]), 0);
    }
}

static void done(void)
{
    for (unsigned k = 0; k < FILES; k++)
        inode_put(W.v->ns, held[k]);
    small_free();
}

TestSuite(files, .init = world, .fini = done, .timeout = 60);

/* How many took it; `refused`: what the others may say. */
static unsigned write_all(int refused)
{
    unsigned written = 0;
    for (unsigned k = 0; k < FILES; k++) {
        size_t n = 0;
        int r = -EAGAIN;
        for (unsigned tries = 0; r == -EAGAIN && tries < 100; tries++) {
            r = small_write_some(file[k], 0, 5000, 1, &n, NULL);
            if (r == -EAGAIN)
                small_run(100 * NS_PER_MS);
        }
        cr_assert((r == 0 && n == 5000) || (r < 0 && r == refused), "%u: %d", k, r);
        written += r == 0;
    }
    return written;
}

Test(files, no_more_are_open_than_may_be_and_everything_is_there)
{
    cr_assert_eq(write_all(0), FILES);
    small_run(5 * NS_PER_SEC);
    cr_assert_leq(atomic_load(&W.v->data->open_files), MOST);
    for (unsigned k = 0; k < FILES; k++)
        small_check(file[k], 0, 5000, 1);
    cr_assert_leq(atomic_load(&W.v->data->open_files), MOST, "reading opens no more");
    for (unsigned k = 0; k < FILES; k++)
        cr_assert_eq(small_fsync(file[k]), 0);
}

/* Law 1, and its device takes no new segments. */
Test(files, a_failed_flush_is_not_forgotten_when_files_are_closed)
{
    unsigned failed = 0;
    cr_assert(simdisk_fail(W.disk, SD_SYNC, "segments", 1, 1, EIO));
    unsigned written = write_all(-EIO);
    cr_assert(written >= MOST && written < FILES, "%u", written);
    small_run(5 * NS_PER_SEC);
    cr_assert_eq(simdisk_failed(W.disk), 1);
    for (unsigned k = 0; k < written; k++)
        small_check(file[k], 0, 5000, 1);
    for (unsigned k = 0; k < FILES; k++) {
        int r = small_fsync(file[k]);
        cr_assert(r == 0 || r == -EIO);
        failed += r == -EIO;
    }
    cr_assert_eq(failed, 1, "%u", failed);
}
