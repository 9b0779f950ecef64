/* fsck_int.h: what the files of the check share. One thread. */
#ifndef SLUICE_VOLUME_FSCK_INT_H
#define SLUICE_VOLUME_FSCK_INT_H

#include "fs/data/segs.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/volume/bucket.h"
#include "fs/volume/fsck.h"
#include "fs/volume/volume.h"

enum { FSCK_PATH = 4096 };

struct fsck {
    struct volume *v;
    const struct fsck_options *o;
    struct fsck_report *rep;
    struct bucket b;
    uint64_t done, total; /* segments */
    struct key *bad;      /* rows that do not match their hash and were not mended; sorted */
    size_t bads, bads_cap;
};

static inline bool fsck_cancelled(const struct fsck *f)
{
    return f->o->cancelled && atomic_load(f->o->cancelled);
}

struct bucket fsck_bucket(struct volume *v, const struct fsck_options *o);

/* "topic/path", or "inode N" when it has no name. */
const char *fsck_path(struct fsck *f, uint64_t ino, char *buf, size_t cap);
/* The topic an inode is in, from the metadata store. 0, -ENOENT. */
int fsck_topic(struct fsck *f, uint64_t ino, uint64_t *ret);
void fsck_told(struct fsck *f, const char *kind, enum finding_fate fate, uint64_t ino, uint64_t off,
               uint64_t len, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 8, 9)));

/* Applies a batch of repairs. */
int fsck_apply(struct fsck *f, struct kv_batch *b);

/* Changes a segment's record if it is still `was`, under its inode's lock where a daemon runs. fn changes
 * c->now and may put more into b, write to the device file, or return -errno. -ESTALE: it changed. */
int fsck_change(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *was,
                int (*fn)(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg),
                void *arg);
/* Is the record still as it was? What a running daemon changes meanwhile is no damage. */
bool fsck_still(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *was);

/* ---- fsck_meta.c ---- */
int fsck_meta(struct fsck *f);
/* kv_walk over a table or part of one, around damaged rows. `each` never returns -EBADMSG. */
int fsck_walk(struct fsck *f, const struct key *prefix,
              int (*each)(void *arg, const void *key, size_t klen, const void *val, size_t vlen),
              void *arg);
/* ---- fsck_segs.c ---- */
int fsck_segs(struct fsck *f);
int fsck_strays(struct fsck *f);
/* Block hashes of a sealed segment from wherever they can be proven: metadata, footer, device file. */
int fsck_hashes(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                uint64_t **ret, size_t *ret_n);
/* ---- fsck_bucket.c ---- */
/* The object of a segment. `local_good`: the device copy was compared and is whole. */
int fsck_object(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                const uint64_t *hashes, size_t n, bool local_good);
int fsck_manifests(struct fsck *f);
/* The live value of a key in a topic's manifest: malloc'ed. 0, -ENOENT, -errno. */
int fsck_in_manifest(struct fsck *f, uint64_t topic, const void *key, size_t klen, uint8_t **ret,
                     size_t *ret_len);

#endif
