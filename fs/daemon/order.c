/* order.c: a READ that comes while a WRITE of the same pages is under way waits for its end.
 *
 * Why. The kernel copies the bytes of a cached write into its pages, unlocks those that are whole, and then sends the
 * WRITE. A page that is dropped meanwhile, by notify.c or for want of memory, is asked for again, and an answer
 * with the bytes of before would stay in the page cache after the WRITE was acknowledged, for good. The other
 * way round nothing can happen: the pages of a READ under way are locked, so that no cached write of them is sent.
 *
 *   WRITE   mark_begin (worker) ... mark_end: carried out or given up; before its reply
 *   READ    order_read: meets a mark that was there before it -> parked with that; mark_end lets it go on
 *
 * A WRITE waits for no READ, only for the device or the store, so there is no circle. A READ looks at marks with
 * lower numbers than its own only: writers that come later do not starve it.
 *
 * Two workers may take a WRITE and the READ behind it from the kernel and be overtaken before the mark is set.
 * Each READ leaves its range and the kernel's number for a while (`seen`); a mark that finds a READ with a higher
 * number than its own is `overtaken`, and the pages are dropped when it ends.
 *
 * Locks: one for each stripe of inodes (RANK_ORDER), short; `go` is called without any.
 */
#include "fs/daemon/order.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/base/lock.h"

enum { STRIPES = 64, SEEN = 32, PAGE_BYTES = 4096 };

struct seen {
    uint64_t ino, lo, hi, unique;
};

struct stripe {
    struct lock mu;
    struct list marks;
    struct seen seen[SEEN];
    unsigned next;
};

struct order {
    _Atomic uint64_t seq;
    struct stripe stripe[STRIPES];
};

int order_open(struct order **ret)
{
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    for (unsigned k = 0; k < STRIPES; k++) {
        lock_init(&o->stripe[k].mu, "order", RANK_ORDER, false);
        list_init(&o->stripe[k].marks);
    }
    *ret = o;
    return 0;
}

void order_close(struct order *o)
{
    if (!o)
        return;
    for (unsigned k = 0; k < STRIPES; k++)
        lock_destroy(&o->stripe[k].mu);
    free(o);
}

static struct stripe *stripe_of(struct order *o, uint64_t ino)
{
    return &o->stripe[(ino * 0x9e3779b97f4a7c15ull) >> 58];
}

static uint64_t page_up(uint64_t at)
{
    return (at + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void mark_begin(struct order *o, struct mark *m, uint64_t ino, uint64_t lo, uint64_t hi,
                uint64_t unique)
{
    struct stripe *s = stripe_of(o, ino);
    *m = (struct mark){
        .ino = ino, .lo = lo / PAGE_BYTES * PAGE_BYTES, .hi = page_up(hi), .on = true};
    list_init(&m->parked);
    LOCK_SCOPE(&s->mu);
    m->seq = atomic_fetch_add(&o->seq, 1) + 1;
    list_add_tail(&s->marks, &m->link);
    for (unsigned k = 0; k < SEEN; k++) {
        const struct seen *r = &s->seen[k];
        m->overtaken |= r->ino == ino && r->lo < m->hi && m->lo < r->hi && r->unique > unique;
    }
}

void mark_move(struct order *o, struct mark *to, struct mark *from)
{
    struct stripe *s = stripe_of(o, from->ino);
    LOCK_SCOPE(&s->mu);
    *to = *from;
    list_init(&to->parked);
    list_add_tail(&from->link, &to->link); /* in its place */
    list_del(&from->link);
    list_each_safe(&from->parked, it, tmp)
    {
        list_del(it);
        list_add_tail(&to->parked, it);
    }
    from->on = false;
}

bool mark_end(struct order *o, struct mark *m)
{
    if (!m->on)
        return false;
    struct stripe *s = stripe_of(o, m->ino);
    struct list go;
    list_init(&go);
    lock_acquire(&s->mu);
    list_del(&m->link);
    list_each_safe(&m->parked, it, tmp)
    {
        list_entry(it, struct parked, link)->waits = false;
        list_del(it);
        list_add_tail(&go, it);
    }
    lock_release(&s->mu);
    m->on = false;
    list_each_safe(&go, it, tmp)
    {
        list_del(it);
        struct parked *p = list_entry(it, struct parked, link);
        p->go(p);
    }
    return m->overtaken;
}

bool order_read(struct order *o, struct parked *p, uint64_t ino, uint64_t lo, uint64_t hi,
                uint64_t unique)
{
    struct stripe *s = stripe_of(o, ino);
    LOCK_SCOPE(&s->mu);
    if (p->seq == 0) {
        p->ino = ino;
        p->lo = lo;
        p->hi = hi;
        p->seq = atomic_fetch_add(&o->seq, 1) + 1;
        s->seen[s->next++ % SEEN] = (struct seen){ino, lo, hi, unique};
    }
    list_each(&s->marks, it)
    {
        struct mark *m = list_entry(it, struct mark, link);
        if (m->ino == ino && m->seq < p->seq && m->lo < p->hi && p->lo < m->hi) {
            p->waits = true;
            list_add_tail(&m->parked, &p->link);
            return true;
        }
    }
    return false;
}

bool order_leave(struct order *o, struct parked *p)
{
    if (p->seq == 0)
        return false;
    struct stripe *s = stripe_of(o, p->ino);
    LOCK_SCOPE(&s->mu);
    if (!p->waits)
        return false;
    p->waits = false;
    list_del(&p->link);
    return true;
}

uint64_t order_first_in(struct order *o, uint64_t ino, uint64_t from, uint64_t to)
{
    struct stripe *s = stripe_of(o, ino);
    LOCK_SCOPE(&s->mu);
    list_each(&s->marks, it)
    {
        const struct mark *m = list_entry(it, struct mark, link);
        if (m->ino == ino && m->lo < to && m->hi > from)
            to = m->lo > from ? m->lo : from;
    }
    return to;
}
