/* Operations of the broker profile that change several segments, and end at each single call to the disk: by a kill,
 * by a loss of power. */
#include "tests/unit/small_world.h"

#include <linux/falloc.h>

static void broker(void)
{
    small_make(true);
    small_open();
}

TestSuite(ended, .init = broker, .fini = small_free, .timeout = 240);

enum { AS_WRITTEN, SEALED, REMOTE, WAYS };

static void file_of_600_kib(uint64_t f, unsigned way)
{
    small_write(f, 0, 600 * KiB, 1);
    if (way != AS_WRITTEN)
        cr_assert_eq(small_command(way == REMOTE ? TIER_EVICT : TIER_SEAL, f), 0);
    cr_assert_eq(small_fsync(f), 0);
    if (way == SEALED)
        small_write(f, 100, 100, 1); /* the first segment is open again */
}

/* The operation ends at each of its calls to the disk, each time with a file of its own. `judge` says what may be there
 * then. */
static void end_anywhere(bool power, void (*op)(uint64_t f), void (*judge)(uint64_t f, unsigned n))
{
    for (unsigned way = 0; way < WAYS; way++) {
        bool frozen = true;
        for (unsigned n = 1; frozen; n++) {
            char name[16];
            snprintf(name, sizeof name, "f%d.%u.%u", power, way, n);
            uint64_t f = small_create(ROOT_INO, name, S_IFREG);
            file_of_600_kib(f, way);
            simdisk_freeze(W.disk, n);
            op(f);
            if (!simdisk_frozen(W.disk)) {
                (void)kv_sync(W.v->kv, kv_seq(W.v->kv));
                frozen = simdisk_frozen(W.disk);
            }
            small_crash(power);
            small_open();
            judge(f, n);
            cr_assert_lt(n, 1000);
        }
    }
}

static void cut_it(uint64_t f)
{
    (void)small_truncate(f, 60 * KiB);
}

static void is_a_prefix(uint64_t f, unsigned n)
{
    uint64_t size = small_size(f);
    cr_assert(size >= 60 * KiB && size <= 600 * KiB, "%u: %llu", n, (unsigned long long)size);
    small_check(f, 0, size, 1);
    /* Nothing lies hidden behind the end. */
    uint8_t got[4096], zeros[4096] = {0};
    cr_assert_eq(small_truncate(f, 700 * KiB), 0);
    for (uint64_t at = size; at + sizeof got <= 700 * KiB; at += sizeof got) {
        cr_assert_eq(small_read(f, at, got, sizeof got), (int64_t)sizeof got);
        cr_assert_eq(memcmp(got, zeros, sizeof got), 0, "%u: at %llu", n, (unsigned long long)at);
    }
}

Test(ended, a_cut_that_a_kill_ends_leaves_a_prefix)
{
    end_anywhere(false, cut_it, is_a_prefix);
}

Test(ended, a_cut_that_a_loss_of_power_ends_leaves_a_prefix)
{
    end_anywhere(true, cut_it, is_a_prefix);
}

static void punch_the_end(uint64_t f)
{
    (void)small_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 200 * KiB, 500 * KiB);
}

static void has_its_size(uint64_t f, unsigned n)
{
    cr_assert_eq(small_size(f), 600 * KiB, "%u: %llu", n, (unsigned long long)small_size(f));
    small_check(f, 0, 200 * KiB, 1);
}

Test(ended, a_hole_to_the_end_keeps_the_size_whatever_ends_it)
{
    end_anywhere(false, punch_the_end, has_its_size);
    end_anywhere(true, punch_the_end, has_its_size);
}

static void zero_the_middle(uint64_t f)
{
    (void)small_fallocate(f, FALLOC_FL_ZERO_RANGE, 200 * KiB, 350 * KiB);
}

static void is_as_it_was_around(uint64_t f, unsigned n)
{
    has_its_size(f, n);
    small_check(f, 550 * KiB, 50 * KiB, 1);
    uint8_t *got = malloc(350 * KiB), *want = malloc(350 * KiB);
    cr_assert_eq(small_read(f, 200 * KiB, got, 350 * KiB), 350 * (int64_t)KiB);
    small_fill(want, f, 200 * KiB, 350 * KiB, 1);
    size_t k = 0;
    while (k < 350 * KiB && (got[k] == 0 || got[k] == want[k]))
        k++;
    cr_assert_eq(k, 350 * KiB, "%u: at %zu", n, k);
    free(got);
    free(want);
}

Test(ended, zeros_in_the_middle_change_nothing_else_whatever_ends_it)
{
    end_anywhere(false, zero_the_middle, is_as_it_was_around);
    end_anywhere(true, zero_the_middle, is_as_it_was_around);
}
