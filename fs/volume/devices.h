/* devices.h: the devices of a volume: what is remembered (ident.h) and what the command line says; adding,
 * draining and removing them while it is mounted.
 *
 * Order of durable steps, each flushed before the next; a crash between two of them leaves:
 *
 *   add 1     identity file on the device           a directory that is taken again by the next `add`
 *   add 2     session record (session.c)            an entry about nothing
 *   add 3     the list in state/volume              the device, as after the end; takes segments from here on
 *   drain 1   the list: draining                    the drain goes on at the next mount
 *   drain 2   a segment at a time, fs/tier/drain.c  the rest is still there and is found again
 *   remove 1  what the moved segments' records say  a drained device
 *   remove 2  the list: without it, path kept       a directory with an identity and no segment files, which
 *                                                   the next `add` takes
 *   remove 3  identity file and folders go          nothing
 */
#ifndef SLUICE_VOLUME_DEVICES_H
#define SLUICE_VOLUME_DEVICES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include "fs/parts.h"

/* All of these block on local disk, never on the store; any thread, without locks. `why` as volume_open.
 * 0; -EBUSY: refused as things are, `why` says what helps; -ENOENT: no such device; -EEXIST, -ENOTEMPTY...
 * as devs_add. */
int volume_device_add(struct volume *v, const char *path, uint64_t budget, char *why, size_t cap);
/* Begins; what is done by then stays done when it is ended again (`on` false). */
int volume_device_drain(struct volume *v, const char *path, bool on, char *why, size_t cap);
/* Waits until it is drained, or cannot go on (-EIO), or `cancelled` (-ECANCELED: it goes on). */
int volume_device_wait(struct volume *v, const char *path, _Atomic bool *cancelled,
                       void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                       char *why, size_t cap);
/* Of a drained one; `give_up`: also of a failed or missing one that still has bytes that are nowhere else,
 * which are lost then. What is, or would be lost is written to f, a line each. */
int volume_device_remove(struct volume *v, const char *path, bool give_up, FILE *f, char *why,
                         size_t cap);

/* A request of the control socket: "device add HEX [BYTES]", "device drain HEX [wait|cancel]", "device remove
 * HEX [lost]"; HEX is the path. As control_ops.check. */
int volume_device_request(struct volume *v, const char *request, _Atomic bool *cancelled,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                          FILE *f, char *text, size_t cap);

#endif
