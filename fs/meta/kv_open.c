/* kv_open.c: the metadata store: opening, replay of the journal, closing. Map in kv.c. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bounds.h"
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/meta/kv_priv.h"

struct ids {
    uint64_t *v;
    size_t n, cap;
};

static int id_cmp(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int id_collect(void *arg, const char *name)
{
    struct ids *ids = arg;
    uint64_t id = 0;
    if (strlen(name) != 18 || strcmp(name + 16, ".j") != 0)
        return 0;
    for (int i = 0; i < 16; i++) {
        const char *hex = "0123456789abcdef", *at = strchr(hex, name[i]);
        if (!at)
            return 0;
        id = id << 4 | (uint64_t)(at - hex);
    }
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 16;
        uint64_t *more = realloc(ids->v, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        ids->v = more;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

static int replay_batch(void *arg, const struct kj_batch *b)
{
    struct kv *kv = arg;
    struct onode *nodes = NULL;
    bool removes = false;
    int r = kv_nodes_make(kv, b->payload, b->len, &nodes, &removes);
    if (r < 0)
        return r;
    onodes_free(kv_nodes_link(kv, nodes, b->seq, NULL));
    return 0;
}

static void replay_origin(void *arg, const struct kv_origin *o)
{
    struct kv *kv = arg;
    if (kv->conf.keep_origins)
        kv_origin_push(kv, o);
}

/* Opens one old journal file for later flushes and reads it. */
static int load_file(struct kv *kv, uint64_t id, struct jfile **ret, char **buf, size_t *len)
{
    char name[40];
    jfile_name(name, id);
    struct jfile *j = calloc(1, sizeof *j);
    if (!j)
        return -ENOMEM;
    j->id = id;
    j->fd = io_open(kv->conf.dirfd, name, O_RDWR, 0);
    int r = j->fd < 0 ? j->fd : io_read_file(kv->conf.dirfd, name, SIZE_MAX / 2, buf, len);
    if (r < 0) {
        io_close(j->fd);
        free(j);
        return r;
    }
    j->end = *len;
    *ret = j;
    return 0;
}

/* Reads all journal files into the overlay; leaves them in kv->files. *ret_end is where the newest one
 * could be appended to, or 0. */
static int replay(struct kv *kv, struct ids *ids, size_t *ret_end, char *why, size_t why_cap)
{
    struct kj_replay rp = {.mark = atomic_load(&kv->mark),
                           .expected = atomic_load(&kv->mark) + 1,
                           .batch = replay_batch,
                           .origin = replay_origin,
                           .arg = kv,
                           .why = why,
                           .why_cap = why_cap};
    char **bufs = calloc(ids->n + 1, sizeof *bufs);
    size_t *lens = calloc(ids->n + 1, sizeof *lens);
    uint64_t *limits = calloc(ids->n + 1, sizeof *limits);
    int r = bufs && lens && limits ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < ids->n; i++) {
        struct jfile *j = NULL;
        r = load_file(kv, ids->v[i], &j, &bufs[i], &lens[i]);
        if (r < 0) {
            snprintf(why, why_cap, "journal: cannot read file %016llx.j: %s",
                     (unsigned long long)ids->v[i], strerror(-r));
            break;
        }
        atomic_fetch_add(&kv->journal_bytes, j->end);
        if (kv->cur)
            kv->cur->next = j;
        else
            kv->files = j;
        kv->cur = j;
    }
    if (r == 0) {
        limits[ids->n] = UINT64_MAX;
        for (size_t i = ids->n; i-- > 0;) {
            uint64_t first, durable;
            limits[i] = limits[i + 1];
            if (kj_file_head_decode((const uint8_t *)bufs[i], lens[i], ids->v[i], &first,
                                    &durable) == 0)
                limits[i] = min_u64(limits[i], first);
        }
    }
    struct jfile *j = kv->files;
    for (size_t i = 0; r == 0 && i < ids->n; i++, j = j->next) {
        r = kj_replay_file(&rp, ids->v[i], (const uint8_t *)bufs[i], lens[i], limits[i + 1]);
        j->last_seq = atomic_load(&kv->seq);
    }
    *ret_end = rp.valid_end;
    for (size_t i = 0; bufs && i < ids->n; i++)
        free(bufs[i]);
    free(bufs);
    free(lens);
    free(limits);
    return r;
}

static int open_journal(struct kv *kv, char *why, size_t why_cap)
{
    int r = io_mkdir(kv->conf.dirfd, "journal", 0700);
    if (r == 0)
        r = io_sync_dir(kv->conf.dirfd, ".");
    struct ids ids = {0};
    size_t end = 0;
    if (r == 0 || r == -EEXIST)
        r = io_scan(kv->conf.dirfd, "journal", id_collect, &ids);
    if (r == 0) {
        if (ids.n)
            qsort(ids.v, ids.n, sizeof *ids.v, id_cmp);
        kv->next_id = ids.n ? ids.v[ids.n - 1] + 1 : 1;
        r = replay(kv, &ids, &end, why, why_cap);
    }
    free(ids.v);
    if (r == 0) {
        r = kv_journal_begin(kv, true, end == 0);
        if (r == -ENOSPC && end) {
            kv->cur->end = end; /* a full disk: go on in the newest file, over its torn end */
            r = 0;
        } else if (r == -ENOSPC && kv->cur && kv_checkpoint(kv, false) == 0) {
            r = kv_journal_renew(kv);
        }
    }
    if (r < 0 && !why[0])
        snprintf(why, why_cap, "journal: %s", strerror(-r));
    if (r < 0)
        return r;
    /* What was replayed goes to LMDB at once and the old files go. Without space for that the
     * journal keeps it, and the checkpoint thread tries again. */
    lock_acquire(&kv->ckpt);
    int c = kv_checkpoint_locked(kv, false);
    lock_release(&kv->ckpt);
    if (c == 0)
        r = io_sync_dir(kv->conf.dirfd, "journal");
    else if (c != -ENOSPC && c != -EDQUOT)
        r = c;
    if (r < 0)
        snprintf(why, why_cap, "metadata: cannot write what the journal holds: %s", strerror(-r));
    return r;
}

static double overlay_gauge(void *arg)
{
    return (double)atomic_load(&((struct kv *)arg)->overlay_bytes);
}

static double zero_gauge(void *arg)
{
    (void)arg;
    return 0;
}

static struct stats *kv_stats(struct kv *kv)
{
    return kv->conf.stats ? kv->conf.stats : kv->own_stats;
}

static void open_stats(struct kv *kv)
{
    struct stats *s = kv_stats(kv);
    kv->n_apply = stats_counter(s, "kv_apply_total", "", "batches applied to the metadata store");
    kv->n_sync = stats_counter(s, "kv_sync_total", "", "flushes of the metadata journal");
    kv->t_sync = stats_histogram(s, "kv_sync_seconds", "", "duration of a journal flush");
    kv->n_ckpt = stats_counter(s, "kv_checkpoint_total", "", "checkpoints into LMDB");
    stats_gauge(s, "kv_overlay_bytes", "", "metadata in memory that is not in LMDB yet",
                overlay_gauge, kv);
}

/* Frees everything; writes nothing. Threads are gone. */
static void kv_free(struct kv *kv)
{
    if (kv->n_apply)
        stats_gauge(kv_stats(kv), "kv_overlay_bytes", "", "", zero_gauge, NULL);
    while (kv->files) {
        struct jfile *next = kv->files->next;
        io_close(kv->files->fd);
        free(kv->files);
        kv->files = next;
    }
    overlay_clear(&kv->active);
    overlay_clear(&kv->frozen);
    lm_close(kv->lm);
    pthread_cond_destroy(&kv->sync_cond);
    pthread_cond_destroy(&kv->ckpt_cond);
    pthread_cond_destroy(&kv->lead_cond);
    pthread_mutex_destroy(&kv->lead_mu);
    lock_destroy(&kv->ckpt);
    lock_destroy(&kv->flush);
    lock_destroy(&kv->write);
    lock_destroy(&kv->mu);
    lock_destroy(&kv->sync_mu);
    stats_close(kv->own_stats);
    free(kv->origins);
    free(kv->dir);
    free(kv);
}

int kv_open(const struct kv_conf *conf, struct kv **ret, char *why, size_t why_cap)
{
    assert(why_cap > 0);
    why[0] = 0;
    struct kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    kv->conf = *conf;
    if (!kv->conf.checkpoint_ms)
        kv->conf.checkpoint_ms = 1000;
    if (!kv->conf.overlay_bytes_max)
        kv->conf.overlay_bytes_max = 8 * MiB;
    uint64_t total, avail;
    uint32_t bsize;
    if (io_fsinfo(conf->dirfd, &total, &avail, &bsize) == 0) /* the reserve depends on it */
        kv->conf.overlay_bytes_max =
            min_u64(kv->conf.overlay_bytes_max, max_u64(total / 32, 256 * KiB));
    kv->waiters_tail = &kv->waiters;
    kv->ckpt_due = INT64_MAX;
    lock_init(&kv->ckpt, "kv.ckpt", RANK_KV_CKPT, true);
    lock_init(&kv->flush, "kv.flush", RANK_KV_FLUSH, true);
    lock_init(&kv->write, "kv.write", RANK_KV_WRITE, true);
    lock_init(&kv->mu, "kv.mu", RANK_KV, false);
    lock_init(&kv->sync_mu, "kv.sync", RANK_KV_SYNC, false);
    pthread_mutex_init(&kv->lead_mu, NULL);
    cond_init(&kv->lead_cond);
    cond_init(&kv->sync_cond);
    cond_init(&kv->ckpt_cond);
    random_bytes(&kv->seed, sizeof kv->seed);
    kv->dir = strdup(conf->dir);
    kv->conf.dir = kv->dir;
    kv->origins = calloc(KV_ORIGINS, sizeof *kv->origins);
    int r = kv->dir && kv->origins ? 0 : -ENOMEM;
    if (r == 0 && !conf->stats)
        r = stats_open(&kv->own_stats);
    uint64_t mark = 0;
    if (r == 0) {
        open_stats(kv);
        r = lm_open(&kv->conf, &kv->lm, &mark, why, why_cap);
    }
    if (r == 0) {
        atomic_store(&kv->mark, mark);
        atomic_store(&kv->durable, mark);
        atomic_store(&kv->seq, mark);
        r = open_journal(kv, why, why_cap);
    }
    if (r == 0 && kv->conf.threaded)
        r = kv_threads_start(kv);
    if (r < 0) {
        if (!why[0])
            snprintf(why, why_cap, "metadata: %s", strerror(-r));
        kv_free(kv);
        return r;
    }
    *ret = kv;
    return 0;
}

void kv_close(struct kv *kv)
{
    if (!kv)
        return;
    kv_threads_stop(kv);
    (void)kv_serve_waiters(kv);
    if (!atomic_load(&kv->apply_err) && !atomic_load(&kv->sync_err) &&
        !atomic_load(&kv->ckpt_err)) {
        int r = kv_checkpoint(kv, false);
        if (r < 0) {
            log_warn(LC_META, "metadata: no checkpoint at close (%s): the journal has it",
                     err_name(r));
            (void)kv_sync(kv, kv_seq(kv)); /* durable at least in the journal; logs its failure */
        }
    }
    kv_free(kv);
}

void kv_crash(struct kv *kv)
{
    lock_acquire(&kv->sync_mu);
    kv->crash = true;
    lock_release(&kv->sync_mu);
    kv_threads_stop(kv);
    kv_free(kv);
}
