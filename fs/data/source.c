/* source.c: where slices come from: a device file (warm) or the object store (cold). The slice cache
 * decides what to fetch; here a span becomes direct reads on the device pool or one ranged GET.
 *
 * A span looks its segment up afresh when it starts: tiering may have moved the bytes since the cache
 * asked. Another version: -ESTALE, and the read is planned again. A device file that is gone because
 * the segment was evicted at this moment: the span turns to the store. Trouble that may pass is
 * -EAGAIN; an object that is missing, and damage, are -EIO and a line in the log that names them.
 *
 * Block hashes that the metadata store does not have (a volume that was rebuilt from its bucket) come
 * from the footer of the object: one more GET before the first one of a segment, then they are stored. */
#include "fs/data/footer.h"
#include "fs/data/internal.h"
#include "fs/data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/volume/config.h"
#include "objstore/objstore.h"

struct fetch {
    struct data *d;
    struct cache_span *span;
    struct task task;
    struct obj_req req;
    struct seg_rec rec;
    bool device; /* runs on the device pool, where it may wait for a device */
    char key[OBJ_KEY_MAX];
    uint64_t have; /* bytes from the span's start that the device delivered */
    _Atomic bool cancelled;
    struct list remote; /* data.remote, while req is with the store; fetch_mu */
    uint8_t *footer;    /* being fetched, because the block hashes are not known here */
    struct iovec footer_iov;
    uint64_t *hashes; /* from it */
    size_t hashes_n;
};

static void run_fetch(struct task *t);

int data_locate(struct data *d, uint64_t ino, uint64_t off, struct cache_seg *ret,
                uint64_t *ret_end)
{
    uint64_t base;
    struct seg_rec rec;
    int r = seg_before(d->v->kv, ino, off, &base, &rec);
    if (r < 0)
        return r == -ENOENT ? -ENODATA : r;
    if (rec.state == SEG_OPEN)
        return off < base + SEGMENT_BYTES_MAX && off - base < rec.capacity ? -EBUSY : -ENODATA;
    if (off >= rec.end)
        return -ENODATA;
    *ret = (struct cache_seg){
        .ino = ino,
        .base = base,
        /* Blocks are verified whole, so the slices hold all of the object. */
        .end = rec.local ? rec.end : max_u64(rec.end, rec.object.end),
        .version = rec.version,
        .cold = !rec.local,
    };
    *ret_end = rec.end;
    return 0;
}

static int source_locate(void *ctx, uint64_t ino, uint64_t off, struct cache_seg *ret)
{
    uint64_t end;
    int r = data_locate(ctx, ino, off, ret, &end);
    return r == -EBUSY ? -ENODATA : r;
}

static void fetch_end(struct fetch *f, int err)
{
    struct cache_span *span = f->span;
    struct data *d = f->d;
    lock_acquire(&d->fetch_mu); /* a cancel of the cache may come at this moment */
    span->source = NULL;
    lock_release(&d->fetch_mu);
    free(f->footer);
    free(f->hashes);
    free(f);
    cache_span_done(span, err);
}

/* The expected hashes of the span's blocks. */
static int fetch_hashes(struct fetch *f)
{
    const struct cache_seg *seg = &f->span->seg;
    uint64_t *all = NULL;
    size_t n;
    int r = f->hashes ? 0 : seg_blocks(f->d->v->kv, seg->ino, seg->base, seg->version, &all, &n);
    if (r < 0)
        return r;
    if (f->hashes)
        n = f->hashes_n;
    size_t first = (size_t)(f->span->pos / BLOCK_BYTES);
    r = first + f->span->iov_n <= n ? 0 : -EBADMSG;
    if (r == 0)
        memcpy(f->span->hash, (f->hashes ? f->hashes : all) + first, f->span->iov_n * sizeof *all);
    free(all);
    return r;
}

static void get_progress(struct obj_req *req, uint64_t got)
{
    struct fetch *f = req->arg;
    if (cache_span_progress(f->span, f->have + got) < 0)
        obj_cancel(f->d->v->store, req);
}

/* A write may have opened the segment again while we read: then the bytes may be new ones. The record
 * changes before the first of them does. */
static bool rewritten(struct fetch *f)
{
    struct seg_rec now;
    return seg_get(f->d->v->kv, f->span->seg.ino, f->span->seg.base, &now) < 0 ||
           now.version != f->rec.version;
}

/* Or it may have gone to another device, and the one it was on may be there no more. */
static bool moved(struct fetch *f)
{
    struct seg_rec now;
    return seg_get(f->d->v->kv, f->span->seg.ino, f->span->seg.base, &now) == 0 &&
           now.version == f->rec.version &&
           (!now.local || now.device != f->rec.device || now.file_version != f->rec.file_version);
}

/* A request that ended: what it means for the span. Also takes it off the list. */
static int request_ended(struct fetch *f)
{
    struct obj_req *req = &f->req;
    int err = req->err;
    char text[320];
    lock_acquire(&f->d->fetch_mu);
    list_del(&f->remote);
    lock_release(&f->d->fetch_mu);
    if (err == -ENOENT || err == -EACCES || err == -EBADMSG)
        log_rate(LC_DATA, LOG_LV_ERR, 5,
                 "inode %016llx: bytes %llu-%llu cannot be read: object %s: %s",
                 (unsigned long long)f->span->seg.ino,
                 (unsigned long long)(f->span->seg.base + f->span->pos),
                 (unsigned long long)(f->span->seg.base + f->span->pos + f->span->len), f->key,
                 obj_diag_text(req, text, sizeof text));
    if (err == -ENOENT)
        err = -EIO;
    else if (err == -ECANCELED)
        err = atomic_load(&f->cancelled) ? -ECANCELED : -EAGAIN;
    else if (err < 0 &&
             (req->diag.retryable || err == -ETIMEDOUT || err == -EACCES || err == -ENODEV))
        err = -EAGAIN;
    else if (err < 0)
        err = -EIO;
    obj_req_done(req);
    return err;
}

static void get_done(struct obj_req *req)
{
    struct fetch *f = req->arg;
    fetch_end(f, request_ended(f));
}

/* The key of the object that holds this version: -EIO, having said so, when there is none. */
static int remote_key(struct fetch *f)
{
    const struct cache_seg *seg = &f->span->seg;
    if (f->rec.has_object && f->rec.object.version == f->rec.version)
        return seg_object_key(&f->rec.object, seg->ino, seg->base, f->key, sizeof f->key);
    log_rate(LC_DATA, LOG_LV_ERR, 5,
             "inode %016llx: bytes %llu-%llu are nowhere: they were never uploaded, and the device "
             "that held them is gone",
             (unsigned long long)seg->ino, (unsigned long long)seg->base,
             (unsigned long long)f->rec.end);
    return -EIO;
}

static void submit(struct fetch *f)
{
    uint64_t limit = f->d->v->conf->read_deadline;
    f->req.deadline_ns = limit ? clock_mono_ns() + (int64_t)limit * NS_PER_MS : 0;
    f->req.key = f->key;
    f->req.arg = f;
    lock_acquire(&f->d->fetch_mu);
    bool stop = atomic_load(&f->d->stopping) || atomic_load(&f->cancelled);
    if (!stop) {
        list_add_tail(&f->d->remote, &f->remote);
        obj_submit(f->d->v->store, &f->req);
    }
    lock_release(&f->d->fetch_mu);
    if (stop)
        fetch_end(f, -ECANCELED);
}

static void fetch_remote(struct fetch *f)
{
    struct cache_span *span = f->span;
    if (remote_key(f) < 0) {
        fetch_end(f, -EIO);
        return;
    }
    f->req = (struct obj_req){
        .op = OBJ_GET,
        .flags = __atomic_load_n(&span->urgent, __ATOMIC_RELAXED) ? OBJ_URGENT : 0,
        .off = span->pos,
        .len = span->len,
        .iov = span->iov,
        .iov_n = span->iov_n,
        .progress = get_progress,
        .done = get_done,
    };
    submit(f);
}

/* ---- block hashes from the footer ---- */

/* Device pool. */
static void run_footer(struct task *t)
{
    struct fetch *f = container_of(t, struct fetch, task);
    const struct cache_seg *seg = &f->span->seg;
    int r = footer_check(f->d->v->id, seg->ino, seg->base, &f->rec.object, f->footer, &f->hashes,
                         &f->hashes_n);
    free(f->footer);
    f->footer = NULL;
    if (r < 0) {
        log_rate(
            LC_DATA, LOG_LV_ERR, 5,
            "inode %016llx: bytes %llu-%llu cannot be read: the footer of object %s is damaged",
            (unsigned long long)seg->ino, (unsigned long long)seg->base,
            (unsigned long long)f->rec.end, f->key);
        fetch_end(f, r == -ENOMEM ? -EAGAIN : -EIO);
        return;
    }
    /* If they cannot be stored now, this read goes on with what it has. */
    (void)footer_store(f->d->v, seg->ino, seg->base, seg->version, f->hashes, f->hashes_n);
    run_fetch(&f->task);
}

static void footer_done(struct obj_req *req)
{
    struct fetch *f = req->arg;
    int err = request_ended(f);
    if (err < 0) {
        fetch_end(f, err);
        return;
    }
    f->task.run = run_footer;
    exec_submit(f->d->v->fetch, &f->task);
}

static void fetch_footer(struct fetch *f)
{
    const struct cache_seg *seg = &f->span->seg;
    int r = remote_key(f);
    if (r == 0 && !footer_len_ok(&f->rec.object, seg->base))
        r = -EIO;
    if (r == 0) {
        f->footer = malloc(f->rec.object.footer_len);
        r = f->footer ? 0 : -EAGAIN;
    }
    if (r < 0) {
        fetch_end(f, r);
        return;
    }
    f->footer_iov = (struct iovec){f->footer, f->rec.object.footer_len};
    f->req = (struct obj_req){
        .op = OBJ_GET,
        .flags = OBJ_URGENT,
        .off = f->rec.object.end - seg->base,
        .len = f->rec.object.footer_len,
        .iov = &f->footer_iov,
        .iov_n = 1,
        .done = footer_done,
    };
    submit(f);
}

static struct warm_read *warm_slot(struct data *d, uint64_t ino, uint64_t base, uint64_t *ret_seg)
{
    uint64_t n[2] = {ino, base};
    *ret_seg = hash64(n, sizeof n);
    return &d->warm[*ret_seg % WARM_READS];
}

int64_t data_last_read(struct data *d, uint64_t ino, uint64_t base)
{
    uint64_t seg;
    struct warm_read *w = warm_slot(d, ino, base, &seg);
    return atomic_load(&w->seg) == seg ? atomic_load(&w->at_ns) : 0;
}

static int read_local(struct fetch *f)
{
    struct cache_span *span = f->span;
    struct segfile_id id = seg_file_id(0, span->seg.ino, span->seg.base, &f->rec);
    struct segfd *fd;
    uint64_t seg;
    struct warm_read *w = warm_slot(f->d, span->seg.ino, span->seg.base, &seg);
    atomic_store(&w->at_ns, clock_mono_ns());
    atomic_store(&w->seg, seg);
    int r = segfd_get(f->d->v->segfds, &id, true, &fd);
    if (r < 0)
        return r;
    for (unsigned k = 0; r == 0 && k < span->iov_n && !atomic_load(&f->cancelled); k++) {
        const struct iovec *v = &span->iov[k];
        r = segfd_read(fd, span->pos + f->have, v->iov_base, v->iov_len);
        if (r == 0 && span->hash[k] && hash64(v->iov_base, v->iov_len) != span->hash[k])
            r = rewritten(f) ? -ESTALE : -EBADMSG;
        if (r == 0) {
            span->hash[k] = 0; /* checked here, where the other copy can still be asked */
            f->have += v->iov_len;
            (void)cache_span_progress(span, f->have);
        }
    }
    segfd_put(f->d->v->segfds, fd);
    return r == 0 && f->have < span->len ? -ECANCELED : r;
}

/* The device cannot deliver what it should. The object of the same version can, if there is one. */
static void local_failed(struct fetch *f, int err)
{
    const struct cache_seg *seg = &f->span->seg;
    bool other = f->rec.has_object && f->rec.object.version == f->rec.version;
    log_rate(
        LC_DATA, LOG_LV_ERR, 5,
        "damage: inode %016llx, segment at %llu version %u, bytes from %llu on: device %u: %s; %s",
        (unsigned long long)seg->ino, (unsigned long long)seg->base, seg->version,
        (unsigned long long)(seg->base + f->span->pos + f->have), f->rec.device,
        err == -EBADMSG ? "does not match its hash" : err_name(err),
        other ? "its object is read instead" : "there is no object of it; readers get EIO");
    counter_add(f->d->local_damage, 1);
    if (other)
        fetch_remote(f);
    else
        fetch_end(f, -EIO);
}

/* The segment as it is now, then its bytes. What is cold begins on the fetch pool, so that a device whose
 * flushes take their time holds up no fetch from the store. */
static void run_fetch(struct task *t)
{
    struct fetch *f = container_of(t, struct fetch, task);
    const struct cache_seg *seg = &f->span->seg;
    for (int tries = 0;; tries++) {
        int r = seg_get(f->d->v->kv, seg->ino, seg->base, &f->rec);
        if (r == 0 && (f->rec.version != seg->version || f->rec.state == SEG_OPEN))
            r = -ESTALE;
        if (r == -ENOENT)
            r = -ESTALE; /* removed or reopened meanwhile */
        if (r == 0)
            r = fetch_hashes(f);
        if (r == -ENOENT) { /* they go when a segment is opened again; else they were never here */
            struct seg_rec now;
            if (seg_get(f->d->v->kv, seg->ino, seg->base, &now) == 0 &&
                now.version == seg->version && now.state != SEG_OPEN) {
                f->rec = now;
                fetch_footer(f);
                return;
            }
            r = -ESTALE;
        }
        if (r < 0) {
            fetch_end(f, r == -EBADMSG ? -EIO : r);
            return;
        }
        if (!f->rec.local) {
            fetch_remote(f);
            return;
        }
        if (!f->device) { /* it was brought back meanwhile */
            f->device = true;
            exec_submit(f->d->v->pool, &f->task);
            return;
        }
        r = read_local(f);
        if (r < 0 && r != -ECANCELED && tries < 3 && (r == -ENOENT || (f->have == 0 && moved(f))))
            continue; /* evicted or moved between the look and the open */
        if (r < 0 && r != -ECANCELED && rewritten(f))
            r = -ESTALE;
        if (r < 0 && r != -ECANCELED && r != -ESTALE)
            local_failed(f, r);
        else
            fetch_end(f, r);
        return;
    }
}

void data_fetch(void *ctx, struct cache_span *span)
{
    struct data *d = ctx;
    struct fetch *f = calloc(1, sizeof *f);
    if (!f)
        abort(); /* bounded: one per span, spans are bounded by the pool */
    f->d = d;
    f->span = span;
    list_init(&f->remote);
    f->task.run = run_fetch;
    span->source = f;
    f->device = !span->seg.cold;
    exec_submit(f->device ? d->v->pool : d->v->fetch, &f->task);
}

void data_fetch_cancel(void *ctx, struct cache_span *span)
{
    struct data *d = ctx;
    LOCK_SCOPE(&d->fetch_mu);
    struct fetch *f = span->source;
    if (!f)
        return; /* it is ending */
    atomic_store(&f->cancelled, true);
    if (!list_empty(&f->remote))
        obj_cancel(d->v->store, &f->req);
}

void data_cancel_fetches(struct data *d)
{
    LOCK_SCOPE(&d->fetch_mu);
    list_each(&d->remote, l) obj_cancel(d->v->store, &list_entry(l, struct fetch, remote)->req);
}

void data_damaged(void *ctx, const struct cache_seg *seg, uint64_t pos)
{
    struct data *d = ctx;
    struct seg_rec rec;
    char key[OBJ_KEY_MAX] = "(unknown)";
    if (seg_get(d->v->kv, seg->ino, seg->base, &rec) == 0 && rec.has_object)
        (void)seg_object_key(&rec.object, seg->ino, seg->base, key, sizeof key);
    counter_add(d->damaged, 1);
    log_err(
        LC_DATA,
        "damage: inode %016llx, segment at %llu version %u, object %s: the block at file offset "
        "%llu does not match its hash; readers of it get EIO",
        (unsigned long long)seg->ino, (unsigned long long)seg->base, seg->version, key,
        (unsigned long long)(seg->base + pos));
}

const struct cache_source data_source_ops = {
    .locate = source_locate,
    .fetch = data_fetch,
    .cancel = data_fetch_cancel,
};
