/* control.h: the server behind state/control.sock, for the commands of `sluicefs`.
 *
 * Requests (fs/base/ctlproto.h), files by their inode number:
 *     status             DATA: the document of the volume
 *     inode N            DATA: the document of one inode
 *     fsck [deep] [repair] [json]   PROGRESS, then DATA: the report; RESULT's text is its exit code
 *     gc [dry-run] [json]           DATA: the report
 *     device add|drain|remove HEX...   (devices.h) PROGRESS while it waits, DATA: what is told, a line each
 *     seal|upload|evict|warm N...   up to CONTROL_FILES_MAX; PROGRESS while it runs
 *     reload             reads the rules for paths again; code 2 and the old ones stay when they are wrong
 *     stop               asks the daemon to end as for SIGTERM; answered at once
 *     handover           lets another daemon take over under the live mount; answered at once
 *
 * Only the user who runs the daemon, and root, are heard. Each connection has a thread, so that a
 * command which waits for the store is in nobody's way; at most CONTROL_CONNECTIONS_MAX at once, and
 * CONTROL_COMMANDS_MAX of them commands, so that `status` finds a place.
 */
#ifndef SLUICE_VOLUME_CONTROL_H
#define SLUICE_VOLUME_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/tier/tier.h"

enum {
    CONTROL_CONNECTIONS_MAX = 32,
    CONTROL_COMMANDS_MAX = 24,
    CONTROL_FILES_MAX = 256,   /* files of one command */
    CONTROL_REQUEST_MS = 5000, /* a request must have come by then */
    CONTROL_SEND_MS = 10000    /* a client that does not read is given up */
};

/* What the server may do. Called on threads of connections, without locks; all must be safe on several
 * threads at once. `command` and `cancel` as tier_command and tier_command_cancel. */
struct control_ops {
    void *ctx;
    int (*status)(void *ctx, FILE *f);
    int (*inode)(void *ctx, uint64_t ino, FILE *f);
    void (*command)(void *ctx, struct tier_cmd *c);
    void (*cancel)(void *ctx, struct tier_cmd *c);
    /* A long request that is not about files: `verb` and what follows it. Writes a document, and an exit code
     * or what is wrong into `text`. 0; -EINVAL: not such a request; -errno. May be NULL. */
    int (*check)(void *ctx, const char *request, _Atomic bool *cancelled,
                 void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, FILE *f,
                 char *text, size_t cap);
    int (*reload)(void *ctx, char *text, size_t cap); /* 0 or -errno, with a line in either case */
    void (*stop)(void *ctx);
    bool (*hand_over)(void *ctx, bool now); /* false: nobody would take over; else: if `now`, begins */
};

struct control;

/* The operations of a volume; `stop` and `hand_over` are the caller's. */
struct control_ops control_ops_of(struct volume *v);

/* Makes the socket in the state directory (a descriptor that stays open until control_close; its lock
 * is held) and starts to serve. `ops->ctx` is given to all but those two, which get `stop_ctx`. -errno. */
int control_open(int state_fd, const struct control_ops *ops, void *stop_ctx, struct control **ret);

/* No new requests; those under way end soon, commands are cancelled. Does not wait. NULL accepted. */
void control_stop(struct control *c);

/* control_stop, then waits until every command has been answered by `done`. */
void control_close(struct control *c);

#endif
