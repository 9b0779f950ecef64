/* invalidator.h: a process that tells the kernel to forget pages, on behalf of a supervised daemon.
 *
 * The kernel waits for the lock of a page that a READ is filling, and nothing can end that wait. A thread
 * of a daemon that was killed while it waits there would keep the process, and its lock on the state
 * directory, for as long as nobody answers the READ; and nobody could, since the next daemon is started
 * after the end of this one. So the one who waits is a process of its own: it is started by the supervisor,
 * outlives the daemons, and goes on when the next one has answered the READ.
 */
#ifndef SLUICE_DAEMON_INVALIDATOR_H
#define SLUICE_DAEMON_INVALIDATOR_H

#include <stdint.h>
#include <sys/types.h>

/* A daemon's end and the process's end of the socket between them; both close on exec. 0 or -errno. */
int invalidator_sockets(int *ret_daemon, int *ret_process);

/* Forks it: a child of the caller, with whom it ends. It needs no other descriptor. Its id or -errno. */
pid_t invalidator_start(int process_end, int fuse_fd);

/* Tells the kernel to forget a range of pages of an inode; len > 0. 0; -ENOENT: the kernel does not know
 * it; -EPIPE: the socket was shut down; -errno. One thread at a time. Waits as long as the kernel does. */
int invalidator_ask(int daemon_end, uint64_t ino, uint64_t off, uint64_t len);

#endif
