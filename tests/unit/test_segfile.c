/* Open segments: bytes and hashes, reopening after kill -9 and after a loss of power. Failed calls:
 * test_segfail.c. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include "fs/base/hash.h"
#include "tests/support/faultio.c"
#include "tests/support/segdir.h"

static void poke(const struct segdir *t, const struct segfile_id *id, uint64_t off, const void *p,
                 size_t len)
{
    int fd = segdir_raw(t, id);
    cr_assert_eq(pwrite(fd, p, len, (off_t)off), (ssize_t)len);
    close(fd);
}

static void cut_file(const struct segdir *t, const struct segfile_id *id, uint64_t data_len)
{
    int fd = segdir_raw(t, id);
    cr_assert_eq(ftruncate(fd, (off_t)(id->header_bytes + data_len)), 0);
    close(fd);
}

static const uint8_t ZEROS[4096];

Test(segfile, random_pieces_give_the_bytes_and_the_hashes_of_one_piece)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 8 * MiB);
    srand(1);
    while (segfile_len(s) < 5 * MiB) {
        static const size_t sizes[] = {1, 100, 4096, 65536, 256 * 1024, 1024 * 1024};
        segdir_append(s, sizes[rand() % 6] - (size_t)(rand() % 2) * (size_t)(rand() % 100 == 0));
    }
    segdir_check(s);
    segdir_seal_matches(s);
    cr_assert_eq(devs_used(t.devs), id.header_bytes + segfile_len(s));
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, short_writes_lose_nothing_and_capacity_holds)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    faultio_start((struct faultio){.mask = FAULT_WRITE, .short_writes = true});
    struct segfile *s = segdir_create(&t, &id, MiB);
    segdir_append(s, 700000);
    cr_assert_eq(segfile_sync(s), 0);
    faultio_stop();
    uint8_t *big = calloc(1, MiB);
    size_t done = 1;
    cr_assert_eq(segfile_append(s, big, MiB, &done), -EFBIG);
    cr_assert_eq(done, 0);
    free(big);
    segdir_check(s);
    segdir_seal_matches(s);
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, second_create_is_eexist_and_leaves_the_first)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, MiB), *other;
    segdir_append(s, 1000);
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, MiB, &other), -EEXIST);
    segdir_check(s);
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, sync_is_needed_once)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, MiB);
    segdir_append(s, 1000);
    cr_assert_not(segfile_synced(s));
    int64_t mtime = segfile_mtime_ns(s);
    faultio_start((struct faultio){.mask = FAULT_SYNC});
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert(segfile_synced(s));
    cr_assert_eq(faultio_calls(), 3, "data, bucket, segments: %ld", faultio_calls());
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(faultio_calls(), 3, "nothing new, no flush");
    cr_assert_eq(segfile_mtime_ns(s), mtime, "a slot does not change the time of the data");
    segdir_append(s, 1);
    cr_assert_not(segfile_synced(s));
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(faultio_calls(), 4, "one flush for one sync");
    faultio_stop();
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, trusted_reopen_keeps_every_byte_and_goes_on)
{
    static const size_t lens[] = {0, 1, 4096, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 900000};
    struct segdir t;
    segdir_make(&t);
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        struct segfile_id id = segdir_id(&t, 10 + i);
        struct segfile *s = segdir_create(&t, &id, 2 * MiB);
        segdir_append(s, lens[i]);
        segfile_close(s);
        uint64_t cut = 9;
        s = segdir_reopen(&t, &id, true, &cut);
        cr_assert_eq(cut, 0);
        cr_assert_eq(segfile_len(s), lens[i]);
        segdir_append(s, 300000);
        cr_assert_eq(segfile_sync(s), 0);
        segdir_check(s);
        segdir_seal_matches(s);
        segfile_close(s);
    }
    segdir_done(&t);
}

Test(segfile, trusted_reopen_hashes_what_the_dead_daemon_had_not)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 4 * MiB);
    uint8_t *p = malloc(MiB);
    size_t done;
    segdir_append(s, 100000);
    segdir_fill(p, 100000, MiB);
    cr_assert_eq(segfile_append(s, p, MiB, &done), 0); /* killed before segfile_hash */
    free(p);
    segfile_close(s);
    s = segdir_reopen(&t, &id, true, NULL);
    cr_assert_eq(segfile_len(s), 100000 + MiB);
    faultio_start((struct faultio){.mask = FAULT_SYNC});
    cr_assert_eq(segfile_sync(s), 0);
    segdir_append(s, 1);
    long before = faultio_calls();
    cr_assert_eq(segfile_sync(s), 0);
    cr_assert_eq(faultio_calls(), before + 1, "all hashes are known again: one flush is enough");
    faultio_stop();
    segdir_check(s);
    segdir_seal_matches(s);
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, wrong_identity_is_refused)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5), wrong;
    struct segfile *s = segdir_create(&t, &id, MiB);
    segfile_close(s);
    wrong = id;
    wrong.topic++;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &wrong, true, &s, NULL), -EBADMSG);
    wrong.topic = 0; /* not known to the caller: the rest decides */
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &wrong, true, &s, NULL), 0);
    segfile_close(s);
    wrong = id;
    wrong.header_bytes += 4096;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &wrong, true, &s, NULL), -EBADMSG);
    wrong = id;
    wrong.ino++;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &wrong, true, &s, NULL), -ENOENT);
    poke(&t, &id, 40, "\xff", 1);
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &id, true, &s, NULL), -EBADMSG);
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &id, false, &s, NULL), -EBADMSG);
    segdir_done(&t);
}

/* ---- loss of power ---- */

/* A segment with a sync at `first` and one at `second` bytes, then `more` unsynced. */
static void two_syncs(struct segdir *t, struct segfile_id *id, size_t first, size_t second,
                      size_t more)
{
    struct segfile *s = segdir_create(t, id, 8 * MiB);
    segdir_append(s, first);
    cr_assert_eq(segfile_sync(s), 0);
    segdir_append(s, second - first);
    cr_assert_eq(segfile_sync(s), 0);
    segdir_append(s, more);
    segfile_close(s);
}

static void untrusted_gives(struct segdir *t, const struct segfile_id *id, uint64_t len)
{
    uint64_t cut, before, after;
    cr_assert_eq(segfile_stat(t->devs, id, &before, NULL), 0);
    struct segfile *s = segdir_reopen(t, id, false, &cut);
    cr_assert_eq(segfile_len(s), len, "%lu, not %lu", (unsigned long)segfile_len(s),
                 (unsigned long)len);
    cr_assert_eq(segfile_stat(t->devs, id, &after, NULL), 0);
    cr_assert_eq(after, id->header_bytes + len);
    cr_assert_eq(before - after, cut);
    segdir_check(s);
    segdir_append(s, 300000);
    cr_assert_eq(segfile_sync(s), 0);
    segdir_seal_matches(s);
    segfile_close(s);
}

Test(segfile, power_loss_keeps_what_is_proven_and_whole_blocks_behind)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 300000, 1000);
    untrusted_gives(&t, &id, 300000);
    id.ino = 6;
    two_syncs(&t, &id, 100000, 300000, 600000);
    untrusted_gives(&t, &id, 3 * BLOCK_BYTES);
    segdir_done(&t);
}

Test(segfile, power_loss_with_zeros_for_unflushed_data_cuts_them)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 300000, 600000);
    /* The size ran ahead of the data: the second block is not what was written. */
    poke(&t, &id, id.header_bytes + 2 * BLOCK_BYTES - 4096, ZEROS, 4096);
    untrusted_gives(&t, &id, 300000);
    segdir_done(&t);
}

Test(segfile, power_loss_with_a_slot_ahead_of_its_data_uses_the_older)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 200000, 0);
    poke(&t, &id, id.header_bytes + 150000, ZEROS, 4096);
    untrusted_gives(&t, &id, 100000);
    id.ino = 6;
    two_syncs(&t, &id, 100000, 200000, 0);
    cut_file(&t, &id, 199999);
    untrusted_gives(&t, &id, 100000);
    segdir_done(&t);
}

Test(segfile, power_loss_with_torn_slots)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 200000, 0);
    poke(&t, &id, SEG_SLOT_AT * 2 + 30, "\xff\xff", 2); /* the newer */
    untrusted_gives(&t, &id, 100000);
    id.ino = 6;
    two_syncs(&t, &id, 100000, 200000, 0);
    poke(&t, &id, SEG_SLOT_AT + 30, "\xff\xff", 2); /* the older */
    untrusted_gives(&t, &id, 200000);
    id.ino = 7;
    two_syncs(&t, &id, 100000, 300000, 0);
    poke(&t, &id, SEG_SLOT_AT + 30, "\xff\xff", 2);
    poke(&t, &id, SEG_SLOT_AT * 2 + 30, "\xff\xff", 2);
    untrusted_gives(&t, &id, BLOCK_BYTES);
    segdir_done(&t);
}

Test(segfile, power_loss_before_the_header_was_flushed_starts_empty)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, MiB);
    segdir_append(s, 1000);
    segfile_close(s);
    poke(&t, &id, 0, ZEROS, 4096);
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &id, true, &s, NULL), -EBADMSG);
    s = segdir_reopen(&t, &id, false, NULL);
    cr_assert_eq(segfile_len(s), 0);
    segdir_append(s, 5000);
    cr_assert_eq(segfile_sync(s), 0);
    segfile_close(s);
    untrusted_gives(&t, &id, 5000);
    segdir_done(&t);
}

Test(segfile, table_entries_ahead_of_the_data_are_not_believed_later)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 1000, 2000, 2 * BLOCK_BYTES);
    cut_file(&t, &id, 5000); /* table flushed, data not */
    struct segfile *s = segdir_reopen(&t, &id, false, NULL);
    cr_assert_eq(segfile_len(s), 2000);
    uint8_t *p = calloc(1, BLOCK_BYTES);
    size_t done;
    cr_assert_eq(segfile_append(s, p, BLOCK_BYTES, &done), 0); /* killed before segfile_hash */
    free(p);
    segfile_close(s);
    s = segdir_reopen(&t, &id, true, NULL);
    segdir_seal_matches(s);
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, power_loss_after_overwrites_keeps_the_synced_length)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 700000, 0);
    struct segfile *s = segdir_reopen(&t, &id, true, NULL);
    size_t done;
    cr_assert_eq(segfile_write(s, 650000, "changed", 7, &done), 0);
    cr_assert_eq(segfile_write(s, 50000, "changed", 7, &done), 0);
    segfile_close(s); /* never synced; both versions of those bytes would be right */
    uint64_t cut;
    s = segdir_reopen(&t, &id, false, &cut);
    cr_assert_eq(segfile_len(s), 700000);
    segdir_append(s, 10);
    segdir_seal_matches(s);
    segfile_close(s);
    segdir_done(&t);
}

Test(segfile, power_loss_after_a_cut_and_new_bytes_never_shows_zeros)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    two_syncs(&t, &id, 100000, 200000, 0);
    struct segfile *s = segdir_reopen(&t, &id, true, NULL);
    cr_assert_eq(segfile_truncate(s, 150000), 0);
    segdir_append(s, 70000);
    segfile_close(s);
    poke(&t, &id, id.header_bytes + 160000, ZEROS, 4096);
    untrusted_gives(&t, &id, 150000);
    segdir_done(&t);
}

/* ---- overwriting ---- */

Test(segfile, overwrites_holes_and_truncates_read_back_and_seal)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 4 * MiB);
    uint8_t *model = calloc(1, 4 * MiB), *p = malloc(MiB), *got = malloc(4 * MiB);
    size_t len = 0, done;
    srand(2);
    for (int i = 0; i < 300; i++) {
        size_t pos = (size_t)rand() % (3 * MiB), n = 1 + (size_t)rand() % 200000;
        switch (rand() % 6) {
        case 0:
            cr_assert_eq(segfile_write(s, pos, memset(p, i, n), n, &done), 0);
            memset(model + pos, i, n);
            len = max_u64(len, pos + n);
            break;
        case 1:
            pos = rand() % 3 ? pos : pos / BLOCK_BYTES * BLOCK_BYTES;
            cr_assert_eq(segfile_truncate(s, pos), 0);
            memset(model + pos, 0, 4 * MiB - pos);
            len = pos;
            break;
        case 2:
            cr_assert_eq(segfile_sync(s), 0);
            break;
        case 3:
            segfile_close(s);
            s = segdir_reopen(&t, &id, rand() % 2, NULL);
            len = segfile_len(s);
            memset(model + len, 0, 4 * MiB - len);
            break;
        default:
            if (len + n <= 4 * MiB) {
                cr_assert_eq(segfile_append(s, memset(p, i, n), n, &done), 0);
                segfile_hash(s, len, p, n);
                memset(model + len, i, n);
                len += n;
            }
        }
        cr_assert_eq(segfile_len(s), len);
        cr_assert_eq(segfile_read(s, 0, got, len), 0);
        cr_assert_eq(memcmp(got, model, len), 0, "step %d", i);
        cr_assert_eq(devs_used(t.devs), id.header_bytes + len, "step %d", i);
    }
    segdir_seal_matches(s);
    segfile_close(s);
    free(model), free(p), free(got);
    segdir_done(&t);
}

Test(segfile, sealed_is_extended_after_reopen)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 2 * MiB);
    segdir_append(s, 300000);
    segdir_seal_matches(s);
    segfile_close(s);
    for (int trusted = 0; trusted < 2; trusted++) {
        uint64_t cut;
        s = segdir_reopen(&t, &id, trusted, &cut);
        cr_assert_eq(cut, 0);
        segdir_append(s, 300000);
        segdir_check(s);
        segdir_seal_matches(s);
        segfile_close(s);
    }
    segdir_done(&t);
}

/* ---- threads ---- */

struct crowd {
    struct segfile *s;
    _Atomic uint64_t hashed;
    atomic_bool stop;
};

static void *syncer(void *arg)
{
    struct crowd *c = arg;
    while (!atomic_load(&c->stop)) {
        cr_assert_eq(segfile_sync(c->s), 0);
        segfile_release_cache(c->s, 65536);
        (void)segfile_mtime_ns(c->s);
    }
    return NULL;
}

static void *reader(void *arg)
{
    struct crowd *c = arg;
    uint8_t buf[5000];
    for (unsigned seed = 1; !atomic_load(&c->stop);) {
        uint64_t len = segfile_len(c->s);
        if (len < sizeof buf)
            continue;
        uint64_t pos = (uint64_t)rand_r(&seed) % (len - sizeof buf + 1);
        cr_assert_eq(segfile_read(c->s, pos, buf, sizeof buf), 0);
        for (size_t i = 0; i < sizeof buf; i += 97)
            cr_assert_eq(buf[i], segdir_byte(pos + i));
    }
    return NULL;
}

Test(segfile, appends_hashes_syncs_and_reads_at_once, .timeout = 120)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct crowd c = {.s = segdir_create(&t, &id, 16 * MiB)};
    pthread_t th[4];
    pthread_create(&th[0], NULL, syncer, &c);
    pthread_create(&th[1], NULL, syncer, &c);
    pthread_create(&th[2], NULL, reader, &c);
    pthread_create(&th[3], NULL, reader, &c);
    for (unsigned seed = 3; segfile_len(c.s) < 8 * MiB;) {
        size_t n = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 20000 : 700000), done;
        if (rand_r(&seed) % 16 == 0) {
            /* Beside the syncs, an overwrite with the same bytes. */
            uint64_t len = segfile_len(c.s), pos = (uint64_t)rand_r(&seed) % (len + 1);
            uint8_t *p = malloc(n);
            segdir_fill(p, pos, n);
            cr_assert_eq(segfile_write(c.s, pos, p, n, &done), 0);
            free(p);
        } else {
            segdir_append(c.s, n);
        }
    }
    atomic_store(&c.stop, true);
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], NULL);
    cr_assert_eq(segfile_sync(c.s), 0);
    segdir_check(c.s);
    segdir_seal_matches(c.s);
    segfile_close(c.s);
    uint64_t cut;
    c.s = segdir_reopen(&t, &id, false, &cut);
    cr_assert_eq(cut, 0);
    segdir_check(c.s);
    segfile_close(c.s);
    segdir_done(&t);
}
