/* stack.c: builds a store, bottom first; see stack.h for the order and its reasons. Stateless. */
#include "objstore/stack.h"

#include <errno.h>
#include <stdio.h>

static int open_backend(const struct store_conf *conf, struct objstore **ret, char *why, size_t cap)
{
    switch (conf->url.kind) {
    case STORE_DIR:
        return dir_open(conf, ret, why, cap);
    case STORE_S3:
        return s3_open(conf, ret, why, cap);
    case STORE_MEM:
        return mem_open(conf, ret);
    }
    return -EINVAL;
}

int store_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap)
{
    struct objstore *os = NULL;
    if (why_cap)
        why[0] = 0;
    if (!conf->timers) {
        snprintf(why, why_cap, "a store needs timers");
        return -EINVAL;
    }
    int r = open_backend(conf, &os, why, why_cap);
    if (r < 0) {
        if (why_cap && !why[0])
            snprintf(why, why_cap, "the store cannot be opened");
        return r;
    }
    if (conf->fault_plan)
        r = fault_push(&os, conf);
    if (r == 0)
        r = meter_push(&os, conf);
    if (r == 0)
        r = retry_push(&os, conf);
    if (r == 0)
        r = breaker_push(&os, conf);
    if (r < 0) {
        snprintf(why, why_cap, "%s",
                 r == -ENOMEM ? "no memory for the store" : "the fault plan cannot be used");
        obj_close(os);
        return r;
    }
    *ret = os;
    return 0;
}
