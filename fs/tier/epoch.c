/* epoch.c: raising the volume's epoch once per mount, before the first upload.
 *
 *   UNKNOWN --tick--> BUSY: GET volume -> compare with what this state directory last wrote
 *       ours           -> remember the new nonce in kv -> PUT If-Match -> MINE
 *       not ours       -> FENCED: another mount raised it; this state directory is a copy or is stale
 *       store trouble  -> UNKNOWN, tried again with back-off; local work goes on
 *
 * The nonce is stored before the PUT, so a success whose answer was lost is recognised as ours. A PUT of
 * a daemon that died, or without an answer, may still arrive: the next try for the same epoch sends the
 * same bytes, so that it does not matter which of them the store takes. What was recognised is stored
 * as ours before a nonce for the epoch behind it replaces it: daemons may die one after another.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"
#include "fs/volume/volobj.h"

struct epoch_job {
    struct tier *t;
    struct store_call call;
    struct obj_body body;
    struct iovec iov;
    uint8_t buf[VOLOBJ_BYTES];
    struct volobj next;
    char etag[OBJ_ETAG_MAX];
};

/* "epoch" and "epoch_next" in kv: u64 epoch, 16 bytes nonce. */
static bool epoch_load(struct tier *t, const char *name, uint64_t *epoch, uint8_t nonce[16])
{
    uint8_t buf[24];
    struct key k = key_setting(name);
    if (kv_get(t->v->kv, k.b, k.len, buf, sizeof buf) != sizeof buf)
        return false;
    *epoch = get_le64(buf);
    memcpy(nonce, buf + 8, 16);
    return true;
}

static int epoch_store(struct tier *t, const char *name, uint64_t epoch, const uint8_t nonce[16])
{
    uint8_t buf[24];
    put_le64(buf, epoch);
    memcpy(buf + 8, nonce, 16);
    struct key k = key_setting(name);
    struct kv_batch b;
    kv_batch_init(&b);
    b.frees = true;
    kv_put(&b, k.b, k.len, buf, sizeof buf);
    uint64_t seq;
    int r = kv_apply(t->v->kv, &b, NULL, &seq);
    kv_batch_done(&b);
    return r < 0 ? r : kv_sync(t->v->kv, seq);
}

static bool is_ours(struct tier *t, const struct volobj *o)
{
    uint64_t epoch = 0;
    uint8_t nonce[16];
    static const char *const names[] = {"epoch", "epoch_next"};
    for (int i = 0; i < 2; i++)
        if (epoch_load(t, names[i], &epoch, nonce) && epoch == o->epoch &&
            !memcmp(nonce, o->nonce, 16))
            return true;
    return false;
}

void epoch_fence(struct tier *t, const char *why)
{
    if (t->epoch_state == EPOCH_FENCED)
        return;
    t->epoch_state = EPOCH_FENCED;
    atomic_store(&t->fenced, true);
    log_err(LC_TIER,
            "volume %s: %s; nothing is uploaded or deleted any more from this state directory",
            t->v->id_text, why);
    command_abort_all(t, "another mount owns this volume now");
}

static void epoch_end(struct epoch_job *j, enum epoch_state state, int64_t retry_ns)
{
    struct tier *t = j->t;
    if (t->epoch_state == EPOCH_BUSY)
        t->epoch_state = state;
    t->epoch_retry_ns = clock_mono_ns() + retry_ns;
    t->epoch_job = NULL;
    t->jobs--;
    free(j);
    tier_kick(t);
}

static void epoch_put_done(struct store_call *call)
{
    struct epoch_job *j = container_of(call, struct epoch_job, call);
    struct tier *t = j->t;
    int err = j->call.req.err;
    obj_req_done(&j->call.req);
    if (err == 0) {
        if (epoch_store(t, "epoch", j->next.epoch, j->next.nonce) < 0) {
            epoch_end(j, EPOCH_UNKNOWN, 5 * NS_PER_SEC);
            return;
        }
        t->epoch = j->next.epoch;
        log_info(LC_TIER, "volume %s: epoch %llu is ours", t->v->id_text,
                 (unsigned long long)t->epoch);
        epoch_end(j, EPOCH_MINE, 0);
        return;
    }
    /* A conflict or an unclear answer: the next look at the object decides. */
    epoch_end(j, EPOCH_UNKNOWN, err == -EEXIST ? 0 : 2 * NS_PER_SEC);
}

static void epoch_raise(struct epoch_job *j, const struct volobj *now)
{
    struct tier *t = j->t;
    j->next = *now;
    j->next.epoch = now->epoch + 1;
    j->next.node = t->v->node;
    uint64_t pending = 0;
    bool again = epoch_load(t, "epoch_next", &pending, j->next.nonce) && pending == j->next.epoch;
    if (!again)
        random_bytes(j->next.nonce, sizeof j->next.nonce);
    if (epoch_store(t, "epoch", now->epoch, now->nonce) < 0 ||
        epoch_store(t, "epoch_next", j->next.epoch, j->next.nonce) < 0) {
        epoch_end(j, EPOCH_UNKNOWN, 5 * NS_PER_SEC);
        return;
    }
    volobj_encode(&j->next, j->buf);
    j->body = (struct obj_body){.mem = j->buf, .len = VOLOBJ_BYTES};
    j->call.req = (struct obj_req){
        .op = OBJ_PUT,
        .flags = OBJ_URGENT | OBJ_HAS_SHA256 | (t->caps.if_match ? OBJ_IF_MATCH : 0),
        .key = VOLOBJ_KEY,
        .etag = j->etag,
        .body = &j->body,
        .body_n = 1,
        .deadline_ns = clock_mono_ns() + 30 * NS_PER_SEC,
    };
    sha256_once(j->buf, VOLOBJ_BYTES, j->call.req.sha256);
    j->call.done = epoch_put_done;
    call_submit(t, &j->call);
}

static void epoch_get_done(struct store_call *call)
{
    struct epoch_job *j = container_of(call, struct epoch_job, call);
    struct tier *t = j->t;
    int err = j->call.req.err;
    char text[320] = "";
    if (err < 0)
        obj_diag_text(&j->call.req, text, sizeof text);
    else
        memcpy(j->etag, j->call.req.info.etag, sizeof j->etag);
    obj_req_done(&j->call.req);
    if (atomic_load(&t->stopping)) {
        epoch_end(j, EPOCH_UNKNOWN, 0);
        return;
    }
    struct volobj now;
    if (err == 0)
        err = volobj_decode(j->buf, sizeof j->buf, &now);
    if (err < 0) {
        log_rate(LC_TIER, LOG_LV_WARN, 60,
                 "volume %s: its object in the store cannot be read (%s %s); uploads wait",
                 t->v->id_text, err_name(err), text);
        epoch_end(j, EPOCH_UNKNOWN, 2 * NS_PER_SEC);
        return;
    }
    if (memcmp(now.volume, t->v->id, 16) != 0) {
        epoch_fence(t, "the bucket prefix now belongs to another volume");
        epoch_end(j, EPOCH_FENCED, 0);
        return;
    }
    if (!is_ours(t, &now)) {
        epoch_fence(t, "another mount has raised the epoch (a copy of this state directory?)");
        epoch_end(j, EPOCH_FENCED, 0);
        return;
    }
    epoch_raise(j, &now);
}

void epoch_tick(struct tier *t)
{
    if (t->epoch_state != EPOCH_UNKNOWN || clock_mono_ns() < t->epoch_retry_ns)
        return;
    struct epoch_job *j = calloc(1, sizeof *j);
    if (!j)
        return;
    j->t = t;
    j->call.done = epoch_get_done;
    j->iov = (struct iovec){j->buf, sizeof j->buf};
    j->call.req = (struct obj_req){
        .op = OBJ_GET,
        .flags = OBJ_URGENT,
        .key = VOLOBJ_KEY,
        .len = VOLOBJ_BYTES,
        .iov = &j->iov,
        .iov_n = 1,
        .deadline_ns = clock_mono_ns() + 30 * NS_PER_SEC,
    };
    t->epoch_state = EPOCH_BUSY;
    t->epoch_job = j;
    t->jobs++;
    call_submit(t, &j->call);
}
