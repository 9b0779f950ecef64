/* Ranked locks: a wrong order aborts with one thread, and the predicates tell what is held. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/lock.h"

static struct lock low, high, disk;

static void locks(void)
{
    lock_init(&disk, "disk", 5, true);
    lock_init(&low, "low", 10, false);
    lock_init(&high, "high", 20, false);
}

TestSuite(lock, .init = locks);

Test(lock, rising_ranks_may_be_nested_and_released_in_any_order)
{
    lock_acquire(&disk);
    lock_acquire(&low);
    lock_acquire(&high);
    lock_release(&low);
    cr_assert(lock_is_mine(&disk) && !lock_is_mine(&low) && lock_is_mine(&high));
    lock_release(&disk);
    lock_release(&high);
    cr_assert(lock_none_mine());
    lock_acquire(&low);
    lock_release(&low);
}

Test(lock, a_lower_rank_while_holding_a_higher_one_aborts, .signal = SIGABRT)
{
    lock_acquire(&high);
    lock_acquire(&low);
}

Test(lock, the_same_rank_aborts, .signal = SIGABRT)
{
    struct lock twin;
    lock_init(&twin, "twin", 10, false);
    lock_acquire(&low);
    lock_acquire(&twin);
}

Test(lock, taking_a_lock_twice_aborts, .signal = SIGABRT)
{
    lock_acquire(&low);
    lock_acquire(&low);
}

Test(lock, releasing_what_is_not_held_aborts, .signal = SIGABRT)
{
    lock_release(&low);
}

Test(lock, the_highest_held_counts_after_a_release_in_the_middle, .signal = SIGABRT)
{
    struct lock middle;
    lock_init(&middle, "middle", 15, false);
    lock_acquire(&low);
    lock_acquire(&high);
    lock_release(&low);
    lock_acquire(&middle);
}

Test(lock, peers_are_taken_by_address)
{
    struct lock two[2];
    lock_init(&two[0], "a", 10, false);
    lock_init(&two[1], "b", 10, false);
    lock_acquire(&two[0]);
    lock_acquire_peer(&two[1]);
    cr_assert(lock_is_mine(&two[0]) && lock_is_mine(&two[1]));
    lock_acquire(&high);
    lock_release(&high);
    lock_release(&two[0]);
    lock_release(&two[1]);
}

Test(lock, peers_against_their_addresses_abort, .signal = SIGABRT)
{
    struct lock two[2];
    lock_init(&two[0], "a", 10, false);
    lock_init(&two[1], "b", 10, false);
    lock_acquire(&two[1]);
    lock_acquire_peer(&two[0]);
}

Test(lock, a_peer_of_lower_rank_aborts, .signal = SIGABRT)
{
    lock_acquire(&high);
    lock_acquire_peer(&low);
}

static void *other(void *arg)
{
    (void)arg;
    return (void *)(uintptr_t)(lock_none_mine() && !lock_is_mine(&low) && lock_disk_ok());
}

Test(lock, what_is_held_belongs_to_the_thread)
{
    pthread_t t;
    void *fine;
    cr_assert(lock_none_mine() && lock_disk_ok());
    lock_acquire(&low);
    cr_assert(!lock_none_mine() && lock_is_mine(&low));
    cr_assert_eq(pthread_create(&t, NULL, other, NULL), 0);
    pthread_join(t, &fine);
    cr_assert(fine);
    lock_release(&low);
}

Test(lock, only_disk_locks_may_be_held_over_local_files)
{
    lock_acquire(&disk);
    cr_assert(lock_disk_ok());
    lock_acquire(&low);
    cr_assert_not(lock_disk_ok());
    lock_release(&low);
    cr_assert(lock_disk_ok());
    lock_release(&disk);
}

Test(lock, a_file_call_under_a_short_lock_aborts, .signal = SIGABRT)
{
    char c;
    lock_acquire(&low);
    (void)io_pread(0, &c, 1, 0);
}

Test(lock, waiting_with_a_second_lock_held_aborts, .signal = SIGABRT)
{
    pthread_cond_t c;
    cond_init(&c);
    lock_acquire(&low);
    lock_acquire(&high);
    (void)lock_wait_until(&high, &c, clock_mono_ns());
}

Test(lock, scope_releases_at_its_end)
{
    {
        LOCK_SCOPE(&low);
        cr_assert(lock_is_mine(&low));
        {
            LOCK_SCOPE(&high);
            cr_assert(lock_is_mine(&high));
        }
        cr_assert_not(lock_is_mine(&high));
    }
    cr_assert(lock_none_mine());
}

struct wait {
    struct lock mu;
    pthread_cond_t c;
    int turn;
};

static void *answer(void *arg)
{
    struct wait *w = arg;
    lock_acquire(&w->mu);
    while (w->turn != 1)
        lock_wait(&w->mu, &w->c);
    w->turn = 2;
    pthread_cond_broadcast(&w->c);
    lock_release(&w->mu);
    return NULL;
}

Test(lock, waiting_lets_the_lock_go_and_holds_it_again)
{
    struct wait w = {.turn = 0};
    pthread_t t;
    lock_init(&w.mu, "wait", 10, false);
    cond_init(&w.c);
    cr_assert_eq(pthread_create(&t, NULL, answer, &w), 0);
    int64_t end = clock_mono_ns() + 20 * NS_PER_SEC;
    lock_acquire(&w.mu);
    w.turn = 1;
    pthread_cond_broadcast(&w.c);
    while (w.turn != 2)
        cr_assert(lock_wait_until(&w.mu, &w.c, end));
    cr_assert(lock_is_mine(&w.mu));
    lock_release(&w.mu);
    pthread_join(t, NULL);
    lock_destroy(&w.mu);
}

Test(lock, a_wait_ends_at_its_time_on_the_monotonic_clock)
{
    pthread_cond_t c;
    cond_init(&c);
    lock_acquire(&low);
    int64_t until = clock_mono_ns() + 30 * NS_PER_MS;
    while (lock_wait_until(&low, &c, until))
        ;
    cr_assert_geq(clock_mono_ns(), until);
    cr_assert(lock_is_mine(&low));
    cr_assert_not(lock_wait_until(&low, &c, 0), "a time that is past");
    lock_release(&low);
}
