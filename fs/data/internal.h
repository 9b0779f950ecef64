/* internal.h: what the files of fs/data share. Nothing outside includes it.
 *
 * An inode that has open segments in memory carries a struct inode_data. An open segment:
 *
 *   state      appended to   in kv as   moved on by
 *   ---------  ------------  ---------  ---------------------------------------------------------
 *   open       yes           OPEN       a full file, age, a command: sealing
 *   sealing    no            OPEN       its seal task on the device pool: gone from memory, SEALED in
 *                                       kv; or failed
 *   failed     no            OPEN       (a flush or the journal failed) stays readable until remount
 *
 * Locks, in order: inode.io (one appender; held over pwrite) -> inode hash lock (appended bytes are
 * hashed in order, after the reply) -> inode.mu (the list below) -> kv.
 */
#ifndef SLUICE_DATA_INTERNAL_H
#define SLUICE_DATA_INTERNAL_H

#include <stdatomic.h>
#include "fs/base/bytes.h"
#include "fs/base/stats.h"
#include "fs/data/data.h"
#include "fs/data/segs.h"
#include "fs/seg/dev.h"
#include "fs/seg/segfile.h"

enum {
    OPEN_FILES_MAX = 16384,/* device files open for appending: files.c */
    SEALS_WHEN_MANY = 64,
    WRITE_BEHIND_BYTES = 16 * 1024 * 1024
};

struct openseg {
    struct list link; /* inode_data.segs, ascending base; inode.mu */
    struct list all;  /* data.all; data.mu */
    _Atomic unsigned refs;
    struct data *d;
    uint64_t ino, base;
    struct seg_rec rec; /* as stored */
    struct segfile_id id;
    struct segfile *_Atomic sf; /* NULL: not opened yet, or closed while idle. Set under inode.io,
                                 * inode.mu and data.mu: it stays while one of them is held. Whoever
                                 * has a reference and has seen it not NULL may use it too: only a
                                 * segment without other references is closed while idle */
    uint64_t idle_len;          /* length while sf is NULL */
    uint64_t idle_stored;       /* and without its holes, as far as that is known */
    bool idle_flushed; /* it was closed while idle, and clean. Else an earlier daemon wrote it, or the
                        * flush when it was let go of failed: an fsync opens it */
    uint64_t noted_len;         /* length in its W record: the inode's times are of then */
    _Atomic bool sealing, failed; /* inode.io; looked at without it, too */
    bool lost;       /* failed: its device file was not there at load, its length is unknown */
    bool seal_waits; /* an earlier segment is still sealing: it starts us; inode.mu */
    /* What its file's rule says, as last asked (data_flush_old); `rule` 0: not asked since the file moved. */
    _Atomic uint32_t rule, flush_ms;
    _Atomic bool kept; /* never uploaded */
    bool storing;    /* its record is being written as sealed; inode.mu */
    _Atomic int64_t dirty_ns;  /* clock_mono of the first byte not yet flushed; 0: clean */
    _Atomic int64_t used_ns;   /* clock_mono of the last append */
    _Atomic uint64_t len_hint; /* length as last appended, for choosing what to seal */
    _Atomic uint64_t behind;   /* bytes whose write-back was asked for */
    _Atomic bool behind_busy, flush_busy;
    struct task seal_task, behind_task, flush_task;
    struct inode *i; /* pinned, while sealing */
};

struct inode_data {
    struct list segs;          /* of struct openseg */
    _Atomic int err;           /* of asynchronous work; reported once by FLUSH and fsync */
    struct lock hash;          /* RANK_INODE_HASH */
    struct list waits;         /* of struct data_wait: for a seal to end; inode.mu */
    _Atomic int64_t mapped_ns; /* clock_mono of the last page that came from a mapping; 0: none */
    bool shrinking;            /* by truncate, under inode.io: its record says that it reaches to... */
    uint64_t reach;            /* ...here, and not to its size, where it is cut in the end */
};

/* When a local sealed segment was last read through slices. Direct mapped: a collision forgets one. */
enum { WARM_READS = 1024 };
struct warm_read {
    _Atomic uint64_t seg; /* hash of inode and base */
    _Atomic int64_t at_ns;
};

/* A read that ended at its deadline: see read.c. */
enum { LATE_READS = 16 };
struct late_read {
    uint64_t ino, off, end;
    int64_t at_ns;
};

struct handle;
enum { HANDLE_SHARDS = 16 };

struct data {
    struct volume *v;
    struct lock mu;  /* RANK_SEGFD: `all`, `making`, the pace of slowed writers, late reads */
    struct list all; /* every openseg in memory */
    unsigned all_n;  /* how many */
    struct list making; /* of struct data_making */
    _Atomic unsigned open_files; /* for appending */
    unsigned files_max;
    _Atomic int64_t flush_ns;    /* what a flush took lately */
    _Atomic unsigned seals;      /* under way or waiting for their turn */
    unsigned fruitless;          /* looked at in vain since one could be closed; mu */
    _Atomic int64_t stuck_ns;    /* until then nobody waits for a file to be closed */
    struct task trim;
    _Atomic bool trimming;
    int64_t pace_ns; /* when the next slowed write may be answered */
    void (*space_fn)(void *arg);
    void *space_arg;
    void (*kick)(
        void *arg); /* tier: there is something to do; data.mu. Takes no lock below RANK_EXEC */
    void *kick_arg;
    _Atomic uint64_t next_handle;
    struct handle_shard *handles;
    struct totals totals;
    struct counter *slowed, *refused, *deadlines, *local_damage, *damaged;
    struct lock fetch_mu; /* RANK_FETCH: `remote`; orders cancel against done */
    struct list remote;   /* of struct fetch: GETs that are with the store */
    _Atomic bool stopping;
    struct warm_read warm[WARM_READS];
    _Atomic unsigned reads; /* started and not yet done */
    struct late_read late[LATE_READS]; /* a ring; data.mu */
    unsigned late_next;
    _Atomic int64_t late_ns; /* of the newest */
    _Atomic bool unflushed; /* a flush failed in this mount: its end is not a clean one */
};

/* Broker profile: holes of at least this are gaps between segments, which begin at multiples of it. By the
 * mount's setting, whatever a file's rule says: it must not change while a write is under way. */
static inline uint64_t hole_grid(struct data *d)
{
    return min_u64(BLOCK_BYTES, d->v->conf->segment_bytes);
}

static inline struct inode_data *idata(struct inode *i)
{
    return i->data;
}

/* ---- openseg.c ---- */
int inode_data_need(struct inode *i); /* makes i->data; -ENOMEM */
struct openseg *openseg_new(struct data *d, uint64_t ino, uint64_t base, const struct seg_rec *rec);
void openseg_ref(struct openseg *o);
void openseg_unref(struct openseg *o);
bool openseg_ref_live(struct openseg *o); /* of one found in data.all: unless it is being freed */
uint64_t openseg_len(const struct openseg *o);
/* Nothing of it can be lost with the power. False also where nobody knows. */
bool openseg_flushed(const struct openseg *o);
/* inode.io held: opens the device file when it is not open. */
int openseg_file_locked(struct openseg *o, struct inode *i);
/* The same for a write; -EAGAIN: so many are open that the write has to help closing some first (files.c). The two
 * below say this, too. */
int openseg_file_for_write(struct openseg *o, struct inode *i);
/* The open segment that covers `off` (or ends there and has room, with `at_end`), with a reference. */
struct openseg *openseg_find(struct inode *i, uint64_t off, bool at_end);
/* Broker profile, inode.mu held: it is empty, and what its record says of the bytes before it (`behind`) is of another
 * time. So it is not written to: a new one takes its place. */
bool openseg_begun_before(struct inode *i, const struct openseg *o);
/* inode.io held: new segment at `base`, in kv, list and on a device. */
int openseg_create_locked(struct data *d, struct inode *i, uint64_t base, uint64_t limit,
                          struct openseg **ret);
/* inode.io held: a sealed local segment is opened again as a new version. Broker profile: that it is
 * open is durable on return, since sealed bytes may be changed now. Appends are just cut off again when a
 * loss of power forgets the opening. */
int openseg_reopen_locked(struct data *d, struct inode *i, uint64_t base, const struct seg_rec *rec,
                          struct openseg **ret);
/* Puts it into its inode's list, in order; takes the caller's reference over. */
void openseg_list(struct inode *i, struct openseg *o);
/* inode.io held: there is an open segment of unknown length, so nothing may be written. */
bool openseg_any_lost(struct inode *i);
void openseg_wrote(struct openseg *o, uint64_t bytes);

/* ---- files.c: how many device files are open ---- */
void files_init(struct data *d);
/* More than should be: who can do without opening another one does. */
bool files_many(struct data *d);
/* So many that a write must not open another one now: -EAGAIN. */
bool files_full(struct data *d);
/* Flushes and closes some, `urgent`: also what was used a moment ago. How many it closed. Blocks on local disk;
 * no lock held. */
unsigned files_close_some(struct data *d, bool urgent);
/* Before something that may open one for writing, on the device pool: closes some when so many are open. */
void files_make_room(struct data *d);
void files_flushed(struct data *d, int64_t ns); /* a flush took so long */
void files_run_trim(struct task *t); /* of data.trim; device pool */

/* ---- seal.c ---- */
/* inode.io held, nothing to hash outstanding: no more appends; submits the seal task. */
void openseg_seal_locked(struct openseg *o, struct inode *i);
/* Topics, inode.io held: what is open before `o` is sealed first. A daemon that was killed leaves several, of
 * which none was flushed. */
void openseg_seal_before(struct openseg *o, struct inode *i);
/* The inode's record, put into this batch, may tell of bytes or holes behind its open segments that begin at
 * or before `upto`: the manifest is to know of these, too, else a rebuild takes them for holes. inode.mu held. */
void openseg_mark(struct data *d, struct inode *i, uint64_t upto, struct kv_batch *b);
/* `sealing` was set under inode.io, and everything appended has been hashed: submits the seal task. */
void openseg_seal_submit(struct openseg *o, struct inode *i);
/* inode.mu held: the next segment whose seal waits for one before it that has ended; its seal task is to
 * be submitted. */
struct openseg *openseg_next_waiting_locked(struct inode *i);
void openseg_run_seal(struct task *t); /* of openseg.seal_task; bulk pool */

/* ---- flush.c ---- */
/* Just this one, which is open; blocks on its device. Those before it come first: sync.c. */
int openseg_sync(struct openseg *o);
/* It, and those before it in its file first; `whole`: all of the file, so that a file of many segments is gone
 * through once. Blocks on local disk. */
int openseg_flush_in_order(struct openseg *o, bool whole);
void openseg_run_flush(struct task *t); /* of openseg.flush_task, submitted with a reference; device pool */

/* ---- sync.c; both block on local disk ---- */
/* Flushes the open segments that begin before `end` and are not known to be flushed, in order, up to the
 * first that fails. Those of a lost device are left out. */
int inode_sync_before(struct inode *i, uint64_t end, bool io_held);
/* All of them; -EIO where one is lost. inode.io is not held. */
int inode_sync(struct inode *i);

/* ---- module.c ---- */
void data_kick(struct data *d); /* no lock from RANK_SEGFD on is held */

/* ---- handles.c ---- */
int handles_open(struct data *d);
struct cache_reader *handle_reader(struct data *d, uint64_t ino, uint64_t fh);

/* ---- write.c ---- */
/* May `len` bytes be written? 0 with the time of the reply, or -ENOSPC. */
int write_admit(struct data *d, uint32_t device, size_t len, int64_t *ret_reply_at_ns);
/* inode.io held: makes room for one more piece, by hashing early those that are there. */
void write_piece_room(struct data *d, struct data_write *w);
/* ---- rewrite.c ---- */
int rewrite_begin(struct data *d, struct data_write *w);

/* One segment as it is now. All of these: inode.io held. */
struct spot {
    uint64_t base, end;
    struct seg_rec rec;
    struct openseg *o; /* when it is open (or sealing): with a reference, until spot_done */
};
void spot_done(struct spot *s);
/* The last one that begins at or before `off`; the first that begins at or behind it; the first that
 * meets [off, end). 0, -ENOENT, or what kv says. */
int spot_before(struct data *d, struct inode *i, uint64_t off, struct spot *s);
int spot_after(struct data *d, struct inode *i, uint64_t off, struct spot *s);
int spot_next(struct data *d, struct inode *i, uint64_t off, uint64_t end, struct spot *s);
/* Makes s->o an open segment whose file may be changed. -EAGAIN: it is sealing or remote; -EIO. */
int spot_open(struct data *d, struct inode *i, struct spot *s);
struct openseg *openseg_at(struct inode *i, uint64_t base); /* with a reference */

/* ---- size.c; inode.io held ---- */
/* Removes a segment, wherever its bytes are. */
int seg_drop(struct data *d, struct inode *i, uint64_t base, const struct seg_rec *rec,
             uint64_t topic, bool sized);
/* A remote segment that can be cut in its record alone. */
bool spot_cuttable(const struct spot *s);
/* Cuts an open segment, or such a remote one. */
int spot_cut(struct data *d, struct inode *i, struct spot *s, uint64_t end, uint64_t topic);
int truncate_locked(struct data *d, struct inode *i, uint64_t size, const struct kv_origin *who);
/* New times, stored. */
int inode_changed(struct data *d, struct inode *i, const struct kv_origin *who);

/* A seal has ended, whatever came of it. No lock held. */
void seal_waits_wake(struct inode *i);

/* ---- source.c ---- */
void data_cancel_fetches(struct data *d); /* everything that is with the store is given up */
/* *ret_end: how far the file's bytes go, which is less than the segment's stored bytes after the file
 * was cut inside a remote segment. */
int data_locate(struct data *d, uint64_t ino, uint64_t off, struct cache_seg *ret,
                uint64_t *ret_end);
void data_fetch(void *ctx, struct cache_span *span);
void data_fetch_cancel(void *ctx, struct cache_span *span);

#endif
