/* The metadata store looked at whole: a value that does not match its hash is named, however it is read, and
 * the rows around it are still there. */
#include "test_kv.h"

static char seen[64][8];
static unsigned seen_n;

static int see(void *arg, const void *key, size_t klen)
{
    (void)arg;
    cr_assert(seen_n < 64 && klen < 8);
    memcpy(seen[seen_n], key, klen);
    seen[seen_n++][klen] = 0;
    return 0;
}

static int row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    return see(arg, key, klen);
}

static void store(struct kv *kv, const char *key, const char *val)
{
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, key, strlen(key), val, strlen(val));
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
}

/* Flips a bit wherever the text stands in the file. */
static void damage(const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/meta/data.mdb", kv_dir);
    FILE *f = fopen(path, "r+be");
    cr_assert(f);
    static char buf[1 << 22];
    size_t len = fread(buf, 1, sizeof buf, f), hits = 0;
    for (size_t i = 0; i + strlen(text) <= len; i++)
        if (!memcmp(buf + i, text, strlen(text))) {
            buf[i] ^= 4;
            hits++;
        }
    rewind(f);
    cr_assert(hits > 0 && fwrite(buf, 1, len, f) == len && fclose(f) == 0);
}

static struct kv *made(void)
{
    dir_make();
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    char key[8], val[32];
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "k%02d", i);
        snprintf(val, sizeof val, "the value of number %02d", i);
        store(kv, key, val);
    }
    kv_close(kv);
    damage("the value of number 30");
    damage("the value of number 07");
    seen_n = 0;
    return must_open(&c);
}

Test(kv_check, names_the_damaged_rows)
{
    struct kv *kv = made();
    uint64_t rows = 0;
    cr_assert_eq(kv_check(kv, see, NULL, &rows), 0);
    cr_assert_eq(seen_n, 2);
    cr_expect_str_eq(seen[0], "k07");
    cr_expect_str_eq(seen[1], "k30");
    cr_expect_eq(rows, 60);
    kv_crash(kv);
    dir_remove();
}

Test(kv_check, what_a_newer_value_covers_is_not_damaged)
{
    struct kv *kv = made();
    store(kv, "k30", "anew");
    struct kv_batch b;
    kv_batch_init(&b);
    kv_del(&b, "k07", 3);
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    cr_expect_eq(kv_check(kv, see, NULL, NULL), 0);
    cr_expect_eq(seen_n, 0);
    kv_close(kv); /* a checkpoint over the damage */
    struct kv_conf c = conf_plain();
    kv = must_open(&c);
    cr_expect_eq(kv_check(kv, see, NULL, NULL), 0);
    cr_expect_eq(seen_n, 0);
    cr_expect_eq(kv_walk(kv, "k", 1, "k", 1, row, NULL), 0);
    cr_expect_eq(seen_n, 59);
    kv_close(kv);
    dir_remove();
}

Test(kv_check, a_walk_shows_the_rows_before_damage_and_goes_on_behind_it)
{
    struct kv *kv = made();
    cr_expect_eq(kv_walk(kv, "k", 1, "k", 1, row, NULL), -EBADMSG);
    cr_assert_eq(seen_n, 7);
    cr_expect_str_eq(seen[6], "k06");
    seen_n = 0;
    cr_expect_eq(kv_walk(kv, "k", 1, "k08", 3, row, NULL), -EBADMSG);
    cr_assert_eq(seen_n, 22);
    cr_expect_str_eq(seen[0], "k08");
    cr_expect_str_eq(seen[21], "k29");
    kv_crash(kv);
    dir_remove();
}

static int stop(void *arg, const void *key, size_t klen)
{
    (void)arg, (void)key, (void)klen;
    return 77;
}

Test(kv_check, can_be_ended)
{
    struct kv *kv = made();
    cr_expect_eq(kv_check(kv, stop, NULL, NULL), 77);
    kv_crash(kv);
    dir_remove();
}
