/* hooks.h: what the data layer does for the namespace (struct ns_hooks); wired by fs/volume. */
#ifndef SLUICE_DATA_HOOKS_H
#define SLUICE_DATA_HOOKS_H

#include "fs/ns/ns.h"

int data_load(void *ctx, struct inode *i);
void data_unload(void *ctx, struct inode *i);
int data_gone(void *ctx, struct inode *i, struct kv_batch *b);
/* Without what only open segments hold: their device files say how much that is, and after a loss of
 * power it may be less. */
uint64_t data_stored_size(void *ctx, struct inode *i);

/* Another rule may hold for it now. */
void data_moved(void *ctx, struct inode *i);

#endif
