/* kv_read.c: get, walk, last: the overlays in front of LMDB.
 *
 * Every read copies from the overlays first and begins its LMDB transaction afterwards. An entry leaves
 * the overlays only after LMDB has committed it, so what the overlays did not have, the later
 * transaction sees. The other order could miss an entry that moved in between. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/meta/kv_priv.h"

enum { CHUNK_FIRST = 16, CHUNK_ROWS = 256, CHUNK_BYTES = 1024 * 1024 };

ssize_t kv_get(struct kv *kv, const void *key, size_t klen, void *buf, size_t cap)
{
    assert(lock_disk_ok() && klen >= 1 && klen <= KV_KEY_MAX);
    lock_acquire(&kv->mu);
    const struct onode *n = overlay_find(&kv->active, key, klen);
    if (!n && kv->has_frozen)
        n = overlay_find(&kv->frozen, key, klen);
    if (n) {
        ssize_t len = n->dead ? -ENOENT : (ssize_t)n->vlen;
        if (len > 0 && (size_t)len <= cap)
            memcpy(buf, onode_val(n), (size_t)len);
        lock_release(&kv->mu);
        return len;
    }
    lock_release(&kv->mu);
    return lm_get(kv->lm, key, klen, buf, cap);
}

/* ---- rows copied out ---- */

struct row {
    uint32_t klen, vlen;
    bool dead;
};

struct rows {
    uint8_t *buf;
    size_t len, cap;
    unsigned n;
    size_t last; /* offset of the last row, when n > 0 */
};

static int rows_add(struct rows *rs, const void *key, size_t klen, const void *val, size_t vlen,
                    bool dead)
{
    struct row r = {.klen = (uint32_t)klen, .vlen = (uint32_t)vlen, .dead = dead};
    size_t need = sizeof r + klen + vlen;
    if (rs->cap - rs->len < need) {
        size_t cap = rs->cap ? rs->cap : 4096;
        while (cap - rs->len < need)
            cap *= 2;
        uint8_t *more = realloc(rs->buf, cap);
        if (!more)
            return -ENOMEM;
        rs->buf = more;
        rs->cap = cap;
    }
    assert(rs->buf);
    rs->last = rs->len;
    uint8_t *p = rs->buf + rs->len;
    memcpy(p, &r, sizeof r);
    memcpy(p + sizeof r, key, klen);
    if (vlen)
        memcpy(p + sizeof r + klen, val, vlen);
    rs->len += need;
    rs->n++;
    return 0;
}

/* The row at *pos; advances. */
static struct row rows_at(const struct rows *rs, size_t *pos, const uint8_t **key,
                          const uint8_t **val)
{
    struct row r;
    memcpy(&r, rs->buf + *pos, sizeof r);
    *key = rs->buf + *pos + sizeof r;
    *val = *key + r.klen;
    *pos += sizeof r + r.klen + r.vlen;
    return r;
}

static bool rows_full(const struct rows *rs, unsigned limit)
{
    return rs->n >= limit || rs->len >= CHUNK_BYTES;
}

/* ---- walk ---- */

struct walk {
    const uint8_t *prefix;
    size_t plen;
    unsigned limit;
    struct rows over, out;
    size_t over_pos; /* rows of `over` before it are in `out` or were tombstones */
    bool over_more;  /* `over` was cut at the limit: nothing is known beyond its last row */
    bool full;       /* `out` was cut at the limit */
    int err;
    uint8_t last[KV_KEY_MAX]; /* key of the last row dealt with */
    size_t last_len;
};

static bool has_prefix(const struct walk *w, const uint8_t *key, size_t klen)
{
    return klen >= w->plen && (w->plen == 0 || memcmp(key, w->prefix, w->plen) == 0);
}

static int collect_overlay(struct kv *kv, struct walk *w, const uint8_t *from, size_t flen)
{
    LOCK_SCOPE(&kv->mu);
    const struct onode *a = overlay_ge(&kv->active, from, flen), *f = NULL;
    if (kv->has_frozen)
        f = overlay_ge(&kv->frozen, from, flen);
    while (a || f) {
        int c = !f ? -1 : !a ? 1 : key_cmp(onode_key(a), a->klen, onode_key(f), f->klen);
        const struct onode *n = c <= 0 ? a : f;
        if (c <= 0)
            a = a->next[0];
        if (c >= 0)
            f = f->next[0];
        if (!has_prefix(w, onode_key(n), n->klen))
            break;
        if (rows_full(&w->over, w->limit)) {
            w->over_more = true;
            break;
        }
        int r = rows_add(&w->over, onode_key(n), n->klen, onode_val(n), n->vlen, n->dead);
        if (r < 0)
            return r;
    }
    return 0;
}

static void note(struct walk *w, const uint8_t *key, size_t klen)
{
    memcpy(w->last, key, klen);
    w->last_len = klen;
}

/* Moves overlay rows with keys below `key` (all of them when NULL) to the output. Sets *same when
 * the overlay has `key` itself, which was then moved too. False: stop. */
static bool move_overlay(struct walk *w, const uint8_t *key, size_t klen, bool *same)
{
    *same = false;
    while (w->over_pos < w->over.len && !*same) {
        const uint8_t *k, *v;
        size_t pos = w->over_pos;
        struct row r = rows_at(&w->over, &pos, &k, &v);
        int c = key ? key_cmp(k, r.klen, key, klen) : -1;
        if (c > 0)
            break;
        if (!r.dead && rows_full(&w->out, w->limit)) {
            w->full = true;
            return false;
        }
        if (!r.dead && (w->err = rows_add(&w->out, k, r.klen, v, r.vlen, false)) < 0)
            return false;
        note(w, k, r.klen);
        w->over_pos = pos;
        *same = c == 0;
    }
    return true;
}

static int merge_row(void *arg, const void *key, size_t klen, const void *raw, size_t rlen)
{
    struct walk *w = arg;
    if (!has_prefix(w, key, klen))
        return 1;
    bool same;
    if (!move_overlay(w, key, klen, &same))
        return 1;
    if (same)
        return 0;
    if (w->over_more && w->over_pos == w->over.len)
        return 1; /* beyond the last overlay row that was copied */
    if (rows_full(&w->out, w->limit)) {
        w->full = true;
        return 1;
    }
    ssize_t vlen = lm_check(key, klen, raw, rlen);
    w->err = vlen < 0 ? (int)vlen : rows_add(&w->out, key, klen, raw, (size_t)vlen, false);
    note(w, key, klen);
    return w->err < 0;
}

int kv_walk(struct kv *kv, const void *prefix, size_t plen, const void *from, size_t flen,
            int (*each)(void *arg, const void *key, size_t klen, const void *val, size_t vlen),
            void *arg)
{
    assert(lock_disk_ok() && plen <= KV_KEY_MAX && flen <= KV_KEY_MAX);
    struct walk w = {.prefix = prefix, .plen = plen, .limit = CHUNK_FIRST};
    uint8_t at[KV_KEY_MAX + 1] = {0};
    size_t at_len = plen;
    memcpy(at, plen ? prefix : "", plen);
    if (key_cmp(from, flen, prefix, plen) > 0) {
        memcpy(at, from, flen);
        at_len = flen;
    }
    if (at_len == 0)
        at_len = 1; /* LMDB has no empty key; "\0" is the first possible one */
    int r = 0;
    bool more = true;
    while (r == 0 && more) {
        w.over.len = w.out.len = w.over_pos = 0;
        w.over.n = w.out.n = 0;
        w.over_more = w.full = false;
        w.last_len = 0;
        r = collect_overlay(kv, &w, at, at_len);
        if (r == 0)
            r = lm_scan(kv->lm, at, at_len, merge_row, &w);
        /* A damaged row ends the walk, behind the rows before it. */
        int damaged = r == 0 && w.err == -EBADMSG ? w.err : 0;
        if (r == 0 && !damaged)
            r = w.err;
        bool same;
        if (r == 0 && !damaged && !w.full) {
            (void)move_overlay(&w, NULL, 0, &same);
            r = w.err;
        }
        more = w.full || w.over_more;
        for (size_t pos = 0; r == 0 && pos < w.out.len;) {
            const uint8_t *k, *v;
            struct row row = rows_at(&w.out, &pos, &k, &v);
            r = each(arg, k, row.klen, v, row.vlen);
        }
        if (r == 0)
            r = damaged;
        /* The successor of the last key. */
        if (r == 0 && more) {
            assert(w.last_len > 0);
            memcpy(at, w.last, w.last_len);
            at[w.last_len] = 0;
            at_len = w.last_len + 1;
            w.limit = w.limit < CHUNK_ROWS ? w.limit * 2 : CHUNK_ROWS;
        }
    }
    free(w.over.buf);
    free(w.out.buf);
    return r;
}

/* ---- last ---- */

/* The first key behind all that begin with `prefix`: its length, or 0 when there is none. */
static size_t prefix_end(const uint8_t *prefix, size_t plen, uint8_t *out)
{
    while (plen && prefix[plen - 1] == 0xff)
        plen--;
    if (plen) {
        memcpy(out, prefix, plen);
        out[plen - 1]++;
    }
    return plen;
}

ssize_t kv_last(struct kv *kv, const void *prefix, size_t plen, const void *upto, size_t ulen,
                void *key, size_t key_cap, size_t *ret_klen, void *buf, size_t cap)
{
    assert(lock_disk_ok() && plen <= KV_KEY_MAX && ulen >= 1 && ulen <= KV_KEY_MAX);
    uint8_t at[KV_KEY_MAX], found[KV_KEY_MAX];
    size_t found_len, at_len = prefix_end(prefix, plen, at);
    bool below = at_len > 0 && key_cmp(at, at_len, upto, ulen) <= 0;
    if (!below) {
        memcpy(at, upto, ulen);
        at_len = ulen;
    }
    for (;; below = true) {
        bool dead = false;
        ssize_t n = -ENOENT;
        found_len = 0;
        lock_acquire(&kv->mu);
        const struct onode *o = overlay_le(&kv->active, at, at_len, below);
        const struct onode *f = kv->has_frozen ? overlay_le(&kv->frozen, at, at_len, below) : NULL;
        if (f && (!o || key_cmp(onode_key(f), f->klen, onode_key(o), o->klen) > 0))
            o = f;
        if (o && o->klen >= plen && (plen == 0 || memcmp(onode_key(o), prefix, plen) == 0)) {
            found_len = o->klen;
            memcpy(found, onode_key(o), found_len);
            dead = o->dead;
            n = (ssize_t)o->vlen;
            if (!dead && o->vlen <= cap && o->vlen > 0)
                memcpy(buf, onode_val(o), o->vlen);
        }
        lock_release(&kv->mu);

        ssize_t m = lm_last(kv->lm, prefix, plen, at, at_len, below, found, found_len, key, key_cap,
                            ret_klen, buf, cap);
        if (m != -ENOENT)
            return m;
        if (!dead) {
            if (n >= 0 && found_len > key_cap)
                return -ENOBUFS;
            if (n >= 0) {
                memcpy(key, found, found_len);
                *ret_klen = found_len;
            }
            return n;
        }
        memcpy(at, found, found_len);
        at_len = found_len;
    }
}

/* ---- check ---- */

struct check {
    struct rows bad;
    uint64_t rows;
    uint8_t last[KV_KEY_MAX];
    size_t last_len;
    int err;
};

static int check_row(void *arg, const void *key, size_t klen, const void *raw, size_t rlen)
{
    struct check *c = arg;
    if (klen > sizeof c->last || (c->rows && key_cmp(c->last, c->last_len, key, klen) >= 0)) {
        c->err = -EBADMSG;
        return 1;
    }
    c->rows++;
    memcpy(c->last, key, klen);
    c->last_len = klen;
    if (lm_check(key, klen, raw, rlen) < 0)
        c->err = rows_add(&c->bad, key, klen, NULL, 0, false);
    return c->err < 0;
}

int kv_check(struct kv *kv, int (*damaged)(void *arg, const void *key, size_t klen), void *arg,
             uint64_t *ret_rows)
{
    struct check c = {0};
    uint64_t before, after;
    int r = lm_rows(kv->lm, &before);
    if (r == 0)
        r = lm_scan(kv->lm, "", 1, check_row, &c);
    if (r == 0)
        r = c.err;
    if (r == 0)
        r = lm_rows(kv->lm, &after);
    /* A checkpoint in between may have changed the number. */
    if (r == 0 && before == after && c.rows != after)
        r = -EBADMSG;
    for (size_t pos = 0; r == 0 && pos < c.bad.len;) {
        const uint8_t *k, *v;
        uint8_t none[1];
        struct row row = rows_at(&c.bad, &pos, &k, &v);
        if (kv_get(kv, k, row.klen, none, sizeof none) == -EBADMSG)
            r = damaged(arg, k, row.klen);
    }
    free(c.bad.buf);
    if (ret_rows)
        *ret_rows = c.rows;
    return r;
}

void kv_usage(struct kv *kv, struct kv_usage *ret)
{
    *ret = (struct kv_usage){.overlay_bytes = atomic_load(&kv->overlay_bytes),
                             .journal_bytes = atomic_load(&kv->journal_bytes),
                             .lmdb_bytes = lm_bytes(kv->lm),
                             .full = lm_tight(kv->lm),
                             .durable_seq = atomic_load(&kv->durable),
                             .seq = atomic_load(&kv->seq)};
    LOCK_SCOPE(&kv->mu);
    ret->overlay_keys = kv->active.keys + kv->frozen.keys;
}
