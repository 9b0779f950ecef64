/* fsck.h: metadata store, devices and bucket compared with each other, and mended where one of them has
 * what another lost. See fsck.c for what is looked at.
 *
 * A volume that a daemon has is checked through that daemon (control.h), with its stores and under its
 * locks; any other is opened by volume_open_offline. Without `repair` nothing is changed anywhere. */
#ifndef SLUICE_VOLUME_FSCK_H
#define SLUICE_VOLUME_FSCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include "fs/volume/config.h"
#include "fs/volume/findings.h"

struct volume;

/* Exit codes, as of fsck(8). */
enum { FSCK_CLEAN = 0, FSCK_REPAIRED = 1, FSCK_LEFT = 4, FSCK_FAILED = 8 };

struct fsck_options {
    bool deep; /* read every byte of devices and objects, and all manifests */
    bool repair;
    bool spare_objects;         /* deep, but objects are only looked for */
    _Atomic bool *cancelled; /* may be NULL; true: ends soon with -ECANCELED */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* segments; may be NULL */
    void *arg;
};

struct fsck_report {
    uint64_t rows, inodes, segments, device_files, objects, manifests;
    uint64_t device_bytes, object_bytes; /* read and compared */
    bool store_silent;                   /* the store did not answer: the bucket was not checked */
    struct findings found;
};

/* 0: see fsck_code; -errno: could not run, with `why`. Blocks; *ret is to be given to fsck_report_done. */
int fsck_run(struct volume *v, const struct fsck_options *o, struct fsck_report *ret, char *why,
             size_t cap);
int fsck_code(const struct fsck_report *r);

/* One segment only: its queue entry, device file, object. For the scrub. *ret is added to. 0; -ENOENT: it is
 * gone; -ECANCELED; what the store said. */
int fsck_segment(struct volume *v, uint64_t ino, uint64_t base, const struct fsck_options *o,
                 struct fsck_report *ret);
void fsck_report_done(struct fsck_report *r);
void fsck_json(const struct fsck_report *r, FILE *f);
void fsck_text(const struct fsck_report *r, FILE *f);

/* Of a volume that no daemon has: opened, checked, closed. Metadata whose damage would end this process is
 * looked at in a child first; with `repair` it is then rebuilt from bucket and devices (restore.h), the
 * old one kept in the state directory. Returns an exit code of fsck, with `why` for 8. */
int fsck_offline(struct config *conf, const struct fsck_options *o, struct fsck_report *ret,
                 char *why, size_t cap);

#endif
