/* devchange.c: devices that come and go while the volume is mounted (dev.h).
 *
 *   step            its place in the list                      new segments   lookups by id
 *   -------------   ----------------------------------------   ------------   -------------
 *   devs_add        complete, then counted; held               no             yes
 *   dev_use         -                                          yes            yes
 *   dev_drain       -                                          last resort    yes
 *   dev_retire      stays, with its path                       no             no
 *   dev_forget      its descriptor names nothing any more      no             no
 *
 * A place is not used again in one mount, so nobody who walks the list needs a lock. Who holds a file
 * open on a device, or has picked it for a new one, is counted in `users`: dev_retire refuses while
 * there is one. A descriptor number that somebody read just before dev_forget stays ours until the
 * end (io_park), so that it never names another file.
 */
#include "fs/seg/seg_int.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"

/* ---- adding ---- */

static int any_name(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 1;
}

static int look_bucket(void *arg, const char *name)
{
    const struct dev *v = arg;
    char path[16 + 256];
    snprintf(path, sizeof path, "segments/%s", name);
    int r = io_scan(v->dirfd, path, any_name, NULL);
    return r == -ENOTDIR ? 1 : r;
}

/* A directory that was ours once, and was removed: only without a segment file in it. */
static int check_emptied(struct dev *v, char *why, size_t cap)
{
    int r = io_scan(v->dirfd, "segments", look_bucket, v);
    if (r == -ENOENT)
        r = 0;
    if (r > 0)
        return dev_refuse(
            -ENOTEMPTY, why, cap,
            "device %s: was one of this volume and still holds segment files; move what "
            "is in its segments/ away, or give another, empty directory",
            v->path);
    if (r < 0)
        return dev_refuse(r, why, cap,
                          "device %s: its segments/ cannot be listed (%s); check its permissions",
                          v->path, err_name(r));
    return 0;
}

static int check_not_there(struct devs *d, const struct dev *v, uint32_t found, char *why,
                           size_t cap)
{
    unsigned live = 0;
    for (unsigned i = 0; i < d->n; i++) {
        struct dev *o = &d->dev[i];
        if (atomic_load(&o->retired))
            continue;
        live++;
        if (!strcmp(o->path, v->path) || o->id == found)
            return dev_refuse(
                -EEXIST, why, cap,
                "device %s: is device %u of this volume already%s%s; give another directory",
                v->path, o->id, strcmp(o->path, v->path) ? ", as " : "",
                strcmp(o->path, v->path) ? o->path : "");
    }
    if (live >= DEVICES_MAX)
        return dev_refuse(-E2BIG, why, cap, "device %s: a volume has at most %d; remove one first",
                          v->path, DEVICES_MAX);
    if (d->n == DEV_PLACES_MAX)
        return dev_refuse(-E2BIG, why, cap,
                          "device %s: one mount sees at most %d; sluicefs upgrade MOUNTPOINT, then "
                          "again",
                          v->path, DEV_PLACES_MAX);
    return 0;
}

int devs_add(struct devs *d, const struct dev_conf *conf, uint32_t id, char *why, size_t why_cap)
{
    uint32_t found = 0;
    struct dev look = {.path = (char *)conf->path, .dirfd = -1};
    int r = check_not_there(d, &look, 0, why, why_cap);
    if (r < 0)
        return r;
    r = dev_open_dir(d, &look, true, 0, &found, why, why_cap);
    if (r == 0 && found)
        r = check_not_there(d, &look, found, why, why_cap);
    if (r == 0 && found)
        r = check_emptied(&look, why, why_cap);
    struct dev *v = &d->dev[d->n < DEV_PLACES_MAX ? d->n : 0];
    if (r == 0) {
        *v = (struct dev){.id = id, .dirfd = look.dirfd, .path = strdup(conf->path)};
        atomic_store(&v->held, true);
        r = v->path ? 0 : -ENOMEM;
        if (r == 0)
            r = dev_write_ident(d, v);
        if (r == 0)
            r = dev_prepare(v, conf->budget);
        if (r < 0) {
            dev_refuse(r, why, why_cap,
                       "device %s: cannot be prepared (%s); check free space and permissions",
                       conf->path, err_name(r));
            (void)io_unlink(look.dirfd, DEV_IDENT_FILE, 0); /* already failing */
            free(v->path);
            *v = (struct dev){.dirfd = -1};
        }
    }
    if (r < 0) {
        io_close(look.dirfd);
        return r;
    }
    lock_init(&v->lock, "device", RANK_DEVICE, false);
    atomic_fetch_add(&d->n, 1);
    return 0;
}

void dev_use(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    if (v)
        atomic_store(&v->held, false);
}

/* ---- draining ---- */

void dev_drain(struct devs *d, uint32_t id, bool on, uint64_t total)
{
    struct dev *v = dev_place(d, id);
    if (!v)
        return;
    atomic_store(&v->drained, false);
    atomic_store(&v->stuck, false);
    atomic_store(&v->drain_left, on ? dev_used(v) : 0);
    atomic_store(&v->drain_total, on ? max_u64(total, dev_used(v)) : 0);
    {
        LOCK_SCOPE(&v->lock);
        v->drain_note[0] = 0;
    }
    atomic_store(&v->draining, on);
}

void dev_drain_note(struct devs *d, uint32_t id, uint64_t left, enum dev_drain how,
                    const char *note)
{
    struct dev *v = dev_place(d, id);
    if (!v)
        return;
    atomic_store(&v->drain_left, left);
    if (left > atomic_load(&v->drain_total))
        atomic_store(&v->drain_total, left);
    atomic_store(&v->drained, how == DRAIN_DONE);
    atomic_store(&v->stuck, how == DRAIN_STUCK);
    LOCK_SCOPE(&v->lock);
    snprintf(v->drain_note, sizeof v->drain_note, "%s", note ? note : "");
}

/* ---- removing ---- */

unsigned dev_users(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    return v ? atomic_load(&v->users) : 0;
}

int dev_retire(struct devs *d, uint32_t id)
{
    struct dev *v = dev_place(d, id);
    if (!v)
        return -ENODEV;
    atomic_store(&v->retired, true);
    if (atomic_load(&v->users) == 0)
        return 0;
    atomic_store(&v->retired, false);
    return -EBUSY;
}

static struct dev *retired_one(struct devs *d, uint32_t id)
{
    for (unsigned i = 0; i < d->n; i++)
        if (d->dev[i].id == id && atomic_load(&d->dev[i].retired))
            return &d->dev[i];
    return NULL;
}

void dev_retire_undo(struct devs *d, uint32_t id)
{
    struct dev *v = retired_one(d, id);
    if (v)
        atomic_store(&v->retired, false);
}

static int remove_bucket(void *arg, const char *name)
{
    const struct dev *v = arg;
    char path[16 + 256];
    snprintf(path, sizeof path, "segments/%s", name);
    (void)io_unlink(v->dirfd, path, AT_REMOVEDIR); /* one that holds a file stays, and is told of */
    return 0;
}

void dev_forget(struct devs *d, uint32_t id, bool *ret_left)
{
    struct dev *v = retired_one(d, id);
    *ret_left = false;
    if (!v || v->dirfd < 0)
        return;
    (void)io_scan(v->dirfd, "segments", remove_bucket, v);
    seg_failures_remove(v);
    int a = io_unlink(v->dirfd, "segments", AT_REMOVEDIR);
    int b = io_unlink(v->dirfd, "quarantine", AT_REMOVEDIR);
    int c = io_unlink(v->dirfd, DEV_IDENT_FILE, 0);
    if (c == 0)
        c = io_sync_dir(v->dirfd, ".");
    *ret_left = (a < 0 && a != -ENOENT) || (b < 0 && b != -ENOENT) || (c < 0 && c != -ENOENT);
    io_park(v->dirfd);
}
