/* upload.c: a sealed segment becomes a verified object.
 *
 *   where        step
 *   -----------  ---------------------------------------------------------------------------------
 *   actor        start: attempt chosen, recorded with the segment                  (key never reused)
 *   journal      the record is durable
 *   device pool  check: every block is read and compared with its hash; SHA-256 of the body
 *   store        PUT If-None-Match, with the checksum (above multipart_above: in parallel parts)
 *   store        HEAD: the length
 *   blocking     read back whole, where the store does not enforce checksums or the PUT's answer left
 *                the outcome open
 *   actor        finish: record says UPLOADED and waits for the manifest; or, if the segment was opened
 *                again meanwhile, the object's key goes to the delete queue
 *
 * Any failure leaves the segment SEALED in the durable queue 'U': it is tried again later under a new
 * attempt, and the key of the old one goes to the delete queue. Nothing here lets a local copy go. After a
 * failure of the store nothing new starts for a while; a segment that its device cannot deliver waits alone.
 */
#include "fs/tier/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/policy/policy.h"
#include "fs/seg/segfile.h"
#include "fs/tier/multipart.h"

struct upload {
    struct list link;
    struct tier *t;
    struct task task;
    struct kv_waiter waiter;
    uint64_t ino, base;
    int64_t sealed_ns;
    struct seg_rec rec; /* as at the start */
    struct seg_object obj;
    char key[OBJ_KEY_MAX];
    uint64_t *hashes;
    size_t hashes_n;
    uint8_t *footer;
    size_t footer_len;
    struct segfd *fd;
    struct obj_body body[2];
    struct store_call call;
    bool unread;     /* its device could not deliver it: the store is not to blame */
    bool unrecorded; /* the attempt did not become durable */
    bool unclear;    /* the PUT's outcome is open: read back before anything else */
    int err;
};

static uint64_t data_len(const struct upload *u)
{
    return u->rec.end - u->base;
}

static void upload_free(struct upload *u)
{
    if (u->fd)
        segfd_put(u->t->v->segfds, u->fd);
    free(u->hashes);
    free(u->footer);
    free(u);
}

static void later(struct upload *u, void (*run)(struct task *), struct exec *where)
{
    u->task.run = run;
    exec_submit(where, &u->task);
}

/* ---- segments that a device cannot deliver ---- */

/* They are tried again after SOUR_NS and hold up nobody behind them meanwhile: a device that is missing may
 * come back, one that fails may have good files, too. */
#define SOUR_NS (30 * NS_PER_SEC)

static struct sour *sour_slot(struct tier *t, uint64_t ino, uint64_t base, uint64_t *ret_seg)
{
    uint64_t n[2] = {ino, base};
    *ret_seg = hash64(n, sizeof n);
    return &t->sour[*ret_seg % SOUR_MAX];
}

static void sour_put(struct tier *t, uint64_t ino, uint64_t base)
{
    uint64_t seg;
    struct sour *s = sour_slot(t, ino, base, &seg);
    *s = (struct sour){seg, clock_mono_ns() + SOUR_NS};
}

static bool sour_has(struct tier *t, uint64_t ino, uint64_t base)
{
    uint64_t seg;
    const struct sour *s = sour_slot(t, ino, base, &seg);
    return s->seg == seg && clock_mono_ns() < s->until_ns;
}

/* ---- finish ---- */

static bool same_version(const struct upload *u, const struct seg_rec *rec)
{
    return rec->state == SEG_SEALED && rec->version == u->rec.version && rec->has_pending &&
           rec->pending.attempt == u->obj.attempt;
}

static void queue_object_delete(struct tier *t, struct kv_batch *b, const struct seg_object *o,
                                uint64_t ino, uint64_t base)
{
    seg_queue_delete(b, o, ino, base,
                     clock_wall_ns() + (int64_t)t->v->conf->delete_delay * NS_PER_MS);
}

static int mark_uploaded(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    struct upload *u = arg;
    if (!same_version(u, &c->now)) {
        counter_add(t->stale, 1);
        return 0; /* opened again: that took care of the key */
    }
    uint64_t topic;
    if (topic_of(t->v->ns, u->ino, &topic) < 0)
        topic = u->obj.topic;
    c->now.state = SEG_UPLOADED;
    seg_queue_sealed_del(b, u->ino, u->base, &c->old);
    struct key k = key_seg(u->ino, u->base);
    topic_mark(b, topic, &k);
    return 1;
}

/* The attempt failed: its key may exist in the bucket. */
static int mark_failed(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    struct upload *u = arg;
    if (!same_version(u, &c->now))
        return 0;
    c->now.has_pending = false;
    queue_object_delete(t, b, &u->obj, u->ino, u->base);
    return 1;
}

static void upload_end(struct upload *u, bool back_off)
{
    struct tier *t = u->t;
    if (back_off) {
        t->upload_backoff_ns = t->upload_backoff_ns ? t->upload_backoff_ns * 2 : NS_PER_SEC / 2;
        if (t->upload_backoff_ns > 30 * NS_PER_SEC)
            t->upload_backoff_ns = 30 * NS_PER_SEC;
        t->upload_retry_ns = clock_mono_ns() + t->upload_backoff_ns;
        counter_add(t->uploads_failed, 1);
    }
    list_del(&u->link);
    t->uploads_n--;
    t->jobs--;
    upload_free(u);
    tier_kick(t);
}

static void upload_finish(struct task *task)
{
    struct upload *u = container_of(task, struct upload, task);
    struct tier *t = u->t;
    if (u->fd) {
        uint64_t off;
        int fd = segfd_raw(u->fd, &off);
        (void)io_drop(fd, 0, 0); /* the copy in the page cache goes */
    }
    if (u->err == 0) {
        int r = seg_update(t, u->ino, u->base, mark_uploaded, u);
        if (r == 0) {
            counter_add(t->uploads_ok, 1);
            t->upload_backoff_ns = t->denied_ns = 0;
            log_debug(LC_TIER, "uploaded %s", u->key);
        } else if (r != -ENOENT) {
            log_err(LC_TIER, "segment %s was uploaded but could not be recorded: %s", u->key,
                    err_name(r));
            tier_unrecorded(t, r);
        }
        upload_end(u, r < 0 && r != -ENOENT);
        return;
    }
    if (u->unrecorded)
        tier_unrecorded(t, u->err);
    struct seg_rec now;
    if (seg_get(t->v->kv, u->ino, u->base, &now) == -ENOENT || !same_version(u, &now)) {
        /* A write opened it again meanwhile: the bytes may have changed while they were sent. */
        counter_add(t->stale, 1);
        u->err = -ESTALE;
    }
    if (u->err == -ENODATA || u->err == -EBADMSG) {
        counter_add(t->damaged, 1);
        log_err(LC_TIER,
                "inode %016llx: the segment at %llu does not match its hashes on device %u; it is "
                "not uploaded and stays where it is",
                (unsigned long long)u->ino, (unsigned long long)u->base, u->rec.device);
    } else if (u->err != -ECANCELED && u->err != -ESTALE) {
        char text[320];
        if (u->err == -EACCES) {
            t->denied_ns = clock_mono_ns();
            snprintf(t->denied, sizeof t->denied, "%s",
                     obj_diag_text(&u->call.req, text, sizeof text));
        }
        log_rate(LC_TIER, LOG_LV_WARN, 10, "upload of %s failed, the segment stays local: %s: %s",
                 u->key, err_name(u->err), obj_diag_text(&u->call.req, text, sizeof text));
    }
    if (u->obj.attempt)
        (void)seg_update(t, u->ino, u->base, mark_failed, u);
    if (u->unread)
        sour_put(t, u->ino, u->base);
    upload_end(u, !u->unread && u->err != -ESTALE && u->err != -ECANCELED);
}

static void finish_with(struct upload *u, int err)
{
    u->err = err;
    later(u, upload_finish, u->t->actor);
}

/* ---- verify ---- */

static void run_read_back(struct task *task)
{
    struct upload *u = container_of(task, struct upload, task);
    int r = verify_object(u->t, u->key, data_len(u), u->hashes, u->hashes_n);
    finish_with(u, r == -EBADMSG ? -EIO : r);
}

static void head_done(struct store_call *call)
{
    struct upload *u = container_of(call, struct upload, call);
    int err = call->req.err;
    uint64_t size = call->req.info.size;
    if (err == -ENOENT && u->unclear)
        err = -EIO; /* it had not taken effect */
    if (err == 0 && size != data_len(u) + u->footer_len)
        err = -EBADMSG;
    if (err == -EBADMSG || err == -ENODATA)
        err = -EIO; /* the object is wrong, not the segment */
    if (err < 0)
        finish_with(u, err);
    else if (u->unclear || !u->t->caps.checksum)
        later(u, run_read_back, u->t->blocking);
    else
        finish_with(u, 0);
}

static void put_answered(struct upload *u, int err, const struct obj_diag *diag)
{
    /* An unclear answer is not a failure: the object is looked at. -EEXIST for a key that nobody else
     * can have chosen means that an earlier try of this PUT took effect. */
    u->unclear = err < 0 && (diag->unknown_outcome || err == -EEXIST || err == -ETIMEDOUT);
    if (err < 0 && !u->unclear) {
        finish_with(u, err == -EBADMSG || err == -ENODATA ? -EIO : err);
        return;
    }
    obj_req_done(&u->call.req);
    u->call = (struct store_call){.done = head_done};
    u->call.req = (struct obj_req){
        .op = OBJ_HEAD,
        .key = u->key,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    call_submit(u->t, &u->call);
}

static void put_done(struct store_call *call)
{
    struct upload *u = container_of(call, struct upload, call);
    put_answered(u, call->req.err, &call->req.diag);
}

static void parts_done(void *arg, int err, const struct obj_diag *diag)
{
    struct upload *u = arg;
    u->call.req.diag = *diag;
    u->call.req.err = err;
    put_answered(u, err, diag);
}

/* ---- check and send ---- */

static int build_footer(struct upload *u)
{
    struct seg_footer f = {
        .topic = u->obj.topic,
        .ino = u->ino,
        .base = u->base,
        .end = u->rec.end,
        .epoch = u->obj.epoch,
        .attempt = u->obj.attempt,
        .version = u->rec.version,
        .blocks_n = u->hashes_n,
        .blocks = u->hashes,
    };
    memcpy(f.volume, u->t->v->id, 16);
    u->footer = malloc(u->footer_len);
    if (!u->footer)
        return -ENOMEM;
    seg_footer_encode(&f, u->footer);
    return 0;
}

/* Reads every block once: what is sent is what was sealed. */
static int check_blocks(struct upload *u, struct sha256 *sha)
{
    uint8_t *buf = aligned_alloc(4096, BLOCK_BYTES);
    if (!buf)
        return -ENOMEM;
    uint64_t len = data_len(u);
    int r = u->hashes_n == (len + BLOCK_BYTES - 1) / BLOCK_BYTES ? 0 : -EBADMSG;
    for (uint64_t pos = 0; r == 0 && pos < len; pos += BLOCK_BYTES) {
        size_t n = (size_t)min_u64(BLOCK_BYTES, len - pos);
        r = segfd_read(u->fd, pos, buf, n);
        if (r == 0 && hash64(buf, n) != u->hashes[pos / BLOCK_BYTES])
            r = -EBADMSG;
        if (r == 0)
            sha256_add(sha, buf, n);
    }
    free(buf);
    return r;
}

static void run_check(struct task *task)
{
    struct upload *u = container_of(task, struct upload, task);
    struct volume *v = u->t->v;
    struct segfile_id id = seg_file_id(0, u->ino, u->base, &u->rec);
    struct sha256 *sha = sha256_new();
    int r = sha ? seg_blocks(v->kv, u->ino, u->base, u->rec.version, &u->hashes, &u->hashes_n)
                : -ENOMEM;
    if (r == -ENOENT)
        r = -ESTALE; /* opened again or removed since */
    if (r == 0)
        r = segfd_get(v->segfds, &id, false, &u->fd);
    if (r == -ENOENT)
        r = -ESTALE;
    if (r == 0)
        r = check_blocks(u, sha);
    if (r == 0)
        r = build_footer(u);
    if (r < 0) {
        sha256_free(sha);
        u->unread = r != -ENOMEM && r != -ESTALE;
        finish_with(u, r);
        return;
    }
    sha256_add(sha, u->footer, u->footer_len);
    uint64_t data_off;
    int fd = segfd_raw(u->fd, &data_off);
    u->body[0] = (struct obj_body){.fd = fd, .off = data_off, .len = data_len(u)};
    u->body[1] = (struct obj_body){.mem = u->footer, .fd = -1, .len = u->footer_len};
    unsigned absent = u->t->caps.if_absent ? OBJ_IF_ABSENT : 0;
    if (data_len(u) > v->conf->multipart_above) {
        sha256_free(sha); /* each part carries its own */
        r = multipart_put(u->t, u->key, u->body, 2, absent, parts_done, u);
        if (r < 0)
            finish_with(u, r);
        return;
    }
    u->call.done = put_done;
    u->call.req = (struct obj_req){
        .op = OBJ_PUT,
        .flags = OBJ_HAS_SHA256 | absent,
        .key = u->key,
        .body = u->body,
        .body_n = 2,
    };
    sha256_final(sha, u->call.req.sha256);
    sha256_free(sha);
    call_submit(u->t, &u->call);
}

/* ---- start ---- */

static void recorded(struct kv_waiter *w, int err)
{
    struct upload *u = container_of(w, struct upload, waiter);
    u->unrecorded = err < 0;
    if (err < 0)
        finish_with(u, err);
    else
        later(u, run_check, u->t->v->bulk);
}

static int record_attempt(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    struct upload *u = arg;
    if (c->now.state != SEG_SEALED || c->now.sealed_ns != u->sealed_ns || !c->now.local)
        return -ESTALE;
    if (c->now.has_pending) /* of a daemon that died: nobody will finish it */
        queue_object_delete(t, b, &c->now.pending, u->ino, u->base);
    if (topic_of(t->v->ns, u->ino, &u->obj.topic) < 0)
        u->obj.topic = 0;
    u->obj.end = c->now.end;
    u->obj.epoch = t->epoch;
    u->obj.attempt = queue_id();
    u->obj.version = c->now.version;
    u->obj.hash = c->now.hash;
    u->footer_len =
        seg_footer_size((size_t)((c->now.end - u->base + BLOCK_BYTES - 1) / BLOCK_BYTES));
    u->obj.footer_len = (uint32_t)u->footer_len;
    c->now.has_pending = true;
    c->now.pending = u->obj;
    u->rec = c->now;
    return 1;
}

static int drop_queue_entry(struct tier *t, int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    struct kv_batch b;
    kv_batch_init(&b);
    struct key k = key_upload(sealed_ns, ino, base);
    kv_del(&b, k.b, k.len);
    int r = kv_apply(t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    return r;
}

static void upload_start(struct tier *t, int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    struct upload *u = calloc(1, sizeof *u);
    if (!u)
        return;
    u->t = t;
    u->ino = ino;
    u->base = base;
    u->sealed_ns = sealed_ns;
    int r = seg_update(t, ino, base, record_attempt, u);
    if (r == 0)
        r = seg_object_key(&u->obj, ino, base, u->key, sizeof u->key);
    if (r == -ESTALE || r == -ENOENT) { /* the queue entry is older than the record */
        (void)drop_queue_entry(t, sealed_ns, ino, base);
        free(u);
        return;
    }
    if (r < 0) {
        log_rate(LC_TIER, LOG_LV_ERR, 10,
                 "inode %016llx: upload of the segment at %llu cannot start: %s",
                 (unsigned long long)ino, (unsigned long long)base, err_name(r));
        tier_unrecorded(t, r);
        t->upload_retry_ns = clock_mono_ns() + 5 * NS_PER_SEC;
        free(u);
        return;
    }
    list_add_tail(&t->uploads, &u->link);
    t->uploads_n++;
    t->jobs++;
    u->waiter.done = recorded;
    kv_sync_async(t->v->kv, kv_seq(t->v->kv), &u->waiter);
}

bool upload_under_way(struct tier *t, uint64_t ino, uint64_t base)
{
    list_each(&t->uploads, l)
    {
        struct upload *u = list_entry(l, struct upload, link);
        if (u->ino == ino && u->base == base)
            return true;
    }
    return false;
}

struct pick {
    struct tier *t;
    int64_t sealed_ns[64];
    uint64_t ino[64], base[64];
    unsigned n, want;
    /* entries that a rule keeps from the store */
    int64_t kept_ns[64];
    uint64_t kept_ino[64], kept_base[64];
    unsigned kept;
};

static int pick_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct pick *p = arg;
    int64_t when;
    uint64_t ino, base;
    if (!key_parse_queue(key, klen, &when, &ino, &base))
        return 0;
    if (upload_under_way(p->t, ino, base) || sour_has(p->t, ino, base))
        return 0;
    if (!policy_tiered(p->t->v->policy, ino)) {
        p->kept_ns[p->kept] = when;
        p->kept_ino[p->kept] = ino;
        p->kept_base[p->kept] = base;
        return ++p->kept == ARRAY_LEN(p->kept_ns);
    }
    p->sealed_ns[p->n] = when;
    p->ino[p->n] = ino;
    p->base[p->n] = base;
    return ++p->n >= p->want;
}

void upload_tick(struct tier *t)
{
    if (t->uploads_n >= t->v->conf->uploads || clock_mono_ns() < t->upload_retry_ns)
        return;
    struct pick p = {.t = t, .want = (unsigned)t->v->conf->uploads - t->uploads_n};
    struct key k = key_prefix('U');
    if (kv_walk(t->v->kv, k.b, k.len, k.b, k.len, pick_one, &p) < 0)
        return;
    for (unsigned i = 0; i < p.kept; i++)
        kept_put(t, p.kept_ns[i], p.kept_ino[i], p.kept_base[i]);
    if (p.kept == ARRAY_LEN(p.kept_ns))
        tier_kick_in(t, NS_PER_MS);
    for (unsigned i = 0; i < p.n; i++)
        upload_start(t, p.sealed_ns[i], p.ino[i], p.base[i]);
}
