/* handles.c: open file descriptions. The number that FUSE carries is <counter> << 8 | flags, so the
 * flags survive the daemon; the table only adds the read-ahead state, and a number it does not know
 * (another daemon gave it) gets fresh state on its first read.
 *
 * Locks: one per shard (RANK_HANDLE), never held over a call into the cache. */
#include "fs/data/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"

struct handle {
    struct handle *next;
    uint64_t fh;
    struct cache_reader *reader;
};

enum { HANDLE_BUCKETS = 1024 };

struct handle_shard {
    struct lock mu;
    struct handle *bucket[HANDLE_BUCKETS];
};

int handles_open(struct data *d)
{
    d->handles = calloc(HANDLE_SHARDS, sizeof *d->handles);
    if (!d->handles)
        return -ENOMEM;
    for (int k = 0; k < HANDLE_SHARDS; k++)
        lock_init(&d->handles[k].mu, "data.handles", RANK_HANDLE, false);
    return 0;
}

void data_close_handles(struct data *d)
{
    if (!d->handles)
        return;
    for (int k = 0; k < HANDLE_SHARDS; k++) {
        for (int b = 0; b < HANDLE_BUCKETS; b++)
            for (struct handle *h = d->handles[k].bucket[b], *next; h; h = next) {
                next = h->next;
                if (h->reader)
                    cache_reader_close(d->v->cache, h->reader);
                free(h);
            }
        lock_destroy(&d->handles[k].mu);
    }
    free(d->handles);
    d->handles = NULL;
}

static struct handle_shard *shard_of(struct data *d, uint64_t fh, struct handle ***ret_bucket)
{
    uint64_t n = fh >> 8;
    struct handle_shard *s = &d->handles[n % HANDLE_SHARDS];
    *ret_bucket = &s->bucket[n / HANDLE_SHARDS % HANDLE_BUCKETS];
    return s;
}

static struct handle *find_locked(struct handle **bucket, uint64_t fh)
{
    for (struct handle *h = *bucket; h; h = h->next)
        if (h->fh == fh)
            return h;
    return NULL;
}

struct cache_reader *handle_reader(struct data *d, uint64_t ino, uint64_t fh)
{
    if (!fh)
        return NULL;
    struct handle **bucket;
    struct handle_shard *s = shard_of(d, fh, &bucket);
    lock_acquire(&s->mu);
    struct handle *h = find_locked(bucket, fh);
    struct cache_reader *r = h ? h->reader : NULL;
    lock_release(&s->mu);
    if (r)
        return r;
    struct cache_reader *made = cache_reader_open(d->v->cache, ino);
    struct handle *mine = made ? calloc(1, sizeof *mine) : NULL;
    if (!mine) {
        if (made)
            cache_reader_close(d->v->cache, made);
        return NULL; /* read without read-ahead */
    }
    *mine = (struct handle){.fh = fh, .reader = made};
    lock_acquire(&s->mu);
    h = find_locked(bucket, fh);
    if (!h) {
        mine->next = *bucket;
        *bucket = mine;
        r = made;
        mine = NULL;
    } else {
        r = h->reader;
    }
    lock_release(&s->mu);
    if (mine) {
        cache_reader_close(d->v->cache, made);
        free(mine);
    }
    return r;
}

/* direct_io is worth it where most bytes are cold; while anything is being appended the kernel's page
 * cache must stay in the way of reads. Looks at the first few segments only. */
enum { LOOK_SEGMENTS_MAX = 64, HOT_SECONDS = 30 };

struct look {
    unsigned n;
    uint64_t cold, other;
};

static int look_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct look *l = arg;
    struct seg_rec rec;
    uint64_t base;
    if (!key_parse_seg(key, klen, NULL, &base) || seg_rec_decode(val, vlen, &rec) < 0)
        return 0;
    if (rec.state == SEG_OPEN || rec.local)
        l->other += rec.state == SEG_OPEN ? 1 : rec.end - base;
    else
        l->cold += rec.end - base;
    return ++l->n >= LOOK_SEGMENTS_MAX;
}

static bool mostly_cold(struct data *d, struct inode *i)
{
    if (i->data) {
        LOCK_SCOPE(&i->mu);
        if (!list_empty(&idata(i)->segs))
            return false;
    }
    struct look l = {0};
    struct key k = key_seg(i->ino, 0);
    (void)kv_walk(d->v->kv, k.b, 9, k.b, 9, look_one, &l);
    return l.cold > l.other;
}

/* Appended to a moment ago: under pressure its segments may be remote already, but the kernel's page
 * cache still has the bytes, and a direct handle would not look there. */
static bool just_written(struct inode *i)
{
    return clock_wall_ns() - atomic_load(&i->mtime_ns) < HOT_SECONDS * NS_PER_SEC;
}

int data_open(struct data *d, struct inode *i, int open_flags, uint64_t *ret_fh, bool *ret_direct)
{
    int mode = open_flags & O_ACCMODE;
    bool direct = mode == O_RDONLY && d->v->topics_profile && i->type == S_IFREG &&
                  !just_written(i) && mostly_cold(d, i);
    uint64_t flags = (mode != O_RDONLY ? HANDLE_WRITE : 0) |
                     (open_flags & O_APPEND ? HANDLE_APPEND : 0) | (direct ? HANDLE_DIRECT : 0);
    *ret_fh = atomic_fetch_add(&d->next_handle, 1) << 8 | flags;
    *ret_direct = direct;
    return 0;
}

void data_release(struct data *d, struct inode *i, uint64_t fh)
{
    (void)i;
    struct handle **bucket;
    struct handle_shard *s = shard_of(d, fh, &bucket);
    lock_acquire(&s->mu);
    struct handle *h = NULL;
    for (struct handle **at = bucket; *at; at = &(*at)->next)
        if ((*at)->fh == fh) {
            h = *at;
            *at = h->next;
            break;
        }
    lock_release(&s->mu);
    if (h) {
        cache_reader_close(d->v->cache, h->reader);
        free(h);
    }
}
