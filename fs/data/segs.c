/* segs.c: see segs.h. Stateless but for the totals. */
#include "fs/data/segs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"

static int64_t total_remote(const struct seg_rec *r, uint64_t base)
{
    return r->has_object ? (int64_t)(r->object.end - base) : 0;
}

static void totals_add(struct totals *t, const struct seg_rec *r, uint64_t base, int64_t len,
                       int64_t sign)
{
    atomic_fetch_add(&t->logical, sign * len);
    if (r->local)
        atomic_fetch_add(&t->local, sign * len);
    atomic_fetch_add(&t->remote, sign * total_remote(r, base));
    if (r->state != SEG_COMMITTED)
        atomic_fetch_add(&t->pending, sign * len);
    switch (r->state) {
    case SEG_OPEN:
        atomic_fetch_add(&t->open, sign);
        break;
    case SEG_SEALED:
        atomic_fetch_add(&t->sealed, sign);
        break;
    case SEG_UPLOADED:
        atomic_fetch_add(&t->uploaded, sign);
        break;
    default:
        atomic_fetch_add(r->local ? &t->committed : &t->evicted, sign);
    }
}

void seg_change_put(struct kv_batch *b, const struct seg_change *c)
{
    struct key k = key_seg(c->ino, c->base);
    if (c->has) {
        uint8_t buf[REC_SEG_MAX];
        kv_put(b, k.b, k.len, buf, seg_rec_encode(&c->now, buf));
    } else {
        kv_del(b, k.b, k.len);
    }
}

void seg_change_done(struct totals *t, const struct seg_change *c)
{
    if (c->had)
        totals_add(t, &c->old, c->base, (int64_t)c->old_len, -1);
    if (c->has)
        totals_add(t, &c->now, c->base, (int64_t)c->now_len, 1);
}

static int seg_found(ssize_t n, const uint8_t *buf, size_t cap, struct seg_rec *ret)
{
    if (n < 0)
        return (int)n;
    if ((size_t)n > cap)
        return -EBADMSG;
    return seg_rec_decode(buf, (size_t)n, ret);
}

int seg_get(struct kv *kv, uint64_t ino, uint64_t base, struct seg_rec *ret)
{
    struct key k = key_seg(ino, base);
    uint8_t buf[REC_SEG_MAX];
    return seg_found(kv_get(kv, k.b, k.len, buf, sizeof buf), buf, sizeof buf, ret);
}

int seg_before(struct kv *kv, uint64_t ino, uint64_t off, uint64_t *ret_base, struct seg_rec *ret)
{
    struct key k = key_seg(ino, off), found = {0};
    uint8_t buf[REC_SEG_MAX];
    ssize_t n =
        kv_last(kv, k.b, 9, k.b, k.len, found.b, sizeof found.b, &found.len, buf, sizeof buf);
    if (n >= 0 && !key_parse_seg(found.b, found.len, NULL, ret_base))
        return -EBADMSG;
    return seg_found(n, buf, sizeof buf, ret);
}

struct first {
    uint64_t *base;
    struct seg_rec *rec;
    int err;
};

static int take_first(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct first *f = arg;
    f->err = key_parse_seg(key, klen, NULL, f->base) ? seg_rec_decode(val, vlen, f->rec) : -EBADMSG;
    return 1;
}

int seg_after(struct kv *kv, uint64_t ino, uint64_t off, uint64_t *ret_base, struct seg_rec *ret)
{
    struct key k = key_seg(ino, off);
    struct first f = {ret_base, ret, -ENOENT};
    int r = kv_walk(kv, k.b, 9, k.b, k.len, take_first, &f);
    return r < 0 ? r : f.err;
}

int seg_blocks(struct kv *kv, uint64_t ino, uint64_t base, uint32_t version, uint64_t **ret,
               size_t *ret_n)
{
    struct key k = key_blocks(ino, base, version);
    uint8_t small[4096], *buf = small;
    ssize_t n = kv_get(kv, k.b, k.len, small, sizeof small);
    if (n > KV_VALUE_MAX)
        return -EBADMSG;
    if (n > (ssize_t)sizeof small) {
        buf = malloc((size_t)n);
        if (!buf)
            return -ENOMEM;
        ssize_t again = kv_get(kv, k.b, k.len, buf, (size_t)n);
        if (again != n)
            n = again < 0 ? again : -EAGAIN;
    }
    int r = n < 0 ? (int)n : n % 8 ? -EBADMSG : 0;
    uint64_t *h = n >= 0 && r == 0 ? malloc((size_t)n + 8) : NULL;
    if (r == 0 && !h)
        r = -ENOMEM;
    if (r == 0) {
        *ret_n = (size_t)n / 8;
        for (size_t i = 0; i < *ret_n; i++)
            h[i] = get_le64(buf + i * 8);
        *ret = h;
    }
    if (buf != small)
        free(buf);
    return r;
}

void seg_blocks_put(struct kv_batch *b, uint64_t ino, uint64_t base, uint32_t version,
                    const uint64_t *hashes, size_t n)
{
    struct key k = key_blocks(ino, base, version);
    uint8_t *buf = n <= KV_VALUE_MAX / 8 ? malloc(n * 8 + 8) : NULL;
    if (!buf) {
        b->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        put_le64(buf + i * 8, hashes[i]);
    kv_put(b, k.b, k.len, buf, n * 8);
    free(buf);
}

struct segfile_id seg_file_id(uint64_t topic, uint64_t ino, uint64_t base, const struct seg_rec *r)
{
    return (struct segfile_id){
        .topic = topic,
        .ino = ino,
        .base = base,
        .version = r->file_version,
        .device = r->device,
        .header_bytes = r->header_bytes,
    };
}

void seg_open_put(struct kv_batch *b, uint64_t ino, uint64_t base, uint64_t noted_len)
{
    struct key k = key_open(ino, base);
    uint8_t buf[9] = {1};
    put_le64(buf + 1, noted_len);
    kv_put(b, k.b, k.len, buf, sizeof buf);
}

uint64_t seg_open_decode(const void *val, size_t len)
{
    const uint8_t *p = val;
    return len == 9 && p[0] == 1 ? get_le64(p + 1) : 0;
}

uint64_t queue_id(void)
{
    uint64_t id = 0;
    while (!id)
        random_bytes(&id, sizeof id);
    return id;
}

void seg_queue_sealed_del(struct kv_batch *b, uint64_t ino, uint64_t base, const struct seg_rec *r)
{
    struct key k = key_upload(r->sealed_ns, ino, base);
    kv_del(b, k.b, k.len);
    k = key_kept(r->sealed_ns, ino, base);
    kv_del(b, k.b, k.len);
}

void seg_queue_unlink(struct kv_batch *b, uint64_t ino, uint64_t base, const struct seg_rec *r)
{
    uint8_t buf[32];
    struct wr w = {.p = buf, .cap = sizeof buf};
    wr_u8(&w, 1);
    wr_u32(&w, r->device);
    wr_u32(&w, r->file_version);
    wr_u64(&w, ino);
    wr_u64(&w, base);
    struct key k = key_unlink(queue_id());
    kv_put(b, k.b, k.len, buf, w.len);
}

int unlink_decode(const void *val, size_t len, struct segfile_id *ret)
{
    struct rd r = {.p = val, .len = len};
    uint8_t version = rd_u8(&r);
    *ret = (struct segfile_id){0};
    ret->device = rd_u32(&r);
    ret->version = rd_u32(&r);
    ret->ino = rd_u64(&r);
    ret->base = rd_u64(&r);
    return r.bad || rd_left(&r) || version != 1 ? -EBADMSG : 0;
}

void seg_queue_delete(struct kv_batch *b, const struct seg_object *o, uint64_t ino, uint64_t base,
                      int64_t not_before_ns)
{
    seg_queue_delete_in(b, o, o->topic, ino, base, not_before_ns);
}

void seg_queue_delete_in(struct kv_batch *b, const struct seg_object *o, uint64_t topic,
                         uint64_t ino, uint64_t base, int64_t not_before_ns)
{
    char name[OBJ_KEY_MAX];
    uint8_t buf[OBJ_KEY_MAX + 32];
    if (seg_object_key(o, ino, base, name, sizeof name) < 0) {
        b->failed = true;
        return;
    }
    struct wr w = {.p = buf, .cap = sizeof buf};
    wr_u8(&w, 1);
    wr_u64(&w, topic);
    wr_u64(&w, ino);
    wr_u64(&w, base);
    wr_bytes(&w, name, strlen(name));
    struct key k = key_delete(not_before_ns, queue_id());
    kv_put(b, k.b, k.len, buf, w.len);
}

int delete_decode(const void *val, size_t len, uint64_t *topic, uint64_t *ino, uint64_t *base,
                  char *key, size_t key_cap)
{
    struct rd r = {.p = val, .len = len};
    uint8_t version = rd_u8(&r);
    *topic = rd_u64(&r);
    *ino = rd_u64(&r);
    *base = rd_u64(&r);
    size_t n = rd_left(&r);
    if (r.bad || version != 1 || n == 0 || n >= key_cap)
        return -EBADMSG;
    memcpy(key, rd_room(&r, n), n);
    key[n] = 0;
    return strlen(key) == n ? 0 : -EBADMSG;
}
