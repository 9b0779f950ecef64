/* config_print.c: the effective configuration and the rules for paths, as a table for people or as JSON. The store's URL never
 * holds a secret (store_url_parse refuses those), so everything may be shown. */
#include "fs/volume/config_int.h"

#include <string.h>

#include "fs/policy/policy.h"
#include "fs/volume/json.h"

static const void *field(const struct config *c, const struct config_row *r)
{
    return (const char *)c + r->offset;
}

const char *config_value(const struct config *c, const struct config_row *r, unsigned nth,
                         char *out, size_t cap)
{
    char size[32];
    uint64_t v = r->kind <= KIND_NUMBER ? *(const uint64_t *)field(c, r) : 0;
    out[0] = '\0';
    switch (r->kind) {
    case KIND_SIZE:
        return size_text(v, out, cap);
    case KIND_TIME:
        return duration_text(v, out, cap);
    case KIND_NUMBER:
        snprintf(out, cap, "%llu", (unsigned long long)v);
        break;
    case KIND_BOOL:
        snprintf(out, cap, "%s", *(const bool *)field(c, r) ? "yes" : "no");
        break;
    case KIND_PROFILE:
        snprintf(out, cap, "%s", c->profile == PROFILE_BROKER ? "broker" : "topics");
        break;
    case KIND_TEXT: {
        const char *s = *(char *const *)field(c, r);
        snprintf(out, cap, "%s", s ? s : "");
        break;
    }
    case KIND_DEVICE:
        if (nth < c->devices && c->device[nth].budget)
            snprintf(out, cap, "%s=%s", c->device[nth].path,
                     size_text(c->device[nth].budget, size, sizeof(size)));
        else if (nth < c->devices)
            snprintf(out, cap, "%s", c->device[nth].path);
    }
    return out;
}

/* The rules of the file that is set, or NULL. They were read a moment ago (config_finish). */
static struct policy_set *rules_of(const struct config *c)
{
    char why[1024];
    struct policy_set *set = NULL;
    if (c->policy)
        (void)policy_read(c->policy, c->profile == PROFILE_BROKER, &set, NULL, why, sizeof why);
    return set;
}

static void print_json(const struct config *c, FILE *f)
{
    struct policy_set *set = rules_of(c);
    char value[CONFIG_VALUE_BYTES + 64], text[CONFIG_SOURCE_BYTES], bounds[96];
    const char *sep = "";
    (void)fputs("{\"settings\":[", f);
    for (size_t i = 0; i < config_rows_n; i++) {
        const struct config_row *r = &config_rows[i];
        config_value(c, r, 0, value, sizeof(value));
        if (r->hidden && !*value)
            continue;
        fprintf(f, "%s\n {\"name\":\"%s\",\"value\":", sep, r->name);
        sep = ",";
        if (r->kind == KIND_DEVICE) {
            (void)fputc('[', f);
            for (unsigned k = 0; k < c->devices; k++) {
                (void)fputs(k ? "," : "", f);
                json_string(f, config_value(c, r, k, value, sizeof(value)));
            }
            (void)fputc(']', f);
        } else if (r->kind == KIND_BOOL) {
            (void)fputs(*(const bool *)field(c, r) ? "true" : "false", f);
        } else if (r->kind == KIND_TEXT && !*value) {
            (void)fputs("null", f);
        } else {
            json_string(f, value);
        }
        if (r->kind <= KIND_NUMBER)
            fprintf(f, ",\"number\":%llu,\"min\":%llu,\"max\":%llu,\"default\":%llu",
                    (unsigned long long)*(const uint64_t *)field(c, r), (unsigned long long)r->min,
                    (unsigned long long)r->max, (unsigned long long)r->def);
        config_source(c, r->name, text, sizeof(text));
        (void)fputs(",\"source\":", f);
        json_string(f, text);
        (void)fputs(",\"bounds\":", f);
        json_string(f, config_bounds(r, bounds, sizeof(bounds)));
        (void)fputs(",\"help\":", f);
        json_string(f, r->help);
        (void)fputc('}', f);
    }
    (void)fputs("\n],\"policy\":", f);
    if (set)
        policy_print_json(set, f);
    (void)fputs(set ? "}\n" : "null}\n", f);
    policy_set_unref(set);
}

void config_print(const struct config *c, FILE *f, bool json)
{
    char value[CONFIG_VALUE_BYTES + 64], clean[CONFIG_VALUE_BYTES + 64];
    char source[CONFIG_SOURCE_BYTES], bounds[96];
    if (json) {
        print_json(c, f);
        return;
    }
    fprintf(f, "%-16s %-12s %-14s %-20s %s\n", "SETTING", "VALUE", "SOURCE", "BOUNDS", "");
    for (size_t i = 0; i < config_rows_n; i++) {
        const struct config_row *r = &config_rows[i];
        config_value(c, r, 0, value, sizeof(value));
        if (r->hidden && !*value)
            continue;
        config_source(c, r->name, source, sizeof(source));
        fprintf(f, "%-16s %-12s %-14s %-20s %s\n", r->name,
                *value ? printable(value, clean, sizeof(clean)) : "-", source,
                config_bounds(r, bounds, sizeof(bounds)), r->help);
        for (unsigned k = 1; r->kind == KIND_DEVICE && k < c->devices; k++)
            fprintf(f, "%-16s %s\n", "",
                    printable(config_value(c, r, k, value, sizeof(value)), clean, sizeof(clean)));
    }
    struct policy_set *set = rules_of(c);
    if (set)
        policy_print(set, f);
    policy_set_unref(set);
}
