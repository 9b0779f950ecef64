/* test_ns_model.c: random changes against a model in memory, with the daemon killed in between; and many
 * threads at once. A failing run prints its seed; SLUICE_SEED=n runs that one. */
#include <pthread.h>
#include <sys/stat.h>
#include "tests/unit/test_ns_world.h"

static struct world w;

static void setup(void)
{
    memset(&w, 0, sizeof w);
    world_open(&w);
}

static void teardown(void)
{
    world_close(&w);
}

TestSuite(ns_model, .init = setup, .fini = teardown, .timeout = 240);

/* ---- the model ---- */

enum { NODES = 160, ENTRIES = 200, POOL = 7, STEPS = 1500 };
static const char *const pool[POOL] = {"a", "b", "c", "d", "e", "log", "index"};

struct node {
    uint64_t ino; /* 0: free */
    uint32_t type, mode;
    unsigned links; /* names */
    unsigned lookups;
};
struct entry {
    int dir, name, node; /* node < 0: free */
};

static struct node node[NODES];
static struct entry entry[ENTRIES];
static uint64_t seed, step;

static unsigned rnd(unsigned n)
{
    step = step * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(step >> 33) % n;
}

static struct entry *find_entry(int dir, int name)
{
    for (int k = 0; k < ENTRIES; k++)
        if (entry[k].node >= 0 && entry[k].dir == dir && entry[k].name == name)
            return &entry[k];
    return NULL;
}

static struct entry *free_entry(void)
{
    for (int k = 0; k < ENTRIES; k++)
        if (entry[k].node < 0)
            return &entry[k];
    return NULL;
}

static int free_node(void)
{
    for (int k = 0; k < NODES; k++)
        if (!node[k].ino)
            return k;
    return -1;
}

static int parent_of(int n)
{
    for (int k = 0; k < ENTRIES; k++)
        if (entry[k].node == n)
            return entry[k].dir;
    return -1;
}

static bool below(int n, int top)
{
    while (n > 0 && n != top)
        n = parent_of(n);
    return n == top;
}

static bool empty(int dir)
{
    for (int k = 0; k < ENTRIES; k++)
        if (entry[k].node >= 0 && entry[k].dir == dir)
            return false;
    return true;
}

static int topic(int n)
{
    int p;
    while ((p = parent_of(n)) > 0)
        n = p;
    return p == 0 ? n : -1;
}

static int topic_in(int dir, int n)
{
    return dir == 0 ? n : topic(dir);
}

static bool has_links_below(int top)
{
    for (int k = 0; k < ENTRIES; k++)
        if (entry[k].node >= 0 && node[entry[k].node].type != S_IFDIR &&
            node[entry[k].node].links > 1 && below(entry[k].dir, top))
            return true;
    return false;
}

static void drop_if_gone(int n)
{
    if (node[n].links == 0 && node[n].lookups == 0)
        node[n].ino = 0;
}

static void drop_name(struct entry *e)
{
    int n = e->node;
    e->node = -1;
    node[n].links--;
    drop_if_gone(n);
}

static int any_dir(void)
{
    int k;
    do {
        k = (int)rnd(NODES);
    } while (!(k == 0 || (node[k].ino && node[k].type == S_IFDIR && node[k].links)));
    return rnd(3) ? k : 0;
}

/* ---- one step each: do it, and say what it should have returned ---- */

static void do_create(void)
{
    static const mode_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};
    int d = any_dir(), m = (int)rnd(POOL), n = free_node();
    mode_t type = types[rnd(6)], mode = type | (type == S_IFLNK ? 0777 : rnd(512));
    struct entry *e = free_entry();
    if (!e || n < 0)
        return;
    int want = find_entry(d, m) ? EEXIST : 0;
    errno = 0;
    uint64_t ino = make(&w, node[d].ino, pool[m], mode);
    cr_assert_eq(ino ? 0 : errno, want, "seed %llu: create", (unsigned long long)seed);
    if (!ino)
        return;
    node[n] = (struct node){.ino = ino, .type = type, .mode = mode, .links = 1};
    *e = (struct entry){.dir = d, .name = m, .node = n};
}

static void do_link(void)
{
    int n = (int)rnd(NODES), d = any_dir(), m = (int)rnd(POOL), want = 0;
    struct entry *e = free_entry();
    if (!node[n].ino || !e)
        return;
    if (node[n].type == S_IFDIR)
        want = -EPERM;
    else if (find_entry(d, m))
        want = -EEXIST;
    else if (!node[n].links)
        want = -ENOENT;
    else if (topic(n) != topic_in(d, n))
        want = -EXDEV;
    struct inode *i;
    int got = ns_link(w.ns, node[n].ino, node[d].ino, pool[m], NULL, &i);
    cr_assert_eq(got, want, "seed %llu: link %d not %d", (unsigned long long)seed, got, want);
    if (got < 0)
        return;
    inode_put(w.ns, i);
    node[n].links++;
    *e = (struct entry){.dir = d, .name = m, .node = n};
}

static void do_unlink(void)
{
    int d = any_dir(), m = (int)rnd(POOL), want = 0;
    bool rmdir = rnd(2);
    struct entry *e = find_entry(d, m);
    if (!e)
        want = -ENOENT;
    else if (rmdir && node[e->node].type != S_IFDIR)
        want = -ENOTDIR;
    else if (!rmdir && node[e->node].type == S_IFDIR)
        want = -EISDIR;
    else if (rmdir && !empty(e->node))
        want = -ENOTEMPTY;
    int got = ns_unlink(w.ns, node[d].ino, pool[m], rmdir, NULL);
    cr_assert_eq(got, want, "seed %llu: unlink %d not %d", (unsigned long long)seed, got, want);
    if (got == 0)
        drop_name(e);
}

static int rename_want(int d, const struct entry *a, int to, const struct entry *b, unsigned flags)
{
    if (!a)
        return -ENOENT;
    if (b && flags == RENAME_NOREPLACE)
        return -EEXIST;
    if (!b && flags == RENAME_EXCHANGE)
        return -ENOENT;
    if (b && a->node == b->node)
        return 0;
    bool adir = node[a->node].type == S_IFDIR, bdir = b && node[b->node].type == S_IFDIR;
    if (adir && below(to, a->node))
        return -EINVAL;
    if (flags == RENAME_EXCHANGE && bdir && below(d, b->node))
        return -EINVAL;
    if (b && flags != RENAME_EXCHANGE) {
        if (adir != bdir)
            return adir ? -ENOTDIR : -EISDIR;
        if (bdir && !empty(b->node))
            return -ENOTEMPTY;
    }
    if (topic_in(d, a->node) != topic_in(to, a->node) &&
        (adir ? has_links_below(a->node) : node[a->node].links > 1))
        return -EXDEV;
    if (flags == RENAME_EXCHANGE && topic_in(d, b->node) != topic_in(to, b->node) &&
        (bdir ? has_links_below(b->node) : node[b->node].links > 1))
        return -EXDEV;
    return 0;
}

static void do_rename(void)
{
    static const unsigned all[] = {0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    int d = any_dir(), to = any_dir(), m = (int)rnd(POOL), n = (int)rnd(POOL);
    unsigned flags = all[rnd(5)];
    struct entry *a = find_entry(d, m), *b = find_entry(to, n);
    int want = rename_want(d, a, to, b, flags);
    int got = ns_rename(w.ns, node[d].ino, pool[m], node[to].ino, pool[n], flags, NULL);
    cr_assert_eq(got, want, "seed %llu: rename %d not %d", (unsigned long long)seed, got, want);
    if (got < 0 || (b && a->node == b->node))
        return;
    if (flags == RENAME_EXCHANGE) {
        int x = a->node;
        a->node = b->node;
        b->node = x;
        return;
    }
    if (b)
        drop_name(b);
    a->dir = to;
    a->name = n;
}

static void do_hold(void)
{
    int n = 1 + (int)rnd(NODES - 1);
    struct inode *i;
    if (!node[n].ino)
        return;
    if (node[n].lookups && rnd(2)) {
        unsigned some = 1 + rnd(node[n].lookups);
        inode_forget(w.ns, node[n].ino, some);
        node[n].lookups -= some;
        drop_if_gone(n);
        return;
    }
    cr_assert_eq(inode_get(w.ns, node[n].ino, &i), 0);
    inode_remember(w.ns, i);
    inode_put(w.ns, i);
    node[n].lookups++;
}

static void do_chmod(void)
{
    int n = (int)rnd(NODES);
    struct inode *i;
    if (!node[n].ino)
        return;
    node[n].mode = node[n].type | rnd(512);
    struct ns_set s = {.mask = NS_SET_MODE, .mode = node[n].mode};
    cr_assert_eq(inode_get(w.ns, node[n].ino, &i), 0);
    cr_assert_eq(ns_setattr(w.ns, i, &s, NULL), 0);
    cr_assert_eq(ns_setxattr(w.ns, node[n].ino, "user.m", &n, sizeof n, 0, NULL), 0);
    inode_put(w.ns, i);
}

static void compare(void)
{
    unsigned used = 0;
    for (int n = 0; n < NODES; n++) {
        if (!node[n].ino)
            continue;
        used++;
        struct stat st = stat_of(&w, node[n].ino);
        cr_assert_eq(st.st_mode, node[n].mode, "seed %llu", (unsigned long long)seed);
        struct names_seen s = {0};
        if (node[n].type != S_IFDIR) {
            cr_assert_eq(st.st_nlink, node[n].links);
            continue;
        }
        cr_assert_eq(ns_readdir(w.ns, node[n].ino, 0, seen_add, &s), 0);
        unsigned names = 0;
        for (int k = 0; k < ENTRIES; k++)
            if (entry[k].node >= 0 && entry[k].dir == n) {
                names++;
                cr_assert_eq(ino_of(&w, node[n].ino, pool[entry[k].name]), node[entry[k].node].ino,
                             "seed %llu", (unsigned long long)seed);
            }
        cr_assert_eq(s.n, names + 2, "seed %llu", (unsigned long long)seed);
    }
    cr_assert_eq(ns_inodes_used(w.ns), used);
    world_check(&w);
}

static void crash(void)
{
    world_restart(&w, true);
    cr_assert_eq(ns_purge_orphans(w.ns), 0);
    for (int n = 0; n < NODES; n++) {
        node[n].lookups = 0;
        drop_if_gone(n);
    }
}

static void run(void)
{
    memset(node, 0, sizeof node);
    for (int k = 0; k < ENTRIES; k++)
        entry[k].node = -1;
    node[0] = (struct node){.ino = 1, .type = S_IFDIR, .mode = S_IFDIR | 0755, .links = 1};
    for (int k = 0; k < STEPS; k++) {
        switch (rnd(9)) {
        case 0:
        case 1:
            do_create();
            break;
        case 2:
            do_link();
            break;
        case 3:
        case 4:
            do_unlink();
            break;
        case 5:
        case 6:
            do_rename();
            break;
        case 7:
            do_hold();
            break;
        default:
            do_chmod();
        }
        if (k % 300 == 299)
            crash();
        if (k % 60 == 59)
            compare();
    }
}

Test(ns_model, random_changes_agree_with_the_model_through_kills)
{
    const char *given = getenv("SLUICE_SEED");
    uint64_t from = given ? strtoull(given, NULL, 0) : 1, to = given ? from : 20;
    for (seed = from; seed <= to; seed++) {
        step = seed * 7919;
        if (seed > from) {
            world_close(&w);
            world_open(&w);
        }
        run();
    }
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 1500, LOADED = 1 << 16 };

static _Atomic int loaded[LOADED];
static _Atomic int errors;

static int load(void *ctx, struct inode *i)
{
    (void)ctx;
    if (atomic_fetch_add(&loaded[i->ino % LOADED], 1) != 0)
        atomic_fetch_add(&errors, 1);
    return 0;
}

static void unload(void *ctx, struct inode *i)
{
    (void)ctx;
    if (atomic_fetch_sub(&loaded[i->ino % LOADED], 1) != 1)
        atomic_fetch_add(&errors, 1);
}

static bool fine(int e)
{
    return e == 0 || e == -ENOENT || e == -EEXIST || e == -ENOTEMPTY || e == -EISDIR ||
           e == -ENOTDIR || e == -EINVAL || e == -EXDEV;
}

static int ignore(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next)
{
    (void)arg, (void)name, (void)ino, (void)type, (void)next;
    return 0;
}

/* What the data layer does: a new length, published and stored. */
static void append(struct inode *i)
{
    lock_acquire(&i->mu);
    atomic_fetch_add(&i->size, 1);
    struct kv_batch b;
    kv_batch_init(&b);
    inode_store_locked(w.ns, i, &b);
    if (kv_apply(w.kv, &b, NULL, NULL) < 0)
        atomic_fetch_add(&errors, 1);
    kv_batch_done(&b);
    lock_release(&i->mu);
}

struct worker {
    pthread_t t;
    uint64_t rnd;
    const uint64_t *dir;
};

static void one_round(struct worker *me, unsigned r)
{
    uint64_t d = me->dir[r % 3], d2 = me->dir[r / 3 % 3];
    const char *a = pool[r / 9 % POOL], *b = pool[r / 63 % POOL];
    struct inode *i;
    int e = 0;
    switch (r / 441 % 8) {
    case 0:
    case 1: {
        struct ns_create c = {.parent = d, .name = a, .mode = S_IFREG | 0644, .excl = false};
        e = ns_create(w.ns, &c, NULL, &i);
        if (e == 0) {
            append(i);
            inode_put(w.ns, i);
        }
        break;
    }
    case 2:
        e = ns_unlink(w.ns, d, a, false, NULL);
        break;
    case 3:
    case 4:
        e = ns_rename(w.ns, d, a, d2, b, r % 5 ? 0 : RENAME_EXCHANGE, NULL);
        break;
    case 5:
        e = ns_readdir(w.ns, d, 0, ignore, NULL);
        break;
    case 6:
        e = ns_lookup(w.ns, d, a, &i);
        if (e == 0) {
            struct inode *j;
            int f = ns_link(w.ns, i->ino, d2, b, NULL, &j);
            if (f == 0)
                inode_put(w.ns, j);
            if (!fine(f))
                atomic_fetch_add(&errors, 1);
            inode_put(w.ns, i);
        }
        break;
    default:
        e = ns_lookup(w.ns, d, a, &i);
        if (e == 0) {
            struct stat st;
            struct ns_set s = {.mask = NS_SET_MODE, .mode = r & 0777};
            inode_remember(w.ns, i);
            inode_stat(i, &st);
            e = ns_setattr(w.ns, i, &s, NULL);
            if (i->type == S_IFREG)
                append(i);
            inode_put(w.ns, i);
            inode_forget(w.ns, st.st_ino, 1);
        }
    }
    if (!fine(e))
        atomic_fetch_add(&errors, 1);
}

static void *work(void *arg)
{
    struct worker *me = arg;
    for (unsigned k = 0; k < ROUNDS; k++) {
        me->rnd = me->rnd * 6364136223846793005u + 1442695040888963407u;
        one_round(me, (unsigned)(me->rnd >> 33));
    }
    return NULL;
}

Test(ns_model, many_threads_leave_a_consistent_store)
{
    w.conf.hooks = (struct ns_hooks){.load = load, .unload = unload};
    world_restart(&w, false);
    uint64_t A = make(&w, 1, "A", S_IFDIR | 0755), B = make(&w, 1, "B", S_IFDIR | 0755);
    uint64_t dir[3] = {A, make(&w, A, "sub", S_IFDIR | 0755), B};
    struct worker me[THREADS];
    for (unsigned k = 0; k < THREADS; k++) {
        me[k] = (struct worker){.rnd = k + 1, .dir = dir};
        cr_assert_eq(pthread_create(&me[k].t, NULL, work, &me[k]), 0);
    }
    for (unsigned k = 0; k < THREADS; k++)
        pthread_join(me[k].t, NULL);
    cr_assert_eq(errors, 0);
    cr_assert_eq(inodes_in_memory(w.ns), 1);
    for (unsigned k = 0; k < LOADED; k++)
        cr_assert_eq(loaded[k], 0);
    struct rows o = rows_of(&w, 'O');
    cr_assert_eq(o.n, 0);
    rows_free(&o);
    world_check(&w);
    world_restart(&w, true);
    world_check(&w);
}
