/* ops_file.c: open, release, flush, fsync, fallocate, lseek.
 *
 * fsync is answered from the device pool: a few slow flushes must not hold all workers. close(2)
 * waits for FLUSH and not for RELEASE, so FLUSH is where errors are reported and where the last
 * reader's cold pages are let go.
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/base/log.h"

int handle_open(struct daemon *d, struct inode *i, struct fuse_file_info *fi)
{
    uint64_t fh = 0;
    bool direct = false;
    int err = data_open(d->v->data, i, fi->flags, &fh, &direct);
    if (err)
        return err;
    atomic_fetch_add(&i->opens, 1);
    fi->fh = fh;
    fi->direct_io = direct;
    fi->keep_cache = 1;
    return 0;
}

void handle_release(struct daemon *d, struct inode *i, uint64_t fh)
{
    data_release(d->v->data, i, fh);
    /* Handles of a daemon before this one are not counted: never below zero. */
    uint32_t n = atomic_load(&i->opens);
    while (n && !atomic_compare_exchange_weak(&i->opens, &n, n - 1))
        ;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    if (is_virt(ino)) {
        virt_open(req, ino, fi);
        return;
    }
    struct inode *i;
    int err = inode_get(d->v->ns, ino, &i);
    if (err) {
        reply_err(req, err);
        return;
    }
    err = handle_open(d, i, fi);
    if (err)
        reply_err(req, err);
    else if (fuse_reply_open(req, fi))
        handle_release(d, i, fi->fh);
    inode_put(d->v->ns, i);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    if (is_virt(ino)) {
        virt_release(req, ino, fi->fh);
        return;
    }
    struct inode *i;
    if (!inode_get(d->v->ns, ino, &i)) {
        handle_release(d, i, fi->fh);
        inode_put(d->v->ns, i);
    }
    notify_release(d->notify, fi->fh);
    reply_err(req, 0);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    struct inode *i;
    int err = 0;
    if (!is_virt(ino))
        err = inode_get(d->v->ns, ino, &i);
    if (!is_virt(ino) && !err) {
        err = data_flush(d->v->data, i);
        notify_flush(d->notify, fi->fh);
        inode_put(d->v->ns, i);
    }
    reply_err(req, err);
}

/* ---- fsync ---- */

struct sync_op {
    struct data_sync s;
    fuse_req_t req;
    size_t wrote; /* of a write that is flushed before it is answered; 0: an fsync */
    struct call call;
};

static void sync_done(struct data_sync *s, int err)
{
    struct sync_op *op = container_of(s, struct sync_op, s);
    struct daemon *d = daemon_of(op->req);
    inode_put(d->v->ns, s->i);
    if (op->wrote && !err)
        (void)fuse_reply_write(op->req, op->wrote);
    else
        reply_err(op->req, err);
    call_done(d, &op->call);
    free(op);
}

bool sync_write(fuse_req_t req, struct inode *i, size_t wrote, const struct call *call)
{
    struct daemon *d = daemon_of(req);
    struct sync_op *op = calloc(1, sizeof(*op));
    if (!op)
        return false;
    *op = (struct sync_op){.s = {.i = i, .data_only = true, .done = sync_done},
                           .req = req,
                           .wrote = wrote,
                           .call = call ? *call : call_take(d)};
    data_fsync(d->v->data, &op->s);
    return true;
}

static void sync_inode(fuse_req_t req, fuse_ino_t ino, bool data_only)
{
    struct daemon *d = daemon_of(req);
    if (is_virt(ino)) {
        reply_err(req, 0);
        return;
    }
    struct sync_op *op = calloc(1, sizeof(*op));
    int err = op ? inode_get(d->v->ns, ino, &op->s.i) : -ENOMEM;
    if (err) {
        free(op);
        reply_err(req, err);
        return;
    }
    op->req = req;
    op->s.data_only = data_only;
    op->s.done = sync_done;
    op->call = call_take(d);
    data_fsync(d->v->data, &op->s);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
    (void)fi;
    sync_inode(req, ino, data_only);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
    (void)fi;
    sync_inode(req, ino, data_only);
}

/* ---- space and holes ---- */

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi)
{
    (void)fi;
    struct daemon *d = daemon_of(req);
    struct inode *i;
    int err = is_virt(ino) ? -EPERM : inode_get(d->v->ns, ino, &i);
    if (err) {
        reply_err(req, err);
        return;
    }
    uint64_t blocked;
    if (off < 0 || len <= 0) {
        err = -EINVAL;
    } else if (d->v->topics_profile) {
        err = data_fallocate(d->v->data, i, mode, (uint64_t)off, (uint64_t)len, &blocked);
    } else {
        err = later_allocate(req, i, mode, (uint64_t)off, (uint64_t)len);
        if (!err)
            return;
    }
    inode_put(d->v->ns, i);
    reply_err(req, err);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    (void)fi;
    struct daemon *d = daemon_of(req);
    struct inode *i;
    int err = is_virt(ino) || (whence != SEEK_DATA && whence != SEEK_HOLE)
                  ? -EINVAL
                  : inode_get(d->v->ns, ino, &i);
    if (err) {
        reply_err(req, err);
        return;
    }
    int64_t at = off < 0 ? -ENXIO : data_seek(d->v->data, i, (uint64_t)off, whence);
    inode_put(d->v->ns, i);
    if (at < 0)
        reply_err(req, (int)at);
    else
        (void)fuse_reply_lseek(req, (off_t)at);
}
