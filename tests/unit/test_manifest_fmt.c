/* Bytes of manifests in the bucket: golden vectors, and what is refused. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/tier/manifest_fmt.h"

static const uint8_t VOLUME[16] = "0123456789abcdef";

static const char GOLDEN_ROOT[] = "534c4d5201000000b30000000300000030313233343536373839616263646566"
                                  "2211000000000000050000000000000009000000000000006665646362613938"
                                  "3736353433323130020000002300000003000000000000001100000000000000"
                                  "640000000200000007000000000000002200000000000000c800000003000000"
                                  "08000000000000000200000005000000493176616c756502000000ffffffff49"
                                  "32020000000000000049337f933a177b457c98";
static const char GOLDEN_PAGE[] = "534c4d50010000005b0000000300000030313233343536373839616263646566"
                                  "221100000000000033000000000000000200000005000000493176616c756502"
                                  "000000ffffffff49320200000000000000493366fc84953e3a2996";

static void hex_is(const uint8_t *p, size_t len, const char *want)
{
    char got[1024] = "";
    cr_assert_lt(len * 2, sizeof got);
    for (size_t i = 0; i < len; i++)
        snprintf(got + 2 * i, 3, "%02x", p[i]);
    cr_assert_str_eq(got, want);
}

static void add(uint8_t **buf, size_t *len, const char *key, const char *val)
{
    size_t cap = *len; /* always grows: every byte of the buffer is needed */
    struct manifest_entry e = {.key = (const uint8_t *)key,
                               .klen = (uint16_t)strlen(key),
                               .val = (const uint8_t *)val,
                               .vlen = val ? (uint32_t)strlen(val) : 0};
    cr_assert_eq(manifest_entry_add(buf, len, &cap, &e), 0);
}

static uint8_t *entries(size_t *len)
{
    uint8_t *buf = NULL;
    *len = 0;
    add(&buf, len, "I1", "value");
    add(&buf, len, "I2", NULL);
    add(&buf, len, "I3", "");
    return buf;
}

static uint8_t *root(size_t *len)
{
    static struct manifest_page_ref pages[2] = {
        {.id = 0x11, .bytes = 100, .entries = 2, .hash = 7},
        {.id = 0x22, .bytes = 200, .entries = 3, .hash = 8}};
    struct manifest_root r = {.node = 3, .topic = 0x1122, .epoch = 5, .seq = 9, .pages_n = 2};
    size_t n;
    uint8_t *out;
    memcpy(r.volume, VOLUME, 16);
    memcpy(r.nonce, "fedcba9876543210", 16);
    r.pages = pages;
    r.inline_buf = entries(&n);
    r.inline_len = (uint32_t)n;
    r.inline_n = 3;
    cr_assert_eq(manifest_root_encode(&r, &out, len), 0);
    free(r.inline_buf);
    return out;
}

static uint8_t *page(size_t *len)
{
    size_t n;
    uint8_t *out, *e = entries(&n);
    cr_assert_eq(manifest_page_encode(VOLUME, 0x1122, 0x33, e, n, 3, &out, len), 0);
    free(e);
    return out;
}

static void sign(uint8_t *buf, size_t len)
{
    put_le64(buf + len - 8, hash64(buf, len - 8));
}

static int try_root(const uint8_t *buf, size_t len)
{
    /* Exactly these bytes, so that a sanitizer sees one too far. */
    uint8_t *exact = malloc(len ? len : 1);
    memcpy(exact, buf, len);
    struct manifest_root r;
    int e = manifest_root_decode(exact, len, &r);
    free(exact);
    if (e < 0)
        cr_assert(!r.pages && !r.inline_buf, "nothing is left behind by a refusal");
    manifest_root_done(&r);
    return e;
}

static int try_page(const uint8_t *buf, size_t len)
{
    uint8_t *exact = malloc(len ? len : 1);
    memcpy(exact, buf, len);
    const uint8_t *e;
    size_t e_len;
    uint32_t n;
    int r = manifest_page_decode(exact, len, VOLUME, 0x1122, 0x33, &e, &e_len, &n);
    free(exact);
    return r;
}

static void entries_are_ours(const uint8_t *buf, size_t len)
{
    struct manifest_entry e;
    size_t pos = 0;
    cr_assert_eq(manifest_entry_next(buf, len, &pos, &e), 1);
    cr_assert(e.klen == 2 && !memcmp(e.key, "I1", 2) && e.vlen == 5 && !memcmp(e.val, "value", 5));
    cr_assert_eq(manifest_entry_next(buf, len, &pos, &e), 1);
    cr_assert(e.klen == 2 && !memcmp(e.key, "I2", 2) && !e.val, "a tombstone");
    cr_assert_eq(manifest_entry_next(buf, len, &pos, &e), 1);
    cr_assert(e.klen == 2 && !memcmp(e.key, "I3", 2) && e.val && e.vlen == 0,
              "an empty value is not a tombstone");
    cr_assert_eq(manifest_entry_next(buf, len, &pos, &e), 0);
    cr_assert_eq(pos, len);
}

Test(manifest_fmt, root_has_the_documented_bytes)
{
    size_t len;
    uint8_t *buf = root(&len);
    struct manifest_root r;
    hex_is(buf, len, GOLDEN_ROOT);
    cr_assert_eq(manifest_root_decode(buf, len, &r), 0);
    cr_assert(r.node == 3 && r.topic == 0x1122 && r.epoch == 5 && r.seq == 9);
    cr_assert(!memcmp(r.volume, VOLUME, 16) && !memcmp(r.nonce, "fedcba9876543210", 16));
    cr_assert(r.pages_n == 2 && r.pages[0].id == 0x11 && r.pages[1].id == 0x22);
    cr_assert(r.pages[1].bytes == 200 && r.pages[1].entries == 3 && r.pages[1].hash == 8);
    cr_assert_eq(r.inline_n, 3);
    entries_are_ours(r.inline_buf, r.inline_len);
    uint8_t *again;
    size_t again_len;
    cr_assert_eq(manifest_root_encode(&r, &again, &again_len), 0);
    cr_assert(again_len == len && !memcmp(again, buf, len));
    free(again);
    manifest_root_done(&r);
    free(buf);
}

Test(manifest_fmt, page_has_the_documented_bytes)
{
    size_t len, e_len;
    uint8_t *buf = page(&len);
    const uint8_t *e;
    uint32_t n;
    hex_is(buf, len, GOLDEN_PAGE);
    cr_assert_eq(manifest_page_decode(buf, len, VOLUME, 0x1122, 0x33, &e, &e_len, &n), 0);
    cr_assert_eq(n, 3);
    entries_are_ours(e, e_len);
    free(buf);
}

Test(manifest_fmt, empty_ones_round_trip)
{
    struct manifest_root r = {.topic = 1}, back;
    uint8_t *buf;
    size_t len;
    cr_assert_eq(manifest_root_encode(&r, &buf, &len), 0);
    cr_assert_eq(len, MANIFEST_ROOT_HEAD + 8);
    cr_assert_eq(manifest_root_decode(buf, len, &back), 0);
    cr_assert(back.pages_n == 0 && back.inline_n == 0 && back.topic == 1);
    manifest_root_done(&back);
    free(buf);
    cr_assert_eq(manifest_page_encode(VOLUME, 0x1122, 0x33, NULL, 0, 0, &buf, &len), 0);
    cr_assert_eq(try_page(buf, len), 0);
    free(buf);
}

Test(manifest_fmt, no_flipped_bit_passes)
{
    size_t len;
    uint8_t *buf = root(&len);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(try_root(buf, len), 0, "bit %zu", bit);
        buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_assert_eq(try_root(buf, len), 0);
    free(buf);
    buf = page(&len);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(try_page(buf, len), 0, "bit %zu", bit);
        buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_assert_eq(try_page(buf, len), 0);
    free(buf);
}

Test(manifest_fmt, no_other_length_passes)
{
    size_t len;
    uint8_t *buf = root(&len);
    for (size_t n = 0; n < len; n++)
        cr_assert_eq(try_root(buf, n), -EBADMSG);
    buf = realloc(buf, len + 8);
    memset(buf + len, 0, 8);
    for (size_t n = 1; n <= 8; n++)
        cr_assert_eq(try_root(buf, len + n), -EBADMSG);
    free(buf);
    buf = page(&len);
    for (size_t n = 0; n < len; n++)
        cr_assert_eq(try_page(buf, n), -EBADMSG);
    buf = realloc(buf, len + 8);
    memset(buf + len, 0, 8);
    for (size_t n = 1; n <= 8; n++)
        cr_assert_eq(try_page(buf, len + n), -EBADMSG);
    free(buf);
}

/* With a right hash, as somebody who can write into the bucket makes it. */
Test(manifest_fmt, hostile_counts_and_lengths_are_refused)
{
    static const uint32_t values[] = {0,          1,          2,          3,         4,
                                      5,          0xff,       4096,       4097,      0x7fffffff,
                                      0x80000000, 0xaaaaaaab, 0xfffffffe, 0xffffffff};
    static const size_t root_at[] = {8, 72, 76, 80}, page_at[] = {8, 12};
    size_t len, good;
    uint8_t *buf = root(&len);
    for (size_t f = 0; f < 4; f++) {
        uint32_t was = get_le32(buf + root_at[f]);
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            put_le32(buf + root_at[f], values[i]);
            sign(buf, len);
            cr_assert_eq(try_root(buf, len), values[i] == was ? 0 : -EBADMSG, "field %zu value %x",
                         root_at[f], values[i]);
        }
        put_le32(buf + root_at[f], was);
    }
    /* The lengths inside the entries. */
    good = MANIFEST_ROOT_HEAD + 2 * MANIFEST_PAGE_REF;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        put_le32(buf + good + 4, values[i]);
        sign(buf, len);
        cr_assert_eq(try_root(buf, len), values[i] == 5 ? 0 : -EBADMSG, "value length %x",
                     values[i]);
    }
    put_le32(buf + good + 4, 5);
    for (uint32_t klen = 0; klen <= 0xffff; klen += klen < 40 ? 1 : 997) {
        put_le16(buf + good, (uint16_t)klen);
        sign(buf, len);
        cr_assert_eq(try_root(buf, len), klen == 2 ? 0 : -EBADMSG, "key length %u", klen);
    }
    free(buf);
    buf = page(&len);
    for (size_t f = 0; f < 2; f++) {
        uint32_t was = get_le32(buf + page_at[f]);
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            put_le32(buf + page_at[f], values[i]);
            sign(buf, len);
            cr_assert_eq(try_page(buf, len), values[i] == was ? 0 : -EBADMSG);
        }
        put_le32(buf + page_at[f], was);
    }
    free(buf);
}

Test(manifest_fmt, a_newer_version_is_told_from_damage)
{
    size_t len;
    uint8_t *buf = root(&len);
    put_le16(buf + 4, 2);
    sign(buf, len);
    cr_assert_eq(try_root(buf, len), -EPROTONOSUPPORT);
    free(buf);
    buf = page(&len);
    put_le16(buf + 4, 2);
    sign(buf, len);
    cr_assert_eq(try_page(buf, len), -EPROTONOSUPPORT);
    free(buf);
}

Test(manifest_fmt, a_page_of_somebody_else_is_refused)
{
    size_t len, e_len;
    uint8_t *buf = page(&len), volume[16];
    const uint8_t *e;
    uint32_t n;
    memcpy(volume, VOLUME, 16);
    volume[15]++;
    cr_assert_eq(manifest_page_decode(buf, len, volume, 0x1122, 0x33, &e, &e_len, &n), -EBADMSG);
    cr_assert_eq(manifest_page_decode(buf, len, VOLUME, 0x1123, 0x33, &e, &e_len, &n), -EBADMSG);
    cr_assert_eq(manifest_page_decode(buf, len, VOLUME, 0x1122, 0x34, &e, &e_len, &n), -EBADMSG);
    cr_assert_eq(try_root(buf, len), -EBADMSG, "nor is a page a root");
    free(buf);
}

Test(manifest_fmt, keys_are_fixed_width)
{
    char key[64];
    manifest_root_key(0x1122, key, sizeof key);
    cr_assert_str_eq(key, "topics/0000000000001122/manifest");
    manifest_page_key(UINT64_MAX, 1, key, sizeof key);
    cr_assert_str_eq(key, "topics/ffffffffffffffff/pages/0000000000000001");
}
