/* evict.c: dropping local copies, closing old segments, and carrying out the queue of device files to
 * unlink.
 *
 * Evict: record first (local copy gone, device file in queue 'L', entry of 'E' gone, one
 * batch), unlink after a flush of it. A crash in between leaves a file that the queue still unlinks.
 * Only COMMITTED segments have an entry in 'E': no pressure can take another one. Oldest first; those that
 * were read from the device a moment ago only when the others do not suffice.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"

/* ---- evict ---- */

#define RECENT_NS       (60 * NS_PER_SEC) /* read within this: others go first, up to the warn level */
#define MIRROR_EVERY_NS (60 * NS_PER_SEC)

static int evict_one(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)t;
    uint64_t *freed = arg;
    if (c->now.state != SEG_COMMITTED || !c->now.local)
        return 0;
    if (!c->now.has_object || c->now.object.version != c->now.version ||
        c->now.object.end < c->now.end)
        return -EUCLEAN; /* the law: never without its object */
    c->now.local = false;
    seg_queue_unlink(b, c->ino, c->base, &c->old);
    struct key e = key_evict(c->old.committed_ns, c->ino, c->base);
    kv_del(b, e.b, e.len);
    *freed = c->old_len + c->old.header_bytes;
    return 1;
}

int evict_segment(struct tier *t, uint64_t ino, uint64_t base, uint64_t *ret_freed)
{
    *ret_freed = 0;
    /* The journal keeps its order, so this record is never durable without that of the commit; and the
     * file goes only after both are (run_unlink). */
    int r = seg_update(t, ino, base, evict_one, ret_freed);
    if (r == 0 && *ret_freed)
        counter_add(t->evicted, 1);
    return r;
}

/* Small files are rewritten all the time (broker profile), and some a rule names: their upload is a mirror, not
 * a tier. */
static bool is_mirror(struct tier *t, uint64_t ino, const struct rule *rule)
{
    struct inode *i;
    uint64_t most = rule->value[POLICY_MIRROR];
    if (most == 0 || most == UINT64_MAX)
        return most != 0;
    if (inode_get(t->v->ns, ino, &i) < 0)
        return false;
    struct stat st;
    data_stat(t->v->data, i, &st);
    inode_put(t->v->ns, i);
    return (uint64_t)st.st_blocks * 512 <= most;
}

struct old_entries {
    struct tier *t;
    enum { EVICT_ROUND = 32 } n_max;
    unsigned n;
    int64_t committed_ns[EVICT_ROUND];
    uint64_t ino[EVICT_ROUND], base[EVICT_ROUND];
    int64_t before_ns;      /* only entries older than this */
    int64_t now_ns;         /* 0: or else by the age that the rule for its path says */
    int64_t read_before_ns; /* and not read since (clock_mono) */
    unsigned looked;        /* entries that stay, this round */
    struct key last;        /* where the next round goes on */
};

enum { STAYING_MAX = 512 }; /* looked at in one round */

/* The entry that is being looked at. */
static bool stays(struct old_entries *o)
{
    struct rule rule;
    uint64_t ino = o->ino[o->n];
    if (data_last_read(o->t->v->data, ino, o->base[o->n]) > o->read_before_ns ||
        warm_is_kept(o->t, ino, o->base[o->n]))
        return true;
    policy_of(o->t->v->policy, ino, &rule);
    return !rule.value[POLICY_TIERED] ||
           (o->now_ns && o->committed_ns[o->n] >
                             o->now_ns - (int64_t)rule.value[POLICY_LOCAL_AGE] * NS_PER_MS) ||
           is_mirror(o->t, ino, &rule);
}

static int take_old(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct old_entries *o = arg;
    if (!key_parse_queue(key, klen, &o->committed_ns[o->n], &o->ino[o->n], &o->base[o->n]))
        return 0;
    if (o->committed_ns[o->n] > o->before_ns)
        return 1;
    if (stays(o)) {
        memcpy(o->last.b, key, klen);
        o->last.len = klen;
        return ++o->looked >= STAYING_MAX;
    }
    return ++o->n >= EVICT_ROUND;
}

static void drop_entry(struct tier *t, int64_t when, uint64_t ino, uint64_t base)
{
    struct kv_batch b;
    kv_batch_init(&b);
    struct key e = key_evict(when, ino, base);
    kv_del(&b, e.b, e.len);
    (void)kv_apply(t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
}

bool tier_store_down(struct tier *t)
{
    struct objstore_status st;
    obj_status(t->v->store, &st);
    return st.health == OBJ_HEALTH_DOWN;
}

void evict_tick(struct tier *t)
{
    if (tier_store_down(t))
        return; /* a replay must find its bytes here while the store is gone */
    double fill = devs_fill(t->v->devs);
    bool full = fill * 100 > (double)t->v->conf->evict_from;
    if (full && t->unlink_job)
        return; /* what was evicted is about to be freed: then it shows how much is still needed */
    double excess = (fill - (double)t->v->conf->evict_to / 100) * (double)devs_budget(t->v->devs);
    int64_t age = (int64_t)policy_least(t->v->policy, POLICY_LOCAL_AGE) * NS_PER_MS;
    if (!full && clock_mono_ns() < t->evict_rest_ns)
        return;
    struct old_entries o = {
        .t = t,
        .before_ns = full ? INT64_MAX : clock_wall_ns() - age,
        .now_ns = full ? 0 : clock_wall_ns(),
        .read_before_ns = full && fill < DEV_WARN ? clock_mono_ns() - RECENT_NS : INT64_MAX,
    };
    struct key k = key_prefix('E');
    const struct key *from = t->evict_from.len ? &t->evict_from : &k;
    if (kv_walk(t->v->kv, k.b, k.len, from->b, from->len, take_old, &o) < 0)
        return;
    bool more = o.looked >= STAYING_MAX;
    /* Mirrored files stay in the queue: so many of them do not slow every round down. */
    t->evict_from = more ? o.last : (struct key){0};
    /* Nor do those whose rule lets them stay longer than others: an end of the queue is a rest. */
    if (!more && o.looked && o.n < EVICT_ROUND)
        t->evict_rest_ns = clock_mono_ns() + (age / 8 < NS_PER_SEC ? age / 8 : NS_PER_SEC);
    unsigned evicted = 0;
    double freed = 0;
    for (unsigned i = 0; i < o.n && !(full && freed >= excess); i++) {
        uint64_t bytes;
        int r = evict_segment(t, o.ino[i], o.base[i], &bytes);
        if (r == -ENOENT || (r == 0 && !bytes))
            drop_entry(t, o.committed_ns[i], o.ino[i], o.base[i]);
        else if (r < 0)
            log_rate(LC_TIER, LOG_LV_ERR, 10,
                     "inode %016llx: the segment at %llu cannot be evicted: %s",
                     (unsigned long long)o.ino[i], (unsigned long long)o.base[i], err_name(r));
        evicted += bytes > 0;
        freed += (double)bytes;
    }
    if (evicted)
        unlink_tick(t);
    if (evicted && o.n == EVICT_ROUND)
        tier_kick_in(t, NS_PER_MS);
    /* Too little to evict and nothing on its way up: the largest open segments are closed. */
    if (full && o.n == 0 && !more && t->uploads_n == 0 && t->epoch_state == EPOCH_MINE &&
        !queue_has_entries(t, 'U'))
        data_seal_largest(t->v->data, 4);
}

/* ---- unlink device files ---- */

struct unlink_job {
    struct tier *t;
    struct task task;
    unsigned n;
    bool failed; /* something of it stays: not again at once */
    struct segfile_id id[UNLINKS_MAX];
    struct key key[UNLINKS_MAX];
    bool done[UNLINKS_MAX];
};

static int take_unlink(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct unlink_job *j = arg;
    struct key *k = &j->key[j->n];
    if (klen > sizeof k->b)
        return 0;
    memcpy(k->b, key, klen);
    k->len = klen;
    j->done[j->n] = unlink_decode(val, vlen, &j->id[j->n]) <
                    0; /* undecodable: only the entry goes */
    return ++j->n >= UNLINKS_MAX;
}

static void unlinked(struct task *task)
{
    struct unlink_job *j = container_of(task, struct unlink_job, task);
    struct tier *t = j->t;
    t->unlink_job = NULL;
    t->jobs--;
    data_space_freed(t->v->data);
    bool more = j->n == UNLINKS_MAX && !j->failed;
    if (j->failed)
        t->unlink_retry_ns = clock_mono_ns() + 2 * NS_PER_SEC;
    free(j);
    if (more && !atomic_load(&t->stopping))
        unlink_tick(t);
    tier_kick(t);
}

static void run_unlink(struct task *task)
{
    struct unlink_job *j = container_of(task, struct unlink_job, task);
    struct volume *v = j->t->v;
    struct kv_batch b;
    /* The record that nothing needs the file must be durable before the file goes. */
    int r = kv_sync(v->kv, kv_seq(v->kv));
    kv_batch_init(&b);
    for (unsigned i = 0; r == 0 && i < j->n; i++) {
        int e = j->done[i] ? 0 : segfile_unlink(v->devs, v->segfds, &j->id[i]);
        if (e == 0 || e == -ENODEV)
            kv_del(&b, j->key[i].b, j->key[i].len);
        else
            log_rate(LC_TIER, LOG_LV_ERR, 10, "a device file on device %u cannot be removed: %s",
                     j->id[i].device, err_name(e));
    }
    if (r == 0 && b.n)
        r = kv_apply(v->kv, &b, NULL, NULL);
    j->failed = r < 0 || b.n < j->n;
    kv_batch_done(&b);
    j->task.run = unlinked;
    exec_submit(j->t->actor, &j->task);
}

void unlink_tick(struct tier *t)
{
    if (t->unlink_job || clock_mono_ns() < t->unlink_retry_ns)
        return;
    struct unlink_job *j = calloc(1, sizeof *j);
    if (!j)
        return;
    j->t = t;
    struct key k = key_prefix('L');
    if (kv_walk(t->v->kv, k.b, k.len, k.b, k.len, take_unlink, j) < 0 || j->n == 0) {
        free(j);
        return;
    }
    t->unlink_job = j;
    t->jobs++;
    j->task.run = run_unlink;
    exec_submit(t->v->bulk, &j->task);
}

/* ---- seal by age ---- */

struct open_scan {
    struct tier *t;
    int64_t now_ns, oldest_ns, least_ns;
    unsigned looked, due;
    uint64_t ino[64], base[64];
    int64_t age_ns[64];
    struct rule rule[64];
    uint64_t last_ino, last_base;
};

static int look_open(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct open_scan *s = arg;
    uint64_t ino, base;
    struct seg_rec rec;
    if (!key_parse_seg(key, klen, &ino, &base))
        return 0;
    s->last_ino = ino;
    s->last_base = base;
    if (seg_get(s->t->v->kv, ino, base, &rec) < 0)
        return 0;
    if ((!s->oldest_ns || rec.created_ns < s->oldest_ns) && policy_tiered(s->t->v->policy, ino))
        s->oldest_ns = rec.created_ns;
    int64_t age = s->now_ns - rec.created_ns;
    if (age < s->least_ns)
        return ++s->looked >= SEAL_SCAN_MAX;
    policy_of(s->t->v->policy, ino, &s->rule[s->due]);
    if (age >= (int64_t)s->rule[s->due].value[POLICY_SEAL_AGE] * NS_PER_MS) {
        s->ino[s->due] = ino;
        s->base[s->due] = base;
        s->age_ns[s->due++] = age;
    }
    return ++s->looked >= SEAL_SCAN_MAX || s->due == ARRAY_LEN(s->ino);
}

/* Broker profile. A file that is written through a mapping stays open until it has been idle for
 * seal_age: by then the kernel has long written back what was dirty, and if not, the page opens the segment
 * again. A small file is uploaded at most once a minute, however often it is rewritten. */
static bool seal_too_early(struct tier *t, struct inode *i, int64_t age_ns, const struct rule *rule)
{
    if (t->v->topics_profile)
        return false;
    int64_t mapped = data_mapped_ns(i);
    if (mapped && clock_mono_ns() - mapped < (int64_t)rule->value[POLICY_SEAL_AGE] * NS_PER_MS)
        return true;
    return age_ns < MIRROR_EVERY_NS && is_mirror(t, i->ino, rule);
}

void seal_tick(struct tier *t)
{
    int64_t now = clock_mono_ns();
    int64_t least = (int64_t)policy_least(t->v->policy, POLICY_SEAL_AGE) * NS_PER_MS;
    int64_t every = least / 8;
    every = every > 5 * NS_PER_SEC ? 5 * NS_PER_SEC : every;
    if (t->seal_scan_ino == 0 && now - t->seal_scan_ns < every)
        return;
    t->seal_scan_ns = now;
    struct open_scan s = {.t = t, .now_ns = clock_wall_ns(), .least_ns = least};
    struct key all = key_prefix('W');
    struct key from = key_open(t->seal_scan_ino, t->seal_scan_base);
    int more = kv_walk(t->v->kv, all.b, all.len, from.b, from.len, look_open, &s);
    t->seal_scan_ino = more > 0 ? s.last_ino : 0;
    t->seal_scan_base = more > 0 ? s.last_base + 1 : 0;
    int64_t known = atomic_load(&t->oldest_pending_ns);
    if (s.oldest_ns && (!known || s.oldest_ns < known))
        atomic_store(&t->oldest_pending_ns, s.oldest_ns);
    for (unsigned i = 0; i < s.due; i++) {
        struct inode *inode;
        if (inode_get(t->v->ns, s.ino[i], &inode) < 0)
            continue;
        if (!seal_too_early(t, inode, s.age_ns[i], &s.rule[i]))
            (void)data_seal_upto(t->v->data, inode, s.base[i]);
        inode_put(t->v->ns, inode);
    }
}
