/* ops.h: what the files of this folder share: the daemon, one request under way, small helpers.
 * Private to fs/daemon. Includes libfuse: nothing outside this folder may include it.
 */
#ifndef SLUICE_DAEMON_OPS_H
#define SLUICE_DAEMON_OPS_H

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/list.h"
#include "fs/base/lock.h"
#include "fs/base/stats.h"
#include "fs/daemon/order.h"
#include "fs/data/data.h"
#include "fs/ns/ns.h"
#include "fs/volume/config.h"
#include "fs/volume/volume.h"

enum {
    OPCODES = 64,         /* FUSE opcodes are below; others are counted as 0 */
    READAHEAD_KIB = 1024, /* of the kernel, set at mount */
    DELAYED_MAX = 4096    /* delayed replies; above it a writer is answered at once */
};

/* The owner's kernel sees every change, so what it knows stays true until we say otherwise. */
#define OWNER_TIMEOUT 86400.0

/* The request that this thread is working on. Filled by the session loop from the raw header, since
 * libfuse does not show `unique` or the resent mark. An operation that answers later takes a copy with
 * call_take and hands it to call_done after the reply. */
struct call {
    uint64_t unique;
    uint32_t op;
    bool resent;
    bool taken;
    int64_t start_ns;
};
extern _Thread_local struct call call_now;

struct control;
struct notify;
struct virt;
struct session;

struct daemon {
    struct config *conf;
    struct volume *v;
    struct fuse_session *se;
    struct session *session; /* worker threads */
    struct notify *notify;   /* kernel invalidations */
    struct order *order;     /* reads behind writes */
    struct virt *virt;       /* .sluice */
    struct control *control; /* commands of `sluicefs` */
    struct exec *reply;      /* answers reads that completed on a thread of store or cache */
    _Atomic int init_fd;     /* a copy of the kernel's INIT request; -1: not yet */
    atomic_int inval_fd;     /* of the process that invalidates pages; -1: we do it ourselves */
    uid_t uid;               /* who mounted: owns the virtual files */
    gid_t gid;

    _Atomic unsigned pending; /* requests that will be answered later */

    struct lock mu;    /* RANK_REPLY: the lists below */
    struct list reads; /* read_op.link: cold and warm reads under way */
    _Atomic unsigned reads_n;
    struct list delayed; /* delayed.link: writers being slowed down */
    unsigned delayed_n;
    struct timer delayed_timer; /* the earliest of them */
    _Atomic bool stopping;      /* no more waiting: cancel and answer what comes */

    struct counter *requests[OPCODES];
    struct histogram *seconds[OPCODES];
    struct counter *read_bytes, *write_bytes, *drop_lost;
};

/* ---- session.c ---- */
extern const struct fuse_lowlevel_ops sluice_ops;
void metrics_init(struct daemon *d);
struct call call_take(struct daemon *d);
void call_done(struct daemon *d, const struct call *c);
void call_count(struct daemon *d,
                const struct call *c); /* metrics only: `pending` is the caller's */

/* Starts the worker threads; `ended` is called once, from the last worker to leave. */
int session_start(struct daemon *d, void (*ended)(void *arg), void *arg);
/* The kernel can send again what a daemon before has not answered; known once a request was served. */
bool session_can_resend(struct daemon *d);
/* Makes the session ready with the copy of INIT, as the first thing. 0 or -errno. */
int session_attach(struct daemon *d);
/* Asks the kernel to send again whatever was read and not answered: only while nobody reads. 0 or
 * -errno. */
int session_resend(struct daemon *d);
/* Makes the workers leave: true when all have by then. Requests that a worker has read are answered. */
bool session_stop(struct daemon *d, int64_t until_mono_ns);
bool session_ended(struct daemon *d);
/* This worker has nothing left to do but to send its reply: it counts as waiting for requests. */
void session_soon_back(struct daemon *d);
/* Joins and frees; only after all workers have left. */
void session_free(struct daemon *d);

/* ---- shared by the operations ---- */
static inline struct daemon *daemon_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* Replies with an error given as 0 or -errno. */
static inline void reply_err(fuse_req_t req, int err)
{
    (void)fuse_reply_err(req, err < 0 ? -err : err);
}

static inline struct kv_origin origin_now(void)
{
    return (struct kv_origin){.unique = call_now.unique, .op = call_now.op};
}

/* The kernel sends this request again, and a daemon before us had carried it out: *ret says with which
 * result. */
static inline bool done_before(struct daemon *d, struct kv_origin *ret)
{
    return call_now.resent && kv_find_origin(d->v->kv, call_now.unique, ret) &&
           ret->op == call_now.op;
}

/* data_open and data_release, with the inode's count of open handles. */
int handle_open(struct daemon *d, struct inode *i, struct fuse_file_info *fi);
void handle_release(struct daemon *d, struct inode *i, uint64_t fh);

/* Replies to LOOKUP, MKNOD, MKDIR, SYMLINK and LINK; consumes the caller's pin. */
void reply_entry(fuse_req_t req, struct inode *i);
/* Fills the entry; counts nothing. */
void entry_fill(struct daemon *d, struct inode *i, struct fuse_entry_param *e);
void reply_attr(fuse_req_t req, struct inode *i);

/* ---- ops_dir.c ---- */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *f);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
               const char *newname, unsigned flags);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* ---- ops_attr.c ---- */
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *val, size_t size,
                 int flags);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* ---- ops_file.c ---- */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
/* Answers a write after a flush. The pin goes over, and `call` (NULL: it is taken). False: no memory. */
bool sync_write(fuse_req_t req, struct inode *i, size_t wrote, const struct call *call);

/* ---- ops_write.c ---- */
void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
              struct fuse_file_info *fi);
/* One write, in as many rounds as it takes. 0: all of it was written; data_write_end of the last round
 * is still to come when *open. Else what stopped it: `w` is what is left, *total bytes before it count. */
int write_rounds(struct daemon *d, struct data_write *w, size_t *total, int64_t *at, bool *open);
/* True: a rule for the file's path wants each write to be flushed before it is answered. */
bool write_is_synced(struct daemon *d, const struct data_write *w);
/* Answers all delayed writers now. Any thread, no lock held. */
void delayed_release(void *daemon);
void delayed_init(struct daemon *d);

/* ---- ops_wait.c: operations of the broker profile that may have to wait for a device or the store.
 * 0: the reply will come from the device pool, and the pin is taken over. -ENOMEM, -ENOTCONN (the mount
 * is stopping): nothing was done, both are still the caller's. ---- */
int later_allocate(fuse_req_t req, struct inode *i, int mode, uint64_t off, uint64_t len);
int later_setattr(fuse_req_t req, struct inode *i, const struct stat *attr, int to_set,
                  const struct kv_origin *who);
/* `w` is what is left of a write after `done` bytes, `err` what data_write_begin said; any other than
 * -EAGAIN, or -ENOSPC for a page of a mapping, is returned as it is. With 0 the mark goes over, too. */
int later_write(fuse_req_t req, const struct data_write *w, size_t done, int err, struct mark *m);
/* Ends a mark, before the reply; drops what the kernel may keep of the bytes before. */
void write_mark_end(struct daemon *d, struct mark *m, uint64_t fh);

/* ---- ops_attr.c ---- */
int set_attributes(struct daemon *d, struct inode *i, const struct stat *attr, int to_set,
                   const struct kv_origin *who);

/* ---- ops_read.c ---- */
/* Nobody will see the answer: the thread is gone, or a signal is pending that will kill it. */
bool thread_is_dying(pid_t tid);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
/* Gives up every read under way (at the end of the mount). */
void reads_cancel_all(struct daemon *d);
/* The lowest offset in [from, to) of this inode at which a read is under way, or `to`. */
uint64_t reads_first_in(struct daemon *d, uint64_t ino, uint64_t from, uint64_t to);

/* ---- notify.c: the only thread that tells the kernel to forget pages or attributes ---- */
int notify_open(struct daemon *d, struct notify **ret);
void notify_close(struct notify *n);
/* A READ of bytes that came through slices was answered: the kernel's copy goes once the handle has
 * read `keep` bytes more. Any thread, no lock held; never blocks. */
void notify_read(struct notify *n, uint64_t fh, uint64_t ino, uint64_t from, uint64_t to,
                 uint64_t keep);
/* The answer to a WRITE of the page cache was no, for good: readers are to see what is stored again. */
void notify_refused(struct notify *n, uint64_t fh, uint64_t ino, uint64_t from, uint64_t to);
/* Everything this handle has read may go now; at release the handle is forgotten as well. */
void notify_flush(struct notify *n, uint64_t fh);
void notify_release(struct notify *n, uint64_t fh);

/* ---- virt.c: the directory .sluice in the root, and its files ---- */
enum { VIRT_DIR = 2, VIRT_STATS = 3, VIRT_STATUS = 4, VIRT_LAST = 15 };
#define VIRT_NAME ".sluice"
static inline bool is_virt(fuse_ino_t ino)
{
    return ino >= VIRT_DIR && ino <= VIRT_LAST;
}
/* This name in this directory belongs to us: nothing may be made, moved or removed there. */
bool virt_owns(fuse_ino_t parent, const char *name);
int virt_open_all(struct daemon *d, struct virt **ret);
void virt_close_all(struct virt *w);
void virt_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void virt_getattr(fuse_req_t req, fuse_ino_t ino);
void virt_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void virt_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, uint64_t fh);
void virt_release(fuse_req_t req, fuse_ino_t ino, uint64_t fh);
void virt_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);

#endif
