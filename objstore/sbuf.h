/* sbuf.h: a growing byte string for building requests and gathering bounded answers. Header only.
 *
 * Always NUL-terminated once something was added. A failed allocation, or growth beyond `max` when
 * that is not 0, sets `bad` and makes later calls no-ops: build everything, then test once. Start
 * from all zeroes; the owner ends with sbuf_free. Not for secrets: freed memory is not cleared.
 */
#ifndef SLUICE_OBJSTORE_SBUF_H
#define SLUICE_OBJSTORE_SBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sbuf {
    char *p;
    size_t len, cap;
    size_t max; /* most bytes it may hold; 0: no limit */
    bool bad;
};

static inline bool sbuf_room(struct sbuf *b, size_t n)
{
    if (b->bad || (b->max && (n > b->max || b->len > b->max - n))) {
        b->bad = true;
        return false;
    }
    if (b->cap - b->len > n) /* one more for the NUL */
        return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len <= n)
        cap *= 2;
    char *p = realloc(b->p, cap);
    if (!p) {
        b->bad = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

static inline void sbuf_add(struct sbuf *b, const void *src, size_t n)
{
    if (!sbuf_room(b, n))
        return;
    if (n)
        memcpy(b->p + b->len, src, n);
    b->len += n;
    b->p[b->len] = '\0';
}

static inline void sbuf_str(struct sbuf *b, const char *s)
{
    sbuf_add(b, s, strlen(s));
}

static inline void sbuf_char(struct sbuf *b, char c)
{
    sbuf_add(b, &c, 1);
}

__attribute__((format(printf, 2, 3))) static inline void sbuf_fmt(struct sbuf *b, const char *fmt,
                                                                  ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !sbuf_room(b, (size_t)n)) {
        b->bad = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

static inline const char *sbuf_cstr(const struct sbuf *b)
{
    return b->p ? b->p : "";
}

static inline void sbuf_clear(struct sbuf *b)
{
    b->len = 0;
    b->bad = false;
    if (b->p)
        b->p[0] = '\0';
}

static inline void sbuf_free(struct sbuf *b)
{
    free(b->p);
    *b = (struct sbuf){.max = b->max};
}

#endif
