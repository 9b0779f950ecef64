/* glob.c: see glob.h. A pattern is cut at its slashes; fnmatch(3) compares one component with one. What is
 * left to do here is "**", by going back to the last one, as it is done for * in strings: no recursion. */
#include "fs/policy/glob.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static bool any_dirs(const char *part)
{
    return !strcmp(part, "**");
}

/* The end of a bracket expression that begins at p, or NULL: not closed. */
static const char *bracket_end(const char *p)
{
    p++;
    if (*p == '!' || *p == '^')
        p++;
    if (*p == ']')
        p++;
    for (; *p && *p != ']'; p++) {
        if (*p == '\\' && p[1]) {
            p++;
        } else if (*p == '[' && p[1] && strchr(":.=", p[1])) {
            char close[3] = {p[1], ']', 0};
            const char *end = strstr(p + 2, close);
            if (!end)
                return NULL;
            p = end + 1;
        }
    }
    return *p ? p : NULL;
}

/* What is wrong with a component, or NULL. */
static const char *part_wrong(const char *part)
{
    if (!*part)
        return "has an empty component; write one slash, and none at the end (DIR/** is all below "
               "DIR)";
    if (!strcmp(part, ".") || !strcmp(part, ".."))
        return "has a component . or ..; leave it out";
    if (any_dirs(part))
        return NULL;
    for (const char *p = part; *p; p++) {
        if (*p == '\\') {
            if (!*++p)
                return "ends in a backslash; write \\\\ for one";
        } else if (*p == '[') {
            p = bracket_end(p);
            if (!p)
                return "has a [ that is not closed; write \\[ for one that means itself";
        } else if (*p == '*' && p[1] == '*') {
            return "has ** beside other characters; between slashes write ** alone, or * instead";
        }
    }
    return NULL;
}

int glob_compile(const char *text, struct glob *ret, const char **why)
{
    *ret = (struct glob){0};
    *why = "out of memory; free some";
    size_t len = strlen(text);
    if (len == 0 || len > GLOB_BYTES_MAX) {
        *why = len ? "is longer than 1024 bytes; shorten it" : "is empty; ** is every file";
        return -EINVAL;
    }
    ret->base = !strchr(text, '/') && !any_dirs(text);
    if (*text == '/')
        text++;
    unsigned n = 1;
    for (const char *p = text; *p; p++)
        n += *p == '/';
    if (n > GLOB_PARTS_MAX) {
        *why = "has more than 64 components; use **";
        return -EINVAL;
    }
    ret->part = malloc(n * sizeof *ret->part + len + 1);
    if (!ret->part)
        return -ENOMEM;
    char *copy = memcpy(ret->part + n, text, strlen(text) + 1);
    for (char *p; (p = strsep(&copy, "/"));) {
        ret->part[ret->n++] = p;
        const char *wrong = part_wrong(p);
        if (wrong) {
            *why = wrong;
            glob_done(ret);
            return -EINVAL;
        }
    }
    return 0;
}

void glob_done(struct glob *g)
{
    free(g->part);
    *g = (struct glob){0};
}

/* One component: `len` bytes at `path`. */
static bool part_matches(const char *part, const char *path, size_t len)
{
    char name[256]; /* no longer one can be made */
    if (len >= sizeof name)
        return false;
    memcpy(name, path, len);
    name[len] = 0;
    return fnmatch(part, name, 0) == 0;
}

/* The component behind the one at `path`, or NULL. */
static const char *next_part(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash ? slash + 1 : NULL;
}

bool glob_matches(const struct glob *g, const char *path)
{
    if (g->base) {
        const char *slash = strrchr(path, '/');
        return fnmatch(g->part[0], slash ? slash + 1 : path, 0) == 0;
    }
    unsigned at = 0, again = 0;
    const char *p = path, *again_from = NULL; /* the last ** so far takes everything before this */
    while (p) {
        if (at < g->n && any_dirs(g->part[at])) {
            if (at + 1 == g->n)
                return true; /* something is left to be below */
            again = ++at;
            again_from = p;
        } else if (at < g->n && part_matches(g->part[at], p, strcspn(p, "/"))) {
            at++;
            p = next_part(p);
        } else if (again_from && (again_from = next_part(again_from))) {
            at = again;
            p = again_from;
        } else {
            return false;
        }
    }
    return at == g->n;
}
