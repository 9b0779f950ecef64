/* test_cache_reads.c: single flight, progressive answers, errors, cancel, forget, full pool. */
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

TestSuite(cache_reads, .init = setup, .fini = teardown, .timeout = 60);

Test(cache_reads, many_readers_of_one_block_cause_one_fetch)
{
    static struct req q[200];
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(req_start(&w, NULL, &q[i], 5, 10 * BLOCK_BYTES + i, 4096), 0);
    cr_assert_eq(w.held_n, 1);
    src_end(&w, 0, 0);
    for (unsigned i = 0; i < 200; i++)
        req_finish(&q[i]);
    cr_assert_eq(stat_of(&w, "cache_reads_total", "outcome=\"miss\""), 1);
    cr_assert_eq(stat_of(&w, "cache_reads_total", "outcome=\"wait\""), 199);
    struct req hit;
    cr_assert_eq(req_start(&w, NULL, &hit, 5, 10 * BLOCK_BYTES, 4096), 1);
    cr_assert_eq(hit.done, 0);
    cr_assert(hit.r.was_cold);
    req_finish(&hit);
    cr_assert_eq(w.held_n, 1);
}

Test(cache_reads, a_random_small_read_fetches_exactly_one_block)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    uint64_t x = 12345;
    unsigned n = 100;
    for (unsigned i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t off = (x >> 33) % (w.file_bytes / 4096 - 1) * 4096 + 4096;
        read_through(&w, rd, 5, off, 4096);
    }
    cr_assert_leq(w.fetched, n * BLOCK_BYTES);
    cr_assert_gt(w.fetched, (n - 20) * BLOCK_BYTES);
    cache_reader_close(w.c, rd);
}

Test(cache_reads, a_read_is_answered_before_its_span_has_ended)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    struct req a, b;
    req_start(&w, rd, &a, 5, 0, 128 * KiB);
    req_start(&w, NULL, &b, 5, BLOCK_BYTES + 1, 300 * KiB);
    struct cache_span *s = w.held[0];
    cr_assert_eq(s->len, 4 * MiB, "from the start of a file: the whole slice");
    cr_assert(s->urgent);
    span_bytes(s, s->len);
    cr_assert_eq(cache_span_progress(s, BLOCK_BYTES - 1), 0);
    cr_assert_eq(a.done, 0);
    cr_assert_eq(cache_span_progress(s, BLOCK_BYTES), 0);
    cr_assert_eq(a.done, 1);
    cr_assert_eq(cache_span_progress(s, 2 * BLOCK_BYTES), 0);
    cr_assert_eq(b.done, 0, "its second block is missing");
    cr_assert_eq(cache_span_progress(s, 3 * BLOCK_BYTES), 0);
    cr_assert_eq(b.done, 1);
    req_finish(&a);
    req_finish(&b);
    cache_reader_close(w.c, rd);
}

Test(cache_reads, the_last_block_of_a_segment_may_be_short)
{
    w.file_bytes = 5 * BLOCK_BYTES + 1001;
    struct req q;
    req_start(&w, NULL, &q, 5, 5 * BLOCK_BYTES + 1000, 1);
    cr_assert_eq(w.held[0]->len, 1001);
    src_end(&w, 0, 0);
    req_finish(&q);
    read_through(&w, NULL, 5, 3 * BLOCK_BYTES, MiB);
    w.file_bytes += 500; /* it grew: the cached end is too short now */
    read_through(&w, NULL, 5, 5 * BLOCK_BYTES, MiB);
}

Test(cache_reads, a_failed_fetch_is_told_to_every_waiter_and_not_remembered)
{
    static struct req q[20];
    for (unsigned i = 0; i < 20; i++)
        req_start(&w, NULL, &q[i], 5, 3 * BLOCK_BYTES - 100 * i, 600 * KiB);
    src_end(&w, 0, -ETIMEDOUT);
    cr_assert_eq(q[0].done, 1);
    world_settle(&w); /* the others lacked a block before it too */
    unsigned failed = 0;
    for (unsigned i = 0; i < 20; i++) {
        if (q[i].done) {
            cr_assert_eq(q[i].r.err, -ETIMEDOUT);
            cr_assert_eq(q[i].r.iov_n, 0);
            failed++;
        }
    }
    cr_assert_eq(failed, 20);
    world_settle(&w);
    read_through(&w, NULL, 5, 3 * BLOCK_BYTES, 4096);
    struct req e;
    req_start(&w, NULL, &e, 6, 0, 10);
    src_end(&w, w.held_n - 1, -ECONNRESET);
    cr_assert_eq(e.done, 1);
    cr_assert_eq(e.r.err, -EIO);
}

Test(cache_reads, what_arrived_before_a_failure_is_kept)
{
    struct req a, b;
    req_start(&w, NULL, &a, 5, 0, MiB);
    req_start(&w, NULL, &b, 5, 0, BLOCK_BYTES);
    struct cache_span *s = w.held[0];
    w.held[0] = NULL;
    span_bytes(s, s->len);
    cache_span_progress(s, 2 * BLOCK_BYTES);
    cache_span_done(s, -EIO);
    cr_assert_eq(a.r.err, -EIO);
    req_finish(&b);
    cr_assert_eq(req_start(&w, NULL, &b, 5, BLOCK_BYTES, BLOCK_BYTES), 1);
    req_finish(&b);
    cr_assert_eq(used_bytes(&w), 2 * BLOCK_BYTES);
}

Test(cache_reads, a_damaged_block_is_eio_and_the_good_ones_beside_it_are_read)
{
    struct req a, b, d;
    req_start(&w, NULL, &a, 5, 0, MiB);                       /* blocks 0..3 */
    req_start(&w, NULL, &b, 5, 2 * BLOCK_BYTES, BLOCK_BYTES); /* good, not yet arrived */
    req_start(&w, NULL, &d, 5, 0, BLOCK_BYTES);               /* good, arrived */
    struct cache_span *s = w.held[0];
    span_bytes(s, s->len);
    ((uint8_t *)s->iov[1].iov_base)[77] ^= 1;
    cr_assert_eq(cache_span_progress(s, 2 * BLOCK_BYTES), -EBADMSG);
    cr_assert_eq(a.done, 1);
    cr_assert_eq(a.r.err, -EIO);
    cr_assert_eq(w.damaged, 1);
    cr_assert_eq(w.damaged_pos, BLOCK_BYTES);
    req_finish(&d);
    w.held[0] = NULL;
    cache_span_done(s, -EBADMSG);
    cr_assert_eq(b.done, 0, "a good block is fetched again, not failed");
    world_settle(&w);
    req_finish(&b);
    cr_assert_eq(stat_of(&w, "cache_damaged_blocks_total", ""), 1);
    read_through(&w, NULL, 5, BLOCK_BYTES, 4096);
}

Test(cache_reads, a_block_without_a_hash_is_accepted)
{
    struct req q;
    req_start(&w, NULL, &q, 5, 0, 4096);
    struct cache_span *s = w.held[0];
    w.held[0] = NULL;
    span_bytes(s, s->len);
    s->hash[0] = 0;
    cache_span_done(s, 0); /* done(0) alone says that all has arrived */
    req_finish(&q);
}

Test(cache_reads, a_cancelled_read_ends_once_and_the_fetch_goes_on_into_the_pool)
{
    struct req a, b;
    req_start(&w, NULL, &a, 5, 0, 4096);
    req_start(&w, NULL, &b, 5, 0, 4096);
    cr_assert(cache_read_cancel(w.c, &a.r, 0));
    cr_assert_eq(a.done, 1);
    cr_assert_eq(a.r.err, -EINTR);
    cr_assert_eq(w.cancels, 0, "another waits for it");
    cr_assert(cache_read_cancel(w.c, &b.r, -ETIMEDOUT));
    cr_assert_eq(b.r.err, -ETIMEDOUT);
    cr_assert_eq(w.cancels, 1);
    cr_assert(!cache_read_cancel(w.c, &b.r, 0));
    src_end(&w, 0, 0);
    cr_assert_eq(a.done + b.done, 2);
    cr_assert_eq(req_start(&w, NULL, &a, 5, 0, 4096), 1);
    cr_assert(!cache_read_cancel(w.c, &a.r, 0));
    req_finish(&a);
}

Test(cache_reads, a_reader_that_comes_after_the_cancel_is_served_by_a_new_fetch)
{
    struct req a, b;
    req_start(&w, NULL, &a, 5, 0, MiB);
    cache_read_cancel(w.c, &a.r, 0);
    cr_assert_eq(w.cancels, 1);
    req_start(&w, NULL, &b, 5, BLOCK_BYTES, BLOCK_BYTES);
    cr_assert_eq(w.held_n, 1);
    src_end(&w, 0, -ECANCELED);
    cr_assert_eq(b.done, 0);
    cr_assert_eq(w.held_n, 2);
    cr_assert_eq(w.held[1]->pos, BLOCK_BYTES);
    cr_assert_eq(w.held[1]->len, BLOCK_BYTES);
    src_end(&w, 1, 0);
    req_finish(&b);
    cr_assert_eq(used_bytes(&w), BLOCK_BYTES);
}

Test(cache_reads, forget_hides_slices_but_leaves_pinned_bytes)
{
    struct req a, b;
    req_start(&w, NULL, &a, 5, 0, MiB);
    src_end(&w, 0, 0);
    cache_forget(w.c, 5, BLOCK_BYTES + 1); /* block 1 overlaps */
    cr_assert(iov_right(&a.r));
    cr_assert_eq(req_start(&w, NULL, &b, 5, 0, BLOCK_BYTES), 1);
    req_finish(&b);
    cr_assert_eq(req_start(&w, NULL, &b, 5, BLOCK_BYTES, 1), 0);
    world_settle(&w);
    req_finish(&b);
    cr_assert_eq(used_bytes(&w), 5 * BLOCK_BYTES);
    req_finish(&a);
    cr_assert_eq(used_bytes(&w), 2 * BLOCK_BYTES);
    cache_forget(w.c, 5, 0);
    cr_assert_eq(used_bytes(&w), 0);
}

Test(cache_reads, a_fetch_that_ends_after_forget_does_not_come_back)
{
    struct req a, b;
    req_start(&w, NULL, &a, 5, 0, 4096);
    cache_forget(w.c, 5, 0);
    req_start(&w, NULL, &b, 5, 0, 4096);
    cr_assert_eq(w.held_n, 2, "the forgotten fetch is not joined");
    src_end(&w, 0, 0);
    req_finish(&a); /* it began before */
    cr_assert_eq(b.done, 0);
    src_end(&w, 1, 0);
    req_finish(&b);
    cr_assert_eq(used_bytes(&w), BLOCK_BYTES);
    req_start(&w, NULL, &a, 7, 0, 4096);
    cache_read_cancel(w.c, &a.r, 0);
    cache_forget(w.c, 7, 0);
    src_end(&w, 2, 0);
    cr_assert_eq(used_bytes(&w), BLOCK_BYTES);
    cr_assert_eq(req_start(&w, NULL, &a, 7, 0, 4096), 0);
    world_settle(&w);
    req_finish(&a);
}

Test(cache_reads, versions_do_not_mix)
{
    struct req a;
    read_through(&w, NULL, 5, 0, 4096);
    memset(&a, 0, sizeof a);
    a.w = &w;
    a.r.seg = seg_at(&w, 5, 0);
    a.r.seg.version = 2;
    a.r.len = 4096;
    a.r.done = req_done;
    cr_assert_eq(cache_read_start(w.c, NULL, &a.r), 0);
    world_settle(&w);
    req_finish(&a);
}

Test(cache_reads, configuration_is_checked)
{
    struct cache *c;
    struct cache_conf conf = world_conf(&w, 8 * MiB - 1);
    cr_assert_eq(cache_open(&conf, &c), -EINVAL);
    conf = world_conf(&w, 8 * MiB);
    conf.slice_bytes = MiB + 1;
    cr_assert_eq(cache_open(&conf, &c), -EINVAL);
    conf.slice_bytes = MiB;
    cr_assert_eq(cache_open(&conf, &c), 0);
    uint64_t used, size;
    cache_usage(c, &used, &size);
    cr_assert_leq(size, 8 * MiB);
    cr_assert_geq(size, 8 * MiB - 2 * BLOCK_BYTES);
    cache_close(c);
}

static void setup_small(void)
{
    world_open(&w, 8 * MiB);
}

TestSuite(cache_full, .init = setup_small, .fini = teardown, .timeout = 60);

Test(cache_full, pinned_reads_make_later_ones_queue_in_order)
{
    static struct req q[64];
    for (unsigned i = 0; i < 64; i++)
        req_start(&w, NULL, &q[i], 100 + i, 1000, MiB); /* five blocks each */
    cr_assert_eq(w.held_n, 6, "31 frames");
    world_settle(&w);
    for (unsigned i = 0; i < 64; i++) {
        for (unsigned k = i + 1; k < 64 && q[k - 1].done == 0; k++)
            cr_assert_eq(q[k].done, 0, "out of order");
        cr_assert_eq(q[i].done, 1, "read %u", i);
        req_finish(&q[i]);
        world_settle(&w);
    }
    cr_assert_leq(used_bytes(&w), 8 * MiB);
}

Test(cache_full, a_queued_read_can_be_cancelled_and_a_hit_passes_the_queue)
{
    static struct req q[8];
    for (unsigned i = 0; i < 8; i++)
        req_start(&w, NULL, &q[i], 100 + i, 1000, MiB);
    world_settle(&w);
    struct req hit;
    cr_assert_eq(req_start(&w, NULL, &hit, 100, 1000, 10), 1);
    req_finish(&hit);
    cr_assert_eq(q[6].done, 0);
    cr_assert(cache_read_cancel(w.c, &q[6].r, 0));
    cr_assert_eq(q[6].r.err, -EINTR);
    req_finish(&q[0]);
    world_settle(&w);
    req_finish(&q[7]);
    for (unsigned i = 1; i < 6; i++)
        req_finish(&q[i]);
}

Test(cache_full, demand_gets_frames_from_read_ahead_in_flight)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    static struct req a, q[6];
    w.end_cancelled = true;
    req_start(&w, rd, &a, 5, 0, 128 * KiB);
    struct cache_span *s = w.held[0];
    cr_assert_geq(s->len, 3 * MiB);
    cache_reader_close(w.c, rd);
    cr_assert(cache_read_cancel(w.c, &a.r, 0));
    for (unsigned i = 0; i < 6; i++)
        req_start(&w, NULL, &q[i], 100 + i, 1000, MiB);
    world_settle(&w);
    for (unsigned i = 0; i < 6; i++)
        req_finish(&q[i]);
}

static void release_and_go_on(struct cache_read *r)
{
    struct req *q = (struct req *)r;
    q->done++;
    cr_assert_eq(r->err, 0);
    cr_assert(iov_right(r));
    cache_read_release(q->w->c, r);
}

Test(cache_full, a_long_queue_unwinds_without_recursion)
{
    enum { N = 20000 };
    struct req *q = calloc(N, sizeof *q);
    for (unsigned i = 0; i < N; i++) {
        /* Everybody wants one of six places, so most are answered out of release. */
        q[i].w = &w;
        q[i].r.seg = seg_at(&w, 100 + i % 8, 0);
        q[i].r.off = 1000;
        q[i].r.len = MiB;
        q[i].r.done = release_and_go_on;
        cr_assert_eq(cache_read_start(w.c, NULL, &q[i].r), 0);
    }
    for (unsigned k = 0; k < 100 && world_settle(&w) > 0; k++)
        w.held_n = 0;
    for (unsigned i = 0; i < N; i++)
        cr_assert_eq(q[i].done, 1);
    free(q);
}
