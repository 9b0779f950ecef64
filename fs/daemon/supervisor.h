/* supervisor.h: the process that outlives a daemon and starts the next one under the same mount.
 *
 *     command --(background)--> supervisor --> daemon, and after its death: supervisor --> daemon
 *
 * The supervisor has one thread and never touches the mount. It keeps a copy of the descriptor of
 * /dev/fuse, so the connection survives a daemon, and of the kernel's first message (INIT), with which
 * the next daemon makes its session ready without the kernel's help. Needs a kernel that sends
 * requests again (6.9); with an older one it only waits for the daemon.
 *
 * A daemon tells its supervisor over a socket what it has come to (enum supervisor_word). When it
 * ends, the supervisor
 *     ends with the same exit code   if it was asked to stop, the mount has ended, or it never served
 *     starts another at once         after EXIT_HANDOVER (upgrade), from the program file as it is now
 *     starts another                 after any other end; a daemon that could not open the volume is
 *                                    tried again for REOPEN_MS
 *     detaches the mount, exits 1    after `restarts` deaths within a minute, after REOPEN_MS
 * The daemon dies with its supervisor: then the mount is dead, as after any kill -9.
 */
#ifndef SLUICE_DAEMON_SUPERVISOR_H
#define SLUICE_DAEMON_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct config;

enum { EXIT_HANDOVER = 75 }; /* of a daemon, to its supervisor */

/* A daemon's side. */
struct supervised {
    int channel;    /* -1: nobody supervises */
    pid_t parent;   /* the supervisor */
    bool attached;  /* it takes over a connection: */
    int fuse_fd;    /* /dev/fuse, */
    int init_fd;    /* a copy of the INIT request, */
    unsigned lives; /* daemons before it */
    int inval_fd;   /* to the process that invalidates pages (invalidator.h); -1: none */
};

enum supervisor_word {
    SUPERVISOR_CONNECTION = 1, /* with two descriptors: /dev/fuse, INIT */
    SUPERVISOR_READY,          /* requests are answered */
    SUPERVISOR_STOPPING        /* the mount ends: no other daemon, copies of descriptors away */
};

/* At the start of the program: takes what a supervisor left in the environment, if anything. False: it
 * cannot be understood. */
bool supervised_from_environment(struct supervised *ret, char **ret_mountpoint);

/* Forks. In the daemon: 0, and `ret` is filled. In the supervisor: 1, when all is over, with the exit
 * code. -errno: no process could be made. Call before any thread exists. `close_fd` (or -1) is closed
 * in the supervisor; `ready` is called there when the first daemon is; both may use the log, opened
 * again by `reopen_log` on SIGHUP. `word` hears READY and STOPPING for the service manager. */
struct supervisor_hooks {
    void *arg;
    void (*word)(void *arg, enum supervisor_word w);
    void (*reopen_log)(void *arg);
};
int supervise(const struct config *conf, int close_fd, const struct supervisor_hooks *hooks,
              struct supervised *ret, int *ret_code);

/* Tells the supervisor; without one: nothing. 0 or -errno. */
int supervised_tell(const struct supervised *s, enum supervisor_word w);
int supervised_hand_connection(const struct supervised *s, int fuse_fd, int init_fd);

#endif
