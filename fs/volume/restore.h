/* restore.h: a volume made anew from its bucket, after state directory and devices are gone; device
 * directories that survived give back what had not been uploaded.
 *
 *   state directory empty -> object `volume` read, store probed -> node number claimed -> epoch raised by
 *   compare-and-set -> each topic: root read, rewritten under the new epoch (from here on a surviving
 *   daemon is fenced), replayed -> segment files of the devices adopted -> tree put in order ->
 *   identity written: the volume can be mounted
 *
 * Until the last step the directory holds `volume.restoring` and no identity: a rebuild that died is
 * begun again from the start. What is in the bucket is never deleted. */
#ifndef SLUICE_VOLUME_RESTORE_H
#define SLUICE_VOLUME_RESTORE_H

#include "fs/volume/config.h"
#include "fs/volume/findings.h"

struct restore_options {
    bool deep;    /* read every footer now instead of at the first read */
    bool partial; /* go on without a manifest that is damaged */
};

struct restore_report {
    char volume_id[40];
    const char *profile;
    uint32_t node;
    uint64_t epoch;
    uint64_t topics, files, directories, others, segments, bytes; /* bytes: readable afterwards */
    uint64_t adopted_segments, adopted_bytes;                     /* from device directories */
    uint64_t lost_files,
        lost_bytes; /* known to have existed, and neither in the bucket nor found */
    struct findings found;
};

/* 0, or -errno with one line in `why` and the exit code of the command: 1 failed, 2 usage, 4 refused.
 * Blocks. *ret is to be given to restore_report_done in every case. */
int volume_restore(const struct config *conf, const struct restore_options *o,
                   struct restore_report *ret, char *why, size_t cap, int *ret_exit);
void restore_report_done(struct restore_report *r);

#endif
