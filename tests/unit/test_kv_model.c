/* test_kv_model.c: random work against a plain table, with deaths in between; threads at once. */
#include "tests/unit/test_kv.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include "fs/base/clock.h"

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
    door_use();
}

TestSuite(kv_model, .init = setup, .fini = dir_remove);

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 11) % n);
}

enum { KEYS = 400, VAL_MAX = 600 };

/* The model: key i is "k%03d" (or, for odd ones, one table further). len < 0: absent. */
static struct {
    int len;
    uint8_t seed;
} model[KEYS];

static size_t key_of(int i, char out[16])
{
    return (size_t)snprintf(out, 16, "%c%03d%s", i % 2 ? 'm' : 'k', i, i % 7 == 0 ? "x" : "");
}

static void value_of(int i, uint8_t out[VAL_MAX])
{
    for (int j = 0; j < model[i].len; j++)
        out[j] = (uint8_t)(model[i].seed + j * 31);
}

static int sorted[KEYS];

static int by_key(const void *a, const void *b)
{
    char x[16], y[16];
    key_of(*(const int *)a, x);
    key_of(*(const int *)b, y);
    return strcmp(x, y);
}

struct check {
    int pos; /* in `sorted` */
    int rows, stop_at;
    char prefix;
};

static int check_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    struct check *c = arg;
    char want[16];
    uint8_t val[VAL_MAX];
    while (c->pos < KEYS && model[sorted[c->pos]].len < 0)
        c->pos++;
    cr_assert(c->pos < KEYS, "a row too many: %.*s", (int)kl, (const char *)k);
    int i = sorted[c->pos++];
    size_t len = key_of(i, want);
    cr_assert(len == kl && memcmp(k, want, len) == 0, "%.*s instead of %s", (int)kl,
              (const char *)k, want);
    value_of(i, val);
    cr_assert((int)vl == model[i].len && (vl == 0 || memcmp(v, val, vl) == 0), "value of %s", want);
    return ++c->rows == c->stop_at ? 1 : 0;
}

static void check_walk(struct kv *kv)
{
    char from[16], prefix = rnd(2) ? 'k' : 'm';
    int start = (int)rnd(KEYS);
    size_t flen = rnd(2) ? key_of(sorted[start], from) : 0;
    from[flen] = 0;
    struct check c = {.prefix = prefix, .stop_at = rnd(4) ? 0 : 1 + (int)rnd(50)};
    for (; c.pos < KEYS; c.pos++) {
        char k[16];
        key_of(sorted[c.pos], k);
        if (k[0] == prefix && strcmp(k, from) >= 0)
            break;
        if (k[0] > prefix)
            c.pos = KEYS - 1;
    }
    int r = kv_walk(kv, &prefix, 1, from, flen, check_row, &c);
    cr_assert(r == 0 || (r == 1 && c.rows == c.stop_at));
    for (; r == 0 && c.pos < KEYS; c.pos++) {
        char k[16];
        key_of(sorted[c.pos], k);
        if (k[0] != prefix)
            break;
        cr_assert(model[sorted[c.pos]].len < 0, "%s is missing", k);
    }
}

static void check_last(struct kv *kv)
{
    char upto[16], prefix, got[16], want[16];
    uint8_t val[VAL_MAX], expect_val[VAL_MAX];
    int pos = (int)rnd(KEYS);
    size_t ulen = key_of(sorted[pos], upto), klen = 0;
    prefix = upto[0];
    ssize_t n = kv_last(kv, &prefix, 1, upto, ulen, got, sizeof got, &klen, val, sizeof val);
    for (; pos >= 0; pos--) {
        key_of(sorted[pos], want);
        if (want[0] != prefix)
            pos = 0;
        else if (model[sorted[pos]].len >= 0)
            break;
    }
    if (pos < 0) {
        cr_assert_eq(n, -ENOENT, "last <= %s: %zd", upto, n);
        return;
    }
    value_of(sorted[pos], expect_val);
    cr_assert(klen == strlen(want) && memcmp(got, want, klen) == 0, "last <= %s: %.*s not %s", upto,
              (int)klen, got, want);
    cr_assert((int)n == model[sorted[pos]].len && memcmp(val, expect_val, (size_t)n) == 0);
}

static void run(uint64_t seed)
{
    rng = seed;
    for (int i = 0; i < KEYS; i++) {
        model[i].len = -1;
        sorted[i] = i;
    }
    qsort(sorted, KEYS, sizeof *sorted, by_key);
    struct kv_conf c = conf_plain();
    c.overlay_bytes_max = 1 << 15;
    c.map_bytes = 1 << 17;
    struct kv *kv = must_open(&c);
    struct kv_batch b;
    kv_batch_init(&b);
    for (int step = 0; step < 1500; step++) {
        uint32_t what = rnd(100);
        if (what < 55) {
            kv_batch_reset(&b);
            for (uint32_t n = 1 + rnd(8); n; n--) {
                int i = (int)rnd(KEYS);
                char k[16];
                uint8_t v[VAL_MAX];
                size_t kl = key_of(i, k);
                model[i].len = rnd(3) ? (int)rnd(VAL_MAX) : -1;
                model[i].seed = (uint8_t)rnd(256);
                value_of(i, v);
                if (model[i].len < 0)
                    kv_del(&b, k, kl);
                else
                    kv_put(&b, k, kl, v, (size_t)model[i].len);
            }
            cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
        } else if (what < 75) {
            int i = (int)rnd(KEYS);
            char k[16];
            uint8_t v[VAL_MAX], w[VAL_MAX];
            size_t kl = key_of(i, k);
            ssize_t n = kv_get(kv, k, kl, v, sizeof v);
            value_of(i, w);
            cr_assert(model[i].len < 0 ? n == -ENOENT
                                       : n == model[i].len && memcmp(v, w, (size_t)n) == 0,
                      "%s: %zd", k, n);
        } else if (what < 83) {
            check_walk(kv);
        } else if (what < 91) {
            check_last(kv);
        } else if (what < 94) {
            cr_assert_eq(kv_sync(kv, kv_seq(kv)), 0);
        } else if (what < 97) {
            (void)kv_step(kv);
            clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
            (void)kv_step(kv);
        } else {
            if (rnd(3))
                kv_crash(kv);
            else
                kv_close(kv);
            kv = must_open(&c);
        }
    }
    struct check all = {0};
    cr_assert_eq(kv_walk(kv, "", 0, "", 0, check_row, &all), 0);
    kv_batch_reset(&b);
    for (int i = 0; i < KEYS; i++) {
        char k[16];
        kv_del(&b, k, key_of(i, k));
    }
    cr_assert_eq(kv_apply(kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    kv_close(kv);
}

Test(kv_model, random_work_agrees_with_a_plain_table, .timeout = 200)
{
    clock_virtual_set(NS_PER_SEC);
    const char *given = getenv("SLUICE_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
    for (int i = 0; i < (given ? 1 : 8); i++) {
        fprintf(stderr, "seed 0x%llx\n", (unsigned long long)(seed + (uint64_t)i));
        run(seed + (uint64_t)i);
    }
}

/* ---- threads: each owns the keys of its number, writes pairs atomically, and reads everybody's ---- */

enum { THREADS = 4, ROUNDS = 400 };
static struct kv *kv_shared;
static _Atomic int running;

struct pair {
    int rows;
    char first[16];
    size_t first_len;
};

static int pair_row(void *arg, const void *k, size_t kl, const void *v, size_t vl)
{
    struct pair *p = arg;
    (void)k;
    if (kl != 3 || vl > sizeof p->first)
        abort();
    memcpy(p->first, v, vl);
    p->first_len = vl;
    p->rows++;
    return 0;
}

static void *worker(void *arg)
{
    char me = (char)('0' + (intptr_t)arg), key[3] = {'p', me, 'a'};
    struct kv_batch b;
    kv_batch_init(&b);
    for (int i = 0; i < ROUNDS; i++) {
        char v[16], got[16];
        int n = snprintf(v, sizeof v, "%d", i);
        kv_batch_reset(&b);
        for (char c = 'a'; c < 'e'; c++) {
            key[2] = c;
            kv_put(&b, key, 3, v, (size_t)n);
        }
        uint64_t seq;
        if (kv_apply(kv_shared, &b, NULL, &seq) < 0)
            abort();
        key[2] = 'c';
        ssize_t len = kv_get(kv_shared, key, 3, got, sizeof got);
        if (len != n || memcmp(got, v, (size_t)n) != 0)
            abort(); /* nobody else writes it */
        if (i % 20 == 0 && kv_sync(kv_shared, seq) < 0)
            abort();
        struct pair p = {0};
        char prefix[2] = {'p', (char)('0' + (i % THREADS))};
        if (kv_walk(kv_shared, prefix, 2, "", 0, pair_row, &p) < 0)
            abort();
        if (prefix[1] == me && (p.rows != 4 || p.first_len != (size_t)n))
            abort();
        size_t klen;
        char lk[8];
        if (kv_last(kv_shared, prefix, 2, "q", 1, lk, sizeof lk, &klen, got, sizeof got) < 0 &&
            prefix[1] == me)
            abort();
    }
    kv_batch_done(&b);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

Test(kv_model, threads_see_their_own_writes_while_checkpoints_run, .timeout = 200)
{
    struct kv_conf c = conf_plain();
    c.threaded = true;
    c.checkpoint_ms = 1;
    c.map_bytes = 1 << 16;
    c.overlay_bytes_max = 4096;
    kv_shared = must_open(&c);
    pthread_t t[THREADS];
    atomic_store(&running, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, worker, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    uint64_t seq = kv_seq(kv_shared);
    cr_assert_eq(seq, THREADS * ROUNDS);
    kv_crash(kv_shared);
    kv_shared = must_open(&c);
    for (char i = '0'; i < '0' + THREADS; i++) {
        char key[4] = {'p', i, 'd', 0}, want[16];
        snprintf(want, sizeof want, "%d", ROUNDS - 1);
        expect(kv_shared, key, want);
    }
    kv_close(kv_shared);
}

/* ---- a real process, really killed ---- */

Test(kv_model, what_a_killed_process_acknowledged_is_there, .timeout = 200)
{
    _Atomic uint64_t *acked =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(acked != MAP_FAILED);
    for (int life = 0; life < 12; life++) {
        uint64_t begin = *acked;
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            struct kv_conf c = conf_plain();
            c.threaded = true;
            c.checkpoint_ms = 2;
            c.overlay_bytes_max = 20000;
            c.map_bytes = 1 << 16;
            struct kv *kv;
            if (kv_open(&c, &kv, why, sizeof why) < 0)
                _exit(1);
            for (uint64_t n = *acked + 1;; n++) {
                char v[700];
                snprintf(v, sizeof v, "%llu %0600d", (unsigned long long)n, 0);
                if (put_u(kv, "n", v, n, NULL) < 0)
                    _exit(2);
                atomic_store(acked, n);
            }
        }
        while (atomic_load(acked) < begin + 50 + (uint64_t)life * 137 &&
               waitpid(pid, NULL, WNOHANG) == 0)
            usleep(100);
        kill(pid, SIGKILL);
        int st = 0;
        waitpid(pid, &st, 0);
        cr_assert(WIFSIGNALED(st), "life %d ended by itself", life);

        struct kv_conf c = conf_plain();
        struct kv *kv = must_open(&c);
        char v[800] = "";
        cr_assert(kv_get(kv, "n", 1, v, sizeof v) > 0);
        uint64_t n = strtoull(v, NULL, 10);
        cr_assert(n == *acked || n == *acked + 1, "%llu acknowledged, %llu there",
                  (unsigned long long)*acked, (unsigned long long)n);
        struct kv_origin o;
        cr_assert(kv_find_origin(kv, n, &o) && !kv_find_origin(kv, n + 1, &o));
        *acked = n;
        if (life % 3 == 0)
            kv_close(kv);
        else
            kv_crash(kv);
    }
}
