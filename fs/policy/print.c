/* print.c: rules in words and as JSON: for `sluicefs config`, and for the documents of a running daemon. */
#include <string.h>

#include "fs/policy/policy_int.h"
#include "fs/volume/json.h"

const char *policy_value_text(enum policy_key k, uint64_t v, char *out, size_t cap)
{
    switch (k) {
    case POLICY_TIERED:
        snprintf(out, cap, "%s", v ? "yes" : "no");
        break;
    case POLICY_PROFILE:
        snprintf(out, cap, "%s", v == PROFILE_BROKER ? "broker" : "topics");
        break;
    case POLICY_MIRROR:
        if (v == 0 || v == UINT64_MAX)
            snprintf(out, cap, "%s", v ? "yes" : "no");
        else
            (void)size_text(v, out, cap);
        break;
    case POLICY_SEGMENT_BYTES:
        return size_text(v, out, cap);
    default:
        return duration_text(v, out, cap);
    }
    return out;
}

void policy_print(const struct policy_set *s, FILE *f)
{
    char value[64], glob[128];
    fprintf(f, "\n%-32s %-16s %-12s %s\n", "RULES FOR", "SETTING", "VALUE", "SOURCE");
    for (unsigned i = 0; i < s->n; i++) {
        const struct policy_section *sec = &s->section[i];
        printable(sec->text, glob, sizeof glob);
        for (unsigned k = 0; k < POLICY_KEYS; k++)
            if (sec->key_line[k])
                fprintf(f, "%-32s %-16s %-12s %s:%u\n", glob, policy_key_names[k],
                        policy_value_text(k, sec->value[k], value, sizeof value), s->shown,
                        sec->key_line[k]);
    }
}

static void print_setting(const struct policy_section *sec, enum policy_key k, FILE *f)
{
    char value[64];
    fprintf(f, "{\"setting\":\"%s\",\"value\":\"%s\",\"glob\":", policy_key_names[k],
            policy_value_text(k, sec->value[k], value, sizeof value));
    json_string(f, sec->text);
    fprintf(f, ",\"line\":%u}", sec->key_line[k]);
}

void policy_print_json(const struct policy_set *s, FILE *f)
{
    const char *sep = "";
    (void)fputs("{\"file\":", f);
    json_string(f, s->shown);
    (void)fputs(",\"rules\":[", f);
    for (unsigned i = 0; i < s->n; i++) {
        for (unsigned k = 0; k < POLICY_KEYS; k++) {
            if (!s->section[i].key_line[k])
                continue;
            (void)fputs(sep, f);
            print_setting(&s->section[i], k, f);
            sep = ",\n  ";
        }
    }
    (void)fputs("]}", f);
}

void policy_print_rule(const struct policy_set *s, const struct rule *r, FILE *f)
{
    const char *sep = "";
    (void)fputc('[', f);
    for (unsigned k = 0; k < POLICY_KEYS; k++) {
        if (!r->from[k])
            continue;
        (void)fputs(sep, f);
        print_setting(&s->section[r->from[k] - 1], k, f);
        sep = ",";
    }
    (void)fputc(']', f);
}
