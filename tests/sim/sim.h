/* sim.h: the simulation's parts. One thread steps the real core over a simulated disk, a simulated store
 * and a virtual clock, beside a model that is a list of names and a byte array per file.
 *
 *   world.c   the volume: opening, stepping, stopping, crashing
 *   model.c   names and bytes as the core has acknowledged them; what a crash may leave of them
 *   check.c   what must hold at any moment, and when everything has settled
 *   act*.c    what users, time, the store and the disk do
 *   nth.c     each operation, with each call of it failing once
 *   sim.c     runs seeds
 */
#ifndef SLUICE_SIM_H
#define SLUICE_SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fs/data/data.h"
#include "fs/ns/ns.h"
#include "fs/tier/tier.h"
#include "fs/volume/config.h"
#include "fs/volume/volume.h"
#include "objstore/mem.h"
#include "objstore/stack.h"
#include "tests/sim/simdisk.h"

enum {
    ENTRIES_MAX = 40,
    FILES_MAX = 4096,
    HANDLES_MAX = 12,
    READS_MAX = 12,
    SYNCS_MAX = 8,
    COMMANDS_MAX = 4,
    DEVS_MAX = 2,
    NAME_MAX_SIM = 12
};

/* ---- model ---- */

struct patch {                  /* broker: bytes written since the last fsync */
    uint64_t off, len;
    uint8_t *buf;               /* NULL: the file was cut to `off` */
};

struct mfile {
    uint64_t ino;
    bool dir;
    uint8_t *bytes;             /* what a reader must see */
    uint64_t cap;
    uint64_t len;               /* acknowledged by write */
    uint64_t max;               /* may be there: a write that had no clear end */
    uint64_t durable;           /* acknowledged by fsync */
    unsigned held;              /* handles, reads and fsyncs that pin it */
    uint8_t *old;               /* broker: bytes at the last fsync */
    uint64_t old_len;
    struct patch *patch;
    unsigned patches;
    unsigned reading;
    bool durable_made;          /* that it was made survived a loss of power */
    bool unsure;                /* perhaps it did not */
    bool blurred;               /* broker: an operation without a clear end; its bytes are open */
};

struct mentry {
    uint64_t parent, ino;       /* ino 0: made by a call that had no clear end */
    uint32_t mode;
    char name[NAME_MAX_SIM];
};

struct mnames {
    struct mentry e[ENTRIES_MAX];
    unsigned n;
    bool acked;
};

struct model {
    struct mfile *file[FILES_MAX];
    unsigned files;
    struct mnames *v;           /* history; the last acknowledged one is the present */
    unsigned n, cap;
    unsigned now;               /* index of the present */
    unsigned durable;           /* index: this or a later one survives loss of power */
    unsigned dropped;           /* so many are gone from the front: what was remembered as an index */
};

/* ---- requests under way ---- */

struct mhandle {
    struct inode *i;
    struct mfile *f;
    uint64_t fh, pos;
};

struct mread {
    struct data_read r;
    struct mfile *f;
    uint64_t size_then;
    unsigned life;
    bool done, used;
};

struct msync {
    struct data_sync s;
    struct mfile *f;
    uint64_t len_then;
    unsigned version_then; /* counted from the very first */
    unsigned patches_then, life;
    bool used;
};

struct mcommand {
    struct tier_cmd c;
    unsigned life;
    bool used;
};

/* ---- world ---- */

struct world {
    uint64_t seed, rng;
    uint64_t step;
    unsigned life;
    bool verbose;
    struct config conf;
    char dir[64];               /* of LMDB, on the real disk */
    struct simdisk *disk;
    struct mem_bucket *bucket;
    struct objstore *look;      /* a client of our own, to look at the bucket */
    struct volume *v;
    struct store_caps caps;
    uint32_t dev_id[DEVS_MAX];
    char dev_path[DEVS_MAX][16];
    unsigned boot;
    unsigned pump_depth;
    bool in_blocking;
    unsigned did[8];            /* steps by source, since world_idle began */
    bool broker;

    struct model m;
    struct mhandle handle[HANDLES_MAX];
    struct mread *read[READS_MAX];
    struct msync *sync[SYNCS_MAX];
    struct mcommand *command[COMMANDS_MAX];

    bool store_trouble;         /* in this life the store was made to misbehave */
    bool disk_trouble;          /* likewise the disk */
    bool crashed;               /* ever, or the disk failed: files may be left that nobody names */
    bool journal_gone;
    uint64_t written;           /* bytes so far; bounded */

    unsigned weight[32];        /* of actions; 0: not in this run */
    struct {
        uint64_t writes, reads, syncs, read_errors, crashes, powers, evicted, checks, commands;
    } count;
};

void sim_fail(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void sim_note(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t rnd64(struct world *w);
uint32_t rnd(struct world *w, uint32_t n); /* 0..n-1 */

/* world.c */
void world_make(struct world *w, uint64_t seed, bool broker);
void world_free(struct world *w);
int world_open(struct world *w);        /* with `trusted` as boot ids say */
/* An unmount. True: it was clean, and everything acknowledged is durable. The planned crash may come in it. */
bool world_stop(struct world *w);
void world_crash(struct world *w, bool power);
void world_boot_id(struct world *w); /* the machine was restarted as often as w->boot says */
bool world_step(struct world *w);       /* one piece of pending work, by chance. False: none */
void world_idle(struct world *w);       /* until there is none */
void world_run(struct world *w, int64_t ns); /* lets so much time pass */
void world_faults_off(struct world *w);
/* Everything is uploaded, deleted, evicted that is to be; false: it did not come to rest. */
bool world_settle(struct world *w, char *why, size_t cap);

/* model.c */
struct mfile *model_file(struct model *m, uint64_t ino);
struct mfile *model_file_add(struct world *w, uint64_t ino, bool dir);
struct mnames *model_now(struct model *m);
int names_find(const struct mnames *n, uint64_t parent, const char *name);
unsigned names_links(const struct mnames *n, uint64_t ino);
/* A copy of the present to be changed; then push it, as acknowledged or as possible. */
struct mnames model_next(struct model *m);
void model_push(struct model *m, const struct mnames *n, bool acked);
void model_grow(struct mfile *f, uint64_t len);
/* After a crash: finds what of the history is there, compares every byte, and goes on from it. */
void model_recover(struct world *w, bool power);
void model_compare(struct world *w);    /* names and sizes are those of the present */
void model_compare_bytes(struct world *w);
void model_synced(struct world *w, struct mfile *f, uint64_t len, unsigned patches);
void model_free(struct model *m);

/* check.c */
void check_now(struct world *w);
void check_settled(struct world *w);

/* nth.c */
int nth_main(int argc, char **argv); /* [SCENE [FAULT [N]]] */

/* act.c */
void act_choose(struct world *w);
void act_one(struct world *w);
void act_append(struct world *w, struct mfile *f, uint64_t n);
void act_fsync(struct world *w, struct mfile *f);
struct mfile *act_create(struct world *w, uint64_t parent, const char *name);
struct mfile *act_mkdir(struct world *w, uint64_t parent, const char *name);
/* Broker. -EAGAIN: the rest is to be tried again; what is in the way is being brought back. */
int act_write(struct world *w, struct mfile *f, uint64_t off, size_t n);
int act_truncate(struct world *w, struct mfile *f, uint64_t off);
void act_command(struct world *w, enum tier_cmd_kind kind, uint64_t ino);
int act_unlink(struct world *w, int at);
int act_rename(struct world *w, int at, uint64_t parent, const char *name, unsigned flags);
/* After a crash: opens, perhaps with more crashes on the way, and compares. */
void act_reopen(struct world *w, bool power);
void acts_drop(struct world *w);        /* after a crash: nothing is under way any more */
void acts_finish(struct world *w);      /* waits for all of it */
void handles_drop(struct world *w);
/* Reads synchronously; -errno or the number of bytes, which are in buf. */
int64_t read_now(struct world *w, struct inode *i, uint64_t off, void *buf, size_t len);

#endif
