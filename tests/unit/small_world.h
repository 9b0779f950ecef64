/* small_world.h: a volume without threads for unit tests: a simulated disk, a store in memory under the
 * real layers, a virtual clock. A test steps it; nothing happens by chance. Bytes of a file are a
 * function of inode, offset and a number that the test chooses, so that no model is needed.
 *
 * Included as text by test_*_simdisk.c (one world a process). */
#ifndef SLUICE_TEST_SMALL_WORLD_H
#define SLUICE_TEST_SMALL_WORLD_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fs/base/hash.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/tier/internal.h"
#include "fs/tier/manifest_fmt.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume_int.h"
#include "objstore/fault.h"
#include "objstore/mem.h"
#include "tests/sim/simdisk.h"

struct small {
    char dir[64]; /* of LMDB, on the real disk */
    struct config conf;
    struct simdisk *disk;
    struct mem_bucket *bucket;
    struct objstore *look; /* a client of our own */
    struct volume *v;
    struct store_caps caps;
    uint32_t dev_id[1];
    unsigned many; /* 0: the one device is opened as it is; else so many at first, by the volume's own list */
    unsigned boot, lives;
    bool broker;
    unsigned crashes;
};

static struct small W;
static const uint8_t WORLD_ID[16] = {0x51, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15};

/* ---- stepping ---- */

static bool small_step(void)
{
    struct volume *v = W.v;
    int64_t next;
    static unsigned depth;
    bool did = exec_step(v->pool) || exec_step(v->store_pool) ||
               (v->tier && exec_step(v->tier->actor)) || (v->kv && kv_step(v->kv)) ||
               timers_step(v->timers, &next) > 0 || mem_step(v->store);
    if (!did && v->tier && depth == 0) { /* may wait, and then steps from inside */
        depth++;
        did = exec_step(v->tier->blocking);
        depth--;
    }
    return did;
}

static void small_idle(void)
{
    unsigned n = 0;
    while (small_step())
        cr_assert_lt(++n, 1000000, "work never ends");
}

static int64_t small_next(void)
{
    int64_t next;
    (void)timers_step(W.v->timers, &next);
    return next;
}

static void small_run(int64_t ns)
{
    int64_t end = clock_mono_ns() + ns;
    for (;;) {
        small_idle();
        int64_t now = clock_mono_ns(), next = small_next();
        if (now >= end)
            return;
        int64_t to = next < end ? next : end;
        clock_virtual_advance(to > now ? to - now : 0);
    }
}

static void small_pump(struct volume *v)
{
    (void)v;
    if (!small_step()) {
        int64_t next = small_next(), now = clock_mono_ns();
        clock_virtual_advance(next != INT64_MAX && next > now ? next - now : 10 * NS_PER_MS);
    }
}

/* Lets time pass until `is` is true. False: it never was within a virtual ten minutes. */
__attribute__((unused)) static bool small_until(bool (*is)(void))
{
    for (unsigned i = 0; i < 6000 && !is(); i++)
        small_run(100 * NS_PER_MS);
    return is();
}

/* ---- making ---- */

static void small_put_file(const char *path, const char *text)
{
    int fd = io_open(AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert(fd >= 0 && io_pwrite_full(fd, text, strlen(text), 0, NULL) == 0);
    cr_assert_eq(io_sync(fd, false), 0);
    io_close(fd);
}

static void small_boot_id(void)
{
    char text[64];
    snprintf(text, sizeof text, "00000000-0000-4000-8000-%012x\n", W.boot);
    small_put_file("/proc/sys/kernel/random/boot_id", text);
}

static void small_claim(uint64_t epoch)
{
    struct volobj o = {.node = 1, .epoch = epoch, .created_ns = 1, .profile = W.broker};
    uint8_t buf[VOLOBJ_BYTES];
    memcpy(o.volume, WORLD_ID, 16);
    memcpy(o.nonce, WORLD_ID, 16);
    volobj_encode(&o, buf);
    struct obj_body body = {.mem = buf, .fd = -1, .len = sizeof buf};
    struct obj_req req = {.op = OBJ_PUT, .key = VOLOBJ_KEY, .body = &body, .body_n = 1};
    req.done = obj_req_done;
    obj_submit(W.look, &req);
    while (mem_step(W.look))
        ;
    cr_assert_eq(req.err, 0);
}

/* A world with calm settings; change W.conf before small_open. */
static void small_make(bool broker)
{
    static const char *const dirs[] = {
        "/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random", "/state", "/dev0"};
    memset(&W, 0, sizeof W);
    W.broker = broker;
    random_seed_for_tests(4711);
    clock_virtual_set(1000 * NS_PER_SEC);
    snprintf(W.dir, sizeof W.dir, "/tmp/sluice-small-XXXXXX");
    cr_assert(mkdtemp(W.dir));
    W.disk = simdisk_new();
    simdisk_use(W.disk);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        cr_assert_eq(io_mkdir(AT_FDCWD, dirs[i], 0700), 0);
    small_boot_id();
    static const char *const sync[] = {"/", "/proc", "/proc/sys", "/proc/sys/kernel",
                                       "/proc/sys/kernel/random"};
    for (size_t i = 0; i < sizeof sync / sizeof *sync; i++)
        (void)io_sync_dir(AT_FDCWD, sync[i]);
    struct config *c = &W.conf;
    config_init(c);
    c->pool = 8 * MiB;
    c->slice = 256 * KiB;
    c->segment_bytes = 256 * KiB;
    c->window_min = 256 * KiB;
    c->window_max = 2 * MiB;
    c->manifest_delay = 100;
    c->delete_delay = 1000;
    c->mirror_below = 0;
    c->profile = broker ? PROFILE_BROKER : PROFILE_TOPICS;
    c->devices = 1;
    c->device[0].budget = 256 * MiB;
    free(c->state);
    c->state = strdup(W.dir);
    W.caps = (struct store_caps){true, true, true, true};
    cr_assert_eq(mem_bucket_open(&W.bucket), 0);
    cr_assert_eq(mem_attach(W.bucket, &W.look), 0);
    small_claim(1);
}

/* The devices by the identity in /state, as a mount does. */
static int small_open_devices(struct volume *v, char *why, size_t cap)
{
    struct volume_priv *p = calloc(1, sizeof *p);
    v->priv = p;
    p->first = W.lives == 0;
    if (!p->first) {
        int r = ident_load(v->state_fd, IDENT_NAME, &p->ident);
        return r < 0 ? r : volume_open_devices(v, why, cap);
    }
    memcpy(p->ident.volume, WORLD_ID, 16);
    p->ident.node = 1;
    p->ident.profile = W.broker;
    p->ident.caps = W.caps;
    W.conf.devices = W.many;
    for (unsigned k = 0; k < W.many; k++) {
        cr_assert(asprintf(&W.conf.device[k].path, "/dev%u", k) > 0);
        W.conf.device[k].budget = W.conf.device[0].budget;
    }
    int r = volume_open_devices(v, why, cap);
    if (r == 0)
        r = ident_store(v->state_fd, IDENT_NAME, &p->ident);
    p->first = false;
    return r;
}

static void small_open(void)
{
    struct volume *v = calloc(1, sizeof *v);
    char why[400] = "";
    W.v = v;
    memcpy(v->id, WORLD_ID, 16);
    volume_id_text(v->id, v->id_text);
    v->node = 1;
    v->conf = &W.conf;
    v->topics_profile = !W.broker;
    v->pump = small_pump;
    cr_assert_eq(stats_open(&v->stats), 0);
    cr_assert_eq(timers_open(false, &v->timers), 0);
    cr_assert_eq(exec_open("device", 0, 0, &v->pool), 0);
    v->bulk = v->fetch = v->pool;
    cr_assert_eq(exec_open("store", 0, 0, &v->store_pool), 0);
    struct store_conf sc = {.stats = v->stats,
                            .timers = v->timers,
                            .device_pool = v->store_pool,
                            .fault_plan = "",
                            .connections = 8,
                            .timeout_get_ms = 10000,
                            .timeout_put_ms = 30000,
                            .timeout_small_ms = 10000,
                            .backoff_min_ms = 100,
                            .backoff_max_ms = 1000};
    cr_assert(mem_attach(W.bucket, &v->store) == 0 && fault_push(&v->store, &sc) == 0 &&
              meter_push(&v->store, &sc) == 0 && retry_push(&v->store, &sc) == 0 &&
              breaker_push(&v->store, &sc) == 0);
    v->state_fd = io_open(AT_FDCWD, "/state", O_RDONLY | O_DIRECTORY, 0);
    cr_assert_geq(v->state_fd, 0);
    struct dev_conf dc = {"/dev0", W.conf.device[0].budget};
    int r = W.many ? small_open_devices(v, why, sizeof why)
                   : devs_open(v->id, &dc, 1, W.lives == 0, W.dev_id, v->stats, &v->devs, why,
                               sizeof why);
    W.lives++;
    if (r == 0)
        r = volume_wire(v, &W.caps, false, why, sizeof why);
    cr_assert_eq(r, 0, "%s", why);
}

static void small_plan(const char *text)
{
    char why[200];
    cr_assert_eq(fault_plan_set(W.v->store, text, why, sizeof why), 0, "%s", why);
}

static void small_stop(void)
{
    struct volume *v = W.v;
    small_plan("");
    volume_stop(v, 100);
    small_idle();
    int fd = v->state_fd;
    volume_unwire(v);
    io_close(fd);
    if (v->priv)
        ident_done(&volume_priv(v)->ident);
    free(v->priv);
    free(v);
    W.v = NULL;
}

__attribute__((unused)) static struct volume *small_dead[1024];
__attribute__((unused)) static unsigned small_deaths;

/* The volume's memory is left as it is; its store client closes, the disk may forget. */
__attribute__((unused)) static void small_crash(bool power)
{
    struct volume *v = W.v;
    simdisk_freeze(W.disk, 1);
    obj_close(v->store);
    kv_crash(v->kv);
    W.crashes++;
    small_dead[small_deaths++ % ARRAY_LEN(small_dead)] = v; /* reachable: no leak */
    W.v = NULL;
    simdisk_crash(W.disk, NULL, power ? SIMDISK_POWER : SIMDISK_KILL, 99 + W.crashes);
    if (power) {
        W.boot++;
        small_boot_id();
    }
}

static int small_rm(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void small_free(void)
{
    if (W.v)
        small_stop();
    obj_close(W.look);
    mem_bucket_close(W.bucket);
    simdisk_use(NULL);
    simdisk_free(W.disk);
    (void)nftw(W.dir, small_rm, 8, FTW_DEPTH | FTW_PHYS);
    config_done(&W.conf);
    clock_virtual_set(0);
}

/* ---- files ---- */

static void small_fill(uint8_t *p, uint64_t ino, uint64_t off, size_t n, unsigned salt)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = ((off + i) / 8 + ino * 0x10001 + salt) * 0x9e3779b97f4a7c15ull;
        p[i] = (uint8_t)(x >> (8 * ((off + i) % 8)) ^ x >> 56);
    }
}

static uint64_t small_create(uint64_t parent, const char *name, mode_t type)
{
    struct ns_create c = {.parent = parent,
                          .name = name,
                          .mode = type | 0700,
                          .excl = true,
                          .target = S_ISLNK(type) ? name : NULL};
    struct inode *i;
    cr_assert_eq(ns_create(W.v->ns, &c, NULL, &i), 0, "create %s", name);
    uint64_t ino = i->ino;
    inode_put(W.v->ns, i);
    return ino;
}

static int small_write_some(uint64_t ino, uint64_t off, size_t n, unsigned salt, size_t *ret_done,
                            int64_t *ret_reply_at)
{
    struct inode *i;
    uint8_t *buf = malloc(n);
    small_fill(buf, ino, off, n, salt);
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    struct data_write w = {.i = i, .off = off, .buf = buf, .len = n};
    int r = data_write_begin(W.v->data, &w);
    *ret_done = r == 0 ? w.done : 0;
    if (ret_reply_at)
        *ret_reply_at = w.reply_at_ns;
    if (r == 0)
        data_write_end(W.v->data, &w);
    inode_put(W.v->ns, i);
    free(buf);
    return r;
}

static void small_write(uint64_t ino, uint64_t off, uint64_t n, unsigned salt)
{
    while (n) {
        size_t done, part = n < FUSE_IO_BYTES_MAX ? (size_t)n : FUSE_IO_BYTES_MAX;
        int r = small_write_some(ino, off, part, salt, &done, NULL);
        cr_assert(r == 0 && done == part, "write at %llu: %s", (unsigned long long)off,
                  err_name(r));
        off += done;
        n -= done;
    }
}

static uint64_t small_size(uint64_t ino)
{
    struct inode *i;
    struct stat st;
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    data_stat(W.v->data, i, &st);
    inode_put(W.v->ns, i);
    return (uint64_t)st.st_size;
}

__attribute__((unused)) static void small_append(uint64_t ino, uint64_t n, unsigned salt)
{
    small_write(ino, small_size(ino), n, salt);
}

/* Steps the world until a callback has set `done`. */
static void small_wait(const bool *done)
{
    for (unsigned n = 0; !*done; n++) {
        cr_assert_lt(n, 1000000, "an answer never comes");
        small_pump(W.v);
    }
}

static void small_read_done(struct data_read *r)
{
    *(bool *)r->arg = true;
}

/* Bytes read, or -errno. Steps the world until the answer is there. */
static int64_t small_read(uint64_t ino, uint64_t off, void *buf, size_t len)
{
    struct inode *i;
    bool done = false;
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    struct data_read r = {.i = i, .off = off, .len = len, .done = small_read_done, .arg = &done};
    int e = data_read_start(W.v->data, &r);
    if (e == 0)
        small_wait(&done);
    int64_t got = e < 0 ? e : r.err;
    if (got == 0) {
        for (unsigned k = 0; k < r.iov_n; k++) {
            memcpy((uint8_t *)buf + got, r.iov[k].iov_base, r.iov[k].iov_len);
            got += (int64_t)r.iov[k].iov_len;
        }
        data_read_release(W.v->data, &r);
    }
    inode_put(W.v->ns, i);
    return got;
}

/* Every byte of [off, off + n) is that of `salt`. */
static void small_check(uint64_t ino, uint64_t off, uint64_t n, unsigned salt)
{
    uint8_t *got = malloc(FUSE_IO_BYTES_MAX), *want = malloc(FUSE_IO_BYTES_MAX);
    while (n) {
        size_t part = n < 100000 ? (size_t)n : 100000;
        int64_t r = small_read(ino, off, got, part);
        cr_assert_eq(r, (int64_t)part, "read at %llu: %lld", (unsigned long long)off, (long long)r);
        small_fill(want, ino, off, part, salt);
        cr_assert_eq(memcmp(got, want, part), 0, "wrong bytes in [%llu, +%zu)",
                     (unsigned long long)off, part);
        off += part;
        n -= part;
    }
    free(got);
    free(want);
}

__attribute__((unused)) static int small_truncate(uint64_t ino, uint64_t size)
{
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    int r = data_truncate(W.v->data, i, size, NULL);
    inode_put(W.v->ns, i);
    return r;
}

__attribute__((unused)) static int small_fallocate(uint64_t f, int mode, uint64_t off, uint64_t len)
{
    struct inode *i;
    uint64_t blocked;
    int r = inode_get(W.v->ns, f, &i);
    if (r < 0)
        return r;
    r = data_fallocate(W.v->data, i, mode, off, len, &blocked);
    inode_put(W.v->ns, i);
    return r;
}

static void small_sync_done(struct data_sync *s, int err)
{
    s->err = err;
    *(bool *)s->arg = true;
}

__attribute__((unused)) static int small_fsync(uint64_t ino)
{
    bool done = false;
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    struct data_sync s = {.i = i, .done = small_sync_done, .arg = &done};
    data_fsync(W.v->data, &s);
    small_wait(&done);
    inode_put(W.v->ns, i);
    return s.err;
}

struct small_cmd {
    struct tier_cmd c;
    bool done;
    int err;
};

static void small_cmd_done(struct tier_cmd *c, int err, const char *why)
{
    struct small_cmd *s = c->arg;
    (void)why;
    s->done = true;
    s->err = err;
}

__attribute__((unused)) static int small_command(enum tier_cmd_kind kind, uint64_t ino)
{
    struct small_cmd s = {.c = {.kind = kind, .ino = ino, .done = small_cmd_done}};
    s.c.arg = &s;
    tier_command(W.v->tier, &s.c);
    for (unsigned i = 0; i < 3000 && !s.done; i++)
        small_run(100 * NS_PER_MS);
    cr_assert(s.done, "the command never ends");
    return s.err;
}

/* ---- looking ---- */

static int small_count_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen, (void)val, (void)vlen;
    ++*(unsigned *)arg;
    return 0;
}

static unsigned small_rows(char table)
{
    unsigned n = 0;
    cr_assert_eq(kv_walk(W.v->kv, &table, 1, &table, 1, small_count_row, &n), 0);
    return n;
}

/* Until the queues are empty. */
__attribute__((unused)) static void small_settle(void)
{
    for (unsigned s = 0; s < 600; s++) {
        small_run(NS_PER_SEC);
        unsigned left = 0;
        for (const char *t = "UMmDL"; *t; t++)
            left += small_rows(*t);
        if (left == 0)
            return;
    }
    cr_assert_fail("U %u M %u m %u D %u L %u", small_rows('U'), small_rows('M'), small_rows('m'),
                   small_rows('D'), small_rows('L'));
}

__attribute__((unused)) static struct seg_rec small_seg(uint64_t ino, uint64_t base)
{
    struct seg_rec r;
    cr_assert_eq(seg_get(W.v->kv, ino, base, &r), 0, "no segment at %llu",
                 (unsigned long long)base);
    return r;
}

/* How many objects have this prefix. */
__attribute__((unused)) static unsigned small_objects(const char *prefix)
{
    unsigned n = 0;
    const char *k;
    for (unsigned i = 0; (k = mem_key(W.look, i)); i++)
        n += !strncmp(k, prefix, strlen(prefix));
    return n;
}

#endif
