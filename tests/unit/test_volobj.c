/* The object `volume` in the bucket and the file `volume` in the state directory. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/io.h"
#include "fs/volume/ident.h"
#include "fs/volume/volobj.h"

static const char GOLDEN_OBJECT[] =
    "534c564f01000000580000000300000030313233343536373839616263646566"
    "22110000000000006665646362613938373635343332313015cd853dfe9c9717"
    "0100000000000000000000000000000088b6cabaa855cca5";
static const char GOLDEN_FILE[] = "534c5653020005008d0000000300000030313233343536373839616263646566"
                                  "15cd853dfe9c97170102120073333a2f2f6275636b65742f7072656669780900"
                                  "000001000000000000000000000000000000000000000006002f7372762f6107"
                                  "000000000000400000000001881300000000000006002f7372762f620106002f"
                                  "7372762f63d1d4dd1ef8ba9c00";

static const char GOLDEN_FILE_1[] =
    "534c5653010005006e0000000300000030313233343536373839616263646566"
    "15cd853dfe9c97170102120073333a2f2f6275636b65742f7072656669780100"
    "0000000000000000000006002f7372762f610700000000000040000000000600"
    "2f7372762f62393fe2cc7d0b0558";

static const struct volobj OBJECT = {.volume = "0123456789abcdef",
                                     .node = 3,
                                     .epoch = 0x1122,
                                     .nonce = "fedcba9876543210",
                                     .created_ns = 1700000000123456789,
                                     .profile = 1};

static void hex_is(const uint8_t *p, size_t len, const char *want)
{
    char got[1024] = "";
    cr_assert_lt(len * 2, sizeof got);
    for (size_t i = 0; i < len; i++)
        snprintf(got + 2 * i, 3, "%02x", p[i]);
    cr_assert_str_eq(got, want);
}

static void sign(uint8_t *buf, size_t len)
{
    put_le64(buf + len - 8, hash64(buf, len - 8));
}

Test(volobj, object_has_the_documented_bytes)
{
    uint8_t raw[VOLOBJ_BYTES];
    struct volobj back;
    volobj_encode(&OBJECT, raw);
    hex_is(raw, sizeof raw, GOLDEN_OBJECT);
    cr_assert_eq(volobj_decode(raw, sizeof raw, &back), 0);
    cr_assert(!memcmp(back.volume, OBJECT.volume, 16) && !memcmp(back.nonce, OBJECT.nonce, 16));
    cr_assert(back.node == 3 && back.epoch == 0x1122 && back.profile == 1);
    cr_assert_eq(back.created_ns, 1700000000123456789);
}

Test(volobj, damage_and_impossible_contents_are_refused)
{
    uint8_t raw[VOLOBJ_BYTES + 1] = {0};
    struct volobj back, bad = OBJECT;
    volobj_encode(&OBJECT, raw);
    for (size_t bit = 0; bit < 8 * VOLOBJ_BYTES; bit++) {
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(volobj_decode(raw, VOLOBJ_BYTES, &back), 0, "bit %zu", bit);
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < VOLOBJ_BYTES; n++)
        cr_assert_eq(volobj_decode(raw, n, &back), -EBADMSG);
    cr_assert_eq(volobj_decode(raw, VOLOBJ_BYTES + 1, &back), -EBADMSG, "bytes behind it");
    put_le16(raw + 4, 2);
    sign(raw, VOLOBJ_BYTES);
    cr_assert_eq(volobj_decode(raw, VOLOBJ_BYTES, &back), -EPROTONOSUPPORT);
    bad.profile = 2;
    volobj_encode(&bad, raw);
    cr_assert_eq(volobj_decode(raw, VOLOBJ_BYTES, &back), -EBADMSG);
    bad.profile = 0;
    bad.epoch = UINT64_MAX; /* the next mount could not raise it */
    volobj_encode(&bad, raw);
    cr_assert_eq(volobj_decode(raw, VOLOBJ_BYTES, &back), -EBADMSG);
}

Test(volobj, an_id_is_printed_like_any_uuid)
{
    char text[37];
    static const uint8_t id[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255};
    volume_id_text(id, text);
    cr_assert_str_eq(text, "00010203-0405-0607-0809-0a0b0c0d0eff");
}

/* ---- the state directory's file ---- */

static char dir[64];
static int dfd;

static void open_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/sluice-ident-XXXXXX");
    cr_assert(mkdtemp(dir));
    dfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void drop_dir(void)
{
    (void)unlinkat(dfd, IDENT_NAME, 0);
    close(dfd);
    (void)rmdir(dir);
}

TestSuite(ident, .init = open_dir, .fini = drop_dir);

static void fill(struct ident *i)
{
    memset(i, 0, sizeof *i);
    memcpy(i->volume, "0123456789abcdef", 16);
    i->node = 3;
    i->created_ns = 1700000000123456789;
    i->profile = 1;
    i->caps = (struct store_caps){.if_absent = true, .checksum = true};
    snprintf(i->url, sizeof i->url, "s3://bucket/prefix");
    i->devices = 2;
    i->id[0] = 1;
    i->id[1] = 7;
    i->budget[1] = 1 << 30;
    i->path[0] = strdup("/srv/a");
    i->path[1] = strdup("/srv/b");
    i->draining[1] = true;
    i->drain_total[1] = 5000;
    i->next_id = 9;
    i->removed = 1;
    i->gone[0] = strdup("/srv/c");
}

static uint8_t *stored(size_t *len)
{
    struct ident i;
    char *raw;
    fill(&i);
    cr_assert_eq(ident_store(dfd, IDENT_NAME, &i), 0);
    ident_done(&i);
    cr_assert_eq(io_read_file(dfd, IDENT_NAME, 1 << 20, &raw, len), 0);
    return (uint8_t *)raw;
}

static void put(const uint8_t *raw, size_t len)
{
    int fd = openat(dfd, IDENT_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    cr_assert_eq(write(fd, raw, len), (ssize_t)len);
    close(fd);
}

static int load(const uint8_t *raw, size_t len)
{
    static struct ident i;
    put(raw, len);
    int r = ident_load(dfd, IDENT_NAME, &i);
    if (r < 0)
        for (unsigned k = 0; k < DEVICES_MAX; k++)
            cr_assert_null(i.path[k]);
    ident_done(&i);
    return r;
}

Test(ident, file_has_the_documented_bytes)
{
    static struct ident back;
    size_t len;
    uint8_t *raw = stored(&len);
    hex_is(raw, len, GOLDEN_FILE);
    free(raw);
    cr_assert_eq(ident_load(dfd, IDENT_NAME, &back), 0);
    cr_assert(!memcmp(back.volume, "0123456789abcdef", 16) && back.node == 3 && back.profile == 1);
    cr_assert_eq(back.created_ns, 1700000000123456789);
    cr_assert(back.caps.if_absent && !back.caps.if_match && back.caps.checksum && !back.caps.range);
    cr_assert_str_eq(back.url, "s3://bucket/prefix");
    cr_assert(back.devices == 2 && back.id[0] == 1 && back.id[1] == 7 && back.budget[1] == 1 << 30);
    cr_assert_str_eq(back.path[0], "/srv/a");
    cr_assert_str_eq(back.path[1], "/srv/b");
    cr_assert(!back.draining[0] && back.draining[1] && back.drain_total[1] == 5000);
    cr_assert(back.next_id == 9 && back.removed == 1);
    cr_assert_str_eq(back.gone[0], "/srv/c");
    ident_done(&back);
    cr_assert_eq(ident_load(dfd, "missing", &back), -ENOENT);
}

/* As written before devices could be drained and removed. */
Test(ident, version_1_is_read)
{
    static struct ident back;
    const char *hex = GOLDEN_FILE_1;
    uint8_t raw[200];
    size_t len = strlen(hex) / 2;
    for (size_t k = 0; k < len; k++) {
        unsigned v;
        cr_assert_eq(sscanf(hex + 2 * k, "%2x", &v), 1);
        raw[k] = (uint8_t)v;
    }
    put(raw, len);
    cr_assert_eq(ident_load(dfd, IDENT_NAME, &back), 0);
    cr_assert(back.devices == 2 && back.id[0] == 1 && back.id[1] == 7 && back.budget[1] == 1 << 30);
    cr_assert(!back.draining[1] && back.removed == 0 && back.next_id == 8);
    cr_assert_str_eq(back.path[1], "/srv/b");
    ident_done(&back);
}

Test(ident, ids_are_not_given_twice_and_removed_paths_are_bounded)
{
    static struct ident i, copy;
    char path[32];
    fill(&i);
    cr_assert_eq(ident_next(&i), 9);
    cr_assert_eq(ident_find(&i, "/srv/b"), 1);
    cr_assert_eq(ident_add(&i, "/srv/c", 0, ident_next(&i)), 0);
    cr_assert(i.removed == 0 && ident_find_gone(&i, "/srv/c") < 0, "not removed any more");
    cr_assert_eq(ident_next(&i), 10);
    ident_remove(&i, 2);
    cr_assert_eq(ident_next(&i), 10);
    cr_assert_eq(ident_find_gone(&i, "/srv/c"), 0);
    ident_remove(&i, 0);
    cr_assert(i.devices == 1 && i.id[0] == 7 && i.draining[0] && i.drain_total[0] == 5000);
    for (unsigned k = 0; k < 2 * DEVICES_MAX; k++) {
        snprintf(path, sizeof path, "/d%u", k);
        cr_assert_eq(ident_add(&i, path, k, ident_next(&i)), 0);
        ident_remove(&i, 1);
    }
    cr_assert_eq(i.removed, DEVICES_MAX);
    cr_assert_eq(ident_find_gone(&i, "/srv/c"), -1, "the oldest are forgotten");
    cr_assert_eq(ident_find_gone(&i, path), DEVICES_MAX - 1);
    cr_assert_eq(ident_next(&i), 10 + 2 * DEVICES_MAX);
    cr_assert_eq(ident_copy(&i, &copy), 0);
    cr_assert_eq(ident_store(dfd, IDENT_NAME, &i), 0);
    ident_done(&i);
    cr_assert_eq(ident_load(dfd, IDENT_NAME, &i), 0);
    cr_assert(i.next_id == ident_next(&copy) && i.removed == copy.removed);
    cr_assert_str_eq(i.path[0], copy.path[0]);
    cr_assert_str_eq(i.gone[3], copy.gone[3]);
    for (unsigned k = 1; k < DEVICES_MAX; k++)
        cr_assert_eq(ident_add(&i, path, 0, ident_next(&i)), 0);
    cr_assert_eq(ident_add(&i, path, 0, ident_next(&i)), -E2BIG);
    ident_done(&i);
    ident_done(&copy);
}

Test(ident, no_flipped_bit_and_no_other_length_passes)
{
    size_t len;
    uint8_t *raw = stored(&len);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_lt(load(raw, len), 0, "bit %zu", bit);
        raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < len; n++)
        cr_assert_eq(load(raw, n), -EBADMSG, "%zu bytes", n);
    raw = realloc(raw, len + 1);
    raw[len] = 0;
    cr_assert_eq(load(raw, len + 1), -EBADMSG);
    cr_assert_eq(load(raw, len), 0);
    free(raw);
}

Test(ident, hostile_lengths_and_counts_are_refused)
{
    size_t len;
    uint8_t *raw = stored(&len);
    /* URL, paths, a removed path */
    static const size_t lengths[] = {42, 62 + 4 + 21, 62 + 4 + 29 + 21, 62 + 4 + 2 * 29 + 1};
    for (size_t f = 0; f < sizeof lengths / sizeof *lengths; f++) {
        uint16_t was = get_le16(raw + lengths[f]);
        for (uint32_t v = 0; v <= 0xffff; v += v < 100 ? 1 : 1009) {
            if (v == was)
                continue;
            put_le16(raw + lengths[f], (uint16_t)v);
            sign(raw, len);
            cr_assert_lt(load(raw, len), 0, "field %zu length %u", lengths[f], v);
        }
        put_le16(raw + lengths[f], was);
    }
    for (unsigned v = 0; v < 256; v++) {
        raw[41] = (uint8_t)v;
        sign(raw, len);
        cr_assert_eq(load(raw, len), v == 2 ? 0 : -EBADMSG, "%u devices", v);
    }
    raw[41] = 2;
    for (unsigned v = 0; v < 256; v++) {
        raw[62 + 4 + 2 * 29] = (uint8_t)v;
        sign(raw, len);
        cr_assert_eq(load(raw, len), v == 1 ? 0 : -EBADMSG, "%u removed ones", v);
        raw[62 + 4 + 2 * 29] = 1;
        raw[62 + 4 + 12] = (uint8_t)v;
        sign(raw, len);
        cr_assert_eq(load(raw, len), v < 2 ? 0 : -EBADMSG, "flags %u", v);
        raw[62 + 4 + 12] = 0;
    }
    raw[40] = 2;
    sign(raw, len);
    cr_assert_eq(load(raw, len), -EBADMSG, "no such profile");
    raw[40] = 1;
    raw[44 + 3] = 0;
    sign(raw, len);
    cr_assert_eq(load(raw, len), -EBADMSG, "a NUL in the URL");
    raw[44 + 3] = '/';
    raw[len - 9] = 0;
    sign(raw, len);
    cr_assert_eq(load(raw, len), -EBADMSG, "a NUL in a path");
    put_le16(raw + 4, 3);
    sign(raw, len);
    cr_assert_eq(load(raw, len), -EPROTONOSUPPORT);
    free(raw);
}

Test(ident, what_cannot_be_read_again_is_not_written)
{
    static struct ident i;
    fill(&i);
    free(i.path[1]);
    i.path[1] = malloc(70001);
    memset(i.path[1], 'p', 70000);
    i.path[1][70000] = 0;
    cr_assert_eq(ident_store(dfd, IDENT_NAME, &i), -ENAMETOOLONG, "its length has 16 bits");
    cr_assert_eq(ident_load(dfd, IDENT_NAME, &i), -ENOENT);
}

Test(ident, as_many_devices_as_there_may_be_fit)
{
    static struct ident i, back;
    fill(&i);
    ident_done(&i);
    i.devices = DEVICES_MAX;
    for (unsigned k = 0; k < DEVICES_MAX; k++) {
        i.id[k] = k + 1;
        i.path[k] = malloc(1001);
        memset(i.path[k], 'a' + (int)(k % 26), 1000);
        i.path[k][1000] = 0;
    }
    cr_assert_eq(ident_store(dfd, IDENT_NAME, &i), 0);
    cr_assert_eq(ident_load(dfd, IDENT_NAME, &back), 0);
    cr_assert_eq(back.devices, DEVICES_MAX);
    for (unsigned k = 0; k < DEVICES_MAX; k++)
        cr_assert_str_eq(back.path[k], i.path[k]);
    ident_done(&i);
    ident_done(&back);
}
