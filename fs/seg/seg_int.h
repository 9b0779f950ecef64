/* seg_int.h: what dev*.c and seg*.c share; nobody else includes it. */
#ifndef SLUICE_SEG_SEG_INT_H
#define SLUICE_SEG_SEG_INT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/base/hash.h"
#include "fs/base/lock.h"
#include "fs/base/stats.h"
#include "fs/seg/dev.h"
#include "fs/seg/segfmt.h"
#include "fs/seg/segfile.h"

#define DEV_FRESH_NS (100 * NS_PER_MS)

/* A segment whose flush failed; outlives its struct segfile (law 1: reopening heals nothing). */
struct failed_seg {
    uint64_t ino, base;
    uint32_t version;
    int err;
    uint64_t len, tail_hash; /* of the data when it was closed: what its tail must be */
};

struct segfile;

struct dev {
    uint32_t id;
    char *path;
    int dirfd;              /* -1: missing */
    uint64_t budget, total; /* total: size of the file system */
    _Atomic int64_t used;
    _Atomic int state; /* enum dev_state; once FAILED it stays so */
    _Atomic bool draining, drained, stuck;
    _Atomic bool held;   /* just added: takes no segments yet */
    _Atomic bool retired;
    _Atomic unsigned users; /* open segment files, and picks; none when it is retired */
    _Atomic uint64_t drain_left, drain_total;
    /* Free space as last asked, and `used` at that time: what we wrote since is taken off. */
    _Atomic int64_t fs_avail, avail_used, avail_next_ns;
    _Atomic uint8_t bucket_durable[256];
    _Atomic bool failed_any; /* else nobody looks at `failed` */

    struct lock lock; /* RANK_DEVICE: error, failed, drain_note */
    char error[120], drain_note[120];
    struct failed_seg *failed; /* at most one for each segment on it */
    size_t failed_n, failed_cap;
    bool failed_unknown; /* the list is not whole: every reopened segment counts as failed */
};

struct devs {
    uint8_t volume[16];
    _Atomic unsigned n; /* places; one is complete before it is counted */
    struct counter *written, *read;
    struct histogram *sync_seconds;
    struct counter own_written, own_read; /* used when there is no registry */
    struct histogram own_sync;
    struct dev dev[DEV_PLACES_MAX];
};

#define DEV_IDENT_FILE "sluicefs-device"

/* NULL: unknown or missing. */
struct dev *dev_get(struct devs *d, uint32_t id);
struct dev *dev_place(struct devs *d, uint32_t id); /* missing ones, too; NULL: unknown or removed */
uint64_t dev_used(struct dev *v);
bool dev_has_room(struct dev *v, uint64_t bytes, double level);
uint64_t dev_left(struct dev *v); /* bytes of budget and file system */
/* dev.c: the steps of opening one. `why` as devs_open. */
int dev_refuse(int r, char *why, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int dev_open_dir(const struct devs *d, struct dev *v, bool create, uint32_t known,
                 uint32_t *ret_found, char *why, size_t cap);
int dev_write_ident(const struct devs *d, const struct dev *v);
int dev_prepare(struct dev *v, uint64_t budget);
void dev_mark_failed(struct dev *v, const char *what, int err);

/* segfail.c. That the flush of this segment failed, and what its bytes are now. Blocks on local disk. */
void seg_failure_note(struct segfile *s, int err);
void seg_failure_renew(struct segfile *s, int err); /* the same, when it is known as failed already */
/* Did one fail, in this mount or under a daemon before? *ret: .len 0 when its tail is not known. */
bool seg_failure_of(struct segfile *s, struct failed_seg *ret);
void seg_failure_over(struct dev *v, uint64_t ino, uint64_t base, uint32_t version);
void seg_failures_remove(struct dev *v);

/* A failed call that says the device itself is bad, not only full or out of memory. */
static inline bool dev_err_is_bad(int r)
{
    return r == -EIO || r == -EROFS || r == -ENODEV || r == -ENXIO || r == -EUCLEAN;
}

/* An open segment. Locks, in this order:
 *
 *   sync    (disk_ok) one flush at a time: confirmed, slot_*, dir_*, proven_len
 *   table   (disk_ok) one writer of the hash table in the header at a time
 *   state   (short)   everything under "state" below
 *
 * `len` is stored (release) by whoever the caller serialises: append, write, truncate. */
struct segfile {
    struct devs *devs;
    struct dev *dev;
    int fd;
    uint32_t header_bytes;
    uint64_t capacity;
    uint64_t ino, base;
    uint32_t version;
    uint64_t ident_hash;
    uint8_t ident[SEG_IDENT_BYTES]; /* written again when a failed flush is healed */

    _Atomic uint64_t len;
    /* What the last successful flush covers; with wgen it answers "is it synced?" without a lock. */
    _Atomic uint64_t durable_len;
    _Atomic uint64_t durable_wgen;
    _Atomic uint64_t wgen; /* counts overwrites and truncates */
    _Atomic bool sealed;
    _Atomic int failed;                /* errno of a failed flush, 0: none */
    _Atomic uint64_t started, dropped; /* write-behind: started up to, let go up to */

    struct lock state;          /* RANK_SEGFILE */
    uint64_t hashed;            /* hashes (or "unknown") are settled for data [0, hashed) */
    struct hash64_stream *tail; /* over [block start, hashed) when tail_known; NULL until needed */
    bool tail_known;
    bool patchy;      /* some block's hash may be unknown: flush data before the slot */
    bool cutting;     /* truncate is under way: hashed < len is meant */
    uint64_t *hashes; /* of finished blocks, 0: unknown; behind cap all are unknown */
    size_t hashes_cap;
    size_t dirty_lo, dirty_hi;      /* table entries that differ from the header's */
    uint64_t claim_len;             /* longest length that any slot on the medium may claim */
    uint64_t unflushed_len;         /* the same, of slots that need proof by hashes */
    uint64_t mtime_len, mtime_wgen; /* mtime_ns is that of the data while these two hold */
    int64_t mtime_ns;

    struct lock sync;    /* RANK_SEG_SYNC */
    bool confirmed;      /* the newest slot in the file and all it claims were flushed */
    uint64_t slot_seq;   /* of the newest slot */
    unsigned slot_pos;   /* where the next one goes: never over the last flushed one */
    uint64_t proven_len; /* claimed by the last flushed slot */
    bool dir_durable, dir_failed;

    struct lock table; /* RANK_SEG_TABLE */
};

/* segfile.c */
int seg_new(struct dev *v, struct devs *d, const struct seg_ident *i, struct segfile **ret);
void seg_set_hash(struct segfile *s, size_t block, uint64_t h); /* state held */
uint64_t seg_get_hash(const struct segfile *s, size_t block);   /* state held */
/* Hashes the next bytes, which stay inside one block; true when they finish it. state held. */
bool seg_tail_feed(struct segfile *s, const void *buf, size_t len);
/* Settles [from, to) as unknown, and whatever was appended but not hashed yet. state held. */
void seg_forget(struct segfile *s, uint64_t from, uint64_t to);

/* segsync.c */
int seg_flush_table(struct segfile *s);
/* To be called before data [from, to) is changed other than by appending: settles it as unknown, and
 * makes sure that no slot on the medium claims what will no longer be there. May flush. `cut`: the file
 * will end at `from`; the caller then sets the new length and ends `cutting`, whatever comes. */
int seg_disturb(struct segfile *s, uint64_t from, uint64_t to, bool cut);

/* Opens for reading, past the page cache when the file system can: *mem and *off then hold the
 * alignment it asks for, else 0 and the descriptor is an ordinary one. Descriptor or -errno. */
int seg_open_read(struct dev *v, const char *path, bool direct, uint32_t *mem, uint32_t *off);

/* Reads [at, at+len) of the file whatever the alignment. 0, -ENODATA, -EIO, -ENOMEM. */
int seg_read_direct(int fd, uint32_t mem, uint32_t off, uint64_t at, void *buf, size_t len);

#endif
