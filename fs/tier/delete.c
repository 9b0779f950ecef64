/* delete.c: carrying out the queue of objects to delete, each not before its time.
 *
 * An object goes only when no manifest in the bucket can name it any more: a mark of its segment in any
 * topic's table M or m says that there is a manifest which has not been told yet. Any topic's, since a
 * file may have been moved, more than once, after it was uploaded: the key says where it was born, the
 * entry where it was when it was replaced, and a third topic's manifest may still be the one that names
 * it. What can be asked for each entry is asked first; what is left is looked up in one walk through all
 * marks, so that a long queue costs no more than a long list of marks.
 *
 * And not before the records that say so are durable: a loss of power could take them back, and leave a file without
 * its bytes.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"

enum { MARKS_LOOKED_MAX = 200000 }; /* with more of them nothing is deleted for now */

struct delete_job {
    struct tier *t;
    struct kv_waiter waiter;
    struct task task;
    struct store_call call;
    int64_t now_ns;
    unsigned n;
    struct key key[DELETES_MAX];
    uint64_t ino[DELETES_MAX], base[DELETES_MAX];
    char name[DELETES_MAX][256];
    const char *names[DELETES_MAX];
};

/* Cheap answers first: in the topic of the entry, in that of its birth, or where the file is now. */
static bool owed_where_known(struct tier *t, uint64_t topic, uint64_t ino, uint64_t base,
                             const char *name)
{
    uint64_t now_in;
    struct seg_object born;
    if (manifest_owes(t, topic, ino, base))
        return true;
    if (topic_of(t->v->ns, ino, &now_in) == 0 && now_in != topic &&
        manifest_owes(t, now_in, ino, base))
        return true;
    return seg_object_key_parse(name, &born, NULL, NULL) == 0 && born.topic != topic &&
           manifest_owes(t, born.topic, ino, base);
}

static int take_delete(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct delete_job *j = arg;
    int64_t when;
    uint64_t topic, ino, base;
    struct key *k = &j->key[j->n];
    char *name = j->name[j->n];
    if (!key_parse_queue(key, klen, &when, NULL, NULL) || klen > sizeof k->b)
        return 0;
    if (when > j->now_ns)
        return 1;
    if (delete_decode(val, vlen, &topic, &ino, &base, name, sizeof j->name[0]) < 0) {
        log_rate(LC_TIER, LOG_LV_ERR, 60,
                 "an entry of the delete queue is damaged and is left alone");
        return 0;
    }
    if (base != UINT64_MAX && owed_where_known(j->t, topic, ino, base, name))
        return 0;
    if (upload_under_way(j->t, ino, base))
        return 0; /* deleted before its PUT takes effect, the object would stay for ever */
    memcpy(k->b, key, klen);
    k->len = klen;
    j->ino[j->n] = ino;
    j->base[j->n] = base;
    return ++j->n >= DELETES_MAX;
}

/* ---- marks of all topics ---- */

struct owed {
    const struct delete_job *j;
    unsigned order[DELETES_MAX]; /* of the job's entries, by inode and base */
    bool is[DELETES_MAX];
    unsigned looked;
};

static int by_place(const void *a, const void *b, void *arg)
{
    const struct delete_job *j = arg;
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    if (j->ino[x] != j->ino[y])
        return j->ino[x] < j->ino[y] ? -1 : 1;
    return j->base[x] < j->base[y] ? -1 : j->base[x] > j->base[y];
}

static int look_mark(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val;
    (void)vlen;
    struct owed *o = arg;
    const struct delete_job *j = o->j;
    uint64_t ino, base;
    if (++o->looked > MARKS_LOOKED_MAX)
        return -E2BIG;
    if (klen < 9 || !key_parse_seg((const uint8_t *)key + 9, klen - 9, &ino, &base))
        return 0;
    unsigned lo = 0, hi = j->n; /* the first that is not before it */
    while (lo < hi) {
        unsigned mid = (lo + hi) / 2, x = o->order[mid];
        if (j->ino[x] < ino || (j->ino[x] == ino && j->base[x] < base))
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < j->n && j->ino[o->order[lo]] == ino && j->base[o->order[lo]] == base; lo++)
        o->is[o->order[lo]] = true;
    return 0;
}

/* Leaves in the job what nothing can name. */
static int drop_owed(struct delete_job *j)
{
    struct owed o = {.j = j};
    for (unsigned i = 0; i < j->n; i++)
        o.order[i] = i;
    qsort_r(o.order, j->n, sizeof *o.order, by_place, j);
    for (const char *table = "Mm"; *table; table++) {
        struct key k = key_prefix(*table);
        int r = kv_walk(j->t->v->kv, k.b, k.len, k.b, k.len, look_mark, &o);
        if (r < 0)
            return r;
    }
    unsigned n = 0;
    for (unsigned i = 0; i < j->n; i++) {
        if (o.is[i])
            continue;
        if (n != i) {
            j->key[n] = j->key[i];
            memcpy(j->name[n], j->name[i], sizeof j->name[n]);
        }
        j->names[n] = j->name[n];
        n++;
    }
    j->n = n;
    return 0;
}

/* ---- the request ---- */

static void delete_end(struct delete_job *j)
{
    struct tier *t = j->t;
    t->delete_job = NULL;
    t->jobs--;
    free(j);
    tier_kick(t);
}

static void deleted(struct store_call *call)
{
    struct delete_job *j = container_of(call, struct delete_job, call);
    struct tier *t = j->t;
    if (call->req.err == 0 && call->req.failed_n == 0) {
        struct kv_batch b;
        kv_batch_init(&b);
        for (unsigned i = 0; i < j->n; i++)
            kv_del(&b, j->key[i].b, j->key[i].len);
        int r = kv_apply(t->v->kv, &b, NULL, NULL);
        kv_batch_done(&b);
        t->delete_retry_ns = r < 0 ? clock_mono_ns() + 10 * NS_PER_SEC : 0;
    } else {
        char text[320];
        if (call->req.err != -ECANCELED)
            log_rate(LC_TIER, LOG_LV_WARN, 60, "%u objects were not deleted, tried again later: %s",
                     j->n, obj_diag_text(&call->req, text, sizeof text));
        t->delete_retry_ns = clock_mono_ns() + 10 * NS_PER_SEC;
    }
    obj_req_done(&call->req);
    delete_end(j);
}

static void run_send(struct task *task)
{
    struct delete_job *j = container_of(task, struct delete_job, task);
    if (j->n) {
        call_submit(j->t, &j->call);
        return;
    }
    j->t->delete_retry_ns = clock_mono_ns() + 10 * NS_PER_SEC;
    delete_end(j);
}

static void on_durable(struct kv_waiter *w, int err)
{
    struct delete_job *j = container_of(w, struct delete_job, waiter);
    if (err < 0)
        j->n = 0; /* nothing is certain */
    exec_submit(j->t->actor, &j->task);
}

void delete_tick(struct tier *t)
{
    if (t->delete_job || clock_mono_ns() < t->delete_retry_ns)
        return;
    struct delete_job *j = calloc(1, sizeof *j);
    if (!j)
        return;
    j->t = t;
    j->now_ns = clock_wall_ns();
    struct key k = key_prefix('D');
    int r = kv_walk(t->v->kv, k.b, k.len, k.b, k.len, take_delete, j);
    if (r >= 0 && j->n)
        r = drop_owed(j);
    if (r < 0 || j->n == 0) {
        free(j);
        t->delete_retry_ns = clock_mono_ns() + (r == -E2BIG ? 10 : 1) * NS_PER_SEC;
        return;
    }
    t->delete_job = j;
    t->jobs++;
    j->call.done = deleted;
    j->call.req = (struct obj_req){
        .op = OBJ_DELETE_BATCH,
        .keys = j->names,
        .keys_n = j->n,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    j->task.run = run_send;
    j->waiter.done = on_durable;
    kv_sync_async(t->v->kv, kv_seq(t->v->kv), &j->waiter);
}
