/* human.c: see human.h. */
#include "tools/human.h"

#include <stdio.h>

const char *human_bytes(uint64_t n, char *out, size_t cap)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    unsigned k = 0;
    /* 1023.95 would be rounded to 1024.0. */
    for (; v >= 1023.95 && k < 6; k++)
        v /= 1024;
    snprintf(out, cap, k && v < 99.95 ? "%.1f %s" : "%.0f %s", v, unit[k]);
    return out;
}

const char *human_seconds(double s, char *out, size_t cap)
{
    uint64_t n = s > 0 ? (uint64_t)s : 0;
    if (s < 10)
        snprintf(out, cap, "%.1f s", s > 0 ? s : 0);
    else if (n < 120)
        snprintf(out, cap, "%u s", (unsigned)n);
    else if (n < 7200)
        snprintf(out, cap, "%u min", (unsigned)(n / 60));
    else if (n < 48 * 3600)
        snprintf(out, cap, "%u h %u min", (unsigned)(n / 3600), (unsigned)(n / 60 % 60));
    else
        snprintf(out, cap, "%llu d %u h", (unsigned long long)(n / 86400),
                 (unsigned)(n / 3600 % 24));
    return out;
}
