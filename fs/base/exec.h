/* exec.h: where work runs that must not run on the caller's thread.
 *
 * `exec` is a pool of worker threads over one FIFO of embedded tasks: submitting never allocates,
 * never blocks and never fails, so the bound on a queue is the bound on its owners (requests in
 * flight, segments being uploaded...). `timers` is one thread over a heap of embedded timers.
 * Both can be created without threads: then the simulation steps them by hand, in order.
 *
 * A task or timer may be freed or submitted again from inside its own callback. Callbacks run with
 * no lock held.
 */
#ifndef SLUICE_BASE_EXEC_H
#define SLUICE_BASE_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct task {
    struct task *next;
    void (*run)(struct task *t);
};

struct exec;

/* threads 0: stepped. Threads are named NAME-N. `nice` is added to their nice value: background work
 * gives way to requests. 0, -ENOMEM, -EAGAIN. */
int exec_open(const char *name, unsigned threads, int nice, struct exec **ret);

/* Runs everything that was submitted, then joins the workers. NULL is accepted. */
void exec_close(struct exec *e);

void exec_submit(struct exec *e, struct task *t);

/* Waits until nothing is queued and nothing runs. Whoever may still submit decides what that means. A
 * stepped pool is stepped until it is empty. */
void exec_drain(struct exec *e);
size_t exec_queued(struct exec *e);

/* Stepped pools: runs the oldest task. False: there was none. */
bool exec_step(struct exec *e);

/* Stepped pools: runs the nth oldest task (from 0), as a pool of several threads may. False: there are
 * not so many. */
bool exec_step_nth(struct exec *e, size_t n);

struct timer {
    int64_t at_ns;      /* owned by timers */
    size_t pos;         /* 1-based place in the heap; 0: not set */
    void (*fire)(struct timer *t);
};

struct timers;

int timers_open(bool threaded, struct timers **ret);
void timers_close(struct timers *ts); /* timers still set do not fire */

/* Sets or moves a timer. `fire` runs once on the timer thread at or after clock_mono_ns() == at. */
void timer_set(struct timers *ts, struct timer *t, int64_t at_mono_ns);

/* True: it was set and will not fire. False: it has fired, is firing, or was never set. */
bool timer_cancel(struct timers *ts, struct timer *t);

/* Stepped: fires what is due now, returns how many. *ret_next is the next due time or INT64_MAX. */
unsigned timers_step(struct timers *ts, int64_t *ret_next);

#endif
