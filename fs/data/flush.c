/* flush.c: flushing in the background and before unmounting, and what an open segment knows of its file's rule.
 *
 * How long written bytes may wait for a flush, and whether they ever go to the store, is said by the rule for the
 * file's path. Asking for it may read metadata, which is not done under data.mu: each round asks for some of
 * the segments that have not asked since the rules changed, the others go by what they know.
 */
#include "fs/data/internal.h"
#include "fs/data/hooks.h"

#include <errno.h>
#include <stdlib.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"

enum { ROUND = 64 };

static void ask_rule(struct openseg *o, uint32_t generation)
{
    struct rule rule;
    atomic_store(&o->rule, generation); /* before: data_moved may say meanwhile that it is old */
    policy_of(o->d->v->policy, o->ino, &rule);
    atomic_store(&o->flush_ms, (uint32_t)rule.value[POLICY_FLUSH_INTERVAL]);
    atomic_store(&o->kept, !rule.value[POLICY_TIERED]);
}

void data_flush_old(struct data *d)
{
    struct openseg *due[ROUND], *ask[ROUND];
    unsigned n = 0, asks = 0;
    uint32_t generation = policy_generation(d->v->policy);
    int64_t now = clock_mono_ns();
    lock_acquire(&d->mu);
    list_each(&d->all, l)
    {
        struct openseg *o = list_entry(l, struct openseg, all);
        int64_t dirty = atomic_load(&o->dirty_ns);
        uint64_t ms = generation ? atomic_load(&o->flush_ms) : 0;
        ms = ms ? ms : d->v->conf->flush_interval;
        if (generation && atomic_load(&o->rule) != generation && asks < ROUND &&
            openseg_ref_live(o))
            ask[asks++] = o;
        if (n < ROUND && o->sf && dirty && dirty < now - (int64_t)ms * NS_PER_MS &&
            !atomic_load(&o->flush_busy) && openseg_ref_live(o)) {
            atomic_store(&o->flush_busy, true);
            due[n++] = o;
        }
    }
    lock_release(&d->mu);
    for (unsigned k = 0; k < n; k++)
        exec_submit(d->v->pool, &due[k]->flush_task);
    for (unsigned k = 0; k < asks; k++) {
        ask_rule(ask[k], generation);
        openseg_unref(ask[k]);
    }
}

void data_moved(void *ctx, struct inode *i)
{
    struct data *d = ctx;
    policy_moved(d->v->policy, i, i->type == S_IFDIR);
    if (i->data) {
        LOCK_SCOPE(&i->mu);
        list_each(&idata(i)->segs, n) atomic_store(&list_entry(n, struct openseg, link)->rule, 0);
    }
}

/* ---- flushing ---- */

int openseg_sync(struct openseg *o)
{
    /* Bytes that arrive from here on make it dirty again. */
    atomic_store(&o->dirty_ns, 0);
    bool synced = segfile_synced(o->sf);
    int64_t began = clock_mono_ns();
    int r = segfile_sync(o->sf);
    if (!synced)
        files_flushed(o->d, clock_mono_ns() - began);
    if (r < 0) {
        atomic_store(&o->dirty_ns, clock_mono_ns());
        atomic_store(&o->d->unflushed, true);
    }
    return r;
}

int openseg_flush_in_order(struct openseg *o, bool whole)
{
    struct ns *ns = o->d->v->ns;
    struct inode *i = NULL;
    int r = inode_get(ns, o->ino, &i) < 0
                ? 0
                : inode_sync_before(i, whole ? UINT64_MAX : o->base, false);
    if (r == 0 && !(whole && openseg_flushed(o)))
        r = openseg_sync(o);
    if (i)
        inode_put(ns, i);
    return r;
}

void openseg_run_flush(struct task *t)
{
    struct openseg *o = container_of(t, struct openseg, flush_task);
    (void)openseg_flush_in_order(o, false); /* a failure is kept in the segment and seen by fsync */
    atomic_store(&o->flush_busy, false);
    openseg_unref(o);
}

/* ---- before unmounting ---- */

struct some_inodes {
    uint64_t ino[64];
    unsigned n;
};

static int take_inode(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct some_inodes *s = arg;
    uint64_t ino;
    if (key_parse_seg(key, klen, &ino, NULL) && (s->n == 0 || s->ino[s->n - 1] != ino))
        s->ino[s->n++] = ino;
    return s->n == ARRAY_LEN(s->ino);
}

/* What a daemon that was killed wrote last, and nobody has touched since. After this stop file sizes are
 * trusted. */
static int flush_earlier(struct data *d)
{
    struct key all = key_prefix('W');
    int r = 0, more = 1;
    for (uint64_t from = 0; more > 0;) {
        struct some_inodes s = {0};
        struct key k = key_open(from, 0);
        more = kv_walk(d->v->kv, all.b, all.len, k.b, k.len, take_inode, &s);
        for (unsigned n = 0; n < s.n; n++) {
            struct inode *i;
            int e = inode_get(d->v->ns, s.ino[n], &i);
            if (e < 0) {
                r = e;
                continue;
            }
            e = inode_sync(i);
            inode_put(d->v->ns, i);
            r = e < 0 ? e : r;
        }
        if (s.n)
            from = s.ino[s.n - 1] + 1;
        while (files_many(d) && files_close_some(d, true))
            ;
    }
    return more < 0 ? more : r;
}

/* With references. */
static unsigned take_dirty(struct data *d, struct openseg **some, unsigned most)
{
    unsigned n = 0;
    LOCK_SCOPE(&d->mu);
    list_each(&d->all, l)
    {
        struct openseg *o = list_entry(l, struct openseg, all);
        if (n < most && o->sf && !o->failed && !segfile_synced(o->sf) && openseg_ref_live(o))
            some[n++] = o;
    }
    return n;
}

static void flush_whole(struct openseg *o)
{
    int r = openseg_flush_in_order(o, true);
    if (r == 0 || openseg_flushed(o))
        return;
    o->failed = true;
    log_err(LC_DATA, "inode %016llx: the open segment at %llu could not be flushed: %s",
            (unsigned long long)o->ino, (unsigned long long)o->base, err_name(r));
}

void data_flush_all(struct data *d)
{
    enum { AT_ONCE = 1024 };
    struct openseg *some[AT_ONCE];
    unsigned n;
    while ((n = take_dirty(d, some, AT_ONCE)) > 0) {
        /* Begun for all of them, so that the first flush, which waits for a commit of the device's file system, takes
         * most of the others along. */
        for (unsigned k = 0; k < n; k++)
            segfile_release_cache(some[k]->sf, UINT64_MAX);
        for (unsigned k = 0; k < n; k++) {
            flush_whole(some[k]);
            openseg_unref(some[k]);
        }
    }
    int r = d->v->clean || d->v->restarted ? 0 : flush_earlier(d);
    if (r < 0) {
        atomic_store(&d->unflushed, true);
        log_err(LC_DATA, "what an earlier daemon wrote could not all be flushed: %s", err_name(r));
    }
}

bool data_all_flushed(struct data *d)
{
    return !atomic_load(&d->unflushed);
}
