/* world.c: the volume in the simulation: wired without threads, stepped from here. A crash drops the
 * volume's memory as it is (it stays allocated, unused, until the process ends), closes the client of
 * the store, where each write under way takes effect by coin, and lets the disk forget. */
#include "tests/sim/sim.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/hash.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/base/stats.h"
#include "fs/meta/kv.h"
#include "fs/seg/dev.h"
#include "fs/tier/internal.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume.h"
#include "objstore/fault.h"

enum { SOURCES = 7, LIVES_MAX = 4096 };

static struct world *the_world;        /* pump has no other way to it */
static struct volume *dead[LIVES_MAX]; /* keeps what crashes leave reachable */

void sim_fail(struct world *w, const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "\nsim: FAILED seed=%llu%s step=%llu life=%u: ", (unsigned long long)w->seed,
            w->broker ? " broker" : "", (unsigned long long)w->step, w->life);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    if (w->verbose)
        simdisk_list(w->disk, stderr);
    abort();
}

void sim_note(struct world *w, const char *fmt, ...)
{
    if (!w->verbose)
        return;
    va_list ap;
    fprintf(stderr, "[%llu %.3f] ", (unsigned long long)w->step, (double)clock_mono_ns() / 1e9);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

uint64_t rnd64(struct world *w)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return w->rng * 0x2545f4914f6cdd1dull;
}

uint32_t rnd(struct world *w, uint32_t n)
{
    return n ? (uint32_t)((rnd64(w) >> 33) % n) : 0;
}

/* ---- stepping ---- */

static bool step_timers(struct world *w)
{
    int64_t next;
    return timers_step(w->v->timers, &next) > 0;
}

bool world_step(struct world *w)
{
    struct volume *v = w->v;
    struct tier *t = v->tier;
    unsigned from = rnd(w, SOURCES);
    for (unsigned k = 0; k < SOURCES; k++) {
        bool did = false;
        size_t n;
        switch ((from + k) % SOURCES) {
        case 0: /* four threads: one of the four oldest */
            n = exec_queued(v->pool);
            did = n && exec_step_nth(v->pool, rnd(w, n < 4 ? (uint32_t)n : 4));
            break;
        case 1:
            did = exec_step(v->store_pool);
            break;
        case 2:
            did = t && exec_step(t->actor);
            break;
        case 3:
            if (t && !w->in_blocking) { /* two threads, but one stack: not one inside the other */
                w->in_blocking = true;
                did = exec_step(t->blocking);
                w->in_blocking = false;
            }
            break;
        case 4:
            did = v->kv && kv_step(v->kv);
            break;
        case 5:
            did = step_timers(w);
            break;
        default:
            did = mem_step(v->store);
        }
        if (did) {
            w->did[(from + k) % SOURCES]++;
            return true;
        }
    }
    return false;
}

void world_idle(struct world *w)
{
    memset(w->did, 0, sizeof w->did);
    for (unsigned n = 0; world_step(w); n++)
        if (n > 60000)
            sim_fail(
                w,
                "work never ends (pool %u, store pool %u, tier %u, blocking %u, kv %u, timers %u, "
                "store %u)",
                w->did[0], w->did[1], w->did[2], w->did[3], w->did[4], w->did[5], w->did[6]);
}

static int64_t next_timer(struct world *w)
{
    int64_t next;
    (void)timers_step(w->v->timers, &next);
    return next;
}

void world_run(struct world *w, int64_t ns)
{
    int64_t end = clock_mono_ns() + ns;
    for (;;) {
        world_idle(w);
        int64_t now = clock_mono_ns();
        if (now >= end)
            return;
        int64_t next = next_timer(w);
        int64_t to = next < end ? next : end;
        clock_virtual_advance(to > now ? to - now : 0);
    }
}

static void pump(struct volume *v)
{
    struct world *w = the_world;
    assert(w->v == v);
    w->pump_depth++;
    if (!world_step(w)) {
        int64_t next = next_timer(w), now = clock_mono_ns();
        clock_virtual_advance(next != INT64_MAX && next > now ? next - now : 10 * NS_PER_MS);
    }
    w->pump_depth--;
}

/* ---- making ---- */

static void put_file(struct world *w, const char *path, const char *text)
{
    int fd = io_open(AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || io_pwrite_full(fd, text, strlen(text), 0, NULL) < 0 || io_sync(fd, false) < 0)
        sim_fail(w, "cannot write %s", path);
    io_close(fd);
}

void world_boot_id(struct world *w)
{
    char text[64];
    snprintf(text, sizeof text, "00000000-0000-4000-8000-%012x\n", w->boot);
    put_file(w, "/proc/sys/kernel/random/boot_id", text);
}

static void make_dirs(struct world *w)
{
    static const char *const dirs[] = {"/proc", "/proc/sys", "/proc/sys/kernel",
                                       "/proc/sys/kernel/random", "/state"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        if (io_mkdir(AT_FDCWD, dirs[i], 0700) < 0)
            sim_fail(w, "mkdir %s", dirs[i]);
    for (unsigned i = 0; i < w->conf.devices; i++)
        if (io_mkdir(AT_FDCWD, w->dev_path[i], 0700) < 0)
            sim_fail(w, "mkdir %s", w->dev_path[i]);
    static const char *const sync[] = {"/", "/proc", "/proc/sys", "/proc/sys/kernel"};
    for (size_t i = 0; i < sizeof sync / sizeof *sync; i++)
        (void)io_sync_dir(AT_FDCWD, sync[i]);
    world_boot_id(w);
    (void)io_sync_dir(AT_FDCWD, "/proc/sys/kernel/random");
}

static const uint8_t volume_id[16] = {0x51, 1, 2,  3,  4,  5,  0x46, 7,
                                      0x88, 9, 10, 11, 12, 13, 14,   15};

static void claim(struct world *w)
{
    struct volobj o = {.node = 1, .epoch = 1, .created_ns = clock_wall_ns(), .profile = w->broker};
    memcpy(o.volume, volume_id, 16);
    memcpy(o.nonce, volume_id, 16);
    uint8_t buf[VOLOBJ_BYTES];
    volobj_encode(&o, buf);
    struct obj_body body = {.mem = buf, .fd = -1, .len = sizeof buf};
    struct obj_req req = {.op = OBJ_PUT, .key = VOLOBJ_KEY, .body = &body, .body_n = 1};
    req.done = obj_req_done;
    obj_submit(w->look, &req);
    mem_step(w->look);
    if (req.err < 0)
        sim_fail(w, "the volume object: %d", req.err);
}

static uint64_t pick_size(struct world *w, const uint64_t *v, unsigned n)
{
    return v[rnd(w, n)];
}

static void make_conf(struct world *w)
{
    static const uint64_t segs[] = {64 * KiB, 100 * KiB, 256 * KiB, 512 * KiB, 1 * MiB, 3 * MiB};
    static const uint64_t slices[] = {256 * KiB, 512 * KiB, 1 * MiB};
    static const uint64_t budgets[] = {3 * MiB, 6 * MiB, 16 * MiB, 256 * MiB};
    static const uint64_t ages[] = {300, 1500, 6000, 40000};
    struct config *c = &w->conf;
    config_init(c);
    c->pool = 8 * MiB;
    c->slice = pick_size(w, slices, 3);
    c->segment_bytes = pick_size(w, segs, 6);
    c->window_min = 256 * KiB;
    c->window_max = 2 * MiB;
    c->seal_age = pick_size(w, ages, 4);
    c->local_age = pick_size(w, ages, 4);
    c->delete_delay = rnd(w, 3) ? pick_size(w, ages, 3) : 0;
    c->read_deadline = rnd(w, 4) ? 3000 + rnd(w, 60000) : 800;
    c->unread_life = 1000 + rnd(w, 5000);
    c->metadata_batch = rnd(w, 2) ? 10 : 1000;
    c->manifest_delay = rnd(w, 2000);
    c->flush_interval = 100 + rnd(w, 5000);
    c->uploads = 1 + rnd(w, 4);
    c->mirror_below = w->broker && rnd(w, 2) ? 128 * KiB : 0;
    c->profile = w->broker ? PROFILE_BROKER : PROFILE_TOPICS;
    c->devices = 1 + rnd(w, DEVS_MAX);
    uint64_t budget = pick_size(w, budgets, 4);
    for (unsigned i = 0; i < c->devices; i++) {
        snprintf(w->dev_path[i], sizeof w->dev_path[i], "/dev%u", i);
        c->device[i].budget = budget;
    }
    free(c->state);
    c->state = strdup(w->dir);
}

void world_make(struct world *w, uint64_t seed, bool broker)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->rng = seed * 0x9e3779b97f4a7c15ull | 1;
    w->broker = broker;
    the_world = w;
    for (int i = 0; i < 8; i++)
        (void)rnd64(w);
    random_seed_for_tests(rnd64(w) | 1);
    clock_virtual_set(1000 * NS_PER_SEC);
    const char *tmp = getenv("TMPDIR");
    snprintf(w->dir, sizeof w->dir, "%s/sluice-sim-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (access("/dev/shm", W_OK) == 0)
        snprintf(w->dir, sizeof w->dir, "/dev/shm/sluice-sim-XXXXXX");
    if (!mkdtemp(w->dir))
        sim_fail(w, "no temporary directory");
    w->disk = simdisk_new();
    simdisk_use(w->disk);
    make_conf(w);
    w->caps = (struct store_caps){true, true, rnd(w, 4) != 0, true};
    make_dirs(w);
    if (mem_bucket_open(&w->bucket) < 0 || mem_attach(w->bucket, &w->look) < 0)
        sim_fail(w, "no bucket");
    claim(w);
    w->m.cap = 64;
    w->m.v = calloc(w->m.cap, sizeof *w->m.v);
    w->m.v[0].acked = true;
    w->m.n = 1;
    model_file_add(w, ROOT_INO, true);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void world_free(struct world *w)
{
    obj_close(w->look);
    mem_bucket_close(w->bucket);
    simdisk_use(NULL);
    simdisk_free(w->disk);
    model_free(&w->m);
    (void)nftw(w->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    config_done(&w->conf);
}

/* ---- life and death ---- */

static void open_store(struct world *w, struct volume *v)
{
    struct store_conf sc = {
        .stats = v->stats,
        .timers = v->timers,
        .device_pool = v->store_pool,
        .fault_plan = "",
        .connections = 8,
        .timeout_get_ms = 10000,
        .timeout_put_ms = 30000,
        .timeout_small_ms = 10000,
        .backoff_min_ms = 100,
        .backoff_max_ms = 5000,
    };
    if (mem_attach(w->bucket, &v->store) < 0 || fault_push(&v->store, &sc) < 0 ||
        meter_push(&v->store, &sc) < 0 || retry_push(&v->store, &sc) < 0 ||
        breaker_push(&v->store, &sc) < 0)
        sim_fail(w, "the store cannot be opened");
    mem_random_order(v->store, rnd64(w) | 1);
}

int world_open(struct world *w)
{
    struct volume *v = calloc(1, sizeof *v);
    char why[400] = "";
    bool first = w->life == 0;
    uint64_t failed = simdisk_failed(w->disk);
    w->v = v;
    w->life++;
    w->store_trouble = w->disk_trouble = w->journal_gone = false;
    memcpy(v->id, volume_id, 16);
    volume_id_text(v->id, v->id_text);
    v->node = 1;
    v->conf = &w->conf;
    v->topics_profile = !w->broker;
    v->pump = pump;
    int r = stats_open(&v->stats);
    if (r == 0)
        r = timers_open(false, &v->timers);
    if (r == 0)
        r = exec_open("device", 0, 0, &v->pool);
    if (r == 0)
        r = exec_open("store", 0, 0, &v->store_pool);
    v->bulk = v->fetch = v->pool;
    if (r < 0)
        sim_fail(w, "opening: %d", r);
    open_store(w, v);
    v->state_fd = io_open(AT_FDCWD, "/state", O_RDONLY | O_DIRECTORY, 0);
    struct dev_conf dc[DEVS_MAX];
    for (unsigned i = 0; i < w->conf.devices; i++)
        dc[i] = (struct dev_conf){w->dev_path[i], w->conf.device[i].budget};
    r = v->state_fd < 0 ? v->state_fd
                        : devs_open(v->id, dc, w->conf.devices, first, w->dev_id, v->stats,
                                    &v->devs, why, sizeof why);
    if (r == 0)
        r = volume_wire(v, &w->caps, false, why, sizeof why);
    w->disk_trouble |= simdisk_failed(w->disk) > failed; /* a plan was made for this opening */
    if (r < 0 && !simdisk_frozen(w->disk) && !w->disk_trouble)
        sim_fail(w, "the volume cannot be opened: %s: %s", err_name(r), why);
    sim_note(w, "open: %s", err_name(r));
    return r;
}

void world_faults_off(struct world *w)
{
    char why[200];
    simdisk_fail_none(w->disk);
    simdisk_short_writes(w->disk, 0, 1);
    simdisk_space(w->disk, 0);
    if (w->v && fault_plan_set(w->v->store, "", why, sizeof why) < 0)
        sim_fail(w, "%s", why);
}

bool world_stop(struct world *w)
{
    struct volume *v = w->v;
    bool trouble = w->disk_trouble;
    w->store_trouble = true; /* reads that wait for the store are given up */
    handles_drop(w);
    volume_stop(v, 100);
    acts_finish(w);
    world_idle(w);
    int fd = v->state_fd;
    volume_unwire(v);
    io_close(fd);
    free(v);
    w->v = NULL;
    if (trouble || simdisk_frozen(w->disk))
        return false;
    w->m.durable = w->m.now;
    for (unsigned i = 0; i < w->m.files; i++)
        model_synced(w, w->m.file[i], w->m.file[i]->len, w->m.file[i]->patches);
    return true;
}

void world_crash(struct world *w, bool power)
{
    struct volume *v = w->v;
    assert(w->pump_depth == 0);
    sim_note(w, "crash: %s", power ? "power" : "kill");
    simdisk_fail_none(w->disk);
    acts_drop(w);
    simdisk_freeze(w->disk, 1); /* callbacks of the store that closes change nothing */
    unsigned life = w->life++;
    if (v->store)
        obj_close(v->store);
    if (v->kv)
        kv_crash(v->kv);
    dead[life % LIVES_MAX] = v;
    w->v = NULL;
    simdisk_crash(w->disk, NULL, power ? SIMDISK_POWER : SIMDISK_KILL, rnd64(w));
    w->crashed = true;
    w->count.crashes++;
    if (power) {
        w->count.powers++;
        w->boot++;
        world_boot_id(w);
    }
}

/* ---- coming to rest ---- */

static int count_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    (void)val;
    (void)vlen;
    ++*(unsigned *)arg;
    return 0;
}

static unsigned rows(struct world *w, char table)
{
    unsigned n = 0;
    (void)kv_walk(w->v->kv, &table, 1, &table, 1, count_row, &n);
    return n;
}

bool world_settle(struct world *w, char *why, size_t cap)
{
    world_faults_off(w);
    acts_finish(w);
    static const char tables[] = "UMmDLW";
    for (unsigned s = 0; s < 400; s++) {
        world_run(w, NS_PER_SEC);
        unsigned left = 0;
        size_t at = 0;
        why[0] = 0;
        for (const char *t = tables; *t; t++) {
            unsigned n = rows(w, *t);
            left += n;
            if (n && at < cap)
                at += (size_t)snprintf(why + at, cap - at, "%u in '%c' ", n, *t);
        }
        if (left == 0)
            return true;
    }
    return false;
}
