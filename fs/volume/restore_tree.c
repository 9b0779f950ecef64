/* restore_tree.c: what the manifests said, put in order: every inode has a name and is reached from the
 * root, every name leads to an inode, counts are counted, a file ends where its bytes end.
 *
 * Manifests of different topics, and the parts of one large change, may be of different moments. So:
 *
 *   found                                    becomes
 *   ---------------------------------------  ------------------------------------------------------
 *   a name without inode, or not in a        removed (the rest of a removal)
 *     directory
 *   a directory with two names; a file with  the name in the directory that its record says stays
 *     more names than it counts
 *   an inode without a name, a ring of       /lost+found/#NUMBER
 *     directories
 *   a name that another inode has            NAME.restored-NUMBER
 *   segments, targets, attributes of no      removed (the rest of a removal)
 *     inode
 *   a segment without object                 bytes that were never uploaded, reported: at the end of the
 *                                            file cut, else EIO when read
 *   a gap between segments                   topics: the same; broker: a hole, as a program has left one
 *   a size behind the last segment           topics: cut, and reported; broker: a hole
 *
 * Rows of directory listings (table C) are made anew. What then differs from a manifest is marked, so that
 * the first mount writes it there.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/data/segs.h"
#include "fs/ns/ns_int.h" /* COOKIE_TOP, DEPTH_MAX */
#include "fs/ns/path.h"
#include "fs/volume/restore_int.h"

/* ---- rows of no inode ---- */

struct stray {
    struct restore *r;
    uint64_t n;
};

static int drop_stray(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct stray *s = arg;
    const uint8_t *p = key;
    uint64_t ino = 0;
    bool ok = p[0] == 'S'   ? key_parse_seg(key, klen, &ino, NULL)
              : p[0] == 'X' ? key_parse_name(key, klen, &ino, NULL, NULL)
                            : key_parse_ino(key, klen, &ino);
    struct rino *x = ok ? restore_find(s->r, ino) : NULL;
    if (x && (p[0] == 'X' || (p[0] == 'S' ? S_ISREG(x->mode) : S_ISLNK(x->mode))))
        return 0;
    s->n++;
    kv_del(&s->r->batch, key, klen);
    return restore_apply(s->r, 1000);
}

static int drop_strays(struct restore *r)
{
    struct stray s = {.r = r};
    int e = 0;
    for (const char *t = "SXY"; e == 0 && *t; t++) {
        struct key k = key_prefix(*t);
        e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, drop_stray, &s);
    }
    if (s.n)
        findings_add(&r->rep->found, &(struct finding){.kind = "stray-rows"},
                     "%llu segments, targets or attributes belong to no inode; left out",
                     (unsigned long long)s.n);
    return e < 0 ? e : restore_apply(r, 1);
}

/* ---- sizes ---- */

struct sizes {
    struct restore *r;
    struct rino *x;
    uint64_t end;
    bool is_lost; /* the rows before were of segments without object: [from, to) */
    uint64_t from, to;
};

/* A stretch between two segments that is nowhere: reads of it are EIO, not zeros that nobody wrote. The
 * record's object is of another version than the segment: there is none to be fetched. */
static int put_gap(struct sizes *s, uint64_t base, uint64_t end)
{
    struct restore *r = s->r;
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec gap = {
        .state = SEG_COMMITTED,
        .has_object = true,
        .version = 1,
        .end = end,
        .object = {.end = base},
        .created_ns = clock_wall_ns(),
    };
    struct key k = key_seg(s->x->ino, base);
    kv_put(&r->batch, k.b, k.len, buf, seg_rec_encode(&gap, buf));
    r->rep->lost_bytes += end - base;
    r->rep->lost_files++;
    findings_add(
        &r->rep->found,
        &(struct finding){
            .kind = "gap", .fate = FATE_LEFT, .ino = s->x->ino, .off = base, .len = end - base},
        "inode %llx: %llu bytes at offset %llu were never uploaded; reading them fails with "
        "EIO, what follows them is there",
        (unsigned long long)s->x->ino, (unsigned long long)(end - base), (unsigned long long)base);
    int e = restore_owe(r, s->x->ino, &k);
    return e < 0 ? e : restore_apply(r, 1000);
}

/* A segment without object: its row goes. */
static int see_lost(struct sizes *s, uint64_t base, uint64_t end)
{
    struct key k = key_seg(s->x->ino, base);
    s->from = s->is_lost ? s->from : base;
    s->to = s->is_lost ? max_u64(s->to, end) : end;
    s->is_lost = true;
    kv_del(&s->r->batch, k.b, k.len);
    return restore_owe(s->r, s->x->ino, &k);
}

/* What is to be done about those before: the next one with an object begins at `next`, or there is none
 * (UINT64_MAX). Of their range counts what no other segment has. */
static int settle_lost(struct sizes *s, uint64_t next)
{
    if (!s->is_lost || !s->x)
        return 0;
    uint64_t from = max_u64(s->from, s->end), to = min_u64(s->to, next);
    bool last = next == UINT64_MAX;
    s->is_lost = false;
    if (from >= to || (last && s->x->size <= from))
        return 0;
    if (last && (s->x->size <= to || s->r->v->topics_profile)) {
        s->x->cut = true;
        s->x->end = s->r->v->topics_profile ? s->end : from;
        return 0;
    }
    s->end = s->x->end = to;
    return put_gap(s, from, to);
}

static int measure(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct sizes *s = arg;
    uint64_t ino, base;
    struct seg_rec rec;
    if (!key_parse_seg(key, klen, &ino, &base) || seg_rec_decode(val, vlen, &rec) < 0)
        return -EBADMSG;
    bool same = s->x && s->x->ino == ino, lost = !rec.local && !rec.has_object;
    int e = same && lost ? 0 : settle_lost(s, same ? base : UINT64_MAX);
    if (!same) {
        s->x = restore_find(s->r, ino);
        s->end = 0;
    }
    if (e < 0)
        return e;
    if (!s->x)
        return -EBADMSG; /* strays are gone by now */
    if (lost)
        return see_lost(s, base, rec.end);
    if (base > s->end && s->r->v->topics_profile)
        e = put_gap(s, s->end, base);
    s->end = max_u64(s->end, rec.end);
    s->x->end = s->end;
    s->r->rep->segments++;
    s->r->rep->bytes += rec.end - base;
    return e;
}

static void settle_size(struct restore *r, struct rino *x)
{
    bool hole = !r->v->topics_profile && !x->cut;
    if (x->size > x->end && !hole) {
        x->lost = x->size - x->end;
        r->rep->lost_files++;
        r->rep->lost_bytes += x->lost;
    }
    uint64_t size = hole ? max_u64(x->size, x->end) : x->end;
    x->changed |= x->size != size;
    x->size = size;
}

static int settle_inode(struct restore *r, struct rino *x)
{
    uint8_t buf[REC_INODE_MAX];
    struct inode_rec rec;
    struct key k = key_inode(x->ino);
    bool dir = S_ISDIR(x->mode);
    uint32_t nlink = dir ? 2 + x->subdirs : x->names;
    if (S_ISREG(x->mode))
        settle_size(r, x);
    if (dir)
        r->rep->directories++;
    else if (S_ISREG(x->mode))
        r->rep->files++;
    else
        r->rep->others++;
    if (!x->changed && x->nlink == nlink)
        return 0;
    ssize_t n = kv_get(r->v->kv, k.b, k.len, buf, sizeof buf);
    if (n < 0 || n > (ssize_t)sizeof buf || inode_rec_decode(buf, (size_t)n, &rec) < 0)
        return n < 0 ? (int)n : -EBADMSG;
    rec.parent = x->parent;
    rec.nlink = nlink;
    if (S_ISREG(x->mode))
        rec.size = x->size;
    int e = restore_put_inode(r, x, &rec);
    return e < 0 ? e : restore_apply(r, 1000);
}

/* ---- what is lost, by name: one walk over all names, whose directories come together ---- */

struct lost {
    struct restore *r;
    uint64_t dir; /* whose path is in `path` */
    char path[4096];
};

static int tell_lost(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct lost *l = arg;
    struct name_rec n;
    uint64_t parent;
    const uint8_t *name;
    size_t len;
    if (!key_parse_name(key, klen, &parent, &name, &len) || name_rec_decode(val, vlen, &n) < 0)
        return -EBADMSG;
    struct rino *x = restore_find(l->r, n.ino);
    if (!x || !x->lost)
        return 0;
    if (l->dir != parent) {
        l->dir = parent;
        if (inode_path(l->r->v->kv, parent, l->path, sizeof l->path) < 0)
            snprintf(l->path, sizeof l->path, "(directory %llx)", (unsigned long long)parent);
    }
    char path[sizeof l->path + NAME_BYTES_MAX + 2];
    snprintf(path, sizeof path, "%s%s%.*s", parent == ROOT_INO ? "" : l->path,
             parent == ROOT_INO ? "" : "/", (int)len, (const char *)name);
    findings_add(
        &l->r->rep->found,
        &(struct finding){
            .kind = "never-uploaded", .ino = x->ino, .off = x->end, .len = x->lost, .path = path},
        "%llu bytes behind offset %llu of %s were never uploaded", (unsigned long long)x->lost,
        (unsigned long long)x->end, path);
    x->lost = 0; /* once, whatever other names it has */
    return 0;
}

/* ---- what the manifests do not have yet ---- */

static uint64_t topic_in_memory(struct restore *r, uint64_t ino)
{
    struct rino *x = restore_find(r, ino);
    for (unsigned depth = 0; x && depth < DEPTH_MAX; depth++) {
        if (x->ino == ROOT_INO)
            return ROOT_INO;
        if (x->parent == ROOT_INO)
            return !r->v->topics_profile && !S_ISDIR(x->mode) ? ROOT_INO : x->ino;
        x = restore_find(r, x->parent);
    }
    return 0;
}

static int mark_owed(struct restore *r)
{
    int e = 0;
    for (size_t i = 0; e == 0 && i < r->oweds; i++) {
        uint64_t topic = topic_in_memory(r, r->owed[i].ino);
        if (topic)
            topic_mark(&r->batch, topic, &r->owed[i].key);
        e = restore_apply(r, 1000);
    }
    return e;
}

int restore_tree(struct restore *r)
{
    struct key k = key_prefix('I');
    int e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, restore_load_inode, r);
    if (e == 0 && !restore_find(r, ROOT_INO)) {
        if (r->inos)
            findings_add(&r->rep->found, &(struct finding){.kind = "no-root"},
                         "the manifests do not know the root directory; made anew, owned by the "
                         "user who rebuilds");
        e = restore_make_inode(r, ROOT_INO, ROOT_INO, S_IFDIR | 0755);
    }
    if (e == 0)
        e = restore_apply(r, 1);
    if (e == 0)
        e = restore_names(r);
    if (e == 0)
        e = drop_strays(r);
    struct sizes s = {.r = r};
    k = key_prefix('S');
    if (e == 0)
        e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, measure, &s);
    if (e == 0)
        e = settle_lost(&s, UINT64_MAX);
    if (e == 0)
        e = restore_apply(r, 1);
    for (size_t i = 0; e == 0 && i < r->inos; i++)
        e = settle_inode(r, &r->ino[i]);
    struct lost l = {.r = r};
    k = key_prefix('N');
    if (e == 0 && r->rep->lost_files)
        e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, tell_lost, &l);
    if (e == 0)
        e = mark_owed(r);
    return e < 0 ? e : restore_apply(r, 1);
}
