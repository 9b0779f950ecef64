/* kv_overlay.c: skip list from key to newest value or tombstone. Nodes are immutable once linked, so
 * that a frozen list can be read without a lock; a changed key gets a new node. Heights come from a
 * seeded hash of the key: no state, and nobody can choose names that make a tall list flat. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/hash.h"
#include "fs/meta/kv_priv.h"

int key_cmp(const void *a, size_t alen, const void *b, size_t blen)
{
    size_t n = alen < blen ? alen : blen;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : (alen > blen) - (alen < blen);
}

static unsigned height_of(uint64_t seed, const void *key, size_t klen)
{
    uint64_t h = (hash64(key, klen) ^ seed) * 0x9e3779b97f4a7c15ull;
    unsigned height = 1;
    for (h >>= 16; (h & 3) == 0 && height < OVERLAY_HEIGHT; h >>= 2)
        height++;
    return height;
}

static uint64_t onode_bytes(const struct onode *n)
{
    return sizeof *n + n->height * sizeof n->next[0] + n->klen + n->vlen;
}

struct onode *onode_new(uint64_t seed, const void *key, size_t klen, const void *val, size_t vlen,
                        bool dead)
{
    unsigned height = height_of(seed, key, klen);
    struct onode *n = malloc(sizeof *n + height * sizeof n->next[0] + klen + vlen);
    if (!n)
        return NULL;
    n->klen = (uint16_t)klen;
    n->vlen = (uint32_t)vlen;
    n->height = (uint8_t)height;
    n->dead = dead;
    memset(n->next, 0, height * sizeof n->next[0]);
    uint8_t *p = (uint8_t *)(n->next + height);
    memcpy(p, key, klen);
    if (vlen)
        memcpy(p + klen, val, vlen);
    return n;
}

/* The links that point at the first node >= key, one per level. */
static void seek(struct overlay *o, const void *key, size_t klen,
                 struct onode **at[static OVERLAY_HEIGHT])
{
    struct onode **links = o->head;
    for (int l = OVERLAY_HEIGHT - 1; l >= 0; l--) {
        while (links[l] && key_cmp(onode_key(links[l]), links[l]->klen, key, klen) < 0)
            links = links[l]->next;
        at[l] = &links[l];
    }
}

void overlay_insert(struct overlay *o, struct onode *n, struct onode **dropped)
{
    struct onode **at[OVERLAY_HEIGHT];
    seek(o, onode_key(n), n->klen, at);
    struct onode *old = *at[0];
    if (old && key_cmp(onode_key(old), old->klen, onode_key(n), n->klen) == 0) {
        for (int l = 0; l < old->height; l++) {
            assert(*at[l] == old);
            *at[l] = old->next[l];
        }
        o->bytes -= onode_bytes(old);
        o->keys--;
        old->next[0] = *dropped;
        *dropped = old;
    }
    for (int l = 0; l < n->height; l++) {
        n->next[l] = *at[l];
        *at[l] = n;
    }
    o->bytes += onode_bytes(n);
    o->keys++;
}

/* The last node < key, or NULL. */
static const struct onode *before(const struct overlay *o, const void *key, size_t klen)
{
    const struct onode *last = NULL;
    struct onode *const *links = o->head;
    for (int l = OVERLAY_HEIGHT - 1; l >= 0; l--) {
        while (links[l] && key_cmp(onode_key(links[l]), links[l]->klen, key, klen) < 0) {
            last = links[l];
            links = last->next;
        }
    }
    return last;
}

const struct onode *overlay_ge(const struct overlay *o, const void *key, size_t klen)
{
    const struct onode *b = before(o, key, klen);
    return b ? b->next[0] : o->head[0];
}

const struct onode *overlay_find(const struct overlay *o, const void *key, size_t klen)
{
    const struct onode *n = overlay_ge(o, key, klen);
    return n && key_cmp(onode_key(n), n->klen, key, klen) == 0 ? n : NULL;
}

const struct onode *overlay_le(const struct overlay *o, const void *key, size_t klen, bool below)
{
    const struct onode *b = before(o, key, klen);
    const struct onode *n = b ? b->next[0] : o->head[0];
    if (!below && n && key_cmp(onode_key(n), n->klen, key, klen) == 0)
        return n;
    return b;
}

void onodes_free(struct onode *first)
{
    while (first) {
        struct onode *next = first->next[0];
        free(first);
        first = next;
    }
}

void overlay_clear(struct overlay *o)
{
    onodes_free(o->head[0]);
    memset(o, 0, sizeof *o);
}
