/* bucket.h: small synchronous requests to a store, for whoever may wait: rebuild, check, garbage
 * collection. Never from a FUSE worker, the tiering actor or the store's own threads.
 *
 * All return 0 or the error of objstore.h; `b->why` then says what failed, for people. `b->cancelled`
 * (may be NULL) turned true ends a listing between two requests with -ECANCELED. One thread at a time. */
#ifndef SLUICE_VOLUME_BUCKET_H
#define SLUICE_VOLUME_BUCKET_H

#include <stdatomic.h>
#include "objstore/objstore.h"

struct volume;

struct bucket {
    struct objstore *store;
    unsigned timeout_ms; /* of one request, with its retries */
    _Atomic bool *cancelled;
    struct volume *stepped;     /* not NULL: no threads; who waits does the work (volume_pause) */
    bool unclear; /* the request that failed may have taken effect */
    char why[400];
};

/* A whole small object: malloc'ed. -EFBIG: longer than `max`. `etag` may be NULL. */
int bucket_get(struct bucket *b, const char *key, uint64_t max, uint8_t **ret, size_t *ret_len,
               char etag[OBJ_ETAG_MAX]);
/* Exactly [off, off + len). */
int bucket_read(struct bucket *b, const char *key, uint64_t off, void *buf, size_t len);
int bucket_head(struct bucket *b, const char *key, struct obj_info *ret);
/* flags: OBJ_IF_ABSENT, OBJ_IF_MATCH with `etag`. `ret_etag` may be NULL. */
int bucket_put(struct bucket *b, const char *key, const void *buf, size_t len, unsigned flags,
               const char *etag, char ret_etag[OBJ_ETAG_MAX]);
int bucket_delete(struct bucket *b, const char *const *keys, unsigned n);
int bucket_abort(struct bucket *b, const char *key, const char *upload_id);

/* Every key that begins with `prefix`, in order; uploads: multipart uploads in progress instead.
 * `each` runs on the calling thread and may make requests; non-zero stops and is returned. */
int bucket_list(struct bucket *b, const char *prefix, bool uploads,
                int (*each)(void *arg, const struct obj_entry *e), void *arg);

#endif
