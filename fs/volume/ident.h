/* ident.h: the file `volume` in the state directory: what this state directory belongs to. Written at
 * the first mount and at each change of the devices; replaced atomically.
 *
 *    0 u32 magic "SLVS"  4 u16 version 2  6 u16 capabilities of the store (bits: 1 If-None-Match, 2
 *    If-Match, 4 checksum, 8 range)  8 u32 total length  12 u32 node  16 16 bytes volume id
 *   32 i64 created, wall clock ns  40 u8 profile  41 u8 number of devices  42 u16 length of the URL
 *   44 URL; u32 id of the next device; per device { u32 id, u64 budget as given, u8 flags (1: draining),
 *      u64 bytes on it when its draining began, u16 length, path }; u8 number of removed ones; per removed
 *      one { u16 length, path }; u64 xxh3-64 of all before
 * Version 1 (read, not written) has no next id, no flags, no bytes and no removed ones.
 *
 * An id is never given twice. A removed path is remembered, so that a command line that still names it
 * does not add it again.
 */
#ifndef SLUICE_VOLUME_IDENT_H
#define SLUICE_VOLUME_IDENT_H

#include "fs/seg/dev.h"
#include "objstore/stack.h"

#define IDENT_NAME      "volume"
#define IDENT_CREATING  "volume.creating"  /* a first mount that did not come to its end */
#define IDENT_RESTORING "volume.restoring" /* a rebuild that did not come to its end */

struct ident {
    uint8_t volume[16];
    uint32_t node;
    int64_t created_ns;
    uint8_t profile;
    struct store_caps caps;
    char url[4096];
    uint32_t next_id;
    unsigned devices;
    uint32_t id[DEVICES_MAX];
    uint64_t budget[DEVICES_MAX];
    bool draining[DEVICES_MAX];
    uint64_t drain_total[DEVICES_MAX];
    char *path[DEVICES_MAX]; /* owned */
    unsigned removed;
    char *gone[DEVICES_MAX]; /* owned; the latest last */
};

void ident_done(struct ident *i);
/* 0; -ENOENT; -EBADMSG; -EPROTONOSUPPORT; -errno. */
int ident_load(int dirfd, const char *name, struct ident *ret);
int ident_store(int dirfd, const char *name, const struct ident *i);

/* The id of the next device: never one that was given before. */
uint32_t ident_next(const struct ident *i);
/* Index of a device or of a removed one by its path; -1: not there. */
int ident_find(const struct ident *i, const char *path);
int ident_find_gone(const struct ident *i, const char *path);
/* Adds one, which is not among the removed ones any more. -E2BIG, -ENOMEM. */
int ident_add(struct ident *i, const char *path, uint64_t budget, uint32_t id);
/* Moves device k to the removed ones, of which the oldest is forgotten if need be. */
void ident_remove(struct ident *i, unsigned k);
/* A copy. 0 or -ENOMEM. */
int ident_copy(const struct ident *from, struct ident *ret);

#endif
