/* volobj.c: see volobj.h. Pure functions. */
#include "fs/volume/volobj.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"

enum { MAGIC = 0x4f564c53 }; /* "SLVO" */

void volobj_encode(const struct volobj *v, uint8_t out[static VOLOBJ_BYTES])
{
    struct wr w = {.p = out, .cap = VOLOBJ_BYTES};
    wr_u32(&w, MAGIC);
    wr_u16(&w, 1);
    wr_u16(&w, 0);
    wr_u32(&w, VOLOBJ_BYTES);
    wr_u32(&w, v->node);
    wr_bytes(&w, v->volume, 16);
    wr_u64(&w, v->epoch);
    wr_bytes(&w, v->nonce, 16);
    wr_u64(&w, (uint64_t)v->created_ns);
    wr_u64(&w, v->profile);
    wr_u64(&w, 0);
    wr_u64(&w, hash64(out, 80));
}

int volobj_decode(const uint8_t *buf, size_t len, struct volobj *ret)
{
    struct rd r = {.p = buf, .len = len};
    if (len != VOLOBJ_BYTES || rd_u32(&r) != MAGIC)
        return -EBADMSG;
    if (rd_u16(&r) != 1)
        return -EPROTONOSUPPORT;
    (void)rd_u16(&r);
    if (rd_u32(&r) != VOLOBJ_BYTES || get_le64(buf + 80) != hash64(buf, 80))
        return -EBADMSG;
    struct volobj v = {.node = rd_u32(&r)};
    memcpy(v.volume, buf + 16, 16);
    v.epoch = get_le64(buf + 32);
    memcpy(v.nonce, buf + 40, 16);
    v.created_ns = (int64_t)get_le64(buf + 56);
    v.profile = get_le64(buf + 64);
    if (v.profile > 1 || v.epoch > UINT64_MAX / 2)
        return -EBADMSG;
    *ret = v;
    return 0;
}

void volume_id_text(const uint8_t id[static 16], char out[static 37])
{
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        p += snprintf(p, 3, "%02x", id[i]);
    }
}
