/* module.c: the data layer as a whole: opening, what it does for the namespace (hooks). */
#include "fs/data/internal.h"
#include "fs/data/hooks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"

int data_open_module(struct volume *v, struct data **ret)
{
    struct data *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->v = v;
    lock_init(&d->mu, "data.mu", RANK_SEGFD, false);
    list_init(&d->all);
    list_init(&d->making);
    files_init(d);
    d->trim.run = files_run_trim;
    lock_init(&d->fetch_mu, "data.fetch", RANK_FETCH, false);
    list_init(&d->remote);
    /* Handle numbers of different daemons must not meet while the kernel still uses old ones. */
    atomic_store(&d->next_handle, ((uint64_t)clock_wall_ns() / 1000000) << 16 | 1);
    d->slowed = stats_counter(v->stats, "writes_slowed_total", "",
                              "writes whose reply was delayed because a device is nearly full");
    d->refused = stats_counter(v->stats, "writes_refused_total", "", "writes refused with ENOSPC");
    d->deadlines = stats_counter(v->stats, "read_deadlines_total", "",
                                 "cold reads that the store did not deliver in time");
    d->local_damage =
        stats_counter(v->stats, "device_read_failures_total", "",
                      "reads of sealed segments that a device could not serve intact");
    d->damaged = stats_counter(v->stats, "damaged_blocks_total", "",
                               "blocks that did not match their hash when read");
    int r = handles_open(d);
    if (r < 0) {
        free(d);
        return r;
    }
    *ret = d;
    return 0;
}

void data_close_module(struct data *d)
{
    if (!d)
        return;
    data_close_handles(d);
    lock_destroy(&d->fetch_mu);
    lock_destroy(&d->mu);
    free(d);
}

void data_stop(struct data *d)
{
    atomic_store(&d->stopping, true);
    for (int tries = 0; atomic_load(&d->reads) > 0 && tries < 500; tries++) {
        data_cancel_fetches(d);
        volume_pause(d->v, 10 * NS_PER_MS); /* their callbacks run on other threads */
    }
    if (atomic_load(&d->reads) > 0)
        log_err(LC_DATA, "%u reads did not end", atomic_load(&d->reads));
    data_cancel_fetches(d);
}

void data_set_kick(struct data *d, void (*kick)(void *arg), void *arg)
{
    LOCK_SCOPE(&d->mu);
    d->kick = kick;
    d->kick_arg = arg;
}

/* Called under the lock: tiering is not freed while it is being told. */
void data_kick(struct data *d)
{
    LOCK_SCOPE(&d->mu);
    if (d->kick)
        d->kick(d->kick_arg);
}

void data_making_begin(struct data *d, struct data_making *m, uint64_t ino, uint64_t base)
{
    *m = (struct data_making){.ino = ino, .base = base};
    LOCK_SCOPE(&d->mu);
    list_add_tail(&d->making, &m->link);
}

void data_making_end(struct data *d, struct data_making *m)
{
    LOCK_SCOPE(&d->mu);
    list_del(&m->link);
}

bool data_is_making(struct data *d, uint64_t ino, uint64_t base)
{
    if (!d)
        return false;
    LOCK_SCOPE(&d->mu);
    list_each(&d->making, l)
    {
        struct data_making *m = list_entry(l, struct data_making, link);
        if (m->ino == ino && m->base == base)
            return true;
    }
    return false;
}

struct totals *data_totals(struct data *d)
{
    return &d->totals;
}

/* ---- hooks of the namespace ---- */

struct load {
    struct data *d;
    struct inode *i;
    int err;
};

static int load_open(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct load *l = arg;
    struct inode *i = l->i;
    uint64_t base;
    struct seg_rec rec;
    if (!key_parse_seg(key, klen, NULL, &base))
        return 0;
    l->err = seg_get(l->d->v->kv, i->ino, base, &rec);
    if (l->err == 0 && rec.state != SEG_OPEN)
        return 0;
    if (l->err == 0)
        l->err = inode_data_need(i);
    struct openseg *o = l->err == 0 ? openseg_new(l->d, i->ino, base, &rec) : NULL;
    if (!o) {
        if (l->err == 0)
            l->err = -ENOMEM;
        return 1;
    }
    uint64_t bytes = 0;
    int64_t mtime = 0;
    int r = segfile_stat(l->d->v->devs, &o->id, &bytes, &mtime);
    if (r < 0) {
        /* The device is gone or the file is: what was sealed stays readable, this range is EIO. */
        log_rate(
            LC_DATA, LOG_LV_ERR, 10,
            "inode %016llx: the open segment at %llu is not on device %u: %s; its bytes cannot "
            "be read and the file cannot be appended to",
            (unsigned long long)i->ino, (unsigned long long)base, rec.device, err_name(r));
        o->failed = o->lost = true;
        o->idle_len = max_u64(rec.end - base, seg_open_decode(val, vlen));
    } else {
        o->idle_len = bytes > rec.header_bytes ? bytes - rec.header_bytes : 0;
    }
    o->idle_stored = o->idle_len;
    list_add_tail(&idata(i)->segs, &o->link);
    /* Where files are cut, what the record of a lost one says of its end may be of before a cut. */
    bool known = r == 0 || l->d->v->topics_profile;
    if (known && o->idle_len && base + o->idle_len > atomic_load(&i->size))
        atomic_store(&i->size, base + o->idle_len);
    o->noted_len = seg_open_decode(val, vlen);
    /* Without a stored record of this length the device file knows best; but a utimens after the last
     * write wins: it moved ctime behind the file's own time. */
    if (r == 0 && o->noted_len != o->idle_len && mtime > atomic_load(&i->ctime_ns)) {
        atomic_store(&i->mtime_ns, mtime);
        atomic_store(&i->ctime_ns, mtime);
        i->rec_ahead = true; /* stored at the latest when the length is noted again */
    }
    return 0;
}

int data_load(void *ctx, struct inode *i)
{
    struct load l = {.d = ctx, .i = i};
    struct key k = key_open(i->ino, 0);
    int r = kv_walk(l.d->v->kv, k.b, 9, k.b, 9, load_open, &l);
    return r < 0 ? r : l.err;
}

/* The inode's record has just been stored: notes of which lengths. */
static void note_lengths(struct data *d, struct inode *i)
{
    struct kv_batch b;
    kv_batch_init(&b);
    list_each(&idata(i)->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (!o->failed && o->noted_len != openseg_len(o))
            seg_open_put(&b, o->ino, o->base, openseg_len(o));
    }
    if (b.n)
        (void)kv_apply(d->v->kv, &b, NULL, NULL); /* without it the device file's time is shown */
    kv_batch_done(&b);
}

/* Written by this daemon; what only an earlier one wrote needs no flush for going out of memory. */
static bool has_dirty(struct inode_data *id)
{
    list_each(&id->segs, n)
    {
        struct openseg *o = list_entry(n, struct openseg, link);
        if (o->sf && !segfile_synced(o->sf))
            return true;
    }
    return false;
}

void data_unload(void *ctx, struct inode *i)
{
    struct inode_data *id = idata(i);
    if (!id)
        return;
    if (i->rec.nlink > 0)
        note_lengths(ctx, i);
    if (has_dirty(id))
        (void)inode_sync_before(i, UINT64_MAX,
                                false); /* a failure is found again at the next open */
    while (!list_empty(&id->segs)) {
        struct openseg *o = list_entry(id->segs.next, struct openseg, link);
        list_del(&o->link);
        openseg_unref(o);
    }
    lock_destroy(&id->hash);
    free(id);
    i->data = NULL;
}

int64_t data_mapped_ns(struct inode *i)
{
    return i->data ? atomic_load(&idata(i)->mapped_ns) : 0;
}
