/* segfile.c: an open segment: create, append, overwrite, read. Flushing is in segsync.c, opening of
 * existing files in segopen.c.
 *
 *   0            hashed              len              capacity
 *   |-- settled --|-- hash lags here --|
 *
 * `hashed` <= `len`: an append publishes len at once, its hash follows (the caller answers the writer in
 * between). A block is finished when hashed has passed it; the rest is the tail, hashed as a stream.
 *
 *   block           its hash
 *   -------------   ---------------------------------------------------------------------------
 *   finished        hashes[b]; 0 when unknown: it was overwritten, or belongs to a hole
 *   tail            the stream's value when tail_known
 *   behind hashed   none yet
 *
 * Unknown hashes are legal but make the file `patchy`: a slot can then not prove the data, so a flush
 * costs two (segsync.c). The seal makes everything known again.
 *
 * Append takes no lock: one pwrite, one store. The caller allows one appender (or writer) at a time;
 * segfile_hash may run beside a later append, never beside another segfile_hash.
 */
#include "fs/seg/seg_int.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"

/* ---- life ---- */

int seg_new(struct dev *v, struct devs *d, const struct seg_ident *i, struct segfile **ret)
{
    struct segfile *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->devs = d;
    s->dev = v;
    s->fd = -1;
    s->header_bytes = i->header_bytes;
    s->capacity = i->capacity;
    s->ino = i->ino;
    s->base = i->base;
    s->version = i->version;
    seg_ident_encode(i, s->ident);
    s->ident_hash = get_le64(s->ident + SEG_IDENT_BYTES - 8);
    s->tail_known = true;
    s->confirmed = true;
    s->mtime_len = UINT64_MAX;
    lock_init(&s->state, "segfile.state", RANK_SEGFILE, false);
    lock_init(&s->sync, "segfile.sync", RANK_SEG_SYNC, true);
    lock_init(&s->table, "segfile.table", RANK_SEG_TABLE, true);
    atomic_fetch_add(&v->users, 1);
    *ret = s;
    return 0;
}

void segfile_close(struct segfile *s)
{
    if (!s)
        return;
    int err = atomic_load(&s->failed);
    if (err)
        seg_failure_renew(s, err);
    io_close(s->fd);
    atomic_fetch_sub(&s->dev->users, 1);
    hash64_stream_free(s->tail);
    free(s->hashes);
    lock_destroy(&s->state);
    lock_destroy(&s->sync);
    lock_destroy(&s->table);
    free(s);
}

static int open_new(struct dev *v, const char *path)
{
    enum { FLAGS = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW };
    int fd = io_open(v->dirfd, path, FLAGS, 0600);
    if (fd != -ENOENT)
        return fd;
    /* The first file of its bucket; the name of the bucket becomes durable with the first sync. */
    char dir[SEG_PATH_BYTES];
    memcpy(dir, path, SEG_PATH_BYTES);
    *strrchr(dir, '/') = 0;
    int r = io_mkdir(v->dirfd, dir, 0700);
    if (r < 0 && r != -EEXIST)
        return r;
    return io_open(v->dirfd, path, FLAGS, 0600);
}

int segfile_create(struct devs *d, const uint8_t volume[16], struct segfile_id *id,
                   uint64_t capacity, struct segfile **ret)
{
    struct dev *v = dev_get(d, id->device);
    uint64_t end;
    if (!v)
        return -ENODEV;
    if (id->ino == 0 || capacity == 0 || capacity > SEGMENT_BYTES_MAX ||
        add_u64(id->base, capacity, &end) || end > INT64_MAX)
        return -EINVAL;

    struct seg_ident i = {.topic = id->topic,
                          .ino = id->ino,
                          .base = id->base,
                          .capacity = capacity,
                          .version = id->version,
                          .header_bytes = seg_header_bytes(capacity)};
    memcpy(i.volume, volume, sizeof i.volume);
    struct segfile *s;
    int r = seg_new(v, d, &i, &s);
    if (r < 0)
        return r;

    char path[SEG_PATH_BYTES];
    uint8_t page[SEG_PAGE_BYTES] = {0};
    seg_path(id->ino, id->base, id->version, path);
    s->fd = open_new(v, path);
    r = s->fd;
    if (r < 0)
        goto failed;
    memcpy(page, s->ident, SEG_IDENT_BYTES);
    r = io_pwrite_full(s->fd, page, sizeof page, 0, NULL);
    if (r == 0)
        r = io_truncate(s->fd, s->header_bytes);
    if (r < 0) {
        (void)io_unlink(v->dirfd, path, 0); /* already failing: the first error wins */
        goto failed;
    }
    dev_account(d, id->device, s->header_bytes);
    id->header_bytes = s->header_bytes;
    *ret = s;
    return 0;

failed:
    if (dev_err_is_bad(r))
        dev_mark_failed(v, "creating a segment", r);
    segfile_close(s);
    return r;
}

/* ---- small questions ---- */

uint64_t segfile_len(const struct segfile *s)
{
    return atomic_load_explicit(&s->len, memory_order_acquire);
}

uint64_t segfile_capacity(const struct segfile *s)
{
    return s->capacity;
}

int64_t segfile_mtime_ns(struct segfile *s)
{
    {
        /* Writing a slot moves the file's own time stamp; the slot remembers that of the data. */
        LOCK_SCOPE(&s->state);
        if (s->mtime_len == segfile_len(s) && s->mtime_wgen == atomic_load(&s->wgen))
            return s->mtime_ns;
    }
    struct stat st;
    if (io_stat(s->fd, &st) < 0)
        return clock_wall_ns();
    return (int64_t)st.st_mtim.tv_sec * NS_PER_SEC + st.st_mtim.tv_nsec;
}

bool segfile_synced(const struct segfile *s)
{
    return segfile_len(s) <= atomic_load(&s->durable_len) &&
           atomic_load(&s->wgen) == atomic_load(&s->durable_wgen) && !atomic_load(&s->failed);
}

/* ---- hashes ---- */

uint64_t seg_get_hash(const struct segfile *s, size_t block)
{
    return block < s->hashes_cap ? s->hashes[block] : 0;
}

void seg_set_hash(struct segfile *s, size_t block, uint64_t h)
{
    assert(lock_is_mine(&s->state));
    if (block >= s->hashes_cap) {
        if (h == 0)
            return;
        size_t cap = s->hashes_cap ? s->hashes_cap * 2 : 8;
        if (cap <= block)
            cap = block + 1;
        uint64_t *more = realloc(s->hashes, cap * sizeof *more);
        if (!more) {
            s->patchy = true; /* unknown for now: the seal reads the block again */
            return;
        }
        memset(more + s->hashes_cap, 0, (cap - s->hashes_cap) * sizeof *more);
        s->hashes = more;
        s->hashes_cap = cap;
    }
    if (s->hashes[block] == h)
        return;
    s->hashes[block] = h;
    if (s->dirty_lo == s->dirty_hi) {
        s->dirty_lo = block;
        s->dirty_hi = block + 1;
    } else {
        s->dirty_lo = min_u64(s->dirty_lo, block);
        s->dirty_hi = max_u64(s->dirty_hi, block + 1);
    }
}

bool seg_tail_feed(struct segfile *s, const void *buf, size_t len)
{
    assert(lock_is_mine(&s->state));
    uint64_t in = s->hashed % BLOCK_BYTES;
    assert(in + len <= BLOCK_BYTES);
    if (in == 0) {
        if (!s->tail)
            s->tail = hash64_stream_new();
        else
            hash64_stream_reset(s->tail);
        s->tail_known = s->tail != NULL;
    }
    if (s->tail_known)
        hash64_stream_add(s->tail, buf, len);
    else
        s->patchy = true;
    s->hashed += len;
    if (in + len < BLOCK_BYTES)
        return false;
    seg_set_hash(s, (s->hashed - 1) / BLOCK_BYTES,
                 s->tail_known ? hash64_stream_value(s->tail) : 0);
    s->tail_known = true;
    return true;
}

/* Takes the next piece of an append, at most to the end of its block; how long it was. */
static size_t hash_step(struct segfile *s, uint64_t pos, const uint8_t *p, size_t len,
                        bool *finished)
{
    size_t n = min_u64(len, BLOCK_BYTES - pos % BLOCK_BYTES);
    uint64_t whole = n == BLOCK_BYTES ? hash64(p, n) : 0; /* outside the lock: 20 µs */

    LOCK_SCOPE(&s->state);
    if (pos != s->hashed || pos + n > segfile_len(s))
        return n; /* an overwrite came between and has settled this stretch as unknown */
    if (whole) {
        s->hashed += n;
        seg_set_hash(s, pos / BLOCK_BYTES, whole);
        *finished = true;
    } else if (seg_tail_feed(s, p, n)) {
        *finished = true;
    }
    return n;
}

void segfile_hash(struct segfile *s, uint64_t pos, const void *buf, size_t len)
{
    const uint8_t *p = buf;
    bool finished = false;
    while (len) {
        size_t n = hash_step(s, pos, p, len, &finished);
        pos += n;
        p += n;
        len -= n;
    }
    if (finished)
        (void)seg_flush_table(s); /* what fails stays dirty; the sync tries again and reports */
}

static void forget_blocks(struct segfile *s, uint64_t from, uint64_t to)
{
    uint64_t len = segfile_len(s);
    if (from >= to)
        return;
    for (uint64_t b = from / BLOCK_BYTES; b < (to + BLOCK_BYTES - 1) / BLOCK_BYTES; b++)
        if (b < s->hashes_cap)
            seg_set_hash(s, b, 0);
    if (len % BLOCK_BYTES && to > len / BLOCK_BYTES * BLOCK_BYTES)
        s->tail_known = false;
    s->patchy = true;
}

void seg_forget(struct segfile *s, uint64_t from, uint64_t to)
{
    assert(lock_is_mine(&s->state));
    uint64_t len = segfile_len(s);
    forget_blocks(s, from, to);
    forget_blocks(s, s->hashed, len);
    s->hashed = len;
}

/* ---- writing ---- */

/* Pages from `pos` on are dirty again: write-behind starts over from there. */
static void written_again(struct segfile *s, uint64_t pos)
{
    pos -= pos % SEG_PAGE_BYTES;
    if (atomic_load(&s->started) > pos)
        atomic_store(&s->started, pos);
    if (atomic_load(&s->dropped) > pos)
        atomic_store(&s->dropped, pos);
}

static void grown(struct segfile *s, uint64_t from, uint64_t to)
{
    if (to > from)
        atomic_fetch_add_explicit(&s->dev->used, (int64_t)(to - from), memory_order_relaxed);
}

int segfile_append(struct segfile *s, const void *buf, size_t len, size_t *done)
{
    uint64_t pos = atomic_load_explicit(&s->len, memory_order_relaxed);
    size_t n = 0;
    assert(!atomic_load_explicit(&s->sealed, memory_order_relaxed));
    *done = 0;
    if (len > s->capacity - pos)
        return -EFBIG;
    int r = io_pwrite_full(s->fd, buf, len, s->header_bytes + pos, &n);
    if (n) {
        grown(s, pos, pos + n);
        counter_add(s->devs->written, n);
        atomic_store_explicit(&s->len, pos + n, memory_order_release);
    }
    *done = n;
    /* A write that fails may have left bytes behind what it counts: a restart would take the file's size
     * for the length. */
    if (r < 0)
        (void)io_truncate(s->fd, s->header_bytes + pos + n);
    if (r < 0 && dev_err_is_bad(r))
        dev_mark_failed(s->dev, "writing a segment", r);
    return r;
}

int segfile_write(struct segfile *s, uint64_t pos, const void *buf, size_t len, size_t *done)
{
    uint64_t old = atomic_load_explicit(&s->len, memory_order_relaxed);
    uint64_t end;
    size_t n = 0;
    assert(!atomic_load_explicit(&s->sealed, memory_order_relaxed));
    *done = 0;
    if (len == 0)
        return 0;
    if (add_u64(pos, len, &end) || end > s->capacity)
        return -EFBIG;
    int r = seg_disturb(s, min_u64(pos, old), end, false);
    if (r < 0)
        return r;
    written_again(s, pos);
    r = io_pwrite_full(s->fd, buf, len, s->header_bytes + pos, &n);
    counter_add(s->devs->written, n);
    {
        LOCK_SCOPE(&s->state);
        if (n && pos + n > old) {
            grown(s, old, pos + n);
            s->hashed = pos + n;
            s->tail_known = s->hashed % BLOCK_BYTES == 0;
            atomic_store_explicit(&s->len, pos + n, memory_order_release);
        }
        atomic_fetch_add(&s->wgen, 1);
    }
    *done = n;
    if (r < 0 && end > old) /* as in segfile_append */
        (void)io_truncate(s->fd, s->header_bytes + atomic_load(&s->len));
    if (r < 0 && dev_err_is_bad(r))
        dev_mark_failed(s->dev, "writing a segment", r);
    return r;
}

int segfile_truncate(struct segfile *s, uint64_t len)
{
    uint64_t old = atomic_load_explicit(&s->len, memory_order_relaxed);
    assert(!atomic_load_explicit(&s->sealed, memory_order_relaxed));
    if (len > s->capacity)
        return -EFBIG;
    if (len == old)
        return 0;
    int r = seg_disturb(s, min_u64(len, old), max_u64(len, old), len < old);
    if (r == 0)
        r = io_truncate(s->fd, s->header_bytes + len);
    written_again(s, len);

    {
        LOCK_SCOPE(&s->state);
        s->cutting = false;
        if (r < 0) {
            seg_forget(s, old, old);
            atomic_fetch_add(&s->wgen, 1); /* not as flushed any more: see the sync below */
        } else {
            s->hashed = len;
            s->tail_known = len % BLOCK_BYTES == 0;
            if (len == 0)
                s->patchy = false;
            atomic_store_explicit(&s->len, len, memory_order_release);
            atomic_fetch_add(&s->wgen, 1);
        }
    }
    if (r < 0) {
        if (dev_err_is_bad(r))
            dev_mark_failed(s->dev, "truncating a segment", r);
        if (len < old)
            (void)segfile_sync(s); /* slots may claim the cut already: claim the whole again */
        return r;
    }
    atomic_fetch_add_explicit(&s->dev->used, (int64_t)len - (int64_t)old, memory_order_relaxed);
    return 0;
}

/* Where the file system below has no holes. */
static int write_zeros(struct segfile *s, uint64_t pos, uint64_t end)
{
    static const uint8_t zeros[64 * 1024];
    int r = 0;
    for (; r == 0 && pos < end; pos += min_u64(sizeof zeros, end - pos))
        r = io_pwrite_full(s->fd, zeros, (size_t)min_u64(sizeof zeros, end - pos),
                           s->header_bytes + pos, NULL);
    return r;
}

int segfile_punch(struct segfile *s, uint64_t pos, uint64_t end)
{
    end = min_u64(end, segfile_len(s));
    assert(!atomic_load_explicit(&s->sealed, memory_order_relaxed));
    if (pos >= end)
        return 0;
    int r = seg_disturb(s, pos, end, false);
    if (r < 0)
        return r;
    written_again(s, pos);
    r = io_fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, s->header_bytes + pos,
                     end - pos);
    if (r == -EOPNOTSUPP)
        r = write_zeros(s, pos, end);
    {
        LOCK_SCOPE(&s->state);
        atomic_fetch_add(&s->wgen, 1);
    }
    if (r < 0 && dev_err_is_bad(r))
        dev_mark_failed(s->dev, "punching a hole into a segment", r);
    return r;
}

uint64_t segfile_stored(struct segfile *s)
{
    uint64_t len = segfile_len(s), stored;
    int r = io_stored(s->fd, s->header_bytes, s->header_bytes + len, &stored);
    return r < 0 ? len : stored;
}

int segfile_read(struct segfile *s, uint64_t pos, void *buf, size_t len)
{
    uint64_t end;
    if (add_u64(pos, len, &end) || end > segfile_len(s))
        return -ENODATA;
    int r = io_pread_full(s->fd, buf, len, s->header_bytes + pos);
    if (r == 0)
        counter_add(s->devs->read, len);
    return r;
}
