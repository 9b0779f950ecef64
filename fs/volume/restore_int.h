/* restore_int.h: what the files of the rebuild share. One thread. */
#ifndef SLUICE_VOLUME_RESTORE_INT_H
#define SLUICE_VOLUME_RESTORE_INT_H

#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/volume/bucket.h"
#include "fs/volume/restore.h"
#include "fs/volume/volume_int.h"

enum reach { REACH_UNKNOWN, REACH_WALKING, REACH_YES };

/* An inode in memory, sorted by number. */
struct rino {
    uint64_t ino, parent, size; /* as recorded, then as put right */
    uint64_t end;               /* of the last segment found */
    uint64_t lost;              /* bytes behind it that the record knows of */
    uint32_t mode, nlink, names, subdirs;
    uint8_t reach;  /* directories */
    bool in_parent; /* one of its names is in `parent` */
    bool placed;    /* a directory whose name was chosen */
    bool cut;       /* behind `end` are bytes that were never uploaded: else a hole */
    bool changed;
};

/* A name that another topic's entry already has. */
struct rival {
    uint64_t parent, topic;
    struct name_rec rec;
    size_t len;
    uint8_t name[NAME_BYTES_MAX];
};

/* A key whose value here differs from what the manifest of this inode's topic says. */
struct owed {
    uint64_t ino;
    struct key key;
};

struct restore {
    struct volume *v;
    struct bucket b;
    const struct restore_options *o;
    struct restore_report *rep;
    char *why;
    size_t why_cap;
    uint64_t epoch, next; /* next: counter of this node's inode numbers */
    uint8_t nonce[16];
    struct kv_batch batch;
    struct rino *ino;
    size_t inos, inos_cap;
    struct rival *rival;
    size_t rivals, rivals_cap;
    struct owed *owed;
    size_t oweds, oweds_cap;
    uint64_t lost_found;
};

/* Applies the batch when it has grown to `min` changes. */
int restore_apply(struct restore *r, unsigned min);
/* A number of this node, for an inode or a name. */
uint64_t restore_number(struct restore *r);

/* This key differs from what the manifest of the topic of `ino` says: the first mount writes it there. */
int restore_owe(struct restore *r, uint64_t ino, const struct key *k);

/* ---- restore_replay.c ---- */
int restore_replay(struct restore *r);

/* ---- restore_devices.c ---- */
int restore_devices(struct restore *r);

/* ---- restore_names.c ---- */
/* NULL: not known. Valid until the next one is made. */
struct rino *restore_find(struct restore *r, uint64_t ino);
/* For kv_walk over table I. */
int restore_load_inode(void *arg, const void *key, size_t klen, const void *val, size_t vlen);
int restore_make_inode(struct restore *r, uint64_t ino, uint64_t parent, uint32_t mode);
int restore_put_inode(struct restore *r, const struct rino *x, const struct inode_rec *rec);
int restore_names(struct restore *r);

/* ---- restore_tree.c ---- */
int restore_tree(struct restore *r);

#endif
