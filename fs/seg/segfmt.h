/* segfmt.h: the bytes of segment-file headers, proof slots, device identities and file names.
 *
 * Pure encoders and decoders, no I/O, no allocation. All integers are little-endian. Decoders take any
 * bytes whatever: -EPROTONOSUPPORT for a version of the future, -EBADMSG for everything else that is
 * not exactly what an encoder makes.
 *
 *   segment identity, 80 bytes at 0           proof slot, 64 bytes at 512 and 1024
 *    0 u32 magic "SLSG"                        0 u32 magic "SLSP"
 *    4 u16 version 1, u16 zero                 4 u16 version 1, u16 flags (SLOT_*)
 *    8 u32 length 80                           8 u32 length 64, u32 zero
 *   12 u32 block bytes                        16 u64 sequence, from 1
 *   16 volume id, 16 bytes                    24 u64 data length
 *   32 u64 topic                              32 u64 hash of the unfinished block, 0: none or unknown
 *   40 u64 inode                              40 i64 mtime, ns
 *   48 u64 base                               48 u64 hash of the identity this slot belongs to
 *   56 u64 capacity                           56 u64 xxh3-64 of the 56 bytes before
 *   64 u32 version of creation
 *   68 u32 header bytes                       device identity, 40 bytes
 *   72 u64 xxh3-64 of the 72 bytes before      0 u32 magic "SLDV"
 *                                              4 u16 version 1, u16 zero
 *                                              8 u32 length 40, u32 device id (from 1)
 *                                             16 volume id, 16 bytes
 *                                             32 u64 xxh3-64 of the 32 bytes before
 */
#ifndef SLUICE_SEG_SEGFMT_H
#define SLUICE_SEG_SEGFMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SEG_PAGE_BYTES = 4096, /* the header page; the table begins behind it */
    SEG_IDENT_BYTES = 80,
    SEG_SLOT_BYTES = 64,
    SEG_SLOT_AT = 512, /* slot i stands in the sector at SEG_SLOT_AT * (1 + i) */
    DEV_IDENT_BYTES = 40,
    SEG_PATH_BYTES = 64 /* "segments/XX/<name>" and its NUL */
};

enum {
    SLOT_SEALED = 1,
    SLOT_FLUSHED =
        2 /* the data was flushed before the slot was written: its length needs no proof */
};

struct seg_ident {
    uint8_t volume[16];
    uint64_t topic, ino, base, capacity;
    uint32_t version, header_bytes;
};

struct seg_slot {
    uint64_t seq, len, tail_hash;
    int64_t mtime_ns;
    uint64_t ident_hash;
    uint16_t flags;
};

/* Size of the header of a segment that may hold `capacity` bytes. */
uint32_t seg_header_bytes(uint64_t capacity);

void seg_ident_encode(const struct seg_ident *i, uint8_t out[static SEG_IDENT_BYTES]);
int seg_ident_decode(const uint8_t *p, size_t len, struct seg_ident *ret);
uint64_t seg_ident_hash(const struct seg_ident *i); /* as stored in its last 8 bytes */

void seg_slot_encode(const struct seg_slot *s, uint8_t out[static SEG_SLOT_BYTES]);
/* -EBADMSG also when it belongs to another identity, or claims more than `capacity`. */
int seg_slot_decode(const uint8_t *p, size_t len, uint64_t ident_hash, uint64_t capacity,
                    struct seg_slot *ret);
/* Data bytes that were flushed for sure, by both slots (seq 0: not valid): when the newer one was written,
 * what the older claims was; of what a FLUSHED one claims, the data was flushed before. */
uint64_t seg_slots_flushed(const struct seg_slot slot[static 2]);

void dev_ident_encode(const uint8_t volume[static 16], uint32_t id,
                      uint8_t out[static DEV_IDENT_BYTES]);
int dev_ident_decode(const uint8_t *p, size_t len, uint8_t volume[static 16], uint32_t *ret_id);

/* "segments/XX/<ino>-<base>.<version>.seg", hex of fixed width; XX spreads inodes over 256 folders. */
unsigned seg_bucket(uint64_t ino);
void seg_path(uint64_t ino, uint64_t base, uint32_t version, char out[static SEG_PATH_BYTES]);
/* The last part of such a path. False: not one that seg_path makes. */
bool seg_name_parse(const char *name, uint64_t *ino, uint64_t *base, uint32_t *version);

#endif
