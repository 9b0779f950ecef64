/* hash.c: wrappers around xxHash and OpenSSL's digest.
 *
 * xxh3 comes from the shared library or, where the processor has AVX2, from hash_avx2.c: chosen once,
 * before main. The values are the same. */
#include "fs/base/hash.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>
#include "fs/base/hash_int.h"

HASH_IMPL(hash_library);

static const struct hash_impl *impl = &hash_library;

#ifdef SLUICE_HASH_AVX2
__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        impl = &hash_avx2;
}
#endif

uint64_t hash64(const void *p, size_t len)
{
    uint64_t h = impl->whole(p, len);
    return h ? h : 1;
}

struct hash128 hash128(const void *p, size_t len)
{
    return impl->whole128(p, len);
}

struct hash64_stream *hash64_stream_new(void)
{
    return impl->stream_new();
}

void hash64_stream_free(struct hash64_stream *s)
{
    impl->stream_free(s);
}

void hash64_stream_reset(struct hash64_stream *s)
{
    impl->stream_reset(s);
}

void hash64_stream_add(struct hash64_stream *s, const void *p, size_t len)
{
    impl->stream_add(s, p, len);
}

uint64_t hash64_stream_value(const struct hash64_stream *s)
{
    uint64_t h = impl->stream_value(s);
    return h ? h : 1;
}

struct sha256 {
    EVP_MD_CTX *ctx;
};

struct sha256 *sha256_new(void)
{
    struct sha256 *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        sha256_free(s);
        return NULL;
    }
    return s;
}

void sha256_free(struct sha256 *s)
{
    if (!s)
        return;
    EVP_MD_CTX_free(s->ctx);
    free(s);
}

void sha256_add(struct sha256 *s, const void *p, size_t len)
{
    int r = EVP_DigestUpdate(s->ctx, p, len);
    assert(r == 1);
    (void)r;
}

void sha256_final(struct sha256 *s, uint8_t out[static SHA256_BYTES])
{
    unsigned n = 0;
    int r = EVP_DigestFinal_ex(s->ctx, out, &n);
    assert(r == 1 && n == SHA256_BYTES);
    r = EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL);
    assert(r == 1);
    (void)r;
}

void sha256_once(const void *p, size_t len, uint8_t out[static SHA256_BYTES])
{
    unsigned n = 0;
    int r = EVP_Digest(p, len, out, &n, EVP_sha256(), NULL);
    assert(r == 1 && n == SHA256_BYTES);
    (void)r;
}

static _Atomic uint64_t test_state;

void random_seed_for_tests(uint64_t seed)
{
    atomic_store(&test_state, seed);
}

void random_bytes(void *p, size_t len)
{
    uint8_t *out = p;
    if (atomic_load(&test_state)) {
        for (size_t i = 0; i < len; i++) {
            uint64_t x = atomic_fetch_add(&test_state, 0x9e3779b97f4a7c15ull);
            x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
            out[i] = (uint8_t)((x ^ x >> 27) * 0x94d049bb133111ebull >> 56);
        }
        return;
    }
    while (len) {
        ssize_t n = getrandom(out, len, 0);
        if (n < 0)
            abort();
        out += n;
        len -= (size_t)n;
    }
}
