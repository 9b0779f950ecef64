/* benchlib.h: what the load tools share: a clock, sizes on the command line, percentiles, CPU time.
 *
 * Header only, no state; every function may be called from any thread.
 */
#ifndef SLUICE_TESTS_BENCHLIB_H
#define SLUICE_TESTS_BENCHLIB_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static inline double bench_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static inline void bench_sleep(double s)
{
    struct timespec ts = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};

    if (s > 0) {
        nanosleep(&ts, NULL);
    }
}

/* User and system time of this process so far, in seconds. */
static inline double bench_cpu(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* A number with an optional K, M or G (powers of 1024). */
static inline bool bench_size(const char *text, uint64_t *out)
{
    const char *const units = "KMG";
    char *end;
    uint64_t v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || errno != 0 || text[0] == '-') {
        return false;
    }
    for (int i = 0; units[i]; i++) {
        if (*end == units[i]) {
            v <<= 10 * (i + 1);
            end++;
            break;
        }
    }
    *out = v;
    return *end == '\0';
}

static inline int bench_compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static inline void bench_sort(float *v, size_t n)
{
    qsort(v, n, sizeof(*v), bench_compare);
}

/* The q-quantile (0..1) of sorted values; 0 when there are none. */
static inline double bench_quantile(const float *sorted, size_t n, double q)
{
    size_t i = (size_t)(q * (double)n);

    if (n == 0) {
        return 0;
    }
    return (double)sorted[i < n ? i : n - 1];
}

#endif
