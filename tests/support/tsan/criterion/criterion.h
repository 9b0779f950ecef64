/* criterion.h: the part of Criterion's interface that the units use, for builds under TSan.
 *
 * Criterion keeps results in a shared mapping with an allocator of its own, which ThreadSanitizer does
 * not accept. Here each test runs in a forked child, one after the other, and its exit status is the
 * result. A child with a report of TSan ends with TSan's exit code, so the test fails. In all other
 * builds the real Criterion is used.
 *
 * Supported: Test, TestSuite with .init .fini .timeout .signal .disabled; the cr_assert and cr_expect
 * macros below; cr_skip_test. Exit code of the program: 0 all passed, 77 all skipped, 1 otherwise.
 */
#ifndef SLUICE_TSAN_CRITERION_H
#define SLUICE_TSAN_CRITERION_H

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct crit_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout;
    int signal;
    bool disabled;
    const char *description;
};

struct crit_test {
    const char *suite, *name;
    void (*run)(void);
    struct crit_options own;
    struct crit_test *next;
};

static struct crit_test *crit_tests, **crit_tests_end = &crit_tests;
static struct crit_test *crit_suites;
static int crit_failures;

enum { CRIT_SKIP = 77, CRIT_TIMEOUT_S = 240 };

__attribute__((unused)) static void crit_add_test(struct crit_test *t)
{
    *crit_tests_end = t;
    crit_tests_end = &t->next;
}

__attribute__((unused)) static void crit_add_suite(struct crit_test *s)
{
    s->next = crit_suites;
    crit_suites = s;
}

__attribute__((unused)) static void crit_say(const char *file, int line, const char *what,
                                             const char *format, ...)
{
    va_list ap;
    fprintf(stderr, "%s:%d: %s: ", file, line, what);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

#define Test(suite_, name_, ...)                                            \
    static void suite_##_##name_##_body(void);                              \
    __attribute__((constructor)) static void suite_##_##name_##_add(void)   \
    {                                                                       \
        static struct crit_test crit_own_ = {                               \
            #suite_, #name_, suite_##_##name_##_body, {__VA_ARGS__}, NULL}; \
        crit_add_test(&crit_own_);                                          \
    }                                                                       \
    static void suite_##_##name_##_body(void)

#define TestSuite(suite_, ...)                                                          \
    __attribute__((constructor)) static void suite_##_suite_add(void)                   \
    {                                                                                   \
        static struct crit_test crit_own_ = {#suite_, NULL, NULL, {__VA_ARGS__}, NULL}; \
        crit_add_suite(&crit_own_);                                                     \
    }                                                                                   \
    struct crit_suite_##suite_

#define CRIT_CHECK(fatal, ok, text, ...)                        \
    do {                                                        \
        if (!(ok)) {                                            \
            crit_say(__FILE__, __LINE__, text, "" __VA_ARGS__); \
            crit_failures++;                                    \
            if (fatal)                                          \
                exit(1);                                        \
        }                                                       \
    } while (0)

/* A comparison of doubles beside an epsilon, written so that NaN fails. */
#define CRIT_NEAR(a, b, eps) (fabs((double)(a) - (double)(b)) <= (double)(eps))

#define cr_fail(...)                     CRIT_CHECK(0, 0, "failed", __VA_ARGS__)
#define cr_assert_fail(...)              CRIT_CHECK(1, 0, "failed", __VA_ARGS__)
#define cr_assert(c, ...)                CRIT_CHECK(1, (c), #c, __VA_ARGS__)
#define cr_assert_not(c, ...)            CRIT_CHECK(1, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)          CRIT_CHECK(1, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)         CRIT_CHECK(1, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)          CRIT_CHECK(1, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)         CRIT_CHECK(1, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)          CRIT_CHECK(1, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)         CRIT_CHECK(1, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...)           CRIT_CHECK(1, !(a), #a " is null", __VA_ARGS__)
#define cr_assert_not_null(a, ...)       CRIT_CHECK(1, (a) != NULL, #a " is not null", __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) CRIT_CHECK(1, CRIT_NEAR(a, b, e), #a " ~ " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)      CRIT_CHECK(1, !strcmp(a, b), #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)     CRIT_CHECK(1, strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)   CRIT_CHECK(1, !memcmp(a, b, n), #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n, ...) \
    CRIT_CHECK(1, memcmp(a, b, n) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_expect(c, ...)                CRIT_CHECK(0, (c), #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)          CRIT_CHECK(0, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)         CRIT_CHECK(0, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)          CRIT_CHECK(0, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)         CRIT_CHECK(0, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)          CRIT_CHECK(0, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)         CRIT_CHECK(0, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...)           CRIT_CHECK(0, !(a), #a " is null", __VA_ARGS__)
#define cr_expect_not_null(a, ...)       CRIT_CHECK(0, (a) != NULL, #a " is not null", __VA_ARGS__)
#define cr_expect_not(c, ...)            CRIT_CHECK(0, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) CRIT_CHECK(0, CRIT_NEAR(a, b, e), #a " ~ " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)      CRIT_CHECK(0, !strcmp(a, b), #a " is " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)     CRIT_CHECK(0, strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)   CRIT_CHECK(0, !memcmp(a, b, n), #a " is " #b, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, n, ...) \
    CRIT_CHECK(0, memcmp(a, b, n) != 0, #a " is not " #b, __VA_ARGS__)

#define cr_skip_test(...)                                        \
    do {                                                         \
        crit_say(__FILE__, __LINE__, "skipped", "" __VA_ARGS__); \
        exit(CRIT_SKIP);                                         \
    } while (0)
#define cr_log_info(...) crit_say(__FILE__, __LINE__, "info", "" __VA_ARGS__)
#define cr_log_warn(...) crit_say(__FILE__, __LINE__, "warning", "" __VA_ARGS__)

static struct crit_options crit_options_of(const struct crit_test *t)
{
    struct crit_options o = t->own;
    for (const struct crit_test *s = crit_suites; s; s = s->next) {
        if (strcmp(s->suite, t->suite) != 0)
            continue;
        o.init = o.init ? o.init : s->own.init;
        o.fini = o.fini ? o.fini : s->own.fini;
        o.timeout = o.timeout > 0 ? o.timeout : s->own.timeout;
        o.disabled = o.disabled || s->own.disabled;
    }
    return o;
}

/* 0 passed, CRIT_SKIP skipped, else failed. TSan slows things down, so times are given tenfold. */
static int crit_run(const struct crit_test *t, const struct crit_options *o)
{
    int status = 0, left = (int)(o->timeout > 0 ? o->timeout * 10 : CRIT_TIMEOUT_S) * 100;
    pid_t pid = fork();
    if (pid == 0) {
        if (o->init)
            o->init();
        t->run();
        if (o->fini)
            o->fini();
        exit(crit_failures ? 1 : 0);
    }
    if (pid < 0)
        return 1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (left-- <= 0) {
            fprintf(stderr, "%s::%s: its time is over\n", t->suite, t->name);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (o->signal)
        return !(WIFSIGNALED(status) && WTERMSIG(status) == o->signal);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    const char *only = argc > 2 && !strcmp(argv[1], "--filter") ? argv[2] : NULL;
    int run = 0, failed = 0, skipped = 0;
    for (const struct crit_test *t = crit_tests; t; t = t->next) {
        struct crit_options o = crit_options_of(t);
        if (o.disabled || (only && strcmp(only, t->name) != 0))
            continue;
        int code = crit_run(t, &o);
        run++;
        skipped += code == CRIT_SKIP;
        if (code != 0 && code != CRIT_SKIP) {
            failed++;
            fprintf(stderr, "FAILED: %s::%s (%d)\n", t->suite, t->name, code);
        }
    }
    printf("%d passed, %d failed, %d skipped\n", run - failed - skipped, failed, skipped);
    return failed || run == 0 ? 1 : skipped == run ? CRIT_SKIP : 0;
}

#endif
