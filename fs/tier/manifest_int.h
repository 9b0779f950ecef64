/* manifest_int.h: what the manifest files of fs/tier share: one job, and its steps. All on the actor. */
#ifndef SLUICE_TIER_MANIFEST_INT_H
#define SLUICE_TIER_MANIFEST_INT_H

#include "fs/tier/internal.h"
#include "fs/tier/manifest_fmt.h"

enum {
    MANIFEST_INLINE_MAX = 48 * 1024,
    MANIFEST_TAKE_MAX = 1024 * 1024 /* bytes of entries per write; a single one may exceed it */
};

struct taken {
    struct key key; /* the inner key */
    uint8_t *val;   /* as put into the manifest; NULL: tombstone */
    uint32_t vlen;
    bool commits;       /* a segment whose pending object becomes its object */
    uint64_t elsewhere; /* it belongs to this topic now (it moved meanwhile); 0: it does not */
    uint64_t ino, base, attempt;
};

struct manifest_job {
    struct list link;
    struct tier *t;
    uint64_t topic;
    struct manifest_root root; /* the next one */
    char etag[OBJ_ETAG_MAX];   /* of the present one; "": none exists */
    struct taken *taken;
    unsigned n;
    bool had_root;
    bool more; /* marks are left, no delay until the next write */
    struct kv_waiter waiter;
    struct task task;
    int err; /* of making it durable */
    struct store_call call;
    struct obj_body body;
    struct iovec iov;
    char key[OBJ_KEY_MAX];
    uint8_t *buf; /* what is being sent or received */
    size_t len;
    struct merge *merge; /* manifest_merge.c, while pages are being merged */
    uint64_t *replaced;  /* pages that the next root no longer names; owned */
    unsigned replaced_n;
};

/* The mark of an inner key in table 'M' (to do) or 'm' (in flight). */
struct key manifest_mark(char table, uint64_t topic, const struct key *inner);

/* Marks go back, the job ends; tried again later, or `soon`. */
void manifest_job_failed(struct manifest_job *j, int err, bool soon);

/* ---- manifest_take.c ---- */
/* Takes the topic's marks, reads the values, composes the next root. 0 or -errno (the job then fails). */
int manifest_take(struct manifest_job *j);

/* Stored form of a root in kv ('T'): u8 version 1, u16 length of the ETag, ETag, root. */
void manifest_root_store(struct kv_batch *b, uint64_t topic, const uint8_t *root, size_t len,
                         const char *etag);

/* The root object is missing from the bucket: the next write of it makes it anew, with all that is stored of
 * it here. 0 or -errno. */
int manifest_root_disown(struct tier *t, uint64_t topic);

/* ---- manifest_merge.c ---- */
/* If the newest pages are many and small, merges them into larger ones before the root is written, then
 * calls `then`. False: nothing to merge, `then` will not be called. A merge that fails is dropped. */
bool manifest_merge(struct manifest_job *j, void (*then)(struct manifest_job *j));
void manifest_merge_free(struct manifest_job *j);

#endif
