/* simdisk.h: a disk in memory behind fs/base/io.h that forgets like a real one.
 *
 * Every file has what programs see and what the medium holds. Writes, sizes and names reach the
 * medium by sync only (or by chance, at a power cut). One seed decides everything, so a run repeats.
 *
 *   contents   fdatasync or fsync of the file. At a power cut each unsynced 512-byte sector is kept or
 *              dropped by itself; the size becomes the old one, the new one, or one in between; an
 *              unsynced truncate happened, or the file is as it was before
 *   names      fsync of the directory; with `ext4_names` (default) fsync of a new or renamed file makes
 *              its own name durable too. At a power cut unsynced changes of names are kept or dropped
 *              each by itself (a rename as a whole), or from some moment on
 *   a failed sync marks sectors clean without writing them, as the kernel does: a later sync succeeds
 *              and does not write them; drop() shows what the medium holds
 *
 * One disk is in use at a time (io_ops have no context). Calls are serialised by one mutex. Files are
 * flat arrays up to 256 MiB. Memory that no name and no descriptor reaches is collected now and then.
 */
#ifndef SLUICE_SIMDISK_H
#define SLUICE_SIMDISK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct simdisk;

struct simdisk *simdisk_new(void);
void simdisk_free(struct simdisk *d);

/* Puts the disk behind io_*; NULL puts the real one back. */
void simdisk_use(struct simdisk *d);

/* A new descriptor of the root directory; close it with io_close. Absolute paths and AT_FDCWD begin
 * at the root too. */
int simdisk_root(struct simdisk *d);

void simdisk_ext4_names(struct simdisk *d, bool on);

/* Bytes that files may hold together; beyond, pwrite and fallocate say ENOSPC. 0: no limit. */
void simdisk_space(struct simdisk *d, uint64_t bytes);

enum simdisk_crash {
    SIMDISK_KILL, /* the process died: all is kept, descriptors are closed */
    SIMDISK_POWER /* the machine lost power */
};

/* `path`: only this directory and what is below it (NULL: all), with the descriptors opened there. */
void simdisk_crash(struct simdisk *d, const char *path, enum simdisk_crash kind, uint64_t seed);

/* The moment of the next crash: from the nth call on (1: the next) nothing has any effect and every
 * call fails, until simdisk_crash. So a crash can come between any two calls of an operation. 0: not. */
void simdisk_freeze(struct simdisk *d, unsigned nth);
bool simdisk_frozen(struct simdisk *d);

enum simdisk_call {
    SD_OPEN,
    SD_PREAD,
    SD_PWRITE,
    SD_SYNC,
    SD_TRUNCATE,
    SD_STAT,
    SD_RENAME,
    SD_UNLINK,
    SD_MKDIR,
    SD_SCAN,
    SD_FALLOCATE,
    SD_CALLS,
    SD_ANY = SD_CALLS
};

/* The nth call of this kind from now on (1: the next) fails with `err` (positive errno), and `times`-1
 * more after it. `match`: only calls whose path contains it (for descriptors: the path they were
 * opened with); NULL: all. pwrite writes a part first (not with EINTR), a sync marks clean what it did
 * not write. err 0, for SD_PWRITE only: the write is short.
 * Up to 16 plans at once; false: no room. */
bool simdisk_fail(struct simdisk *d, enum simdisk_call call, const char *match, unsigned nth,
                  unsigned times, int err);
void simdisk_fail_none(struct simdisk *d);

/* One in `one_in` pwrites writes less than asked and says so. 0: never. */
void simdisk_short_writes(struct simdisk *d, unsigned one_in, uint64_t seed);

/* How many calls plans have failed so far. */
uint64_t simdisk_failed(struct simdisk *d);

/* Calls so far, failed ones included. */
uint64_t simdisk_calls(struct simdisk *d, enum simdisk_call call);

/* The tree: path, size, durable size, dirty and lost sectors. */
void simdisk_list(struct simdisk *d, FILE *f);

#endif
