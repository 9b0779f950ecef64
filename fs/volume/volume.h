/* volume.h: one file system: a state directory, its devices, a bucket prefix; and the wiring of all
 * modules below FUSE.
 *
 * Life: volume_open (first mount creates it, probes the store, ties the parts together by a volume id)
 * -> threads run -> volume_stop (no new requests; flush) -> volume_close. Opening needs the store only
 * the very first time. All threads and LMDB start here, so call it after forking.
 */
#ifndef SLUICE_VOLUME_VOLUME_H
#define SLUICE_VOLUME_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "fs/parts.h"

/* 0, or -errno with one line in `why` ("<thing>: <what is wrong>; <remedy>") and the exit code of the
 * command in *ret_exit (1 failed, 2 configuration, 4 refused). Blocks; only a first mount waits for the
 * store (bounded by store_timeout). */
int volume_open(const struct config *conf, struct volume **ret, char *why, size_t why_cap,
                int *ret_exit);

/* Flushes: stores what is ahead in memory, makes everything durable on devices and in the journal.
 * Uploads under way are given up after `grace_ms`; they go on at the next mount. */
void volume_stop(struct volume *v, unsigned grace_ms);
void volume_close(struct volume *v);

/* The part of volume_open that wires the modules, for a volume whose id, node, conf, profile, state_fd,
 * stats, timers, pools, store and devices are there already (the simulation brings its own): metadata,
 * segment descriptors, data, cache, namespace, recovery, tiering. `threaded` false: everything is
 * stepped by the caller, and v->pump is set. 0, or -errno with `why`; volume_unwire in either case. */
struct store_caps;
int volume_wire(struct volume *v, const struct store_caps *caps, bool threaded, char *why,
                size_t why_cap);

/* Closes whatever of those parts there is, the caller's pools, timers, store and devices included. */
void volume_unwire(struct volume *v);

/* The documents of `status --json` and .sluice/status.json; of one inode. Text of the JSON into f. */
int volume_status_json(struct volume *v, FILE *f);
int volume_inode_json(struct volume *v, uint64_t ino, FILE *f);
/* Prometheus text. */
void volume_metrics(struct volume *v, FILE *f);

#endif
