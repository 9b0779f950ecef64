/* segfmt.c: see segfmt.h. No state. */
#include "fs/seg/segfmt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/bounds.h"
#include "fs/base/bytes.h"
#include "fs/base/hash.h"

#define MAGIC_SEG  0x47534c53u /* "SLSG" */
#define MAGIC_SLOT 0x50534c53u /* "SLSP" */
#define MAGIC_DEV  0x56444c53u /* "SLDV" */
enum { FORMAT = 1, NAME_LEN = 16 + 1 + 16 + 1 + 8 + 4 };

uint32_t seg_header_bytes(uint64_t capacity)
{
    uint64_t blocks = round_up(capacity, BLOCK_BYTES) / BLOCK_BYTES;
    return (uint32_t)(SEG_PAGE_BYTES + round_up(max_u64(blocks, 1) * 8, SEG_PAGE_BYTES));
}

void seg_ident_encode(const struct seg_ident *i, uint8_t out[static SEG_IDENT_BYTES])
{
    struct wr w = {.p = out, .cap = SEG_IDENT_BYTES};
    wr_u32(&w, MAGIC_SEG);
    wr_u16(&w, FORMAT);
    wr_u16(&w, 0);
    wr_u32(&w, SEG_IDENT_BYTES);
    wr_u32(&w, (uint32_t)BLOCK_BYTES);
    wr_bytes(&w, i->volume, sizeof i->volume);
    wr_u64(&w, i->topic);
    wr_u64(&w, i->ino);
    wr_u64(&w, i->base);
    wr_u64(&w, i->capacity);
    wr_u32(&w, i->version);
    wr_u32(&w, i->header_bytes);
    wr_u64(&w, hash64(out, w.len));
}

uint64_t seg_ident_hash(const struct seg_ident *i)
{
    uint8_t raw[SEG_IDENT_BYTES];
    seg_ident_encode(i, raw);
    return get_le64(raw + SEG_IDENT_BYTES - 8);
}

int seg_ident_decode(const uint8_t *p, size_t len, struct seg_ident *ret)
{
    if (len < SEG_IDENT_BYTES ||
        get_le64(p + SEG_IDENT_BYTES - 8) != hash64(p, SEG_IDENT_BYTES - 8))
        return -EBADMSG;
    struct rd r = {.p = p, .len = SEG_IDENT_BYTES};
    struct seg_ident i = {0};
    if (rd_u32(&r) != MAGIC_SEG)
        return -EBADMSG;
    if (rd_u16(&r) != FORMAT)
        return -EPROTONOSUPPORT;
    if (rd_u16(&r) != 0 || rd_u32(&r) != SEG_IDENT_BYTES || rd_u32(&r) != BLOCK_BYTES)
        return -EBADMSG;
    memcpy(i.volume, rd_room(&r, sizeof i.volume), sizeof i.volume);
    i.topic = rd_u64(&r);
    i.ino = rd_u64(&r);
    i.base = rd_u64(&r);
    i.capacity = rd_u64(&r);
    i.version = rd_u32(&r);
    i.header_bytes = rd_u32(&r);
    uint64_t end;
    if (i.ino == 0 || i.capacity == 0 || i.capacity > SEGMENT_BYTES_MAX ||
        i.header_bytes != seg_header_bytes(i.capacity) || add_u64(i.base, i.capacity, &end) ||
        end > INT64_MAX)
        return -EBADMSG;
    *ret = i;
    return 0;
}

void seg_slot_encode(const struct seg_slot *s, uint8_t out[static SEG_SLOT_BYTES])
{
    struct wr w = {.p = out, .cap = SEG_SLOT_BYTES};
    wr_u32(&w, MAGIC_SLOT);
    wr_u16(&w, FORMAT);
    wr_u16(&w, s->flags);
    wr_u32(&w, SEG_SLOT_BYTES);
    wr_u32(&w, 0);
    wr_u64(&w, s->seq);
    wr_u64(&w, s->len);
    wr_u64(&w, s->tail_hash);
    wr_u64(&w, (uint64_t)s->mtime_ns);
    wr_u64(&w, s->ident_hash);
    wr_u64(&w, hash64(out, w.len));
}

int seg_slot_decode(const uint8_t *p, size_t len, uint64_t ident_hash, uint64_t capacity,
                    struct seg_slot *ret)
{
    if (len < SEG_SLOT_BYTES || get_le64(p + SEG_SLOT_BYTES - 8) != hash64(p, SEG_SLOT_BYTES - 8))
        return -EBADMSG;
    struct rd r = {.p = p, .len = SEG_SLOT_BYTES};
    struct seg_slot s = {0};
    if (rd_u32(&r) != MAGIC_SLOT)
        return -EBADMSG;
    if (rd_u16(&r) != FORMAT)
        return -EPROTONOSUPPORT;
    s.flags = rd_u16(&r);
    if ((s.flags & ~(SLOT_SEALED | SLOT_FLUSHED)) || rd_u32(&r) != SEG_SLOT_BYTES ||
        rd_u32(&r) != 0)
        return -EBADMSG;
    s.seq = rd_u64(&r);
    s.len = rd_u64(&r);
    s.tail_hash = rd_u64(&r);
    s.mtime_ns = (int64_t)rd_u64(&r);
    s.ident_hash = rd_u64(&r);
    bool whole = s.len % BLOCK_BYTES == 0;
    if (s.seq == 0 || s.len > capacity || s.ident_hash != ident_hash || (whole && s.tail_hash) ||
        (!whole && !s.tail_hash && !(s.flags & SLOT_FLUSHED)))
        return -EBADMSG;
    *ret = s;
    return 0;
}

uint64_t seg_slots_flushed(const struct seg_slot slot[static 2])
{
    int newer = slot[1].seq > slot[0].seq ? 1 : 0;
    const struct seg_slot *a = &slot[newer], *b = &slot[!newer];
    return a->seq == 0               ? 0
           : a->flags & SLOT_FLUSHED ? a->len
           : b->seq                  ? min_u64(a->len, b->len)
                                     : 0;
}

void dev_ident_encode(const uint8_t volume[static 16], uint32_t id,
                      uint8_t out[static DEV_IDENT_BYTES])
{
    struct wr w = {.p = out, .cap = DEV_IDENT_BYTES};
    wr_u32(&w, MAGIC_DEV);
    wr_u16(&w, FORMAT);
    wr_u16(&w, 0);
    wr_u32(&w, DEV_IDENT_BYTES);
    wr_u32(&w, id);
    wr_bytes(&w, volume, 16);
    wr_u64(&w, hash64(out, w.len));
}

int dev_ident_decode(const uint8_t *p, size_t len, uint8_t volume[static 16], uint32_t *ret_id)
{
    if (len != DEV_IDENT_BYTES ||
        get_le64(p + DEV_IDENT_BYTES - 8) != hash64(p, DEV_IDENT_BYTES - 8))
        return -EBADMSG;
    if (get_le32(p) != MAGIC_DEV)
        return -EBADMSG;
    if (get_le16(p + 4) != FORMAT)
        return -EPROTONOSUPPORT;
    if (get_le16(p + 6) != 0 || get_le32(p + 8) != DEV_IDENT_BYTES || get_le32(p + 12) == 0)
        return -EBADMSG;
    *ret_id = get_le32(p + 12);
    memcpy(volume, p + 16, 16);
    return 0;
}

unsigned seg_bucket(uint64_t ino)
{
    uint8_t raw[8];
    put_le64(raw, ino);
    return (unsigned)(hash64(raw, sizeof raw) & 0xff);
}

void seg_path(uint64_t ino, uint64_t base, uint32_t version, char out[static SEG_PATH_BYTES])
{
    snprintf(out, SEG_PATH_BYTES, "segments/%02x/%016" PRIx64 "-%016" PRIx64 ".%08" PRIx32 ".seg",
             seg_bucket(ino), ino, base, version);
}

/* `n` lowercase hex digits; upper case would give one file two names. */
static bool hex_parse(const char *p, unsigned n, uint64_t *ret)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned d;
        if (p[i] >= '0' && p[i] <= '9')
            d = (unsigned)(p[i] - '0');
        else if (p[i] >= 'a' && p[i] <= 'f')
            d = (unsigned)(p[i] - 'a') + 10;
        else
            return false;
        v = v << 4 | d;
    }
    *ret = v;
    return true;
}

bool seg_name_parse(const char *name, uint64_t *ino, uint64_t *base, uint32_t *version)
{
    uint64_t i, b, v;
    if (strlen(name) != NAME_LEN || name[16] != '-' || name[33] != '.' ||
        strcmp(name + 42, ".seg") != 0)
        return false;
    if (!hex_parse(name, 16, &i) || !hex_parse(name + 17, 16, &b) || !hex_parse(name + 34, 8, &v))
        return false;
    *ino = i;
    *base = b;
    *version = (uint32_t)v;
    return true;
}
