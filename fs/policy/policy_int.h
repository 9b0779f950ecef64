/* policy_int.h: what the files of this folder share. */
#ifndef SLUICE_POLICY_POLICY_INT_H
#define SLUICE_POLICY_POLICY_INT_H

#include <stdatomic.h>
#include "fs/policy/glob.h"
#include "fs/policy/policy.h"
#include "fs/volume/config_int.h"

struct policy_section {
    char *text; /* of its glob */
    struct glob glob;
    unsigned line;
    uint64_t value[POLICY_KEYS];
    unsigned key_line[POLICY_KEYS]; /* 0: says nothing */
};

struct policy_set {
    _Atomic unsigned refs;
    char *shown; /* the file, in messages */
    unsigned n;
    bool says_tiered_no;
    unsigned says_of_writes; /* POLICY_APPEND_ONLY, POLICY_SYNC: some section does */
    uint64_t least[POLICY_KEYS]; /* over all sections; UINT64_MAX: none says it */
    struct policy_section section[POLICY_SECTIONS_MAX];
};

extern const char *const policy_key_names[POLICY_KEYS];

/* As a user would write it. Returns out. */
const char *policy_value_text(enum policy_key k, uint64_t v, char *out, size_t cap);
/* An array: what sections say in it. */
void policy_print_rule(const struct policy_set *s, const struct rule *r, FILE *f);

#endif
