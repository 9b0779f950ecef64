/* manifest.c: bringing a topic's manifest in the bucket up to date, and with it committing segments.
 *
 * Changed keys are marked in kv ('M' topic key) by whoever changes them, in the same batch. A job
 *
 *   1 takes marks: M -> m (in flight), one batch; from here on a new change makes a new M
 *   2 reads the present values of the taken keys (manifest_take.c)
 *   3 makes all that durable here; if many small pages have come together: merges them (manifest_merge.c); if the inline part would
 *     get long: PUTs it as an immutable page
 *   4 PUT root, If-Match its last ETag
 *   5 success: segments whose object is now named become COMMITTED; m is dropped
 *     conflict or no clear answer: GET root. Our nonce: it was a success. Another epoch above ours:
 *       fenced. Else an earlier write of ours whose answer was lost: adopted, and the marks go back
 *     failure: the marks go back (m -> M), tried again later
 *
 * At start-up every m goes back to M: the job died with the daemon. The actor owns everything here.
 */

#include "fs/tier/manifest_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"

enum {
    TOPICS_REMEMBERED = 1024,
    TOPIC_SCAN_MAX = 256 /* dirty topics looked at per tick */
};

struct topic_state {
    uint64_t topic;
    int64_t seen_ns, last_ns, retry_ns, backoff_ns;
};

int manifest_open(struct tier *t)
{
    t->topics = calloc(TOPICS_REMEMBERED, sizeof *t->topics);
    return t->topics ? 0 : -ENOMEM;
}

void manifest_close(struct tier *t)
{
    free(t->topics);
}

static struct topic_state *state_of(struct tier *t, uint64_t topic)
{
    uint64_t h = topic * 0x9e3779b97f4a7c15ull >> 54;
    struct topic_state *s = &t->topics[h % TOPICS_REMEMBERED];
    if (s->topic != topic)
        *s = (struct topic_state){.topic = topic};
    return s;
}

bool manifest_owes(struct tier *t, uint64_t topic, uint64_t ino, uint64_t base)
{
    struct key seg = key_seg(ino, base);
    uint8_t b[8];
    for (int i = 0; i < 2; i++) {
        struct key k = manifest_mark("Mm"[i], topic, &seg);
        if (kv_get(t->v->kv, k.b, k.len, b, sizeof b) != -ENOENT)
            return true;
    }
    return false;
}

/* ---- ending a job ---- */

static void job_free(struct manifest_job *j)
{
    for (unsigned i = 0; i < j->n; i++)
        free(j->taken[i].val);
    free(j->taken);
    free(j->buf);
    free(j->replaced);
    manifest_merge_free(j);
    manifest_root_done(&j->root);
    free(j);
}

static void job_end(struct manifest_job *j)
{
    struct tier *t = j->t;
    list_del(&j->link);
    t->manifests_n--;
    t->jobs--;
    job_free(j);
    tier_kick(t);
}

void manifest_job_failed(struct manifest_job *j, int err, bool soon)
{
    struct tier *t = j->t;
    struct kv_batch b;
    kv_batch_init(&b);
    for (unsigned i = 0; i < j->n; i++) {
        struct key in_flight = manifest_mark('m', j->topic, &j->taken[i].key);
        kv_del(&b, in_flight.b, in_flight.len);
        topic_mark(&b, j->topic, &j->taken[i].key);
    }
    (void)kv_apply(t->v->kv, &b, NULL, NULL); /* if it fails, start-up does the same */
    kv_batch_done(&b);
    struct topic_state *s = state_of(t, j->topic);
    if (!soon) {
        s->backoff_ns = s->backoff_ns ? s->backoff_ns * 2 : NS_PER_SEC / 2;
        if (s->backoff_ns > 30 * NS_PER_SEC)
            s->backoff_ns = 30 * NS_PER_SEC;
        s->retry_ns = clock_mono_ns() + s->backoff_ns;
        char text[320];
        if (err != -ECANCELED)
            log_rate(LC_TIER, LOG_LV_WARN, 10,
                     "manifest of topic %016llx was not written: %s: %s; local copies stay",
                     (unsigned long long)j->topic, err_name(err),
                     obj_diag_text(&j->call.req, text, sizeof text));
    }
    obj_req_done(&j->call.req);
    job_end(j);
}

/* ---- success ---- */

struct commit {
    const struct taken *taken;
    const struct manifest_job *j;
};

static void drop_mark(struct kv_batch *b, const struct manifest_job *j, const struct key *key)
{
    struct key k = manifest_mark('m', j->topic, key);
    kv_del(b, k.b, k.len);
}

static int commit_one(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    struct commit *cm = arg;
    const struct taken *x = cm->taken;
    drop_mark(b, cm->j, &x->key);
    if (c->now.state != SEG_UPLOADED || !c->now.has_pending ||
        c->now.pending.attempt != x->attempt) {
        /* Opened again since: the manifest names an object that is about to go. Say so again. */
        topic_mark(b, cm->j->topic, &x->key);
        return 1;
    }
    if (c->now.has_object)
        seg_queue_delete(b, &c->now.object, c->ino, c->base,
                         clock_wall_ns() + (int64_t)t->v->conf->delete_delay * NS_PER_MS);
    if (c->now.has_object && c->now.object.version != c->now.version) {
        struct key old = key_blocks(c->ino, c->base, c->now.object.version);
        kv_del(b, old.b, old.len);
    }
    c->now.object = c->now.pending;
    c->now.has_object = true;
    c->now.has_pending = false;
    c->now.state = SEG_COMMITTED;
    c->now.committed_ns = clock_wall_ns();
    struct key e = key_evict(c->now.committed_ns, c->ino, c->base);
    kv_put(b, e.b, e.len, "\1", 1);
    return 1;
}

static void queue_raw_delete(struct kv_batch *b, uint64_t topic, const char *name, int64_t when)
{
    uint8_t buf[OBJ_KEY_MAX + 32];
    struct wr w = {.p = buf, .cap = sizeof buf};
    wr_u8(&w, 1);
    wr_u64(&w, topic);
    wr_u64(&w, topic);
    wr_u64(&w, UINT64_MAX); /* no segment: nothing to wait for */
    wr_bytes(&w, name, strlen(name));
    struct key k = key_delete(when, queue_id());
    kv_put(b, k.b, k.len, buf, w.len);
}

/* The topic is gone and its manifest holds nothing but tombstones: its objects go, too. */
static void forget_topic(struct manifest_job *j, struct kv_batch *b)
{
    int64_t when = clock_wall_ns() + (int64_t)j->t->v->conf->delete_delay * NS_PER_MS;
    char name[OBJ_KEY_MAX];
    for (uint32_t i = 0; i < j->root.pages_n; i++) {
        manifest_page_key(j->topic, j->root.pages[i].id, name, sizeof name);
        queue_raw_delete(b, j->topic, name, when);
    }
    manifest_root_key(j->topic, name, sizeof name);
    queue_raw_delete(b, j->topic, name, when);
    struct key k = key_topic(j->topic);
    kv_del(b, k.b, k.len);
}

static int any_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)arg;
    (void)key;
    (void)klen;
    (void)val;
    (void)vlen;
    return 1;
}

static bool topic_removed(struct tier *t, uint64_t topic)
{
    uint8_t buf[REC_INODE_MAX];
    struct key k = key_inode(topic);
    return topic != ROOT_INO && kv_get(t->v->kv, k.b, k.len, buf, sizeof buf) == -ENOENT;
}

static bool topic_gone(struct tier *t, uint64_t topic)
{
    if (!topic_removed(t, topic))
        return false;
    struct key m = key_dirty(topic, "", 0);
    return kv_walk(t->v->kv, m.b, m.len, m.b, m.len, any_row, NULL) == 0;
}

static void job_committed(struct manifest_job *j, const char *etag)
{
    struct tier *t = j->t;
    struct kv_batch b;
    kv_batch_init(&b);
    b.frees = true;
    manifest_root_store(&b, j->topic, j->buf, j->len, etag);
    for (unsigned i = 0; i < j->n; i++)
        if (!j->taken[i].commits) {
            drop_mark(&b, j, &j->taken[i].key);
            if (j->taken[i].elsewhere) /* marked while it moved: the other topic may not know */
                topic_mark(&b, j->taken[i].elsewhere, &j->taken[i].key);
        }
    for (unsigned i = 0; i < j->replaced_n; i++) {
        char name[OBJ_KEY_MAX];
        manifest_page_key(j->topic, j->replaced[i], name, sizeof name);
        queue_raw_delete(&b, j->topic, name,
                         clock_wall_ns() + (int64_t)t->v->conf->delete_delay * NS_PER_MS);
    }
    if (topic_gone(t, j->topic))
        forget_topic(j, &b);
    int r = kv_apply(t->v->kv, &b, NULL, NULL);
    for (unsigned i = 0; r == 0 && i < j->n; i++) {
        if (!j->taken[i].commits)
            continue;
        struct commit c = {&j->taken[i], j};
        r = seg_update(t, j->taken[i].ino, j->taken[i].base, commit_one, &c);
        if (r ==
            -ENOENT) { /* removed since, perhaps as one that was opened again and had no object */
            kv_batch_reset(&b);
            drop_mark(&b, j, &j->taken[i].key);
            topic_mark(&b, j->topic, &j->taken[i].key);
            r = kv_apply(t->v->kv, &b, NULL, NULL);
        }
    }
    kv_batch_done(&b);
    if (r < 0) {
        log_err(LC_TIER, "manifest of topic %016llx is written but not recorded: %s",
                (unsigned long long)j->topic, err_name(r));
        tier_unrecorded(t, r);
        manifest_job_failed(j, r, false);
        return;
    }
    counter_add(t->commits, 1);
    struct topic_state *s = state_of(t, j->topic);
    s->last_ns = clock_mono_ns();
    s->seen_ns = s->backoff_ns = s->retry_ns = 0;
    if (j->more) {
        s->last_ns = 0;
        s->seen_ns = 1;
    }
    obj_req_done(&j->call.req);
    job_end(j);
}

/* ---- conflict or no clear answer: what does the bucket say? ---- */

static void look_done(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    struct tier *t = j->t;
    int err = call->req.err;
    struct manifest_root seen = {0};
    if (err == 0)
        err = manifest_root_decode(j->iov.iov_base, j->iov.iov_len, &seen);
    if (err == 0 && !memcmp(seen.nonce, j->root.nonce, 16)) {
        char etag[OBJ_ETAG_MAX];
        memcpy(etag, call->req.info.etag, sizeof etag);
        free(j->iov.iov_base);
        manifest_root_done(&seen);
        job_committed(j, etag);
        return;
    }
    bool adopted = false;
    if (err == 0 && memcmp(seen.volume, t->v->id, 16) != 0) {
        epoch_fence(t, "a manifest in the bucket belongs to another volume");
    } else if (err == 0 && seen.epoch > t->epoch) {
        epoch_fence(t, "a manifest in the bucket carries a newer epoch");
    } else if (err == 0) {
        struct kv_batch b;
        kv_batch_init(&b);
        manifest_root_store(&b, j->topic, j->iov.iov_base, j->iov.iov_len, call->req.info.etag);
        adopted = kv_apply(t->v->kv, &b, NULL, NULL) == 0;
        kv_batch_done(&b);
    }
    free(j->iov.iov_base);
    manifest_root_done(&seen);
    manifest_job_failed(j, err < 0 ? err : -EEXIST, adopted);
}

static void size_done(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    int err = call->req.err;
    uint64_t size = call->req.info.size;
    if (err == -ENOENT && j->had_root) {
        log_err(LC_TIER, "manifest object %s is missing from the bucket; it is written anew",
                j->key);
        manifest_job_failed(j, err, manifest_root_disown(j->t, j->topic) == 0);
        return;
    }
    if (err == 0 && (size == 0 || size > MANIFEST_BYTES_MAX))
        err = -EBADMSG;
    void *buf = err == 0 ? malloc((size_t)size) : NULL;
    if (err == 0 && !buf)
        err = -ENOMEM;
    if (err < 0) {
        manifest_job_failed(j, err, false);
        return;
    }
    obj_req_done(&call->req);
    j->iov = (struct iovec){buf, (size_t)size};
    j->call = (struct store_call){.done = look_done};
    j->call.req = (struct obj_req){
        .op = OBJ_GET,
        .flags = OBJ_URGENT,
        .key = j->key,
        .len = size,
        .iov = &j->iov,
        .iov_n = 1,
        .deadline_ns = clock_mono_ns() + 30 * NS_PER_SEC,
    };
    call_submit(j->t, &j->call);
}

static void look(struct manifest_job *j)
{
    obj_req_done(&j->call.req);
    j->call = (struct store_call){.done = size_done};
    j->call.req = (struct obj_req){
        .op = OBJ_HEAD,
        .flags = OBJ_URGENT,
        .key = j->key,
        .deadline_ns = clock_mono_ns() + 30 * NS_PER_SEC,
    };
    call_submit(j->t, &j->call);
}

/* ---- sending ---- */

static void root_done(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    int err = call->req.err;
    if (err == 0) {
        char etag[OBJ_ETAG_MAX];
        memcpy(etag, call->req.info.etag, sizeof etag);
        job_committed(j, etag);
    } else if (err == -EEXIST || err == -ETIMEDOUT || (err == -ENOENT && j->had_root) ||
               call->req.diag.unknown_outcome) {
        look(j);
    } else {
        manifest_job_failed(j, err, false);
    }
}

static void put(struct manifest_job *j, unsigned flags, void (*done)(struct store_call *))
{
    j->body = (struct obj_body){.mem = j->buf, .fd = -1, .len = j->len};
    j->call = (struct store_call){.done = done};
    j->call.req = (struct obj_req){
        .op = OBJ_PUT,
        .flags = OBJ_URGENT | OBJ_HAS_SHA256 | flags,
        .key = j->key,
        .etag = j->etag,
        .body = &j->body,
        .body_n = 1,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    sha256_once(j->buf, j->len, j->call.req.sha256);
    call_submit(j->t, &j->call);
}

static void send_root(struct manifest_job *j)
{
    struct store_caps *caps = &j->t->caps;
    free(j->buf);
    j->buf = NULL;
    int r = manifest_root_encode(&j->root, &j->buf, &j->len);
    if (r < 0) {
        manifest_job_failed(j, r, false);
        return;
    }
    manifest_root_key(j->topic, j->key, sizeof j->key);
    unsigned flags = j->etag[0] ? (caps->if_match ? OBJ_IF_MATCH : 0)
                                : (caps->if_absent ? OBJ_IF_ABSENT : 0);
    put(j, flags, root_done);
}

static void page_done(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    if (call->req.err < 0) { /* the page may be an orphan: nothing names it */
        manifest_job_failed(j, call->req.err, false);
        return;
    }
    obj_req_done(&call->req);
    send_root(j);
}

/* The inline entries become a page; the root names it. */
static void send_page(struct manifest_job *j)
{
    struct manifest_root *r = &j->root;
    struct manifest_page_ref *more = realloc(r->pages, (r->pages_n + 1) * sizeof *more);
    struct manifest_page_ref ref = {.id = queue_id(), .entries = r->inline_n};
    if (more)
        r->pages = more;
    free(j->buf);
    j->buf = NULL;
    int e = !more ? -ENOMEM
                  : manifest_page_encode(j->t->v->id, j->topic, ref.id, r->inline_buf,
                                         r->inline_len, r->inline_n, &j->buf, &j->len);
    if (e < 0) {
        manifest_job_failed(j, e, false);
        return;
    }
    ref.bytes = (uint32_t)j->len;
    ref.hash = hash64(j->buf, j->len);
    r->pages[r->pages_n++] = ref;
    r->inline_len = r->inline_n = 0;
    manifest_page_key(j->topic, ref.id, j->key, sizeof j->key);
    put(j, j->t->caps.if_absent ? OBJ_IF_ABSENT : 0, page_done);
}

static void send(struct manifest_job *j)
{
    if (j->root.inline_len > MANIFEST_INLINE_MAX && j->root.pages_n < MANIFEST_PAGES_MAX)
        send_page(j);
    else
        send_root(j);
}

/* A removed topic without a manifest needs none: all that was marked are removals. A new one would be
 * in the way of the old one's deletion, which may be queued still. One may be there that we do not know
 * of, if the daemon died before it could record its first: its deletion is queued, to be sure. */
static void job_needless(struct manifest_job *j)
{
    struct kv_batch b;
    kv_batch_init(&b);
    for (unsigned i = 0; i < j->n; i++) {
        drop_mark(&b, j, &j->taken[i].key);
        if (j->taken[i].elsewhere)
            topic_mark(&b, j->taken[i].elsewhere, &j->taken[i].key);
    }
    char name[OBJ_KEY_MAX];
    manifest_root_key(j->topic, name, sizeof name);
    queue_raw_delete(&b, j->topic, name, clock_wall_ns());
    int r = kv_apply(j->t->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    if (r < 0)
        manifest_job_failed(j, r, false);
    else
        job_end(j);
}

/* The bucket is told only what a loss of power here cannot take back. */
static void run_durable(struct task *task)
{
    struct manifest_job *j = container_of(task, struct manifest_job, task);
    if (j->err < 0)
        tier_unrecorded(j->t, j->err);
    if (j->err < 0)
        manifest_job_failed(j, j->err, false);
    else if (!manifest_merge(j, send))
        send(j);
}

static void on_durable(struct kv_waiter *w, int err)
{
    struct manifest_job *j = container_of(w, struct manifest_job, waiter);
    j->err = err;
    j->task.run = run_durable;
    exec_submit(j->t->actor, &j->task);
}

static void job_start(struct tier *t, uint64_t topic)
{
    struct manifest_job *j = calloc(1, sizeof *j);
    if (!j)
        return;
    j->t = t;
    j->topic = topic;
    j->taken = calloc(MANIFEST_ENTRIES_MAX, sizeof *j->taken);
    if (!j->taken) {
        free(j);
        return;
    }
    list_add_tail(&t->manifests, &j->link);
    t->manifests_n++;
    t->jobs++;
    int r = manifest_take(j);
    if (r < 0) {
        log_rate(LC_TIER, LOG_LV_ERR, 10, "manifest of topic %016llx cannot be composed: %s",
                 (unsigned long long)topic, err_name(r));
        tier_unrecorded(t, r);
        manifest_job_failed(j, r, false);
    } else if (!j->had_root && topic_removed(t, topic)) {
        job_needless(j);
    } else {
        j->waiter.done = on_durable;
        kv_sync_async(t->v->kv, kv_seq(t->v->kv), &j->waiter);
    }
}

/* ---- which topics are due ---- */

struct first_topic {
    uint64_t topic;
};

static int take_topic(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct first_topic *f = arg;
    return key_parse_dirty(key, klen, &f->topic, NULL, NULL) ? 1 : 0;
}

/* A segment that is not uploaded is in no hurry: its upload comes, and both go into one manifest. */
static int segment_due(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct tier *t = arg;
    const uint8_t *inner;
    size_t len;
    uint64_t ino, base;
    struct seg_rec rec;
    (void)val, (void)vlen;
    return !key_parse_dirty(key, klen, NULL, &inner, &len) ||
           !key_parse_seg(inner, len, &ino, &base) || seg_get(t->v->kv, ino, base, &rec) < 0 ||
           (rec.state != SEG_OPEN && rec.state != SEG_SEALED);
}

static bool has_segments(struct tier *t, uint64_t topic)
{
    struct key m = key_dirty(topic, "S", 1);
    return kv_walk(t->v->kv, m.b, m.len, m.b, m.len, segment_due, t) > 0;
}

static bool is_due(struct tier *t, uint64_t topic, bool at_once, int64_t now)
{
    list_each(&t->manifests,
              l) if (list_entry(l, struct manifest_job, link)->topic == topic) return false;
    struct topic_state *s = state_of(t, topic);
    if (now < s->retry_ns)
        return false;
    if (at_once)
        return true;
    if (!s->seen_ns)
        s->seen_ns = now;
    if (has_segments(t, topic))
        return now - s->last_ns >= (int64_t)t->v->conf->manifest_delay * NS_PER_MS;
    return now - s->seen_ns >= NAMES_DELAY_MS * NS_PER_MS;
}

static int put_back_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct kv_batch *b = arg;
    struct key k;
    if (klen > sizeof k.b)
        return 0;
    memcpy(k.b, key, klen);
    kv_del(b, key, klen);
    k.b[0] = 'M';
    kv_put(b, k.b, klen, "\1", 1);
    return b->n >= 2000;
}

/* Marks that were in flight when the last daemon died. */
int manifest_recover(struct kv *kv)
{
    struct key m = key_prefix('m');
    int r;
    do {
        struct kv_batch b;
        kv_batch_init(&b);
        r = kv_walk(kv, m.b, m.len, m.b, m.len, put_back_one, &b);
        int more = r;
        if (r >= 0 && b.n)
            r = kv_apply(kv, &b, NULL, NULL);
        kv_batch_done(&b);
        if (r == 0)
            r = more;
    } while (r > 0);
    return r;
}

void manifest_tick(struct tier *t, bool at_once)
{
    int64_t now = clock_mono_ns();
    if (t->manifests_n >= MANIFESTS_MAX || (!at_once && now - t->manifest_scan_ns < 50 * NS_PER_MS))
        return;
    t->manifest_scan_ns = now;
    struct key all = key_prefix('M');
    uint64_t from = 0;
    for (unsigned looked = 0; looked < TOPIC_SCAN_MAX && t->manifests_n < MANIFESTS_MAX; looked++) {
        struct key at = key_dirty(from, "", 0);
        struct first_topic f = {0};
        if (kv_walk(t->v->kv, all.b, all.len, at.b, at.len, take_topic, &f) != 1)
            return;
        if (is_due(t, f.topic, at_once, now))
            job_start(t, f.topic);
        if (f.topic == UINT64_MAX)
            return;
        from = f.topic + 1;
    }
}
