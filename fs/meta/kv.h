/* kv.h: the metadata store: an ordered map of byte strings that survives kill -9 at once and loss of
 * power from kv_sync on.
 *
 * Three parts, one truth:
 *   journal   state/journal/N: append-only, checksummed batches; kv_apply returns after pwrite, so the
 *             batch survives the daemon; fdatasync (group commit) makes it survive the machine
 *   overlay   in memory: the newest value of every key that LMDB does not have yet
 *   LMDB      state/meta: what was checkpointed, by one thread, in synced transactions that also
 *             record the last journal sequence they contain
 * Reads look at the overlay, then at LMDB. Start-up replays journal batches newer than LMDB's mark.
 * A missing or damaged batch ends the replay if nothing proves that it was ever durable: loss of
 * power may keep later unsynced sectors and drop earlier ones. Each batch says up to which sequence
 * everything was durable when it was written; a damaged batch that a later one calls durable is
 * corruption and is refused (-EBADMSG), never skipped.
 *
 * Why not fsync by LMDB commit: a commit is two flushes and a copy of every touched page; a journal
 * write is one flush, shared by all that wait.
 *
 * Keys are 1..KV_KEY_MAX bytes and sort bytewise. Values carry a hash over key and value in LMDB; a
 * value that does not match is -EBADMSG ("damaged"), never "absent".
 */
#ifndef SLUICE_META_KV_H
#define SLUICE_META_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { KV_KEY_MAX = 500, KV_VALUE_MAX = 256 * 1024 };

struct kv;
struct stats;

struct kv_conf {
    int dirfd;                  /* the state directory, kept open by the caller */
    const char *dir;            /* its path, for LMDB and messages */
    uint64_t map_bytes;         /* LMDB map size; grown by doubling when full (0: 1 GiB) */
    unsigned checkpoint_ms;     /* longest time a batch stays out of LMDB: 1000 */
    uint64_t overlay_bytes_max; /* 8 MiB: above it a checkpoint starts at once, at twice this
                                 * kv_apply waits for it (local disk only). Not more than 1/32 of
                                 * a small file system, since the reserve for removals grows with it */
    bool threaded;              /* false: kv_step does checkpoint and sync work (simulation) */
    bool lmdb_nosync;           /* simulation only */
    bool keep_origins;          /* the FUSE connection survived: requests may be sent again */
    struct stats *stats;
};

/* Opens or creates, replays the journal. 0; -EBADMSG (damaged: *why names what); -EBUSY (in use by
 * another process); -EPROTONOSUPPORT (written by a newer version); -errno. */
int kv_open(const struct kv_conf *conf, struct kv **ret, char *why, size_t why_cap);

/* Checkpoints everything into LMDB, syncs, closes. After a failed journal or LMDB write it closes
 * without checkpoint (the journal has it). */
void kv_close(struct kv *kv);

/* As if the process had died: drops memory without writing (simulation, tests). */
void kv_crash(struct kv *kv);

/* A batch under construction: all of it happens or none. Reusable after kv_batch_reset. */
struct kv_batch {
    uint8_t *buf;
    size_t len, cap;
    unsigned n;
    bool failed; /* memory ran out; kv_apply will say -ENOMEM */
    bool frees;  /* a step towards freeing space (tiering): may use the reserve for removals */
};

void kv_batch_init(struct kv_batch *b);
void kv_batch_done(struct kv_batch *b);
void kv_batch_reset(struct kv_batch *b);
void kv_put(struct kv_batch *b, const void *key, size_t klen, const void *val, size_t vlen);
void kv_del(struct kv_batch *b, const void *key, size_t klen);

/* Who asked: stored with the batch, so that a request resent after the daemon's death finds that it
 * was already done. unique 0: nobody. */
struct kv_origin {
    uint64_t unique; /* of the FUSE request */
    uint32_t op;     /* FUSE opcode */
    uint64_t result; /* the inode number replied, or 0 */
};

/* Applies a batch atomically: journal, then overlay. *ret_seq (may be NULL) is what kv_sync waits for.
 * When the state directory's file system is so full that the reserve for removals is touched, batches
 * without any kv_del are refused (-ENOSPC), unless they say that they are a step towards freeing space
 * (b->frees); others still pass.
 * 0; -ENOMEM; -ENOSPC, -EIO (journal write failed: nothing was applied; after -EIO all later applies
 * fail with -EROFS until remount). Blocks on local disk only. Locks of rank below RANK_KV_WRITE that
 * are disk_ok may be held. */
int kv_apply(struct kv *kv, struct kv_batch *b, const struct kv_origin *who, uint64_t *ret_seq);

/* True if a batch with this `unique` was applied within the last few thousand; *ret gets it. Cleared
 * by kv_open unless conf.keep_origins says that the FUSE connection survived. */
bool kv_find_origin(struct kv *kv, uint64_t unique, struct kv_origin *ret);

/* Copies the value. Returns its length (which may exceed cap: then nothing was copied), -ENOENT,
 * -EBADMSG or -EIO. Any thread. May fault in LMDB pages; no short lock may be held. */
ssize_t kv_get(struct kv *kv, const void *key, size_t klen, void *buf, size_t cap);

/* Walks keys >= `from` that begin with `prefix`, in order, calling `each` until it returns non-zero
 * (which is returned) or the prefix ends (0). The pointers are valid during the call. Each row was
 * current at some moment during the walk. `each` may call kv_get and kv_apply. A damaged row ends it
 * with -EBADMSG, after all rows before it. */
int kv_walk(struct kv *kv, const void *prefix, size_t plen, const void *from, size_t flen,
            int (*each)(void *arg, const void *key, size_t klen, const void *val, size_t vlen),
            void *arg);

/* The last key <= `upto` that begins with `prefix`: copies key and value. Value length, -ENOENT... */
ssize_t kv_last(struct kv *kv, const void *prefix, size_t plen, const void *upto, size_t ulen,
                void *key, size_t key_cap, size_t *ret_klen, void *buf, size_t cap);

/* Looks at every value in LMDB and calls `damaged` for the keys of those that do not match their hash and
 * that nothing newer covers; what it returns other than 0 ends the look and is returned. Also compares the
 * number and order of rows with what LMDB says they are: -EBADMSG when they differ (rows are lost: only
 * a rebuild helps). *ret_rows (may be NULL): how many were looked at. A damaged page may end the process:
 * who cannot bear that does it in a child. */
int kv_check(struct kv *kv, int (*damaged)(void *arg, const void *key, size_t klen), void *arg,
             uint64_t *ret_rows);

/* Calls done(arg, 0 or -errno) once the batch `seq` and all before it are durable: at once from this
 * thread if they are already, else from the sync thread. Concurrent waiters share one flush. */
struct kv_waiter {
    struct kv_waiter *next;
    uint64_t seq;
    void (*done)(struct kv_waiter *w, int err);
};
void kv_sync_async(struct kv *kv, uint64_t seq, struct kv_waiter *w);

/* The same, blocking on local disk. */
int kv_sync(struct kv *kv, uint64_t seq);

/* The sequence of the last applied batch; all of them durable: kv_sync(kv, kv_seq(kv)). */
uint64_t kv_seq(struct kv *kv);

/* Unthreaded: one pending piece of work (a sync or a checkpoint). False: none. */
bool kv_step(struct kv *kv);

struct kv_usage {
    uint64_t overlay_bytes, overlay_keys, journal_bytes, lmdb_bytes, seq, durable_seq;
    bool full; /* the file system of the state directory: only what makes room is taken */
};
void kv_usage(struct kv *kv, struct kv_usage *ret);

#endif
