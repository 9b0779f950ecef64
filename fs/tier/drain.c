/* drain.c: emptying a device while the volume works. That a device is draining is in the volume's identity
 * and in fs/seg/dev.h; everything else is found again by looking, so a crash at any step loses nothing.
 *
 * A pass walks all segment records; each that is on the device is brought away by its state:
 *
 *   OPEN                      sealed; the next append begins a segment on another device
 *   SEALED, UPLOADED          copied to a device that stays below `evict_from` with it (below 90 % while
 *                             the store is down, or a rule keeps the file local); else it waits for its
 *                             upload, and goes as the next line
 *   COMMITTED                 the same copy, so that it stays warm; else its local copy goes (law 3 holds: it
 *                             is committed), unless the store is down: a replay must find it here
 *   COMMITTED, not readable   its local copy goes: the object is the good one
 *   others, not readable      stuck: `device remove --lost` names them and gives them up
 *
 * A pass that finds nothing, no file of the device to be unlinked and nobody who has a file open there or
 * is about to make one: the device is drained. New segments do not come, so passes end; a hot file that is
 * rewritten all the time is moved by its writer (fs/data/rewrite.c).
 *
 * The actor decides when a step runs; it runs on the bulk pool, moves one segment or evicts a few, and
 * comes back. No lock: `struct drain` is used by the step while it is out and by the actor else.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"

enum { ROWS_MAX = 4096, FOUND_MAX = 32, WAIT_MS = 200 };

struct found {
    uint64_t ino, base, bytes;
    uint8_t state;
};

struct drain {
    struct tier *t;
    struct task task;
    bool out;
    unsigned place; /* of the device, in the list */
    uint32_t device;
    bool in_pass;
    uint64_t ino, base; /* where the pass goes on */
    int64_t next_ns;

    /* of this pass */
    uint64_t stays, stuck_bytes;
    unsigned stuck, sealing, uploading, blocked, gone;

    /* of this step */
    struct found found[FOUND_MAX];
    unsigned n, rows;
    bool more, trouble; /* rows follow; they cannot be read */
};

/* ---- looking ---- */

static int see_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct drain *dr = arg;
    struct seg_rec rec;
    uint64_t ino, base;
    if (!key_parse_seg(key, klen, &ino, &base) || seg_rec_decode(val, vlen, &rec) < 0)
        return 0; /* damaged metadata: fsck names it, and tier_drain_look refuses */
    dr->ino = ino;
    dr->base = base + 1;
    if (rec.local && rec.device == dr->device)
        dr->found[dr->n++] = (struct found){.ino = ino,
                                            .base = base,
                                            .bytes = rec.header_bytes + (rec.end - base),
                                            .state = rec.state};
    return dr->n == FOUND_MAX || ++dr->rows == ROWS_MAX;
}

struct look {
    uint32_t device;
    struct drain_look *ret;
    int err;
};

static int count_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct look *l = arg;
    struct seg_rec rec;
    uint64_t base;
    l->err = key_parse_seg(key, klen, NULL, &base) ? seg_rec_decode(val, vlen, &rec) : -EBADMSG;
    if (l->err < 0)
        return 1;
    if (!rec.local || rec.device != l->device)
        return 0;
    struct drain_look *s = l->ret;
    uint64_t len = rec.end - base;
    s->segments++;
    s->bytes += len;
    s->open += rec.state == SEG_OPEN;
    s->uploaded += rec.state == SEG_UPLOADED;
    if (rec.state == SEG_SEALED || rec.state == SEG_UPLOADED) {
        s->sealed++;
        s->sealed_bytes += len;
    }
    return 0;
}

static int count_unlink(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    struct look *l = arg;
    struct segfile_id id;
    l->ret->unlinks += unlink_decode(val, vlen, &id) == 0 && id.device == l->device;
    return 0;
}

int tier_drain_look(struct volume *v, uint32_t device, struct drain_look *ret)
{
    struct look l = {.device = device, .ret = ret};
    *ret = (struct drain_look){0};
    struct key k = key_prefix('S');
    int r = kv_walk(v->kv, k.b, k.len, k.b, k.len, count_row, &l);
    if (r >= 0)
        r = l.err;
    k = key_prefix('L');
    if (r == 0)
        r = kv_walk(v->kv, k.b, k.len, k.b, k.len, count_unlink, &l);
    return r < 0 ? r : 0;
}

/* ---- one segment ---- */

enum fate { FATE_GONE, FATE_SEALING, FATE_UPLOADING, FATE_BLOCKED, FATE_STUCK };

static enum fate seal_it(struct drain *dr, const struct found *f)
{
    struct inode *i;
    if (inode_get(dr->t->v->ns, f->ino, &i) < 0)
        return FATE_SEALING;
    int r = data_seal(dr->t->v->data, i);
    bool failed = data_seal_failed(i, f->base);
    inode_put(dr->t->v->ns, i);
    return (r < 0 && r != -EAGAIN) || failed ? FATE_STUCK : FATE_SEALING;
}

static enum fate evict_it(struct drain *dr, const struct found *f)
{
    uint64_t freed;
    int r = evict_segment(dr->t, f->ino, f->base, &freed);
    return r == -ENOENT || (r == 0 && freed) ? FATE_GONE : FATE_UPLOADING;
}

/* *ret_moved: bytes were copied, which is enough for one step. */
static enum fate bring_away(struct drain *dr, const struct found *f, bool *ret_moved)
{
    struct tier *t = dr->t;
    bool down = tier_store_down(t), committed = f->state == SEG_COMMITTED;
    bool stays = !policy_tiered(t->v->policy, f->ino);
    double level = down || stays ? DEV_SLOW : (double)t->v->conf->evict_from / 100;
    int r = dev_dirfd(t->v->devs, dr->device) >= 0 ? move_segment(t, f->ino, f->base, level)
                                                   : -EBADMSG;
    *ret_moved |= r != -ENOSPC && r != -ENODEV && r != -EBADMSG;
    if (r == 0)
        return FATE_GONE;
    if (r == -ESTALE || r == -ECANCELED)
        return FATE_SEALING;
    if (r == -EBADMSG && !committed) /* one that is uploaded needs its manifest only */
        return f->state == SEG_UPLOADED ? FATE_UPLOADING : FATE_STUCK;
    if (committed && (r == -EBADMSG || !(down || stays)))
        return evict_it(dr, f);
    return down || stays || atomic_load(&t->fenced) ? FATE_BLOCKED : FATE_UPLOADING;
}

/* ---- a pass ---- */

static void pass_begin(struct drain *dr)
{
    dr->in_pass = true;
    dr->ino = dr->base = 0;
    dr->stays = dr->stuck_bytes = 0;
    dr->stuck = dr->sealing = dr->uploading = dr->blocked = dr->gone = 0;
}

/* Nothing is recorded there. Is anybody about to, or is there a file to be removed? */
static bool is_empty(struct drain *dr, const struct dev_info *info)
{
    struct drain_look l;
    if (tier_drain_look(dr->t->v, dr->device, &l) < 0 || l.segments)
        return false;
    return (l.unlinks == 0 || info->state != DEV_OK) && dev_users(dr->t->v->devs, dr->device) == 0;
}

static void pass_end(struct drain *dr, const struct dev_info *info)
{
    struct tier *t = dr->t;
    char note[120] = "";
    enum dev_drain how = DRAIN_GOES_ON;
    unsigned left = dr->stuck + dr->sealing + dr->uploading + dr->blocked;
    if (left == 0 && is_empty(dr, info)) {
        how = DRAIN_DONE;
        log_info(LC_TIER, "device %u (%s) is drained: sluicefs device remove takes it out",
                 dr->device, info->path);
    } else if (dr->stuck && dr->stuck == left) {
        how = DRAIN_STUCK;
        snprintf(note, sizeof note,
                 "%u segments with %llu bytes cannot be read and are not uploaded", dr->stuck,
                 (unsigned long long)dr->stuck_bytes);
    } else if (dr->blocked) {
        snprintf(note, sizeof note, "no other device has room%s",
                 atomic_load(&t->fenced) ? ", and another mount owns the volume"
                 : tier_store_down(t)    ? ", and the store is down"
                                         : " for files that a rule keeps local");
    } else if (dr->uploading) {
        snprintf(note, sizeof note, "no other device has room: it waits for uploads");
    }
    dev_drain_note(t->v->devs, dr->device, dr->stays, how, note);
}

static void count(struct drain *dr, const struct found *f, enum fate fate)
{
    struct dev_info info;
    switch (fate) {
    case FATE_GONE:
        dr->gone++;
        if (dev_info_of(dr->t->v->devs, dr->device, &info))
            dev_drain_note(dr->t->v->devs, dr->device,
                           info.drain_left - min_u64(info.drain_left, f->bytes), DRAIN_GOES_ON,
                           info.drain_note);
        return;
    case FATE_SEALING:
        dr->sealing++;
        break;
    case FATE_UPLOADING:
        dr->uploading++;
        break;
    case FATE_BLOCKED:
        dr->blocked++;
        break;
    case FATE_STUCK:
        dr->stuck++;
        dr->stuck_bytes += f->bytes;
        break;
    }
    dr->stays += f->bytes;
}

static void step_back(struct task *task);

static void run_step(struct task *task)
{
    struct drain *dr = container_of(task, struct drain, task);
    struct tier *t = dr->t;
    struct key all = key_prefix('S');
    bool moved = false;
    struct key from = key_seg(dr->ino, dr->base);
    dr->n = dr->rows = 0;
    int more = kv_walk(t->v->kv, all.b, all.len, from.b, from.len, see_row, dr);
    for (unsigned k = 0; k < dr->n && more >= 0; k++) {
        const struct found *f = &dr->found[k];
        if (moved || atomic_load(&t->stopping) || !dev_is_draining(t->v->devs, dr->device)) {
            dr->ino = f->ino; /* the next step begins here */
            dr->base = f->base;
            more = 1;
            break;
        }
        count(dr, f, f->state == SEG_OPEN ? seal_it(dr, f) : bring_away(dr, f, &moved));
    }
    struct dev_info info;
    dr->more = more != 0;
    dr->trouble = more < 0;
    if (!dr->more && dev_info_of(t->v->devs, dr->device, &info) && info.draining)
        pass_end(dr, &info);
    dr->task.run = step_back;
    exec_submit(t->actor, &dr->task);
}

/* ---- the actor ---- */

static void step_back(struct task *task)
{
    struct drain *dr = container_of(task, struct drain, task);
    struct tier *t = dr->t;
    int64_t wait = !dr->trouble && (dr->more || dr->gone) ? NS_PER_MS : WAIT_MS * NS_PER_MS;
    dr->out = false;
    t->jobs--;
    if (atomic_load(&t->stopping))
        return;
    if (!dr->more)
        dr->in_pass = false;
    dr->next_ns = clock_mono_ns() + wait;
    if (dr->gone)
        unlink_tick(t);
    tier_kick_in(t, wait);
}

static bool wants(struct devs *d, unsigned place, struct dev_info *ret)
{
    return devs_info(d, place, ret) && ret->draining && !ret->drained;
}

void drain_tick(struct tier *t)
{
    struct drain *dr = t->drain;
    struct devs *d = t->v->devs;
    struct dev_info info;
    unsigned n = devs_count(d);
    if (dr->out || clock_mono_ns() < dr->next_ns || t->v->conf->read_only)
        return;
    if (dr->in_pass && !(wants(d, dr->place, &info) && info.id == dr->device))
        dr->in_pass = false;
    /* A pass over one device goes to its end, then it is the next one's turn. */
    for (unsigned k = 1; !dr->in_pass && k <= n; k++) {
        if (!wants(d, (dr->place + k) % n, &info))
            continue;
        dr->place = (dr->place + k) % n;
        dr->device = info.id;
        pass_begin(dr);
    }
    if (!dr->in_pass)
        return;
    dr->out = true;
    t->jobs++;
    dr->task.run = run_step;
    exec_submit(t->v->bulk, &dr->task);
}

/* ---- life ---- */

int drain_open(struct tier *t)
{
    t->drain = calloc(1, sizeof *t->drain);
    if (!t->drain)
        return -ENOMEM;
    t->drain->t = t;
    return 0;
}

void drain_close(struct tier *t)
{
    free(t->drain);
    t->drain = NULL;
}
