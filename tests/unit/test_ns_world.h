/* test_ns_world.h: a namespace over a store of its own, and a check of everything the store holds. */
#ifndef SLUICE_TEST_NS_WORLD_H
#define SLUICE_TEST_NS_WORLD_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fs/base/io.h"
#include "fs/meta/kv.h"
#include "fs/ns/ns.h"

struct world {
    char dir[64];
    int dirfd;
    struct kv *kv;
    struct ns *ns;
    struct ns_conf conf;
};

static inline void world_start(struct world *w)
{
    char why[256] = "";
    struct kv_conf kc = {.dirfd = w->dirfd,
                         .dir = w->dir,
                         .map_bytes = 64 << 20,
                         .checkpoint_ms = 50,
                         .overlay_bytes_max = 4 << 20,
                         .threaded = true,
                         .lmdb_nosync = true};
    cr_assert_eq(kv_open(&kc, &w->kv, why, sizeof why), 0, "%s", why);
    w->conf.kv = w->kv;
    cr_assert_eq(ns_open(&w->conf, 0755, 10, 20, &w->ns), 0);
}

static inline void world_open(struct world *w)
{
    snprintf(w->dir, sizeof w->dir, "/tmp/sluice-ns-XXXXXX");
    cr_assert(mkdtemp(w->dir));
    w->dirfd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(w->dirfd >= 0);
    world_start(w);
}

/* With `crash` the store loses its memory as when the daemon is killed. */
static inline void world_stop(struct world *w, bool crash)
{
    if (crash) {
        /* Nothing may be ahead in memory here, so that closing the namespace stores nothing. */
        uint64_t seq = kv_seq(w->kv);
        ns_close(w->ns);
        cr_assert_eq(kv_seq(w->kv), seq);
        kv_crash(w->kv);
    } else {
        ns_close(w->ns);
        kv_close(w->kv);
    }
    w->ns = NULL;
    w->kv = NULL;
}

static inline void world_restart(struct world *w, bool crash)
{
    world_stop(w, crash);
    world_start(w);
}

static inline void world_close(struct world *w)
{
    if (w->ns)
        world_stop(w, false);
    close(w->dirfd);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", w->dir);
    cr_assert_eq(system(cmd), 0);
}

/* Makes an entry and lets go of it. Returns the inode number, or 0 with errno. */
static inline uint64_t make(struct world *w, uint64_t parent, const char *name, mode_t mode)
{
    struct ns_create c = {.parent = parent,
                          .name = name,
                          .mode = mode,
                          .uid = 1,
                          .gid = 2,
                          .target = "to/where",
                          .excl = true};
    struct inode *i;
    int e = ns_create(w->ns, &c, NULL, &i);
    if (e < 0) {
        errno = -e;
        return 0;
    }
    uint64_t ino = i->ino;
    inode_put(w->ns, i);
    return ino;
}

static inline uint64_t ino_of(struct world *w, uint64_t parent, const char *name)
{
    struct inode *i;
    if (ns_lookup(w->ns, parent, name, &i) < 0)
        return 0;
    uint64_t ino = i->ino;
    inode_put(w->ns, i);
    return ino;
}

static inline struct stat stat_of(struct world *w, uint64_t ino)
{
    struct inode *i;
    struct stat st;
    cr_assert_eq(inode_get(w->ns, ino, &i), 0, "inode %llu", (unsigned long long)ino);
    inode_stat(i, &st);
    inode_put(w->ns, i);
    return st;
}

static inline bool has_key(struct world *w, struct key k)
{
    return kv_get(w->kv, k.b, k.len, NULL, 0) >= 0;
}

/* ---- every key against every other ---- */

struct row {
    uint8_t *k, *v;
    size_t klen, vlen;
};
struct rows {
    struct row *r;
    size_t n, cap;
};

static inline int rows_add(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct rows *t = arg;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->r = realloc(t->r, t->cap * sizeof *t->r);
        cr_assert(t->r);
    }
    struct row *r = &t->r[t->n++];
    *r = (struct row){.k = malloc(klen), .v = malloc(vlen + 1), .klen = klen, .vlen = vlen};
    memcpy(r->k, key, klen);
    memcpy(r->v, val, vlen);
    return 0;
}

static inline struct rows rows_of(struct world *w, char table)
{
    struct rows t = {0};
    struct key k = key_prefix(table);
    cr_assert_eq(kv_walk(w->kv, k.b, k.len, k.b, k.len, rows_add, &t), 0);
    return t;
}

static inline void rows_free(struct rows *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->r[i].k);
        free(t->r[i].v);
    }
    free(t->r);
}

/* Names and readdir entries mirror each other, every inode is named as often as its link count says
 * (or is an orphan), directories count theirs, parents lead to the root, counters agree. */
static inline void world_check(struct world *w)
{
    struct rows in = rows_of(w, 'I'), nm = rows_of(w, 'N'), de = rows_of(w, 'C'),
                or = rows_of(w, 'O'), sy = rows_of(w, 'Y'), xa = rows_of(w, 'X');
    cr_assert_eq(nm.n, de.n, "%zu names, %zu entries", nm.n, de.n);
    for (size_t i = 0; i < nm.n; i++) {
        uint64_t parent;
        const uint8_t *name;
        size_t len;
        struct name_rec r;
        struct dirent_rec d;
        uint8_t v[REC_DIRENT_MAX];
        cr_assert(key_parse_name(nm.r[i].k, nm.r[i].klen, &parent, &name, &len));
        cr_assert_eq(name_rec_decode(nm.r[i].v, nm.r[i].vlen, &r), 0);
        struct key k = key_dirent(parent, r.cookie);
        ssize_t n = kv_get(w->kv, k.b, k.len, v, sizeof v);
        cr_assert(n > 0 && n <= (ssize_t)sizeof v, "%.*s has no entry", (int)len, name);
        cr_assert_eq(dirent_rec_decode(v, (size_t)n, &d), 0);
        cr_assert(d.ino == r.ino && d.type == r.type && d.name_len == len &&
                  !memcmp(d.name, name, len));
        cr_assert(has_key(w, key_inode(r.ino)), "%.*s names nothing", (int)len, name);
        cr_assert(has_key(w, key_inode(parent)));
        uint64_t mine, above;
        cr_assert_eq(topic_of(w->ns, r.ino, &mine), 0);
        cr_assert_eq(topic_of(w->ns, parent, &above), 0);
        cr_assert(parent == ROOT_INO || mine == above, "%.*s belongs to topic %llu, not %llu",
                  (int)len, name, (unsigned long long)mine, (unsigned long long)above);
    }
    for (size_t i = 0; i < in.n; i++) {
        uint64_t ino, topic;
        struct inode_rec r;
        cr_assert(key_parse_ino(in.r[i].k, in.r[i].klen, &ino));
        cr_assert_eq(inode_rec_decode(in.r[i].v, in.r[i].vlen, &r), 0);
        unsigned names = ino == ROOT_INO, subdirs = 0;
        for (size_t j = 0; j < nm.n; j++) {
            uint64_t parent;
            struct name_rec n;
            key_parse_name(nm.r[j].k, nm.r[j].klen, &parent, NULL, NULL);
            name_rec_decode(nm.r[j].v, nm.r[j].vlen, &n);
            names += n.ino == ino;
            subdirs += parent == ino && n.type == DT_DIR;
        }
        bool orphan = has_key(w, key_orphan(ino));
        cr_assert_eq(orphan, r.nlink == 0);
        if (orphan) {
            cr_assert_eq(names, 0);
            cr_assert_eq(r.parent, 0);
            continue;
        }
        if (S_ISDIR(r.mode)) {
            cr_assert_eq(names, 1);
            cr_assert_eq(r.nlink, 2 + subdirs, "directory %llu: %u links, %u subdirectories",
                         (unsigned long long)ino, r.nlink, subdirs);
        } else {
            cr_assert_eq(r.nlink, names);
        }
        cr_assert_eq(topic_of(w->ns, ino, &topic), 0);
        cr_assert(has_key(w, key_inode(topic)));
    }
    for (size_t i = 0; i < or.n; i++) {
        uint64_t ino;
        cr_assert(key_parse_ino(or.r[i].k, or.r[i].klen, &ino));
        cr_assert(has_key(w, key_inode(ino)));
    }
    for (size_t i = 0; i < sy.n; i++) {
        uint64_t ino;
        cr_assert(key_parse_ino(sy.r[i].k, sy.r[i].klen, &ino));
        cr_assert(has_key(w, key_inode(ino)));
    }
    for (size_t i = 0; i < xa.n; i++) {
        uint64_t ino;
        cr_assert(key_parse_name(xa.r[i].k, xa.r[i].klen, &ino, NULL, NULL));
        cr_assert(has_key(w, key_inode(ino)));
    }
    cr_assert_eq(ns_inodes_used(w->ns), in.n);
    rows_free(&in);
    rows_free(&nm);
    rows_free(&de);
    rows_free(& or);
    rows_free(&sy);
    rows_free(&xa);
}

/* Every entry of a directory, in order. */
struct names_seen {
    char name[64][64];
    uint64_t ino[64];
    unsigned type[64];
    unsigned n;
};

static inline int seen_add(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next)
{
    (void)next;
    struct names_seen *s = arg;
    cr_assert(s->n < 64 && strlen(name) < 64);
    strcpy(s->name[s->n], name);
    s->ino[s->n] = ino;
    s->type[s->n++] = type;
    return 0;
}

#endif
