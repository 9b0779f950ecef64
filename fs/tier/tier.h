/* tier.h: what happens to bytes after they were acknowledged: seal, upload, verify, commit, evict, and
 * deleting what nobody needs any more. One actor ("tier" thread) owns all decisions; work runs on the
 * device pool and in the object store and comes back to it as events. The simulation steps it.
 */
#ifndef SLUICE_TIER_TIER_H
#define SLUICE_TIER_TIER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "fs/meta/rec.h"
#include "fs/parts.h"

struct tier;
struct inode;

/* ---- commands by hand (control socket) ---- */
enum tier_cmd_kind { TIER_SEAL, TIER_UPLOAD, TIER_EVICT, TIER_WARM };

struct tier_cmd {
    enum tier_cmd_kind kind;
    uint64_t ino; /* a file, or a directory: everything below it */
    uint64_t off, len; /* WARM: only segments that meet [off, off + len); len 0: all */
    /* Progress so far, any thread: bytes done of bytes to do. May be NULL. */
    void (*progress)(struct tier_cmd *c, uint64_t done, uint64_t total);
    void (*done)(struct tier_cmd *c, int err, const char *why);
    void *arg;
    void *priv;
};
/* Files that their rule keeps from the store are left out of a directory's UPLOAD and EVICT; asked for by
 * name they are refused (-EPERM).
 * SEAL: closes open segments. UPLOAD: seals, uploads and commits. EVICT: uploads and then drops local
 * copies. WARM: brings remote segments back to a device. done is called once. */
void tier_command(struct tier *t, struct tier_cmd *c);
/* The client went away: the command ends soon with -ECANCELED. */
void tier_command_cancel(struct tier *t, struct tier_cmd *c);

/* Totals for status and metrics; cheap. */
struct tier_usage {
    uint64_t logical, local, remote,
        pending; /* bytes: in files; on devices; in committed objects; sealed
                                               * or open and not committed */
    uint64_t kept; /* sealed, and kept from the store by rules: not in `pending` */
    uint64_t segments_open, segments_sealed, segments_uploaded, segments_committed, segments_remote;
    uint64_t queue_upload, queue_manifest, queue_delete, queue_unlink, uploading;
    double oldest_pending_seconds; /* age of the oldest byte not uploaded; 0: none */
    double time_to_full_seconds;   /* < 0: not filling */
    bool fenced;                   /* another mount took this volume over: no more uploads */
};
void tier_usage(struct tier *t, struct tier_usage *ret);

/* What is on a device: segments, and bytes in them, by what holds them up. Walks all segments; blocks on
 * the metadata store. 0 or -errno. */
struct drain_look {
    uint64_t segments, bytes;
    uint64_t open, sealed, sealed_bytes; /* of those, in no committed object: open ones, others */
    uint64_t uploaded;                   /* their objects wait for a manifest */
    uint64_t unlinks;                    /* files that wait to be removed */
};
int tier_drain_look(struct volume *v, uint32_t device, struct drain_look *ret);

struct scrub_status; /* fs/tier/scrub.h */
void tier_scrub_status(struct tier *t, struct scrub_status *ret);

#endif
