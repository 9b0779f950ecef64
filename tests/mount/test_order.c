/* Reads behind writes: who waits, for whom, and who is told afterwards. */
#include <criterion/criterion.h>

#include "fs/daemon/order.h"

static struct order *o;
static unsigned went;

static void go(struct parked *p)
{
    (void)p;
    went++;
}

static void setup(void)
{
    went = 0;
    cr_assert_eq(order_open(&o), 0);
}

static void teardown(void)
{
    order_close(o);
}

TestSuite(order, .init = setup, .fini = teardown);

static bool reads(struct parked *p, uint64_t ino, uint64_t lo, uint64_t hi, uint64_t unique)
{
    *p = (struct parked){.go = go};
    return order_read(o, p, ino, lo, hi, unique);
}

Test(order, a_read_of_the_same_pages_waits_for_the_end)
{
    struct mark m;
    struct parked same, before, behind, other;
    mark_begin(o, &m, 7, 5000, 6000, 1); /* the page from 4096 to 8192 */
    cr_assert(reads(&same, 7, 8191, 8192, 2));
    cr_assert_not(reads(&before, 7, 0, 4096, 3));
    cr_assert_not(reads(&behind, 7, 8192, 12288, 4));
    cr_assert_not(reads(&other, 8, 4096, 8192, 5));
    cr_assert_eq(order_first_in(o, 7, 0, 20000), 4096);
    cr_assert_eq(order_first_in(o, 7, 8192, 20000), 20000);
    cr_assert_eq(went, 0);
    cr_assert_not(mark_end(o, &m), "nobody was served too early");
    cr_assert_eq(went, 1);
    cr_assert_not(order_read(o, &same, 7, 8191, 8192, 2), "now nothing is in the way");
    cr_assert_not(mark_end(o, &m), "once");
    cr_assert_eq(went, 1);
}

Test(order, writes_that_come_later_do_not_hold_up_a_read)
{
    struct mark first, later;
    struct parked p;
    mark_begin(o, &first, 1, 0, 4096, 1);
    cr_assert(reads(&p, 1, 0, 4096, 2));
    mark_begin(o, &later, 1, 0, 4096, 3);
    (void)mark_end(o, &first);
    cr_assert_eq(went, 1);
    cr_assert_not(order_read(o, &p, 1, 0, 4096, 2));
    cr_assert_not(mark_end(o, &later), "it had waited for the one before it");
}

Test(order, a_read_waits_for_one_write_after_the_other)
{
    struct mark a, b;
    struct parked p;
    mark_begin(o, &a, 1, 0, 4096, 1);
    mark_begin(o, &b, 1, 4096, 8192, 2);
    cr_assert(reads(&p, 1, 0, 8192, 3));
    (void)mark_end(o, &a);
    cr_assert(order_read(o, &p, 1, 0, 8192, 3));
    (void)mark_end(o, &b);
    cr_assert_eq(went, 2);
    cr_assert_not(order_read(o, &p, 1, 0, 8192, 3));
}

Test(order, a_mark_that_moves_takes_its_readers_along)
{
    struct mark a, b;
    struct parked p;
    mark_begin(o, &a, 1, 0, 4096, 1);
    cr_assert(reads(&p, 1, 0, 4096, 2));
    mark_move(o, &b, &a);
    cr_assert_not(mark_end(o, &a), "it is no mark any more");
    cr_assert_eq(went, 0);
    cr_assert_not(mark_end(o, &b));
    cr_assert_eq(went, 1);
}

Test(order, who_leaves_is_not_called)
{
    struct mark m;
    struct parked p, q;
    mark_begin(o, &m, 1, 0, 4096, 1);
    cr_assert(reads(&p, 1, 0, 4096, 2));
    cr_assert(reads(&q, 1, 0, 4096, 3));
    cr_assert(order_leave(o, &p));
    cr_assert_not(order_leave(o, &p));
    (void)mark_end(o, &m);
    cr_assert_eq(went, 1);
    cr_assert_not(order_leave(o, &q), "it was called");
}

Test(order, a_write_that_is_marked_after_the_read_behind_it_is_told)
{
    struct mark m;
    struct parked p;
    cr_assert_not(reads(&p, 1, 0, 4096, 11));
    mark_begin(o, &m, 1, 0, 100, 10); /* the kernel sent it first */
    cr_assert(mark_end(o, &m));
    mark_begin(o, &m, 1, 0, 100, 12);
    cr_assert_not(mark_end(o, &m));
    mark_begin(o, &m, 1, 4096, 8192, 10);
    cr_assert_not(mark_end(o, &m), "other pages");
}
