/* mounts.h: which mounts of ours there are, which one a path is in, and talking to its daemon. */
#ifndef SLUICE_TOOLS_MOUNTS_H
#define SLUICE_TOOLS_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct mount_row {
    int id;       /* of mountinfo */
    char dev[32]; /* "MAJOR:MINOR": one file system */
    char *root;   /* what of it is mounted: "/" unless it is a bind mount */
    char *path;   /* where */
    char *source; /* what df shows */
};

struct mount_list {
    struct mount_row *row;
    unsigned n;
};

/* The mounts of type fuse.sluicefs that this process sees. EXIT_OK or an exit code, having said why. */
int mounts_read(struct mount_list *ret);
void mounts_free(struct mount_list *l);

/* The topmost mount exactly at this path, or NULL. */
const struct mount_row *mounts_at(const struct mount_list *l, const char *path);

struct target {
    char *mountpoint; /* of a mount of the whole file system */
    char *control;    /* path of the daemon's socket */
    char *status;     /* the document of the volume, as read from the mount */
    uint64_t ino;
    mode_t mode;
    bool is_root; /* the path is a mount point */
};

/* Finds the mount that holds `path` and its daemon. Never waits longer than a few seconds, even for a
 * daemon that hangs. An exit code, having said why: 3 when it is not in a mount of ours or nothing
 * answers. */
int target_find(const char *path, struct target *ret);
void target_free(struct target *t);

/* The status document of a mount (malloc'ed): 0; -ENOTCONN: dead; -ETIMEDOUT: hangs; -EACCES: of
 * another user; -errno. Says nothing. */
int mount_status(const char *mountpoint, char **ret);

/* Runs fn in a child process and reads what it writes to `out`: bytes read, -ETIMEDOUT (it was killed
 * after ms), -errno. For whatever may wait for a daemon that hangs. */
ssize_t child_read(void (*fn)(const void *arg, int out), const void *arg, unsigned ms, char *buf,
                   size_t max);

/* The absolute path without symbolic links above its last component; works for a dead mount. */
char *path_absolute(const char *path);

/* ---- requests ---- */
struct reply {
    int code;     /* exit code */
    uint64_t ino; /* of the file that failed, or 0 */
    char text[1024];
    char *document; /* DATA, NUL-terminated, or NULL */
};

struct ask {
    const char *request;
    unsigned wait_ms; /* the longest silence; 0: any, for commands that take long */
    int stop_fd;      /* readable: give the request up; -1: none */
    bool again;       /* it says what is to be, so a daemon that takes the mount over is asked again */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *arg;
};

/* Sends a request and reads its answer. Returns the reply's exit code, for the caller to explain with
 * reply.text; or one of its own, having said why: then *ret_said is true. */
int control_ask(const struct target *t, const struct ask *a, struct reply *ret, bool *ret_said);
/* Connects only. Descriptor, or -errno. */
int control_connect(const struct target *t);
void reply_free(struct reply *r);

#endif
