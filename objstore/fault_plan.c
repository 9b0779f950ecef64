/* fault_plan.c: parses a fault plan, line by line; see fault.h for the text. Stateless. */
#include "objstore/fault_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/cleanup.h"

static const struct {
    const char *name;
    unsigned ops;
} op_names[] = {
    {"put", 1u << OBJ_PUT},
    {"get", 1u << OBJ_GET},
    {"head", 1u << OBJ_HEAD},
    {"list", 1u << OBJ_LIST},
    {"delete", 1u << OBJ_DELETE},
    {"batch", 1u << OBJ_DELETE_BATCH},
    {"mp-create", 1u << OBJ_MP_CREATE},
    {"mp-part", 1u << OBJ_MP_PART},
    {"mp-complete", 1u << OBJ_MP_COMPLETE},
    {"mp-abort", 1u << OBJ_MP_ABORT},
    {"mp-list", 1u << OBJ_MP_LIST},
    {"multipart", 1u << OBJ_MP_CREATE | 1u << OBJ_MP_PART | 1u << OBJ_MP_COMPLETE |
                      1u << OBJ_MP_ABORT | 1u << OBJ_MP_LIST},
    {"any", (1u << OBJ_OP_COUNT) - 1},
};

static const struct {
    const char *name;
    int err, http;
    bool retryable, unknown;
    const char *code;
} errors[] = {
    {"EIO", -EIO, 0, true, false, "EIO"},
    {"ENOSPC", -ENOSPC, 0, false, false, "ENOSPC"},
    {"EACCES", -EACCES, 403, false, false, "AccessDenied"},
    {"ENOENT", -ENOENT, 404, false, false, "NoSuchKey"},
    {"EEXIST", -EEXIST, 412, false, false, "PreconditionFailed"},
    {"429", -EIO, 429, true, false, "TooManyRequests"},
    {"500", -EIO, 500, true, false, "InternalError"},
    {"503", -EIO, 503, true, false, "SlowDown"},
    {"403", -EACCES, 403, false, false, "AccessDenied"},
    {"404", -ENOENT, 404, false, false, "NoSuchKey"},
    {"nobucket", -ENODEV, 404, false, false, "NoSuchBucket"},
    {"timeout", -ETIMEDOUT, 0, true, true, "ETIMEDOUT"},
    {"reset", -EIO, 0, true, false, "ECONNRESET"},
};

static void set_error(struct fault_rule *ru, unsigned i)
{
    ru->err = errors[i].err;
    ru->http = errors[i].http;
    ru->retryable = errors[i].retryable;
    ru->unknown = errors[i].unknown;
    snprintf(ru->code, sizeof ru->code, "%s", errors[i].code);
}

static bool number(const char *s, uint64_t *ret)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    *ret = v;
    return *s >= '0' && *s <= '9' && !*end && errno == 0;
}

/* One "name=value" word of a rule. */
static bool rule_word(struct fault_rule *ru, const char *word, bool *acted)
{
    const char *eq = strchr(word, '='), *v = eq ? eq + 1 : "";
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    uint64_t n;
#define IS(text) (len == sizeof(text) - 1 && !memcmp(word, text, len))
    if (IS("op")) {
        for (unsigned i = 0; i < ARRAY_LEN(op_names); i++)
            if (!strcmp(v, op_names[i].name)) {
                ru->ops = op_names[i].ops;
                return true;
            }
        return false;
    }
    if (IS("key"))
        return snprintf(ru->key, sizeof ru->key, "%s", v) < (int)sizeof ru->key;
    if (IS("nth")) {
        bool ok = number(v, &n) && n > 0 && n < UINT32_MAX;
        ru->nth = (unsigned)n;
        return ok;
    }
    if (IS("count")) {
        bool all = !strcmp(v, "all"), ok = all || (number(v, &n) && n > 0 && n < UINT32_MAX);
        ru->count = all || !ok ? 0 : (unsigned)n;
        return ok;
    }
    if (IS("silent"))
        return ru->silent = true;
    if (*acted)
        return false; /* one action a rule */
    *acted = true;
    if (IS("err")) {
        for (unsigned i = 0; i < ARRAY_LEN(errors); i++)
            if (!strcmp(v, errors[i].name)) {
                ru->action = FAULT_FAIL;
                set_error(ru, i);
                return true;
            }
        return false;
    }
    if (IS("lost-reply") || IS("stall") || IS("xml") || IS("etag")) {
        ru->action = IS("stall")  ? FAULT_STALL
                     : IS("xml")  ? FAULT_XML
                     : IS("etag") ? FAULT_ETAG
                                  : FAULT_LOST_REPLY;
        return !eq;
    }
    if (IS("truncate") || IS("corrupt") || IS("delay")) {
        ru->action = IS("truncate") ? FAULT_TRUNCATE : IS("corrupt") ? FAULT_CORRUPT : FAULT_DELAY;
        return number(v, &ru->n);
    }
#undef IS
    return false;
}

static int plan_line(struct fault_plan *p, char *line)
{
    char *save, *word;
    line[strcspn(line, "#")] = 0;
    word = strtok_r(line, " \t\r", &save);
    if (!word)
        return 0;
    if (!strcmp(word, "trigger")) {
        char *path = strtok_r(NULL, " \t\r", &save);
        if (!path || strlen(path) >= sizeof p->trigger)
            return -EINVAL;
        memcpy(p->trigger, path, strlen(path) + 1);
        return 0;
    }
    if (strcmp(word, "fail") != 0 || p->n == FAULT_RULES_MAX)
        return -EINVAL;
    struct fault_rule *ru = &p->rule[p->n++];
    *ru = (struct fault_rule){.ops = (1u << OBJ_OP_COUNT) - 1, .key = "*", .nth = 1, .count = 1};
    bool acted = false;
    while ((word = strtok_r(NULL, " \t\r", &save)))
        if (!rule_word(ru, word, &acted))
            return -EINVAL;
    return acted ? 0 : -EINVAL;
}

int fault_plan_parse(const char *text, struct fault_plan *p, char *why, size_t cap)
{
    memset(p, 0, sizeof *p);
    for (unsigned no = 1; *text; no++) {
        char line[2048];
        size_t len = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), text);
        if (len >= sizeof line || plan_line(p, line) < 0) {
            snprintf(why, cap, "fault plan, line %u: %.*s", no, (int)(len < 200 ? len : 200), text);
            return -EINVAL;
        }
        text += len + (text[len] == '\n');
    }
    return 0;
}
