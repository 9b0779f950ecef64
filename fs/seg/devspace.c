/* devspace.c: room on devices: accounting, levels, which one takes a new segment.
 *
 * `used` is what the volume accounted; it is never measured here. Free space of the file system below is
 * asked at most once per DEV_FRESH_NS, by whichever thread comes first; between two questions what we
 * wrote ourselves is taken off, so a burst cannot slip through.
 *
 * The fill of a device is used ÷ min(budget, what could really be used): if others fill the file
 * system, eviction and the slowing of writers begin although our own budget is not used up.
 *
 * No locks: atomics, and what is constant while a device is in the list.
 */
#include "fs/seg/seg_int.h"

#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"

#define RESERVE_BYTES (64 * MiB) /* of the file system below, left to others; at most 1 % of it */

uint64_t dev_used(struct dev *v)
{
    int64_t u = atomic_load_explicit(&v->used, memory_order_relaxed);
    return u > 0 ? (uint64_t)u : 0;
}

/* Bytes that we may still put into the file system below. */
static uint64_t avail_of(struct dev *v)
{
    if (v->dirfd < 0)
        return 0;
    int64_t now = clock_mono_ns();
    int64_t next = atomic_load_explicit(&v->avail_next_ns, memory_order_relaxed);
    if (now >= next &&
        atomic_compare_exchange_strong(&v->avail_next_ns, &next, now + DEV_FRESH_NS)) {
        uint64_t total, avail;
        uint32_t bsize;
        int64_t used = atomic_load(&v->used);
        if (io_fsinfo(v->dirfd, &total, &avail, &bsize) == 0) {
            atomic_store(&v->avail_used, used);
            atomic_store(&v->fs_avail, (int64_t)avail);
        }
    }
    int64_t left = atomic_load(&v->fs_avail) -
                   (atomic_load(&v->used) - atomic_load(&v->avail_used)) -
                   (int64_t)min_u64(RESERVE_BYTES, v->total / 100);
    return left > 0 ? (uint64_t)left : 0;
}

void dev_account(struct devs *d, uint32_t id, int64_t bytes)
{
    /* Records of a missing device count as well: they are shown, and come back with it. */
    for (unsigned i = 0; i < d->n; i++)
        if (d->dev[i].id == id)
            atomic_fetch_add_explicit(&d->dev[i].used, bytes, memory_order_relaxed);
}

bool dev_has_room(struct dev *v, uint64_t bytes, double level)
{
    uint64_t end;
    return !add_u64(dev_used(v), bytes, &end) && (double)end <= (double)v->budget * level &&
           bytes <= avail_of(v);
}

int dev_room(struct devs *d, uint32_t id, uint64_t bytes)
{
    struct dev *v = dev_get(d, id);
    if (!v)
        return -ENODEV;
    return dev_has_room(v, bytes, DEV_REFUSE) ? 0 : -ENOSPC;
}

uint64_t dev_left(struct dev *v)
{
    uint64_t used = dev_used(v);
    return used < v->budget ? min_u64(v->budget - used, avail_of(v)) : 0;
}

static bool takes_new(struct dev *v)
{
    return atomic_load(&v->state) == DEV_OK && !atomic_load(&v->draining) &&
           !atomic_load(&v->held) && !atomic_load(&v->retired);
}

bool dev_takes_new(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    return v && takes_new(v);
}

bool dev_is_draining(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    return v && atomic_load(&v->draining);
}

/* Counted before it is asked whether the device was retired, and dev_retire asks the other way round. */
static bool pick(struct dev *v)
{
    atomic_fetch_add(&v->users, 1);
    if (!atomic_load(&v->retired))
        return true;
    atomic_fetch_sub(&v->users, 1);
    return false;
}

/* By the list, not by dev_place: dev_retire may be trying just now, and takes back what it tried. */
void dev_unpick(struct devs *d, uint32_t id)
{
    for (unsigned i = 0; i < d->n; i++)
        if (d->dev[i].id == id)
            atomic_fetch_sub(&d->dev[i].users, 1);
}

/* The one with most room among those that take new segments, or (`last_resort`) that are draining. */
static struct dev *roomiest(struct devs *d, uint32_t except, bool last_resort, uint64_t bytes,
                            double level, bool *ret_any)
{
    struct dev *best = NULL;
    uint64_t best_left = 0;
    *ret_any = false;
    for (unsigned i = 0; i < d->n; i++) {
        struct dev *v = &d->dev[i];
        bool fits = last_resort ? atomic_load(&v->state) == DEV_OK && atomic_load(&v->draining) &&
                                      !atomic_load(&v->retired)
                                : takes_new(v);
        if (!fits || v->id == except)
            continue;
        *ret_any = true;
        uint64_t left = dev_left(v);
        if (left > best_left && dev_has_room(v, bytes, level)) {
            best = v;
            best_left = left;
        }
    }
    return best && pick(best) ? best : NULL;
}

bool dev_should_leave(struct devs *d, uint32_t id, uint64_t bytes)
{
    struct dev *v = dev_get(d, id);
    uint32_t other;
    if (!v || !atomic_load(&v->draining) || atomic_load(&v->state) != DEV_OK ||
        dev_pick_other(d, id, bytes, DEV_REFUSE, &other) < 0)
        return false;
    dev_unpick(d, other);
    return true;
}

int dev_pick(struct devs *d, uint32_t *ret_id)
{
    bool any;
    struct dev *best = roomiest(d, 0, false, SEG_PAGE_BYTES, DEV_REFUSE, &any);
    if (!any) {
        best = roomiest(d, 0, true, SEG_PAGE_BYTES, DEV_REFUSE, &any);
        if (best)
            atomic_store(&best->drained, false);
    }
    if (!best)
        return any ? -ENOSPC : -EIO;
    *ret_id = best->id;
    return 0;
}

int dev_pick_other(struct devs *d, uint32_t from, uint64_t bytes, double level, uint32_t *ret_id)
{
    bool any;
    struct dev *best = roomiest(d, from, false, bytes, level, &any);
    if (!best)
        return any ? -ENOSPC : -ENODEV;
    *ret_id = best->id;
    return 0;
}

static uint64_t usable(struct dev *v)
{
    uint64_t could;
    if (add_u64(dev_used(v), avail_of(v), &could))
        could = UINT64_MAX;
    return min_u64(v->budget, could);
}

double dev_fill(struct devs *d, uint32_t id)
{
    struct dev *v = dev_get(d, id);
    if (!v)
        return 0;
    uint64_t all = usable(v);
    return all ? (double)dev_used(v) / (double)all : 1;
}

static double fill_of(struct devs *d, bool draining)
{
    double used = 0, all = 0;
    for (unsigned i = 0; i < d->n; i++) {
        struct dev *v = &d->dev[i];
        if (v->dirfd < 0 || atomic_load(&v->retired) || atomic_load(&v->draining) != draining)
            continue;
        used += (double)dev_used(v);
        all += (double)usable(v);
    }
    return all > 0 ? used / all : -1;
}

double devs_fill(struct devs *d)
{
    double fill = fill_of(d, false);
    if (fill < 0) /* only draining ones are left: they take what there is */
        fill = fill_of(d, true);
    return fill < 0 ? 1 : fill;
}

uint64_t devs_used(struct devs *d)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < d->n; i++)
        if (!atomic_load(&d->dev[i].retired) && !atomic_load(&d->dev[i].draining))
            sum += dev_used(&d->dev[i]);
    return sum;
}

uint64_t devs_room(struct devs *d)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < d->n; i++) {
        struct dev *v = &d->dev[i];
        uint64_t used = dev_used(v);
        double most = DEV_REFUSE * (double)min_u64(v->budget, used + avail_of(v));
        if (takes_new(v) && most > (double)used)
            sum += (uint64_t)(most - (double)used);
    }
    return sum;
}

uint64_t devs_budget(struct devs *d)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < d->n; i++)
        if (takes_new(&d->dev[i]))
            sum += d->dev[i].budget;
    return sum;
}
