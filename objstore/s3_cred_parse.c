/* s3_cred_parse.c: the two small formats that credentials come in: INI profiles and flat JSON. Pure
 * functions over text; they keep nothing, and what they copy out is the caller's to clear. */
#include <string.h>
#include "objstore/s3_cred.h"

static bool space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Narrows [*s, *end) to what is between white space. */
static void trim(const char **s, const char **end)
{
    while (*s < *end && space(**s))
        ++*s;
    while (*end > *s && space((*end)[-1]))
        --*end;
}

static bool same(const char *s, const char *end, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(end - s) == n && memcmp(s, word, n) == 0;
}

static bool copy_out(const char *s, const char *end, char *out, size_t cap)
{
    size_t n = (size_t)(end - s);

    if (n == 0 || n >= cap)
        return false;
    memcpy(out, s, n);
    out[n] = '\0';
    return true;
}

bool s3_ini_get(const char *text, const char *section, const char *name, char *out, size_t cap)
{
    bool inside = false;

    while (*text) {
        const char *line = text;
        const char *end = text + strcspn(text, "\n");
        bool nested = space(*line);

        text = *end ? end + 1 : end;
        trim(&line, &end);
        if (line == end || *line == '#' || *line == ';' || nested)
            continue;
        if (*line == '[') {
            const char *close = memchr(line, ']', (size_t)(end - line));
            const char *from = line + 1;
            if (!close)
                return false;
            trim(&from, &close);
            inside = same(from, close, section);
            continue;
        }
        const char *eq = memchr(line, '=', (size_t)(end - line));
        if (!inside || !eq)
            continue;
        const char *name_end = eq;
        const char *value = eq + 1;
        trim(&line, &name_end);
        trim(&value, &end);
        if (same(line, name_end, name))
            return copy_out(value, end, out, cap);
    }
    return false;
}

static const char *json_space(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')
        p++;
    return p;
}

static int hex4(const char *p)
{
    int v = 0;

    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* At the opening quote. Copies the text (ASCII escapes only: nothing we read has others) and returns
 * what stands behind the closing quote, or NULL. `out` may be NULL. */
static const char *json_text(const char *p, char *out, size_t cap, bool *fits)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    size_t n = 0;

    *fits = true;
    for (p++; *p != '"'; p++) {
        char c = *p;
        if ((unsigned char)c < ' ')
            return NULL;
        if (c == '\\') {
            c = *++p;
            const char *hit = c ? strchr(from, c) : NULL;
            if (hit) {
                c = to[hit - from];
            } else if (c == 'u') {
                int v = hex4(p + 1);
                if (v < 0)
                    return NULL;
                if (v == 0 || v > 127)
                    *fits = false;
                c = (char)v;
                p += 4;
            } else {
                return NULL;
            }
        }
        if (out && n + 1 < cap)
            out[n] = c;
        else if (out)
            *fits = false;
        n++;
    }
    if (out)
        out[n < cap ? n : cap - 1] = '\0';
    return p + 1;
}

bool s3_json_string(const char *text, const char *name, char *out, size_t cap)
{
    const char *p = json_space(text);

    if (*p++ != '{')
        return false;
    for (;;) {
        char member[64];
        bool fits;
        bool value_fits = false;

        p = json_space(p);
        if (*p != '"' || !(p = json_text(p, member, sizeof(member), &fits)))
            return false;
        p = json_space(p);
        if (*p++ != ':')
            return false;
        p = json_space(p);
        bool wanted = fits && strcmp(member, name) == 0;
        if (*p == '"') {
            p = json_text(p, wanted ? out : NULL, cap, &value_fits);
            if (!p)
                return false;
            if (wanted)
                return value_fits;
        } else {
            if (wanted || *p == '{' || *p == '[')
                return false;
            p += strcspn(p, ",}");
        }
        p = json_space(p);
        if (*p++ != ',')
            return false;
    }
}
