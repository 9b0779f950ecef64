/* test_cache_readahead.c: sequential detection, windows, segment borders, eviction, expiry. */
#include "test_cache_source.h"

static struct world w;

static void setup(void)
{
    world_open(&w, 64 * MiB);
}

static void teardown(void)
{
    world_close(&w);
}

TestSuite(cache_readahead, .init = setup, .fini = teardown, .timeout = 60);

static unsigned in_flight(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < w.held_n; i++)
        n += w.held[i] != NULL;
    return n;
}

/* Reads [from, to) in pieces of `len` at once as far as read-ahead allows. */
static void scan(struct cache_reader *rd, uint64_t ino, uint64_t from, uint64_t to, uint64_t len)
{
    for (uint64_t off = from; off < to;) {
        uint64_t n = min_u64(len, w.seg_bytes - off % w.seg_bytes);
        read_through(&w, rd, ino, off, n);
        off += n;
        world_advance(&w, 1);
        if (w.held_n > HELD_MAX / 2 && in_flight() == 0)
            w.held_n = 0;
    }
}

Test(cache_readahead, a_sequential_scan_asks_for_whole_slices)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    scan(rd, 5, 0, GiB, 128 * KiB);
    cr_assert_leq(w.held_n, 270, "%u fetches for 1 GiB", w.held_n);
    cr_assert_eq(w.fetched, GiB, "each byte once");
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\""), 0);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, many_readers_of_the_same_range_cost_one_scan)
{
    enum { N = 50 };
    struct cache_reader *rd[N];
    for (unsigned k = 0; k < N; k++)
        rd[k] = cache_reader_open(w.c, 5);
    for (uint64_t off = 0; off < 256 * MiB; off += MiB) {
        static struct req q[N];
        for (unsigned k = 0; k < N; k++)
            req_start(&w, rd[k], &q[k], 5, off, MiB);
        world_settle(&w);
        for (unsigned k = 0; k < N; k++)
            req_finish(&q[k]);
        world_advance(&w, 5);
    }
    cr_assert_leq(w.held_n, 70, "%u fetches", w.held_n);
    for (unsigned k = 0; k < N; k++)
        cache_reader_close(w.c, rd[k]);
}

Test(cache_readahead, readers_that_lag_behind_each_other_still_share_one_scan)
{
    enum { N = 400 };
    static struct cache_reader *rd[N];
    static uint64_t at[N];
    uint32_t x = 7;
    for (unsigned k = 0; k < N; k++)
        rd[k] = cache_reader_open(w.c, 5);
    for (uint64_t low = 0; low < 128 * MiB;) {
        x = x * 1664525u + 1013904223u;
        unsigned k = (x >> 8) % N;
        if (at[k] < low + 16 * MiB) {
            read_through(&w, rd[k], 5, at[k], MiB);
            at[k] += MiB;
            world_advance(&w, 1);
        }
        low = UINT64_MAX;
        for (unsigned i = 0; i < N; i++)
            low = min_u64(low, at[i]);
    }
    cr_assert_leq(w.held_n, 45, "%u fetches", w.held_n);
    for (unsigned k = 0; k < N; k++)
        cache_reader_close(w.c, rd[k]);
}

Test(cache_readahead, order_of_the_kernels_pieces_does_not_matter)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    static const unsigned order[8] = {1, 0, 3, 2, 5, 7, 4, 6};
    read_through(&w, rd, 5, 0, 256 * KiB);
    for (uint64_t off = 256 * KiB; off < 120 * MiB; off += 2 * MiB)
        for (unsigned i = 0; i < 8; i++)
            read_through(&w, rd, 5, off + order[i] * 256 * KiB, 256 * KiB);
    cr_assert_leq(w.held_n, 33);
    cr_assert_leq(w.fetched, 136 * MiB);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, a_scan_from_the_middle_gets_its_first_block_alone_then_the_slice)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    read_through(&w, rd, 5, 17 * MiB, 128 * KiB);
    cr_assert_eq(w.fetched, BLOCK_BYTES);
    read_through(&w, rd, 5, 17 * MiB + 128 * KiB, 128 * KiB);
    cr_assert_eq(w.held_n, 2);
    world_settle(&w);
    cr_assert_eq(w.fetched, 3 * MiB, "the rest of the slice, as one");
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, small_adjoining_pairs_are_not_a_sequence)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    for (unsigned i = 1; i < 50; i++) {
        read_through(&w, rd, 5, i * 20 * MiB, 4096);
        read_through(&w, rd, 5, i * 20 * MiB + 4096, 4096);
    }
    world_settle(&w);
    cr_assert_eq(w.fetched, 49 * BLOCK_BYTES);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, the_watermark_starts_the_next_slice)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    struct req q;
    req_start(&w, rd, &q, 5, 0, MiB);
    src_end(&w, 0, 0);
    req_finish(&q);
    req_start(&w, rd, &q, 5, MiB, MiB - 4096);
    req_finish(&q);
    cr_assert_eq(w.held_n, 1);
    req_start(&w, rd, &q, 5, 2 * MiB - 4096, 4096);
    req_finish(&q);
    cr_assert_eq(w.held_n, 2);
    cr_assert_eq(w.held[1]->pos, 4 * MiB);
    cr_assert_eq(w.held[1]->len, 4 * MiB);
    cr_assert(!w.held[1]->urgent);
    world_settle(&w);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, the_window_grows_on_stalls_only_and_within_the_pool)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    static struct req q;
    unsigned most = 0, early = 0;
    for (uint64_t off = 0; off < 128 * MiB; off += MiB) {
        req_start(&w, rd, &q, 5, off, MiB);
        if (q.started == 0) { /* a stall: the store takes 70 ms */
            world_advance(&w, 70);
            most = in_flight() > most ? in_flight() : most;
            for (unsigned i = 0; i < w.held_n; i++)
                if (w.held[i])
                    cr_assert_leq(w.held[i]->len, 16 * MiB);
            world_settle(&w);
        }
        if (off < 2 * MiB)
            early = in_flight();
        req_finish(&q);
    }
    cr_assert_leq(early, 1);
    cr_assert_geq(most, 8, "only %u in flight", most);
    cr_assert_leq(most, 12);
    world_settle(&w);
    cr_assert_leq(used_bytes(&w), 64 * MiB);
    cache_reader_close(w.c, rd);

    /* Never stalled: stays at the smallest window. */
    rd = cache_reader_open(w.c, 6);
    for (uint64_t off = 0; off < 64 * MiB; off += MiB) {
        req_start(&w, rd, &q, 6, off, MiB);
        world_settle(&w);
        req_finish(&q);
        world_advance(&w, 10);
    }
    uint64_t before = w.fetched;
    read_through(&w, rd, 6, 64 * MiB, MiB);
    world_settle(&w);
    cr_assert_leq(w.fetched - before, 8 * MiB);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, a_stalled_reader_makes_its_read_ahead_urgent)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    struct req q;
    for (unsigned i = 0; i < 4; i++) {
        req_start(&w, rd, &q, 5, i * MiB, MiB);
        if (i == 0)
            src_end(&w, 0, 0);
        req_finish(&q);
    }
    cr_assert_eq(w.held_n, 2);
    cr_assert(!w.held[1]->urgent);
    req_start(&w, rd, &q, 5, 4 * MiB, MiB);
    cr_assert(w.held[1]->urgent);
    cr_assert_eq(stat_of(&w, "cache_stalls_total", ""), 1);
    cr_assert_gt(w.held_n, 2, "and the next slice is asked for at once");
    world_settle(&w);
    req_finish(&q);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, it_crosses_segment_borders)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    w.seg_bytes = 10 * MiB;
    w.file_bytes = 100 * MiB;
    scan(rd, 5, 0, 9 * MiB, MiB);
    cr_assert_gt(w.locates, 0);
    struct req q;
    cr_assert_eq(req_start(&w, rd, &q, 5, 10 * MiB, MiB), 1, "the next segment is there already");
    req_finish(&q);
    scan(rd, 5, 10 * MiB, 100 * MiB, MiB);
    cr_assert_eq(w.fetched, 100 * MiB);
    cr_assert_leq(w.held_n, 30);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, the_end_of_the_file_is_not_asked_for_again_and_again)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    w.file_bytes = 8 * MiB;
    for (unsigned i = 0; i < 64; i++)
        read_through(&w, rd, 5, i * 128 * KiB, 128 * KiB);
    cr_assert_leq(w.locates, 2);
    cr_assert_eq(w.fetched, 8 * MiB);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, warm_segments_get_a_small_window)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    struct req q;
    w.warm = true;
    unsigned most = 0;
    for (uint64_t off = 0; off < 64 * MiB; off += MiB) {
        req_start(&w, rd, &q, 5, off, MiB);
        most = in_flight() > most ? in_flight() : most;
        world_advance(&w, 5);
        world_settle(&w);
        req_finish(&q);
    }
    cr_assert(!q.r.was_cold);
    cr_assert_leq(most, 2);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, none_while_it_is_switched_off)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    cache_set_readahead(w.c, false);
    scan(rd, 5, 0, 8 * MiB, MiB);
    cr_assert_eq(w.held_n, 8);
    cache_set_readahead(w.c, true);
    scan(rd, 5, 8 * MiB, 16 * MiB, MiB);
    cr_assert_leq(w.held_n, 8 + 5);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, two_scans_through_one_handle_both_run_ahead)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    for (uint64_t off = 0; off < 64 * MiB; off += MiB) {
        read_through(&w, rd, 5, off, MiB);
        read_through(&w, rd, 5, 512 * MiB + off, MiB);
        world_advance(&w, 2);
    }
    cr_assert_leq(w.held_n, 45); /* 32, and what is ahead at the end */
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\""), 0);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, unread_slices_expire_and_shrink_the_window)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    scan(rd, 5, 0, 3 * MiB, MiB);
    world_settle(&w);
    cr_assert_eq(used_bytes(&w), 8 * MiB);
    world_advance(&w, 59000);
    cr_assert_eq(used_bytes(&w), 8 * MiB);
    world_advance(&w, 2000);
    cr_assert_eq(used_bytes(&w), 3 * MiB, "only what was read is left");
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\""), 5 * MiB);
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"used\""), 2 * MiB);
    scan(rd, 5, 3 * MiB, 6 * MiB, MiB);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, a_slow_reader_keeps_what_it_will_soon_reach)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    for (unsigned i = 0; i < 200; i++) { /* a slice takes 64 s, longer than unread blocks live */
        read_through(&w, rd, 5, i * 64 * KiB, 64 * KiB);
        world_settle(&w);
        world_advance(&w, 1000);
    }
    cr_assert_leq(w.fetched, 20 * MiB);
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\""), 0);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, closing_a_reader_ends_its_read_ahead)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    struct req q;
    for (unsigned i = 0; i < 3; i++) {
        req_start(&w, rd, &q, 5, i * MiB, MiB);
        if (i == 0)
            src_end(&w, 0, 0);
        req_finish(&q);
    }
    cr_assert_eq(in_flight(), 1);
    cache_reader_close(w.c, rd);
    cr_assert_eq(w.cancels, 1);
}

Test(cache_readahead, a_handle_with_too_many_scans_gives_up_the_oldest)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    for (unsigned k = 0; k < 5; k++) {
        cr_assert_eq(w.cancels, 0);
        for (unsigned i = 0; i < 3; i++) {
            struct req q;
            req_start(&w, rd, &q, 5, (128 * k + i) * MiB, MiB);
            for (unsigned h = 0; h < w.held_n; h++)
                if (w.held[h] && w.held[h]->urgent)
                    src_end(&w, h, 0);
            req_finish(&q);
            world_advance(&w, 1);
        }
    }
    cr_assert_eq(w.cancels, 1);
    cache_reader_close(w.c, rd);
    cr_assert_eq(w.cancels, 6, "one of each, two of the last, which had stalled");
}

/* ---- eviction ---- */

static bool cached(uint64_t ino, uint64_t off)
{
    struct req q;
    bool yes = req_start(&w, NULL, &q, ino, off, 1) == 1;
    if (!yes)
        world_settle(&w);
    req_finish(&q);
    return yes;
}

Test(cache_readahead, what_a_scan_has_passed_goes_before_what_random_readers_use)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    for (unsigned i = 0; i < 40; i++)
        read_through(&w, NULL, 9, i * MiB, 4096);
    scan(rd, 5, 0, 512 * MiB, MiB);
    unsigned kept = 0;
    for (unsigned i = 0; i < 40; i++)
        kept += cached(9, i * MiB);
    cr_assert_eq(kept, 40, "a scan of eight times the pool took %u of 40 blocks", 40 - kept);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, what_a_follower_will_read_stays_and_the_farthest_goes_first)
{
    struct cache_reader *lead = cache_reader_open(w.c, 5), *next = cache_reader_open(w.c, 5);
    scan(next, 5, 0, 2 * MiB, MiB);
    scan(lead, 5, 0, 24 * MiB, MiB);
    cr_assert_eq(cache_follower_distance(w.c, 5, 20 * MiB, lead), 18 * MiB);
    cr_assert_eq(cache_follower_distance(w.c, 5, MiB, lead), UINT64_MAX);
    cr_assert_eq(cache_follower_distance(w.c, 6, 20 * MiB, next), UINT64_MAX);
    /* Random demand of a whole pool: claimed blocks go last, and of them the far ones first. */
    unsigned before = w.held_n;
    for (unsigned i = 0; i < 160; i++)
        read_through(&w, NULL, 9, i * MiB, 4096);
    for (unsigned i = 0; i < 200; i++)
        read_through(&w, NULL, 10, i * MiB, 4096);
    cr_assert_eq(w.held_n, before + 360);
    scan(next, 5, 2 * MiB, 12 * MiB, MiB);
    cr_assert_leq(w.held_n, before + 362, "the follower still found its bytes");
    cache_reader_close(w.c, lead);
    cache_reader_close(w.c, next);
}

Test(cache_readahead, demand_may_take_unread_read_ahead_but_never_the_other_way)
{
    enum { N = 16 };
    struct cache_reader *rd[N];
    for (unsigned k = 0; k < N; k++) {
        rd[k] = cache_reader_open(w.c, 50 + k);
        scan(rd[k], 50 + k, 0, 3 * MiB, MiB);
    }
    world_settle(&w);
    uint64_t used, size;
    cache_usage(w.c, &used, &size);
    uint64_t ahead = stat_of(&w, "cache_fetched_bytes_total", "kind=\"readahead\"") -
                     stat_of(&w, "readahead_bytes_total", "outcome=\"used\"") -
                     stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\"");
    cr_assert_leq(ahead, size - size / 8);
    static struct req q[50];
    for (unsigned i = 0; i < 50; i++)
        cr_assert_eq(req_start(&w, NULL, &q[i], 200, i * 2 * MiB, MiB), 0);
    cr_assert_eq(w.held[w.held_n - 1]->seg.ino, 200);
    world_settle(&w);
    for (unsigned i = 0; i < 50; i++)
        req_finish(&q[i]);
    for (unsigned k = 0; k < N; k++)
        cache_reader_close(w.c, rd[k]);
}

Test(cache_readahead, two_scans_share_the_pool_evenly)
{
    struct cache_reader *rd[2] = {cache_reader_open(w.c, 5), cache_reader_open(w.c, 6)};
    uint64_t most[2] = {0, 0};
    for (uint64_t off = 0; off < 120 * MiB; off += MiB) {
        static struct req q[2];
        for (unsigned k = 0; k < 2; k++)
            req_start(&w, rd[k], &q[k], 5 + k, off, MiB);
        uint64_t ahead[2] = {0, 0};
        for (unsigned i = 0; i < w.held_n; i++)
            if (w.held[i])
                ahead[w.held[i]->seg.ino - 5] += w.held[i]->len;
        if (q[0].started == 0 || q[1].started == 0) {
            world_advance(&w, 70);
            world_settle(&w);
        }
        for (unsigned k = 0; k < 2; k++) {
            most[k] = max_u64(most[k], ahead[k]);
            req_finish(&q[k]);
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        cr_assert_leq(most[k], 28 * MiB, "reader %u: %llu", k, (unsigned long long)most[k]);
        cr_assert_geq(most[k], 16 * MiB, "reader %u: %llu", k, (unsigned long long)most[k]);
        cache_reader_close(w.c, rd[k]);
    }
}

Test(cache_readahead, forget_lets_the_next_version_be_read_ahead)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    scan(rd, 5, 0, 3 * MiB, MiB);
    world_settle(&w);
    cache_forget(w.c, 5, 0);
    cr_assert_eq(used_bytes(&w), 0);
    cr_assert_eq(stat_of(&w, "readahead_bytes_total", "outcome=\"wasted\""), 5 * MiB);
    scan(rd, 5, 3 * MiB, 20 * MiB, MiB);
    cr_assert_leq(w.held_n, 12);
    cache_reader_close(w.c, rd);
}

Test(cache_readahead, ten_thousand_open_readers_cost_little)
{
    static struct cache_reader *rd[10000];
    for (unsigned i = 0; i < 10000; i++) {
        rd[i] = cache_reader_open(w.c, 100 + i);
        cr_assert_not_null(rd[i]);
    }
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned k = 0; k < 3; k++)
            read_through(&w, rd[i], 100 + i, k * MiB, MiB);
        world_settle(&w);
        w.held_n = 0;
    }
    cr_assert_leq(used_bytes(&w), 64 * MiB);
    for (unsigned i = 0; i < 10000; i++)
        cache_reader_close(w.c, rd[i]);
}
