/* exec.c: task pool and timer heap; see exec.h.
 *
 * Locks: exec.mu (RANK_EXEC) guards one FIFO; timers.mu (RANK_TIMER) guards one heap. Both are
 * leaves and are dropped before a callback runs.
 */
#include "fs/base/exec.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "fs/base/clock.h"
#include "fs/base/lock.h"

enum { EXEC_THREADS_MAX = 64 };

struct exec {
    struct lock mu;
    pthread_cond_t work; /* head != NULL or closing */
    pthread_cond_t idle; /* nothing queued, nothing running */
    unsigned running;
    struct task *head, **tail;
    size_t queued;
    bool closing;
    unsigned threads;
    int nice;
    char name[12];
    pthread_t thread[EXEC_THREADS_MAX];
};

static int start_thread(pthread_t *t, void *(*fn)(void *), void *arg, const char *name, unsigned i)
{
    sigset_t all, old;
    char full[16];
    sigfillset(&all); /* signals belong to the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r)
        return -r;
    snprintf(full, sizeof full, "%.11s-%u", name, i % 1000);
    pthread_setname_np(*t, full);
    return 0;
}

static struct task *pop_locked(struct exec *e)
{
    struct task *t = e->head;
    if (t) {
        e->head = t->next;
        if (!e->head)
            e->tail = &e->head;
        e->queued--;
    }
    return t;
}

static void *exec_worker(void *arg)
{
    struct exec *e = arg;
    if (e->nice) /* of this thread alone; a refusal changes nothing that matters */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + e->nice);
    for (;;) {
        lock_acquire(&e->mu);
        while (!e->head && !e->closing)
            lock_wait(&e->mu, &e->work);
        struct task *t = pop_locked(e);
        e->running += t != NULL;
        lock_release(&e->mu);
        if (!t)
            return NULL;
        t->run(t);
        assert(lock_none_mine());
        lock_acquire(&e->mu);
        if (--e->running == 0 && !e->head)
            pthread_cond_broadcast(&e->idle);
        lock_release(&e->mu);
    }
}

int exec_open(const char *name, unsigned threads, int nice, struct exec **ret)
{
    assert(threads <= EXEC_THREADS_MAX);
    struct exec *e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    lock_init(&e->mu, "exec.mu", RANK_EXEC, false);
    cond_init(&e->work);
    cond_init(&e->idle);
    e->tail = &e->head;
    e->nice = nice;
    snprintf(e->name, sizeof e->name, "%s", name);
    for (unsigned i = 0; i < threads; i++) {
        int r = start_thread(&e->thread[i], exec_worker, e, e->name, i);
        if (r < 0) {
            exec_close(e);
            return r;
        }
        e->threads++;
    }
    *ret = e;
    return 0;
}

void exec_submit(struct exec *e, struct task *t)
{
    t->next = NULL;
    lock_acquire(&e->mu);
    *e->tail = t;
    e->tail = &t->next;
    e->queued++;
    if (e->threads)
        pthread_cond_signal(&e->work);
    lock_release(&e->mu);
}

size_t exec_queued(struct exec *e)
{
    LOCK_SCOPE(&e->mu);
    return e->queued;
}

bool exec_step(struct exec *e)
{
    lock_acquire(&e->mu);
    struct task *t = pop_locked(e);
    lock_release(&e->mu);
    if (!t)
        return false;
    t->run(t);
    return true;
}

bool exec_step_nth(struct exec *e, size_t n)
{
    lock_acquire(&e->mu);
    struct task **at = &e->head;
    while (*at && n--)
        at = &(*at)->next;
    struct task *t = *at;
    if (t) {
        *at = t->next;
        if (!*at)
            e->tail = at;
        e->queued--;
    }
    lock_release(&e->mu);
    if (t)
        t->run(t);
    return t != NULL;
}

void exec_drain(struct exec *e)
{
    if (!e->threads) {
        while (exec_step(e))
            ;
        return;
    }
    lock_acquire(&e->mu);
    while (e->head || e->running)
        lock_wait(&e->mu, &e->idle);
    lock_release(&e->mu);
}

void exec_close(struct exec *e)
{
    if (!e)
        return;
    lock_acquire(&e->mu);
    e->closing = true;
    pthread_cond_broadcast(&e->work);
    lock_release(&e->mu);
    for (unsigned i = 0; i < e->threads; i++)
        pthread_join(e->thread[i], NULL);
    while (exec_step(e))
        ;
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->idle);
    lock_destroy(&e->mu);
    free(e);
}

struct timers {
    struct lock mu;
    pthread_cond_t changed; /* the earliest timer changed, or closing */
    struct timer **heap;    /* 1-based */
    size_t n, cap;
    bool closing, threaded;
    pthread_t thread;
};

static void heap_put(struct timers *ts, size_t pos, struct timer *t)
{
    ts->heap[pos] = t;
    t->pos = pos;
}

static void heap_fix(struct timers *ts, size_t pos)
{
    struct timer *t = ts->heap[pos];
    while (pos > 1 && ts->heap[pos / 2]->at_ns > t->at_ns) {
        heap_put(ts, pos, ts->heap[pos / 2]);
        pos /= 2;
    }
    for (size_t kid; (kid = pos * 2) <= ts->n; pos = kid) {
        if (kid < ts->n && ts->heap[kid + 1]->at_ns < ts->heap[kid]->at_ns)
            kid++;
        if (ts->heap[kid]->at_ns >= t->at_ns)
            break;
        heap_put(ts, pos, ts->heap[kid]);
    }
    heap_put(ts, pos, t);
}

static void heap_remove(struct timers *ts, struct timer *t)
{
    size_t pos = t->pos;
    struct timer *last = ts->heap[ts->n--];
    t->pos = 0;
    if (last != t) {
        heap_put(ts, pos, last);
        heap_fix(ts, pos);
    }
}

unsigned timers_step(struct timers *ts, int64_t *ret_next)
{
    unsigned fired = 0;
    for (;;) {
        lock_acquire(&ts->mu);
        struct timer *t = ts->n ? ts->heap[1] : NULL;
        if (!t || t->at_ns > clock_mono_ns() || ts->closing) {
            *ret_next = t ? t->at_ns : INT64_MAX;
            lock_release(&ts->mu);
            return fired;
        }
        heap_remove(ts, t);
        lock_release(&ts->mu);
        t->fire(t);
        fired++;
    }
}

static void *timer_main(void *arg)
{
    struct timers *ts = arg;
    for (;;) {
        int64_t next;
        timers_step(ts, &next);
        lock_acquire(&ts->mu);
        if (ts->closing) {
            lock_release(&ts->mu);
            return NULL;
        }
        if (ts->n == 0)
            lock_wait(&ts->mu, &ts->changed);
        else if (ts->heap[1]->at_ns > clock_mono_ns())
            (void)lock_wait_until(&ts->mu, &ts->changed, ts->heap[1]->at_ns);
        lock_release(&ts->mu);
    }
}

int timers_open(bool threaded, struct timers **ret)
{
    struct timers *ts = calloc(1, sizeof *ts);
    if (!ts)
        return -ENOMEM;
    lock_init(&ts->mu, "timers.mu", RANK_TIMER, false);
    cond_init(&ts->changed);
    ts->cap = 64;
    ts->heap = calloc(ts->cap + 1, sizeof(struct timer *));
    int r = ts->heap ? 0 : -ENOMEM;
    if (r == 0 && threaded)
        r = start_thread(&ts->thread, timer_main, ts, "timer", 0);
    if (r < 0) {
        timers_close(ts);
        return r;
    }
    ts->threaded = threaded;
    *ret = ts;
    return 0;
}

void timers_close(struct timers *ts)
{
    if (!ts)
        return;
    lock_acquire(&ts->mu);
    ts->closing = true;
    pthread_cond_broadcast(&ts->changed);
    lock_release(&ts->mu);
    if (ts->threaded)
        pthread_join(ts->thread, NULL);
    pthread_cond_destroy(&ts->changed);
    lock_destroy(&ts->mu);
    free(ts->heap);
    free(ts);
}

void timer_set(struct timers *ts, struct timer *t, int64_t at_mono_ns)
{
    lock_acquire(&ts->mu);
    if (t->pos)
        heap_remove(ts, t);
    if (ts->n == ts->cap) {
        struct timer **more = realloc(ts->heap, (ts->cap * 2 + 1) * sizeof(struct timer *));
        if (!more)
            abort(); /* a lost timer would be a lost reply */
        ts->heap = more;
        ts->cap *= 2;
    }
    t->at_ns = at_mono_ns;
    heap_put(ts, ++ts->n, t);
    heap_fix(ts, ts->n);
    if (t->pos == 1)
        pthread_cond_signal(&ts->changed);
    lock_release(&ts->mu);
}

bool timer_cancel(struct timers *ts, struct timer *t)
{
    LOCK_SCOPE(&ts->mu);
    if (!t->pos)
        return false;
    heap_remove(ts, t);
    return true;
}
