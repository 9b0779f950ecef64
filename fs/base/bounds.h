/* bounds.h: every limit of the product in one place, with what happens at the limit.
 *
 * Sizes that a user may change are settings (fs/volume/config.h); what stands here is fixed by a
 * format, by the kernel or by a decision about memory.
 */
#ifndef SLUICE_BASE_BOUNDS_H
#define SLUICE_BASE_BOUNDS_H

#include <assert.h>
#include <stdint.h>

#define KiB (1024ull)
#define MiB (1024ull * KiB)
#define GiB (1024ull * MiB)
#define TiB (1024ull * GiB)

#define NAME_BYTES_MAX      255u        /* one name, without the NUL; longer: ENAMETOOLONG */
#define SYMLINK_BYTES_MAX   4095u       /* target of a symbolic link; longer: ENAMETOOLONG */
#define BLOCK_BYTES         (256 * KiB) /* unit of verification: one xxh3-64 each */
#define SEGMENT_BYTES_MIN   (64 * KiB)  /* smallest segment_bytes a user may set */
#define SEGMENT_BYTES_MAX   (4 * GiB)   /* largest; its hash table is then 128 KiB */
#define FUSE_IO_BYTES_MAX   (1 * MiB)   /* largest READ or WRITE request of the kernel */
#define OBJ_KEY_MAX         1024u       /* object key with its NUL; S3's own limit */
#define S3_PART_BYTES_MIN   (5 * MiB)   /* protocol limit of multipart uploads */
#define S3_PARTS_MAX        10000u      /* likewise */
#define SEGFD_MAX           512u        /* open device files kept for reading; LRU beyond, fewer
                                       * where a process may have few */

static_assert(SEGMENT_BYTES_MAX % BLOCK_BYTES == 0, "a full segment is whole blocks");

#endif
