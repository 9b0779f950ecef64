/* dev.h: devices: directories on local block devices that hold segment files.
 *
 * A volume has one or many. Each carries an identity file (`sluicefs-device`: volume id, device id,
 * checksummed) and a tree `segments/XX/`. Space is accounted by us against the device's budget, and
 * checked against the file system's own free space, because others may fill it too.
 *
 *   state      takes new segments   meaning
 *   --------   ------------------   -----------------------------------------------------------
 *   OK         yes, unless draining
 *   FAILED     no                   a write or flush failed; reads go on (law 1)
 *   MISSING    no                   its directory was not there at mount
 *
 * Beside that a device may be draining: fs/tier/drain.c empties it, and it takes a new segment only
 * when no other device could take any (an error would be worse than a drain that does not end).
 *
 * Fill levels are shares of the budget: evict_from/to, warn, slow, refuse (struct dev_levels).
 * Threads: accounting is atomic. The list grows by devs_add and shrinks by dev_forget while others
 * read it: a place in it is never used twice in one mount, so an index and a path stay what they
 * were. Whoever calls the functions under "changes while mounted" sees to it that they come one at a
 * time.
 */
#ifndef SLUICE_SEG_DEV_H
#define SLUICE_SEG_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DEVICES_MAX = 16,
    DEV_PLACES_MAX = 64 /* devices that one mount may see come and go */
};
enum dev_state { DEV_OK, DEV_FAILED, DEV_MISSING };

struct devs;
struct stats;

struct dev_conf {
    const char *path;
    uint64_t budget;            /* bytes; 0: 90 % of the file system's size */
};

struct dev_info {
    uint32_t id;                /* stable, stored in seg_rec.device; from 1 */
    const char *path;           /* lives as long as devs */
    uint64_t budget, used;      /* used: our files, headers included */
    uint64_t fs_free;           /* of the file system below */
    enum dev_state state;
    char error[120];            /* why it is not OK */
    bool draining;
    bool drained;               /* nothing is on it any more; only with draining */
    bool drain_stuck;           /* all that is left cannot be brought away */
    uint64_t drain_left, drain_total; /* bytes still on it; when it began */
    char drain_note[120];       /* what the drain waits for; empty: it goes on */
};

/* Opens all devices. `create`: a directory without identity gets one (first mount, or a device that
 * is new to the volume); it must be empty or absent. ids[] maps the order of `conf` to device ids, as
 * stored by the volume; 0: new. On return ids[] is filled.
 * -EEXIST: belongs to another volume; -ENOTEMPTY: not ours and not empty; -ENOENT, -EACCES, -EROFS,
 * -ENOSPC...: `why` says which directory, what is wrong and what helps. */
int devs_open(const uint8_t volume[16], const struct dev_conf *conf, unsigned n, bool create,
              uint32_t *ids, struct stats *stats, struct devs **ret, char *why, size_t why_cap);
void devs_close(struct devs *d);

/* Whether devs_open with `create` would succeed, without leaving anything behind: before a first mount
 * asks the store. Errors as devs_open. Blocks on local disk. */
int devs_look(const uint8_t volume[16], const struct dev_conf *conf, unsigned n, char *why,
              size_t why_cap);

/* Places in the list; devs_info is false for one whose device was removed. */
unsigned devs_count(struct devs *d);
bool devs_info(struct devs *d, unsigned i, struct dev_info *ret);
/* The same by id. False: no such device. */
bool dev_info_of(struct devs *d, uint32_t id, struct dev_info *ret);

/* The directory descriptor of a device. -ENODEV: unknown or missing. Borrowed; after a removal it names
 * nothing any more (-ENOTDIR). */
int dev_dirfd(struct devs *d, uint32_t id);

/* Adds (or with a negative number gives back) bytes of our files. */
void dev_account(struct devs *d, uint32_t id, int64_t bytes);

/* Records a failed write or flush: the device takes no new segments until remount. */
void dev_fail(struct devs *d, uint32_t id, const char *what, int err);

/* At mount, before a segment is opened: which flushes failed under an earlier daemon. `mounted_anew`: the
 * device's file system was mounted anew since, so that what is read is what the medium has: forgets them.
 * Blocks on local disk. */
void dev_recall_failures(struct devs *d, uint32_t id, bool mounted_anew);

/* Of a missing device: so much is only on it. Logged, and from then on part of its error. */
void dev_say_only(struct devs *d, uint32_t id, uint64_t segments, uint64_t bytes);

/* Picks the device for a new segment: the OK one with most free budget. -ENOSPC, -EIO (none OK). The
 * device cannot be removed until dev_unpick, which comes when a record names the segment or its file
 * is gone. */
int dev_pick(struct devs *d, uint32_t *ret_id);
void dev_unpick(struct devs *d, uint32_t id);

/* The same for a copy of a segment that is on `from`: only a device that takes new segments and stays
 * below `level` (a share of its budget) with these bytes. -ENOSPC; -ENODEV: there is no other. */
int dev_pick_other(struct devs *d, uint32_t from, uint64_t bytes, double level, uint32_t *ret_id);

/* Being emptied: a sealed segment on it is not extended. */
bool dev_is_draining(struct devs *d, uint32_t id);
/* The same, it is not failed, and these bytes fit on another device: they come there before they are
 * changed. */
bool dev_should_leave(struct devs *d, uint32_t id, uint64_t bytes);
bool dev_takes_new(struct devs *d, uint32_t id);

/* May `bytes` more be written to this device? 0; -ENOSPC: would pass the refuse level or the file
 * system below has no room. Cheap (atomics; statfs at most once per 100 ms). */
int dev_room(struct devs *d, uint32_t id, uint64_t bytes);

/* Share of the budget in use over all devices that are not draining, 0..1 and above; of one device. */
double devs_fill(struct devs *d);
double dev_fill(struct devs *d, uint32_t id);
uint64_t devs_room(struct devs *d);   /* bytes until all of them are at the refuse level */
uint64_t devs_used(struct devs *d);   /* of the devices that are not draining */
uint64_t devs_budget(struct devs *d); /* of the devices that are OK and not draining */

/* ---- changes while mounted (devchange.c) ---- */

/* Takes a directory in as device `id`, which was never used before: checks as devs_open, identity
 * written. It takes no segments until dev_use. A directory that was this volume's device and holds no
 * segment file is taken again. -EEXIST: another volume's, or in use already; -ENOTEMPTY; -E2BIG: too
 * many devices; as devs_open. Blocks on local disk. */
int devs_add(struct devs *d, const struct dev_conf *conf, uint32_t id, char *why, size_t why_cap);
void dev_use(struct devs *d, uint32_t id);

/* Begins (`total`: bytes that were on it then; 0: not known) or ends its draining. */
void dev_drain(struct devs *d, uint32_t id, bool on, uint64_t total);
enum dev_drain { DRAIN_GOES_ON, DRAIN_STUCK, DRAIN_DONE };
/* What fs/tier/drain.c found. `note` may be NULL. */
void dev_drain_note(struct devs *d, uint32_t id, uint64_t left, enum dev_drain how,
                    const char *note);

/* Segment files that are open on it, and picks. */
unsigned dev_users(struct devs *d, uint32_t id);

/* From here on the device is gone for everybody. -EBUSY, with nothing changed: a segment file on it is
 * open, or was just begun. dev_retire_undo takes it back. */
int dev_retire(struct devs *d, uint32_t id);
void dev_retire_undo(struct devs *d, uint32_t id);
/* Of a retired one: removes its identity and empty folders, lets go of the directory. *ret_left: its
 * quarantine holds files, or something else could not be removed. Blocks on local disk. */
void dev_forget(struct devs *d, uint32_t id, bool *ret_left);

#define DEV_REFUSE 0.95
#define DEV_SLOW   0.90
#define DEV_WARN   0.85

#endif
