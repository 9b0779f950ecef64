/* Bytes of headers, slots and names: golden vectors, and that no flipped bit passes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/bounds.h"
#include "fs/seg/segfmt.h"

static const uint8_t VOLUME[16] = "0123456789abcdef";

static const char GOLDEN_IDENT[] =
    "534c534701000000500000000000040030313233343536373839616263646566"
    "2211000000000000050000000001000000000008000000000000000800000000"
    "0300000000200000aea5f3735aa4c04e";
static const char GOLDEN_SLOT[] =
    "534c53500100010040000000000000000900000000000000e093040000000000"
    "efcdab000000000015cd853dfe9c97172a00000000000000bb3dffb57f43b9dd";
static const char GOLDEN_DEV[] = "534c445601000000280000000200000030313233343536373839616263646566"
                                 "62b2ca1e41413166";

static const struct seg_ident IDENT = {.volume = "0123456789abcdef",
                                       .topic = 0x1122,
                                       .ino = 0x10000000005,
                                       .base = 0x8000000,
                                       .capacity = 128 * MiB,
                                       .version = 3,
                                       .header_bytes = 8192};

static void hex_is(const uint8_t *p, size_t len, const char *want)
{
    char got[512] = "";
    for (size_t i = 0; i < len; i++)
        snprintf(got + 2 * i, 3, "%02x", p[i]);
    cr_assert_str_eq(got, want);
}

Test(segfmt, identity_has_the_documented_bytes)
{
    uint8_t raw[SEG_IDENT_BYTES];
    seg_ident_encode(&IDENT, raw);
    hex_is(raw, sizeof raw, GOLDEN_IDENT);
    struct seg_ident back;
    cr_assert_eq(seg_ident_decode(raw, sizeof raw, &back), 0);
    cr_assert_eq(memcmp(&back, &IDENT, sizeof back), 0);
}

Test(segfmt, slot_has_the_documented_bytes)
{
    uint8_t raw[SEG_SLOT_BYTES];
    struct seg_slot s = {.seq = 9,
                         .len = 300000,
                         .tail_hash = 0xabcdef,
                         .mtime_ns = 1700000000123456789,
                         .ident_hash = 42,
                         .flags = SLOT_SEALED},
                    back;
    seg_slot_encode(&s, raw);
    hex_is(raw, sizeof raw, GOLDEN_SLOT);
    cr_assert_eq(seg_slot_decode(raw, sizeof raw, 42, MiB, &back), 0);
    cr_assert_eq(back.seq, 9);
    cr_assert_eq(back.len, 300000);
    cr_assert_eq(back.tail_hash, 0xabcdef);
    cr_assert_eq(back.mtime_ns, 1700000000123456789);
    cr_assert_eq(back.flags, SLOT_SEALED);
    cr_assert_eq(seg_slot_decode(raw, sizeof raw, 43, MiB, &back), -EBADMSG, "another identity's");
    cr_assert_eq(seg_slot_decode(raw, sizeof raw, 42, 299999, &back), -EBADMSG,
                 "over the capacity");
    s.tail_hash = 0;
    seg_slot_encode(&s, raw);
    cr_assert_eq(seg_slot_decode(raw, sizeof raw, 42, MiB, &back), -EBADMSG,
                 "tail without a proof");
    s.flags = SLOT_FLUSHED;
    seg_slot_encode(&s, raw);
    cr_assert_eq(seg_slot_decode(raw, sizeof raw, 42, MiB, &back), 0);
}

Test(segfmt, device_identity_has_the_documented_bytes)
{
    uint8_t raw[DEV_IDENT_BYTES], volume[16];
    uint32_t id;
    dev_ident_encode(VOLUME, 2, raw);
    hex_is(raw, sizeof raw, GOLDEN_DEV);
    cr_assert_eq(dev_ident_decode(raw, sizeof raw, volume, &id), 0);
    cr_assert_eq(id, 2);
    cr_assert_eq(memcmp(volume, VOLUME, 16), 0);
}

Test(segfmt, no_flipped_bit_and_no_short_record_passes)
{
    uint8_t a[SEG_IDENT_BYTES], b[SEG_SLOT_BYTES], c[DEV_IDENT_BYTES], volume[16];
    struct seg_slot s = {.seq = 1, .len = 1, .tail_hash = 5, .ident_hash = 42}, back;
    struct seg_ident i;
    uint32_t id;
    seg_ident_encode(&IDENT, a);
    seg_slot_encode(&s, b);
    dev_ident_encode(VOLUME, 1, c);
    for (unsigned bit = 0; bit < 8 * sizeof a; bit++) {
        a[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(seg_ident_decode(a, sizeof a, &i), 0);
        a[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * sizeof b; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(seg_slot_decode(b, sizeof b, 42, MiB, &back), 0);
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * sizeof c; bit++) {
        c[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(dev_ident_decode(c, sizeof c, volume, &id), 0);
        c[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < sizeof a; n++)
        cr_assert_lt(seg_ident_decode(a, n, &i), 0);
    for (size_t n = 0; n < sizeof b; n++)
        cr_assert_lt(seg_slot_decode(b, n, 42, MiB, &back), 0);
}

Test(segfmt, names_round_trip_and_nothing_else_parses)
{
    char path[SEG_PATH_BYTES];
    uint64_t ino, base;
    uint32_t version;
    seg_path(0x10000000005, 0x8000000, 3, path);
    const char *name = strrchr(path, '/') + 1;
    cr_assert_str_eq(name, "0000010000000005-0000000008000000.00000003.seg");
    cr_assert(seg_name_parse(name, &ino, &base, &version));
    cr_assert(ino == 0x10000000005 && base == 0x8000000 && version == 3);
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      "../../etc/passwd",
                                      "0000010000000005-0000000008000000.00000003.sex",
                                      "0000010000000005-0000000008000000.00000003.seg~",
                                      "000001000000000A-0000000008000000.00000003.seg",
                                      "0000010000000005/0000000008000000.00000003.seg",
                                      " 000010000000005-0000000008000000.00000003.seg",
                                      "0x00010000000005-0000000008000000.00000003.seg"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(seg_name_parse(bad[i], &ino, &base, &version), "%s", bad[i]);
}
