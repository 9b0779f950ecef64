/* kv.c: the metadata store: batches and applying them. See kv.h for what it promises.
 *
 *   kv.c          batches, apply, origins
 *   kv_open.c     open and replay, close
 *   kv_read.c     get, walk, last
 *   kv_sync.c     flushes, checkpoints, threads, unthreaded stepping
 *   kv_journal.c  format of the journal, rules of replay (pure)
 *   kv_overlay.c  ordered map in memory
 *   kv_lmdb.c     the only file that knows LMDB
 *
 * A batch: journal (under `write`) -> active overlay (under `mu`) -> frozen overlay -> LMDB -> gone.
 *   mark <= durable <= seq; LMDB holds 1..mark; frozen mark+1..frozen_seq; active the rest
 * Locks in order: ckpt, flush, write (all disk_ok), mu, sync_mu (short). Flags that are final:
 *   apply_err  no more batches: a journal write failed with EIO, could not be undone, or see sync_err
 *   sync_err   a flush failed and so did writing everything to LMDB instead
 *   ckpt_err   LMDB failed for another reason than space: the journal keeps what it has
 */
#include "fs/meta/kv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/meta/kv_priv.h"

enum { ROOM = 1 }; /* once a checkpoint has made some, it may work */

/* ---- batches ---- */

void kv_batch_init(struct kv_batch *b)
{
    *b = (struct kv_batch){0};
}

void kv_batch_done(struct kv_batch *b)
{
    free(b->buf);
    *b = (struct kv_batch){0};
}

void kv_batch_reset(struct kv_batch *b)
{
    b->len = 0;
    b->n = 0;
    b->failed = false;
    b->frees = false;
}

/* Room for `n` more bytes and the hash; the head of the record comes first. */
static uint8_t *batch_room(struct kv_batch *b, size_t n)
{
    if (b->failed)
        return NULL;
    size_t len = b->len ? b->len : KJ_HEAD;
    if (n > KV_BATCH_BYTES_MAX - len) {
        b->failed = true;
        return NULL;
    }
    if (len + n + KJ_HASH > b->cap) {
        size_t cap = b->cap ? b->cap : 512;
        while (cap < len + n + KJ_HASH)
            cap *= 2;
        uint8_t *more = realloc(b->buf, cap);
        if (!more) {
            b->failed = true;
            return NULL;
        }
        b->buf = more;
        b->cap = cap;
    }
    b->len = len + n;
    return b->buf + len;
}

static void batch_op(struct kv_batch *b, uint8_t op, const void *key, size_t klen, const void *val,
                     size_t vlen)
{
    assert(klen >= 1 && klen <= KV_KEY_MAX && vlen <= KV_VALUE_MAX);
    uint8_t *p = batch_room(b, 7 + klen + vlen);
    if (!p)
        return;
    p[0] = op;
    put_le16(p + 1, (uint16_t)klen);
    put_le32(p + 3, (uint32_t)vlen);
    memcpy(p + 7, key, klen);
    if (vlen)
        memcpy(p + 7 + klen, val, vlen);
    b->n++;
}

void kv_put(struct kv_batch *b, const void *key, size_t klen, const void *val, size_t vlen)
{
    batch_op(b, 1, key, klen, val, vlen);
}

void kv_del(struct kv_batch *b, const void *key, size_t klen)
{
    batch_op(b, 2, key, klen, NULL, 0);
}

/* ---- origins: a ring of the last KV_ORIGINS ---- */

void kv_origin_push(struct kv *kv, const struct kv_origin *o)
{
    kv->origins[kv->origins_n++ % KV_ORIGINS] = *o;
}

bool kv_find_origin(struct kv *kv, uint64_t unique, struct kv_origin *ret)
{
    LOCK_SCOPE(&kv->mu);
    uint64_t n = kv->origins_n < KV_ORIGINS ? kv->origins_n : KV_ORIGINS;
    for (uint64_t i = 1; unique && i <= n; i++) {
        const struct kv_origin *o = &kv->origins[(kv->origins_n - i) % KV_ORIGINS];
        if (o->unique == unique) {
            *ret = *o;
            return true;
        }
    }
    return false;
}

/* Oldest first, KJ_ORIGIN bytes each; returns how many. */
size_t kv_origins_encode(struct kv *kv, uint8_t *out)
{
    LOCK_SCOPE(&kv->mu);
    uint64_t n = kv->origins_n < KV_ORIGINS ? kv->origins_n : KV_ORIGINS;
    for (uint64_t i = 0; i < n; i++)
        kj_origin_put(out + i * KJ_ORIGIN, &kv->origins[(kv->origins_n - n + i) % KV_ORIGINS]);
    return n;
}

/* ---- apply ---- */

/* One node per operation, linked by next[0]; -ENOMEM, -EBADMSG. *removes: one of them is a removal. */
int kv_nodes_make(struct kv *kv, const uint8_t *payload, size_t len, struct onode **ret,
                  bool *removes)
{
    struct onode *first = NULL, **tail = &first;
    struct kj_op op;
    size_t pos = 0;
    int r;
    while ((r = kj_op_next(payload, len, &pos, &op)) > 0) {
        struct onode *n = onode_new(kv->seed, op.key, op.klen, op.val, op.vlen, op.del);
        if (!n) {
            r = -ENOMEM;
            break;
        }
        *removes |= op.del;
        *tail = n;
        tail = &n->next[0];
    }
    if (r < 0) {
        onodes_free(first);
        return r;
    }
    *ret = first;
    return 0;
}

/* Links the nodes into the active overlay; returns what they replaced. */
struct onode *kv_nodes_link(struct kv *kv, struct onode *n, uint64_t seq,
                            const struct kv_origin *who)
{
    struct onode *dropped = NULL;
    LOCK_SCOPE(&kv->mu);
    while (n) {
        struct onode *next = n->next[0];
        overlay_insert(&kv->active, n, &dropped);
        n = next;
    }
    if (who && who->unique)
        kv_origin_push(kv, who);
    atomic_store(&kv->overlay_bytes, kv->active.bytes + kv->frozen.bytes);
    atomic_store(&kv->seq, seq);
    return dropped;
}

/* Appends the sealed record. On a full disk what was written of it stays behind the end, where replay
 * takes it for torn: to cut it off would give away the space reserved behind it. */
static int append(struct kv *kv, const uint8_t *rec, size_t len)
{
    struct jfile *j = kv->cur;
    int r = j->end ? io_pwrite_full(j->fd, rec, len, j->end, NULL) : -ENOSPC;
    if (r == 0) {
        j->end += len;
        atomic_fetch_add(&kv->journal_bytes, len);
        return 0;
    }
    if (r == -ENOSPC || r == -EDQUOT)
        return ROOM;
    (void)io_truncate(j->fd, j->end);
    atomic_store(&kv->apply_err, -EROFS);
    log_err(LC_META, "journal: write failed: %s: metadata is read-only until remount", err_name(r));
    return -EIO;
}

/* Keeps the overlay below twice its bound: the caller does the checkpoint or waits for it. */
static int overlay_bound(struct kv *kv)
{
    if (atomic_load(&kv->overlay_bytes) < 2 * kv->conf.overlay_bytes_max)
        return 0;
    LOCK_SCOPE(&kv->ckpt);
    if (atomic_load(&kv->overlay_bytes) < 2 * kv->conf.overlay_bytes_max)
        return 0;
    if (atomic_load(&kv->ckpt_err) < 0)
        return -EROFS;
    int r = kv_checkpoint_locked(kv, false);
    return r == 0 || r == -ENOMEM ? r : r == -ENOSPC || r == -EDQUOT ? -ENOSPC : -EROFS;
}

/* On a full disk the reserve is for batches that make room. */
static int admit(struct kv *kv, bool frees)
{
    return frees || !lm_tight(kv->lm) ? 0 : -ENOSPC;
}

/* Journal and overlay, in one step. *nodes: on success what they have replaced. ROOM: the journal
 * found the disk full. */
static int put_in(struct kv *kv, struct kv_batch *b, const struct kv_origin *who,
                  struct onode **nodes, uint64_t *ret_seq)
{
    lock_acquire(&kv->write);
    int r = atomic_load(&kv->apply_err);
    uint64_t seq = atomic_load(&kv->seq) + 1;
    if (r == 0) {
        struct kj_batch kb = {.type = KJ_OPS,
                              .n = b->n,
                              .seq = seq,
                              .durable = atomic_load(&kv->durable),
                              .len = b->len - KJ_HEAD};
        if (who && who->unique)
            kb.who = *who;
        kj_seal(b->buf, &kb, kv->cur->id);
        r = append(kv, b->buf, b->len + KJ_HASH);
    }
    if (r != 0) {
        lock_release(&kv->write);
        return r;
    }
    kv->cur->last_seq = seq;
    bool was_clean = atomic_load(&kv->mark) + 1 == seq;
    *nodes = kv_nodes_link(kv, *nodes, seq, who);
    lock_release(&kv->write);
    counter_add(kv->n_apply, 1);
    if (ret_seq)
        *ret_seq = seq;
    if (was_clean || atomic_load(&kv->overlay_bytes) > kv->conf.overlay_bytes_max)
        kv_wake_checkpoint(kv);
    return 0;
}

int kv_apply(struct kv *kv, struct kv_batch *b, const struct kv_origin *who, uint64_t *ret_seq)
{
    assert(lock_disk_ok());
    bool asked = who && who->unique;
    if (b->failed)
        return -ENOMEM;
    if (b->n == 0 && !asked) {
        if (ret_seq)
            *ret_seq = atomic_load(&kv->seq);
        return 0;
    }
    if (!b->len && !batch_room(b, 0))
        return -ENOMEM;
    int r = overlay_bound(kv);
    if (r < 0)
        return r;
    struct onode *nodes = NULL;
    bool removes = false;
    r = kv_nodes_make(kv, b->buf + KJ_HEAD, b->len - KJ_HEAD, &nodes, &removes);
    removes |= b->frees;
    if (r == 0)
        r = admit(kv, removes);
    if (r == 0)
        r = put_in(kv, b, who, &nodes, ret_seq);
    for (int i = 0; r == ROOM && i < 3; i++) {
        r = kv_checkpoint_room(kv);
        if (r == 0)
            r = admit(kv, removes);
        if (r == 0)
            r = put_in(kv, b, who, &nodes, ret_seq);
    }
    if (r == ROOM || r == -ENOSPC) {
        r = -ENOSPC;
        log_rate(LC_META, LOG_LV_ERR, 60,
                 "state directory %s: its file system is full: new names, files and segments are "
                 "refused with ENOSPC; make room there",
                 kv->dir);
    }
    onodes_free(nodes);
    return r;
}

uint64_t kv_seq(struct kv *kv)
{
    return atomic_load(&kv->seq);
}
