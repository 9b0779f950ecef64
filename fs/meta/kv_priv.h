/* kv_priv.h: what the parts of the metadata store share; not for other folders. Map in kv.c. */
#ifndef SLUICE_META_KV_PRIV_H
#define SLUICE_META_KV_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include "fs/base/lock.h"
#include "fs/base/stats.h"
#include "fs/meta/kv.h"

enum {
    KV_ORIGINS = 4096,                    /* remembered requests */
    KV_ROTATE_BYTES = 4 * 1024 * 1024,    /* a checkpoint begins a new journal file above this */
    KV_BATCH_BYTES_MAX = 64 * 1024 * 1024 /* encoded batch; larger: -ENOMEM */
};

/* ---- overlay: ordered map in memory; no locks of its own ---- */

enum { OVERLAY_HEIGHT = 12 };

struct onode {
    uint32_t vlen;
    uint16_t klen;
    uint8_t height;
    bool dead;            /* tombstone: hides what LMDB has */
    struct onode *next[]; /* `height` links, then key, then value */
};

struct overlay {
    struct onode *head[OVERLAY_HEIGHT];
    uint64_t bytes, keys;
};

static inline const uint8_t *onode_key(const struct onode *n)
{
    return (const uint8_t *)(n->next + n->height);
}

static inline const uint8_t *onode_val(const struct onode *n)
{
    return onode_key(n) + n->klen;
}

/* Bytewise order; a prefix sorts before what it begins. */
int key_cmp(const void *a, size_t alen, const void *b, size_t blen);

/* NULL: memory has run out. `seed` makes the heights unpredictable. */
struct onode *onode_new(uint64_t seed, const void *key, size_t klen, const void *val, size_t vlen,
                        bool dead);

/* Takes `n`. A node with the same key is replaced and pushed on *dropped (by next[0]). */
void overlay_insert(struct overlay *o, struct onode *n, struct onode **dropped);
const struct onode *overlay_find(const struct overlay *o, const void *key, size_t klen);
const struct onode *overlay_ge(const struct overlay *o, const void *key, size_t klen);
/* The last node <= key; `below`: < key. */
const struct onode *overlay_le(const struct overlay *o, const void *key, size_t klen, bool below);
void onodes_free(struct onode *first);
void overlay_clear(struct overlay *o);

/* ---- journal format: pure functions; see kv_journal.c ---- */

enum { KJ_FILE_HEAD = 40, KJ_HEAD = 56, KJ_HASH = 8, KJ_ORIGIN = 32 };
enum kj_type { KJ_OPS = 1, KJ_ORIGINS = 2 };

struct kj_batch {
    enum kj_type type;
    uint32_t n;
    uint64_t seq, durable;
    struct kv_origin who;
    const uint8_t *payload;
    size_t len;
};

struct kj_op {
    bool del;
    const uint8_t *key, *val;
    size_t klen, vlen;
};

void kj_file_head(uint8_t out[static KJ_FILE_HEAD], uint64_t id, uint64_t first_seq,
                  uint64_t durable);

/* Fills the KJ_HEAD bytes before the payload and the KJ_HASH bytes behind it. */
void kj_seal(uint8_t *rec, const struct kj_batch *b, uint64_t id);

/* 0, -EBADMSG (not a whole valid batch). *ret_size is what it occupies. */
int kj_batch_decode(const uint8_t *p, size_t len, uint64_t id, struct kj_batch *ret,
                    size_t *ret_size);

/* 1: *ret is the next operation; 0: the end; -EBADMSG. *pos begins at 0. */
int kj_op_next(const uint8_t *payload, size_t len, size_t *pos, struct kj_op *ret);
void kj_origin_put(uint8_t out[static KJ_ORIGIN], const struct kv_origin *o);
void kj_origin_get(const uint8_t in[static KJ_ORIGIN], struct kv_origin *o);

/* Replay over all files in order of their ids. */
struct kj_replay {
    uint64_t mark;     /* LMDB contains everything up to here */
    uint64_t expected; /* the next batch: starts at mark + 1 */
    bool gap;          /* batches from `expected` on are missing in this file */
    size_t valid_end;  /* of the last file: where it may be appended to; 0: nowhere */
    int (*batch)(void *arg, const struct kj_batch *b);
    void (*origin)(void *arg, const struct kv_origin *o);
    void *arg;
    char *why;
    size_t why_cap;
};

/* `limit`: the lowest first sequence that a later file announces (UINT64_MAX: none). 0, -EBADMSG,
 * -EPROTONOSUPPORT, or what `batch` returned. */
int kj_replay_file(struct kj_replay *r, uint64_t id, const uint8_t *buf, size_t len,
                   uint64_t limit);

/* The first sequence that a file announces; -EBADMSG, -EPROTONOSUPPORT. */
int kj_file_head_decode(const uint8_t *p, size_t len, uint64_t id, uint64_t *first_seq,
                        uint64_t *durable);

/* ---- LMDB ---- */

struct lm;

int lm_open(const struct kv_conf *conf, struct lm **ret, uint64_t *mark, char *why, size_t why_cap);
void lm_close(struct lm *lm);
ssize_t lm_get(struct lm *lm, const void *key, size_t klen, void *buf, size_t cap);

/* How many rows LMDB says there are. */
int lm_rows(struct lm *lm, uint64_t *ret);
/* Rows >= from until `each` returns non-zero (not returned). Raw values: see lm_check. */
int lm_scan(struct lm *lm, const void *from, size_t flen,
            int (*each)(void *arg, const void *key, size_t klen, const void *raw, size_t rlen),
            void *arg);

/* Length of the value inside a raw one, or -EBADMSG. */
ssize_t lm_check(const void *key, size_t klen, const void *raw, size_t rlen);

/* The last key in (floor, upto] that begins with `prefix`; `below` excludes upto. */
ssize_t lm_last(struct lm *lm, const void *prefix, size_t plen, const void *upto, size_t ulen,
                bool below, const void *floor, size_t floor_len, void *key, size_t key_cap,
                size_t *ret_klen, void *buf, size_t cap);

/* Writes the whole map and the mark in one synced transaction. One thread at a time. `split`: when
 * there is no space for that, in several, the mark in the last; the journal must hold all of it
 * durably then, or loss of power could leave half a batch. -ENOSPC, -ENOMEM: may be repeated. */
int lm_write(struct lm *lm, const struct overlay *o, uint64_t mark, bool split);
uint64_t lm_bytes(struct lm *lm);

/* The reserve for removals has been touched, and there is still no space to fill it up. */
bool lm_tight(struct lm *lm);

/* ---- the store ---- */

struct jfile {
    struct jfile *next;    /* oldest first; the last one is written to */
    uint64_t id, last_seq; /* last_seq: RANK_KV_WRITE */
    uint64_t end;          /* bytes; 0: without a head, takes nothing; RANK_KV_WRITE */
    uint64_t synced;       /* bytes known durable; RANK_KV_FLUSH */
    bool bad;              /* a flush failed: its pages may be lost; RANK_KV_FLUSH */
    int fd;
};

struct kv {
    struct kv_conf conf;
    char *dir;
    struct lm *lm;
    uint64_t seed;

    struct lock ckpt;        /* one checkpoint; guards next_id, frozen against removal */
    struct lock flush;       /* one flush; removal from `files` needs it too */
    struct lock write;       /* append: `files` tail, end, last_seq; order of sequences */
    struct lock mu;          /* overlays, origins */
    pthread_mutex_t lead_mu; /* a leaf: who leads the flushes */
    pthread_cond_t lead_cond;
    bool leading;
    struct lock sync_mu; /* waiters, thread control */

    struct jfile *files, *cur;
    uint64_t next_id;
    _Atomic uint64_t journal_bytes;

    struct overlay active, frozen;
    bool has_frozen;
    uint64_t frozen_seq;
    _Atomic uint64_t overlay_bytes;            /* both */
    _Atomic uint64_t seq, durable, mark;       /* grow only; mark <= durable <= seq */
    _Atomic int apply_err, sync_err, ckpt_err; /* final: -EROFS or -EIO once set */

    struct kv_origin *origins;
    uint64_t origins_n; /* ever pushed */

    struct kv_waiter *waiters, **waiters_tail;
    pthread_cond_t sync_cond, ckpt_cond;
    int64_t ckpt_due; /* sync_mu */
    bool ckpt_waits;  /* sync_mu: a failed checkpoint is not repeated before ckpt_due */
    bool stop, crash;
    bool threads;
    pthread_t sync_thread, ckpt_thread;

    struct stats *own_stats;
    struct counter *n_apply, *n_sync, *n_ckpt;
    struct histogram *t_sync;
};

/* kv_sync.c */
int kv_journal_begin(struct kv *kv, bool sync_head, bool must);
int kv_journal_renew(struct kv *kv);
int kv_checkpoint(struct kv *kv, bool rotate);
int kv_checkpoint_locked(struct kv *kv, bool rotate);
int kv_checkpoint_room(struct kv *kv);
void kv_wake_checkpoint(struct kv *kv);
int kv_threads_start(struct kv *kv);
void kv_threads_stop(struct kv *kv);
bool kv_serve_waiters(struct kv *kv);
void jfile_name(char out[static 40], uint64_t id);
/* kv.c */
size_t kv_origins_encode(struct kv *kv, uint8_t *out);
void kv_origin_push(struct kv *kv, const struct kv_origin *o);
int kv_nodes_make(struct kv *kv, const uint8_t *payload, size_t len, struct onode **ret,
                  bool *removes);
struct onode *kv_nodes_link(struct kv *kv, struct onode *n, uint64_t seq,
                            const struct kv_origin *who);

#endif
