/* segfail.c: segments whose flush failed: what is remembered of them beyond their struct segfile.
 *
 * The kernel has marked the pages of a failed flush clean. The next flush succeeds and proves nothing: not
 * through another descriptor, not by another daemon. So a segment stays failed until its bytes were read back
 * (segsync.c), it is unlinked, or its file system is mounted anew, where only what hashes prove is kept.
 *
 *   in memory       a list for each device
 *   for a later     <device>/failed/NAME, NAME that of the segment file. It holds a proof slot: the length of
 *   daemon          the data, and the hash of its tail (FLUSHED: not known). Never flushed: it has to
 *                   outlive the daemon, not the machine
 *
 * What a slot does not tell (none, torn, of another length) only makes healing harder, never wrong.
 * Lock: the device's over its list, not over files.
 */
#include "fs/seg/seg_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/io.h"
#include "fs/base/log.h"

#define FAILED_DIR "failed"

enum { FAILED_PATH_BYTES = sizeof FAILED_DIR + SEG_PATH_BYTES };

static void path_of(uint64_t ino, uint64_t base, uint32_t version,
                    char out[static FAILED_PATH_BYTES])
{
    char path[SEG_PATH_BYTES];
    seg_path(ino, base, version, path);
    snprintf(out, FAILED_PATH_BYTES, FAILED_DIR "/%s", strrchr(path, '/') + 1);
}

/* ---- the list ---- */

static struct failed_seg *find(struct dev *v, uint64_t ino, uint64_t base, uint32_t version)
{
    for (size_t i = 0; i < v->failed_n; i++) {
        struct failed_seg *f = &v->failed[i];
        if (f->ino == ino && f->base == base && f->version == version)
            return f;
    }
    return NULL;
}

/* Adds or updates. */
static void keep(struct dev *v, const struct failed_seg *f)
{
    LOCK_SCOPE(&v->lock);
    atomic_store(&v->failed_any, true);
    struct failed_seg *was = find(v, f->ino, f->base, f->version);
    if (!was && v->failed_n == v->failed_cap) {
        size_t cap = v->failed_cap ? 2 * v->failed_cap : 16;
        struct failed_seg *more = realloc(v->failed, cap * sizeof *more);
        if (!more) {
            v->failed_unknown = true;
            return;
        }
        v->failed = more;
        v->failed_cap = cap;
    }
    if (!was)
        was = &v->failed[v->failed_n++];
    *was = *f;
}

static bool kept(struct dev *v, uint64_t ino, uint64_t base, uint32_t version,
                 struct failed_seg *ret)
{
    if (!atomic_load(&v->failed_any))
        return false;
    LOCK_SCOPE(&v->lock);
    const struct failed_seg *f = find(v, ino, base, version);
    if (!f && !v->failed_unknown)
        return false;
    *ret = f ? *f : (struct failed_seg){.err = EIO};
    return true;
}

/* ---- the file ---- */

static int file_write(struct segfile *s, const struct failed_seg *f, bool tail_known)
{
    char path[FAILED_PATH_BYTES];
    uint8_t raw[SEG_SLOT_BYTES];
    struct seg_slot slot = {.seq = 1,
                            .len = f->len,
                            .tail_hash = tail_known ? f->tail_hash : 0,
                            .ident_hash = s->ident_hash,
                            .flags = tail_known ? 0 : SLOT_FLUSHED};
    int r = io_mkdir(s->dev->dirfd, FAILED_DIR, 0700);
    if (r < 0 && r != -EEXIST)
        return r;
    seg_slot_encode(&slot, raw);
    path_of(s->ino, s->base, s->version, path);
    int fd = io_open(s->dev->dirfd, path, O_WRONLY | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fd;
    r = io_pwrite_full(fd, raw, sizeof raw, 0, NULL);
    io_close(fd);
    return r;
}

/* What an earlier daemon knew of its length and tail. */
static void file_read(struct segfile *s, struct failed_seg *f)
{
    char path[FAILED_PATH_BYTES];
    uint8_t raw[SEG_SLOT_BYTES];
    struct seg_slot slot;
    path_of(s->ino, s->base, s->version, path);
    int fd = io_open(s->dev->dirfd, path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return;
    if (io_pread_full(fd, raw, sizeof raw, 0) == 0 &&
        seg_slot_decode(raw, sizeof raw, s->ident_hash, s->capacity, &slot) == 0 &&
        !(slot.flags & SLOT_FLUSHED)) {
        f->len = slot.len;
        f->tail_hash = slot.tail_hash;
    }
    io_close(fd);
}

/* ---- for segment files ---- */

void seg_failure_note(struct segfile *s, int err)
{
    struct failed_seg f = {.ino = s->ino, .base = s->base, .version = s->version, .err = err}, was;
    bool tail_known;
    {
        LOCK_SCOPE(&s->state);
        bool whole = s->hashed % BLOCK_BYTES == 0;
        f.len = s->hashed;
        tail_known = whole || (s->tail_known && s->tail);
        f.tail_hash = !whole && tail_known ? hash64_stream_value(s->tail) : 0;
    }
    if (!tail_known && kept(s->dev, s->ino, s->base, s->version, &was) && was.ino == s->ino)
        return; /* what is noted may know it; of another length it counts for nothing */
    int r = file_write(s, &f, tail_known);
    if (!tail_known)
        f.len = 0;
    keep(s->dev, &f);
    if (r < 0)
        log_rate(LC_SEG, LOG_LV_WARN, 10,
                 "inode %llu, segment at %llu: that its flush failed could not be noted (%s): the "
                 "next daemon will not know; stop this one cleanly",
                 (unsigned long long)s->ino, (unsigned long long)s->base, err_name(r));
}

void seg_failure_renew(struct segfile *s, int err)
{
    struct failed_seg f;
    if (kept(s->dev, s->ino, s->base, s->version, &f)) /* not one that was unlinked meanwhile */
        seg_failure_note(s, err);
}

bool seg_failure_of(struct segfile *s, struct failed_seg *ret)
{
    if (!kept(s->dev, s->ino, s->base, s->version, ret))
        return false;
    if (ret->len == 0)
        file_read(s, ret);
    return true;
}

void seg_failure_over(struct dev *v, uint64_t ino, uint64_t base, uint32_t version)
{
    char path[FAILED_PATH_BYTES];
    if (!atomic_load(&v->failed_any))
        return;
    {
        LOCK_SCOPE(&v->lock);
        struct failed_seg *f = find(v, ino, base, version);
        if (f)
            *f = v->failed[--v->failed_n];
    }
    path_of(ino, base, version, path);
    (void)io_unlink(v->dirfd, path, 0); /* one that stays costs a later daemon a needless proof */
}

/* ---- at mount, and at the end of a device ---- */

struct recall {
    struct devs *devs;
    struct dev *dev;
};

static int recall(void *arg, const char *name)
{
    const struct recall *rc = arg;
    struct dev *v = rc->dev;
    struct failed_seg f = {.err = EIO};
    if (!seg_name_parse(name, &f.ino, &f.base, &f.version))
        return 0;
    struct segfile_id id = {.ino = f.ino, .base = f.base, .version = f.version, .device = v->id};
    uint64_t bytes;
    int r = segfile_stat(rc->devs, &id, &bytes, NULL);
    keep(v, &f);
    if (r == -ENOENT) /* it was unlinked while its flush failed */
        seg_failure_over(v, f.ino, f.base, f.version);
    return 0;
}

static int remove_one(void *arg, const char *name)
{
    const struct dev *v = arg;
    char path[sizeof FAILED_DIR + 1 + NAME_BYTES_MAX];
    snprintf(path, sizeof path, FAILED_DIR "/%s", name);
    (void)io_unlink(v->dirfd, path, 0); /* as in seg_failure_over */
    return 0;
}

void seg_failures_remove(struct dev *v)
{
    if (io_scan(v->dirfd, FAILED_DIR, remove_one, v) == 0)
        (void)io_unlink(v->dirfd, FAILED_DIR, AT_REMOVEDIR); /* the same */
}

void dev_recall_failures(struct devs *d, uint32_t id, bool mounted_anew)
{
    struct dev *v = dev_get(d, id);
    if (!v)
        return;
    if (mounted_anew) {
        seg_failures_remove(v);
        return;
    }
    struct recall rc = {d, v};
    int r = io_scan(v->dirfd, FAILED_DIR, recall, &rc);
    if (r == -ENOENT)
        return;
    if (r < 0) {
        LOCK_SCOPE(&v->lock);
        v->failed_unknown = true;
        atomic_store(&v->failed_any, true);
    }
    if (r < 0 || v->failed_n)
        log_warn(LC_SEG,
                 "device %u (%s): flushes of %zu segments failed under an earlier daemon%s: their "
                 "fsync fails until the bytes are read back, or the file system is mounted anew",
                 v->id, v->path, v->failed_n,
                 r < 0 ? ", and perhaps more (" FAILED_DIR "/ cannot be listed)" : "");
}
