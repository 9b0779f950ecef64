/* test_kv_fault.c: failing disks: what was acknowledged stays, what failed never half-happens. */
#include "tests/unit/test_kv.h"

#include <pthread.h>
#include "fs/base/clock.h"

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
    door_use();
}

TestSuite(kv_fault, .init = setup, .fini = dir_remove);

Test(kv_fault, a_full_disk_refuses_the_batch_and_nothing_else)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    door.err = ENOSPC;
    atomic_store(&door.fail_pwrite, 4); /* itself, and three times the head anew */
    uint64_t before = kv_seq(kv);
    cr_assert_eq(put_u(kv, "b", "2", 5, NULL), -ENOSPC);
    cr_assert_eq(kv_seq(kv), before);
    struct kv_origin o;
    cr_assert(!kv_find_origin(kv, 5, &o));
    expect(kv, "b", NULL);
    cr_assert_eq(put(kv, "c", "3"), 0);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 c=3 ");
    kv_close(kv);
}

Test(kv_fault, a_full_disk_can_be_mounted)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    kv_crash(kv);
    door.err = ENOSPC;
    atomic_store(&door.fail_pwrite, 1); /* the head of the new journal file */
    kv = must_open(&c);
    expect(kv, "a", "1");
    cr_assert_eq(put(kv, "b", "2"), 0);
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 b=2 ");
    kv_close(kv);
}

Test(kv_fault, an_io_error_makes_it_read_only_until_remount)
{
    for (int truncate_fails = 0; truncate_fails < 2; truncate_fails++) {
        struct kv_conf c = conf_plain();
        struct kv *kv = must_open(&c);
        cr_assert_eq(put(kv, "a", "1"), 0);
        door.err = EIO;
        atomic_store(&door.fail_pwrite, 1);
        atomic_store(&door.fail_truncate, truncate_fails);
        cr_assert_eq(put(kv, "b", "2"), -EIO);
        cr_assert_eq(put(kv, "c", "3"), -EROFS);
        expect(kv, "a", "1");
        expect(kv, "b", NULL);
        cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0, "what was applied can still be made durable");
        kv_close(kv);
        kv = must_open(&c);
        expect_walk(kv, "", "", "a=1 ");
        cr_assert_eq(put(kv, "a", "1"), 0);
        kv_close(kv);
    }
}

Test(kv_fault, a_journal_without_room_is_begun_anew)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    door.err = ENOSPC;
    atomic_store(&door.fail_pwrite, 1);
    cr_assert_eq(put(kv, "b", "2"), 0);
    struct kv_usage u;
    kv_usage(kv, &u);
    cr_assert_eq(u.overlay_keys, 1, "what came before is in LMDB");
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 b=2 ");
    kv_close(kv);
}

Test(kv_fault, a_failed_flush_is_made_good_by_a_checkpoint_and_a_new_file)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    char old[160], now[160];
    newest_journal(old);
    cr_assert_eq(put(kv, "a", "1"), 0);
    atomic_store(&door.fail_sync, 1);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    newest_journal(now);
    cr_assert_str_neq(old, now);
    cr_assert_neq(access(old, F_OK), 0, "pages of the old file prove nothing");
    struct kv_usage u;
    kv_usage(kv, &u);
    cr_assert_eq(u.overlay_keys, 0, "it is in LMDB");
    cr_assert_eq(u.durable_seq, u.seq);
    cr_assert_eq(put(kv, "b", "2"), 0);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 b=2 ");
    kv_close(kv);
}

static _Atomic int called, result;

static void on_done(struct kv_waiter *w, int err)
{
    (void)w;
    atomic_store(&result, err);
    atomic_fetch_add(&called, 1);
}

Test(kv_fault, a_failed_flush_that_cannot_be_made_good_is_final)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    atomic_store(&door.fail_sync, 1);
    door.fail_at = atomic_load(&door.calls) + 2; /* 1: the flush; 2: opening a new file */
    door.fail_n = 1;
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), -EIO);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), -EIO, "no later flush makes it true");
    cr_assert_eq(put(kv, "b", "2"), -EROFS);
    struct kv_waiter w = {.done = on_done};
    kv_sync_async(kv, kv_seq(kv), &w);
    cr_assert_eq(called, 0);
    cr_assert(kv_step(kv));
    cr_assert(called == 1 && result == -EIO);
    expect(kv, "a", "1");
    kv_close(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 ");
    kv_close(kv);
}

/* One life with everything in it. Returns how many of the puts were acknowledged; each writes its
 * number to "n", so that the store must hold the last acknowledged one (or, only when the next one
 * failed with an unclear outcome, that one). */
static int life(struct kv *kv, int from, int *synced)
{
    int done = from;
    for (int i = from + 1; i <= from + 6; i++) {
        char v[16];
        snprintf(v, sizeof v, "%d", i);
        if (put(kv, "n", v) < 0)
            break;
        done = i;
        if (i % 2 == 0 && kv_sync(kv, kv_seq(kv)) == 0)
            *synced = i;
        if (i % 3 == 0) {
            clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
            (void)kv_step(kv);
            clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
            (void)kv_step(kv);
        }
    }
    return done;
}

Test(kv_fault, every_call_may_fail_once, .timeout = 120)
{
    static const int errs[] = {EIO, ENOSPC};
    clock_virtual_set(NS_PER_SEC);
    for (unsigned e = 0; e < 2; e++) {
        int done = 0, synced = 0, met = 0;
        for (long at = 1;; at++) {
            struct kv_conf c = conf_plain();
            struct kv *kv = NULL;
            door.err = errs[e];
            door.after = at & 1;
            door.fail_n = 1;
            door.fail_at = 0;
            atomic_store(&door.calls, 0);
            door.fail_at = at;
            int r = kv_open(&c, &kv, why, sizeof why);
            if (r == 0) {
                done = life(kv, done, &synced);
                if (at % 2)
                    kv_close(kv);
                else
                    kv_crash(kv);
            } else {
                cr_assert(why[0] != 0, "call %ld: the reason is missing", at);
            }
            bool met_now = atomic_load(&door.calls) >= at;
            met += met_now;
            door.fail_at = 0;
            kv = must_open(&c);
            char want[16];
            snprintf(want, sizeof want, "%d", done);
            expect(kv, "n", done ? want : NULL);
            kv_close(kv);
            if (!met_now)
                break;
        }
        cr_assert(met > 20, "only %d calls were tried", met);
        cr_assert(synced > 0);
        struct kv_conf c = conf_plain();
        struct kv *kv = must_open(&c);
        cr_assert_eq(put(kv, "n", NULL), 0);
        kv_close(kv);
    }
}

/* ---- group commit ---- */

static struct kv *shared;
enum { WRITERS = 8, EACH = 30 };

static void *writer(void *arg)
{
    for (int i = 0; i < EACH; i++) {
        char k[32];
        uint64_t seq;
        snprintf(k, sizeof k, "%ld-%d", (long)(intptr_t)arg, i);
        if (put_u(shared, k, "v", 0, &seq) < 0 || kv_sync(shared, seq) < 0)
            abort();
    }
    return NULL;
}

Test(kv_fault, concurrent_syncs_share_flushes)
{
    struct kv_conf c = conf_plain();
    c.threaded = true;
    shared = must_open(&c);
    atomic_store(&door.syncs, 0);
    atomic_store(&door.slow_sync_us, 2000);
    pthread_t t[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&t[i], NULL, writer, (void *)(intptr_t)i);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(t[i], NULL);
    long n = atomic_load(&door.syncs);
    cr_assert(n >= EACH, "%ld", n);
    cr_assert(n <= WRITERS * EACH / 2, "%ld flushes for %d syncs", n, WRITERS * EACH);
    kv_close(shared);
}

Test(kv_fault, asynchronous_waiters_share_one_flush_and_are_all_called)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    struct kv_waiter w[20];
    uint64_t seq = 0;
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(put_u(kv, "a", "1", 0, &seq), 0);
        w[i].done = on_done;
        kv_sync_async(kv, seq, &w[i]);
    }
    atomic_store(&door.syncs, 0);
    cr_assert(kv_step(kv));
    cr_assert_eq(called, 20);
    cr_assert_eq(result, 0);
    cr_assert_eq(door.syncs, 1);
    cr_assert(!kv_step(kv));
    kv_sync_async(kv, seq, &w[0]);
    cr_assert_eq(called, 21, "already durable: at once");
    cr_assert_eq(door.syncs, 1);
    kv_close(kv);
}

Test(kv_fault, the_threads_serve_waiters_and_make_checkpoints)
{
    struct kv_conf c = conf_plain();
    c.threaded = true;
    c.checkpoint_ms = 20;
    struct kv *kv = must_open(&c);
    uint64_t seq;
    cr_assert_eq(put_u(kv, "a", "1", 0, &seq), 0);
    struct kv_waiter w = {.done = on_done};
    kv_sync_async(kv, seq, &w);
    struct kv_usage u;
    for (int i = 0; i < 5000; i++) {
        kv_usage(kv, &u);
        if (u.overlay_keys == 0 && atomic_load(&called))
            break;
        usleep(1000);
    }
    cr_assert(atomic_load(&called) == 1 && result == 0);
    cr_assert_eq(u.overlay_keys, 0);
    expect(kv, "a", "1");
    kv_close(kv);
}
