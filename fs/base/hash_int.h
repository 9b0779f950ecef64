/* hash_int.h: one implementation of xxh3; private to hash.c and hash_avx2.c. All implementations give
 * the same values. A stream is used only with the implementation that made it. */
#ifndef SLUICE_BASE_HASH_INT_H
#define SLUICE_BASE_HASH_INT_H

#include "fs/base/hash.h"

struct hash_impl {
    uint64_t (*whole)(const void *p, size_t len);
    struct hash128 (*whole128)(const void *p, size_t len);
    void *(*stream_new)(void); /* NULL: no memory */
    void (*stream_free)(void *s);
    void (*stream_reset)(void *s);
    void (*stream_add)(void *s, const void *p, size_t len);
    uint64_t (*stream_value)(const void *s);
};

/* Defines `name` from whatever xxhash.h gave this file. */
#define HASH_IMPL(name)                                             \
    static uint64_t impl_whole(const void *p, size_t len)           \
    {                                                               \
        return XXH3_64bits(p, len);                                 \
    }                                                               \
    static struct hash128 impl_whole128(const void *p, size_t len)  \
    {                                                               \
        XXH128_hash_t h = XXH3_128bits(p, len);                     \
        return (struct hash128){.lo = h.low64, .hi = h.high64};     \
    }                                                               \
    static void *impl_stream_new(void)                              \
    {                                                               \
        XXH3_state_t *s = XXH3_createState();                       \
        if (s)                                                      \
            XXH3_64bits_reset(s);                                   \
        return s;                                                   \
    }                                                               \
    static void impl_stream_free(void *s)                           \
    {                                                               \
        XXH3_freeState(s);                                          \
    }                                                               \
    static void impl_stream_reset(void *s)                          \
    {                                                               \
        XXH3_64bits_reset(s);                                       \
    }                                                               \
    static void impl_stream_add(void *s, const void *p, size_t len) \
    {                                                               \
        XXH3_64bits_update(s, p, len);                              \
    }                                                               \
    static uint64_t impl_stream_value(const void *s)                \
    {                                                               \
        return XXH3_64bits_digest(s);                               \
    }                                                               \
    const struct hash_impl name = {                                 \
        .whole = impl_whole,                                        \
        .whole128 = impl_whole128,                                  \
        .stream_new = impl_stream_new,                              \
        .stream_free = impl_stream_free,                            \
        .stream_reset = impl_stream_reset,                          \
        .stream_add = impl_stream_add,                              \
        .stream_value = impl_stream_value,                          \
    }

extern const struct hash_impl hash_library;
#ifdef SLUICE_HASH_AVX2
extern const struct hash_impl hash_avx2;
#endif

#endif
