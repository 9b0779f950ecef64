/* Rules for paths: what a glob matches, what a file may hold, which section wins. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/policy/glob.h"
#include "fs/policy/policy.h"
#include "fs/volume/config.h"

static char why[2048];

/* ---- globs ---- */

static bool matches(const char *glob, const char *path)
{
    struct glob g;
    const char *wrong;
    cr_assert_eq(glob_compile(glob, &g, &wrong), 0, "%s: %s", glob, wrong);
    bool yes = glob_matches(&g, path);
    glob_done(&g);
    return yes;
}

Test(glob, matches)
{
    static const char *const yes[][2] = {
        {"*.index", "a.index"},
        {"*.index", "kafka/t-0/00.index"},
        {"*.index", ".index"},
        {"*", "x/y/z"},
        {"[ab]c", "d/bc"},
        {"[!a]c", "bc"},
        {"[]a]", "]"},
        {"[[:digit:]]*", "q/7x"},
        {"a\\*b", "a*b"},
        {"\\[x", "[x"},
        {"/a", "a"},
        {"/*.log", "a.log"},
        {"t/*.log", "t/a.log"},
        {"/t/*.log", "t/a.log"},
        {"**", "a"},
        {"**", "a/b/c"},
        {"/**", "a/b"},
        {"t/**", "t/a"},
        {"t/**", "t/a/b/c"},
        {"**/t/*", "t/a"},
        {"**/t/*", "x/y/t/a"},
        {"**/t/*", "t/t/a"},
        {"**/a/**/b", "a/b"},
        {"**/a/**/b", "q/a/x/a/y/b"},
        {"a/**/b/**/c", "a/b/b/x/c"},
        {"a/**/**/c", "a/c"},
        {"**/*-delete/*", "t-0.5f-delete/0.log"},
        {"**/x", "x"},
        {"*/b", "a/b"},
    };
    static const char *const no[][2] = {
        {"*.index", "a.indexx"},
        {"*.index", "a.index/b"},
        {"/a", "b/a"},
        {"/*.log", "t/a.log"},
        {"t/*.log", "t/u/a.log"},
        {"t/*.log", "x/t/a.log"},
        {"t/**", "t"},
        {"t/**", "u/t/a"},
        {"**/t/*", "t"},
        {"**/t/*", "t/a/b"},
        {"**/a/**/b", "a/x/c"},
        {"a/**/b/**/c", "a/c/b"},
        {"*/b", "a/x/b"},
        {"*/b", "b"},
        {"a?c", "a/c"},
        {"A", "a"},
        {"[ab]c", "cc"},
        {"a\\*b", "axb"},
    };
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        cr_expect(matches(yes[i][0], yes[i][1]), "%s does not match %s", yes[i][0], yes[i][1]);
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        cr_expect_not(matches(no[i][0], no[i][1]), "%s matches %s", no[i][0], no[i][1]);
}

Test(glob, bad_ones_are_refused_with_a_remedy)
{
    static const char *const bad[] = {"",      "a//b",  "a/",  "//a",  "/",    "a**",
                                      "**a/b", "***",   "[a",  "[",    "[!]",  "x/[a/b]",
                                      "a\\",   "[[:a]", "./a", "a/..", "[a\\]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct glob g;
        const char *wrong = NULL;
        cr_expect_eq(glob_compile(bad[i], &g, &wrong), -EINVAL, "%s was taken", bad[i]);
        cr_expect(wrong && strchr(wrong, ';'), "%s: %s", bad[i], wrong);
    }
    char *deep = calloc(1, 200);
    for (int i = 0; i < 64; i++)
        strncat(deep, "a/", 199 - strlen(deep));
    deep[strlen(deep) - 1] = 0;
    cr_expect(matches(deep, deep));
    memcpy(deep + strlen(deep), "/a", 3);
    struct glob g;
    const char *wrong;
    cr_expect_eq(glob_compile(deep, &g, &wrong), -EINVAL);
    free(deep);
    char *longer = calloc(1, GLOB_BYTES_MAX + 2);
    memset(longer, 'x', GLOB_BYTES_MAX);
    cr_expect_not(matches(longer, "x"));
    longer[GLOB_BYTES_MAX] = 'x';
    cr_expect_eq(glob_compile(longer, &g, &wrong), -EINVAL);
    free(longer);
}

/* ---- files ---- */

static struct policy_set *parse(const char *text)
{
    struct policy_set *s;
    int e = policy_parse(text, strlen(text), "p.ini", true, &s, why, sizeof why);
    cr_assert_eq(e, 0, "%s", why);
    return s;
}

static struct rule rule_of(const struct policy_set *s, const char *path)
{
    struct config c;
    struct rule r;
    config_init(&c);
    c.profile = PROFILE_BROKER;
    policy_merge(s, policy_match(s, path), &c, &r);
    config_done(&c);
    return r;
}

Test(policy, every_setting)
{
    struct policy_set *s = parse("# a comment\n; another\n\n[ *.x ]\r\n tiered = no \n"
                                 "profile=topics\nsegment_bytes = 64M\nseal_age=3s\n"
                                 "local_age = 36h\nflush_interval = 200ms\n[*.y]\nmirror = YES\n"
                                 "[*.z]\nmirror = 4K\n[*.n]\nmirror=no\nflush_interval = 0");
    struct rule r = rule_of(s, "t/a.x");
    cr_expect_eq(r.value[POLICY_TIERED], 0);
    cr_expect_eq(r.value[POLICY_PROFILE], PROFILE_TOPICS);
    cr_expect_eq(r.value[POLICY_SEGMENT_BYTES], 64 * MiB);
    cr_expect_eq(r.value[POLICY_SEAL_AGE], 3000);
    cr_expect_eq(r.value[POLICY_LOCAL_AGE], 36 * 3600000ull);
    cr_expect_eq(r.value[POLICY_FLUSH_INTERVAL], 200);
    cr_expect_eq(r.value[POLICY_MIRROR], 1 * MiB, "the setting");
    cr_expect_eq(r.from[POLICY_MIRROR], 0);
    cr_expect_eq(r.from[POLICY_SEAL_AGE], 1);
    cr_expect_eq(rule_of(s, "a.y").value[POLICY_MIRROR], UINT64_MAX);
    cr_expect_eq(rule_of(s, "a.z").value[POLICY_MIRROR], 4096);
    cr_expect_eq(rule_of(s, "a.n").value[POLICY_MIRROR], 0);
    cr_expect_eq(rule_of(s, "a.n").value[POLICY_FLUSH_INTERVAL], 0);
    r = rule_of(s, "other");
    cr_expect_eq(r.value[POLICY_TIERED], 1);
    cr_expect_eq(r.value[POLICY_PROFILE], PROFILE_BROKER);
    cr_expect_eq(r.value[POLICY_SEGMENT_BYTES], 128 * MiB);
    policy_set_unref(s);
}

Test(policy, every_section_that_matches_counts_and_the_later_one_wins)
{
    struct policy_set *s = parse("[**]\nseal_age = 1m\nlocal_age = 1h\n"
                                 "[*.log]\nseal_age = 2m\n"
                                 "[kafka/**]\nlocal_age = 2h\n"
                                 "[kafka/x/*.log]\nseal_age = 3m\ntiered = no\n"
                                 "[kafka/x/keep.log]\ntiered = yes\n");
    static const struct {
        const char *path;
        unsigned seal_min, local_h, tiered;
    } want[] = {
        {"a", 1, 1, 1},           {"a.log", 2, 1, 1},         {"kafka/a", 1, 2, 1},
        {"kafka/a.log", 2, 2, 1}, {"kafka/x/a.log", 3, 2, 0}, {"kafka/x/keep.log", 3, 2, 1},
        {"b/kafka/x", 1, 1, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        struct rule r = rule_of(s, want[i].path);
        cr_expect_eq(r.value[POLICY_SEAL_AGE], want[i].seal_min * 60000, "%s", want[i].path);
        cr_expect_eq(r.value[POLICY_LOCAL_AGE], want[i].local_h * 3600000, "%s", want[i].path);
        cr_expect_eq(r.value[POLICY_TIERED], want[i].tiered, "%s", want[i].path);
    }
    struct rule r = rule_of(s, "kafka/x/keep.log");
    cr_expect_eq(r.from[POLICY_TIERED], 5);
    cr_expect_eq(r.from[POLICY_SEAL_AGE], 4);
    cr_expect_eq(r.from[POLICY_LOCAL_AGE], 3);
    policy_set_unref(s);
}

Test(policy, a_mistake_is_refused_with_its_line)
{
    static const struct {
        const char *text, *says;
        int err;
    } bad[] = {
        {"tiered = no\n", "p.ini:1: tiered = no: stands before a section", -EINVAL},
        {"[a]\ntierd = no\n", "p.ini:2: tierd: there is no such setting of paths", -EINVAL},
        {"[a]\npool = 1M\n", "p.ini:2: pool: is of the whole mount", -EINVAL},
        {"[a]\ntiered = maybe\n", "p.ini:2: tiered: \"maybe\"", -EINVAL},
        {"[a]\ntiered\n", "p.ini:2: tiered: not a setting", -EINVAL},
        {"[a]\n\n\nseal_age = 3\n", "p.ini:4: seal_age: \"3\" is not a time", -EINVAL},
        {"[a]\nflush_interval = 1ms\n", "p.ini:2: flush_interval: 1ms is out of bounds", -ERANGE},
        {"[a]\nflush_interval = \n", "p.ini:2: flush_interval: \"\" is not a time", -EINVAL},
        {"[a]\nseal_age = 1ms\n", "p.ini:2: seal_age: 1ms is out of bounds", -ERANGE},
        {"[a]\nsegment_bytes = 1K\n", "p.ini:2: segment_bytes: 1K is out of bounds", -ERANGE},
        {"[a]\nsegment_bytes = 100K\n", "not a multiple of 64KiB", -EINVAL},
        {"[a]\nmirror = 65M\n", "p.ini:2: mirror: 65M is out of bounds", -ERANGE},
        {"[a]\nmirror = x\n", "p.ini:2: mirror: \"x\" is neither", -EINVAL},
        {"[a]\nprofile = none\n", "p.ini:2: profile: \"none\" is not a profile", -EINVAL},
        {"[a]\nmirror = yes\ntiered = no\n", "p.ini:3: tiered: the section says", -EINVAL},
        {"[a]\nseal_age = 1m\nseal_age = 1m\n", "p.ini:3: seal_age: already set in line 2",
         -EINVAL},
        {"[a]\n[b]\n[a]\n", "p.ini:3: section [a]: stands in line 1 too", -EINVAL},
        {"[a\n", "p.ini:1: section [a: is not closed", -EINVAL},
        {"[]\n", "p.ini:1: section []: the glob is empty", -EINVAL},
        {"[x**y]\n", "p.ini:1: section [x**y]: the glob has **", -EINVAL},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct policy_set *s = NULL;
        int e = policy_parse(bad[i].text, strlen(bad[i].text), "p.ini", true, &s, why, sizeof why);
        cr_expect_eq(e, bad[i].err, "%s: %d", bad[i].text, e);
        cr_expect_null(s);
        cr_expect(strstr(why, bad[i].says), "%s: %s", bad[i].text, why);
        cr_expect(strchr(why, ';'), "no remedy: %s", why);
        policy_set_unref(s);
    }
    struct policy_set *s;
    cr_expect_eq(policy_parse("[a]\n\0", 5, "p.ini", true, &s, why, sizeof why), -EINVAL);
    cr_expect(strstr(why, "p.ini:2: holds a zero byte"));
    cr_expect_eq(policy_parse("[a]\nprofile = broker\n", 20, "p", false, &s, why, sizeof why),
                 -EINVAL);
    cr_expect(strstr(why, "--profile broker"));
    cr_expect_eq(policy_parse("[a]\nprofile = broker\n", 20, "p", true, &s, why, sizeof why), 0);
    policy_set_unref(s);
}

Test(policy, as_many_sections_as_are_promised)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    for (unsigned i = 0; i < POLICY_SECTIONS_MAX; i++)
        fprintf(f, "[%u]\nseal_age = %us\n", i, i + 1);
    fflush(f);
    struct policy_set *s = parse(text);
    cr_expect_eq(rule_of(s, "x/0").value[POLICY_SEAL_AGE], 1000);
    cr_expect_eq(rule_of(s, "x/63").value[POLICY_SEAL_AGE], 64000);
    policy_set_unref(s);
    fprintf(f, "[one more]\n");
    fclose(f);
    cr_expect_eq(policy_parse(text, len, "p.ini", true, &s, why, sizeof why), -E2BIG);
    cr_expect(strstr(why, "p.ini:129: section [one more]: is one too many"), "%s", why);
    free(text);
}
