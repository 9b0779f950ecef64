/* objstore.h: one face for every object store and every policy layer over it.
 *
 * A store is a stack of layers, each a `struct objstore`; the top one is what callers see
 * (objstore/stack.h builds it). All requests are asynchronous: the caller owns a `struct obj_req`,
 * submits it, and hears of its end exactly once through `done`. A layer that needs its own state
 * keeps it in a request of its own that it submits to the layer below.
 *
 * Threads: submit and cancel may be called from any thread, with locks of rank below RANK_STORE
 * held. `done` and `progress` run on a thread of the store (the event loop of S3, the device pool of
 * a directory, the timer thread for what layers end, the stepping thread of the memory store, the
 * closing thread), with no lock held, never from inside submit or cancel; they must not block, and
 * may submit further requests.
 *
 * Errors in `err`: 0, or
 *   -ENOENT     no such object
 *   -ENODEV     no such bucket, or a directory that is not there or not a store: nothing is known of
 *               the object. A HEAD to S3 cannot tell and says -ENOENT
 *   -EEXIST     a condition failed (If-None-Match, If-Match): HTTP 412, and 409 where it means that
 *   -EACCES     refused: wrong or expired key, no permission. Not retryable by itself
 *   -ENOSPC     the store is full or a quota is exceeded
 *   -ETIMEDOUT  no progress within the time-out; whether it took effect is unknown
 *   -EBADMSG    a checksum that we sent was refused, or an answer contradicts itself
 *   -EIO        anything else (diag says what); unknown_outcome says whether it may have happened
 *   -ECANCELED  given up by obj_cancel or by closing
 *   -EOPNOTSUPP the store cannot do it
 *   -EINVAL     the request itself is malformed (a bug of the caller)
 */
#ifndef SLUICE_OBJSTORE_H
#define SLUICE_OBJSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "fs/base/bounds.h"
#include "fs/base/hash.h"

enum obj_op {
    OBJ_PUT,
    OBJ_GET,
    OBJ_HEAD,
    OBJ_LIST,
    OBJ_DELETE,         /* one key; a missing object is success */
    OBJ_DELETE_BATCH,   /* up to OBJ_BATCH_MAX keys */
    OBJ_MP_CREATE,
    OBJ_MP_PART,
    OBJ_MP_COMPLETE,
    OBJ_MP_ABORT,       /* a missing upload is success */
    OBJ_MP_LIST,        /* uploads in progress under a prefix, for gc */
    OBJ_OP_COUNT
};

/* "put get head list delete delete multipart multipart ...": the label of metrics. */
const char *obj_op_name(enum obj_op op);

enum {
    OBJ_ETAG_MAX = 136,
    OBJ_UPLOAD_ID_MAX = 1024,
    OBJ_BATCH_MAX = 1000,
    OBJ_IOV_MAX = 520       /* a GET may scatter into this many pieces */
};

enum {
    OBJ_IF_ABSENT = 1u << 0,    /* PUT, MP_COMPLETE: If-None-Match: * */
    OBJ_IF_MATCH = 1u << 1,     /* PUT, DELETE, GET: If-Match: req->etag */
    OBJ_HAS_SHA256 = 1u << 2,   /* PUT, MP_PART: req->sha256 is that of the body; sent and signed */
    OBJ_URGENT = 1u << 3        /* demand read, manifest: goes before queued background work */
};

/* One stretch of a body that is sent: memory, or a range of a file. The bytes must not change until
 * `done`. A file range is read with pread on the loop thread in pieces of at most 256 KiB. */
struct obj_body {
    const void *mem;    /* NULL: take fd */
    int fd;
    uint64_t off;       /* in fd */
    uint64_t len;
};

struct obj_info {
    uint64_t size;
    char etag[OBJ_ETAG_MAX];    /* as sent by the store, quotes included */
};

struct obj_diag {
    bool retryable;             /* the same request may succeed later */
    bool unknown_outcome;       /* it may have taken effect although it failed */
    int http_status;            /* 0: no response was received */
    unsigned retry_after_ms;    /* 0: not said */
    char code[64];              /* S3 <Code>, errno name, or "" */
    char request_id[80];
    char message[160];          /* for humans; never contains a secret */
};

struct obj_entry {              /* one row of a LIST or MP_LIST */
    const char *key;            /* valid during the callback */
    uint64_t size;
    const char *upload_id;      /* MP_LIST */
    int64_t modified_ms;        /* wall clock of the store; initiated for MP_LIST; 0: not said */
};

struct obj_req {
    /* ---- set by the caller, unchanged by layers ---- */
    enum obj_op op;
    unsigned flags;
    const char *key;            /* relative to the store's prefix; borrowed until done */
    const char *etag;           /* OBJ_IF_MATCH; borrowed */
    int64_t deadline_ns;        /* clock_mono_ns; 0: none. Includes all retries */

    const struct obj_body *body; /* PUT, MP_PART; borrowed */
    unsigned body_n;
    uint8_t sha256[SHA256_BYTES];

    uint64_t off, len;          /* GET: the range [off, off+len), len > 0. It must lie inside */
    const struct iovec *iov;    /* GET: where the bytes go, in order; total length == len */
    unsigned iov_n;

    const char *const *keys;    /* DELETE_BATCH */
    unsigned keys_n;

    const char *upload_id;      /* MP_PART, _COMPLETE, _ABORT */
    unsigned part_no;           /* MP_PART: from 1 */
    const char *const *part_etags; /* MP_COMPLETE: parts 1..parts_n */
    unsigned parts_n;

    const char *start_after;    /* LIST: first page; NULL or a key */
    const char *token;          /* LIST, MP_LIST: from `next_token` of the page before, or NULL */
    unsigned max_keys;          /* LIST: 0 means 1000 */
    void (*each)(struct obj_req *r, const struct obj_entry *e); /* LIST, MP_LIST */

    /* GET: `got` bytes from the start of the range are in place now (grows; loop thread). May be
     * NULL. A retry goes on behind what has arrived: `got` never goes backwards within one object
     * version (the retry carries If-Match of the first answer's ETag). */
    void (*progress)(struct obj_req *r, uint64_t got);
    void (*done)(struct obj_req *r);
    void *arg;                  /* the caller's */

    /* ---- results, valid from done on ---- */
    int err;
    struct obj_diag diag;       /* when err < 0 */
    struct obj_info info;       /* PUT, HEAD, GET (etag, whole size when said), MP_* */
    char *next_token;           /* LIST, MP_LIST: NULL at the end; free()d by obj_req_done */
    char *new_upload_id;        /* MP_CREATE: free()d by obj_req_done */
    unsigned failed_n;          /* DELETE_BATCH: keys that were not deleted */
    unsigned attempts;          /* filled by the retry layer; 0 without one */

    /* ---- of the layer that holds the request now ---- */
    struct obj_req *next;
    void *layer;
};

/* Releases what a finished request owns (next_token, new_upload_id) and clears those fields. */
void obj_req_done(struct obj_req *r);

struct objstore {
    const struct objstore_ops *ops;
};

enum objstore_health { OBJ_HEALTH_OK, OBJ_HEALTH_DEGRADED, OBJ_HEALTH_DOWN };

struct objstore_status {
    enum objstore_health health;
    char reason[200];           /* why it is not ok: last error in words, without secrets */
    int64_t since_ns;           /* clock_mono_ns of the last change of health */
    uint64_t queued, in_flight;
    int64_t next_probe_ns;      /* open breaker: when it tries again; 0 otherwise */
    int64_t silent_ns;          /* for how long the request that waits longest has moved no byte; 0: none */
};

struct objstore_ops {
    const char *name;           /* "s3", "dir", "mem", "retry", "breaker", "meter", "fault" */
    void (*submit)(struct objstore *os, struct obj_req *r);
    void (*cancel)(struct objstore *os, struct obj_req *r);
    /* Adds what this layer knows to *st and passes it down. May be NULL (wrapper passes down). */
    void (*status)(struct objstore *os, struct objstore_status *st);
    /* Ends all requests (-ECANCELED), then releases this layer and those below. */
    void (*close)(struct objstore *os);
    struct objstore *(*below)(struct objstore *os); /* NULL for a backend */
};

/* Checked wrappers: assert the request's form, trace at debug level, dispatch. */
void obj_submit(struct objstore *os, struct obj_req *r);

/* Asks that a request end soon. `done` still comes once, with -ECANCELED or with what happened
 * before. Calling it for a request that is already done is the caller's bug: serialise with done. */
void obj_cancel(struct objstore *os, struct obj_req *r);

void obj_status(struct objstore *os, struct objstore_status *ret);
void obj_close(struct objstore *os);

/* Submits and waits: for tools, probes at mount and tests. Never call it from a FUSE worker or from
 * the store's own thread. Returns r->err. */
int obj_run(struct objstore *os, struct obj_req *r);

/* One line for people: "403 AccessDenied: ... (request ...)". No secrets. Returns buf. */
const char *obj_diag_text(const struct obj_req *r, char *buf, size_t cap);

#endif
