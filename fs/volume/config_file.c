/* config_file.c: settings from an INI file and from the environment.
 *
 * The file is strict, since a setting that is silently ignored is found out in production: only the
 * section [volume], only known names, each once (but device). All errors name FILE:LINE. Bounds: 1 MiB
 * a file. A value ends at the end of its line; blanks around it go; there are no quotes, escapes or
 * comments behind a value, so a path may hold any other byte.
 */
#include "fs/volume/config_int.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/io.h"

enum { FILE_BYTES_MAX = 1024 * 1024, ROWS_MAX = 64 };

extern char **environ;

struct ini {
    struct config *c;
    const char *shown; /* the file's name in messages */
    unsigned line;
    bool in_volume;
    unsigned seen[ROWS_MAX]; /* line of the first mention; by place in the table */
    char *why;
    size_t why_cap;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct ini *p, int err, const char *fmt,
                                                        ...)
{
    va_list ap;
    int n = snprintf(p->why, p->why_cap, "%s:%u: ", p->shown, p->line);
    va_start(ap, fmt);
    if (n > 0 && (size_t)n < p->why_cap)
        vsnprintf(p->why + n, p->why_cap - (size_t)n, fmt, ap);
    va_end(ap);
    return err;
}

static int read_line(struct ini *p, char *line)
{
    char shown[80], source[CONFIG_SOURCE_BYTES];
    char *s = trimmed(line);
    printable(s, shown, sizeof(shown));
    if (!*s || *s == '#' || *s == ';')
        return 0;
    if (*s == '[') {
        if (strcmp(s, "[volume]"))
            return refuse(p, -EINVAL, "section %s: not known; only [volume] exists", shown);
        p->in_volume = true;
        return 0;
    }
    if (!p->in_volume)
        return refuse(p, -EINVAL, "%s: stands before a section; write [volume] above it", shown);
    char *eq = strchr(s, '=');
    if (!eq)
        return refuse(p, -EINVAL, "%s: not a setting; write name = value", shown);
    *eq = '\0';
    char *name = trimmed(s), *value = trimmed(eq + 1);
    const struct config_row *r = config_find(name);
    if (r && r->kind != KIND_DEVICE) {
        unsigned *first = &p->seen[r - config_rows];
        if (*first)
            return refuse(p, -EINVAL, "setting %s: already set in line %u; remove one", name,
                          *first);
        *first = p->line;
    }
    snprintf(source, sizeof(source), "%s:%u", p->shown, p->line);
    return config_set(p->c, name, value, source, p->why, p->why_cap);
}

int config_load_file(struct config *c, const char *path, char *why, size_t why_cap)
{
    char shown[CONFIG_VALUE_BYTES - 32];
    AUTO_FREE char *text = NULL;
    size_t len = 0;
    printable(path, shown, sizeof(shown));
    int err = io_read_file(AT_FDCWD, path, FILE_BYTES_MAX, &text, &len);
    if (err) {
        if (err == -EFBIG)
            snprintf(why, why_cap, "%s: larger than 1MiB; is it a configuration file?", shown);
        else
            snprintf(why, why_cap, "%s: cannot be read (%s); check the path and its permissions",
                     shown, strerror(-err));
        return err;
    }
    struct ini p = {.c = c, .shown = shown, .why = why, .why_cap = why_cap};
    if (config_rows_n > ROWS_MAX)
        abort();
    char *s = text;
    while (s) {
        p.line++;
        char *end = memchr(s, '\n', len - (size_t)(s - text));
        size_t n = end ? (size_t)(end - s) : len - (size_t)(s - text);
        if (memchr(s, '\0', n))
            return refuse(&p, -EINVAL, "holds a zero byte; is it a text file?");
        s[n] = '\0';
        err = read_line(&p, s);
        if (err)
            return err;
        s = end ? end + 1 : NULL;
    }
    return 0;
}

int config_load_env(struct config *c, char *why, size_t why_cap)
{
    static const char prefix[] = "SLUICEFS_";
    for (char **e = environ; e && *e; e++) {
        if (strncmp(*e, prefix, strlen(prefix)))
            continue;
        const char *name = *e + strlen(prefix), *eq = strchr(name, '=');
        char low[64];
        if (!eq || (size_t)(eq - name) >= sizeof(low)) {
            snprintf(why, why_cap, "environment, %.80s: there is no such setting; unset it", *e);
            return -ENOENT;
        }
        size_t n = (size_t)(eq - name);
        for (size_t i = 0; i < n; i++)
            low[i] = (char)tolower((unsigned char)name[i]);
        low[n] = '\0';
        int err = config_set(c, low, eq + 1, "environment", why, why_cap);
        if (err)
            return err;
    }
    return 0;
}
