/* path.h: one of an inode's paths from the root, from the metadata store: for messages, and for rules that
 * go by paths. */
#ifndef SLUICE_NS_PATH_H
#define SLUICE_NS_PATH_H

#include <stddef.h>
#include <stdint.h>

struct kv;

/* "topic/dir/name", without a slash at the beginning; "." for the root. 0; -ENOENT: unlinked or not
 * reached; -ENAMETOOLONG; -errno. Blocks on local disk; no short lock may be held. Costs a look-up or two
 * for each component; for one whose name came from another directory or took another's place, the directory is
 * listed; for a file that lost one of several names, everything below its topic, up to a bound. */
int inode_path(struct kv *kv, uint64_t ino, char *buf, size_t cap);

#endif
