/* recstream.h: the endless stream of records that belongs to a seed; see records.c for its format.
 *
 * A struct stream is a plain value owned by its caller: copying it remembers a place. Nothing here
 * fails, blocks or allocates.
 */
#ifndef SLUICE_TESTS_RECSTREAM_H
#define SLUICE_TESTS_RECSTREAM_H

#include <stddef.h>
#include <stdint.h>

enum { HEADER = 24, RECORD_MIN = 64, RECORD_MAX = 8192, HASH_AT = 16 };

/* A place in the stream: `rec` holds record `seq`, `at` is the next byte of it to hand out. */
struct stream {
    uint64_t seed, seq, offset;
    uint32_t len, at;
    uint8_t rec[RECORD_MAX + 8];
};

/* Goes to a byte of the stream; takes time in proportion to the records before it. */
void stream_seek(struct stream *s, uint64_t seed, uint64_t offset);

/* The bytes of the stream from here that lie in one record; at least one. */
const uint8_t *stream_peek(struct stream *s, size_t *len);

/* Moves on by at most what stream_peek gave. */
void stream_skip(struct stream *s, size_t n);

/* Copies the next n bytes and moves on. */
void stream_take(struct stream *s, uint8_t *out, size_t n);

#endif
