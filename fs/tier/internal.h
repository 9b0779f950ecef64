/* internal.h: what the files of fs/tier share.
 *
 * The actor is an exec with one worker: everything that reads or changes struct tier runs there, so
 * the struct needs no lock. Jobs leave it (device pool, object store, journal flush) and come back by
 * submitting their task to it. A tick (timer, or a kick from the data path) looks at the durable
 * queues and starts what is due; every queue lives in the metadata store, so a crash loses nothing.
 *
 * A segment record is changed under its inode's io lock, against a fresh read, and only if its version
 * is still the one the job began with: the data path may have opened the segment again meanwhile.
 */
#ifndef SLUICE_TIER_INTERNAL_H
#define SLUICE_TIER_INTERNAL_H

#include <stdatomic.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/list.h"
#include "fs/base/stats.h"
#include "fs/data/data.h"
#include "fs/data/segs.h"
#include "fs/ns/ns.h"
#include "fs/tier/scrub.h"
#include "fs/tier/tier.h"
#include "fs/volume/config.h"
#include "objstore/objstore.h"
#include "objstore/stack.h"

enum {
    TICK_MS = 200,
    NAMES_DELAY_MS = 5000,      /* changes of names alone reach the manifest within this */
    MANIFESTS_MAX = 4,          /* written at once */
    MANIFEST_ENTRIES_MAX = 2048, /* per write */
    UNLINKS_MAX = 64,           /* per round */
    DELETES_MAX = 256,          /* per round */
    SEAL_SCAN_MAX = 4096,       /* open segments looked at per tick */
    SOUR_MAX = 1024
};

enum epoch_state { EPOCH_UNKNOWN, EPOCH_BUSY, EPOCH_MINE, EPOCH_FENCED };

struct upload;
struct manifest_job;
struct command;
struct drain;

/* A request to the store. Embedded in a job; `done` runs on the actor. */
struct store_call {
    struct obj_req req;
    void (*done)(struct store_call *c);
    bool even_when_stopping;
    /* call.c's */
    struct tier *t;
    struct list link;
    struct task task;
    bool waits, ended;
};

/* A segment that is brought back, or just was, for a writer who waits: nobody evicts it before `until_ns`
 * (clock_mono; 0: free). When the writer has it, it is open, which is no state to be evicted from. With more of
 * them than places the rest may be evicted and brought back again. */
enum { KEPT_MAX = 256 };
struct kept {
    uint64_t ino, base;
    int64_t until_ns;
};

struct tier {
    struct volume *v;
    struct lock call_mu; /* RANK_TIER; call.c */
    pthread_cond_t call_cond;
    struct list calls;     /* with the store now */
    struct exec *actor;    /* one worker, or stepped */
    struct exec *blocking; /* warm and read-back: may wait for the store, with deadlines */
    struct task tick;
    _Atomic bool tick_queued, stopping;
    struct timer timer;
    struct store_caps caps;

    enum epoch_state epoch_state;
    uint64_t epoch;
    uint8_t epoch_nonce[16];
    int64_t epoch_retry_ns;
    struct epoch_job *epoch_job;

    struct list uploads; /* under way */
    unsigned uploads_n;
    int64_t upload_retry_ns; /* after a failure nothing new starts before this */
    int64_t upload_backoff_ns;
    struct sour {
        uint64_t seg; /* hash of inode and base */
        int64_t until_ns;
    } sour[SOUR_MAX];           /* could not be read; direct mapped: a collision forgets one */
    int64_t denied_ns;          /* the store refused an upload (key, permission) then; 0: not since */
    char denied[200];           /* in its words */
    int64_t unrecorded_ns;      /* the metadata store refused to record a step then */
    int unrecorded;             /* with this error */

    struct list manifests; /* under way */
    unsigned manifests_n;
    struct topic_state *topics; /* TOPICS_MAX recent ones, direct mapped */
    int64_t manifest_scan_ns;

    struct key evict_from; /* where the look through queue 'E' goes on; len 0: at its beginning */
    struct unlink_job *unlink_job;
    int64_t unlink_retry_ns;
    struct delete_job *delete_job;
    int64_t delete_retry_ns;
    int64_t seal_scan_ns;
    uint64_t seal_scan_ino, seal_scan_base;
    int64_t flush_ns;

    /* The look through queue 'K': kept.c. */
    struct key kept_from;    /* where it goes on; len 0: no look under way */
    uint64_t kept_changes;   /* policy_changes at its beginning */
    uint64_t kept_sum;       /* bytes seen so far */
    int64_t kept_ns;         /* when the last one ended */
    _Atomic uint64_t kept_bytes;
    int64_t evict_rest_ns; /* by age nothing is looked at before this */

    struct list commands;
    struct kept kept[KEPT_MAX];
    struct scrub *scrub;
    struct drain *drain;
    unsigned jobs; /* all that will come back to the actor */

    /* rates, for time to full */
    int64_t rate_at_ns;
    uint64_t rate_used;
    double rate; /* bytes a second, smoothed; > 0: filling */
    _Atomic double time_to_full;
    _Atomic int64_t oldest_pending_ns; /* wall clock of the oldest byte not committed; 0: none */
    _Atomic bool fenced;
    _Atomic uint64_t q_upload, q_manifest, q_delete, q_unlink, q_uploading;

    struct counter *uploads_ok, *uploads_failed, *evicted, *stale, *damaged, *commits;
};

void tier_kick(void *tier); /* any thread: a tick soon */
void tier_kick_in(struct tier *t, int64_t ns);

/* The metadata store did not take a step: commands that wait for one give up. Actor. */
void tier_unrecorded(struct tier *t, int err);

/* Is anything in this table of the metadata store? A table that cannot be read counts as yes. */
bool queue_has_entries(struct tier *t, char table);

/* Reads the record at (ino, base) under its inode's io lock and lets `fn` change it: fn returns 1 to
 * apply `c->now` (and what it put into `b`), 0 to leave it, or -errno. -ENOENT: the file or segment is
 * gone. Actor or device pool. */
int seg_update(struct tier *t, uint64_t ino, uint64_t base,
               int (*fn)(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg),
               void *arg);

/* ---- call.c ---- */
void call_submit(struct tier *t, struct store_call *c);
int call_run(struct tier *t,
             struct store_call *c); /* waits: `blocking` pool only. Returns req.err */
void call_cancel_all(struct tier *t);

/* ---- epoch.c ---- */
void epoch_tick(struct tier *t);
void epoch_fence(struct tier *t, const char *why);

/* ---- upload.c ---- */
void upload_tick(struct tier *t);
/* An upload of this segment is with the store or on its way there: a PUT may still take effect. */
bool upload_under_way(struct tier *t, uint64_t ino, uint64_t base);

/* ---- kept.c ---- */
/* Moves a sealed segment from queue U to queue K, or back, by what its file's rule says now. */
void kept_put(struct tier *t, int64_t sealed_ns, uint64_t ino, uint64_t base);
void kept_tick(struct tier *t);

/* ---- manifest.c ---- */
int manifest_open(struct tier *t);
int manifest_recover(struct kv *kv);
void manifest_close(struct tier *t);
void manifest_tick(struct tier *t, bool at_once);
/* True: the topic's manifest does not yet have the newest state of this segment. */
bool manifest_owes(struct tier *t, uint64_t topic, uint64_t ino, uint64_t base);

/* ---- evict.c ---- */
void evict_tick(struct tier *t);
int evict_segment(struct tier *t, uint64_t ino, uint64_t base, uint64_t *ret_freed);
bool tier_store_down(struct tier *t);
void seal_tick(struct tier *t);
void unlink_tick(struct tier *t);

/* ---- delete.c ---- */
void delete_tick(struct tier *t);

/* ---- command.c ---- */
void command_tick(struct tier *t);
void command_abort_all(struct tier *t, const char *why);
bool command_wants_manifest(struct tier *t);

/* ---- warm.c ---- */
/* Actor. until_ns 0: not any more. */
void warm_keep(struct tier *t, uint64_t ino, uint64_t base, int64_t until_ns);
bool warm_is_kept(struct tier *t, uint64_t ino, uint64_t base);
/* Brings one remote segment back to a device. Blocks on the store: `blocking` pool only. */
int warm_segment(struct tier *t, uint64_t ino, uint64_t base);

/* ---- move.c ---- */
/* Copies a sealed local segment, of a device that is being drained, to another one that stays below
 * `level` of its budget; flushed, compared with the segment's hash, then recorded. 0: done, or there is
 * nothing to move; -ENOSPC, -ENODEV: no other device takes it; -ESTALE: it changed meanwhile; -EBADMSG:
 * the device cannot deliver its bytes; -ECANCELED; -errno of the other device. Blocks on local disk:
 * any pool. */
int move_segment(struct tier *t, uint64_t ino, uint64_t base, double level);

/* ---- drain.c ---- */
int drain_open(struct tier *t);
void drain_close(struct tier *t);
void drain_tick(struct tier *t);

/* ---- verify.c ---- */
/* Reads an object of a segment back whole and compares with its block hashes. Blocks. */
int verify_object(struct tier *t, const char *key, uint64_t data_len, const uint64_t *hashes,
                  size_t n);

/* Opening, for fs/volume. */
int tier_open(struct volume *v, const struct store_caps *caps, bool threaded, struct tier **ret);
/* Gives up what is under way after `grace_ms`, waits until nothing of it is left. */
void tier_stop(struct tier *t, unsigned grace_ms);
void tier_close(struct tier *t);

#endif
