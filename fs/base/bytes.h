/* bytes.h: explicit little-endian (records) and big-endian (ordered keys) load and store, and
 * checked arithmetic for values that come from disk, network or user, and text copied out of them. Header
 * only, no state. */
#ifndef SLUICE_BASE_BYTES_H
#define SLUICE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline void put_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void put_le32(uint8_t *p, uint32_t v)
{
    put_le16(p, (uint16_t)v);
    put_le16(p + 2, (uint16_t)(v >> 16));
}

static inline void put_le64(uint8_t *p, uint64_t v)
{
    put_le32(p, (uint32_t)v);
    put_le32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t get_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get_le32(const uint8_t *p)
{
    return (uint32_t)get_le16(p) | (uint32_t)get_le16(p + 2) << 16;
}

static inline uint64_t get_le64(const uint8_t *p)
{
    return (uint64_t)get_le32(p) | (uint64_t)get_le32(p + 4) << 32;
}

static inline void put_be64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (56 - 8 * i));
}

static inline uint64_t get_be64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | p[i];
    return v;
}

static inline void put_be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static inline uint32_t get_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* A bounded writer and reader over a byte buffer. Overrunning sets `bad`, stays inside the buffer
 * and makes later calls no-ops: encode or decode everything, then test once. */
struct wr {
    uint8_t *p;
    size_t cap, len;
    bool bad;
};

struct rd {
    const uint8_t *p;
    size_t len, pos;
    bool bad;
};

static inline uint8_t *wr_room(struct wr *w, size_t n)
{
    if (w->bad || w->cap - w->len < n) {
        w->bad = true;
        return NULL;
    }
    uint8_t *at = w->p + w->len;
    w->len += n;
    return at;
}

static inline void wr_u8(struct wr *w, uint8_t v)
{
    uint8_t *p = wr_room(w, 1);
    if (p)
        *p = v;
}

static inline void wr_u16(struct wr *w, uint16_t v)
{
    uint8_t *p = wr_room(w, 2);
    if (p)
        put_le16(p, v);
}

static inline void wr_u32(struct wr *w, uint32_t v)
{
    uint8_t *p = wr_room(w, 4);
    if (p)
        put_le32(p, v);
}

static inline void wr_u64(struct wr *w, uint64_t v)
{
    uint8_t *p = wr_room(w, 8);
    if (p)
        put_le64(p, v);
}

static inline void wr_bytes(struct wr *w, const void *src, size_t n)
{
    uint8_t *p = wr_room(w, n);
    if (p && n)
        memcpy(p, src, n);
}

static inline const uint8_t *rd_room(struct rd *r, size_t n)
{
    if (r->bad || r->len - r->pos < n) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *at = r->p + r->pos;
    r->pos += n;
    return at;
}

static inline uint8_t rd_u8(struct rd *r)
{
    const uint8_t *p = rd_room(r, 1);
    return p ? *p : 0;
}

static inline uint16_t rd_u16(struct rd *r)
{
    const uint8_t *p = rd_room(r, 2);
    return p ? get_le16(p) : 0;
}

static inline uint32_t rd_u32(struct rd *r)
{
    const uint8_t *p = rd_room(r, 4);
    return p ? get_le32(p) : 0;
}

static inline uint64_t rd_u64(struct rd *r)
{
    const uint8_t *p = rd_room(r, 8);
    return p ? get_le64(p) : 0;
}

static inline size_t rd_left(const struct rd *r)
{
    return r->bad ? 0 : r->len - r->pos;
}

/* True on overflow, like the builtins. */
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    return __builtin_add_overflow(a, b, ret);
}

static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    return __builtin_mul_overflow(a, b, ret);
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

/* A new string of n bytes, among which is no zero; none needs to follow them. NULL: no memory. */
static inline char *dup_text(const void *p, size_t n)
{
    char *s = malloc(n + 1);
    if (s) {
        memcpy(s, p, n);
        s[n] = 0;
    }
    return s;
}

#endif
