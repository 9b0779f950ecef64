/* internal.h: what the files of the slice cache share. Private to cache/.
 *
 * Everything below is guarded by cache.mu (RANK_CACHE) unless a comment says otherwise. A function
 * that takes `struct later` is called with the lock held and must not call out: it leaves calls of
 * the source and of `done` in there, and the caller runs them with later_run after unlocking.
 */
#ifndef SLUICE_CACHE_INTERNAL_H
#define SLUICE_CACHE_INTERNAL_H

#include <stdatomic.h>
#include "cache/cache.h"
#include "fs/base/bytes.h"
#include "fs/base/exec.h"
#include "fs/base/lock.h"
#include "fs/base/stats.h"

enum {
    STREAMS_PER_READER = 4, /* one handle may serve that many interleaved sequential scans */
    STREAM_BUCKETS = 1024,
    SEQUENTIAL = 2,    /* evidence from which on a stream is read ahead */
    PREDICT_LIMIT = 64 /* streams looked at for one prediction */
};

/* How far a read may lie from the expected position and still belong to the stream: the kernel's
 * read-ahead sends its pieces in any order. */
#define NEAR_BYTES (2 * MiB)

enum frame_state { FRAME_EMPTY, FRAME_LOADING, FRAME_VALID, FRAME_FAILED };
enum frame_list { ON_FREE, ON_DEAD, ON_ORPHAN, ON_CLAIMED, FRAME_LISTS, ON_NONE = FRAME_LISTS };
enum read_state { READ_NEW, READ_QUEUED, READ_WAITING, READ_DONE };

/* One block of pool memory; frame i owns pool bytes [i, i+1) * BLOCK_BYTES. */
struct frame {
    struct frame *key_next; /* chain of the key table */
    struct list ino_link;   /* frames by inode, while hashed */
    struct list where_link; /* cache.list[where] */
    struct list mine;       /* stream.unread, while owned */
    struct list fifo;       /* cache.unread, while unread and valid */
    struct list waiters;    /* reads whose first missing block this is */
    struct stream *owner;   /* who read ahead; NULL: nobody, or gone */
    struct span *span;      /* LOADING: who fills it */
    uint64_t ino, base;     /* key: ino, base, version, blk */
    int64_t at_ns;          /* arrival */
    uint32_t version, blk;
    uint32_t len;  /* bytes of the segment in it */
    uint32_t pins; /* reads that refer to it */
    int err;       /* FAILED */
    uint8_t state, where;
    bool hashed;     /* in the tables; false while in use: forgotten, freed at last unpin */
    bool ahead;      /* fetched as read-ahead */
    bool unread;     /* ... and nobody has asked for it yet */
    bool sequential; /* read by a sequential stream: of no use behind it */
    bool cold;       /* came from object storage */
};

struct span {
    struct cache_span pub; /* first */
    struct cache *c;
    struct list link;  /* cache.spans, oldest first */
    struct list later; /* one later list of one thread */
    int64_t fetch_ns;
    unsigned arrived; /* blocks before this one are VALID or FAILED; the source's thread */
    unsigned calls;   /* source callbacks that run on it now: it is not freed before */
    bool started;     /* fetch has returned */
    bool cancelled, damaged;
    bool done;            /* cache_span_done was called */
    struct frame **frame; /* pub.iov_n of them */
};

/* One sequential position of a reader. */
struct stream {
    struct list link;   /* cache.streams[bucket of ino], most recently used first */
    struct list unread; /* frames it owns: read ahead, not asked for yet */
    unsigned unread_n;
    unsigned evidence;    /* >= SEQUENTIAL: read ahead */
    unsigned reads, calm; /* reads so far; slices since the last stall */
    bool planning;        /* a thread is in readahead_plan with it */
    bool closed;          /* ... and must free it */
    struct cache_reader *reader;
    uint64_t ino;
    uint64_t pos;      /* end of what was read so far */
    uint64_t ra_end;   /* fetches were started up to here */
    uint64_t window;   /* bytes */
    uint64_t rate;     /* bytes per second; 0: not known */
    uint64_t mark_pos; /* rate is measured from here ... */
    int64_t mark_ns;   /* ... and then */
    int64_t last_ns, grown_ns, shrunk_ns;
    int64_t stop_ns;         /* when locate said no for ra_end; 0: it did not */
    struct cache_seg ra_seg; /* segment of ra_end, as far as known; end 0: not known */
};

struct cache_reader {
    uint64_t ino;
    unsigned n;
    struct stream *stream[STREAMS_PER_READER];
};

static_assert(sizeof(struct cache_reader) <= 256 && sizeof(struct stream) <= 256,
              "10,000 readers are open at once");

struct cache {
    struct cache_conf conf;
    struct lock mu;
    pthread_cond_t changed; /* spans_n or timer_armed fell: cache_close waits */
    uint8_t *pool;
    struct frame *frame;
    uint32_t frames, slice_blocks;
    uint32_t ahead_max; /* unread read-ahead never holds more frames than this */
    struct list list[FRAME_LISTS];
    uint32_t count[FRAME_LISTS];
    struct frame **key_table;
    struct list *ino_table;
    uint32_t table_mask;
    struct list streams[STREAM_BUCKETS];
    struct list unread; /* valid and unread, by arrival */
    uint32_t unread_n;  /* unread frames, loading ones too */
    uint32_t owners_n;  /* streams with unread frames */
    struct list spans;
    uint32_t spans_n;
    struct list starved; /* reads that found no frames, in order */
    uint64_t forgets;    /* number of cache_forget calls so far */
    int64_t latency_ns;  /* to the first bytes of a cold span: a slowly falling maximum */
    uint32_t random;
    bool readahead_on, closing;
    bool timer_armed;
    struct timer timer;
    _Atomic uint64_t used; /* bytes; written under the lock, read by the gauge */
    struct counter *hits, *waits, *misses, *used_bytes, *wasted_bytes, *demand_bytes, *ahead_bytes,
        *evicted_bytes, *stalls, *damaged_blocks;
    struct histogram *wait_time;
};

/* Calls to make once the lock is dropped. */
struct later {
    struct list fetch, cancel; /* spans */
    struct list done;          /* reads */
};

void later_init(struct later *l);
void later_run(struct later *l);

static inline uint64_t frame_off(const struct frame *f)
{
    return f->base + f->blk * BLOCK_BYTES;
}

static inline uint8_t *frame_mem(const struct cache *c, const struct frame *f)
{
    return c->pool + (size_t)(f - c->frame) * BLOCK_BYTES;
}

static inline uint64_t slice_bytes(const struct cache *c)
{
    return c->conf.slice_bytes;
}

static inline uint32_t seg_blocks(const struct cache_seg *seg)
{
    return (uint32_t)((seg->end - seg->base + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

static inline uint32_t seg_block_len(const struct cache_seg *seg, uint32_t blk)
{
    return (uint32_t)min_u64(BLOCK_BYTES, seg->end - seg->base - blk * BLOCK_BYTES);
}

/* pool.c: frames, their lists, eviction. */
int pool_open(struct cache *c);
void pool_close(struct cache *c);
struct frame *frame_find(struct cache *c, const struct cache_seg *seg, uint32_t blk);
uint32_t frames_available(const struct cache *c);
struct frame *frame_take_demand(struct cache *c);
struct frame *frame_take_ahead(struct cache *c, int64_t use_ns);
void frame_assign(struct cache *c, struct frame *f, const struct cache_seg *seg, uint32_t blk);
void frame_free(struct cache *c, struct frame *f);
void frame_unhash(struct cache *c, struct frame *f);
void frame_pin(struct cache *c, struct frame *f);
void frame_unpin(struct cache *c, struct frame *f);
void frame_place(struct cache *c, struct frame *f);
void frame_own(struct cache *c, struct frame *f, struct stream *st);
void frame_disown(struct cache *c, struct frame *f);
void frame_arrived_unread(struct cache *c, struct frame *f);
int64_t frame_next_use(struct cache *c, const struct frame *f);
void pool_expire(struct timer *t);
struct list *ino_bucket(struct cache *c, uint64_t ino);
struct list *stream_bucket(struct cache *c, uint64_t ino);

/* span.c: fetches. */
int span_make(struct cache *c, const struct cache_seg *seg, uint32_t blk, struct frame **frame,
              unsigned n, bool urgent, struct later *l);
bool span_wanted(const struct span *s);
bool span_cancel(struct span *s, struct later *l);
void span_fail_frame(struct cache *c, struct frame *f, int err, struct later *l);

/* cache.c: reads. */
void read_advance(struct cache *c, struct cache_read *r, struct later *l);
void starved_pump(struct cache *c, struct later *l);

/* readahead.c: streams. */
struct stream *stream_note(struct cache *c, struct cache_reader *rd, const struct cache_read *r,
                           int64_t now, struct later *l);
void stream_stalled(struct cache *c, struct stream *st, const struct cache_seg *seg, int64_t now);
void stream_wasted(struct cache *c, struct stream *st, int64_t now);
uint32_t stream_extension(struct cache *c, struct stream *st, const struct cache_seg *seg,
                          uint32_t blk);
bool readahead_wanted(struct cache *c, const struct stream *st, const struct cache_seg *seg);
void readahead_plan(struct cache *c, struct stream *st, const struct cache_seg *seg,
                    struct later *l);

#endif
