/* Holes punched into an open segment: zeros that take no room, and hashes that are right after it. */
#include "tests/support/segdir.h"

#include "fs/base/hash.h"

static void punched(struct segfile *s, uint64_t from, uint64_t to)
{
    uint64_t len = segfile_len(s), n_bytes = to > len ? len : to;
    uint8_t *got = malloc(len), *want = malloc(len);
    segdir_fill(want, 0, len);
    memset(want + from, 0, n_bytes - from);
    cr_assert_eq(segfile_read(s, 0, got, len), 0);
    cr_assert_eq(memcmp(got, want, len), 0);
    uint64_t *hashes;
    size_t n;
    cr_assert_eq(segfile_seal(s, &hashes, &n), 0);
    for (size_t b = 0; b < n; b++) {
        size_t at = b * BLOCK_BYTES, part = len - at < BLOCK_BYTES ? len - at : BLOCK_BYTES;
        cr_assert_eq(hashes[b], hash64(want + at, part), "block %zu", b);
    }
    free(hashes);
    free(got);
    free(want);
}

static void punch(uint64_t from, uint64_t to, bool synced)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s;
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, 4 * MiB, &s), 0);
    segdir_append(s, 700000);
    if (synced)
        cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(segfile_punch(s, from, to), 0);
    cr_assert_eq(segfile_len(s), 700000, "the length stays");
    cr_assert(!segfile_synced(s), "and has to be flushed");
    punched(s, from, to);
    segfile_close(s);
    segdir_done(&t);
}

Test(seg_punch, hole_inside_one_block)
{
    punch(1000, 50000, false);
}

Test(seg_punch, hole_over_blocks_of_a_synced_segment)
{
    punch(100000, 600000, true);
}

Test(seg_punch, hole_that_reaches_behind_the_end)
{
    punch(650000, 4 * MiB, true);
}

Test(seg_punch, hole_behind_the_end_changes_nothing)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s;
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, 4 * MiB, &s), 0);
    segdir_append(s, 5000);
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(segfile_punch(s, 5000, 9000), 0);
    cr_assert(segfile_synced(s));
    segfile_close(s);
    segdir_done(&t);
}

Test(seg_punch, room_of_a_hole_is_not_counted)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s;
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, 4 * MiB, &s), 0);
    segdir_append(s, 1000000);
    cr_assert_eq(segfile_sync(s), 0);
    uint64_t before = segfile_stored(s);
    cr_assert_eq(segfile_punch(s, 0, 524288), 0);
    cr_assert_eq(segfile_sync(s), 0);
    uint64_t after = segfile_stored(s);
    if (after == before)
        cr_skip_test("this file system has no holes");
    cr_assert_leq(after, 1000000 - 524288 + 8192);
    segfile_close(s);
    segdir_done(&t);
}

/* After a loss of power what was flushed before and after the hole is there. */
Test(seg_punch, hole_survives_a_loss_of_power_once_flushed)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s;
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, 4 * MiB, &s), 0);
    segdir_append(s, 700000);
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(segfile_punch(s, 10000, 300000), 0);
    cr_assert_eq(segfile_sync(s), 0);
    segfile_close(s);
    uint64_t cut;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &id, false, &s, &cut), 0);
    cr_assert_eq(cut, 0);
    cr_assert_eq(segfile_len(s), 700000);
    punched(s, 10000, 300000);
    segfile_close(s);
    segdir_done(&t);
}
