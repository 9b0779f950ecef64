/* rec.h: keys and values of the metadata store, byte for byte; pure functions.
 *
 * Keys (first byte is the table; numbers big-endian so that they sort):
 *   'v' name                      settings of the volume (see volume.h)
 *   'I' ino                       struct inode_rec
 *   'N' parent name               struct name_rec: what a directory holds
 *   'C' parent cookie             struct dirent_rec: the same entries in the order of readdir
 *   'Y' ino                       target of a symbolic link (raw bytes)
 *   'X' ino name                  extended attribute (raw bytes)
 *   'S' ino base                  struct seg_rec: a stretch of a file
 *   'B' ino base version          block hashes of a sealed segment: u64 each
 *   'W' ino base                  this segment is open for appending
 *   'U' sealed_ns ino base        queue: sealed, to be uploaded
 *   'K' sealed_ns ino base         sealed, and kept from the bucket by a rule for its path
 *   'M' topic key                 queue: `key` (an I, N, Y, X or S key) changed and is not yet in the
 *                                 topic's manifest
 *   'T' topic                     struct topic_rec: manifest root as last committed
 *   'E' committed_ns ino base     committed and local: may be evicted
 *   'D' not_before_ns id          queue: object key to delete from the bucket, and its topic
 *   'L' id                        queue: device file to unlink
 *   'O' ino                       unlinked, still open somewhere when last looked at: u8 version,
 *                                 u64 its last topic (little-endian)
 *
 * Values begin with u8 version; decoders refuse other versions (-EPROTONOSUPPORT), wrong lengths and
 * impossible contents (-EBADMSG). The kv layer adds the hash.
 */
#ifndef SLUICE_META_REC_H
#define SLUICE_META_REC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/base/bounds.h"
#include "fs/base/hash.h"

enum { ROOT_INO = 1 };

/* A key under construction, large enough for any of the tables. */
struct key {
    uint8_t b[1 + 8 + 1 + 8 + NAME_BYTES_MAX + 8];
    size_t len;
};

struct key key_inode(uint64_t ino);
struct key key_name(uint64_t parent, const void *name, size_t len);
struct key key_dirent(uint64_t parent, uint64_t cookie);
struct key key_symlink(uint64_t ino);
struct key key_xattr(uint64_t ino, const void *name, size_t len);
struct key key_seg(uint64_t ino, uint64_t base);
struct key key_blocks(uint64_t ino, uint64_t base, uint32_t version);
struct key key_open(uint64_t ino, uint64_t base);
struct key key_upload(int64_t sealed_ns, uint64_t ino, uint64_t base);
struct key key_kept(int64_t sealed_ns, uint64_t ino, uint64_t base);
struct key key_dirty(uint64_t topic, const void *key, size_t len);
struct key key_topic(uint64_t topic);
struct key key_evict(int64_t committed_ns, uint64_t ino, uint64_t base);
struct key key_delete(int64_t not_before_ns, uint64_t id);
struct key key_unlink(uint64_t id);
struct key key_orphan(uint64_t ino);
struct key key_setting(const char *name);
struct key key_prefix(char table); /* one byte: a whole table */

/* The numbers of a key of that table; false when the length does not fit. Unused outs may be NULL. */
bool key_parse_ino(const void *key, size_t len, uint64_t *ino);                      /* I Y O */
bool key_parse_seg(const void *key, size_t len, uint64_t *ino, uint64_t *base);      /* S W */
bool key_parse_name(const void *key, size_t len, uint64_t *parent, const uint8_t **name,
                    size_t *name_len);                                               /* N X */
bool key_parse_dirent(const void *key, size_t len, uint64_t *parent, uint64_t *cookie); /* C */
bool key_parse_queue(const void *key, size_t len, int64_t *when, uint64_t *a, uint64_t *b); /* U K E D */
bool key_parse_dirty(const void *key, size_t len, uint64_t *topic, const uint8_t **inner,
                     size_t *inner_len);                                             /* M */

struct inode_rec {
    uint32_t mode;              /* type and permission bits */
    uint32_t uid, gid;
    uint32_t nlink;
    uint64_t rdev;
    uint64_t parent;            /* for topic_of: the directory of one of its names, or (after that name
                                 * of a hard link went) its topic's directory. 0: unlinked */
    uint64_t size;              /* regular files: end of the last sealed segment or a later hole; the
                                 * open segment's device file says more. symlinks: target length */
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns; /* wall clock */
};

struct name_rec {
    uint64_t ino;
    uint64_t cookie;            /* of its 'C' key; never used twice in a directory */
    uint8_t type;               /* DT_REG, DT_DIR... */
};

struct dirent_rec {
    uint64_t ino;
    uint8_t type;
    uint8_t name_len;           /* 1..NAME_BYTES_MAX */
    const uint8_t *name;        /* decode: points into the value */
};

enum seg_state {
    SEG_OPEN = 1,               /* being appended; length is that of its device file */
    SEG_SEALED = 2,             /* closed for writing; in the upload queue */
    SEG_UPLOADED = 3,           /* object verified; waits for the manifest */
    SEG_COMMITTED = 4           /* in the manifest: local copy may go */
};

/* Where the plain bytes of a version of a segment are in the bucket. The key is derived:
 * segments/<spread>/<topic>/<inode>/<base>-<end>.<epoch>.<attempt> */
struct seg_object {
    uint64_t topic;             /* at birth */
    uint64_t end;               /* file offset; end - base bytes of data, then the footer */
    uint64_t epoch, attempt;
    uint32_t version;           /* of the segment at its seal */
    uint32_t footer_len;
    struct hash128 hash;        /* hash128 over the block hashes (little-endian) */
};

struct seg_rec {
    uint64_t end;               /* file offset; while open: end of what was sealed before, or base */
    uint32_t version;           /* raised whenever the segment is opened again */
    uint8_t state;              /* enum seg_state */
    bool local;                 /* a device holds it */
    bool has_object;            /* `object` is in the manifest (it may be of an older version: a
                                 * prefix of this segment) */
    bool has_pending;           /* `pending` is being uploaded, or was and waits for the manifest */
    uint32_t device;            /* device id, when local */
    uint32_t file_version;      /* in the device file's name, when local */
    uint32_t header_bytes;      /* of the device file: data begins there */
    uint64_t capacity;          /* most data bytes the device file may ever hold */
    uint64_t behind;            /* while open: when it was begun the file reached up to here in a segment
                                 * that was not yet flushed; 0: there was none */
    int64_t created_ns, sealed_ns, committed_ns, read_ns; /* wall clock; read_ns is coarse */
    struct hash128 hash;        /* when sealed: hash128 over the block hashes */
    struct seg_object object, pending;
};

enum {
    REC_INODE_MAX = 96,
    REC_NAME_MAX = 24,
    REC_DIRENT_MAX = 272,
    REC_SEG_MAX = 320
};

size_t inode_rec_encode(const struct inode_rec *r, uint8_t out[static REC_INODE_MAX]);
int inode_rec_decode(const void *buf, size_t len, struct inode_rec *ret);
size_t name_rec_encode(const struct name_rec *r, uint8_t out[static REC_NAME_MAX]);
int name_rec_decode(const void *buf, size_t len, struct name_rec *ret);
/* u8 version, u8 type, u64 ino, then the name. */
size_t dirent_rec_encode(const struct dirent_rec *r, uint8_t out[static REC_DIRENT_MAX]);
int dirent_rec_decode(const void *buf, size_t len, struct dirent_rec *ret);
size_t seg_rec_encode(const struct seg_rec *r, uint8_t out[static REC_SEG_MAX]);
int seg_rec_decode(const void *buf, size_t len, struct seg_rec *ret);

/* The object key of a segment version. 0 or -ENAMETOOLONG. */
int seg_object_key(const struct seg_object *o, uint64_t ino, uint64_t base, char *out, size_t cap);

/* Inverse; -EINVAL when it is not such a key. */
int seg_object_key_parse(const char *key, struct seg_object *ret, uint64_t *ino, uint64_t *base);

/* hash128 of the little-endian concatenation: "one hash per segment". */
struct hash128 seg_hash(const uint64_t *block_hashes, size_t n);

/* Footer of a segment object: makes the object self-describing. Follows the data.
 *    0 u32 magic "SLSF"  4 u16 version 1  6 u16 flags 0   8 u64 total footer length
 *   16 16 bytes volume id  32 u64 topic  40 u64 inode  48 u64 base  56 u64 end
 *   64 u64 epoch  72 u64 attempt  80 u32 segment version  84 u32 block bytes
 *   88 u64 number of blocks n  96 n x u64 block hashes
 *   then 16 bytes segment hash, u64 xxh3-64 of all bytes before, u64 footer length, u32 magic "FSLS",
 *   u32 zero: the last 16 bytes let a reader find the start from the end of the object */
struct seg_footer {
    uint8_t volume[16];
    uint64_t topic, ino, base, end, epoch, attempt;
    uint32_t version;
    size_t blocks_n;
    const uint64_t *blocks;     /* decode: points into `scratch` given to it */
};
size_t seg_footer_size(size_t blocks_n);
void seg_footer_encode(const struct seg_footer *f, uint8_t *out);
int seg_footer_decode(const uint8_t *buf, size_t len, uint64_t *scratch, size_t scratch_n,
                      struct seg_footer *ret);

#endif
