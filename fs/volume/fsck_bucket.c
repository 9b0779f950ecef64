/* fsck_bucket.c: objects and manifests.
 *
 * An object that is missing, short or damaged, while the device copy was compared and is whole, is uploaded
 * again: the segment goes back to SEALED and into the upload queue; its next object has a new key, and the
 * old key is queued for deletion when that one is committed. Nothing is overwritten.
 *
 * A manifest root that is not as it was committed is written again from the metadata store. Of a page that
 * is damaged all rows of its topic are marked, and the next root does without the page: the rows come
 * again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/footer.h"
#include "fs/ns/ns.h"
#include "fs/seg/segcheck.h"
#include "fs/tier/manifest_fmt.h"
#include "fs/tier/manifest_int.h"
#include "fs/volume/fsck_int.h"
#include "fs/volume/volume_int.h"

#define LLU(v) ((unsigned long long)(v))

enum { CHUNK = 4 * 1024 * 1024 };

/* ---- objects ---- */

static int upload_again(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)f, (void)arg;
    if (c->now.state != SEG_COMMITTED)
        return -ESTALE;
    struct key k = key_evict(c->now.committed_ns, c->ino, c->base);
    kv_del(b, k.b, k.len);
    c->now.state = SEG_SEALED;
    c->now.sealed_ns = clock_wall_ns();
    k = key_upload(c->now.sealed_ns, c->ino, c->base);
    kv_put(b, k.b, k.len, "\1", 1);
    return 0;
}

struct object {
    struct fsck *f;
    uint64_t ino, base;
    const struct seg_rec *rec;
    const uint64_t *hashes; /* of the segment as it is; NULL: not known */
    size_t n;
    char key[OBJ_KEY_MAX];
    uint64_t bad, first, last; /* damaged blocks */
};

/* All blocks against `hashes`, in pieces. */
static int read_data(struct object *x, const uint64_t *hashes, size_t n)
{
    struct fsck *f = x->f;
    uint64_t len = x->rec->object.end - x->base;
    uint8_t *buf = malloc(CHUNK);
    int r = buf ? 0 : -ENOMEM;
    for (uint64_t off = 0; r == 0 && off < len; off += CHUNK) {
        size_t part = (size_t)min_u64(CHUNK, len - off);
        if (fsck_cancelled(f))
            r = -ECANCELED;
        if (r == 0)
            r = bucket_read(&f->b, x->key, off, buf, part);
        for (size_t at = 0; r == 0 && at < part; at += BLOCK_BYTES) {
            uint64_t block = (off + at) / BLOCK_BYTES;
            size_t size = (size_t)min_u64(BLOCK_BYTES, part - at);
            f->rep->object_bytes += size;
            if (block < n && hash64(buf + at, size) == hashes[block])
                continue;
            if (!x->bad++)
                x->first = block;
            x->last = block;
        }
    }
    free(buf);
    return r;
}

static int read_footer(struct object *x, uint64_t **ret, size_t *ret_n)
{
    const struct seg_object *o = &x->rec->object;
    if (!footer_len_ok(o, x->base))
        return -EBADMSG;
    uint8_t *buf = malloc(o->footer_len);
    int r = buf ? bucket_read(&x->f->b, x->key, o->end - x->base, buf, o->footer_len) : -ENOMEM;
    if (r == 0)
        r = footer_check(x->f->v->id, x->ino, x->base, o, buf, ret, ret_n);
    free(buf);
    return r;
}

/* Reads the device copy whole, if it was not yet: only what matches its hashes is uploaded again. */
static bool local_is_good(struct object *x, bool local_good)
{
    const struct seg_rec *rec = x->rec;
    struct segfile_id id = seg_file_id(0, x->ino, x->base, rec);
    struct segcheck c;
    if (local_good || !rec->local || !x->hashes || !x->f->o->repair)
        return local_good;
    segcheck_sealed(x->f->v->devs, x->f->v->id, &id, rec->end - x->base, x->hashes, x->n, true,
                    NULL, NULL, &c);
    x->f->rep->device_bytes += c.bytes;
    return !(c.missing || c.unreadable || c.foreign || c.shorter || c.bad_blocks);
}

static int tell(struct object *x, uint64_t off, uint64_t len, bool local_good, const char *what)
{
    struct fsck *f = x->f;
    char path[FSCK_PATH];
    if (!fsck_still(f, x->ino, x->base, x->rec))
        return 0;
    local_good = local_is_good(x, local_good);
    /* The device copy is this very version: what is uploaded is what the record says. */
    bool heal = f->o->repair && local_good && x->rec->local && x->rec->state == SEG_COMMITTED;
    int r = heal ? fsck_change(f, x->ino, x->base, x->rec, upload_again, NULL) : 0;
    if (r == -ESTALE)
        return 0;
    bool later = x->rec->state != SEG_COMMITTED && x->rec->local; /* a new one is on its way */
    fsck_told(f, "object", (heal && r == 0) || later ? FATE_HEALED : FATE_LEFT, x->ino, off, len,
              x->key, "%s: bytes %llu-%llu (segment at %llu): object %s %s%s",
              fsck_path(f, x->ino, path, sizeof path), LLU(off), LLU(off + len), LLU(x->base),
              x->key, what,
              heal && r == 0 ? "; the device copy is uploaded again"
              : later        ? "; it is being replaced by a newer one"
                             : "");
    return r;
}

int fsck_object(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                const uint64_t *hashes, size_t n, bool local_good)
{
    struct object x = {.f = f, .ino = ino, .base = base, .rec = rec, .hashes = hashes, .n = n};
    struct obj_info info;
    const struct seg_object *o = &rec->object;
    uint64_t len = o->end - base;
    int r = seg_object_key(o, ino, base, x.key, sizeof x.key);
    if (r < 0)
        return r;
    f->rep->objects++;
    r = bucket_head(&f->b, x.key, &info);
    if (r == -ENOENT)
        return tell(&x, base, len, local_good, "is missing");
    if (r < 0)
        return r;
    if (info.size != len + o->footer_len)
        return tell(&x, base, len, local_good, "has the wrong length");
    if (!f->o->deep || f->o->spare_objects)
        return 0;
    uint64_t *own = NULL;
    size_t own_n = 0;
    int footer = read_footer(&x, &own, &own_n);
    if (footer < 0 && footer != -EBADMSG && footer != -EPROTONOSUPPORT) {
        return footer == -ENOENT ? tell(&x, base, len, local_good, "is missing") : footer;
    }
    bool same = o->version == rec->version && hashes;
    const uint64_t *want = same ? hashes : own;
    r = want ? read_data(&x, want, same ? n : own_n) : 0;
    free(own);
    if (r < 0)
        return r;
    if (x.bad) {
        uint64_t off = base + x.first * BLOCK_BYTES;
        return tell(&x, off, min_u64(o->end, base + (x.last + 1) * BLOCK_BYTES) - off, local_good,
                    "does not match its hashes there");
    }
    return footer < 0 ? tell(&x, base, len, local_good, "has a damaged footer") : 0;
}

/* ---- manifests ---- */

struct stored_root {
    char etag[OBJ_ETAG_MAX];
    const uint8_t *root; /* points into the value */
    size_t len;
};

static int stored_root(const void *val, size_t vlen, struct stored_root *ret)
{
    struct rd rd = {.p = val, .len = vlen};
    uint8_t version = rd_u8(&rd);
    uint16_t elen = rd_u16(&rd);
    const uint8_t *e = rd_room(&rd, elen);
    if (rd.bad || version != 1 || elen >= OBJ_ETAG_MAX)
        return -EBADMSG;
    memcpy(ret->etag, e, elen);
    ret->etag[elen] = 0;
    ret->root = (const uint8_t *)val + rd.pos;
    ret->len = vlen - rd.pos;
    return 0;
}

static int last_value(const uint8_t *buf, size_t len, const void *key, size_t klen,
                      struct manifest_entry *ret)
{
    struct manifest_entry e;
    size_t pos = 0;
    bool found = false;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) > 0)
        if (e.klen == klen && !memcmp(e.key, key, klen)) {
            *ret = e;
            found = true;
        }
    return r < 0 ? r : found ? 0 : -ENOENT;
}

static int copy_value(const struct manifest_entry *e, uint8_t **ret, size_t *ret_len)
{
    if (!e->val)
        return -ENOENT;
    *ret = malloc(e->vlen + 1);
    if (!*ret)
        return -ENOMEM;
    memcpy(*ret, e->val, e->vlen);
    *ret_len = e->vlen;
    return 0;
}

static int get_page(struct fsck *f, uint64_t topic, const struct manifest_page_ref *ref,
                    char key[OBJ_KEY_MAX], uint8_t **ret_buf, const uint8_t **entries,
                    size_t *entries_len)
{
    size_t len;
    uint32_t n;
    manifest_page_key(topic, ref->id, key, OBJ_KEY_MAX);
    int r = bucket_get(&f->b, key, MANIFEST_BYTES_MAX, ret_buf, &len, NULL);
    if (r == 0 && (len != ref->bytes || hash64(*ret_buf, len) != ref->hash))
        r = -EBADMSG;
    if (r == 0)
        r = manifest_page_decode(*ret_buf, len, f->v->id, topic, ref->id, entries, entries_len, &n);
    return r == -EFBIG ? -EBADMSG : r;
}

int fsck_in_manifest(struct fsck *f, uint64_t topic, const void *key, size_t klen, uint8_t **ret,
                     size_t *ret_len)
{
    char name[OBJ_KEY_MAX];
    uint8_t *buf = NULL;
    size_t len;
    struct manifest_root root = {0};
    struct manifest_entry e;
    manifest_root_key(topic, name, sizeof name);
    int r = bucket_get(&f->b, name, MANIFEST_BYTES_MAX, &buf, &len, NULL);
    if (r == 0)
        r = manifest_root_decode(buf, len, &root);
    free(buf);
    if (r == 0 && (memcmp(root.volume, f->v->id, 16) != 0 || root.topic != topic))
        r = -EBADMSG;
    if (r == 0) {
        r = last_value(root.inline_buf, root.inline_len, key, klen, &e);
        if (r == 0)
            r = copy_value(&e, ret, ret_len);
        else
            for (uint32_t i = root.pages_n; r == -ENOENT && i-- > 0;) {
                const uint8_t *entries;
                size_t n;
                uint8_t *page = NULL;
                r = get_page(f, topic, &root.pages[i], name, &page, &entries, &n);
                if (r == 0)
                    r = last_value(entries, n, key, klen, &e);
                if (r == 0) {
                    r = copy_value(&e, ret, ret_len);
                    free(page);
                    break;
                }
                free(page);
            }
    }
    manifest_root_done(&root);
    return r;
}

/* Marks every row that belongs to the topic. */
struct mark {
    struct fsck *f;
    uint64_t topic;
    struct kv_batch b;
};

static int mark_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct mark *m = arg;
    uint64_t ino = 0, topic;
    const uint8_t *p = key;
    struct key k = {.len = klen};
    struct name_rec n;
    bool ok;
    if (p[0] == 'N')
        ok = key_parse_name(key, klen, &ino, NULL, NULL) && name_rec_decode(val, vlen, &n) == 0;
    else if (p[0] == 'X')
        ok = key_parse_name(key, klen, &ino, NULL, NULL);
    else
        ok = p[0] == 'S' ? key_parse_seg(key, klen, &ino, NULL) : key_parse_ino(key, klen, &ino);
    if (ok && p[0] == 'N' && ino == ROOT_INO)
        ino = n.ino;
    if (!ok || klen > sizeof k.b || fsck_topic(m->f, ino, &topic) < 0 || topic != m->topic)
        return 0;
    memcpy(k.b, key, klen);
    topic_mark(&m->b, topic, &k);
    return m->b.n >= 1000 ? fsck_apply(m->f, &m->b) : 0;
}

static int mark_topic(struct fsck *f, uint64_t topic)
{
    struct mark m = {.f = f, .topic = topic};
    int r = 0;
    kv_batch_init(&m.b);
    for (const char *t = "INSXY"; r == 0 && *t; t++) {
        struct key k = key_prefix(*t);
        r = fsck_walk(f, &k, mark_row, &m);
    }
    if (r == 0)
        r = fsck_apply(f, &m.b);
    kv_batch_done(&m.b);
    return r;
}

static void tell_manifest(struct fsck *f, uint64_t topic, const char *key, bool healed,
                          const char *what)
{
    fsck_told(f, "manifest", healed ? FATE_HEALED : FATE_LEFT, topic, 0, 0, key,
              "manifest object %s %s%s", key, what, healed ? "; written again" : "");
}

/* Replaces the root in the bucket on condition that it is still the one we saw (etag ""; none), and what we
 * remember of it. A daemon that writes one meanwhile wins, or finds ours and takes it for its own. */
static int put_root(struct fsck *f, struct manifest_root *root, const char *key, const char *old)
{
    const struct store_caps *caps = &volume_priv(f->v)->ident.caps;
    unsigned flags = *old ? (caps->if_match ? OBJ_IF_MATCH : 0)
                          : (caps->if_absent ? OBJ_IF_ABSENT : 0);
    uint8_t *buf;
    size_t len;
    char etag[OBJ_ETAG_MAX];
    random_bytes(root->nonce, sizeof root->nonce);
    root->seq++;
    int r = manifest_root_encode(root, &buf, &len);
    if (r < 0)
        return r;
    r = bucket_put(&f->b, key, buf, len, flags, old, etag);
    struct kv_batch b;
    kv_batch_init(&b);
    if (r == 0) {
        manifest_root_store(&b, root->topic, buf, len, etag);
        r = fsck_apply(f, &b);
    }
    kv_batch_done(&b);
    free(buf);
    return r;
}

static int check_pages(struct fsck *f, struct manifest_root *root, const char *root_key,
                       const char *etag)
{
    uint32_t left = 0, n = root->pages_n;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        char key[OBJ_KEY_MAX];
        uint8_t *page = NULL;
        const uint8_t *entries;
        size_t len;
        int e = get_page(f, root->topic, &root->pages[i], key, &page, &entries, &len);
        free(page);
        if (e == -EBADMSG || e == -ENOENT || e == -EPROTONOSUPPORT) {
            bool heal = f->o->repair;
            if (heal)
                r = mark_topic(f, root->topic);
            tell_manifest(f, root->topic, key, heal && r == 0,
                          e == -ENOENT ? "is missing" : "is damaged");
            if (heal && r == 0)
                continue;
        } else if (e < 0) {
            r = e;
        }
        root->pages[left++] = root->pages[i];
    }
    if (r == 0 && left < n) {
        root->pages_n = left;
        r = put_root(f, root, root_key, etag);
    }
    return r;
}

static bool row_is(struct fsck *f, const void *key, size_t klen, const void *val, size_t vlen)
{
    uint8_t *now = malloc(vlen + 1);
    bool same = now && kv_get(f->v->kv, key, klen, now, vlen) == (ssize_t)vlen &&
                !memcmp(now, val, vlen);
    free(now);
    return same;
}

static int check_topic(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct fsck *f = arg;
    uint64_t topic = klen == 9 ? get_be64((const uint8_t *)key + 1) : 0;
    struct stored_root s;
    struct manifest_root ours = {0}, theirs = {0};
    char name[OBJ_KEY_MAX], etag[OBJ_ETAG_MAX];
    uint8_t *buf = NULL;
    size_t len = 0;
    if (fsck_cancelled(f))
        return -ECANCELED;
    f->rep->manifests++;
    manifest_root_key(topic, name, sizeof name);
    int r = stored_root(val, vlen, &s);
    if (r == 0)
        r = manifest_root_decode(s.root, s.len, &ours);
    if (r < 0) {
        fsck_told(f, "topic", FATE_LEFT, topic, 0, 0, name,
                  "what is remembered of manifest %s makes no sense", name);
        return 0;
    }
    etag[0] = 0;
    int e = bucket_get(&f->b, name, MANIFEST_BYTES_MAX, &buf, &len, etag);
    if (e == 0)
        e = manifest_root_decode(buf, len, &theirs);
    if (e == 0 && (memcmp(theirs.volume, f->v->id, 16) != 0 || theirs.topic != topic))
        e = -EBADMSG;
    if (e < 0 && e != -EBADMSG && e != -ENOENT && e != -EFBIG && e != -EPROTONOSUPPORT) {
        r = e;
    } else if (!row_is(f, key, klen, val, vlen)) {
        r = 0; /* a daemon has just written a newer one, or removed the topic */
    } else if (e == 0 && theirs.epoch > ours.epoch) {
        fsck_told(f, "topic", FATE_LEFT, topic, 0, 0, name,
                  "manifest %s carries a newer epoch: another state directory owns this volume now",
                  name);
    } else {
        bool other = e == 0 && (len != s.len || memcmp(buf, s.root, len) != 0) &&
                     theirs.seq <= ours.seq && !f->v->ns;
        if (e < 0 || other) {
            if (f->o->repair)
                r = put_root(f, &ours, name, etag);
            tell_manifest(f, topic, name, f->o->repair && r == 0,
                          e == -ENOENT ? "is missing"
                          : other      ? "is not the one that was committed"
                                       : "is damaged");
            r = r == -EEXIST ? 0 : r;
        } else {
            r = check_pages(f, &ours, name, etag);
        }
    }
    free(buf);
    manifest_root_done(&ours);
    manifest_root_done(&theirs);
    return r == -EBADMSG ? -EIO : r;
}

int fsck_manifests(struct fsck *f)
{
    struct key k = key_prefix('T');
    return fsck_walk(f, &k, check_topic, f);
}
