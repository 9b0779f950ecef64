/* footer.c: see footer.h. */
#include "fs/data/footer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/data/segs.h"
#include "fs/ns/ns.h"
#include "fs/parts.h"

bool footer_len_ok(const struct seg_object *o, uint64_t base)
{
    if (o->end <= base || o->end - base > SEGMENT_BYTES_MAX)
        return false;
    return o->footer_len == seg_footer_size((o->end - base + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

int footer_check(const uint8_t volume[16], uint64_t ino, uint64_t base, const struct seg_object *o,
                 const uint8_t *buf, uint64_t **ret, size_t *ret_n)
{
    if (!footer_len_ok(o, base))
        return -EBADMSG;
    size_t n = (size_t)((o->end - base + BLOCK_BYTES - 1) / BLOCK_BYTES);
    struct seg_footer f;
    uint64_t *hashes = malloc(n * sizeof *hashes);
    if (!hashes)
        return -ENOMEM;
    int r = seg_footer_decode(buf, o->footer_len, hashes, n, &f);
    if (r == 0) {
        struct hash128 h = seg_hash(f.blocks, f.blocks_n);
        if (memcmp(f.volume, volume, 16) != 0 || f.ino != ino || f.base != base ||
            f.end != o->end || f.epoch != o->epoch || f.attempt != o->attempt || f.blocks_n != n ||
            h.lo != o->hash.lo || h.hi != o->hash.hi)
            r = -EBADMSG;
    }
    if (r < 0) {
        free(hashes);
        return r == -ENOBUFS ? -EBADMSG : r;
    }
    *ret = hashes;
    *ret_n = n;
    return 0;
}

int footer_store(struct volume *v, uint64_t ino, uint64_t base, uint32_t version,
                 const uint64_t *hashes, size_t n)
{
    struct inode *i;
    struct seg_rec now;
    struct kv_batch b;
    int r = inode_get(v->ns, ino, &i);
    if (r < 0)
        return r;
    kv_batch_init(&b);
    b.frees = true; /* a full state directory must not keep remote bytes from being read */
    lock_acquire(&i->io);
    r = seg_get(v->kv, ino, base, &now);
    if (r == 0 && (now.version != version || now.state == SEG_OPEN))
        r = -ESTALE;
    if (r == 0) {
        seg_blocks_put(&b, ino, base, version, hashes, n);
        r = kv_apply(v->kv, &b, NULL, NULL);
    }
    lock_release(&i->io);
    kv_batch_done(&b);
    inode_put(v->ns, i);
    return r;
}
