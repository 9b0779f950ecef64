/* footer.h: the block hashes of a segment, from the footer of its object: when the metadata store does not
 * have them (a volume that was rebuilt), or to compare. Pure but for the last function. */
#ifndef SLUICE_DATA_FOOTER_H
#define SLUICE_DATA_FOOTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/meta/rec.h"

struct volume;

/* Is the recorded length that of a footer for so many bytes? Checked before it is fetched. */
bool footer_len_ok(const struct seg_object *o, uint64_t base);

/* Checks o->footer_len bytes: whole, of this volume, inode, range and attempt, and with the recorded
 * segment hash. 0 and the malloc'ed block hashes; -EBADMSG; -EPROTONOSUPPORT; -ENOMEM. */
int footer_check(const uint8_t volume[16], uint64_t ino, uint64_t base, const struct seg_object *o,
                 const uint8_t *buf, uint64_t **ret, size_t *ret_n);

/* Stores block hashes if the segment is still of that version. Takes the inode's io lock; local disk.
 * 0; -ENOENT, -ESTALE: it changed meanwhile; -errno. */
int footer_store(struct volume *v, uint64_t ino, uint64_t base, uint32_t version,
                 const uint64_t *hashes, size_t n);

#endif
