/* Pools and timers: order, draining, closing, and what a cancel means. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "fs/base/clock.h"
#include "fs/base/cleanup.h"
#include "fs/base/exec.h"

enum { JOBS = 200 };

struct job {
    struct task task;
    struct exec *e;
    unsigned number, again;
};

static unsigned order[JOBS * 2];
static atomic_uint ran;
static atomic_int gate;

static void note(struct task *t)
{
    struct job *j = container_of(t, struct job, task);
    order[atomic_fetch_add(&ran, 1)] = j->number;
}

static void hold(struct task *t)
{
    while (!atomic_load(&gate))
        sched_yield();
    note(t);
}

/* Submits itself again, from inside. */
static void repeat(struct task *t)
{
    struct job *j = container_of(t, struct job, task);
    note(t);
    if (j->again-- > 0)
        exec_submit(j->e, t);
}

static void note_and_free(struct task *t)
{
    note(t);
    free(container_of(t, struct job, task));
}

Test(exec, one_thread_runs_tasks_in_the_order_they_came)
{
    static struct job job[JOBS];
    struct exec *e;
    cr_assert_eq(exec_open("t", 1, 0, &e), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        job[i] = (struct job){.task.run = i ? note : hold, .number = i};
        exec_submit(e, &job[i].task);
    }
    cr_assert_geq(exec_queued(e), JOBS - 1, "the first holds up the others");
    atomic_store(&gate, 1);
    exec_drain(e);
    cr_assert_eq(atomic_load(&ran), JOBS);
    cr_assert_eq(exec_queued(e), 0);
    for (unsigned i = 0; i < JOBS; i++)
        cr_assert_eq(order[i], i);
    exec_close(e);
}

Test(exec, drain_waits_for_what_runs_and_for_what_it_submits)
{
    static struct job job[8];
    struct exec *e;
    cr_assert_eq(exec_open("t", 4, 0, &e), 0);
    for (unsigned i = 0; i < 8; i++) {
        job[i] = (struct job){.task.run = repeat, .e = e, .number = i, .again = 10};
        exec_submit(e, &job[i].task);
    }
    exec_drain(e);
    cr_assert_eq(atomic_load(&ran), 8 * 11);
    exec_drain(e);
    exec_close(e);
}

Test(exec, close_runs_everything_that_was_submitted)
{
    static struct job job[JOBS];
    struct exec *e;
    cr_assert_eq(exec_open("t", 2, 0, &e), 0);
    for (unsigned i = 0; i < JOBS - 1; i++) {
        job[i] = (struct job){.task.run = note, .number = i};
        exec_submit(e, &job[i].task);
    }
    job[JOBS - 1] = (struct job){.task.run = repeat, .e = e, .again = 5};
    exec_submit(e, &job[JOBS - 1].task);
    exec_close(e);
    cr_assert_eq(atomic_load(&ran), JOBS + 5);
    exec_close(NULL);
}

Test(exec, a_task_may_free_itself)
{
    struct exec *e;
    cr_assert_eq(exec_open("t", 2, 0, &e), 0);
    for (unsigned i = 0; i < JOBS; i++) {
        struct job *j = calloc(1, sizeof *j);
        j->task.run = note_and_free;
        exec_submit(e, &j->task);
    }
    exec_close(e);
    cr_assert_eq(atomic_load(&ran), JOBS);
}

static void *submitter(void *arg)
{
    struct exec *e = arg;
    for (unsigned i = 0; i < JOBS / 4; i++) {
        struct job *j = calloc(1, sizeof *j);
        j->task.run = note_and_free;
        exec_submit(e, &j->task);
    }
    return NULL;
}

Test(exec, tasks_of_many_threads_run_once_each)
{
    struct exec *e;
    pthread_t t[4];
    cr_assert_eq(exec_open("t", 3, 0, &e), 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, submitter, e), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    exec_drain(e);
    cr_assert_eq(atomic_load(&ran), JOBS);
    exec_close(e);
}

Test(exec, stepped_pool_does_nothing_by_itself)
{
    struct job job[5];
    struct exec *e;
    cr_assert_eq(exec_open("t", 0, 0, &e), 0);
    cr_assert_not(exec_step(e));
    cr_assert_not(exec_step_nth(e, 0));
    for (unsigned i = 0; i < 5; i++) {
        job[i] = (struct job){.task.run = note, .number = i};
        exec_submit(e, &job[i].task);
    }
    cr_assert_eq(atomic_load(&ran), 0);
    cr_assert_eq(exec_queued(e), 5);
    cr_assert_not(exec_step_nth(e, 5));
    cr_assert(exec_step_nth(e, 4), "the last");
    cr_assert(exec_step_nth(e, 1));
    cr_assert(exec_step(e));
    job[4].number = 7;
    exec_submit(e, &job[4].task); /* behind the new last one */
    exec_drain(e);
    static const unsigned want[] = {4, 1, 0, 2, 3, 7};
    cr_assert_eq(atomic_load(&ran), 6);
    for (unsigned i = 0; i < 6; i++)
        cr_assert_eq(order[i], want[i]);
    exec_submit(e, &job[0].task);
    exec_close(e);
    cr_assert_eq(atomic_load(&ran), 7, "closing a stepped pool runs the rest too");
}

/* ---- timers ---- */

struct alarm_clock {
    struct timer timer;
    struct timers *ts;
    unsigned number, again;
    int64_t period;
};

static void ring(struct timer *t)
{
    struct alarm_clock *a = container_of(t, struct alarm_clock, timer);
    order[atomic_load(&ran)] = a->number; /* one thread rings; who sees the count sees the number */
    atomic_fetch_add(&ran, 1);
    if (a->again) {
        a->again--;
        timer_set(a->ts, t, t->at_ns + a->period);
    }
}

static void ring_and_free(struct timer *t)
{
    ring(t);
    free(container_of(t, struct alarm_clock, timer));
}

static bool wait_for(unsigned n)
{
    int64_t end = clock_mono_ns() + 20 * NS_PER_SEC;
    while (atomic_load(&ran) < n && clock_mono_ns() < end)
        sched_yield();
    return atomic_load(&ran) == n;
}

Test(timers, stepped_timers_fire_in_the_order_of_their_times)
{
    static struct alarm_clock a[JOBS];
    struct timers *ts;
    int64_t next;
    clock_virtual_set(1000);
    cr_assert_eq(timers_open(false, &ts), 0);
    cr_assert_eq(timers_step(ts, &next), 0);
    cr_assert_eq(next, INT64_MAX);
    for (unsigned i = 0; i < JOBS; i++) {
        unsigned n = i * 7 % JOBS; /* a permutation: 7 and 200 have no common divisor */
        a[n] = (struct alarm_clock){.timer.fire = ring, .ts = ts, .number = n};
        timer_set(ts, &a[n].timer, 2000 + 10 * n);
    }
    cr_assert_eq(timers_step(ts, &next), 0, "nothing is due");
    cr_assert_eq(next, 2000);
    clock_virtual_advance(1000 + 495);
    cr_assert_eq(timers_step(ts, &next), 50);
    cr_assert_eq(next, 2500);
    clock_virtual_advance(1000000);
    cr_assert_eq(timers_step(ts, &next), JOBS - 50);
    for (unsigned i = 0; i < JOBS; i++)
        cr_assert_eq(order[i], i);
    timers_close(ts);
}

Test(timers, a_timer_can_be_moved_and_cancelled)
{
    struct alarm_clock a[3];
    struct timers *ts;
    int64_t next;
    clock_virtual_set(1000);
    cr_assert_eq(timers_open(false, &ts), 0);
    for (unsigned i = 0; i < 3; i++) {
        a[i] = (struct alarm_clock){.timer.fire = ring, .ts = ts, .number = i};
        cr_assert_not(timer_cancel(ts, &a[i].timer), "never set");
        timer_set(ts, &a[i].timer, 2000 + i);
    }
    timer_set(ts, &a[0].timer, 5000); /* later */
    timer_set(ts, &a[2].timer, 1500); /* earlier */
    cr_assert(timer_cancel(ts, &a[1].timer));
    cr_assert_not(timer_cancel(ts, &a[1].timer), "it is not set any more");
    clock_virtual_advance(10000);
    cr_assert_eq(timers_step(ts, &next), 2);
    cr_assert_eq(order[0], 2);
    cr_assert_eq(order[1], 0);
    cr_assert_not(timer_cancel(ts, &a[0].timer), "it has fired");
    timers_close(ts);
}

Test(timers, a_timer_sets_itself_again_from_its_callback)
{
    struct alarm_clock a = {.timer.fire = ring, .number = 1, .again = 3, .period = 100};
    struct timers *ts;
    int64_t next;
    clock_virtual_set(1000);
    cr_assert_eq(timers_open(false, &ts), 0);
    a.ts = ts;
    timer_set(ts, &a.timer, 1000);
    cr_assert_eq(timers_step(ts, &next), 1, "due at its time, not only behind it");
    cr_assert_eq(next, 1100);
    clock_virtual_advance(200);
    cr_assert_eq(timers_step(ts, &next), 2, "one that is due at once fires in the same step");
    cr_assert_eq(next, 1300);
    timers_close(ts);
    cr_assert_eq(atomic_load(&ran), 3, "timers still set do not fire at the close");
}

Test(timers, many_moves_and_cancels_keep_the_heap_in_order)
{
    enum { N = 300 };
    static struct alarm_clock a[N];
    static int64_t at[N];
    struct timers *ts;
    int64_t next, last = 0;
    uint64_t x = 88172645463325252ull;
    clock_virtual_set(1);
    cr_assert_eq(timers_open(false, &ts), 0);
    for (unsigned i = 0; i < N; i++)
        a[i] = (struct alarm_clock){.timer.fire = ring, .ts = ts, .number = i};
    for (unsigned k = 0; k < 20000; k++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        unsigned i = (unsigned)(x >> 20) % N;
        if (x % 3) {
            at[i] = (int64_t)(2 + (x >> 40) % 5000);
            timer_set(ts, &a[i].timer, at[i]);
        } else {
            cr_assert_eq(timer_cancel(ts, &a[i].timer), at[i] != 0);
            at[i] = 0;
        }
        int64_t min = INT64_MAX;
        for (unsigned n = 0; n < N && k % 100 == 0; n++)
            min = at[n] && at[n] < min ? at[n] : min;
        if (k % 100 == 0) {
            (void)timers_step(ts, &next);
            cr_assert_eq(next, min);
        }
    }
    clock_virtual_advance(10000);
    unsigned fired = timers_step(ts, &next), left = 0;
    for (unsigned i = 0; i < N; i++)
        left += at[i] != 0;
    cr_assert_eq(fired, left);
    for (unsigned i = 0; i < fired; i++) {
        cr_assert_geq(at[order[i]], last);
        last = at[order[i]];
    }
    timers_close(ts);
}

Test(timers, the_thread_fires_them_and_a_nearer_one_wakes_it)
{
    struct alarm_clock far = {.timer.fire = ring, .number = 1}, near = {.timer.fire = ring};
    struct timers *ts;
    cr_assert_eq(timers_open(true, &ts), 0);
    int64_t start = clock_mono_ns();
    timer_set(ts, &far.timer, start + 3600 * NS_PER_SEC);
    timer_set(ts, &near.timer, start + 20 * NS_PER_MS);
    cr_assert(wait_for(1));
    cr_assert_geq(clock_mono_ns() - start, 20 * NS_PER_MS, "not too early");
    cr_assert_eq(order[0], 0);
    cr_assert(timer_cancel(ts, &far.timer));
    for (unsigned i = 0; i < 100; i++) {
        struct alarm_clock *a = calloc(1, sizeof *a);
        a->timer.fire = ring_and_free;
        timer_set(ts, &a->timer, 0);
    }
    cr_assert(wait_for(101));
    timer_set(ts, &far.timer, clock_mono_ns() + 3600 * NS_PER_SEC);
    timers_close(ts);
    cr_assert_eq(atomic_load(&ran), 101);
}
