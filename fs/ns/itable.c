/* itable.c: inodes in memory.
 *
 * An inode is in the table while the kernel knows it (lookups), while something pins it, and during
 * the two transitions that one thread works on and all others wait for:
 *
 *   absent -> COMING -> HERE -> GOING -> absent
 *
 * COMING: read from the store without locks, then hooks.load; so two threads that want the same inode
 * get the same one. GOING: what is ahead in memory is stored, an orphan is removed, hooks.unload; so a
 * load never reads a record that is about to be stored.
 *
 * Locks: a shard's mutex guards chains, lookups, pins and states. Waits hold no other lock, therefore
 * inode_get and inode_put are called without locks.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"
#include "fs/ns/ns_int.h"

enum { BUCKETS_FIRST = 64 };

static uint64_t spread(uint64_t ino)
{
    return ino * 0x9e3779b97f4a7c15ull;
}

static struct shard *shard_of(struct ns *ns, uint64_t ino)
{
    return &ns->shard[spread(ino) >> 58];
}

static struct inode **bucket_of(struct shard *s, uint64_t ino)
{
    return &s->bucket[(spread(ino) >> 20) & s->mask];
}

static struct inode *find(struct shard *s, uint64_t ino)
{
    struct inode *i = *bucket_of(s, ino);
    while (i && i->ino != ino)
        i = i->next;
    return i;
}

/* Finds it when it is here or absent; waits while it comes or goes. */
static struct inode *find_settled(struct shard *s, uint64_t ino)
{
    struct inode *i;
    while ((i = find(s, ino)) && i->state != INODE_HERE)
        lock_wait(&s->mu, &s->changed);
    return i;
}

static void insert(struct ns *ns, struct shard *s, struct inode *i)
{
    if (s->n > s->mask) {
        size_t cap = 2 * (s->mask + 1);
        struct inode **bigger = calloc(cap, sizeof *bigger);
        if (bigger) {
            struct inode **old = s->bucket;
            size_t old_cap = s->mask + 1;
            s->bucket = bigger;
            s->mask = cap - 1;
            for (size_t b = 0; b < old_cap; b++) {
                for (struct inode *it = old[b], *next; it; it = next) {
                    next = it->next;
                    struct inode **to = bucket_of(s, it->ino);
                    it->next = *to;
                    *to = it;
                }
            }
            free(old);
        }
    }
    struct inode **to = bucket_of(s, i->ino);
    i->next = *to;
    *to = i;
    s->n++;
    atomic_fetch_add(&ns->in_memory, 1);
}

static void take_out(struct ns *ns, struct shard *s, struct inode *i)
{
    struct inode **at = bucket_of(s, i->ino);
    while (*at != i)
        at = &(*at)->next;
    *at = i->next;
    s->n--;
    atomic_fetch_sub(&ns->in_memory, 1);
    pthread_cond_broadcast(&s->changed);
}

static struct inode *inode_new(uint64_t ino)
{
    struct inode *i = calloc(1, sizeof *i);
    if (!i)
        return NULL;
    i->ino = ino;
    i->pins = 1;
    i->state = INODE_COMING;
    lock_init(&i->mu, "inode", RANK_INODE, true);
    lock_init(&i->io, "inode.io", RANK_INODE_IO, true);
    return i;
}

static void inode_free(struct inode *i)
{
    lock_destroy(&i->mu);
    lock_destroy(&i->io);
    free(i);
}

static void set_rec(struct inode *i, const struct inode_rec *rec)
{
    i->rec = *rec;
    i->type = rec->mode & S_IFMT;
    atomic_store(&i->size, rec->size);
    atomic_store(&i->mtime_ns, rec->mtime_ns);
    atomic_store(&i->ctime_ns, rec->ctime_ns);
}

int itable_prepare(struct ns *ns, uint64_t ino, const struct inode_rec *rec, struct inode **ret)
{
    struct inode *i = inode_new(ino);
    if (!i)
        return -ENOMEM;
    set_rec(i, rec);
    struct shard *s = shard_of(ns, ino);
    lock_acquire(&s->mu);
    bool taken = find(s, ino);
    if (!taken)
        insert(ns, s, i);
    lock_release(&s->mu);
    if (taken) {
        inode_free(i);
        return -EEXIST;
    }
    *ret = i;
    return 0;
}

void itable_cancel(struct ns *ns, struct inode *i)
{
    struct shard *s = shard_of(ns, i->ino);
    lock_acquire(&s->mu);
    take_out(ns, s, i);
    lock_release(&s->mu);
    inode_free(i);
}

int itable_arrive(struct ns *ns, struct inode *i)
{
    int e = 0;
    if (i->type == S_IFREG && ns->conf.hooks.load)
        e = ns->conf.hooks.load(ns->conf.hooks.ctx, i);
    if (e < 0) {
        itable_cancel(ns, i);
        return e;
    }
    struct shard *s = shard_of(ns, i->ino);
    LOCK_SCOPE(&s->mu);
    i->state = INODE_HERE;
    pthread_cond_broadcast(&s->changed);
    return 0;
}

/* The topic an orphan belonged to, 0 when its record does not say. */
static uint64_t orphan_topic(struct ns *ns, uint64_t ino)
{
    uint8_t v[9];
    struct key k = key_orphan(ino);
    return kv_get(ns->kv, k.b, k.len, v, sizeof v) == sizeof v && v[0] == 1 ? get_le64(v + 1) : 0;
}

int inode_get(struct ns *ns, uint64_t ino, struct inode **ret)
{
    *ret = NULL;
    struct shard *s = shard_of(ns, ino);
    lock_acquire(&s->mu);
    struct inode *i = find_settled(s, ino);
    if (i) {
        i->pins++;
        lock_release(&s->mu);
        *ret = i;
        return 0;
    }
    i = inode_new(ino);
    if (!i) {
        lock_release(&s->mu);
        return -ENOMEM;
    }
    insert(ns, s, i);
    lock_release(&s->mu);

    struct inode_rec rec;
    int e = rec_get(ns, ino, &rec);
    if (e < 0) {
        itable_cancel(ns, i);
        return e;
    }
    set_rec(i, &rec);
    if (rec.nlink == 0)
        i->last_topic = orphan_topic(ns, ino);
    e = itable_arrive(ns, i);
    if (e == 0)
        *ret = i;
    return e;
}

void inode_pin(struct ns *ns, struct inode *i)
{
    struct shard *s = shard_of(ns, i->ino);
    LOCK_SCOPE(&s->mu);
    assert(i->pins > 0 && i->state == INODE_HERE);
    i->pins++;
}

void inode_remember(struct ns *ns, struct inode *i)
{
    struct shard *s = shard_of(ns, i->ino);
    LOCK_SCOPE(&s->mu);
    assert(i->pins > 0 && i->state == INODE_HERE);
    i->lookups++;
    atomic_store(&i->forgotten, false);
}

struct doomed {
    struct ns *ns;
    struct kv_batch *b;
    uint64_t topic;
};

static int del_xattr(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct doomed *d = arg;
    struct key k = {.len = klen};
    assert(klen <= sizeof k.b);
    memcpy(k.b, key, klen);
    kv_del(d->b, k.b, k.len);
    if (d->topic)
        topic_mark(d->b, d->topic, &k);
    return 0;
}

/* Takes every key of an orphan away, in one batch with its segments. */
static int remove_orphan(struct ns *ns, struct inode *i)
{
    struct kv_batch b;
    kv_batch_init(&b);
    int e = 0;
    if (i->type == S_IFREG && ns->conf.hooks.gone)
        e = ns->conf.hooks.gone(ns->conf.hooks.ctx, i, &b);
    struct doomed d = {.ns = ns, .b = &b, .topic = i->last_topic};
    struct key k = key_inode(i->ino);
    kv_del(&b, k.b, k.len);
    if (d.topic)
        topic_mark(&b, d.topic, &k);
    if (i->type == S_IFLNK) {
        k = key_symlink(i->ino);
        kv_del(&b, k.b, k.len);
        if (d.topic)
            topic_mark(&b, d.topic, &k);
    }
    if (e == 0) {
        k = key_xattr(i->ino, NULL, 0);
        e = ns_err(kv_walk(ns->kv, k.b, k.len, k.b, k.len, del_xattr, &d));
    }
    k = key_orphan(i->ino);
    kv_del(&b, k.b, k.len);
    if (e == 0)
        e = ns_err(kv_apply(ns->kv, &b, NULL, NULL));
    kv_batch_done(&b);
    if (e == 0)
        atomic_fetch_sub(&ns->used, 1);
    return e;
}

/* GOING: nobody else has it, and who wants it waits. */
static void unload(struct ns *ns, struct inode *i)
{
    assert(lock_none_mine());
    int e = 0;
    lock_acquire(&i->mu);
    bool remove = i->rec.nlink == 0 && !ns->closing &&
                  (!ns->conf.lookups_unknown || atomic_load(&i->forgotten));
    if (i->rec_ahead && !remove) {
        struct kv_batch b;
        kv_batch_init(&b);
        inode_store_locked(ns, i, &b);
        e = kv_apply(ns->kv, &b, NULL, NULL);
        kv_batch_done(&b);
    }
    lock_release(&i->mu);
    if (e < 0)
        log_rate(LC_NS, LOG_LV_ERR, 10,
                 "inode %llu: times not stored (%s); they go back to the last stored ones",
                 (unsigned long long)i->ino, err_name(e));
    if (remove) {
        e = remove_orphan(ns, i);
        if (e < 0)
            log_rate(LC_NS, LOG_LV_ERR, 10,
                     "inode %llu: removal failed (%s); tried again at the next mount",
                     (unsigned long long)i->ino, err_name(e));
    }
    if (i->type == S_IFREG && ns->conf.hooks.unload)
        ns->conf.hooks.unload(ns->conf.hooks.ctx, i);
    itable_cancel(ns, i);
}

/* With the shard held, which it releases. */
static void settle(struct ns *ns, struct shard *s, struct inode *i)
{
    bool go = i->pins == 0 && i->lookups == 0;
    if (go)
        i->state = INODE_GOING;
    lock_release(&s->mu);
    if (go)
        unload(ns, i);
}

void inode_put(struct ns *ns, struct inode *i)
{
    if (!i)
        return;
    struct shard *s = shard_of(ns, i->ino);
    lock_acquire(&s->mu);
    assert(i->pins > 0 && i->state == INODE_HERE);
    i->pins--;
    settle(ns, s, i);
}

void inode_put_forgotten(struct ns *ns, struct inode *i)
{
    atomic_store(&i->forgotten, true);
    inode_put(ns, i);
}

void inode_forget(struct ns *ns, uint64_t ino, uint64_t n)
{
    struct shard *s = shard_of(ns, ino);
    lock_acquire(&s->mu);
    struct inode *i = find_settled(s, ino);
    if (i) {
        i->lookups -= min_u64(n, i->lookups);
        if (i->lookups == 0)
            atomic_store(&i->forgotten, true);
        settle(ns, s, i);
        return;
    }
    lock_release(&s->mu);
    if (!ns->conf.lookups_unknown)
        return;
    /* The last daemon counted it; only an orphan has something left to do. */
    struct key k = key_orphan(ino);
    uint8_t v[9];
    if (kv_get(ns->kv, k.b, k.len, v, sizeof v) >= 0 && inode_get(ns, ino, &i) == 0)
        inode_put_forgotten(ns, i);
}

uint64_t inodes_in_memory(struct ns *ns)
{
    return atomic_load(&ns->in_memory);
}

int itable_open(struct ns *ns)
{
    for (unsigned x = 0; x < SHARDS; x++) {
        struct shard *s = &ns->shard[x];
        lock_init(&s->mu, "itable", RANK_ITABLE, false);
        cond_init(&s->changed);
        s->mask = BUCKETS_FIRST - 1;
        s->bucket = calloc(BUCKETS_FIRST, sizeof(struct inode *));
    }
    for (unsigned x = 0; x < SHARDS; x++)
        if (!ns->shard[x].bucket) {
            itable_close(ns);
            return -ENOMEM;
        }
    return 0;
}

/* No other thread uses the table any more. */
void itable_close(struct ns *ns)
{
    ns->closing = true;
    for (unsigned x = 0; x < SHARDS; x++) {
        struct shard *s = &ns->shard[x];
        for (size_t b = 0; s->bucket && b <= s->mask; b++)
            while (s->bucket[b]) {
                struct inode *i = s->bucket[b];
                if (i->pins > 0)
                    log_warn(LC_NS, "inode %llu: still pinned %llu times at the end",
                             (unsigned long long)i->ino, (unsigned long long)i->pins);
                i->pins = i->lookups = 0;
                i->state = INODE_GOING;
                unload(ns, i);
            }
        free(s->bucket);
        pthread_cond_destroy(&s->changed);
        lock_destroy(&s->mu);
    }
}
