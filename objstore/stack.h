/* stack.h: the one place that builds a store: backend, then faults, metering, retry, breaker.
 *
 *     caller -> breaker -> retry -> meter -> fault (tests only) -> s3 | dir | mem
 *
 * The breaker is outside the retries so that it sees what callers see, and holds the whole bucket on
 * throttling; metering is inside so that every request on the wire is counted.
 */
#ifndef SLUICE_OBJSTORE_STACK_H
#define SLUICE_OBJSTORE_STACK_H

#include "objstore/objstore.h"

struct stats;
struct exec;
struct timers;

enum store_kind { STORE_DIR, STORE_S3, STORE_MEM };

/* A parsed store URL: dir:///path | s3://bucket/prefix?endpoint=..&region=..&addressing=path|virtual
 * (mem: for tests). Unknown schemes, parameters and malformed parts are refused by name. */
struct store_url {
    enum store_kind kind;
    char path[4096];            /* dir */
    char bucket[256], prefix[1024], endpoint[1024], region[64];
    bool path_style;             /* default: path with an endpoint, else virtual */
    bool addressing_set;         /* the URL said which */
};

/* 0, or -EINVAL with one line in `why` that names the part and the remedy. A URL that contains
 * credentials (user:password@, or key= parameters) is refused. */
int store_url_parse(const char *text, struct store_url *ret, char *why, size_t why_cap);

struct store_conf {
    struct store_url url;
    struct stats *stats;
    struct timers *timers;      /* back-off, hedges, breaker probes */
    struct exec *device_pool;   /* dir backend: file work runs here */
    bool no_create;             /* dir backend: one that is not there is one whose disk is not mounted;
                                 * opened all the same, and every request fails until it is there */
    const char *profile;        /* AWS profile; NULL: AWS_PROFILE or default */
    const char *fault_plan;     /* path of a fault plan file (objstore/fault.h); NULL: none */
    unsigned connections;       /* default 16 */
    unsigned timeout_get_ms, timeout_put_ms, timeout_small_ms; /* of no progress: 10 s, 30 s, 10 s */
    unsigned backoff_min_ms, backoff_max_ms;                   /* 100 ms, 30 s; full jitter */
};

/* Opens the stack. Does no request. 0 and *ret, or -errno with one line in `why`. */
int store_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap);

/* What a store was seen to do; stored by the volume at its first mount (objstore/probe.c). */
struct store_caps {
    bool if_absent;     /* PUT If-None-Match: * on an existing key was refused and changed nothing */
    bool if_match;      /* PUT If-Match with a stale ETag was refused and changed nothing */
    bool checksum;      /* a PUT with a wrong SHA-256 was refused and stored nothing */
    bool range;         /* a ranged GET returned exactly the range */
};

/* Finds out by effect, not by status: writes, reads back and deletes objects under `probe/RANDOM`.
 * Blocks (obj_run) at most `timeout_ms`, and a second to clean up. 0 with *ret, or -errno and one line in `why`
 * that names what to mend (no such bucket, key refused, region, unreachable, token expired, clock
 * off). Leaves nothing behind on success. */
int store_probe(struct objstore *os, unsigned timeout_ms, struct store_caps *ret, char *why,
                size_t why_cap);

/* Constructors of the layers; each takes ownership of `next` on success. */
int retry_push(struct objstore **os, const struct store_conf *conf);
int breaker_push(struct objstore **os, const struct store_conf *conf);
int meter_push(struct objstore **os, const struct store_conf *conf);
int fault_push(struct objstore **os, const struct store_conf *conf);
int s3_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap);
int dir_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap);
int mem_open(const struct store_conf *conf, struct objstore **ret);

/* mem backend only: runs the oldest pending completion. False: none. (It has no thread.) */
bool mem_step(struct objstore *os);

#endif
