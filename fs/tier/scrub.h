/* scrub.h: looking for damage in the background, paced, and mending it where another copy has it.
 *
 * Two passes, each a round over all segment records that goes on where it stopped, also after a restart:
 *   partial  each `scrub_partial`: `scrub_permille` of the local bytes are read and compared with their
 *            hashes, headers of their files with them; the next pass takes the next ones
 *   full     each `scrub_full`: every segment: its device file is there, whole in length and header; its
 *            object is there with the right length
 * Nothing is done while the store is not in order, so that an outage does not look like damage. What is
 * found is said in the log and in `status`, and counted (scrub_* metrics); see fs/volume/fsck.c for what
 * is mended how. */
#ifndef SLUICE_TIER_SCRUB_H
#define SLUICE_TIER_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

struct tier;
struct scrub;

int scrub_open(struct tier *t, struct scrub **ret);
void scrub_close(struct scrub *s);
/* Actor: starts a step when one is due. */
void scrub_tick(struct scrub *s);

enum scrub_state { SCRUB_OFF, SCRUB_WAITING, SCRUB_PARTIAL, SCRUB_FULL, SCRUB_PAUSED };

struct scrub_status {
    enum scrub_state state;
    int64_t last_partial_ns, last_full_ns; /* wall clock of the last end; 0: never */
    uint64_t segments, bytes, objects;     /* looked at since the mount */
    uint64_t healed, left;                 /* findings since the mount */
    char last_damage[256];                 /* in words; "": none */
};
/* Any thread; tier_scrub_status of tier.h. */
void scrub_status(struct scrub *s, struct scrub_status *ret);

#endif
