/* The hashes of the formats: known values, and that every implementation gives the same. */
#include <criterion/criterion.h>
#include <string.h>

#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/hash_int.h"

static uint8_t data[300 * 1024];

static void fill(void)
{
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof(data); i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (uint8_t)(x >> 24);
    }
}

Test(base_hash, known_values_of_xxh3)
{
    cr_assert_eq(hash64("", 0), 0x2d06800538d394c2ull);
    cr_assert_eq(hash64("abc", 3), 0x78af5f94892f3950ull);
    struct hash128 h = hash128("", 0);
    cr_assert_eq(h.hi, 0x99aa06d3014798d8ull);
    cr_assert_eq(h.lo, 0x6001c324468d497full);
}

Test(base_hash, the_chosen_implementation_agrees_with_the_library)
{
    fill();
    for (size_t len = 0; len <= sizeof(data); len += len < 2100 ? 1 : 4099) {
        struct hash128 a = hash128(data, len), b = hash_library.whole128(data, len);
        cr_assert_eq(hash64(data, len), hash_library.whole(data, len), "%zu bytes", len);
        cr_assert(a.lo == b.lo && a.hi == b.hi, "%zu bytes", len);
    }
}

Test(base_hash, a_stream_in_pieces_is_the_hash_of_the_whole)
{
    fill();
    struct hash64_stream *s = hash64_stream_new();
    cr_assert_not_null(s);
    for (size_t piece = 1; piece < 70000; piece = piece * 3 + 1) {
        hash64_stream_reset(s);
        for (size_t at = 0; at < sizeof(data); at += piece) {
            size_t end = min_u64(at + piece, sizeof(data));
            hash64_stream_add(s, data + at, end - at);
            cr_assert(piece < 4096 || hash64_stream_value(s) == hash64(data, end),
                      "pieces of %zu, at %zu", piece, end);
        }
        cr_assert_eq(hash64_stream_value(s), hash64(data, sizeof(data)), "pieces of %zu", piece);
    }
    hash64_stream_free(s);
}
