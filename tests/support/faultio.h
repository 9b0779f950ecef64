/* faultio.h: a door to local files (fs/base/io.h) that counts calls and makes one of them fail.
 *
 * Wraps io_posix. Only calls in `mask` are counted; the `at`-th of them (from 1) fails with `err`
 * without doing anything, and with `all` every later one too. `short_writes`: each pwrite of more than
 * one byte writes only half, as a signal or a full disk may make it. One at a time per process; start
 * and stop it while no other thread is inside a call. */
#ifndef SLUICE_TEST_FAULTIO_H
#define SLUICE_TEST_FAULTIO_H

#include <stdbool.h>

enum {
    FAULT_OPEN = 1,
    FAULT_READ = 2,
    FAULT_WRITE = 4,
    FAULT_SYNC = 8,
    FAULT_TRUNCATE = 16,
    FAULT_STAT = 32,
    FAULT_NAME = 64,   /* rename, unlink, mkdir, scan */
    FAULT_SPACE = 128, /* fallocate, fsinfo */
    FAULT_CACHE = 256, /* writeback, drop */
    FAULT_ANY = 511
};

struct faultio {
    unsigned mask;
    long at;
    int err; /* positive */
    bool all, short_writes;
};

void faultio_start(struct faultio f);
long faultio_calls(void); /* counted since the start */
void faultio_stop(void);  /* back to io_posix */

#endif
