/* scrub.c: see scrub.h.
 *
 * The actor decides when a step is due; the step runs on the `blocking` pool and looks at a few segments,
 * then comes back. Between steps it pauses: four times as long as a partial step took, and so that a full
 * pass fills about half of its interval. Marks of progress are stored at the end of a pass and every
 * SAVE_EVERY segments, in the setting "scrub".
 *
 * Lock: scrub.mu (RANK_FETCH) guards what status reads; never held over anything. */
#include "fs/tier/scrub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/tier/internal.h"
#include "fs/volume/fsck.h"

enum { STEP_SEGMENTS = 16, SAVE_EVERY = 1024, PAUSE_MIN_MS = 10, PAUSE_MAX_MS = 10000 };

struct mark {
    uint64_t ino, base; /* the next one */
    int64_t last_ns;    /* wall clock of the last pass' end, or of the first mount */
    bool ended;         /* a pass has ended at some time */
};

struct scrub {
    struct tier *t;
    struct task task;
    bool out;            /* a step is on the pool */
    bool running;        /* a pass is under way */
    bool full;           /* which */
    struct mark mark[2]; /* partial, full */
    uint64_t budget;     /* partial: bytes still to be read */
    uint64_t looked, unsaved;
    bool wrapped;           /* the pass went over the end of the table once */
    int64_t next_ns;        /* mono: no step before this */
    struct fsck_report rep; /* of one step */

    struct lock mu;
    struct scrub_status st;
    struct counter *segments, *bytes, *objects, *healed, *left;
};

/* ---- the stored marks: u8 version 1, then two of { u64 ino, u64 base, i64 last, u8 ended } ---- */

static void load(struct scrub *s)
{
    uint8_t buf[64];
    struct key k = key_setting("scrub");
    ssize_t n = kv_get(s->t->v->kv, k.b, k.len, buf, sizeof buf);
    struct rd r = {.p = buf, .len = n > 0 && n <= (ssize_t)sizeof buf ? (size_t)n : 0};
    int64_t now = clock_wall_ns();
    bool good = rd_u8(&r) == 1;
    for (unsigned i = 0; i < 2; i++) {
        struct mark *m = &s->mark[i];
        m->ino = rd_u64(&r);
        m->base = rd_u64(&r);
        m->last_ns = (int64_t)rd_u64(&r);
        m->ended = rd_u8(&r);
    }
    for (unsigned i = 0; i < 2; i++)
        if (!good || r.bad || s->mark[i].last_ns > now)
            s->mark[i] = (struct mark){.last_ns = now};
    s->unsaved = good && !r.bad ? 0 : SAVE_EVERY;
}

static void save(struct scrub *s)
{
    uint8_t buf[64];
    struct wr w = {.p = buf, .cap = sizeof buf};
    struct kv_batch b;
    wr_u8(&w, 1);
    for (unsigned i = 0; i < 2; i++) {
        wr_u64(&w, s->mark[i].ino);
        wr_u64(&w, s->mark[i].base);
        wr_u64(&w, (uint64_t)s->mark[i].last_ns);
        wr_u8(&w, s->mark[i].ended);
    }
    kv_batch_init(&b);
    struct key k = key_setting("scrub");
    kv_put(&b, k.b, k.len, buf, w.len);
    (void)kv_apply(s->t->v->kv, &b, NULL, NULL); /* else the pass begins again after a restart */
    kv_batch_done(&b);
    s->unsaved = 0;
}

/* ---- a step ---- */

struct pick {
    struct scrub *s;
    unsigned n, want, seen;
    uint64_t ino[STEP_SEGMENTS], base[STEP_SEGMENTS], len[STEP_SEGMENTS];
    uint64_t last_ino, last_base;
};

static int pick_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct pick *p = arg;
    uint64_t ino, base;
    struct seg_rec rec;
    if (!key_parse_seg(key, klen, &ino, &base) || seg_rec_decode(val, vlen, &rec) < 0)
        return 0;
    p->last_ino = ino;
    p->last_base = base;
    bool good = p->s->full ? rec.state != SEG_OPEN : rec.local && rec.state != SEG_OPEN;
    if (good) {
        p->ino[p->n] = ino;
        p->base[p->n] = base;
        p->len[p->n++] = rec.end - base;
    }
    return p->n == p->want || ++p->seen == 1024;
}

static void publish(struct scrub *s)
{
    struct fsck_report *r = &s->rep;
    for (size_t i = 0; i < r->found.n; i++) {
        const struct finding *f = &r->found.row[i];
        if (f->fate == FATE_LEFT)
            log_err(LC_TIER, "scrub: %s", f->text ? f->text : f->kind);
        else
            log_warn(LC_TIER, "scrub: %s [%s]", f->text ? f->text : f->kind,
                     finding_fate_text(f->fate));
    }
    uint64_t healed = r->found.count[FATE_HEALED] + r->found.count[FATE_QUARANTINED];
    counter_add(s->segments, r->segments);
    counter_add(s->bytes, r->device_bytes);
    counter_add(s->objects, r->objects);
    counter_add(s->healed, healed);
    counter_add(s->left, r->found.count[FATE_LEFT]);
    lock_acquire(&s->mu);
    s->st.segments += r->segments;
    s->st.bytes += r->device_bytes;
    s->st.objects += r->objects;
    s->st.healed += healed;
    s->st.left += r->found.count[FATE_LEFT];
    if (r->found.n && r->found.row[r->found.n - 1].text)
        snprintf(s->st.last_damage, sizeof s->st.last_damage, "%s",
                 r->found.row[r->found.n - 1].text);
    lock_release(&s->mu);
    fsck_report_done(r);
    *r = (struct fsck_report){0};
}

static void pass_end(struct scrub *s)
{
    struct mark *m = &s->mark[s->full];
    m->last_ns = clock_wall_ns();
    m->ended = true;
    s->running = false;
    s->unsaved = SAVE_EVERY;
}

static bool store_in_order(struct tier *t)
{
    struct objstore_status st;
    obj_status(t->v->store, &st);
    return st.health == OBJ_HEALTH_OK;
}

/* Looks at the next segments. False: nothing more can be done now. */
static bool look(struct scrub *s)
{
    struct volume *v = s->t->v;
    struct mark *m = &s->mark[s->full];
    struct pick p = {.s = s, .want = s->full ? STEP_SEGMENTS : 1};
    struct key all = key_prefix('S'), from = key_seg(m->ino, m->base);
    struct fsck_options o = {.deep = !s->full,
                             .spare_objects = true,
                             .repair = !v->conf->read_only,
                             .cancelled = &s->t->stopping};
    int more = kv_walk(v->kv, all.b, all.len, from.b, from.len, pick_one, &p);
    if (more < 0)
        return false; /* damaged metadata: fsck names it */
    for (unsigned i = 0; i < p.n && !atomic_load(&s->t->stopping); i++) {
        int r = fsck_segment(v, p.ino[i], p.base[i], &o, &s->rep);
        if (r < 0 && r != -ENOENT) {
            m->ino = p.ino[i]; /* the store has trouble: here again later */
            m->base = p.base[i];
            return false;
        }
        s->budget -= min_u64(s->budget, p.len[i]);
    }
    s->unsaved += p.n;
    m->ino = more > 0 ? p.last_ino : 0;
    m->base = more > 0 ? p.last_base + 1 : 0;
    if (more == 0 && (s->full || s->wrapped))
        pass_end(s);
    s->wrapped |= more == 0;
    if (!s->full && s->budget == 0 && s->running)
        pass_end(s);
    return true;
}

static void step_back(struct task *task);

static void run_step(struct task *task)
{
    struct scrub *s = container_of(task, struct scrub, task);
    int64_t began = clock_mono_ns(), pause;
    bool went = store_in_order(s->t) && look(s);
    publish(s);
    if (s->unsaved >= SAVE_EVERY)
        save(s);
    if (!went) {
        pause = 5 * NS_PER_SEC;
    } else if (s->full) {
        struct totals *tt = data_totals(s->t->v->data);
        int64_t n = atomic_load(&tt->committed) + atomic_load(&tt->evicted);
        pause = (int64_t)s->t->v->conf->scrub_full * NS_PER_MS / 2 / (n / STEP_SEGMENTS + 1);
    } else {
        pause = (clock_mono_ns() - began) * 4;
    }
    pause = pause < PAUSE_MIN_MS * NS_PER_MS ? PAUSE_MIN_MS * NS_PER_MS : pause;
    pause = pause > PAUSE_MAX_MS * NS_PER_MS ? PAUSE_MAX_MS * NS_PER_MS : pause;
    s->next_ns = clock_mono_ns() + pause;
    s->task.run = step_back;
    exec_submit(s->t->actor, &s->task);
}

/* ---- the actor ---- */

static void step_back(struct task *task)
{
    struct scrub *s = container_of(task, struct scrub, task);
    s->out = false;
    s->t->jobs--;
    tier_kick_in(s->t, NS_PER_MS);
}

/* Is a pass due? Of two, the one that is late by more of its intervals. */
static bool begin(struct scrub *s)
{
    const struct config *c = s->t->v->conf;
    int64_t now = clock_wall_ns();
    double late[2] = {
        (double)(now - s->mark[0].last_ns) / NS_PER_MS / (double)c->scrub_partial,
        (double)(now - s->mark[1].last_ns) / NS_PER_MS / (double)c->scrub_full,
    };
    if (late[0] < 1 && late[1] < 1)
        return false;
    bool partial = late[0] >= late[1];
    uint64_t local = (uint64_t)atomic_load(&data_totals(s->t->v->data)->local);
    s->full = !partial;
    s->running = true;
    s->wrapped = false;
    s->budget = local / 1000 * c->scrub_permille;
    if (partial && s->budget == 0 && c->scrub_permille)
        s->budget = 1; /* at least one segment */
    if (partial && !c->scrub_permille)
        pass_end(s);
    return s->running;
}

void scrub_tick(struct scrub *s)
{
    struct tier *t = s->t;
    enum scrub_state state = SCRUB_OFF;
    if (t->v->conf->scrub) {
        bool good = store_in_order(t);
        if (!s->out && clock_mono_ns() >= s->next_ns && good && (s->running || begin(s))) {
            s->out = true;
            t->jobs++;
            s->task.run = run_step;
            exec_submit(t->blocking, &s->task);
        }
        state = !s->running ? SCRUB_WAITING
                : !good     ? SCRUB_PAUSED
                : s->full   ? SCRUB_FULL
                            : SCRUB_PARTIAL;
    }
    LOCK_SCOPE(&s->mu);
    s->st.state = state;
    if (!s->out) {
        s->st.last_partial_ns = s->mark[0].ended ? s->mark[0].last_ns : 0;
        s->st.last_full_ns = s->mark[1].ended ? s->mark[1].last_ns : 0;
    }
}

void scrub_status(struct scrub *s, struct scrub_status *ret)
{
    LOCK_SCOPE(&s->mu);
    *ret = s->st;
}

/* ---- life ---- */

int scrub_open(struct tier *t, struct scrub **ret)
{
    struct scrub *s = calloc(1, sizeof *s);
    struct stats *st = t->v->stats;
    if (!s)
        return -ENOMEM;
    s->t = t;
    lock_init(&s->mu, "scrub", RANK_FETCH, false);
    s->segments = stats_counter(st, "scrub_segments_total", "", "segments looked at by the scrub");
    s->bytes = stats_counter(st, "scrub_bytes_total", "", "local bytes read and compared");
    s->objects = stats_counter(st, "scrub_objects_total", "", "objects looked for by the scrub");
    s->healed =
        stats_counter(st, "scrub_damage_total", "fate=\"healed\"", "damage that the scrub found");
    s->left =
        stats_counter(st, "scrub_damage_total", "fate=\"left\"", "damage that the scrub found");
    load(s);
    if (s->unsaved) /* from when on to count; a daemon that never lives long must come to it, too */
        save(s);
    *ret = s;
    return 0;
}

void scrub_close(struct scrub *s)
{
    if (!s)
        return;
    fsck_report_done(&s->rep);
    lock_destroy(&s->mu);
    free(s);
}
