/* test_ns_rename.c: every kind of rename, and what moves between topics. */
#include <sys/stat.h>
#include "tests/unit/test_ns_world.h"

static struct world w;
static uint64_t A, B; /* two top-level directories */

static void setup(void)
{
    memset(&w, 0, sizeof w);
    world_open(&w);
    A = make(&w, 1, "A", S_IFDIR | 0755);
    B = make(&w, 1, "B", S_IFDIR | 0755);
}

static void teardown(void)
{
    world_close(&w);
}

TestSuite(ns_rename, .init = setup, .fini = teardown);

static int mv(uint64_t p, const char *n, uint64_t q, const char *m, unsigned flags)
{
    return ns_rename(w.ns, p, n, q, m, flags, NULL);
}

static bool marked(uint64_t topic, struct key k)
{
    return has_key(&w, key_dirty(topic, k.b, k.len));
}

static void unmark_all(void)
{
    struct rows r = rows_of(&w, 'M');
    struct kv_batch b;
    kv_batch_init(&b);
    for (size_t i = 0; i < r.n; i++)
        kv_del(&b, r.r[i].k, r.r[i].klen);
    cr_assert_eq(kv_apply(w.kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    rows_free(&r);
}

Test(ns_rename, the_inode_number_stays_in_and_across_directories)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644);
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755);
    cr_assert_eq(mv(A, "f", A, "g", 0), 0);
    cr_assert_eq(ino_of(&w, A, "g"), f);
    cr_assert_eq(ino_of(&w, A, "f"), 0);
    cr_assert_eq(mv(A, "g", d, "h", 0), 0);
    cr_assert_eq(ino_of(&w, d, "h"), f);
    world_restart(&w, true);
    cr_assert_eq(ino_of(&w, d, "h"), f);
    world_check(&w);
}

Test(ns_rename, missing_and_impossible_names)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644);
    char big[300];
    memset(big, 'n', 256);
    big[256] = 0;
    cr_assert_eq(mv(A, "no", A, "x", 0), -ENOENT);
    cr_assert_eq(mv(A, "no", A, "f", 0), -ENOENT);
    cr_assert_eq(mv(A, "f", A, big, 0), -ENAMETOOLONG);
    cr_assert_eq(mv(A, big, A, "f", 0), -ENAMETOOLONG);
    cr_assert_eq(mv(A, "f", 999, "x", 0), -ENOENT);
    cr_assert_eq(mv(999, "f", A, "x", 0), -ENOENT);
    cr_assert_eq(mv(A, "f", f, "x", 0), -ENOTDIR);
    cr_assert_eq(mv(f, "f", A, "x", 0), -ENOTDIR);
    cr_assert_eq(mv(A, "f", A, "x", 4), -EINVAL);
    cr_assert_eq(mv(A, "f", A, "x", RENAME_NOREPLACE | RENAME_EXCHANGE), -EINVAL);
    cr_assert_eq(mv(A, "f", A, "..", 0), -EINVAL);
    world_check(&w);
}

Test(ns_rename, over_something_else)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644), g = make(&w, A, "g", S_IFREG | 0644);
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755), full = make(&w, A, "full", S_IFDIR | 0755);
    make(&w, full, "x", S_IFREG | 0644);
    make(&w, A, "empty", S_IFDIR | 0755);
    cr_assert_eq(mv(A, "f", A, "d", 0), -EISDIR);
    cr_assert_eq(mv(A, "d", A, "f", 0), -ENOTDIR);
    cr_assert_eq(mv(A, "d", A, "full", 0), -ENOTEMPTY);
    cr_assert_eq(mv(A, "full", A, "empty", 0), 0);
    cr_assert_eq(ino_of(&w, A, "empty"), full);
    cr_assert_eq(stat_of(&w, A).st_nlink, 4);
    cr_assert_eq(mv(A, "f", A, "g", 0), 0);
    cr_assert_eq(ino_of(&w, A, "g"), f);
    cr_assert(!has_key(&w, key_inode(g)));
    cr_assert_eq(stat_of(&w, d).st_nlink, 2);
    world_check(&w);
}

Test(ns_rename, a_replaced_open_file_lives_on)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644), g = make(&w, A, "g", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, g, &i), 0);
    inode_remember(w.ns, i);
    inode_put(w.ns, i);
    cr_assert_eq(mv(A, "f", A, "g", 0), 0);
    cr_assert_eq(stat_of(&w, g).st_nlink, 0);
    cr_assert(has_key(&w, key_orphan(g)));
    inode_forget(w.ns, g, 1);
    cr_assert(!has_key(&w, key_inode(g)));
    cr_assert_eq(ino_of(&w, A, "g"), f);
    world_check(&w);
}

Test(ns_rename, a_directory_does_not_go_below_itself)
{
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755), e = make(&w, d, "e", S_IFDIR | 0755);
    uint64_t f = make(&w, e, "f", S_IFDIR | 0755);
    cr_assert_eq(mv(A, "d", d, "x", 0), -EINVAL);
    cr_assert_eq(mv(A, "d", e, "x", 0), -EINVAL);
    cr_assert_eq(mv(A, "d", f, "x", 0), -EINVAL);
    cr_assert_eq(mv(1, "A", f, "x", 0), -EINVAL);
    cr_assert_eq(mv(A, "d", e, "f", RENAME_EXCHANGE), -EINVAL);
    cr_assert_eq(mv(e, "f", A, "d", RENAME_EXCHANGE), -EINVAL);
    cr_assert_eq(mv(e, "f", A, "d", 0), -ENOTEMPTY);
    cr_assert_eq(mv(e, "f", A, "x", 0), 0);
    cr_assert_eq(stat_of(&w, e).st_nlink, 2);
    cr_assert_eq(stat_of(&w, A).st_nlink, 4);
    cr_assert_eq(ino_of(&w, f, ".."), A);
    world_check(&w);
}

Test(ns_rename, noreplace_and_the_same_file)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644);
    make(&w, A, "g", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, A, "f2", NULL, &i), 0);
    inode_put(w.ns, i);
    cr_assert_eq(mv(A, "f", A, "g", RENAME_NOREPLACE), -EEXIST);
    cr_assert_eq(mv(A, "f", A, "f", RENAME_NOREPLACE), -EEXIST);
    cr_assert_eq(mv(A, "f", A, "f", 0), 0);
    cr_assert_eq(mv(A, "f", A, "f2", 0), 0);
    cr_assert(ino_of(&w, A, "f") == f && ino_of(&w, A, "f2") == f, "two links: nothing happens");
    cr_assert_eq(stat_of(&w, f).st_nlink, 2);
    cr_assert_eq(mv(A, "g", A, "h", RENAME_NOREPLACE), 0);
    world_check(&w);
}

Test(ns_rename, exchange_of_every_kind)
{
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755), e = make(&w, A, "e", S_IFDIR | 0755);
    uint64_t f = make(&w, d, "f", S_IFREG | 0644), g = make(&w, e, "g", S_IFREG | 0644);
    uint64_t s = make(&w, d, "s", S_IFDIR | 0755);
    make(&w, s, "deep", S_IFREG | 0644);
    cr_assert_eq(mv(d, "f", e, "no", RENAME_EXCHANGE), -ENOENT);
    cr_assert_eq(mv(d, "f", e, "g", RENAME_EXCHANGE), 0);
    cr_assert(ino_of(&w, d, "f") == g && ino_of(&w, e, "g") == f);
    cr_assert_eq(mv(d, "s", e, "g", RENAME_EXCHANGE), 0);
    cr_assert(ino_of(&w, d, "s") == f && ino_of(&w, e, "g") == s);
    cr_assert(stat_of(&w, d).st_nlink == 2 && stat_of(&w, e).st_nlink == 3);
    cr_assert_eq(ino_of(&w, s, ".."), e);
    cr_assert_eq(mv(d, "f", d, "s", RENAME_EXCHANGE), 0);
    cr_assert(ino_of(&w, d, "f") == f && ino_of(&w, d, "s") == g);
    world_check(&w);
    world_restart(&w, true);
    cr_assert(ino_of(&w, d, "f") == f && ino_of(&w, d, "s") == g && ino_of(&w, e, "g") == s);
    world_check(&w);
}

Test(ns_rename, a_top_level_name_keeps_its_topic)
{
    uint64_t topic, f = make(&w, A, "f", S_IFREG | 0644);
    unmark_all();
    cr_assert_eq(mv(1, "A", 1, "A2", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == A);
    cr_assert(marked(A, key_name(1, "A", 1)) && marked(A, key_name(1, "A2", 2)));
    cr_assert(!marked(A, key_inode(f)), "what is below did not change");
    world_check(&w);
}

Test(ns_rename, a_file_that_changes_its_topic_is_marked_for_both)
{
    uint64_t topic, f = make(&w, A, "f", S_IFREG | 0644);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "1", 1, 0, NULL), 0);
    struct kv_batch b;
    kv_batch_init(&b);
    struct key seg = key_seg(f, 4096);
    kv_put(&b, seg.b, seg.len, "x", 1);
    cr_assert_eq(kv_apply(w.kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    unmark_all();
    cr_assert_eq(mv(A, "f", B, "g", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == B);
    const uint64_t both[] = {A, B};
    for (int k = 0; k < 2; k++) {
        cr_assert(marked(both[k], key_inode(f)));
        cr_assert(marked(both[k], seg));
        cr_assert(marked(both[k], key_xattr(f, "user.a", 6)));
    }
    cr_assert(marked(A, key_name(A, "f", 1)) && marked(B, key_name(B, "g", 1)));
    /* Up to the top level it becomes a topic of its own. */
    unmark_all();
    cr_assert_eq(mv(B, "g", 1, "g", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == f);
    cr_assert(marked(B, seg) && marked(f, seg) && marked(f, key_name(1, "g", 1)));
    world_check(&w);
}

Test(ns_rename, a_tree_that_changes_its_topic_is_marked_to_its_leaves)
{
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755), e = make(&w, d, "e", S_IFDIR | 0755);
    uint64_t f = make(&w, e, "f", S_IFREG | 0644), l = make(&w, e, "l", S_IFLNK), topic;
    unmark_all();
    cr_assert_eq(mv(A, "d", B, "d", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == B);
    const uint64_t both[] = {A, B};
    for (int k = 0; k < 2; k++) {
        cr_assert(marked(both[k], key_inode(d)) && marked(both[k], key_inode(e)));
        cr_assert(marked(both[k], key_inode(f)) && marked(both[k], key_symlink(l)));
        cr_assert(marked(both[k], key_name(d, "e", 1)) && marked(both[k], key_name(e, "f", 1)));
    }
    /* Exchanged with a file of the other topic, both move. */
    uint64_t x = make(&w, A, "x", S_IFREG | 0644);
    cr_assert_eq(mv(B, "d", A, "x", RENAME_EXCHANGE), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == A);
    cr_assert(topic_of(w.ns, x, &topic) == 0 && topic == B);
    world_check(&w);
}

Test(ns_rename, hard_links_do_not_cross_topics_but_what_is_left_of_them_does)
{
    uint64_t d = make(&w, A, "d", S_IFDIR | 0755), e = make(&w, A, "e", S_IFDIR | 0755), topic;
    uint64_t f = make(&w, e, "f", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, d, "g", NULL, &i), 0);
    inode_put(w.ns, i);
    cr_assert_eq(mv(d, "g", B, "g", 0), -EXDEV);
    cr_assert_eq(mv(A, "d", B, "d", 0), -EXDEV);
    cr_assert_eq(mv(d, "g", e, "h", 0), 0);
    cr_assert_eq(mv(e, "h", d, "g", 0), 0);
    cr_assert_eq(ns_unlink(w.ns, e, "f", false, NULL), 0);
    /* Two whose recorded directory stays behind. */
    for (int k = 0; k < 2; k++) {
        uint64_t g = make(&w, e, "g", S_IFREG | 0644);
        cr_assert_eq(ns_link(w.ns, g, d, k ? "g1" : "g0", NULL, &i), 0);
        inode_put(w.ns, i);
        cr_assert_eq(ns_unlink(w.ns, e, "g", false, NULL), 0);
    }
    cr_assert_eq(mv(A, "d", B, "d", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == B);
    cr_assert(topic_of(w.ns, ino_of(&w, d, "g0"), &topic) == 0 && topic == B);
    cr_assert(topic_of(w.ns, ino_of(&w, d, "g1"), &topic) == 0 && topic == B);
    cr_assert_eq(ns_unlink(w.ns, A, "e", true, NULL), 0);
    cr_assert_eq(ns_unlink(w.ns, 1, "A", true, NULL), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == B);
    world_check(&w);
}

Test(ns_rename, files_in_the_root_of_a_broker_are_one_topic)
{
    w.conf.root_files_one_topic = true;
    world_restart(&w, false);
    uint64_t topic, f = make(&w, 1, "ckpt.tmp", S_IFREG | 0644), old;
    old = make(&w, 1, "ckpt", S_IFREG | 0644);
    unmark_all();
    cr_assert_eq(mv(1, "ckpt.tmp", 1, "ckpt", 0), 0);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == 1);
    cr_assert(marked(1, key_name(1, "ckpt", 4)) && marked(1, key_inode(f)));
    cr_assert(marked(1, key_inode(old)) && !has_key(&w, key_inode(old)));
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, 1, "ckpt2", NULL, &i), 0);
    inode_put(w.ns, i);
    cr_assert_eq(ns_link(w.ns, f, A, "ckpt", NULL, &i), -EXDEV);
    world_check(&w);
}

/* The data layer may publish a length at any time; a rename must not take an older one to the store. */
Test(ns_rename, a_published_length_is_stored_with_the_rename)
{
    uint64_t f = make(&w, A, "f", S_IFREG | 0644);
    make(&w, A, "g", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    atomic_store(&i->size, 123);
    atomic_store(&i->mtime_ns, 77);
    cr_assert_eq(mv(A, "f", A, "g", 0), 0);
    inode_put(w.ns, i);
    world_restart(&w, true);
    struct stat st = stat_of(&w, f);
    cr_assert(st.st_size == 123 && st.st_mtim.tv_nsec == 77);
    world_check(&w);
}
