/* policy.c: the rules of a volume: the present set, who matches what, reloading.
 *
 * An answer is found in three steps, the cheapest first:
 *   inode.rule      generation and a flag: what each write has to know
 *   slot[ino]       the sections that an inode matches; direct mapped, a collision forgets one
 *   the path        looked up in the metadata store and compared with every glob, without a lock
 * A path that was looked up counts only if nothing was renamed meanwhile (`changes`), else it is looked up
 * again. `generation` names the set of rules and the state of directories that all remembered answers
 * are of: a reload and a rename of a directory raise it, the rename of a file forgets that file's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/ns/ns.h"
#include "fs/ns/path.h"
#include "fs/policy/policy_int.h"

enum { SLOTS = 16384, TRIES_MAX = 8, PATH_BYTES_MAX = 8192 };
/* inode.rule: generation << 2 | POLICY_APPEND_ONLY | POLICY_SYNC. Generations wrap around, past 0. */
enum { WRITE_BITS = 2, GENERATION_MAX = 0x3fffffff };

struct slot {
    uint64_t ino, mask;
    uint32_t generation;
    bool named;
};

struct policy {
    struct kv *kv;
    const struct config *conf;
    bool broker;
    struct lock mu;         /* RANK_POLICY: set, slot, loaded_ns */
    struct policy_set *set; /* NULL: no rules */
    struct slot *slot;
    int64_t loaded_ns;
    _Atomic uint32_t generation; /* 0: no rules */
    _Atomic uint64_t changes;
    _Atomic bool keeps_any;
    _Atomic unsigned of_writes; /* what no section says need not be asked for */
    _Atomic uint64_t least[POLICY_KEYS];
    struct lock reload; /* RANK_CONTROL: one reload at a time */
    void (*changed)(void *arg);
    void *changed_arg;
};

/* ---- taking a set ---- */

/* policy.mu held. What was remembered is forgotten. */
static void next_generation_locked(struct policy *p)
{
    uint32_t now = atomic_load(&p->generation);
    atomic_store(&p->generation, now >= GENERATION_MAX ? 1 : now + 1);
    atomic_fetch_add(&p->changes, 1);
}

static void take_set(struct policy *p, struct policy_set *set)
{
    lock_acquire(&p->mu);
    struct policy_set *old = p->set;
    p->set = set;
    p->loaded_ns = clock_wall_ns();
    for (unsigned k = 0; k < POLICY_KEYS; k++)
        atomic_store(&p->least[k], set->least[k]);
    atomic_store(&p->keeps_any, set->says_tiered_no);
    atomic_store(&p->of_writes, set->says_of_writes);
    next_generation_locked(p);
    lock_release(&p->mu);
    policy_set_unref(old);
}

/* The last text that was taken, for a daemon that takes over: a row of the metadata store, its first byte 1. */
static void keep_text(struct policy *p, const char *text)
{
    size_t len = strlen(text);
    AUTO_FREE char *row = malloc(len + 1);
    if (!row)
        return;
    row[0] = 1;
    memcpy(row + 1, text, len);
    struct key k = key_setting("policy");
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, k.b, k.len, row, len + 1);
    int err = kv_apply(p->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    if (err < 0)
        log_warn(LC_MAIN, "policy: the rules could not be kept for the next daemon: %s",
                 err_name(err));
}

static int kept_text(struct policy *p, struct policy_set **ret, char *why, size_t cap)
{
    AUTO_FREE char *row = malloc(POLICY_BYTES_MAX + 1);
    struct key k = key_setting("policy");
    if (!row)
        return -ENOMEM;
    ssize_t n = kv_get(p->kv, k.b, k.len, row, POLICY_BYTES_MAX + 1);
    if (n < 1 || n > POLICY_BYTES_MAX + 1 || row[0] != 1)
        return n < 0 ? (int)n : -EBADMSG;
    return policy_parse(row + 1, (size_t)n - 1, p->conf->policy, p->broker, ret, why, cap);
}

static int load(struct policy *p, char *why, size_t cap)
{
    struct policy_set *set;
    AUTO_FREE char *text = NULL;
    int err = policy_read(p->conf->policy, p->broker, &set, &text, why, cap);
    if (err)
        return err;
    keep_text(p, text);
    take_set(p, set);
    return 0;
}

/* Rules change when somebody says so, not when a daemon dies. */
static int load_kept(struct policy *p, char *why, size_t cap)
{
    struct policy_set *set;
    char ignored[256];
    if (kept_text(p, &set, ignored, sizeof ignored) < 0)
        return load(p, why, cap);
    take_set(p, set);
    return 0;
}

int policy_open(struct kv *kv, const struct config *conf, bool broker, struct policy **ret,
                char *why, size_t cap)
{
    struct policy *p = calloc(1, sizeof *p);
    struct slot *slot = conf->policy ? calloc(SLOTS, sizeof *slot) : NULL;
    if (!p || (conf->policy && !slot)) {
        free(p);
        free(slot);
        snprintf(why, cap, "policy: no memory; free some");
        return -ENOMEM;
    }
    *p = (struct policy){.kv = kv, .conf = conf, .broker = broker, .slot = slot, .changes = 1};
    for (unsigned k = 0; k < POLICY_KEYS; k++)
        atomic_store(&p->least[k], UINT64_MAX);
    lock_init(&p->mu, "policy", RANK_POLICY, false);
    lock_init(&p->reload, "policy.reload", RANK_CONTROL, true);
    int err = !conf->policy               ? 0
              : conf->connection_survived ? load_kept(p, why, cap)
                                          : load(p, why, cap);
    if (err) {
        policy_close(p);
        return err;
    }
    *ret = p;
    return 0;
}

void policy_close(struct policy *p)
{
    if (!p)
        return;
    policy_set_unref(p->set);
    lock_destroy(&p->mu);
    lock_destroy(&p->reload);
    free(p->slot);
    free(p);
}

int policy_reload(struct policy *p, char *why, size_t cap)
{
    if (!p->conf->policy) {
        snprintf(why, cap, "was mounted without rules; mount it with --policy FILE");
        return -ENOENT;
    }
    LOCK_SCOPE(&p->reload);
    int err = load(p, why, cap);
    if (err) {
        log_warn(LC_MAIN, "%s; the old rules stay", why);
        return err;
    }
    lock_acquire(&p->mu);
    snprintf(why, cap, "%u sections from %s", p->set->n, p->set->shown);
    lock_release(&p->mu);
    log_info(LC_MAIN, "policy: %s", why);
    if (p->changed)
        p->changed(p->changed_arg);
    return 0;
}

void policy_on_change(struct policy *p, void (*changed)(void *arg), void *arg)
{
    LOCK_SCOPE(&p->reload);
    p->changed = changed;
    p->changed_arg = arg;
}

/* ---- asking ---- */

static struct slot *slot_of(struct policy *p, uint64_t ino)
{
    return &p->slot[(ino * 0x9e3779b97f4a7c15ull) >> 50];
}

/* Which sections match, by the path. False: it has none. */
static bool look_up(struct policy *p, const struct policy_set *set, uint64_t ino, uint64_t *ret)
{
    char path[PATH_BYTES_MAX];
    *ret = 0;
    if (inode_path(p->kv, ino, path, sizeof path) < 0)
        return false;
    *ret = policy_match(set, path);
    return true;
}

/* Nobody will miss the bytes of a file without a name. */
static void no_name(struct policy *p, struct rule *r)
{
    if (atomic_load(&p->keeps_any))
        r->value[POLICY_TIERED] = false;
}

/* policy.mu held. */
static void answer_locked(struct policy *p, const struct slot *s, struct rule *ret)
{
    policy_merge(p->set, s->mask, p->conf, ret);
    if (!s->named)
        no_name(p, ret);
}

static unsigned writes_of(const struct rule *r)
{
    return (r->value[POLICY_PROFILE] == PROFILE_TOPICS ? POLICY_APPEND_ONLY : 0) |
           (r->value[POLICY_FLUSH_INTERVAL] == 0 ? POLICY_SYNC : 0);
}

/* Also into `i`, which may be NULL. */
static void ask(struct policy *p, uint64_t ino, struct inode *i, struct rule *ret)
{
    struct slot found = {.ino = ino};
    lock_acquire(&p->mu);
    for (unsigned tries = 0;; tries++) {
        struct slot *s = slot_of(p, ino);
        uint32_t now = atomic_load(&p->generation);
        bool known = s->ino == ino && s->generation == now;
        /* Names that change all the time: the last answer is as good as any. */
        if (!known && tries == TRIES_MAX) {
            answer_locked(p, &found, ret);
            break;
        }
        if (known) {
            answer_locked(p, s, ret);
            if (i)
                atomic_store(&i->rule, now << WRITE_BITS | writes_of(ret));
            break;
        }
        uint64_t changes = atomic_load(&p->changes);
        struct policy_set *set = p->set;
        atomic_fetch_add(&set->refs, 1);
        lock_release(&p->mu);
        found.named = look_up(p, set, ino, &found.mask);
        policy_set_unref(set);
        lock_acquire(&p->mu);
        if (atomic_load(&p->changes) == changes) {
            found.generation = now;
            *slot_of(p, ino) = found;
        }
    }
    lock_release(&p->mu);
}

void policy_of(struct policy *p, uint64_t ino, struct rule *ret)
{
    if (!atomic_load(&p->generation))
        policy_merge(NULL, 0, p->conf, ret);
    else
        ask(p, ino, NULL, ret);
}

bool policy_tiered(struct policy *p, uint64_t ino)
{
    struct rule r;
    if (!atomic_load_explicit(&p->keeps_any, memory_order_relaxed))
        return true;
    policy_of(p, ino, &r);
    return r.value[POLICY_TIERED];
}

unsigned policy_writes(struct policy *p, struct inode *i)
{
    unsigned said = atomic_load_explicit(&p->of_writes, memory_order_relaxed);
    if (!said)
        return p->broker ? 0 : POLICY_APPEND_ONLY;
    uint32_t have = atomic_load(&i->rule);
    if (have >> WRITE_BITS == atomic_load(&p->generation))
        return have & (POLICY_APPEND_ONLY | POLICY_SYNC);
    struct rule r;
    ask(p, i->ino, i, &r);
    return writes_of(&r);
}

uint64_t policy_least(struct policy *p, enum policy_key k)
{
    struct rule r;
    policy_merge(NULL, 0, p->conf, &r);
    uint64_t least = atomic_load_explicit(&p->least[k], memory_order_relaxed);
    return least < r.value[k] ? least : r.value[k];
}

bool policy_keeps_any(struct policy *p)
{
    return atomic_load(&p->keeps_any);
}

uint32_t policy_generation(struct policy *p)
{
    return atomic_load(&p->generation);
}

uint64_t policy_changes(struct policy *p)
{
    return atomic_load(&p->changes);
}

void policy_moved(struct policy *p, struct inode *i, bool is_dir)
{
    if (!atomic_load(&p->generation))
        return;
    LOCK_SCOPE(&p->mu);
    if (is_dir) {
        next_generation_locked(p);
        return;
    }
    struct slot *s = slot_of(p, i->ino);
    if (s->ino == i->ino)
        *s = (struct slot){0};
    atomic_store(&i->rule, 0);
    atomic_fetch_add(&p->changes, 1);
}

/* ---- for status ---- */

void policy_rule_json(struct policy *p, uint64_t ino, FILE *f)
{
    struct rule r;
    policy_of(p, ino, &r);
    fprintf(f, "\"tiered\":%s,\"rules\":", r.value[POLICY_TIERED] ? "true" : "false");
    lock_acquire(&p->mu);
    struct policy_set *set = p->set;
    if (set)
        atomic_fetch_add(&set->refs, 1);
    lock_release(&p->mu);
    uint64_t mask;
    if (set && look_up(p, set, ino, &mask)) {
        policy_merge(set, mask, p->conf, &r);
        policy_print_rule(set, &r, f);
    } else {
        (void)fputs(set ? "[]" : "null", f);
    }
    policy_set_unref(set);
}

void policy_status_json(struct policy *p, FILE *f)
{
    lock_acquire(&p->mu);
    struct policy_set *set = p->set;
    if (set)
        atomic_fetch_add(&set->refs, 1);
    int64_t since = p->loaded_ns;
    lock_release(&p->mu);
    if (!set) {
        (void)fputs("null", f);
        return;
    }
    fprintf(f, "{\"sections\":%u,\"loaded_seconds_ago\":%lld,\"policy\":", set->n,
            (long long)((clock_wall_ns() - since) / NS_PER_SEC));
    policy_print_json(set, f);
    (void)fputc('}', f);
    policy_set_unref(set);
}
