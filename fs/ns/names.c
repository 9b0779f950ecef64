/* names.c: lookup, create, link, unlink, readdir.
 *
 * A name is two keys: 'N' parent name -> inode, cookie, for lookups, and 'C' parent cookie -> inode,
 * name, for readdir. The cookie is COOKIE_TOP minus a number that is never given twice, so:
 *   - a position means the same after any change and in the next daemon;
 *   - new names sort before all others: a walk under way does not meet what is made during it, and so
 *     ends even when its caller makes or renames an entry for each one it sees.
 * A rename inside a directory keeps the cookie of the name that existed for longest: of the target when
 * there was one (the name never ceased to exist), else of the source.
 *
 * A change pins all inodes it will touch before it takes ns.mu, since loading may wait; under the lock
 * it reads the name again and starts over when that means another inode by now.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/ns/ns_int.h"

int name_check(const char *name, size_t *ret_len)
{
    size_t len = strlen(name);
    *ret_len = len;
    if (len > NAME_BYTES_MAX)
        return -ENAMETOOLONG;
    if (len == 0)
        return -ENOENT;
    return memchr(name, '/', len) ? -EINVAL : 0;
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

int name_get(struct ns *ns, uint64_t parent, const char *name, size_t len, struct name_rec *ret)
{
    uint8_t v[REC_NAME_MAX];
    struct key k = key_name(parent, name, len);
    ssize_t n = kv_get(ns->kv, k.b, k.len, v, sizeof v);
    if (n < 0)
        return ns_err(n);
    return n > (ssize_t)sizeof v ? -EIO : ns_err(name_rec_decode(v, (size_t)n, ret));
}

void name_put(struct txn *t, uint64_t parent, const char *name, size_t len,
              const struct name_rec *r)
{
    uint8_t v[REC_NAME_MAX], c[REC_DIRENT_MAX];
    size_t n = name_rec_encode(r, v);
    struct key k = key_name(parent, name, len);
    kv_put(&t->b, k.b, k.len, v, n);
    struct dirent_rec d = {
        .ino = r->ino, .type = r->type, .name_len = (uint8_t)len, .name = (const uint8_t *)name};
    n = dirent_rec_encode(&d, c);
    k = key_dirent(parent, r->cookie);
    kv_put(&t->b, k.b, k.len, c, n);
}

void name_del(struct txn *t, uint64_t parent, const char *name, size_t len, uint64_t cookie)
{
    struct key k = key_name(parent, name, len);
    kv_del(&t->b, k.b, k.len);
    k = key_dirent(parent, cookie);
    kv_del(&t->b, k.b, k.len);
}

void name_mark(struct txn *t, uint64_t parent, const char *name, size_t len, uint64_t topic)
{
    struct key k = key_name(parent, name, len);
    topic_mark(&t->b, topic, &k);
}

int name_pin(struct ns *ns, uint64_t parent, const char *name, size_t len, struct inode **ret)
{
    *ret = NULL;
    uint64_t missing = 0;
    for (;;) {
        struct name_rec r;
        int e = name_get(ns, parent, name, len, &r);
        if (e < 0)
            return e;
        e = inode_get(ns, r.ino, ret);
        if (e != -ENOENT)
            return e;
        /* It went between the two reads, unless the name still says so. */
        if (missing == r.ino)
            return -EIO;
        missing = r.ino;
    }
}

int dir_check(struct txn *t, const struct inode *dir)
{
    if (dir->type != S_IFDIR)
        return -ENOTDIR;
    return txn_rec(t, dir)->nlink == 0 ? -ENOENT : 0;
}

static int one_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)arg, (void)key, (void)klen, (void)val, (void)vlen;
    return 1;
}

int dir_empty(struct ns *ns, uint64_t dir)
{
    struct key k = key_name(dir, NULL, 0);
    int e = kv_walk(ns->kv, k.b, k.len, k.b, k.len, one_name, NULL);
    return e > 0 ? -ENOTEMPTY : ns_err(e);
}

static void orphan_put(struct txn *t, struct inode *i, uint64_t topic)
{
    struct inode_rec *r = txn_rec(t, i);
    r->nlink = 0;
    r->parent = 0;
    i->last_topic = topic;
    uint8_t v[9] = {1};
    put_le64(v + 1, topic);
    struct key k = key_orphan(i->ino);
    kv_put(&t->b, k.b, k.len, v, sizeof v);
}

void unlink_count(struct txn *t, struct inode *i, uint64_t dir, uint64_t topic)
{
    struct inode_rec *r = txn_rec(t, i);
    if (i->type == S_IFDIR || r->nlink <= 1) {
        orphan_put(t, i, topic);
        return;
    }
    r->nlink--;
    /* Which directory holds another name is not recorded, but all of them are in this topic. */
    if (r->parent == dir && dir != ROOT_INO)
        r->parent = topic;
}

int ns_lookup(struct ns *ns, uint64_t parent, const char *name, struct inode **ret)
{
    *ret = NULL;
    size_t len;
    int e = name_check(name, &len);
    if (e < 0)
        return e;
    if (!is_dots(name)) {
        e = name_pin(ns, parent, name, len, ret);
        if (e != -ENOENT)
            return e;
    }
    struct inode_rec r;
    e = rec_get(ns, parent, &r);
    if (e < 0)
        return e;
    if (!S_ISDIR(r.mode))
        return -ENOTDIR;
    if (!is_dots(name))
        return -ENOENT;
    return inode_get(ns, name[1] ? r.parent : parent, ret);
}

/* ---- create ---- */

static int check_create(const struct ns_create *c, uint32_t *type, size_t *len)
{
    int e = name_check(c->name, len);
    if (e < 0)
        return e;
    if (is_dots(c->name))
        return -EEXIST;
    *type = c->mode & S_IFMT ? c->mode & S_IFMT : S_IFREG;
    switch (*type) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return 0;
    case S_IFLNK:
        if (!c->target || !*c->target)
            return -ENOENT;
        return strlen(c->target) > SYMLINK_BYTES_MAX ? -ENAMETOOLONG : 0;
    default:
        return -EINVAL;
    }
}

static void fill_new(struct txn *t, const struct ns_create *c, uint32_t type,
                     const struct inode_rec *parent, struct inode_rec *r)
{
    uint32_t perm = type == S_IFLNK ? 0777 : c->mode & 07777;
    bool inherit = parent->mode & S_ISGID;
    if (inherit && type == S_IFDIR)
        perm |= S_ISGID;
    *r = (struct inode_rec){.mode = type | perm,
                            .uid = c->uid,
                            .gid = inherit ? parent->gid : c->gid,
                            .nlink = type == S_IFDIR ? 2 : 1,
                            .rdev = type == S_IFCHR || type == S_IFBLK ? c->rdev : 0,
                            .parent = c->parent,
                            .size = type == S_IFLNK ? strlen(c->target) : 0,
                            .atime_ns = t->now,
                            .mtime_ns = t->now,
                            .ctime_ns = t->now,
                            .btime_ns = t->now};
}

/* Everything of a new inode, into the batch. */
static int put_new(struct txn *t, const struct ns_create *c, size_t len, struct inode *dir,
                   uint64_t number, const struct inode_rec *r)
{
    uint32_t type = r->mode & S_IFMT;
    uint64_t topic, above;
    int e = topic_of_name(t->ns, c->parent, number, type, &topic);
    if (e == 0)
        e = topic_of(t->ns, c->parent, &above);
    if (e < 0)
        return e;
    struct name_rec n = {.ino = number, .cookie = COOKIE_TOP - number, .type = IFTODT(type)};
    name_put(t, c->parent, c->name, len, &n);
    name_mark(t, c->parent, c->name, len, topic);
    rec_put(&t->b, number, r);
    struct key k = key_inode(number);
    topic_mark(&t->b, topic, &k);
    if (type == S_IFLNK) {
        k = key_symlink(number);
        kv_put(&t->b, k.b, k.len, c->target, strlen(c->target));
        topic_mark(&t->b, topic, &k);
    }
    struct inode_rec *p = txn_rec(t, dir);
    if (type == S_IFDIR) {
        if (p->nlink >= NLINK_MAX)
            return -EMLINK;
        p->nlink++;
    }
    p->mtime_ns = p->ctime_ns = t->now;
    txn_touch(t, dir, above);
    return 0;
}

/* 1: made, COMING; 0: there was a regular file and that is welcome; -errno. */
static int create_once(struct ns *ns, const struct ns_create *c, size_t len, uint32_t type,
                       struct inode *dir, const struct kv_origin *who, struct inode **ret)
{
    struct txn t;
    txn_begin(&t, ns, &dir, 1);
    struct name_rec old = {0};
    int e = dir_check(&t, dir);
    if (e < 0) {
        txn_end(&t);
        return e;
    }
    e = name_get(ns, c->parent, c->name, len, &old);
    if (e == 0) {
        txn_end(&t);
        if (c->excl || type != S_IFREG)
            return -EEXIST;
        return old.type == DT_REG ? 0 : old.type == DT_DIR ? -EISDIR : -EEXIST;
    }
    uint64_t number;
    struct inode_rec r;
    struct inode *i = NULL;
    if (e == -ENOENT) {
        fill_new(&t, c, type, txn_rec(&t, dir), &r);
        do /* Somebody may just be looking a number up that does not exist yet: take the next. */
            e = txn_number(&t, &number);
        while (e == 0 && (e = itable_prepare(ns, number, &r, &i)) == -EEXIST);
    }
    if (e == 0)
        e = put_new(&t, c, len, dir, number, &r);
    if (e == 0)
        e = txn_apply(&t, who, number);
    if (e < 0 && i)
        itable_cancel(ns, i);
    txn_end(&t);
    if (e < 0)
        return e;
    atomic_fetch_add(&ns->used, 1);
    *ret = i;
    return 1;
}

int ns_create(struct ns *ns, const struct ns_create *c, const struct kv_origin *who,
              struct inode **ret)
{
    *ret = NULL;
    size_t len;
    uint32_t type = 0;
    struct inode *dir = NULL;
    int e = check_create(c, &type, &len);
    if (e == 0)
        e = inode_get(ns, c->parent, &dir);
    if (e < 0)
        return e;
    do {
        e = create_once(ns, c, len, type, dir, who, ret);
        if (e != 0)
            break;
        /* -ENOENT: it was unlinked in between, so there is room to make it after all. */
        e = name_pin(ns, c->parent, c->name, len, ret);
    } while (e == -ENOENT);
    if (e == 0 && (*ret)->type != S_IFREG) {
        e = (*ret)->type == S_IFDIR ? -EISDIR : -EEXIST;
        inode_put(ns, *ret);
        *ret = NULL;
    }
    if (e == 1) {
        e = itable_arrive(ns, *ret);
        if (e < 0)
            *ret = NULL;
    }
    inode_put(ns, dir);
    return e;
}

/* ---- link ---- */

static int link_locked(struct txn *t, struct inode *i, struct inode *dir, const char *name,
                       size_t len, const struct kv_origin *who)
{
    struct ns *ns = t->ns;
    struct name_rec n;
    int e = dir_check(t, dir);
    if (e < 0)
        return e;
    e = name_get(ns, dir->ino, name, len, &n);
    if (e != -ENOENT)
        return e < 0 ? e : -EEXIST;
    struct inode_rec *r = txn_rec(t, i);
    if (r->nlink == 0)
        return -ENOENT;
    if (r->nlink >= NLINK_MAX)
        return -EMLINK;
    uint64_t is, to, above, number;
    if ((e = topic_of(ns, i->ino, &is)) < 0 ||
        (e = topic_of_name(ns, dir->ino, i->ino, i->type, &to)) < 0 ||
        (e = topic_of(ns, dir->ino, &above)) < 0 || (e = txn_number(t, &number)) < 0)
        return e;
    if (is != to)
        return -EXDEV;
    n = (struct name_rec){.ino = i->ino, .cookie = COOKIE_TOP - number, .type = IFTODT(i->type)};
    name_put(t, dir->ino, name, len, &n);
    name_mark(t, dir->ino, name, len, to);
    r->nlink++;
    r->ctime_ns = t->now;
    txn_touch(t, i, to);
    struct inode_rec *p = txn_rec(t, dir);
    p->mtime_ns = p->ctime_ns = t->now;
    txn_touch(t, dir, above);
    return txn_apply(t, who, i->ino);
}

int ns_link(struct ns *ns, uint64_t ino, uint64_t parent, const char *name,
            const struct kv_origin *who, struct inode **ret)
{
    *ret = NULL;
    size_t len;
    int e = name_check(name, &len);
    if (e == 0 && is_dots(name))
        e = -EEXIST;
    if (e < 0)
        return e;
    struct inode *i = NULL, *dir = NULL;
    e = inode_get(ns, ino, &i);
    if (e == 0 && i->type == S_IFDIR)
        e = -EPERM;
    if (e == 0)
        e = inode_get(ns, parent, &dir);
    if (e == 0) {
        struct txn t;
        txn_begin(&t, ns, (struct inode *[]){i, dir}, 2);
        e = link_locked(&t, i, dir, name, len, who);
        txn_end(&t);
    }
    inode_put(ns, dir);
    if (e < 0)
        inode_put(ns, i);
    else
        *ret = i;
    return e;
}

/* ---- unlink ---- */

static int unlink_locked(struct txn *t, struct inode *dir, struct inode *i, const char *name,
                         size_t len, bool rmdir, const struct kv_origin *who)
{
    struct ns *ns = t->ns;
    struct name_rec n = {0};
    int e = dir_check(t, dir);
    if (e == 0)
        e = name_get(ns, dir->ino, name, len, &n);
    if (e < 0)
        return e;
    if (n.ino != i->ino)
        return -EAGAIN;
    bool is_dir = i->type == S_IFDIR;
    if (rmdir != is_dir)
        return rmdir ? -ENOTDIR : -EISDIR;
    if (rmdir && (e = dir_empty(ns, i->ino)) < 0)
        return e;
    uint64_t topic, above;
    if ((e = topic_of_name(ns, dir->ino, i->ino, i->type, &topic)) < 0 ||
        (e = topic_of(ns, dir->ino, &above)) < 0)
        return e;
    name_del(t, dir->ino, name, len, n.cookie);
    name_mark(t, dir->ino, name, len, topic);
    struct inode_rec *r = txn_rec(t, i), *p = txn_rec(t, dir);
    r->ctime_ns = p->mtime_ns = p->ctime_ns = t->now;
    unlink_count(t, i, dir->ino, topic);
    if (is_dir)
        p->nlink--;
    txn_touch(t, i, topic);
    txn_touch(t, dir, above);
    return txn_apply(t, who, 0);
}

int ns_unlink(struct ns *ns, uint64_t parent, const char *name, bool dir,
              const struct kv_origin *who)
{
    size_t len;
    int e = name_check(name, &len);
    if (e == 0 && is_dots(name))
        e = dir && name[1] ? -ENOTEMPTY : -EINVAL;
    struct inode *d = NULL;
    if (e == 0)
        e = inode_get(ns, parent, &d);
    if (e < 0)
        return e;
    do {
        struct inode *i;
        e = name_pin(ns, parent, name, len, &i);
        if (e < 0) {
            if (e == -ENOENT && d->type != S_IFDIR)
                e = -ENOTDIR;
            break;
        }
        struct txn t;
        txn_begin(&t, ns, (struct inode *[]){d, i}, 2);
        e = unlink_locked(&t, d, i, name, len, dir, who);
        txn_end(&t);
        if (e == 0 && !dir && ns->conf.hooks.moved)
            ns->conf.hooks.moved(ns->conf.hooks.ctx, i);
        inode_put(ns, i); /* Removes it when nobody holds it. */
    } while (e == -EAGAIN);
    inode_put(ns, d);
    return e;
}

int ns_readlink(struct ns *ns, uint64_t ino, char *buf, size_t cap)
{
    char v[SYMLINK_BYTES_MAX];
    struct key k = key_symlink(ino);
    ssize_t n = kv_get(ns->kv, k.b, k.len, v, sizeof v);
    if (n == -ENOENT) {
        struct inode_rec r;
        int e = rec_get(ns, ino, &r);
        return e < 0 ? e : S_ISLNK(r.mode) ? -EIO : -EINVAL;
    }
    if (n < 0)
        return ns_err(n);
    if (n > (ssize_t)sizeof v)
        return -EIO;
    if ((size_t)n >= cap)
        return -ERANGE;
    memcpy(buf, v, (size_t)n);
    buf[n] = 0;
    return 0;
}

/* ---- readdir ---- */

struct listing {
    int (*each)(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next_cookie);
    void *arg;
};

static int list_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct listing *l = arg;
    struct dirent_rec d;
    uint64_t cookie;
    if (!key_parse_dirent(key, klen, NULL, &cookie))
        return -EBADMSG;
    int e = dirent_rec_decode(val, vlen, &d);
    if (e < 0)
        return e;
    char name[NAME_BYTES_MAX + 1];
    memcpy(name, d.name, d.name_len);
    name[d.name_len] = 0;
    return l->each(l->arg, name, d.ino, d.type, cookie) ? 1 : 0;
}

int ns_readdir(struct ns *ns, uint64_t dir, uint64_t cookie,
               int (*each)(void *arg, const char *name, uint64_t ino, unsigned type,
                           uint64_t next_cookie),
               void *arg)
{
    struct inode_rec r;
    int e = rec_get(ns, dir, &r);
    if (e < 0)
        return e;
    if (!S_ISDIR(r.mode))
        return -ENOTDIR;
    if (cookie == 0 && each(arg, ".", dir, DT_DIR, 1))
        return 0;
    if (cookie <= 1 && each(arg, "..", r.parent ? r.parent : dir, DT_DIR, 2))
        return 0;
    struct listing l = {.each = each, .arg = arg};
    struct key from = key_dirent(dir, cookie < 2 ? 3 : cookie + 1), all = from;
    all.len -= 8;
    return ns_err(kv_walk(ns->kv, all.b, all.len, from.b, from.len, list_one, &l));
}
