/* s3_classify: every outcome of a request as an error, with what the layers above decide by. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include "objstore/s3.h"

static struct obj_diag d;

static int answer(enum obj_op op, int status, const char *code)
{
    struct s3_outcome o = {
        .op = op, .end = HTTP_DONE, .status = status, .sent = true, .text = "", .region = ""};
    snprintf(o.error.code, sizeof(o.error.code), "%s", code);
    return s3_classify(&o, &d);
}

static int broken(enum obj_op op, enum http_end end, bool sent)
{
    struct s3_outcome o = {.op = op, .end = end, .sent = sent, .text = "words", .region = ""};
    return s3_classify(&o, &d);
}

Test(s3_classify, success_is_success)
{
    cr_assert(zero(int, answer(OBJ_PUT, 200, "")));
    cr_assert(zero(int, answer(OBJ_DELETE, 204, "")));
    cr_assert(zero(int, answer(OBJ_GET, 206, "")));
}

Test(s3_classify, answers_have_their_error_whether_the_code_came_or_not)
{
    static const struct {
        int status;
        const char *code;
        int err;
        bool retryable, unknown;
    } t[] = {
        {404, "NoSuchKey", -ENOENT, false, false},
        {404, "", -ENOENT, false, false},
        {404, "NoSuchBucket", -ENODEV, false, false},
        {404, "XAdminUserNotFound", -EACCES, false, false},
        {403, "AccessDenied", -EACCES, false, false},
        {403, "", -EACCES, false, false},
        {400, "ExpiredToken", -EACCES, false, false},
        {412, "PreconditionFailed", -EEXIST, false, false},
        {412, "", -EEXIST, false, false},
        {409, "ConditionalRequestConflict", -EIO, true, false},
        {409, "SomethingElse", -EIO, false, false},
        {400, "BadDigest", -EBADMSG, false, false},
        {400, "XAmzContentSHA256Mismatch", -EBADMSG, false, false},
        {400, "InvalidDigest", -EBADMSG, false, false},
        {400, "RequestTimeout", -EIO, true, false},
        {400, "EntityTooSmall", -EIO, false, false},
        {507, "", -ENOSPC, false, false},
        {403, "QuotaExceeded", -ENOSPC, false, false},
        {408, "", -EIO, true, true},
        {429, "", -EIO, true, false},
        {500, "InternalError", -EIO, true, true},
        {500, "", -EIO, true, true},
        {502, "", -EIO, true, true},
        {503, "SlowDown", -EIO, true, false},
        {503, "", -EIO, true, true},
        {504, "", -EIO, true, true},
        {501, "NotImplemented", -EOPNOTSUPP, false, false},
        {416, "InvalidRange", -EBADMSG, false, false},
        {200, "InternalError", -EIO, true, true},
        {200, "PreconditionFailed", -EEXIST, false, false},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        cr_assert(eq(int, answer(OBJ_PUT, t[i].status, t[i].code), t[i].err), "%d %s", t[i].status,
                  t[i].code);
        cr_assert(eq(int, d.retryable, t[i].retryable), "%d %s", t[i].status, t[i].code);
        cr_assert(eq(int, d.unknown_outcome, t[i].unknown), "%d %s", t[i].status, t[i].code);
        cr_assert(eq(int, d.http_status, t[i].status));
        cr_assert(eq(str, d.code, (char *)t[i].code));
        answer(OBJ_GET, t[i].status, t[i].code);
        cr_assert(not(d.unknown_outcome), "a read changes nothing: %d", t[i].status);
    }
}

Test(s3_classify, what_is_to_be_gone_and_is_not_there_is_success)
{
    cr_assert(zero(int, answer(OBJ_DELETE, 404, "NoSuchKey")));
    cr_assert(zero(int, answer(OBJ_MP_ABORT, 404, "NoSuchUpload")));
    cr_assert(eq(int, answer(OBJ_DELETE, 404, "NoSuchBucket"), -ENODEV));
    cr_assert(eq(int, answer(OBJ_MP_PART, 404, "NoSuchUpload"), -ENOENT));
}

Test(s3_classify, a_failed_condition_of_a_request_that_was_sent_twice_is_in_doubt)
{
    struct s3_outcome o = {.op = OBJ_PUT,
                           .end = HTTP_DONE,
                           .status = 412,
                           .sent = true,
                           .resent = true,
                           .text = "",
                           .region = ""};
    cr_assert(eq(int, s3_classify(&o, &d), -EEXIST));
    cr_assert(d.unknown_outcome);
}

Test(s3_classify, a_broken_connection_is_retryable_and_in_doubt_once_something_was_sent)
{
    cr_assert(eq(int, broken(OBJ_PUT, HTTP_UNREACHED, false), -EIO));
    cr_assert(d.retryable && !d.unknown_outcome);
    cr_assert(eq(int, broken(OBJ_PUT, HTTP_BROKEN, true), -EIO));
    cr_assert(d.retryable && d.unknown_outcome);
    cr_assert(eq(int, broken(OBJ_PUT, HTTP_BROKEN, false), -EIO));
    cr_assert(d.retryable && !d.unknown_outcome);
    cr_assert(eq(int, broken(OBJ_GET, HTTP_BROKEN, true), -EIO));
    cr_assert(d.retryable && !d.unknown_outcome);
    cr_assert(eq(int, broken(OBJ_PUT, HTTP_STALLED, true), -ETIMEDOUT));
    cr_assert(d.retryable && d.unknown_outcome);
    cr_assert(eq(int, broken(OBJ_PUT, HTTP_EXPIRED, false), -ETIMEDOUT));
    cr_assert(not(d.retryable || d.unknown_outcome));
    cr_assert(eq(int, broken(OBJ_DELETE, HTTP_CANCELLED, true), -ECANCELED));
    cr_assert(d.unknown_outcome);
    cr_assert(eq(str, d.message, "words"));
}

Test(s3_classify, an_untrusted_certificate_is_final_and_says_what_to_do)
{
    cr_assert(eq(int, broken(OBJ_GET, HTTP_UNTRUSTED, false), -EIO));
    cr_assert(not(d.retryable));
    cr_assert(ne(ptr, strstr(d.message, "AWS_CA_BUNDLE"), NULL));
}

Test(s3_classify, a_redirect_names_the_region)
{
    struct s3_outcome o = {
        .op = OBJ_GET, .end = HTTP_DONE, .status = 301, .text = "", .region = "eu-central-1"};
    cr_assert(eq(int, s3_classify(&o, &d), -EIO));
    cr_assert(not(d.retryable));
    cr_assert(ne(ptr, strstr(d.message, "region eu-central-1"), NULL), "%s", d.message);
    o.region = "";
    o.status = 307;
    s3_classify(&o, &d);
    cr_assert(ne(ptr, strstr(d.message, "region="), NULL), "%s", d.message);
    o.status = 400;
    snprintf(o.error.code, sizeof(o.error.code), "AuthorizationHeaderMalformed");
    snprintf(o.error.region, sizeof(o.error.region), "us-west-2");
    s3_classify(&o, &d);
    cr_assert(ne(ptr, strstr(d.message, "us-west-2"), NULL), "%s", d.message);
}

Test(s3_classify, failures_on_our_side_are_told_in_the_words_of_the_contract)
{
    struct s3_outcome o = {.op = OBJ_PUT,
                           .end = HTTP_REFUSED,
                           .local_err = -ENOMEM,
                           .transient = true,
                           .text = "out of memory",
                           .region = ""};
    cr_assert(eq(int, s3_classify(&o, &d), -EIO));
    cr_assert(eq(str, d.code, "ENOMEM"));
    cr_assert(d.retryable && !d.unknown_outcome);
    o.local_err = -EINVAL;
    o.transient = false;
    cr_assert(eq(int, s3_classify(&o, &d), -EINVAL));
    cr_assert(not(d.retryable));
}
