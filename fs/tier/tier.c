/* tier.c: the actor: its clock, its totals, opening and stopping. What it decides is in the files
 * beside this one; see internal.h for who may touch what. */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"

void tier_kick(void *arg)
{
    struct tier *t = arg;
    if (!atomic_exchange(&t->tick_queued, true))
        exec_submit(t->actor, &t->tick);
}

void tier_kick_in(struct tier *t, int64_t ns)
{
    int64_t at = clock_mono_ns() + ns;
    if (!atomic_load(&t->stopping))
        timer_set(t->v->timers, &t->timer, at);
}

void tier_unrecorded(struct tier *t, int err)
{
    t->unrecorded_ns = clock_mono_ns();
    t->unrecorded = err;
}

static void on_timer(struct timer *timer)
{
    tier_kick(container_of(timer, struct tier, timer));
}

int seg_update(struct tier *t, uint64_t ino, uint64_t base,
               int (*fn)(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg),
               void *arg)
{
    struct inode *i;
    int r = inode_get(t->v->ns, ino, &i);
    if (r < 0)
        return r;
    struct kv_batch b;
    kv_batch_init(&b);
    b.frees = true;
    struct seg_change c = {.ino = ino, .base = base, .had = true, .has = true};
    lock_acquire(&i->io);
    r = seg_get(t->v->kv, ino, base, &c.old);
    if (r == 0) {
        c.now = c.old;
        c.old_len = c.now_len = c.old.end - base;
        r = fn(t, &c, &b, arg);
    }
    if (r > 0) {
        seg_change_put(&b, &c);
        r = kv_apply(t->v->kv, &b, NULL, NULL);
        if (r == 0 && c.old.state != SEG_OPEN)
            seg_change_done(data_totals(t->v->data), &c);
    }
    lock_release(&i->io);
    kv_batch_done(&b);
    inode_put(t->v->ns, i);
    return r;
}

static void measure_rate(struct tier *t, int64_t now)
{
    uint64_t used = devs_used(t->v->devs);
    if (now - t->rate_at_ns < NS_PER_SEC)
        return;
    if (t->rate_at_ns) {
        double dt = (double)(now - t->rate_at_ns) / 1e9;
        double rate = ((double)used - (double)t->rate_used) / dt;
        t->rate = t->rate * 0.8 + rate * 0.2;
    }
    t->rate_at_ns = now;
    t->rate_used = used;
    double room = (double)devs_room(t->v->devs);
    atomic_store(&t->time_to_full, t->rate > 1024 ? (room > 0 ? room / t->rate : 0.0) : -1.0);
}

struct count {
    uint64_t n, limit;
};

static int count_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    (void)val;
    (void)vlen;
    struct count *c = arg;
    return ++c->n >= c->limit;
}

static uint64_t queue_length(struct tier *t, char table)
{
    struct count c = {.limit = 100000};
    struct key k = key_prefix(table);
    (void)kv_walk(t->v->kv, k.b, k.len, k.b, k.len, count_one, &c);
    return c.n;
}

bool queue_has_entries(struct tier *t, char table)
{
    struct count c = {.limit = 1};
    struct key k = key_prefix(table);
    return kv_walk(t->v->kv, k.b, k.len, k.b, k.len, count_one, &c) != 0;
}

static int first_created(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    uint64_t *out = arg;
    return key_parse_queue(key, klen, NULL, &out[0], &out[1]) ? 1 : 0;
}

/* The oldest byte that no committed object holds: the oldest open or sealed segment's beginning. */
static void measure_oldest(struct tier *t)
{
    uint64_t at[2] = {0};
    struct seg_rec rec;
    struct key k = key_prefix('U');
    if (kv_walk(t->v->kv, k.b, k.len, k.b, k.len, first_created, at) == 1 &&
        seg_get(t->v->kv, at[0], at[1], &rec) == 0) {
        atomic_store(&t->oldest_pending_ns, rec.created_ns);
        return;
    }
    if (!queue_has_entries(t, 'W'))
        atomic_store(&t->oldest_pending_ns, 0);
    /* With open segments only, seal_tick keeps the oldest it has seen. */
}

static void measure(struct tier *t, int64_t now)
{
    static const int64_t every = NS_PER_SEC;
    if (now - t->rate_at_ns >= every) {
        atomic_store(&t->q_upload, queue_length(t, 'U'));
        atomic_store(&t->q_manifest, queue_length(t, 'M'));
        atomic_store(&t->q_delete, queue_length(t, 'D'));
        atomic_store(&t->q_unlink, queue_length(t, 'L'));
        measure_oldest(t);
    }
    atomic_store(&t->q_uploading, t->uploads_n);
    measure_rate(t, now);
}

static void run_tick(struct task *task)
{
    struct tier *t = container_of(task, struct tier, tick);
    atomic_store(&t->tick_queued, false);
    if (atomic_load(&t->stopping))
        return;
    int64_t now = clock_mono_ns();
    uint64_t flush_ms = policy_least(t->v->policy, POLICY_FLUSH_INTERVAL);
    if (now - t->flush_ns > (int64_t)flush_ms * NS_PER_MS / 4) {
        t->flush_ns = now;
        data_flush_old(t->v->data);
        data_trim(t->v->data);
    }
    seal_tick(t);
    kept_tick(t);
    if (t->epoch_state != EPOCH_MINE)
        epoch_tick(t);
    if (t->epoch_state == EPOCH_MINE) {
        upload_tick(t);
        manifest_tick(t, command_wants_manifest(t));
        delete_tick(t);
    }
    evict_tick(t);
    unlink_tick(t);
    drain_tick(t);
    command_tick(t);
    scrub_tick(t->scrub);
    measure(t, now);
    tier_kick_in(t, TICK_MS * NS_PER_MS);
}

/* ---- gauges ---- */

static double gauge_pending(void *arg)
{
    struct tier_usage u;
    tier_usage(arg, &u);
    return (double)u.pending;
}

static double gauge_kept(void *arg)
{
    struct tier_usage u;
    tier_usage(arg, &u);
    return (double)u.kept;
}

static double gauge_lag(void *arg)
{
    struct tier_usage u;
    tier_usage(arg, &u);
    return u.oldest_pending_seconds;
}

static double gauge_atomic(void *arg)
{
    _Atomic int64_t *v = arg;
    return (double)atomic_load(v);
}

static void register_stats(struct tier *t)
{
    struct stats *s = t->v->stats;
    struct totals *tt = data_totals(t->v->data);
    t->uploads_ok = stats_counter(s, "uploads_total", "outcome=\"ok\"", "segments uploaded");
    t->uploads_failed =
        stats_counter(s, "uploads_total", "outcome=\"failed\"", "segments uploaded");
    t->stale = stats_counter(s, "uploads_total", "outcome=\"stale\"", "segments uploaded");
    t->evicted = stats_counter(s, "evictions_total", "", "segments whose local copy was dropped");
    t->damaged = stats_counter(s, "damaged_segments_total", "",
                               "sealed segments that did not match their hashes before upload");
    t->commits = stats_counter(s, "manifest_commits_total", "", "manifest roots written");
    stats_gauge(s, "upload_lag_bytes", "", "bytes in no committed object", gauge_pending, t);
    stats_gauge(s, "kept_bytes", "", "sealed bytes that rules keep from the store", gauge_kept, t);
    stats_gauge(s, "upload_lag_seconds", "", "age of the oldest byte in no committed object",
                gauge_lag, t);
    stats_gauge(s, "segments", "state=\"open\"", "segments by state", gauge_atomic, &tt->open);
    stats_gauge(s, "segments", "state=\"sealed\"", "segments by state", gauge_atomic, &tt->sealed);
    stats_gauge(s, "segments", "state=\"uploaded\"", "segments by state", gauge_atomic,
                &tt->uploaded);
    stats_gauge(s, "segments", "state=\"committed\"", "segments by state", gauge_atomic,
                &tt->committed);
    stats_gauge(s, "segments", "state=\"remote\"", "segments by state", gauge_atomic, &tt->evicted);
    stats_gauge(s, "bytes", "tier=\"logical\"", "bytes by place", gauge_atomic, &tt->logical);
    stats_gauge(s, "bytes", "tier=\"local\"", "bytes by place", gauge_atomic, &tt->local);
    stats_gauge(s, "bytes", "tier=\"remote\"", "bytes by place", gauge_atomic, &tt->remote);
}

void tier_usage(struct tier *t, struct tier_usage *ret)
{
    struct totals *tt = data_totals(t->v->data);
    int64_t oldest = atomic_load(&t->oldest_pending_ns);
    double age = oldest ? (double)(clock_wall_ns() - oldest) / 1e9 : 0;
    /* Counted a moment ago: what was opened again since counts as pending by now. */
    uint64_t pending = (uint64_t)atomic_load(&tt->pending);
    uint64_t kept = min_u64(atomic_load(&t->kept_bytes), pending);
    *ret = (struct tier_usage){
        .logical = (uint64_t)atomic_load(&tt->logical),
        .local = (uint64_t)atomic_load(&tt->local),
        .remote = (uint64_t)atomic_load(&tt->remote),
        .pending = pending - kept,
        .kept = kept,
        .segments_open = (uint64_t)atomic_load(&tt->open),
        .segments_sealed = (uint64_t)atomic_load(&tt->sealed),
        .segments_uploaded = (uint64_t)atomic_load(&tt->uploaded),
        .segments_committed = (uint64_t)atomic_load(&tt->committed),
        .segments_remote = (uint64_t)atomic_load(&tt->evicted),
        .queue_upload = atomic_load(&t->q_upload),
        .queue_manifest = atomic_load(&t->q_manifest),
        .queue_delete = atomic_load(&t->q_delete),
        .queue_unlink = atomic_load(&t->q_unlink),
        .uploading = atomic_load(&t->q_uploading),
        .oldest_pending_seconds = pending > kept && age > 0 ? age : 0,
        .time_to_full_seconds = atomic_load(&t->time_to_full),
        .fenced = atomic_load(&t->fenced),
    };
}

void tier_scrub_status(struct tier *t, struct scrub_status *ret)
{
    scrub_status(t->scrub, ret);
}

/* ---- life ---- */

enum { TOPICS_REMEMBERED = 1024 };

int tier_open(struct volume *v, const struct store_caps *caps, bool threaded, struct tier **ret)
{
    struct tier *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->v = v;
    t->caps = *caps;
    t->tick.run = run_tick;
    t->timer.fire = on_timer;
    t->upload_backoff_ns = 0;
    atomic_store(&t->time_to_full, -1.0);
    lock_init(&t->call_mu, "tier.calls", RANK_TIER, false);
    cond_init(&t->call_cond);
    list_init(&t->calls);
    list_init(&t->uploads);
    list_init(&t->manifests);
    list_init(&t->commands);
    int r = manifest_open(t);
    if (r == 0)
        r = scrub_open(t, &t->scrub);
    if (r == 0)
        r = drain_open(t);
    if (r == 0)
        r = exec_open("tier", threaded ? 1 : 0, 0, &t->actor);
    if (r == 0)
        r = exec_open("store-wait", threaded ? 2 : 0, 0, &t->blocking);
    if (r < 0) {
        exec_close(t->actor);
        drain_close(t);
        scrub_close(t->scrub);
        manifest_close(t);
        free(t);
        return r;
    }
    register_stats(t);
    *ret = t;
    data_set_kick(v->data, tier_kick, t);
    policy_on_change(v->policy, tier_kick, t);
    tier_kick(t);
    return 0;
}

struct stop {
    struct task task;
    struct tier *t;
    _Atomic int state; /* 0 asked, 1 nothing under way, 2 still something */
};

static void run_stop(struct task *task)
{
    struct stop *s = container_of(task, struct stop, task);
    command_abort_all(s->t, "the volume is being unmounted");
    if (s->t->jobs)
        call_cancel_all(s->t);
    atomic_store(&s->state, s->t->jobs ? 2 : 1);
}

void tier_stop(struct tier *t, unsigned grace_ms)
{
    data_set_kick(t->v->data, NULL, NULL);
    policy_on_change(t->v->policy, NULL, NULL);
    int64_t until = clock_mono_ns() + (int64_t)grace_ms * NS_PER_MS;
    atomic_store(&t->stopping, true);
    (void)timer_cancel(t->v->timers, &t->timer);
    struct stop s = {.task.run = run_stop, .t = t};
    for (;;) {
        atomic_store(&s.state, 0);
        exec_submit(t->actor, &s.task);
        while (atomic_load(&s.state) == 0) {
            volume_pause(t->v, 2 * NS_PER_MS); /* the actor answers within its longest step */
        }
        if (atomic_load(&s.state) == 1)
            return;
        if (clock_mono_ns() > until)
            log_rate(LC_TIER, LOG_LV_WARN, 5, "waiting for %u jobs to end", t->jobs);
        volume_pause(t->v, 10 * NS_PER_MS);
    }
}

void tier_close(struct tier *t)
{
    if (!t)
        return;
    exec_close(t->blocking);
    exec_close(t->actor);
    drain_close(t);
    scrub_close(t->scrub);
    manifest_close(t);
    pthread_cond_destroy(&t->call_cond);
    lock_destroy(&t->call_mu);
    free(t);
}
