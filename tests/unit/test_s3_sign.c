/* The signer against the worked examples that the protocol's owner publishes. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include "objstore/s3_sign.h"

static const struct s3_key example_key = {
    .id = "AKIAIOSFODNN7EXAMPLE",
    .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
};
static const struct s3_key suite_key = {
    .id = "AKIDEXAMPLE",
    .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
};
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void expect_signature(const struct s3_sign_in *in, const char *signature)
{
    struct sbuf b = {0};

    s3_sign(&b, in);
    cr_assert(not(b.bad));
    const char *at = strstr(b.p, "Signature=");
    cr_assert(ne(ptr, (void *)at, NULL));
    cr_assert(eq(str, (char *)at + 10, (char *)signature), "canonical form differs");
    sbuf_free(&b);
}

Test(s3_sign, ranged_get_of_the_documentation)
{
    const struct s3_pair h[] = {
        {"host", "examplebucket.s3.amazonaws.com"},
        {"range", "bytes=0-9"},
        {"x-amz-content-sha256", EMPTY_SHA256},
        {"x-amz-date", "20130524T000000Z"},
    };
    struct s3_sign_in in = {.method = "GET",
                            .path = "/test.txt",
                            .query = "",
                            .headers = h,
                            .headers_n = 4,
                            .payload_hash = EMPTY_SHA256,
                            .region = "us-east-1",
                            .service = "s3",
                            .amz_date = "20130524T000000Z",
                            .key = &example_key};
    expect_signature(&in, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

Test(s3_sign, put_of_the_documentation_encodes_the_key_and_sorts_headers)
{
    struct sbuf path = {0};
    s3_encode(&path, "/test$file.text", true);
    cr_assert(eq(str, path.p, "/test%24file.text"));
    uint8_t hash[SHA256_BYTES];
    char hex[65];
    sha256_once("Welcome to Amazon S3.", 21, hash);
    s3_hex(hash, sizeof(hash), hex);
    const struct s3_pair h[] = {
        {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
        {"x-amz-date", "20130524T000000Z"},
        {"date", "Fri, 24 May 2013 00:00:00 GMT"},
        {"host", "examplebucket.s3.amazonaws.com"},
        {"x-amz-content-sha256", hex},
    };
    struct s3_sign_in in = {.method = "PUT",
                            .path = path.p,
                            .query = "",
                            .headers = h,
                            .headers_n = 5,
                            .payload_hash = hex,
                            .region = "us-east-1",
                            .service = "s3",
                            .amz_date = "20130524T000000Z",
                            .key = &example_key};
    expect_signature(&in, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    sbuf_free(&path);
}

static void sign_bucket_get(const struct s3_pair *params, unsigned n, const char *query,
                            const char *signature)
{
    struct sbuf q = {0};
    s3_query(&q, params, n);
    cr_assert(eq(str, q.p, (char *)query));
    const struct s3_pair h[] = {
        {"host", "examplebucket.s3.amazonaws.com"},
        {"x-amz-content-sha256", EMPTY_SHA256},
        {"x-amz-date", "20130524T000000Z"},
    };
    struct s3_sign_in in = {.method = "GET",
                            .path = "/",
                            .query = q.p,
                            .headers = h,
                            .headers_n = 3,
                            .payload_hash = EMPTY_SHA256,
                            .region = "us-east-1",
                            .service = "s3",
                            .amz_date = "20130524T000000Z",
                            .key = &example_key};
    expect_signature(&in, signature);
    sbuf_free(&q);
}

Test(s3_sign, bucket_lifecycle_of_the_documentation)
{
    sign_bucket_get((struct s3_pair[]){{"lifecycle", ""}}, 1, "lifecycle=",
                    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

Test(s3_sign, list_objects_of_the_documentation_with_parameters_out_of_order)
{
    sign_bucket_get((struct s3_pair[]){{"prefix", "J"}, {"max-keys", "2"}}, 2,
                    "max-keys=2&prefix=J",
                    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

Test(s3_sign, get_vanilla_of_the_test_suite)
{
    const struct s3_pair h[] = {
        {"host", "example.amazonaws.com"},
        {"x-amz-date", "20150830T123600Z"},
    };
    struct s3_sign_in in = {.method = "GET",
                            .path = "/",
                            .query = "",
                            .headers = h,
                            .headers_n = 2,
                            .payload_hash = EMPTY_SHA256,
                            .region = "us-east-1",
                            .service = "service",
                            .amz_date = "20150830T123600Z",
                            .key = &suite_key};
    struct sbuf b = {0};
    s3_sign(&b, &in);
    cr_assert(eq(str, b.p,
                 "AWS4-HMAC-SHA256 "
                 "Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                 "SignedHeaders=host;x-amz-date, Signature="
                 "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"));
    sbuf_free(&b);
    in.method = "POST"; /* post-vanilla */
    expect_signature(&in, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
}

Test(s3_sign, get_vanilla_query_order_of_the_test_suite)
{
    struct sbuf q = {0};
    s3_query(&q, (struct s3_pair[]){{"Param2", "value2"}, {"Param1", "value1"}}, 2);
    const struct s3_pair h[] = {
        {"host", "example.amazonaws.com"},
        {"x-amz-date", "20150830T123600Z"},
    };
    struct s3_sign_in in = {.method = "GET",
                            .path = "/",
                            .query = q.p,
                            .headers = h,
                            .headers_n = 2,
                            .payload_hash = EMPTY_SHA256,
                            .region = "us-east-1",
                            .service = "service",
                            .amz_date = "20150830T123600Z",
                            .key = &suite_key};
    expect_signature(&in, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
    sbuf_free(&q);
}

Test(s3_sign, query_names_sort_by_name_before_value)
{
    struct sbuf q = {0};
    s3_query(&q, (struct s3_pair[]){{"key-marker", "b c"}, {"key", "z/~"}, {"a", "2"}, {"a", "1"}},
             4);
    cr_assert(eq(str, q.p, "a=1&a=2&key=z%2F~&key-marker=b%20c"));
    sbuf_free(&q);
}

Test(s3_sign, every_byte_of_a_key_is_encoded_or_plain)
{
    char key[256];
    for (int i = 1; i < 256; i++)
        key[i - 1] = (char)i;
    key[255] = '\0';
    struct sbuf b = {0};
    s3_encode(&b, key, true);
    cr_assert(not(b.bad));
    /* 62 letters and digits, four marks and '/' stay; the other 188 take three characters. */
    cr_assert(eq(sz, b.len, 67 + 3 * 188));
    cr_assert(ne(ptr, strstr(b.p, "%01%02"), NULL));
    cr_assert(ne(ptr, strstr(b.p, "%FE%FF"), NULL));
    cr_assert(eq(ptr, strstr(b.p, "%2F"), NULL));
    sbuf_free(&b);
}

Test(s3_sign, header_values_are_trimmed_and_runs_of_spaces_become_one)
{
    const struct s3_pair h[] = {{"my-header1", "  a   b c  "}, {"host", "h"}};
    struct s3_sign_in in = {.method = "GET",
                            .path = "/",
                            .query = "",
                            .headers = h,
                            .headers_n = 2,
                            .payload_hash = "x"};
    struct sbuf b = {0};
    s3_canonical(&b, &in);
    cr_assert(eq(str, b.p, "GET\n/\n\nhost:h\nmy-header1:a b c\n\nhost;my-header1\nx"));
    sbuf_free(&b);
}

Test(s3_sign, dates_are_written_in_utc)
{
    char d[S3_AMZ_DATE_MAX];
    s3_amz_date(1440938160, d);
    cr_assert(eq(str, d, "20150830T123600Z"));
}

Test(s3_sign, base64_and_md5_are_the_known_ones)
{
    uint8_t md[16];
    char out[32];
    cr_assert(s3_md5("", 0, md));
    s3_base64(md, 16, out);
    cr_assert(eq(str, out, "1B2M2Y8AsgTpgAmY7PhCfg=="));
}
