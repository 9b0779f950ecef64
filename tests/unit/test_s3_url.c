/* Store URLs: what is taken, and that each refusal names the part and the remedy. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>
#include "objstore/stack.h"

static struct store_url good(const char *text)
{
    struct store_url u;
    char why[256];
    cr_assert(zero(int, store_url_parse(text, &u, why, sizeof(why))), "%s: %s", text, why);
    return u;
}

static void bad(const char *text, const char *part)
{
    struct store_url u;
    char why[256];
    cr_assert(eq(int, store_url_parse(text, &u, why, sizeof(why)), -EINVAL), "%s", text);
    cr_assert(ne(ptr, strstr(why, part), NULL), "%s: %s", text, why);
    cr_assert(zero(int, strncmp(why, "store URL: ", 11)), "%s", why);
}

Test(s3_url, a_directory_is_an_absolute_path)
{
    struct store_url u = good("dir:///srv/with%20space/");
    cr_assert(eq(int, u.kind, STORE_DIR));
    cr_assert(eq(str, u.path, "/srv/with space"));
    u = good("dir:///");
    cr_assert(eq(str, u.path, "/"));
    bad("dir://srv", "dir:///path");
    bad("dir:srv", "dir:///path");
    bad("dir:///a?b=c", "no parameters");
    bad("dir:///a%2", "%-escape");
}

Test(s3_url, a_bucket_alone_goes_to_aws_by_virtual_host)
{
    struct store_url u = good("s3://bucket");
    cr_assert(eq(int, u.kind, STORE_S3));
    cr_assert(eq(str, u.bucket, "bucket"));
    cr_assert(eq(str, u.prefix, ""));
    cr_assert(eq(str, u.endpoint, ""));
    cr_assert(eq(str, u.region, ""));
    cr_assert(not(u.path_style));
}

Test(s3_url, an_endpoint_makes_path_style_the_default_and_addressing_overrides)
{
    struct store_url u = good("s3://bkt/a/b/?endpoint=http://127.0.0.1:8333/&region=eu-west-1");
    cr_assert(eq(str, u.prefix, "a/b"));
    cr_assert(eq(str, u.endpoint, "http://127.0.0.1:8333"));
    cr_assert(eq(str, u.region, "eu-west-1"));
    cr_assert(u.path_style);
    u = good("s3://bkt?endpoint=https%3A%2F%2Fs3.example.org&addressing=virtual");
    cr_assert(eq(str, u.endpoint, "https://s3.example.org"));
    cr_assert(not(u.path_style));
    u = good("s3://bkt?addressing=path");
    cr_assert(u.path_style);
    good("s3://bkt?endpoint=http://[::1]:9000");
}

Test(s3_url, refusals_name_the_part_and_the_remedy)
{
    bad("bucket", "no scheme");
    bad("http://x", "unknown scheme 'http'");
    bad("s3:bucket", "s3://bucket/prefix");
    bad("s3://bkt?regoin=x", "unknown parameter 'regoin'; use endpoint, region, addressing");
    bad("s3://bkt?region=a&region=b", "given twice");
    bad("s3://bkt?region=", "no value");
    bad("s3://bkt?region", "no value");
    bad("s3://bkt?region=a&&addressing=path", "empty parameter");
    bad("s3://bkt?addressing=dns", "use path or virtual");
    bad("s3://bkt?endpoint=127.0.0.1:80", "http:// or https://");
    bad("s3://bkt?endpoint=http://h/path", "only http");
    bad("s3://bkt?endpoint=http://", "no host");
    bad("s3://bkt?endpoint=http://h:99999", "port");
    bad("s3://bkt?endpoint=http://h:", "port");
    bad("s3://ab", "3 to 63");
    bad("s3:///prefix", "3 to 63");
    bad("s3://b%20t", "not a bucket's name");
    bad("s3://bkt//x", "component");
    bad("s3://bkt/a/../x", "component");
    bad("s3://bkt/a#b", "fragment");
    bad("s3://bkt/%00", "%-escape");
    bad("s3://bkt?region=x\ny", "region");
}

Test(s3_url, credentials_are_refused_and_never_repeated)
{
    static const char *const urls[] = {
        "s3://AKIA:hunter2@bucket/x",           "s3://bkt?secret_key=hunter2",
        "s3://bkt?access_key=hunter2",          "s3://bkt?session_token=hunter2",
        "s3://bkt?endpoint=http://u:hunter2@h",
    };
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct store_url u;
        char why[256];
        cr_assert(eq(int, store_url_parse(urls[i], &u, why, sizeof(why)), -EINVAL));
        cr_assert(ne(ptr, strstr(why, "credentials"), NULL), "%s", why);
        cr_assert(eq(ptr, strstr(why, "hunter2"), NULL), "%s", why);
    }
}

Test(s3_url, a_prefix_that_leaves_no_room_for_keys_is_refused)
{
    char text[2048] = "s3://bkt/";
    memset(text + 9, 'a', 600);
    bad(text, "prefix");
}

Test(s3_url, memory_is_for_tests)
{
    cr_assert(eq(int, good("mem:").kind, STORE_MEM));
}
