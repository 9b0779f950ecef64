/* command.c: seal, upload, evict and warm by hand. A command is a list of files and a cursor; each tick
 * does what the file under the cursor needs next and moves on when it is where the command wants it.
 *
 *   SEAL    no open segment is left
 *   UPLOAD  sealed, and every segment committed (a file that was unlinked meanwhile counts as done)
 *   EVICT   uploaded, and no segment has a local copy (likewise); one that a writer waits for is his first
 *   WARM    every segment has one (brought back one by one on the `blocking` pool)
 *
 * Programs write meanwhile. The first three are about the bytes that were there when the command began: what is
 * appended later is not waited for, or the command would never end on a log in use. A segment that a
 * write opened again is sealed again, AGAIN_MAX times; then its file is left as one in use.
 */
#include "fs/tier/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"

enum { FILES_MAX = 4 * 1024 * 1024 };

enum { EVICTS_A_STEP = 32, AGAIN_MAX = 16 };

struct goal {
    uint64_t ino, upto; /* segments that begin below are the command's */
};

#define KEEP_NS NS_PER_SEC /* for the writer's next try, which begins at once; or it died */

struct command {
    struct list link;
    struct tier *t;
    struct tier_cmd *cmd;
    struct task task;
    struct goal *file;
    size_t n, cap, at;
    int64_t started_ns, started_wall_ns;
    size_t sealed;          /* files [0, sealed) were told to seal */
    unsigned again;         /* times that the file at the cursor was sealed since */
    unsigned evicted;       /* segments, in this step */
    uint64_t total, before; /* bytes in all files; in files before the cursor */
    bool busy;              /* a warm is under way */
    bool cancelled;
    int err;
    uint64_t warm_ino, warm_base;
    bool warmed; /* the two are of a segment that was brought back */
};

/* ---- the list of files ---- */

static int add_file(struct command *c, uint64_t ino)
{
    if (c->n == FILES_MAX)
        return -E2BIG;
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 64;
        struct goal *more = realloc(c->file, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        c->file = more;
        c->cap = cap;
    }
    c->file[c->n++] = (struct goal){ino, UINT64_MAX};
    return 0;
}

struct listing {
    struct command *c;
    uint64_t *dirs;
    size_t dirs_n, dirs_cap;
    int err;
};

static int list_name(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    struct listing *l = arg;
    struct name_rec n;
    l->err = name_rec_decode(val, vlen, &n);
    if (l->err == 0 && n.type == DT_REG)
        l->err = add_file(l->c, n.ino);
    if (l->err == 0 && n.type == DT_DIR) {
        if (l->dirs_n == l->dirs_cap) {
            size_t cap = l->dirs_cap ? l->dirs_cap * 2 : 64;
            uint64_t *more = realloc(l->dirs, cap * sizeof *more);
            if (!more) {
                l->err = -ENOMEM;
                return 1;
            }
            l->dirs = more;
            l->dirs_cap = cap;
        }
        l->dirs[l->dirs_n++] = n.ino;
    }
    return l->err != 0;
}

static int list_tree(struct command *c, uint64_t dir)
{
    struct listing l = {.c = c};
    struct key first = key_name(dir, "", 0);
    int r = kv_walk(c->t->v->kv, first.b, first.len, first.b, first.len, list_name, &l);
    while (r >= 0 && l.err == 0 && l.dirs_n) {
        struct key k = key_name(l.dirs[--l.dirs_n], "", 0);
        r = kv_walk(c->t->v->kv, k.b, k.len, k.b, k.len, list_name, &l);
    }
    free(l.dirs);
    return r < 0 ? r : l.err;
}

static void command_end(struct command *c, int err, const char *why)
{
    struct tier *t = c->t;
    list_del(&c->link);
    t->jobs--;
    c->cmd->priv = NULL;
    if (c->cmd->progress && err == 0)
        c->cmd->progress(c->cmd, c->total, c->total);
    c->cmd->done(c->cmd, err, why);
    free(c->file);
    free(c);
}

/* ---- one file ---- */

enum file_step { FILE_DONE, FILE_WAITS, FILE_FAILED };

struct file_look {
    struct command *c;
    struct goal file;
    uint64_t here; /* bytes of this file that are where they should be */
    bool waits, open;
    bool old_open; /* the segment at old_base is open, and older than the command */
    uint64_t old_base;
    int err;
};

/* Local, but on a device that is being drained: warming brings it to another one. */
static bool leaves(struct tier *t, const struct seg_rec *rec)
{
    return rec->state != SEG_OPEN && dev_is_draining(t->v->devs, rec->device);
}

static int look_segment(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct file_look *l = arg;
    struct tier *t = l->c->t;
    struct seg_rec rec;
    uint64_t base;
    l->err = key_parse_seg(key, klen, NULL, &base) ? seg_rec_decode(val, vlen, &rec) : -EBADMSG;
    if (l->err < 0)
        return 1;
    if (base >= l->file.upto)
        return 1;
    l->open |= rec.state == SEG_OPEN;
    const struct tier_cmd *cmd = l->c->cmd;
    if (cmd->kind == TIER_WARM && cmd->len && (base >= cmd->off + cmd->len || rec.end <= cmd->off))
        return 0;
    if (rec.state == SEG_OPEN && cmd->kind != TIER_WARM &&
        rec.created_ns <= l->c->started_wall_ns) {
        l->old_open = true;
        l->old_base = base;
    }
    bool done = false;
    switch (l->c->cmd->kind) {
    case TIER_SEAL:
        done = rec.state != SEG_OPEN;
        break;
    case TIER_UPLOAD:
        done = rec.state == SEG_COMMITTED;
        break;
    case TIER_EVICT:
        done = rec.state == SEG_COMMITTED && !rec.local;
        if (rec.state == SEG_COMMITTED && rec.local && warm_is_kept(t, l->file.ino, base))
            break; /* somebody waits for it */
        if (rec.state == SEG_COMMITTED && rec.local && l->c->evicted == EVICTS_A_STEP) {
            l->waits = true;
            tier_kick_in(t, NS_PER_MS);
            return 1; /* others want the actor, too */
        }
        if (rec.state == SEG_COMMITTED && rec.local) {
            uint64_t freed;
            l->c->evicted++;
            l->err = evict_segment(t, l->file.ino, base, &freed);
            done = freed > 0;
            if (done)
                unlink_tick(t);
        }
        break;
    case TIER_WARM:
        /* Once each: where less fits than is asked for, eviction would undo it for ever. */
        done = (rec.local && !leaves(t, &rec)) ||
               (l->c->warmed && !l->c->busy && l->c->warm_ino == l->file.ino &&
                base <= l->c->warm_base);
        if (!done && (rec.local || rec.state == SEG_COMMITTED) && !l->c->busy) {
            l->c->busy = true;
            l->c->warm_ino = l->file.ino;
            l->c->warm_base = base;
            if (cmd->len) /* a writer needs just this one */
                warm_keep(t, l->file.ino, base, INT64_MAX);
            exec_submit(t->blocking, &l->c->task);
        }
        break;
    }
    if (done && rec.state != SEG_OPEN)
        l->here += rec.end - base;
    l->waits |= !done;
    return l->err < 0 || (l->waits && l->c->cmd->kind == TIER_WARM);
}

static void warmed(struct task *task);

static void run_warm(struct task *task)
{
    struct command *c = container_of(task, struct command, task);
    c->err = warm_segment(c->t, c->warm_ino, c->warm_base);
    c->task.run = warmed;
    exec_submit(c->t->actor, &c->task);
}

static void warmed(struct task *task)
{
    struct command *c = container_of(task, struct command, task);
    c->busy = false;
    c->warmed = true;
    if (c->cmd->len)
        warm_keep(c->t, c->warm_ino, c->warm_base,
                  c->err < 0 || c->cancelled ? 0 : clock_mono_ns() + KEEP_NS);
    c->task.run = run_warm;
    tier_kick(c->t);
}

/* How many segments it closed, or -errno; *ret_size: how long the file was. */
static int seal_file(struct tier *t, uint64_t ino, uint64_t *ret_size)
{
    struct inode *i;
    *ret_size = 0;
    int r = inode_get(t->v->ns, ino, &i);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    *ret_size = atomic_load(&i->size);
    r = data_seal(t->v->data, i);
    inode_put(t->v->ns, i);
    return r;
}

/* It needs the store, and the rule for the file's path keeps it from there. Asked at each step: rules and
 * names change. */
static bool left_out(const struct command *c, uint64_t ino)
{
    return (c->cmd->kind == TIER_UPLOAD || c->cmd->kind == TIER_EVICT) &&
           !policy_tiered(c->t->v->policy, ino);
}

/* A file without a name is in no manifest, so what it still gets is never committed: nobody waits for it. */
static bool never_commits(struct command *c, uint64_t ino)
{
    uint64_t topic;
    return (c->cmd->kind == TIER_UPLOAD || c->cmd->kind == TIER_EVICT) &&
           topic_of(c->t->v->ns, ino, &topic) == -ENOENT;
}

/* A segment older than the command was told to seal. If it is still open and nobody is at it, that has
 * failed; who waits for another try would wait for the next mount, or for `seal_age`. */
static bool seal_failed(struct command *c, uint64_t ino, uint64_t base)
{
    struct inode *i;
    struct seg_rec rec;
    if (inode_get(c->t->v->ns, ino, &i) < 0)
        return false;
    bool busy = data_sealing(i);
    inode_put(c->t->v->ns, i);
    return !busy && seg_get(c->t->v->kv, ino, base, &rec) == 0 && rec.state == SEG_OPEN &&
           rec.created_ns <= c->started_wall_ns; /* else it was opened again meanwhile */
}

static enum file_step step_file(struct command *c, struct goal file, uint64_t *ret_here)
{
    *ret_here = 0;
    if (left_out(c, file.ino))
        return FILE_DONE;
    struct file_look l = {.c = c, .file = file};
    struct key k = key_seg(file.ino, 0);
    int r = kv_walk(c->t->v->kv, k.b, 9, k.b, 9, look_segment, &l);
    if (r >= 0)
        r = l.err;
    *ret_here = l.here;
    if (r >= 0 && l.old_open && seal_failed(c, file.ino, l.old_base))
        r = -EIO;
    if (r >= 0 && l.open && c->cmd->kind != TIER_WARM) {
        uint64_t size;
        r = seal_file(c->t, file.ino, &size); /* nothing where sealing is under way */
        if (r == -EAGAIN)
            return FILE_WAITS;
        if (r > 0 && ++c->again > AGAIN_MAX)
            return FILE_DONE;
    }
    if (r < 0) {
        c->err = r;
        return FILE_FAILED;
    }
    return l.waits && !never_commits(c, file.ino) ? FILE_WAITS : FILE_DONE;
}

static uint64_t file_size(struct tier *t, uint64_t ino)
{
    struct inode *i;
    if (inode_get(t->v->ns, ino, &i) < 0)
        return 0;
    uint64_t n = atomic_load(&i->size);
    inode_put(t->v->ns, i);
    return n;
}

/* A command that needs the store does not wait for one that is known to be gone. */
static bool hopeless(struct command *c, char *why, size_t cap)
{
    struct tier *t = c->t;
    if (c->cmd->kind == TIER_SEAL)
        return false;
    if (t->epoch_state == EPOCH_FENCED && c->cmd->kind != TIER_WARM) {
        snprintf(why, cap, "another mount owns this volume now");
        return true;
    }
    if (t->unrecorded_ns && t->unrecorded_ns >= c->started_ns) {
        snprintf(why, cap, "the state directory does not take it (%s)", err_name(t->unrecorded));
        return true;
    }
    if (t->denied_ns > c->started_ns) {
        snprintf(why, cap, "the store refuses (%s)", t->denied);
        return true;
    }
    struct objstore_status st;
    obj_status(t->v->store, &st);
    if (st.health == OBJ_HEALTH_DOWN)
        snprintf(why, cap, "the store is down (%s)", st.reason);
    return st.health == OBJ_HEALTH_DOWN;
}

static void command_step(struct command *c)
{
    struct tier *t = c->t;
    if (c->busy)
        return; /* its task comes back here, whatever the records say by now */
    if (c->cancelled) {
        command_end(c, -ECANCELED, "given up");
        return;
    }
    if (c->err < 0) {
        command_end(c, c->err, err_name(c->err));
        return;
    }
    for (; c->cmd->kind != TIER_WARM && c->sealed < c->n; c->sealed++) {
        struct goal *file = &c->file[c->sealed];
        int r = left_out(c, file->ino) ? 0 : seal_file(t, file->ino, &file->upto);
        if (r == -EAGAIN)
            break; /* the rest when some have ended */
        if (r < 0) {
            c->err = r;
            tier_kick(t);
            return;
        }
    }
    uint64_t here = 0;
    c->evicted = 0;
    while (c->at < (c->cmd->kind == TIER_WARM ? c->n : c->sealed)) {
        enum file_step s = step_file(c, c->file[c->at], &here);
        if (s == FILE_FAILED) {
            tier_kick(t);
            return;
        }
        if (s == FILE_WAITS)
            break;
        c->before += here;
        here = 0;
        c->again = 0;
        c->at++;
    }
    if (c->cmd->progress)
        c->cmd->progress(c->cmd, min_u64(c->before + here, c->total), c->total);
    char why[300];
    if (c->at == c->n)
        command_end(c, 0, "");
    else if (!c->busy && hopeless(c, why, sizeof why))
        command_end(c, -EIO, why);
}

void command_tick(struct tier *t)
{
    list_each_safe(&t->commands, l, next) command_step(list_entry(l, struct command, link));
}

bool command_wants_manifest(struct tier *t)
{
    list_each(&t->commands, l)
    {
        enum tier_cmd_kind k = list_entry(l, struct command, link)->cmd->kind;
        if (k == TIER_UPLOAD || k == TIER_EVICT)
            return true;
    }
    return false;
}

void command_abort_all(struct tier *t, const char *why)
{
    list_each_safe(&t->commands, l, next)
    {
        struct command *c = list_entry(l, struct command, link);
        c->cancelled = true;
        if (!c->busy)
            command_end(c, -ECANCELED, why);
    }
}

static void run_start(struct task *task)
{
    struct command *c = container_of(task, struct command, task);
    struct tier *t = c->t;
    c->started_ns = clock_mono_ns();
    c->started_wall_ns = clock_wall_ns();
    c->task.run = run_warm;
    list_add_tail(&t->commands, &c->link);
    t->jobs++;
    if (atomic_load(&t->stopping)) {
        command_end(c, -ECANCELED, "the volume is being unmounted");
        return;
    }
    struct inode *i;
    int r = inode_get(t->v->ns, c->cmd->ino, &i);
    if (r == 0) {
        uint32_t type = i->type;
        inode_put(t->v->ns, i);
        r = type == S_IFDIR   ? list_tree(c, c->cmd->ino)
            : type == S_IFREG ? add_file(c, c->cmd->ino)
                              : 0;
    }
    if (r < 0) {
        command_end(c, r, err_name(r));
        return;
    }
    if (c->n == 1 && c->file[0].ino == c->cmd->ino && left_out(c, c->cmd->ino)) {
        command_end(c, -EPERM,
                    "its rule says tiered = no; sluicefs status shows the rule, change that and "
                    "reload");
        return;
    }
    for (size_t k = 0; k < c->n; k++)
        c->total += left_out(c, c->file[k].ino) ? 0 : file_size(t, c->file[k].ino);
    command_step(c);
    tier_kick(t);
}

void tier_command(struct tier *t, struct tier_cmd *cmd)
{
    struct command *c = calloc(1, sizeof *c);
    if (!c) {
        cmd->done(cmd, -ENOMEM, "out of memory");
        return;
    }
    c->t = t;
    c->cmd = cmd;
    c->task.run = run_start;
    cmd->priv = c;
    exec_submit(t->actor, &c->task);
}

struct cancel {
    struct task task;
    struct tier *t;
    struct tier_cmd *cmd;
};

static void cancel_it(struct task *task)
{
    struct cancel *x = container_of(task, struct cancel, task);
    list_each(&x->t->commands, l)
    {
        struct command *c = list_entry(l, struct command, link);
        if (c->cmd == x->cmd)
            c->cancelled = true;
    }
    tier_kick(x->t);
    free(x);
}

void tier_command_cancel(struct tier *t, struct tier_cmd *cmd)
{
    struct cancel *x = calloc(1, sizeof *x);
    if (!x)
        return; /* it goes on to its end */
    *x = (struct cancel){{.run = cancel_it}, t, cmd};
    exec_submit(t->actor, &x->task);
}
