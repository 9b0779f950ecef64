/* recstream.c: generates the records of a seed. Length and content of a record follow from seed and
 * sequence number alone, so any place can be reached without generating what lies before it. */
#include "tests/support/recstream.h"

#include <string.h>
#include <xxhash.h>

#include "fs/base/bytes.h"

static const uint32_t record_magic = 0x43524C53; /* "SLRC" */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t record_key(uint64_t seed, uint64_t seq)
{
    return mix(seed * 0x9E3779B97F4A7C15u + mix(seq + 1));
}

static uint32_t record_length(uint64_t seed, uint64_t seq)
{
    return RECORD_MIN + (uint32_t)(record_key(seed, seq) % (RECORD_MAX - RECORD_MIN + 1));
}

static void record_fill(struct stream *s)
{
    uint64_t key = record_key(s->seed, s->seq);

    s->len = record_length(s->seed, s->seq);
    put_le32(s->rec, record_magic);
    put_le32(s->rec + 4, s->len);
    put_le64(s->rec + 8, s->seq);
    put_le64(s->rec + HASH_AT, 0);
    for (uint32_t i = HEADER; i < s->len; i += 8) {
        put_le64(s->rec + i, mix(key + i) | 0x0101010101010101u);
    }
    put_le64(s->rec + HASH_AT, XXH3_64bits(s->rec, s->len));
}

void stream_seek(struct stream *s, uint64_t seed, uint64_t offset)
{
    uint64_t start = 0;

    s->seed = seed;
    s->seq = 0;
    for (;;) {
        uint32_t len = record_length(seed, s->seq);
        if (offset - start < len) {
            break;
        }
        start += len;
        s->seq++;
    }
    s->offset = offset;
    s->at = (uint32_t)(offset - start);
    record_fill(s);
}

const uint8_t *stream_peek(struct stream *s, size_t *len)
{
    *len = s->len - s->at;
    return s->rec + s->at;
}

void stream_skip(struct stream *s, size_t n)
{
    s->at += (uint32_t)n;
    s->offset += n;
    if (s->at == s->len) {
        s->seq++;
        s->at = 0;
        record_fill(s);
    }
}

void stream_take(struct stream *s, uint8_t *out, size_t n)
{
    while (n > 0) {
        size_t part;
        const uint8_t *p = stream_peek(s, &part);
        if (part > n) {
            part = n;
        }
        memcpy(out, p, part);
        stream_skip(s, part);
        out += part;
        n -= part;
    }
}
