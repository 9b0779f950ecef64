/* data.h: the path of a byte: write, read, fsync, and the segments they meet.
 *
 * A file is a sequence of segments [base, end); gaps are holes. The last one is usually open: its
 * device file is being appended to. A request is served by
 *   open segment      -> buffered read of its device file (the kernel's page cache of the FUSE inode
 *                        answers hot reads without us)
 *   sealed, local     -> O_DIRECT into slices (warm)
 *   sealed, remote    -> ranged GET into slices (cold)
 *
 * No function here waits for the object store. Those that may finish later take an embedded request
 * with a callback. "Blocks" below means: on the local disk.
 */
#ifndef SLUICE_DATA_DATA_H
#define SLUICE_DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include "cache/cache.h"
#include "fs/base/exec.h"
#include "fs/base/list.h"
#include "fs/meta/kv.h"
#include "fs/ns/ns.h"
#include "fs/parts.h"

struct data;
struct openseg;

/* ---- handles: the state of one open file description ----
 * The handle number goes into fuse_file_info.fh. A handle that is not in the table (the daemon was
 * replaced) is rebuilt from its number: flags are in the low bits, read-ahead starts afresh. */
enum {
    HANDLE_WRITE = 1u << 0,
    HANDLE_APPEND = 1u << 1,
    HANDLE_DIRECT = 1u << 2 /* FOPEN_DIRECT_IO was given: of a read-only handle */
};
/* Chooses the mode of an open (design: direct_io only for read-only opens, topics profile, no open
 * tail) and returns the handle number. open_flags as of open(2). 0 or -errno (-EPERM: O_TRUNC on a
 * non-empty file in the topics profile is refused at the SETATTR that follows). */
int data_open(struct data *d, struct inode *i, int open_flags, uint64_t *ret_fh, bool *ret_direct);
void data_release(struct data *d, struct inode *i, uint64_t fh);

/* ---- write ---- */
struct data_write {
    struct inode *i; /* pinned by the caller until data_write_end */
    uint64_t fh;
    uint64_t off;
    const void *buf; /* borrowed until data_write_end */
    size_t len;
    bool resent;          /* FUSE marked the request as resent after the daemon's death */
    bool from_page_cache; /* fi->writepage: a mapped or cached page, not a write(2) */

    bool on_worker;       /* not to wait for a flush: -EAGAIN, then call again from the device pool */

    size_t done;         /* bytes written: reply this (== len unless an error cut it) */
    int64_t reply_at_ns; /* 0: at once; else clock_mono_ns of the latest reply (device nearly
                                 * full: the writer is slowed down by delaying its reply) */
    struct data_piece {
        struct openseg *seg;
        uint64_t pos;
        const void *buf;
        size_t len;
        bool full;
    } piece[20]; /* internal: what data_write_end has to hash; with more, the first are hashed early */
    unsigned pieces;
    bool hashing;
};
/* Writes and publishes the new length. 0 with done > 0; or -EPERM (topics profile: not at the end),
 * -ENOSPC, -EIO, -EFBIG, -EROFS; -EAGAIN (broker profile: the range meets a segment that is remote or
 * being sealed, or, on_worker, needs a flush first: data_blocked, then call again). In the broker profile
 * done < len also says only that the caller should go on with the rest. Blocks. Call data_write_end after
 * every call that returned 0, after the reply went out. */
int data_write_begin(struct data *d, struct data_write *w);
void data_write_end(struct data *d, struct data_write *w);

/* After -EAGAIN (broker profile): what stands in the way of the first blocked segment that meets
 * [off, off + len).
 *   DATA_FREE     nothing any more: call again
 *   DATA_SEALING  a seal is under way: w->ready is called once when it has ended, from any thread
 *                 without locks; `w` stays valid until then. Seals end: they only wait for a device.
 *   DATA_REMOTE   the segment at *ret_off has to be brought back first, or away from a device that is
 *                 being drained (tier, WARM of that byte) */
struct data_wait {
    struct list link;
    void (*ready)(struct data_wait *w);
};
enum data_blocked { DATA_FREE, DATA_SEALING, DATA_REMOTE };
enum data_blocked data_blocked(struct data *d, struct inode *i, uint64_t off, uint64_t len,
                               struct data_wait *w, uint64_t *ret_off);

/* No device takes a segment until the next mount: what would be brought back for a write has no place. */
bool data_devices_failed(struct data *d);

/* A delayed reply is released early when space is freed: called from the tiering thread. The FUSE side
 * registers one function that wakes all its delayed replies. */
void data_on_space(struct data *d, void (*fn)(void *arg), void *arg);

/* ---- read ---- */
struct data_part;
struct data_read {
    struct inode *i; /* pinned by the caller until data_read_release */
    uint64_t fh;
    uint64_t off;
    size_t len; /* <= FUSE_IO_BYTES_MAX */
    void (*done)(struct data_read *r);
    void *arg;

    int err;           /* 0 or -errno; -EINTR when cancelled */
    struct iovec *iov; /* the answer, until data_read_release; total may be short at EOF */
    unsigned iov_n;
    bool drop_behind; /* bytes came through slices: the kernel's copy should go */

    /* internal */
    struct data *d;
    struct data_part *part;
    unsigned parts;
    _Atomic int pending; /* parts that have not answered, plus guards */
    _Atomic int first_err;
    void *buf; /* bytes of open segments and of holes */
    struct timer deadline, again;
    struct task task, again_task;
    _Atomic bool cancelled, handoff;
    bool armed;
    int64_t started_ns;
    unsigned tries;
};
/* 1: complete now, `done` is not called. 0: `done` will be called once, from any thread without locks.
 * < 0: failed at once. Blocks at most for a page-cache read. */
int data_read_start(struct data *d, struct data_read *r);
/* Interrupted: `done` is called soon with err -EINTR, unless it is finishing. */
void data_read_cancel(struct data *d, struct data_read *r);
/* After the reply. Unpins cache memory. */
void data_read_release(struct data *d, struct data_read *r);

/* After a reply of cold bytes through a cached handle: the range [0, *ret_end) behind the reader that
 * the kernel may forget now (0: nothing: another reader follows close by). */
uint64_t data_drop_behind(struct data *d, const struct data_read *r, uint64_t *ret_from);

/* ---- durability ---- */
struct data_sync {
    struct inode *i; /* pinned by the caller until done */
    bool data_only;
    void (*done)(struct data_sync *s, int err);
    void *arg;
    /* internal */
    struct task task;
    struct kv_waiter waiter;
    struct data *d;
    int err;
};
/* fsync/fdatasync of a file: segments written since the last one, then the metadata that names them if
 * it is not durable yet. For directories: the metadata. Calls done once, from the device pool. */
void data_fsync(struct data *d, struct data_sync *s);

/* FLUSH: reports a pending error of asynchronous work once. 0 or -errno. */
int data_flush(struct data *d, struct inode *i);

/* ---- size ---- */
/* Topics profile: only size == current is allowed (-EPERM otherwise). Broker: any; truncation into
 * remote territory needs no download. -EAGAIN, with nothing changed: the segment that the new end cuts
 * is being sealed (data_blocked at size - 1). Blocks. */
int data_truncate(struct data *d, struct inode *i, uint64_t size, const struct kv_origin *who);
/* Plain, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE; -EOPNOTSUPP for the others, and in the topics profile.
 * -EAGAIN, with nothing changed: data_blocked at *ret_blocked. Blocks. */
int data_fallocate(struct data *d, struct inode *i, int mode, uint64_t off, uint64_t len,
                   uint64_t *ret_blocked);
/* SEEK_DATA, SEEK_HOLE. New offset or -ENXIO. */
int64_t data_seek(struct data *d, struct inode *i, uint64_t off, int whence);

/* stat(2) of an inode with st_blocks = bytes stored in any tier. */
void data_stat(struct data *d, struct inode *i, struct stat *ret);

/* ---- for tiering and commands ---- */
int data_open_module(struct volume *v, struct data **ret);
/* Forgets all open handles; the cache wants its readers closed before itself. */
void data_close_handles(struct data *d);
void data_close_module(struct data *d);
void data_set_kick(struct data *d, void (*kick)(void *arg), void *arg);
struct totals *data_totals(struct data *d);

/* Unmounting: reads that wait for the store end with -EIO; returns when none is left. */
void data_stop(struct data *d);
/* Flushes every open segment, those that an earlier daemon left among them. Blocks on local disk. Failures
 * are logged. */
void data_flush_all(struct data *d);
/* False: a flush failed since the mount, so file sizes must not be trusted after a loss of power. */
bool data_all_flushed(struct data *d);

/* Counts all segments once at mount, opens what was open. After a loss of power (v->trusted false) it
 * keeps of each open segment what can be proven, and says what was cut. 0 or -errno. */
int data_recover(struct data *d);

/* In the background: removes or quarantines device files that no record names. After a start that was not
 * preceded by a clean stop. */
void data_find_orphans(struct data *d);

/* The largest size of a file: a whole segment must fit below INT64_MAX. */
#define DATA_SIZE_MAX ((uint64_t)INT64_MAX - SEGMENT_BYTES_MAX)

/* Closes the open segments of a file for writing; sealing goes on in the background. How many it
 * closed, or -errno; -EAGAIN: so many device files are open that the rest has to wait. `upto`: only those up
 * to the one at `base`, so that younger ones take more. */
int data_seal(struct data *d, struct inode *i);
int data_seal_upto(struct data *d, struct inode *i, uint64_t base);

/* Somebody makes a device file for a segment that is there already (a move, a warming): until its record
 * names it or it is gone again, nobody may take it for one that nothing names. Embedded by the caller; begin
 * before the file is made. */
struct data_making {
    struct list link;
    uint64_t ino, base;
};
void data_making_begin(struct data *d, struct data_making *m, uint64_t ino, uint64_t base);
void data_making_end(struct data *d, struct data_making *m);
/* To be asked before the record is looked at. `d` may be NULL: no daemon, so nobody. */
bool data_is_making(struct data *d, uint64_t ino, uint64_t base);

/* Gives up a segment of a lost device that is in no committed object: its bytes read as EIO from now on.
 * Nothing is done (len 0) when it is not there, or not that. 0 or -errno. Blocks. */
struct data_lost {
    uint64_t off, len;
    bool unknown_end; /* it was open, and there may have been more */
};
int data_give_up(struct data *d, struct inode *i, uint64_t base, uint32_t device,
                 struct data_lost *ret);

/* The open segment at `base` could not be sealed, and will not be in this mount. */
bool data_seal_failed(struct inode *i, uint64_t base);
/* A seal is under way or waits for its turn. */
bool data_sealing(struct inode *i);

/* clock_mono of the last page that a mapping of this file sent us; 0: none while it is in memory. */
int64_t data_mapped_ns(struct inode *i);

/* Under pressure: the same for the files with the largest open segments in memory. */
void data_seal_largest(struct data *d, unsigned want);

/* Flushes open segments whose oldest unflushed byte is older than their files' flush_interval. Reads metadata
 * where rules hold for paths. */
void data_flush_old(struct data *d);
/* Begins to close device files of open segments when many are open. */
void data_trim(struct data *d);
/* clock_mono of the last read of a local sealed segment through slices, as far as it is remembered; 0:
 * long ago or never. */
int64_t data_last_read(struct data *d, uint64_t ino, uint64_t base);

/* Space was freed: delayed writers may be answered. */
void data_space_freed(struct data *d);

struct statvfs;
/* Honest numbers: size and room of the device budget plus what has moved to the store. */
void data_statfs(struct data *d, struct statvfs *ret);

#endif
