/* Reading sealed segments, the descriptor LRU, scan, quarantine, unlink. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include "tests/support/segdir.h"

static struct segfile_id sealed(struct segdir *t, uint64_t ino, size_t len)
{
    struct segfile_id id = segdir_id(t, ino);
    struct segfile *s;
    uint64_t *hashes;
    size_t n;
    cr_assert_eq(segfile_create(t->devs, VOLUME, &id, 4 * MiB, &s), 0);
    segdir_append(s, len);
    cr_assert_eq(segfile_seal(s, &hashes, &n), 0);
    free(hashes);
    segfile_close(s);
    return id;
}

static void reads_any_alignment(bool direct)
{
    struct segdir t;
    struct segfds *fds;
    struct segfd *f;
    enum { LEN = 1000003 };
    segdir_make(&t);
    struct segfile_id id = sealed(&t, 5, LEN);
    cr_assert_eq(segfds_open(t.devs, &fds), 0);
    cr_assert_eq(segfd_get(fds, &id, direct, &f), 0);
    uint8_t *buf = aligned_alloc(4096, 2 * MiB);
    srand(4);
    for (int i = 0; i < 400; i++) {
        size_t pos = (size_t)rand() % LEN, len = 1 + (size_t)rand() % (i % 3 ? 5000 : LEN);
        size_t shift = i % 4 == 0 ? 0 : i % 4 == 1 ? 512 : (size_t)rand() % 4096;
        if (i % 5 == 0)
            pos -= pos % 4096;
        if (i % 7 == 0)
            len = LEN - pos;
        uint8_t *p = buf + shift;
        p[len] = 0xa5;
        if (pos + len > LEN) {
            cr_assert_eq(segfd_read(f, pos, p, len), -ENODATA);
            continue;
        }
        cr_assert_eq(segfd_read(f, pos, p, len), 0, "%zu %zu %zu", pos, len, shift);
        for (size_t k = 0; k < len; k++)
            if (p[k] != segdir_byte(pos + k))
                cr_assert_fail("read %zu+%zu to %zu: byte %zu", pos, len, shift, k);
        cr_assert_eq(p[len], 0xa5, "wrote behind the buffer");
    }
    cr_assert_eq(segfd_read(f, LEN, buf, 1), -ENODATA);
    cr_assert_eq(segfd_read(f, UINT64_MAX - 10, buf, 100), -ENODATA);
    uint64_t off;
    cr_assert_geq(segfd_raw(f, &off), 0);
    cr_assert_eq(off, id.header_bytes);
    free(buf);
    segfd_put(fds, f);
    segfds_close(fds);
    segdir_done(&t);
}

Test(segfd, direct_reads_of_any_alignment_give_the_bytes)
{
    reads_any_alignment(true);
}

Test(segfd, buffered_reads_give_the_bytes)
{
    reads_any_alignment(false);
}

Test(segfd, without_o_direct_reads_fall_back)
{
    if (access("/dev/shm", W_OK) != 0)
        cr_skip_test("no tmpfs at /dev/shm");
    setenv("TMPDIR", "/dev/shm", 1);
    reads_any_alignment(true);
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

Test(segfd, two_thousand_files_stay_within_the_descriptor_limit, .timeout = 120)
{
    enum { FILES = 2000 };
    struct segdir t;
    struct segfds *fds;
    struct segfd *first, *again, *f;
    struct rlimit lim = {SEGFD_MAX + 64, SEGFD_MAX + 64};
    static struct segfile_id ids[FILES];
    segdir_make(&t);
    for (unsigned i = 0; i < FILES; i++) {
        struct segfile *s;
        ids[i] = segdir_id(&t, 100 + i);
        cr_assert_eq(segfile_create(t.devs, VOLUME, &ids[i], 64 * KiB, &s), 0);
        segdir_append(s, 100);
        segfile_close(s);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    cr_assert_eq(segfds_open(t.devs, &fds), 0);
    unsigned before = open_fds();
    cr_assert_eq(segfd_get(fds, &ids[0], true, &first), 0);
    for (unsigned i = 1; i < FILES; i++) {
        uint8_t b[100];
        cr_assert_eq(segfd_get(fds, &ids[i], i % 2, &f), 0, "%u", i);
        cr_assert_eq(segfd_read(f, 0, b, sizeof b), 0);
        segfd_put(fds, f);
    }
    cr_assert_leq(open_fds(), before + SEGFD_MAX);
    cr_assert_eq(segfd_get(fds, &ids[0], true, &again), 0);
    cr_assert_eq(first, again, "the pinned one stayed");
    segfd_put(fds, again);
    segfd_put(fds, first);
    segfds_close(fds);
    cr_assert_eq(open_fds(), before);
    segdir_done(&t);
}

Test(segfd, descriptors_taken_by_others_make_idle_ones_go)
{
    struct segdir t;
    struct segfds *fds;
    struct segfd *f;
    segdir_make(&t);
    struct segfile_id a = sealed(&t, 5, 10), b = sealed(&t, 6, 10);
    cr_assert_eq(segfds_open(t.devs, &fds), 0);
    cr_assert_eq(segfd_get(fds, &a, false, &f), 0);
    segfd_put(fds, f);
    struct rlimit old, lim;
    getrlimit(RLIMIT_NOFILE, &old);
    int top = dup(0);
    close(top);
    lim = (struct rlimit){(rlim_t)top, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    cr_assert_eq(segfd_get(fds, &b, false, &f), 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    segfd_put(fds, f);
    segfds_close(fds);
    segdir_done(&t);
}

Test(segfd, unlinked_stays_readable_while_pinned_and_gives_its_space_back)
{
    struct segdir t;
    struct segfds *fds;
    struct segfd *f, *g;
    uint8_t b[10];
    segdir_make(&t);
    struct segfile_id id = sealed(&t, 5, 5000);
    cr_assert_eq(devs_used(t.devs), id.header_bytes + 5000);
    cr_assert_eq(segfds_open(t.devs, &fds), 0);
    unsigned before = open_fds();
    cr_assert_eq(segfd_get(fds, &id, true, &f), 0);
    cr_assert_eq(segfile_unlink(t.devs, fds, &id), 0);
    cr_assert_eq(devs_used(t.devs), 0);
    cr_assert_eq(segfile_unlink(t.devs, fds, &id), 0, "gone already");
    cr_assert_eq(devs_used(t.devs), 0);
    cr_assert_eq(segfd_read(f, 100, b, sizeof b), 0);
    cr_assert_eq(b[0], segdir_byte(100));
    cr_assert_eq(segfd_get(fds, &id, true, &g), -ENOENT);
    segfd_put(fds, f);
    cr_assert_eq(open_fds(), before, "closed with its last reader");
    segfds_close(fds);
    segdir_done(&t);
}

struct race {
    struct segdir *t;
    struct segfds *fds;
    struct segfile_id *ids;
};

static void *getter(void *arg)
{
    struct race *c = arg;
    uint8_t b[64];
    unsigned seed = (unsigned)(uintptr_t)&b;
    for (int i = 0; i < 3000; i++) {
        struct segfd *f;
        unsigned k = (unsigned)rand_r(&seed) % 8;
        int r = segfd_get(c->fds, &c->ids[k], i % 2, &f);
        if (r == -ENOENT)
            continue;
        cr_assert_eq(r, 0);
        cr_assert_eq(segfd_read(f, 17, b, sizeof b), 0);
        cr_assert_eq(b[0], segdir_byte(17));
        segfd_put(c->fds, f);
    }
    return NULL;
}

Test(segfd, readers_and_unlink_at_once_leave_no_descriptor, .timeout = 120)
{
    struct segdir t;
    struct segfile_id ids[8];
    struct race c = {.t = &t, .ids = ids};
    pthread_t th[4];
    segdir_make(&t);
    for (unsigned i = 0; i < 8; i++)
        ids[i] = sealed(&t, 50 + i, 9000);
    cr_assert_eq(segfds_open(t.devs, &c.fds), 0);
    unsigned before = open_fds();
    for (int i = 0; i < 4; i++)
        pthread_create(&th[i], NULL, getter, &c);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(segfile_unlink(t.devs, c.fds, &ids[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], NULL);
    cr_assert_eq(open_fds(), before);
    segfds_close(c.fds);
    segdir_done(&t);
}

/* ---- scan and quarantine ---- */

struct seen {
    unsigned good, bad, blank;
    uint64_t bytes;
    char bad_name[300];
};

static int see(void *arg, const struct segfile_id *id, const char *name, uint64_t bytes)
{
    struct seen *s = arg;
    if (id->ino) {
        s->good++;
        s->bytes += bytes;
        s->blank += id->header_bytes == 0;
        cr_assert_eq(id->topic, id->header_bytes ? 7 : 0);
    } else {
        s->bad++;
        snprintf(s->bad_name, sizeof s->bad_name, "%s", name);
    }
    return 0;
}

Test(segscan, explains_what_is_whole_and_sets_aside_what_is_not)
{
    struct segdir t;
    segdir_make(&t);
    for (uint64_t ino = 1; ino <= 20; ino++)
        sealed(&t, ino, 1000);
    struct segfile_id id = segdir_id(&t, 3);
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(pwrite(fd, "x", 1, 33), 1);
    close(fd);
    struct seen s = {0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 19 && s.bad == 1);
    cr_assert_eq(s.bytes, devs_used(t.devs) / 20 * 19);

    cr_assert_eq(segfile_quarantine(t.devs, t.id, s.bad_name), 0);
    cr_assert_eq(segfile_quarantine(t.devs, t.id, s.bad_name), -ENOENT);
    char path[160];
    snprintf(path, sizeof path, "%s/quarantine", t.path);
    DIR *d = opendir(path);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    cr_assert_eq(n, 1, "nothing is deleted");
    s = (struct seen){0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 19 && s.bad == 0);

    snprintf(path, sizeof path, "%s/segments/stray", t.path);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    s = (struct seen){0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert_str_eq(s.bad_name, "stray");
    cr_assert_eq(segfile_quarantine(t.devs, t.id, "stray"), 0);
    segdir_done(&t);
}

Test(segscan, a_file_whose_header_was_never_flushed_is_known_by_its_name)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = sealed(&t, 5, 1000);
    static const char zeros[SEG_PAGE_BYTES];
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
    struct seen s = {0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 1 && s.blank == 1 && s.bad == 0);
    cr_assert_eq(ftruncate(fd, 0), 0);
    s = (struct seen){0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 1 && s.blank == 1 && s.bad == 0, "nor was its size");
    cr_assert_eq(pwrite(fd, "x", 1, 1), 1);
    close(fd);
    s = (struct seen){0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 0 && s.bad == 1, "damage is something else");
    segdir_done(&t);
}

Test(segscan, a_copied_segment_under_another_name_is_not_believed)
{
    struct segdir t;
    segdir_make(&t);
    struct segfile_id id = sealed(&t, 5, 1000), other = id;
    char a[SEG_PATH_BYTES], b[SEG_PATH_BYTES], from[160], to[160];
    other.version = 2;
    seg_path(id.ino, id.base, id.version, a);
    seg_path(other.ino, other.base, other.version, b);
    snprintf(from, sizeof from, "%s/%s", t.path, a);
    snprintf(to, sizeof to, "%s/%s", t.path, b);
    cr_assert_eq(rename(from, to), 0);
    struct seen s = {0};
    cr_assert_eq(segfile_scan(t.devs, t.id, see, &s), 0);
    cr_assert(s.good == 0 && s.bad == 1);
    struct segfile *f;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &other, true, &f, NULL), -EBADMSG);
    segdir_done(&t);
}

Test(segscan, quarantine_refuses_names_that_lead_elsewhere)
{
    struct segdir t;
    segdir_make(&t);
    static const char *const bad[] = {"",           ".",    "..",    "../x", "ab/",   "ab/..",
                                      "ab/../../x", "zz/x", "abc/x", "/x",   "ab/x/y"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(segfile_quarantine(t.devs, t.id, bad[i]), -EINVAL, "%s", bad[i]);
    segdir_done(&t);
}
