/* Metrics: the text to the byte, quantiles, and no lost counts. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/stats.h"

static double half(void *arg)
{
    return *(double *)arg / 2;
}

static char *printed(struct stats *s)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    cr_assert_not_null(f);
    stats_print(s, f);
    fclose(f);
    return text;
}

Test(stats, text_is_prometheus_to_the_byte_and_in_order)
{
    struct stats *s;
    double five = 5;
    cr_assert_eq(stats_open(&s), 0);
    stats_gauge(s, "queue", "", "Waiting.", half, &five);
    counter_add(stats_counter(s, "gets_total", "op=\"b\"", "Reads."), 7);
    counter_add(stats_counter(s, "gets_total", "op=\"a\"", "Reads."), 18446744073709551615ull);
    (void)stats_counter(s, "zero_total", "", "Never.");
    char *text = printed(s);
    cr_assert_str_eq(text, "# HELP sluicefs_gets_total Reads.\n"
                           "# TYPE sluicefs_gets_total counter\n"
                           "sluicefs_gets_total{op=\"a\"} 18446744073709551615\n"
                           "sluicefs_gets_total{op=\"b\"} 7\n"
                           "# HELP sluicefs_queue Waiting.\n"
                           "# TYPE sluicefs_queue gauge\n"
                           "sluicefs_queue 2.5\n"
                           "# HELP sluicefs_zero_total Never.\n"
                           "# TYPE sluicefs_zero_total counter\n"
                           "sluicefs_zero_total 0\n");
    free(text);
    stats_close(s);
    stats_close(NULL);
}

Test(stats, histogram_text_is_cumulative_and_ends_with_infinity)
{
    struct stats *s;
    cr_assert_eq(stats_open(&s), 0);
    struct histogram *h = stats_histogram(s, "wait_seconds", "op=\"r\"", "Waited.");
    histogram_add(h, 0);
    histogram_add(h, 1000); /* 1 us: first bucket, bounds are inclusive */
    histogram_add(h, 3000); /* 3 us: le 4 us */
    histogram_add(h, 3600 * NS_PER_SEC);
    char *text = printed(s), *line = strtok(text, "\n");
    unsigned buckets = 0;
    static const char *const first[] = {
        "# HELP sluicefs_wait_seconds Waited.",
        "# TYPE sluicefs_wait_seconds histogram",
        "sluicefs_wait_seconds_bucket{op=\"r\",le=\"1e-06\"} 2",
        "sluicefs_wait_seconds_bucket{op=\"r\",le=\"2e-06\"} 2",
        "sluicefs_wait_seconds_bucket{op=\"r\",le=\"4e-06\"} 3",
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++, line = strtok(NULL, "\n"))
        cr_assert_str_eq(line, first[i]);
    buckets = 3;
    for (; line && strstr(line, "_bucket"); line = strtok(NULL, "\n")) {
        buckets++;
        if (buckets == STAT_BUCKETS)
            cr_assert_str_eq(line, "sluicefs_wait_seconds_bucket{op=\"r\",le=\"+Inf\"} 4");
        else
            cr_assert_str_eq(line + strlen(line) - 2, " 3", "%s", line);
    }
    cr_assert_eq(buckets, STAT_BUCKETS);
    cr_assert_str_eq(line, "sluicefs_wait_seconds_sum{op=\"r\"} 3600.000004000");
    cr_assert_str_eq(strtok(NULL, "\n"), "sluicefs_wait_seconds_count{op=\"r\"} 4");
    cr_assert_null(strtok(NULL, "\n"));
    free(text);
    (void)stats_histogram(s, "bare_seconds", "", "Without labels.");
    text = printed(s);
    cr_assert(strstr(text, "sluicefs_bare_seconds_bucket{le=\"1e-06\"} 0\n"));
    cr_assert(strstr(text, "\nsluicefs_bare_seconds_count 0\n"));
    free(text);
    stats_close(s);
}

Test(stats, the_same_name_and_labels_are_the_same_metric)
{
    struct stats *s;
    cr_assert_eq(stats_open(&s), 0);
    struct counter *a = stats_counter(s, "x_total", "k=\"1\"", "X."),
                   *b = stats_counter(s, "x_total", "k=\"2\"", "X.");
    cr_assert_neq(a, b);
    cr_assert_eq(stats_counter(s, "x_total", "k=\"1\"", "other help"), a);
    stats_close(s);
}

Test(stats, quantiles_are_the_bound_of_the_bucket)
{
    struct histogram h = {0};
    cr_assert_eq(histogram_quantile(&h, 0.5), 0, "no samples");
    for (int i = 0; i < 90; i++)
        histogram_add(&h, 100 * 1000); /* 100 us: up to 128 */
    for (int i = 0; i < 9; i++)
        histogram_add(&h, 5 * NS_PER_MS); /* 5000 us: up to 8192 */
    histogram_add(&h, -5);
    cr_assert_eq(histogram_quantile(&h, 0.0), 1000);
    cr_assert_eq(histogram_quantile(&h, 0.5), 128 * 1000);
    cr_assert_eq(histogram_quantile(&h, 0.91), 128 * 1000);
    cr_assert_eq(histogram_quantile(&h, 0.92), 8192 * 1000);
    cr_assert_eq(histogram_quantile(&h, 1.0), 8192 * 1000);
    for (int i = 0; i < 1000; i++)
        histogram_add(&h, INT64_MAX);
    cr_assert_eq(histogram_quantile(&h, 0.99), (1ll << (STAT_BUCKETS - 1)) * 1000);
}

enum { THREADS = 4, ADDS = 20000 };
static struct stats *shared;

static void *adder(void *arg)
{
    (void)arg;
    struct histogram *h = stats_histogram(shared, "h_seconds", "", "H.");
    for (int i = 0; i < ADDS; i++) {
        if (i % 100 == 0) {
            char labels[32];
            snprintf(labels, sizeof labels, "i=\"%d\"", i);
            counter_add(stats_counter(shared, "c_total", labels, "C."), 1);
        }
        histogram_add(h, i);
    }
    return NULL;
}

Test(stats, counts_of_many_threads_are_complete)
{
    pthread_t t[THREADS];
    cr_assert_eq(stats_open(&shared), 0);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, adder, NULL), 0);
    for (int i = 0; i < 20; i++)
        free(printed(shared)); /* beside them */
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < ADDS; i += 100) {
        char labels[32];
        snprintf(labels, sizeof labels, "i=\"%d\"", i);
        cr_assert_eq(counter_get(stats_counter(shared, "c_total", labels, "C.")), THREADS);
    }
    char *text = printed(shared), want[80];
    snprintf(want, sizeof want, "\nsluicefs_h_seconds_count %d\n", THREADS * ADDS);
    cr_assert(strstr(text, want));
    const char *header = strstr(text, "# TYPE sluicefs_c_total");
    cr_assert_not_null(header);
    cr_assert_null(strstr(header + 1, "# TYPE sluicefs_c_total"), "one header for all labels");
    free(text);
    stats_close(shared);
}
