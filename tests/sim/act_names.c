/* act_names.c: what users do to names, and what the model says must come of it. */
#include "tests/sim/act_int.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/log.h"

static void end_names(struct world *w, const struct mnames *next, int r, int want, const char *what)
{
    if (r == 0 && want == 0) {
        model_push(&w->m, next, true);
        return;
    }
    if (r == want)
        return;
    if (!explained(w, r) || r >= 0)
        sim_fail(w, "%s: %s, not %s", what, r < 0 ? err_name(r) : "done",
                 want < 0 ? err_name(want) : "done");
    if (want == 0 && r != -ENOSPC && r != -EROFS)
        model_push(&w->m, next, false);
}

static void names_add(struct mnames *n, uint64_t parent, const char *name, uint64_t ino,
                      uint32_t mode)
{
    assert(n->n < ENTRIES_MAX);
    struct mentry *e = &n->e[n->n++];
    *e = (struct mentry){.parent = parent, .ino = ino, .mode = mode};
    snprintf(e->name, sizeof e->name, "%s", name);
}

static void names_drop(struct mnames *n, int at)
{
    n->e[at] = n->e[--n->n];
}

bool is_dir(struct world *w, uint64_t ino)
{
    return model_file(&w->m, ino)->dir;
}

static bool dir_empty(const struct mnames *n, uint64_t dir)
{
    for (unsigned i = 0; i < n->n; i++)
        if (n->e[i].parent == dir)
            return false;
    return true;
}

/* `ino` is `top` or below it. */
static bool is_below(const struct mnames *n, uint64_t ino, uint64_t top)
{
    for (unsigned steps = 0; ino != ROOT_INO && steps < 50; steps++) {
        if (ino == top)
            return true;
        unsigned i = 0;
        while (i < n->n && n->e[i].ino != ino)
            i++;
        if (i == n->n)
            return false;
        ino = n->e[i].parent;
    }
    return ino == top;
}

uint64_t pick_dir(struct world *w)
{
    struct mnames *n = model_now(&w->m);
    uint64_t dir[ENTRIES_MAX + 1];
    unsigned k = 0;
    dir[k++] = ROOT_INO;
    for (unsigned i = 0; i < n->n; i++)
        if (is_dir(w, n->e[i].ino))
            dir[k++] = n->e[i].ino;
    return dir[rnd(w, k)];
}

int pick_entry(struct world *w, bool files_only)
{
    struct mnames *n = model_now(&w->m);
    int at[ENTRIES_MAX];
    unsigned k = 0;
    for (unsigned i = 0; i < n->n; i++)
        if (!files_only || !is_dir(w, n->e[i].ino))
            at[k++] = (int)i;
    return k ? at[rnd(w, k)] : -1;
}

struct mfile *pick_file(struct world *w)
{
    int at = pick_entry(w, true);
    return at < 0 ? NULL : model_file(&w->m, model_now(&w->m)->e[at].ino);
}

static void make_name(struct world *w, char out[NAME_MAX_SIM])
{
    snprintf(out, NAME_MAX_SIM, "n%u", rnd(w, 14));
}

static struct mfile *create(struct world *w, uint64_t parent, const char *name, mode_t mode)
{
    struct mnames next = model_next(&w->m);
    if (next.n + 2 > ENTRIES_MAX)
        return NULL;
    struct ns_create c = {.parent = parent, .name = name, .mode = mode, .excl = true};
    struct inode *i = NULL;
    int want = names_find(&next, parent, name) >= 0 ? -EEXIST : 0;
    int r = ns_create(w->v->ns, &c, NULL, &i);
    names_add(&next, parent, name, r == 0 ? i->ino : 0, mode & 07777);
    sim_note(w, "create %llx/%s: %s %llx", (unsigned long long)parent, name, err_name(r),
             r == 0 ? (unsigned long long)i->ino : 0ull);
    struct mfile *f = r == 0 ? model_file_add(w, i->ino, S_ISDIR(mode)) : NULL;
    end_names(w, &next, r, want, "create");
    if (r == 0)
        inode_put(w->v->ns, i);
    return f;
}

struct mfile *act_create(struct world *w, uint64_t parent, const char *name)
{
    return create(w, parent, name, S_IFREG | 0640);
}

struct mfile *act_mkdir(struct world *w, uint64_t parent, const char *name)
{
    return create(w, parent, name, S_IFDIR | 0750);
}

void do_create(struct world *w, mode_t mode)
{
    char name[NAME_MAX_SIM];
    make_name(w, name);
    (void)create(w, pick_dir(w), name, mode);
}

int act_unlink(struct world *w, int at)
{
    struct mnames next = model_next(&w->m);
    struct mentry e = next.e[at];
    bool dir = is_dir(w, e.ino);
    int want = dir && !dir_empty(&next, e.ino) ? -ENOTEMPTY : 0;
    int r = ns_unlink(w->v->ns, e.parent, e.name, dir, NULL);
    sim_note(w, "unlink %llx/%s (%llx): %s", (unsigned long long)e.parent, e.name,
             (unsigned long long)e.ino, err_name(r));
    names_drop(&next, at);
    end_names(w, &next, r, want, "unlink");
    return r;
}

void do_unlink(struct world *w)
{
    int at = pick_entry(w, false);
    if (at >= 0)
        (void)act_unlink(w, at);
}

/* The topic of something in this directory. Broker: files in the root together are one. */
static uint64_t topic_in(struct world *w, const struct mnames *n, uint64_t dir, uint64_t ino)
{
    if (dir == ROOT_INO)
        return w->broker && !is_dir(w, ino) ? ROOT_INO : ino;
    for (;;) {
        unsigned i = 0;
        while (n->e[i].ino != dir)
            i++;
        if (n->e[i].parent == ROOT_INO)
            return dir;
        dir = n->e[i].parent;
    }
}

/* A file with several names in this tree (or itself) could not follow into another topic. */
static bool has_links(struct world *w, const struct mnames *n, uint64_t top)
{
    for (unsigned i = 0; i < n->n; i++)
        if (!is_dir(w, n->e[i].ino) && names_links(n, n->e[i].ino) > 1 &&
            (n->e[i].ino == top || is_below(n, n->e[i].parent, top)))
            return true;
    return false;
}

static bool moves_links(struct world *w, const struct mnames *n, const struct mentry *e,
                        uint64_t dir)
{
    return topic_in(w, n, e->parent, e->ino) != topic_in(w, n, dir, e->ino) &&
           has_links(w, n, e->ino);
}

static int rename_wanted(struct world *w, const struct mnames *n, int at, int to, uint64_t parent,
                         unsigned flags)
{
    const struct mentry *a = &n->e[at];
    bool dir = is_dir(w, a->ino);
    if (dir && is_below(n, parent, a->ino))
        return -EINVAL;
    if (flags == RENAME_EXCHANGE) {
        if (to < 0)
            return -ENOENT;
        if (is_dir(w, n->e[to].ino) && is_below(n, a->parent, n->e[to].ino))
            return -EINVAL;
        if (n->e[to].ino == a->ino)
            return 0;
        return moves_links(w, n, a, parent) || moves_links(w, n, &n->e[to], a->parent) ? -EXDEV : 0;
    }
    if (to < 0)
        return moves_links(w, n, a, parent) ? -EXDEV : 0;
    if (flags == RENAME_NOREPLACE)
        return -EEXIST;
    if (n->e[to].ino == a->ino)
        return 0;
    bool over = is_dir(w, n->e[to].ino);
    if (over && is_below(n, a->parent, n->e[to].ino))
        return -ENOTEMPTY;
    if (dir != over)
        return over ? -EISDIR : -ENOTDIR;
    if (over && !dir_empty(n, n->e[to].ino))
        return -ENOTEMPTY;
    return moves_links(w, n, a, parent) ? -EXDEV : 0;
}

int act_rename(struct world *w, int at, uint64_t parent, const char *name, unsigned flags)
{
    struct mnames next = model_next(&w->m);
    struct mentry a = next.e[at];
    int to = names_find(&next, parent, name);
    int want = rename_wanted(w, &next, at, to, parent, flags);
    int r = ns_rename(w->v->ns, a.parent, a.name, parent, name, flags, NULL);
    sim_note(w, "rename %llx/%s (%llx) -> %llx/%s flags %u: %s", (unsigned long long)a.parent,
             a.name, (unsigned long long)a.ino, (unsigned long long)parent, name, flags,
             err_name(r));
    if (flags == RENAME_EXCHANGE && to >= 0) {
        uint64_t ino = next.e[to].ino;
        uint32_t mode = next.e[to].mode;
        next.e[to].ino = a.ino;
        next.e[to].mode = a.mode;
        next.e[at].ino = ino;
        next.e[at].mode = mode;
    } else if (to < 0 || next.e[to].ino != a.ino) {
        next.e[at].parent = parent;
        snprintf(next.e[at].name, NAME_MAX_SIM, "%s", name);
        if (to >= 0)
            names_drop(&next, to);
    }
    if (want == -EINVAL && (r == -ENOTEMPTY || r == -EISDIR || r == -EEXIST || r == -ENOENT))
        return r; /* which of two reasons is said first is left open */
    if (want < 0 && r < 0 && to >= 0 && (r == -EINVAL || r == -ENOTEMPTY || r == -EISDIR))
        return r;
    end_names(w, &next, r, want, "rename");
    return r;
}

void do_rename(struct world *w)
{
    static const unsigned flags[] = {0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    char name[NAME_MAX_SIM];
    int at = pick_entry(w, false);
    make_name(w, name);
    uint64_t dir = pick_dir(w);
    if (at >= 0)
        (void)act_rename(w, at, dir, name, flags[rnd(w, 5)]);
}

void do_link(struct world *w)
{
    struct mnames next = model_next(&w->m);
    int at = pick_entry(w, true);
    char name[NAME_MAX_SIM];
    make_name(w, name);
    uint64_t dir = pick_dir(w);
    if (at < 0 || next.n + 2 > ENTRIES_MAX)
        return;
    struct inode *i = NULL;
    uint64_t ino = next.e[at].ino;
    int want = names_find(&next, dir, name) >= 0 ? -EEXIST
               : topic_in(w, &next, dir, ino) != topic_in(w, &next, next.e[at].parent, ino) ? -EXDEV
                                                                                            : 0;
    int r = ns_link(w->v->ns, next.e[at].ino, dir, name, NULL, &i);
    sim_note(w, "link %llx as %llx/%s: %s", (unsigned long long)next.e[at].ino,
             (unsigned long long)dir, name, err_name(r));
    names_add(&next, dir, name, next.e[at].ino, next.e[at].mode);
    end_names(w, &next, r, want, "link");
    if (r == 0)
        inode_put(w->v->ns, i);
}

void do_setattr(struct world *w)
{
    struct mnames next = model_next(&w->m);
    int at = pick_entry(w, false);
    struct inode *i;
    if (at < 0 || inode_get(w->v->ns, next.e[at].ino, &i) < 0)
        return;
    struct ns_set s = {.mask = NS_SET_MODE, .mode = 0600 | rnd(w, 64)};
    int r = ns_setattr(w->v->ns, i, &s, NULL);
    for (unsigned k = 0; k < next.n; k++)
        if (next.e[k].ino == i->ino)
            next.e[k].mode = s.mode;
    end_names(w, &next, r, 0, "setattr");
    inode_put(w->v->ns, i);
}
