/* Segment files when calls fail: a flush that failed stays failed, also for the next daemon, until the medium
 * has the bytes; and each call fails once. */
#include <errno.h>
#include "tests/support/faultio.c"
#include "tests/support/segdir.h"

static const uint8_t ZEROS[4096];

Test(segfail, failed_flush_stays_failed_until_the_medium_matches)
{
    struct segdir t;
    uint32_t dev;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 2 * MiB);
    segdir_append(s, 300000);
    cr_assert_eq(segfile_sync(s), 0);
    segdir_append(s, 300000);
    faultio_start((struct faultio){.mask = FAULT_SYNC, .at = 1, .err = EIO});
    cr_assert_eq(segfile_sync(s), -EIO);
    faultio_stop();
    cr_assert_eq(dev_pick(t.devs, &dev), -EIO, "no new segments");
    cr_assert_not(segfile_synced(s));

    uint8_t was[16];
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(pread(fd, was, 16, id.header_bytes + 590000), 16);
    cr_assert_eq(pwrite(fd, ZEROS, 16, id.header_bytes + 590000), 16); /* lost on the medium */
    cr_assert_eq(fsync(fd), 0);
    cr_assert_eq(segfile_sync(s), -EIO);
    cr_assert_eq(segfile_sync(s), -EIO);
    segdir_append(s, 10);
    segfile_close(s);
    s = segdir_reopen(&t, &id, true, NULL);
    cr_assert_eq(segfile_sync(s), -EIO, "reopening heals nothing");
    segfile_close(s);
    cr_assert_eq(pwrite(fd, was, 16, id.header_bytes + 590000), 16);
    close(fd);
    s = segdir_reopen(&t, &id, true, NULL);
    struct segfile_id probe = id;
    struct segfds *fds;
    struct segfd *f;
    cr_assert_eq(segfds_open(t.devs, &fds), 0);
    cr_assert_eq(segfd_get(fds, &probe, true, &f), 0);
    segfd_put(fds, f);
    segfds_close(fds);
    int r = segfile_sync(s);
    int probe_fd = open(t.path, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (probe_fd < 0) {
        cr_assert_eq(r, -EIO, "without O_DIRECT nothing can be proven");
    } else {
        close(probe_fd);
        cr_assert_eq(r, 0, "read back from the medium and equal");
        cr_assert(segfile_synced(s));
    }
    segfile_close(s);
    segdir_done(&t);
}

/* A daemon that dies closes nothing: the next one has a new `devs` over the same directory. */
static void another_daemon(struct segdir *t, bool mounted_anew)
{
    segdir_open(t);
    dev_recall_failures(t->devs, t->id, mounted_anew);
}

Test(segfail, failed_flush_is_known_to_the_next_daemon)
{
    struct segdir t;
    segdir_make(&t);
    struct devs *first = t.devs;
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *dead = segdir_create(&t, &id, 2 * MiB);
    segdir_append(dead, 300000);
    faultio_start((struct faultio){.mask = FAULT_SYNC, .at = 1, .err = EIO});
    cr_assert_eq(segfile_sync(dead), -EIO);
    faultio_start((struct faultio){.mask = FAULT_OPEN, .at = 1, .err = EIO});
    segdir_append(dead, 5000);
    cr_assert_eq(segfile_sync(dead), -EIO, "not healed, and the new length is noted");
    faultio_stop();

    uint8_t was[16];
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(pread(fd, was, 16, id.header_bytes + 304000), 16);
    cr_assert_eq(pwrite(fd, ZEROS, 16, id.header_bytes + 304000), 16); /* lost on the medium */
    cr_assert_eq(fsync(fd), 0);
    struct segfile *s;
    for (unsigned life = 0; life < 2; life++) {
        another_daemon(&t, false);
        s = segdir_reopen(&t, &id, true, NULL);
        cr_assert_eq(segfile_sync(s), -EIO, "life %u", life);
        segfile_close(s);
        devs_close(t.devs);
    }
    cr_assert_eq(pwrite(fd, was, 16, id.header_bytes + 304000), 16);
    close(fd);
    another_daemon(&t, false);
    s = segdir_reopen(&t, &id, true, NULL);
    int probe_fd = open(t.path, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    int healed = segfile_sync(s);
    cr_assert_eq(healed, probe_fd < 0 ? -EIO : 0, "%d: read back as it was noted", healed);
    segfile_close(s);
    devs_close(t.devs);
    another_daemon(&t, probe_fd < 0); /* healed; or the file system was mounted anew */
    s = segdir_reopen(&t, &id, true, NULL);
    cr_assert_eq(segfile_sync(s), 0);
    segdir_check(s);
    segfile_close(s);
    if (probe_fd >= 0)
        close(probe_fd);
    segfile_close(dead);
    devs_close(first);
    segdir_done(&t);
}

Test(segfail, what_is_unlinked_has_no_failed_flush_any_more)
{
    struct segdir t;
    struct stat st;
    char path[96];
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 2 * MiB);
    segdir_append(s, 1000);
    faultio_start((struct faultio){.mask = FAULT_SYNC, .at = 1, .err = EIO});
    cr_assert_eq(segfile_sync(s), -EIO);
    faultio_stop();
    snprintf(path, sizeof path, "%s/failed", t.path);
    cr_assert_eq(rmdir(path), -1, "a note is there");
    cr_assert_eq(segfile_unlink(t.devs, NULL, &id), 0);
    segfile_close(s);
    cr_assert_eq(rmdir(path), 0, "the note went with the segment");

    /* One that was written after the segment had gone. */
    char rel[SEG_PATH_BYTES], note[160];
    seg_path(id.ino, id.base, id.version, rel);
    snprintf(note, sizeof note, "%s%s", path, strrchr(rel, '/'));
    cr_assert_eq(mkdir(path, 0700), 0);
    int fd = open(note, O_CREAT | O_WRONLY, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
    dev_recall_failures(t.devs, t.id, false);
    cr_assert_eq(stat(note, &st), -1, "tells of nothing");
    segdir_done(&t);
}

Test(segfail, failed_write_behind_fails_the_next_sync)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = segdir_id(&t, 5);
    struct segfile *s = segdir_create(&t, &id, 2 * MiB);
    segdir_append(s, MiB);
    segfile_release_cache(s, 0);
    faultio_start((struct faultio){.mask = FAULT_CACHE, .at = 1, .err = EIO});
    segfile_release_cache(s, 0);
    faultio_start((struct faultio){.mask = FAULT_OPEN, .at = 1, .err = EIO, .all = true});
    cr_assert_eq(segfile_sync(s), -EIO, "sync_file_range has eaten the error of the flush");
    faultio_stop();
    segfile_close(s);
    segdir_done(&t);
}

/* One life of a segment; how far it came is *acked, the length that was acknowledged as durable. */
static int life(struct segdir *t, struct segfile_id *id, uint64_t *acked)
{
    struct segfile *s;
    uint8_t *p = malloc(MiB);
    size_t done;
    *acked = 0;
    int r = segfile_create(t->devs, VOLUME, id, 2 * MiB, &s);
    if (r < 0) {
        free(p);
        return r;
    }
    for (int i = 0; r == 0 && i < 4; i++) {
        uint64_t pos = segfile_len(s);
        segdir_fill(p, pos, 200000);
        r = segfile_append(s, p, 200000, &done);
        segfile_hash(s, pos, p, done);
        if (r == 0)
            r = segfile_sync(s);
        if (r == 0)
            *acked = segfile_len(s);
    }
    if (r == 0)
        r = segfile_truncate(s, 700000);
    if (r == 0)
        *acked = 700000;
    if (r == 0)
        r = segfile_sync(s);
    uint64_t *hashes = NULL;
    size_t n;
    if (r == 0)
        r = segfile_seal(s, &hashes, &n);
    free(hashes);
    segfile_close(s);
    free(p);
    return r;
}

Test(segfail, every_call_fails_once_and_nothing_acknowledged_is_lost, .timeout = 120)
{
    for (long at = 1;; at++) {
        struct segdir t;
        segdir_make(&t);
        struct segfile_id id = segdir_id(&t, 5);
        uint64_t acked, cut;
        const int err = at % 2 ? EIO : ENOSPC;
        faultio_start((struct faultio){.mask = FAULT_ANY & ~FAULT_STAT, .at = at, .err = err});
        int r = life(&t, &id, &acked);
        bool struck = faultio_calls() >= at;
        faultio_stop();
        cr_assert(r == 0 || r == -err, "call %ld: %d", at, r);
        struct segfile *s;
        for (int trusted = 0; trusted < 2 && id.header_bytes; trusted++) {
            r = segfile_reopen(t.devs, VOLUME, &id, trusted, &s, &cut);
            if (r == -ENOENT && acked == 0)
                break;
            cr_assert_eq(r, 0, "call %ld: %d", at, r);
            cr_assert_geq(segfile_len(s), acked, "call %ld: %lu of %lu", at,
                          (unsigned long)segfile_len(s), (unsigned long)acked);
            segdir_check(s);
            segdir_seal_matches(s);
            segfile_close(s);
            cr_assert_eq(devs_used(t.devs),
                         segfile_len(s = segdir_reopen(&t, &id, true, NULL)) + id.header_bytes);
            segfile_close(s);
        }
        if (!id.header_bytes)
            cr_assert_eq(devs_used(t.devs), 0, "call %ld", at);
        segdir_done(&t);
        if (!struck)
            break;
    }
}
