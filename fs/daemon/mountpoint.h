/* mountpoint.h: what is at a path before we mount there, and how to take a mount away. */
#ifndef SLUICE_DAEMON_MOUNTPOINT_H
#define SLUICE_DAEMON_MOUNTPOINT_H

#include <stdbool.h>
#include <stddef.h>

/* Makes *path absolute and free of symbolic links, and checks that it can be mounted on. What a dead
 * daemon left mounted there is taken away. Returns an exit code (daemon.h), with one line in `why`
 * unless it is 0. Blocks on the local system only, at most a few seconds on a mount whose daemon does
 * not answer. Forks: call it before any thread exists. */
int mountpoint_check(char **path, char *why, size_t why_cap);

/* Unmounts lazily: at once out of sight, gone when the last open file is closed. Uses fusermount3
 * where the process has no right to do it itself. 0 or -errno. Blocks until dirty mapped pages have
 * been written through the daemon when no file is open. */
int mountpoint_detach(const char *path);

/* Whether the mount answers, and write-back of what is dirty in the kernel: asked by a child, because a
 * daemon that waits for itself could not be killed. 0 or -errno. Both wait for the daemon's workers. */
int mountpoint_answers(const char *path);
int mountpoint_sync(const char *path);

/* Raises the kernel's read-ahead of the mount where the process may; silent otherwise. */
void mountpoint_readahead(const char *path, unsigned kib);

#endif
