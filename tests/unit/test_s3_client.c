/* The S3 client against a server that misbehaves on purpose: what real servers cannot be made to do.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <time.h>
#include "fs/base/clock.h"
#include "fs/base/lock.h"
#include "objstore/stack.h"
#include "test_s3_fake.h"

static struct fake fake;
static struct objstore *store;
static struct store_conf conf;

static void setup(void)
{
    char url[128];
    char why[256];

    setenv("AWS_ACCESS_KEY_ID", "testkey", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "testsecret", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_PROFILE");
    fake_start(&fake);
    snprintf(url, sizeof(url), "s3://bkt/p?endpoint=http://127.0.0.1:%u", fake.port);
    cr_assert(zero(int, store_url_parse(url, &conf.url, why, sizeof(why))), "%s", why);
    conf.timeout_get_ms = conf.timeout_put_ms = conf.timeout_small_ms = 5000;
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))), "%s", why);
}

static void teardown(void)
{
    obj_close(store);
    fake_stop(&fake);
}

static void no_done(struct obj_req *r)
{
    (void)r;
}

static char buf[256 * 1024];

static uint64_t told;

static void on_progress(struct obj_req *r, uint64_t got)
{
    (void)r;
    told = got;
}

static struct obj_req get(uint64_t off, size_t n)
{
    static struct iovec v;
    memset(buf, 'x', sizeof(buf));
    v = (struct iovec){buf, n};
    struct obj_req r = {.op = OBJ_GET,
                        .key = "k",
                        .off = off,
                        .len = n,
                        .iov = &v,
                        .iov_n = 1,
                        .progress = on_progress,
                        .done = no_done};
    obj_run(store, &r);
    return r;
}

static struct obj_req put(const void *p, size_t n, unsigned flags)
{
    struct obj_body body = {.mem = p, .len = n};
    struct obj_req r = {
        .op = OBJ_PUT, .key = "k", .body = &body, .body_n = 1, .flags = flags, .done = no_done};
    obj_run(store, &r);
    r.body = NULL;
    return r;
}

/* What the server says is set by the test. */
static const char *say_status, *say_headers, *say_body;

static bool say(struct fake *f, int fd, const char *head, const char *body, size_t n, unsigned nth)
{
    (void)f, (void)head, (void)body, (void)n, (void)nth;
    fake_answer(fd, say_status, say_headers, say_body);
    return true;
}

static struct obj_req get_told(const char *status, const char *headers, const char *body,
                               uint64_t off, size_t n)
{
    say_status = status;
    say_headers = headers;
    say_body = body;
    fake.answer = say;
    return get(off, n);
}

TestSuite(s3_client, .init = setup, .fini = teardown, .timeout = 60);

Test(s3_client, a_right_range_is_placed)
{
    struct obj_req r =
        get_told("206 Partial Content", "Content-Range: bytes 10-14/100\r\n", "hello", 10, 5);
    cr_assert(zero(int, r.err));
    cr_assert(zero(int, memcmp(buf, "hellox", 6)));
    cr_assert(eq(u64, r.info.size, 100));
}

Test(s3_client, no_byte_of_a_wrong_answer_is_placed)
{
    static const struct {
        const char *status, *headers, *body;
        int err;
    } t[] = {
        {"206 Partial Content", "Content-Range: bytes 11-15/100\r\n", "hello", -EBADMSG},
        {"206 Partial Content", "Content-Range: bytes 10-13/100\r\n", "hell", -EBADMSG},
        {"206 Partial Content", "Content-Range: bytes 10-15/100\r\n", "hello!", -EBADMSG},
        {"206 Partial Content", "Content-Range: bytes 10-14/14\r\n", "hello", -EBADMSG},
        {"206 Partial Content", "Content-Range: bytes 10-14/100\r\n", "hello!", -EBADMSG},
        {"206 Partial Content", "Content-Range: lines 10-14/100\r\n", "hello", -EBADMSG},
        {"206 Partial Content", "Content-Range: bytes 10-14/x\r\n", "hello", -EBADMSG},
        {"206 Partial Content", "", "hello", -EBADMSG},
        {"200 OK", "", "the whole object", -EOPNOTSUPP},
        {"200 OK", "", "hello", -EOPNOTSUPP},
        {"203 Odd", "", "hello", -EBADMSG},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct obj_req r = get_told(t[i].status, t[i].headers, t[i].body, 10, 5);
        cr_assert(eq(int, r.err, t[i].err), "%zu: %s", i, r.diag.message);
        cr_assert(eq(int, buf[0], 'x'), "%zu", i);
        cr_assert(not(r.diag.retryable), "%zu", i);
    }
}

Test(s3_client, status_200_is_good_for_the_whole_object_only)
{
    struct obj_req r = get_told("200 OK", "ETag: \"e\"\r\n", "hello", 0, 5);
    cr_assert(zero(int, r.err));
    cr_assert(eq(u64, r.info.size, 5));
    cr_assert(eq(str, r.info.etag, "\"e\""));
    cr_assert(eq(int, get_told("200 OK", "", "hello!", 0, 5).err, -EOPNOTSUPP));
}

Test(s3_client, an_error_document_never_reaches_the_callers_memory)
{
    struct obj_req r = get_told("503 Slow Down", "Retry-After: 7\r\n",
                                "<Error><Code>SlowDown</Code><Message>easy</Message>"
                                "<RequestId>R9</RequestId></Error>",
                                0, 5);
    char text[256];
    cr_assert(eq(int, r.err, -EIO));
    cr_assert(r.diag.retryable);
    cr_assert(eq(uint, r.diag.retry_after_ms, 7000));
    cr_assert(eq(int, buf[0], 'x'));
    cr_assert(
        eq(str, (char *)obj_diag_text(&r, text, sizeof(text)), "503 SlowDown: easy (request R9)"));
}

/* As a message: what the request was signed with, or a part so long that it is cut in the key. */
static bool echo(struct fake *f, int fd, const char *head, const char *body, size_t n, unsigned nth)
{
    (void)body, (void)n, (void)nth;
    const char *auth = strcasestr(head, "authorization: ") + 15;
    const char *sig = strstr(auth, "Signature=") + 10;
    char text[512], doc[1024];
    int long_ago = *(int *)f->arg;
    snprintf(text, sizeof(text), "%.*skey %s, wrong: %.64s", long_ago,
             "...................................................................................."
             "....................................................................",
             getenv("AWS_ACCESS_KEY_ID"), sig);
    snprintf(
        doc, sizeof(doc),
        "<Error><Code>SignatureDoesNotMatch</Code><Message>%s</Message><RequestId>%s</RequestId>"
        "</Error>",
        text, getenv("AWS_SECRET_ACCESS_KEY"));
    fake_answer(fd, "403 Forbidden", "", doc);
    return true;
}

Test(s3_client, what_a_request_was_signed_with_is_blanked_in_what_the_store_says_of_it)
{
    char text[512];
    for (int at = 0; at < 152; at++) {
        fake.answer = echo;
        fake.arg = &at;
        struct obj_req r = get(0, 5);
        cr_assert(eq(int, r.err, -EACCES));
        obj_diag_text(&r, text, sizeof(text));
        cr_assert(zero(ptr, strstr(text, "testke")), "%s", text);
        cr_assert(zero(ptr, strstr(text, "testse")), "%s", text);
        const char *sig = strstr(text, "wrong: ");
        cr_assert(not(sig && strspn(sig + 7, "0123456789abcdef") >= 6), "%s", text);
        cr_assert(not(zero(ptr, strstr(text, "SignatureDoesNotMatch"))), "%s", text);
    }
}

Test(s3_client, a_secret_of_a_letter_takes_no_words_along)
{
    char text[256];
    obj_close(store);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_ACCESS_KEY_ID", "Access", 1); /* a code's word: the code is compared, so it stays */
    cr_assert(zero(int, s3_open(&conf, &store, text, sizeof(text))));
    struct obj_req r = get_told("403 Forbidden", "",
                                "<Error><Code>InvalidAccessKeyId</Code><Message>says Access"
                                "</Message></Error>",
                                0, 5);
    cr_assert(eq(str, r.diag.code, "InvalidAccessKeyId"));
    cr_assert(eq(str, r.diag.message, "says ******"));
}

static bool cut_body(struct fake *f, int fd, const char *head, const char *body, size_t n,
                     unsigned nth)
{
    (void)f, (void)head, (void)body, (void)n, (void)nth;
    fake_write(fd, "HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n"
                   "ETag: \"v1\"\r\n\r\nhel");
    return false;
}

Test(s3_client, an_answer_that_ends_early_is_worth_repeating_from_where_it_ended)
{
    fake.answer = cut_body;
    told = 0;
    struct obj_req r = get(0, 5);
    cr_assert(eq(int, r.err, -EIO));
    cr_assert(r.diag.retryable);
    cr_assert(eq(u64, told, 3));
    cr_assert(eq(str, r.info.etag, "\"v1\""));
}

/* Five bytes, 100 ms apart; then, if arg says so, silence. */
static bool trickle(struct fake *f, int fd, const char *head, const char *body, size_t n,
                    unsigned nth)
{
    (void)head, (void)body, (void)n, (void)nth;
    fake_write(fd, "HTTP/1.1 206 P\r\nContent-Length: %d\r\nContent-Range: bytes 0-%d/9\r\n\r\n",
               f->arg ? 6 : 5, f->arg ? 5 : 4);
    for (int i = 0; i < 5; i++) {
        usleep(100000);
        fake_write(fd, "x");
    }
    return true;
}

Test(s3_client, time_outs_count_from_the_last_byte)
{
    char why[256];
    fake.answer = trickle;
    obj_close(store);
    conf.timeout_get_ms = 300;
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    struct obj_req r = get(0, 5);
    cr_assert(zero(int, r.err), "%s", r.diag.message);
    fake.arg = "stall";
    r = get(0, 6);
    cr_assert(eq(int, r.err, -ETIMEDOUT));
    cr_assert(r.diag.retryable);
    cr_assert(eq(u64, told, 5));
}

static bool no_length(struct fake *f, int fd, const char *head, const char *body, size_t n,
                      unsigned nth)
{
    (void)f, (void)head, (void)body, (void)n, (void)nth;
    fake_write(fd, "HTTP/1.1 206 P\r\nContent-Range: bytes 0-4/5\r\nConnection: close\r\n\r\n%s",
               (const char *)f->arg);
    return false;
}

Test(s3_client, without_a_length_the_count_of_bytes_must_still_be_right)
{
    fake.answer = no_length;
    fake.arg = "hel";
    struct obj_req r = get(0, 5);
    cr_assert(eq(int, r.err, -EIO));
    cr_assert(r.diag.retryable);
    fake.arg = "hello, world";
    cr_assert(eq(int, get(0, 5).err, -EBADMSG));
    fake.arg = "hello";
    cr_assert(zero(int, get(0, 5).err));
}

static bool late_error(struct fake *f, int fd, const char *head, const char *body, size_t n,
                       unsigned nth)
{
    (void)f, (void)head, (void)body, (void)n, (void)nth;
    fake_answer(fd, "200 OK", "", "\n\n <Error><Code>InternalError</Code></Error>");
    return true;
}

Test(s3_client, an_error_behind_status_200_is_an_error)
{
    fake.answer = late_error;
    const char *etags[] = {"\"a\""};
    struct obj_req r = {.op = OBJ_MP_COMPLETE,
                        .key = "k",
                        .upload_id = "u",
                        .part_etags = etags,
                        .parts_n = 1,
                        .done = no_done};
    cr_assert(eq(int, obj_run(store, &r), -EIO));
    cr_assert(eq(str, r.diag.code, "InternalError"));
    cr_assert(r.diag.retryable && r.diag.unknown_outcome);
}

static char rows[4][64];
static unsigned rows_n;

static void on_row(struct obj_req *r, const struct obj_entry *e)
{
    (void)r;
    cr_assert(lt(uint, rows_n, 4));
    snprintf(rows[rows_n++], 64, "%s", e->key);
}

static bool uploads(struct fake *f, int fd, const char *head, const char *body, size_t n,
                    unsigned nth)
{
    (void)f, (void)body, (void)n, (void)nth;
    if (strstr(head, "key-marker=p%2Fa%26%20b&prefix=p%2F&upload-id-marker=id%2F1&uploads= "))
        fake_answer(fd, "200 OK", "",
                    "<ListMultipartUploadsResult><Upload><Key>p/c</Key><UploadId>2</UploadId>"
                    "</Upload></ListMultipartUploadsResult>");
    else
        fake_answer(fd, "200 OK", "",
                    "<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
                    "<IsTruncated>true</IsTruncated><NextKeyMarker>p/a%26+b</NextKeyMarker>"
                    "<NextUploadIdMarker>id/1</NextUploadIdMarker><Upload><Key>p/a%26+b</Key>"
                    "<UploadId>id/1</UploadId></Upload></ListMultipartUploadsResult>");
    return true;
}

Test(s3_client, uploads_in_progress_are_paged_by_both_markers)
{
    fake.answer = uploads;
    struct obj_req r = {.op = OBJ_MP_LIST, .each = on_row, .done = no_done};
    cr_assert(zero(int, obj_run(store, &r)), "%s", r.diag.message);
    cr_assert(ne(ptr, r.next_token, NULL));
    char *token = r.next_token;
    r.next_token = NULL;
    r.token = token;
    cr_assert(zero(int, obj_run(store, &r)), "%s", r.diag.message);
    cr_assert(eq(ptr, r.next_token, NULL));
    free(token);
    cr_assert(eq(uint, rows_n, 2));
    cr_assert(eq(str, rows[0], "a& b"));
    cr_assert(eq(str, rows[1], "c"));
    r.token = "not one of ours";
    cr_assert(eq(int, obj_run(store, &r), -EINVAL));
}

Test(s3_client, a_listing_that_leaves_its_prefix_is_refused)
{
    say_status = "200 OK";
    say_headers = "";
    say_body = "<ListBucketResult><Contents><Key>q/x</Key><Size>1</Size></Contents>"
               "</ListBucketResult>";
    fake.answer = say;
    struct obj_req r = {.op = OBJ_LIST, .key = "", .each = on_row, .done = no_done};
    cr_assert(eq(int, obj_run(store, &r), -EBADMSG));
    cr_assert(zero(uint, rows_n));
}

Test(s3_client, a_key_that_is_too_long_with_its_prefix_is_never_sent)
{
    char key[OBJ_KEY_MAX];
    memset(key, 'k', sizeof(key) - 2);
    key[sizeof(key) - 2] = '\0';
    struct obj_req r = {.op = OBJ_HEAD, .key = key, .done = no_done};
    cr_assert(eq(int, obj_run(store, &r), -EINVAL));
    cr_assert(zero(uint, atomic_load(&fake.requests)));
}

/* Skewed until the request is dated like the server's clock. */
static bool skewed(struct fake *f, int fd, const char *head, const char *body, size_t n,
                   unsigned nth)
{
    char date[64];
    char header[128];
    char today[16];
    time_t t = time(NULL) + 3 * 86400;
    struct tm tm;
    (void)f, (void)body, (void)n, (void)nth;
    gmtime_r(&t, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    strftime(today, sizeof(today), "%Y%m%d", &tm);
    snprintf(header, sizeof(header), "Date: %s\r\n", date);
    const char *sent = strcasestr(head, "x-amz-date: ");
    if (strncmp(head, "HEAD", 4) == 0)
        fake_answer(fd, "403 Forbidden", header, "");
    else if (sent && strncmp(sent + 12, today, 8) != 0)
        fake_answer(fd, "403 Forbidden", header,
                    "<Error><Code>RequestTimeTooSkewed</Code></Error>");
    else
        fake_answer(fd, "200 OK", header, "");
    return false;
}

Test(s3_client, a_wrong_clock_is_corrected_once_from_the_stores)
{
    fake.answer = skewed;
    struct obj_req r = put("abc", 3, 0);
    cr_assert(eq(int, r.err, -EACCES));
    cr_assert(r.diag.retryable, "%s", r.diag.message);
    r = put("abc", 3, 0);
    cr_assert(zero(int, r.err), "%s", r.diag.message);
    struct obj_req h = {.op = OBJ_HEAD, .key = "k", .done = no_done};
    cr_assert(eq(int, obj_run(store, &h), -EACCES));
    cr_assert(not(h.diag.retryable), "the clock is right now: this refusal means something else");
}

static bool redirect(struct fake *f, int fd, const char *head, const char *body, size_t n,
                     unsigned nth)
{
    (void)head, (void)body, (void)n, (void)nth;
    char headers[256];
    snprintf(headers, sizeof(headers),
             "Location: http://127.0.0.1:%u/elsewhere\r\nx-amz-bucket-region: eu-west-3\r\n",
             f->port);
    fake_answer(fd, "307 Temporary Redirect", headers, "");
    return true;
}

Test(s3_client, redirects_are_not_followed_but_explained)
{
    fake.answer = redirect;
    struct obj_req r = get(0, 5);
    cr_assert(eq(int, r.err, -EIO));
    cr_assert(ne(ptr, strstr(r.diag.message, "eu-west-3"), NULL), "%s", r.diag.message);
    cr_assert(eq(uint, atomic_load(&fake.requests), 1));
}

/* Does the work, but the first connection dies before the answer; the second finds it done. */
static bool lost_answer(struct fake *f, int fd, const char *head, const char *body, size_t n,
                        unsigned nth)
{
    (void)f, (void)head, (void)body, (void)n;
    if (nth == 1) { /* a connection that is kept */
        fake_answer(fd, "200 OK", "ETag: \"0\"\r\n", "");
        return true;
    }
    if (nth == 2)
        return false;
    fake_answer(fd, "412 Precondition Failed", "",
                "<Error><Code>PreconditionFailed</Code></Error>");
    return true;
}

Test(s3_client, a_condition_that_fails_after_a_silent_resend_is_in_doubt)
{
    fake.answer = lost_answer;
    cr_assert(zero(int, put("abc", 3, 0).err));
    struct obj_req r = put("abc", 3, OBJ_IF_ABSENT);
    cr_assert(eq(int, r.err, -EEXIST), "%s", r.diag.message);
    cr_assert(eq(uint, atomic_load(&fake.requests), 3));
    cr_assert(r.diag.unknown_outcome);
}

Test(s3_client, so_it_is_for_a_request_without_a_body)
{
    fake.answer = lost_answer;
    cr_assert(zero(int, put("abc", 3, 0).err));
    struct obj_req r = {
        .op = OBJ_DELETE, .key = "k", .flags = OBJ_IF_MATCH, .etag = "\"e\"", .done = no_done};
    cr_assert(eq(int, obj_run(store, &r), -EEXIST), "%s", r.diag.message);
    cr_assert(r.diag.unknown_outcome);
}

static bool refuse_and_reset(struct fake *f, int fd, const char *head, const char *body, size_t n,
                             unsigned nth)
{
    struct linger now = {1, 0};
    (void)f, (void)head, (void)body, (void)n, (void)nth;
    fake_answer(fd, "403 Forbidden", "Connection: close\r\n",
                "<Error><Code>AccessDenied</Code></Error>");
    usleep(20000);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(dup(fd));
    return false;
}

Test(s3_client, the_refusal_of_a_large_upload_is_heard_though_the_connection_is_reset)
{
    enum { SIZE = 8 << 20 };
    char *data = calloc(1, SIZE);
    fake.answer = refuse_and_reset;
    fake.early = true;
    for (int i = 0; i < 5; i++) {
        struct obj_req r = put(data, SIZE, 0);
        cr_assert(eq(int, r.err, -EACCES), "%s", r.diag.message);
        cr_assert(eq(int, r.diag.http_status, 403));
        cr_assert(eq(str, r.diag.code, "AccessDenied"));
    }
    free(data);
}

static bool refuse_key(struct fake *f, int fd, const char *head, const char *body, size_t n,
                       unsigned nth)
{
    (void)f, (void)body, (void)n, (void)nth;
    if (strstr(head, "Credential=fresh/"))
        fake_answer(fd, "200 OK", "", "");
    else
        fake_answer(fd, "400 Bad Request", "", "<Error><Code>ExpiredToken</Code></Error>");
    return true;
}

static void write_key(const char *path, const char *id)
{
    FILE *f = fopen(path, "w");
    fprintf(f, "[default]\naws_access_key_id = %s\naws_secret_access_key = s\n", id);
    fclose(f);
}

Test(s3_client, an_expired_key_is_read_again_from_its_file)
{
    char path[] = "/tmp/s3cred-XXXXXX";
    char why[256];
    close(mkstemp(path));
    write_key(path, "stale");
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    fake.answer = refuse_key;
    obj_close(store);
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    struct obj_req r = put("abc", 3, 0);
    cr_assert(eq(int, r.err, -EACCES));
    cr_assert(r.diag.retryable, "once");
    r = put("abc", 3, 0);
    cr_assert(eq(int, r.err, -EACCES));
    cr_assert(not(r.diag.retryable), "the same key again");
    write_key(path, "fresh");
    r = put("abc", 3, 0);
    cr_assert(eq(int, r.err, -EACCES));
    cr_assert(r.diag.retryable, "there is another key now");
    cr_assert(zero(int, put("abc", 3, 0).err));
    unlink(path);
}

Test(s3_client, without_any_key_the_places_are_named)
{
    char why[256];
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    obj_close(store);
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    struct obj_req r = put("abc", 3, 0);
    cr_assert(eq(int, r.err, -EACCES));
    cr_assert(not(r.diag.retryable));
    cr_assert(ne(ptr, strstr(r.diag.message, "AWS_ACCESS_KEY_ID"), NULL), "%s", r.diag.message);
    cr_assert(zero(uint, atomic_load(&fake.requests)));
}

/* The instance metadata service and the store, on one port. */
static bool imds(struct fake *f, int fd, const char *head, const char *body, size_t n, unsigned nth)
{
    (void)f, (void)body, (void)n, (void)nth;
    if (strncmp(head, "PUT /latest/api/token ", 22) == 0)
        fake_answer(fd, "200 OK", "", "TOKEN");
    else if (!strstr(head, "/latest/"))
        fake_answer(fd,
                    strstr(head, "Credential=imds/") &&
                            strcasestr(head, "x-amz-security-token: SESSION\r\n")
                        ? "200 OK"
                        : "403 F",
                    "", "");
    else if (!strcasestr(head, "X-aws-ec2-metadata-token: TOKEN\r\n"))
        fake_answer(fd, "401 Unauthorized", "", "");
    else if (strstr(head, "/security-credentials/ "))
        fake_answer(fd, "200 OK", "", "a-role\n");
    else if (strstr(head, "/security-credentials/a-role "))
        fake_answer(fd, "200 OK", "",
                    "{\"Code\":\"Success\",\"AccessKeyId\":\"imds\",\"SecretAccessKey\":\"x\\/y\","
                    "\"Token\":\"SESSION\",\"Expiration\":\"2099-01-01T00:00:00Z\"}");
    else
        fake_answer(fd, "404 N", "", "");
    return true;
}

Test(s3_client, instance_metadata_gives_a_key_while_requests_wait)
{
    char why[256];
    char endpoint[64];
    struct obj_req r[20];
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u/", fake.port);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint, 1);
    fake.answer = imds;
    obj_close(store);
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    for (int i = 0; i < 20; i++) {
        r[i] = put("abc", 3, 0);
        cr_assert(zero(int, r[i].err), "%s", r[i].diag.message);
    }
    cr_assert(eq(uint, atomic_load(&fake.requests), 23));
}

static bool container(struct fake *f, int fd, const char *head, const char *body, size_t n,
                      unsigned nth)
{
    (void)f, (void)body, (void)n, (void)nth;
    if (strncmp(head, "GET /creds ", 11) != 0)
        fake_answer(fd, strstr(head, "Credential=box/") ? "200 OK" : "403 F", "", "");
    else if (strcasestr(head, "Authorization: secret-token\r\n"))
        fake_answer(fd, "200 OK", "",
                    "{\"AccessKeyId\":\"box\",\"SecretAccessKey\":\"s\",\"Token\":\"t\","
                    "\"Expiration\":\"2099-01-01T00:00:00Z\"}");
    else
        fake_answer(fd, "403 F", "", "");
    return true;
}

Test(s3_client, a_container_service_gives_a_key)
{
    char why[256];
    char uri[64];
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    snprintf(uri, sizeof(uri), "http://127.0.0.1:%u/creds", fake.port);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri, 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret-token", 1);
    fake.answer = container;
    obj_close(store);
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    struct obj_req r = put("abc", 3, 0);
    cr_assert(zero(int, r.err), "%s", r.diag.message);
}

static bool sts(struct fake *f, int fd, const char *head, const char *body, size_t n, unsigned nth)
{
    (void)f, (void)n, (void)nth;
    if (strncmp(head, "POST / ", 7) != 0)
        fake_answer(fd, strstr(head, "Credential=web/") ? "200 OK" : "403 F", "", "");
    else if (strstr(body, "WebIdentityToken=jwt.a%2Bb") && strstr(body, "RoleArn=arn%3Aaws"))
        fake_answer(fd, "200 OK", "",
                    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                    "<Credentials><AccessKeyId>web</AccessKeyId>"
                    "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
                    "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
                    "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>");
    else
        fake_answer(fd, "400 B", "", "");
    return true;
}

Test(s3_client, a_web_identity_is_exchanged_for_a_key)
{
    char path[] = "/tmp/s3web-XXXXXX";
    char why[256];
    char uri[64];
    int fd = mkstemp(path);
    cr_assert(eq(int, (int)write(fd, "jwt.a+b\n", 8), 8));
    close(fd);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", path, 1);
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x", 1);
    snprintf(uri, sizeof(uri), "http://127.0.0.1:%u", fake.port);
    setenv("AWS_ENDPOINT_URL_STS", uri, 1);
    fake.answer = sts;
    obj_close(store);
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    struct obj_req r = put("abc", 3, 0);
    cr_assert(zero(int, r.err), "%s", r.diag.message);
    unlink(path);
}

/* ---- order ---- */

static struct {
    pthread_mutex_t m;
    pthread_cond_t c;
    bool open;
    unsigned waiting, most;
    char order[64][8];
    unsigned n;
} gate = {.m = PTHREAD_MUTEX_INITIALIZER, .c = PTHREAD_COND_INITIALIZER};

static bool at_gate(struct fake *f, int fd, const char *head, const char *body, size_t n,
                    unsigned nth)
{
    (void)f, (void)body, (void)n, (void)nth;
    pthread_mutex_lock(&gate.m);
    snprintf(gate.order[gate.n++], 8, "%.3s", strstr(head, "/p/") + 3);
    gate.waiting++;
    if (gate.waiting > gate.most)
        gate.most = gate.waiting;
    pthread_cond_broadcast(&gate.c);
    while (!gate.open)
        pthread_cond_wait(&gate.c, &gate.m);
    gate.waiting--;
    pthread_mutex_unlock(&gate.m);
    fake_answer(fd, "200 OK", "", "");
    return true;
}

static struct {
    struct lock lock;
    pthread_cond_t c;
    unsigned left;
} ends;

static void one_end(struct obj_req *r)
{
    (void)r;
    LOCK_SCOPE(&ends.lock);
    ends.left--;
    pthread_cond_signal(&ends.c);
}

static void wait_at_gate(unsigned n)
{
    pthread_mutex_lock(&gate.m);
    while (gate.waiting < n)
        pthread_cond_wait(&gate.c, &gate.m);
    pthread_mutex_unlock(&gate.m);
}

Test(s3_client, urgent_requests_find_room_beside_and_before_a_backlog_of_uploads)
{
    enum { UPLOADS = 30, URGENT = 2 };
    static struct obj_req r[UPLOADS + URGENT];
    struct obj_body body = {.mem = "x", .len = 1};
    char why[256];
    struct objstore_status st;
    fake.answer = at_gate;
    obj_close(store);
    conf.connections = 4;
    cr_assert(zero(int, s3_open(&conf, &store, why, sizeof(why))));
    lock_init(&ends.lock, "ends", RANK_STORE, false);
    cond_init(&ends.c);
    ends.left = UPLOADS + URGENT;
    for (unsigned i = 0; i < UPLOADS; i++) {
        r[i] = (struct obj_req){
            .op = OBJ_PUT, .key = "upl", .body = &body, .body_n = 1, .done = one_end};
        obj_submit(store, &r[i]);
    }
    wait_at_gate(3); /* three quarters of four */
    for (unsigned i = UPLOADS; i < UPLOADS + URGENT; i++) {
        r[i] = (struct obj_req){.op = OBJ_PUT,
                                .key = "urg",
                                .body = &body,
                                .body_n = 1,
                                .flags = OBJ_URGENT,
                                .done = one_end};
        obj_submit(store, &r[i]);
    }
    wait_at_gate(4);
    cr_assert(eq(str, gate.order[3], "urg"), "the reserved connection");
    obj_cancel(store, &r[UPLOADS - 1]);
    lock_acquire(&ends.lock);
    while (ends.left == UPLOADS + URGENT)
        lock_wait(&ends.lock, &ends.c);
    lock_release(&ends.lock);
    cr_assert(eq(int, r[UPLOADS - 1].err, -ECANCELED), "one that waits ends at once");
    obj_status(store, &st);
    cr_assert(eq(u64, st.in_flight, 4));
    cr_assert(eq(u64, st.queued, UPLOADS + URGENT - 5));
    pthread_mutex_lock(&gate.m);
    gate.open = true;
    pthread_cond_broadcast(&gate.c);
    pthread_mutex_unlock(&gate.m);
    lock_acquire(&ends.lock);
    while (ends.left)
        lock_wait(&ends.lock, &ends.c);
    lock_release(&ends.lock);
    bool soon = false;
    for (unsigned i = 4; i < 8; i++)
        soon = soon || strcmp(gate.order[i], "urg") == 0;
    cr_assert(soon, "among the next four, before the 27 uploads that were there first");
    cr_assert(le(uint, gate.most, 4));
    cr_assert(eq(uint, gate.n, UPLOADS + URGENT - 1));
}

Test(s3_client, a_name_that_was_not_found_does_not_spoil_later_requests)
{
    struct store_conf other = conf;
    char why[256];

    obj_close(store);
    cr_assert(zero(int, store_url_parse("s3://bkt/p?endpoint=http://no.such.host.invalid",
                                        &other.url, why, sizeof(why))));
    cr_assert(zero(int, s3_open(&other, &store, why, sizeof(why))), "%s", why);
    for (int i = 0; i < 3; i++) {
        struct obj_req r = get(0, 10);
        cr_expect(eq(int, r.err, -EIO));
        cr_expect(r.diag.retryable);
        cr_expect(eq(str, r.diag.code, "Unreachable"), "try %d: %s: %s", i, r.diag.code,
                  r.diag.message);
        obj_req_done(&r);
    }
}
