/* ops_dir.c: names: lookup, create, link, rename, unlink, readdir, forget.
 *
 * The kernel's lookup count of an inode rises by one with each entry it is given. It is counted
 * before the reply goes out (a FORGET may come back at once) and taken back when the reply could not
 * be delivered.
 *
 * A request that the kernel sends again after a daemon's death may have been carried out: the journal
 * knows its number and its result, which is answered then. A kernel waits for such a request with the
 * directory locked, so nothing that depends on it has happened since.
 *
 * On the owner every change of a name goes through this kernel, so positive and negative answers are
 * cached for long.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/log.h"

void entry_fill(struct daemon *d, struct inode *i, struct fuse_entry_param *e)
{
    *e = (struct fuse_entry_param){
        .ino = i->ino,
        .generation = 1, /* inode numbers are never used again */
        .attr_timeout = OWNER_TIMEOUT,
        .entry_timeout = OWNER_TIMEOUT,
    };
    data_stat(d->v->data, i, &e->attr);
}

void reply_entry(fuse_req_t req, struct inode *i)
{
    struct daemon *d = daemon_of(req);
    struct fuse_entry_param e;
    entry_fill(d, i, &e);
    inode_remember(d->v->ns, i);
    uint64_t ino = i->ino;
    inode_put(d->v->ns, i);
    if (fuse_reply_entry(req, &e))
        inode_forget(d->v->ns, ino, 1);
}

static void reply_negative(fuse_req_t req)
{
    struct fuse_entry_param e = {.entry_timeout = OWNER_TIMEOUT};
    (void)fuse_reply_entry(req, &e);
}

/* "." and ".." are asked for by number, for file handles of an NFS server. */
static int lookup_dots(struct daemon *d, uint64_t ino, bool up, struct inode **ret)
{
    struct inode *i;
    int err = inode_get(d->v->ns, ino, &i);
    if (err)
        return err;
    if (!up || ino == ROOT_INO) {
        *ret = i;
        return 0;
    }
    lock_acquire(&i->mu);
    uint64_t parent = i->rec.parent;
    lock_release(&i->mu);
    inode_put(d->v->ns, i);
    return parent ? inode_get(d->v->ns, parent, ret) : -ENOENT;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct daemon *d = daemon_of(req);
    if (is_virt(parent) || virt_owns(parent, name)) {
        virt_lookup(req, parent, name);
        return;
    }
    struct inode *i = NULL;
    int err;
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        err = lookup_dots(d, parent, name[1], &i);
    else
        err = ns_lookup(d->v->ns, parent, name, &i);
    if (err == -ENOENT)
        reply_negative(req);
    else if (err)
        reply_err(req, err);
    else
        reply_entry(req, i);
}

/* An inode that nobody knows any more goes out of memory, which may flush what it wrote: on the pool. As many
 * wait there as the kernel knew inodes. */
struct forgetting {
    struct task task;
    struct daemon *d;
    struct call call;
    size_t n;
    struct fuse_forget_data f[];
};

static void forget_all(struct daemon *d, const struct fuse_forget_data *f, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (!is_virt(f[k].ino))
            inode_forget(d->v->ns, f[k].ino, f[k].nlookup);
}

static void forget_run(struct task *t)
{
    struct forgetting *x = container_of(t, struct forgetting, task);
    forget_all(x->d, x->f, x->n);
    call_done(x->d, &x->call);
    free(x);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *f)
{
    struct daemon *d = daemon_of(req);
    struct forgetting *x = d->stopping ? NULL : calloc(1, sizeof(*x) + count * sizeof(*f));
    if (x) {
        x->task.run = forget_run;
        x->d = d;
        x->n = count;
        memcpy(x->f, f, count * sizeof(*f));
        x->call = call_take(d);
        exec_submit(d->v->pool, &x->task);
    } else {
        forget_all(d, f, count);
    }
    fuse_reply_none(req);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    struct fuse_forget_data f = {.ino = ino, .nlookup = n};
    op_forget_multi(req, 1, &f);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char buf[SYMLINK_BYTES_MAX + 1];
    int err = is_virt(ino) ? -EINVAL : ns_readlink(daemon_of(req)->v->ns, ino, buf, sizeof(buf));
    if (err < 0)
        reply_err(req, err);
    else
        (void)fuse_reply_readlink(req, buf);
}

/* What may be made in a directory that belongs to us: nothing. */
static int may_create(fuse_ino_t parent, const char *name)
{
    if (is_virt(parent))
        return -EPERM;
    return virt_owns(parent, name) ? -EEXIST : 0;
}

static int make(fuse_req_t req, struct ns_create *c, struct inode **ret)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    int err = may_create(c->parent, c->name);
    if (err)
        return err;
    c->uid = ctx->uid;
    c->gid = ctx->gid;
    struct kv_origin who = origin_now();
    return ns_create(daemon_of(req)->v->ns, c, &who, ret);
}

/* As make; a request that was carried out gives what was made then. */
static int make_once(fuse_req_t req, struct ns_create *c, struct inode **ret)
{
    struct kv_origin was;
    if (done_before(daemon_of(req), &was))
        return inode_get(daemon_of(req)->v->ns, was.result, ret);
    return make(req, c, ret);
}

static void make_and_reply(fuse_req_t req, struct ns_create *c)
{
    struct inode *i = NULL;
    int err = make_once(req, c, &i);
    if (err)
        reply_err(req, err);
    else
        reply_entry(req, i);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct ns_create c = {.parent = parent, .name = name, .mode = mode, .rdev = rdev, .excl = true};
    make_and_reply(req, &c);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct ns_create c = {
        .parent = parent, .name = name, .mode = (mode & 07777) | S_IFDIR, .excl = true};
    make_and_reply(req, &c);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct ns_create c = {
        .parent = parent, .name = name, .mode = S_IFLNK | 0777, .target = target, .excl = true};
    make_and_reply(req, &c);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    struct ns *ns = d->v->ns;
    struct ns_create c = {.parent = parent,
                          .name = name,
                          .mode = (mode & 07777) | S_IFREG,
                          .excl = fi->flags & O_EXCL};
    struct inode *i = NULL;
    int err = make_once(req, &c, &i);
    if (err) {
        reply_err(req, err);
        return;
    }
    err = handle_open(d, i, fi);
    if (err) {
        inode_put(ns, i);
        reply_err(req, err);
        return;
    }
    struct fuse_entry_param e;
    entry_fill(d, i, &e);
    inode_remember(ns, i);
    if (fuse_reply_create(req, &e, fi)) {
        handle_release(d, i, fi->fh);
        inode_forget(ns, i->ino, 1);
    }
    inode_put(ns, i);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct inode *i = NULL;
    struct kv_origin was, who = origin_now();
    int err = is_virt(ino) ? -EPERM : may_create(parent, name);
    if (!err && done_before(daemon_of(req), &was))
        err = inode_get(daemon_of(req)->v->ns, ino, &i);
    else if (!err)
        err = ns_link(daemon_of(req)->v->ns, ino, parent, name, &who, &i);
    if (err)
        reply_err(req, err);
    else
        reply_entry(req, i);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool dir)
{
    struct kv_origin was, who = origin_now();
    if (is_virt(parent) || virt_owns(parent, name))
        reply_err(req, -EPERM);
    else if (done_before(daemon_of(req), &was))
        reply_err(req, 0);
    else
        reply_err(req, ns_unlink(daemon_of(req)->v->ns, parent, name, dir, &who));
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, false);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, true);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
               const char *newname, unsigned flags)
{
    struct kv_origin was, who = origin_now();
    if (is_virt(parent) || is_virt(newparent) || virt_owns(parent, name) ||
        virt_owns(newparent, newname))
        reply_err(req, -EPERM);
    else if (done_before(daemon_of(req), &was))
        reply_err(req, 0);
    else
        reply_err(req,
                  ns_rename(daemon_of(req)->v->ns, parent, name, newparent, newname, flags, &who));
}

/* ---- directories ---- */

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    fi->fh = 0; /* readdir needs a cookie only: nothing to lose with the daemon */
    (void)fuse_reply_open(req, fi);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    (void)fi;
    reply_err(req, 0);
}

struct dir_fill {
    fuse_req_t req;
    struct daemon *d;
    char *buf;
    size_t cap, len;
    bool plus;
    uint64_t *given; /* inodes whose lookup count was raised */
    size_t given_n, given_cap;
};

static int dir_grow(struct dir_fill *f)
{
    if (f->given_n < f->given_cap)
        return 0;
    size_t cap = f->given_cap ? 2 * f->given_cap : 64;
    uint64_t *p = realloc(f->given, cap * sizeof(*p));
    if (!p)
        return -ENOMEM;
    f->given = p;
    f->given_cap = cap;
    return 0;
}

static int dir_add_plain(struct dir_fill *f, const char *name, uint64_t ino, unsigned type,
                         uint64_t next)
{
    struct stat st = {.st_ino = ino, .st_mode = (mode_t)type << 12};
    size_t n = fuse_add_direntry(f->req, f->buf + f->len, f->cap - f->len, name, &st, (off_t)next);
    if (n > f->cap - f->len)
        return 1;
    f->len += n;
    return 0;
}

static int dir_add_plus(struct dir_fill *f, const char *name, uint64_t ino, unsigned type,
                        uint64_t next)
{
    struct ns *ns = f->d->v->ns;
    struct fuse_entry_param e = {0};
    struct inode *i = NULL;
    bool dots = !strcmp(name, ".") || !strcmp(name, "..");
    int err = dots ? -ENODATA : dir_grow(f);
    if (!err)
        err = inode_get(ns, ino, &i);
    if (err == -ENOENT)
        return 0; /* removed meanwhile */
    if (err) {
        /* Without a node number the kernel takes the name only and asks when it needs more. */
        e.attr = (struct stat){.st_ino = ino, .st_mode = (mode_t)type << 12};
    } else {
        entry_fill(f->d, i, &e);
    }
    size_t n =
        fuse_add_direntry_plus(f->req, f->buf + f->len, f->cap - f->len, name, &e, (off_t)next);
    bool fits = n <= f->cap - f->len;
    if (fits) {
        f->len += n;
        if (i) {
            inode_remember(ns, i);
            f->given[f->given_n++] = ino;
        }
    }
    inode_put(ns, i);
    return !fits;
}

static int dir_each(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next)
{
    struct dir_fill *f = arg;
    return f->plus ? dir_add_plus(f, name, ino, type, next)
                   : dir_add_plain(f, name, ino, type, next);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
    if (is_virt(ino)) {
        virt_readdir(req, ino, size, off, plus);
        return;
    }
    struct dir_fill f = {.req = req, .d = daemon_of(req), .plus = plus};
    f.cap = size < FUSE_IO_BYTES_MAX ? size : FUSE_IO_BYTES_MAX;
    f.buf = malloc(f.cap);
    if (!f.buf) {
        reply_err(req, -ENOMEM);
        return;
    }
    int err = ns_readdir(f.d->v->ns, ino, (uint64_t)off, dir_each, &f);
    /* What was gathered before an error is given; the error comes back with the next call. */
    if (err < 0 && !f.len)
        reply_err(req, err);
    else if (fuse_reply_buf(req, f.buf, f.len))
        for (size_t k = 0; k < f.given_n; k++)
            inode_forget(f.d->v->ns, f.given[k], 1);
    free(f.given);
    free(f.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    (void)fi;
    read_directory(req, ino, size, off, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    (void)fi;
    read_directory(req, ino, size, off, true);
}
