/* simdisk_fs.c: files, names and what a sync or a power cut makes of them; see simdisk_int.h. All of it
 * runs under the disk's mutex. */
#include "tests/sim/simdisk_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"

uint64_t sd_rng(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

void *sd_must(void *p)
{
    if (!p)
        abort();
    return p;
}

/* ---- names ---- */

struct entry *sd_names_find(struct names *ns, const char *name)
{
    for (size_t i = 0; i < ns->n; i++)
        if (strcmp(ns->v[i].name, name) == 0)
            return &ns->v[i];
    return NULL;
}

static void names_set(struct names *ns, const char *name, struct node *node)
{
    struct entry *e = sd_names_find(ns, name);
    if (!node) {
        if (e) {
            free(e->name);
            *e = ns->v[--ns->n];
        }
        return;
    }
    if (!e) {
        if (ns->n == ns->cap) {
            ns->cap = ns->cap ? ns->cap * 2 : 8;
            ns->v = sd_must(realloc(ns->v, ns->cap * sizeof *ns->v));
        }
        e = &ns->v[ns->n++];
        e->name = sd_must(strdup(name));
    }
    e->node = node;
}

static void names_clear(struct names *ns)
{
    for (size_t i = 0; i < ns->n; i++)
        free(ns->v[i].name);
    free(ns->v);
    *ns = (struct names){0};
}

static void names_copy(struct names *to, const struct names *from)
{
    names_clear(to);
    for (size_t i = 0; i < from->n; i++)
        names_set(to, from->v[i].name, from->v[i].node);
}

/* Records and does a change of names. */
void sd_change(struct simdisk *d, struct node *from_dir, const char *from, struct node *to_dir,
               const char *to, struct node *node)
{
    if (d->pend_n == d->pend_cap) {
        d->pend_cap = d->pend_cap ? d->pend_cap * 2 : 64;
        d->pend = sd_must(realloc(d->pend, d->pend_cap * sizeof *d->pend));
    }
    d->pend[d->pend_n++] = (struct change){.from_dir = from_dir,
                                           .from = from ? sd_must(strdup(from)) : NULL,
                                           .to_dir = to_dir,
                                           .to = to ? sd_must(strdup(to)) : NULL,
                                           .node = node};
    if (from)
        names_set(&from_dir->cur_names, from, NULL);
    if (to)
        names_set(&to_dir->cur_names, to, node);
}

static bool touches(const struct change *c, const struct node *dir)
{
    return c->from_dir == dir || c->to_dir == dir;
}

static bool same_name(const struct node *d1, const char *n1, const struct node *d2, const char *n2)
{
    return n1 && n2 && d1 == d2 && strcmp(n1, n2) == 0;
}

static bool share_name(const struct change *a, const struct change *b)
{
    return same_name(a->from_dir, a->from, b->from_dir, b->from) ||
           same_name(a->from_dir, a->from, b->to_dir, b->to) ||
           same_name(a->to_dir, a->to, b->from_dir, b->from) ||
           same_name(a->to_dir, a->to, b->to_dir, b->to);
}

/* Removes the changes that are in scope (all: everything), doing the chosen ones on the medium. */
static void pend_settle(struct simdisk *d, bool chosen_only)
{
    size_t kept = 0;
    for (size_t i = 0; i < d->pend_n; i++) {
        struct change c = d->pend[i];
        bool in_scope = (c.from_dir && c.from_dir->scope) || (c.to_dir && c.to_dir->scope);
        if (!c.chosen && (chosen_only || !in_scope)) {
            d->pend[kept++] = c;
            continue;
        }
        if (c.chosen && c.from)
            names_set(&c.from_dir->dur_names, c.from, NULL);
        if (c.chosen && c.to)
            names_set(&c.to_dir->dur_names, c.to, c.node);
        free(c.from);
        free(c.to);
    }
    d->pend_n = kept;
}

/* What a sync of `n` makes durable, with all that it builds on. */
void sd_names_sync(struct simdisk *d, struct node *n)
{
    bool more = true;
    for (size_t i = 0; i < d->pend_n; i++)
        d->pend[i].chosen = (S_ISDIR(n->mode) && touches(&d->pend[i], n)) ||
                            (d->ext4_names && d->pend[i].node == n);
    while (more) {
        more = false;
        for (size_t i = 0; i < d->pend_n; i++) {
            struct change *c = &d->pend[i];
            for (size_t j = 0; !c->chosen && j < d->pend_n; j++) {
                struct change *later = &d->pend[j];
                if (!later->chosen)
                    continue;
                if ((j > i && share_name(c, later)) ||
                    (d->ext4_names && c->node && touches(later, c->node)))
                    more = c->chosen = true;
            }
        }
    }
    pend_settle(d, true);
}

/* ---- nodes ---- */

struct node *sd_node_new(struct simdisk *d, mode_t mode, struct node *parent)
{
    struct node *n = sd_must(calloc(1, sizeof *n));
    n->ino = d->next_ino++;
    n->mode = mode;
    n->parent = parent;
    n->cut = NO_CUT;
    n->mtime_ns = clock_wall_ns();
    n->all = d->all;
    d->all = n;
    d->nodes++;
    return n;
}

void sd_node_free(struct simdisk *d, struct node *n)
{
    d->used -= n->size;
    d->nodes--;
    names_clear(&n->cur_names);
    names_clear(&n->dur_names);
    free(n->cur);
    free(n->dur);
    free(n->state);
    free(n);
}

static void mark(struct node *n)
{
    if (n->mark)
        return;
    n->mark = true;
    for (size_t i = 0; i < n->cur_names.n; i++)
        mark(n->cur_names.v[i].node);
    for (size_t i = 0; i < n->dur_names.n; i++)
        mark(n->dur_names.v[i].node);
    if (n->parent)
        mark(n->parent);
}

void sd_sweep(struct simdisk *d)
{
    for (struct node *n = d->all; n; n = n->all)
        n->mark = false;
    mark(d->root);
    for (int i = 0; i < FDS; i++)
        if (d->fds[i].node)
            mark(d->fds[i].node);
    for (size_t i = 0; i < d->pend_n; i++) {
        struct change *c = &d->pend[i];
        if (c->from_dir)
            mark(c->from_dir);
        if (c->to_dir)
            mark(c->to_dir);
        if (c->node)
            mark(c->node);
    }
    for (struct node **at = &d->all; *at;) {
        struct node *n = *at;
        if (n->mark) {
            at = &n->all;
        } else {
            *at = n->all;
            sd_node_free(d, n);
        }
    }
    d->swept = d->nodes;
}

void sd_maybe_sweep(struct simdisk *d)
{
    if (d->nodes > 2 * d->swept + 64)
        sd_sweep(d);
}

/* ---- contents ---- */

int sd_room(struct node *n, uint64_t size)
{
    if (size > FILE_MAX)
        return -EFBIG;
    if (size <= n->cap)
        return 0;
    uint64_t cap = n->cap ? n->cap : 8192;
    while (cap < size)
        cap *= 2;
    n->cur = sd_must(realloc(n->cur, cap));
    n->dur = sd_must(realloc(n->dur, cap));
    n->state = sd_must(realloc(n->state, cap / SECTOR));
    memset(n->cur + n->cap, 0, cap - n->cap);
    memset(n->dur + n->cap, 0, cap - n->cap);
    memset(n->state + n->cap / SECTOR, CLEAN, (cap - n->cap) / SECTOR);
    n->cap = cap;
    return 0;
}

void sd_dirty(struct node *n, uint64_t from, uint64_t to)
{
    for (uint64_t s = from / SECTOR; s * SECTOR < to; s++)
        n->state[s] = DIRTY;
    n->mtime_ns = clock_wall_ns();
}

bool sd_no_space(struct simdisk *d, const struct node *n, uint64_t size)
{
    return d->space && size > n->size && d->used + (size - n->size) > d->space;
}

void sd_set_size(struct simdisk *d, struct node *n, uint64_t size)
{
    d->used += size - n->size;
    n->size = size;
}

int sd_node_truncate(struct simdisk *d, struct node *n, uint64_t len)
{
    int r = sd_room(n, len);
    if (r < 0)
        return r;
    if (len < n->size || len < n->dsize) {
        uint64_t end = max_u64(n->size, n->dsize);
        memset(n->cur + len, 0, end - len);
        sd_dirty(n, len, end);
        if (n->cut == NO_CUT || (uint64_t)n->cut > len)
            n->cut = (int64_t)len;
    }
    sd_set_size(d, n, len);
    n->mtime_ns = clock_wall_ns();
    return 0;
}

void sd_node_sync(struct node *n)
{
    for (uint64_t s = 0; s < n->cap / SECTOR; s++) {
        if (n->state[s] == DIRTY) {
            memcpy(n->dur + s * SECTOR, n->cur + s * SECTOR, SECTOR);
            n->state[s] = CLEAN;
        }
    }
    n->dsize = n->size;
    n->cut = NO_CUT;
}

void sd_node_sync_failed(struct node *n)
{
    for (uint64_t s = 0; s < n->cap / SECTOR; s++)
        if (n->state[s] == DIRTY)
            n->state[s] = LOST;
}

/* What the medium holds after a power cut becomes what programs see. */
static void node_power(struct simdisk *d, struct node *n, uint64_t *rng)
{
    bool as_before = n->cut != NO_CUT && (sd_rng(rng) & 1);
    if (!as_before) {
        uint64_t size = n->size;
        if (n->cut != NO_CUT && n->dsize > (uint64_t)n->cut) {
            memset(n->dur + n->cut, 0, n->dsize - (uint64_t)n->cut);
            n->dsize = (uint64_t)n->cut;
        }
        for (uint64_t s = 0; s < n->cap / SECTOR; s++)
            if (n->state[s] != CLEAN && (sd_rng(rng) & 1))
                memcpy(n->dur + s * SECTOR, n->cur + s * SECTOR, SECTOR);
        if (size > n->dsize) {
            uint64_t pick = sd_rng(rng) % 3;
            n->dsize += pick == 0   ? 0
                        : pick == 1 ? size - n->dsize
                                    : sd_rng(rng) % (size - n->dsize);
        }
    }
    if (n->cap) {
        memset(n->dur + n->dsize, 0, n->cap - n->dsize);
        memcpy(n->cur, n->dur, n->cap);
        memset(n->state, CLEAN, n->cap / SECTOR);
    }
    sd_set_size(d, n, n->dsize);
    n->cut = NO_CUT;
}

/* ---- loss of power ---- */

static void scope_mark(struct node *n)
{
    if (n->scope)
        return;
    n->scope = true;
    for (size_t i = 0; i < n->cur_names.n; i++)
        scope_mark(n->cur_names.v[i].node);
    for (size_t i = 0; i < n->dur_names.n; i++)
        scope_mark(n->dur_names.v[i].node);
}

void sd_scope_set(struct simdisk *d, struct node *top)
{
    for (struct node *n = d->all; n; n = n->all)
        n->scope = false;
    scope_mark(top);
    for (size_t i = 0; i < d->pend_n; i++) /* names that came and went since the last sync */
        if (d->pend[i].node && d->pend[i].to_dir->scope)
            scope_mark(d->pend[i].node);
}

void sd_power(struct simdisk *d, uint64_t seed)
{
    uint64_t rng = seed;
    size_t cut = d->pend_n;
    if (sd_rng(&rng) & 1) /* a journal: all up to some moment; else each by itself */
        cut = d->pend_n ? sd_rng(&rng) % (d->pend_n + 1) : 0;
    bool prefix = cut != d->pend_n;
    for (size_t i = 0; i < d->pend_n; i++) {
        struct change *c = &d->pend[i];
        c->chosen = false;
        if (!((c->from_dir && c->from_dir->scope) || (c->to_dir && c->to_dir->scope)))
            continue;
        c->chosen = prefix ? i < cut : sd_rng(&rng) & 1;
        for (size_t j = 0; c->chosen && j < i; j++) /* it builds on one that was dropped */
            if (!d->pend[j].chosen && share_name(&d->pend[j], c))
                c->chosen = false;
    }
    pend_settle(d, false);
    for (struct node *n = d->all; n; n = n->all) {
        if (!n->scope)
            continue;
        if (S_ISDIR(n->mode)) {
            names_copy(&n->cur_names, &n->dur_names);
            for (size_t i = 0; i < n->cur_names.n; i++)
                if (S_ISDIR(n->cur_names.v[i].node->mode))
                    n->cur_names.v[i].node->parent = n;
        } else {
            node_power(d, n, &rng);
        }
    }
}
