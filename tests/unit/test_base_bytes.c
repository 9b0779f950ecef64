/* Hashes, byte order, bounded readers and writers, clocks. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/hash.h"

static uint64_t rng = 88172645463325252ull;

static uint64_t rnd(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

Test(hash, known_vectors)
{
    cr_assert_eq(hash64("", 0), 0x2d06800538d394c2ull);
    cr_assert_eq(hash64("abc", 3), 0x78af5f94892f3950ull);
    struct hash128 h = hash128("", 0);
    cr_assert(h.hi == 0x99aa06d3014798d8ull && h.lo == 0x6001c324468d497full);
    uint8_t d[SHA256_BYTES];
    static const uint8_t abc[SHA256_BYTES] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                              0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                              0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                              0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    sha256_once("abc", 3, d);
    cr_assert_arr_eq(d, abc, sizeof d);
}

/* The 8-byte case of xxh3 can be run backwards: these bytes hash to 0, which means "not known". */
Test(hash, zero_is_never_a_value)
{
    static const uint8_t zero[8] = {0x42, 0xd5, 0x68, 0xe1, 0x38, 0xd7, 0x27, 0xff};
    struct hash64_stream *s = hash64_stream_new();
    cr_assert_eq(hash64(zero, 8), 1);
    hash64_stream_add(s, zero, 8);
    cr_assert_eq(hash64_stream_value(s), 1);
    hash64_stream_free(s);
}

Test(hash, a_stream_in_any_pieces_equals_one_shot)
{
    enum { N = 300000 };
    uint8_t *p = malloc(N), one[SHA256_BYTES], many[SHA256_BYTES];
    struct hash64_stream *s = hash64_stream_new();
    struct sha256 *sha = sha256_new();
    for (size_t i = 0; i < N; i++)
        p[i] = (uint8_t)rnd();
    for (int round = 0; round < 60; round++) {
        size_t len = round < 20 ? (size_t)round : rnd() % N, at = 0;
        hash64_stream_reset(s);
        while (at < len) {
            size_t n = 1 + rnd() % (round % 2 ? 64 : 70000);
            n = n < len - at ? n : len - at;
            hash64_stream_add(s, p + at, n);
            sha256_add(sha, p + at, n);
            at += n;
            if (rnd() % 4 == 0)
                cr_assert_eq(hash64_stream_value(s), hash64(p, at), "asking does not disturb");
        }
        cr_assert_eq(hash64_stream_value(s), hash64(p, len));
        sha256_final(sha, many); /* and starts anew */
        sha256_once(p, len, one);
        cr_assert_arr_eq(many, one, SHA256_BYTES);
    }
    hash64_stream_free(s);
    sha256_free(sha);
    sha256_free(NULL);
    free(p);
}

Test(hash, random_bytes_differ_and_repeat_only_for_a_seed)
{
    uint8_t a[64], b[64], c[64];
    random_bytes(a, sizeof a);
    random_bytes(b, sizeof b);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
    random_seed_for_tests(7);
    random_bytes(a, sizeof a);
    random_bytes(b, sizeof b);
    random_seed_for_tests(7);
    random_bytes(c, sizeof c);
    cr_assert_arr_eq(a, c, sizeof a);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
    random_seed_for_tests(0);
    random_bytes(a, sizeof a);
    cr_assert_neq(memcmp(a, c, sizeof a), 0);
}

Test(bytes, orders_are_explicit)
{
    uint8_t p[8];
    put_le64(p, 0x0102030405060708ull);
    cr_assert_arr_eq(p, ((uint8_t[]){8, 7, 6, 5, 4, 3, 2, 1}), 8);
    cr_assert_eq(get_le64(p), 0x0102030405060708ull);
    cr_assert_eq(get_be64(p), 0x0807060504030201ull);
    put_be64(p, 0x0102030405060708ull);
    cr_assert_arr_eq(p, ((uint8_t[]){1, 2, 3, 4, 5, 6, 7, 8}), 8);
    put_be32(p, 0xfffefdfcu);
    cr_assert_eq(get_be32(p), 0xfffefdfcu);
    put_le32(p, 0xfffefdfcu);
    cr_assert_arr_eq(p, ((uint8_t[]){0xfc, 0xfd, 0xfe, 0xff}), 4);
    cr_assert_eq(get_le32(p), 0xfffefdfcu);
    put_le16(p, 0xfffe);
    cr_assert_eq(get_le16(p), 0xfffe);
}

Test(bytes, big_endian_keys_sort_as_numbers)
{
    uint8_t a[8], b[8];
    for (int i = 0; i < 2000; i++) {
        uint64_t x = rnd() >> rnd() % 64, y = rnd() >> rnd() % 64;
        put_be64(a, x);
        put_be64(b, y);
        int c = memcmp(a, b, 8);
        cr_assert_eq((c > 0) - (c < 0), (x > y) - (x < y));
    }
}

/* Every length of the buffer, one field too many: stays inside and stays bad. */
Test(bytes, a_writer_never_leaves_its_buffer)
{
    for (size_t cap = 0; cap <= 20; cap++) {
        uint8_t *p = malloc(cap + 1);
        struct wr w = {.p = p, .cap = cap};
        p[cap] = 0xa5;
        wr_u8(&w, 1);
        wr_u16(&w, 2);
        wr_u32(&w, 3);
        wr_u64(&w, 4);
        wr_bytes(&w, "abc", 3);
        cr_assert_eq(w.bad, cap < 18);
        cr_assert_leq(w.len, cap);
        cr_assert_eq(p[cap], 0xa5);
        size_t len = w.len;
        if (w.bad) {
            wr_u8(&w, 9);
            wr_bytes(&w, NULL, 0);
            cr_assert_eq(w.len, len, "later calls do nothing");
        }
        free(p);
    }
    struct wr w = {.p = NULL, .cap = 0};
    cr_assert_null(wr_room(&w, SIZE_MAX));
}

Test(bytes, a_reader_never_leaves_its_buffer)
{
    static const uint8_t src[18] = {1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c'};
    for (size_t len = 0; len <= 18; len++) {
        uint8_t *p = malloc(len + 1);
        memcpy(p, src, len);
        struct rd r = {.p = p, .len = len};
        uint8_t a = rd_u8(&r);
        uint16_t b = rd_u16(&r);
        uint32_t c = rd_u32(&r);
        uint64_t d = rd_u64(&r);
        const uint8_t *e = rd_room(&r, 3);
        cr_assert_eq(r.bad, len < 18);
        cr_assert_eq(rd_left(&r), 0);
        cr_assert_eq(e != NULL, len == 18);
        cr_assert(a == (len >= 1 ? 1 : 0) && b == (len >= 3 ? 2 : 0));
        cr_assert(c == (len >= 7 ? 3 : 0) && d == (len >= 15 ? 4 : 0));
        cr_assert_null(rd_room(&r, SIZE_MAX));
        cr_assert_eq(rd_u64(&r), 0);
        free(p);
    }
}

Test(bytes, arithmetic_tells_of_overflow)
{
    uint64_t v;
    cr_assert(!add_u64(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    cr_assert(add_u64(UINT64_MAX, 1, &v));
    cr_assert(!mul_u64(1ull << 32, (1ull << 32) - 1, &v));
    cr_assert(mul_u64(1ull << 32, 1ull << 32, &v));
    cr_assert(round_up(0, 8) == 0 && round_up(1, 8) == 8 && round_up(8, 8) == 8);
    cr_assert(min_u64(1, 2) == 1 && max_u64(1, 2) == 2);
}

Test(clock, the_virtual_clock_moves_only_when_told)
{
    int64_t a = clock_mono_ns(), b = clock_mono_ns();
    cr_assert(a > 0 && b >= a);
    clock_virtual_set(5 * NS_PER_SEC);
    cr_assert(clock_mono_ns() == 5 * NS_PER_SEC && clock_boot_ns() == 5 * NS_PER_SEC &&
              clock_wall_ns() == 5 * NS_PER_SEC);
    clock_virtual_advance(NS_PER_MS);
    cr_assert_eq(clock_mono_ns(), 5 * NS_PER_SEC + NS_PER_MS);
    clock_virtual_set(0);
    cr_assert_geq(clock_mono_ns(), b);
    cr_assert_gt(clock_wall_ns(), 1000000000 * NS_PER_SEC);
}
