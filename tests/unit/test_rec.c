/* test_rec.c: records are what the format says, byte for byte, and decoders survive anything. */
#include "fs/meta/rec.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"

static void hex_eq(const void *p, size_t len, const char *want)
{
    char got[2048];
    cr_assert(len * 2 < sizeof got);
    for (size_t i = 0; i < len; i++)
        snprintf(got + 2 * i, 3, "%02x", ((const uint8_t *)p)[i]);
    got[len * 2] = 0;
    cr_assert_str_eq(got, want);
}

static void key_eq(struct key k, const char *want)
{
    hex_eq(k.b, k.len, want);
}

static const struct inode_rec INODE = {.mode = S_IFREG | 0640,
                                       .uid = 1000,
                                       .gid = 100,
                                       .nlink = 1,
                                       .rdev = 0,
                                       .parent = 0x0000010000000002,
                                       .size = 0x123456789a,
                                       .atime_ns = 1,
                                       .mtime_ns = 2,
                                       .ctime_ns = 3,
                                       .btime_ns = -4};

static const struct seg_rec SEG = {.end = 0x800000,
                                   .version = 3,
                                   .state = SEG_COMMITTED,
                                   .local = true,
                                   .has_object = true,
                                   .has_pending = true,
                                   .device = 7,
                                   .file_version = 2,
                                   .header_bytes = 8192,
                                   .capacity = 0x900000,
                                   .created_ns = 10,
                                   .sealed_ns = 11,
                                   .committed_ns = 12,
                                   .read_ns = 13,
                                   .hash = {.lo = 0x0102030405060708, .hi = 0x1112131415161718},
                                   .object = {.topic = 5,
                                              .end = 0x700000,
                                              .epoch = 2,
                                              .attempt = 0xaabbccdd,
                                              .version = 2,
                                              .footer_len = 360,
                                              .hash = {.lo = 1, .hi = 2}},
                                   .pending = {.topic = 6, .end = 0x800000, .version = 3}};

Test(rec, keys_are_as_written_down)
{
    key_eq(key_inode(0x10000000002), "490000010000000002");
    key_eq(key_name(1, "ab", 2), "4e00000000000000016162");
    key_eq(key_dirent(1, 0x3ffffffffffffff0), "4300000000000000013ffffffffffffff0");
    key_eq(key_symlink(2), "590000000000000002");
    key_eq(key_xattr(2, "user.x", 6), "580000000000000002757365722e78");
    key_eq(key_seg(2, 0x100), "5300000000000000020000000000000100");
    key_eq(key_blocks(2, 0x100, 9), "420000000000000002000000000000010000000009");
    key_eq(key_open(2, 0x100), "5700000000000000020000000000000100");
    key_eq(key_upload(16, 2, 3), "55000000000000001000000000000000020000000000000003");
    key_eq(key_kept(16, 2, 3), "4b000000000000001000000000000000020000000000000003");
    key_eq(key_dirty(4, "Ix", 2), "4d00000000000000044978");
    key_eq(key_topic(4), "540000000000000004");
    key_eq(key_evict(16, 2, 3), "45000000000000001000000000000000020000000000000003");
    key_eq(key_delete(17, 5), "4400000000000000110000000000000005");
    key_eq(key_unlink(5), "4c0000000000000005");
    key_eq(key_orphan(5), "4f0000000000000005");
    key_eq(key_setting("id"), "766964");
    key_eq(key_prefix('N'), "4e");
    /* A time before 1970 must not sort behind the present. */
    key_eq(key_upload(-5, 2, 3), "55000000000000000000000000000000020000000000000003");
}

Test(rec, keys_give_their_numbers_back)
{
    uint64_t a = 0, b = 0;
    int64_t when = 0;
    const uint8_t *p;
    size_t n;
    struct key k = key_inode(77);
    cr_assert(key_parse_ino(k.b, k.len, &a) && a == 77);
    cr_assert(!key_parse_ino(k.b, k.len - 1, &a));
    cr_assert(!key_parse_ino(k.b, k.len + 1, &a));
    k = key_seg(77, 88);
    cr_assert(key_parse_seg(k.b, k.len, &a, &b) && a == 77 && b == 88);
    cr_assert(!key_parse_seg(k.b, 9, NULL, NULL));
    k = key_name(77, "name", 4);
    cr_assert(key_parse_name(k.b, k.len, &a, &p, &n) && a == 77 && n == 4 && !memcmp(p, "name", 4));
    cr_assert(!key_parse_name(k.b, 9, NULL, NULL, NULL));
    k = key_upload(5, 77, 88);
    cr_assert(key_parse_queue(k.b, k.len, &when, &a, &b) && when == 5 && a == 77 && b == 88);
    k = key_kept(7, 78, 89);
    cr_assert(key_parse_queue(k.b, k.len, &when, &a, &b) && when == 7 && a == 78 && b == 89);
    k = key_delete(6, 99);
    cr_assert(key_parse_queue(k.b, k.len, &when, &a, &b) && when == 6 && a == 99 && b == 0);
    cr_assert(!key_parse_queue(k.b, 16, NULL, NULL, NULL));
    struct key inner = key_name(1, "x", 1), m = key_dirty(3, inner.b, inner.len);
    cr_assert(key_parse_dirty(m.b, m.len, &a, &p, &n) && a == 3 && n == inner.len &&
              !memcmp(p, inner.b, n));
    /* The longest key of all fits. */
    char name[NAME_BYTES_MAX];
    memset(name, 'n', sizeof name);
    inner = key_name(UINT64_MAX, name, sizeof name);
    m = key_dirty(UINT64_MAX, inner.b, inner.len);
    cr_assert_eq(m.len, 9 + 9 + NAME_BYTES_MAX);
}

Test(rec, keys_sort_like_their_numbers)
{
    struct key lo = key_seg(5, 0xff), hi = key_seg(5, 0x100), next = key_seg(6, 0);
    cr_assert(memcmp(lo.b, hi.b, lo.len) < 0);
    cr_assert(memcmp(hi.b, next.b, lo.len) < 0);
}

Test(rec, values_are_as_written_down)
{
    uint8_t out[REC_SEG_MAX];
    size_t n = inode_rec_encode(&INODE, out);
    hex_eq(out, n,
           "01a0810000e803000064000000010000000000000000000000"
           "02000000000100009a78563412000000"
           "010000000000000002000000000000000300000000000000fcffffffffffffff");
    struct name_rec nr = {.ino = 0x0102, .cookie = 0x0304, .type = DT_REG};
    n = name_rec_encode(&nr, out);
    hex_eq(out, n, "010802010000000000000403000000000000");
    struct dirent_rec dr = {.ino = 7, .type = DT_DIR, .name_len = 2, .name = (const void *)"ab"};
    n = dirent_rec_encode(&dr, out);
    hex_eq(out, n, "010407000000000000006162");
    struct dirent_rec back;
    cr_assert_eq(dirent_rec_decode(out, n, &back), 0);
    cr_assert(back.ino == 7 && back.type == DT_DIR && back.name_len == 2 &&
              !memcmp(back.name, "ab", 2));
    cr_assert_eq(dirent_rec_decode(out, n - 2, &back), -EBADMSG);
    out[n - 1] = '/';
    cr_assert_eq(dirent_rec_decode(out, n, &back), -EBADMSG);
    struct key dk = key_dirent(5, 6);
    uint64_t parent = 0, cookie = 0;
    cr_assert(key_parse_dirent(dk.b, dk.len, &parent, &cookie) && parent == 5 && cookie == 6);
    cr_assert(!key_parse_dirent(dk.b, dk.len - 1, NULL, NULL));
    n = seg_rec_encode(&SEG, out);
    hex_eq(out, n,
           "0104070003000000000080000000000007000000"
           "0200000000200000"
           "0000900000000000"
           "0a000000000000000b000000000000000c000000000000000d00000000000000"
           "08070605040302011817161514131211"
           "050000000000000000007000000000000200000000000000ddccbbaa00000000"
           "020000006801000001000000000000000200000000000000"
           "0600000000000000000080000000000000000000000000000000000000000000"
           "030000000000000000000000000000000000000000000000");
    struct seg_rec young = {
        .state = SEG_OPEN, .local = true, .end = 5, .device = 1, .behind = 0x1234};
    n = seg_rec_encode(&young, out);
    hex_eq(out, n,
           "01010900000000000500000000000000"
           "01000000000000000000000000000000000000000000000000000000"
           "00000000000000000000000000000000000000000000000000000000"
           "000000000000000000000000"
           "3412000000000000");
}

Test(rec, values_come_back)
{
    uint8_t out[REC_SEG_MAX];
    struct inode_rec i;
    cr_assert_eq(inode_rec_decode(out, inode_rec_encode(&INODE, out), &i), 0);
    cr_assert_eq(i.mode, INODE.mode);
    cr_assert_eq(i.parent, INODE.parent);
    cr_assert_eq(i.size, INODE.size);
    cr_assert_eq(i.btime_ns, -4);
    struct seg_rec s;
    cr_assert_eq(seg_rec_decode(out, seg_rec_encode(&SEG, out), &s), 0);
    cr_assert_eq(s.end, SEG.end);
    cr_assert_eq(s.object.attempt, SEG.object.attempt);
    cr_assert_eq(s.pending.end, SEG.pending.end);
    cr_assert(s.local && s.has_object && s.has_pending);
    struct seg_rec open = {.state = SEG_OPEN, .local = true, .end = 5};
    cr_assert_eq(seg_rec_decode(out, seg_rec_encode(&open, out), &s), 0);
    cr_assert(!s.has_object && !s.has_pending && s.end == 5 && s.behind == 0);
    open.behind = 4;
    size_t len = seg_rec_encode(&open, out);
    cr_assert_eq(seg_rec_decode(out, len, &s), 0);
    cr_assert_eq(s.behind, 4);
    cr_assert_eq(seg_rec_decode(out, len - 1, &s), -EBADMSG);
    memset(out + len - 8, 0, 8);
    cr_assert_eq(seg_rec_decode(out, len, &s), -EBADMSG, "the flag says that there is one");
}

Test(rec, newer_versions_are_not_damage)
{
    uint8_t out[REC_SEG_MAX];
    struct inode_rec i;
    struct name_rec n, nr = {.ino = 2, .type = DT_DIR};
    struct seg_rec s;
    size_t len = inode_rec_encode(&INODE, out);
    out[0] = 2;
    cr_assert_eq(inode_rec_decode(out, len, &i), -EPROTONOSUPPORT);
    len = name_rec_encode(&nr, out);
    out[0] = 2;
    cr_assert_eq(name_rec_decode(out, len, &n), -EPROTONOSUPPORT);
    len = seg_rec_encode(&SEG, out);
    out[0] = 2;
    cr_assert_eq(seg_rec_decode(out, len, &s), -EPROTONOSUPPORT);
    out[0] = 0;
    cr_assert_eq(seg_rec_decode(out, len, &s), -EBADMSG);
}

Test(rec, wrong_lengths_and_impossible_contents_are_damage)
{
    uint8_t out[REC_SEG_MAX + 1] = {0};
    struct inode_rec i;
    struct name_rec n, nr = {.ino = 2, .type = DT_DIR};
    struct seg_rec s;
    size_t len = inode_rec_encode(&INODE, out);
    for (size_t l = 0; l <= len + 1; l++)
        cr_assert_eq(inode_rec_decode(out, l, &i), l == len ? 0 : -EBADMSG, "length %zu", l);
    out[2] = 0xff; /* no such file type */
    cr_assert_eq(inode_rec_decode(out, len, &i), -EBADMSG);

    len = name_rec_encode(&nr, out);
    for (size_t l = 0; l <= len + 1; l++)
        cr_assert_eq(name_rec_decode(out, l, &n), l == len ? 0 : -EBADMSG, "length %zu", l);
    for (unsigned t = 0; t < 256; t++) {
        out[1] = (uint8_t)t;
        bool ok = t == DT_REG || t == DT_DIR || t == DT_LNK || t == DT_FIFO || t == DT_SOCK ||
                  t == DT_CHR || t == DT_BLK;
        cr_assert_eq(name_rec_decode(out, len, &n), ok ? 0 : -EBADMSG, "type %u", t);
    }

    len = seg_rec_encode(&SEG, out);
    for (size_t l = 0; l <= len + 1; l++)
        cr_assert_eq(seg_rec_decode(out, l, &s), l == len ? 0 : -EBADMSG, "length %zu", l);
    out[1] = 5;
    cr_assert_eq(seg_rec_decode(out, len, &s), -EBADMSG);
    struct seg_rec lost = {.state = SEG_COMMITTED, .local = true};
    len = seg_rec_encode(&lost, out);
    cr_assert_eq(seg_rec_decode(out, len, &s), -EBADMSG, "committed without an object");
}

Test(rec, object_keys_come_back_and_only_they)
{
    char key[OBJ_KEY_MAX], other[OBJ_KEY_MAX + 2];
    cr_assert_eq(seg_object_key(&SEG.object, 0x10000000002, 0x600000, key, sizeof key), 0);
    cr_assert_str_eq(key, "segments/a4/0000000000000005/0000010000000002/"
                          "0000000000600000-0000000000700000.0000000000000002.00000000aabbccdd");
    struct seg_object o;
    uint64_t ino, base;
    cr_assert_eq(seg_object_key_parse(key, &o, &ino, &base), 0);
    cr_assert(o.topic == 5 && ino == 0x10000000002 && base == 0x600000 && o.end == 0x700000 &&
              o.epoch == 2 && o.attempt == 0xaabbccdd);
    size_t len = strlen(key);
    for (size_t i = 0; i < len; i++) {
        memcpy(other, key, len + 1);
        other[i] = 'z';
        int r = seg_object_key_parse(other, &o, &ino, &base);
        cr_assert(r == -EINVAL, "byte %zu", i);
        other[i] = 0;
        cr_assert_eq(seg_object_key_parse(other, &o, &ino, &base), -EINVAL);
    }
    snprintf(other, sizeof other, "%s0", key);
    cr_assert_eq(seg_object_key_parse(other, &o, &ino, &base), -EINVAL);
    cr_assert_eq(seg_object_key(&SEG.object, 1, 2, key, 40), -ENAMETOOLONG);
}

static size_t footer_make(uint8_t *out, uint64_t *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        blocks[i] = 0x1000 + i;
    struct seg_footer f = {.topic = 5,
                           .ino = 0x10000000002,
                           .base = 100,
                           .end = n ? 100 + (n - 1) * BLOCK_BYTES + 1 : 100,
                           .epoch = 2,
                           .attempt = 3,
                           .version = 4,
                           .blocks_n = n,
                           .blocks = blocks};
    for (int i = 0; i < 16; i++)
        f.volume[i] = (uint8_t)(0xa0 + i);
    seg_footer_encode(&f, out);
    return seg_footer_size(n);
}

Test(rec, footer_is_as_written_down)
{
    uint8_t out[256];
    uint64_t blocks[2];
    size_t len = footer_make(out, blocks, 2);
    hex_eq(out, len,
           "534c534601000000"
           "9800000000000000"
           "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
           "05000000000000000200000000010000"
           "64000000000000006500040000000000"
           "02000000000000000300000000000000"
           "0400000000000400"
           "0200000000000000"
           "00100000000000000110000000000000"
           "b40ea6b29060f9a8c8c2c10a541dc24b"
           "a6f9f18d47bc28ed"
           "980000000000000046534c5300000000");
}

Test(rec, footer_comes_back)
{
    uint8_t out[512];
    uint64_t blocks[8], scratch[8];
    for (size_t n = 0; n <= 8; n++) {
        size_t len = footer_make(out, blocks, n);
        struct seg_footer f;
        cr_assert_eq(seg_footer_decode(out, len, scratch, 8, &f), 0);
        cr_assert(f.topic == 5 && f.base == 100 && f.blocks_n == n && f.volume[15] == 0xaf);
        cr_assert(n == 0 || memcmp(f.blocks, blocks, n * 8) == 0);
        if (n)
            cr_assert_eq(seg_footer_decode(out, len, scratch, n - 1, &f), -ENOBUFS);
    }
}

Test(rec, every_flipped_bit_of_a_footer_is_noticed)
{
    uint8_t out[256];
    uint64_t blocks[3], scratch[8];
    size_t len = footer_make(out, blocks, 3);
    struct seg_footer f;
    for (size_t i = 0; i < len * 8; i++) {
        out[i / 8] ^= (uint8_t)(1 << (i % 8));
        cr_assert_eq(seg_footer_decode(out, len, scratch, 8, &f), -EBADMSG, "bit %zu", i);
        out[i / 8] ^= (uint8_t)(1 << (i % 8));
    }
    for (size_t l = 0; l < len; l++) {
        uint8_t *cut = malloc(l ? l : 1); /* exact, so that a sanitizer sees a read beyond */
        memcpy(cut, out, l);
        cr_assert_eq(seg_footer_decode(cut, l, scratch, 8, &f), -EBADMSG, "length %zu", l);
        free(cut);
    }
}

Test(rec, footer_of_a_newer_version_is_not_damage)
{
    uint8_t out[256];
    uint64_t blocks[1], scratch[8];
    size_t len = footer_make(out, blocks, 1);
    out[4] = 2;
    put_le64(out + len - 24, hash64(out, len - 24));
    struct seg_footer f;
    cr_assert_eq(seg_footer_decode(out, len, scratch, 8, &f), -EPROTONOSUPPORT);
}
