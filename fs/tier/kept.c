/* kept.c: sealed segments that a rule for their path keeps from the store.
 *
 *   queue U  --upload_tick meets it, its file's rule says tiered = no-->  queue K
 *   queue K  --a look through the queue, the rule says otherwise now--->  queue U
 *
 * So uploads never wait behind what is not to be uploaded. A look begins after each change of rules or names
 * (policy_changes), and every few seconds to count the bytes; it goes on in steps. Both moves are made under
 * the inode's io lock against a fresh record: a segment that was opened again meanwhile has left both queues.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/policy/policy.h"

enum { LOOKS_MAX = 512, MOVES_MAX = 64 };
#define COUNT_EVERY_NS (2 * NS_PER_SEC)

struct kept_move {
    int64_t sealed_ns;
    bool stale; /* the queue's entry is of an older version of the segment */
};

static int move_entry(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    struct kept_move *m = arg;
    m->stale = c->now.state != SEG_SEALED || c->now.sealed_ns != m->sealed_ns;
    if (m->stale)
        return 0;
    bool tiered = policy_tiered(t->v->policy, c->ino);
    struct key u = key_upload(m->sealed_ns, c->ino, c->base);
    struct key k = key_kept(m->sealed_ns, c->ino, c->base);
    struct key *to = tiered ? &u : &k, *from = tiered ? &k : &u;
    kv_del(b, from->b, from->len);
    kv_put(b, to->b, to->len, "\1", 1);
    return 1;
}

static void drop_entries(struct tier *t, int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    struct seg_rec was = {.sealed_ns = sealed_ns};
    struct kv_batch b;
    kv_batch_init(&b);
    seg_queue_sealed_del(&b, ino, base, &was);
    (void)kv_apply(t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
}

void kept_put(struct tier *t, int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    struct kept_move m = {.sealed_ns = sealed_ns};
    int r = seg_update(t, ino, base, move_entry, &m);
    if (r == -ENOENT || (r == 0 && m.stale))
        drop_entries(t, sealed_ns, ino, base);
    else if (r < 0)
        log_rate(LC_TIER, LOG_LV_ERR, 10,
                 "inode %016llx: the segment at %llu cannot change its queue: %s",
                 (unsigned long long)ino, (unsigned long long)base, err_name(r));
}

struct kept_look {
    struct tier *t;
    unsigned looked, n;
    uint64_t bytes;
    struct key last;
    int64_t sealed_ns[MOVES_MAX];
    uint64_t ino[MOVES_MAX], base[MOVES_MAX];
};

static int look_kept(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct kept_look *l = arg;
    int64_t when;
    uint64_t ino, base;
    struct seg_rec rec;
    if (klen >= sizeof l->last.b || !key_parse_queue(key, klen, &when, &ino, &base))
        return 0;
    memcpy(l->last.b, key, klen);
    l->last.len = klen;
    if (policy_tiered(l->t->v->policy, ino)) {
        l->sealed_ns[l->n] = when;
        l->ino[l->n] = ino;
        l->base[l->n++] = base;
    } else if (seg_get(l->t->v->kv, ino, base, &rec) == 0) {
        l->bytes += rec.end - base;
    }
    return ++l->looked == LOOKS_MAX || l->n == MOVES_MAX;
}

void kept_tick(struct tier *t)
{
    int64_t now = clock_mono_ns();
    uint64_t changes = policy_changes(t->v->policy);
    struct key all = key_prefix('K');
    if (!t->kept_from.len) {
        bool due = changes != t->kept_changes || now - t->kept_ns > COUNT_EVERY_NS;
        if (!due)
            return;
        t->kept_changes = changes;
        t->kept_from = all;
        t->kept_sum = 0;
    }
    struct kept_look l = {.t = t};
    int more = kv_walk(t->v->kv, all.b, all.len, t->kept_from.b, t->kept_from.len, look_kept, &l);
    for (unsigned i = 0; i < l.n; i++)
        kept_put(t, l.sealed_ns[i], l.ino[i], l.base[i]);
    t->kept_sum += l.bytes;
    if (more > 0) {
        t->kept_from = l.last;
        t->kept_from.b[t->kept_from.len++] = 0; /* the next key */
        return;
    }
    t->kept_from.len = 0;
    t->kept_ns = now;
    atomic_store(&t->kept_bytes, t->kept_sum);
}
