/* lock.c: ranked mutexes; the set of locks a thread holds is thread-local, so every check here is
 * free of races. */
#include "fs/base/lock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOCK_DEPTH_MAX = 12 };

static _Thread_local struct {
    struct lock *held[LOCK_DEPTH_MAX];
    unsigned n;
} mine;

void lock_init(struct lock *l, const char *name, unsigned rank, bool disk_ok)
{
    int r = pthread_mutex_init(&l->m, NULL);
    assert(r == 0);
    (void)r;
    l->name = name;
    l->rank = rank;
    l->disk_ok = disk_ok;
}

void lock_destroy(struct lock *l)
{
    int r = pthread_mutex_destroy(&l->m);
    assert(r == 0);
    (void)r;
}

static void lock_order_broken(const struct lock *l)
{
    fprintf(stderr, "lock order: taking %s (%u) while holding %s (%u)\n", l->name, l->rank,
            mine.held[mine.n - 1]->name, mine.held[mine.n - 1]->rank);
    abort();
}

static void lock_take(struct lock *l)
{
    assert(mine.n < LOCK_DEPTH_MAX);
    int r = pthread_mutex_lock(&l->m);
    assert(r == 0);
    (void)r;
    mine.held[mine.n++] = l;
}

void lock_acquire(struct lock *l)
{
    if (mine.n > 0 && mine.held[mine.n - 1]->rank >= l->rank)
        lock_order_broken(l);
    lock_take(l);
}

void lock_acquire_peer(struct lock *l)
{
    const struct lock *top = mine.n > 0 ? mine.held[mine.n - 1] : NULL;
    if (top && (top->rank > l->rank || (top->rank == l->rank && top >= l)))
        lock_order_broken(l);
    lock_take(l);
}

void lock_release(struct lock *l)
{
    unsigned i = mine.n;
    while (i > 0 && mine.held[i - 1] != l)
        i--;
    assert(i > 0);
    for (; i < mine.n; i++)
        mine.held[i - 1] = mine.held[i];
    mine.n--;
    int r = pthread_mutex_unlock(&l->m);
    assert(r == 0);
    (void)r;
}

void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    int r = pthread_cond_init(c, &a);
    assert(r == 0);
    (void)r;
    pthread_condattr_destroy(&a);
}

void lock_wait(struct lock *l, pthread_cond_t *c)
{
    assert(mine.n == 1 && mine.held[0] == l);
    int r = pthread_cond_wait(c, &l->m);
    assert(r == 0);
    (void)r;
}

bool lock_wait_until(struct lock *l, pthread_cond_t *c, int64_t mono_ns)
{
    assert(mine.n == 1 && mine.held[0] == l);
    struct timespec ts = {.tv_sec = mono_ns / 1000000000, .tv_nsec = mono_ns % 1000000000};
    int r = pthread_cond_timedwait(c, &l->m, &ts);
    assert(r == 0 || r == ETIMEDOUT);
    return r == 0;
}

bool lock_is_mine(const struct lock *l)
{
    for (unsigned i = 0; i < mine.n; i++)
        if (mine.held[i] == l)
            return true;
    return false;
}

bool lock_none_mine(void)
{
    return mine.n == 0;
}

bool lock_disk_ok(void)
{
    for (unsigned i = 0; i < mine.n; i++)
        if (!mine.held[i]->disk_ok)
            return false;
    return true;
}
