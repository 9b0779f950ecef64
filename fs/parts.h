/* parts.h: what the modules between metadata and FUSE are handed: the parts of one volume. Opened, wired
 * and closed by fs/volume, above them; here is only the struct, so that no call has to go upward.
 */
#ifndef SLUICE_PARTS_H
#define SLUICE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "fs/base/clock.h"
#include "fs/volume/config.h"

struct kv;
struct ns;
struct data;
struct tier;
struct cache;
struct devs;
struct policy;
struct segfds;
struct objstore;
struct exec;
struct timers;
struct stats;

/* The parts, borrowed: valid from volume_open to volume_close. */
struct volume {
    uint8_t id[16];
    char id_text[40]; /* UUID form */
    uint32_t node;    /* node number of this state directory */
    const struct config *conf;
    int state_fd;
    bool trusted; /* the last daemon died but the machine did not: file sizes hold */
    bool clean;   /* the last daemon stopped cleanly, or there was none */
    bool restarted;   /* the machine or a file system was restarted since the last daemon */
    bool topics_profile;

    struct stats *stats;
    struct timers *timers;
    struct exec *pool;       /* device pool: flushes, unlinks, direct reads */
    struct exec *fetch;      /* beginning and cancelling GETs: waits for no device */
    struct exec *bulk;       /* long background work on devices: checks before upload, seals,
                                 * write-behind, unlinks; gives way. The simulation: same as pool */
    struct exec *store_pool; /* file work of a directory store: must not wait behind the other */
    struct objstore *store;
    struct devs *devs;
    struct segfds *segfds;
    struct kv *kv;
    struct cache *cache;
    struct policy *policy;
    struct ns *ns;
    struct data *data;
    struct tier *tier;
    void *priv;

    /* Wired without threads (volume_wire): does some of the pending work, on behalf of whoever waits
     * for it. NULL: threads do it. */
    void (*pump)(struct volume *v);
};

/* Waits a little for work of others: sleeps, or does it when there are no threads. */
static inline void volume_pause(struct volume *v, int64_t ns)
{
    if (v->pump) {
        v->pump(v);
        return;
    }
    struct timespec ts = {.tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC};
    (void)nanosleep(&ts, NULL);
}

#endif
