/* cache.h: the slice cache: a fixed pool of memory through which cold and warm bytes are read.
 *
 * The cache knows neither FUSE nor stores. It maps slices (aligned pieces of a sealed segment) to
 * pool memory, fetches each missing piece once however many readers want it, verifies it block by
 * block, answers requests as soon as their bytes are there, reads ahead per open handle across
 * segment borders, and evicts by predicted next use.
 *
 * Where bytes come from is the source's business (callbacks below): object storage, or a device file
 * read with O_DIRECT. A FUSE worker never waits here: a read either completes at once or calls back.
 *
 * Pool: allocated once, in frames of one block (BLOCK_BYTES), so that a small random read costs a
 * frame, not a slice. The pool never grows. A share (1/8) is reserved for demand reads; demand reads
 * may take any unpinned frame, unread read-ahead first. When every frame is pinned by reads in
 * flight, further reads queue in order (bounded by the kernel's requests in flight) and go on as
 * frames are released.
 */
#ifndef SLUICE_CACHE_H
#define SLUICE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "fs/base/bounds.h"
#include "fs/base/list.h"

struct cache;
struct stats;
struct timers;

/* A sealed segment as the cache sees it. Immutable: another content has another version. */
struct cache_seg {
    uint64_t ino;
    uint64_t base, end;         /* file offsets; end > base */
    uint32_t version;
    bool cold;                  /* only in object storage: read-ahead pays; false: on a device */
    uint64_t cookie[4];         /* the source's; copied along, never interpreted */
};

enum { SPAN_SLICES_MAX = 4, SPAN_BLOCKS_MAX = 256, CACHE_READ_IOV_MAX = 12 };

/* One fetch under way: neighbouring blocks of one segment, made by the cache, filled by the source.
 * The source keeps the pointer until it calls cache_span_done. */
struct cache_span {
    struct cache_seg seg;
    uint64_t pos, len;          /* in the segment; pos is block aligned, pos+len too or segment end */
    const struct iovec *iov;    /* where the bytes go, in order; one entry per block */
    unsigned iov_n;
    bool urgent;                /* somebody waits for it. It may become true after the start: read it
                                 * with __atomic_load_n(&span->urgent, __ATOMIC_RELAXED) */
    uint64_t *hash;             /* room for iov_n block hashes; the source fills them in before its
                                 * first cache_span_progress. 0: not known, the block is accepted */
    void *source;               /* the source's */
};

struct cache_source {
    /* Describes the sealed segment that holds file offset `off`. 0; -ENODATA: end of file, hole, or
     * still open (read-ahead stops there). Must not block on the network; may read metadata. */
    int (*locate)(void *ctx, uint64_t ino, uint64_t off, struct cache_seg *ret);

    /* Starts the fetch. Never blocks, never calls back from inside. It then calls
     * cache_span_progress any number of times and cache_span_done exactly once. */
    void (*fetch)(void *ctx, struct cache_span *span);

    /* Nobody waits for it any more; may end early with -ECANCELED, or go on. Called at most once, never
     * before fetch has returned. May run while another thread of the source calls cache_span_done:
     * the span stays in place until both have returned. When somebody came to wait meanwhile, the
     * cache fetches again what did not arrive. */
    void (*cancel)(void *ctx, struct cache_span *span);

    void *ctx;
};

/* `got` bytes from the span's start are in place. Verifies the blocks that became complete and
 * completes reads. Any thread, one at a time per span, no lock held. Does not block.
 * 0, or -EBADMSG: a block does not match its hash (its readers get -EIO): the source should stop. */
int cache_span_progress(struct cache_span *span, uint64_t got);

/* The end of a span: 0 (everything has arrived) or -errno for the blocks that have not: their readers
 * get -ETIMEDOUT, -EAGAIN (trouble that may pass) and -ESTALE (the segment has moved) as they are and
 * -EIO for anything else; the next read tries again. The span is dead after it. */
void cache_span_done(struct cache_span *span, int err);

struct cache_conf {
    uint64_t pool_bytes;        /* whole pool, frames and their bookkeeping buffers; >= 8 MiB */
    uint64_t slice_bytes;       /* multiple of BLOCK_BYTES; default 4 MiB */
    unsigned watermark_percent; /* of a slice: at this read position the next slices are fetched */
    uint64_t window_min, window_max; /* per reader: 4 MiB .. 64 MiB */
    unsigned unread_ms;         /* read-ahead that nobody read lives this long: 60,000 */
    struct stats *stats;
    struct timers *timers;
    struct cache_source source;
    /* Called once per block that does not match its hash; the owner logs it and names the segment. */
    void (*damaged)(void *ctx, const struct cache_seg *seg, uint64_t pos);
};

/* 0, -ENOMEM, -EINVAL. Does not start threads. */
int cache_open(const struct cache_conf *conf, struct cache **ret);

/* All reads must have been answered and released, all readers closed. Waits for spans under way (they
 * were cancelled), so call it with no lock held. NULL is accepted. */
void cache_close(struct cache *c);

/* Read-ahead state of one open handle. Made at open, freed at release; unread read-ahead of a closed
 * reader is the first to be evicted. Small (<= 256 bytes) since 10,000 may exist. */
struct cache_reader;
struct cache_reader *cache_reader_open(struct cache *c, uint64_t ino); /* NULL: no memory */
void cache_reader_close(struct cache *c, struct cache_reader *r);

/* One read inside one segment. Embedded in the caller's request. */
struct cache_read {
    /* set by the caller */
    struct cache_seg seg;
    uint64_t off, len;          /* file offsets, inside [seg.base, seg.end); len <= FUSE_IO_BYTES_MAX */
    void (*done)(struct cache_read *r); /* exactly once, unless start returned 1; any thread, no lock
                                         * held, must not block */
    void *arg;

    /* results */
    int err;                    /* 0, -EIO (damaged or store failed), -EINTR (cancelled), -ETIMEDOUT, -EAGAIN,
                                 * -ESTALE (see cache_span_done) */
    struct iovec iov[CACHE_READ_IOV_MAX]; /* pinned pool memory, until cache_read_release */
    unsigned iov_n;
    bool was_cold;              /* any of it was fetched from, or first came from, object storage */

    /* the cache's */
    struct list wait;
    unsigned state, missing;
    int64_t began_ns;
    void *pins[CACHE_READ_IOV_MAX];
};

/* Starts a read. `reader` may be NULL (no read-ahead). 1: complete at once, iov is valid, `done` is
 * not called. 0: `done` will be called, or was. Never blocks, never waits for a lock held over I/O.
 * Calls the source, so the caller holds no lock (that goes for every call below but _usage,
 * _follower_distance, _reader_open and _set_readahead). A read that starts inside some `done` has its
 * fetch started when that `done` has returned. */
int cache_read_start(struct cache *c, struct cache_reader *reader, struct cache_read *r);

/* For a read whose start has returned 0. Gives it up: `done` is called with -EINTR (or `err`), unless it has been called already.
 * True: this call ended it and `done` has run. The fetch itself may go on into the pool. */
bool cache_read_cancel(struct cache *c, struct cache_read *r, int err);

/* Unpins. Once per read that completed with err 0. */
void cache_read_release(struct cache *c, struct cache_read *r);

/* Distance in bytes from `off` back to the nearest other open reader of this inode that is behind
 * it, or UINT64_MAX: drop-behind leaves the kernel's pages to a follower that is close by. A reader
 * counts once it has read; another scan through the same handle counts too. */
uint64_t cache_follower_distance(struct cache *c, uint64_t ino, uint64_t off,
                                 const struct cache_reader *self);

/* While the store is known to be bad: no new read-ahead. */
void cache_set_readahead(struct cache *c, bool on);

/* Forgets all slices of an inode from file offset `from` on (truncate, delete, rewrite): pinned ones
 * stay valid for their readers. */
void cache_forget(struct cache *c, uint64_t ino, uint64_t from);

/* Bytes of pool memory in use by valid or loading blocks, and the pool's size. */
void cache_usage(struct cache *c, uint64_t *ret_used, uint64_t *ret_size);

#endif
