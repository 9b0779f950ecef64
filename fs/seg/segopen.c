/* segopen.c: existing segment files: opening for appending again, removing, listing, setting aside.
 *
 * Which length is the true one?
 *
 *   the daemon died, the machine did not ("trusted")   the file's size
 *   the machine died                                   what is proven:
 *
 *   1. The newer slot, if it is FLUSHED. Else, if every block it claims matches its hash.
 *   2. Else the older slot, as it stands; also when it claims more and its hashes still match (a cut
 *      was announced by the newer one and not carried out).
 *   3. From there on whole blocks, as long as the table has their hash and they match.
 *
 * Only blocks from the older slot's length on are read in step 1: the newer slot was written after the
 * flush of the older one had succeeded, so what the older claims is on the medium. With one valid slot
 * nothing is known to have been flushed, and reading begins at 0. The rest of the file is cut.
 *
 * A header page of zeros (or none) after a loss of power: the page was never flushed, and with it no
 * slot; so no byte of the file was ever acknowledged as durable. It starts again, empty.
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

/* Unknown blocks at the end that a trusted reopen hashes again: those of one large append whose hash
 * the dead daemon did not live to write. */
enum { REHASH_BLOCKS = FUSE_IO_BYTES_MAX / BLOCK_BYTES + 1 };

/* ---- the header ---- */

struct header {
    struct seg_ident ident;
    struct seg_slot slot[2]; /* seq 0: not valid */
    bool blank;              /* the identity's sector never reached the medium, and no second flush
                              * was begun: so none has ended, and nothing was acknowledged as durable */
};

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static int header_read(int fd, struct header *h)
{
    uint8_t page[SEG_PAGE_BYTES] = {0};
    memset(h, 0, sizeof *h);
    size_t got = 0;
    while (got < sizeof page) {
        ssize_t n = io_pread(fd, page + got, sizeof page - got, got);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    const uint8_t *slots = page + SEG_SLOT_AT;
    h->blank = all_zero(page, SEG_SLOT_AT) &&
               (all_zero(slots, SEG_SLOT_BYTES) || all_zero(slots + SEG_SLOT_AT, SEG_SLOT_BYTES));
    int r = seg_ident_decode(page, sizeof page, &h->ident);
    if (r < 0)
        return r;
    uint64_t hash = seg_ident_hash(&h->ident);
    for (unsigned i = 0; i < 2; i++) {
        if (seg_slot_decode(page + SEG_SLOT_AT * (1 + i), SEG_SLOT_BYTES, hash, h->ident.capacity,
                            &h->slot[i]) < 0)
            h->slot[i].seq = 0;
    }
    return 0;
}

/* A header keeps the topic of birth, which a rename does not change: who does not know it gives 0. */
static bool same_segment(const struct seg_ident *i, const uint8_t volume[16],
                         const struct segfile_id *id)
{
    return memcmp(i->volume, volume, 16) == 0 && (id->topic == 0 || i->topic == id->topic) &&
           i->ino == id->ino && i->base == id->base && i->version == id->version &&
           i->header_bytes == id->header_bytes;
}

/* ---- reopening ---- */

/* Loads the table's hashes of the first n blocks. */
static int load_table(struct segfile *s, size_t n)
{
    if (n == 0)
        return 0;
    AUTO_FREE uint8_t *raw = malloc(n * 8);
    uint64_t *hashes = malloc(n * sizeof *hashes);
    if (!raw || !hashes) {
        free(hashes);
        return -ENOMEM;
    }
    int r = io_pread_full(s->fd, raw, n * 8, SEG_PAGE_BYTES);
    for (size_t i = 0; r == 0 && i < n; i++)
        hashes[i] = get_le64(raw + i * 8);
    if (r < 0) {
        free(hashes);
        return r;
    }
    s->hashes = hashes;
    s->hashes_cap = n;
    return 0;
}

static uint64_t floor_block(uint64_t pos)
{
    return pos / BLOCK_BYTES * BLOCK_BYTES;
}

static int read_block(struct segfile *s, uint64_t at, void *buf, size_t n)
{
    int r = io_pread_full(s->fd, buf, n, s->header_bytes + at);
    if (r == 0)
        counter_add(s->devs->read, n);
    return r;
}

/* Do the blocks of [from, slot->len) match? 1, 0, or an error: a loss of power explains bytes that do
 * not match, never bytes that cannot be read. */
static int slot_holds(struct segfile *s, const struct seg_slot *slot, uint64_t from, uint64_t size,
                      void *buf)
{
    if (slot->len > size)
        return 0;
    for (uint64_t at = floor_block(from); at < slot->len; at += BLOCK_BYTES) {
        size_t n = min_u64(BLOCK_BYTES, slot->len - at);
        uint64_t want = n == BLOCK_BYTES ? seg_get_hash(s, at / BLOCK_BYTES) : slot->tail_hash;
        int r = want ? read_block(s, at, buf, n) : 0;
        if (r < 0)
            return r;
        if (want == 0 || want != hash64(buf, n))
            return 0;
    }
    return 1;
}

static void tell_lost(const struct segfile *s, uint64_t flushed, uint64_t size)
{
    if (flushed > size)
        log_err(
            LC_SEG,
            "inode %llu, segment at %llu: the device lost flushed bytes: %llu of %llu are there",
            (unsigned long long)s->ino, (unsigned long long)s->base, (unsigned long long)size,
            (unsigned long long)flushed);
}

/* Finds the proven length of a file of `size` data bytes; *ret_rest is the index of the slot it
 * rests on, or -1. */
static int prove_length(struct segfile *s, const struct header *h, uint64_t size, uint64_t *ret_len,
                        int *ret_rest)
{
    AUTO_FREE void *buf = malloc(BLOCK_BYTES);
    if (!buf)
        return -ENOMEM;
    int newer = h->slot[1].seq > h->slot[0].seq ? 1 : 0;
    const struct seg_slot *a = &h->slot[newer], *b = &h->slot[!newer];
    uint64_t len = 0, from = b->seq ? min_u64(b->len, a->len) : 0;
    int rest = -1;
    if (a->seq && (a->flags & SLOT_FLUSHED)) {
        rest = newer;
    } else if (a->seq) {
        int r = slot_holds(s, a, from, size, buf);
        if (r < 0)
            return r;
        rest = r ? newer : b->seq ? !newer : -1;
    }
    if (rest == newer && b->len > a->len) {
        /* A cut was announced. If it never came about, the longer claim still holds. */
        int r = slot_holds(s, b, a->len, size, buf);
        if (r < 0)
            return r;
        len = r ? b->len : 0;
    }
    if (rest >= 0)
        len = max_u64(len, min_u64(h->slot[rest].len, size));
    if (rest >= 0)
        tell_lost(s, h->slot[rest].len, size);

    while (floor_block(len) + BLOCK_BYTES <= size) {
        uint64_t at = floor_block(len);
        uint64_t want = seg_get_hash(s, at / BLOCK_BYTES);
        int r = want ? read_block(s, at, buf, BLOCK_BYTES) : -EIO;
        if (r < 0 && r != -EIO)
            return r;
        if (r < 0 || hash64(buf, BLOCK_BYTES) != want)
            break;
        len = at + BLOCK_BYTES;
    }
    *ret_len = len;
    *ret_rest = rest;
    return 0;
}

/* Takes over what the slots say about the state of flushing. */
static void adopt_slots(struct segfile *s, const struct header *h, int rest, uint64_t len)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct seg_slot *slot = &h->slot[i];
        if (slot->seq == 0)
            continue;
        s->slot_seq = max_u64(s->slot_seq, slot->seq);
        s->claim_len = max_u64(s->claim_len, slot->len);
        if (!(slot->flags & SLOT_FLUSHED))
            s->unflushed_len = max_u64(s->unflushed_len, slot->len);
        else
            s->patchy = true;
    }
    if (rest < 0)
        return;
    const struct seg_slot *slot = &h->slot[rest];
    s->slot_pos = !rest;
    s->proven_len = min_u64(slot->len, len);
    if (slot->len == len && !(slot->flags & SLOT_FLUSHED)) {
        s->mtime_len = len;
        s->mtime_ns = slot->mtime_ns;
    }
}

/* Brings hashes in line with the length `len`: drops what lies behind, hashes the tail and the last
 * few unknown blocks from the file. */
static int settle_hashes(struct segfile *s, uint64_t len, bool rehash)
{
    AUTO_FREE uint8_t *buf = NULL;
    size_t whole = len / BLOCK_BYTES, first = whole;
    unsigned again = rehash ? REHASH_BLOCKS : 0;
    while (first > 0 && again > 0 && seg_get_hash(s, first - 1) == 0) {
        first--;
        again--;
    }
    if (first * BLOCK_BYTES < len && !(buf = malloc(BLOCK_BYTES)))
        return -ENOMEM;
    for (uint64_t at = first * BLOCK_BYTES; at < len; at += BLOCK_BYTES) {
        size_t n = min_u64(BLOCK_BYTES, len - at);
        int r = read_block(s, at, buf, n);
        if (r < 0)
            return r == -ENODATA ? -EIO : r;
        LOCK_SCOPE(&s->state);
        s->hashed = at;
        seg_tail_feed(s, buf, n);
    }
    LOCK_SCOPE(&s->state);
    s->hashed = len;
    for (size_t b = 0; b < s->hashes_cap; b++) {
        if (b >= whole)
            seg_set_hash(s, b, 0);
        else if (seg_get_hash(s, b) == 0)
            s->patchy = true;
    }
    return 0;
}

/* Gives a file whose header never reached the medium its header again, without data. */
static int start_again(struct segfile *s)
{
    uint8_t page[SEG_PAGE_BYTES] = {0};
    memcpy(page, s->ident, SEG_IDENT_BYTES);
    int r = io_truncate(s->fd, 0);
    if (r == 0)
        r = io_pwrite_full(s->fd, page, sizeof page, 0, NULL);
    return r < 0 ? r : io_truncate(s->fd, s->header_bytes);
}

static int adopt_file(struct segfile *s, const struct header *h, bool trusted, uint64_t size,
                      uint64_t *ret_len)
{
    uint64_t len = size;
    int rest = h->slot[1].seq > h->slot[0].seq ? 1 : h->slot[0].seq ? 0 : -1;
    /* After a loss of power the table may know blocks that the data does not have: see all of it, so
     * that those are wiped out. */
    int r = load_table(s, (trusted ? min_u64(size, s->capacity) : s->capacity) / BLOCK_BYTES);
    if (r == 0 && !trusted)
        r = prove_length(s, h, size, &len, &rest);
    else if (r == 0)
        tell_lost(s, seg_slots_flushed(h->slot), size);
    if (r < 0)
        return r;
    if (len > s->capacity)
        return -EBADMSG;
    if (!trusted) {
        /* Flushed data may have newer bytes than the table has hashes: believe none of those that
         * were not just compared. */
        uint64_t sure = rest >= 0 && (h->slot[rest].flags & SLOT_FLUSHED) ? h->slot[rest].len
                        : h->slot[!rest].seq && (h->slot[!rest].flags & SLOT_FLUSHED)
                            ? h->slot[!rest].len
                            : 0;
        LOCK_SCOPE(&s->state);
        for (size_t b = 0; b < (min_u64(sure, len) + BLOCK_BYTES - 1) / BLOCK_BYTES; b++)
            seg_set_hash(s, b, 0);
    }
    if (len < size) {
        r = io_truncate(s->fd, s->header_bytes + len);
        if (r < 0)
            return r;
    }
    adopt_slots(s, h, rest, len);
    struct failed_seg f;
    bool failed = seg_failure_of(s, &f);
    r = settle_hashes(s, len, !s->patchy && !failed);
    if (r < 0)
        return r;
    if (failed) {
        /* Bytes read now prove nothing about bytes written then, unless they are as remembered. */
        atomic_store(&s->failed, f.err);
        LOCK_SCOPE(&s->state);
        if (len % BLOCK_BYTES &&
            (!s->tail_known || f.len != len || f.tail_hash != hash64_stream_value(s->tail))) {
            s->tail_known = false;
            s->patchy = true;
        }
    }
    s->confirmed = !trusted || s->slot_seq == 0;
    s->dir_durable = !trusted;
    atomic_store(&s->len, len);
    *ret_len = len;
    r = seg_flush_table(s);
    if (r < 0)
        return r;
    LOCK_SCOPE(&s->state);
    s->hashes_cap = min_u64(s->hashes_cap, len / BLOCK_BYTES); /* what lies behind is all zeros */
    uint64_t *less = s->hashes_cap ? realloc(s->hashes, s->hashes_cap * sizeof *less) : NULL;
    if (!less && !s->hashes_cap)
        free(s->hashes);
    if (less || !s->hashes_cap)
        s->hashes = less;
    return 0;
}

int segfile_reopen(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                   bool trusted, struct segfile **ret, uint64_t *ret_cut)
{
    struct dev *v = dev_get(d, id->device);
    if (!v)
        return -ENODEV;
    char path[SEG_PATH_BYTES];
    struct header h;
    struct stat st;
    struct segfile *s = NULL;
    seg_path(id->ino, id->base, id->version, path);
    int fd = io_open(v->dirfd, path, O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    int r = io_stat(fd, &st);
    if (r == 0)
        r = header_read(fd, &h);
    uint64_t bytes = r == 0 || r == -EBADMSG ? (uint64_t)st.st_size : 0;
    bool again = r == -EBADMSG && h.blank && !trusted && id->header_bytes > SEG_PAGE_BYTES &&
                 id->header_bytes % SEG_PAGE_BYTES == 0;
    if (again) {
        /* The capacity went with the header; as much as a header of this size may describe. */
        h.ident = (struct seg_ident){.topic = id->topic,
                                     .ino = id->ino,
                                     .base = id->base,
                                     .version = id->version,
                                     .header_bytes = id->header_bytes};
        memcpy(h.ident.volume, volume, sizeof h.ident.volume);
        h.ident.capacity =
            min_u64((id->header_bytes - SEG_PAGE_BYTES) / 8 * BLOCK_BYTES, SEGMENT_BYTES_MAX);
        r = 0;
    }
    if (r == -EPROTONOSUPPORT || (r == 0 && !same_segment(&h.ident, volume, id)))
        r = -EBADMSG;
    if (r == 0)
        r = seg_new(v, d, &h.ident, &s);
    if (r < 0 || !s) {
        io_close(fd);
        return r < 0 ? r : -ENOMEM;
    }

    s->fd = fd;
    uint64_t size = bytes > s->header_bytes ? bytes - s->header_bytes : 0, len = 0;
    if (again) {
        size = bytes;
        r = start_again(s);
    } else {
        /* Cut inside the header (only after a loss of power): the rest of the table reads as zeros. */
        if (bytes < s->header_bytes)
            r = io_truncate(s->fd, s->header_bytes);
        if (r == 0)
            r = adopt_file(s, &h, trusted, size, &len);
    }
    /* What was cut must not come back with the next loss of power: then it might look trusted. */
    if (r == 0 && !trusted && (again || len < size || bytes < s->header_bytes))
        r = io_sync(s->fd, false);
    if (r < 0) {
        if (dev_err_is_bad(r))
            dev_mark_failed(v, "opening a segment", r);
        segfile_close(s);
        return r;
    }
    uint64_t now = s->header_bytes + len;
    dev_account(d, id->device, (int64_t)now - (int64_t)bytes);
    if (size > len)
        log_info(LC_SEG, "inode %llu, segment at %llu: %llu bytes after the proven %llu were cut",
                 (unsigned long long)id->ino, (unsigned long long)id->base,
                 (unsigned long long)(size - len), (unsigned long long)len);
    if (ret_cut)
        *ret_cut = size - len;
    *ret = s;
    return 0;
}

bool segfile_was_flushed(const struct segfile *s)
{
    return s->claim_len > 0;
}

/* ---- stat, list, set aside ---- */

int segfile_stat(struct devs *d, const struct segfile_id *id, uint64_t *ret_bytes,
                 int64_t *ret_mtime_ns)
{
    struct dev *v = dev_get(d, id->device);
    if (!v)
        return -ENODEV;
    char path[SEG_PATH_BYTES];
    struct stat st;
    seg_path(id->ino, id->base, id->version, path);
    int fd = io_open(v->dirfd, path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    int r = io_stat(fd, &st);
    io_close(fd);
    if (r < 0)
        return r;
    *ret_bytes = (uint64_t)st.st_size;
    if (ret_mtime_ns)
        *ret_mtime_ns = (int64_t)st.st_mtim.tv_sec * NS_PER_SEC + st.st_mtim.tv_nsec;
    return 0;
}

struct scan {
    struct devs *devs;
    struct dev *dev;
    const char *bucket;
    int (*each)(void *arg, const struct segfile_id *id, const char *name, uint64_t bytes);
    void *arg;
};

static bool is_bucket(const char *name)
{
    return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

static int scan_file(void *arg, const char *name)
{
    struct scan *c = arg;
    char rel[2 + 1 + NAME_BYTES_MAX + 1], path[sizeof rel + 16];
    struct segfile_id id = {.device = c->dev->id};
    uint64_t bytes = 0;
    struct stat st;
    struct header h;
    snprintf(rel, sizeof rel, "%s%s%s", c->bucket ? c->bucket : "", c->bucket ? "/" : "", name);
    snprintf(path, sizeof path, "segments/%s", rel);

    int fd = io_open(c->dev->dirfd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOENT)
        return 0; /* removed meanwhile */
    if (fd >= 0) {
        if (io_stat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
            uint64_t ino, base;
            uint32_t version;
            bytes = (uint64_t)st.st_size;
            bool named = c->bucket && seg_name_parse(name, &ino, &base, &version) &&
                         strtoul(c->bucket, NULL, 16) == seg_bucket(ino);
            int r = named ? header_read(fd, &h) : -EBADMSG;
            if (r == -EBADMSG && named && h.blank)
                h.ident.header_bytes = 0;
            else if (r < 0 || memcmp(h.ident.volume, c->devs->volume, 16) != 0 ||
                     h.ident.ino != ino || h.ident.base != base || h.ident.version != version)
                named = false;
            if (named)
                id = (struct segfile_id){.topic = h.ident.topic,
                                         .ino = ino,
                                         .base = base,
                                         .version = version,
                                         .device = c->dev->id,
                                         .header_bytes = h.ident.header_bytes};
        }
        io_close(fd);
    }
    return c->each(c->arg, &id, rel, bytes);
}

static int scan_bucket(void *arg, const char *name)
{
    struct scan *c = arg;
    char path[16];
    if (!is_bucket(name)) {
        c->bucket = NULL;
        return scan_file(c, name);
    }
    snprintf(path, sizeof path, "segments/%s", name);
    c->bucket = name;
    int r = io_scan(c->dev->dirfd, path, scan_file, c);
    if (r == -ENOTDIR) {
        c->bucket = NULL;
        r = scan_file(c, name);
    }
    return r;
}

int segfile_scan(struct devs *d, uint32_t device,
                 int (*each)(void *arg, const struct segfile_id *id, const char *name,
                             uint64_t bytes),
                 void *arg)
{
    struct dev *v = dev_get(d, device);
    if (!v)
        return -ENODEV;
    struct scan c = {.devs = d, .dev = v, .each = each, .arg = arg};
    return io_scan(v->dirfd, "segments", scan_bucket, &c);
}

int segfile_quarantine(struct devs *d, uint32_t device, const char *name)
{
    struct dev *v = dev_get(d, device);
    if (!v)
        return -ENODEV;
    /* "XX/file" or "file", as segfile_scan names it; nothing that leads elsewhere. */
    const char *slash = strchr(name, '/');
    const char *file = slash ? slash + 1 : name;
    char bucket[3] = "";
    if (slash) {
        if (slash - name != 2)
            return -EINVAL;
        memcpy(bucket, name, 2);
        if (!is_bucket(bucket))
            return -EINVAL;
    }
    if (!*file || strlen(file) > NAME_BYTES_MAX || strchr(file, '/') || !strcmp(file, ".") ||
        !strcmp(file, ".."))
        return -EINVAL;

    char from[16 + NAME_BYTES_MAX], to[32 + NAME_BYTES_MAX], dir[16];
    uint64_t nonce;
    random_bytes(&nonce, sizeof nonce);
    snprintf(dir, sizeof dir, "segments%s%s", *bucket ? "/" : "", bucket);
    snprintf(from, sizeof from, "%s/%s", dir, file);
    /* A name of its own, so that nothing in there is ever replaced. */
    snprintf(to, sizeof to, "quarantine/%.200s.%016llx", file, (unsigned long long)nonce);
    int r = io_mkdir(v->dirfd, "quarantine", 0700);
    if (r == 0)
        r = io_sync_dir(v->dirfd, ".");
    if (r < 0 && r != -EEXIST)
        return r;
    r = io_rename(v->dirfd, from, v->dirfd, to);
    if (r == 0)
        r = io_sync_dir(v->dirfd, "quarantine");
    if (r == 0)
        r = io_sync_dir(v->dirfd, dir);
    return r;
}
