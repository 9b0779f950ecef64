/* parse.c: the text of a policy file becomes a set of rules; matching and merging them.
 *
 * As strict as the configuration file (fs/volume/config_file.c), since a rule that silently does nothing is
 * found out when the disk is full: every line is a comment, a section that was not there before, or a
 * known setting with a value within its bounds, once in its section.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/io.h"
#include "fs/policy/policy_int.h"

const char *const policy_key_names[POLICY_KEYS] = {
    [POLICY_TIERED] = "tiered",
    [POLICY_PROFILE] = "profile",
    [POLICY_SEGMENT_BYTES] = "segment_bytes",
    [POLICY_SEAL_AGE] = "seal_age",
    [POLICY_LOCAL_AGE] = "local_age",
    [POLICY_MIRROR] = "mirror",
    [POLICY_FLUSH_INTERVAL] = "flush_interval",
};

struct parser {
    struct policy_set *set;
    struct policy_section *at;
    bool broker;
    unsigned line;
    char *why;
    size_t cap;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct parser *p, int err, const char *fmt,
                                                        ...)
{
    va_list ap;
    int n = snprintf(p->why, p->cap, "%s:%u: ", p->set->shown, p->line);
    va_start(ap, fmt);
    if (n > 0 && (size_t)n < p->cap)
        vsnprintf(p->why + n, p->cap - (size_t)n, fmt, ap);
    va_end(ap);
    return err;
}

/* ---- values ---- */

static const struct config_row *row_of(enum policy_key k)
{
    return config_find(k == POLICY_MIRROR ? "mirror_below" : policy_key_names[k]);
}

static bool yes_no(const char *text, bool *ret)
{
    *ret = !strcasecmp(text, "yes") || !strcasecmp(text, "true") || !strcasecmp(text, "on");
    return *ret || !strcasecmp(text, "no") || !strcasecmp(text, "false") ||
           !strcasecmp(text, "off");
}

static int take_scalar(struct parser *p, enum policy_key k, const char *text, uint64_t *ret)
{
    char source[CONFIG_SOURCE_BYTES];
    struct config c;
    config_init(&c);
    snprintf(source, sizeof source, "%s:%u", p->set->shown, p->line);
    int err = config_set(&c, policy_key_names[k], text, source, p->why, p->cap);
    *ret = err ? 0 : *(const uint64_t *)((const char *)&c + row_of(k)->offset);
    config_done(&c);
    if (!err && k == POLICY_SEGMENT_BYTES && *ret % SEGMENT_BYTES_MIN)
        return refuse(p, -EINVAL, "segment_bytes: %s is not a multiple of 64KiB; round it", text);
    return err;
}

static int take_value(struct parser *p, enum policy_key k, const char *text, uint64_t *ret)
{
    char shown[80], bounds[80];
    bool yes;
    printable(text, shown, sizeof shown);
    switch (k) {
    case POLICY_TIERED:
        if (!yes_no(text, &yes))
            return refuse(p, -EINVAL, "tiered: \"%s\" is neither yes nor no; write one of them",
                          shown);
        *ret = yes;
        return 0;
    case POLICY_MIRROR:
        if (yes_no(text, &yes)) {
            *ret = yes ? UINT64_MAX : 0;
            return 0;
        }
        config_bounds(row_of(k), bounds, sizeof bounds);
        int err = parse_size(text, ret);
        if (err == -EINVAL)
            return refuse(p, err, "mirror: \"%s\" is neither yes, no nor a size; write one of them",
                          shown);
        if (err || *ret > row_of(k)->max)
            return refuse(p, -ERANGE, "mirror: %s is out of bounds; choose from %s, or yes", shown,
                          bounds);
        return 0;
    case POLICY_PROFILE:
        if (strcmp(text, "topics") != 0 && strcmp(text, "broker") != 0)
            return refuse(p, -EINVAL, "profile: \"%s\" is not a profile; write topics or broker",
                          shown);
        *ret = !strcmp(text, "broker") ? PROFILE_BROKER : PROFILE_TOPICS;
        if (*ret == PROFILE_BROKER && !p->broker)
            return refuse(p, -EINVAL,
                          "profile: files of a volume of profile topics cannot be rewritten; leave "
                          "it out, or make a volume with --profile broker");
        return 0;
    case POLICY_FLUSH_INTERVAL:
        *ret = 0;
        return !parse_duration(text, ret) && *ret == 0 ? 0 : take_scalar(p, k, text, ret);
    default:
        return take_scalar(p, k, text, ret);
    }
}

static int unknown_key(struct parser *p, const char *name)
{
    char shown[80];
    printable(name, shown, sizeof shown);
    if (config_find(name))
        return refuse(p, -EINVAL,
                      "%s: is of the whole mount and not of paths; give it to sluicefs mount with "
                      "--set or --config",
                      shown);
    return refuse(
        p, -EINVAL,
        "%s: there is no such setting of paths; these are tiered, profile, segment_bytes, "
        "seal_age, local_age, mirror, flush_interval",
        shown);
}

/* ---- lines ---- */

static int take_section(struct parser *p, char *s)
{
    struct policy_set *set = p->set;
    char shown[160];
    const char *why;
    size_t n = strlen(s);
    printable(s, shown, sizeof shown);
    if (s[n - 1] != ']')
        return refuse(p, -EINVAL, "section %s: is not closed; write [GLOB]", shown);
    s[n - 1] = '\0';
    char *glob = trimmed(s + 1);
    for (unsigned i = 0; i < set->n; i++)
        if (!strcmp(set->section[i].text, glob))
            return refuse(p, -EINVAL, "section %s: stands in line %u too; join them", shown,
                          set->section[i].line);
    if (set->n == POLICY_SECTIONS_MAX)
        return refuse(p, -E2BIG, "section %s: is one too many; write at most %d", shown,
                      POLICY_SECTIONS_MAX);
    struct policy_section *sec = &set->section[set->n];
    int err = glob_compile(glob, &sec->glob, &why);
    if (err)
        return refuse(p, err, "section %s: the glob %s", shown, why);
    sec->text = strdup(glob);
    if (!sec->text) {
        glob_done(&sec->glob);
        return refuse(p, -ENOMEM, "section %s: no memory; free some", shown);
    }
    sec->line = p->line;
    set->n++;
    p->at = sec;
    return 0;
}

static int take_setting(struct parser *p, char *s)
{
    char shown[80];
    printable(s, shown, sizeof shown);
    if (!p->at)
        return refuse(p, -EINVAL, "%s: stands before a section; write [GLOB] above it", shown);
    char *eq = strchr(s, '=');
    if (!eq)
        return refuse(p, -EINVAL, "%s: not a setting; write name = value", shown);
    *eq = '\0';
    const char *name = trimmed(s), *value = trimmed(eq + 1);
    unsigned k = 0;
    while (k < POLICY_KEYS && strcmp(policy_key_names[k], name) != 0)
        k++;
    if (k == POLICY_KEYS)
        return unknown_key(p, name);
    unsigned *first = &p->at->key_line[k];
    if (*first)
        return refuse(p, -EINVAL, "%s: already set in line %u; remove one", name, *first);
    int err = take_value(p, k, value, &p->at->value[k]);
    if (err)
        return err;
    *first = p->line;
    const struct policy_section *a = p->at;
    if (a->key_line[POLICY_TIERED] && !a->value[POLICY_TIERED] && a->key_line[POLICY_MIRROR] &&
        a->value[POLICY_MIRROR])
        return refuse(
            p, -EINVAL,
            "%s: the section says tiered = no and mirror, but what is mirrored goes to the "
            "bucket; remove one",
            name);
    return 0;
}

static void sum_up(struct policy_set *set)
{
    for (unsigned k = 0; k < POLICY_KEYS; k++)
        set->least[k] = UINT64_MAX;
    for (unsigned i = 0; i < set->n; i++) {
        const struct policy_section *s = &set->section[i];
        for (unsigned k = 0; k < POLICY_KEYS; k++) {
            if (!s->key_line[k])
                continue;
            if (k == POLICY_FLUSH_INTERVAL && s->value[k] == 0)
                set->says_of_writes |= POLICY_SYNC;
            else if (s->value[k] < set->least[k])
                set->least[k] = s->value[k];
        }
    }
    set->says_tiered_no = set->least[POLICY_TIERED] == 0;
    if (set->least[POLICY_PROFILE] == PROFILE_TOPICS)
        set->says_of_writes |= POLICY_APPEND_ONLY;
}

static int parse_lines(struct parser *p, const char *text, size_t len)
{
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* some editors put it before UTF-8 */
        text += 3;
        len -= 3;
    }
    for (size_t at = 0; at <= len;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : len - at;
        p->line++;
        if (memchr(text + at, '\0', n))
            return refuse(p, -EINVAL, "holds a zero byte; is it a text file?");
        AUTO_FREE char *line = dup_text(text + at, n);
        if (!line)
            return refuse(p, -ENOMEM, "no memory; free some");
        char *s = trimmed(line);
        int err = !*s || *s == '#' || *s == ';' ? 0
                  : *s == '['                   ? take_section(p, s)
                                                : take_setting(p, s);
        if (err)
            return err;
        at += n + 1;
    }
    return 0;
}

int policy_parse(const char *text, size_t len, const char *shown, bool broker,
                 struct policy_set **ret, char *why, size_t cap)
{
    *ret = NULL;
    struct policy_set *set = calloc(1, sizeof *set);
    char clean[CONFIG_VALUE_BYTES];
    if (!set || !(set->shown = strdup(printable(shown, clean, sizeof clean - 32)))) {
        free(set);
        snprintf(why, cap, "policy: no memory; free some");
        return -ENOMEM;
    }
    atomic_store(&set->refs, 1);
    struct parser p = {.set = set, .broker = broker, .why = why, .cap = cap};
    int err = parse_lines(&p, text, len);
    if (err) {
        policy_set_unref(set);
        return err;
    }
    sum_up(set);
    *ret = set;
    return 0;
}

int policy_read(const char *path, bool broker, struct policy_set **ret, char **ret_text, char *why,
                size_t cap)
{
    char shown[CONFIG_VALUE_BYTES - 32];
    AUTO_FREE char *text = NULL;
    size_t len = 0;
    *ret = NULL;
    int err = io_read_file(AT_FDCWD, path, POLICY_BYTES_MAX, &text, &len);
    printable(path, shown, sizeof shown);
    if (err == -EFBIG)
        snprintf(why, cap, "policy %s: larger than 64KiB; is it a file of rules?", shown);
    else if (err)
        snprintf(why, cap, "policy %s: cannot be read (%s); check the path and its permissions",
                 shown, strerror(-err));
    else
        err = policy_parse(text, len, path, broker, ret, why, cap);
    if (!err && ret_text) {
        *ret_text = text;
        text = NULL;
    }
    return err;
}

void policy_set_unref(struct policy_set *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    for (unsigned i = 0; i < s->n; i++) {
        glob_done(&s->section[i].glob);
        free(s->section[i].text);
    }
    free(s->shown);
    free(s);
}

/* ---- using ---- */

uint64_t policy_match(const struct policy_set *s, const char *path)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < s->n; i++)
        if (glob_matches(&s->section[i].glob, path))
            mask |= 1ull << i;
    return mask;
}

void policy_merge(const struct policy_set *s, uint64_t mask, const struct config *c,
                  struct rule *ret)
{
    *ret = (struct rule){.value = {
                             [POLICY_TIERED] = true,
                             [POLICY_PROFILE] = c->profile,
                             [POLICY_SEGMENT_BYTES] = c->segment_bytes,
                             [POLICY_SEAL_AGE] = c->seal_age,
                             [POLICY_LOCAL_AGE] = c->local_age,
                             [POLICY_MIRROR] = c->profile == PROFILE_BROKER ? c->mirror_below : 0,
                             [POLICY_FLUSH_INTERVAL] = c->flush_interval,
                         }};
    for (unsigned i = 0; s && i < s->n; i++) {
        if (!(mask >> i & 1))
            continue;
        for (unsigned k = 0; k < POLICY_KEYS; k++) {
            if (s->section[i].key_line[k]) {
                ret->value[k] = s->section[i].value[k];
                ret->from[k] = (uint8_t)(i + 1);
            }
        }
    }
}
