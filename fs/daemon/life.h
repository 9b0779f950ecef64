/* life.h: the life of a daemon, shared by daemon.c (start, signals, commands) and mounted.c (mount, end).
 * Private to fs/daemon. */
#ifndef SLUICE_DAEMON_LIFE_H
#define SLUICE_DAEMON_LIFE_H

#include "fs/daemon/mountopts.h"
#include "fs/daemon/ops.h"
#include "fs/daemon/supervisor.h"

struct life {
    struct daemon d;
    struct mountopts opts;
    struct supervised sup;
    bool foreground;
    int report_fd; /* -1: no parent waits */
    int log_fd;
    char *log_path; /* NULL: standard error */

    struct lock mu;
    pthread_cond_t changed;
    _Atomic bool serving; /* before: a signal ends the process at once */
    bool ended;           /* all workers have left */
    unsigned stops;       /* SIGTERM and SIGINT so far */
    bool handing_over;    /* `sluicefs upgrade` */
    bool detached;        /* the unmount has been made */
};

/* ---- mounted.c ---- */
/* The volume is open. EXIT_OK when requests are answered, else an exit code with `why`. Blocks. */
int life_mount(struct life *l, const char *argv0, char *why, size_t cap);
/* The same on the connection of a daemon before us. */
int life_attach(struct life *l, const char *argv0, char *why, size_t cap);
/* Waits for what ends the mount, or this daemon. */
void life_wait(struct life *l);
/* Another daemon is to take over. */
bool life_is_handover(struct life *l);
_Noreturn void life_hand_over(struct life *l);
/* Unmounts and closes whatever was opened, in reverse order. Ends the process when something hangs. */
void life_close(struct life *l);

#endif
