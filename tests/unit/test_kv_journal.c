/* test_kv_journal.c: the journal's bytes, and what replay makes of damaged ones. */
#include "tests/unit/test_kv.h"

#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/meta/kv_priv.h"

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
    door_use();
}

TestSuite(kv_journal, .init = setup, .fini = dir_remove);

static uint8_t image[1 << 20], work[1 << 20];

static void hex_eq(const uint8_t *p, size_t len, const char *want)
{
    char got[1024];
    for (size_t i = 0; i < len; i++)
        snprintf(got + 2 * i, 3, "%02x", p[i]);
    cr_assert_str_eq(got, want);
}

Test(kv_journal, bytes_are_as_written_down)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, "k", 1, "val", 3);
    kv_del(&b, "xy", 2);
    struct kv_origin o = {.unique = 0x1122, .op = 9, .result = 0x33};
    cr_assert_eq(kv_apply(kv, &b, &o, NULL), 0);
    kv_batch_done(&b);
    kv_crash(kv);
    char path[160];
    newest_journal(path);
    size_t len = file_read(path, image, sizeof image);
    hex_eq(image, len,
           "534b564a01000000" /* magic, version */
           "0100000000000000" /* id */
           "0100000000000000" /* first sequence */
           "0000000000000000" /* durable */
           "264a68a7f05246ca"
           "534b564201000000" /* magic, operations */
           "1400000002000000" /* payload, number */
           "0100000000000000" /* sequence */
           "0000000000000000" /* durable */
           "22110000000000000900000000000000"
           "3300000000000000"
           "010100030000006b76616c"
           "02020000000000"
           "7879"
           "0a442e2147d863b3");
}

/* Three batches, the last one with two keys; *starts gets where each begins, and the end. */
static size_t three(struct kv_conf *c, char path[static 160], size_t starts[static 4],
                    bool sync_second)
{
    struct kv *kv = must_open(c);
    newest_journal(path);
    uint64_t seq;
    starts[0] = file_read(path, image, sizeof image);
    cr_assert_eq(put_u(kv, "a", "1", 1, NULL), 0);
    starts[1] = file_read(path, image, sizeof image);
    cr_assert_eq(put_u(kv, "b", "2", 2, &seq), 0);
    if (sync_second)
        cr_assert_eq(kv_sync(kv, seq), 0);
    starts[2] = file_read(path, image, sizeof image);
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, "c", 1, "3", 1);
    kv_del(&b, "a", 1);
    struct kv_origin o = {.unique = 3};
    cr_assert_eq(kv_apply(kv, &b, &o, NULL), 0);
    kv_batch_done(&b);
    kv_crash(kv);
    return starts[3] = file_read(path, image, sizeof image);
}

/* LMDB as it was before the journal: a copy of its file is put back before each try. */
static uint8_t lmdb[1 << 18];
static size_t lmdb_len;
static char lmdb_path[160];

static void lmdb_save(void)
{
    snprintf(lmdb_path, sizeof lmdb_path, "%s/meta/data.mdb", kv_dir);
    lmdb_len = file_read(lmdb_path, lmdb, sizeof lmdb);
}

/* Puts the state back with this journal file as the only one. */
static void restore(const char *path, const uint8_t *buf, size_t len)
{
    char other[160];
    file_write(lmdb_path, lmdb, lmdb_len);
    for (;;) {
        newest_journal(other);
        if (strcmp(other, path) == 0 || other[strlen(other) - 1] == '/')
            break;
        cr_assert_eq(unlink(other), 0);
    }
    file_write(path, buf, len);
}

Test(kv_journal, a_tail_torn_at_any_byte_loses_that_batch_only)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, true);
    lmdb_save();
    for (size_t cut = at[2]; cut <= len; cut++) {
        restore(path, image, cut);
        struct kv *kv = must_open(&c);
        expect_walk(kv, "", "", cut == len ? "b=2 c=3 " : "a=1 b=2 ");
        struct kv_origin o;
        cr_assert(kv_find_origin(kv, 2, &o));
        cr_assert_eq(kv_find_origin(kv, 3, &o), cut == len);
        /* Life goes on from there, and ends again. */
        cr_assert_eq(put(kv, "d", "4"), 0);
        cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
        cr_assert_eq(put(kv, "e", "5"), 0);
        kv_crash(kv);
        kv = must_open(&c);
        expect_walk(kv, "", "", cut == len ? "b=2 c=3 d=4 e=5 " : "a=1 b=2 d=4 e=5 ");
        kv_crash(kv);
    }
}

Test(kv_journal, every_flipped_bit_of_the_last_batch_is_noticed)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, true);
    lmdb_save();
    for (size_t bit = at[2] * 8; bit < len * 8; bit++) {
        memcpy(work, image, len);
        work[bit / 8] ^= (uint8_t)(1 << (bit % 8));
        restore(path, work, len);
        struct kv *kv = must_open(&c);
        expect_walk(kv, "", "", "a=1 b=2 ");
        kv_crash(kv);
    }
}

Test(kv_journal, damage_before_a_batch_that_calls_it_durable_is_refused)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, true);
    lmdb_save();
    for (size_t bit = 0; bit < at[2] * 8; bit++) {
        memcpy(work, image, len);
        work[bit / 8] ^= (uint8_t)(1 << (bit % 8));
        restore(path, work, len);
        struct kv *kv = NULL;
        int r = kv_open(&c, &kv, why, sizeof why);
        cr_assert(r == -EBADMSG, "bit %zu: %d", bit, r);
        cr_assert(strstr(why, "journal: batch "), "%s", why);
    }
}

Test(kv_journal, damage_among_batches_that_were_never_durable_is_a_torn_end)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, false);
    lmdb_save();
    static const char *const want[] = {"", "a=1 ", "a=1 b=2 "};
    for (int batch = 0; batch < 3; batch++) {
        memcpy(work, image, len);
        memset(work + at[batch], 0, at[batch + 1] - at[batch]); /* a sector that never arrived */
        restore(path, work, len);
        struct kv *kv = must_open(&c);
        expect_walk(kv, "", "", want[batch]);
        cr_assert_eq(kv_seq(kv), (uint64_t)batch);
        /* The sequences are used again; what was behind the gap must stay dead. */
        cr_assert_eq(put(kv, "z", "9"), 0);
        cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
        cr_assert_eq(put(kv, "z", "8"), 0);
        kv_crash(kv);
        kv = must_open(&c);
        expect(kv, "z", "8");
        expect(kv, "c", NULL);
        kv_crash(kv);
    }
}

Test(kv_journal, old_files_that_come_back_are_void_beyond_the_new_ones_first)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, false);
    memset(image + at[0], 0, at[1] - at[0]); /* batch 1 never arrived, 2 and 3 did */
    file_write(path, image, len);
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "x", "1"), 0);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    kv_crash(kv);
    file_write(path, image, len); /* its removal was not durable */
    kv = must_open(&c);
    expect_walk(kv, "", "", "x=1 ");
    kv_close(kv);
    file_write(path, image, len);
    kv = must_open(&c);
    expect_walk(kv, "", "", "x=1 ");
    kv_close(kv);
}

Test(kv_journal, a_missing_file_is_noticed)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    kv_crash(kv);
    lmdb_save();
    char path[160];
    size_t at[4];
    (void)three(&c, path, at, true);
    kv = must_open(&c); /* replayed, checkpointed; a new file begins at 4 */
    cr_assert_eq(put(kv, "d", "4"), 0);
    kv_crash(kv);
    file_write(lmdb_path, lmdb, lmdb_len); /* an old LMDB beside a new journal */
    int r = kv_open(&c, &kv, why, sizeof why);
    cr_assert_eq(r, -EBADMSG);
    cr_assert(strstr(why, "batch 1 is missing"), "%s", why);
}

Test(kv_journal, a_newer_version_is_not_damage)
{
    struct kv_conf c = conf_plain();
    char path[160];
    size_t at[4];
    size_t len = three(&c, path, at, true);
    put_le16(image + 4, 2);
    put_le64(image + 32, hash64(image, 32));
    file_write(path, image, len);
    struct kv *kv;
    cr_assert_eq(kv_open(&c, &kv, why, sizeof why), -EPROTONOSUPPORT);
    cr_assert(strstr(why, "newer"), "%s", why);
}

Test(kv_journal, foreign_files_and_empty_ones_are_ignored)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    kv_crash(kv);
    char path[160];
    snprintf(path, sizeof path, "%s/journal/00000000000000ff.j", kv_dir);
    file_write(path, (const uint8_t *)"", 0); /* begun, then the power went */
    snprintf(path, sizeof path, "%s/journal/note.txt", kv_dir);
    file_write(path, (const uint8_t *)"x", 1);
    kv = must_open(&c);
    expect(kv, "a", "1");
    cr_assert_eq(put(kv, "b", "2"), 0);
    cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "a=1 b=2 ");
    kv_close(kv);
    cr_assert_eq(access(path, F_OK), 0);
}
