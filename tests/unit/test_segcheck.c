/* Looking at segment files as fsck does: every flipped bit of a sealed file that means something is seen, and
 * a header written again is as good as the old one. */
#include <errno.h>
#include "fs/base/hash.h"
#include "fs/seg/segcheck.h"
#include "tests/support/segdir.h"

enum { LEN = BLOCK_BYTES + 70001, CAPACITY = 4 * BLOCK_BYTES };

static struct segdir t;
static struct segfile_id id;
static uint64_t *hashes;
static size_t n;

static struct segfile *make(bool seal)
{
    struct segfile *s;
    size_t done;
    segdir_make(&t);
    id = segdir_id(&t, 42);
    cr_assert_eq(segfile_create(t.devs, VOLUME, &id, CAPACITY, &s), 0);
    uint8_t *p = malloc(LEN);
    for (size_t i = 0; i < LEN; i++)
        p[i] = (uint8_t)(i * 7 + i / 251);
    cr_assert_eq(segfile_append(s, p, LEN, &done), 0);
    segfile_hash(s, 0, p, LEN);
    free(p);
    cr_assert_eq(segfile_sync(s), 0);
    if (seal)
        cr_assert_eq(segfile_seal(s, &hashes, &n), 0);
    return s;
}

static void done(void)
{
    free(hashes);
    segdir_done(&t);
}

static void flip(uint64_t off, unsigned bit)
{
    uint8_t b;
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(pread(fd, &b, 1, (off_t)off), 1);
    b ^= (uint8_t)(1u << bit);
    cr_assert_eq(pwrite(fd, &b, 1, (off_t)off), 1);
    close(fd);
}

static struct segcheck look(bool deep)
{
    struct segcheck c;
    segcheck_sealed(t.devs, VOLUME, &id, LEN, hashes, n, deep, NULL, NULL, &c);
    return c;
}

static bool good(const struct segcheck *c)
{
    return !(c->missing || c->unreadable || c->foreign || c->bad_header || c->shorter ||
             c->bad_blocks);
}

Test(segcheck, every_bit_of_a_sealed_file_counts)
{
    segfile_close(make(true));
    struct segcheck c = look(true);
    cr_assert(good(&c));
    cr_expect_eq(c.bytes, LEN);
    for (uint64_t off = 0; off < SEG_PAGE_BYTES + n * 8; off++) {
        flip(off, off % 8);
        c = look(false);
        cr_assert(!good(&c), "byte %llu of the header", (unsigned long long)off);
        flip(off, off % 8);
    }
    for (uint64_t off = 0; off < LEN; off += 4099) {
        flip(id.header_bytes + off, off % 8);
        c = look(false);
        cr_assert(good(&c), "only a deep look reads the data");
        c = look(true);
        cr_assert(c.bad_blocks == 1 && c.bad_first == off / BLOCK_BYTES && !c.bad_header);
        flip(id.header_bytes + off, off % 8);
    }
    c = look(true);
    cr_expect(good(&c), "and all were flipped back");
    done();
}

Test(segcheck, a_missing_and_a_short_file_are_told_apart)
{
    segfile_close(make(true));
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(ftruncate(fd, id.header_bytes + 1000), 0);
    struct segcheck c = look(true);
    cr_expect(c.shorter && !c.missing && c.size == 1000);
    cr_assert_eq(ftruncate(fd, 100), 0);
    c = look(false);
    cr_expect(c.shorter);
    close(fd);
    cr_assert_eq(segfile_unlink(t.devs, NULL, &id), 0);
    c = look(true);
    cr_expect(c.missing && !c.unreadable);
    id.device = 99;
    c = look(true);
    cr_expect(c.unreadable && c.err == -ENODEV);
    done();
}

Test(segcheck, a_file_of_another_segment_is_foreign)
{
    segfile_close(make(true));
    struct segfile_id other = id;
    struct segcheck c;
    static const uint8_t elsewhere[16] = "another volume!";
    segcheck_sealed(t.devs, elsewhere, &other, LEN, hashes, n, false, NULL, NULL, &c);
    cr_expect(c.foreign && !c.bad_header);
    done();
}

Test(segcheck, a_header_written_again_is_whole_and_reopens)
{
    segfile_close(make(true));
    int fd = segdir_raw(&t, &id);
    static const uint8_t junk[4096] = {1, 2, 3};
    cr_assert_eq(pwrite(fd, junk, sizeof junk, 0), (ssize_t)sizeof junk);
    cr_assert_eq(pwrite(fd, junk, sizeof junk, 4096), (ssize_t)sizeof junk);
    close(fd);
    struct segcheck c = look(true);
    cr_expect(c.bad_header && !c.bad_blocks);
    cr_assert_eq(segcheck_write_header(t.devs, VOLUME, &id, CAPACITY, LEN, hashes, n), 0);
    c = look(true);
    cr_expect(good(&c));
    struct segfile *s;
    uint64_t cut = 1;
    cr_assert_eq(segfile_reopen(t.devs, VOLUME, &id, false, &s, &cut), 0);
    cr_expect_eq(segfile_len(s), LEN, "proven as before, after a loss of power");
    cr_expect_eq(cut, 0);
    segfile_close(s);
    cr_expect_eq(segcheck_write_header(t.devs, VOLUME, &id, CAPACITY, LEN, hashes, 1 << 20),
                 -EINVAL);
    done();
}

Test(segcheck, damaged_data_is_written_again)
{
    segfile_close(make(true));
    uint8_t want = (uint8_t)(5000 * 7 + 5000 / 251);
    flip(id.header_bytes + 5000, 3);
    struct segcheck c = look(true);
    cr_expect_eq(c.bad_blocks, 1);
    cr_assert_eq(segcheck_write_data(t.devs, &id, 5000, &want, 1), 0);
    c = look(true);
    cr_expect(good(&c));
    done();
}

Test(segcheck, hashes_come_from_the_table_or_the_data)
{
    segfile_close(make(true));
    for (int from_data = 0; from_data < 2; from_data++) {
        uint64_t *h;
        size_t m;
        cr_assert_eq(segcheck_hashes(t.devs, &id, LEN, from_data, &h, &m), 0);
        cr_assert_eq(m, n);
        for (size_t i = 0; i < n; i++)
            if (from_data || h[i]) /* the unfinished block's need not be in the table */
                cr_expect_eq(h[i], hashes[i]);
        free(h);
    }
    done();
}

Test(segcheck, of_an_open_file_what_was_flushed_is_compared)
{
    struct segfile *s = make(false);
    struct segcheck c;
    segcheck_open(t.devs, VOLUME, &id, true, &c);
    cr_assert(good(&c));
    cr_expect_eq(c.bytes, LEN, "all of it was flushed, so all of it is proven");
    flip(id.header_bytes + 100, 0);
    segcheck_open(t.devs, VOLUME, &id, true, &c);
    cr_expect(c.bad_blocks == 1 && c.bad_first == 0);
    flip(id.header_bytes + 100, 0);
    flip(id.header_bytes + BLOCK_BYTES + 100, 0); /* the unfinished one */
    segcheck_open(t.devs, VOLUME, &id, true, &c);
    cr_expect(c.bad_blocks == 1 && c.bad_first == 1);
    size_t written;
    cr_assert_eq(segfile_append(s, "x", 1, &written), 0);
    segfile_hash(s, LEN, "x", 1);
    segcheck_open(t.devs, VOLUME, &id, true, &c);
    cr_expect(good(&c), "what was appended since is proven by nothing");
    flip(20, 1);
    segcheck_open(t.devs, VOLUME, &id, false, &c);
    cr_expect(c.bad_header);
    segfile_close(s);
    done();
}

Test(segcheck, an_open_file_must_hold_what_was_flushed)
{
    struct segfile *s = make(false);
    struct segcheck c;
    size_t written;
    cr_assert_eq(segfile_append(s, "xyz", 3, &written), 0);
    segfile_hash(s, LEN, "xyz", 3);
    cr_assert_eq(segfile_sync(s), 0); /* so the first one ended */
    segfile_close(s);
    int fd = segdir_raw(&t, &id);
    cr_assert_eq(ftruncate(fd, id.header_bytes + LEN), 0);
    segcheck_open(t.devs, VOLUME, &id, false, &c);
    cr_expect(good(&c) && c.flushed >= LEN, "the rest may never have been acknowledged");
    cr_assert_eq(ftruncate(fd, id.header_bytes + LEN - 1), 0);
    segcheck_open(t.devs, VOLUME, &id, false, &c);
    cr_expect(c.shorter && c.size == LEN - 1 && c.flushed == LEN);
    close(fd);
    done();
}
