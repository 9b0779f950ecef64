/* What is left of files after the daemon was killed or the machine lost its power, and after flushes and calls that
 * failed: a prefix of what was written, no less than what was acknowledged, and no zeros that nobody wrote. Each
 * test opens its world itself. */
#include "fs/seg/seg_int.h"
#include "tests/unit/small_world.h"

TestSuite(recover, .timeout = 240);

/* After loss of power the file is a prefix of what was written, at least what fsync acknowledged: a
 * segment that lost its end must not be followed by one that did not. */
Test(recover, loss_of_power_leaves_a_prefix_and_no_hole)
{
    unsigned shorter = 0;
    for (unsigned seed = 1; seed <= 24; seed++) {
        small_make(false);
        small_open();
        for (unsigned k = 0; k < seed; k++)
            (void)queue_id(); /* another sequence of chances */
        W.crashes = seed * 7;
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
        small_append(f, 100 * KiB + seed, 1);
        cr_assert_eq(small_fsync(f), 0);
        uint64_t least = small_size(f);
        for (unsigned k = 0; k < 1 + seed % 12; k++) {
            small_append(f, 90 * KiB + 11 * seed, 1);
            for (unsigned s = 0; s < seed % 5; s++)
                (void)small_step();
        }
        uint64_t most = small_size(f);
        small_crash(true);
        small_open();
        uint64_t size = small_size(f);
        cr_assert(size >= least && size <= most, "seed %u: %llu of %llu..%llu", seed,
                  (unsigned long long)size, (unsigned long long)least, (unsigned long long)most);
        shorter += size < most;
        small_check(f, 0, size, 1);
        small_append(f, 300 * KiB, 1);
        small_check(f, 0, size + 300 * KiB, 1);
        cr_assert_eq(small_command(TIER_EVICT, f), 0);
        small_settle();
        small_check(f, 0, size + 300 * KiB, 1);
        small_free();
    }
    cr_assert_gt(shorter, 0, "no seed lost anything: this proves nothing");
}

/* The record of the inode is stored anew. */
static void small_chmod(uint64_t f)
{
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    struct ns_set mode = {.mask = NS_SET_MODE, .mode = 0600};
    cr_assert_eq(ns_setattr(W.v->ns, i, &mode, NULL), 0);
    inode_put(W.v->ns, i);
}

/* Every byte is written once, some behind gaps, and the names are flushed now and then: what is left is the
 * beginning of that, with zeros only in the gaps. */
Test(recover, in_the_broker_profile_it_leaves_no_zeros_that_nobody_wrote)
{
    enum { MOST = 4096 * KiB, PART = 256 * KiB };
    unsigned shorter = 0;
    uint8_t *want = malloc(MOST), *got = malloc(MOST);
    for (unsigned seed = 1; seed <= 48; seed++) {
        small_make(true);
        W.conf.flush_interval = seed % 6 ? 3600 * 1000 : 0;
        small_open();
        W.crashes = seed * 7;
        memset(want, 0, MOST);
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG), at = 0, least = 0;
        uint64_t g = small_create(ROOT_INO, "g", S_IFREG), n = 70 * KiB + 11 * seed;
        struct inode *held; /* it stays in memory: leaving it would flush */
        cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
        for (unsigned k = 0; k < 2 + seed % 9; k++) {
            at += k % 4 == 3 ? 300 * KiB : 0;
            small_write(f, at, n, 1);
            small_fill(want + at, f, at, n, 1);
            at += n;
            if (k == 1 && seed % 3 == 0) {
                cr_assert_eq(small_fsync(f), 0);
                least = at;
            }
            for (unsigned s = 0; s < seed % 5; s++)
                (void)small_step();
            if (seed % 6 == 5)
                small_run(NS_PER_SEC);
            if (k % 3 == seed % 3) /* the journal reaches the medium */
                cr_assert_eq(small_fsync(g), 0);
        }
        if (seed % 4 == 0)
            cr_assert_eq(small_truncate(f, at += 200 * KiB), 0);
        else
            small_chmod(f);
        if (seed % 3)
            cr_assert_eq(small_fsync(g), 0);
        small_crash(true);
        small_open();
        uint64_t size = small_size(f);
        cr_assert(size >= least && size <= at, "seed %u: %llu of %llu..%llu", seed,
                  (unsigned long long)size, (unsigned long long)least, (unsigned long long)at);
        shorter += size < at;
        for (uint64_t off = 0; off < size; off += PART)
            (void)small_read(f, off, got + off, PART);
        for (uint64_t off = 0; off < size; off++)
            cr_assert_eq(got[off], want[off], "seed %u: byte %llu of %llu", seed,
                         (unsigned long long)off, (unsigned long long)size);
        small_free();
    }
    cr_assert_gt(shorter, 0, "no seed lost anything: this proves nothing");
    free(want);
    free(got);
}

/* The first segment is sealed and opened again by an append; then an empty one behind it is sealed, which
 * stores the inode's record, while the appended bytes are not flushed. */
Test(recover, the_seal_of_an_empty_segment_tells_no_size_of_unflushed_bytes)
{
    small_make(true);
    W.conf.flush_interval = 3600 * 1000;
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), far = 1 * MiB;
    struct inode *i;
    size_t done;
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    small_write(f, 0, 1000, 1);
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "segments", 2, 1, ENOSPC));
    cr_assert_eq(small_write_some(f, far, 4096, 1, &done, NULL), -ENOSPC);
    cr_assert_eq(small_seg(f, far).state, SEG_OPEN, "an empty one is left");
    cr_assert_eq(data_seal(W.v->data, i), 2);
    while (small_seg(f, 0).state == SEG_OPEN)
        cr_assert(exec_step(W.v->pool));
    cr_assert_eq(small_seg(f, far).state, SEG_OPEN, "its turn comes after");
    small_write(f, 1000, 5000, 1);
    cr_assert_eq(small_seg(f, 0).state, SEG_OPEN);
    struct seg_rec gone;
    while (seg_get(W.v->kv, f, far, &gone) == 0)
        cr_assert(exec_step(W.v->pool));
    cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)), 0);
    W.crashes = 1;
    small_crash(true);
    small_open();
    cr_assert(small_size(f) >= 1000 && small_size(f) < 6000, "else nothing was lost");
    small_check(f, 0, small_size(f), 1);
    small_free();
}

/* All of a segment's device file reaches the medium, unasked. */
static void kernel_writes(uint64_t f, uint64_t base)
{
    char path[8 + SEG_PATH_BYTES] = "/dev0/";
    seg_path(f, base, small_seg(f, base).file_version, path + strlen(path));
    int fd = io_open(AT_FDCWD, path, O_RDWR, 0);
    cr_assert_geq(fd, 0, "%s", path);
    cr_assert_eq(io_sync(fd, false), 0);
    io_close(fd);
}

/* A loss of power leaves a segment that begins behind the end of the file, and empty. Then somebody writes up to there and
 * on, and the power is lost again: what lies before it is gone, and it is there by itself, without a flush. */
Test(recover, what_is_written_into_an_empty_segment_goes_with_what_was_lost_before_it)
{
    unsigned tries = 0;
    for (unsigned seed = 1; seed <= 40; seed++) {
        small_make(true);
        W.conf.flush_interval = 3600 * 1000;
        W.conf.segment_bytes = 1 * MiB; /* none of them is full, which would flush it */
        small_open();
        W.crashes = seed;
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG), start = 100 * KiB, next = 512 * KiB;
        struct inode *i;
        struct seg_rec rec;
        cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
        small_write(f, 0, start, 1);
        cr_assert_eq(small_fsync(f), 0);
        small_write(f, next, 4096, 1);
        cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)), 0); /* records outlive the power */
        small_crash(true);
        small_open();
        cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
        if (small_size(f) == start && seg_get(W.v->kv, f, next, &rec) == 0) {
            tries++;
            small_write(f, start, 900 * KiB, 1);
            kernel_writes(f, next);
            cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)), 0);
            small_crash(true);
            small_open();
            small_check(f, 0, small_size(f), 1);
        }
        small_free();
    }
    cr_assert_gt(tries, 0, "no segment was left empty: this proves nothing");
}

Test(recover, a_hole_at_the_end_that_was_flushed_stays_when_something_is_written_behind_it)
{
    for (unsigned seed = 1; seed <= 8; seed++) {
        small_make(true);
        W.conf.flush_interval = 3600 * 1000;
        small_open();
        W.crashes = seed;
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG), g = small_create(ROOT_INO, "g", S_IFREG);
        struct inode *held;
        cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
        if (seed % 2)
            small_write(f, 0, 1000, 1);
        cr_assert_eq(small_truncate(f, 6000), 0);
        cr_assert_eq(small_fsync(f), 0);
        small_write(f, 6000, 4096, 1);
        small_chmod(f);
        cr_assert_eq(small_fsync(g), 0);
        small_crash(true);
        small_open();
        cr_assert(small_size(f) >= 6000, "seed %u: %llu", seed, (unsigned long long)small_size(f));
        small_free();
    }
}

/* An fsync of a file that was just loaded: its open segment has no descriptor yet. */
Test(recover, fsync_covers_what_an_earlier_daemon_wrote)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *held; /* else it would be flushed at its end */
    cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
    small_append(f, 50 * KiB, 1);
    small_crash(false);
    small_open();
    cr_assert_eq(small_fsync(f), 0);
    small_crash(true);
    small_open();
    cr_assert_eq(small_size(f), 50 * KiB);
    small_check(f, 0, 50 * KiB, 1);
    small_free();
}

/* Segments that were full when the daemon was killed are open and unflushed: what is appended after
 * them must not be sealed before them. */
Test(recover, after_a_kill_what_is_appended_is_not_sealed_before_what_was_there)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *held;
    cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
    small_append(f, 1000 * KiB, 1); /* nothing is stepped: no seal has run */
    small_crash(false);
    small_open();
    cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
    small_append(f, 600 * KiB, 1);
    for (unsigned n = 0; n < 40 && small_rows('U') == 0; n++)
        (void)exec_step(W.v->pool);
    cr_assert_gt(small_rows('U'), 0, "one is sealed");
    cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)), 0);
    small_crash(true);
    small_open();
    small_check(f, 0, small_size(f), 1);
    cr_assert_geq(small_size(f), 256 * KiB);
    small_free();
}

Test(recover, a_clean_stop_flushes_what_an_earlier_daemon_wrote)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *held;
    cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
    small_append(f, 50 * KiB, 1);
    small_crash(false);
    small_open();
    small_stop();
    simdisk_crash(W.disk, NULL, SIMDISK_POWER, 7);
    W.boot++;
    small_boot_id();
    small_open();
    cr_assert_eq(small_size(f), 50 * KiB);
    small_check(f, 0, 50 * KiB, 1);
    small_free();
}

Test(recover, a_stop_whose_flush_failed_is_not_taken_for_a_clean_one)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    small_append(f, 300 * KiB, 1);
    cr_assert(simdisk_fail(W.disk, SD_SYNC, "segments", 1, 50, EIO));
    small_idle();
    inode_put(W.v->ns, i);
    small_stop();
    simdisk_fail_none(W.disk);
    simdisk_crash(W.disk, NULL, SIMDISK_POWER, 7);
    W.boot++;
    small_boot_id();
    small_open();
    small_check(f, 0, small_size(f), 1); /* a prefix, and no zeros that nobody wrote */
    small_free();
}

Test(recover, a_removal_that_fails_does_not_keep_the_daemon_busy)
{
    small_make(false);
    W.conf.local_age = 1000;
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *i;
    small_append(f, 100 * KiB, 1);
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    cr_assert_eq(ns_unlink(W.v->ns, ROOT_INO, "f", false, NULL), 0);
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "journal", 1, 1, EIO));
    inode_put(W.v->ns, i);
    small_run(20 * NS_PER_SEC); /* asserts that work ends */
    small_crash(false);
    small_open();
    small_settle();
    cr_assert_eq(small_objects("segments/"), 0);
    small_free();
}

Test(recover, a_command_ends_when_a_segment_cannot_be_sealed)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 100 * KiB, 1);
    cr_assert(simdisk_fail(W.disk, SD_SYNC, "segments", 1, 50, EIO));
    cr_assert_eq(small_command(TIER_SEAL, f), -EIO);
    simdisk_fail_none(W.disk);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0, "all of it is on the medium, as it turns out");
    small_free();
}

Test(recover, a_command_ends_when_the_state_directory_takes_nothing)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 100 * KiB, 1);
    cr_assert_eq(small_command(TIER_SEAL, f), 0);
    small_plan("fail op=put count=all stall");
    small_run(NS_PER_SEC);
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "journal", 1, 1, EIO));
    fault_release(W.v->store);
    cr_assert_lt(small_command(TIER_UPLOAD, f), 0);
    small_crash(false);
    small_open();
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    small_free();
}

Test(recover, a_flush_that_failed_when_nobody_held_the_file_is_not_forgotten)
{
    small_make(false);
    small_open();
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    cr_assert(simdisk_fail(W.disk, SD_SYNC, "segments", 1, 1, EIO));
    small_append(f, 50 * KiB, 1); /* it is flushed when the last one lets go of it */
    simdisk_fail_none(W.disk);
    int r = small_fsync(f);
    small_crash(true);
    small_open();
    cr_assert(r < 0 || small_size(f) == 50 * KiB, "acknowledged, and %llu are left",
              (unsigned long long)small_size(f));
    small_free();
}

/* The kernel calls the lost pages clean: a flush by the next daemon succeeds and proves nothing. */
Test(recover, a_flush_that_failed_is_not_forgotten_when_the_daemon_is_killed)
{
    for (unsigned broker = 0; broker < 2; broker++) {
        small_make(broker);
        small_open();
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG), g = small_create(ROOT_INO, "g", S_IFREG);
        small_append(f, 50 * KiB, 1);
        cr_assert_eq(small_fsync(f), 0);
        struct inode *held;
        cr_assert_eq(inode_get(W.v->ns, f, &held), 0);
        small_append(f, 50 * KiB, 1);
        cr_assert(simdisk_fail(W.disk, SD_SYNC, "segments", 1, 1, EIO));
        cr_assert_lt(small_fsync(f), 0);
        simdisk_fail_none(W.disk);
        small_crash(false);
        small_open();
        small_check(f, 0, 100 * KiB, 1); /* in the page cache it still is */
        cr_assert_lt(small_fsync(f), 0, "acknowledged, and not on the medium");
        small_append(g, 50 * KiB, 1);
        cr_assert_eq(small_fsync(g), 0, "others are not concerned");
        small_crash(true);
        small_open(); /* mounted anew: what is there is proven by hashes */
        uint64_t size = small_size(f);
        cr_assert(size >= 50 * KiB && size < 100 * KiB, "%llu", (unsigned long long)size);
        small_append(f, 50 * KiB, 1);
        cr_assert_eq(small_fsync(f), 0);
        small_check(f, 0, size + 50 * KiB, 1);
        small_free();
    }
}

Test(recover, a_killed_daemon_loses_nothing_that_was_written)
{
    for (unsigned seed = 1; seed <= 6; seed++) {
        small_make(seed % 2);
        small_open();
        uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
        for (unsigned k = 0; k < 2 * seed; k++) {
            small_append(f, 70 * KiB + 13 * k, 1);
            for (unsigned s = 0; s < 3 * seed; s++)
                (void)small_step();
        }
        uint64_t size = small_size(f);
        small_crash(false);
        small_open();
        cr_assert_eq(small_size(f), size);
        small_check(f, 0, size, 1);
        cr_assert_eq(small_command(TIER_EVICT, f), 0);
        small_check(f, 0, size, 1);
        small_free();
    }
}
