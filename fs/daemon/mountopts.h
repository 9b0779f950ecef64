/* mountopts.h: the comma-separated options of mount(8), fstab and -o.
 *
 * Three kinds: what the kernel or libfuse is told (ro, nosuid, noexec...), what only other programs
 * care about (noauto, _netdev, x-*...: accepted and dropped), and settings of the volume
 * (`segment_bytes=64M`), which go to config_set. Anything else is refused by name.
 */
#ifndef SLUICE_DAEMON_MOUNTOPTS_H
#define SLUICE_DAEMON_MOUNTOPTS_H

#include <stdbool.h>
#include <stddef.h>
#include "fs/volume/config.h"

enum { MOUNTOPTS_BYTES = 2048 };

struct mountopts {
    bool remount;    /* not a mount: mount(8) wants flags of a mounted one changed */
    bool foreground; /* -o foreground */
    bool fsname_given;
    char fuse[MOUNTOPTS_BYTES]; /* for libfuse, comma separated, commas in values escaped */
};

/* Sorts `text` (NULL or "": none) into *ret and *conf. A backslash takes the next character
 * literally, as in libfuse. 0, or -EINVAL, -ENOENT, -ERANGE, -E2BIG with the whole sentence in
 * `why`. Pure: no I/O, any thread. */
int mountopts_parse(const char *text, struct config *conf, struct mountopts *ret, char *why,
                    size_t why_cap);

/* The finished value for `-o` of libfuse: what was parsed, and what every mount gets
 * (default_permissions, subtype, a name, allow_other). 0 or -E2BIG. */
int mountopts_finish(const struct config *conf, struct mountopts *m);

#endif
