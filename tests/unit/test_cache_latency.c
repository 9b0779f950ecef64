/* test_cache_latency.c: a scan against a store with latency, in virtual time.
 *
 * The store answers a fetch after 60 to 90 ms, sends at most 100 MB/s on one connection and LINK bytes a
 * millisecond on all together. The floor is a raw client that keeps as many fetches of the same size
 * in flight as fit the reader's bound, on the same store. Nothing here depends on the machine. */
#include "test_cache_source.h"

enum { CONNECTION_PER_MS = 100 * 1000 };

static struct world w;

struct flight {
    struct cache_span *span; /* NULL: raw */
    int64_t first_ms;        /* when its first byte comes */
    uint64_t len, got;
    bool used;
};

static struct {
    struct flight at[256];
    unsigned n, most;
    int64_t now_ms;
    uint64_t link_per_ms;
    uint64_t fetches, bytes, most_bytes;
} net;

static struct flight *net_start(struct cache_span *s, uint64_t len)
{
    for (unsigned i = 0; i < 256; i++) {
        if (!net.at[i].used) {
            net.at[i] = (struct flight){s, net.now_ms + 60 + (int64_t)(net.fetches * 17 % 31), len,
                                        0, true};
            net.fetches++;
            net.n++;
            net.bytes += len;
            net.most_bytes = max_u64(net.most_bytes, net.bytes);
            net.most = net.n > net.most ? net.n : net.most;
            return &net.at[i];
        }
    }
    cr_assert(false, "too many in flight");
    return NULL;
}

static void net_fetch(void *ctx, struct cache_span *s)
{
    (void)ctx;
    net_start(s, s->len);
}

static void net_cancel(void *ctx, struct cache_span *s)
{
    (void)ctx;
    (void)s;
}

/* One millisecond of the network; returns the fetches that ended in it. */
static unsigned net_step(void)
{
    unsigned active = 0, ended = 0;
    net.now_ms++;
    clock_virtual_advance(NS_PER_MS);
    for (unsigned i = 0; i < 256; i++)
        active += net.at[i].used && net.now_ms > net.at[i].first_ms;
    uint64_t each = active ? min_u64(net.link_per_ms / active, CONNECTION_PER_MS) : 0;
    for (unsigned i = 0; i < 256; i++) {
        struct flight *f = &net.at[i];
        if (!f->used || net.now_ms <= f->first_ms)
            continue;
        f->got = min_u64(f->got + each, f->len);
        if (f->span)
            cr_assert_eq(cache_span_progress(f->span, f->got), 0);
        if (f->got < f->len)
            continue;
        struct cache_span *s = f->span;
        f->used = false;
        net.n--;
        net.bytes -= f->len;
        ended++;
        if (s)
            cache_span_done(s, 0);
    }
    return ended;
}

/* Milliseconds that a raw client needs for `bytes`. */
static int64_t raw_ms(uint64_t bytes, uint64_t size, unsigned depth)
{
    uint64_t asked = 0, ended = 0;
    int64_t start = net.now_ms;
    while (ended < bytes) {
        for (; net.n < depth && asked < bytes; asked += size)
            net_start(NULL, size);
        ended += net_step() * size;
    }
    return net.now_ms - start;
}

static int64_t scan_ms(uint64_t bytes, uint64_t piece, uint64_t reader_per_ms)
{
    struct cache_reader *rd = cache_reader_open(w.c, 5);
    int64_t start = net.now_ms;
    uint64_t budget = 0;
    for (uint64_t off = 0; off < bytes; off += piece) {
        struct req q;
        req_start(&w, rd, &q, 5, off, piece);
        while (!q.started && !q.done)
            net_step();
        cr_assert_eq(q.r.err, 0);
        cache_read_release(w.c, &q.r);
        for (budget += piece; reader_per_ms && budget >= reader_per_ms; budget -= reader_per_ms)
            net_step();
    }
    int64_t took = net.now_ms - start;
    while (net.n > 0)
        net_step();
    cache_reader_close(w.c, rd);
    return took;
}

static void begin(uint64_t pool, uint64_t link_per_ms)
{
    memset(&net, 0, sizeof net);
    net.link_per_ms = link_per_ms;
    world_open(&w, pool);
    cache_close(w.c);
    struct cache_conf conf = world_conf(&w, pool);
    conf.source.fetch = net_fetch;
    conf.source.cancel = net_cancel;
    cr_assert_eq(cache_open(&conf, &w.c), 0);
    w.file_bytes = 2 * GiB;
}

static double ratio(uint64_t pool, uint64_t link_per_ms, uint64_t piece)
{
    begin(pool, link_per_ms);
    int64_t cache = scan_ms(GiB, piece, 0);
    uint64_t fetches = net.fetches, size = fetches > 192 ? 4 * MiB : 8 * MiB;
    unsigned depth = (unsigned)(net.most_bytes / size);
    int64_t raw = raw_ms(GiB, size, depth);
    double r = (double)raw / (double)cache;
    fprintf(stderr,
            "pool %llu MiB, link %llu MB/s, reads of %llu KiB: %lld ms, raw %lld ms at depth %u: "
            "%.3f; %llu fetches\n",
            (unsigned long long)(pool / MiB), (unsigned long long)(link_per_ms / 1000),
            (unsigned long long)(piece / KiB), (long long)cache, (long long)raw, depth, r,
            (unsigned long long)fetches);
    cr_assert_leq(fetches, 270);
    world_close(&w);
    return r;
}

Test(cache_latency, a_lone_cold_scan_comes_close_to_raw_fetches, .timeout = 120)
{
    cr_assert_geq(ratio(256 * MiB, 500000, MiB), 0.93);
    cr_assert_geq(ratio(256 * MiB, 500000, 128 * KiB), 0.93);
    cr_assert_geq(ratio(256 * MiB, 250000, MiB), 0.93);
    cr_assert_geq(ratio(256 * MiB, 1200000, MiB), 0.85);
    cr_assert_geq(ratio(64 * MiB, 500000, MiB), 0.8);
}

Test(cache_latency, a_slow_reader_gets_a_small_window, .timeout = 120)
{
    begin(256 * MiB, 500000);
    int64_t took = scan_ms(256 * MiB, 128 * KiB, 20000); /* 20 MB/s */
    fprintf(stderr, "slow reader: %lld ms, %llu fetches, at most %u in flight\n", (long long)took,
            (unsigned long long)net.fetches, net.most);
    cr_assert_leq(took, 13600 + 200, "after the start it never waits");
    cr_assert_leq(net.most, 6);
    world_close(&w);
}
