/* path.c: see path.h.
 *
 * Names are kept by directory, and a file's record names only the directory. Most names have a cookie that
 * follows from their inode's number (ns/README, "Numbers and positions"): tried first. Else the directory is
 * listed. A hard link's record may name the topic's directory instead of the right one: then the tree.
 */
#include "fs/ns/path.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/ns/ns_int.h"

enum { DEPTH = 4096, TREE_NAMES_MAX = 100000 };

struct look {
    uint64_t ino;
    size_t len;
    uint8_t name[NAME_BYTES_MAX];
    /* the search of a tree */
    bool tree;
    uint64_t *dir; /* still to be listed */
    size_t dirs, cap;
    unsigned names;
};

static int is_it(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct look *l = arg;
    struct name_rec n;
    const uint8_t *name;
    size_t len;
    if (name_rec_decode(val, vlen, &n) < 0 || !key_parse_name(key, klen, NULL, &name, &len))
        return 0;
    if (n.ino == l->ino) {
        l->len = len;
        memcpy(l->name, name, len);
        return 1;
    }
    if (!l->tree)
        return 0;
    if (++l->names > TREE_NAMES_MAX)
        return -ENOENT;
    if (n.type != DT_DIR)
        return 0;
    if (l->dirs == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        uint64_t *more = realloc(l->dir, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        l->dir = more;
        l->cap = cap;
    }
    l->dir[l->dirs++] = n.ino;
    return 0;
}

static bool by_cookie(struct kv *kv, uint64_t dir, struct look *l)
{
    uint8_t buf[REC_DIRENT_MAX];
    struct dirent_rec d;
    if (l->ino >= COOKIE_TOP)
        return false;
    struct key k = key_dirent(dir, COOKIE_TOP - l->ino);
    ssize_t n = kv_get(kv, k.b, k.len, buf, sizeof buf);
    if (n < 0 || n > (ssize_t)sizeof buf || dirent_rec_decode(buf, (size_t)n, &d) < 0 ||
        d.ino != l->ino)
        return false;
    l->len = d.name_len;
    memcpy(l->name, d.name, l->len);
    return true;
}

static int list_dir(struct kv *kv, uint64_t dir, struct look *l)
{
    struct key all = key_name(dir, NULL, 0);
    return kv_walk(kv, all.b, all.len, all.b, all.len, is_it, l);
}

/* The name of `ino` and the directory that holds it. 1, 0: none, -errno. */
static int find_name(struct kv *kv, uint64_t *dir, bool is_dir, struct look *l)
{
    if (by_cookie(kv, *dir, l))
        return 1;
    int r = list_dir(kv, *dir, l);
    if (r != 0 || is_dir)
        return r;
    l->tree = true;
    r = list_dir(kv, *dir, l);
    while (r == 0 && l->dirs) {
        *dir = l->dir[--l->dirs];
        r = list_dir(kv, *dir, l);
    }
    free(l->dir);
    return r;
}

int inode_path(struct kv *kv, uint64_t ino, char *buf, size_t cap)
{
    size_t at = cap; /* built from the end */
    if (ino == ROOT_INO)
        return snprintf(buf, cap, ".") < (int)cap ? 0 : -ENAMETOOLONG;
    for (unsigned depth = 0; ino != ROOT_INO; depth++) {
        uint8_t rec[REC_INODE_MAX];
        struct inode_rec i;
        struct key k = key_inode(ino);
        ssize_t n = kv_get(kv, k.b, k.len, rec, sizeof rec);
        if (n < 0 || n > (ssize_t)sizeof rec || inode_rec_decode(rec, (size_t)n, &i) < 0)
            return n < 0 ? (int)n : -EBADMSG;
        struct look l = {.ino = ino};
        uint64_t dir = i.parent;
        int r = dir && depth < DEPTH ? find_name(kv, &dir, S_ISDIR(i.mode), &l) : 0;
        if (r <= 0)
            return r < 0 ? r : -ENOENT;
        if (at < l.len + 1)
            return -ENAMETOOLONG;
        at--;
        buf[at] = at == cap - 1 ? 0 : '/';
        at -= l.len;
        memcpy(buf + at, l.name, l.len);
        ino = dir;
    }
    memmove(buf, buf + at, cap - at);
    return 0;
}
