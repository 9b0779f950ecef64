/* restore_replay.c: the manifests of all topics become rows of the metadata store.
 *
 * A topic is read from its newest entry to its oldest, so the first one seen of a key wins and a
 * tombstone needs nothing but to be remembered; the set of keys seen is of one topic. Tombstones never
 * touch what another topic said: an entry moved to another topic is removed from one and put into the
 * other, and one of the two manifests may be behind. Then both have it, and the newer wins: of an inode
 * the later change, of a segment the higher version, of a name that leads to two inodes that of the inode
 * changed last; the other inode keeps its name with a suffix (restore_tree.c).
 *
 * Before a topic is replayed its root is rewritten under the new epoch, on condition that it is still the
 * one that was read: a daemon that survived fails at its next commit and fences itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"
#include "fs/data/segs.h"
#include "fs/tier/manifest_fmt.h"
#include "fs/tier/manifest_int.h"
#include "fs/volume/restore_int.h"

enum { FENCE_TRIES = 10, XATTR_MAX = 65536 };

/* ---- keys seen: a set of 128-bit hashes, open addressing ---- */

struct seen {
    struct hash128 *slot;
    size_t cap, n;
};

static struct hash128 *seen_slot(struct seen *s, struct hash128 h)
{
    size_t i = h.lo & (s->cap - 1);
    while ((s->slot[i].lo || s->slot[i].hi) && (s->slot[i].lo != h.lo || s->slot[i].hi != h.hi))
        i = (i + 1) & (s->cap - 1);
    return &s->slot[i];
}

/* 1: new; 0: seen before; -ENOMEM. */
static int seen_add(struct seen *s, const void *key, size_t len)
{
    if (s->n * 2 >= s->cap) {
        struct seen more = {.cap = s->cap ? s->cap * 2 : 1024};
        more.slot = calloc(more.cap, sizeof *more.slot);
        if (!more.slot)
            return -ENOMEM;
        for (size_t i = 0; i < s->cap; i++)
            if (s->slot[i].lo || s->slot[i].hi)
                *seen_slot(&more, s->slot[i]) = s->slot[i];
        more.n = s->n;
        free(s->slot);
        *s = more;
    }
    struct hash128 h = hash128(key, len);
    if (!h.lo && !h.hi)
        h.lo = 1;
    struct hash128 *at = seen_slot(s, h);
    if (at->lo || at->hi)
        return 0;
    *at = h;
    s->n++;
    return 1;
}

/* ---- one entry ---- */

static bool name_ok(const uint8_t *name, size_t len)
{
    if (len == 0 || len > NAME_BYTES_MAX || memchr(name, 0, len) || memchr(name, '/', len))
        return false;
    return !(name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')));
}

static bool type_ok(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return true;
    default:
        return false;
    }
}

/* Is it a row that this program would have written? What comes from a bucket is input. */
static bool entry_ok(const struct manifest_entry *e)
{
    uint64_t ino, base;
    const uint8_t *name;
    size_t len;
    struct inode_rec i;
    struct name_rec n;
    struct seg_rec s;
    switch (e->key[0]) {
    case 'I':
        return key_parse_ino(e->key, e->klen, &ino) && ino != 0 &&
               inode_rec_decode(e->val, e->vlen, &i) == 0 && type_ok(i.mode) &&
               (ino != ROOT_INO || S_ISDIR(i.mode));
    case 'N':
        return key_parse_name(e->key, e->klen, NULL, &name, &len) && name_ok(name, len) &&
               name_rec_decode(e->val, e->vlen, &n) == 0 && n.ino > ROOT_INO;
    case 'Y':
        return key_parse_ino(e->key, e->klen, &ino) && e->vlen > 0 &&
               e->vlen <= SYMLINK_BYTES_MAX && !memchr(e->val, 0, e->vlen);
    case 'X':
        return key_parse_name(e->key, e->klen, &ino, &name, &len) && len > 0 &&
               len <= NAME_BYTES_MAX && !memchr(name, 0, len) && e->vlen <= XATTR_MAX;
    case 'S':
        return key_parse_seg(e->key, e->klen, &ino, &base) &&
               seg_rec_decode(e->val, e->vlen, &s) == 0 && !s.local && !s.has_pending &&
               base <= INT64_MAX &&
               (s.state == SEG_COMMITTED ? s.object.version == s.version
                                         : s.state == SEG_SEALED && !s.has_object && s.end > base);
    default:
        return false;
    }
}

static int add_rival(struct restore *r, uint64_t topic, const struct manifest_entry *e)
{
    if (r->rivals == r->rivals_cap) {
        size_t cap = r->rivals_cap ? r->rivals_cap * 2 : 64;
        struct rival *more = realloc(r->rival, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        r->rival = more;
        r->rivals_cap = cap;
    }
    struct rival *x = &r->rival[r->rivals];
    const uint8_t *name;
    *x = (struct rival){.topic = topic};
    if (!key_parse_name(e->key, e->klen, &x->parent, &name, &x->len) ||
        name_rec_decode(e->val, e->vlen, &x->rec) < 0)
        return -EBADMSG;
    memcpy(x->name, name, x->len);
    r->rivals++;
    return 0;
}

/* Another topic has this key too. 1: take this one. */
static int judge(struct restore *r, uint64_t topic, const struct manifest_entry *e,
                 const uint8_t *have, size_t len)
{
    struct inode_rec a, b;
    struct seg_rec s, t;
    struct name_rec n, m;
    switch (e->key[0]) {
    case 'I':
        return inode_rec_decode(have, len, &a) < 0 ||
               (inode_rec_decode(e->val, e->vlen, &b) == 0 && b.ctime_ns > a.ctime_ns);
    case 'S':
        return seg_rec_decode(have, len, &s) < 0 ||
               (seg_rec_decode(e->val, e->vlen, &t) == 0 && t.version > s.version);
    case 'N':
        if (name_rec_decode(have, len, &n) == 0 && name_rec_decode(e->val, e->vlen, &m) == 0 &&
            n.ino != m.ino)
            return add_rival(r, topic, e);
        return 0;
    default:
        return 0;
    }
}

/* A segment that had grown since its object was made: that object, and behind it one without object, where no
 * other begins. Of version 0, so that any other goes before it. */
static int put_grown(struct restore *r, uint64_t ino, const struct manifest_entry *e,
                     struct seg_rec *s)
{
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec rest = {.state = SEG_SEALED, .end = s->end, .created_ns = s->created_ns};
    struct key k = key_seg(ino, s->object.end);
    int err = restore_apply(r, 1); /* what is there already */
    if (err < 0)
        return err;
    ssize_t n = kv_get(r->v->kv, k.b, k.len, buf, sizeof buf);
    if (n == -ENOENT)
        kv_put(&r->batch, k.b, k.len, buf, seg_rec_encode(&rest, buf));
    else if (n < 0)
        return (int)n;
    s->end = s->object.end;
    kv_put(&r->batch, e->key, e->klen, buf, seg_rec_encode(s, buf));
    return restore_apply(r, 1);
}

static int put_entry(struct restore *r, uint64_t topic, const struct manifest_entry *e)
{
    uint8_t have[REC_SEG_MAX];
    uint64_t ino = 0, base = 0;
    struct seg_rec s = {0};
    if (e->key[0] == 'S' && key_parse_seg(e->key, e->klen, &ino, &base) &&
        seg_rec_decode(e->val, e->vlen, &s) == 0 && s.end <= base)
        return 0; /* the mark of a gap, made by an earlier rebuild */
    ssize_t n = kv_get(r->v->kv, e->key, e->klen, have, sizeof have);
    if (n < 0 && n != -ENOENT)
        return (int)n;
    int take = n < 0 ? 1 : judge(r, topic, e, have, min_u64((uint64_t)n, sizeof have));
    if (take <= 0)
        return take;
    if (s.has_object && s.end > s.object.end && s.object.end > base)
        return put_grown(r, ino, e, &s);
    kv_put(&r->batch, e->key, e->klen, e->val, e->vlen);
    return 0;
}

/* Entries in their order of writing; the last of a key wins. */
static int replay(struct restore *r, uint64_t topic, struct seen *seen, const uint8_t *buf,
                  size_t len, const char *object)
{
    struct manifest_entry *list = NULL, e;
    size_t n = 0, cap = 0, pos = 0;
    int more;
    while ((more = manifest_entry_next(buf, len, &pos, &e)) > 0) {
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            struct manifest_entry *bigger = realloc(list, cap * sizeof *list);
            if (!bigger) {
                free(list);
                return -ENOMEM;
            }
            list = bigger;
        }
        list[n++] = e;
    }
    int err = more;
    while (err == 0 && n > 0) {
        const struct manifest_entry *x = &list[--n];
        int fresh = x->klen > KV_KEY_MAX ? -EBADMSG : seen_add(seen, x->key, x->klen);
        if (fresh > 0 && x->val && !entry_ok(x)) {
            findings_add(&r->rep->found,
                         &(struct finding){.kind = "bad-entry",
                                           .fate = FATE_LEFT,
                                           .key = (char *)(uintptr_t)object},
                         "%s: an entry of table %c is not one that this program writes; left out",
                         object, x->key[0] >= 'A' && x->key[0] <= 'Z' ? x->key[0] : '?');
            continue;
        }
        if (fresh > 0 && x->val)
            err = put_entry(r, topic, x);
        if (fresh < 0)
            err = fresh;
        /* No flush inside a topic is needed for correctness: its keys are all different. */
        if (err == 0)
            err = restore_apply(r, 1000);
    }
    free(list);
    return err;
}

/* ---- one topic ---- */

static int damaged(struct restore *r, const char *key, int err)
{
    if (err == -ENOMEM)
        return err;
    const char *what = err == -ENOENT            ? "is missing"
                       : err == -EPROTONOSUPPORT ? "was written by a newer version"
                       : err == -EEXIST          ? "is of another volume"
                                                 : "is damaged";
    if (!r->o->partial) {
        snprintf(r->why, r->why_cap,
                 "store: the manifest object %s %s; restore it from a copy of the bucket, or go on "
                 "without it with --partial",
                 key, what);
        return err;
    }
    findings_add(
        &r->rep->found,
        &(struct finding){.kind = "bad-manifest", .fate = FATE_LEFT, .key = (char *)(uintptr_t)key},
        "%s %s: what only it says is not restored", key, what);
    return 0;
}

static bool is_verdict(int err)
{
    return err == -EBADMSG || err == -ENOENT || err == -EPROTONOSUPPORT || err == -EFBIG ||
           err == -EEXIST;
}

static int store_error(struct restore *r, int err)
{
    if (!*r->why)
        snprintf(r->why, r->why_cap, "store: %s; try again", r->b.why);
    return err;
}

static int read_root(struct restore *r, uint64_t topic, const char *key, struct manifest_root *ret,
                     char etag[OBJ_ETAG_MAX])
{
    uint8_t *buf = NULL;
    size_t len;
    int e = bucket_get(&r->b, key, MANIFEST_BYTES_MAX, &buf, &len, etag);
    if (e < 0)
        return e == -EFBIG ? -EBADMSG : e;
    e = manifest_root_decode(buf, len, ret);
    free(buf);
    if (e == 0 && (memcmp(ret->volume, r->v->id, 16) != 0 || ret->topic != topic)) {
        manifest_root_done(ret);
        e = -EBADMSG;
    }
    return e;
}

/* Rewrites the root under our epoch. *root and the row of table T are then as in the bucket. */
static int fence(struct restore *r, const char *key, struct manifest_root *root,
                 char etag[OBJ_ETAG_MAX])
{
    struct store_caps *caps = &volume_priv(r->v)->ident.caps;
    uint8_t *buf, nonce[16];
    size_t len;
    random_bytes(nonce, sizeof nonce);
    for (int tries = 0; tries < FENCE_TRIES; tries++) {
        if (root->epoch > r->epoch) {
            snprintf(r->why, r->why_cap,
                     "store: %s carries a newer epoch; another rebuild or mount runs", key);
            return -EBUSY;
        }
        uint64_t topic = root->topic;
        root->epoch = r->epoch;
        root->node = r->rep->node;
        root->seq++;
        memcpy(root->nonce, nonce, sizeof nonce);
        int e = manifest_root_encode(root, &buf, &len);
        if (e < 0)
            return e;
        char now[OBJ_ETAG_MAX];
        e = bucket_put(&r->b, key, buf, len, caps->if_match ? OBJ_IF_MATCH : 0, etag, now);
        if (e == 0) {
            manifest_root_store(&r->batch, topic, buf, len, now);
            free(buf);
            return restore_apply(r, 1);
        }
        free(buf);
        if (e != -EEXIST && !r->b.unclear)
            return e;
        manifest_root_done(root);
        e = read_root(r, topic, key, root, etag);
        if (e < 0)
            return e;
        if (!memcmp(root->nonce, nonce, sizeof nonce) && root->epoch == r->epoch) {
            e = manifest_root_encode(root, &buf, &len); /* the answer was lost, the write was not */
            if (e == 0) {
                manifest_root_store(&r->batch, topic, buf, len, etag);
                free(buf);
                e = restore_apply(r, 1);
            }
            return e;
        }
    }
    snprintf(r->why, r->why_cap,
             "store: %s changes all the time; end the daemon that still writes to this volume",
             key);
    return -EBUSY;
}

static int replay_page(struct restore *r, uint64_t topic, const struct manifest_page_ref *ref,
                       struct seen *seen)
{
    char key[OBJ_KEY_MAX];
    uint8_t *buf = NULL;
    const uint8_t *entries;
    size_t len, entries_len;
    uint32_t n;
    manifest_page_key(topic, ref->id, key, sizeof key);
    int e = bucket_get(&r->b, key, MANIFEST_BYTES_MAX, &buf, &len, NULL);
    if (e == 0 && (len != ref->bytes || hash64(buf, len) != ref->hash))
        e = -EBADMSG;
    if (e == 0)
        e = manifest_page_decode(buf, len, r->v->id, topic, ref->id, &entries, &entries_len, &n);
    if (e == 0)
        e = replay(r, topic, seen, entries, entries_len, key);
    else
        e = is_verdict(e) ? damaged(r, key, e) : store_error(r, e);
    free(buf);
    return e;
}

static int replay_topic(struct restore *r, uint64_t topic)
{
    char key[OBJ_KEY_MAX], etag[OBJ_ETAG_MAX];
    struct manifest_root root = {0};
    struct seen seen = {0};
    manifest_root_key(topic, key, sizeof key);
    int e = read_root(r, topic, key, &root, etag);
    if (e == 0)
        e = fence(r, key, &root, etag);
    if (e < 0) {
        manifest_root_done(&root);
        return *r->why ? e : is_verdict(e) ? damaged(r, key, e) : store_error(r, e);
    }
    e = replay(r, topic, &seen, root.inline_buf, root.inline_len, key);
    for (uint32_t i = root.pages_n; e == 0 && i-- > 0;)
        e = replay_page(r, topic, &root.pages[i], &seen);
    if (e == 0)
        e = restore_apply(r, 1); /* the next topic looks for keys that this one has */
    free(seen.slot);
    manifest_root_done(&root);
    r->rep->topics++;
    return e;
}

/* ---- all topics ---- */

struct topics {
    uint64_t *id;
    size_t n, cap;
};

static int take_topic(void *arg, const struct obj_entry *e)
{
    struct topics *t = arg;
    unsigned long long id;
    int used = 0;
    char again[OBJ_KEY_MAX];
    if (sscanf(e->key, "topics/%16llx/manifest%n", &id, &used) != 1 || e->key[used] || !used)
        return 0;
    manifest_root_key(id, again, sizeof again);
    if (strcmp(again, e->key) != 0)
        return 0;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        uint64_t *more = realloc(t->id, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        t->id = more;
        t->cap = cap;
    }
    t->id[t->n++] = id;
    return 0;
}

int restore_replay(struct restore *r)
{
    struct topics t = {0};
    int e = bucket_list(&r->b, "topics/", false, take_topic, &t);
    if (e < 0)
        (void)store_error(r, e);
    for (size_t i = 0; e == 0 && i < t.n; i++)
        e = replay_topic(r, t.id[i]);
    free(t.id);
    return e;
}
