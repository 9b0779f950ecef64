/* fault_plan.h: the parsed form of a fault plan; the text is described in fault.h. Internal. */
#ifndef SLUICE_OBJSTORE_FAULT_PLAN_H
#define SLUICE_OBJSTORE_FAULT_PLAN_H

#include "objstore/objstore.h"

enum { FAULT_RULES_MAX = 64, FAULT_PLAN_BYTES_MAX = 64 * 1024 };

enum fault_action {
    FAULT_FAIL,
    FAULT_LOST_REPLY,
    FAULT_TRUNCATE,
    FAULT_CORRUPT,
    FAULT_XML,
    FAULT_ETAG,
    FAULT_DELAY,
    FAULT_STALL
};

struct fault_rule {
    unsigned ops; /* bit per obj_op */
    char key[256];
    unsigned nth, count, seen; /* count 0: no end */
    enum fault_action action;
    int err, http;
    bool retryable, unknown, silent;
    char code[32];
    uint64_t n; /* offset or milliseconds */
};

struct fault_plan {
    struct fault_rule rule[FAULT_RULES_MAX];
    unsigned n;
    char trigger[1024];
};

/* 0, or -EINVAL with the line in `why`. */
int fault_plan_parse(const char *text, struct fault_plan *p, char *why, size_t cap);

#endif
