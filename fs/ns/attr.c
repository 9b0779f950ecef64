/* attr.c: records of inodes: read, store, show, change.
 *
 * The record in memory (inode.rec) is what the store has, but for a regular file's size and times,
 * which the data layer publishes in atomics: they are put into the record whenever it is stored.
 * Locks: inode.mu from reading the record to having applied its successor.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/ns/ns_int.h"

enum { DIR_STAT_SIZE = 4096 };

int ns_err(ssize_t e)
{
    if (e >= 0)
        return 0;
    return e == -EBADMSG || e == -EPROTONOSUPPORT ? -EIO : (int)e;
}

int rec_get(struct ns *ns, uint64_t ino, struct inode_rec *ret)
{
    uint8_t v[REC_INODE_MAX];
    struct key k = key_inode(ino);
    ssize_t n = kv_get(ns->kv, k.b, k.len, v, sizeof v);
    if (n < 0)
        return ns_err(n);
    return n > (ssize_t)sizeof v ? -EIO : ns_err(inode_rec_decode(v, (size_t)n, ret));
}

void rec_put(struct kv_batch *b, uint64_t ino, const struct inode_rec *r)
{
    uint8_t v[REC_INODE_MAX];
    size_t n = inode_rec_encode(r, v);
    struct key k = key_inode(ino);
    kv_put(b, k.b, k.len, v, n);
}

void rec_current(struct ns *ns, struct inode *i, struct inode_rec *ret)
{
    *ret = i->rec;
    if (i->type != S_IFREG)
        return;
    ret->size = ns->conf.hooks.stored_size ? ns->conf.hooks.stored_size(ns->conf.hooks.ctx, i)
                                           : atomic_load(&i->size);
    ret->mtime_ns = atomic_load(&i->mtime_ns);
    ret->ctime_ns = atomic_load(&i->ctime_ns);
}

void inode_store_locked(struct ns *ns, struct inode *i, struct kv_batch *b)
{
    assert(lock_is_mine(&i->mu));
    rec_current(ns, i, &i->rec);
    rec_put(b, i->ino, &i->rec);
    i->rec_ahead = false;
    if (i->rec.nlink == 0)
        return; /* The manifest has forgotten it already. */
    uint64_t topic;
    int e = topic_of(ns, i->ino, &topic);
    struct key k = key_inode(i->ino);
    if (e == 0)
        topic_mark(b, topic, &k);
    else
        log_rate(
            LC_NS, LOG_LV_ERR, 10,
            "inode %llu: directories above it cannot be read (%s); its attributes do not reach "
            "the bucket",
            (unsigned long long)i->ino, err_name(e));
}

static struct timespec ts_of(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC};
    if (t.tv_nsec < 0) {
        t.tv_nsec += NS_PER_SEC;
        t.tv_sec--;
    }
    return t;
}

void inode_stat(struct inode *i, struct stat *ret)
{
    lock_acquire(&i->mu);
    struct inode_rec r = i->rec;
    lock_release(&i->mu);
    *ret = (struct stat){.st_ino = i->ino,
                         .st_mode = r.mode,
                         .st_nlink = r.nlink,
                         .st_uid = r.uid,
                         .st_gid = r.gid,
                         .st_rdev = r.rdev,
                         .st_blksize = BLOCK_BYTES};
    bool dir = i->type == S_IFDIR;
    ret->st_size = dir ? DIR_STAT_SIZE : (off_t)atomic_load(&i->size);
    ret->st_atim = ts_of(r.atime_ns);
    ret->st_mtim = ts_of(atomic_load(&i->mtime_ns));
    ret->st_ctim = ts_of(atomic_load(&i->ctime_ns));
}

int ns_setattr(struct ns *ns, struct inode *i, const struct ns_set *s, const struct kv_origin *who)
{
    struct txn t;
    txn_begin(&t, ns, &i, 1);
    struct inode_rec *r = txn_rec(&t, i);
    uint32_t perm = r->mode & 07777;
    if ((s->mask & (NS_SET_UID | NS_SET_GID)) && i->type != S_IFDIR) {
        perm &= ~(uint32_t)S_ISUID;
        if (perm & S_IXGRP)
            perm &= ~(uint32_t)S_ISGID;
    }
    if (s->mask & NS_SET_MODE)
        perm = s->mode & 07777;
    r->mode = i->type | perm;
    if (s->mask & NS_SET_UID)
        r->uid = s->uid;
    if (s->mask & NS_SET_GID)
        r->gid = s->gid;
    if (s->mask & NS_SET_ATIME)
        r->atime_ns = s->atime_ns;
    if (s->mask & NS_SET_MTIME)
        r->mtime_ns = s->mtime_ns;
    r->ctime_ns = t.now;
    uint64_t topic = 0;
    int e = topic_of(ns, i->ino, &topic);
    if (e == -ENOENT && r->nlink == 0) {
        topic = 0; /* Open but unlinked: the manifest has forgotten it. */
        e = 0;
    }
    if (e == 0) {
        txn_touch(&t, i, topic);
        e = txn_apply(&t, who, 0);
    }
    txn_end(&t);
    return e;
}
