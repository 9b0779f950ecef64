/* mem.h: the store in memory, for the simulation and tests.
 *
 * Objects live in a bucket; a store attached to it is one client. A request takes effect, and is
 * answered, inside one mem_step: before that it has not happened. Closing a client is its power
 * cut: what was acknowledged stays in the bucket; with a seed set, each write still pending is
 * applied or not by coin, and reports -ECANCELED with unknown_outcome.
 *
 * Threads: submit and cancel from any; mem_step and everything here from one thread at a time for
 * one bucket. Nothing blocks.
 */
#ifndef SLUICE_OBJSTORE_MEM_H
#define SLUICE_OBJSTORE_MEM_H

#include "objstore/objstore.h"

struct mem_bucket;

/* 0 or -ENOMEM. Free it after all its clients are closed. */
int mem_bucket_open(struct mem_bucket **ret);
void mem_bucket_close(struct mem_bucket *b);

/* Another client of `b`; the bucket is not owned. (mem_open makes and owns its bucket.) */
int mem_attach(struct mem_bucket *b, struct objstore **ret);

/* `os` may be the top of a stack over the memory store. */
struct mem_bucket *mem_bucket_of(struct objstore *os);

/* From now on mem_step takes a random pending request (seed 0: the oldest again). */
void mem_random_order(struct objstore *os, uint64_t seed);

/* Look at and harm objects, without a request. NULL or -ENOENT: no such object. The bytes are valid
 * until the object changes. */
const uint8_t *mem_object(struct objstore *os, const char *key, uint64_t *ret_len);
int mem_damage(struct objstore *os, const char *key, uint64_t off); /* flips a bit; ETag stays */
int mem_lose(struct objstore *os, const char *key);

/* How often an object was stored under this key, deleted ones included. */
unsigned mem_puts(struct objstore *os, const char *key);
unsigned mem_count(struct objstore *os); /* objects there are */
/* Keys in byte order: NULL behind the last. */
const char *mem_key(struct objstore *os, unsigned n);

/* What the store does not enforce (flags below), to play stores that are weaker than S3. */
enum { MEM_NO_IF_ABSENT = 1, MEM_NO_IF_MATCH = 2, MEM_NO_CHECKSUM = 4, MEM_NO_RANGE = 8 };
void mem_weaken(struct objstore *os, unsigned flags);

#endif
