/* test_ns_readdir.c: a walk through a directory shows what was there all the time exactly once. */
#include "fs/base/bytes.h"
#include "tests/unit/test_ns_world.h"

enum { NAMES = 3000, EXTRA = 6000, PAGE = 37 };

static struct world w;
static uint64_t dir;

static void setup(void)
{
    memset(&w, 0, sizeof w);
    world_open(&w);
    dir = make(&w, 1, "dir", S_IFDIR | 0755);
}

static void teardown(void)
{
    world_close(&w);
}

TestSuite(ns_readdir, .init = setup, .fini = teardown);

struct page {
    unsigned n, max;
    uint64_t next;
    unsigned seen[EXTRA + 1]; /* by the number in the name f%u */
    unsigned dots, total;
};

static int take(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next)
{
    struct page *p = arg;
    if (p->n == p->max)
        return 1;
    p->n++;
    p->total++;
    cr_assert_gt(next, p->next);
    p->next = next;
    cr_assert(ino != 0);
    if (name[0] == '.') {
        p->dots++;
        cr_assert_eq(type, DT_DIR);
        return 0;
    }
    unsigned k;
    cr_assert_eq(sscanf(name, "f%u", &k), 1);
    cr_assert(k <= EXTRA);
    p->seen[k]++;
    cr_assert_eq(type, DT_REG);
    return 0;
}

/* One getdents of at most `max` entries; false at the end. */
static bool next_page(struct page *p, unsigned max)
{
    p->n = 0;
    p->max = max;
    cr_assert_eq(ns_readdir(w.ns, dir, p->next, take, p), 0);
    return p->n > 0;
}

static const char *nm(unsigned k)
{
    static char b[2][16];
    static int x;
    x = !x;
    snprintf(b[x], sizeof b[x], "f%u", k);
    return b[x];
}

static void fill(unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        cr_assert(make(&w, dir, nm(k), S_IFREG | 0644));
}

Test(ns_readdir, all_names_once_whatever_the_page)
{
    fill(NAMES);
    static const unsigned pages[] = {1, PAGE, 100000};
    for (int x = 0; x < 3; x++) {
        struct page p = {0};
        while (next_page(&p, pages[x])) {
        }
        cr_assert_eq(p.dots, 2);
        for (unsigned k = 0; k < NAMES; k++)
            cr_assert_eq(p.seen[k], 1, "f%u: %u times", k, p.seen[k]);
    }
    world_check(&w);
}

Test(ns_readdir, deletes_creates_and_renames_in_the_middle)
{
    fill(NAMES);
    uint64_t rnd = 20240611;
    bool gone[NAMES] = {0};
    struct page p = {0};
    unsigned fresh = NAMES, pages = 0;
    while (next_page(&p, PAGE)) {
        if (++pages == 20)
            world_restart(&w, true); /* A position outlives the daemon. */
        for (int k = 0; k < 20 && fresh < EXTRA; k++) {
            rnd = rnd * 6364136223846793005u + 1442695040888963407u;
            unsigned victim = (unsigned)(rnd >> 33) % NAMES;
            if (!gone[victim] && k % 2) {
                cr_assert_eq(ns_unlink(w.ns, dir, nm(victim), false, NULL), 0);
                gone[victim] = true;
            } else if (!gone[victim]) {
                /* Replaced by another inode: the name is there all the time. */
                cr_assert(make(&w, 1, "tmp", S_IFREG | 0644));
                cr_assert_eq(ns_rename(w.ns, 1, "tmp", dir, nm(victim), 0, NULL), 0);
            }
            cr_assert(make(&w, dir, nm(fresh++), S_IFREG | 0644));
        }
    }
    for (unsigned k = 0; k < NAMES; k++)
        cr_assert(gone[k] ? p.seen[k] <= 1 : p.seen[k] == 1, "f%u: %u times", k, p.seen[k]);
    for (unsigned k = NAMES; k < fresh; k++)
        cr_assert_leq(p.seen[k], 1);
    world_check(&w);
}

/* rm -rf: list a page, remove what it showed, go on from the cookie. */
Test(ns_readdir, removing_while_walking_removes_everything)
{
    fill(NAMES);
    struct page p = {0};
    unsigned removed = 0;
    while (next_page(&p, PAGE))
        for (unsigned k = 0; k < NAMES; k++)
            if (p.seen[k] == 1) {
                cr_assert_eq(ns_unlink(w.ns, dir, nm(k), false, NULL), 0);
                p.seen[k] = 2;
                removed++;
            }
    cr_assert_eq(removed, NAMES);
    cr_assert_eq(ns_unlink(w.ns, 1, "dir", true, NULL), 0);
    world_check(&w);
}

/* A caller that makes or renames something for each entry it sees must come to an end. */
Test(ns_readdir, a_walk_ends_although_each_step_makes_a_name)
{
    fill(100);
    struct page p = {0};
    unsigned fresh = 100;
    while (next_page(&p, 1) && fresh < EXTRA) {
        cr_assert(make(&w, dir, nm(fresh++), S_IFREG | 0644));
        if (p.total % 2) {
            cr_assert_eq(ns_rename(w.ns, dir, nm(fresh - 1), dir, nm(fresh), 0, NULL), 0);
            fresh++;
        }
    }
    cr_assert_lt(fresh, 1000);
    for (unsigned k = 0; k < 100; k++)
        cr_assert_eq(p.seen[k], 1);
    world_check(&w);
}

Test(ns_readdir, a_name_renamed_in_its_directory_keeps_its_place)
{
    fill(100);
    struct page p = {0};
    cr_assert(next_page(&p, 52));
    for (unsigned k = 0; k < 100; k++)
        cr_assert_eq(ns_rename(w.ns, dir, nm(k), dir, nm(k + 1000), 0, NULL), 0);
    while (next_page(&p, 7)) {
    }
    for (unsigned k = 0; k < 100; k++)
        cr_assert_eq(p.seen[k] + p.seen[k + 1000], 1);
    world_check(&w);
}

Test(ns_readdir, exchanged_names_are_shown_once_each)
{
    fill(10);
    struct page p = {0};
    cr_assert(next_page(&p, 5));
    for (unsigned k = 0; k < 5; k++)
        cr_assert_eq(ns_rename(w.ns, dir, nm(k), dir, nm(9 - k), RENAME_EXCHANGE, NULL), 0);
    while (next_page(&p, 1)) {
    }
    for (unsigned k = 0; k < 10; k++)
        cr_assert_eq(p.seen[k], 1);
    world_check(&w);
}

Test(ns_readdir, what_is_no_directory_cannot_be_listed)
{
    uint64_t f = make(&w, dir, "f1", S_IFREG | 0644);
    struct page p = {.max = 5};
    cr_assert_eq(ns_readdir(w.ns, f, 0, take, &p), -ENOTDIR);
    cr_assert_eq(ns_readdir(w.ns, 4242, 0, take, &p), -ENOENT);
    cr_assert_eq(p.total, 0);
    world_check(&w);
}

Test(ns_readdir, types_and_numbers_of_entries)
{
    uint64_t d = make(&w, dir, "d", S_IFDIR | 0755), l = make(&w, dir, "l", S_IFLNK);
    uint64_t q = make(&w, dir, "q", S_IFIFO | 0600);
    struct names_seen s = {0};
    cr_assert_eq(ns_readdir(w.ns, dir, 0, seen_add, &s), 0);
    cr_assert_eq(s.n, 5);
    cr_assert(!strcmp(s.name[0], ".") && s.ino[0] == dir && !strcmp(s.name[1], "..") &&
              s.ino[1] == 1);
    unsigned ok = 0;
    for (unsigned k = 2; k < 5; k++)
        ok += (s.ino[k] == d && s.type[k] == DT_DIR) || (s.ino[k] == l && s.type[k] == DT_LNK) ||
              (s.ino[k] == q && s.type[k] == DT_FIFO);
    cr_assert_eq(ok, 3);
    world_check(&w);
}
