/* segsync.c: making an open segment durable, with proof and without a second flush.
 *
 * One sync:  hash table entries -> proof slot -> fdatasync -> (first time) directory entry.
 * The slot claims a length and may reach the medium before the data it claims. Hence two slots: when
 * slot n+1 is written, the flush of slot n has succeeded, so everything n claims is on the medium; n+1
 * itself is checked against the block hashes when the file is opened after a loss of power. A slot
 * never goes over the last one that was flushed: after a failed flush the same place is used again.
 *
 * Where hashes are unknown (patchy: something was overwritten, or lies in a hole) a slot proves nothing.
 * Then the data is flushed first and the slot, marked FLUSHED, with a second flush. Before the first
 * overwrite or cut below what an unflushed slot claims, a FLUSHED one must replace it on the medium
 * (seg_disturb); else the slot's hashes would no longer match and acknowledged bytes would be cut.
 *
 *   unflushed_len   the longest claim on the medium that needs hashes: overwriting below it needs that
 *   claim_len       the longest claim of any kind: cutting below it needs that
 *   proven_len      claim of the last slot whose flush succeeded
 *
 * A failed flush (`failed`) is final, because the kernel has marked the pages clean: later syncs fail
 * with the same error until all bytes since the last good flush were read again from the medium,
 * past the page cache, and matched their hashes (heal). Unknown hashes cannot match; such a segment
 * keeps failing. sync_file_range with a wait consumes the error that fdatasync would report, so its
 * errors count as failed flushes too.
 *
 * Concurrent syncs: the first flushes, those that wait behind it mostly find their bytes covered.
 */
#include "fs/seg/seg_int.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"

/* What one slot will claim, taken at one moment under the state lock. */
struct claim {
    uint64_t len, tail_hash, wgen;
    bool patchy;
};

int seg_flush_table(struct segfile *s)
{
    LOCK_SCOPE(&s->table);
    for (;;) {
        uint8_t raw[64 * 8];
        lock_acquire(&s->state);
        size_t at = s->dirty_lo, n = s->dirty_hi - s->dirty_lo;
        if (n > sizeof raw / 8)
            n = sizeof raw / 8;
        for (size_t i = 0; i < n; i++)
            put_le64(raw + i * 8, seg_get_hash(s, at + i));
        s->dirty_lo += n;
        lock_release(&s->state);
        if (n == 0)
            return 0;
        int r = io_pwrite_full(s->fd, raw, n * 8, SEG_PAGE_BYTES + at * 8, NULL);
        if (r < 0) {
            LOCK_SCOPE(&s->state);
            s->dirty_hi = s->dirty_lo == s->dirty_hi ? at + n : max_u64(s->dirty_hi, at + n);
            s->dirty_lo = min_u64(s->dirty_lo, at);
            return r;
        }
    }
}

/* ---- failures ---- */

/* Remembers a failed flush. */
static int flush_failed(struct segfile *s, const char *what, int r)
{
    atomic_store(&s->failed, -r);
    dev_mark_failed(s->dev, what, r);
    seg_failure_note(s, -r);
    log_err(LC_SEG,
            "inode %llu, segment at %llu: %s: %s: its fsync fails until the bytes are read back",
            (unsigned long long)s->ino, (unsigned long long)s->base, what, err_name(r));
    return r;
}

static int flush(struct segfile *s)
{
    int64_t t = clock_mono_ns();
    int r = io_sync(s->fd, true);
    histogram_add(s->devs->sync_seconds, clock_mono_ns() - t);
    return r < 0 ? flush_failed(s, "flushing a segment", r) : 0;
}

static bool block_matches(struct segfile *s, size_t block, const void *buf, size_t len,
                          uint64_t tail_hash)
{
    uint64_t want = tail_hash;
    if (len == BLOCK_BYTES) {
        LOCK_SCOPE(&s->state);
        want = seg_get_hash(s, block);
    }
    return want != 0 && want == hash64(buf, len);
}

/* Reads everything since the last good flush from the medium. True: all of it is there. */
static bool read_back(struct segfile *s)
{
    char path[SEG_PATH_BYTES];
    uint32_t mem, off;
    seg_path(s->ino, s->base, s->version, path);
    int fd = seg_open_read(s->dev, path, true, &mem, &off);
    if (fd < 0)
        return false;
    uint64_t len, at, tail_hash = 0;
    {
        LOCK_SCOPE(&s->state);
        len = s->hashed;
        at = min_u64(atomic_load(&s->durable_len), len) / BLOCK_BYTES * BLOCK_BYTES;
        if (s->tail_known && s->tail && len % BLOCK_BYTES)
            tail_hash = hash64_stream_value(s->tail);
        /* Overwritten stretches below durable_len were not flushed either. */
        if (atomic_load(&s->wgen) != atomic_load(&s->durable_wgen))
            at = 0;
    }
    /* Without O_DIRECT a read would come from the page cache and prove nothing. */
    bool good = mem != 0;
    void *buf = NULL;
    if (good && posix_memalign(&buf, SEG_PAGE_BYTES, BLOCK_BYTES) != 0)
        good = false;
    while (good && at < len) {
        size_t n = min_u64(BLOCK_BYTES, len - at);
        good = seg_read_direct(fd, mem, off, s->header_bytes + at, buf, n) == 0 &&
               block_matches(s, at / BLOCK_BYTES, buf, n, tail_hash);
        at += n;
    }
    free(buf);
    io_close(fd);
    return good;
}

/* After a failed flush: back to health when the medium has the bytes. The header is written again by
 * hand, so the flush that follows covers it. */
static int heal(struct segfile *s)
{
    int err = atomic_load(&s->failed);
    assert(lock_is_mine(&s->sync));
    if (s->dir_failed || !read_back(s))
        return -err;
    int r = io_pwrite_full(s->fd, s->ident, sizeof s->ident, 0, NULL);
    if (r < 0)
        return -err;
    {
        LOCK_SCOPE(&s->state);
        s->dirty_lo = 0;
        s->dirty_hi = max_u64(s->dirty_hi, s->hashed / BLOCK_BYTES);
    }
    atomic_store(&s->failed, 0);
    return 0;
}

/* ---- slots ---- */

/* After kill -9 nobody knows whether the newest slot was ever flushed; it must be before the other
 * one may be overwritten. */
static int confirm(struct segfile *s)
{
    if (s->confirmed)
        return 0;
    int r = flush(s);
    if (r == 0)
        s->confirmed = true;
    return r;
}

static int64_t data_mtime(struct segfile *s, uint64_t len, uint64_t wgen)
{
    {
        LOCK_SCOPE(&s->state);
        if (s->mtime_len == len && s->mtime_wgen == wgen)
            return s->mtime_ns;
    }
    struct stat st;
    if (io_stat(s->fd, &st) < 0)
        return clock_wall_ns();
    return (int64_t)st.st_mtim.tv_sec * NS_PER_SEC + st.st_mtim.tv_nsec;
}

/* Writes and flushes one slot. */
static int put_slot(struct segfile *s, const struct claim *c, uint16_t flags, int64_t mtime_ns)
{
    uint8_t raw[SEG_SLOT_BYTES];
    struct seg_slot slot = {.seq = s->slot_seq + 1,
                            .len = c->len,
                            .tail_hash = c->tail_hash,
                            .mtime_ns = mtime_ns,
                            .ident_hash = s->ident_hash,
                            .flags = flags};
    seg_slot_encode(&slot, raw);
    s->slot_seq++;
    int r = io_pwrite_full(s->fd, raw, sizeof raw, SEG_SLOT_AT * (1 + s->slot_pos), NULL);
    if (r < 0) {
        if (dev_err_is_bad(r))
            dev_mark_failed(s->dev, "writing a proof slot", r);
        return r;
    }
    r = flush(s);
    if (r < 0)
        return r;
    s->slot_pos ^= 1;
    s->proven_len = c->len;
    LOCK_SCOPE(&s->state);
    if (flags & SLOT_FLUSHED)
        s->unflushed_len = 0;
    s->mtime_len = c->len;
    s->mtime_wgen = c->wgen;
    s->mtime_ns = mtime_ns;
    return 0;
}

/* Replaces, on the medium, claims that reach behind `from` by one that does not lean on hashes. */
static int weaken(struct segfile *s, uint64_t from, bool cut)
{
    struct claim c = {0};
    LOCK_SCOPE(&s->sync);
    int r = -atomic_load(&s->failed);
    if (r == 0)
        r = confirm(s);
    if (r < 0)
        return r;
    {
        LOCK_SCOPE(&s->state);
        s->patchy = true; /* so that no later claim leans on hashes again */
        c.len = cut ? min_u64(s->proven_len, from) : s->proven_len;
        c.wgen = atomic_load(&s->wgen);
    }
    r = put_slot(s, &c, SLOT_FLUSHED, data_mtime(s, c.len, c.wgen));
    if (r < 0)
        return r;
    LOCK_SCOPE(&s->state);
    s->claim_len = c.len;
    return 0;
}

bool segfile_write_flushes(struct segfile *s, uint64_t pos)
{
    LOCK_SCOPE(&s->state);
    return s->unflushed_len > min_u64(pos, segfile_len(s));
}

int seg_disturb(struct segfile *s, uint64_t from, uint64_t to, bool cut)
{
    for (;;) {
        {
            /* Test and settling are one step: a claim taken later sees the settled state. */
            LOCK_SCOPE(&s->state);
            if ((cut ? s->claim_len : s->unflushed_len) <= from) {
                seg_forget(s, from, to);
                s->cutting = cut;
                if (cut)
                    s->hashed = from;
                break;
            }
        }
        int r = weaken(s, from, cut);
        if (r < 0)
            return r;
    }
    /* "Unknown" must stand in the file before the bytes change: after kill -9 a hash in the table is
     * taken as true. */
    return seg_flush_table(s);
}

static void take_claim(struct segfile *s, uint64_t want_len, struct claim *c)
{
    LOCK_SCOPE(&s->state);
    uint64_t len = segfile_len(s);
    if (s->hashed < min_u64(want_len, len) && !s->cutting)
        seg_forget(s, len, len); /* never hashed, against the contract: known as unknown */
    c->len = s->hashed;
    c->wgen = atomic_load(&s->wgen);
    c->tail_hash = 0;
    if (c->len % BLOCK_BYTES) {
        if (s->tail_known && s->tail)
            c->tail_hash = hash64_stream_value(s->tail);
        else
            s->patchy = true;
    }
    c->patchy = s->patchy;
    s->claim_len = max_u64(s->claim_len, c->len);
    if (!c->patchy)
        s->unflushed_len = max_u64(s->unflushed_len, c->len);
}

/* Makes the file's name durable, and that of its bucket. */
static int sync_names(struct segfile *s)
{
    if (s->dir_durable)
        return 0;
    char path[SEG_PATH_BYTES];
    seg_path(s->ino, s->base, s->version, path);
    *strrchr(path, '/') = 0;
    _Atomic uint8_t *bucket = &s->dev->bucket_durable[seg_bucket(s->ino)];
    const char *dirs[2] = {path, atomic_load(bucket) ? NULL : "segments"};
    for (unsigned i = 0; i < 2 && dirs[i]; i++) {
        int fd = io_open(s->dev->dirfd, dirs[i], O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0)
            return fd;
        int r = io_sync(fd, false);
        io_close(fd);
        if (r < 0) {
            s->dir_failed = true; /* nothing can be read back to prove a name */
            return flush_failed(s, "flushing a directory of segments", r);
        }
    }
    atomic_store(bucket, 1);
    s->dir_durable = true;
    return 0;
}

/* One complete flush; sync held. `flags`: SLOT_SEALED or 0. */
static int prove(struct segfile *s, uint64_t want_len, uint16_t flags)
{
    struct claim c;
    assert(lock_is_mine(&s->sync));
    int r = confirm(s);
    if (r < 0)
        return r;
    take_claim(s, want_len, &c);
    int64_t mtime_ns = data_mtime(s, c.len, c.wgen);
    r = seg_flush_table(s);
    if (r < 0)
        return r;
    if (c.patchy) {
        flags |= SLOT_FLUSHED;
        r = flush(s);
        if (r < 0)
            return r;
    }
    r = put_slot(s, &c, flags, mtime_ns);
    if (r == 0)
        r = sync_names(s);
    if (r < 0)
        return r;
    atomic_store(&s->durable_len, c.len);
    atomic_store(&s->durable_wgen, c.wgen);
    return 0;
}

static bool covered(const struct segfile *s, uint64_t len, uint64_t wgen)
{
    return atomic_load(&s->durable_wgen) == wgen && atomic_load(&s->durable_len) >= len &&
           s->dir_durable && s->confirmed;
}

/* Healing ends only with a flush that succeeded. */
static int prove_or_heal(struct segfile *s, uint64_t want_len, uint16_t flags)
{
    int err = atomic_load(&s->failed);
    int r = err ? heal(s) : 0;
    if (r == 0)
        r = prove(s, want_len, flags);
    if (err && r < 0) {
        atomic_store(&s->failed, err);
        seg_failure_note(s, err); /* bytes may have been appended since */
    }
    if (err && r == 0) {
        seg_failure_over(s->dev, s->ino, s->base, s->version);
        log_warn(LC_SEG,
                 "inode %llu, segment at %llu: read back from the device and complete after %s",
                 (unsigned long long)s->ino, (unsigned long long)s->base, err_name(err));
    }
    return r;
}

int segfile_sync(struct segfile *s)
{
    uint64_t wgen = atomic_load(&s->wgen);
    uint64_t len = segfile_len(s);
    LOCK_SCOPE(&s->sync);
    if (!atomic_load(&s->failed) && covered(s, len, wgen))
        return 0;
    return prove_or_heal(s, len, 0);
}

/* ---- seal ---- */

/* Reads what has no known hash and hashes it; sync held, nobody appends. */
static int hash_unknown(struct segfile *s)
{
    AUTO_FREE uint8_t *buf = NULL;
    uint64_t len = segfile_len(s);
    for (uint64_t at = 0; at < len; at += BLOCK_BYTES) {
        size_t n = min_u64(BLOCK_BYTES, len - at);
        {
            LOCK_SCOPE(&s->state);
            if (n == BLOCK_BYTES ? seg_get_hash(s, at / BLOCK_BYTES) != 0
                                 : s->tail_known && s->tail)
                continue;
        }
        if (!buf && !(buf = malloc(BLOCK_BYTES)))
            return -ENOMEM;
        int r = io_pread_full(s->fd, buf, n, s->header_bytes + at);
        if (r < 0)
            return r == -ENODATA ? -EIO : r;
        counter_add(s->devs->read, n);
        LOCK_SCOPE(&s->state);
        if (n == BLOCK_BYTES) {
            seg_set_hash(s, at / BLOCK_BYTES, hash64(buf, n));
            if (seg_get_hash(s, at / BLOCK_BYTES) == 0)
                return -ENOMEM;
        } else {
            s->hashed = at;
            seg_tail_feed(s, buf, n);
            if (!s->tail_known)
                return -ENOMEM;
        }
    }
    return 0;
}

int segfile_seal(struct segfile *s, uint64_t **ret_hashes, size_t *ret_n)
{
    LOCK_SCOPE(&s->sync);
    uint64_t len = segfile_len(s);
    {
        LOCK_SCOPE(&s->state);
        if (s->hashed < len)
            seg_forget(s, len, len);
    }
    int r = hash_unknown(s);
    if (r == 0)
        r = prove_or_heal(s, len, SLOT_SEALED);
    if (r < 0)
        return r;

    size_t n = (len + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t *out = calloc(n ? n : 1, sizeof *out);
    if (!out)
        return -ENOMEM;
    LOCK_SCOPE(&s->state);
    for (size_t b = 0; b < len / BLOCK_BYTES; b++)
        out[b] = seg_get_hash(s, b);
    if (len % BLOCK_BYTES)
        out[n - 1] = hash64_stream_value(s->tail);
    atomic_store(&s->sealed, true);
    *ret_hashes = out;
    *ret_n = n;
    return 0;
}

/* ---- page cache ---- */

void segfile_release_cache(struct segfile *s, uint64_t keep)
{
    uint64_t page = SEG_PAGE_BYTES, len = segfile_len(s);
    uint64_t end = len / page * page;
    uint64_t started = atomic_load(&s->started), dropped = atomic_load(&s->dropped);
    if (end > started) {
        /* Only begins: the wait comes with the next call, when it is mostly over. */
        if (io_writeback(s->fd, s->header_bytes + started, end - started, false) == 0)
            atomic_store(&s->started, end);
    }
    uint64_t until = len > keep ? (len - keep) / page * page : 0;
    until = min_u64(until, started);
    if (until <= dropped)
        return;
    int r = io_writeback(s->fd, s->header_bytes + dropped, until - dropped, true);
    if (r < 0) {
        if (dev_err_is_bad(r) || r == -ENOSPC || r == -EDQUOT)
            (void)flush_failed(s, "writing back a segment", r);
        return;
    }
    if (io_drop(s->fd, s->header_bytes + dropped, until - dropped) == 0)
        atomic_store(&s->dropped, until);
}
