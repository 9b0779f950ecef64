/* devices.c: see devices.h. What a mount opens, adding and draining; removing is in device_remove.c.
 *
 * The remembered list rules. A path on the command line that is in it may change the budget; one that is
 * new is added; one that was removed by `device remove` is left alone, so that an old fstab does no harm. A
 * daemon that takes a live mount over (restart, upgrade) and a command line without devices believe the list
 * alone.
 *
 * No lock: `changing_devices` admits one change at a time, and only who holds it touches the identity.
 */
#include "fs/volume/devices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/data.h"
#include "fs/tier/internal.h"
#include "fs/volume/device_int.h"
#include "fs/volume/volume_int.h"
#include "objstore/objstore.h"

enum { LOOK_MS = 50 };

/* ---- opening ---- */

/* Two mounts of copies of one state directory would write the same files. A file system without locks has
 * none. */
static int lock_device(struct volume *v, uint32_t id, const char *path, char *why, size_t cap)
{
    int fd = dev_dirfd(v->devs, id);
    if (fd < 0 || dir_lock_soon(fd) != -EWOULDBLOCK)
        return 0;
    snprintf(why, cap, "device %s: is in use by another mount; unmount that one first", path);
    return -EBUSY;
}

/* The first mount, or a rebuild: all that the command line names. */
static int open_first(struct volume *v, char *why, size_t cap)
{
    struct ident *i = &volume_priv(v)->ident;
    const struct config *c = v->conf;
    struct dev_conf dc[DEVICES_MAX] = {{0}};
    for (unsigned k = 0; k < c->devices; k++)
        if (ident_find(i, c->device[k].path) < 0) {
            int r = ident_add(i, c->device[k].path, c->device[k].budget, 0);
            if (r < 0)
                return r;
        }
    for (unsigned k = 0; k < i->devices; k++)
        dc[k] = (struct dev_conf){i->path[k], i->budget[k]};
    int r = devs_open(i->volume, dc, i->devices, true, i->id, v->stats, &v->devs, why, cap);
    for (unsigned k = 0; r == 0 && k < i->devices; k++)
        r = lock_device(v, i->id[k], i->path[k], why, cap);
    return r;
}

/* Budgets of the command line, and the paths on it that are new. */
static bool read_args(struct volume *v, struct ident *i, unsigned *fresh, unsigned *ret_n)
{
    const struct config *c = v->conf;
    bool changed = false;
    *ret_n = 0;
    if (c->connection_survived || c->devices_by_default)
        return false;
    for (unsigned k = 0; k < c->devices; k++) {
        const struct config_device *d = &c->device[k];
        int at = ident_find(i, d->path);
        if (at >= 0) {
            if (d->budget && d->budget != i->budget[at]) {
                i->budget[at] = d->budget;
                changed = true;
            }
        } else if (ident_find_gone(i, d->path) >= 0) {
            log_warn(LC_MAIN,
                     "device %s was removed from this volume and is not used; take it off the "
                     "command line, or add it again with sluicefs device add",
                     d->path);
        } else {
            fresh[(*ret_n)++] = k;
        }
    }
    return changed;
}

static int add_new(struct volume *v, const char *path, uint64_t budget, char *why, size_t cap)
{
    struct ident *i = &volume_priv(v)->ident;
    uint32_t id = ident_next(i);
    struct dev_conf dc = {path, budget};
    int r = devs_add(v->devs, &dc, id, why, cap);
    if (r == 0)
        r = lock_device(v, id, path, why, cap);
    return r < 0 ? r : ident_add(i, path, budget, id);
}

int volume_open_devices(struct volume *v, char *why, size_t cap)
{
    struct volume_priv *p = volume_priv(v);
    struct ident *i = &p->ident;
    struct dev_conf dc[DEVICES_MAX] = {{0}};
    unsigned fresh[CONFIG_DEVICES_MAX], n;
    if (p->first)
        return open_first(v, why, cap);
    bool changed = read_args(v, i, fresh, &n);
    for (unsigned k = 0; k < i->devices; k++)
        dc[k] = (struct dev_conf){i->path[k], i->budget[k]};
    int r = devs_open(i->volume, dc, i->devices, false, i->id, v->stats, &v->devs, why, cap);
    for (unsigned k = 0; r == 0 && k < i->devices; k++)
        r = lock_device(v, i->id[k], i->path[k], why, cap);
    for (unsigned k = 0; r == 0 && k < i->devices; k++)
        if (i->draining[k])
            dev_drain(v->devs, i->id[k], true, i->drain_total[k]);
    for (unsigned k = 0; r == 0 && k < n; k++) {
        r = add_new(v, v->conf->device[fresh[k]].path, v->conf->device[fresh[k]].budget, why, cap);
        changed = true;
    }
    if (r == 0 && changed)
        r = ident_store(v->state_fd, IDENT_NAME, i);
    for (unsigned k = 0; r == 0 && k < i->devices; k++)
        dev_use(v->devs, i->id[k]);
    return r;
}

/* ---- changes ---- */

int device_begin(struct volume *v, char *why, size_t cap)
{
    if (v->conf->read_only) {
        snprintf(why, cap, "the mount is read-only; mount it for writing");
        return -EBUSY;
    }
    if (atomic_exchange(&volume_priv(v)->changing_devices, true)) {
        snprintf(why, cap, "another change of the devices is under way; try again");
        return -EBUSY;
    }
    return 0;
}

void device_end(struct volume *v)
{
    atomic_store(&volume_priv(v)->changing_devices, false);
}

int device_find(struct volume *v, const char *path, char *why, size_t cap)
{
    int at = ident_find(&volume_priv(v)->ident, path);
    if (at < 0) {
        snprintf(why, cap, "%s is not a device of this volume; sluicefs device list shows them",
                 path);
        return -ENOENT;
    }
    return at;
}

int device_store(struct volume *v, struct ident *next, char *why, size_t cap)
{
    struct ident *i = &volume_priv(v)->ident;
    int r = ident_store(v->state_fd, IDENT_NAME, next);
    if (r < 0) {
        snprintf(why, cap, "state directory %s: cannot be written (%s); check free space",
                 v->conf->state, err_name(r));
        ident_done(next);
        return r;
    }
    ident_done(i);
    *i = *next;
    return 0;
}

/* ---- add ---- */

/* As config_finish for the command line: none may lie in another one's directory. */
static int check_apart(struct volume *v, const char *path, char *why, size_t cap)
{
    const struct config *c = v->conf;
    const struct ident *i = &volume_priv(v)->ident;
    struct store_url *u = malloc(sizeof *u);
    const char *taken[DEVICES_MAX + 3] = {c->mountpoint, c->state};
    unsigned n = 2;
    if (!u)
        return -ENOMEM;
    if (c->store && store_url_parse(c->store, u, why, cap) == 0 && u->kind == STORE_DIR)
        taken[n++] = u->path;
    for (unsigned k = 0; k < i->devices; k++)
        taken[n++] = i->path[k];
    AUTO_FREE char *real = path_resolved(path);
    int r = !real ? -ENOMEM : *path == '/' ? 0 : -EINVAL;
    for (unsigned k = 0; r == 0 && k < n; k++) {
        /* Not the mount point, which only we could answer. */
        AUTO_FREE char *other = k == 0 || !taken[k] ? NULL : path_resolved(taken[k]);
        const char *o = other ? other : taken[k];
        bool itself = k >= n - i->devices && o && !strcmp(real, o); /* devs_add says what it is */
        if (o && !itself && (path_within(real, o) || path_within(o, real)))
            r = -EBUSY;
        if (r < 0)
            snprintf(why, cap, "device %s: overlaps with %s of this volume; choose a place apart",
                     path, taken[k]);
    }
    free(u);
    return r;
}

static int do_add(struct volume *v, const char *path, uint64_t budget, char *why, size_t cap)
{
    struct ident next;
    struct dev_conf dc = {path, budget};
    uint32_t id = ident_next(&volume_priv(v)->ident);
    bool left;
    int r = ident_copy(&volume_priv(v)->ident, &next);
    if (r < 0)
        return r;
    r = devs_add(v->devs, &dc, id, why, cap);
    if (r < 0) {
        ident_done(&next);
        return r;
    }
    r = lock_device(v, id, path, why, cap);
    if (r == 0)
        r = session_store(v, false);
    if (r < 0 && r != -EBUSY)
        snprintf(why, cap, "state directory %s: cannot be written (%s); check free space",
                 v->conf->state, err_name(r));
    if (r == 0)
        r = ident_add(&next, path, budget, id);
    if (r < 0)
        ident_done(&next);
    else
        r = device_store(v, &next, why, cap);
    if (r < 0) {
        (void)dev_retire(v->devs, id); /* nobody can be there yet */
        dev_forget(v->devs, id, &left);
        return r;
    }
    dev_use(v->devs, id);
    log_info(LC_MAIN, "device %u (%s) was added", id, path);
    data_space_freed(v->data);
    tier_kick(v->tier);
    return 0;
}

int volume_device_add(struct volume *v, const char *path, uint64_t budget, char *why, size_t cap)
{
    *why = 0;
    int r = device_begin(v, why, cap);
    if (r < 0)
        return r;
    r = check_apart(v, path, why, cap);
    if (r == 0)
        r = do_add(v, path, budget, why, cap);
    device_end(v);
    return r;
}

/* ---- drain ---- */

/* Is there a place for what comes, and for what is on it? */
static int check_room(struct volume *v, const struct dev_info *info, char *why, size_t cap)
{
    struct drain_look l;
    struct objstore_status st;
    uint32_t other;
    int r = dev_pick_other(v->devs, info->id, SEGMENT_BYTES_MIN, DEV_REFUSE, &other);
    if (r == 0)
        dev_unpick(v->devs, other);
    if (r == -ENODEV) {
        snprintf(why, cap,
                 "%s: no other device takes segments; add one first: sluicefs device add "
                 "MOUNTPOINT DIR",
                 info->path);
        return -EBUSY;
    }
    if (r < 0) {
        snprintf(why, cap,
                 "%s: the other devices are full; add one (sluicefs device add MOUNTPOINT DIR), or "
                 "wait until uploads have made room",
                 info->path);
        return -EBUSY;
    }
    obj_status(v->store, &st);
    if (st.health != OBJ_HEALTH_DOWN || info->state != DEV_OK)
        return 0;
    r = tier_drain_look(v, info->id, &l);
    uint64_t need = l.sealed_bytes, room = 0;
    for (unsigned k = 0; k < devs_count(v->devs); k++) {
        struct dev_info o;
        if (devs_info(v->devs, k, &o) && o.id != info->id && dev_takes_new(v->devs, o.id)) {
            uint64_t limit = (uint64_t)(DEV_SLOW * (double)o.budget);
            room += min_u64(limit > o.used ? limit - o.used : 0, o.fs_free);
        }
    }
    if (r == 0 && need > room) {
        snprintf(why, cap,
                 "%s: %llu bytes on it are not uploaded, the store is down, and the other devices "
                 "have room for %llu; add a device, or wait for the store",
                 info->path, (unsigned long long)need, (unsigned long long)room);
        return -EBUSY;
    }
    return r;
}

static int do_drain(struct volume *v, const char *path, bool on, char *why, size_t cap)
{
    struct ident next;
    struct dev_info info;
    int at = device_find(v, path, why, cap);
    if (at < 0)
        return at;
    uint32_t id = volume_priv(v)->ident.id[at];
    if (volume_priv(v)->ident.draining[at] == on)
        return 0;
    if (!dev_info_of(v->devs, id, &info))
        return -ENOENT;
    int r = on ? check_room(v, &info, why, cap) : 0;
    if (r == 0)
        r = ident_copy(&volume_priv(v)->ident, &next);
    if (r < 0)
        return r;
    next.draining[at] = on;
    next.drain_total[at] = on ? info.used : 0;
    r = device_store(v, &next, why, cap);
    if (r < 0)
        return r;
    dev_drain(v->devs, id, on, info.used);
    log_info(LC_MAIN, "device %u (%s): %s", id, path,
             on ? "is being drained" : "is not drained any more, it takes segments again");
    if (!on)
        data_space_freed(v->data);
    tier_kick(v->tier);
    return 0;
}

int volume_device_drain(struct volume *v, const char *path, bool on, char *why, size_t cap)
{
    *why = 0;
    int r = device_begin(v, why, cap);
    if (r < 0)
        return r;
    r = do_drain(v, path, on, why, cap);
    device_end(v);
    return r;
}

static bool find_live(struct volume *v, const char *path, struct dev_info *ret)
{
    for (unsigned k = 0; k < devs_count(v->devs); k++)
        if (devs_info(v->devs, k, ret) && !strcmp(ret->path, path))
            return true;
    return false;
}

int volume_device_wait(struct volume *v, const char *path, _Atomic bool *cancelled,
                       void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                       char *why, size_t cap)
{
    struct dev_info i;
    for (;;) {
        if (!find_live(v, path, &i) || !i.draining) {
            snprintf(why, cap, "%s: its draining was ended by somebody else", path);
            return -ECANCELED;
        }
        if (progress)
            progress(arg, i.drain_total - i.drain_left, i.drain_total);
        if (i.drained)
            return 0;
        if (i.drain_stuck) {
            snprintf(why, cap, "%s: %s; sluicefs device remove --lost MOUNTPOINT DIR gives them up",
                     path, i.drain_note);
            return -EIO;
        }
        if (atomic_load(cancelled)) {
            snprintf(
                why, cap,
                "%s: no longer waited for, its draining goes on; sluicefs device drain --cancel "
                "ends it",
                path);
            return -ECANCELED;
        }
        volume_pause(v, LOOK_MS * NS_PER_MS);
    }
}
