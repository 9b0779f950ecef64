/* ns_int.h: what the files of this folder share. See README.md for the states of an inode in memory
 * and the order of locks. */
#ifndef SLUICE_NS_NS_INT_H
#define SLUICE_NS_NS_INT_H

#include "fs/ns/ns.h"

enum {
    SHARDS = 64,             /* of the inode table */
    NUMBER_CHUNK = 4096,     /* inode numbers reserved by one record */
    NUMBER_FIRST = 16,       /* below: the root and fixed numbers */
    DEPTH_MAX = 4096,        /* directories above a name; deeper: ELOOP */
    MOVE_MARKS_MAX = 100000, /* entries marked by one rename between topics; more: EXDEV */
    XATTR_VALUE_MAX = 65536, /* the kernel's own limits */
    XATTR_LIST_MAX_BYTES = 65536,
    TXN_INODES = 4
};
#define NODE_MAX    ((1u << 21) - 1) /* so that a cookie stays a positive 63-bit number */
#define NUMBER_BITS 40
#define COOKIE_TOP  (1ull << 62) /* cookie = COOKIE_TOP - number: new names sort first */
#define NLINK_MAX   (1u << 31)

enum inode_state {
    INODE_COMING = 1, /* being read by one thread; others wait on the shard */
    INODE_HERE,
    INODE_GOING /* being stored or removed by one thread; others wait */
};

struct shard {
    struct lock mu;         /* RANK_ITABLE: chains, lookups, pins, state of its inodes */
    pthread_cond_t changed; /* an inode of this shard came or went */
    struct inode **bucket;
    size_t mask, n;
};

struct ns {
    struct ns_conf conf;
    struct kv *kv;
    struct lock mu;          /* RANK_NS, disk_ok: changes of names; the two numbers below */
    uint64_t next, reserved; /* inode numbers: next to give, end of what is reserved in kv */
    bool closing;            /* single-threaded from here: nothing is removed any more */
    struct inode *root;      /* pinned while open */
    _Atomic uint64_t used, in_memory;
    struct shard shard[SHARDS];
};

/* Store errors as callers see them: damaged or too new is -EIO. */
int ns_err(ssize_t e);

/* ---- itable.c ---- */
int itable_open(struct ns *ns);
void itable_close(struct ns *ns);
/* Puts a new inode in, COMING and pinned once: lookups of it wait until _arrive (which loads it, and on
 * failure takes it out) or _cancel. -EEXIST: somebody asks for this number just now. */
int itable_prepare(struct ns *ns, uint64_t ino, const struct inode_rec *rec, struct inode **ret);
int itable_arrive(struct ns *ns, struct inode *i);
void itable_cancel(struct ns *ns, struct inode *i);
/* Drops a pin; an orphan that nobody holds is then removed even when lookups are unknown. */
void inode_put_forgotten(struct ns *ns, struct inode *i);

/* ---- attr.c ---- */
int rec_get(struct ns *ns, uint64_t ino, struct inode_rec *ret); /* from the store */
void rec_put(struct kv_batch *b, uint64_t ino, const struct inode_rec *r);
/* The record as it would be stored now. inode.mu held (directories: or ns.mu). */
void rec_current(struct ns *ns, struct inode *i, struct inode_rec *ret);

/* ---- txn.c: one change of the namespace ---- */
struct txn {
    struct ns *ns;
    struct inode *inode[TXN_INODES];
    struct inode_rec rec[TXN_INODES]; /* working copies; stored when touched */
    bool touched[TXN_INODES];
    int64_t mtime_was[TXN_INODES];
    bool applied;
    unsigned n;
    uint64_t next, reserved;
    int64_t now;
    struct kv_batch b;
};
/* Takes ns.mu and the locks of the inodes that are no directories (at most two). NULLs and doubles in
 * the list are skipped. All pinned by the caller. */
void txn_begin(struct txn *t, struct ns *ns, struct inode *const *list, unsigned n);
struct inode_rec *txn_rec(struct txn *t, const struct inode *i);
/* Says that txn_rec(i) was changed: it will be stored and its record is marked for this topic. */
void txn_touch(struct txn *t, struct inode *i, uint64_t topic);
/* A number never given before, for an inode or a name. -ENOSPC after 2^40. */
int txn_number(struct txn *t, uint64_t *ret);
/* Applies; on success what was touched is published. */
int txn_apply(struct txn *t, const struct kv_origin *who, uint64_t result);
void txn_end(struct txn *t);

/* Entries of directories, inside a change. */
int name_get(struct ns *ns, uint64_t parent, const char *name, size_t len, struct name_rec *ret);
void name_put(struct txn *t, uint64_t parent, const char *name, size_t len,
              const struct name_rec *r);
void name_del(struct txn *t, uint64_t parent, const char *name, size_t len, uint64_t cookie);
void name_mark(struct txn *t, uint64_t parent, const char *name, size_t len, uint64_t topic);
int name_check(const char *name, size_t *ret_len);
/* The inode behind a name, pinned. Called without locks. */
int name_pin(struct ns *ns, uint64_t parent, const char *name, size_t len, struct inode **ret);
/* 0 when names can be made in this directory. */
int dir_check(struct txn *t, const struct inode *dir);
int dir_empty(struct ns *ns, uint64_t dir); /* 0, -ENOTEMPTY, -EIO */
/* One name of `i`, in directory `dir`, goes: counts, and makes an orphan of this topic when it was the
 * last. The caller touches it. */
void unlink_count(struct txn *t, struct inode *i, uint64_t dir, uint64_t topic);

/* ---- topic.c ---- */
/* The topic of an entry that names `ino` of this type in `parent`. */
int topic_of_name(struct ns *ns, uint64_t parent, uint64_t ino, uint32_t type, uint64_t *ret);
/* Whether `ino` is `top` or below it, by the directories above. */
int topic_is_below(struct ns *ns, uint64_t ino, uint64_t top, bool *ret);

struct misplaced {
    uint64_t ino, dir; /* a file whose record names not the directory that holds it */
};
/* Marks all keys of an inode, and of everything below a directory, for both topics. -EXDEV: too many, or
 * a hard link inside. -EAGAIN: *fix has to be put right first (parent_fix), then again. */
int topic_mark_move(struct txn *t, uint64_t ino, uint32_t type, uint64_t from, uint64_t to,
                    struct misplaced *fix);
int parent_fix(struct ns *ns, const struct misplaced *m);

#endif
