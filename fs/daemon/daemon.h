/* daemon.h: a mount from its command line to its end.
 *
 * daemon_main checks the mount point, goes to the background (unless `foreground`), opens the volume,
 * mounts, serves until SIGTERM, SIGINT or an unmount from outside, drains and closes. In the background
 * case the caller's process returns when the mount answers, or when it has failed: the reason is
 * then one line on its standard error.
 *
 * Call it before any thread exists: it forks. `conf` must be complete (config_finish) and outlive the
 * call; relative paths in it are made absolute. Blocks for the life of the mount (foreground) or until
 * it is ready (background).
 *
 * Returns the exit code of the command.
 */
#ifndef SLUICE_DAEMON_DAEMON_H
#define SLUICE_DAEMON_DAEMON_H

#include <stdbool.h>
#include "fs/volume/config.h"

enum daemon_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1, /* store, device or I/O */
    EXIT_USAGE = 2,  /* command line, configuration, mount point */
    EXIT_NO_MOUNT = 3,
    EXIT_REFUSED = 4 /* in use, foreign, conflicting */
};

/* Before the options and the environment are read: takes what the supervisor of a mount left for the
 * daemon that takes over. False: it cannot be understood. Then, once the options are read: the mount
 * point, which may not be looked at. 0 or -ENOMEM. Without a supervisor both do nothing. */
bool daemon_inherit(void);
int daemon_inherit_into(struct config *conf);

int daemon_main(struct config *conf, bool foreground, const char *argv0);

#endif
