/* manifest_take.c: the first half of a manifest job: marks are taken (M -> m, one batch; a change that
 * comes later makes a new M), then the present values of the taken keys are read and appended to the last
 * root. A key that is gone, or belongs to another topic now, becomes a tombstone. */
#include "fs/tier/manifest_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct key manifest_mark(char table, uint64_t topic, const struct key *inner)
{
    struct key k = key_dirty(topic, inner->b, inner->len);
    k.b[0] = (uint8_t)table;
    return k;
}

/* ---- the stored root: u8 version 1, u16 length of the ETag, ETag, root ---- */

static int root_load(struct tier *t, uint64_t topic, struct manifest_root *ret,
                     char etag[OBJ_ETAG_MAX])
{
    struct key k = key_topic(topic);
    uint8_t *buf = malloc(KV_VALUE_MAX);
    if (!buf)
        return -ENOMEM;
    ssize_t n = kv_get(t->v->kv, k.b, k.len, buf, KV_VALUE_MAX);
    int r = n < 0 ? (int)n : n > KV_VALUE_MAX ? -EBADMSG : 0;
    if (r == 0) {
        struct rd rd = {.p = buf, .len = (size_t)n};
        uint8_t version = rd_u8(&rd);
        uint16_t elen = rd_u16(&rd);
        const uint8_t *e = rd_room(&rd, elen);
        if (rd.bad || version != 1 || elen >= OBJ_ETAG_MAX)
            r = -EBADMSG;
        if (r == 0) {
            memcpy(etag, e, elen);
            etag[elen] = 0;
            r = manifest_root_decode(buf + rd.pos, (size_t)n - rd.pos, ret);
        }
    }
    free(buf);
    return r;
}

void manifest_root_store(struct kv_batch *b, uint64_t topic, const uint8_t *root, size_t len,
                         const char *etag)
{
    size_t elen = strlen(etag);
    uint8_t *buf = malloc(len + elen + 3);
    if (!buf) {
        b->failed = true;
        return;
    }
    struct wr w = {.p = buf, .cap = len + elen + 3};
    wr_u8(&w, 1);
    wr_u16(&w, (uint16_t)elen);
    wr_bytes(&w, etag, elen);
    wr_bytes(&w, root, len);
    struct key k = key_topic(topic);
    kv_put(b, k.b, k.len, buf, w.len);
    free(buf);
}

int manifest_root_disown(struct tier *t, uint64_t topic)
{
    struct manifest_root root;
    char etag[OBJ_ETAG_MAX];
    uint8_t *buf = NULL;
    size_t len = 0;
    int r = root_load(t, topic, &root, etag);
    if (r < 0)
        return r;
    r = manifest_root_encode(&root, &buf, &len);
    manifest_root_done(&root);
    if (r < 0)
        return r;
    struct kv_batch b;
    kv_batch_init(&b);
    manifest_root_store(&b, topic, buf, len, "");
    free(buf);
    r = kv_apply(t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    return r;
}

/* ---- taking marks and reading values ---- */

struct take {
    struct manifest_job *j;
    struct kv_batch b;
    bool segs; /* the first round: only these; the second: all others */
};

static int take_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct take *tk = arg;
    struct manifest_job *j = tk->j;
    const uint8_t *inner;
    size_t len;
    if (!key_parse_dirty(key, klen, NULL, &inner, &len) || len > sizeof j->taken->key.b ||
        (len > 0 && inner[0] == 'S') != tk->segs)
        return 0;
    struct taken *x = &j->taken[j->n++];
    memcpy(x->key.b, inner, len);
    x->key.len = len;
    struct key flying = manifest_mark('m', j->topic, &x->key);
    kv_put(&tk->b, flying.b, flying.len, "\1", 1);
    kv_del(&tk->b, key, klen);
    return j->n >= MANIFEST_ENTRIES_MAX;
}

/* The topic that holds what this key says, now. False: nothing does any more. */
static bool topic_of_key(struct tier *t, const struct key *k, const uint8_t *val, size_t vlen,
                         uint64_t *ret)
{
    uint64_t ino = 0, parent;
    struct name_rec n;
    switch (k->b[0]) {
    case 'N':
        if (!key_parse_name(k->b, k->len, &parent, NULL, NULL) ||
            name_rec_decode(val, vlen, &n) < 0)
            return false;
        ino = parent == ROOT_INO ? n.ino : parent;
        break;
    case 'S':
        if (!key_parse_seg(k->b, k->len, &ino, NULL))
            return false;
        break;
    case 'X':
        if (!key_parse_name(k->b, k->len, &ino, NULL, NULL))
            return false;
        break;
    default:
        if (!key_parse_ino(k->b, k->len, &ino))
            return false;
    }
    return topic_of(t->v->ns, ino, ret) == 0;
}

static bool in_topic(struct manifest_job *j, struct taken *x, const uint8_t *val, size_t vlen)
{
    uint64_t of;
    if (!topic_of_key(j->t, &x->key, val, vlen, &of))
        return false;
    if (of != j->topic)
        x->elsewhere = of;
    return of == j->topic;
}

/* A segment is in the manifest as its object, whatever else is known of it here. What is lost when this machine
 * is stands there too, since the rest of a file's size is holes: a segment without object as SEALED, and one
 * that has grown since its object was made with an end behind that of the object. */
static int seg_value(struct taken *x, uint8_t *buf, size_t *len)
{
    struct seg_rec rec;
    int r = seg_rec_decode(buf, *len, &rec);
    if (r < 0)
        return r;
    (void)key_parse_seg(x->key.b, x->key.len, &x->ino, &x->base);
    struct seg_rec out = {
        .state = SEG_COMMITTED,
        .has_object = true,
        .created_ns = rec.created_ns,
        .sealed_ns = rec.sealed_ns,
    };
    if (rec.state == SEG_UPLOADED && rec.has_pending) {
        out.object = rec.pending;
        x->commits = true;
        x->attempt = rec.pending.attempt;
    } else if (rec.has_object && rec.object.end > x->base) {
        out.object = rec.object;
    } else {
        out.state = SEG_SEALED;
        out.has_object = false;
        out.version = rec.version;
        out.end = rec.state == SEG_OPEN ? x->base + rec.capacity : rec.end;
        *len = seg_rec_encode(&out, buf);
        return out.end > x->base;
    }
    out.end = rec.end; /* shorter: the file was cut inside it */
    if (rec.state == SEG_OPEN)
        out.end = max_u64(out.object.end, x->base + rec.capacity);
    out.version = out.object.version;
    out.hash = out.object.hash;
    *len = seg_rec_encode(&out, buf);
    return 1;
}

static int read_value(struct manifest_job *j, struct taken *x)
{
    uint8_t buf[SYMLINK_BYTES_MAX + 1], *val = buf;
    ssize_t n = kv_get(j->t->v->kv, x->key.b, x->key.len, buf, sizeof buf);
    if (n > (ssize_t)sizeof buf) { /* a large extended attribute */
        val = malloc((size_t)n);
        if (!val)
            return -ENOMEM;
        ssize_t again = kv_get(j->t->v->kv, x->key.b, x->key.len, val, (size_t)n);
        if (again > n)
            again = -EAGAIN;
        n = again;
    }
    int r = n < 0 && n != -ENOENT ? (int)n : 0;
    size_t len = n > 0 ? (size_t)n : 0;
    bool present = n >= 0 && in_topic(j, x, val, len);
    if (r == 0 && present && x->key.b[0] == 'S') {
        r = seg_value(x, val, &len);
        present = r > 0;
        r = r > 0 ? 0 : r;
    }
    if (r == 0 && present) {
        x->val = malloc(len + 1);
        if (x->val)
            memcpy(x->val, val, len);
        else
            r = -ENOMEM;
        x->vlen = (uint32_t)len;
    }
    if (val != buf)
        free(val);
    return r;
}

/* What was taken from `from` on is left for the next write. */
static int put_back(struct manifest_job *j, unsigned from)
{
    struct kv_batch b;
    kv_batch_init(&b);
    for (unsigned i = from; i < j->n; i++) {
        struct key flying = manifest_mark('m', j->topic, &j->taken[i].key);
        kv_del(&b, flying.b, flying.len);
        topic_mark(&b, j->topic, &j->taken[i].key);
    }
    int r = kv_apply(j->t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    if (r == 0) {
        j->n = from;
        j->more = true;
    }
    return r;
}

static int fill_root(struct manifest_job *j)
{
    struct tier *t = j->t;
    struct manifest_root *r = &j->root;
    int e = root_load(t, j->topic, r, j->etag);
    if (e == -ENOENT) {
        *r = (struct manifest_root){.topic = j->topic};
        memcpy(r->volume, t->v->id, 16);
        j->etag[0] = 0;
    } else if (e < 0) {
        return e;
    }
    j->had_root = e == 0;
    r->node = t->v->node;
    r->epoch = t->epoch;
    r->seq++;
    random_bytes(r->nonce, sizeof r->nonce);
    size_t len = r->inline_len, cap = len, most = len + MANIFEST_TAKE_MAX;
    for (unsigned i = 0; i < j->n; i++) {
        struct taken *x = &j->taken[i];
        if (len > most) {
            e = put_back(j, i);
            if (e < 0)
                return e;
            break;
        }
        e = read_value(j, x);
        if (e < 0)
            return e;
        struct manifest_entry me = {x->key.b, x->val, (uint16_t)x->key.len, x->vlen};
        e = manifest_entry_add(&r->inline_buf, &len, &cap, &me);
        if (e < 0)
            return e;
    }
    r->inline_len = (uint32_t)len;
    r->inline_n += j->n;
    return 0;
}

int manifest_take(struct manifest_job *j)
{
    struct take tk = {.j = j, .segs = true};
    kv_batch_init(&tk.b);
    /* Segments first, also where a large change is written in parts: a size is never in the bucket before the
     * bytes below it, or that they are missing. */
    struct key m = key_dirty(j->topic, "S", 1);
    int r = kv_walk(j->t->v->kv, m.b, m.len, m.b, m.len, take_one, &tk);
    tk.segs = false;
    m = key_dirty(j->topic, "", 0);
    if (r >= 0 && j->n < MANIFEST_ENTRIES_MAX)
        r = kv_walk(j->t->v->kv, m.b, m.len, m.b, m.len, take_one, &tk);
    if (r >= 0)
        r = kv_apply(j->t->v->kv, &tk.b, NULL, NULL);
    kv_batch_done(&tk.b);
    j->more = j->n == MANIFEST_ENTRIES_MAX;
    return r < 0 ? r : fill_root(j);
}
