/* rename.c: moving and exchanging names, atomically in one batch.
 *
 * Topics: inside a topic, and for a top-level name itself, only names change. Between topics every key
 * of what moves is marked for both manifests (topic.c); segments stay where they are, their keys keep
 * the topic of birth.
 * Locks: see txn.c. All four inodes are pinned before and verified under ns.mu.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/ns/ns_int.h"

struct side {
    struct inode *dir;
    const char *name;
    size_t len;
    struct inode *i; /* what the name means; NULL: nothing */
    struct name_rec rec;
    uint64_t topic; /* of i under this name */
    uint64_t above; /* of dir */
};

/* Reads a side again under ns.mu. -EAGAIN: it means another inode by now. */
static int verify(struct txn *t, struct side *s)
{
    int e = dir_check(t, s->dir);
    if (e < 0)
        return e;
    e = name_get(t->ns, s->dir->ino, s->name, s->len, &s->rec);
    if (e < 0 && e != -ENOENT)
        return e;
    if ((e == 0 ? s->rec.ino : 0) != (s->i ? s->i->ino : 0))
        return -EAGAIN;
    return topic_of(t->ns, s->dir->ino, &s->above);
}

static bool is_dir(const struct inode *i)
{
    return i && i->type == S_IFDIR;
}

/* A directory must not end up below itself. */
static int check_loop(struct txn *t, const struct side *from, const struct side *to)
{
    if (!is_dir(from->i))
        return 0;
    bool below;
    int e = topic_is_below(t->ns, to->dir->ino, from->i->ino, &below);
    return e < 0 ? e : below ? -EINVAL : 0;
}

static int check_target(struct txn *t, const struct side *a, const struct side *b)
{
    if (!b->i)
        return 0;
    if (is_dir(a->i) && !is_dir(b->i))
        return -ENOTDIR;
    if (!is_dir(a->i) && is_dir(b->i))
        return -EISDIR;
    return is_dir(b->i) ? dir_empty(t->ns, b->i->ino) : 0;
}

/* What has to happen to an inode that gets the name of `to` instead of that of `from`. */
static int move_inode(struct txn *t, const struct side *from, const struct side *to,
                      struct misplaced *fix)
{
    struct inode *i = from->i;
    struct inode_rec *r = txn_rec(t, i);
    uint64_t topic;
    int e = topic_of_name(t->ns, to->dir->ino, i->ino, i->type, &topic);
    if (e < 0)
        return e;
    if (topic != from->topic) {
        if (i->type != S_IFDIR && r->nlink > 1)
            return -EXDEV;
        e = topic_mark_move(t, i->ino, i->type, from->topic, topic, fix);
        if (e < 0)
            return e;
        name_mark(t, from->dir->ino, from->name, from->len, topic);
        name_mark(t, to->dir->ino, to->name, to->len, from->topic);
    }
    name_mark(t, from->dir->ino, from->name, from->len, from->topic);
    name_mark(t, to->dir->ino, to->name, to->len, topic);
    if (i->type == S_IFDIR || r->nlink == 1 || r->parent == from->dir->ino)
        r->parent = to->dir->ino;
    r->ctime_ns = t->now;
    txn_touch(t, i, topic);
    return 0;
}

/* Directories count the ".." of those in them. */
static int count_dirs(struct txn *t, struct side *a, struct side *b, bool exchange)
{
    struct inode_rec *ra = txn_rec(t, a->dir), *rb = txn_rec(t, b->dir);
    if (is_dir(a->i)) {
        ra->nlink--;
        rb->nlink++;
    }
    if (is_dir(b->i)) {
        rb->nlink--;
        if (exchange)
            ra->nlink++;
    }
    if (ra->nlink > NLINK_MAX || rb->nlink > NLINK_MAX)
        return -EMLINK;
    ra->mtime_ns = ra->ctime_ns = rb->mtime_ns = rb->ctime_ns = t->now;
    txn_touch(t, a->dir, a->above);
    txn_touch(t, b->dir, b->above);
    return 0;
}

static int put_exchange(struct txn *t, struct side *a, struct side *b)
{
    struct name_rec na = {.ino = b->rec.ino, .type = b->rec.type, .cookie = a->rec.cookie};
    struct name_rec nb = {.ino = a->rec.ino, .type = a->rec.type, .cookie = b->rec.cookie};
    name_put(t, a->dir->ino, a->name, a->len, &na);
    name_put(t, b->dir->ino, b->name, b->len, &nb);
    return 0;
}

static int put_move(struct txn *t, struct side *a, struct side *b)
{
    struct name_rec n = a->rec;
    if (b->i) {
        n.cookie = b->rec.cookie;
        uint64_t topic;
        int e = topic_of_name(t->ns, b->dir->ino, b->i->ino, b->i->type, &topic);
        if (e < 0)
            return e;
        name_mark(t, b->dir->ino, b->name, b->len, topic);
        txn_rec(t, b->i)->ctime_ns = t->now;
        unlink_count(t, b->i, b->dir->ino, topic);
        txn_touch(t, b->i, topic);
    } else if (a->dir != b->dir) {
        uint64_t number;
        int e = txn_number(t, &number);
        if (e < 0)
            return e;
        n.cookie = COOKIE_TOP - number;
    }
    /* First away, then put: the cookie may be the same. */
    name_del(t, a->dir->ino, a->name, a->len, a->rec.cookie);
    name_put(t, b->dir->ino, b->name, b->len, &n);
    return 0;
}

static int rename_locked(struct txn *t, struct side *a, struct side *b, unsigned flags,
                         const struct kv_origin *who, struct misplaced *fix)
{
    int e;
    if ((e = verify(t, a)) < 0 || (e = verify(t, b)) < 0)
        return e;
    if (!a->i)
        return -ENOENT;
    if (b->i && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    bool exchange = flags & RENAME_EXCHANGE;
    if (exchange && !b->i)
        return -ENOENT;
    if (a->i == b->i)
        return 0; /* Two names of one file, or the same name: nothing changes. */
    if ((e = check_loop(t, a, b)) < 0 || (exchange && (e = check_loop(t, b, a)) < 0) ||
        (!exchange && (e = check_target(t, a, b)) < 0))
        return e;
    if ((e = topic_of_name(t->ns, a->dir->ino, a->i->ino, a->i->type, &a->topic)) < 0)
        return e;
    if (b->i && (e = topic_of_name(t->ns, b->dir->ino, b->i->ino, b->i->type, &b->topic)) < 0)
        return e;
    if ((e = move_inode(t, a, b, fix)) < 0 || (exchange && (e = move_inode(t, b, a, fix)) < 0) ||
        (e = count_dirs(t, a, b, exchange)) < 0)
        return e;
    e = exchange ? put_exchange(t, a, b) : put_move(t, a, b);
    return e < 0 ? e : txn_apply(t, who, 0);
}

static void moved(struct ns *ns, struct inode *i)
{
    if (i && ns->conf.hooks.moved)
        ns->conf.hooks.moved(ns->conf.hooks.ctx, i);
}

static int pin_side(struct ns *ns, struct side *s)
{
    int e = name_pin(ns, s->dir->ino, s->name, s->len, &s->i);
    return e == -ENOENT ? 0 : e;
}

int ns_rename(struct ns *ns, uint64_t parent, const char *name, uint64_t newparent,
              const char *newname, unsigned flags, const struct kv_origin *who)
{
    if ((flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE)) ||
        flags == (RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    struct side a = {.name = name}, b = {.name = newname};
    int e;
    if ((e = name_check(name, &a.len)) < 0 || (e = name_check(newname, &b.len)) < 0)
        return e;
    if (!strcmp(name, ".") || !strcmp(name, "..") || !strcmp(newname, ".") ||
        !strcmp(newname, ".."))
        return -EINVAL;
    if ((e = inode_get(ns, parent, &a.dir)) == 0)
        e = inode_get(ns, newparent, &b.dir);
    while (e == 0) {
        struct misplaced fix = {0};
        if ((e = pin_side(ns, &a)) == 0 && (e = pin_side(ns, &b)) == 0) {
            struct txn t;
            txn_begin(&t, ns, (struct inode *[]){a.dir, b.dir, a.i, b.i}, 4);
            e = rename_locked(&t, &a, &b, flags, who, &fix);
            txn_end(&t);
        }
        if (e == 0) {
            moved(ns, a.i);
            moved(ns, b.i); /* exchanged, or one of its names went */
        }
        inode_put(ns, a.i);
        inode_put(ns, b.i);
        a.i = b.i = NULL;
        if (e != -EAGAIN)
            break;
        e = fix.ino ? parent_fix(ns, &fix) : 0;
    }
    inode_put(ns, b.dir);
    inode_put(ns, a.dir);
    return e;
}
