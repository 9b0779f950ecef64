/* policy.h: rules for paths: a file of globs that says for some files what the settings say for all.
 *
 *     # comment                        [GLOB] opens a section (glob.h says what a glob matches); the
 *     [*.index]                        settings below it are for the files that match.
 *     tiered = no
 *
 *   tiered         yes | no            no: stays on the devices, is never uploaded and never evicted
 *   profile        topics | broker     in a broker volume: topics makes a file append-only
 *   segment_bytes  SIZE                as the setting of that name
 *   seal_age       TIME                as the setting
 *   local_age      TIME                as the setting
 *   mirror         yes | no | SIZE     uploaded, but never evicted: always, never, or while it holds no more
 *                                      than SIZE (mirror_below is that for all files of a broker volume)
 *   flush_interval TIME | 0            as the setting; 0: each write is flushed before it is answered
 *
 * Every section that matches counts, setting by setting, the later one wins: general rules first, exceptions
 * behind them. What no section says is as the mount's settings say.
 *
 * The unit is the file, by its path in the mount at this moment: a rename puts a file (or all below a
 * directory) under other rules at once, a reload all files. Nothing that has happened is undone: what was
 * uploaded stays in the bucket, what is remote stays remote. Of a file with several names one counts. A
 * file without a name any more is not uploaded if the rules keep any file local.
 *
 * A set of rules is immutable and counted; which sections an inode matches is remembered in a table of fixed
 * size, and what each write has to know in the inode itself. Lock: policy.mu (RANK_POLICY), short: never
 * held while a path is looked up.
 */
#ifndef SLUICE_POLICY_POLICY_H
#define SLUICE_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct config;
struct inode;
struct kv;
struct policy;
struct policy_set;

enum { POLICY_SECTIONS_MAX = 64, POLICY_BYTES_MAX = 64 * 1024 };

enum policy_key {
    POLICY_TIERED,
    POLICY_PROFILE,
    POLICY_SEGMENT_BYTES,
    POLICY_SEAL_AGE,
    POLICY_LOCAL_AGE,
    POLICY_MIRROR,
    POLICY_FLUSH_INTERVAL,
    POLICY_KEYS
};

/* What holds for one file: sections over settings. Times in milliseconds. */
struct rule {
    uint64_t value[POLICY_KEYS]; /* TIERED: 0, 1; PROFILE: enum profile; MIRROR: most stored bytes,
                                  * 0: never, UINT64_MAX: always */
    uint8_t from[POLICY_KEYS];   /* 1 + the section that says it; 0: the settings */
};

/* ---- sets of rules: immutable once made ---- */

/* `shown`: the file's name in errors. `broker`: of a volume with that profile. 0; -EINVAL, -ERANGE, -E2BIG
 * with one line in `why`, "FILE:LINE: THING: WHAT IS WRONG; REMEDY"; -ENOMEM. */
int policy_parse(const char *text, size_t len, const char *shown, bool broker,
                 struct policy_set **ret, char *why, size_t cap);
/* Reads a file. Its text (*ret_text, malloc'ed) may be NULL. Blocks on local disk. */
int policy_read(const char *path, bool broker, struct policy_set **ret, char **ret_text, char *why,
                size_t cap);
void policy_set_unref(struct policy_set *s); /* NULL accepted */
/* Bit k: section k matches. */
uint64_t policy_match(const struct policy_set *s, const char *path);
/* What the sections in `mask` make of the settings. `s` NULL: the settings alone. */
void policy_merge(const struct policy_set *s, uint64_t mask, const struct config *c,
                  struct rule *ret);

/* For `sluicefs config`: the sections with what they set, and the lines of the file. */
void policy_print(const struct policy_set *s, FILE *f);
void policy_print_json(const struct policy_set *s, FILE *f); /* one object */

/* ---- the rules of a volume ---- */

/* Reads conf->policy, if that is set. For a connection that survived its daemon, takes the rules that the last
 * daemon had, whatever is in the file by now. 0 or -errno with `why`. */
int policy_open(struct kv *kv, const struct config *conf, bool broker, struct policy **ret,
                char *why, size_t cap);
void policy_close(struct policy *p); /* NULL accepted */
/* Reads the file again. On any error (-ENOENT: there is none to read) the old rules stay. `why`: the error,
 * or what was taken. Any thread, without locks; `changed` of policy_on_change is called. */
int policy_reload(struct policy *p, char *why, size_t cap);
void policy_on_change(struct policy *p, void (*changed)(void *arg), void *arg);

/* What holds for a file now. No short lock may be held: may look its path up. */
void policy_of(struct policy *p, uint64_t ino, struct rule *ret);
/* Shorter. */
bool policy_tiered(struct policy *p, uint64_t ino);
/* What each write of a file has to know; costs a load or two. */
enum { POLICY_APPEND_ONLY = 1, POLICY_SYNC = 2 };
unsigned policy_writes(struct policy *p, struct inode *i);
/* That of a broker volume. */
static inline bool policy_append_only(struct policy *p, struct inode *i)
{
    return policy_writes(p, i) & POLICY_APPEND_ONLY;
}
/* The smallest value that any file may have. */
uint64_t policy_least(struct policy *p, enum policy_key k);
/* Some section says tiered = no. */
bool policy_keeps_any(struct policy *p);
/* 0: there are no rules. Else a number that changes with every reload and when a directory is renamed: then
 * ask again for every file (of a file that is renamed alone, policy_moved tells). */
uint32_t policy_generation(struct policy *p);
/* Changes with those and with the rename of any file. */
uint64_t policy_changes(struct policy *p);

/* A rename or unlink changed the paths of this inode, or of all below a directory. */
void policy_moved(struct policy *p, struct inode *i, bool is_dir);

/* For status: which sections matter to a file (members of an object, without braces); the rules as a whole
 * (an object, or null). */
void policy_rule_json(struct policy *p, uint64_t ino, FILE *f);
void policy_status_json(struct policy *p, FILE *f);

#endif
