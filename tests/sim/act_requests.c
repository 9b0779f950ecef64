/* act_requests.c: what is under way for a while: reads, fsyncs, handles, commands. Each has a slot in the
 * world and remembers the life it began in; after a crash nothing of it counts any more. */
#include "tests/sim/act_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"

/* ---- reads ---- */

static void compare_read(struct world *w, struct mread *m, uint64_t size_now)
{
    struct data_read *r = &m->r;
    struct mfile *f = m->f;
    if (r->err < 0) {
        w->count.read_errors++;
        if (r->err == -EINTR && atomic_load(&r->cancelled))
            return;
        int64_t limit = (int64_t)w->conf.read_deadline * NS_PER_MS;
        bool late = limit && clock_mono_ns() - r->started_ns >= limit;
        if (!explained(w, r->err) && !w->store_trouble && !late)
            sim_fail(w, "read of %llx at %llu+%zu: %s", (unsigned long long)f->ino,
                     (unsigned long long)r->off, r->len, err_name(r->err));
        return;
    }
    uint64_t got = 0;
    for (unsigned k = 0; k < r->iov_n; k++) {
        if (r->off + got + r->iov[k].iov_len > size_now)
            sim_fail(w, "a read behind the end");
        if (memcmp(r->iov[k].iov_base, f->bytes + r->off + got, r->iov[k].iov_len) != 0)
            sim_fail(w, "read of %llx at %llu+%zu: wrong bytes in piece %u at %llu+%zu",
                     (unsigned long long)f->ino, (unsigned long long)r->off, r->len, k,
                     (unsigned long long)(r->off + got), r->iov[k].iov_len);
        got += r->iov[k].iov_len;
    }
    uint64_t least = r->off < m->size_then ? min_u64(r->len, m->size_then - r->off) : 0;
    if (got < least && !explained(w, -EIO)) /* its inode may have been loaded from a failing disk */
        sim_fail(w, "read of %llx at %llu+%zu of %llu is short: %llu", (unsigned long long)f->ino,
                 (unsigned long long)r->off, r->len, (unsigned long long)m->size_then,
                 (unsigned long long)got);
}

static struct world *acting; /* callbacks of reads and fsyncs have no other way to it */

static void read_end(struct mread *m)
{
    struct world *w = acting;
    compare_read(w, m, m->f->len);
    if (m->r.err == 0)
        data_read_release(w->v->data, &m->r);
    m->f->held--;
    m->f->reading--;
    m->done = true;
}

static void read_done(struct data_read *r)
{
    struct mread *m = r->arg;
    if (m->life == UINT32_MAX) /* read_now waits for it */
        m->done = true;
    else if (m->life == acting->life)
        read_end(m);
}

static void read_start(struct world *w, struct mfile *f, uint64_t fh, uint64_t off, size_t len)
{
    struct inode *i;
    acting = w;
    unsigned k = 0;
    while (k < READS_MAX && w->read[k] && !w->read[k]->done)
        k++;
    if (k == READS_MAX || f->blurred)
        return;
    int e = inode_get(w->v->ns, f->ino, &i);
    if (e < 0) {
        if (!explained(w, e))
            sim_fail(w, "inode %llx: %s", (unsigned long long)f->ino, err_name(e));
        return;
    }
    if (w->read[k]) {
        inode_put(w->v->ns, w->read[k]->r.i);
        free(w->read[k]);
    }
    struct mread *m = calloc(1, sizeof *m);
    w->read[k] = m;
    *m = (struct mread){.f = f, .size_then = f->len, .life = w->life};
    m->r =
        (struct data_read){.i = i, .fh = fh, .off = off, .len = len, .done = read_done, .arg = m};
    f->held++;
    f->reading++;
    w->count.reads++;
    int r = data_read_start(w->v->data, &m->r);
    if (r != 0)
        read_end(m);
}

int64_t read_now(struct world *w, struct inode *i, uint64_t off, void *buf, size_t len)
{
    struct mread m = {.life = UINT32_MAX};
    acting = w;
    for (unsigned tries = 0;; tries++) {
        m.r = (struct data_read){.i = i, .off = off, .len = len, .done = read_done, .arg = &m};
        m.done = data_read_start(w->v->data, &m.r) != 0;
        while (!m.done)
            w->v->pump(w->v);
        if (m.r.err == 0)
            break;
        if (tries == 5)
            return m.r.err;
        world_run(w, 5 * NS_PER_SEC); /* a store that was in trouble gets well */
    }
    size_t got = 0;
    for (unsigned k = 0; k < m.r.iov_n; k++) {
        memcpy((char *)buf + got, m.r.iov[k].iov_base, m.r.iov[k].iov_len);
        got += m.r.iov[k].iov_len;
    }
    data_read_release(w->v->data, &m.r);
    return (int64_t)got;
}

void do_read(struct world *w)
{
    struct mfile *f = pick_file(w);
    if (!f)
        return;
    uint64_t off = rnd(w, (uint32_t)f->len + 2000);
    read_start(w, f, 0, off, 1 + rnd(w, rnd(w, 3) ? 128 * KiB : FUSE_IO_BYTES_MAX));
}

void do_read_handle(struct world *w)
{
    struct mhandle *h = &w->handle[rnd(w, HANDLES_MAX)];
    if (!h->i)
        return;
    size_t len = 128 * KiB;
    if (h->pos >= h->f->len || rnd(w, 20) == 0)
        h->pos = rnd(w, (uint32_t)h->f->len + 1) & ~4095u;
    read_start(w, h->f, h->fh, h->pos, len);
    h->pos += len;
}

void do_cancel(struct world *w)
{
    struct mread *m = w->read[rnd(w, READS_MAX)];
    if (m && !m->done)
        data_read_cancel(w->v->data, &m->r);
}

/* ---- fsync ---- */

static void sync_done(struct data_sync *s, int err)
{
    struct msync *m = s->arg;
    struct world *w = acting;
    if (m->life != w->life)
        return;
    sim_note(w, "fsync of %llx (%llu bytes): %s", (unsigned long long)m->f->ino,
             (unsigned long long)m->len_then, err_name(err));
    if (err == 0) {
        model_synced(w, m->f, m->len_then, m->patches_then);
        if (m->version_then > w->m.dropped + w->m.durable)
            w->m.durable = m->version_then - w->m.dropped;
    } else if (!explained(w, err)) {
        sim_fail(w, "fsync: %s", err_name(err));
    }
    m->f->held--;
    m->used = false; /* its inode is put when the slot is used again */
    w->count.syncs++;
}

void act_fsync(struct world *w, struct mfile *f)
{
    struct inode *i;
    acting = w;
    unsigned k = 0;
    while (k < SYNCS_MAX && w->sync[k] && w->sync[k]->used)
        k++;
    if (k == SYNCS_MAX || inode_get(w->v->ns, f->ino, &i) < 0)
        return;
    if (w->broker) /* two at once would need two sets of patches */
        for (unsigned n = 0; n < SYNCS_MAX; n++)
            if (w->sync[n] && w->sync[n]->used && w->sync[n]->f == f) {
                inode_put(w->v->ns, i);
                return;
            }
    if (w->sync[k]) {
        inode_put(w->v->ns, w->sync[k]->s.i);
        free(w->sync[k]);
    }
    struct msync *m = calloc(1, sizeof *m);
    w->sync[k] = m;
    *m = (struct msync){
        .f = f, .len_then = f->len, .version_then = w->m.dropped + w->m.now, .life = w->life};
    m->patches_then = f->blurred ? 0 : f->patches; /* which of them hold is not known */
    m->used = true;
    m->s = (struct data_sync){.i = i, .done = sync_done, .arg = m};
    f->held++;
    data_fsync(w->v->data, &m->s);
}

/* ---- handles ---- */

void do_open(struct world *w)
{
    struct mfile *f = pick_file(w);
    struct mhandle *h = &w->handle[rnd(w, HANDLES_MAX)];
    bool direct;
    if (!f || h->i)
        return;
    struct inode *i;
    if (inode_get(w->v->ns, f->ino, &i) < 0)
        return;
    *h = (struct mhandle){.i = i, .f = f};
    (void)data_open(w->v->data, i, rnd(w, 2) ? O_RDONLY : O_RDWR, &h->fh, &direct);
    f->held++;
}

void release(struct world *w, struct mhandle *h)
{
    if (!h->i)
        return;
    int r = data_flush(w->v->data, h->i);
    if (r < 0 && !explained(w, r))
        sim_fail(w, "flush: %s", err_name(r));
    data_release(w->v->data, h->i, h->fh);
    inode_put(w->v->ns, h->i);
    h->f->held--;
    memset(h, 0, sizeof *h);
}

void handles_drop(struct world *w)
{
    for (unsigned k = 0; k < HANDLES_MAX; k++)
        release(w, &w->handle[k]);
}

/* ---- commands ---- */

static void command_done(struct tier_cmd *c, int err, const char *why)
{
    struct mcommand *m = c->arg;
    struct world *w = acting;
    if (m->life != w->life)
        return;
    sim_note(w, "command %d on %llx: %s %s", c->kind, (unsigned long long)c->ino, err_name(err),
             why);
    m->used = false;
    w->count.commands++;
}

void act_command(struct world *w, enum tier_cmd_kind kind, uint64_t ino)
{
    acting = w;
    unsigned k = 0;
    while (k < COMMANDS_MAX && w->command[k] && w->command[k]->used)
        k++;
    bool contrary = false; /* EVICT and WARM of one file would undo each other */
    for (unsigned n = 0; n < COMMANDS_MAX; n++)
        if (w->command[n] && w->command[n]->used)
            contrary |= (kind == TIER_WARM && w->command[n]->c.kind == TIER_EVICT) ||
                        (kind == TIER_EVICT && w->command[n]->c.kind == TIER_WARM);
    if (k == COMMANDS_MAX || contrary)
        return;
    free(w->command[k]);
    struct mcommand *m = calloc(1, sizeof *m);
    w->command[k] = m;
    *m = (struct mcommand){.life = w->life, .used = true};
    m->c = (struct tier_cmd){.kind = kind, .ino = ino, .done = command_done, .arg = m};
    tier_command(w->v->tier, &m->c);
}

void do_command(struct world *w)
{
    static const enum tier_cmd_kind kinds[] = {TIER_SEAL, TIER_UPLOAD, TIER_EVICT, TIER_EVICT,
                                               TIER_WARM};
    int at = pick_entry(w, false);
    enum tier_cmd_kind kind = kinds[rnd(w, 5)];
    act_command(w, kind, at < 0 || rnd(w, 4) == 0 ? ROOT_INO : model_now(&w->m)->e[at].ino);
}

/* ---- after a crash, before a stop ---- */

/* What is left of dead requests stays allocated: the dead volume points at it. */
void acts_drop(struct world *w)
{
    acting = w;
    memset(w->handle, 0, sizeof w->handle);
    memset(w->read, 0, sizeof w->read);
    memset(w->sync, 0, sizeof w->sync);
    memset(w->command, 0, sizeof w->command);
}

/* NULL: nothing. */
static const char *under_way(struct world *w)
{
    for (unsigned k = 0; k < READS_MAX; k++)
        if (w->read[k] && !w->read[k]->done)
            return "a read";
    for (unsigned k = 0; k < SYNCS_MAX; k++)
        if (w->sync[k] && w->sync[k]->used)
            return "an fsync";
    for (unsigned k = 0; k < COMMANDS_MAX; k++)
        if (w->command[k] && w->command[k]->used)
            return "a command";
    return NULL;
}

void acts_finish(struct world *w)
{
    acting = w;
    int64_t until = clock_mono_ns() + 900 * NS_PER_SEC;
    while (under_way(w)) {
        if (!world_step(w)) /* not the pump: the blocking pool has its turn, too */
            world_run(w, 10 * NS_PER_MS);
        if (clock_mono_ns() > until)
            sim_fail(w, "%s does not end", under_way(w));
    }
    for (unsigned k = 0; k < READS_MAX; k++)
        if (w->read[k]) {
            inode_put(w->v->ns, w->read[k]->r.i);
            free(w->read[k]);
            w->read[k] = NULL;
        }
    for (unsigned k = 0; k < SYNCS_MAX; k++)
        if (w->sync[k]) {
            inode_put(w->v->ns, w->sync[k]->s.i);
            free(w->sync[k]);
            w->sync[k] = NULL;
        }
    for (unsigned k = 0; k < COMMANDS_MAX; k++) {
        free(w->command[k]);
        w->command[k] = NULL;
    }
}
