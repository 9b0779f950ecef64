/* segs.h: segment records: finding them, changing them, and the totals that follow from them. */
#ifndef SLUICE_DATA_SEGS_H
#define SLUICE_DATA_SEGS_H

#include <stdatomic.h>
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/seg/segfile.h"

struct data;

/* Sums over all segments. Kept up to date by seg_change_done and by appends. */
struct totals {
    _Atomic int64_t logical, local, remote, pending; /* bytes; pending: in no committed object */
    _Atomic int64_t open, sealed, uploaded, committed, evicted; /* segments by state */
};

/* A change of one record: build, put into a batch, apply the batch, then tell the totals. The actual
 * length of an open segment is not in its record, so it is given. */
struct seg_change {
    uint64_t ino, base;
    bool had, has; /* a record exists before, after */
    struct seg_rec old, now;
    uint64_t old_len, now_len;
};
void seg_change_put(struct kv_batch *b, const struct seg_change *c);
void seg_change_done(struct totals *t, const struct seg_change *c);

/* The record at exactly (ino, base). 0, -ENOENT, -EIO, -EBADMSG. */
int seg_get(struct kv *kv, uint64_t ino, uint64_t base, struct seg_rec *ret);

/* The last record that begins at or before `off`. 0, -ENOENT... */
int seg_before(struct kv *kv, uint64_t ino, uint64_t off, uint64_t *ret_base, struct seg_rec *ret);

/* The first record that begins at or behind `off`. */
int seg_after(struct kv *kv, uint64_t ino, uint64_t off, uint64_t *ret_base, struct seg_rec *ret);

/* Block hashes of a sealed version: malloc'ed. 0, -ENOENT, -EIO, -ENOMEM. */
int seg_blocks(struct kv *kv, uint64_t ino, uint64_t base, uint32_t version, uint64_t **ret,
               size_t *ret_n);
void seg_blocks_put(struct kv_batch *b, uint64_t ino, uint64_t base, uint32_t version,
                    const uint64_t *hashes, size_t n);

/* Its device file. */
struct segfile_id seg_file_id(uint64_t topic, uint64_t ino, uint64_t base, const struct seg_rec *r);

/* The W record of an open segment: u8 version 1, u64 length when the inode's record was last stored (0:
 * never). While that is still the length, the times in the inode's record are newer than the device
 * file's, whose own mtime also moves when proofs are written. */
void seg_open_put(struct kv_batch *b, uint64_t ino, uint64_t base, uint64_t noted_len);
uint64_t seg_open_decode(const void *val, size_t len);

/* Queue entries. A sealed segment has one in U, or in K while its file's rule keeps it from the bucket. */
void seg_queue_sealed_del(struct kv_batch *b, uint64_t ino, uint64_t base, const struct seg_rec *r);
void seg_queue_unlink(struct kv_batch *b, uint64_t ino, uint64_t base, const struct seg_rec *r);
/* `in_manifest`: wait until the topic's manifest no longer names the object. */
void seg_queue_delete(struct kv_batch *b, const struct seg_object *o, uint64_t ino, uint64_t base,
                      int64_t not_before_ns);
/* The same for a file that is removed: `topic` is where it was last, which may not be where it was born. */
void seg_queue_delete_in(struct kv_batch *b, const struct seg_object *o, uint64_t topic,
                         uint64_t ino, uint64_t base, int64_t not_before_ns);

/* Values of the queues: L: u8 version 1, u32 device, u32 file_version, u64 ino, u64 base.
 *                       D: u8 version 1, u64 topic, u64 ino, u64 base, key text. */
int unlink_decode(const void *val, size_t len, struct segfile_id *ret);
int delete_decode(const void *val, size_t len, uint64_t *topic, uint64_t *ino, uint64_t *base,
                  char *key, size_t key_cap);

/* A fresh number for queue keys (random, never 0). */
uint64_t queue_id(void);

#endif
