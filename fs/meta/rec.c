/* rec.c: see rec.h. Pure functions: no state, no locks, no allocation.
 *
 * Values of version 1, little-endian:
 *   inode   0 u8 version  1 u32 mode  5 u32 uid  9 u32 gid  13 u32 nlink  17 u64 rdev  25 u64 parent
 *           33 u64 size  41 i64 atime  49 i64 mtime  57 i64 ctime  65 i64 btime             73 bytes
 *   name    0 u8 version  1 u8 type  2 u64 ino  10 u64 cookie                                18 bytes
 *   dirent  0 u8 version  1 u8 type  2 u64 ino, then the name
 *   seg     0 u8 version  1 u8 state  2 u8 flags  3 u8 zero  4 u32 version of the segment
 *           8 u64 end  16 u32 device  20 u32 version of the device file  24 u32 header bytes
 *           28 u64 capacity  36 i64 created  44 i64 sealed  52 i64 committed  60 i64 read
 *           68 u64 hash.lo  76 u64 hash.hi                                                 84 bytes
 *           then, each only when its flag is set: object, pending, u64 behind
 *   object  0 u64 topic  8 u64 end  16 u64 epoch  24 u64 attempt  32 u32 version
 *           36 u32 footer length  40 u64 hash.lo  48 u64 hash.hi                             56 bytes
 *
 * Object keys: segments/SS/TOPIC/INODE/BASE-END.EPOCH.ATTEMPT, numbers as 16 lower-case hex digits,
 * SS two hex digits of a hash of topic, inode and base: stores that partition by prefix then see the
 * segments of one file spread over 256 prefixes.
 */
#include "fs/meta/rec.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"

enum {
    REC_VERSION = 1,
    SEG_LOCAL = 1,
    SEG_HAS_OBJECT = 2,
    SEG_HAS_PENDING = 4,
    SEG_BEHIND = 8,
    FOOTER_VERSION = 1,
    FOOTER_HEAD = 96,
    FOOTER_TAIL = 16 + 8 + 8 + 4 + 4
};

/* ---- values ---- */

static void rd_hash128(struct rd *r, struct hash128 *h)
{
    h->lo = rd_u64(r);
    h->hi = rd_u64(r);
}

static void wr_hash128(struct wr *w, struct hash128 h)
{
    wr_u64(w, h.lo);
    wr_u64(w, h.hi);
}

/* 0 when the value is of a version this code knows. */
static int rec_version(struct rd *r)
{
    uint8_t v = rd_u8(r);
    if (r->bad || v == 0)
        return -EBADMSG;
    return v == REC_VERSION ? 0 : -EPROTONOSUPPORT;
}

static bool mode_possible(uint32_t mode)
{
    if (mode & ~(uint32_t)(S_IFMT | 07777))
        return false;
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return true;
    default:
        return false;
    }
}

size_t inode_rec_encode(const struct inode_rec *r, uint8_t out[static REC_INODE_MAX])
{
    struct wr w = {.p = out, .cap = REC_INODE_MAX};
    wr_u8(&w, REC_VERSION);
    wr_u32(&w, r->mode);
    wr_u32(&w, r->uid);
    wr_u32(&w, r->gid);
    wr_u32(&w, r->nlink);
    wr_u64(&w, r->rdev);
    wr_u64(&w, r->parent);
    wr_u64(&w, r->size);
    wr_u64(&w, (uint64_t)r->atime_ns);
    wr_u64(&w, (uint64_t)r->mtime_ns);
    wr_u64(&w, (uint64_t)r->ctime_ns);
    wr_u64(&w, (uint64_t)r->btime_ns);
    assert(!w.bad);
    return w.len;
}

int inode_rec_decode(const void *buf, size_t len, struct inode_rec *ret)
{
    struct rd r = {.p = buf, .len = len};
    int e = rec_version(&r);
    if (e < 0)
        return e;
    struct inode_rec v = {0};
    v.mode = rd_u32(&r);
    v.uid = rd_u32(&r);
    v.gid = rd_u32(&r);
    v.nlink = rd_u32(&r);
    v.rdev = rd_u64(&r);
    v.parent = rd_u64(&r);
    v.size = rd_u64(&r);
    v.atime_ns = (int64_t)rd_u64(&r);
    v.mtime_ns = (int64_t)rd_u64(&r);
    v.ctime_ns = (int64_t)rd_u64(&r);
    v.btime_ns = (int64_t)rd_u64(&r);
    if (r.bad || rd_left(&r) || !mode_possible(v.mode) || v.size > INT64_MAX)
        return -EBADMSG;
    *ret = v;
    return 0;
}

size_t name_rec_encode(const struct name_rec *r, uint8_t out[static REC_NAME_MAX])
{
    struct wr w = {.p = out, .cap = REC_NAME_MAX};
    wr_u8(&w, REC_VERSION);
    wr_u8(&w, r->type);
    wr_u64(&w, r->ino);
    wr_u64(&w, r->cookie);
    assert(!w.bad);
    return w.len;
}

static bool type_possible(uint8_t type)
{
    return type <= DT_SOCK && mode_possible((uint32_t)DTTOIF(type));
}

int name_rec_decode(const void *buf, size_t len, struct name_rec *ret)
{
    struct rd r = {.p = buf, .len = len};
    int e = rec_version(&r);
    if (e < 0)
        return e;
    struct name_rec v = {.type = rd_u8(&r)};
    v.ino = rd_u64(&r);
    v.cookie = rd_u64(&r);
    if (r.bad || rd_left(&r) || v.ino == 0 || !type_possible(v.type))
        return -EBADMSG;
    *ret = v;
    return 0;
}

size_t dirent_rec_encode(const struct dirent_rec *r, uint8_t out[static REC_DIRENT_MAX])
{
    struct wr w = {.p = out, .cap = REC_DIRENT_MAX};
    wr_u8(&w, REC_VERSION);
    wr_u8(&w, r->type);
    wr_u64(&w, r->ino);
    wr_bytes(&w, r->name, r->name_len);
    assert(!w.bad && r->name_len > 0);
    return w.len;
}

int dirent_rec_decode(const void *buf, size_t len, struct dirent_rec *ret)
{
    struct rd r = {.p = buf, .len = len};
    int e = rec_version(&r);
    if (e < 0)
        return e;
    struct dirent_rec v = {.type = rd_u8(&r)};
    v.ino = rd_u64(&r);
    size_t n = rd_left(&r);
    if (r.bad || n == 0 || n > NAME_BYTES_MAX || v.ino == 0 || !type_possible(v.type))
        return -EBADMSG;
    v.name_len = (uint8_t)n;
    v.name = rd_room(&r, n);
    if (memchr(v.name, '/', n) || memchr(v.name, 0, n))
        return -EBADMSG;
    *ret = v;
    return 0;
}

static void seg_object_put(struct wr *w, const struct seg_object *o)
{
    wr_u64(w, o->topic);
    wr_u64(w, o->end);
    wr_u64(w, o->epoch);
    wr_u64(w, o->attempt);
    wr_u32(w, o->version);
    wr_u32(w, o->footer_len);
    wr_hash128(w, o->hash);
}

static bool seg_object_get(struct rd *r, struct seg_object *o)
{
    o->topic = rd_u64(r);
    o->end = rd_u64(r);
    o->epoch = rd_u64(r);
    o->attempt = rd_u64(r);
    o->version = rd_u32(r);
    o->footer_len = rd_u32(r);
    rd_hash128(r, &o->hash);
    return !r->bad && o->end <= INT64_MAX;
}

size_t seg_rec_encode(const struct seg_rec *r, uint8_t out[static REC_SEG_MAX])
{
    assert(r->state >= SEG_OPEN && r->state <= SEG_COMMITTED);
    struct wr w = {.p = out, .cap = REC_SEG_MAX};
    wr_u8(&w, REC_VERSION);
    wr_u8(&w, r->state);
    wr_u8(&w, (uint8_t)((r->local ? SEG_LOCAL : 0) | (r->has_object ? SEG_HAS_OBJECT : 0) |
                        (r->has_pending ? SEG_HAS_PENDING : 0) | (r->behind ? SEG_BEHIND : 0)));
    wr_u8(&w, 0);
    wr_u32(&w, r->version);
    wr_u64(&w, r->end);
    wr_u32(&w, r->device);
    wr_u32(&w, r->file_version);
    wr_u32(&w, r->header_bytes);
    wr_u64(&w, r->capacity);
    wr_u64(&w, (uint64_t)r->created_ns);
    wr_u64(&w, (uint64_t)r->sealed_ns);
    wr_u64(&w, (uint64_t)r->committed_ns);
    wr_u64(&w, (uint64_t)r->read_ns);
    wr_hash128(&w, r->hash);
    if (r->has_object)
        seg_object_put(&w, &r->object);
    if (r->has_pending)
        seg_object_put(&w, &r->pending);
    if (r->behind)
        wr_u64(&w, r->behind);
    assert(!w.bad);
    return w.len;
}

int seg_rec_decode(const void *buf, size_t len, struct seg_rec *ret)
{
    struct rd r = {.p = buf, .len = len};
    int e = rec_version(&r);
    if (e < 0)
        return e;
    struct seg_rec v = {.state = rd_u8(&r)};
    uint8_t flags = rd_u8(&r), zero = rd_u8(&r);
    v.version = rd_u32(&r);
    v.end = rd_u64(&r);
    v.device = rd_u32(&r);
    v.file_version = rd_u32(&r);
    v.header_bytes = rd_u32(&r);
    v.capacity = rd_u64(&r);
    v.created_ns = (int64_t)rd_u64(&r);
    v.sealed_ns = (int64_t)rd_u64(&r);
    v.committed_ns = (int64_t)rd_u64(&r);
    v.read_ns = (int64_t)rd_u64(&r);
    rd_hash128(&r, &v.hash);
    if (r.bad || zero || v.state < SEG_OPEN || v.state > SEG_COMMITTED || v.end > INT64_MAX ||
        flags & ~(SEG_LOCAL | SEG_HAS_OBJECT | SEG_HAS_PENDING | SEG_BEHIND))
        return -EBADMSG;
    v.local = flags & SEG_LOCAL;
    v.has_object = flags & SEG_HAS_OBJECT;
    v.has_pending = flags & SEG_HAS_PENDING;
    if (v.has_object && !seg_object_get(&r, &v.object))
        return -EBADMSG;
    if (v.has_pending && !seg_object_get(&r, &v.pending))
        return -EBADMSG;
    if (flags & SEG_BEHIND && ((v.behind = rd_u64(&r)) == 0 || v.behind > INT64_MAX))
        return -EBADMSG;
    /* "Committed" is the permission to drop the local copy: never without an object. */
    if (rd_left(&r) || (v.state == SEG_COMMITTED && !v.has_object))
        return -EBADMSG;
    *ret = v;
    return 0;
}

/* ---- object keys ---- */

static unsigned seg_spread(uint64_t topic, uint64_t ino, uint64_t base)
{
    uint8_t b[24];
    put_le64(b, topic);
    put_le64(b + 8, ino);
    put_le64(b + 16, base);
    return (unsigned)(hash64(b, sizeof b) & 0xff);
}

int seg_object_key(const struct seg_object *o, uint64_t ino, uint64_t base, char *out, size_t cap)
{
    int n = snprintf(out, cap, "segments/%02x/%016llx/%016llx/%016llx-%016llx.%016llx.%016llx",
                     seg_spread(o->topic, ino, base), (unsigned long long)o->topic,
                     (unsigned long long)ino, (unsigned long long)base, (unsigned long long)o->end,
                     (unsigned long long)o->epoch, (unsigned long long)o->attempt);
    return n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : 0;
}

/* Exactly `digits` lower-case hex digits; advances. */
static bool hex_take(const char **s, unsigned digits, uint64_t *ret)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < digits; i++) {
        char c = (*s)[i];
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    *s += digits;
    *ret = v;
    return true;
}

static bool lit_take(const char **s, const char *lit)
{
    size_t n = strlen(lit);
    if (strncmp(*s, lit, n) != 0)
        return false;
    *s += n;
    return true;
}

int seg_object_key_parse(const char *key, struct seg_object *ret, uint64_t *ino, uint64_t *base)
{
    struct seg_object o = {0};
    uint64_t spread, i, b;
    if (!lit_take(&key, "segments/") || !hex_take(&key, 2, &spread) || !lit_take(&key, "/") ||
        !hex_take(&key, 16, &o.topic) || !lit_take(&key, "/") || !hex_take(&key, 16, &i) ||
        !lit_take(&key, "/") || !hex_take(&key, 16, &b) || !lit_take(&key, "-") ||
        !hex_take(&key, 16, &o.end) || !lit_take(&key, ".") || !hex_take(&key, 16, &o.epoch) ||
        !lit_take(&key, ".") || !hex_take(&key, 16, &o.attempt) || *key)
        return -EINVAL;
    if (spread != seg_spread(o.topic, i, b) || b > o.end || o.end > INT64_MAX)
        return -EINVAL;
    *ret = o;
    if (ino)
        *ino = i;
    if (base)
        *base = b;
    return 0;
}

/* ---- footers ---- */

struct hash128 seg_hash(const uint64_t *block_hashes, size_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return hash128(block_hashes, n * 8);
#else
#error "seg_hash reads the hashes as they lie in memory: write the byte-swapping form"
#endif
}

size_t seg_footer_size(size_t blocks_n)
{
    return FOOTER_HEAD + 8 * blocks_n + FOOTER_TAIL;
}

void seg_footer_encode(const struct seg_footer *f, uint8_t *out)
{
    size_t total = seg_footer_size(f->blocks_n);
    assert(f->base <= f->end && f->end <= INT64_MAX);
    assert((f->end - f->base + BLOCK_BYTES - 1) / BLOCK_BYTES == f->blocks_n);
    struct wr w = {.p = out, .cap = total};
    wr_bytes(&w, "SLSF", 4);
    wr_u16(&w, FOOTER_VERSION);
    wr_u16(&w, 0);
    wr_u64(&w, total);
    wr_bytes(&w, f->volume, sizeof f->volume);
    wr_u64(&w, f->topic);
    wr_u64(&w, f->ino);
    wr_u64(&w, f->base);
    wr_u64(&w, f->end);
    wr_u64(&w, f->epoch);
    wr_u64(&w, f->attempt);
    wr_u32(&w, f->version);
    wr_u32(&w, (uint32_t)BLOCK_BYTES);
    wr_u64(&w, f->blocks_n);
    for (size_t i = 0; i < f->blocks_n; i++)
        wr_u64(&w, f->blocks[i]);
    wr_hash128(&w, seg_hash(f->blocks, f->blocks_n));
    wr_u64(&w, hash64(out, w.len));
    wr_u64(&w, total);
    wr_bytes(&w, "FSLS", 4);
    wr_u32(&w, 0);
    assert(!w.bad && w.len == total);
}

int seg_footer_decode(const uint8_t *buf, size_t len, uint64_t *scratch, size_t scratch_n,
                      struct seg_footer *ret)
{
    /* The frame first: it is the same in every version, so "damaged" and "newer" stay apart. */
    if (len < FOOTER_HEAD + FOOTER_TAIL || get_le64(buf + len - 16) != len ||
        memcmp(buf + len - 8, "FSLS\0\0\0\0", 8) != 0 || memcmp(buf, "SLSF", 4) != 0 ||
        get_le64(buf + 8) != len || get_le64(buf + len - 24) != hash64(buf, len - 24))
        return -EBADMSG;
    struct rd r = {.p = buf, .len = len, .pos = 4};
    if (rd_u16(&r) != FOOTER_VERSION || rd_u16(&r) != 0)
        return -EPROTONOSUPPORT;
    struct seg_footer f = {0};
    (void)rd_u64(&r); /* the length, compared above */
    memcpy(f.volume, rd_room(&r, sizeof f.volume), sizeof f.volume);
    f.topic = rd_u64(&r);
    f.ino = rd_u64(&r);
    f.base = rd_u64(&r);
    f.end = rd_u64(&r);
    f.epoch = rd_u64(&r);
    f.attempt = rd_u64(&r);
    f.version = rd_u32(&r);
    uint32_t block = rd_u32(&r);
    uint64_t n = rd_u64(&r);
    if (r.bad || block != BLOCK_BYTES || f.base > f.end || f.end > INT64_MAX ||
        n != (f.end - f.base + BLOCK_BYTES - 1) / BLOCK_BYTES ||
        n != (len - FOOTER_HEAD - FOOTER_TAIL) / 8 || seg_footer_size(n) != len)
        return -EBADMSG;
    if (n > scratch_n)
        return -ENOBUFS;
    for (uint64_t i = 0; i < n; i++)
        scratch[i] = rd_u64(&r);
    struct hash128 stored, real = seg_hash(scratch, n);
    rd_hash128(&r, &stored);
    if (r.bad || stored.lo != real.lo || stored.hi != real.hi)
        return -EBADMSG;
    f.blocks_n = n;
    f.blocks = scratch;
    *ret = f;
    return 0;
}
