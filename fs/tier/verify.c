/* verify.c: reading an object back whole, for stores that were not seen to enforce checksums, and after
 * an answer that left the outcome open. On the `blocking` pool: waits for the store, with deadlines. */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 4 * 1024 * 1024 };

int verify_object(struct tier *t, const char *key, uint64_t data_len, const uint64_t *hashes,
                  size_t n)
{
    uint8_t *buf = malloc(CHUNK_BYTES);
    if (!buf)
        return -ENOMEM;
    int r = 0;
    for (uint64_t off = 0; r == 0 && off < data_len; off += CHUNK_BYTES) {
        uint64_t len = min_u64(CHUNK_BYTES, data_len - off);
        struct iovec iov = {buf, (size_t)len};
        struct store_call c = {.req = {
                                   .op = OBJ_GET,
                                   .key = key,
                                   .off = off,
                                   .len = len,
                                   .iov = &iov,
                                   .iov_n = 1,
                                   .deadline_ns = clock_mono_ns() + 120 * NS_PER_SEC,
                               }};
        r = call_run(t, &c);
        obj_req_done(&c.req);
        for (uint64_t at = 0; r == 0 && at < len; at += BLOCK_BYTES) {
            size_t block = (size_t)((off + at) / BLOCK_BYTES);
            uint64_t part = min_u64(BLOCK_BYTES, len - at);
            if (block >= n || hash64(buf + at, (size_t)part) != hashes[block])
                r = -EBADMSG;
        }
    }
    free(buf);
    return r;
}
