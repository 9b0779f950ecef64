/* topic.c: which topic an inode belongs to, and marking what a topic's manifest does not have yet.
 *
 * Everything is read from the metadata store: a change is in there before it is answered, so no lock
 * is needed for a true answer, and ns.mu for one that stays true.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/ns/ns_int.h"

void topic_mark(struct kv_batch *b, uint64_t topic, const struct key *key)
{
    static const uint8_t version = 1;
    struct key k = key_dirty(topic, key->b, key->len);
    kv_put(b, k.b, k.len, &version, 1);
}

int topic_of(struct ns *ns, uint64_t ino, uint64_t *ret)
{
    *ret = 0;
    if (ino == ROOT_INO) {
        *ret = ROOT_INO;
        return 0;
    }
    uint64_t at = ino;
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        struct inode_rec r;
        int e = rec_get(ns, at, &r);
        if (e < 0)
            return e == -ENOENT && at != ino ? -EIO : e;
        if (r.parent == ROOT_INO) {
            *ret = ns->conf.root_files_one_topic && !S_ISDIR(r.mode) ? ROOT_INO : at;
            return 0;
        }
        if (r.parent == 0) {
            struct key k = key_orphan(at);
            uint8_t v[9];
            if (kv_get(ns->kv, k.b, k.len, v, sizeof v) == sizeof v && v[0] == 1)
                *ret = get_le64(v + 1);
            return -ENOENT;
        }
        at = r.parent;
    }
    return -ELOOP;
}

int topic_of_name(struct ns *ns, uint64_t parent, uint64_t ino, uint32_t type, uint64_t *ret)
{
    if (parent != ROOT_INO)
        return topic_of(ns, parent, ret);
    *ret = ns->conf.root_files_one_topic && type != S_IFDIR ? ROOT_INO : ino;
    return 0;
}

int topic_is_below(struct ns *ns, uint64_t ino, uint64_t top, bool *ret)
{
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        *ret = ino == top;
        if (*ret || ino == ROOT_INO || ino == 0)
            return 0;
        struct inode_rec r;
        int e = rec_get(ns, ino, &r);
        if (e < 0)
            return e == -ENOENT ? -EIO : e;
        ino = r.parent;
    }
    return -ELOOP;
}

/* ---- a move between topics ---- */

struct child {
    uint64_t ino, dir;
    uint32_t type;
};

struct move {
    struct txn *t;
    uint64_t from, to;
    unsigned marks;
    struct child *todo; /* inodes whose keys are not marked yet */
    size_t n, cap;
    uint64_t dir; /* being listed */
};

static int mark_both(struct move *m, const struct key *k)
{
    if (++m->marks > MOVE_MARKS_MAX)
        return -EXDEV;
    topic_mark(&m->t->b, m->from, k);
    topic_mark(&m->t->b, m->to, k);
    return 0;
}

static int push(struct move *m, uint64_t ino, uint64_t dir, uint32_t type)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 64;
        struct child *p = realloc(m->todo, cap * sizeof *p);
        if (!p)
            return -ENOMEM;
        m->todo = p;
        m->cap = cap;
    }
    m->todo[m->n++] = (struct child){.ino = ino, .dir = dir, .type = type};
    return 0;
}

static int mark_key(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct key k = {.len = klen};
    assert(klen <= sizeof k.b);
    memcpy(k.b, key, klen);
    return mark_both(arg, &k);
}

static int mark_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct move *m = arg;
    struct name_rec r;
    int e = name_rec_decode(val, vlen, &r);
    if (e == 0)
        e = mark_key(m, key, klen, val, vlen);
    return e < 0 ? e : push(m, r.ino, m->dir, (uint32_t)DTTOIF(r.type));
}

static int mark_all(struct move *m, struct key prefix)
{
    return ns_err(kv_walk(m->t->ns->kv, prefix.b, prefix.len, prefix.b, prefix.len, mark_key, m));
}

static int mark_inode(struct move *m, const struct child *c)
{
    struct key k = key_inode(c->ino);
    int e = mark_both(m, &k);
    if (e == 0 && c->type == S_IFLNK) {
        k = key_symlink(c->ino);
        e = mark_both(m, &k);
    }
    if (e == 0)
        e = mark_all(m, key_xattr(c->ino, NULL, 0));
    if (e == 0 && c->type == S_IFREG) {
        k = key_seg(c->ino, 0);
        k.len -= 8;
        e = mark_all(m, k);
    }
    if (e == 0 && c->type == S_IFDIR) {
        m->dir = c->ino;
        k = key_name(c->ino, NULL, 0);
        e = ns_err(kv_walk(m->t->ns->kv, k.b, k.len, k.b, k.len, mark_name, m));
    }
    return e;
}

int topic_mark_move(struct txn *t, uint64_t ino, uint32_t type, uint64_t from, uint64_t to,
                    struct misplaced *fix)
{
    struct move m = {.t = t, .from = from, .to = to};
    struct child top = {.ino = ino, .type = type};
    int e = mark_inode(&m, &top);
    while (e == 0 && m.n > 0) {
        struct child c = m.todo[--m.n];
        if (c.type != S_IFDIR) {
            struct inode_rec r;
            e = rec_get(t->ns, c.ino, &r);
            if (e == -ENOENT)
                e = -EIO;
            if (e == 0 && r.nlink > 1)
                e = -EXDEV; /* Its other name may stay behind. */
            if (e == 0 && r.parent != c.dir) {
                *fix = (struct misplaced){.ino = c.ino, .dir = c.dir};
                e = -EAGAIN;
            }
        }
        if (e == 0)
            e = mark_inode(&m, &c);
    }
    free(m.todo);
    return e;
}

int parent_fix(struct ns *ns, const struct misplaced *f)
{
    struct inode *i;
    int e = inode_get(ns, f->ino, &i);
    if (e < 0)
        return e == -ENOENT ? 0 : e;
    struct txn t;
    txn_begin(&t, ns, &i, 1);
    struct inode_rec *r = txn_rec(&t, i);
    uint64_t a, b;
    /* Only within one topic, and only while it has one name: else it is somebody else's by now. */
    if (r->nlink == 1 && topic_of(ns, f->ino, &a) == 0 && topic_of(ns, f->dir, &b) == 0 && a == b) {
        r->parent = f->dir;
        txn_touch(&t, i, a);
        e = txn_apply(&t, NULL, 0);
    }
    txn_end(&t);
    inode_put(ns, i);
    return e;
}
