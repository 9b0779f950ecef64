/* stats.h: counters, gauges and latency histograms, printed as Prometheus text.
 *
 * Metrics are static objects that register themselves once by name; labels are part of the object
 * (`store_requests_total{op="put",outcome="ok"}` is one counter). Updating is a relaxed atomic add:
 * any thread, any lock held. Gauges that are computed on demand register a function.
 */
#ifndef SLUICE_BASE_STATS_H
#define SLUICE_BASE_STATS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

enum { STAT_BUCKETS = 24 }; /* histogram: 2^i microseconds, i = 0..22, then +Inf */

struct counter {
    _Atomic uint64_t v;
};

struct histogram {
    _Atomic uint64_t bucket[STAT_BUCKETS];
    _Atomic uint64_t sum_ns;
};

struct stats;

/* A registry belongs to one daemon (tests make their own). 0 or -ENOMEM. */
int stats_open(struct stats **ret);
void stats_close(struct stats *s);

/* Returns the metric `sluicefs_NAME{LABELS}`, made on first use; the same name and labels return the
 * same object. `labels` is "op=\"read\"" or "". `help` is for the first use of a name. The object
 * lives as long as the registry. Never NULL: aborts when memory has run out. */
struct counter *stats_counter(struct stats *s, const char *name, const char *labels,
                              const char *help);
struct histogram *stats_histogram(struct stats *s, const char *name, const char *labels,
                                  const char *help);

/* A gauge computed when printed. `fn` may take locks of rank above RANK_STATS only... so it must
 * read atomics; it is called with the registry's lock held. */
void stats_gauge(struct stats *s, const char *name, const char *labels, const char *help,
                 double (*fn)(void *arg), void *arg);

/* Prometheus text exposition of everything, names in order. */
void stats_print(struct stats *s, FILE *f);

static inline void counter_add(struct counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->v, n, memory_order_relaxed);
}

static inline uint64_t counter_get(struct counter *c)
{
    return atomic_load_explicit(&c->v, memory_order_relaxed);
}

void histogram_add(struct histogram *h, int64_t ns);

/* The value below which the share `q` (0..1) of the samples lies, in nanoseconds (bucket bound). */
int64_t histogram_quantile(struct histogram *h, double q);

#endif
