/* test_ns.c: names, attributes, links, attributes of files, and inodes that outlive their names. */
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include <signal.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include "tests/unit/test_ns_world.h"

static struct world w;

static void setup(void)
{
    memset(&w, 0, sizeof w);
    w.conf.node = 3;
    world_open(&w);
}

static void teardown(void)
{
    world_close(&w);
}

TestSuite(ns, .init = setup, .fini = teardown);

static int create(uint64_t parent, const char *name, mode_t mode, bool excl, const char *target)
{
    struct ns_create c = {
        .parent = parent, .name = name, .mode = mode, .excl = excl, .target = target};
    struct inode *i;
    int e = ns_create(w.ns, &c, NULL, &i);
    if (e == 0)
        inode_put(w.ns, i);
    else
        cr_assert_null(i);
    return e;
}

static int lookup(uint64_t parent, const char *name)
{
    struct inode *i;
    int e = ns_lookup(w.ns, parent, name, &i);
    inode_put(w.ns, i);
    return e;
}

static char *long_name(size_t n)
{
    static char b[300];
    memset(b, 'n', n);
    b[n] = 0;
    return b;
}

Test(ns, a_new_root_has_the_given_owner_and_mode)
{
    struct stat st = stat_of(&w, ROOT_INO);
    cr_assert_eq(st.st_mode, S_IFDIR | 0755);
    cr_assert(st.st_uid == 10 && st.st_gid == 20 && st.st_nlink == 2 && st.st_ino == 1);
    cr_assert_eq(ino_of(&w, ROOT_INO, ".."), ROOT_INO);
    cr_assert_eq(ino_of(&w, ROOT_INO, "."), ROOT_INO);
}

Test(ns, every_type_can_be_made_and_read_back_after_a_restart)
{
    static const mode_t types[] = {S_IFREG, S_IFDIR, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK, S_IFLNK};
    for (int round = 0; round < 2; round++) {
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            char name[8];
            snprintf(name, sizeof name, "t%zu", k);
            if (round == 0) {
                struct ns_create c = {.parent = 1,
                                      .name = name,
                                      .mode = types[k] | 0640,
                                      .uid = 7,
                                      .gid = 8,
                                      .rdev = makedev(4, 5),
                                      .target = "x/y",
                                      .excl = true};
                struct inode *i;
                cr_assert_eq(ns_create(w.ns, &c, NULL, &i), 0);
                cr_assert_eq(i->ino >> 40, 3);
                inode_put(w.ns, i);
            }
            struct stat st = stat_of(&w, ino_of(&w, 1, name));
            cr_assert_eq(st.st_mode, types[k] | (types[k] == S_IFLNK ? 0777 : 0640));
            cr_assert(st.st_uid == 7 && st.st_gid == 8);
            cr_assert_eq(st.st_nlink, types[k] == S_IFDIR ? 2u : 1u);
            cr_assert_eq(st.st_rdev,
                         types[k] == S_IFCHR || types[k] == S_IFBLK ? makedev(4, 5) : 0);
        }
        char buf[16];
        cr_assert_eq(ns_readlink(w.ns, ino_of(&w, 1, "t6"), buf, sizeof buf), 0);
        cr_assert_str_eq(buf, "x/y");
        cr_assert_eq(stat_of(&w, ino_of(&w, 1, "t6")).st_size, 3);
        cr_assert_eq(ns_readlink(w.ns, ino_of(&w, 1, "t6"), buf, 3), -ERANGE);
        cr_assert_eq(ns_readlink(w.ns, ino_of(&w, 1, "t0"), buf, sizeof buf), -EINVAL);
        world_check(&w);
        world_restart(&w, round == 0);
    }
}

Test(ns, create_fails_as_posix_says)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), f = make(&w, 1, "f", S_IFREG | 0644);
    cr_assert(d && f);
    cr_assert_eq(create(1, "f", S_IFREG, true, NULL), -EEXIST);
    cr_assert_eq(create(1, "f", S_IFREG, false, NULL), 0);
    cr_assert_eq(create(1, "d", S_IFREG, false, NULL), -EISDIR);
    cr_assert_eq(create(1, "d", S_IFDIR, true, NULL), -EEXIST);
    cr_assert_eq(create(1, "f", S_IFDIR, true, NULL), -EEXIST);
    cr_assert_eq(create(1, "d", S_IFLNK, true, "x"), -EEXIST);
    cr_assert_eq(create(f, "x", S_IFREG, true, NULL), -ENOTDIR);
    cr_assert_eq(create(999, "x", S_IFREG, true, NULL), -ENOENT);
    cr_assert_eq(create(1, long_name(256), S_IFREG, true, NULL), -ENAMETOOLONG);
    cr_assert_eq(create(1, long_name(255), S_IFREG, true, NULL), 0);
    cr_assert_eq(create(1, "", S_IFREG, true, NULL), -ENOENT);
    cr_assert_eq(create(1, "l", S_IFLNK, true, ""), -ENOENT);
    char *t = malloc(5000);
    memset(t, 't', 4096);
    t[4096] = 0;
    cr_assert_eq(create(1, "l", S_IFLNK, true, t), -ENAMETOOLONG);
    t[4095] = 0;
    cr_assert_eq(create(1, "l", S_IFLNK, true, t), 0);
    char back[4096];
    cr_assert_eq(ns_readlink(w.ns, ino_of(&w, 1, "l"), back, sizeof back), 0);
    cr_assert_str_eq(back, t);
    free(t);
    cr_assert_eq(create(1, "w", S_IFMT, true, NULL), -EINVAL);
    world_check(&w);
}

Test(ns, lookup_fails_as_posix_says)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), f = make(&w, d, "f", S_IFREG | 0644);
    cr_assert_eq(lookup(d, "f"), 0);
    cr_assert_eq(lookup(d, "g"), -ENOENT);
    cr_assert_eq(lookup(f, "g"), -ENOTDIR);
    cr_assert_eq(lookup(12345, "g"), -ENOENT);
    cr_assert_eq(lookup(d, long_name(256)), -ENAMETOOLONG);
    cr_assert_eq(ino_of(&w, d, ".."), 1);
    cr_assert_eq(ino_of(&w, d, "."), d);
}

Test(ns, a_setgid_directory_hands_its_group_down)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, d, &i), 0);
    struct ns_set s = {.mask = NS_SET_MODE | NS_SET_GID, .mode = 02775, .gid = 77};
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    inode_put(w.ns, i);
    struct stat st = stat_of(&w, make(&w, d, "sub", S_IFDIR | 0755));
    cr_assert_eq(st.st_mode, S_IFDIR | 02755);
    cr_assert_eq(st.st_gid, 77);
    st = stat_of(&w, make(&w, d, "f", S_IFREG | 0644));
    cr_assert_eq(st.st_mode, S_IFREG | 0644);
    cr_assert_eq(st.st_gid, 77);
}

Test(ns, unlink_and_rmdir_fail_as_posix_says)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), f = make(&w, d, "f", S_IFREG | 0644);
    cr_assert_eq(ns_unlink(w.ns, 1, "d", false, NULL), -EISDIR);
    cr_assert_eq(ns_unlink(w.ns, 1, "d", true, NULL), -ENOTEMPTY);
    cr_assert_eq(ns_unlink(w.ns, d, "f", true, NULL), -ENOTDIR);
    cr_assert_eq(ns_unlink(w.ns, d, "no", false, NULL), -ENOENT);
    cr_assert_eq(ns_unlink(w.ns, d, "no", true, NULL), -ENOENT);
    cr_assert_eq(ns_unlink(w.ns, f, "x", false, NULL), -ENOTDIR);
    cr_assert_eq(ns_unlink(w.ns, 999, "x", false, NULL), -ENOENT);
    cr_assert_eq(ns_unlink(w.ns, 1, long_name(256), false, NULL), -ENAMETOOLONG);
    cr_assert_eq(ns_unlink(w.ns, d, "f", false, NULL), 0);
    cr_assert_eq(ns_unlink(w.ns, 1, "d", true, NULL), 0);
    cr_assert_eq(lookup(1, "d"), -ENOENT);
    cr_assert_eq(ns_inodes_used(w.ns), 1);
    world_check(&w);
}

Test(ns, hard_links_share_one_inode_and_count_it)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), e = make(&w, 1, "e", S_IFDIR | 0755);
    uint64_t s = make(&w, d, "sub", S_IFDIR | 0755), f = make(&w, s, "f", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, d, "g", NULL, &i), 0);
    cr_assert_eq(i->ino, f);
    inode_put(w.ns, i);
    cr_assert_eq(stat_of(&w, f).st_nlink, 2);
    cr_assert_eq(ns_link(w.ns, f, d, "g", NULL, &i), -EEXIST);
    cr_assert_eq(ns_link(w.ns, s, d, "h", NULL, &i), -EPERM);
    cr_assert_eq(ns_link(w.ns, f, e, "h", NULL, &i), -EXDEV);
    cr_assert_eq(ns_link(w.ns, f, 1, "h", NULL, &i), -EXDEV);
    cr_assert_eq(ns_link(w.ns, f, f, "h", NULL, &i), -ENOTDIR);
    cr_assert_eq(ns_link(w.ns, 999, d, "h", NULL, &i), -ENOENT);
    cr_assert_null(i);
    /* The first name goes, then its directory: the file still knows its topic. */
    cr_assert_eq(ns_unlink(w.ns, s, "f", false, NULL), 0);
    cr_assert_eq(ns_unlink(w.ns, d, "sub", true, NULL), 0);
    uint64_t topic;
    cr_assert_eq(topic_of(w.ns, f, &topic), 0);
    cr_assert_eq(topic, d);
    cr_assert_eq(stat_of(&w, f).st_nlink, 1);
    world_check(&w);
    cr_assert_eq(ns_unlink(w.ns, d, "g", false, NULL), 0);
    cr_assert(!has_key(&w, key_inode(f)));
}

Test(ns, links_in_the_root_stay_in_their_topic)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, 1, "g", NULL, &i), 0);
    inode_put(w.ns, i);
    uint64_t topic;
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), 0);
    cr_assert_eq(topic_of(w.ns, f, &topic), 0);
    cr_assert_eq(topic, f);
}

Test(ns, topics_are_the_top_level_names)
{
    uint64_t topic, d = make(&w, 1, "d", S_IFDIR | 0755), s = make(&w, d, "s", S_IFDIR | 0755);
    uint64_t f = make(&w, s, "f", S_IFREG | 0644), r = make(&w, 1, "r", S_IFREG | 0644);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == d);
    cr_assert(topic_of(w.ns, d, &topic) == 0 && topic == d);
    cr_assert(topic_of(w.ns, r, &topic) == 0 && topic == r);
    cr_assert(topic_of(w.ns, 1, &topic) == 0 && topic == 1);
    cr_assert_eq(topic_of(w.ns, 4242, &topic), -ENOENT);
    struct key k = key_inode(f), m = key_dirty(d, k.b, k.len);
    cr_assert(has_key(&w, m));
    k = key_name(s, "f", 1);
    cr_assert(has_key(&w, key_dirty(d, k.b, k.len)));
    k = key_name(1, "d", 1);
    cr_assert(has_key(&w, key_dirty(d, k.b, k.len)));
    w.conf.root_files_one_topic = true;
    world_restart(&w, false);
    cr_assert(topic_of(w.ns, r, &topic) == 0 && topic == 1);
    cr_assert(topic_of(w.ns, f, &topic) == 0 && topic == d);
}

Test(ns, an_unlinked_inode_lives_until_it_is_forgotten_and_then_leaves_no_key)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755);
    uint64_t f = make(&w, d, "f", S_IFREG | 0644), l = make(&w, d, "l", S_IFLNK);
    struct inode *i, *j;
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "1", 1, 0, NULL), 0);
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    cr_assert_eq(inode_get(w.ns, l, &j), 0);
    inode_remember(w.ns, i);
    inode_remember(w.ns, i);
    inode_remember(w.ns, j);
    inode_put(w.ns, i);
    inode_put(w.ns, j);
    cr_assert_eq(ns_unlink(w.ns, d, "f", false, NULL), 0);
    cr_assert_eq(ns_unlink(w.ns, d, "l", false, NULL), 0);
    /* Its directory may go at once. */
    cr_assert_eq(ns_unlink(w.ns, 1, "d", true, NULL), 0);
    cr_assert_eq(stat_of(&w, f).st_nlink, 0);
    uint64_t topic;
    cr_assert_eq(topic_of(w.ns, f, &topic), -ENOENT);
    cr_assert_eq(topic, d);
    cr_assert_eq(ns_link(w.ns, f, 1, "again", NULL, &i), -ENOENT);
    struct ns_set s = {.mask = NS_SET_MODE, .mode = 0600};
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    inode_put(w.ns, i);
    world_check(&w);
    inode_forget(w.ns, f, 1);
    cr_assert(has_key(&w, key_inode(f)));
    inode_forget(w.ns, f, 1);
    inode_forget(w.ns, l, 1);
    cr_assert(!has_key(&w, key_inode(f)) && !has_key(&w, key_orphan(f)));
    cr_assert(!has_key(&w, key_xattr(f, "user.a", 6)) && !has_key(&w, key_symlink(l)));
    struct rows o = rows_of(&w, 'O'), in = rows_of(&w, 'I');
    cr_assert(o.n == 0 && in.n == 1);
    rows_free(&o);
    rows_free(&in);
    struct key k = key_inode(f);
    cr_assert(has_key(&w, key_dirty(d, k.b, k.len)), "the manifest hears of the removal");
    cr_assert_eq(inodes_in_memory(w.ns), 1);
    world_check(&w);
}

Test(ns, nothing_can_be_made_in_a_removed_directory)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), f = make(&w, 1, "f", S_IFREG | 0644);
    struct inode *i, *j;
    cr_assert_eq(inode_get(w.ns, d, &i), 0);
    cr_assert_eq(ns_unlink(w.ns, 1, "d", true, NULL), 0);
    cr_assert_eq(create(d, "x", S_IFREG, true, NULL), -ENOENT);
    cr_assert_eq(ns_link(w.ns, f, d, "x", NULL, &j), -ENOENT);
    cr_assert_eq(ns_rename(w.ns, 1, "f", d, "x", 0, NULL), -ENOENT);
    inode_put(w.ns, i);
    cr_assert(!has_key(&w, key_inode(d)));
    world_check(&w);
}

Test(ns, orphans_of_a_killed_daemon_are_purged)
{
    uint64_t ino[600];
    for (int k = 0; k < 600; k++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", k);
        ino[k] = make(&w, 1, name, S_IFREG | 0644);
        struct inode *i;
        cr_assert_eq(inode_get(w.ns, ino[k], &i), 0);
        inode_remember(w.ns, i);
        inode_put(w.ns, i);
        cr_assert_eq(ns_unlink(w.ns, 1, name, false, NULL), 0);
    }
    world_restart(&w, true);
    cr_assert_eq(ns_inodes_used(w.ns), 601);
    cr_assert(has_key(&w, key_orphan(ino[5])));
    cr_assert_eq(ns_purge_orphans(w.ns), 0);
    cr_assert_eq(ns_inodes_used(w.ns), 1);
    cr_assert(!has_key(&w, key_orphan(ino[5])) && !has_key(&w, key_inode(ino[5])));
    world_check(&w);
}

/* The kernel kept its connection while the daemon was replaced: its lookups are not known here. */
Test(ns, after_a_takeover_only_forget_removes_an_orphan)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644), g = make(&w, 1, "g", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    inode_remember(w.ns, i);
    inode_put(w.ns, i);
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), 0);
    w.conf.lookups_unknown = true;
    world_restart(&w, true);
    /* An unlinked open file is read; a file opened before is unlinked. */
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    inode_put(w.ns, i);
    cr_assert_eq(ns_unlink(w.ns, 1, "g", false, NULL), 0);
    cr_assert(has_key(&w, key_inode(f)) && has_key(&w, key_inode(g)));
    inode_forget(w.ns, f, 1);
    cr_assert_eq(inode_get(w.ns, g, &i), 0);
    inode_forget(w.ns, g, 9);
    cr_assert(has_key(&w, key_inode(g)), "still pinned");
    inode_put(w.ns, i);
    cr_assert(!has_key(&w, key_inode(f)) && !has_key(&w, key_inode(g)));
    world_check(&w);
}

Test(ns, inode_numbers_are_not_given_twice_whatever_happens)
{
    uint64_t last = 0;
    for (int life = 0; life < 6; life++) {
        for (int k = 0; k < (life == 2 ? 5000 : 3); k++) {
            uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
            cr_assert_gt(f, last);
            last = f;
            cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), 0);
        }
        world_restart(&w, life % 2);
    }
}

Test(ns, setattr_changes_what_is_asked_and_survives)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 06775);
    struct inode *i;
    struct stat before = stat_of(&w, f);
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    struct ns_set s = {.mask = NS_SET_ATIME | NS_SET_MTIME,
                       .atime_ns = -1500000000,
                       .mtime_ns = 1234567890123456789};
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    cr_assert_eq(atomic_load(&i->mtime_ns), 1234567890123456789);
    s = (struct ns_set){.mask = NS_SET_UID, .uid = 99};
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    inode_put(w.ns, i);
    for (int round = 0; round < 2; round++) {
        struct stat st = stat_of(&w, f);
        cr_assert(st.st_uid == 99 && st.st_gid == before.st_gid);
        cr_assert_eq(st.st_mode, S_IFREG | 0775, "chown clears set-id bits: %o", st.st_mode);
        cr_assert(st.st_mtim.tv_sec == 1234567890 && st.st_mtim.tv_nsec == 123456789);
        cr_assert(st.st_atim.tv_sec == -2 && st.st_atim.tv_nsec == 500000000);
        cr_assert(st.st_ctim.tv_sec > before.st_ctim.tv_sec ||
                  (st.st_ctim.tv_sec == before.st_ctim.tv_sec &&
                   st.st_ctim.tv_nsec >= before.st_ctim.tv_nsec));
        world_restart(&w, true);
    }
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    s = (struct ns_set){.mask = NS_SET_MODE | NS_SET_GID, .mode = 04711, .gid = 5};
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    inode_put(w.ns, i);
    cr_assert_eq(stat_of(&w, f).st_mode, S_IFREG | 04711);
}

static int64_t mtime_of(uint64_t ino)
{
    struct stat st = stat_of(&w, ino);
    return st.st_mtim.tv_sec * NS_PER_SEC + st.st_mtim.tv_nsec;
}

static int64_t ctime_of(uint64_t ino)
{
    struct stat st = stat_of(&w, ino);
    return st.st_ctim.tv_sec * NS_PER_SEC + st.st_ctim.tv_nsec;
}

Test(ns, names_that_change_move_the_times_of_directories_and_inodes)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), e = make(&w, 1, "e", S_IFDIR | 0755);
    int64_t t = mtime_of(d);
    uint64_t f = make(&w, d, "f", S_IFREG | 0644);
    cr_assert_gt(mtime_of(d), t);
    t = mtime_of(d);
    int64_t c = ctime_of(f), m = mtime_of(f);
    struct inode *i;
    cr_assert_eq(ns_link(w.ns, f, d, "g", NULL, &i), 0);
    inode_put(w.ns, i);
    cr_assert(mtime_of(d) > t && ctime_of(f) > c && mtime_of(f) == m);
    t = mtime_of(d);
    c = ctime_of(f);
    cr_assert_eq(ns_unlink(w.ns, d, "g", false, NULL), 0);
    cr_assert(mtime_of(d) > t && ctime_of(f) > c && mtime_of(f) == m);
    t = mtime_of(d);
    int64_t te = mtime_of(e);
    cr_assert_eq(ns_rename(w.ns, d, "f", e, "f", 0, NULL), 0);
    cr_assert(mtime_of(d) > t && mtime_of(e) > te && mtime_of(f) == m);
}

Test(ns, what_appends_left_ahead_is_stored_when_the_inode_goes)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    lock_acquire(&i->mu);
    atomic_store(&i->size, 4711);
    atomic_store(&i->mtime_ns, 5);
    i->rec_ahead = true;
    lock_release(&i->mu);
    inode_put(w.ns, i);
    world_restart(&w, true);
    struct stat st = stat_of(&w, f);
    cr_assert(st.st_size == 4711 && st.st_mtim.tv_sec == 0 && st.st_mtim.tv_nsec == 5);
}

Test(ns, extended_attributes_are_kept_and_fail_as_they_should)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
    char buf[64];
    cr_assert_eq(ns_getxattr(w.ns, f, "user.a", buf, sizeof buf), -ENODATA);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "one", 3, XATTR_REPLACE, NULL), -ENODATA);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "one", 3, 0, NULL), 0);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "x", 1, XATTR_CREATE, NULL), -EEXIST);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.bb", "", 0, XATTR_CREATE, NULL), 0);
    cr_assert_eq(ns_setxattr(w.ns, f, "security.x", "", 0, 0, NULL), -EOPNOTSUPP);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "", 0, 64, NULL), -EINVAL);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "", 65537, 0, NULL), -E2BIG);
    cr_assert_eq(ns_setxattr(w.ns, 999, "user.a", "", 0, 0, NULL), -ENOENT);
    world_restart(&w, true);
    cr_assert_eq(ns_getxattr(w.ns, f, "user.a", buf, sizeof buf), 3);
    cr_assert_eq(memcmp(buf, "one", 3), 0);
    cr_assert_eq(ns_getxattr(w.ns, f, "user.a", NULL, 0), 3);
    cr_assert_eq(ns_getxattr(w.ns, f, "user.a", buf, 2), -ERANGE);
    cr_assert_eq(ns_getxattr(w.ns, f, "user.bb", buf, sizeof buf), 0);
    cr_assert_eq(ns_listxattr(w.ns, f, NULL, 0), 15);
    cr_assert_eq(ns_listxattr(w.ns, f, buf, sizeof buf), 15);
    cr_assert_eq(memcmp(buf, "user.a\0user.bb", 15), 0);
    cr_assert_eq(ns_listxattr(w.ns, f, buf, 14), -ERANGE);
    cr_assert_eq(ns_removexattr(w.ns, f, "user.a", NULL), 0);
    cr_assert_eq(ns_removexattr(w.ns, f, "user.a", NULL), -ENODATA);
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), 0);
    world_check(&w);
}

Test(ns, a_resent_request_finds_its_result)
{
    struct ns_create c = {.parent = 1, .name = "f", .mode = S_IFREG | 0644, .excl = true};
    struct kv_origin who = {.unique = 77, .op = 35}, got;
    struct inode *i;
    cr_assert_eq(ns_create(w.ns, &c, &who, &i), 0);
    cr_assert(kv_find_origin(w.kv, 77, &got));
    cr_assert(got.result == i->ino && got.op == 35);
    inode_put(w.ns, i);
    who.unique = 78;
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, &who), 0);
    cr_assert(kv_find_origin(w.kv, 78, &got));
}

/* ---- hooks ---- */

static _Atomic int loads, unloads, gones;

static int hook_load(void *ctx, struct inode *i)
{
    cr_assert(lock_none_mine());
    atomic_fetch_add(&loads, 1);
    return *(int *)ctx < 0 && i->rec.nlink ? *(int *)ctx : 0;
}

static void hook_unload(void *ctx, struct inode *i)
{
    (void)ctx, (void)i;
    cr_assert(lock_none_mine());
    atomic_fetch_add(&unloads, 1);
}

static int hook_gone(void *ctx, struct inode *i, struct kv_batch *b)
{
    (void)ctx;
    cr_assert(lock_none_mine());
    struct key k = key_seg(i->ino, 0);
    kv_del(b, k.b, k.len);
    atomic_fetch_add(&gones, 1);
    return 0;
}

Test(ns, the_data_layer_is_asked_once_on_the_way_in_and_once_on_the_way_out)
{
    int fail = 0;
    w.conf.hooks = (struct ns_hooks){
        .ctx = &fail, .load = hook_load, .unload = hook_unload, .gone = hook_gone};
    world_restart(&w, false);
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
    make(&w, 1, "d", S_IFDIR | 0755);
    cr_assert(loads == 1 && unloads == 1 && gones == 0);
    struct kv_batch b;
    kv_batch_init(&b);
    struct key k = key_seg(f, 0);
    kv_put(&b, k.b, k.len, "x", 1);
    cr_assert_eq(kv_apply(w.kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    struct inode *i, *j;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    cr_assert_eq(inode_get(w.ns, f, &j), 0);
    cr_assert_eq(i, j);
    cr_assert(loads == 2 && unloads == 1);
    inode_put(w.ns, j);
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), 0);
    cr_assert_eq(gones, 0);
    inode_put(w.ns, i);
    cr_assert(loads == 2 && unloads == 2 && gones == 1);
    cr_assert(!has_key(&w, key_seg(f, 0)) && !has_key(&w, key_inode(f)));
    /* A file that the data layer cannot load is an error, and can be asked for again. */
    f = make(&w, 1, "g", S_IFREG | 0644);
    fail = -EIO;
    cr_assert_eq(inode_get(w.ns, f, &i), -EIO);
    fail = 0;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    inode_put(w.ns, i);
    world_stop(&w, false);
}

Test(ns, a_damaged_record_is_eio_and_not_absent)
{
    uint64_t f = make(&w, 1, "f", S_IFREG | 0644);
    struct kv_batch b;
    kv_batch_init(&b);
    struct key k = key_inode(f);
    kv_put(&b, k.b, k.len, "\1garbage", 8);
    k = key_name(1, "bad", 3);
    kv_put(&b, k.b, k.len, "\1", 1);
    k = key_name(1, "dangling", 8);
    struct name_rec n = {.ino = 4242, .type = DT_REG, .cookie = 9};
    uint8_t v[REC_NAME_MAX];
    kv_put(&b, k.b, k.len, v, name_rec_encode(&n, v));
    cr_assert_eq(kv_apply(w.kv, &b, NULL, NULL), 0);
    kv_batch_done(&b);
    cr_assert_eq(lookup(1, "f"), -EIO);
    cr_assert_eq(lookup(1, "bad"), -EIO);
    cr_assert_eq(lookup(1, "dangling"), -EIO);
    cr_assert_eq(ns_unlink(w.ns, 1, "f", false, NULL), -EIO);
    cr_assert_eq(create(1, "bad", S_IFREG, false, NULL), -EIO);
}

static _Atomic bool full;

static ssize_t pwrite_or_full(int fd, const void *buf, size_t len, uint64_t off)
{
    return full ? -ENOSPC : io_posix.pwrite(fd, buf, len, off);
}

Test(ns, a_change_that_cannot_be_stored_has_not_happened)
{
    uint64_t d = make(&w, 1, "d", S_IFDIR | 0755), f = make(&w, d, "f", S_IFREG | 0644);
    make(&w, d, "g", S_IFREG | 0644);
    world_stop(&w, false);
    struct io_ops ops = io_posix;
    ops.pwrite = pwrite_or_full;
    io_use(&ops);
    world_start(&w);
    struct stat df = stat_of(&w, d), ff = stat_of(&w, f);
    struct inode *i;
    cr_assert_eq(inode_get(w.ns, f, &i), 0);
    full = true;
    cr_assert_eq(create(d, "x", S_IFREG, true, NULL), -ENOSPC);
    cr_assert_eq(create(d, "y", S_IFDIR, true, NULL), -ENOSPC);
    struct inode *j;
    cr_assert_eq(ns_link(w.ns, f, d, "x", NULL, &j), -ENOSPC);
    cr_assert_eq(ns_unlink(w.ns, d, "f", false, NULL), -ENOSPC);
    cr_assert_eq(ns_rename(w.ns, d, "f", d, "g", 0, NULL), -ENOSPC);
    struct ns_set set = {.mask = NS_SET_MODE | NS_SET_MTIME, .mode = 0, .mtime_ns = 1};
    cr_assert_eq(ns_setattr(w.ns, i, &set, NULL), -ENOSPC);
    cr_assert_eq(ns_setxattr(w.ns, f, "user.a", "1", 1, 0, NULL), -ENOSPC);
    inode_put(w.ns, i);
    for (int round = 0; round < 2; round++) {
        struct stat st = stat_of(&w, d);
        cr_assert_eq(memcmp(&st, &df, sizeof st), 0);
        st = stat_of(&w, f);
        cr_assert_eq(memcmp(&st, &ff, sizeof st), 0);
        cr_assert_eq(lookup(d, "x"), -ENOENT);
        cr_assert_eq(ns_inodes_used(w.ns), 4);
        cr_assert_eq(inodes_in_memory(w.ns), 1);
        world_check(&w);
        if (round == 0) {
            world_stop(&w, true);
            full = false;
            world_start(&w);
        }
    }
    cr_assert_eq(create(d, "x", S_IFREG, true, NULL), 0);
    world_check(&w);
    world_stop(&w, false);
    io_use(NULL);
}

Test(ns, every_inode_in_memory_is_counted)
{
    struct inode *i[200];
    for (int k = 0; k < 200; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d", k);
        cr_assert_eq(inode_get(w.ns, make(&w, 1, name, S_IFREG | 0644), &i[k]), 0);
    }
    cr_assert_eq(inodes_in_memory(w.ns), 201);
    for (int k = 0; k < 200; k++)
        inode_put(w.ns, i[k]);
    cr_assert_eq(inodes_in_memory(w.ns), 1);
}

Test(ns, two_locks_of_one_rank_go_by_address)
{
    struct lock l[2];
    lock_init(&l[0], "a", RANK_INODE, true);
    lock_init(&l[1], "b", RANK_INODE, true);
    lock_acquire_peer(&l[0]);
    lock_acquire_peer(&l[1]);
    cr_assert(lock_disk_ok());
    lock_release(&l[0]);
    lock_release(&l[1]);
    lock_destroy(&l[0]);
    lock_destroy(&l[1]);
}

Test(ns, two_locks_of_one_rank_in_the_wrong_order_abort, .signal = SIGABRT)
{
    struct lock l[2];
    lock_init(&l[0], "a", RANK_INODE, true);
    lock_init(&l[1], "b", RANK_INODE, true);
    lock_acquire_peer(&l[1]);
    lock_acquire_peer(&l[0]);
}
