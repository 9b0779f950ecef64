/* json.c: see json.h. */
#include "fs/volume/json.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Length of the UTF-8 sequence at p, 0 when there is no valid one (overlong forms, surrogates and
 * numbers above U+10FFFF are not). */
static size_t utf8_at(const uint8_t *p, size_t left)
{
    uint32_t v, least;
    size_t n;
    if (p[0] < 0x80)
        return 1;
    if ((p[0] & 0xe0) == 0xc0)
        n = 2, v = p[0] & 0x1f, least = 0x80;
    else if ((p[0] & 0xf0) == 0xe0)
        n = 3, v = p[0] & 0x0f, least = 0x800;
    else if ((p[0] & 0xf8) == 0xf0)
        n = 4, v = p[0] & 0x07, least = 0x10000;
    else
        return 0;
    if (n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (p[i] & 0x3f);
    }
    return v < least || v > 0x10ffff || (v >= 0xd800 && v < 0xe000) ? 0 : n;
}

void json_bytes(FILE *f, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    (void)fputc('"', f);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_at(p + i, len - i);
        if (!n) {
            fprintf(f, "\\udc%02x", p[i]);
            n = 1;
        } else if (p[i] == '"' || p[i] == '\\') {
            fprintf(f, "\\%c", p[i]);
        } else if (p[i] < 0x20 || p[i] == 0x7f) {
            fprintf(f, "\\u%04x", p[i]);
        } else {
            (void)fwrite(p + i, 1, n, f);
        }
        i += n;
    }
    (void)fputc('"', f);
}

void json_string(FILE *f, const char *s)
{
    if (s)
        json_bytes(f, s, strlen(s));
    else
        (void)fputs("null", f);
}

void json_double(FILE *f, double v)
{
    if (isfinite(v))
        fprintf(f, "%.3f", v);
    else
        (void)fputs("null", f);
}
