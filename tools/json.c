/* json.c: see json.h. One recursive skip over a value, with a bounded depth, carries everything. */
#include "tools/json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32 };

static const char *blank(const char *p)
{
    while (p && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

static const char *skip_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : NULL;
}

/* Behind the value at p, or NULL. */
static const char *skip(const char *p, int depth)
{
    p = blank(p);
    if (!p || depth > DEPTH_MAX)
        return NULL;
    if (*p == '"')
        return skip_string(p);
    if (*p == '{' || *p == '[') {
        char open = *p, close = open == '{' ? '}' : ']';
        p = blank(p + 1);
        if (*p == close)
            return p + 1;
        for (;;) {
            if (open == '{') {
                p = *p == '"' ? blank(skip_string(p)) : NULL;
                if (!p || *p != ':')
                    return NULL;
                p++;
            }
            p = blank(skip(p, depth + 1));
            if (!p || (*p != ',' && *p != close))
                return NULL;
            if (*p == close)
                return p + 1;
            p = blank(p + 1);
        }
    }
    size_t n = strcspn(p, ",]} \n\t\r");
    return n ? p + n : NULL;
}

const char *json_get(const char *object, const char *name)
{
    size_t n = strlen(name);
    const char *p = blank(object);
    if (!p || *p != '{')
        return NULL;
    for (p = blank(p + 1); p && *p == '"';) {
        const char *key = p + 1;
        p = blank(skip_string(p));
        if (!p || *p != ':')
            return NULL;
        p = blank(p + 1);
        if (!strncmp(key, name, n) && key[n] == '"')
            return p;
        p = blank(skip(p, 0));
        if (!p || *p != ',')
            return NULL;
        p = blank(p + 1);
    }
    return NULL;
}

const char *json_first(const char *array)
{
    const char *p = blank(array);
    if (!p || *p != '[')
        return NULL;
    p = blank(p + 1);
    return *p && *p != ']' ? p : NULL;
}

const char *json_next(const char *element)
{
    const char *p = blank(skip(element, 0));
    return p && *p == ',' ? blank(p + 1) : NULL;
}

bool json_null(const char *v)
{
    return !v || !strncmp(v, "null", 4);
}

bool json_true(const char *v)
{
    return v && !strncmp(v, "true", 4);
}

uint64_t json_u64(const char *v)
{
    return v && isdigit((unsigned char)*v) ? strtoull(v, NULL, 10) : 0;
}

double json_number(const char *v, double otherwise)
{
    return v && (isdigit((unsigned char)*v) || *v == '-') ? strtod(v, NULL) : otherwise;
}

static unsigned hex4(const char *p)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)p[i]))
            return 0xfffd;
        v = v << 4 |
            (unsigned)(isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 0x20) - 'a' + 10);
    }
    return v;
}

/* At most three bytes, and the escape had six. */
static char *put_code(char *out, unsigned v)
{
    if (v >= 0xdc80 && v <= 0xdcff) {
        *out++ = (char)(v & 0xff);
    } else if (v < 0x80) {
        *out++ = (char)v;
    } else if (v < 0x800) {
        *out++ = (char)(0xc0 | v >> 6);
        *out++ = (char)(0x80 | (v & 0x3f));
    } else {
        *out++ = (char)(0xe0 | v >> 12);
        *out++ = (char)(0x80 | (v >> 6 & 0x3f));
        *out++ = (char)(0x80 | (v & 0x3f));
    }
    return out;
}

char *json_text(const char *v)
{
    if (!v || *v != '"')
        return strdup("");
    const char *end = skip_string(v);
    if (!end)
        return strdup("");
    char *text = malloc((size_t)(end - v)), *out = text;
    if (!text)
        return NULL;
    for (const char *p = v + 1; p < end - 1; p++) {
        if (*p != '\\') {
            *out++ = *p;
            continue;
        }
        static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
        const char *which = strchr(from, *++p);
        if (*p == 'u') {
            unsigned code = hex4(p + 1);
            if (code != 0xfffd || !strncmp(p + 1, "fffd", 4))
                p += 4;
            out = put_code(out, code);
        } else {
            *out++ = which && *p ? to[which - from] : *p;
        }
    }
    *out = '\0';
    return text;
}
