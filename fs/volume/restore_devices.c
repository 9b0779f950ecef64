/* restore_devices.c: segment files that survived on device directories.
 *
 * A segment file names volume, topic, inode, base and version in its header. What becomes of one:
 *
 *   the bucket has                     the file                              becomes
 *   ---------------------------------  ------------------------------------  ---------------------------
 *   no such segment                    any bytes                             a sealed segment, queued
 *   the same bytes (segment hash)                                            the local copy of the object
 *   an object                          longer (topics), newer (broker)       a sealed segment over it
 *   an object                          shorter, older, different             quarantined
 *   anything                           a second file of the segment, or not  quarantined
 *                                      readable as one
 *   anything                           no bytes                              removed
 *
 * An inode that no manifest knows is made; restore_tree.c then finds that it has no name. Whether the end
 * of a file that was not sealed is believed: if the machine has been up since its last write, its size is
 * its length; else what its hashes prove. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/segs.h"
#include "fs/seg/segfile.h"
#include "fs/volume/restore_int.h"

struct file {
    struct segfile_id id;
    char name[64]; /* "XX/name"; longer ones are no segment's */
    uint64_t bytes;
};

struct files {
    struct restore *r;
    uint32_t device;
    struct file *list;
    size_t n, cap;
    int err;
};

static void set_aside(struct restore *r, uint32_t device, const char *name, uint64_t ino,
                      const char *why)
{
    int e = segfile_quarantine(r->v->devs, device, name);
    findings_add(&r->rep->found,
                 &(struct finding){.kind = "device-file",
                                   .fate = e == 0 ? FATE_QUARANTINED : FATE_LEFT,
                                   .ino = ino},
                 "device %u: segment file %s: %s%s%s", device, name, why,
                 e < 0 ? "; cannot be moved to quarantine: " : "", e < 0 ? err_name(e) : "");
}

static int see_file(void *arg, const struct segfile_id *id, const char *name, uint64_t bytes)
{
    struct files *f = arg;
    if (id->ino == 0 || strlen(name) >= sizeof f->list->name) {
        /* Moved while its directory is being listed: it may be shown again, under no other name. */
        set_aside(f->r, f->device, name, 0, "its header is damaged or of another volume");
        return 0;
    }
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 256;
        struct file *more = realloc(f->list, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        f->list = more;
        f->cap = cap;
    }
    struct file *x = &f->list[f->n++];
    *x = (struct file){.id = *id, .bytes = bytes};
    memcpy(x->name, name, strlen(name) + 1);
    return 0;
}

static int by_segment(const void *a, const void *b)
{
    const struct segfile_id *x = &((const struct file *)a)->id, *y = &((const struct file *)b)->id;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    if (x->base != y->base)
        return x->base < y->base ? -1 : 1;
    return x->version == y->version ? 0 : x->version > y->version ? -1 : 1; /* newest first */
}

/* Has the machine been up, with this kernel's page cache, since this moment? */
static bool since_boot(int64_t wall_ns)
{
    int64_t boot = clock_wall_ns() - clock_boot_ns();
    return wall_ns > boot + 60 * NS_PER_SEC;
}

struct found {
    const struct file *file;
    uint64_t len, *hashes, capacity;
    size_t n;
    int64_t mtime_ns;
    struct hash128 hash;
};

static int seal_file(struct restore *r, const struct file *x, struct found *ret)
{
    struct segfile *sf;
    uint64_t bytes;
    int64_t mtime;
    *ret = (struct found){.file = x};
    int e = segfile_stat(r->v->devs, &x->id, &bytes, &mtime);
    if (e == 0)
        e = segfile_reopen(r->v->devs, r->v->id, &x->id, since_boot(mtime), &sf, NULL);
    if (e < 0)
        return e;
    ret->len = segfile_len(sf);
    ret->capacity = segfile_capacity(sf);
    ret->mtime_ns = segfile_mtime_ns(sf);
    if (ret->len)
        e = segfile_seal(sf, &ret->hashes, &ret->n);
    segfile_release_cache(sf, 0);
    segfile_close(sf);
    if (e == 0 && ret->len)
        ret->hash = seg_hash(ret->hashes, ret->n);
    return e;
}

static void as_local(struct seg_rec *rec, const struct found *f)
{
    rec->local = true;
    rec->device = f->file->id.device;
    rec->file_version = f->file->id.version;
    rec->header_bytes = f->file->id.header_bytes;
    rec->capacity = f->capacity;
}

static void put_seg(struct restore *r, const struct found *f, const struct seg_rec *rec)
{
    uint8_t buf[REC_SEG_MAX];
    const struct segfile_id *id = &f->file->id;
    struct key k = key_seg(id->ino, id->base);
    kv_put(&r->batch, k.b, k.len, buf, seg_rec_encode(rec, buf));
    seg_blocks_put(&r->batch, id->ino, id->base, rec->version, f->hashes, f->n);
}

static int adopt(struct restore *r, const struct found *f, struct seg_rec *rec)
{
    const struct segfile_id *id = &f->file->id;
    as_local(rec, f);
    rec->state = SEG_SEALED;
    rec->end = id->base + f->len;
    rec->hash = f->hash;
    rec->sealed_ns = clock_wall_ns();
    put_seg(r, f, rec);
    struct key k = key_upload(rec->sealed_ns, id->ino, id->base);
    kv_put(&r->batch, k.b, k.len, "\1", 1);
    r->rep->adopted_segments++;
    r->rep->adopted_bytes += f->len;

    /* The file's time is that of its newest bytes; a file that nobody knows is made. */
    uint8_t buf[REC_INODE_MAX];
    struct inode_rec i;
    k = key_inode(id->ino);
    ssize_t n = kv_get(r->v->kv, k.b, k.len, buf, sizeof buf);
    if (n == -ENOENT)
        i = (struct inode_rec){.mode = S_IFREG | 0600,
                               .uid = getuid(),
                               .gid = getgid(),
                               .nlink = 1,
                               .parent = id->topic == id->ino ? ROOT_INO : id->topic,
                               .atime_ns = f->mtime_ns,
                               .mtime_ns = f->mtime_ns,
                               .ctime_ns = f->mtime_ns,
                               .btime_ns = f->mtime_ns};
    else if (n < 0 || n > (ssize_t)sizeof buf || inode_rec_decode(buf, (size_t)n, &i) < 0)
        return n < 0 ? (int)n : -EBADMSG;
    i.size = max_u64(i.size, rec->end);
    if (f->mtime_ns > i.ctime_ns)
        i.mtime_ns = i.ctime_ns = f->mtime_ns;
    kv_put(&r->batch, k.b, k.len, buf, inode_rec_encode(&i, buf));
    int e = restore_owe(r, id->ino, &k);
    findings_add(
        &r->rep->found,
        &(struct finding){.kind = "adopted", .ino = id->ino, .off = id->base, .len = f->len},
        "inode %llx: %llu bytes at offset %llu were found on device %u and are queued for "
        "upload%s",
        (unsigned long long)id->ino, (unsigned long long)f->len, (unsigned long long)id->base,
        id->device, n == -ENOENT ? "; no manifest knows this file" : "");
    return e < 0 ? e : restore_apply(r, 1);
}

static int place(struct restore *r, const struct found *f)
{
    const struct segfile_id *id = &f->file->id;
    struct seg_rec rec;
    int e = seg_get(r->v->kv, id->ino, id->base, &rec);
    if (e == -ENOENT || (e == 0 && !rec.local && !rec.has_object)) {
        uint32_t version = id->version ? id->version : 1;
        if (e == 0 && rec.version > version)
            version = rec.version;
        rec = (struct seg_rec){.version = version, .created_ns = f->mtime_ns};
        return adopt(r, f, &rec);
    }
    if (e < 0)
        return e;
    if (rec.local) {
        set_aside(r, id->device, f->file->name, id->ino, "another file holds this segment");
        return 0;
    }
    uint64_t have = rec.object.end - id->base;
    if (f->len == have && rec.end == rec.object.end && f->hash.lo == rec.hash.lo &&
        f->hash.hi == rec.hash.hi) {
        as_local(&rec, f);
        rec.committed_ns = clock_wall_ns();
        put_seg(r, f, &rec);
        struct key k = key_evict(rec.committed_ns, id->ino, id->base);
        kv_put(&r->batch, k.b, k.len, "\1", 1);
        return restore_apply(r, 1);
    }
    if (r->v->topics_profile ? f->len > have : f->mtime_ns > rec.sealed_ns) {
        rec.version++;
        return adopt(r, f, &rec);
    }
    set_aside(r, id->device, f->file->name, id->ino,
              f->len < have ? "the object in the bucket holds more"
                            : "the object in the bucket differs");
    return 0;
}

static int take_file(struct restore *r, const struct file *x)
{
    struct found f;
    int e = seal_file(r, x, &f);
    if (e == -EIO || e == -EBADMSG || e == -ENODATA || e == -EPROTONOSUPPORT) {
        set_aside(r, x->id.device, x->name, x->id.ino, "cannot be read as a segment");
        e = 0;
    } else if (e == 0 && f.len == 0) {
        e = segfile_unlink(r->v->devs, NULL, &x->id);
    } else if (e == 0) {
        e = place(r, &f);
    }
    free(f.hashes);
    return e;
}

int restore_devices(struct restore *r)
{
    struct files f = {.r = r};
    int e = 0;
    for (unsigned k = 0; e == 0 && k < devs_count(r->v->devs); k++) {
        struct dev_info info;
        devs_info(r->v->devs, k, &info);
        f.device = info.id;
        e = segfile_scan(r->v->devs, info.id, see_file, &f);
    }
    if (f.n)
        qsort(f.list, f.n, sizeof *f.list, by_segment);
    for (size_t i = 0; e == 0 && i < f.n; i++)
        e = take_file(r, &f.list[i]);
    free(f.list);
    return e;
}
