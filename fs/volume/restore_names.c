/* restore_names.c: inodes in memory, and their names put in order: every inode has a name and is reached from
 * the root, every name leads to an inode; rows of listings are made anew. See restore_tree.c for what
 * becomes of what. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/ns/ns_int.h" /* COOKIE_TOP, DEPTH_MAX */
#include "fs/volume/restore_int.h"

static const char lost_found_name[] = "lost+found";

/* ---- inodes in memory ---- */

struct rino *restore_find(struct restore *r, uint64_t ino)
{
    size_t a = 0, b = r->inos;
    while (a < b) {
        size_t m = a + (b - a) / 2;
        if (r->ino[m].ino < ino)
            a = m + 1;
        else
            b = m;
    }
    return a < r->inos && r->ino[a].ino == ino ? &r->ino[a] : NULL;
}

static int push(struct restore *r, const struct rino *x)
{
    if (r->inos == r->inos_cap) {
        size_t cap = r->inos_cap ? r->inos_cap * 2 : 1024;
        struct rino *more = realloc(r->ino, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        r->ino = more;
        r->inos_cap = cap;
    }
    size_t at = r->inos;
    while (at > 0 && r->ino[at - 1].ino > x->ino)
        at--;
    memmove(r->ino + at + 1, r->ino + at, (r->inos - at) * sizeof *x);
    r->ino[at] = *x;
    r->inos++;
    return 0;
}

int restore_load_inode(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct restore *r = arg;
    struct rino x = {0};
    struct inode_rec rec;
    if (!key_parse_ino(key, klen, &x.ino) || inode_rec_decode(val, vlen, &rec) < 0)
        return -EBADMSG;
    x.parent = rec.parent;
    x.size = rec.size;
    x.mode = rec.mode;
    x.nlink = rec.nlink;
    if (x.ino >> NUMBER_BITS == r->rep->node)
        r->next = max_u64(r->next, (x.ino & ((1ull << NUMBER_BITS) - 1)) + 1);
    return push(r, &x);
}

int restore_owe(struct restore *r, uint64_t ino, const struct key *k)
{
    if (r->oweds == r->oweds_cap) {
        size_t cap = r->oweds_cap ? r->oweds_cap * 2 : 64;
        struct owed *more = realloc(r->owed, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        r->owed = more;
        r->oweds_cap = cap;
    }
    r->owed[r->oweds++] = (struct owed){ino, *k};
    return 0;
}

int restore_put_inode(struct restore *r, const struct rino *x, const struct inode_rec *rec)
{
    uint8_t buf[REC_INODE_MAX];
    struct key k = key_inode(x->ino);
    kv_put(&r->batch, k.b, k.len, buf, inode_rec_encode(rec, buf));
    return restore_owe(r, x->ino, &k);
}

int restore_make_inode(struct restore *r, uint64_t ino, uint64_t parent, uint32_t mode)
{
    int64_t now = clock_wall_ns();
    struct rino x = {
        .ino = ino, .parent = parent, .mode = mode, .nlink = 2, .in_parent = true, .placed = true};
    struct inode_rec rec = {.mode = mode,
                            .uid = getuid(),
                            .gid = getgid(),
                            .nlink = 2,
                            .parent = parent,
                            .atime_ns = now,
                            .mtime_ns = now,
                            .ctime_ns = now,
                            .btime_ns = now};
    int e = push(r, &x);
    return e < 0 ? e : restore_put_inode(r, &x, &rec);
}

/* ---- names ---- */

static int put_name(struct restore *r, uint64_t parent, const void *name, size_t len,
                    const struct name_rec *n, bool differs)
{
    uint8_t nb[REC_NAME_MAX], db[REC_DIRENT_MAX];
    struct key k = key_name(parent, name, len);
    if (differs) {
        kv_put(&r->batch, k.b, k.len, nb, name_rec_encode(n, nb));
        int e = restore_owe(r, parent == ROOT_INO ? n->ino : parent, &k);
        if (e < 0)
            return e;
    }
    struct dirent_rec d = {.ino = n->ino, .type = n->type, .name_len = (uint8_t)len, .name = name};
    k = key_dirent(parent, n->cookie);
    kv_put(&r->batch, k.b, k.len, db, dirent_rec_encode(&d, db));
    return restore_apply(r, 1000);
}

struct entry {
    uint64_t parent;
    const uint8_t *name;
    size_t len;
    struct name_rec rec;
    struct rino *child; /* NULL: this name leads nowhere */
};

static int entry_of(struct restore *r, const void *key, size_t klen, const void *val, size_t vlen,
                    struct entry *e)
{
    if (!key_parse_name(key, klen, &e->parent, &e->name, &e->len) ||
        name_rec_decode(val, vlen, &e->rec) < 0)
        return -EBADMSG;
    struct rino *dir = restore_find(r, e->parent);
    e->child = dir && S_ISDIR(dir->mode) ? restore_find(r, e->rec.ino) : NULL;
    return 0;
}

static int count_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct entry e;
    int err = entry_of(arg, key, klen, val, vlen, &e);
    if (err == 0 && e.child) {
        e.child->names++;
        e.child->in_parent |= e.parent == e.child->parent;
    }
    return err;
}

static int drop_name(struct restore *r, const struct entry *e, const char *why)
{
    struct key k = key_name(e->parent, e->name, e->len);
    findings_add(&r->rep->found, &(struct finding){.kind = "dropped-name", .ino = e->rec.ino},
                 "name \"%.*s\" in directory %llx: %s; removed", (int)e->len, (const char *)e->name,
                 (unsigned long long)e->parent, why);
    kv_del(&r->batch, k.b, k.len);
    int err = restore_owe(r, e->parent == ROOT_INO ? e->rec.ino : e->parent, &k);
    return err < 0 ? err : restore_apply(r, 1000);
}

static int settle_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct restore *r = arg;
    struct entry e;
    int err = entry_of(r, key, klen, val, vlen, &e);
    if (err < 0)
        return err;
    struct rino *c = e.child;
    if (!c)
        return drop_name(r, &e, "leads to no inode, or is in no directory");
    bool here = e.parent == c->parent, dir = S_ISDIR(c->mode);
    if (dir && (c->placed || (c->in_parent && !here))) {
        c->names--;
        return drop_name(r, &e, "a directory has one name, and this is not where it is now");
    }
    if (!dir && c->names > (c->nlink ? c->nlink : 1) && c->in_parent && !here) {
        c->names--;
        return drop_name(r, &e, "it was moved away from here");
    }
    c->placed = true;
    if (!c->in_parent) {
        c->parent = e.parent;
        c->in_parent = c->changed = true;
    }
    bool differs = e.rec.type != IFTODT(c->mode) || e.rec.cookie < 3 || e.rec.cookie > COOKIE_TOP;
    e.rec.type = IFTODT(c->mode);
    if (e.rec.cookie < 3 || e.rec.cookie > COOKIE_TOP)
        e.rec.cookie = COOKIE_TOP - restore_number(r);
    if (dir)
        restore_find(r, e.parent)->subdirs++;
    return put_name(r, e.parent, e.name, e.len, &e.rec, differs);
}

/* A new name for `ino` in `parent`; made longer while it is taken. */
static int give_name(struct restore *r, uint64_t ino, uint64_t parent, const char *name)
{
    char text[NAME_BYTES_MAX + 1];
    struct rino *c = restore_find(r, ino);
    uint8_t buf[REC_NAME_MAX];
    snprintf(text, sizeof text, "%s", name);
    for (unsigned k = 1;; k++) {
        struct key key = key_name(parent, text, strlen(text));
        if (kv_get(r->v->kv, key.b, key.len, buf, sizeof buf) == -ENOENT)
            break;
        if (k > 1000)
            return -EEXIST;
        snprintf(text, sizeof text, "%.200s.%u", name, k);
    }
    struct name_rec n = {
        .ino = ino, .cookie = COOKIE_TOP - restore_number(r), .type = IFTODT(c->mode)};
    c->parent = parent;
    c->in_parent = c->placed = c->changed = true;
    c->names++;
    if (S_ISDIR(c->mode))
        restore_find(r, parent)->subdirs++;
    int e = put_name(r, parent, text, strlen(text), &n, true);
    return e < 0 ? e : restore_apply(r, 1); /* the next one looks */
}

static int need_lost_found(struct restore *r)
{
    if (r->lost_found)
        return 0;
    uint8_t buf[REC_NAME_MAX];
    struct name_rec n;
    struct key k = key_name(ROOT_INO, lost_found_name, sizeof lost_found_name - 1);
    ssize_t len = kv_get(r->v->kv, k.b, k.len, buf, sizeof buf);
    if (len >= 0 && len <= (ssize_t)sizeof buf && name_rec_decode(buf, (size_t)len, &n) == 0 &&
        n.type == DT_DIR && restore_find(r, n.ino)) {
        r->lost_found = n.ino;
        return 0;
    }
    uint64_t ino = restore_number(r);
    int e = restore_make_inode(r, ino, ROOT_INO, S_IFDIR | 0700);
    if (e == 0)
        e = give_name(r, ino, ROOT_INO, lost_found_name);
    r->lost_found = ino;
    return e;
}

static int rescue(struct restore *r, uint64_t ino, const char *why)
{
    char name[32];
    int e = need_lost_found(r);
    if (e < 0)
        return e;
    snprintf(name, sizeof name, "#%llx", (unsigned long long)ino);
    findings_add(&r->rep->found,
                 &(struct finding){.kind = "no-name", .fate = FATE_TOLD, .ino = ino},
                 "inode %llx: %s; it is now lost+found/%s", (unsigned long long)ino, why, name);
    return give_name(r, ino, r->lost_found, name);
}

static int settle_rivals(struct restore *r)
{
    for (size_t i = 0; i < r->rivals; i++) {
        struct rival *x = &r->rival[i];
        uint64_t ino = x->rec.ino;
        struct key k = key_name(x->parent, x->name, x->len);
        uint8_t buf[REC_NAME_MAX];
        struct name_rec have;
        ssize_t n = kv_get(r->v->kv, k.b, k.len, buf, sizeof buf);
        if (n < 0 || name_rec_decode(buf, (size_t)n, &have) < 0)
            return n < 0 ? (int)n : -EBADMSG;
        /* The name belongs to the inode that was changed last: a rename changes it. */
        uint64_t pair[2] = {ino, have.ino};
        int64_t ctime[2] = {0, 0};
        for (int s = 0; s < 2; s++) {
            uint8_t ib[REC_INODE_MAX];
            struct inode_rec rec;
            struct key ik = key_inode(pair[s]);
            ssize_t len = kv_get(r->v->kv, ik.b, ik.len, ib, sizeof ib);
            if (len > 0 && inode_rec_decode(ib, (size_t)len, &rec) == 0)
                ctime[s] = rec.ctime_ns;
        }
        if (ctime[0] > ctime[1]) {
            kv_put(&r->batch, k.b, k.len, buf, name_rec_encode(&x->rec, buf));
            x->rec = have;
        }
        int e = restore_apply(r, 1);
        if (e < 0)
            return e;
    }
    return 0;
}

static int name_losers(struct restore *r)
{
    int e = 0;
    for (size_t i = 0; e == 0 && i < r->rivals; i++) {
        struct rival *x = &r->rival[i];
        struct rino *c = restore_find(r, x->rec.ino);
        char name[NAME_BYTES_MAX + 1];
        if (!c || c->names)
            continue;
        snprintf(name, sizeof name, "%.*s.restored-%llx", (int)min_u64(x->len, 200),
                 (const char *)x->name, (unsigned long long)x->rec.ino);
        findings_add(&r->rep->found, &(struct finding){.kind = "renamed", .ino = x->rec.ino},
                     "\"%.*s\": two topics claim this name; the older one is now \"%s\"",
                     (int)x->len, (const char *)x->name, name);
        struct rino *dir = restore_find(r, x->parent);
        if (dir && S_ISDIR(dir->mode))
            e = give_name(r, x->rec.ino, x->parent, name);
        /* else: it has no name, and is rescued like all such */
    }
    return e;
}

/* ---- every directory is below the root ---- */

struct name_of {
    uint64_t ino;
    struct entry e;
    uint8_t name[NAME_BYTES_MAX];
};

static int is_name_of(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct name_of *x = arg;
    struct entry e = {0};
    if (!key_parse_name(key, klen, &e.parent, &e.name, &e.len) ||
        name_rec_decode(val, vlen, &e.rec) < 0 || e.rec.ino != x->ino)
        return 0;
    memcpy(x->name, e.name, e.len);
    x->e = e;
    x->e.name = x->name;
    return 1;
}

/* Takes a directory out of the ring it is in. */
static int cut_loose(struct restore *r, struct rino *d)
{
    struct name_of x = {.ino = d->ino};
    struct key all = key_name(d->parent, NULL, 0);
    int e = restore_apply(r, 1);
    if (e == 0)
        e = kv_walk(r->v->kv, all.b, all.len, all.b, all.len, is_name_of, &x);
    if (e <= 0)
        return e;
    struct key k = key_dirent(d->parent, x.e.rec.cookie);
    kv_del(&r->batch, k.b, k.len);
    struct rino *dir = restore_find(r, d->parent);
    if (dir && dir->subdirs)
        dir->subdirs--;
    d->names--;
    return drop_name(r, &x.e, "the directories above it form a ring");
}

/* Walks up from a directory. 1: the root is there; 0: *ret_top is the last one, which no directory holds
 * or which is in a ring. */
static int walk_up(struct restore *r, uint64_t ino, uint64_t *ret_top)
{
    *ret_top = ino;
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        struct rino *d = restore_find(r, ino);
        if (!d || !S_ISDIR(d->mode))
            return 0;
        *ret_top = ino;
        if (d->reach == REACH_YES)
            return 1;
        if (d->reach == REACH_WALKING || !d->names)
            return 0;
        d->reach = REACH_WALKING;
        ino = d->parent;
    }
    return 0;
}

static int reach(struct restore *r, uint64_t ino)
{
    uint64_t top;
    while (!walk_up(r, ino, &top)) {
        int e = restore_find(r, top)->names ? cut_loose(r, restore_find(r, top)) : 0;
        if (e == 0)
            e = rescue(r, top, "no directory holds it");
        if (e < 0)
            return e;
        for (size_t i = 0; i < r->inos; i++)
            if (r->ino[i].reach == REACH_WALKING)
                r->ino[i].reach = REACH_UNKNOWN;
        restore_find(r, top)->reach = REACH_YES;
    }
    for (struct rino *d = restore_find(r, ino); d->reach == REACH_WALKING;
         d = restore_find(r, d->parent))
        d->reach = REACH_YES;
    return 0;
}

int restore_names(struct restore *r)
{
    struct key k = key_prefix('N');
    int e = settle_rivals(r);
    if (e == 0)
        e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, count_name, r);
    if (e == 0)
        e = kv_walk(r->v->kv, k.b, k.len, k.b, k.len, settle_name, r);
    if (e == 0)
        e = restore_apply(r, 1);
    if (e == 0)
        e = name_losers(r);
    struct rino *root = restore_find(r, ROOT_INO);
    root->names = 1;
    root->reach = REACH_YES;
    /* By number, since a rescue may put new ones into the array. */
    for (size_t i = 0; e == 0 && i < r->inos; i++) {
        uint64_t ino = r->ino[i].ino;
        if (S_ISDIR(r->ino[i].mode) && r->ino[i].reach != REACH_YES)
            e = reach(r, ino);
        while (i + 1 < r->inos && r->ino[i].ino < ino)
            i++;
    }
    for (size_t i = 0; e == 0 && i < r->inos; i++) {
        uint64_t ino = r->ino[i].ino;
        if (!r->ino[i].names)
            e = rescue(r, ino, "the manifests know it, but no name for it");
        while (i + 1 < r->inos && r->ino[i].ino < ino)
            i++;
    }
    return e;
}
