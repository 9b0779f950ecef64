/* fsck_meta.c: the metadata store: every value against its hash, then the tables against each other.
 *
 * A damaged row is written again from what says the same elsewhere:
 *
 *   N   the row of the listing (C) with this name        C   the name (N) with this cookie
 *   I X Y   the topic's manifest                         S   the manifest; then the device file that
 *                                                            belongs to it, if there is one
 *   B   device file or footer (fsck_segs.c)              T   the root in the bucket
 *   U E M m W   the key alone says all                   L D   gone: the file is then a stray one, the
 *                                                            object one for gc
 *   v   next_ino: behind every number in use; session: gone; others stay damaged
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"
#include "fs/ns/ns.h"
#include "fs/ns/ns_int.h" /* NUMBER_BITS, NUMBER_CHUNK */
#include "fs/tier/manifest_fmt.h"
#include "fs/tier/manifest_int.h"
#include "fs/volume/fsck_int.h"

/* ---- walking around damage ---- */

struct detour {
    int (*each)(void *arg, const void *key, size_t klen, const void *val, size_t vlen);
    void *arg;
    struct key last;
};

static int detour_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct detour *d = arg;
    if (klen <= sizeof d->last.b) {
        memcpy(d->last.b, key, klen);
        d->last.len = klen;
    }
    return d->each(d->arg, key, klen, val, vlen);
}

static int key_order(const struct key *a, const struct key *b)
{
    int c = memcmp(a->b, b->b, min_u64(a->len, b->len));
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

int fsck_walk(struct fsck *f, const struct key *prefix,
              int (*each)(void *arg, const void *key, size_t klen, const void *val, size_t vlen),
              void *arg)
{
    struct detour d = {.each = each, .arg = arg, .last = *prefix};
    struct key from = *prefix;
    for (;;) {
        int r = kv_walk(f->v->kv, prefix->b, prefix->len, from.b, from.len, detour_row, &d);
        if (r != -EBADMSG)
            return r;
        size_t i = 0;
        while (i < f->bads && key_order(&f->bad[i], &d.last) <= 0)
            i++;
        if (i == f->bads || f->bad[i].len >= sizeof from.b)
            return r;
        from = d.last = f->bad[i];
        from.b[from.len++] = 0; /* its successor */
    }
}

/* ---- damaged rows ---- */

static int keep_bad(struct fsck *f, const struct key *k)
{
    if (f->bads == f->bads_cap) {
        size_t cap = f->bads_cap ? f->bads_cap * 2 : 16;
        struct key *more = realloc(f->bad, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        f->bad = more;
        f->bads_cap = cap;
    }
    f->bad[f->bads++] = *k;
    return 0;
}

static int see_bad(void *arg, const void *key, size_t klen)
{
    struct fsck *f = arg;
    struct key k = {.len = klen};
    if (klen > sizeof k.b)
        return 0;
    memcpy(k.b, key, klen);
    return keep_bad(f, &k);
}

/* The same entry in the other of the two tables. */
struct twin {
    uint64_t cookie;     /* looking for the name with this cookie, or */
    const uint8_t *name; /* for the entry with this name */
    size_t len;
    struct kv_batch *b;
};

static int twin_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct twin *t = arg;
    struct name_rec n;
    uint64_t parent;
    const uint8_t *name;
    size_t len;
    if (name_rec_decode(val, vlen, &n) < 0 || n.cookie != t->cookie ||
        !key_parse_name(key, klen, &parent, &name, &len))
        return 0;
    uint8_t buf[REC_DIRENT_MAX];
    struct dirent_rec d = {.ino = n.ino, .type = n.type, .name_len = (uint8_t)len, .name = name};
    struct key k = key_dirent(parent, t->cookie);
    kv_put(t->b, k.b, k.len, buf, dirent_rec_encode(&d, buf));
    return 1;
}

static int twin_dirent(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct twin *t = arg;
    struct dirent_rec d;
    uint64_t parent;
    if (dirent_rec_decode(val, vlen, &d) < 0 || d.name_len != t->len ||
        memcmp(d.name, t->name, t->len) != 0 || !key_parse_dirent(key, klen, &parent, &t->cookie))
        return 0;
    uint8_t buf[REC_NAME_MAX];
    struct name_rec n = {.ino = d.ino, .cookie = t->cookie, .type = d.type};
    struct key k = key_name(parent, t->name, t->len);
    kv_put(t->b, k.b, k.len, buf, name_rec_encode(&n, buf));
    return 1;
}

struct parent_of {
    uint64_t ino, parent;
};

static int find_parent(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct parent_of *p = arg;
    struct name_rec n;
    return name_rec_decode(val, vlen, &n) == 0 && n.ino == p->ino &&
           key_parse_name(key, klen, &p->parent, NULL, NULL);
}

/* The topic whose manifest has this key, though the inode's own row may be the damaged one. */
static int topic_of_row(struct fsck *f, uint64_t ino, uint64_t *ret)
{
    if (ino == ROOT_INO || fsck_topic(f, ino, ret) == 0) {
        if (ino == ROOT_INO)
            *ret = ROOT_INO;
        return 0;
    }
    struct parent_of p = {.ino = ino};
    struct key all = key_prefix('N');
    int r = fsck_walk(f, &all, find_parent, &p);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    if (p.parent != ROOT_INO)
        return fsck_topic(f, p.parent, ret);
    *ret =
        ino; /* files in the root of a broker volume are together one topic: tried by the caller */
    return 0;
}

/* 1: mended; 0: cannot be. */
static int mend_from_manifest(struct fsck *f, const struct key *k, uint64_t ino, struct kv_batch *b)
{
    uint64_t topic;
    uint8_t *val = NULL;
    size_t len;
    if (!f->b.store || topic_of_row(f, ino, &topic) < 0)
        return 0;
    int r = fsck_in_manifest(f, topic, k->b, k->len, &val, &len);
    if (r == -ENOENT && topic != ROOT_INO)
        r = fsck_in_manifest(f, ROOT_INO, k->b, k->len, &val, &len);
    struct seg_rec seg;
    if (r == 0 && k->b[0] == 'S' && (seg_rec_decode(val, len, &seg) < 0 || !seg.has_object))
        r = -ENOENT; /* it only says that there is no object */
    if (r == 0 && k->b[0] == 'S' && seg.end > seg.object.end)
        r = -ENOENT; /* what the object does not have is here, or nowhere */
    if (r == 0)
        kv_put(b, k->b, k->len, val, len);
    free(val);
    return r == 0;
}

struct top {
    uint64_t next;
    uint32_t node;
};

static int top_number(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct top *t = arg;
    uint64_t ino;
    if (key_parse_ino(key, klen, &ino) && ino >> NUMBER_BITS == t->node)
        t->next = max_u64(t->next, (ino & ((1ull << NUMBER_BITS) - 1)) + 1);
    return 0;
}

static int top_cookie(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct top *t = arg;
    uint64_t cookie;
    if (key_parse_dirent(key, klen, NULL, &cookie) && cookie < COOKIE_TOP &&
        (COOKIE_TOP - cookie) >> NUMBER_BITS == t->node)
        t->next = max_u64(t->next, ((COOKIE_TOP - cookie) & ((1ull << NUMBER_BITS) - 1)) + 1);
    return 0;
}

static int mend_setting(struct fsck *f, const struct key *k, struct kv_batch *b)
{
    struct key number = key_setting("next_ino"), session = key_setting("session");
    struct key policy = key_setting("policy");
    if (key_order(k, &session) == 0 || key_order(k, &policy) == 0) {
        kv_del(b, k->b, k->len);
        return 1;
    }
    if (key_order(k, &number) != 0)
        return 0;
    struct top t = {.next = NUMBER_FIRST, .node = f->v->node};
    struct key i = key_prefix('I'), c = key_prefix('C');
    if (fsck_walk(f, &i, top_number, &t) < 0 || fsck_walk(f, &c, top_cookie, &t) < 0)
        return 0;
    /* Numbers of files that are gone were higher, perhaps: they are left behind by a wide step. */
    uint8_t v[9] = {1};
    put_le64(v + 1, t.next + 1000ull * NUMBER_CHUNK);
    kv_put(b, k->b, k->len, v, sizeof v);
    return 1;
}

static int mend_root(struct fsck *f, const struct key *k, struct kv_batch *b)
{
    uint64_t topic = k->len == 9 ? get_be64(k->b + 1) : 0;
    char name[OBJ_KEY_MAX], etag[OBJ_ETAG_MAX];
    uint8_t *buf = NULL;
    size_t len;
    struct manifest_root root = {0};
    if (!f->b.store)
        return 0;
    manifest_root_key(topic, name, sizeof name);
    int r = bucket_get(&f->b, name, MANIFEST_BYTES_MAX, &buf, &len, etag);
    if (r == 0)
        r = manifest_root_decode(buf, len, &root);
    if (r == 0 && (memcmp(root.volume, f->v->id, 16) != 0 || root.topic != topic))
        r = -EBADMSG;
    if (r == 0)
        manifest_root_store(b, topic, buf, len, etag);
    manifest_root_done(&root);
    free(buf);
    return r == 0;
}

static int mend(struct fsck *f, const struct key *k, struct kv_batch *b)
{
    uint64_t ino, base;
    struct twin t = {.b = b};
    const uint8_t *p;
    struct key all;
    switch (k->b[0]) {
    case 'N':
        if (!key_parse_name(k->b, k->len, &ino, &t.name, &t.len))
            return 0;
        all = key_dirent(ino, 0);
        all.len = 9;
        return fsck_walk(f, &all, twin_dirent, &t) > 0 || mend_from_manifest(f, k, ino, b);
    case 'C':
        if (!key_parse_dirent(k->b, k->len, &ino, &t.cookie))
            return 0;
        all = key_name(ino, NULL, 0);
        return fsck_walk(f, &all, twin_name, &t) > 0;
    case 'I':
    case 'Y':
        return key_parse_ino(k->b, k->len, &ino) && mend_from_manifest(f, k, ino, b);
    case 'X':
        return key_parse_name(k->b, k->len, &ino, &p, &t.len) && mend_from_manifest(f, k, ino, b);
    case 'S':
        return key_parse_seg(k->b, k->len, &ino, &base) && mend_from_manifest(f, k, ino, b);
    case 'U':
    case 'K':
    case 'E':
    case 'M':
    case 'm':
        kv_put(b, k->b, k->len, "\1", 1);
        return 1;
    case 'W':
        if (!key_parse_seg(k->b, k->len, &ino, &base))
            return 0;
        seg_open_put(b, ino, base, 0);
        return 1;
    case 'B': /* found missing, and made anew, when its segment is looked at */
    case 'L':
    case 'D':
        kv_del(b, k->b, k->len);
        return 1;
    case 'T':
        return mend_root(f, k, b);
    case 'v':
        return mend_setting(f, k, b);
    default:
        return 0;
    }
}

static const char *row_text(const struct key *k, char *out, size_t cap)
{
    size_t at = (size_t)snprintf(out, cap, "%c", k->b[0] >= 'A' && k->b[0] <= 'z' ? k->b[0] : '?');
    for (size_t i = 1; i < k->len && at + 3 < cap && i < 40; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%02x", i == 1 ? ":" : "", k->b[i]);
    return out;
}

static int mend_rows(struct fsck *f)
{
    size_t left = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < f->bads; i++) {
        struct key k = f->bad[i];
        struct kv_batch b;
        char text[128];
        kv_batch_init(&b);
        bool mended = f->o->repair && mend(f, &k, &b) > 0;
        if (mended)
            r = fsck_apply(f, &b);
        kv_batch_done(&b);
        uint64_t ino = 0;
        if (strchr("NCIXYSWB", k.b[0]) && k.len >= 9)
            ino = get_be64(k.b + 1);
        fsck_told(f, "metadata-row", mended ? FATE_HEALED : FATE_LEFT, ino, 0, 0, NULL,
                  "metadata row %s does not match its hash%s", row_text(&k, text, sizeof text),
                  mended         ? ""
                  : f->o->repair ? "; nothing else says what it was"
                                 : "");
        if (!mended)
            f->bad[left++] = k;
    }
    f->bads = left;
    return r;
}

/* ---- names ---- */

struct counted {
    uint64_t ino;
    uint32_t mode, nlink, names, subdirs;
};

struct names {
    struct fsck *f;
    struct counted *list;
    size_t n, cap;
    struct kv_batch b;
    int err;
};

static int count_inode(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct names *x = arg;
    struct counted c = {0};
    struct inode_rec i;
    if (fsck_cancelled(x->f))
        return -ECANCELED;
    x->f->rep->inodes++;
    if (!key_parse_ino(key, klen, &c.ino) || inode_rec_decode(val, vlen, &i) < 0) {
        fsck_told(x->f, "inode", FATE_LEFT, c.ino, 0, 0, NULL,
                  "the record of inode %llx makes no sense", (unsigned long long)c.ino);
        return 0;
    }
    c.mode = i.mode;
    c.nlink = i.nlink;
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 1024;
        struct counted *more = realloc(x->list, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        x->list = more;
        x->cap = cap;
    }
    x->list[x->n++] = c; /* sorted, as the keys are */
    return 0;
}

static struct counted *find(struct names *x, uint64_t ino)
{
    size_t a = 0, b = x->n;
    while (a < b) {
        size_t m = a + (b - a) / 2;
        if (x->list[m].ino < ino)
            a = m + 1;
        else
            b = m;
    }
    return a < x->n && x->list[a].ino == ino ? &x->list[a] : NULL;
}

/* Beside a daemon a row may have changed since it was read. */
static bool row_is(struct fsck *f, const void *key, size_t klen, const void *val, size_t vlen)
{
    uint8_t now[REC_DIRENT_MAX];
    ssize_t n = kv_get(f->v->kv, key, klen, now, sizeof now);
    return n == (ssize_t)vlen && !memcmp(now, val, vlen);
}

static int check_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct names *x = arg;
    struct fsck *f = x->f;
    struct name_rec n;
    struct dirent_rec d = {0};
    uint64_t parent = 0;
    const uint8_t *name;
    size_t len;
    uint8_t buf[REC_DIRENT_MAX];
    if (fsck_cancelled(f))
        return -ECANCELED;
    if (!key_parse_name(key, klen, &parent, &name, &len) || name_rec_decode(val, vlen, &n) < 0) {
        fsck_told(f, "name", FATE_LEFT, parent, 0, 0, NULL,
                  "a name in directory %llx makes no sense", (unsigned long long)parent);
        return 0;
    }
    struct counted *c = find(x, n.ino), *dir = find(x, parent);
    if (c)
        c->names++;
    if (dir && n.type == DT_DIR)
        dir->subdirs++;
    struct key ck = key_dirent(parent, n.cookie), ik = key_inode(n.ino);
    ssize_t have = kv_get(f->v->kv, ck.b, ck.len, buf, sizeof buf);
    bool listed = have >= 0 && have <= (ssize_t)sizeof buf &&
                  dirent_rec_decode(buf, (size_t)have, &d) == 0 && d.ino == n.ino &&
                  d.name_len == len && !memcmp(d.name, name, len);
    bool leads = kv_get(f->v->kv, ik.b, ik.len, buf, sizeof buf) != -ENOENT;
    if ((listed && leads) || !row_is(f, key, klen, val, vlen))
        return 0;
    if (!leads) {
        fsck_told(f, "name", FATE_LEFT, parent, 0, 0, NULL,
                  "name \"%.*s\" in directory %llx leads to inode %llx, which does not exist",
                  (int)len, (const char *)name, (unsigned long long)parent,
                  (unsigned long long)n.ino);
        return 0;
    }
    if (f->o->repair) {
        struct dirent_rec w = {
            .ino = n.ino, .type = n.type, .name_len = (uint8_t)len, .name = name};
        uint8_t out[REC_DIRENT_MAX];
        kv_put(&x->b, ck.b, ck.len, out, dirent_rec_encode(&w, out));
        x->err = fsck_apply(f, &x->b);
    }
    fsck_told(f, "name", f->o->repair ? FATE_HEALED : FATE_LEFT, parent, 0, 0, NULL,
              "name \"%.*s\" was missing from the listing of directory %llx", (int)len,
              (const char *)name, (unsigned long long)parent);
    return x->err;
}

static int check_dirent(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct names *x = arg;
    struct fsck *f = x->f;
    struct dirent_rec d;
    struct name_rec n;
    uint64_t parent = 0, cookie = 0;
    uint8_t buf[REC_NAME_MAX];
    if (fsck_cancelled(f))
        return -ECANCELED;
    bool sound = key_parse_dirent(key, klen, &parent, &cookie) &&
                 dirent_rec_decode(val, vlen, &d) == 0;
    if (sound) {
        struct key nk = key_name(parent, d.name, d.name_len);
        ssize_t have = kv_get(f->v->kv, nk.b, nk.len, buf, sizeof buf);
        if (have == -EBADMSG ||
            (have >= 0 && have <= (ssize_t)sizeof buf &&
             name_rec_decode(buf, (size_t)have, &n) == 0 && n.ino == d.ino && n.cookie == cookie))
            return 0; /* a damaged name was told of already */
    }
    if (!row_is(f, key, klen, val, vlen))
        return 0;
    if (f->o->repair) {
        kv_del(&x->b, key, klen);
        x->err = fsck_apply(f, &x->b);
    }
    fsck_told(f, "listing", f->o->repair ? FATE_HEALED : FATE_LEFT, parent, 0, 0, NULL,
              "the listing of directory %llx shows a name that does not exist",
              (unsigned long long)parent);
    return x->err;
}

/* Only where nothing changes meanwhile. */
static int check_counts(struct names *x)
{
    struct fsck *f = x->f;
    for (size_t i = 0; i < x->n; i++) {
        struct counted *c = &x->list[i];
        uint32_t want = S_ISDIR(c->mode) ? 2 + c->subdirs : c->names;
        if (c->nlink == want || (c->nlink == 0 && !c->names) || f->bads)
            continue;
        uint8_t buf[REC_INODE_MAX];
        struct inode_rec rec;
        struct key k = key_inode(c->ino);
        ssize_t n = kv_get(f->v->kv, k.b, k.len, buf, sizeof buf);
        bool heal = f->o->repair && want > 0 && n > 0 && n <= (ssize_t)sizeof buf &&
                    inode_rec_decode(buf, (size_t)n, &rec) == 0;
        if (heal) {
            uint64_t topic;
            rec.nlink = want;
            kv_put(&x->b, k.b, k.len, buf, inode_rec_encode(&rec, buf));
            if (fsck_topic(f, c->ino, &topic) == 0)
                topic_mark(&x->b, topic, &k);
            int r = fsck_apply(f, &x->b);
            if (r < 0)
                return r;
        }
        fsck_told(f, "link-count", heal ? FATE_HEALED : FATE_LEFT, c->ino, 0, 0, NULL,
                  "inode %llx counts %u links, %u are there", (unsigned long long)c->ino, c->nlink,
                  want);
    }
    return 0;
}

static int check_other(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct fsck *f = arg;
    const uint8_t *k = key;
    struct segfile_id id;
    uint64_t topic, ino, base;
    char name[OBJ_KEY_MAX];
    bool good = k[0] == 'L' ? unlink_decode(val, vlen, &id) == 0
                            : delete_decode(val, vlen, &topic, &ino, &base, name, sizeof name) == 0;
    if (!good)
        fsck_told(f, "queue", FATE_LEFT, 0, 0, 0, NULL, "an entry of queue %c makes no sense (%zu)",
                  k[0], klen);
    return fsck_cancelled(f) ? -ECANCELED : 0;
}

int fsck_meta(struct fsck *f)
{
    int r = kv_check(f->v->kv, see_bad, f, &f->rep->rows);
    if (r == -EBADMSG) {
        fsck_told(f, "metadata", FATE_LEFT, 0, 0, 0, NULL,
                  "rows are missing from the metadata store%s",
                  f->v->ns ? "; unmount, then fsck --repair rebuilds it" : "");
        r = 0;
    }
    if (r == 0)
        r = mend_rows(f);
    struct names x = {.f = f};
    struct key k = key_prefix('I');
    kv_batch_init(&x.b);
    if (r == 0)
        r = fsck_walk(f, &k, count_inode, &x);
    k = key_prefix('N');
    if (r == 0)
        r = fsck_walk(f, &k, check_name, &x);
    k = key_prefix('C');
    if (r == 0)
        r = fsck_walk(f, &k, check_dirent, &x);
    if (r == 0 && !f->v->ns)
        r = check_counts(&x);
    for (const char *t = "LD"; r == 0 && *t; t++) {
        k = key_prefix(*t);
        r = fsck_walk(f, &k, check_other, f);
    }
    kv_batch_done(&x.b);
    free(x.list);
    return r;
}
