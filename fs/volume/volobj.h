/* volobj.h: the object `volume` in the bucket: which volume this prefix belongs to, and the epoch that
 * fences all but the newest mount. Replaced by compare-and-set only.
 *
 *    0 u32 magic "SLVO"   4 u16 version 1   6 u16 0   8 u32 length (88)   12 u32 node of the last mount
 *   16 16 bytes volume id  32 u64 epoch  40 16 bytes nonce of that mount  56 i64 created, wall clock ns
 *   64 u64 profile (0 topics, 1 broker)  72 u64 0   80 u64 xxh3-64 of bytes 0..79
 */
#ifndef SLUICE_VOLUME_VOLOBJ_H
#define SLUICE_VOLUME_VOLOBJ_H

#include <stddef.h>
#include <stdint.h>

enum { VOLOBJ_BYTES = 88 };
#define VOLOBJ_KEY "volume"

struct volobj {
    uint8_t volume[16];
    uint32_t node;
    uint64_t epoch;
    uint8_t nonce[16];
    int64_t created_ns;
    uint64_t profile;
};

void volobj_encode(const struct volobj *v, uint8_t out[static VOLOBJ_BYTES]);
/* 0; -EBADMSG; -EPROTONOSUPPORT: written by a newer version. */
int volobj_decode(const uint8_t *buf, size_t len, struct volobj *ret);

/* "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and a NUL. */
void volume_id_text(const uint8_t id[static 16], char out[static 37]);

#endif
