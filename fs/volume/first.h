/* first.h: the first mount's dealings with the bucket. */
#ifndef SLUICE_VOLUME_FIRST_H
#define SLUICE_VOLUME_FIRST_H

#include "fs/volume/ident.h"
#include "objstore/objstore.h"

/* Finds out what the store can do and that the prefix is free (or holds `i->volume` already, from a
 * first mount that did not come to its end). Leaves nothing behind. 0; -EEXIST: another volume lives
 * there; -errno. Blocks on the store, at most about `timeout_ms` a request. */
int first_look(struct objstore *store, unsigned timeout_ms, struct ident *i, char *why, size_t cap);

/* Claims the prefix: the object `volume`, and this node's number. */
int first_claim(struct objstore *store, unsigned timeout_ms, const struct ident *i, char *why,
                size_t cap);

#endif
