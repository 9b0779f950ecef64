/* units.c: sizes and durations as people write them, both ways. Pure functions. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "fs/base/bytes.h"
#include "fs/volume/config_int.h"

struct unit {
    const char *name;
    uint64_t factor;
};

/* Everything is binary: a disk sold as "1 TB" has its budget said in the unit that df prints. */
static const struct unit size_units[] = {
    {"", 1},      {"B", 1},   {"K", KiB},  {"KB", KiB},  {"KiB", KiB}, {"M", MiB},  {"MB", MiB},
    {"MiB", MiB}, {"G", GiB}, {"GB", GiB}, {"GiB", GiB}, {"T", TiB},   {"TB", TiB}, {"TiB", TiB},
};

static const struct unit time_units[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000},
};

static int parse_unit(const char *text, const struct unit *units, size_t n, uint64_t *ret)
{
    uint64_t v = 0, factor = 0;
    const char *p = text;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    bool over = false;
    for (; *p >= '0' && *p <= '9'; p++)
        over = over || mul_u64(v, 10, &v) || add_u64(v, (uint64_t)(*p - '0'), &v);
    if (*p == ' ')
        p++;
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(p, units[i].name))
            factor = units[i].factor;
    /* Zero needs no unit. */
    if (!factor && !*p && !v && !over)
        factor = 1;
    if (!factor)
        return -EINVAL;
    if (over || mul_u64(v, factor, &v))
        return -ERANGE;
    *ret = v;
    return 0;
}

int parse_size(const char *text, uint64_t *ret)
{
    return parse_unit(text, size_units, sizeof(size_units) / sizeof(size_units[0]), ret);
}

int parse_duration(const char *text, uint64_t *ret_ms)
{
    return parse_unit(text, time_units, sizeof(time_units) / sizeof(time_units[0]), ret_ms);
}

const char *size_text(uint64_t v, char *out, size_t cap)
{
    static const struct unit u[] = {{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}};
    for (size_t i = 0; i < sizeof(u) / sizeof(u[0]); i++) {
        if (v && v % u[i].factor == 0) {
            snprintf(out, cap, "%llu%s", (unsigned long long)(v / u[i].factor), u[i].name);
            return out;
        }
    }
    snprintf(out, cap, "%llu", (unsigned long long)v);
    return out;
}

const char *duration_text(uint64_t ms, char *out, size_t cap)
{
    static const struct unit u[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}};
    for (size_t i = 0; i < sizeof(u) / sizeof(u[0]); i++) {
        /* "24h" reads better than "1d", "36h" needs no other form. */
        if (ms && ms % u[i].factor == 0 && (i || ms >= 2 * u[i].factor)) {
            snprintf(out, cap, "%llu%s", (unsigned long long)(ms / u[i].factor), u[i].name);
            return out;
        }
    }
    snprintf(out, cap, ms ? "%llums" : "%llu", (unsigned long long)ms);
    return out;
}

char *trimmed(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        s[--n] = '\0';
    return s;
}

const char *printable(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = text; *p; p++) {
        unsigned char ch = (unsigned char)*p;
        if (n + 4 >= cap) {
            n += (size_t)snprintf(out + n, cap - n, "...");
            break;
        }
        out[n++] = ch < 0x20 || ch == 0x7f ? '?' : (char)ch;
    }
    out[n < cap ? n : cap - 1] = '\0';
    return out;
}
