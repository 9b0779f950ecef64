/* ns.h: names and inodes: everything about a file but its bytes.
 *
 * The truth is in the metadata store (fs/meta); an in-memory inode exists while the kernel knows it
 * (lookup count), while something pins it (an open segment, a request under way), and no longer. An
 * inode number is never reused: node number << 40 | counter; the root is 1. The FUSE nodeid *is* the
 * inode number, so nothing that a request needs lives only in a pointer.
 *
 * Every change is one kv batch, applied before the caller replies: it survives kill -9 from then on.
 * The batch also marks what the topic's manifest does not have yet ('M' keys).
 *
 * Locks: ns.mu (RANK_NS, disk_ok) serialises changes of names; inode.mu (RANK_INODE, disk_ok) guards
 * the attributes of one inode and is held from composing its record to having applied it, so that an
 * older record never follows a newer one; lookups take neither, they read the metadata store.
 * inode_get and inode_put may load and unload: call them without locks.
 *
 * Errors are POSIX ones: -ENOENT, -EEXIST, -ENOTDIR, -EISDIR, -ENOTEMPTY, -EXDEV, -EINVAL, -EMLINK,
 * -ENAMETOOLONG, -EPERM, and -EIO (metadata damaged or journal failed), -ENOSPC, -EROFS.
 * All functions block on local disk only. Permission checks are the kernel's (default_permissions).
 */
#ifndef SLUICE_NS_NS_H
#define SLUICE_NS_NS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include "fs/base/list.h"
#include "fs/base/lock.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"

struct ns;
struct stats;

struct inode {
    struct inode *next;         /* itable chain */
    uint64_t ino;
    uint64_t lookups;           /* the kernel's count; under the itable shard lock */
    uint64_t pins;              /* ours; likewise */
    _Atomic uint32_t opens;     /* open handles; approximate after a takeover */

    struct lock mu;             /* RANK_INODE, disk_ok: rec, and the data layer's list of open
                                 * segments */
    struct inode_rec rec;       /* as stored; size and mtime of a file may be ahead, see below */
    bool rec_ahead;             /* rec was changed in memory by appends and is not yet stored */

    /* Published by the data layer, read anywhere. For directories and links: copies of rec. */
    _Atomic uint64_t size;
    _Atomic int64_t mtime_ns, ctime_ns;

    struct lock io;             /* RANK_INODE_IO, disk_ok: one appender at a time */
    void *_Atomic data;                 /* of the data layer (fs/data): NULL when it has nothing in memory */
    _Atomic uint32_t rule;      /* of fs/policy: what is remembered of the rules; 0: nothing */

    /* Of the inode table. */
    uint32_t type;              /* mode & S_IFMT; never changes */
    uint8_t state;              /* coming, here, going; under the itable shard lock */
    _Atomic bool forgotten;     /* the kernel's last lookup is known to be gone */
    uint64_t last_topic;        /* once unlinked; inode.mu */
};

/* How the data layer takes part. Called without locks. */
struct ns_hooks {
    void *ctx;
    int (*load)(void *ctx, struct inode *i);    /* a regular file came into memory: set size, mtime */
    void (*unload)(void *ctx, struct inode *i); /* it goes out of memory: release what is held */
    /* nlink is 0 and nobody holds it: put the removal of its segments into the batch (device files to
     * 'L', objects to 'D', S/B/W/U/E keys away). ns then applies it together with its own removals. */
    int (*gone)(void *ctx, struct inode *i, struct kv_batch *b);
    /* May be NULL: the published size is stored. Else: the size to store in a regular file's record,
     * for a data layer whose open segment says more than the record. inode.mu is held. */
    uint64_t (*stored_size)(void *ctx, struct inode *i);
    /* May be NULL. A name of a file was changed or went (another is left), or a directory was renamed. */
    void (*moved)(void *ctx, struct inode *i);
};

struct ns_conf {
    struct kv *kv;
    uint32_t node;              /* node number, for new inode numbers */
    bool root_files_one_topic;  /* broker profile: files in the root together are topic @root (1) */
    bool lookups_unknown;       /* the FUSE connection outlived the last daemon: the kernel may hold
                                 * inodes that nothing here counts; only FORGET removes orphans */
    struct ns_hooks hooks;
    struct stats *stats;        /* may be NULL */
};

/* Opens; on an empty store creates the root (mode, owner as given). Reads the inode counter. */
int ns_open(const struct ns_conf *conf, mode_t root_mode, uid_t uid, gid_t gid, struct ns **ret);
/* Stores what is ahead in memory, drops all inodes. */
void ns_close(struct ns *ns);

/* Removes inodes that were unlinked while open when the last daemon ended ('O' keys). Only for a
 * mount without a surviving connection. */
int ns_purge_orphans(struct ns *ns);

/* ---- inodes in memory ---- */
int inode_get(struct ns *ns, uint64_t ino, struct inode **ret); /* pins; loads. -ENOENT, -EIO */
void inode_put(struct ns *ns, struct inode *i);                 /* unpins; NULL accepted */
void inode_pin(struct ns *ns, struct inode *i);                 /* one more pin on a pinned one */
void inode_remember(struct ns *ns, struct inode *i);            /* the kernel got one more lookup */
void inode_forget(struct ns *ns, uint64_t ino, uint64_t n);     /* FORGET; may remove an orphan */
uint64_t inodes_in_memory(struct ns *ns);

/* Attributes as stat(2) shows them. st_blocks is filled by the data layer (data_stat). */
void inode_stat(struct inode *i, struct stat *ret);

/* Puts the inode's record, with size and times as published, into the batch, with its manifest mark,
 * and clears rec_ahead. inode.mu held; the caller applies the batch before it releases it. */
void inode_store_locked(struct ns *ns, struct inode *i, struct kv_batch *b);

/* The topic an inode belongs to: the top-level directory entry above it (its inode number), or 1 for
 * files in the root when root_files_one_topic. -ENOENT: unlinked (then *ret is its last topic when
 * known, else 0). */
int topic_of(struct ns *ns, uint64_t ino, uint64_t *ret);

/* Adds to a batch the mark that `key` of this topic changed. */
void topic_mark(struct kv_batch *b, uint64_t topic, const struct key *key);

/* ---- names. Returned inodes are pinned. ---- */
int ns_lookup(struct ns *ns, uint64_t parent, const char *name, struct inode **ret);

struct ns_create {
    uint64_t parent;
    const char *name;
    mode_t mode;                /* type and permissions (umask applied); S_ISGID parents honoured */
    uid_t uid;
    gid_t gid;
    dev_t rdev;
    const char *target;         /* symbolic link */
    bool excl;                  /* false: an existing regular file is returned instead (O_CREAT) */
};
int ns_create(struct ns *ns, const struct ns_create *c, const struct kv_origin *who,
              struct inode **ret);
int ns_link(struct ns *ns, uint64_t ino, uint64_t parent, const char *name,
            const struct kv_origin *who, struct inode **ret);
int ns_unlink(struct ns *ns, uint64_t parent, const char *name, bool dir,
              const struct kv_origin *who);
/* flags: RENAME_NOREPLACE, RENAME_EXCHANGE or 0; others -EINVAL. */
int ns_rename(struct ns *ns, uint64_t parent, const char *name, uint64_t newparent,
              const char *newname, unsigned flags, const struct kv_origin *who);
/* Copies the target with a NUL. */
int ns_readlink(struct ns *ns, uint64_t ino, char *buf, size_t cap);

enum { NS_SET_MODE = 1, NS_SET_UID = 2, NS_SET_GID = 4, NS_SET_ATIME = 8, NS_SET_MTIME = 16 };
struct ns_set {
    unsigned mask;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    int64_t atime_ns, mtime_ns;
};
/* Changes attributes (not size). chown clears S_ISUID/S_ISGID as POSIX asks (kernel sends it anyway). */
int ns_setattr(struct ns *ns, struct inode *i, const struct ns_set *s, const struct kv_origin *who);

/* Lists a directory from `cookie` on (0: the start), in a stable order: an entry that exists during
 * the whole walk is shown exactly once, whatever is created or removed meanwhile. `each` gets the
 * cookie to continue behind the entry; non-zero stops. "." and ".." come first with cookies 1 and 2. */
int ns_readdir(struct ns *ns, uint64_t dir, uint64_t cookie,
               int (*each)(void *arg, const char *name, uint64_t ino, unsigned type,
                           uint64_t next_cookie),
               void *arg);

/* user.* extended attributes (only where the mount has -o xattr). */
ssize_t ns_getxattr(struct ns *ns, uint64_t ino, const char *name, void *buf, size_t cap);
int ns_setxattr(struct ns *ns, uint64_t ino, const char *name, const void *val, size_t len,
                int flags, const struct kv_origin *who);
int ns_removexattr(struct ns *ns, uint64_t ino, const char *name, const struct kv_origin *who);
ssize_t ns_listxattr(struct ns *ns, uint64_t ino, char *buf, size_t cap);

/* Numbers for statfs: inodes in use. Kept up to date, counted at open. */
uint64_t ns_inodes_used(struct ns *ns);

#endif
