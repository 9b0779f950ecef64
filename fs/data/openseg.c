/* openseg.c: open segments in memory: created or opened again by a write, listed in their inode, their
 * device files opened. How they end: seal.c. States and locks: internal.h. */
#include "fs/data/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/volume/config.h"

int inode_data_need(struct inode *i)
{
    if (i->data)
        return 0;
    struct inode_data *id = calloc(1, sizeof *id);
    if (!id)
        return -ENOMEM;
    list_init(&id->segs);
    list_init(&id->waits);
    lock_init(&id->hash, "inode.hash", RANK_INODE_HASH, true);
    i->data = id;
    return 0;
}

static void run_behind(struct task *t);

struct openseg *openseg_new(struct data *d, uint64_t ino, uint64_t base, const struct seg_rec *rec)
{
    struct openseg *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->d = d;
    o->ino = ino;
    o->base = base;
    o->rec = *rec;
    o->id = seg_file_id(0, ino, base, rec);
    o->seal_task.run = openseg_run_seal;
    o->behind_task.run = run_behind;
    o->flush_task.run = openseg_run_flush;
    atomic_store(&o->refs, 1);
    list_init(&o->link);
    lock_acquire(&d->mu);
    list_add_tail(&d->all, &o->all);
    d->all_n++;
    lock_release(&d->mu);
    return o;
}

void openseg_ref(struct openseg *o)
{
    atomic_fetch_add(&o->refs, 1);
}

bool openseg_ref_live(struct openseg *o)
{
    unsigned n = atomic_load(&o->refs);
    while (n > 0)
        if (atomic_compare_exchange_weak(&o->refs, &n, n + 1))
            return true;
    return false;
}

void openseg_unref(struct openseg *o)
{
    if (atomic_fetch_sub(&o->refs, 1) != 1)
        return;
    lock_acquire(&o->d->mu);
    list_del(&o->all);
    o->d->all_n--;
    if (o->sf)
        atomic_fetch_sub(&o->d->open_files, 1);
    lock_release(&o->d->mu);
    segfile_close(o->sf);
    free(o);
}

uint64_t openseg_len(const struct openseg *o)
{
    return o->sf ? segfile_len(o->sf) : o->idle_len;
}

bool openseg_flushed(const struct openseg *o)
{
    return o->sf ? segfile_synced(o->sf) : o->idle_flushed;
}

static void file_set(struct openseg *o, struct inode *i, struct segfile *sf)
{
    lock_acquire(&i->mu);
    lock_acquire(&o->d->mu);
    o->sf = sf;
    atomic_fetch_add(&o->d->open_files, 1);
    lock_release(&o->d->mu);
    lock_release(&i->mu);
    data_trim(o->d);
}

int openseg_file_locked(struct openseg *o, struct inode *i)
{
    if (o->sf)
        return 0;
    struct segfile *sf;
    uint64_t cut = 0;
    int r = segfile_reopen(o->d->v->devs, o->d->v->id, &o->id, true, &sf, &cut);
    if (r < 0) {
        log_rate(LC_DATA, LOG_LV_ERR, 10,
                 "inode %016llx: open segment at %llu cannot be opened: %s; its bytes are not "
                 "readable until the device is back",
                 (unsigned long long)o->ino, (unsigned long long)o->base, err_name(r));
        return r == -ENOENT ? -EIO : r;
    }
    file_set(o, i, sf);
    return 0;
}

int openseg_file_for_write(struct openseg *o, struct inode *i)
{
    return !o->sf && files_full(o->d) ? -EAGAIN : openseg_file_locked(o, i);
}

struct openseg *openseg_find(struct inode *i, uint64_t off, bool at_end)
{
    if (!i->data)
        return NULL;
    LOCK_SCOPE(&i->mu);
    struct openseg *found = NULL;
    struct list *head = &idata(i)->segs; /* from the end, where most of it happens */
    for (struct list *n = head->prev; n != head && !found; n = n->prev) {
        struct openseg *o = list_entry(n, struct openseg, link);
        uint64_t end = o->base + openseg_len(o);
        if (off >= o->base && (off < end || (at_end && off == end && !o->sealing)))
            found = o;
        else if (o->base < off)
            break;
    }
    if (found)
        openseg_ref(found);
    return found;
}

/* Where the open segment before `base` ends, if a loss of power may take bytes of it. inode.mu held. */
static uint64_t unflushed_before(struct inode *i, uint64_t base)
{
    const struct openseg *before = NULL;
    struct list *head = &idata(i)->segs;
    for (struct list *n = head->prev; n != head && !before; n = n->prev)
        if (list_entry(n, struct openseg, link)->base < base)
            before = list_entry(n, struct openseg, link);
    bool flushed = !before || openseg_flushed(before);
    return flushed ? 0 : before->base + openseg_len(before);
}

bool openseg_begun_before(struct inode *i, const struct openseg *o)
{
    return openseg_len(o) == 0 && unflushed_before(i, o->base) > o->rec.behind;
}

/* Takes an empty segment at `base` out of the list, for a new one that takes its place: nothing can be
 * appended to it any more (it is being sealed, or failed). Its seal finds that it is gone. The
 * list's reference goes to the caller. */
static struct openseg *unlist_empty(struct inode *i, uint64_t base)
{
    LOCK_SCOPE(&i->mu);
    struct list *head = &idata(i)->segs;
    for (struct list *n = head->prev; n != head; n = n->prev) {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->base < base)
            break;
        if (o->base == base && !o->lost && openseg_len(o) == 0) {
            list_del(&o->link);
            return o;
        }
    }
    return NULL;
}

/* Puts a segment into its inode's list, in order. Takes over the caller's reference. */
void openseg_list(struct inode *i, struct openseg *o)
{
    LOCK_SCOPE(&i->mu);
    struct list *at = &idata(i)->segs;
    while (at->prev != &idata(i)->segs &&
           list_entry(at->prev, struct openseg, link)->base > o->base)
        at = at->prev;
    list_add_tail(at, &o->link); /* before `at` */
}

/* How many data bytes a new segment may hold: the setting, a little less by chance so that topics that
 * began together do not seal together, and little enough that the device budget holds 8 of each. */
static uint64_t capacity_for(struct data *d, uint64_t ino, uint64_t limit)
{
    uint32_t dice;
    struct rule rule;
    random_bytes(&dice, sizeof dice);
    policy_of(d->v->policy, ino, &rule);
    uint64_t seg = rule.value[POLICY_SEGMENT_BYTES], cap = seg;
    if (seg >= 32 * BLOCK_BYTES)
        cap -= seg / 20 * (dice % 1024) / 1024;
    int64_t open = atomic_load(&d->totals.open);
    uint64_t share = devs_budget(d->v->devs) / (8 * (uint64_t)(open > 0 ? open + 1 : 1));
    cap = min_u64(cap, share) / BLOCK_BYTES * BLOCK_BYTES;
    cap = max_u64(cap, min_u64(seg, SEGMENT_BYTES_MIN));
    /* Where files are rewritten a segment begins up to a block before the byte that is written. */
    if (!d->v->topics_profile)
        cap = max_u64(cap, hole_grid(d));
    return limit ? min_u64(cap, limit) : cap;
}

/* Names of device files are never used twice: queue 'L' may still hold one of this inode and base whose
 * file is gone already, and would take the new one away. */
static uint32_t fresh_version(void)
{
    uint32_t v;
    random_bytes(&v, sizeof v);
    return 1 + v % (1u << 30);
}

/* On the device that was picked. */
static int create_on(struct data *d, struct inode *i, uint64_t base, uint64_t limit,
                     uint32_t device, struct openseg **ret)
{
    lock_acquire(&i->mu);
    uint64_t behind = d->v->topics_profile ? 0 : unflushed_before(i, base);
    lock_release(&i->mu);
    struct seg_rec rec = {
        .end = base,
        .state = SEG_OPEN,
        .local = true,
        .file_version = fresh_version(),
        .capacity = capacity_for(d, i->ino, limit),
        .created_ns = clock_wall_ns(),
        .behind = behind,
    };
    uint64_t topic = 0;
    (void)topic_of(d->v->ns, i->ino, &topic); /* an unlinked file keeps its last topic or 0 */
    struct segfile_id id = {.topic = topic, .ino = i->ino, .base = base, .device = device};
    struct segfile *sf = NULL;
    int r = 0;
    for (unsigned tries = 0; r == 0 && !sf && tries < 64; tries++) {
        id.version = rec.file_version;
        r = segfile_create(d->v->devs, d->v->id, &id, rec.capacity, &sf);
        if (r == -EEXIST) { /* left by a crash, never acknowledged */
            rec.file_version++;
            r = 0;
        }
    }
    if (r == 0 && !sf)
        r = -EEXIST;
    if (r < 0)
        return r == -EEXIST ? -EIO : r;
    rec.version = rec.file_version;
    rec.device = id.device;
    rec.header_bytes = id.header_bytes;

    struct seg_change c = {.ino = i->ino, .base = base, .has = true, .now = rec};
    struct openseg *empty = unlist_empty(i, base);
    struct kv_batch b;
    kv_batch_init(&b);
    if (empty) {
        c.had = true;
        c.old = empty->rec;
        seg_queue_unlink(&b, i->ino, base, &empty->rec);
    }
    seg_change_put(&b, &c);
    seg_open_put(&b, i->ino, base, 0);
    struct openseg *o = openseg_new(d, i->ino, base, &rec);
    r = o ? kv_apply(d->v->kv, &b, NULL, NULL) : -ENOMEM;
    kv_batch_done(&b);
    if (r < 0) {
        segfile_close(sf);
        (void)segfile_unlink(d->v->devs, NULL, &id); /* nothing names it: the first error wins */
        if (empty)
            openseg_list(i, empty);
        if (o)
            openseg_unref(o);
        return r;
    }
    seg_change_done(&d->totals, &c);
    if (empty) {
        lock_acquire(&i->mu);
        bool waits = empty->seal_waits;
        empty->seal_waits = false;
        lock_release(&i->mu);
        if (waits)
            exec_submit(d->v->bulk, &empty->seal_task);
        openseg_unref(empty);
    }
    o->id = id;
    file_set(o, i, sf);
    openseg_list(i, o);
    openseg_ref(o);
    *ret = o;
    return 0;
}

int openseg_create_locked(struct data *d, struct inode *i, uint64_t base, uint64_t limit,
                          struct openseg **ret)
{
    assert(lock_is_mine(&i->io));
    uint32_t device;
    int r = files_full(d) ? -EAGAIN : inode_data_need(i);
    if (r == 0)
        r = dev_pick(d->v->devs, &device);
    if (r < 0)
        return r;
    r = create_on(d, i, base, limit, device, ret);
    dev_unpick(d->v->devs, device);
    return r;
}

/* Bytes behind a sealed end were appended before a loss of power that forgot the appending; nothing
 * ever acknowledged them as durable. */
static int same_length(struct segfile *sf, uint64_t len)
{
    if (segfile_len(sf) < len)
        return -EIO;
    return segfile_len(sf) > len ? segfile_truncate(sf, len) : 0;
}

bool openseg_any_lost(struct inode *i)
{
    if (!i->data)
        return false;
    LOCK_SCOPE(&i->mu);
    list_each(&idata(i)->segs, n) if (list_entry(n, struct openseg, link)->lost) return true;
    return false;
}

int openseg_reopen_locked(struct data *d, struct inode *i, uint64_t base, const struct seg_rec *rec,
                          struct openseg **ret)
{
    assert(lock_is_mine(&i->io) && rec->local && rec->state != SEG_OPEN);
    int r = files_full(d) ? -EAGAIN : inode_data_need(i);
    if (r < 0)
        return r;
    struct segfile *sf;
    struct segfile_id id = seg_file_id(0, i->ino, base, rec);
    uint64_t cut = 0;
    r = segfile_reopen(d->v->devs, d->v->id, &id, true, &sf, &cut);
    if (r < 0)
        return r == -ENOENT ? -EIO : r;
    r = same_length(sf, rec->end - base);
    if (r < 0) {
        segfile_close(sf);
        return r;
    }
    struct seg_change c = {
        .ino = i->ino,
        .base = base,
        .had = true,
        .has = true,
        .old = *rec,
        .now = *rec,
        .old_len = rec->end - base,
        .now_len = segfile_len(sf),
    };
    c.now.state = SEG_OPEN;
    c.now.version = rec->version + 1;
    c.now.created_ns = clock_wall_ns();
    c.now.has_pending = false;
    struct kv_batch b;
    kv_batch_init(&b);
    if (rec->has_pending) /* an upload under way finds the new version and gives up */
        seg_queue_delete(&b, &rec->pending, i->ino, base,
                         clock_wall_ns() + (int64_t)d->v->conf->delete_delay * NS_PER_MS);
    seg_open_put(&b, i->ino, base, 0);
    struct key k;
    if (rec->state == SEG_SEALED) {
        seg_queue_sealed_del(&b, i->ino, base, rec);
    } else if (rec->state == SEG_COMMITTED) {
        k = key_evict(rec->committed_ns, i->ino, base);
        kv_del(&b, k.b, k.len);
    }
    if (!rec->has_object || rec->object.version != rec->version) {
        k = key_blocks(i->ino, base, rec->version);
        kv_del(&b, k.b, k.len);
    }
    seg_change_put(&b, &c);
    struct openseg *o = openseg_new(d, i->ino, base, &c.now);
    /* The file must be in the list before the record says OPEN: a reader looks at the list first. */
    if (o) {
        file_set(o, i, sf);
        openseg_list(i, o);
        openseg_ref(o);
    }
    r = o ? kv_apply(d->v->kv, &b, NULL, NULL) : -ENOMEM;
    kv_batch_done(&b);
    if (r < 0) {
        if (!o) {
            segfile_close(sf);
            return r;
        }
        lock_acquire(&i->mu);
        list_del(&o->link);
        lock_release(&i->mu);
        openseg_unref(o);
        openseg_unref(o);
        return r;
    }
    seg_change_done(&d->totals, &c); /* slices of the old version are unreachable from now on */
    r = d->v->topics_profile ? 0 : kv_sync(d->v->kv, kv_seq(d->v->kv));
    if (r < 0) {
        openseg_unref(o); /* it is open, and is not written to */
        return r;
    }
    *ret = o;
    return 0;
}

/* ---- write-behind ---- */

static void run_behind(struct task *t)
{
    struct openseg *o = container_of(t, struct openseg, behind_task);
    segfile_release_cache(o->sf, WRITE_BEHIND_BYTES / 4);
    atomic_store(&o->behind_busy, false);
    openseg_unref(o);
}

void openseg_wrote(struct openseg *o, uint64_t bytes)
{
    struct data *d = o->d;
    int64_t now = clock_mono_ns(), clean = 0;
    atomic_store_explicit(&o->used_ns, now, memory_order_relaxed);
    atomic_store_explicit(&o->len_hint, segfile_len(o->sf), memory_order_relaxed);
    if (atomic_load_explicit(&o->dirty_ns, memory_order_relaxed) == 0)
        atomic_compare_exchange_strong(&o->dirty_ns, &clean, now);
    uint64_t behind = atomic_fetch_add(&o->behind, bytes) + bytes;
    if (behind >= WRITE_BEHIND_BYTES && !atomic_exchange(&o->behind_busy, true)) {
        atomic_fetch_sub(&o->behind, behind);
        openseg_ref(o);
        exec_submit(d->v->bulk, &o->behind_task);
    }
}
