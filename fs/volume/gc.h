/* gc.h: objects under the volume's prefix that nothing names any more: remains of uploads, pages and probes
 * whose writer died. Never what cannot be proven dead:
 *
 *   - only while the volume's epoch is ours; not when any manifest in the bucket cannot be read
 *   - only keys of a form that this program makes, of an epoch that is not newer than ours
 *   - named by no segment record (object or upload under way), no entry of the delete queue, no entry of any
 *     page or root in the bucket, no root as last committed
 *   - older than `gc_grace` by the store's own clock, which an object written for the purpose tells; beside
 *     a running daemon at least GC_ONLINE_MS, since a page is written before the root that names it
 */
#ifndef SLUICE_VOLUME_GC_H
#define SLUICE_VOLUME_GC_H

#include <stdatomic.h>
#include <stdbool.h>
#include "fs/volume/config.h"
#include "fs/volume/findings.h"

struct volume;

enum { GC_ONLINE_MS = 3600 * 1000 };

struct gc_options {
    bool dry_run;
    _Atomic bool *cancelled; /* may be NULL */
};

struct gc_report {
    uint64_t listed, named, young, foreign; /* objects; foreign: of no form that we make */
    uint64_t orphans, bytes;                /* to be deleted */
    uint64_t deleted, uploads;              /* uploads: multipart ones, given up */
    bool dry_run;
    struct findings found;
};

/* 0; -EPERM: another mount owns the volume; -EUCLEAN: a manifest cannot be read; -errno: with `why`.
 * Blocks on the store. *ret is to be given to gc_report_done. */
int gc_run(struct volume *v, const struct gc_options *o, struct gc_report *ret, char *why,
           size_t cap);
void gc_report_done(struct gc_report *r);
void gc_json(const struct gc_report *r, FILE *f);
void gc_text(const struct gc_report *r, FILE *f);

#endif
