/* multipart.h: sending one large object as parallel parts. */
#ifndef SLUICE_TIER_MULTIPART_H
#define SLUICE_TIER_MULTIPART_H

#include "fs/tier/internal.h"

#define MULTIPART_PART_BYTES (32 * MiB)

/* Sends `body` (borrowed, as `key` is, until done) in parts. `done` runs once on the actor, with 0, or
 * with the error and diagnosis of the part or step that failed; the upload has then been aborted,
 * unless the outcome is unclear. flags: OBJ_IF_ABSENT. 0, or -ENOMEM: done will not be called. */
int multipart_put(struct tier *t, const char *key, const struct obj_body *body, unsigned body_n,
                  unsigned flags, void (*done)(void *arg, int err, const struct obj_diag *diag),
                  void *arg);

#endif
