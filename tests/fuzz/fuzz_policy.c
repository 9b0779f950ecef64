/* A policy file of any bytes is taken or refused with one line that names it. Whatever was taken matches paths
 * without harm, is merged within bounds, and can be printed. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/policy/policy.h"
#include "fs/volume/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct policy_set *s, const char *path, const struct config *c)
{
    struct rule r;
    policy_merge(s, policy_match(s, path), c, &r);
    assert(r.value[POLICY_TIERED] <= 1 && r.value[POLICY_SEGMENT_BYTES] >= SEGMENT_BYTES_MIN &&
           r.value[POLICY_SEGMENT_BYTES] % SEGMENT_BYTES_MIN == 0 &&
           r.value[POLICY_SEAL_AGE] >= 100 &&
           (!r.value[POLICY_FLUSH_INTERVAL] || r.value[POLICY_FLUSH_INTERVAL] >= 100));
    for (unsigned k = 0; k < POLICY_KEYS; k++)
        assert(r.from[k] <= POLICY_SECTIONS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"a", "a/b/c.index", "x/y/z/x/y/z/x/y/z", "[a]*?\\"};
    char why[2048] = "", *text = NULL;
    size_t len;
    struct policy_set *s;
    struct config c;
    if (size > POLICY_BYTES_MAX)
        return 0;
    config_init(&c);
    if (policy_parse((const char *)data, size, "a.ini", size & 1, &s, why, sizeof why)) {
        assert(!s && strstr(why, "a.ini:") && strchr(why, ';') && !strchr(why, '\n'));
    } else {
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
            use(s, paths[i], &c);
        FILE *f = open_memstream(&text, &len);
        policy_print(s, f);
        policy_print_json(s, f);
        (void)fclose(f);
        free(text);
        policy_set_unref(s);
    }
    config_done(&c);
    return 0;
}
