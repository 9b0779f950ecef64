/* orphans.c: device files that nothing names. A daemon that dies, or a loss of power, between making a
 * device file and recording it leaves one; nothing in it was ever acknowledged. After a start that was
 * not preceded by a clean stop, the devices are walked once in the background.
 *
 * A file is an orphan only if, with its inode's io lock held (creation holds it from making the file to
 * recording it), nobody is making a file of that segment (data_making), and no segment record and no
 * entry of the unlink queue names it. Empty ones are removed, and those whose header never reached the
 * medium; so are copies that a move or a warming had begun: the segment's record names another file, which
 * is there and at least as long, or its object. Others with data are moved to the device's quarantine:
 * nothing is deleted without proof.
 */
#include "fs/data/internal.h"

#include <errno.h>
#include <stdlib.h>
#include "fs/base/log.h"

struct orphans {
    struct task task;
    struct data *d;
    uint64_t removed, kept;
};

static bool names_it(const struct seg_rec *rec, const struct segfile_id *id)
{
    return rec->local && rec->device == id->device && rec->file_version == id->version;
}

struct queued {
    const struct segfile_id *id;
    bool found;
};

static int look_queued(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    struct queued *q = arg;
    struct segfile_id at;
    if (unlink_decode(val, vlen, &at) == 0 && at.ino == q->id->ino && at.base == q->id->base &&
        at.version == q->id->version && at.device == q->id->device)
        q->found = true;
    return q->found;
}

/* 1: nothing names it; 0: something does; -errno: cannot be said. */
static int is_orphan(struct data *d, const struct segfile_id *id)
{
    struct seg_rec rec;
    if (data_is_making(d, id->ino, id->base)) /* asked first: afterwards its record is there */
        return 0;
    int r = seg_get(d->v->kv, id->ino, id->base, &rec);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && names_it(&rec, id))
        return 0;
    struct queued q = {.id = id};
    struct key k = key_prefix('L');
    r = kv_walk(d->v->kv, k.b, k.len, k.b, k.len, look_queued, &q);
    return r < 0 ? r : !q.found;
}

static bool is_copy(struct data *d, const struct segfile_id *id, uint64_t bytes)
{
    struct seg_rec rec;
    if (seg_get(d->v->kv, id->ino, id->base, &rec) < 0)
        return false;
    uint64_t len = rec.end - id->base, there = 0; /* of an open one: what was sealed before */
    if (bytes - id->header_bytes > len)
        return false;
    if (!rec.local)
        return rec.state == SEG_COMMITTED && rec.has_object && rec.object.version == rec.version;
    struct segfile_id at = seg_file_id(0, id->ino, id->base, &rec);
    return segfile_stat(d->v->devs, &at, &there, NULL) == 0 && there >= rec.header_bytes + len;
}

static void put_away(struct orphans *o, const struct segfile_id *id, const char *name,
                     uint64_t bytes)
{
    struct data *d = o->d;
    if (bytes <= id->header_bytes || id->header_bytes == 0 || is_copy(d, id, bytes)) {
        dev_account(d->v->devs, id->device, (int64_t)bytes); /* unlinking gives it back */
        if (segfile_unlink(d->v->devs, d->v->segfds, id) == 0)
            o->removed++;
        return;
    }
    int r = segfile_quarantine(d->v->devs, id->device, name);
    if (r == -ENOENT) /* its inode was removed while we looked */
        return;
    if (r == 0)
        o->kept++;
    log_warn(
        LC_DATA,
        "device file %s on device %u is in no record (%llu bytes of inode %016llx from %llu on); "
        "it was moved to quarantine",
        name, id->device, (unsigned long long)(bytes - id->header_bytes),
        (unsigned long long)id->ino, (unsigned long long)id->base);
}

static int look_file(void *arg, const struct segfile_id *id, const char *name, uint64_t bytes)
{
    struct orphans *o = arg;
    struct data *d = o->d;
    if (atomic_load(&d->stopping))
        return 1;
    if (id->ino == 0 || is_orphan(d, id) <= 0)
        return 0; /* a damaged header is for fsck to name */
    struct inode *i = NULL;
    int r = inode_get(d->v->ns, id->ino, &i);
    if (r < 0 && r != -ENOENT)
        return 0;
    if (i)
        lock_acquire(&i->io);
    if (is_orphan(d, id) > 0)
        put_away(o, id, name, bytes);
    if (i) {
        lock_release(&i->io);
        inode_put(d->v->ns, i);
    }
    return 0;
}

static void run_orphans(struct task *task)
{
    struct orphans *o = container_of(task, struct orphans, task);
    struct devs *devs = o->d->v->devs;
    for (unsigned k = 0; k < devs_count(devs); k++) {
        struct dev_info info;
        if (!devs_info(devs, k, &info))
            continue;
        int r = segfile_scan(devs, info.id, look_file, o);
        if (r < 0 && r != -ENODEV)
            log_warn(LC_DATA, "device %s could not be walked: %s", info.path, err_name(r));
    }
    if (o->removed || o->kept)
        log_info(
            LC_DATA,
            "device files that nothing names: %llu empty ones and copies removed, %llu quarantined",
            (unsigned long long)o->removed, (unsigned long long)o->kept);
    free(o);
}

void data_find_orphans(struct data *d)
{
    struct orphans *o = calloc(1, sizeof *o);
    if (!o)
        return; /* the next unclean start does it */
    o->task.run = run_orphans;
    o->d = d;
    exec_submit(d->v->bulk, &o->task);
}
