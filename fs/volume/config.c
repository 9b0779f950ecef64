/* config.c: the table of settings, setting one of them, and the checks that need several.
 *
 * Precedence is the order of the calls: defaults (config_init), environment, file, command line; a
 * later value replaces an earlier one. Devices are a list: those of one source add up, those of a
 * later source replace the list. The source of each value is kept as text, "name=source" lines in
 * config.source_text; what is not there is a default.
 */
#include "fs/volume/config_int.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/hash.h"
#include "objstore/stack.h"

#define SIZE_ROW(n, d, lo, hi, h) {#n, KIND_SIZE, offsetof(struct config, n), d, lo, hi, h, false},
#define TIME_ROW(n, d, lo, hi, h) {#n, KIND_TIME, offsetof(struct config, n), d, lo, hi, h, false},
#define NUMBER_ROW(n, d, lo, hi, h) \
    {#n, KIND_NUMBER, offsetof(struct config, n), d, lo, hi, h, false},
#define TEXT_ROW(name, field, help, hidden)                                    \
    {                                                                          \
        name, KIND_TEXT, offsetof(struct config, field), 0, 0, 0, help, hidden \
    }
#define BOOL_ROW(name, field, help)                                           \
    {                                                                         \
        name, KIND_BOOL, offsetof(struct config, field), 0, 0, 1, help, false \
    }

const struct config_row config_rows[] = {
    TEXT_ROW("state", state, "directory of metadata and journal", false),
    {"device", KIND_DEVICE, 0, 0, 1 * MiB, UINT64_MAX, "DIR[=SIZE] for segments; may repeat",
     false},
    TEXT_ROW("store", store, "URL: s3://BUCKET/PREFIX?endpoint=...&region=... or dir:///PATH",
             false),
    {"profile", KIND_PROFILE, offsetof(struct config, profile), 0, 0, 0,
     "topics: append only; broker: files may be rewritten", false},
    TEXT_ROW("policy", policy, "file of rules for paths: [GLOB], then name = value", false),
    CONFIG_SIZES(SIZE_ROW) CONFIG_TIMES(TIME_ROW) CONFIG_NUMBERS(NUMBER_ROW)
        BOOL_ROW("xattr", xattr, "user.* extended attributes"),
    BOOL_ROW("allow_other", allow_other, "other users may enter the mount; yes when root mounts"),
    BOOL_ROW("read_only", read_only, "mount read-only"),
    BOOL_ROW("scrub", scrub, "look for damage in the background, and mend it"),
    BOOL_ROW("supervise", supervise, "a daemon that dies is replaced, the mount stays"),
    TEXT_ROW("aws_profile", aws_profile, "profile of the shared AWS configuration files", false),
    TEXT_ROW("log", log_file, "log file; in the background STATE/log", false),
    TEXT_ROW("debug", debug, "components logged at debug level: fuse,tier,store...", false),
    TEXT_ROW("fault_plan", fault_plan, "tests: faults of the store", true),
};
const size_t config_rows_n = ARRAY_LEN(config_rows);

static void *field(const struct config *c, const struct config_row *r)
{
    return (char *)c + r->offset;
}

void config_init(struct config *c)
{
    *c = (struct config){
        .profile = PROFILE_TOPICS, .sources_known = true, .supervise = true, .scrub = true};
    for (size_t i = 0; i < config_rows_n; i++)
        if (config_rows[i].kind <= KIND_NUMBER)
            *(uint64_t *)field(c, &config_rows[i]) = config_rows[i].def;
}

static void devices_clear(struct config *c)
{
    for (unsigned i = 0; i < c->devices; i++)
        free(c->device[i].path);
    memset(c->device, 0, sizeof(c->device));
    c->devices = 0;
}

void config_done(struct config *c)
{
    for (size_t i = 0; i < config_rows_n; i++)
        if (config_rows[i].kind == KIND_TEXT)
            free(*(char **)field(c, &config_rows[i]));
    devices_clear(c);
    free(c->mountpoint);
    free(c->fuse_options);
    free(c->source_text);
    *c = (struct config){0};
}

const struct config_row *config_find(const char *name)
{
    for (size_t i = 0; i < config_rows_n; i++)
        if (!strcmp(config_rows[i].name, name))
            return &config_rows[i];
    return NULL;
}

/* Edit distance with insertions, deletions, changes and swaps of neighbours; - counts as _. */
static unsigned distance(const char *a, const char *b)
{
    enum { MAX = 32 };
    size_t la = strlen(a), lb = strlen(b);
    unsigned d[MAX + 1][MAX + 1];
    if (la > MAX || lb > MAX)
        return UINT_MAX;
    for (size_t i = 0; i <= la; i++) {
        for (size_t j = 0; j <= lb; j++) {
            if (!i || !j) {
                d[i][j] = (unsigned)(i + j);
                continue;
            }
            char x = a[i - 1] == '-' ? '_' : a[i - 1];
            unsigned best = d[i - 1][j - 1] + (x != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

const char *config_nearest(const char *name)
{
    const char *best = NULL;
    unsigned least = UINT_MAX;
    for (size_t i = 0; i < config_rows_n; i++) {
        unsigned d = distance(name, config_rows[i].name);
        if (!config_rows[i].hidden && d < least) {
            least = d;
            best = config_rows[i].name;
        }
    }
    return best && least <= 1 + strlen(best) / 4 ? best : NULL;
}

/* ---- sources ---- */

static char *source_line(const struct config *c, const char *name)
{
    size_t n = strlen(name);
    for (char *p = c->source_text; p && *p;) {
        if (!strncmp(p, name, n) && p[n] == '=')
            return p;
        p = strchr(p, '\n');
        p = p ? p + 1 : NULL;
    }
    return NULL;
}

void config_source(const struct config *c, const char *name, char *out, size_t cap)
{
    const char *p = source_line(c, name);
    if (!p) {
        snprintf(out, cap, "default");
        return;
    }
    p += strlen(name) + 1;
    snprintf(out, cap, "%.*s", (int)strcspn(p, "\n"), p);
}

int config_source_put(struct config *c, const char *name, const char *source)
{
    char clean[CONFIG_SOURCE_BYTES], *text;
    char *old = source_line(c, name);
    if (old) {
        char *next = strchr(old, '\n');
        next = next ? next + 1 : old + strlen(old);
        memmove(old, next, strlen(next) + 1);
    }
    if (asprintf(&text, "%s%s=%s\n", c->source_text ? c->source_text : "", name,
                 printable(source, clean, sizeof(clean))) < 0)
        return -ENOMEM;
    free(c->source_text);
    c->source_text = text;
    return 0;
}

/* Sources of one kind add up where a setting may repeat. */
enum source_kind { FROM_DEFAULT, FROM_ENVIRONMENT, FROM_FILE, FROM_COMMAND };

static enum source_kind source_kind(const char *source)
{
    if (!strcmp(source, "default"))
        return FROM_DEFAULT;
    if (!strcmp(source, "environment"))
        return FROM_ENVIRONMENT;
    if (!strcmp(source, "command line") || !strcmp(source, "mount option"))
        return FROM_COMMAND;
    return FROM_FILE;
}

/* ---- setting one value ---- */

static const char *kind_word(enum config_kind k)
{
    return k == KIND_SIZE   ? "a size; write it like 512, 64K, 128M or 1G"
           : k == KIND_TIME ? "a time; write it with its unit, like 10ms, 3s, 10m or 24h"
                            : "a number; write it in digits";
}

const char *config_bounds(const struct config_row *r, char *out, size_t cap)
{
    char lo[32], hi[32];
    switch (r->kind) {
    case KIND_SIZE:
        snprintf(out, cap, "%s to %s", size_text(r->min, lo, sizeof(lo)),
                 size_text(r->max, hi, sizeof(hi)));
        break;
    case KIND_TIME:
        snprintf(out, cap, "%s to %s", duration_text(r->min, lo, sizeof(lo)),
                 duration_text(r->max, hi, sizeof(hi)));
        break;
    case KIND_NUMBER:
        snprintf(out, cap, "%llu to %llu", (unsigned long long)r->min, (unsigned long long)r->max);
        break;
    case KIND_BOOL:
        snprintf(out, cap, "yes or no");
        break;
    case KIND_PROFILE:
        snprintf(out, cap, "topics or broker");
        break;
    case KIND_DEVICE:
        snprintf(out, cap, "up to %d", CONFIG_DEVICES_MAX);
        break;
    case KIND_TEXT:
        snprintf(out, cap, "-");
    }
    return out;
}

static int set_scalar(struct config *c, const struct config_row *r, const char *text,
                      const char *thing, char *why, size_t cap)
{
    char shown[80], bounds[80];
    uint64_t v;
    int err = r->kind == KIND_TIME ? parse_duration(text, &v) : parse_size(text, &v);
    if (!err && r->kind == KIND_NUMBER && text[strspn(text, "0123456789")])
        err = -EINVAL;
    printable(text, shown, sizeof(shown));
    config_bounds(r, bounds, sizeof(bounds));
    if (err == -EINVAL) {
        snprintf(why, cap, "%s: \"%s\" is not %s (%s)", thing, shown, kind_word(r->kind), bounds);
        return -EINVAL;
    }
    if (err || v < r->min || v > r->max) {
        snprintf(why, cap, "%s: %s is out of bounds; choose from %s", thing, shown, bounds);
        return -ERANGE;
    }
    *(uint64_t *)field(c, r) = v;
    return 0;
}

static int set_bool(struct config *c, const struct config_row *r, const char *text,
                    const char *thing, char *why, size_t cap)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false",
                                                                                "off", "0"};
    char shown[80];
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
            *(bool *)field(c, r) = !strcasecmp(text, yes[i]);
            return 0;
        }
    }
    snprintf(why, cap, "%s: \"%s\" is neither yes nor no; write one of them", thing,
             printable(text, shown, sizeof(shown)));
    return -EINVAL;
}

static int set_profile(struct config *c, const char *text, const char *thing, char *why, size_t cap)
{
    char shown[80];
    if (!strcmp(text, "topics"))
        c->profile = PROFILE_TOPICS;
    else if (!strcmp(text, "broker"))
        c->profile = PROFILE_BROKER;
    else {
        snprintf(why, cap, "%s: \"%s\" is not a profile; write topics or broker", thing,
                 printable(text, shown, sizeof(shown)));
        return -EINVAL;
    }
    return 0;
}

static int set_text(struct config *c, const struct config_row *r, const char *text,
                    const char *thing, char *why, size_t cap)
{
    if (!*text || strlen(text) >= CONFIG_VALUE_BYTES) {
        snprintf(why, cap, "%s: the value is %s; give 1 to %d bytes", thing,
                 *text ? "too long" : "empty", CONFIG_VALUE_BYTES - 1);
        return -EINVAL;
    }
    char *copy = strdup(text);
    if (!copy) {
        snprintf(why, cap, "%s: no memory; free some", thing);
        return -ENOMEM;
    }
    char **at = field(c, r);
    free(*at);
    *at = copy;
    return 0;
}

static int set_device(struct config *c, const struct config_row *r, const char *text,
                      const char *source, const char *thing, char *why, size_t cap)
{
    char shown[256], old[CONFIG_SOURCE_BYTES];
    printable(text, shown, sizeof(shown));
    const char *eq = strrchr(text, '=');
    size_t len = eq ? (size_t)(eq - text) : strlen(text);
    uint64_t budget = 0;
    int err = eq ? parse_size(eq + 1, &budget) : 0;
    if (err == -EINVAL) {
        snprintf(why, cap,
                 "%s: \"%s\": what follows = is not a size; write DIR=SIZE, like "
                 "/mnt/ssd=100G (DIR=0 when the name itself contains =)",
                 thing, shown);
        return err;
    }
    if (err || (budget && budget < r->min) || budget > (uint64_t)INT64_MAX) {
        snprintf(why, cap, "%s: \"%s\": the size is out of bounds; give at least 1MiB", thing,
                 shown);
        return -ERANGE;
    }
    if (!len || len >= PATH_MAX) {
        snprintf(why, cap, "%s: no directory is named; write DIR or DIR=SIZE", thing);
        return -EINVAL;
    }
    config_source(c, r->name, old, sizeof(old));
    if (source_kind(old) != source_kind(source))
        devices_clear(c);
    if (c->devices == CONFIG_DEVICES_MAX) {
        snprintf(why, cap, "%s: more than %d devices; leave some out", thing, CONFIG_DEVICES_MAX);
        return -ERANGE;
    }
    char *path = strndup(text, len);
    if (!path) {
        snprintf(why, cap, "%s: no memory; free some", thing);
        return -ENOMEM;
    }
    c->device[c->devices++] = (struct config_device){path, budget};
    return 0;
}

int config_set(struct config *c, const char *name, const char *text, const char *source, char *why,
               size_t why_cap)
{
    char shown[80], thing[CONFIG_SOURCE_BYTES + 96], from[CONFIG_SOURCE_BYTES];
    enum source_kind kind = source_kind(source);
    printable(name, shown, sizeof(shown));
    if (kind == FROM_FILE)
        snprintf(thing, sizeof(thing), "%s: %s", printable(source, from, sizeof(from)), shown);
    else if (kind == FROM_ENVIRONMENT)
        snprintf(thing, sizeof(thing), "environment, %s", shown);
    else
        snprintf(thing, sizeof(thing), "setting %s", shown);

    const struct config_row *r = config_find(name);
    if (!r) {
        const char *near = config_nearest(name);
        if (near)
            snprintf(why, why_cap, "%s: there is no such setting; did you mean %s?", thing, near);
        else
            snprintf(why, why_cap, "%s: there is no such setting; \"sluicefs config\" lists all",
                     thing);
        return -ENOENT;
    }
    int err = -EINVAL;
    switch (r->kind) {
    case KIND_SIZE:
    case KIND_TIME:
    case KIND_NUMBER:
        err = set_scalar(c, r, text, thing, why, why_cap);
        break;
    case KIND_BOOL:
        err = set_bool(c, r, text, thing, why, why_cap);
        break;
    case KIND_PROFILE:
        err = set_profile(c, text, thing, why, why_cap);
        break;
    case KIND_TEXT:
        err = set_text(c, r, text, thing, why, why_cap);
        break;
    case KIND_DEVICE:
        err = set_device(c, r, text, source, thing, why, why_cap);
    }
    if (!err && (err = config_source_put(c, name, source)))
        snprintf(why, why_cap, "%s: no memory; free some", thing);
    return err;
}
