/* test_kv.c: what the metadata store promises to its callers. */
#include "tests/unit/test_kv.h"

#include <pthread.h>
#include <sys/wait.h>
#include "fs/base/clock.h"

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
    door_use();
}

TestSuite(kv, .init = setup, .fini = dir_remove);

Test(kv, applied_batches_are_read_back)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "1"), 0);
    cr_assert_eq(put(kv, "b", ""), 0);
    expect(kv, "a", "1");
    expect(kv, "b", "");
    expect(kv, "c", NULL);
    cr_assert_eq(put(kv, "a", "2"), 0);
    expect(kv, "a", "2");
    cr_assert_eq(put(kv, "a", NULL), 0);
    expect(kv, "a", NULL);
    kv_close(kv);
    kv = must_open(&c);
    expect(kv, "a", NULL);
    expect(kv, "b", "");
    kv_close(kv);
}

Test(kv, a_small_buffer_gets_the_length_only)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a", "12345"), 0);
    for (int i = 0; i < 2; i++) { /* from the overlay, then from LMDB */
        char buf[4] = "xxx";
        cr_assert_eq(kv_get(kv, "a", 1, buf, 3), 5);
        cr_assert_str_eq(buf, "xxx");
        size_t klen;
        char key[8];
        cr_assert_eq(kv_last(kv, "a", 1, "b", 1, key, sizeof key, &klen, buf, 3), 5);
        cr_assert(klen == 1 && key[0] == 'a');
        cr_assert_str_eq(buf, "xxx");
        cr_assert_eq(kv_last(kv, "a", 1, "b", 1, key, 0, &klen, buf, 3), -ENOBUFS);
        kv_close(kv);
        kv = must_open(&c);
    }
    kv_close(kv);
}

Test(kv, an_empty_batch_changes_nothing_but_may_carry_an_origin)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    struct kv_batch b;
    kv_batch_init(&b);
    uint64_t seq = 99;
    cr_assert_eq(kv_apply(kv, &b, NULL, &seq), 0);
    cr_assert_eq(seq, 0);
    struct kv_origin o = {.unique = 5, .op = 1, .result = 2}, got;
    cr_assert_eq(kv_apply(kv, &b, &o, &seq), 0);
    cr_assert_eq(seq, 1);
    kv_batch_done(&b);
    kv_crash(kv);
    kv = must_open(&c);
    cr_assert(kv_find_origin(kv, 5, &got) && got.op == 1 && got.result == 2);
    cr_assert_eq(kv_seq(kv), 1);
    kv_close(kv);
}

Test(kv, later_operations_of_a_batch_win)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, "a", 1, "1", 1);
    kv_del(&b, "a", 1);
    kv_put(&b, "b", 1, "1", 1);
    kv_put(&b, "b", 1, "2", 1);
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_reset(&b);
    kv_put(&b, "c", 1, "3", 1);
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    expect_walk(kv, "", "", "b=2 c=3 ");
    kv_crash(kv);
    kv = must_open(&c);
    expect_walk(kv, "", "", "b=2 c=3 ");
    kv_close(kv);
}

Test(kv, the_largest_key_and_value_survive)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    static uint8_t key[KV_KEY_MAX], val[KV_VALUE_MAX], got[KV_VALUE_MAX];
    memset(key, 0xff, sizeof key);
    for (size_t i = 0; i < sizeof val; i++)
        val[i] = (uint8_t)(i * 7);
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, key, sizeof key, val, sizeof val);
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    for (int i = 0; i < 3; i++) {
        memset(got, 0, sizeof got);
        cr_assert_eq(kv_get(kv, key, sizeof key, got, sizeof got), KV_VALUE_MAX);
        cr_assert(memcmp(got, val, sizeof val) == 0);
        if (i == 0)
            kv_crash(kv);
        else
            kv_close(kv);
        kv = must_open(&c);
    }
    kv_close(kv);
}

Test(kv, every_batch_survives_death_at_once_and_again)
{
    struct kv_conf c = conf_plain();
    for (int i = 0; i < 40; i++) {
        struct kv *kv = must_open(&c);
        char k[16];
        for (int j = 0; j < i; j++) {
            snprintf(k, sizeof k, "k%02d", j);
            expect(kv, k, j % 3 ? k : NULL);
        }
        snprintf(k, sizeof k, "k%02d", i);
        uint64_t seq;
        cr_assert_eq(put_u(kv, k, k, (uint64_t)i + 100, &seq), 0);
        cr_assert_eq(seq, kv_seq(kv));
        if (i % 3 == 0)
            cr_assert_eq(put(kv, k, NULL), 0);
        struct kv_origin o;
        for (int j = 0; j <= i; j++)
            cr_assert(kv_find_origin(kv, (uint64_t)j + 100, &o) && o.result == (uint64_t)j + 101);
        if (i % 5 == 0)
            cr_assert_eq(kv_sync(kv, seq), 0);
        if (i % 7 == 0)
            kv_close(kv);
        else
            kv_crash(kv);
    }
}

Test(kv, origins_are_forgotten_unless_the_connection_survived)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put_u(kv, "a", "1", 7, NULL), 0);
    kv_crash(kv);
    c.keep_origins = false;
    kv = must_open(&c);
    struct kv_origin o;
    cr_assert(!kv_find_origin(kv, 7, &o));
    expect(kv, "a", "1");
    kv_close(kv);
}

Test(kv, origins_outlive_the_files_that_held_them)
{
    struct kv_conf c = conf_plain();
    c.checkpoint_ms = 1;
    struct kv *kv = must_open(&c);
    static char big[200000];
    memset(big, 'x', sizeof big - 1);
    cr_assert_eq(put_u(kv, "a", "1", 7, NULL), 0);
    char first[160], now[160];
    newest_journal(first);
    for (int i = 0; i < 25; i++)
        cr_assert_eq(put(kv, "big", big), 0);
    while (kv_step(kv) || kv_seq(kv) == 0)
        ;
    struct kv_usage u;
    for (int i = 0; i < 1000; i++) {
        usleep(1000);
        (void)kv_step(kv);
        kv_usage(kv, &u);
        if (u.overlay_keys == 0)
            break;
    }
    cr_assert_eq(u.overlay_keys, 0);
    newest_journal(now);
    cr_assert_str_neq(first, now, "a new file was begun");
    cr_assert_neq(access(first, F_OK), 0, "the old one is gone");
    kv_crash(kv);
    kv = must_open(&c);
    struct kv_origin o;
    cr_assert(kv_find_origin(kv, 7, &o) && o.result == 8);
    kv_close(kv);
}

Test(kv, walks_merge_memory_and_disk)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "a1", "old"), 0);
    cr_assert_eq(put(kv, "a3", "old"), 0);
    cr_assert_eq(put(kv, "a5", "old"), 0);
    cr_assert_eq(put(kv, "b1", "old"), 0);
    kv_close(kv);
    kv = must_open(&c);
    cr_assert_eq(put(kv, "a2", "new"), 0);
    cr_assert_eq(put(kv, "a3", NULL), 0);
    cr_assert_eq(put(kv, "a5", "new"), 0);
    cr_assert_eq(put(kv, "a", "new"), 0);
    expect_walk(kv, "a", "", "a=new a1=old a2=new a5=new ");
    expect_walk(kv, "a", "a2", "a2=new a5=new ");
    expect_walk(kv, "a", "a3", "a5=new ");
    expect_walk(kv, "b", "", "b1=old ");
    expect_walk(kv, "c", "", "");
    expect_walk(kv, "a", "b", "");
    expect_walk(kv, "", "", "a=new a1=old a2=new a5=new b1=old ");
    kv_close(kv);
}

static int stop_at_3(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    (void)k;
    (void)kl;
    (void)v;
    (void)vl;
    return ++*(int *)arg == 3 ? 77 : 0;
}

static int print_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    fprintf(arg, "%.*s=%.*s ", (int)kl, (const char *)k, (int)vl, (const char *)v);
    return 0;
}

Test(kv, walks_cross_chunks_and_stop_when_told)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    /* A third only in LMDB, a third only in memory, a third deleted in memory. */
    for (int i = 0; i < 3000; i++) {
        char k[16];
        snprintf(k, sizeof k, "k%05d", i);
        if (i % 3 != 1)
            cr_assert_eq(put(kv, k, "d"), 0);
    }
    kv_close(kv);
    kv = must_open(&c);
    for (int i = 0; i < 3000; i++) {
        char k[16];
        snprintf(k, sizeof k, "k%05d", i);
        if (i % 3)
            cr_assert_eq(put(kv, k, i % 3 == 1 ? "m" : NULL), 0);
    }
    static char want[200000], *got;
    size_t len = 0;
    for (int i = 0; i < 3000; i++)
        if (i % 3 != 2)
            len += (size_t)sprintf(want + len, "k%05d=%s ", i, i % 3 ? "m" : "d");
    got = calloc(1, sizeof want);
    FILE *f = fmemopen(got, sizeof want, "w");
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, print_row, f), 0);
    fclose(f);
    cr_assert_str_eq(got, want);
    free(got);
    int n = 0;
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, stop_at_3, &n), 77);
    cr_assert_eq(n, 3);
    kv_close(kv);
}

static struct kv *walked;

static int delete_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    (void)v;
    (void)vl;
    struct kv_batch b;
    kv_batch_init(&b);
    kv_del(&b, k, kl);
    int r = kv_apply(walked, &b, NULL, NULL);
    kv_batch_done(&b);
    ++*(int *)arg;
    if (*(int *)arg % 100 == 50) { /* everything moves to LMDB in the middle */
        clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
        (void)kv_step(walked);
    }
    return r;
}

Test(kv, a_walk_may_change_what_it_walks)
{
    clock_virtual_set(NS_PER_SEC);
    struct kv_conf c = conf_plain();
    struct kv *kv = walked = must_open(&c);
    for (int i = 0; i < 1000; i++) {
        char k[16];
        snprintf(k, sizeof k, "k%05d", i);
        cr_assert_eq(put(kv, k, "d"), 0);
        if (i == 500) {
            (void)kv_step(kv);
            clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
            cr_assert(kv_step(kv));
        }
    }
    int n = 0;
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, delete_row, &n), 0);
    cr_assert_eq(n, 1000);
    expect_walk(kv, "", "", "");
    kv_close(kv);
}

static void expect_last(struct kv *kv, const char *prefix, const char *upto, const char *want)
{
    char key[64], buf[64];
    size_t klen = 0;
    ssize_t n = kv_last(kv, prefix, strlen(prefix), upto, strlen(upto), key, sizeof key, &klen, buf,
                        sizeof buf);
    if (!want) {
        cr_assert_eq(n, -ENOENT, "%s..%s", prefix, upto);
        return;
    }
    cr_assert(n >= 0, "%s..%s: %zd", prefix, upto, n);
    char got[140];
    snprintf(got, sizeof got, "%.*s=%.*s", (int)klen, key, (int)n, buf);
    cr_assert_str_eq(got, want);
}

Test(kv, last_looks_behind_tombstones_and_into_both_places)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    expect_last(kv, "a", "a9", NULL);
    cr_assert_eq(put(kv, "a1", "d"), 0);
    cr_assert_eq(put(kv, "a3", "d"), 0);
    cr_assert_eq(put(kv, "a5", "d"), 0);
    cr_assert_eq(put(kv, "b1", "d"), 0);
    kv_close(kv);
    kv = must_open(&c);
    expect_last(kv, "a", "a9", "a5=d");
    expect_last(kv, "a", "a5", "a5=d");
    expect_last(kv, "a", "a4", "a3=d");
    expect_last(kv, "a", "a", NULL);
    expect_last(kv, "b", "z", "b1=d");
    expect_last(kv, "a", "z", "a5=d"); /* other keys lie between */
    expect_last(kv, "", "z", "b1=d");
    expect_last(kv, "\xff", "\xff\xff", NULL);
    cr_assert_eq(put(kv, "a5", NULL), 0);
    cr_assert_eq(put(kv, "a4", "m"), 0);
    cr_assert_eq(put(kv, "a3", "m"), 0);
    expect_last(kv, "a", "a9", "a4=m");
    expect_last(kv, "a", "a3", "a3=m");
    cr_assert_eq(put(kv, "a4", NULL), 0);
    cr_assert_eq(put(kv, "a3", NULL), 0);
    expect_last(kv, "a", "a9", "a1=d");
    cr_assert_eq(put(kv, "a1", NULL), 0);
    expect_last(kv, "a", "a9", NULL);
    kv_close(kv);
}

Test(kv, a_second_opener_is_refused)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c), *other;
    cr_assert_eq(kv_open(&c, &other, why, sizeof why), -EBUSY);
    cr_assert(strstr(why, "in use"));
    kv_close(kv);
    kv = must_open(&c);
    kv_close(kv);
}

static int count_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    (void)k;
    (void)kl;
    (void)v;
    cr_assert_eq(vl, 9999);
    ++*(int *)arg;
    return 0;
}

Test(kv, the_map_grows_when_it_is_full)
{
    struct kv_conf c = conf_plain();
    c.map_bytes = 1 << 17;
    c.overlay_bytes_max = 1 << 19;
    struct kv *kv = must_open(&c);
    static char big[10000];
    memset(big, 'x', sizeof big - 1);
    for (int i = 0; i < 1000; i++) {
        char k[16];
        snprintf(k, sizeof k, "k%05d", i);
        cr_assert_eq(put(kv, k, big), 0);
    }
    struct kv_usage u;
    kv_usage(kv, &u);
    cr_assert(u.lmdb_bytes > 8u << 20, "%llu", (unsigned long long)u.lmdb_bytes);
    cr_assert(u.overlay_bytes <= 1 << 20, "the bound holds");
    kv_close(kv);
    kv = must_open(&c);
    int n = 0;
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, count_row, &n), 0);
    cr_assert_eq(n, 1000);
    kv_close(kv);
}

/* ---- damage in LMDB ---- */

Test(kv, a_damaged_value_is_damage_not_absence)
{
    struct kv_conf c = conf_plain();
    struct kv *kv = must_open(&c);
    cr_assert_eq(put(kv, "key", "a value that can be found in the file"), 0);
    kv_close(kv);
    char path[160];
    snprintf(path, sizeof path, "%s/meta/data.mdb", kv_dir);
    static uint8_t buf[1 << 20];
    size_t len = file_read(path, buf, sizeof buf);
    int hits = 0;
    for (uint8_t *p = buf; (p = memmem(p, len - (size_t)(p - buf), "a value that", 12)); p++) {
        p[3] ^= 1;
        hits++;
    }
    cr_assert(hits > 0);
    file_write(path, buf, len);
    kv = must_open(&c);
    char got[64];
    size_t klen;
    cr_assert_eq(kv_get(kv, "key", 3, got, sizeof got), -EBADMSG);
    struct text t = {0};
    cr_assert_eq(kv_walk(kv, "k", 1, "", 0, text_row, &t), -EBADMSG);
    cr_assert_eq(kv_last(kv, "k", 1, "l", 1, got, sizeof got, &klen, got, sizeof got), -EBADMSG);
    kv_close(kv);
}
