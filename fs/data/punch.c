/* punch.c: fallocate.
 *
 *   plain, KEEP_SIZE     a promise of room: nothing is written, a budget that cannot hold it says ENOSPC
 *   PUNCH_HOLE           bytes become a hole
 *   ZERO_RANGE           the same, and without KEEP_SIZE the file may become longer
 *
 * A hole is a gap between segments. A segment that lies in the range as a whole is dropped, wherever its
 * bytes are; of one whose end lies in it the end is cut (size.c); anything else is a hole inside the
 * device file of a segment that is open or opened again for it, so a remote one is brought back first.
 * What needs waiting is found before anything changes.
 */
#include "fs/data/internal.h"

#include <errno.h>
#include <linux/falloc.h>
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"

struct range {
    uint64_t from, to;
};

static bool inside(const struct spot *s, const struct range *g)
{
    return s->base >= g->from && s->end <= g->to;
}

static bool cut_only(const struct spot *s, const struct range *g)
{
    return spot_cuttable(s) && s->base < g->from && s->end <= g->to;
}

/* Makes every segment ready to be changed; only states change. -EAGAIN with *ret_blocked. */
static int prepare(struct data *d, struct inode *i, const struct range *g, uint64_t *ret_blocked)
{
    struct spot s;
    int r = 0;
    for (uint64_t at = g->from; r == 0 && at < g->to; at = s.end) {
        r = spot_next(d, i, at, g->to, &s);
        if (r < 0)
            return r == -ENOENT ? 0 : r;
        if (s.end <= at)
            s.end = at + 1; /* an empty one */
        else if (!inside(&s, g) && !cut_only(&s, g))
            r = spot_open(d, i, &s);
        if (r == -EAGAIN)
            *ret_blocked = max_u64(at, s.base);
        spot_done(&s);
    }
    return r;
}

static int punch_one(struct data *d, struct inode *i, struct spot *s, const struct range *g,
                     uint64_t topic)
{
    /* Where the hole reaches the end of the file, just the inode's record tells of that from now on. */
    if (inside(s, g))
        return seg_drop(d, i, s->base, &s->rec, topic, g->to == atomic_load(&i->size));
    if (cut_only(s, g))
        return spot_cut(d, i, s, g->from, topic);
    int r = spot_open(d, i, s);
    if (r < 0)
        return r == -EAGAIN ? -EIO : r; /* prepared, and inode.io was held since */
    lock_acquire(&idata(i)->hash);      /* what was appended before has been hashed */
    lock_release(&idata(i)->hash);
    r = segfile_punch(s->o->sf, max_u64(g->from, s->base) - s->base, g->to - s->base);
    openseg_wrote(s->o, 0);
    return r;
}

static int punch(struct data *d, struct inode *i, const struct range *g, uint64_t *ret_blocked)
{
    int r = prepare(d, i, g, ret_blocked);
    if (r < 0)
        return r;
    uint64_t topic = 0;
    (void)topic_of(d->v->ns, i->ino, &topic);
    struct spot s;
    for (uint64_t at = g->from; r == 0 && at < g->to; at = max_u64(s.end, at + 1)) {
        r = spot_next(d, i, at, g->to, &s);
        if (r < 0)
            return r == -ENOENT ? 0 : r;
        r = punch_one(d, i, &s, g, topic);
        spot_done(&s);
    }
    return r;
}

static int allocate(struct data *d, struct inode *i, int mode, uint64_t off, uint64_t len,
                    uint64_t *ret_blocked)
{
    uint64_t size = atomic_load(&i->size), end = off + len;
    bool longer = end > size && !(mode & FALLOC_FL_KEEP_SIZE);
    bool holes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    int r = 0;
    if (holes && off < size) {
        struct range g = {off, min_u64(end, size)};
        if (end >= size) /* the file may end in a hole then: as in truncate_locked */
            r = inode_sync_before(i, off, true);
        if (r == 0)
            r = punch(d, i, &g, ret_blocked);
        if (r == 0 && end >= size) /* what was zeroed in place, too */
            r = inode_sync_before(i, size, true);
    }
    if (r == 0 && !longer)
        r = inode_changed(d, i, NULL);
    return r == 0 && longer ? truncate_locked(d, i, end, NULL) : r;
}

int data_fallocate(struct data *d, struct inode *i, int mode, uint64_t off, uint64_t len,
                   uint64_t *ret_blocked)
{
    int what = mode & ~FALLOC_FL_KEEP_SIZE;
    if (d->v->topics_profile || policy_append_only(d->v->policy, i) ||
        (what != 0 && what != FALLOC_FL_PUNCH_HOLE && what != FALLOC_FL_ZERO_RANGE) ||
        (what == FALLOC_FL_PUNCH_HOLE && !(mode & FALLOC_FL_KEEP_SIZE)))
        return -EOPNOTSUPP;
    if (len == 0)
        return -EINVAL;
    if (len > DATA_SIZE_MAX || off > DATA_SIZE_MAX - len)
        return -EFBIG;
    uint64_t budget = devs_budget(d->v->devs), used = min_u64(devs_used(d->v->devs), budget);
    if (what != FALLOC_FL_PUNCH_HOLE && off + len > atomic_load(&i->size) && len > budget - used)
        return -ENOSPC;
    files_make_room(d);
    lock_acquire(&i->io);
    int r = allocate(d, i, mode, off, len, ret_blocked);
    lock_release(&i->io);
    if (what)
        cache_forget(d->v->cache, i->ino, off);
    return r;
}
