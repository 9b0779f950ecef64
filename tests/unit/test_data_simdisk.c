/* The data path in a small world: reads over every kind of segment, holes, waiting, pacing. What is left after
 * the daemon or the machine died: test_recover_simdisk.c, test_ended_simdisk.c. */
#include "tests/unit/small_world.h"

#include <linux/falloc.h>

static void topics(void)
{
    small_make(false);
    small_open();
}

static void broker(void)
{
    small_make(true);
    small_open();
}

TestSuite(data_topics, .init = topics, .fini = small_free, .timeout = 120);
TestSuite(data_broker, .init = broker, .fini = small_free, .timeout = 120);
TestSuite(data_closed, .timeout = 240); /* opens its world itself */

static bool remote(uint64_t ino, uint64_t base)
{
    struct seg_rec r = small_seg(ino, base);
    return r.state == SEG_COMMITTED && !r.local;
}

Test(data_topics, a_read_crosses_remote_sealed_and_open_segments)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    uint8_t *got = malloc(FUSE_IO_BYTES_MAX), *want = malloc(FUSE_IO_BYTES_MAX);
    small_append(f, 400 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    cr_assert(remote(f, 0), "the first is in the store only");
    small_plan("fail op=put count=all err=503"); /* the next ones stay local */
    small_append(f, 500 * KiB + 17, 1);
    small_run(NS_PER_SEC);
    unsigned open = small_rows('W'), sealed = small_rows('U');
    cr_assert(open >= 1 && sealed >= 1, "%u open, %u sealed", open, sealed);
    uint64_t size = 900 * KiB + 17;
    cr_assert_eq(small_size(f), size);
    small_check(f, 0, size, 1);
    cr_assert_eq(small_read(f, 0, got, FUSE_IO_BYTES_MAX), (int64_t)size, "all in one request");
    small_fill(want, f, 0, size, 1);
    cr_assert_eq(memcmp(got, want, size), 0);
    cr_assert_eq(small_read(f, size - 5, got, 100), 5, "short at the end");
    cr_assert_eq(small_read(f, size, got, 100), 0);
    cr_assert_eq(small_read(f, size + 1000000, got, 100), 0);
    free(got);
    free(want);
}

Test(data_topics, a_read_of_every_place_and_length_has_the_right_bytes)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), x = 88172645463325252ull;
    uint8_t *got = malloc(FUSE_IO_BYTES_MAX), *want = malloc(FUSE_IO_BYTES_MAX);
    small_append(f, 700 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_append(f, 700 * KiB, 1);
    for (int k = 0; k < 200; k++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t off = (x >> 10) % (1400 * KiB);
        size_t len = 1 + (size_t)(x >> 35) % (k % 2 ? 5000 : FUSE_IO_BYTES_MAX);
        uint64_t there = min_u64(len, 1400 * KiB - off);
        cr_assert_eq(small_read(f, off, got, len), (int64_t)there);
        small_fill(want, f, off, there, 1);
        cr_assert_eq(memcmp(got, want, there), 0, "at %llu", (unsigned long long)off);
    }
    free(got);
    free(want);
}

static void sparse(uint64_t f)
{
    static const struct {
        uint64_t off, n;
        unsigned salt;
    } part[] = {{0, 100 * KiB, 1}, {700 * KiB, 100 * KiB, 2}, {1100 * KiB, 1, 3}};
    uint8_t *want = calloc(1, 1500 * KiB), *got = malloc(1500 * KiB);
    for (size_t i = 0; i < 3; i++)
        small_fill(want + part[i].off, f, part[i].off, part[i].n, part[i].salt);
    for (uint64_t at = 0; at < 1500 * KiB; at += 300 * KiB)
        cr_assert_eq(small_read(f, at, got + at, 300 * KiB), (int64_t)(300 * KiB));
    cr_assert_eq(memcmp(got, want, 1500 * KiB), 0);
    free(want);
    free(got);
}

Test(data_broker, holes_are_zeros_in_every_tier)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_write(f, 0, 100 * KiB, 1);
    small_write(f, 700 * KiB, 100 * KiB, 2);
    small_write(f, 1100 * KiB, 1, 3);
    cr_assert_eq(small_truncate(f, 1500 * KiB), 0);
    sparse(f);
    cr_assert_eq(small_fsync(f), 0);
    sparse(f);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    cr_assert_eq(small_rows('W'), 0);
    sparse(f);
    small_stop();
    small_open();
    sparse(f);
    cr_assert_eq(small_command(TIER_WARM, f), 0);
    sparse(f);
}

/* Writes; what lies in the store only is brought back first, as the mount does. */
static void rewrite(uint64_t f, uint64_t off, uint64_t n, unsigned salt)
{
    while (n) {
        size_t done, part = (size_t)min_u64(n, 64 * KiB);
        int r = small_write_some(f, off, part, salt, &done, NULL);
        if (r == -EAGAIN) {
            cr_assert_eq(small_command(TIER_WARM, f), 0);
            continue;
        }
        cr_assert_eq(r, 0, "write: %s", err_name(r));
        off += done;
        n -= done;
    }
}

Test(data_broker, bytes_behind_a_truncate_never_come_back)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    uint8_t *got = malloc(FUSE_IO_BYTES_MAX);
    small_write(f, 0, 500 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_check(f, 0, 500 * KiB, 1); /* now it is in the cache as well */
    int r = small_truncate(f, 100 * KiB);
    if (r == -EAGAIN) {
        cr_assert_eq(small_command(TIER_WARM, f), 0);
        r = small_truncate(f, 100 * KiB);
    }
    cr_assert_eq(r, 0);
    cr_assert_eq(small_truncate(f, 500 * KiB), 0);
    small_check(f, 0, 100 * KiB, 1);
    cr_assert_eq(small_read(f, 100 * KiB, got, 400 * KiB), (int64_t)(400 * KiB));
    for (size_t i = 0; i < 400 * KiB; i++)
        cr_assert_eq(got[i], 0, "an old byte at %zu", i);
    rewrite(f, 200 * KiB, 100 * KiB, 2);
    small_check(f, 200 * KiB, 100 * KiB, 2);
    small_settle();
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_stop();
    small_open();
    small_check(f, 0, 100 * KiB, 1);
    small_check(f, 200 * KiB, 100 * KiB, 2);
    cr_assert_eq(small_read(f, 100 * KiB, got, 100 * KiB), (int64_t)(100 * KiB));
    for (size_t i = 0; i < 100 * KiB; i++)
        cr_assert_eq(got[i], 0);
    free(got);
}

Test(data_broker, sealed_and_remote_bytes_can_be_written_again)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_write(f, 0, 600 * KiB, 1);
    for (unsigned round = 2; round < 5; round++) {
        cr_assert_eq(small_command(round % 2 ? TIER_UPLOAD : TIER_EVICT, f), 0);
        small_check(f, 0, 1000, 1);
        rewrite(f, 250 * KiB, 20 * KiB, round); /* across a border */
        small_check(f, 250 * KiB, 20 * KiB, round);
        small_check(f, 0, 250 * KiB, 1);
        small_check(f, 270 * KiB, 330 * KiB, 1);
    }
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    small_check(f, 250 * KiB, 20 * KiB, 4);
    unsigned segments = small_rows('S');
    cr_assert_eq(small_objects("segments/"), segments, "one object a segment is left");
}

Test(data_broker, a_hole_may_begin_where_an_empty_segment_does)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    uint8_t buf[4096], zeros[4096] = {0};
    size_t done;
    /* The second write is of the bytes, behind the header's. */
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "segments", 2, 1, ENOSPC));
    cr_assert_eq(small_write_some(f, 0, 4096, 1, &done, NULL), -ENOSPC);
    cr_assert_eq(small_seg(f, 0).state, SEG_OPEN, "an empty one is left");
    cr_assert_eq(small_truncate(f, 1 * MiB), 0);
    cr_assert_eq(small_read(f, 0, buf, sizeof buf), (int64_t)sizeof buf);
    cr_assert_eq(memcmp(buf, zeros, sizeof buf), 0);
    small_write(f, 100, 5000, 2);
    small_check(f, 100, 5000, 2);
}

Test(data_broker, a_truncate_that_fails_hides_nothing_behind_the_end)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_write(f, 0, 600 * KiB, 1);
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "journal", 1, 1000, EIO));
    cr_assert_lt(small_truncate(f, 256 * KiB), 0);
    cr_assert_eq(small_size(f), 600 * KiB);
    small_check(f, 0, 600 * KiB, 1);
    simdisk_fail_none(W.disk);
    small_crash(false);
    small_open();
    cr_assert_eq(small_size(f), 600 * KiB);
    small_check(f, 0, 600 * KiB, 1);
}

/* Nothing was dropped yet: the hole at the end is still there. */
Test(data_broker, a_truncate_that_fails_at_once_changes_nothing)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0); /* a program has it open */
    small_write(f, 0, 100 * KiB, 1);
    cr_assert_eq(small_truncate(f, 600 * KiB), 0);
    cr_assert_eq(small_fsync(f), 0);
    cr_assert(simdisk_fail(W.disk, SD_PWRITE, "journal", 1, 1000, EIO));
    cr_assert_lt(small_truncate(f, 50 * KiB), 0);
    cr_assert_eq(small_size(f), 600 * KiB, "%llu", (unsigned long long)small_size(f));
    small_check(f, 0, 100 * KiB, 1);
    simdisk_fail_none(W.disk);
    small_crash(false);
    small_open();
    cr_assert_eq(small_size(f), 600 * KiB);
    small_check(f, 0, 100 * KiB, 1);
}

static void punch_hole(uint64_t f, uint64_t off, uint64_t len)
{
    cr_assert_eq(small_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len), 0);
}

/* Whoever has the inode next, a new daemon or this one, knows where the hole ends. */
Test(data_broker, a_hole_that_is_punched_to_the_end_keeps_the_size)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), size = 300 * KiB;
    uint8_t got[4096], zeros[4096] = {0};
    small_write(f, 0, size, 1);
    small_crash(false); /* before the first segment was sealed: it is open, and full */
    small_open();
    cr_assert_eq(small_rows('W'), 2);
    punch_hole(f, 200 * KiB, 100 * KiB);
    for (unsigned life = 0; life < 3; life++) {
        cr_assert_eq(small_size(f), size, "%u: %llu", life, (unsigned long long)small_size(f));
        small_check(f, 0, 200 * KiB, 1);
        cr_assert_eq(small_read(f, size - 4096, got, sizeof got), (int64_t)sizeof got);
        cr_assert_eq(memcmp(got, zeros, sizeof got), 0);
        small_crash(life > 0); /* killed; then, flushed, without power */
        small_open();
        if (life == 0)
            cr_assert_eq(small_fsync(f), 0);
    }
}

/* The end of a file rests on segments that were flushed, and behind a hole; then somebody writes into the hole, and
 * cuts the file there. What holds the end from now on was never flushed. */
Test(data_broker, a_cut_back_to_what_was_never_flushed_keeps_the_length)
{
    for (unsigned n = 0; n < 20; n++) { /* the disk keeps by chance */
        char name[16];
        snprintf(name, sizeof name, "f%u", n);
        uint64_t f = small_create(ROOT_INO, name, S_IFREG), hole = 256 * KiB;
        struct inode *i;
        cr_assert_eq(inode_get(W.v->ns, f, &i), 0); /* a program has it open */
        if (n % 2)
            small_write(f, hole, 200 * KiB, 1);
        else
            cr_assert_eq(small_truncate(f, hole + 200 * KiB), 0);
        cr_assert_eq(small_fsync(f), 0);
        small_write(f, 100 * KiB, 100, 2);
        cr_assert_eq(small_truncate(f, 60 * KiB), 0);
        cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)), 0); /* records outlive the power */
        small_crash(true);
        small_open();
        uint64_t size = small_size(f);
        cr_assert(size >= 60 * KiB && size <= hole + 200 * KiB, "%llu", (unsigned long long)size);
    }
}

/* The first segment was full when the daemon was killed, and nobody has opened it since. Then the second is
 * written to and flushed: by the background, by going out of memory, or by a stop that does not end. */
static void flush_after_a_kill(bool in_memory, void (*flush)(void))
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), size = 300 * KiB;
    struct inode *i;
    small_write(f, 0, size, 1);
    cr_assert_eq(kv_sync(W.v->kv, kv_seq(W.v->kv)),
                 0); /* records outlive the power, bytes do not */
    small_crash(false);
    small_open();
    cr_assert_eq(small_rows('W'), 2);
    if (in_memory)
        cr_assert_eq(inode_get(W.v->ns, f, &i), 0); /* a program has it open */
    small_write(f, size, 4096, 1);
    flush();
    small_crash(true);
    small_open();
    cr_assert_eq(small_size(f), size + 4096);
    small_check(f, 0, size + 4096, 1);
}

static void wait_for_it(void)
{
    small_run(20 * NS_PER_SEC); /* several flush_intervals */
}

static void begin_to_stop(void)
{
    data_flush_all(W.v->data);
}

static void nothing(void)
{
}

Test(data_broker, a_background_flush_passes_nothing_that_an_earlier_daemon_left)
{
    flush_after_a_kill(true, wait_for_it);
}

Test(data_broker, nor_does_a_file_that_goes_out_of_memory)
{
    flush_after_a_kill(false, nothing);
}

Test(data_broker, nor_does_a_stop)
{
    flush_after_a_kill(true, begin_to_stop);
}

/* ---- waiting for the device ---- */

/* A write as a FUSE worker makes it. Whatever comes of it, the disk was not asked to flush. */
static int worker_write(uint64_t f, uint64_t off, size_t n, unsigned salt)
{
    struct inode *i;
    uint8_t *buf = malloc(n);
    small_fill(buf, f, off, n, salt);
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    struct data_write w = {.i = i, .off = off, .buf = buf, .len = n, .on_worker = true};
    uint64_t before = simdisk_calls(W.disk, SD_SYNC);
    int r = data_write_begin(W.v->data, &w);
    if (r == 0)
        data_write_end(W.v->data, &w);
    cr_assert_eq(simdisk_calls(W.disk, SD_SYNC), before, "a worker waited for a flush");
    inode_put(W.v->ns, i);
    free(buf);
    return r;
}

Test(data_broker, a_worker_waits_for_no_flush)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), at;
    struct data_wait wait;
    struct inode *i;
    small_plan("fail op=put count=all err=503"); /* what is sealed stays local */
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);  /* the kernel knows it: it stays in memory */
    cr_assert_eq(worker_write(f, 0, 48 * KiB, 1), 0);
    cr_assert_eq(small_fsync(f), 0);
    cr_assert_eq(worker_write(f, 8 * KiB, 4 * KiB, 3), -EAGAIN, "its hashes are on the disk");
    cr_assert_eq(worker_write(f, 48 * KiB, 4 * KiB, 3), 0, "behind the end");
    cr_assert_eq(data_blocked(W.v->data, i, 8 * KiB, 4 * KiB, &wait, &at), DATA_FREE);
    uint64_t before = simdisk_calls(W.disk, SD_SYNC);
    small_write(f, 8 * KiB, 4 * KiB, 3); /* as the device pool does it */
    cr_assert_gt(simdisk_calls(W.disk, SD_SYNC), before);
    cr_assert_eq(worker_write(f, 12 * KiB, 4 * KiB, 4), 0, "now they are not");
    small_check(f, 8 * KiB, 4 * KiB, 3);
    small_check(f, 12 * KiB, 4 * KiB, 4);

    small_write(f, 52 * KiB, 400 * KiB, 1);
    small_run(NS_PER_SEC);
    cr_assert_gt(small_rows('U'), 0, "the first segment is sealed");
    cr_assert_eq(worker_write(f, 0, 4 * KiB, 5), -EAGAIN);
    cr_assert_eq(data_blocked(W.v->data, i, 0, 4 * KiB, &wait, &at), DATA_FREE);
    small_write(f, 0, 4 * KiB, 5);
    cr_assert_eq(worker_write(f, 0, 4 * KiB, 6), 0, "open again");
    small_check(f, 0, 4 * KiB, 6);
    small_check(f, 16 * KiB, 32 * KiB, 1);
    inode_put(W.v->ns, i);
}

/* ---- waiting for the store ---- */

struct pending {
    struct data_read r;
    bool done;
};

static void pending_done(struct data_read *r)
{
    ((struct pending *)r->arg)->done = true;
}

static uint64_t evicted_file(void)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 500 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    cr_assert(remote(f, 0));
    return f;
}

static void start(struct pending *p, uint64_t f, uint64_t off, size_t len)
{
    *p = (struct pending){.r = {.off = off, .len = len, .done = pending_done}};
    p->r.arg = p;
    cr_assert_eq(inode_get(W.v->ns, f, &p->r.i), 0);
    cr_assert_eq(data_read_start(W.v->data, &p->r), 0);
    small_idle();
    cr_assert_not(p->done);
}

Test(data_topics, a_cold_read_has_a_deadline_and_the_next_one_works)
{
    W.conf.read_deadline = 3000;
    uint64_t f = evicted_file();
    struct pending p;
    small_plan("fail op=get count=all stall");
    int64_t began = clock_mono_ns();
    start(&p, f, 0, 4096);
    small_run(2900 * NS_PER_MS);
    cr_assert_not(p.done, "not before its time");
    for (int i = 0; i < 100 && !p.done; i++)
        small_run(10 * NS_PER_MS);
    cr_assert(p.done);
    cr_assert_eq(p.r.err, -EIO);
    cr_assert_lt(clock_mono_ns() - began, 4 * NS_PER_SEC);
    inode_put(W.v->ns, p.r.i);
    /* The kernel asks for the page itself, at once: the same read(2), which has waited long enough. */
    start(&p, f, 0, 4096);
    small_run(100 * NS_PER_MS);
    cr_assert(p.done);
    cr_assert_eq(p.r.err, -EIO);
    inode_put(W.v->ns, p.r.i);
    small_run(NS_PER_SEC);
    start(&p, f, 0, 4096); /* another one */
    small_run(2900 * NS_PER_MS);
    cr_assert_not(p.done);
    small_run(200 * NS_PER_MS);
    cr_assert(p.done);
    inode_put(W.v->ns, p.r.i);
    small_plan("");
    small_run(2 * NS_PER_SEC);
    small_check(f, 0, 500 * KiB, 1);
}

/* The device pool stands still, as with a device that does not end a flush. */
Test(data_topics, a_cold_read_does_not_wait_for_the_device_pool)
{
    uint64_t f = evicted_file(), g = small_create(ROOT_INO, "g", S_IFREG);
    struct volume *v = W.v;
    small_append(g, 10 * KiB, 1);
    small_run(NS_PER_SEC);
    cr_assert_eq(exec_open("fetch", 0, 0, &v->fetch), 0);
    bool synced = false;
    struct data_sync s = {.done = small_sync_done, .arg = &synced};
    cr_assert_eq(inode_get(v->ns, g, &s.i), 0);
    data_fsync(v->data, &s);
    cr_assert_gt(exec_queued(v->pool), 0);
    struct pending p = {.r = {.off = 0, .len = 4096, .done = pending_done}}, late = p;
    p.r.arg = &p;
    late.r.arg = &late;
    cr_assert_eq(inode_get(v->ns, f, &p.r.i), 0);
    cr_assert_eq(data_read_start(v->data, &p.r), 0);
    while (exec_step(v->fetch) || mem_step(v->store))
        ;
    cr_assert(p.done);
    cr_assert_eq(p.r.err, 0);
    data_read_release(v->data, &p.r);
    small_plan("fail op=get count=all stall");
    late.r.i = p.r.i;
    late.r.off = 300 * KiB;
    cr_assert_eq(data_read_start(v->data, &late.r), 0);
    while (exec_step(v->fetch) || mem_step(v->store))
        ;
    cr_assert_not(late.done);
    data_read_cancel(v->data, &late.r);
    while (exec_step(v->fetch) || mem_step(v->store))
        ;
    cr_assert(late.done, "and a signal ends it");
    cr_assert_eq(late.r.err, -EINTR);
    data_read_release(v->data, &late.r);
    inode_put(v->ns, p.r.i);
    cr_assert_not(synced);
    small_wait(&synced);
    inode_put(v->ns, s.i);
    exec_close(v->fetch);
    v->fetch = v->pool;
}

Test(data_broker, without_a_deadline_a_cold_read_waits_as_long_as_it_takes)
{
    W.conf.read_deadline = 0;
    uint64_t f = evicted_file();
    struct pending p;
    small_plan("fail op=get count=all err=503");
    start(&p, f, 0, 4096);
    small_run(1200 * NS_PER_SEC);
    cr_assert_not(p.done);
    small_plan("");
    small_run(60 * NS_PER_SEC);
    cr_assert(p.done);
    cr_assert_eq(p.r.err, 0);
    data_read_release(W.v->data, &p.r);
    inode_put(W.v->ns, p.r.i);
}

Test(data_topics, a_cancelled_read_ends_at_once_and_harms_no_other)
{
    uint64_t f = evicted_file();
    struct pending a, b;
    small_plan("fail op=get count=all stall");
    start(&a, f, 0, 4096);
    start(&b, f, 8192, 4096);
    int64_t began = clock_mono_ns();
    data_read_cancel(W.v->data, &a.r);
    small_idle();
    cr_assert(a.done);
    cr_assert_eq(a.r.err, -EINTR);
    cr_assert_eq(clock_mono_ns(), began, "without waiting");
    cr_assert_not(b.done, "it waits for the same slice, and goes on");
    small_plan("");
    small_run(NS_PER_SEC);
    cr_assert(b.done);
    cr_assert_eq(b.r.err, 0);
    uint8_t want[4096];
    small_fill(want, f, 8192, 4096, 1);
    cr_assert(b.r.iov_n == 1 && b.r.iov[0].iov_len == 4096 &&
              !memcmp(b.r.iov[0].iov_base, want, 4096));
    data_read_release(W.v->data, &b.r);
    inode_put(W.v->ns, a.r.i);
    inode_put(W.v->ns, b.r.i);
}

Test(data_topics, an_object_that_is_damaged_is_an_error_and_never_other_bytes)
{
    uint64_t f = evicted_file();
    uint8_t buf[4096];
    const char *key = NULL;
    for (unsigned i = 0; (key = mem_key(W.look, i)) && strncmp(key, "segments/", 9); i++)
        ;
    cr_assert(key);
    char name[OBJ_KEY_MAX];
    snprintf(name, sizeof name, "%s", key);
    struct seg_object o;
    uint64_t ino, base;
    cr_assert_eq(seg_object_key_parse(name, &o, &ino, &base), 0);
    cr_assert_eq(mem_damage(W.look, name, 5000), 0);
    cr_assert_eq(small_read(f, base + 4096, buf, 4096), -EIO);
    cr_assert_eq(small_read(f, base + 4096, buf, 4096), -EIO, "nor at the second try");
}

/* ---- room ---- */

Test(data_closed, writers_are_slowed_at_90_percent_refused_at_95_and_let_on_after_eviction)
{
    small_make(false);
    W.conf.device[0].budget = 16 * MiB;
    small_open();
    small_plan("fail op=put count=all err=503");
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG), at = 0;
    bool slowed = false;
    int r = 0;
    for (unsigned n = 0; n < 1000 && r == 0; n++) {
        size_t done;
        int64_t reply_at = 0, now = clock_mono_ns();
        double fill = devs_fill(W.v->devs);
        r = small_write_some(f, at, 64 * KiB, 1, &done, &reply_at);
        if (r < 0)
            break;
        at += done;
        cr_assert(fill >= 0.89 || reply_at <= now, "slowed at %.3f", fill);
        if (fill > 0.92) {
            cr_assert_gt(reply_at, now, "not slowed at %.3f", fill);
            slowed = true;
        }
        small_run(50 * NS_PER_MS);
        if (done < 64 * KiB)
            break;
    }
    size_t done;
    r = small_write_some(f, at, 64 * KiB, 1, &done, NULL);
    cr_assert_eq(r, -ENOSPC, "%s at %.3f", err_name(r), devs_fill(W.v->devs));
    cr_assert(slowed);
    cr_assert(devs_fill(W.v->devs) > 0.93 && devs_fill(W.v->devs) < 0.96, "%.3f",
              devs_fill(W.v->devs));
    small_check(f, 0, at, 1);
    cr_assert_eq(small_fsync(f), 0, "what was taken is safe");
    small_plan("");
    small_run(120 * NS_PER_SEC);
    cr_assert_lt(devs_fill(W.v->devs), 0.75, "the store is back: room was made");
    small_append(f, 1 * MiB, 1);
    small_check(f, 0, at + 1 * MiB, 1);
    small_free();
}
