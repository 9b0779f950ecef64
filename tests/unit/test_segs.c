/* Values of the queues and segment records in a store: round trips, and hostile input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/data/segs.h"
#include "tests/unit/test_kv.h"

static struct kv *kv;

static void open_kv(void)
{
    dir_make();
    struct kv_conf c = conf_plain();
    kv = must_open(&c);
}

static void close_kv(void)
{
    kv_close(kv);
    dir_remove();
}

TestSuite(segs, .init = open_kv, .fini = close_kv);

struct one {
    uint8_t key[KV_KEY_MAX], val[2048];
    size_t klen, vlen;
    unsigned n;
};

static int take(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct one *o = arg;
    cr_assert(klen <= sizeof o->key && vlen <= sizeof o->val);
    memcpy(o->key, key, klen);
    memcpy(o->val, val, vlen);
    o->klen = klen;
    o->vlen = vlen;
    o->n++;
    return 0;
}

static struct one only(char table)
{
    static struct one o;
    struct key k = key_prefix(table);
    memset(&o, 0, sizeof o);
    cr_assert_eq(kv_walk(kv, k.b, k.len, k.b, k.len, take, &o), 0);
    cr_assert_eq(o.n, 1);
    return o;
}

static void apply(struct kv_batch *b)
{
    cr_assert_eq(kv_apply(kv, b, NULL, NULL), 0);
    kv_batch_done(b);
}

static const struct seg_object OBJECT = {.topic = 0x1122,
                                         .end = 9000,
                                         .epoch = 5,
                                         .attempt = 0xabcdef0123456789,
                                         .version = 2,
                                         .footer_len = 136};

static struct seg_rec sealed(uint64_t end)
{
    return (struct seg_rec){.end = end,
                            .version = 2,
                            .state = SEG_SEALED,
                            .local = true,
                            .device = 3,
                            .file_version = 1,
                            .header_bytes = 8192,
                            .capacity = 1 << 20,
                            .sealed_ns = 77};
}

Test(segs, a_device_file_to_unlink_round_trips)
{
    struct kv_batch b;
    struct seg_rec r = sealed(9000);
    struct segfile_id id;
    kv_batch_init(&b);
    seg_queue_unlink(&b, 0x10000000005, 0x8000, &r);
    apply(&b);
    struct one o = only('L');
    cr_assert_eq(o.vlen, 25, "u8, two u32, two u64");
    cr_assert_eq(unlink_decode(o.val, o.vlen, &id), 0);
    cr_assert(id.device == 3 && id.version == 1 && id.ino == 0x10000000005 && id.base == 0x8000);
    for (size_t n = 0; n < o.vlen; n++)
        cr_assert_eq(unlink_decode(o.val, n, &id), -EBADMSG);
    cr_assert_eq(unlink_decode(o.val, o.vlen + 1, &id), -EBADMSG);
    o.val[0] = 2;
    cr_assert_eq(unlink_decode(o.val, o.vlen, &id), -EBADMSG);
}

Test(segs, an_object_to_delete_round_trips_and_is_found_by_its_time)
{
    struct kv_batch b;
    uint64_t topic, ino, base, kino, kbase;
    struct seg_object seen;
    char key[OBJ_KEY_MAX];
    int64_t when;
    kv_batch_init(&b);
    seg_queue_delete(&b, &OBJECT, 0x10000000005, 0x1000, 1234567);
    apply(&b);
    struct one o = only('D');
    cr_assert(key_parse_queue(o.key, o.klen, &when, &kino, NULL));
    cr_assert_eq(when, 1234567);
    cr_assert_eq(delete_decode(o.val, o.vlen, &topic, &ino, &base, key, sizeof key), 0);
    cr_assert(topic == 0x1122 && ino == 0x10000000005 && base == 0x1000);
    cr_assert_eq(seg_object_key_parse(key, &seen, &kino, &kbase), 0);
    cr_assert(seen.topic == 0x1122 && seen.end == 9000 && seen.epoch == 5 && kbase == base &&
              seen.attempt == OBJECT.attempt && kino == ino);
    for (size_t n = 0; n <= 25; n++)
        cr_assert_eq(delete_decode(o.val, n, &topic, &ino, &base, key, sizeof key), -EBADMSG,
                     "%zu bytes: no key", n);
    cr_assert_eq(delete_decode(o.val, o.vlen, &topic, &ino, &base, key, o.vlen - 25), -EBADMSG,
                 "no room for the NUL");
    cr_assert_eq(delete_decode(o.val, o.vlen, &topic, &ino, &base, key, o.vlen - 24), 0);
    o.val[30] = 0;
    cr_assert_eq(delete_decode(o.val, o.vlen, &topic, &ino, &base, key, sizeof key), -EBADMSG,
                 "a NUL inside would delete another object");
    o.val[30] = 'x';
    o.val[0] = 0;
    cr_assert_eq(delete_decode(o.val, o.vlen, &topic, &ino, &base, key, sizeof key), -EBADMSG);
}

Test(segs, the_mark_of_an_open_segment_round_trips)
{
    struct kv_batch b;
    kv_batch_init(&b);
    seg_open_put(&b, 5, 0x1000, 0x1122334455);
    apply(&b);
    struct one o = only('W');
    uint64_t ino, base;
    cr_assert(key_parse_seg(o.key, o.klen, &ino, &base) && ino == 5 && base == 0x1000);
    cr_assert_eq(seg_open_decode(o.val, o.vlen), 0x1122334455);
    for (size_t n = 0; n < o.vlen; n++)
        cr_assert_eq(seg_open_decode(o.val, n), 0, "not known");
    cr_assert_eq(seg_open_decode(o.val, o.vlen + 1), 0);
    o.val[0] = 9;
    cr_assert_eq(seg_open_decode(o.val, o.vlen), 0);
    cr_assert_eq(seg_open_decode("\1", 1), 0);
}

Test(segs, queue_numbers_are_never_zero_and_differ)
{
    uint64_t a = queue_id(), b = queue_id();
    cr_assert(a && b && a != b);
}

static void put_seg(uint64_t ino, uint64_t base, uint64_t end)
{
    struct kv_batch b;
    struct seg_change c = {.ino = ino, .base = base, .has = true, .now = sealed(end)};
    kv_batch_init(&b);
    seg_change_put(&b, &c);
    apply(&b);
}

Test(segs, a_segment_is_found_before_and_after_an_offset_of_its_own_file_only)
{
    struct seg_rec r;
    uint64_t base;
    put_seg(4, 0, 1000);
    put_seg(5, 100, 200);
    put_seg(5, 200, 300);
    put_seg(5, 1ull << 40, (1ull << 40) + 1);
    put_seg(6, 0, 50);
    cr_assert_eq(seg_get(kv, 5, 100, &r), 0);
    cr_assert(r.end == 200 && r.device == 3 && r.sealed_ns == 77);
    cr_assert_eq(seg_get(kv, 5, 150, &r), -ENOENT);
    cr_assert_eq(seg_before(kv, 5, 99, &base, &r), -ENOENT, "not the file before it");
    cr_assert(seg_before(kv, 5, 100, &base, &r) == 0 && base == 100);
    cr_assert(seg_before(kv, 5, 199, &base, &r) == 0 && base == 100);
    cr_assert(seg_before(kv, 5, 200, &base, &r) == 0 && base == 200 && r.end == 300);
    cr_assert(seg_before(kv, 5, UINT64_MAX, &base, &r) == 0 && base == 1ull << 40);
    cr_assert(seg_after(kv, 5, 0, &base, &r) == 0 && base == 100);
    cr_assert(seg_after(kv, 5, 101, &base, &r) == 0 && base == 200);
    cr_assert(seg_after(kv, 5, 201, &base, &r) == 0 && base == 1ull << 40);
    cr_assert_eq(seg_after(kv, 5, (1ull << 40) + 1, &base, &r), -ENOENT, "not the file behind it");
    cr_assert_eq(seg_before(kv, 7, UINT64_MAX, &base, &r), -ENOENT);
}

Test(segs, a_record_that_is_none_is_damage)
{
    struct seg_rec r;
    uint64_t base, *h;
    size_t n;
    struct kv_batch b;
    struct key k = key_seg(5, 100), bl = key_blocks(5, 100, 2);
    uint8_t big[400] = {1};
    static const size_t len[] = {0, 1, 9, 100, 400};
    for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
        kv_batch_init(&b);
        kv_put(&b, k.b, k.len, big, len[i]);
        kv_put(&b, bl.b, bl.len, big, 9);
        apply(&b);
        cr_assert_eq(seg_get(kv, 5, 100, &r), -EBADMSG);
        cr_assert_eq(seg_before(kv, 5, 200, &base, &r), -EBADMSG);
        cr_assert_eq(seg_after(kv, 5, 0, &base, &r), -EBADMSG);
        cr_assert_eq(seg_blocks(kv, 5, 100, 2, &h, &n), -EBADMSG, "no whole number of hashes");
    }
}

Test(segs, block_hashes_round_trip_whatever_their_number)
{
    static const size_t sizes[] = {0, 1, 511, 512, 513, 16384};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t *in = calloc(sizes[i] + 1, 8), *out = NULL;
        size_t n = 99;
        struct kv_batch b;
        for (size_t k = 0; k < sizes[i]; k++)
            in[k] = k * 0x9e3779b97f4a7c15ull;
        kv_batch_init(&b);
        seg_blocks_put(&b, 5, 100, 2, in, sizes[i]);
        apply(&b);
        cr_assert_eq(seg_blocks(kv, 5, 100, 2, &out, &n), 0);
        cr_assert_eq(n, sizes[i]);
        cr_assert_eq(memcmp(in, out, n * 8), 0);
        free(in);
        free(out);
    }
    uint64_t *out;
    size_t n;
    cr_assert_eq(seg_blocks(kv, 5, 100, 3, &out, &n), -ENOENT, "of that version only");
    struct kv_batch b;
    kv_batch_init(&b);
    seg_blocks_put(&b, 5, 100, 2, NULL, KV_VALUE_MAX / 8 + 1);
    cr_assert(b.failed, "more than a value can hold");
    kv_batch_done(&b);
}

Test(segs, totals_follow_a_segment_through_its_life)
{
    struct totals t = {0};
    struct seg_change c = {.base = 1000, .has = true, .now = sealed(3000)};
    c.now.state = SEG_OPEN;
    c.now_len = 500;
    seg_change_done(&t, &c);
    cr_assert(t.logical == 500 && t.local == 500 && t.pending == 500 && t.open == 1);
    c = (struct seg_change){.base = 1000,
                            .had = true,
                            .has = true,
                            .old = c.now,
                            .old_len = 500,
                            .now = sealed(3000),
                            .now_len = 2000};
    seg_change_done(&t, &c);
    cr_assert(t.logical == 2000 && t.pending == 2000 && t.open == 0 && t.sealed == 1);
    struct seg_change d = {.base = 1000,
                           .had = true,
                           .has = true,
                           .old = c.now,
                           .old_len = 2000,
                           .now = c.now,
                           .now_len = 2000};
    d.now.state = SEG_COMMITTED;
    d.now.has_object = true;
    d.now.object = OBJECT;
    d.now.object.end = 3000;
    seg_change_done(&t, &d);
    cr_assert(t.remote == 2000 && t.pending == 0 && t.sealed == 0 && t.committed == 1);
    struct seg_change e = {.base = 1000,
                           .had = true,
                           .has = true,
                           .old = d.now,
                           .old_len = 2000,
                           .now = d.now,
                           .now_len = 2000};
    e.now.local = false;
    seg_change_done(&t, &e);
    cr_assert(t.local == 0 && t.committed == 0 && t.evicted == 1 && t.logical == 2000);
    struct seg_change gone = {.base = 1000, .had = true, .old = e.now, .old_len = 2000};
    seg_change_done(&t, &gone);
    struct totals zero = {0};
    cr_assert_eq(memcmp(&t, &zero, sizeof t), 0, "nothing is left of it");
}
