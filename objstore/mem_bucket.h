/* mem_bucket.h: between the two files of the memory store. Internal. */
#ifndef SLUICE_OBJSTORE_MEM_BUCKET_H
#define SLUICE_OBJSTORE_MEM_BUCKET_H

#include "objstore/mem.h"

/* Lets the request take effect and fills its results; `done` is the caller's. */
void mem_perform(struct mem_bucket *b, struct obj_req *r);

#endif
