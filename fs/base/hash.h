/* hash.h: the hashes of the formats. xxh3 protects against damage, SHA-256 is what stores check. */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t lo, hi;
};

/* xxh3-64 of the bytes, with 0 mapped to 1: a stored 0 always means "not known". */
uint64_t hash64(const void *p, size_t len);
struct hash128 hash128(const void *p, size_t len);

/* Streaming form of hash64 for the unfinished block at a file's end. Created by _new, NULL only when
 * memory has run out. `value` may be called at any time and does not disturb the stream. */
struct hash64_stream;
struct hash64_stream *hash64_stream_new(void);
void hash64_stream_free(struct hash64_stream *s);
void hash64_stream_reset(struct hash64_stream *s);
void hash64_stream_add(struct hash64_stream *s, const void *p, size_t len);
uint64_t hash64_stream_value(const struct hash64_stream *s);

#define SHA256_BYTES 32u
struct sha256;
struct sha256 *sha256_new(void);
void sha256_free(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t len);
/* Finishes and restarts the stream. */
void sha256_final(struct sha256 *s, uint8_t out[static SHA256_BYTES]);
void sha256_once(const void *p, size_t len, uint8_t out[static SHA256_BYTES]);

/* Unpredictable bytes (ids, attempts, nonces). Cannot fail: aborts when the kernel has none. */
void random_bytes(void *p, size_t len);
/* Tests only: from now on random_bytes is a deterministic stream from this seed (0: real again). */
void random_seed_for_tests(uint64_t seed);

#endif
