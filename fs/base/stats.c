/* stats.c: the registry is a list under one lock (RANK_STATS); updates never take it. */
#include "fs/base/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/lock.h"

enum kind { COUNTER, HISTOGRAM, GAUGE };

struct metric {
    struct metric *next;
    enum kind kind;
    char *name, *labels, *help;
    struct counter counter;
    struct histogram histogram;
    double (*fn)(void *arg);
    void *arg;
};

struct stats {
    struct lock mu;
    struct metric *first; /* ordered by name, then labels */
};

int stats_open(struct stats **ret)
{
    struct stats *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    lock_init(&s->mu, "stats.mu", RANK_STATS, false);
    *ret = s;
    return 0;
}

void stats_close(struct stats *s)
{
    if (!s)
        return;
    for (struct metric *m = s->first, *next; m; m = next) {
        next = m->next;
        free(m->name);
        free(m->labels);
        free(m->help);
        free(m);
    }
    lock_destroy(&s->mu);
    free(s);
}

static struct metric *metric_get(struct stats *s, enum kind kind, const char *name,
                                 const char *labels, const char *help)
{
    LOCK_SCOPE(&s->mu);
    struct metric **at = &s->first;
    for (; *at; at = &(*at)->next) {
        int c = strcmp((*at)->name, name);
        if (c == 0)
            c = strcmp((*at)->labels, labels);
        if (c == 0)
            return *at;
        if (c > 0)
            break;
    }
    struct metric *m = calloc(1, sizeof *m);
    if (!m || !(m->name = strdup(name)) || !(m->labels = strdup(labels)) ||
        !(m->help = strdup(help)))
        abort();
    m->kind = kind;
    m->next = *at;
    *at = m;
    return m;
}

struct counter *stats_counter(struct stats *s, const char *name, const char *labels,
                              const char *help)
{
    return &metric_get(s, COUNTER, name, labels, help)->counter;
}

struct histogram *stats_histogram(struct stats *s, const char *name, const char *labels,
                                  const char *help)
{
    return &metric_get(s, HISTOGRAM, name, labels, help)->histogram;
}

void stats_gauge(struct stats *s, const char *name, const char *labels, const char *help,
                 double (*fn)(void *arg), void *arg)
{
    struct metric *m = metric_get(s, GAUGE, name, labels, help);
    LOCK_SCOPE(&s->mu);
    m->arg = arg;
    m->fn = fn;
}

void histogram_add(struct histogram *h, int64_t ns)
{
    uint64_t us = ns > 0 ? (uint64_t)ns / 1000 : 0;
    unsigned i = us <= 1 ? 0 : 64u - (unsigned)__builtin_clzll(us - 1);
    if (i >= STAT_BUCKETS)
        i = STAT_BUCKETS - 1;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_ns, ns > 0 ? (uint64_t)ns : 0, memory_order_relaxed);
}

int64_t histogram_quantile(struct histogram *h, double q)
{
    uint64_t n[STAT_BUCKETS], total = 0, seen = 0;
    for (int i = 0; i < STAT_BUCKETS; i++)
        total += n[i] = atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
    if (!total)
        return 0;
    for (int i = 0; i < STAT_BUCKETS; i++) {
        seen += n[i];
        if ((double)seen >= q * (double)total)
            return (1ll << i) * 1000;
    }
    return (1ll << (STAT_BUCKETS - 1)) * 1000;
}

static void print_histogram(struct metric *m, FILE *f)
{
    const char *comma = *m->labels ? "," : "";
    uint64_t seen = 0;
    for (int i = 0; i < STAT_BUCKETS; i++) {
        seen += atomic_load_explicit(&m->histogram.bucket[i], memory_order_relaxed);
        if (i == STAT_BUCKETS - 1)
            fprintf(f, "sluicefs_%s_bucket{%s%sle=\"+Inf\"} %llu\n", m->name, m->labels, comma,
                    (unsigned long long)seen);
        else
            fprintf(f, "sluicefs_%s_bucket{%s%sle=\"%g\"} %llu\n", m->name, m->labels, comma,
                    (double)(1ull << i) / 1e6, (unsigned long long)seen);
    }
    const char *open = *m->labels ? "{" : "", *shut = *m->labels ? "}" : "";
    /* As whole numbers: a rate over a sum of months still sees microseconds. */
    unsigned long long sum = atomic_load(&m->histogram.sum_ns);
    fprintf(f, "sluicefs_%s_sum%s%s%s %llu.%09llu\n", m->name, open, m->labels, shut,
            sum / 1000000000, sum % 1000000000);
    fprintf(f, "sluicefs_%s_count%s%s%s %llu\n", m->name, open, m->labels, shut,
            (unsigned long long)seen);
}

void stats_print(struct stats *s, FILE *f)
{
    static const char *const types[] = {"counter", "histogram", "gauge"};
    LOCK_SCOPE(&s->mu);
    const char *last = "";
    for (struct metric *m = s->first; m; m = m->next) {
        if (strcmp(last, m->name) != 0)
            fprintf(f, "# HELP sluicefs_%s %s\n# TYPE sluicefs_%s %s\n", m->name, m->help, m->name,
                    types[m->kind]);
        last = m->name;
        const char *open = *m->labels ? "{" : "", *shut = *m->labels ? "}" : "";
        if (m->kind == COUNTER)
            fprintf(f, "sluicefs_%s%s%s%s %llu\n", m->name, open, m->labels, shut,
                    (unsigned long long)counter_get(&m->counter));
        else if (m->kind == GAUGE)
            fprintf(f, "sluicefs_%s%s%s%s %.17g\n", m->name, open, m->labels, shut,
                    m->fn ? m->fn(m->arg) : 0.0);
        else
            print_histogram(m, f);
    }
}
