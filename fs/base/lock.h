/* lock.h: ranked mutexes.
 *
 * A thread may take a lock only while every lock it holds has a lower rank; the assertion fires on
 * the first wrong order, with one thread. Two classes: short ones, and the few `disk_ok` ones that
 * may be held over local disk I/O. None is ever held over the network, the kernel's FUSE side or a
 * wait for another thread's work: those entries assert lock_none_mine().
 *
 * Ranks in use are listed in fs/README.md; the constants below are the order.
 */
#ifndef SLUICE_BASE_LOCK_H
#define SLUICE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum lock_rank {
    RANK_CONTROL = 5,   /* daemon/control: list of connections */
    RANK_TIER = 10,     /* tier: queues and counters of the tiering actor */
    RANK_NS = 20,       /* ns: one namespace change at a time (disk_ok) */
    RANK_INODE_IO = 25, /* one inode: one appender at a time (disk_ok) */
    RANK_INODE_HASH = 28, /* one inode: hashing of appended bytes, in order (disk_ok) */
    RANK_INODE = 30,    /* one inode: attributes, segment list */
    RANK_SEG_SYNC = 31, /* one segment file: one flush at a time (disk_ok) */
    RANK_SEG_TABLE = 32,/* one segment file: one writer of the hash table at a time (disk_ok) */
    RANK_ITABLE = 35,   /* inode table shard */
    RANK_HANDLE = 36,   /* open-handle table shard */
    RANK_SEGFD = 40,    /* device-file descriptor LRU */
    RANK_SEGFILE = 42,  /* one segment file: lengths, hashes, claims */
    RANK_POLICY = 43,   /* policy: the set of rules, who matches what */
    RANK_DEVICE = 45,   /* one device: accounting, state */
    RANK_CACHE = 50,    /* slice cache */
    RANK_KV_CKPT = 57,  /* one checkpoint into LMDB at a time (disk_ok) */
    RANK_KV_FLUSH = 58, /* one flush of the journal at a time (disk_ok) */
    RANK_FETCH = 56,    /* data: fetches that are with the store */
    RANK_KV_WRITE = 60, /* journal append (disk_ok) */
    RANK_KV = 62,       /* overlay */
    RANK_KV_SYNC = 64,  /* sync waiters */
    RANK_STORE = 70,    /* object store: the breaker; each layer below has a higher rank, so that */
    RANK_STORE_RETRY = 72, /* submit and cancel go down the stack under the lock of the one above */
    RANK_STORE_FAULT = 74,
    RANK_STORE_LOW = 76,/* the backend below them */
    RANK_EXEC = 80,     /* task queue */
    RANK_REPLY = 81,    /* daemon: requests to be answered later */
    RANK_TIMER = 82,    /* timer heap */
    RANK_ORDER = 83,    /* daemon: writes under way, and the reads that wait for them */
    RANK_NOTIFY = 84,   /* kernel invalidation queue */
    RANK_STATS = 90,    /* metric registry */
    RANK_LOG = 95       /* log sink */
};

struct lock {
    pthread_mutex_t m;
    const char *name;
    unsigned rank;
    bool disk_ok;
};

void lock_init(struct lock *l, const char *name, unsigned rank, bool disk_ok);
void lock_destroy(struct lock *l);
void lock_acquire(struct lock *l);
void lock_release(struct lock *l);

/* The second of two locks of one rank: its address must be above that of the first, which keeps the
 * order total. For the few operations that change two objects of a kind at once. */
void lock_acquire_peer(struct lock *l);

/* Condition variables run on CLOCK_MONOTONIC: create them here, not with the default attribute. */
void cond_init(pthread_cond_t *c);

/* Waits on `c`; `l` is released while asleep and held again on return. Loop on the predicate. */
void lock_wait(struct lock *l, pthread_cond_t *c);

/* The same with an end, on clock_mono_ns()'s clock. False: the time has come. */
bool lock_wait_until(struct lock *l, pthread_cond_t *c, int64_t mono_ns);

bool lock_is_mine(const struct lock *l); /* the calling thread holds it */
bool lock_none_mine(void);               /* the calling thread holds no lock at all */
bool lock_disk_ok(void);                 /* all locks it holds may be held over disk I/O */

static inline void lock_scope_exit(struct lock **l)
{
    lock_release(*l);
}

/* Holds `l` to the end of the enclosing scope. */
#define LOCK_SCOPE_(l, line)                                                                       \
    __attribute__((cleanup(lock_scope_exit), unused)) struct lock *lock_scope_##line =             \
        (lock_acquire(l), (l))
#define LOCK_SCOPE_2(l, line) LOCK_SCOPE_(l, line)
#define LOCK_SCOPE(l)         LOCK_SCOPE_2(l, __LINE__)

#endif
