/* config.h: every setting: name, type, default, bounds, help, in one table.
 *
 * Order of precedence: command line, configuration file, environment (SLUICEFS_NAME), default. The
 * source of each value is kept for `sluicefs config`. Unknown names and values out of bounds are
 * errors that name the setting, the value and the bounds.
 *
 * Configuration file: INI. [volume] holds the settings below (name = value); `device = DIR[=SIZE]`
 * may repeat. Lines starting with # or ; are comments.
 */
#ifndef SLUICE_VOLUME_CONFIG_H
#define SLUICE_VOLUME_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "fs/base/bounds.h"

/*    name               default        min          max         help */
#define CONFIG_SIZES(X)                                                                             \
    X(pool,              256 * MiB,     8 * MiB,     1 * TiB,    "memory for slices")               \
    X(segment_bytes,     128 * MiB,     64 * KiB,    4 * GiB,    "seal a segment at this size")     \
    X(slice,             4 * MiB,       256 * KiB,   64 * MiB,   "piece of a segment in the pool")  \
    X(window_min,        4 * MiB,       256 * KiB,   1 * GiB,    "read-ahead of a reader, smallest") \
    X(window_max,        64 * MiB,      1 * MiB,     16 * GiB,   "read-ahead of a reader, largest") \
    X(mirror_below,      1 * MiB,       0,           64 * MiB,   "files with less are mirrored, not evicted") \
    X(multipart_above,   256 * MiB,     16 * MiB,    5 * GiB,    "larger segments are sent in parts")

/* durations in milliseconds; written with units: 10ms 3s 10m 24h */
#define CONFIG_TIMES(X)                                                                             \
    X(seal_age,          600000,        100,         2592000000, "seal an open segment at this age") \
    X(local_age,         86400000,      0,           31536000000, "evict a committed segment at this age") \
    X(read_deadline,     60000,         0,           3600000,    "a cold read fails after this; 0: never") \
    X(delete_delay,      600000,        0,           604800000,  "objects are deleted this much later") \
    X(unread_life,       60000,         1000,        3600000,    "read-ahead that nobody read lives this long") \
    X(metadata_batch,    1000,          1,           60000,      "longest time of metadata outside LMDB") \
    X(manifest_delay,    1000,          0,           60000,      "commits within this share one manifest write") \
    X(flush_interval,    5000,          100,         3600000,    "open segments are written back at least this often") \
    X(store_timeout,     30000,         1000,        600000,     "longest wait for the store at the first mount") \
    X(gc_grace,          86400000,      0,           31536000000, "gc deletes nothing that is younger")  \
    X(scrub_partial,     3600000,       100,         31536000000, "a part of the local bytes is read and compared this often") \
    X(scrub_full,        43200000,      100,         31536000000, "all objects are looked for within this") \
    X(slow_spread,       8000,          100,         3600000,    "time over which writers spread the room above 90 %")

#define CONFIG_NUMBERS(X)                                                                           \
    X(evict_from,        70,            1,           95,         "percent of the budget: eviction starts") \
    X(evict_to,          60,            0,           95,         "percent of the budget: eviction stops") \
    X(watermark,         50,            1,           99,         "percent of a slice: fetch the next ones") \
    X(uploads,           4,             1,           64,         "segments uploaded at once")       \
    X(connections,       16,            2,           256,        "connections to the store")        \
    X(workers,           16,            2,           64,         "FUSE worker threads")             \
    X(scrub_permille,    10,            0,           1000,       "thousandths of all bytes read by each partial scrub") \
    X(device_threads,    16,            1,           32,         "threads for flushes and direct reads, as many again for a directory store") \
    X(restarts,          5,             1,           1000,       "deaths of the daemon within a minute: then the mount is given up and answers ENOTCONN")

enum profile { PROFILE_TOPICS, PROFILE_BROKER };
enum { CONFIG_DEVICES_MAX = 16 };

struct config_device {
    char *path;
    uint64_t budget;            /* 0: default */
};

struct config {
#define X(name, def, min, max, help) uint64_t name;
    CONFIG_SIZES(X)
    CONFIG_TIMES(X)
    CONFIG_NUMBERS(X)
#undef X
    enum profile profile;
    char *state;                /* directory; filled with the default place when not given */
    char *store;                /* URL */
    char *mountpoint;           /* absolute */
    struct config_device device[CONFIG_DEVICES_MAX];
    unsigned devices;
    bool devices_by_default;    /* none was named: the one is the default place */
    char *fuse_options;         /* what is handed to libfuse, comma separated */
    bool xattr;                 /* -o xattr */
    bool allow_other;
    bool read_only;
    bool scrub;                 /* looking for damage in the background */
    bool supervise;             /* a daemon that dies is replaced under the live mount */
    char *policy;               /* file of rules for paths: fs/policy */
    char *aws_profile;
    char *fault_plan;           /* tests: path of a fault plan for the store */
    char *log_file;             /* NULL: standard error in the foreground, state/log otherwise */
    char *debug;                /* components */
    bool sources_known;
    char *source_text;          /* for `sluicefs config`: name=source lines */

    /* Not settings: filled by the daemon that starts, shown by its status. */
    bool connection_survived;   /* it takes over the FUSE connection of a daemon before it */
    _Atomic bool supervised;    /* another one would take over from it; set while it serves */
    int supervisor;             /* process id, 0: none */
    unsigned takeovers;         /* daemons before it on this connection */
};

/* All defaults. */
void config_init(struct config *c);
void config_done(struct config *c);

/* Sets one setting from text. `source`: "command line", "environment" or "FILE:LINE". 0; -ENOENT
 * (unknown), -ERANGE, -EINVAL; `why` gets the whole sentence. */
int config_set(struct config *c, const char *name, const char *text, const char *source, char *why,
               size_t why_cap);

/* Reads an INI file. -errno with `why` naming file and line. */
int config_load_file(struct config *c, const char *path, char *why, size_t why_cap);
int config_load_env(struct config *c, char *why, size_t why_cap);

/* Is it this directory, or below it? Both absolute, without . and .. in them. Pure. */
bool path_within(const char *path, const char *dir);
/* A copy without symbolic links, as far as the path exists. NULL: no memory. Looks at the file system. */
char *path_resolved(const char *path);

/* Checks that need several settings, and fills default places from the mount point. */
int config_finish(struct config *c, char *why, size_t why_cap);
/* Of these only: paths become absolute. For settings that come later, among the mount options. */
int config_paths(struct config *c, char *why, size_t why_cap);

/* Prints every setting: name, value, source, bounds, help; and the rules for paths with theirs. */
void config_print(const struct config *c, FILE *f, bool json);

int parse_size(const char *text, uint64_t *ret);     /* 64M, 1GiB, 512; 0/-EINVAL/-ERANGE */
int parse_duration(const char *text, uint64_t *ret_ms);

#endif
