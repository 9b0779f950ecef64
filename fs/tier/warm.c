/* warm.c: bringing a remote segment back to a device: read through, checked block by block, written to
 * a new device file, flushed, and only then recorded. The object stays; the segment is committed and
 * local again and may be evicted again. A segment that was cut while it was remote (the file ends
 * before its object does) comes back as a new version that is still to be uploaded, so that a local
 * copy and the object of the same version always hold the same bytes. A local one on a device that is being
 * drained is copied to another device: somebody wants to write there. On the `blocking` pool. */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include "fs/base/log.h"
#include "fs/data/footer.h"
#include "fs/seg/dev.h"
#include "fs/seg/segfile.h"

enum { CHUNK_BYTES = 4 * 1024 * 1024 };
static const int64_t WARM_LEAST_NS = 5 * NS_PER_SEC;

struct warmed {
    const struct seg_rec *before;
    struct segfile_id id;
    uint64_t capacity;
    uint64_t *hashes; /* of what was written */
    size_t hashes_n;
};

static bool is_cut(const struct seg_rec *rec)
{
    return rec->end < rec->object.end;
}

static int record_warm(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)t;
    struct warmed *w = arg;
    if (c->now.local || c->now.state != SEG_COMMITTED || c->now.version != w->before->version ||
        c->now.end != w->before->end)
        return -ESTALE;
    c->now.local = true;
    c->now.device = w->id.device;
    c->now.file_version = w->id.version;
    c->now.header_bytes = w->id.header_bytes;
    c->now.capacity = w->capacity;
    if (is_cut(&c->now)) {
        c->now.state = SEG_SEALED;
        c->now.version++;
        c->now.sealed_ns = clock_wall_ns();
        c->now.hash = seg_hash(w->hashes, w->hashes_n);
        seg_blocks_put(b, c->ino, c->base, c->now.version, w->hashes, w->hashes_n);
        struct key u = key_upload(c->now.sealed_ns, c->ino, c->base);
        kv_put(b, u.b, u.len, "\1", 1);
        return 1;
    }
    /* Not at once away again by age: whoever waits for it must find it. */
    c->now.committed_ns = clock_wall_ns() + WARM_LEAST_NS;
    struct key e = key_evict(c->now.committed_ns, c->ino, c->base);
    kv_put(b, e.b, e.len, "\1", 1);
    return 1;
}

/* Checks all `len` bytes of the object's data, keeps the first `want` of them. */
static int copy_in(struct tier *t, const char *key, uint64_t len, uint64_t want,
                   const uint64_t *hashes, size_t n, struct segfile *sf)
{
    uint8_t *buf = malloc(CHUNK_BYTES);
    int r = buf ? 0 : -ENOMEM;
    for (uint64_t off = 0; r == 0 && off < len; off += CHUNK_BYTES) {
        uint64_t part = min_u64(CHUNK_BYTES, len - off);
        struct iovec iov = {buf, (size_t)part};
        struct store_call c = {.req = {
                                   .op = OBJ_GET,
                                   .flags = OBJ_URGENT,
                                   .key = key,
                                   .off = off,
                                   .len = part,
                                   .iov = &iov,
                                   .iov_n = 1,
                                   .deadline_ns = clock_mono_ns() + 120 * NS_PER_SEC,
                               }};
        r = call_run(t, &c);
        obj_req_done(&c.req);
        for (uint64_t at = 0; r == 0 && at < part; at += BLOCK_BYTES) {
            size_t block = (size_t)((off + at) / BLOCK_BYTES);
            if (block >= n ||
                hash64(buf + at, (size_t)min_u64(BLOCK_BYTES, part - at)) != hashes[block])
                r = -EBADMSG;
        }
        size_t done = 0, keep = off < want ? (size_t)min_u64(part, want - off) : 0;
        if (r == 0 && keep)
            r = segfile_append(sf, buf, keep, &done);
        if (r == 0 && keep)
            segfile_hash(sf, off, buf, keep);
    }
    free(buf);
    return r;
}

/* The block hashes of the object: known here, or (a volume that was rebuilt) from its footer. */
static int object_hashes(struct tier *t, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                         const char *key, uint64_t **ret, size_t *ret_n)
{
    int r = seg_blocks(t->v->kv, ino, base, rec->version, ret, ret_n);
    if (r != -ENOENT)
        return r;
    if (rec->object.version != rec->version || !footer_len_ok(&rec->object, base))
        return -EIO;
    uint8_t *buf = malloc(rec->object.footer_len);
    if (!buf)
        return -ENOMEM;
    struct iovec iov = {buf, rec->object.footer_len};
    struct store_call c = {.req = {
                               .op = OBJ_GET,
                               .flags = OBJ_URGENT,
                               .key = key,
                               .off = rec->object.end - base,
                               .len = rec->object.footer_len,
                               .iov = &iov,
                               .iov_n = 1,
                               .deadline_ns = clock_mono_ns() + 120 * NS_PER_SEC,
                           }};
    r = call_run(t, &c);
    obj_req_done(&c.req);
    if (r == 0)
        r = footer_check(t->v->id, ino, base, &rec->object, buf, ret, ret_n);
    if (r == 0)
        (void)footer_store(t->v, ino, base, rec->version, *ret, *ret_n); /* read again if not */
    free(buf);
    return r;
}

int warm_segment(struct tier *t, uint64_t ino, uint64_t base)
{
    struct volume *v = t->v;
    struct seg_rec rec;
    int r = seg_get(v->kv, ino, base, &rec);
    if (r < 0)
        return r;
    if (rec.local && rec.state != SEG_OPEN && dev_is_draining(v->devs, rec.device)) {
        r = move_segment(t, ino, base, DEV_REFUSE);
        return r == -EBADMSG ? r : 0; /* else it is where it can be written to */
    }
    if (rec.local || rec.state != SEG_COMMITTED)
        return 0;
    char key[OBJ_KEY_MAX];
    uint64_t *hashes = NULL, len = rec.end - base;
    size_t n = 0;
    r = seg_object_key(&rec.object, ino, base, key, sizeof key);
    if (r == 0)
        r = object_hashes(t, ino, base, &rec, key, &hashes, &n);
    struct warmed w = {
        .before = &rec,
        .id = {.topic = rec.object.topic, .ino = ino, .base = base, .version = rec.file_version},
        .capacity = max_u64(round_up(len, BLOCK_BYTES), rec.capacity),
    };
    if (r == 0)
        r = dev_pick(v->devs, &w.id.device);
    bool picked = r == 0;
    if (r == 0)
        r = dev_room(v->devs, w.id.device, len);
    struct segfile *sf = NULL;
    struct data_making making;
    data_making_begin(v->data, &making, ino, base);
    for (unsigned tries = 0; r == 0 && !sf && tries < 64; tries++) {
        w.id.version++;
        r = segfile_create(v->devs, v->id, &w.id, w.capacity, &sf);
        r = r == -EEXIST ? 0 : r;
    }
    if (r == 0 && !sf)
        r = -EEXIST;
    if (r == 0)
        r = copy_in(t, key, rec.object.end - base, len, hashes, n, sf);
    if (r == 0)
        r = segfile_seal(sf, &w.hashes, &w.hashes_n);
    if (r == 0)
        r = segfile_sync(sf);
    if (sf) {
        segfile_release_cache(sf, 0);
        segfile_close(sf);
    }
    if (r == 0)
        r = seg_update(t, ino, base, record_warm, &w);
    if (r < 0 && sf)
        (void)segfile_unlink(v->devs, v->segfds,
                             &w.id); /* nothing names it: the first error wins */
    data_making_end(v->data, &making);
    if (picked)
        dev_unpick(v->devs, w.id.device);
    free(hashes);
    free(w.hashes);
    return r == -ESTALE ? 0 : r;
}

void warm_keep(struct tier *t, uint64_t ino, uint64_t base, int64_t until_ns)
{
    struct kept *place = NULL;
    int64_t now = clock_mono_ns();
    for (unsigned n = 0; n < KEPT_MAX; n++) {
        struct kept *k = &t->kept[n];
        if (k->until_ns && k->ino == ino && k->base == base) {
            place = k;
            break;
        }
        if (!place && k->until_ns <= now)
            place = k;
    }
    if (place)
        *place = (struct kept){ino, base, until_ns};
}

bool warm_is_kept(struct tier *t, uint64_t ino, uint64_t base)
{
    int64_t now = clock_mono_ns();
    for (unsigned n = 0; n < KEPT_MAX; n++)
        if (t->kept[n].until_ns > now && t->kept[n].ino == ino && t->kept[n].base == base)
            return true;
    return false;
}
