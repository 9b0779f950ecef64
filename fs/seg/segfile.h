/* segfile.h: one segment on a device: a self-describing file.
 *
 *   segments/XX/<ino>-<base>.<version of creation>.seg
 *
 *   offset 0      header page, 4096 bytes: identity (magic, version, length, hash; volume, topic, inode,
 *                 base, creation version, header_bytes, capacity) and, in their own 512-byte sectors,
 *                 two alternating proof slots: {sequence, data length, hash of the unfinished block,
 *                 flags (sealed), mtime_ns, hash of the slot}
 *   offset 4096   block hashes: u64 per BLOCK_BYTES of data, 0 = not known; padded to 4096
 *   header_bytes  the data, exactly the file's bytes [base, base+length)
 *
 * Length: after kill -9 the length of an open segment is the file's size minus header_bytes. After a
 * loss of power the size may run ahead of the data; what the newest valid slot proves is there (its
 * hashes match), and of the rest the longest prefix that block hashes prove.
 * A slot is written just before each fdatasync and is flushed by the same fdatasync; two slots
 * alternate so that a torn one leaves the other. So proof costs no second flush.
 *
 * An open segment (struct segfile) has one appender at a time (the caller's inode lock); readers use
 * descriptors of their own from the LRU below. Block hashes are kept up to date as bytes arrive; the
 * hash of a finished block is written to the table in the header (page cache, unsynced).
 */
#ifndef SLUICE_SEG_SEGFILE_H
#define SLUICE_SEG_SEGFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/base/bounds.h"
#include "fs/base/hash.h"
#include "fs/seg/dev.h"

struct segfile;

struct segfile_id {
    uint64_t topic, ino, base;  /* topic 0, when a file is opened again: not known, not compared */
    uint32_t version;           /* at creation: part of the file's name, stays when reopened */
    uint32_t device;
    uint32_t header_bytes;      /* ret of create, stored in seg_rec */
};

/* Creates the device file and opens it for appending. capacity: most data bytes it may ever hold.
 * 0; -ENOSPC, -EIO, -EROFS...; -EEXIST: left over from a crash (never acknowledged): the caller raises
 * the version and tries again. On failure nothing is left behind. Blocks on local disk. */
int segfile_create(struct devs *d, const uint8_t volume[16], struct segfile_id *id,
                   uint64_t capacity, struct segfile **ret);

/* Opens an existing one for appending again (restart, or a sealed one that is extended). `trusted`:
 * the file's size is the length (daemon died, machine did not); else the proven prefix is kept and
 * the file is cut to it (*ret_cut, if not NULL, says how many bytes went). The unfinished block is read
 * again once. Accounting: the caller has accounted what segfile_stat said; what is cut is given back.
 * -ENOENT: no such file; -EBADMSG: identity does not match; -ENODEV: its device is missing; -EIO. */
int segfile_reopen(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                   bool trusted, struct segfile **ret, uint64_t *ret_cut);

/* Releases memory and descriptor; the file stays as it is. NULL accepted. */
void segfile_close(struct segfile *s);

uint64_t segfile_len(const struct segfile *s);       /* data bytes; acquire-ordered */
uint64_t segfile_capacity(const struct segfile *s);
int64_t segfile_mtime_ns(struct segfile *s);         /* of the device file */

/* Appends `len` bytes at the end: pwrite only; the caller then calls segfile_hash with the same bytes
 * (possibly after it has replied, in the same order of appends). On error *done bytes of a prefix were
 * written and count (segfile_len moved). Caller serialises appends, writes and truncates, and calls of
 * segfile_hash; the hash of one append may run beside the next append. Before a sync or seal the
 * bytes that it is to cover are hashed; before a truncate no hash is outstanding. -EFBIG: capacity. */
int segfile_append(struct segfile *s, const void *buf, size_t len, size_t *done);
void segfile_hash(struct segfile *s, uint64_t pos, const void *buf, size_t len);

/* Overwrites inside the segment, or writes behind its end leaving a hole of zeros (broker profile).
 * Hashes of touched blocks become unknown until the seal. The first overwrite of synced bytes flushes
 * once (segsync.c says why); so may the first shorter truncate. */
int segfile_write(struct segfile *s, uint64_t pos, const void *buf, size_t len, size_t *done);

/* Shortens or extends (with zeros). */
int segfile_truncate(struct segfile *s, uint64_t len);

/* Makes [pos, end), as far as it is stored, a hole: zeros without room on the device. The length stays.
 * Hashes as for segfile_write; no hash is outstanding. */
int segfile_punch(struct segfile *s, uint64_t pos, uint64_t end);

/* Data bytes that take room on the device: the length without its holes. */
uint64_t segfile_stored(struct segfile *s);

/* Reads through the page cache (the tail while it is hot). 0, -ENODATA behind the end, -EIO. */
int segfile_read(struct segfile *s, uint64_t pos, void *buf, size_t len);

/* Makes everything appended so far durable: proof slot, fdatasync, the first time also the directory
 * entry. After a failure every later call fails too, until the bytes were read back from the medium with
 * O_DIRECT and match (law 1), and the device takes no new segments.
 * Blocks on local disk: call it from the device pool. Concurrent calls on one segment are fine. */
int segfile_sync(struct segfile *s);

/* True if writing at `pos` has to wait for a flush first: what lies there was claimed by hashes. Does not
 * block. */
bool segfile_write_flushes(struct segfile *s, uint64_t pos);

/* True if nothing was written since the last successful sync. */
bool segfile_synced(const struct segfile *s);

/* Of one just opened again: a flush of bytes in it was once begun, so they may be acknowledged as durable. */
bool segfile_was_flushed(const struct segfile *s);

/* Starts write-back of what is dirty and lets go of the device's page-cache copy of what was written
 * back (all but the last `keep` bytes). Device pool. */
void segfile_release_cache(struct segfile *s, uint64_t keep);

/* Seals: hashes the unfinished block and unknown blocks (reads them), writes table and sealed slot,
 * fdatasync. *ret_hashes: malloc'ed array of *ret_n block hashes, the caller's. Device pool.
 * The segfile stays open for reading until closed. */
int segfile_seal(struct segfile *s, uint64_t **ret_hashes, size_t *ret_n);

/* ---- reading sealed segments: descriptors from an LRU (SEGFD_MAX), shared and pinned ---- */

struct segfd;                   /* a pinned descriptor */
struct segfds;
int segfds_open(struct devs *d, struct segfds **ret);
void segfds_close(struct segfds *s);

/* direct: opened with O_DIRECT where the file system takes it (falls back to buffered + drop). 0;
 * -ENOENT: evicted meanwhile, look again; -EIO, -EMFILE... Blocks on local disk. */
int segfd_get(struct segfds *s, const struct segfile_id *id, bool direct, struct segfd **ret);
void segfd_put(struct segfds *s, struct segfd *fd);

/* Reads data bytes [pos, pos+len) of the segment into buf; with `direct` any alignment is accepted
 * (unaligned ends go through a bounce buffer). No page-cache residue either way. 0, -ENODATA, -EIO. */
int segfd_read(struct segfd *fd, uint64_t pos, void *buf, size_t len);

/* Raw descriptor and offset of data byte 0, for object bodies (obj_body). */
int segfd_raw(struct segfd *fd, uint64_t *ret_data_off);

/* Removes a segment's file: 0 also when it is gone already. Accounts the space. Open descriptors stay
 * readable. Device pool (unlinking large files is slow). */
int segfile_unlink(struct devs *d, struct segfds *s, const struct segfile_id *id);

/* Size on the device (header and data) of an existing file, for accounting at mount; -ENOENT. */
int segfile_stat(struct devs *d, const struct segfile_id *id, uint64_t *ret_bytes,
                 int64_t *ret_mtime_ns);

/* Walks all segment files of a device and decodes their headers (recovery, fsck). A file whose header
 * is damaged is reported with id->ino 0 and its name; one whose header never reached the medium with what
 * its name says and header_bytes 0: nothing in it was ever durable. */
int segfile_scan(struct devs *d, uint32_t device,
                 int (*each)(void *arg, const struct segfile_id *id, const char *name,
                             uint64_t bytes),
                 void *arg);

/* Moves a file that nobody can explain to `quarantine/` on its device; nothing is deleted. */
int segfile_quarantine(struct devs *d, uint32_t device, const char *name);

#endif
