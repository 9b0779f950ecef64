/* The formats that credentials come in, and which of several places wins. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include "objstore/s3.h"

static const char ini[] = "# a comment\n"
                          "aws_access_key_id = outside\n"
                          "[default]\n"
                          "aws_access_key_id=AKDEFAULT\n"
                          "s3 =\n"
                          "    aws_access_key_id = nested\n"
                          "[ work ]\r\n"
                          "; another\n"
                          "aws_access_key_id   =   AK WORK==  \r\n"
                          "empty =\n"
                          "[profile work]\n"
                          "region = eu-north-1";

Test(s3_cred, profiles_are_read_as_written)
{
    char out[64];
    cr_assert(s3_ini_get(ini, "default", "aws_access_key_id", out, sizeof(out)));
    cr_assert(eq(str, out, "AKDEFAULT"));
    cr_assert(s3_ini_get(ini, "work", "aws_access_key_id", out, sizeof(out)));
    cr_assert(eq(str, out, "AK WORK=="));
    cr_assert(s3_ini_get(ini, "profile work", "region", out, sizeof(out)));
    cr_assert(eq(str, out, "eu-north-1"));
    cr_assert(not(s3_ini_get(ini, "work", "region", out, sizeof(out))));
    cr_assert(not(s3_ini_get(ini, "work", "empty", out, sizeof(out))));
    cr_assert(not(s3_ini_get(ini, "other", "region", out, sizeof(out))));
    cr_assert(not(s3_ini_get(ini, "work", "aws_access_key_id", out, 4)), "it does not fit");
    cr_assert(not(s3_ini_get("[broken\na = b", "broken", "a", out, sizeof(out))));
    cr_assert(not(s3_ini_get("", "a", "b", out, sizeof(out))));
}

Test(s3_cred, json_members_are_found_and_unescaped)
{
    char out[64];
    const char *doc = " { \"Code\" : \"Success\", \"n\": 12, \"t\":true,"
                      "\"A\\u0042\":\"x\\/y\\u002b\\\"\" } ";
    cr_assert(s3_json_string(doc, "Code", out, sizeof(out)));
    cr_assert(eq(str, out, "Success"));
    cr_assert(s3_json_string(doc, "AB", out, sizeof(out)));
    cr_assert(eq(str, out, "x/y+\""));
    cr_assert(not(s3_json_string(doc, "n", out, sizeof(out))), "a number");
    cr_assert(not(s3_json_string(doc, "missing", out, sizeof(out))));
    cr_assert(not(s3_json_string(doc, "Code", out, 4)), "it does not fit");
    static const char *const bad[] = {"",
                                      "[",
                                      "{",
                                      "{\"a\"",
                                      "{\"a\":",
                                      "{\"a\":\"",
                                      "{a:\"b\"}",
                                      "{\"b\":{\"a\":\"x\"}}",
                                      "{\"a\":\"\\",
                                      "{\"a\":\"\\u00\"}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert(not(s3_json_string(bad[i], "a", out, sizeof(out))), "%s", bad[i]);
}

static char dir[] = "/tmp/s3credtest-XXXXXX";
static char cred_path[64], config_path[64];

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void setup(void)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
    cr_assert(ne(ptr, mkdtemp(dir), NULL));
    snprintf(cred_path, sizeof(cred_path), "%s/credentials", dir);
    snprintf(config_path, sizeof(config_path), "%s/config", dir);
    setenv("AWS_SHARED_CREDENTIALS_FILE", cred_path, 1);
    setenv("AWS_CONFIG_FILE", config_path, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

static void teardown(void)
{
    unlink(cred_path);
    unlink(config_path);
    rmdir(dir);
}

TestSuite(s3_cred_chain, .init = setup, .fini = teardown);

/* Nothing here is fetched, so no loop is needed. */
static const char *id_of(const char *profile)
{
    static struct s3_key key;
    static char why[256];
    bool transient;
    struct s3_cred *c = s3_cred_new(NULL, profile, "us-east-1");
    int r = s3_cred_get(c, &key, &transient, why, sizeof(why));
    s3_cred_free(c);
    if (r == 0)
        return key.id;
    cr_assert(eq(int, r, -EACCES));
    return why;
}

Test(s3_cred_chain, the_environment_wins_unless_a_profile_is_named)
{
    write_file(cred_path, "[default]\naws_access_key_id=D\naws_secret_access_key=s\n"
                          "[p]\naws_access_key_id=P\naws_secret_access_key=s\n");
    write_file(config_path, "[profile q]\naws_access_key_id=Q\naws_secret_access_key=s\n");
    cr_assert(eq(str, (char *)id_of(NULL), "D"));
    cr_assert(eq(str, (char *)id_of("p"), "P"));
    cr_assert(eq(str, (char *)id_of("q"), "Q"));
    setenv("AWS_PROFILE", "p", 1);
    cr_assert(eq(str, (char *)id_of(NULL), "P"));
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    cr_assert(eq(str, (char *)id_of(NULL), "E"));
    cr_assert(eq(str, (char *)id_of("q"), "Q"));
}

Test(s3_cred_chain, a_missing_key_names_the_profile_and_the_places)
{
    write_file(cred_path, "[p]\naws_access_key_id=P\n"); /* no secret */
    const char *why = id_of("p");
    cr_assert(ne(ptr, strstr(why, "profile 'p'"), NULL), "%s", why);
    cr_assert(ne(ptr, strstr(why, "AWS_ACCESS_KEY_ID"), NULL), "%s", why);
}

static struct s3 *opened(const char *url, struct objstore **os)
{
    struct store_conf conf = {.connections = 1};
    char why[256];
    cr_assert(zero(int, store_url_parse(url, &conf.url, why, sizeof(why))), "%s", why);
    cr_assert(zero(int, s3_open(&conf, os, why, sizeof(why))), "%s", why);
    return (struct s3 *)((char *)*os - offsetof(struct s3, os));
}

static void expect_at(const char *url, const char *base, const char *root, const char *region)
{
    struct objstore *os;
    struct s3 *s3 = opened(url, &os);
    cr_assert(eq(str, s3->base, (char *)base));
    cr_assert(eq(str, s3->root, (char *)root));
    cr_assert(eq(str, s3->region, (char *)region));
    obj_close(os);
}

Test(s3_cred_chain, region_and_endpoint_come_from_url_environment_and_profile_in_this_order)
{
    expect_at("s3://bkt", "https://bkt.s3.us-east-1.amazonaws.com", "", "us-east-1");
    write_file(config_path, "[default]\nregion = eu-west-2\n");
    expect_at("s3://bkt", "https://bkt.s3.eu-west-2.amazonaws.com", "", "eu-west-2");
    setenv("AWS_DEFAULT_REGION", "eu-west-3", 1);
    expect_at("s3://bkt", "https://bkt.s3.eu-west-3.amazonaws.com", "", "eu-west-3");
    setenv("AWS_REGION", "cn-north-1", 1);
    expect_at("s3://bkt", "https://bkt.s3.cn-north-1.amazonaws.com.cn", "", "cn-north-1");
    expect_at("s3://bkt?region=eu-west-1", "https://bkt.s3.eu-west-1.amazonaws.com", "",
              "eu-west-1");
    expect_at("s3://my.bkt?region=x", "https://s3.x.amazonaws.com", "/my.bkt", "x");
    expect_at("s3://bkt?region=x&addressing=path", "https://s3.x.amazonaws.com", "/bkt", "x");
    expect_at("s3://bkt?region=x&endpoint=http://h:1&addressing=virtual", "http://bkt.h:1", "",
              "x");
    write_file(config_path, "[default]\nendpoint_url = http://from-config:9\n");
    expect_at("s3://bkt?region=x", "http://from-config:9", "/bkt", "x");
    setenv("AWS_ENDPOINT_URL", "http://all:9", 1);
    expect_at("s3://bkt?region=x", "http://all:9", "/bkt", "x");
    setenv("AWS_ENDPOINT_URL_S3", "https://only-s3/", 1);
    expect_at("s3://bkt?region=x", "https://only-s3", "/bkt", "x");
    expect_at("s3://bkt?region=x&endpoint=http://url:1", "http://url:1", "/bkt", "x");
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    expect_at("s3://bkt?region=x", "https://bkt.s3.x.amazonaws.com", "", "x");
}

Test(s3_cred_chain, a_bad_endpoint_in_the_environment_is_named)
{
    struct store_conf conf = {.connections = 1};
    struct objstore *os;
    char why[256];
    setenv("AWS_ENDPOINT_URL_S3", "localhost:80", 1);
    cr_assert(zero(int, store_url_parse("s3://bkt", &conf.url, why, sizeof(why))));
    cr_assert(eq(int, s3_open(&conf, &os, why, sizeof(why)), -EINVAL));
    cr_assert(ne(ptr, strstr(why, "AWS_ENDPOINT_URL"), NULL), "%s", why);
}
