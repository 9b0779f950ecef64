/* simdisk_int.h: the disk's insides, for simdisk*.c only.
 *
 * node    cur/size: what programs see; dur/dsize: the medium; state[]: per sector CLEAN (same in both),
 *         DIRTY (to be written by a sync), LOST (a failed sync called it clean). cut: the lowest size
 *         of unsynced truncates. Arrays are zero beyond the sizes.
 * names   every directory has two lists of entries, current and durable; `pend` is the ordered log of
 *         changes that the durable lists lack
 * One mutex over everything; no callbacks under it.
 */
#ifndef SLUICE_SIMDISK_INT_H
#define SLUICE_SIMDISK_INT_H

#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>
#include "fs/base/io.h"
#include "tests/sim/simdisk.h"

enum { SECTOR = 512, FD_BASE = 1 << 20, FDS = 4096, PLANS = 16, NO_CUT = -1 };
#define FILE_MAX (256ull << 20)

enum { CLEAN, DIRTY, LOST };

struct node;

struct entry {
    char *name;
    struct node *node;
};

struct names {
    struct entry *v;
    size_t n, cap;
};

struct node {
    struct node *all;
    struct node *parent; /* directories: for ".." */
    uint64_t ino;
    mode_t mode;
    bool mark, scope;
    int64_t mtime_ns;
    struct names cur_names, dur_names;
    uint8_t *cur, *dur, *state;
    uint64_t size, dsize, cap;
    int64_t cut;
};

struct change { /* of names: `from` goes, `to` becomes `node`; either may be absent */
    struct node *from_dir, *to_dir, *node;
    char *from, *to;
    bool chosen;
};

struct plan {
    bool on;
    enum simdisk_call call;
    char match[64];
    unsigned nth, times;
    int err;
};

struct simdisk {
    pthread_mutex_t mu;
    struct node *all, *root;
    size_t nodes, swept;
    uint64_t next_ino, space, used;
    bool ext4_names;
    struct {
        struct node *node;
        int flags;
        char *path;
    } fds[FDS];
    struct change *pend;
    size_t pend_n, pend_cap;
    struct plan plans[PLANS];
    unsigned short_one_in;
    uint64_t short_rng;
    uint64_t calls[SD_CALLS + 1];
    uint64_t failed; /* by plans */
    unsigned freeze_in;
    bool frozen;
};

uint64_t sd_rng(uint64_t *s);
void *sd_must(void *p);
struct entry *sd_names_find(struct names *ns, const char *name);
void sd_change(struct simdisk *d, struct node *from_dir, const char *from, struct node *to_dir,
               const char *to, struct node *node);
void sd_names_sync(struct simdisk *d, struct node *n);
struct node *sd_node_new(struct simdisk *d, mode_t mode, struct node *parent);
void sd_node_free(struct simdisk *d, struct node *n);
void sd_sweep(struct simdisk *d);
void sd_maybe_sweep(struct simdisk *d);
int sd_room(struct node *n, uint64_t size);
void sd_dirty(struct node *n, uint64_t from, uint64_t to);
bool sd_no_space(struct simdisk *d, const struct node *n, uint64_t size);
void sd_set_size(struct simdisk *d, struct node *n, uint64_t size);
int sd_node_truncate(struct simdisk *d, struct node *n, uint64_t len);
void sd_node_sync(struct node *n);
void sd_node_sync_failed(struct node *n);
void sd_scope_set(struct simdisk *d, struct node *top);
void sd_power(struct simdisk *d, uint64_t seed);

/* simdisk.c */
extern struct simdisk *sd_in_use;
enum { SD_FAULT_SHORT = 1 };
/* Counts the call; what a plan or a freeze makes of it: 0, -errno, or SD_FAULT_SHORT. */
int sd_fault(struct simdisk *d, enum simdisk_call call, const char *path);

/* simdisk_ops.c */
extern const struct io_ops sd_ops;
struct node *sd_fd_node(struct simdisk *d, int fd);
int sd_fd_new(struct simdisk *d, struct node *n, int flags, const char *path);
void sd_fd_free(struct simdisk *d, int fd);
/* The directory that holds the last component, and that component ("" for the directory itself). */
int sd_resolve(struct simdisk *d, int dirfd, const char *path, struct node **ret_dir,
               char name[static 256]);
struct node *sd_child(struct node *dir, const char *name);

#endif
