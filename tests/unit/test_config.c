/* Settings: units, bounds, precedence, the file, the checks between settings, and that every refusal
 * says what is wrong, with what, and what helps. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/volume/config_int.h"
#include "objstore/stack.h"

static char why[2048];

/* "THING: WHAT; REMEDY" on one line. */
static void check_sentence(void)
{
    const char *colon = strstr(why, ": "), *semi = strrchr(why, ';');
    cr_expect(colon && semi && colon < semi && semi[1] == ' ' && strlen(semi) > 6, "%s", why);
    for (const char *p = why; *p; p++)
        cr_expect((unsigned char)*p >= 0x20, "control character in %s", why);
}

static struct config fresh(void)
{
    struct config c;
    config_init(&c);
    why[0] = '\0';
    return c;
}

static int set(struct config *c, const char *name, const char *value)
{
    return config_set(c, name, value, "command line", why, sizeof(why));
}

static const char *source(const struct config *c, const char *name)
{
    static char out[CONFIG_SOURCE_BYTES];
    config_source(c, name, out, sizeof(out));
    return out;
}

static char *temp_file(const char *text, size_t len)
{
    char *path = strdup("/tmp/sluice-config-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, len), (ssize_t)len);
    close(fd);
    return path;
}

static int load(struct config *c, const char *text)
{
    char *path = temp_file(text, strlen(text));
    int err = config_load_file(c, path, why, sizeof(why));
    unlink(path);
    free(path);
    return err;
}

/* ---- units ---- */

Test(config, sizes_are_read_in_all_their_forms)
{
    static const struct {
        const char *text;
        uint64_t v;
    } good[] = {{"0", 0},
                {"512", 512},
                {"512B", 512},
                {"64K", 64 * KiB},
                {"64k", 64 * KiB},
                {"64KiB", 64 * KiB},
                {"64 KB", 64 * KiB},
                {"3M", 3 * MiB},
                {"3MiB", 3 * MiB},
                {"1G", GiB},
                {"2TiB", 2 * TiB},
                {"2t", 2 * TiB},
                {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        uint64_t v = 7;
        cr_expect_eq(parse_size(good[i].text, &v), 0, "%s", good[i].text);
        cr_expect_eq(v, good[i].v, "%s", good[i].text);
    }
}

Test(config, sizes_that_are_none_are_refused_and_change_nothing)
{
    static const char *const junk[] = {"",    " 1",   "-1",  "+1",    "K",   "1X", "1.5G", "0x10",
                                       "1KK", "1 M ", "1e3", "1KiBx", "1\n", "M1", "1  M"};
    for (size_t i = 0; i < ARRAY_LEN(junk); i++) {
        uint64_t v = 7;
        cr_expect_eq(parse_size(junk[i], &v), -EINVAL, "%s", junk[i]);
        cr_expect_eq(v, 7);
    }
    uint64_t v = 7;
    cr_expect_eq(parse_size("18446744073709551616", &v), -ERANGE);
    cr_expect_eq(parse_size("99999999999999999999999999", &v), -ERANGE);
    cr_expect_eq(parse_size("16777216T", &v), -ERANGE);
    cr_expect_eq(v, 7);
}

Test(config, durations_need_a_unit)
{
    uint64_t v = 7;
    cr_expect(parse_duration("10ms", &v) == 0 && v == 10);
    cr_expect(parse_duration("3s", &v) == 0 && v == 3000);
    cr_expect(parse_duration("10m", &v) == 0 && v == 600000);
    cr_expect(parse_duration("24h", &v) == 0 && v == 86400000);
    cr_expect(parse_duration("2d", &v) == 0 && v == 172800000);
    cr_expect(parse_duration("0", &v) == 0 && v == 0);
    cr_expect_eq(parse_duration("10", &v), -EINVAL);
    cr_expect_eq(parse_duration("s", &v), -EINVAL);
    cr_expect_eq(parse_duration("-1s", &v), -EINVAL);
    cr_expect_eq(parse_duration("1x", &v), -EINVAL);
    cr_expect_eq(parse_duration("99999999999999999d", &v), -ERANGE);
}

Test(config, what_is_printed_can_be_read_back)
{
    char text[64];
    static const uint64_t values[] = {0,     1,          999,      1000,      60000,
                                      90000, 3600000,    86400000, 172800000, 1023,
                                      1024,  1536 * KiB, GiB,      UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        uint64_t v = 7;
        cr_expect_eq(parse_size(size_text(values[i], text, sizeof(text)), &v), 0, "%s", text);
        cr_expect_eq(v, values[i], "%s", text);
        cr_expect_eq(parse_duration(duration_text(values[i], text, sizeof(text)), &v), 0, "%s",
                     text);
        cr_expect_eq(v, values[i], "%s", text);
    }
}

/* ---- the table ---- */

Test(config, defaults_are_inside_their_bounds_and_pass_the_checks)
{
    struct config c = fresh();
    for (size_t i = 0; i < config_rows_n; i++) {
        const struct config_row *r = &config_rows[i];
        if (r->kind <= KIND_NUMBER)
            cr_expect(r->def >= r->min && r->def <= r->max, "%s", r->name);
        cr_expect(*r->help, "%s", r->name);
        cr_expect_eq(config_find(r->name), r, "%s is there twice", r->name);
    }
    cr_expect_eq(config_finish(&c, why, sizeof(why)), 0, "%s", why);
    cr_expect_eq(c.pool, 256 * MiB);
    cr_expect_eq(c.seal_age, 600000);
    cr_expect_eq(c.evict_from, 70);
    config_done(&c);
}

Test(config, every_setting_takes_its_bounds_and_nothing_beyond)
{
    struct config c = fresh();
    for (size_t i = 0; i < config_rows_n; i++) {
        const struct config_row *r = &config_rows[i];
        char text[40];
        const char *unit = r->kind == KIND_TIME ? "ms" : "";
        if (r->kind > KIND_NUMBER)
            continue;
        snprintf(text, sizeof(text), "%llu%s", (unsigned long long)r->min, unit);
        cr_expect_eq(set(&c, r->name, text), 0, "%s", why);
        snprintf(text, sizeof(text), "%llu%s", (unsigned long long)r->max, unit);
        cr_expect_eq(set(&c, r->name, text), 0, "%s", why);
        uint64_t *v = (uint64_t *)((char *)&c + r->offset);
        snprintf(text, sizeof(text), "%llu%s", (unsigned long long)r->max + 1, unit);
        cr_expect_eq(set(&c, r->name, text), -ERANGE, "%s", r->name);
        cr_expect(strstr(why, r->name), "%s", why);
        check_sentence();
        cr_expect_eq(*v, r->max, "a refused value was taken");
        if (r->min) {
            snprintf(text, sizeof(text), "%llu%s", (unsigned long long)r->min - 1, unit);
            cr_expect_eq(set(&c, r->name, text), -ERANGE, "%s", r->name);
            check_sentence();
        }
        cr_expect_eq(set(&c, r->name, "junk"), -EINVAL, "%s", r->name);
        check_sentence();
        cr_expect_eq(set(&c, r->name, ""), -EINVAL, "%s", r->name);
        check_sentence();
    }
    config_done(&c);
}

Test(config, a_number_takes_no_unit)
{
    struct config c = fresh();
    cr_expect_eq(set(&c, "uploads", "2K"), -EINVAL);
    check_sentence();
    cr_expect_eq(set(&c, "uploads", "8"), 0);
    cr_expect_eq(c.uploads, 8);
    config_done(&c);
}

Test(config, a_typing_error_is_answered_by_the_nearest_name)
{
    static const char *const typos[][2] = {{"segmnet_bytes", "segment_bytes"},
                                           {"segment-bytes", "segment_bytes"},
                                           {"pol", "pool"},
                                           {"evict_form", "evict_from"},
                                           {"sealage", "seal_age"},
                                           {"windowmax", "window_max"},
                                           {"stor", "store"}};
    struct config c = fresh();
    for (size_t i = 0; i < ARRAY_LEN(typos); i++) {
        char want[64];
        snprintf(want, sizeof(want), "did you mean %s?", typos[i][1]);
        cr_expect_eq(set(&c, typos[i][0], "1"), -ENOENT);
        cr_expect(strstr(why, want), "%s", why);
        check_sentence();
    }
    cr_expect_eq(set(&c, "frobnicate", "1"), -ENOENT);
    cr_expect(!strstr(why, "mean"), "%s", why);
    check_sentence();
    cr_expect_eq(set(&c, "", "1"), -ENOENT);
    char longest[600];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    cr_expect_eq(set(&c, longest, "1"), -ENOENT);
    check_sentence();
    cr_expect_eq(set(&c, "fault_pla", "1"), -ENOENT);
    cr_expect(!strstr(why, "fault_plan"), "a hidden setting is proposed");
    config_done(&c);
}

Test(config, a_value_with_control_characters_gives_one_clean_line)
{
    struct config c = fresh();
    cr_expect_eq(set(&c, "pool", "1\n\033[31m"), -EINVAL);
    check_sentence();
    cr_expect_eq(set(&c, "po\nol", "1"), -ENOENT);
    check_sentence();
    config_done(&c);
}

Test(config, yes_and_no_have_their_usual_words)
{
    struct config c = fresh();
    cr_expect(set(&c, "xattr", "yes") == 0 && c.xattr);
    cr_expect(set(&c, "xattr", "off") == 0 && !c.xattr);
    cr_expect(set(&c, "xattr", "TRUE") == 0 && c.xattr);
    cr_expect(set(&c, "xattr", "0") == 0 && !c.xattr);
    cr_expect_eq(set(&c, "xattr", "maybe"), -EINVAL);
    check_sentence();
    cr_expect(set(&c, "profile", "broker") == 0 && c.profile == PROFILE_BROKER);
    cr_expect_eq(set(&c, "profile", "Broker"), -EINVAL);
    check_sentence();
    config_done(&c);
}

/* ---- devices ---- */

Test(config, devices_have_a_budget_behind_the_last_equal_sign)
{
    struct config c = fresh();
    cr_expect_eq(set(&c, "device", "/a"), 0);
    cr_expect_eq(set(&c, "device", "/b=10G"), 0);
    cr_expect_eq(set(&c, "device", "/c=d=0"), 0);
    cr_assert_eq(c.devices, 3);
    cr_expect_str_eq(c.device[0].path, "/a");
    cr_expect_eq(c.device[0].budget, 0);
    cr_expect_str_eq(c.device[1].path, "/b");
    cr_expect_eq(c.device[1].budget, 10 * GiB);
    cr_expect_str_eq(c.device[2].path, "/c=d");
    static const char *const bad[] = {"", "=1G", "/a=junk", "/a=-1", "/a="};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_expect_eq(set(&c, "device", bad[i]), -EINVAL, "%s", bad[i]);
        check_sentence();
    }
    cr_expect_eq(set(&c, "device", "/a=99999999T"), -ERANGE);
    cr_expect_eq(set(&c, "device", "/a=1K"), -ERANGE);
    check_sentence();
    for (int i = 3; i < CONFIG_DEVICES_MAX; i++)
        cr_expect_eq(set(&c, "device", "/x"), 0);
    cr_expect_eq(set(&c, "device", "/one-too-many"), -ERANGE);
    check_sentence();
    config_done(&c);
}

Test(config, devices_of_a_later_source_replace_those_of_an_earlier_one)
{
    struct config c = fresh();
    cr_expect_eq(config_set(&c, "device", "/env", "environment", why, sizeof(why)), 0);
    cr_expect_eq(load(&c, "[volume]\ndevice = /f1\ndevice = /f2=1G\n"), 0, "%s", why);
    cr_assert_eq(c.devices, 2);
    cr_expect_str_eq(c.device[0].path, "/f1");
    cr_expect_eq(set(&c, "device", "/cmd"), 0);
    cr_assert_eq(c.devices, 1);
    cr_expect_eq(config_set(&c, "device", "/opt", "mount option", why, sizeof(why)), 0);
    cr_assert_eq(c.devices, 2);
    cr_expect_str_eq(c.device[1].path, "/opt");
    config_done(&c);
}

/* ---- sources ---- */

Test(config, a_later_source_wins_and_is_named)
{
    struct config c = fresh();
    cr_expect_str_eq(source(&c, "pool"), "default");
    setenv("SLUICEFS_POOL", "32M", 1);
    setenv("SLUICEFS_SEAL_AGE", "7s", 1);
    setenv("SLUICEFS_UPLOADS", "9", 1);
    cr_expect_eq(config_load_env(&c, why, sizeof(why)), 0, "%s", why);
    cr_expect_eq(c.pool, 32 * MiB);
    cr_expect_str_eq(source(&c, "pool"), "environment");
    cr_expect_eq(load(&c, "# comment\n[volume]\n  pool = 64M\n; x\nuploads=3\n"), 0, "%s", why);
    cr_expect_eq(c.pool, 64 * MiB);
    cr_expect(strstr(source(&c, "pool"), ":3"), "%s", source(&c, "pool"));
    cr_expect_eq(set(&c, "pool", "128M"), 0);
    cr_expect_eq(c.pool, 128 * MiB);
    cr_expect_str_eq(source(&c, "pool"), "command line");
    cr_expect_eq(c.seal_age, 7000);
    cr_expect_str_eq(source(&c, "seal_age"), "environment");
    cr_expect_eq(c.uploads, 3);
    cr_expect_str_eq(source(&c, "slice"), "default");
    config_done(&c);
}

Test(config, an_unknown_variable_of_ours_is_refused)
{
    struct config c = fresh();
    setenv("SLUICEFS_POL", "32M", 1);
    cr_expect_eq(config_load_env(&c, why, sizeof(why)), -ENOENT);
    cr_expect(strstr(why, "environment") && strstr(why, "did you mean pool?"), "%s", why);
    check_sentence();
    config_done(&c);
}

/* ---- the file ---- */

Test(config, the_file_is_strict_and_every_error_names_its_line)
{
    static const struct {
        const char *text, *line, *word;
        int err;
    } bad[] = {
        {"pool = 1G\n", ":1:", "[volume]", -EINVAL},
        {"[volume]\npool = 1G\npool = 2G\n", ":3:", "line 2", -EINVAL},
        {"[volume]\n\npol = 1G\n", ":3:", "did you mean pool?", -ENOENT},
        {"[volume]\npool = 1\n", ":2:", "8MiB to 1TiB", -ERANGE},
        {"[volume]\npool\n", ":2:", "name = value", -EINVAL},
        {"[volume]\npool = 1G # big\n", ":2:", "not a size", -EINVAL},
        {"[topic x]\n", ":1:", "[volume]", -EINVAL},
        {"[volume\n", ":1:", "[volume]", -EINVAL},
        {"[volume]\n= 1G\n", ":2:", "no such setting", -ENOENT},
        {"[volume]\nstate =\n", ":2:", "empty", -EINVAL},
        {"[volume]\nstore = s3://user:secret@host/b\n[x]\n", ":3:", "[volume]", -EINVAL},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config c = fresh();
        cr_expect_eq(load(&c, bad[i].text), bad[i].err, "%s", bad[i].text);
        cr_expect(strstr(why, bad[i].line) && strstr(why, bad[i].word), "%s", why);
        check_sentence();
        config_done(&c);
    }
}

Test(config, the_file_takes_what_people_write)
{
    struct config c = fresh();
    cr_expect_eq(load(&c, "\r\n[volume]\r\n\tpool\t=\t1G \r\n[volume]\nstate = /a b=c # d\n"
                          "read_only = yes"),
                 0, "%s", why);
    cr_expect_eq(c.pool, GiB);
    cr_expect_str_eq(c.state, "/a b=c # d");
    cr_expect(c.read_only);
    config_done(&c);
    c = fresh();
    cr_expect_eq(load(&c, ""), 0);
    config_done(&c);
}

Test(config, a_file_that_is_none_is_refused)
{
    struct config c = fresh();
    cr_expect_eq(config_load_file(&c, "/nonexistent/file", why, sizeof(why)), -ENOENT);
    check_sentence();
    cr_expect_lt(config_load_file(&c, "/tmp", why, sizeof(why)), 0);
    check_sentence();
    char *path = temp_file("[volume]\n\0\n", 11);
    cr_expect_eq(config_load_file(&c, path, why, sizeof(why)), -EINVAL);
    check_sentence();
    cr_expect_eq(truncate(path, 2 * 1024 * 1024), 0);
    cr_expect_eq(config_load_file(&c, path, why, sizeof(why)), -EFBIG);
    check_sentence();
    unlink(path);
    free(path);
    config_done(&c);
}

/* ---- checks between settings ---- */

static void expect_refused(const char *const pairs[][2], size_t n, const char *word)
{
    struct config c = fresh();
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(set(&c, pairs[i][0], pairs[i][1]), 0, "%s", why);
    cr_expect_eq(config_finish(&c, why, sizeof(why)), -EINVAL, "%s=%s was taken", pairs[0][0],
                 pairs[0][1]);
    cr_expect(strstr(why, word), "%s", why);
    check_sentence();
    config_done(&c);
}
#define REFUSED(word, ...)                                \
    expect_refused((const char *const[][2]){__VA_ARGS__}, \
                   sizeof((const char *const[][2]){__VA_ARGS__}) / sizeof(const char *[2]), word)

Test(config, settings_that_contradict_each_other_are_refused)
{
    REFUSED("slice", {"slice", "300K"});
    REFUSED("pool", {"pool", "8M"}, {"slice", "8M"});
    REFUSED("window_min", {"window_min", "8M"}, {"window_max", "4M"});
    REFUSED("evict_to", {"evict_to", "70"});
    REFUSED("evict_to", {"evict_from", "50"});
    REFUSED("segment_bytes", {"segment_bytes", "100000"});
    REFUSED("twice", {"device", "/a"}, {"device", "/a/"});
    REFUSED("store", {"store", "ftp://x"});
    REFUSED("store", {"store", "nothing"});
}

Test(config, a_secret_in_the_store_url_is_not_repeated)
{
    struct config c = fresh();
    cr_assert_eq(set(&c, "store", "s3://AKIDEXAMPLE:wJalrXUtnFEMI@bucket/x"), 0);
    cr_expect_eq(config_finish(&c, why, sizeof(why)), -EINVAL);
    cr_expect(!strstr(why, "wJalr"), "%s", why);
    check_sentence();
    config_done(&c);
}

Test(config, places_below_the_mount_point_are_refused)
{
    static const char *const at[][2] = {{"state", "/tmp/x"},
                                        {"device", "/tmp/y=1G"},
                                        {"device", "/var/../tmp/./y"},
                                        {"store", "dir:///tmp/z"}};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        struct config c = fresh();
        c.mountpoint = strdup("/tmp");
        cr_assert_eq(set(&c, at[i][0], at[i][1]), 0, "%s", why);
        cr_expect_eq(config_finish(&c, why, sizeof(why)), -EINVAL, "%s", at[i][1]);
        cr_expect(strstr(why, "below the mount point"), "%s", why);
        check_sentence();
        config_done(&c);
    }
}

/* ---- places ---- */

static struct config finished(const char *mountpoint)
{
    struct config c = fresh();
    c.mountpoint = strdup(mountpoint);
    cr_assert_eq(config_finish(&c, why, sizeof(why)), 0, "%s", why);
    return c;
}

Test(config, a_mount_point_alone_gives_all_places)
{
    struct config c = finished("/nonexistent-a/b-c");
    const char *tail = "/sluicefs/nonexistent+2Da-b+2Dc/state";
    size_t n = strlen(c.state), t = strlen(tail);
    cr_expect(n > t && !strcmp(c.state + n - t, tail), "%s", c.state);
    cr_assert_eq(c.devices, 1);
    cr_expect(strstr(c.device[0].path, "/device"));
    cr_expect(!strncmp(c.store, "dir:///", 7), "%s", c.store);
    config_done(&c);
}

Test(config, different_mount_points_never_share_a_place)
{
    static const char *const mp[] = {"/n/a-b", "/n/a/b", "/n-a/b", "/n+2Da/b",
                                     "/n/a b", "/n/.a",  "/n/a_b"};
    char *state[ARRAY_LEN(mp)];
    for (size_t i = 0; i < ARRAY_LEN(mp); i++) {
        struct config c = finished(mp[i]);
        state[i] = strdup(c.state);
        for (size_t j = 0; j < i; j++)
            cr_expect_str_neq(state[i], state[j]);
        struct store_url u;
        size_t base = strlen(c.state) - strlen("state");
        cr_assert_eq(store_url_parse(c.store, &u, why, sizeof(why)), 0, "%s", why);
        cr_expect(!strncmp(u.path, c.state, base) && !strcmp(u.path + base, "store"),
                  "%s beside %s", u.path, c.state);
        config_done(&c);
    }
    for (size_t i = 0; i < ARRAY_LEN(mp); i++)
        free(state[i]);
    char a[1200], b[1200];
    memset(a, 'x', sizeof(a));
    a[0] = '/';
    for (int i = 100; i < 1100; i += 100)
        a[i] = '/';
    a[1199] = '\0';
    memcpy(b, a, sizeof(a));
    b[1198] = 'y';
    struct config c = finished(a), d = finished(b);
    cr_expect_str_neq(c.state, d.state, "a long path lost its end");
    config_done(&c);
    config_done(&d);
}

Test(config, given_places_stay_and_become_absolute)
{
    char cwd[512], want[600];
    cr_assert(getcwd(cwd, sizeof(cwd)));
    struct config c = fresh();
    c.mountpoint = strdup("rel/mnt");
    set(&c, "state", "st/./x/../y");
    set(&c, "device", "dev=1G");
    set(&c, "store", "dir://sto");
    cr_assert_eq(config_finish(&c, why, sizeof(why)), 0, "%s", why);
    snprintf(want, sizeof(want), "%s/st/y", cwd);
    cr_expect_str_eq(c.state, want);
    snprintf(want, sizeof(want), "%s/dev", cwd);
    cr_expect_str_eq(c.device[0].path, want);
    snprintf(want, sizeof(want), "dir://%s/sto", cwd);
    cr_expect_str_eq(c.store, want);
    cr_expect_eq(c.mountpoint[0], '/');
    config_done(&c);
}

/* ---- printing ---- */

Test(config, the_json_is_one_line_per_setting_with_its_source)
{
    struct config c = fresh();
    char *text = NULL;
    size_t len;
    set(&c, "state", "/a\"b\\c\xff");
    set(&c, "pool", "1G");
    FILE *f = open_memstream(&text, &len);
    config_print(&c, f, true);
    fclose(f);
    cr_expect(strstr(text, "\"value\":\"/a\\\"b\\\\c\\udcff\""), "%s", text);
    cr_expect(strstr(text, "{\"name\":\"pool\",\"value\":\"1GiB\",\"number\":1073741824,"), "%s",
              text);
    cr_expect(strstr(text, "\"source\":\"command line\""));
    cr_expect(!strstr(text, "fault_plan"));
    free(text);
    config_done(&c);
}
