/* txn.c: one change of the namespace: working copies of the records it touches, one batch, published
 * only when the batch is in the journal.
 *
 * Locks: ns.mu for the whole change; inode.mu of the (at most two) inodes in it that are no
 * directories, in order of address, since the data layer stores their records too. Records of
 * directories change under ns.mu only; their inode.mu is taken for the moment of publishing.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/ns/ns_int.h"

void txn_begin(struct txn *t, struct ns *ns, struct inode *const *list, unsigned n)
{
    memset(t, 0, sizeof *t);
    t->ns = ns;
    for (unsigned k = 0; k < n; k++) {
        bool known = !list[k];
        for (unsigned j = 0; j < t->n; j++)
            known |= t->inode[j] == list[k];
        if (known)
            continue;
        assert(t->n < TXN_INODES);
        unsigned at = t->n++;
        for (; at > 0 && t->inode[at - 1] > list[k]; at--)
            t->inode[at] = t->inode[at - 1];
        t->inode[at] = list[k];
    }
    kv_batch_init(&t->b);
    lock_acquire(&ns->mu);
    for (unsigned k = 0; k < t->n; k++)
        if (t->inode[k]->type != S_IFDIR)
            lock_acquire_peer(&t->inode[k]->mu);
    for (unsigned k = 0; k < t->n; k++) {
        rec_current(ns, t->inode[k], &t->rec[k]);
        t->mtime_was[k] = t->rec[k].mtime_ns;
    }
    t->next = ns->next;
    t->reserved = ns->reserved;
    t->now = clock_wall_ns();
}

static unsigned index_of(const struct txn *t, const struct inode *i)
{
    unsigned k = 0;
    while (t->inode[k] != i) {
        k++;
        assert(k < t->n);
    }
    return k;
}

struct inode_rec *txn_rec(struct txn *t, const struct inode *i)
{
    return &t->rec[index_of(t, i)];
}

void txn_touch(struct txn *t, struct inode *i, uint64_t topic)
{
    t->touched[index_of(t, i)] = true;
    struct key k = key_inode(i->ino);
    if (topic)
        topic_mark(&t->b, topic, &k);
}

int txn_number(struct txn *t, uint64_t *ret)
{
    if (t->next == t->reserved) {
        if (t->reserved + NUMBER_CHUNK > 1ull << NUMBER_BITS)
            return -ENOSPC;
        t->reserved += NUMBER_CHUNK;
        uint8_t v[9] = {1};
        put_le64(v + 1, t->reserved);
        struct key k = key_setting("next_ino");
        kv_put(&t->b, k.b, k.len, v, sizeof v);
    }
    *ret = (uint64_t)t->ns->conf.node << NUMBER_BITS | t->next++;
    return 0;
}

/* A regular file's size and mtime are the data layer's to publish, but for a mtime set by hand. */
static void publish(struct txn *t, unsigned k)
{
    struct inode *i = t->inode[k];
    const struct inode_rec *r = &t->rec[k];
    bool file = i->type == S_IFREG;
    if (!file)
        atomic_store(&i->size, r->size);
    if (!file || r->mtime_ns != t->mtime_was[k])
        atomic_store(&i->mtime_ns, r->mtime_ns);
    atomic_store(&i->ctime_ns, r->ctime_ns);
    i->rec = *r;
    i->rec_ahead = false;
}

int txn_apply(struct txn *t, const struct kv_origin *who, uint64_t result)
{
    for (unsigned k = 0; k < t->n; k++)
        if (t->touched[k])
            rec_put(&t->b, t->inode[k]->ino, &t->rec[k]);
    struct kv_origin o = {0};
    if (who) {
        o = *who;
        o.result = result;
    }
    int e = ns_err(kv_apply(t->ns->kv, &t->b, who ? &o : NULL, NULL));
    if (e < 0)
        return e;
    t->ns->next = t->next;
    t->ns->reserved = t->reserved;
    for (unsigned k = 0; k < t->n; k++)
        if (t->touched[k] && t->inode[k]->type != S_IFDIR)
            publish(t, k);
    t->applied = true;
    return 0;
}

void txn_end(struct txn *t)
{
    for (unsigned k = t->n; k-- > 0;)
        if (t->inode[k]->type != S_IFDIR)
            lock_release(&t->inode[k]->mu);
    for (unsigned k = 0; t->applied && k < t->n; k++)
        if (t->touched[k] && t->inode[k]->type == S_IFDIR) {
            LOCK_SCOPE(&t->inode[k]->mu);
            publish(t, k);
        }
    lock_release(&t->ns->mu);
    kv_batch_done(&t->b);
}
