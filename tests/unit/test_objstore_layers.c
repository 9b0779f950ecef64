/* Retry, breaker, meter and fault layers over the memory store, under a virtual clock: nothing here
 * sleeps, and every wait is seen. */
#include <criterion/criterion.h>
#include <math.h>
#include "tests/support/objtest.h"

/* A stack without threads. run() lets everything happen that can, moving the clock to the next
 * timer, until `a` is done or `until_ns` is reached. */
struct world {
    struct objstore *os;
    struct timers *timers;
    struct stats *stats;
    struct store_conf conf;
    char why[300];
};

static void world_open(struct world *w)
{
    memset(w, 0, sizeof *w);
    random_seed_for_tests(42);
    clock_virtual_set(1000 * NS_PER_SEC);
    cr_assert_eq(timers_open(false, &w->timers), 0);
    cr_assert_eq(stats_open(&w->stats), 0);
    w->conf = (struct store_conf){.stats = w->stats, .timers = w->timers, .fault_plan = ""};
    w->conf.url.kind = STORE_MEM;
    cr_assert_eq(store_open(&w->conf, &w->os, w->why, sizeof w->why), 0);
}

static void world_done(struct world *w)
{
    obj_close(w->os);
    timers_close(w->timers);
    stats_close(w->stats);
}

static void plan(struct world *w, const char *text)
{
    cr_assert_eq(fault_plan_set(w->os, text, w->why, sizeof w->why), 0, "%s", w->why);
}

static void settle(struct world *w)
{
    int64_t next;
    do {
        timers_step(w->timers, &next);
    } while (mem_step(w->os) || next <= clock_mono_ns());
}

/* Time passes up to `until` or the end of `a`. */
static void run_until(struct world *w, struct ot_async *a, int64_t until)
{
    for (;;) {
        int64_t next;
        settle(w);
        if (a && atomic_load(&a->done))
            return;
        timers_step(w->timers, &next);
        if (next > until) {
            if (until > clock_mono_ns())
                clock_virtual_advance(until - clock_mono_ns());
            settle(w);
            return;
        }
        if (next > clock_mono_ns())
            clock_virtual_advance(next - clock_mono_ns());
    }
}

static void run(struct world *w, struct ot_async *a)
{
    run_until(w, a, clock_mono_ns() + 3600 * NS_PER_SEC);
    cr_assert(atomic_load(&a->done));
}

static int do_put(struct world *w, const char *key, const char *text, unsigned flags,
                  struct ot_async *a)
{
    static struct ot_async mine;
    if (!a)
        a = &mine;
    ot_start(w->os, a, OBJ_PUT, key, flags, (void *)text, strlen(text));
    run(w, a);
    return a->r.err;
}

static enum objstore_health health(struct world *w)
{
    struct objstore_status st;
    obj_status(w->os, &st);
    return st.health;
}

static uint64_t count(struct world *w, const char *op, const char *outcome)
{
    char labels[80];
    snprintf(labels, sizeof labels, "op=\"%s\",outcome=\"%s\"", op, outcome);
    return counter_get(stats_counter(w->stats, "store_requests_total", labels, ""));
}

/* ---- retry ---- */

Test(retry, repeats_server_errors_until_it_works)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    plan(&w, "fail op=put nth=1 count=3 err=500");
    int64_t t0 = clock_mono_ns();
    cr_assert_eq(do_put(&w, "k", "v", 0, &a), 0);
    cr_assert_eq(a.r.attempts, 4);
    cr_assert_leq(clock_mono_ns() - t0, 700 * NS_PER_MS, "100 + 200 + 400 ms at most");
    cr_assert_eq(count(&w, "put", "error"), 3);
    cr_assert_eq(count(&w, "put", "ok"), 1);
    world_done(&w);
}

Test(retry, gives_up_after_eight_attempts)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    plan(&w, "fail op=put count=all err=500");
    cr_assert_eq(do_put(&w, "k", "v", 0, &a), -EIO);
    cr_assert_eq(a.r.attempts, 8);
    cr_assert_eq(a.r.diag.http_status, 500);
    cr_assert_eq(mem_puts(w.os, "k"), 0);
    world_done(&w);
}

Test(retry, answers_are_not_repeated)
{
    static const struct {
        const char *err;
        int want;
    } answers[] = {{"404", -ENOENT}, {"EEXIST", -EEXIST}, {"403", -EACCES}, {"ENOSPC", -ENOSPC}};
    struct world w;
    struct ot_async a;
    char text[80];
    world_open(&w);
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        snprintf(text, sizeof text, "fail err=%s", answers[i].err);
        plan(&w, text);
        cr_assert_eq(do_put(&w, "k", "v", 0, &a), answers[i].want);
        cr_assert_eq(a.r.attempts, 1);
    }
    world_done(&w);
}

Test(retry, first_reset_is_repeated_at_once)
{
    struct world w;
    world_open(&w);
    plan(&w, "fail op=put err=reset");
    int64_t t0 = clock_mono_ns();
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), 0);
    cr_assert_eq(clock_mono_ns(), t0);
    world_done(&w);
}

Test(retry, refused_checksum_is_repeated_once)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    static char body[] = "0123456789";
    for (int n = 1; n <= 2; n++) {
        char text[80];
        snprintf(text, sizeof text, "fail op=put corrupt=4 count=%d", n);
        plan(&w, text);
        memset(&a.r, 0, sizeof a.r);
        a.body = (struct obj_body){.mem = body, .fd = -1, .len = 10};
        a.r = (struct obj_req){.op = OBJ_PUT,
                               .key = "k",
                               .flags = OBJ_HAS_SHA256,
                               .body = &a.body,
                               .body_n = 1,
                               .done = ot_async_done};
        sha256_once(body, 10, a.r.sha256);
        atomic_store(&a.done, 0);
        obj_submit(w.os, &a.r);
        run(&w, &a);
        cr_assert_eq(a.r.err, n == 1 ? 0 : -EBADMSG);
        cr_assert_eq(a.r.attempts, 2);
    }
    uint64_t len;
    cr_assert_eq(memcmp(mem_object(w.os, "k", &len), "0123456789", 10), 0);
    world_done(&w);
}

Test(retry, get_goes_on_behind_what_has_arrived)
{
    struct world w;
    struct ot_async a;
    static char got[10001], want[10001];
    world_open(&w);
    memset(want, 'x', 10000);
    for (int i = 0; i < 10000; i += 7)
        want[i] = (char)('a' + i % 26);
    cr_assert_eq(do_put(&w, "k", want, 0, NULL), 0);
    plan(&w, "fail op=get truncate=3000 count=2");
    ot_start(w.os, &a, OBJ_GET, "k", 0, got, 10000);
    run(&w, &a);
    cr_assert_eq(a.r.err, 0);
    cr_assert_eq(memcmp(got, want, 10000), 0);
    cr_assert_eq(a.r.attempts, 3);
    cr_assert_eq(atomic_load(&a.got), 10000);
    cr_assert_eq(counter_get(stats_counter(w.stats, "store_bytes_total", "direction=\"in\"", "")),
                 10000, "no byte was fetched twice");
    world_done(&w);
}

/* The first bytes are here: now somebody replaces the object. */
static void replace_object(struct obj_req *r, uint64_t got)
{
    static struct ot_async put;
    (void)got;
    if (!put.r.key)
        ot_start(r->arg, &put, OBJ_PUT, "k", 0, "zzzzzzzzzz", 10);
}

Test(retry, get_of_an_object_replaced_half_way_is_refused)
{
    struct world w;
    struct ot_async a = {0};
    char got[10];
    world_open(&w);
    cr_assert_eq(do_put(&w, "k", "0123456789", 0, NULL), 0);
    plan(&w, "fail op=get truncate=5");
    a.iov = (struct iovec){.iov_base = got, .iov_len = 10};
    a.r = (struct obj_req){.op = OBJ_GET,
                           .key = "k",
                           .len = 10,
                           .iov = &a.iov,
                           .iov_n = 1,
                           .progress = replace_object,
                           .done = ot_async_done,
                           .arg = w.os};
    obj_submit(w.os, &a.r);
    run(&w, &a);
    cr_assert_eq(a.r.err, -EBADMSG);
    cr_assert_str_eq(a.r.diag.code, "ChangedObject");
    world_done(&w);
}

Test(retry, conditional_put_that_met_its_own_success_says_so)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    plan(&w, "fail op=put lost-reply");
    cr_assert_eq(do_put(&w, "k", "v", OBJ_IF_ABSENT, &a), -EEXIST);
    cr_assert(a.r.diag.unknown_outcome);
    cr_assert_eq(mem_puts(w.os, "k"), 1);
    plan(&w, "");
    cr_assert_eq(do_put(&w, "k", "v", OBJ_IF_ABSENT, &a), -EEXIST);
    cr_assert_not(a.r.diag.unknown_outcome, "a plain conflict is certain");
    world_done(&w);
}

Test(retry, deadline_covers_all_attempts)
{
    struct world w;
    struct ot_async a = {0};
    world_open(&w);
    plan(&w, "fail count=all err=500");
    int64_t t0 = clock_mono_ns();
    a.r = (struct obj_req){
        .op = OBJ_HEAD, .key = "k", .done = ot_async_done, .deadline_ns = t0 + 300 * NS_PER_MS};
    obj_submit(w.os, &a.r);
    run(&w, &a);
    cr_assert_lt(a.r.err, 0);
    cr_assert_leq(clock_mono_ns() - t0, 300 * NS_PER_MS);
    cr_assert_gt(a.r.attempts, 1);
    world_done(&w);
}

Test(retry, cancel_ends_a_back_off)
{
    struct world w;
    struct ot_async a = {0};
    world_open(&w);
    plan(&w, "fail count=all err=500");
    a.r = (struct obj_req){.op = OBJ_HEAD, .key = "k", .done = ot_async_done};
    obj_submit(w.os, &a.r);
    settle(&w);
    cr_assert_not(atomic_load(&a.done));
    obj_cancel(w.os, &a.r);
    cr_assert_not(atomic_load(&a.done), "done never runs inside cancel");
    int64_t t0 = clock_mono_ns();
    settle(&w);
    cr_assert(atomic_load(&a.done));
    cr_assert_eq(a.r.err, -ECANCELED);
    cr_assert_eq(clock_mono_ns(), t0);
    world_done(&w);
}

Test(retry, close_ends_everything_once)
{
    struct world w;
    struct ot_async a[4];
    memset(a, 0, sizeof a);
    world_open(&w);
    plan(&w, "fail op=head count=all err=500\nfail op=put stall count=all");
    for (int i = 0; i < 2; i++) {
        a[i].r = (struct obj_req){.op = OBJ_HEAD, .key = "k", .done = ot_async_done};
        obj_submit(w.os, &a[i].r);
    }
    ot_start(w.os, &a[2], OBJ_PUT, "k", 0, "v", 1);
    settle(&w);
    plan(&w, "");
    ot_start(w.os, &a[3], OBJ_PUT, "k2", 0, "v", 1);
    world_done(&w);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(atomic_load(&a[i].done), 1);
        cr_assert_eq(a[i].r.err, -ECANCELED);
    }
}

/* ---- breaker ---- */

static void break_it(struct world *w)
{
    plan(w, "fail count=all err=500");
    cr_assert_eq(do_put(w, "k", "v", 0, NULL), -EIO);
    cr_assert_eq(health(w), OBJ_HEALTH_DOWN);
}

Test(breaker, opens_after_a_run_of_failed_attempts_and_fails_background_fast)
{
    struct world w;
    struct ot_async a;
    struct objstore_status st;
    world_open(&w);
    break_it(&w);
    uint64_t before = count(&w, "put", "error");
    int64_t t0 = clock_mono_ns();
    cr_assert_eq(do_put(&w, "k", "v", 0, &a), -EIO);
    cr_assert_eq(clock_mono_ns(), t0, "at once");
    cr_assert(a.r.diag.retryable);
    cr_assert_str_eq(a.r.diag.code, "StoreDown");
    cr_assert_not_null(strstr(a.r.diag.message, "store is down"));
    cr_assert_eq(count(&w, "put", "error"), before, "nothing went to the store");
    obj_status(w.os, &st);
    cr_assert_gt(st.next_probe_ns, 0);
    cr_assert_not_null(strstr(st.reason, "500"));
    world_done(&w);
}

Test(breaker, recovers_by_its_own_probe_without_any_request)
{
    struct world w;
    world_open(&w);
    break_it(&w);
    plan(&w, "");
    run_until(&w, NULL, clock_mono_ns() + 40 * NS_PER_SEC);
    cr_assert_neq(health(&w), OBJ_HEALTH_DOWN);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), 0);
    run_until(&w, NULL, clock_mono_ns() + 40 * NS_PER_SEC);
    cr_assert_eq(health(&w), OBJ_HEALTH_OK);
    world_done(&w);
}

Test(breaker, urgent_requests_wait_for_recovery)
{
    struct world w;
    struct ot_async a;
    char got[1];
    world_open(&w);
    cr_assert_eq(do_put(&w, "u", "v", 0, NULL), 0);
    break_it(&w);
    ot_start(w.os, &a, OBJ_GET, "u", OBJ_URGENT, got, 1);
    struct objstore_status st;
    obj_status(w.os, &st);
    cr_assert_eq(st.queued, 1);
    plan(&w, "");
    run(&w, &a);
    cr_assert_eq(a.r.err, 0);
    cr_assert_eq(got[0], 'v');
    world_done(&w);
}

Test(breaker, urgent_requests_end_at_their_deadline)
{
    struct world w;
    struct ot_async a = {0};
    world_open(&w);
    break_it(&w);
    int64_t t0 = clock_mono_ns();
    a.r = (struct obj_req){.op = OBJ_HEAD,
                           .key = "k",
                           .flags = OBJ_URGENT,
                           .done = ot_async_done,
                           .deadline_ns = t0 + 500 * NS_PER_MS};
    obj_submit(w.os, &a.r);
    run(&w, &a);
    cr_assert_eq(a.r.err, -ETIMEDOUT);
    cr_assert_eq(clock_mono_ns(), t0 + 500 * NS_PER_MS);
    cr_assert_not_null(strstr(a.r.diag.message, "store is down"));
    world_done(&w);
}

Test(breaker, cancel_and_close_end_waiting_requests)
{
    struct world w;
    struct ot_async a[2];
    memset(a, 0, sizeof a);
    world_open(&w);
    break_it(&w);
    for (int i = 0; i < 2; i++) {
        a[i].r = (struct obj_req){.op = OBJ_HEAD,
                                  .key = "k",
                                  .flags = OBJ_URGENT,
                                  .done = ot_async_done,
                                  .deadline_ns = i ? 0 : clock_mono_ns() + NS_PER_SEC};
        obj_submit(w.os, &a[i].r);
    }
    obj_cancel(w.os, &a[0].r);
    settle(&w);
    cr_assert_eq(a[0].r.err, -ECANCELED);
    cr_assert_eq(atomic_load(&a[0].done), 1);
    world_done(&w);
    cr_assert_eq(a[1].r.err, -ECANCELED);
    cr_assert_eq(atomic_load(&a[1].done), 1);
}

Test(breaker, probes_back_off_while_the_store_stays_down)
{
    struct world w;
    world_open(&w);
    break_it(&w);
    uint64_t before = count(&w, "get", "error");
    run_until(&w, NULL, clock_mono_ns() + 600 * NS_PER_SEC);
    uint64_t probes = count(&w, "get", "error") - before;
    cr_assert_eq(health(&w), OBJ_HEALTH_DOWN);
    cr_assert_gt(probes, 15);
    cr_assert_lt(probes, 400, "%llu attempts in ten minutes", (unsigned long long)probes);
    world_done(&w);
}

Test(breaker, answers_are_no_failures)
{
    struct world w;
    world_open(&w);
    for (int i = 0; i < 20; i++) {
        plan(&w, i % 2 ? "fail err=404" : "fail err=EEXIST");
        do_put(&w, "k", "v", 0, NULL);
        cr_assert_eq(health(&w), OBJ_HEALTH_OK);
    }
    for (int i = 0; i < 20; i++) {
        plan(&w, "fail err=403");
        cr_assert_eq(do_put(&w, "k", "v", 0, NULL), -EACCES);
        cr_assert_eq(health(&w), OBJ_HEALTH_DEGRADED, "refused, not down");
    }
    world_done(&w);
}

Test(breaker, a_missing_bucket_is_an_outage)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    plan(&w, "fail err=nobucket count=all");
    for (int i = 0; i < 5; i++)
        cr_assert_eq(do_put(&w, "k", "v", 0, &a), -ENODEV);
    cr_assert_str_eq(a.r.diag.code, "NoSuchBucket");
    cr_assert_eq(health(&w), OBJ_HEALTH_DOWN);
    cr_assert_eq(do_put(&w, "k", "v", 0, &a), -EIO);
    world_done(&w);
}

Test(breaker, more_failures_than_successes_open_it_too)
{
    struct world w;
    bool opened = false;
    world_open(&w);
    /* Four failures and a success, again and again: never five in a row. */
    for (int i = 0; i < 4 && !opened; i++) {
        struct ot_async a;
        plan(&w, "fail err=500 count=4");
        ot_start(w.os, &a, OBJ_PUT, "k", 0, "v", 1);
        while (!atomic_load(&a.done)) {
            run_until(&w, &a, clock_mono_ns() + NS_PER_MS);
            opened = opened || health(&w) == OBJ_HEALTH_DOWN;
        }
        cr_assert_eq(a.r.err, 0);
        cr_assert(!opened || i > 0, "one request alone does not open it");
    }
    cr_assert(opened);
    world_done(&w);
}

Test(breaker, a_store_that_says_nothing_is_not_well)
{
    struct world w;
    struct ot_async a = {0}, b = {0};
    struct objstore_status st;
    world_open(&w);
    plan(&w, "fail op=put stall count=1");
    ot_start(w.os, &a, OBJ_PUT, "k", 0, "v", 1);
    run_until(&w, NULL, clock_mono_ns() + NS_PER_SEC);
    obj_cancel(w.os, &a.r);
    settle(&w);
    cr_assert_eq(a.r.err, -ECANCELED);
    cr_assert_eq(health(&w), OBJ_HEALTH_OK, "a second proves nothing");
    plan(&w, "fail op=put stall count=1");
    ot_start(w.os, &b, OBJ_PUT, "k", 0, "v", 1);
    run_until(&w, NULL, clock_mono_ns() + 3 * NS_PER_SEC);
    obj_cancel(w.os, &b.r);
    settle(&w);
    obj_status(w.os, &st);
    cr_assert_eq(st.health, OBJ_HEALTH_DEGRADED);
    cr_assert_not_null(strstr(st.reason, "no answer for 3.0 s"), "%s", st.reason);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), 0);
    run_until(&w, NULL, clock_mono_ns() + 11 * NS_PER_SEC);
    cr_assert_eq(health(&w), OBJ_HEALTH_OK);
    world_done(&w);
}

Test(breaker, throttling_cuts_what_is_in_flight_and_recovers)
{
    struct world w;
    enum { N = 40 };
    static struct ot_async a[N];
    struct objstore_status st;
    world_open(&w);
    plan(&w, "fail op=put err=503 count=40");
    for (int i = 0; i < N; i++)
        ot_start(w.os, &a[i], OBJ_PUT, "t", 0, "v", 1);
    obj_status(w.os, &st);
    cr_assert_eq(st.in_flight, N);
    settle(&w);
    cr_assert_eq(health(&w), OBJ_HEALTH_DEGRADED, "throttled is not down");
    static struct ot_async more[N];
    for (int i = 0; i < N; i++)
        ot_start(w.os, &more[i], OBJ_PUT, "t2", 0, "v", 1);
    obj_status(w.os, &st);
    cr_assert_gt(st.queued, 0, "new requests wait while the bucket is throttled");
    cr_assert_not_null(strstr(st.reason, "throttled"));
    for (int i = 0; i < N; i++) {
        run(&w, &a[i]);
        run(&w, &more[i]);
        cr_assert_eq(a[i].r.err, 0);
        cr_assert_eq(more[i].r.err, 0);
    }
    world_done(&w);
}

/* ---- meter ---- */

Test(meter, counts_outcomes_and_bytes)
{
    struct world w;
    struct ot_async a;
    char got[8];
    world_open(&w);
    cr_assert_eq(do_put(&w, "m", "12345678", 0, NULL), 0);
    cr_assert_eq(do_put(&w, "m", "x", OBJ_IF_ABSENT, NULL), -EEXIST);
    ot_start(w.os, &a, OBJ_GET, "m", 0, got, 8);
    run(&w, &a);
    ot_start(w.os, &a, OBJ_GET, "none", 0, got, 8);
    run(&w, &a);
    plan(&w, "fail op=head err=timeout\nfail op=head nth=2 err=503");
    struct ot_async h = {0};
    h.r = (struct obj_req){.op = OBJ_HEAD, .key = "m", .done = ot_async_done};
    obj_submit(w.os, &h.r);
    run(&w, &h);
    cr_assert_eq(h.r.err, 0);
    cr_assert_eq(count(&w, "put", "ok"), 1);
    cr_assert_eq(count(&w, "put", "conflict"), 1);
    cr_assert_eq(count(&w, "get", "ok"), 1);
    cr_assert_eq(count(&w, "get", "not_found"), 1);
    cr_assert_eq(count(&w, "head", "timeout"), 1);
    cr_assert_eq(count(&w, "head", "throttled"), 1);
    cr_assert_eq(count(&w, "head", "ok"), 1);
    cr_assert_eq(counter_get(stats_counter(w.stats, "store_bytes_total", "direction=\"out\"", "")),
                 8);
    cr_assert_eq(counter_get(stats_counter(w.stats, "store_bytes_total", "direction=\"in\"", "")),
                 8);
    world_done(&w);
}

/* ---- fault ---- */

Test(fault, wrong_plans_are_refused_by_line)
{
    static const char *const wrong[] = {"fail",
                                        "fail err=NOPE",
                                        "fail op=nope err=EIO",
                                        "fail nth=0 err=EIO",
                                        "break everything",
                                        "fail delay=x",
                                        "fail err=EIO stall",
                                        "trigger",
                                        "fail count=-1 err=EIO"};
    struct world w;
    world_open(&w);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        char text[100];
        snprintf(text, sizeof text, "# first\n%s\n", wrong[i]);
        cr_assert_eq(fault_plan_set(w.os, text, w.why, sizeof w.why), -EINVAL, "%s", wrong[i]);
        cr_assert_not_null(strstr(w.why, "line 2"));
    }
    world_done(&w);
}

Test(fault, rules_count_by_operation_and_key)
{
    struct world w;
    world_open(&w);
    plan(&w, "fail op=put key=segments/* nth=2 count=1 err=403 # the second only");
    cr_assert_eq(do_put(&w, "other", "v", 0, NULL), 0);
    cr_assert_eq(do_put(&w, "segments/a/b", "v", 0, NULL), 0);
    cr_assert_eq(do_put(&w, "segments/a/c", "v", 0, NULL), -EACCES);
    cr_assert_eq(do_put(&w, "segments/a/c", "v", 0, NULL), 0);
    cr_assert_eq(fault_hits(w.os), 1);
    world_done(&w);
}

Test(fault, stalled_requests_go_on_when_released)
{
    struct world w;
    struct ot_async a;
    world_open(&w);
    plan(&w, "fail op=put stall");
    ot_start(w.os, &a, OBJ_PUT, "k", 0, "v", 1);
    run_until(&w, &a, clock_mono_ns() + 1000 * NS_PER_SEC);
    cr_assert_not(atomic_load(&a.done));
    cr_assert_eq(fault_stalled(w.os), 1);
    fault_release(w.os);
    run(&w, &a);
    cr_assert_eq(a.r.err, 0);
    world_done(&w);
}

Test(fault, delay_holds_a_request_for_its_time)
{
    struct world w;
    world_open(&w);
    plan(&w, "fail delay=1500");
    int64_t t0 = clock_mono_ns();
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), 0);
    cr_assert_eq(clock_mono_ns() - t0, 1500 * NS_PER_MS);
    world_done(&w);
}

Test(fault, corruption_reaches_the_reader_and_the_store)
{
    struct world w;
    struct ot_async a;
    char got[10];
    uint64_t len;
    world_open(&w);
    cr_assert_eq(do_put(&w, "k", "0123456789", 0, NULL), 0);
    plan(&w, "fail op=get corrupt=3");
    ot_start(w.os, &a, OBJ_GET, "k", 0, got, 10);
    run(&w, &a);
    cr_assert_eq(a.r.err, 0);
    cr_assert_neq(got[3], '3');
    got[3] = '3';
    cr_assert_eq(memcmp(got, "0123456789", 10), 0);
    plan(&w, "fail op=put corrupt=9 silent");
    cr_assert_eq(do_put(&w, "k", "0123456789", 0, NULL), 0);
    const uint8_t *p = mem_object(w.os, "k", &len);
    cr_assert_eq(len, 10);
    cr_assert_eq(memcmp(p, "012345678", 9), 0);
    cr_assert_neq(p[9], '9');
    world_done(&w);
}

Test(fault, plan_file_is_read_again_and_its_trigger_switches_it)
{
    struct world w;
    char dir[128], path[200], trigger[200], text[400];
    world_open(&w);
    ot_tmp_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/plan", dir);
    snprintf(trigger, sizeof trigger, "%s/on", dir);
    FILE *f = fopen(path, "w");
    snprintf(text, sizeof text, "trigger %s\nfail op=put count=all err=403\n", trigger);
    fputs(text, f);
    fclose(f);
    world_done(&w);
    cr_assert_eq(timers_open(false, &w.timers), 0);
    cr_assert_eq(stats_open(&w.stats), 0);
    w.conf.timers = w.timers;
    w.conf.stats = w.stats;
    w.conf.fault_plan = path;
    cr_assert_eq(store_open(&w.conf, &w.os, w.why, sizeof w.why), 0);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), 0, "no trigger, no fault");
    f = fopen(trigger, "w");
    fclose(f);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), -EACCES);
    f = fopen(path, "w");
    fputs("fail op=put count=all err=ENOSPC   # longer\n", f);
    fclose(f);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), -ENOSPC, "the new plan counts");
    f = fopen(path, "w");
    fputs("nonsense\n", f);
    fclose(f);
    cr_assert_eq(do_put(&w, "k", "v", 0, NULL), -ENOSPC, "a wrong plan leaves the old one");
    world_done(&w);
    ot_rm_dir(dir);
}

/* ---- memory store ---- */

Test(mem, a_closed_client_leaves_what_it_was_told)
{
    struct mem_bucket *b;
    struct objstore *os;
    struct ot_async a[2];
    memset(a, 0, sizeof a);
    cr_assert_eq(mem_bucket_open(&b), 0);
    cr_assert_eq(mem_attach(b, &os), 0);
    ot_start(os, &a[0], OBJ_PUT, "acked", 0, "v", 1);
    cr_assert(mem_step(os));
    ot_start(os, &a[1], OBJ_PUT, "pending", 0, "v", 1);
    obj_close(os);
    cr_assert_eq(a[0].r.err, 0);
    cr_assert_eq(a[1].r.err, -ECANCELED);
    cr_assert_eq(mem_attach(b, &os), 0);
    cr_assert_not_null(mem_object(os, "acked", NULL));
    cr_assert_null(mem_object(os, "pending", NULL));
    cr_assert_eq(mem_damage(os, "acked", 0), 0);
    cr_assert_neq(mem_object(os, "acked", NULL)[0], 'v');
    cr_assert_eq(mem_lose(os, "acked"), 0);
    cr_assert_eq(mem_count(os), 0);
    cr_assert_eq(mem_puts(os, "acked"), 1);
    obj_close(os);
    mem_bucket_close(b);
}

Test(mem, random_order_follows_from_the_seed)
{
    char order[2][64];
    for (int round = 0; round < 2; round++) {
        struct objstore *os;
        static struct ot_async a[20];
        memset(a, 0, sizeof a);
        cr_assert_eq(mem_open(NULL, &os), 0);
        mem_random_order(os, 77);
        for (int i = 0; i < 20; i++) {
            a[i].r = (struct obj_req){.op = OBJ_HEAD, .key = "k", .done = ot_async_done};
            obj_submit(os, &a[i].r);
        }
        int n = 0;
        while (mem_step(os))
            for (int i = 0; i < 20; i++)
                if (atomic_exchange(&a[i].done, 0))
                    order[round][n++] = (char)('a' + i);
        order[round][n] = 0;
        cr_assert_eq(n, 20);
        obj_close(os);
    }
    cr_assert_str_eq(order[0], order[1]);
    cr_assert_str_neq(order[0], "abcdefghijklmnopqrst");
}
