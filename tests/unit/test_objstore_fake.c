/* The whole stack over S3, against a strict server that misbehaves to order. Skipped without
 * python3. */
#include <criterion/criterion.h>
#include "tests/support/objconform.h"
#include "tests/support/fakes3.h"

struct s3world {
    struct objtest t;
    struct fakes3 fake;
    char log[300];
};

static void set_url(struct s3world *w, const char *bucket, const char *region, int port)
{
    char url[512], why[300];
    snprintf(url, sizeof url,
             "s3://%s/some/prefix?endpoint=http://127.0.0.1:%d&region=%s&addressing=path", bucket,
             port, region);
    cr_assert_eq(store_url_parse(url, &w->t.conf.url, why, sizeof why), 0, "%s", why);
}

static void s3_start(struct s3world *w, const char *token)
{
    setenv("AWS_ACCESS_KEY_ID", "FAKEACCESSKEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "fake/secret+key", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_CONFIG_FILE", "/dev/null", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_PROFILE");
    ot_prepare(&w->t, STORE_S3);
    snprintf(w->log, sizeof w->log, "%s/requests.log", w->t.dir);
    if (fakes3_start(&w->fake, w->log, NULL, token) < 0)
        cr_skip_test("python3 is not there");
    set_url(w, "test-bucket", "us-east-1", w->fake.port);
    w->t.conf.timeout_get_ms = w->t.conf.timeout_put_ms = w->t.conf.timeout_small_ms = 700;
}

static void s3_begin(struct s3world *w)
{
    s3_start(w, NULL);
    ot_open(&w->t);
}

static void s3_end(struct s3world *w)
{
    ot_shut(&w->t);
    fakes3_stop(&w->fake);
    ot_done(&w->t);
}

/* Requests in the server's log that match; *bytes is the sum of theirs. */
static unsigned logged(struct s3world *w, const char *method, const char *key,
                       unsigned long *ret_bytes)
{
    char line[2048], m[16], k[1100];
    unsigned n = 0, status;
    unsigned long bytes, sum = 0;
    float ms;
    FILE *f = fopen(w->log, "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%15s %1099s %u %lu %f", m, k, &status, &bytes, &ms) == 5 &&
            !strcmp(m, method) && strstr(k, key)) {
            n++;
            sum += bytes;
        }
    fclose(f);
    if (ret_bytes)
        *ret_bytes = sum;
    return n;
}

Test(s3_fake, behaves_like_every_store, .timeout = 60)
{
    struct s3world w;
    s3_begin(&w);
    objconform_all(w.t.os);
    char state[8192];
    fakes3_control(&w.fake, "GET", "/state", "", state, sizeof state);
    cr_assert_null(strstr(state, "SignatureDoesNotMatch"), "%s", state);
    cr_assert_null(strstr(state, "NotImplemented"), "%s", state);
    cr_assert_null(strstr(state, "InvalidURI"), "%s", state);
    s3_end(&w);
}

Test(s3_fake, can_do_everything_says_the_probe, .timeout = 60)
{
    struct s3world w;
    struct store_caps c;
    char why[400], state[8192];
    s3_begin(&w);
    cr_assert_eq(store_probe(w.t.os, 5000, &c, why, sizeof why), 0, "%s", why);
    cr_assert(c.if_absent);
    cr_assert(c.if_match);
    cr_assert(c.checksum);
    cr_assert(c.range);
    fakes3_control(&w.fake, "GET", "/state", "", state, sizeof state);
    cr_assert_not_null(strstr(state, "\"objects\": {}"), "nothing is left behind: %s", state);
    s3_end(&w);
}

Test(s3_fake, passing_troubles_are_repeated_until_it_works, .timeout = 120)
{
    static const struct {
        const char *order;
        unsigned tries; /* at most */
    } cases[] = {
        {"{\"op\":\"put\",\"status\":503,\"code\":\"SlowDown\",\"count\":2}", 3},
        {"{\"op\":\"put\",\"status\":503,\"code\":\"SlowDown\",\"retry_after\":1}", 2},
        {"{\"op\":\"put\",\"status\":500,\"code\":\"InternalError\",\"count\":2}", 3},
        {"{\"op\":\"put\",\"reset\":\"before\"}", 2},
        {"{\"op\":\"put\",\"reset_body_at\":100000}", 2},
        {"{\"op\":\"put\",\"lost_reply\":true}", 2},
        {"{\"op\":\"put\",\"stall\":true}", 2},
        {"{\"op\":\"get\",\"status\":503,\"code\":\"SlowDown\",\"count\":2}", 3},
        {"{\"op\":\"get\",\"reset\":\"before\"}", 2},
        {"{\"op\":\"get\",\"truncate\":100000}", 2},
        {"{\"op\":\"get\",\"reset_at\":100000}", 2},
        {"{\"op\":\"get\",\"stall_at\":100000}", 2},
        {"{\"op\":\"get\",\"delay_ms\":300}", 1},
        {"{\"op\":\"get\",\"close\":true}", 2},
        {"{\"op\":\"get\",\"content_range\":\"bytes 1-5/7\"}", 2},
        {"{\"op\":\"put\",\"status\":400,\"code\":\"RequestTimeout\"}", 2},
    };
    enum { LEN = 400000 };
    static uint8_t a[LEN], b[LEN];
    struct s3world w;
    s3_begin(&w);
    fill(a, LEN, 5);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct obj_req put, get;
        fakes3_clear(&w.fake);
        fakes3_order(&w.fake, cases[i].order);
        memset(b, 0, LEN);
        cr_expect_eq(ot_put(w.t.os, "k", a, LEN, OBJ_HAS_SHA256, NULL, &put), 0, "%s: %s",
                     cases[i].order, put.diag.message);
        cr_expect_eq(ot_get(w.t.os, "k", 0, b, LEN, &get), 0, "%s: %s", cases[i].order,
                     get.diag.message);
        cr_expect_eq(memcmp(a, b, LEN), 0, "%s", cases[i].order);
        cr_expect_leq(put.attempts + get.attempts, cases[i].tries + 1, "%s: %u and %u attempts",
                      cases[i].order, put.attempts, get.attempts);
    }
    s3_end(&w);
}

Test(s3_fake, a_cut_read_goes_on_where_it_was_cut, .timeout = 60)
{
    enum { LEN = 1000000 };
    static uint8_t a[LEN], b[LEN];
    struct s3world w;
    unsigned long bytes;
    s3_begin(&w);
    fill(a, LEN, 6);
    cr_assert_eq(ot_put(w.t.os, "k", a, LEN, 0, NULL, NULL), 0);
    fakes3_order(&w.fake, "{\"op\":\"get\",\"truncate\":600000}");
    cr_assert_eq(ot_get(w.t.os, "k", 0, b, LEN, NULL), 0);
    cr_assert_eq(memcmp(a, b, LEN), 0);
    cr_assert_eq(logged(&w, "GET", "/k", &bytes), 2);
    cr_assert_lt(bytes, LEN + 300000, "what had arrived was not fetched again (%lu)", bytes);
    s3_end(&w);
}

Test(s3_fake, a_conditional_put_whose_answer_was_lost_asks_to_be_read_back, .timeout = 60)
{
    struct s3world w;
    struct obj_req r;
    char got[4];
    s3_begin(&w);
    fakes3_order(&w.fake, "{\"op\":\"put\",\"lost_reply\":true}");
    cr_assert_eq(ot_put(w.t.os, "k", "mine", 4, OBJ_IF_ABSENT, NULL, &r), -EEXIST);
    cr_assert(r.diag.unknown_outcome);
    cr_assert_eq(ot_get(w.t.os, "k", 0, got, 4, NULL), 0);
    cr_assert_eq(memcmp(got, "mine", 4), 0);
    s3_end(&w);
}

Test(s3_fake, contradictions_are_never_taken_for_data, .timeout = 60)
{
    static const char *const orders[] = {
        "{\"op\":\"get\",\"count\":0,\"content_range\":\"bytes 0-9/5\"}",
        "{\"op\":\"get\",\"count\":0,\"content_range\":\"bytes 7-16/1000\"}",
        "{\"op\":\"get\",\"count\":0,\"error_200\":\"InternalError\"}",
    };
    char got[10];
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        struct s3world w;
        s3_begin(&w);
        cr_assert_eq(ot_put(w.t.os, "k", "0123456789", 10, 0, NULL, NULL), 0);
        fakes3_order(&w.fake, orders[i]);
        cr_expect_lt(ot_get(w.t.os, "k", 0, got, 10, NULL), 0, "%s", orders[i]);
        s3_end(&w);
    }
}

Test(s3_fake, an_error_inside_a_200_of_a_completed_upload_is_an_error, .timeout = 60)
{
    struct s3world w;
    char etag[OBJ_ETAG_MAX];
    const char *etags[1] = {etag};
    s3_begin(&w);
    struct obj_req c = {.op = OBJ_MP_CREATE, .key = "mp"};
    cr_assert_eq(obj_run(w.t.os, &c), 0);
    cr_assert_eq(c_part(w.t.os, "mp", c.new_upload_id, 1, "part", 4, etag), 0);
    fakes3_order(&w.fake, "{\"op\":\"mp-complete\",\"count\":0,\"error_200\":\"AccessDenied\"}");
    struct obj_req f = {.op = OBJ_MP_COMPLETE,
                        .key = "mp",
                        .upload_id = c.new_upload_id,
                        .part_etags = etags,
                        .parts_n = 1};
    cr_assert_lt(obj_run(w.t.os, &f), 0);
    obj_req_done(&c);
    s3_end(&w);
}

Test(s3_fake, an_early_refusal_of_a_large_put_is_understood_or_survived, .timeout = 60)
{
    enum { LEN = 8 * 1024 * 1024 };
    struct s3world w;
    struct obj_req r;
    uint8_t *p = calloc(1, LEN);
    s3_begin(&w);
    fakes3_order(&w.fake, "{\"op\":\"put\",\"count\":0,\"status\":403,\"code\":\"AccessDenied\","
                          "\"early\":true}");
    cr_assert_lt(ot_put(w.t.os, "k", p, LEN, 0, NULL, &r), 0);
    cr_assert(r.err == -EACCES || r.err == -EIO, "%d", r.err);
    fakes3_clear(&w.fake);
    ot_until(ot_put(w.t.os, "k", p, LEN, 0, NULL, &r) == 0);
    free(p);
    s3_end(&w);
}

Test(s3_fake, a_stalled_request_can_be_cancelled, .timeout = 60)
{
    struct s3world w;
    struct ot_async a;
    char got[4], state[8192];
    s3_start(&w, NULL);
    w.t.conf.timeout_get_ms = 60000;
    ot_open(&w.t);
    cr_assert_eq(ot_put(w.t.os, "k", "0123", 4, 0, NULL, NULL), 0);
    fakes3_order(&w.fake, "{\"op\":\"get\",\"stall\":true}");
    ot_start(w.t.os, &a, OBJ_GET, "k", 0, got, 4);
    do
        fakes3_control(&w.fake, "GET", "/state", "", state, sizeof state);
    while (!strstr(state, "\"stalled\": 1"));
    int64_t t0 = clock_mono_ns();
    obj_cancel(w.t.os, &a.r);
    ot_until(atomic_load(&a.done));
    cr_assert_eq(a.r.err, -ECANCELED);
    cr_assert_lt(clock_mono_ns() - t0, 2 * NS_PER_SEC);
    s3_end(&w);
}

Test(s3_fake, slow_is_not_stalled, .timeout = 60)
{
    enum { LEN = 2000000 };
    static uint8_t a[LEN], b[LEN];
    struct s3world w;
    struct obj_req r;
    s3_begin(&w);
    fill(a, LEN, 8);
    cr_assert_eq(ot_put(w.t.os, "k", a, LEN, 0, NULL, NULL), 0);
    fakes3_control(&w.fake, "POST", "/bandwidth", "{\"bytes_per_s\": 1000000}", NULL, 0);
    int64_t t0 = clock_mono_ns();
    cr_assert_eq(ot_get(w.t.os, "k", 0, b, LEN, &r), 0);
    cr_assert_gt(clock_mono_ns() - t0, 1500 * NS_PER_MS, "it took longer than the time-out");
    cr_assert_eq(r.attempts, 1);
    cr_assert_eq(memcmp(a, b, LEN), 0);
    s3_end(&w);
}

Test(s3_fake, a_clock_that_is_off_mends_itself, .timeout = 60)
{
    struct s3world w;
    s3_begin(&w);
    fakes3_control(&w.fake, "POST", "/clock", "{\"skew_s\": 4000}", NULL, 0);
    cr_assert_eq(ot_put(w.t.os, "k", "v", 1, 0, NULL, NULL), 0);
    s3_end(&w);
}

Test(s3_fake, an_outage_opens_the_breaker_and_its_end_closes_it, .timeout = 60)
{
    struct s3world w;
    struct ot_async a;
    struct obj_req r;
    struct objstore_status st;
    char got[1];
    s3_begin(&w);
    cr_assert_eq(ot_put(w.t.os, "k", "v", 1, 0, NULL, NULL), 0);
    fakes3_order(&w.fake, "{\"count\":0,\"status\":500,\"code\":\"InternalError\"}");
    cr_assert_eq(ot_put(w.t.os, "k", "v", 1, 0, NULL, NULL), -EIO);
    cr_assert_eq(ot_put(w.t.os, "k", "v", 1, 0, NULL, &r), -EIO);
    cr_assert_str_eq(r.diag.code, "StoreDown");
    ot_start(w.t.os, &a, OBJ_GET, "k", OBJ_URGENT, got, 1);
    obj_status(w.t.os, &st);
    cr_assert_eq(st.health, OBJ_HEALTH_DOWN);
    cr_assert_eq(st.queued, 1);
    fakes3_clear(&w.fake);
    ot_until(atomic_load(&a.done));
    cr_assert_eq(a.r.err, 0);
    obj_status(w.t.os, &st);
    cr_assert_neq(st.health, OBJ_HEALTH_DOWN);
    s3_end(&w);
}

/* What is said to a user whose set-up is wrong. */
static void expect_why(struct s3world *w, int err, const char *want)
{
    struct store_caps c;
    char why[500];
    ot_open(&w->t);
    cr_expect_eq(store_probe(w->t.os, 3000, &c, why, sizeof why), err, "%s", why);
    cr_expect_not_null(strstr(why, want), "%s", why);
    s3_end(w);
}

Test(s3_fake, a_missing_bucket_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    set_url(&w, "other-bucket", "us-east-1", w.fake.port);
    expect_why(&w, -ENODEV, "create it");
}

Test(s3_fake, a_wrong_secret_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
    expect_why(&w, -EACCES, "secret key");
}

Test(s3_fake, an_unknown_key_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    setenv("AWS_ACCESS_KEY_ID", "NOBODY", 1);
    expect_why(&w, -EACCES, "not known");
}

Test(s3_fake, a_wrong_region_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    set_url(&w, "test-bucket", "eu-west-9", w.fake.port);
    expect_why(&w, -EIO, "region");
}

Test(s3_fake, an_unreachable_store_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    set_url(&w, "test-bucket", "us-east-1", 1);
    expect_why(&w, -EIO, "cannot be reached");
}

Test(s3_fake, an_expired_token_is_named, .timeout = 60)
{
    struct s3world w;
    s3_start(&w, NULL);
    fakes3_order(&w.fake, "{\"count\":0,\"status\":400,\"code\":\"ExpiredToken\"}");
    expect_why(&w, -EACCES, "expired");
}
