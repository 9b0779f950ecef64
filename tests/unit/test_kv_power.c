/* test_kv_power.c: the metadata store on a disk that forgets. Random lives end by death of the process
 * or loss of power; then a prefix of the batches must be there, reaching at least to the last
 * acknowledged sync (power) or apply (process). LMDB itself runs on the real disk: its commits count
 * as durable, which is what it promises. */
#include "tests/unit/test_kv.h"

#include <time.h>
#include "fs/base/clock.h"
#include "tests/sim/simdisk.h"

static struct simdisk *sd;

static void setup(void)
{
    log_set_fd(-1);
    dir_make();
    sd = simdisk_new();
    simdisk_use(sd);
    clock_virtual_set(NS_PER_SEC);
}

TestSuite(kv_power, .init = setup, .fini = dir_remove, .timeout = 120);

static uint64_t rng;

static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 11) % n);
}

/* Batch s writes s to key "n" and to one of 16 slots, with padding: so "n" tells how far the history
 * goes, and every slot must agree with it. */
enum { SLOTS = 16, HISTORY = 100000 };
static uint8_t slot_of[HISTORY];

static int apply_next(struct kv *kv, uint32_t s)
{
    struct kv_batch b;
    char key[8], val[1200];
    kv_batch_init(&b);
    memset(val, 'p', sizeof val);
    int n = snprintf(val, sizeof val, "%u", s);
    kv_put(&b, "n", 1, val, (size_t)n);
    slot_of[s] = (uint8_t)rnd(SLOTS);
    snprintf(key, sizeof key, "s%02u", slot_of[s]);
    val[n] = ' ';
    kv_put(&b, key, 3, val, (size_t)n + 1 + rnd(1000));
    int r = kv_apply(kv, &b, NULL, NULL);
    kv_batch_done(&b);
    return r;
}

static uint32_t number_at(struct kv *kv, const char *key)
{
    char buf[1300] = "";
    ssize_t n = kv_get(kv, key, strlen(key), buf, sizeof buf - 1);
    if (n == -ENOENT)
        return 0;
    cr_assert(n > 0 && n < (ssize_t)sizeof buf, "%s: %zd", key, n);
    return (uint32_t)strtoul(buf, NULL, 10);
}

static uint32_t check(struct kv *kv, uint32_t at_least, uint32_t at_most)
{
    uint32_t s = number_at(kv, "n");
    cr_assert(s >= at_least && s <= at_most, "history ends at %u, not in %u..%u", s, at_least,
              at_most);
    cr_assert_eq(kv_seq(kv), s);
    for (unsigned i = 0; i < SLOTS; i++) {
        char key[8];
        snprintf(key, sizeof key, "s%02u", i);
        uint32_t want = s;
        while (want && slot_of[want] != i)
            want--;
        cr_assert_eq(number_at(kv, key), want, "slot %u", i);
    }
    return s;
}

static void lives(uint64_t seed, int count, bool faults)
{
    rng = seed;
    uint32_t applied = 0, synced = 0;
    for (int life = 0; life < count; life++) {
        struct kv_conf c = conf_plain();
        int root = c.dirfd = simdisk_root(sd);
        c.overlay_bytes_max = 20000;
        struct kv *kv = NULL;
        int r = kv_open(&c, &kv, why, sizeof why);
        cr_assert(r == 0, "life %d: %s: %s", life, err_name(r), why);
        applied = check(kv, synced, applied);
        for (uint32_t n = rnd(40); n && applied + 1 < HISTORY; n--) {
            if (faults && rnd(30) == 0)
                simdisk_fail(sd, rnd(2) ? SD_SYNC : SD_PWRITE, NULL, 1, 1, rnd(2) ? EIO : ENOSPC);
            r = apply_next(kv, applied + 1);
            if (r == -EROFS || r == -EIO)
                break;
            if (r == 0)
                applied++;
            if (rnd(4) == 0 && kv_sync(kv, kv_seq(kv)) == 0)
                synced = applied;
            if (rnd(10) == 0) {
                (void)kv_step(kv);
                clock_virtual_advance(3600ll * 1000 * NS_PER_MS);
                (void)kv_step(kv);
            }
        }
        simdisk_fail_none(sd);
        struct kv_usage u;
        kv_usage(kv, &u);
        cr_assert(u.durable_seq >= synced && u.seq == applied);
        if (rnd(10) == 0) {
            kv_close(kv);
            synced = applied;
            io_close(root);
        } else {
            kv_crash(kv);
            bool power = rnd(2);
            simdisk_crash(sd, NULL, power ? SIMDISK_POWER : SIMDISK_KILL, seed + (uint64_t)life);
            if (!power) /* the process alone loses nothing that was applied */
                synced = applied;
        }
    }
}

static uint64_t seed_given(void)
{
    const char *given = getenv("SLUICE_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
    fprintf(stderr, "seed 0x%llx\n", (unsigned long long)seed);
    return seed;
}

Test(kv_power, histories_keep_what_was_synced_and_have_no_holes)
{
    lives(seed_given(), 400, false);
}

Test(kv_power, the_same_on_a_failing_disk)
{
    lives(seed_given(), 400, true);
}

Test(kv_power, damage_to_synced_batches_is_refused_or_the_tail)
{
    struct kv_conf c = conf_plain();
    c.dirfd = simdisk_root(sd);
    struct kv *kv = must_open(&c);
    for (uint32_t s = 1; s <= 5; s++)
        cr_assert_eq(apply_next(kv, s), 0);
    cr_assert_eq(kv_sync(kv, 5), 0);
    cr_assert_eq(apply_next(kv, 6), 0);
    kv_crash(kv);
    int fd = io_open(c.dirfd, "journal/0000000000000001.j", O_RDWR, 0);
    cr_assert(fd >= 0);
    cr_assert_eq(io_pwrite_full(fd, "!", 1, 200, NULL), 0);
    io_close(fd);
    cr_assert_eq(kv_open(&c, &kv, why, sizeof why), -EBADMSG);
}
