/* source.h: the source of the slice cache (fs/data/source.c); wired by fs/volume. */
#ifndef SLUICE_DATA_SOURCE_H
#define SLUICE_DATA_SOURCE_H

#include "cache/cache.h"

/* ctx is the struct data. */
extern const struct cache_source data_source_ops;

/* cache_conf.damaged: names what does not match its hash, in the log and in a metric. */
void data_damaged(void *ctx, const struct cache_seg *seg, uint64_t pos);

#endif
