/* volume.c: opening and closing a volume, and the one place that wires the modules below FUSE.
 *
 * Order of opening, each step relying on what the earlier ones promise:
 *   state directory locked -> identity read -> store opened (no request) -> [first mount: store probed,
 *   prefix looked at, devices prepared, prefix claimed, identity written] -> devices -> metadata
 *   (journal replayed) -> namespace, cache, data -> open segments recovered -> tiering started
 *
 * A first mount that fails before the store was asked to keep anything leaves nothing behind; later,
 * nothing that would be in the way of the next try: its parts carry the id noted in volume.creating.
 */
#include "fs/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cache/cache.h"
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/data/data.h"
#include "fs/data/hooks.h"
#include "fs/data/source.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/ns/ns.h"
#include "fs/policy/policy.h"
#include "fs/tier/internal.h"
#include "fs/volume/first.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume_int.h"

enum { BULK_NICE = 5 };

/* ---- paths ---- */

int volume_make_dirs(const char *path)
{
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part)
        return -ENAMETOOLONG;
    for (const char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        int r = io_mkdir(AT_FDCWD, part, 0700);
        if (r < 0 && r != -EEXIST)
            return r;
        if (!slash)
            return 0;
    }
}

/* The same store, whatever way leads to it: endpoint, region and addressing may change. */
static bool same_place(const struct store_url *a, const struct store_url *b)
{
    if (a->kind != b->kind)
        return false;
    return a->kind == STORE_DIR ? !strcmp(a->path, b->path)
                                : !strcmp(a->bucket, b->bucket) && !strcmp(a->prefix, b->prefix);
}

/* ---- state directory ---- */

static int see_any(void *arg, const char *name)
{
    (void)arg;
    return strcmp(name, "lock") && strcmp(name, "log") && strcmp(name, IDENT_CREATING) &&
           !io_replace_left(name, IDENT_CREATING) && !io_replace_left(name, IDENT_NAME);
}

int volume_lock_state(struct volume *v, char *why, size_t cap, int *ret_exit)
{
    struct volume_priv *p = volume_priv(v);
    const char *dir = v->conf->state;
    v->state_fd = io_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY, 0);
    if (v->state_fd == -ENOENT)
        return -ENOENT;
    if (v->state_fd < 0) {
        snprintf(why, cap,
                 "state directory %s: cannot be opened (%s); check the path and its permissions",
                 dir, err_name(v->state_fd));
        *ret_exit = VOL_FAILED;
        return v->state_fd;
    }
    p->lock_fd = io_open(v->state_fd, "lock", O_RDWR, 0600);
    if (p->lock_fd == -ENOENT) {
        p->lock_fd = io_open(v->state_fd, "lock", O_RDWR | O_CREAT, 0600);
        p->made_lock = p->lock_fd >= 0;
    }
    if (p->lock_fd < 0) {
        snprintf(why, cap, "state directory %s: is not writable (%s); check owner and permissions",
                 dir, err_name(p->lock_fd));
        *ret_exit = VOL_FAILED;
        return p->lock_fd;
    }
    if (dir_lock_soon(p->lock_fd) < 0) {
        snprintf(why, cap, "state directory %s: is in use by another mount; unmount that one first",
                 dir);
        *ret_exit = VOL_REFUSED;
        return -EBUSY;
    }
    return 0;
}

int volume_read_identity(struct volume *v, char *why, size_t cap, int *ret_exit)
{
    struct volume_priv *p = volume_priv(v);
    int r = ident_load(v->state_fd, IDENT_NAME, &p->ident);
    if (r == 0)
        return 0;
    *ret_exit = VOL_REFUSED;
    if (r != -ENOENT) {
        snprintf(why, cap,
                 r == -EPROTONOSUPPORT
                     ? "state directory %s: was written by a newer version; use that version"
                     : "state directory %s: its identity file `volume` is damaged; restore the "
                       "directory from a copy, or rebuild it from the bucket",
                 v->conf->state);
        return r;
    }
    if (faccessat(v->state_fd, IDENT_RESTORING, F_OK, 0) == 0) {
        snprintf(
            why, cap,
            "state directory %s: a rebuild of it did not come to its end; run sluicefs restore "
            "again",
            v->conf->state);
        return -ENOTEMPTY;
    }
    p->first = true;
    if (io_scan(v->state_fd, ".", see_any, NULL) > 0) {
        snprintf(why, cap,
                 "state directory %s: is not empty and not of a volume; give an empty directory",
                 v->conf->state);
        return -ENOTEMPTY;
    }
    if (ident_load(v->state_fd, IDENT_CREATING, &p->ident) < 0)
        memset(&p->ident, 0, sizeof p->ident);
    return 0;
}

int volume_check_identity(struct volume *v, const struct store_url *url, char *why, size_t cap)
{
    struct ident *i = &volume_priv(v)->ident;
    struct store_url have;
    char text[37], ignored[256];
    volume_id_text(i->volume, text);
    if (store_url_parse(i->url, &have, ignored, sizeof ignored) == 0 && !same_place(&have, url)) {
        snprintf(
            why, cap,
            "state directory %s: belongs to volume %s in store %s, not in %s; give that store, or "
            "another state directory",
            v->conf->state, text, i->url, v->conf->store);
        return -EEXIST;
    }
    if (i->profile != (v->conf->profile == PROFILE_BROKER)) {
        snprintf(why, cap,
                 "profile: volume %s was created with profile %s; mount it with --profile %s", text,
                 i->profile ? "broker" : "topics", i->profile ? "broker" : "topics");
        return -EEXIST;
    }
    return 0;
}

/* ---- first mount ---- */

/* In the default place the device stands beside the state directory, below a directory that is made with
 * the state directory: there is nothing to look at yet. */
static bool made_with_state(const struct config *c, const char *device)
{
    const char *a = strrchr(c->state, '/'), *b = strrchr(device, '/');
    size_t n = a ? (size_t)(a - c->state) : 0;
    if (!a || !b || n == 0 || (size_t)(b - device) != n || strncmp(c->state, device, n) != 0)
        return false;
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%.*s", (int)n, device);
    return access(parent, F_OK) != 0;
}

/* Could the state directory be made? Told before anything is made elsewhere. */
static int look_at_state(const char *path)
{
    AUTO_FREE char *dir = strdup(path);
    if (!dir)
        return -ENOMEM;
    while (access(dir, F_OK) != 0 && errno == ENOENT) {
        char *slash = strrchr(dir, '/');
        if (!slash)
            return 0;
        if (slash == dir)
            return access("/", W_OK | X_OK) ? -errno : 0;
        *slash = 0;
    }
    return access(dir, W_OK | X_OK) ? -errno : 0;
}

static int first_mount(struct volume *v, char *why, size_t cap, int *ret_exit)
{
    struct volume_priv *p = volume_priv(v);
    struct ident *i = &p->ident;
    uint8_t none[16] = {0};
    if (!memcmp(i->volume, none, 16)) {
        random_bytes(i->volume, sizeof i->volume);
        i->volume[6] = (uint8_t)((i->volume[6] & 0x0f) | 0x40); /* a version 4 UUID */
        i->volume[8] = (uint8_t)((i->volume[8] & 0x3f) | 0x80);
        i->created_ns = clock_wall_ns();
    }
    i->node = 1;
    i->profile = v->conf->profile == PROFILE_BROKER;
    snprintf(i->url, sizeof i->url, "%s", v->conf->store);
    unsigned timeout = (unsigned)v->conf->store_timeout;
    struct dev_conf dc[CONFIG_DEVICES_MAX] = {{0}};
    unsigned look = 0;
    for (unsigned k = 0; k < v->conf->devices; k++)
        if (!made_with_state(v->conf, v->conf->device[k].path))
            dc[look++] = (struct dev_conf){v->conf->device[k].path, v->conf->device[k].budget};
    int r = v->state_fd < 0 ? look_at_state(v->conf->state) : 0;
    if (r < 0) {
        snprintf(why, cap, "state directory %s: cannot be created (%s); check its parent",
                 v->conf->state, err_name(r));
        *ret_exit = VOL_FAILED;
        return r;
    }
    r = devs_look(i->volume, dc, look, why, cap);
    if (r < 0) {
        *ret_exit = r == -EEXIST || r == -ENOTEMPTY ? VOL_REFUSED : VOL_FAILED;
        return r;
    }
    struct store_url url;
    r = volume_open_store(v, &url, true, why, cap, ret_exit);
    if (r < 0)
        return r;
    r = first_look(v->store, timeout, i, why, cap);
    if (r < 0) {
        *ret_exit = r == -EEXIST ? VOL_REFUSED : VOL_FAILED;
        return r;
    }
    if (v->state_fd < 0) {
        r = volume_make_dirs(v->conf->state);
        if (r < 0) {
            snprintf(why, cap, "state directory %s: cannot be created (%s); check its parent",
                     v->conf->state, err_name(r));
            *ret_exit = VOL_FAILED;
            return r;
        }
        p->made_state = true;
        r = volume_lock_state(v, why, cap, ret_exit);
        if (r < 0)
            return r;
    }
    r = volume_open_devices(v, why, cap);
    if (r < 0) {
        *ret_exit = r == -EEXIST || r == -ENOTEMPTY || r == -EBUSY ? VOL_REFUSED : VOL_FAILED;
        return r;
    }
    /* From here on the note stays, whatever comes: an unclear answer may have claimed the prefix. */
    p->claiming = true;
    r = ident_store(v->state_fd, IDENT_CREATING, i);
    if (r == 0)
        r = first_claim(v->store, timeout, i, why, cap);
    if (r == 0)
        r = ident_store(v->state_fd, IDENT_NAME, i);
    if (r == 0)
        (void)io_unlink(v->state_fd, IDENT_CREATING, 0);
    if (r < 0) {
        if (!*why)
            snprintf(why, cap, "state directory %s: cannot be written (%s); check free space",
                     v->conf->state, err_name(r));
        *ret_exit = r == -EEXIST ? VOL_REFUSED : VOL_FAILED;
    }
    if (r == 0 && (!i->caps.if_absent || !i->caps.if_match))
        log_warn(
            LC_MAIN,
            "the store does not honour conditional writes (%s%s): a second mount of this volume "
            "would not be noticed by it; never mount a copy of the state directory",
            i->caps.if_absent ? "" : "If-None-Match ", i->caps.if_match ? "" : "If-Match");
    return r;
}

/* A first mount that failed takes back what it made in the state directory. */
static void undo_first(struct volume *v)
{
    struct volume_priv *p = volume_priv(v);
    if (p->claiming)
        return;
    if (p->made_lock)
        (void)io_unlink(v->state_fd, "lock", 0);
    if (p->made_state)
        (void)io_unlink(AT_FDCWD, v->conf->state, AT_REMOVEDIR);
}

/* ---- the parts ---- */

static int open_cache(struct volume *v)
{
    const struct config *c = v->conf;
    struct cache_conf cc = {
        .pool_bytes = c->pool,
        .slice_bytes = c->slice,
        .watermark_percent = (unsigned)c->watermark,
        .window_min = c->window_min,
        .window_max = c->window_max,
        .unread_ms = (unsigned)c->unread_life,
        .stats = v->stats,
        .timers = v->timers,
        .source = data_source_ops,
        .damaged = data_damaged,
    };
    cc.source.ctx = v->data;
    return cache_open(&cc, &v->cache);
}

/* The epoch that the volume object was created with is ours from the start. */
static int store_first_epoch(struct volume *v)
{
    uint8_t buf[24];
    put_le64(buf, 1);
    memcpy(buf + 8, v->id, 16);
    struct key k = key_setting("epoch");
    if (kv_get(v->kv, k.b, k.len, buf, sizeof buf) != -ENOENT)
        return 0;
    struct kv_batch b;
    kv_batch_init(&b);
    kv_put(&b, k.b, k.len, buf, sizeof buf);
    int r = kv_apply(v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    return r;
}

int volume_wire(struct volume *v, const struct store_caps *caps, bool threaded, char *why,
                size_t cap)
{
    const struct config *c = v->conf;
    struct kv_conf kc = {
        .dirfd = v->state_fd,
        .dir = c->state,
        .checkpoint_ms = (unsigned)c->metadata_batch,
        .threaded = threaded,
        .lmdb_nosync = !threaded,
        .keep_origins = c->connection_survived,
        .stats = v->stats,
    };
    bool stale = false;
    int r = kv_open(&kc, &v->kv, why, cap);
    if (r < 0)
        return r;
    r = session_judge(v, &stale);
    if (r == 0)
        r = store_first_epoch(v);
    if (r == 0) {
        r = policy_open(v->kv, c, !v->topics_profile, &v->policy, why, cap);
        if (r < 0)
            return r;
    }
    if (r == 0)
        r = segfds_open(v->devs, &v->segfds);
    if (r == 0)
        r = data_open_module(v, &v->data);
    if (r == 0)
        r = open_cache(v);
    struct ns_conf nc = {
        .kv = v->kv,
        .node = v->node,
        .root_files_one_topic = !v->topics_profile,
        .lookups_unknown = c->connection_survived,
        .hooks = {v->data, data_load, data_unload, data_gone, data_stored_size, data_moved},
        .stats = v->stats,
    };
    if (r == 0)
        r = ns_open(&nc, S_IFDIR | 0755, getuid(), getgid(), &v->ns);
    if (r == 0)
        r = data_recover(v->data);
    /* Not before: a daemon killed while it proves sizes has not proven them. It is stored already when the
     * last one was killed on the same machine with the same devices: a flush less while programs wait. */
    if (r == 0 && (v->clean || v->restarted || stale))
        r = session_store(v, false);
    if (r == 0 && !c->connection_survived) /* else somebody may have them open */
        r = ns_purge_orphans(v->ns);
    if (r == 0)
        r = manifest_recover(v->kv);
    if (r == 0)
        r = tier_open(v, caps, threaded, &v->tier);
    if (r == 0 && (!v->clean || v->restarted))
        data_find_orphans(v->data);
    if (r < 0)
        snprintf(why, cap, "volume %s: cannot be opened (%s); see the log", v->id_text,
                 err_name(r));
    return r;
}

int volume_open_store(struct volume *v, struct store_url *url, bool create, char *why, size_t cap,
                      int *ret_exit)
{
    int r = store_url_parse(v->conf->store, url, why, cap);
    if (r < 0) {
        *ret_exit = VOL_USAGE;
        return r;
    }
    struct store_conf sc = {
        .url = *url,
        .stats = v->stats,
        .timers = v->timers,
        .device_pool = v->store_pool,
        .no_create = !create,
        .profile = v->conf->aws_profile,
        .fault_plan = v->conf->fault_plan,
        .connections = (unsigned)v->conf->connections,
        .timeout_get_ms = 10000,
        .timeout_put_ms = 30000,
        .timeout_small_ms = 10000,
        .backoff_min_ms = 100,
        .backoff_max_ms = 30000,
    };
    r = store_open(&sc, &v->store, why, cap);
    if (r < 0)
        *ret_exit = VOL_FAILED;
    return r;
}

int volume_threads(struct volume *v, char *why, size_t cap)
{
    int r = stats_open(&v->stats);
    if (r == 0)
        r = timers_open(true, &v->timers);
    if (r == 0)
        r = exec_open("device", (unsigned)v->conf->device_threads, 0, &v->pool);
    if (r == 0)
        r = exec_open("fetch", 2, 0, &v->fetch);
    if (r == 0)
        r = exec_open("bulk", 2, BULK_NICE, &v->bulk);
    if (r == 0)
        r = exec_open("dirstore", (unsigned)v->conf->device_threads, 0, &v->store_pool);
    if (r < 0)
        snprintf(why, cap, "threads: cannot be started (%s)", err_name(r));
    return r;
}

static int open_all(struct volume *v, char *why, size_t cap, int *ret_exit)
{
    struct volume_priv *p = volume_priv(v);
    *ret_exit = VOL_FAILED;
    int r = volume_threads(v, why, cap);
    if (r < 0)
        return r;
    r = volume_lock_state(v, why, cap, ret_exit);
    if (r == 0)
        r = volume_read_identity(v, why, cap, ret_exit);
    else if (r == -ENOENT) {
        p->first = true;
        r = 0;
    }
    struct store_url url;
    if (r == 0 && !p->first) {
        r = store_url_parse(v->conf->store, &url, why, cap);
        *ret_exit = r < 0 ? VOL_USAGE : VOL_FAILED;
        if (r == 0) {
            r = volume_check_identity(v, &url, why, cap);
            *ret_exit = r < 0 ? VOL_REFUSED : VOL_FAILED;
        }
        if (r == 0)
            r = volume_open_store(v, &url, false, why, cap, ret_exit);
    }
    if (r == 0 && p->first && v->conf->connection_survived) {
        snprintf(why, cap, "state directory %s: its volume has gone; unmount", v->conf->state);
        return -ENOENT;
    }
    if (r == 0 && p->first)
        r = first_mount(v, why, cap, ret_exit);
    if (r < 0 && p->first)
        undo_first(v);
    if (r == 0 && !p->first) {
        r = volume_open_devices(v, why, cap);
        if (r == -EEXIST || r == -ENOTEMPTY || r == -EBUSY)
            *ret_exit = VOL_REFUSED;
    }
    if (r < 0)
        return r;
    memcpy(v->id, p->ident.volume, 16);
    volume_id_text(v->id, v->id_text);
    v->node = p->ident.node;
    v->topics_profile = v->conf->profile == PROFILE_TOPICS;
    r = volume_wire(v, &p->ident.caps, true, why, cap);
    return r;
}

int volume_new(const struct config *conf, struct volume **ret)
{
    struct volume *v = calloc(1, sizeof *v);
    struct volume_priv *p = calloc(1, sizeof *p);
    if (!v || !p) {
        free(v);
        free(p);
        return -ENOMEM;
    }
    v->priv = p;
    v->conf = conf;
    v->state_fd = -1;
    p->lock_fd = -1;
    *ret = v;
    return 0;
}

int volume_open(const struct config *conf, struct volume **ret, char *why, size_t why_cap,
                int *ret_exit)
{
    struct volume *v;
    *why = 0;
    *ret_exit = VOL_FAILED;
    int r = volume_new(conf, &v);
    if (r < 0)
        return r;
    r = open_all(v, why, why_cap, ret_exit);
    if (r < 0) {
        volume_close(v);
        return r;
    }
    *ret = v;
    return 0;
}

void volume_stop(struct volume *v, unsigned grace_ms)
{
    cache_set_readahead(v->cache, false);
    data_stop(v->data);
    data_flush_all(v->data);
    (void)kv_sync(v->kv,
                  kv_seq(v->kv)); /* a failure was logged; the journal file is what there is */
    tier_stop(v->tier, grace_ms);
}

void volume_unwire(struct volume *v)
{
    tier_close(v->tier);
    if (v->bulk)
        exec_drain(v->bulk); /* seals under way pin inodes */
    if (v->fetch)
        exec_drain(v->fetch);
    if (v->pool)
        exec_drain(v->pool); /* and so do flushes */
    if (v->ns)
        ns_close(v->ns); /* unloads inodes: data, cache, devices, kv are still there */
    if (v->data)
        data_close_handles(v->data);
    if (v->cache)
        cache_close(v->cache);
    bool clean = v->data && data_all_flushed(v->data);
    if (v->kv && v->tier && clean && session_store(v, true) < 0)
        log_err(LC_MAIN, "volume %s: the end of the session could not be recorded", v->id_text);
    if (v->kv)
        kv_close(v->kv);
    data_close_module(v->data);
    policy_close(v->policy);
    if (v->store)
        obj_close(v->store);
    if (v->segfds)
        segfds_close(v->segfds);
    devs_close(v->devs);
    if (v->bulk != v->pool) {
        exec_close(v->bulk);
        exec_close(v->fetch);
    }
    exec_close(v->pool);
    exec_close(v->store_pool);
    timers_close(v->timers);
    stats_close(v->stats);
}

void volume_close(struct volume *v)
{
    if (!v)
        return;
    struct volume_priv *p = volume_priv(v);
    volume_unwire(v);
    io_close(p->lock_fd);
    io_close(v->state_fd);
    ident_done(&p->ident);
    free(p);
    free(v);
}
