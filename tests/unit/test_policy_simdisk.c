/* Rules for paths in a small world: what they keep from the store, what a rename and a reload change, how long
 * bytes stay, what may be written. */
#include "tests/unit/small_world.h"

#include "fs/policy/policy.h"

static void rules(const char *text)
{
    char why[400] = "";
    small_put_file("/rules.ini", text);
    if (W.v)
        cr_assert_eq(policy_reload(W.v->policy, why, sizeof why), 0, "%s", why);
}

static void open_with(bool broker, const char *text)
{
    small_make(broker);
    W.conf.seal_age = 1000;
    W.conf.policy = strdup("/rules.ini");
    rules(text);
    small_open();
}

TestSuite(policy_world, .fini = small_free, .timeout = 120);

static uint64_t file(uint64_t dir, const char *name, uint64_t bytes)
{
    uint64_t ino = small_create(dir, name, S_IFREG);
    small_append(ino, bytes, 1);
    return ino;
}

static void move(uint64_t dir, const char *name, uint64_t to, const char *as)
{
    cr_assert_eq(ns_rename(W.v->ns, dir, name, to, as, 0, NULL), 0);
}

static bool has_object(uint64_t ino)
{
    return small_seg(ino, 0).has_object;
}

static uint64_t kept(void)
{
    struct tier_usage u;
    small_run(5 * NS_PER_SEC); /* it is counted every few seconds */
    tier_usage(W.v->tier, &u);
    return u.kept;
}

static uint64_t pending(void)
{
    struct tier_usage u;
    tier_usage(W.v->tier, &u);
    return u.pending;
}

Test(policy_world, what_is_local_is_never_uploaded_and_what_is_tiered_is)
{
    open_with(true, "[*.keep]\ntiered = no\n");
    uint64_t a = file(ROOT_INO, "a.keep", 1000000), b = file(ROOT_INO, "b.log", 300000);
    small_settle();
    small_run(20 * NS_PER_SEC);
    cr_expect_not(has_object(a));
    cr_expect(has_object(b));
    cr_expect_eq(small_seg(a, 0).state, SEG_SEALED);
    cr_expect_eq(small_rows('U'), 0);
    cr_expect_eq(kept(), 1000000);
    cr_expect_eq(pending(), 0);
    cr_expect_eq(small_objects("segments/"), 2, "only those of b: %u", small_objects("segments/"));
    /* It can be written to, and comes to rest again. */
    small_write(a, 10, 100, 2);
    small_run(20 * NS_PER_SEC);
    small_check(a, 10, 100, 2);
    cr_expect_eq(small_seg(a, 0).state, SEG_SEALED);
    cr_expect_eq(kept(), 1000000);
    cr_expect_not(has_object(a));
    /* And goes without a trace. */
    cr_assert_eq(ns_unlink(W.v->ns, ROOT_INO, "a.keep", false, NULL), 0);
    small_settle();
    cr_expect_eq(small_rows('K'), 0);
    cr_expect_eq(kept(), 0);
}

Test(policy_world, commands_leave_local_files_out)
{
    open_with(true, "[*.keep]\ntiered = no\n");
    uint64_t d = small_create(ROOT_INO, "d", S_IFDIR);
    uint64_t a = file(d, "a.keep", 1000), b = file(d, "b", 1000);
    cr_expect_eq(small_command(TIER_EVICT, d), 0);
    cr_expect_not(has_object(a));
    cr_expect_not(small_seg(b, 0).local);
    cr_expect_eq(small_command(TIER_UPLOAD, a), -EPERM);
    cr_expect_eq(small_command(TIER_SEAL, a), 0);
}

Test(policy_world, a_rename_moves_a_file_under_other_rules_and_back)
{
    open_with(true, "[*.tmp]\ntiered = no\n[old/**]\ntiered = no\n");
    uint64_t d = small_create(ROOT_INO, "d", S_IFDIR);
    uint64_t a = file(d, "a.tmp", 1000), b = file(d, "b", 1000);
    small_run(20 * NS_PER_SEC);
    cr_expect_not(has_object(a));
    cr_expect(has_object(b));
    move(d, "a.tmp", d, "a");
    small_settle();
    cr_expect(has_object(a));
    cr_expect_eq(small_rows('K'), 0);
    /* Nothing that happened is undone, and nothing more happens: a version that follows stays. */
    move(d, "a", d, "a.tmp");
    small_write(a, 0, 10, 2);
    small_run(20 * NS_PER_SEC);
    cr_expect_eq(small_seg(a, 0).state, SEG_SEALED);
    cr_expect_eq(small_rows('K'), 1);
    /* A directory takes all below it along, files that nobody has looked at too. */
    uint64_t c = file(d, "c", 1000);
    move(ROOT_INO, "d", ROOT_INO, "old");
    small_run(20 * NS_PER_SEC);
    cr_expect_not(has_object(c));
    cr_expect_eq(small_rows('K'), 2);
    move(ROOT_INO, "old", ROOT_INO, "new");
    small_settle();
    cr_expect(has_object(c));
    cr_expect_eq(small_rows('K'), 1, "a.tmp");
    /* One name over another: the file has the target's. */
    uint64_t e = file(d, "e.tmp", 1000);
    small_run(10 * NS_PER_SEC);
    cr_expect_not(has_object(e));
    move(d, "e.tmp", d, "b");
    small_settle();
    cr_expect(has_object(e));
}

Test(policy_world, a_reload_holds_for_every_file_and_a_bad_file_changes_nothing)
{
    open_with(false, "[*.keep]\ntiered = no\n");
    uint64_t a = file(ROOT_INO, "a.keep", 1000), b = file(ROOT_INO, "b", 1000);
    small_settle();
    cr_expect_not(has_object(a));
    cr_expect(has_object(b));
    char why[400];
    small_put_file("/rules.ini", "[*.keep]\ntiered = perhaps\n");
    cr_expect_eq(policy_reload(W.v->policy, why, sizeof why), -EINVAL);
    cr_expect(strstr(why, "/rules.ini:2: tiered"), "%s", why);
    small_run(10 * NS_PER_SEC);
    cr_expect_not(has_object(a));
    uint64_t c = file(ROOT_INO, "c", 1000);
    rules("[c]\ntiered = no\n");
    small_settle();
    cr_expect(has_object(a));
    cr_expect_not(has_object(c));
    cr_expect_eq(small_rows('K'), 1);
    /* Without rules at the next mount everything goes up. */
    small_stop();
    free(W.conf.policy);
    W.conf.policy = NULL;
    small_open();
    small_settle();
    cr_expect(has_object(c));
    cr_expect_eq(small_rows('K'), 0);
}

Test(policy_world, a_daemon_that_takes_over_has_the_rules_that_were_taken)
{
    open_with(false, "[*.keep]\ntiered = no\n");
    uint64_t a = file(ROOT_INO, "a.keep", 1000);
    small_run(5 * NS_PER_SEC);
    small_crash(false);
    small_put_file("/rules.ini", "nonsense\n");
    W.conf.connection_survived = true;
    small_open();
    small_run(10 * NS_PER_SEC);
    cr_expect_not(has_object(a));
    cr_expect_eq(small_rows('K'), 1);
}

static bool a_is_gone(void)
{
    return small_rows('E') == 2;
}

Test(policy_world, each_path_has_its_age_and_mirrors_stay)
{
    open_with(false, "[*.short]\nlocal_age = 10s\n[*.mirror]\nmirror = yes\nlocal_age = 0\n");
    uint64_t a = file(ROOT_INO, "a.short", 1000), b = file(ROOT_INO, "b", 1000),
             c = file(ROOT_INO, "c.mirror", 1000000);
    small_settle();
    cr_expect(has_object(a) && has_object(b) && has_object(c));
    cr_expect(small_seg(a, 0).local && small_seg(b, 0).local);
    (void)small_until(a_is_gone);
    small_run(60 * NS_PER_SEC);
    cr_expect_not(small_seg(a, 0).local);
    cr_expect(small_seg(b, 0).local);
    cr_expect(small_seg(c, 0).local);
    rules("[b]\nlocal_age = 0\n");
    small_run(60 * NS_PER_SEC);
    cr_expect_not(small_seg(b, 0).local);
    cr_expect(small_seg(c, 0).local, "the setting is a day");
}

Test(policy_world, each_path_has_its_size_and_age_of_segments)
{
    open_with(false, "[small]\nsegment_bytes = 64K\n[late]\nseal_age = 1h\n");
    uint64_t a = file(ROOT_INO, "small", 200000), b = file(ROOT_INO, "late", 1000),
             c = file(ROOT_INO, "other", 200000);
    cr_expect_eq(small_seg(a, 0).capacity, 64 * KiB);
    cr_expect_eq(small_seg(c, 0).capacity, 256 * KiB);
    small_run(20 * NS_PER_SEC);
    cr_expect(has_object(c));
    cr_expect_eq(small_seg(b, 0).state, SEG_OPEN);
    small_check(a, 0, 200000, 1);
    small_run(4000 * NS_PER_SEC);
    cr_expect(has_object(b));
}

Test(policy_world, small_segments_in_a_file_that_is_rewritten)
{
    open_with(true, "[s]\nsegment_bytes = 64K\n");
    uint64_t a = file(ROOT_INO, "s", 200000);
    small_write(a, 700000, 5000, 3);
    small_write(a, 100, 200000, 2);
    small_settle();
    small_check(a, 0, 100, 1);
    small_check(a, 100, 200000, 2);
    small_check(a, 700000, 5000, 3);
}

Test(policy_world, a_file_that_a_rule_makes_append_only)
{
    open_with(true, "[*.log]\nprofile = topics\n");
    uint64_t a = file(ROOT_INO, "a.log", 1000);
    size_t done;
    struct inode *i;
    uint64_t blocked;
    small_append(a, 1000, 1);
    cr_expect_eq(small_write_some(a, 10, 10, 2, &done, NULL), -EPERM);
    cr_expect_eq(small_write_some(a, 3000, 10, 2, &done, NULL), -EPERM);
    cr_assert_eq(inode_get(W.v->ns, a, &i), 0);
    cr_expect_eq(data_truncate(W.v->data, i, 10, NULL), -EPERM);
    cr_expect_eq(data_truncate(W.v->data, i, 2000, NULL), 0);
    cr_expect_eq(data_fallocate(W.v->data, i, 0, 0, 10000, &blocked), -EOPNOTSUPP);
    inode_put(W.v->ns, i);
    move(ROOT_INO, "a.log", ROOT_INO, "a");
    cr_expect_eq(small_write_some(a, 10, 10, 2, &done, NULL), 0);
    rules("[a]\nprofile = topics\n");
    cr_expect_eq(small_write_some(a, 10, 10, 2, &done, NULL), -EPERM);
    uint64_t b = file(ROOT_INO, "b", 1000);
    cr_expect_eq(small_write_some(b, 10, 10, 2, &done, NULL), 0);
}

static unsigned long flushes(void)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    stats_print(W.v->stats, f);
    fclose(f);
    const char *at = strstr(text, "device_sync_seconds_count ");
    cr_assert(at);
    unsigned long n = strtoul(strchr(at, ' '), NULL, 10);
    free(text);
    return n;
}

Test(policy_world, each_path_has_its_time_to_the_next_flush)
{
    open_with(true,
              "[fast]\nflush_interval = 200ms\n[slow]\nflush_interval = 1h\n[*]\nseal_age = 1h\n");
    uint64_t slow = file(ROOT_INO, "slow", 0), fast = file(ROOT_INO, "fast", 0);
    struct inode *pin[2]; /* as the kernel does: what is not in memory is flushed by nobody */
    cr_assert(inode_get(W.v->ns, slow, &pin[0]) == 0 && inode_get(W.v->ns, fast, &pin[1]) == 0);
    small_append(slow, 1000, 1);
    unsigned long before = flushes();
    small_run(20 * NS_PER_SEC);
    cr_expect_eq(flushes(), before);
    small_append(fast, 1000, 1);
    small_run(NS_PER_SEC);
    cr_expect_gt(flushes(), before);
    before = flushes();
    move(ROOT_INO, "slow", ROOT_INO, "other");
    small_run(7 * NS_PER_SEC);
    cr_expect_gt(flushes(), before, "the mount's setting, 5 s");
    before = flushes();
    move(ROOT_INO, "other", ROOT_INO, "fast");
    small_run(NS_PER_SEC);
    small_write(slow, 0, 10, 1);
    small_run(NS_PER_SEC);
    cr_expect_gt(flushes(), before);
    inode_put(W.v->ns, pin[0]);
    inode_put(W.v->ns, pin[1]);
}

Test(policy_world, a_name_of_several_counts_and_what_has_none_stays_here)
{
    open_with(true, "[d/keep/*]\ntiered = no\n");
    uint64_t d = small_create(ROOT_INO, "d", S_IFDIR), k = small_create(d, "keep", S_IFDIR),
             o = small_create(d, "other", S_IFDIR);
    uint64_t a = file(k, "a", 1000);
    struct inode *i;
    small_run(10 * NS_PER_SEC);
    cr_expect_eq(small_rows('K'), 1);
    cr_assert_eq(ns_link(W.v->ns, a, o, "b", NULL, &i), 0);
    inode_put(W.v->ns, i);
    small_run(10 * NS_PER_SEC);
    cr_expect_not(has_object(a), "the first name counts");
    /* Its record names only the topic's directory from now on: the name is searched for. */
    cr_assert_eq(ns_unlink(W.v->ns, k, "a", false, NULL), 0);
    small_settle();
    cr_expect(has_object(a));
    cr_expect_eq(small_rows('K'), 0);

    uint64_t u = file(o, "u", 1000);
    cr_assert_eq(inode_get(W.v->ns, u, &i), 0); /* as if it were open */
    cr_assert_eq(ns_unlink(W.v->ns, o, "u", false, NULL), 0);
    unsigned objects = small_objects("segments/");
    small_run(20 * NS_PER_SEC);
    cr_expect_eq(small_objects("segments/"), objects);
    cr_expect_eq(small_seg(u, 0).state, SEG_SEALED);
    cr_expect_eq(small_rows('K'), 1);
    inode_put(W.v->ns, i);
    small_settle();
    cr_expect_eq(small_rows('K'), 0);
}
