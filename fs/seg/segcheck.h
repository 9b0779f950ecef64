/* segcheck.h: looking at a segment file as fsck does: its header, its table, all of its bytes; and writing
 * a header again. Reads and writes the file by its name, past open descriptors: the caller sees to it that
 * nobody changes it meanwhile (sealed segments; all of them when no daemon runs). Blocks on local disk. */
#ifndef SLUICE_SEG_SEGCHECK_H
#define SLUICE_SEG_SEGCHECK_H

#include "fs/seg/segfile.h"

struct segcheck {
    bool missing;    /* no such file */
    bool unreadable; /* the device answered with an error: err */
    bool foreign;    /* a whole header, of another segment or volume */
    bool bad_header; /* identity, a slot, or the table is damaged */
    bool shorter;    /* than it must be: `size` data bytes are there */
    uint64_t size;
    uint64_t flushed; /* of an open one: so many data bytes must be there */
    uint64_t bad_blocks, bad_first,
        bad_last;   /* blocks that do not match: numbers of first and last */
    uint64_t bytes; /* read and compared */
    int err;
};

/* A sealed segment of `len` bytes with block hashes (NULL: not compared). `deep`: reads the data.
 * `each` (may be NULL) is called for every damaged block. */
void segcheck_sealed(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                     uint64_t len, const uint64_t *hashes, size_t n, bool deep,
                     void (*each)(void *arg, uint64_t block), void *arg, struct segcheck *ret);

/* An open one: finished blocks are compared with the table in the header, the unfinished one with the proof
 * of the last flush, if nothing was appended since; it is `shorter` when flushed bytes are gone. */
void segcheck_open(struct devs *d, const uint8_t volume[16], const struct segfile_id *id, bool deep,
                   struct segcheck *ret);

/* Block hashes of a sealed segment of `len` bytes: as its table says, or (`from_data`) computed. Malloc'ed;
 * the caller proves them with the segment's hash. */
int segcheck_hashes(struct devs *d, const struct segfile_id *id, uint64_t len, bool from_data,
                    uint64_t **ret, size_t *ret_n);

/* Writes the header of a sealed segment again, from what is known elsewhere; flushes. */
int segcheck_write_header(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                          uint64_t capacity, uint64_t len, const uint64_t *hashes, size_t n);

/* Writes data bytes at `pos`, inside the file; flushes. */
int segcheck_write_data(struct devs *d, const struct segfile_id *id, uint64_t pos, const void *buf,
                        size_t len);

#endif
