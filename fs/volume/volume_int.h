/* volume_int.h: steps of opening a volume, shared by the mount (volume.c), the rebuild from the bucket
 * (restore*.c) and the offline check (fsck*.c). Each step relies on those before it; volume_close takes
 * back whatever there is. Errors as volume_open. */
#ifndef SLUICE_VOLUME_VOLUME_INT_H
#define SLUICE_VOLUME_VOLUME_INT_H

#include <stdatomic.h>
#include "fs/volume/ident.h"
#include "fs/volume/volume.h"

enum volume_exit { VOL_FAILED = 1, VOL_USAGE = 2, VOL_REFUSED = 4 };

struct volume_priv {
    struct ident ident;
    bool first;      /* no identity yet */
    bool made_state; /* the state directory did not exist before */
    bool made_lock;  /* nor did its lock file */
    bool claiming;   /* a first mount has begun to make parts that carry its id */
    int lock_fd;
    _Atomic bool changing_devices; /* one change at a time; who has set it may use ident */
};

static inline struct volume_priv *volume_priv(struct volume *v)
{
    return v->priv;
}

/* 0 or -ENOMEM. */
int volume_new(const struct config *conf, struct volume **ret);
/* Metrics, timers, pools. */
int volume_threads(struct volume *v, char *why, size_t cap);
int volume_make_dirs(const char *path);
/* Opens and locks the state directory. -ENOENT: there is none. */
int volume_lock_state(struct volume *v, char *why, size_t cap, int *ret_exit);
int volume_read_identity(struct volume *v, char *why, size_t cap, int *ret_exit);
/* What the command line says against what the volume is. */
int volume_check_identity(struct volume *v, const struct store_url *url, char *why, size_t cap);
/* No request is sent. */
int volume_open_store(struct volume *v, struct store_url *url, bool create, char *why, size_t cap,
                      int *ret_exit);
/* dirlock.c: 0: this directory is ours until `fd` is closed; -EWOULDBLOCK: another process has it, also after
 * the moment that a killed one may need to end. Sleeps that long at most. */
int dir_lock_soon(int fd);
/* The volume's devices (always all of them), then new ones from the command line. devices.c */
int volume_open_devices(struct volume *v, char *why, size_t cap);

/* ---- session.c: metadata and devices are open ---- */
/* Sets trusted, clean, restarted; devices remember failed flushes. *ret_stale: what is stored is not what it
 * would be now. */
int session_judge(struct volume *v, bool *ret_stale);
/* Durable on return. */
int session_store(struct volume *v, bool clean);

/* Identity, store, devices, metadata and descriptors of a volume that no daemon has; none of what
 * would change anything (recovery, tiering). For fsck. The profile is taken from the volume. `why` and
 * exit codes as volume_open. */
int volume_open_offline(struct config *conf, struct volume **ret, char *why, size_t cap,
                        int *ret_exit);

#endif
