/* kv_sync.c: what makes batches durable: flushes of the journal, checkpoints into LMDB, and the two
 * threads that do them when nobody waits on the spot.
 *
 * A flush is a group commit: one caller leads and syncs for all whose batches are in the journal by
 * then; the others sleep until their sequence is durable or it is their turn to lead.
 *
 * A checkpoint freezes the overlay (a new empty one takes its place), writes it to LMDB in one synced
 * transaction together with its sequence, and drops it. If that fails, it stays frozen, readable, and
 * the next checkpoint writes it first.
 *
 * Journal files: the newest is appended to. A checkpoint begins a new one when the newest has grown,
 * and removes those that LMDB contains. Space is reserved for it, so that removals can be recorded on
 * a full disk. A file whose flush failed is `bad`: the kernel may call its
 * lost pages clean, so no later flush of it proves anything. Then everything goes to LMDB and to a
 * new file at once; if that fails too, sync_err and apply_err are final.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/falloc.h>
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/meta/kv_priv.h"

enum { RECOVER = 1 };

void jfile_name(char out[static 40], uint64_t id)
{
    snprintf(out, 40, "journal/%016llx.j", (unsigned long long)id);
}

/* ---- journal files ---- */

static void jfile_remove(struct kv *kv, struct jfile *j)
{
    char name[40];
    jfile_name(name, j->id);
    io_close(j->fd);
    int r = io_unlink(kv->conf.dirfd, name, 0);
    if (r < 0) /* harmless: replay skips what LMDB contains */
        log_warn(LC_META, "journal: cannot remove %s: %s", name, err_name(r));
    free(j);
}

enum { HEAD_MAX = KJ_FILE_HEAD + KJ_HEAD + KV_ORIGINS * KJ_ORIGIN + KJ_HASH };

/* The beginning of a file whose first batch will be the next one. Under `write`. */
static size_t head_encode(struct kv *kv, uint64_t id, uint8_t head[static HEAD_MAX])
{
    uint64_t seq = atomic_load(&kv->seq), durable = atomic_load(&kv->durable);
    kj_file_head(head, id, seq + 1, durable);
    size_t n = kv_origins_encode(kv, head + KJ_FILE_HEAD + KJ_HEAD);
    if (n == 0)
        return KJ_FILE_HEAD;
    struct kj_batch b = {
        .type = KJ_ORIGINS, .n = (uint32_t)n, .seq = seq, .durable = durable, .len = n * KJ_ORIGIN};
    kj_seal(head + KJ_FILE_HEAD, &b, id);
    return KJ_FILE_HEAD + KJ_HEAD + b.len + KJ_HASH;
}

/* Begins a new file and makes it the one that is written to. Under `ckpt` (or alone, in kv_open).
 * `must`: also when no room can be reserved in it for removals on a full disk. */
int kv_journal_begin(struct kv *kv, bool sync_head, bool must)
{
    struct jfile *j = calloc(1, sizeof *j);
    uint8_t *head = malloc(HEAD_MAX);
    if (!j || !head) {
        free(j);
        free(head);
        return -ENOMEM;
    }
    char name[40];
    j->id = kv->next_id++;
    jfile_name(name, j->id);
    j->fd = io_open(kv->conf.dirfd, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    int r = j->fd < 0 ? j->fd : io_sync_dir(kv->conf.dirfd, "journal");
    if (r == 0) {
        int f = io_fallocate(j->fd, FALLOC_FL_KEEP_SIZE, 0, KV_ROTATE_BYTES + KV_ROTATE_BYTES / 4);
        if (f == -ENOSPC && !must)
            r = f;
    }
    if (r == 0) {
        LOCK_SCOPE(&kv->write);
        size_t len = head_encode(kv, j->id, head);
        r = io_pwrite_full(j->fd, head, len, 0, NULL);
        if (r == 0 && sync_head)
            r = io_sync(j->fd, false);
        if (r == 0) {
            j->end = len;
            j->synced = sync_head ? len : 0;
            j->last_seq = atomic_load(&kv->seq);
            atomic_fetch_add(&kv->journal_bytes, len);
            if (kv->cur)
                kv->cur->next = j;
            else
                kv->files = j;
            kv->cur = j;
        }
    }
    free(head);
    if (r < 0 && j->fd >= 0)
        jfile_remove(kv, j);
    else if (r < 0)
        free(j);
    return r;
}

/* The newest file is longer than `above` and a full disk allows no new one: begins it anew in its own
 * space, if LMDB has all of it. Old batches that remain behind the new end are below the mark. If the
 * head cannot be written the file's end is 0, and nothing is appended until that has been done. */
static void journal_restart(struct kv *kv, uint64_t above)
{
    uint8_t *head = malloc(HEAD_MAX);
    if (!head)
        return;
    LOCK_SCOPE(&kv->flush);
    LOCK_SCOPE(&kv->write);
    struct jfile *j = kv->cur;
    if ((j->end > above || j->end == 0) && !j->bad &&
        atomic_load(&kv->mark) == atomic_load(&kv->seq)) {
        size_t len = head_encode(kv, j->id, head);
        if (io_pwrite_full(j->fd, head, len, 0, NULL) < 0)
            len = 0; /* half a head: what is appended behind it would not be found */
        atomic_fetch_sub(&kv->journal_bytes, j->end);
        atomic_fetch_add(&kv->journal_bytes, len);
        j->end = len;
        j->synced = 0;
    }
    free(head);
}

/* In kv_open, on a full disk: LMDB has it all, so the old files go before the new one is made. */
int kv_journal_renew(struct kv *kv)
{
    assert(atomic_load(&kv->mark) == atomic_load(&kv->seq));
    while (kv->files) {
        struct jfile *j = kv->files;
        kv->files = j->next;
        jfile_remove(kv, j);
    }
    kv->cur = NULL;
    atomic_store(&kv->journal_bytes, 0);
    return kv_journal_begin(kv, true, true);
}

/* Removes files that LMDB contains. `flush` keeps a flush from using their descriptors. */
static void drop_files(struct kv *kv)
{
    struct jfile *gone = NULL;
    LOCK_SCOPE(&kv->flush);
    lock_acquire(&kv->write);
    uint64_t mark = atomic_load(&kv->mark);
    while (kv->files != kv->cur && kv->files->last_seq <= mark) {
        struct jfile *j = kv->files;
        kv->files = j->next;
        j->next = gone;
        gone = j;
        atomic_fetch_sub(&kv->journal_bytes, j->end);
    }
    lock_release(&kv->write);
    while (gone) {
        struct jfile *next = gone->next;
        jfile_remove(kv, gone);
        gone = next;
    }
}

/* ---- flush ---- */

static void grow_to(_Atomic uint64_t *v, uint64_t to)
{
    if (atomic_load(v) < to)
        atomic_store(v, to);
}

/* 0, -errno, or RECOVER: a flush has failed and the journal proves nothing. */
static int flush_once(struct kv *kv, uint64_t upto)
{
    LOCK_SCOPE(&kv->flush);
    if (atomic_load(&kv->durable) >= upto)
        return 0;
    int r = atomic_load(&kv->sync_err);
    if (r < 0)
        return r;
    int64_t t0 = clock_mono_ns();
    lock_acquire(&kv->write);
    uint64_t seq = atomic_load(&kv->seq);
    struct jfile *j = kv->files;
    while (j && r == 0) {
        uint64_t end = j->end;
        lock_release(&kv->write);
        if (!j->bad && j->synced < end) {
            r = io_sync(j->fd, true);
            if (r == 0)
                j->synced = end;
            else
                j->bad = true;
        }
        if (j->bad)
            r = RECOVER;
        lock_acquire(&kv->write);
        j = j->next;
    }
    lock_release(&kv->write);
    if (r == 0) {
        lock_acquire(&kv->mu);
        grow_to(&kv->durable, seq);
        lock_release(&kv->mu);
        counter_add(kv->n_sync, 1);
        histogram_add(kv->t_sync, clock_mono_ns() - t0);
    }
    return r;
}

/* ---- checkpoint ---- */

static void freeze(struct kv *kv)
{
    LOCK_SCOPE(&kv->mu);
    kv->frozen = kv->active;
    kv->frozen_seq = atomic_load(&kv->seq);
    kv->has_frozen = true;
    kv->active = (struct overlay){0};
}

int kv_checkpoint_locked(struct kv *kv, bool rotate)
{
    assert(lock_is_mine(&kv->ckpt));
    lock_acquire(&kv->write);
    bool full = kv->cur->end > KV_ROTATE_BYTES;
    lock_release(&kv->write);
    if (rotate || (full && !kv->has_frozen)) {
        int r = kv_journal_begin(kv, false, rotate);
        if (r < 0 && rotate)
            return r;
        if (r < 0)
            log_rate(LC_META, LOG_LV_WARN, 60, "journal: no new file: %s", err_name(r));
    }
    uint64_t upto = atomic_load(&kv->seq);
    while (atomic_load(&kv->mark) < upto) {
        if (!kv->has_frozen)
            freeze(kv);
        int r = lm_write(kv->lm, &kv->frozen, kv->frozen_seq, false);
        if (r == -ENOSPC && flush_once(kv, kv->frozen_seq) == 0)
            r = lm_write(kv->lm, &kv->frozen, kv->frozen_seq, true);
        if (r < 0) {
            if (r != -ENOSPC && r != -ENOMEM && r != -EDQUOT)
                atomic_store(&kv->ckpt_err, r);
            return r;
        }
        lock_acquire(&kv->mu);
        struct overlay old = kv->frozen;
        kv->frozen = (struct overlay){0};
        kv->has_frozen = false;
        grow_to(&kv->mark, kv->frozen_seq);
        grow_to(&kv->durable, kv->frozen_seq);
        atomic_store(&kv->overlay_bytes, kv->active.bytes);
        lock_release(&kv->mu);
        overlay_clear(&old);
        counter_add(kv->n_ckpt, 1);
    }
    drop_files(kv);
    if (full)
        journal_restart(kv, KV_ROTATE_BYTES);
    return 0;
}

int kv_checkpoint(struct kv *kv, bool rotate)
{
    LOCK_SCOPE(&kv->ckpt);
    return kv_checkpoint_locked(kv, rotate);
}

/* After an append that found the disk full: everything to LMDB, whose space is reserved, and the
 * journal begun anew in its own. */
int kv_checkpoint_room(struct kv *kv)
{
    LOCK_SCOPE(&kv->ckpt);
    if (atomic_load(&kv->ckpt_err) < 0)
        return -EROFS;
    int r = kv_checkpoint_locked(kv, false);
    if (r == 0)
        journal_restart(kv, 0);
    return r;
}

/* ---- after a failed flush ---- */

static bool journal_bad(struct kv *kv)
{
    LOCK_SCOPE(&kv->flush);
    LOCK_SCOPE(&kv->write);
    for (struct jfile *j = kv->files; j; j = j->next)
        if (j->bad)
            return true;
    return false;
}

static int recover(struct kv *kv)
{
    LOCK_SCOPE(&kv->ckpt);
    if (!journal_bad(kv))
        return 0; /* somebody else did it while we waited */
    int r = atomic_load(&kv->sync_err);
    if (r < 0)
        return r;
    log_err(LC_META, "journal: flush failed; writing everything to the metadata store instead");
    r = kv_checkpoint_locked(kv, true);
    if (r < 0) {
        atomic_store(&kv->sync_err, -EIO);
        atomic_store(&kv->apply_err, -EROFS);
        log_err(LC_META,
                "journal: that failed too (%s): metadata is read-only until remount; what was not "
                "yet acknowledged by fsync may be lost when the machine loses power",
                err_name(r));
        return -EIO;
    }
    log_warn(LC_META, "journal: all metadata is safe; a new journal file was begun");
    return 0;
}

/* Waits until `seq` is durable or it is this thread's turn to flush. True: the caller leads, and ends
 * that with lead_end. The mutex is a leaf; the wait is for local disk, so disk_ok locks may be held,
 * which lock_wait would not allow. */
static bool lead_begin(struct kv *kv, uint64_t seq)
{
    pthread_mutex_lock(&kv->lead_mu);
    while (kv->leading && atomic_load(&kv->durable) < seq)
        pthread_cond_wait(&kv->lead_cond, &kv->lead_mu);
    bool lead = atomic_load(&kv->durable) < seq;
    kv->leading |= lead;
    pthread_mutex_unlock(&kv->lead_mu);
    return lead;
}

static void lead_end(struct kv *kv)
{
    pthread_mutex_lock(&kv->lead_mu);
    kv->leading = false;
    pthread_cond_broadcast(&kv->lead_cond);
    pthread_mutex_unlock(&kv->lead_mu);
}

int kv_sync(struct kv *kv, uint64_t seq)
{
    assert(lock_disk_ok());
    int r = 0;
    while (r == 0 && atomic_load(&kv->durable) < seq && lead_begin(kv, seq)) {
        r = flush_once(kv, seq);
        if (r == RECOVER)
            r = recover(kv);
        lead_end(kv);
    }
    return r;
}

/* ---- waiters and threads ---- */

void kv_sync_async(struct kv *kv, uint64_t seq, struct kv_waiter *w)
{
    if (atomic_load(&kv->durable) >= seq) {
        w->done(w, 0);
        return;
    }
    assert(seq <= atomic_load(&kv->seq));
    w->seq = seq;
    w->next = NULL;
    LOCK_SCOPE(&kv->sync_mu);
    *kv->waiters_tail = w;
    kv->waiters_tail = &w->next;
    pthread_cond_signal(&kv->sync_cond);
}

/* Serves all waiters of this moment with one flush. False: there were none. */
bool kv_serve_waiters(struct kv *kv)
{
    lock_acquire(&kv->sync_mu);
    struct kv_waiter *w = kv->waiters;
    kv->waiters = NULL;
    kv->waiters_tail = &kv->waiters;
    lock_release(&kv->sync_mu);
    if (!w)
        return false;
    uint64_t max = 0;
    for (struct kv_waiter *i = w; i; i = i->next)
        max = i->seq > max ? i->seq : max;
    int r = kv_sync(kv, max);
    while (w) {
        struct kv_waiter *next = w->next;
        w->done(w, atomic_load(&kv->durable) >= w->seq ? 0 : r);
        w = next;
    }
    return true;
}

static void *sync_main(void *arg)
{
    struct kv *kv = arg;
    lock_acquire(&kv->sync_mu);
    for (;;) {
        while (!kv->waiters && !kv->stop)
            lock_wait(&kv->sync_mu, &kv->sync_cond);
        if (kv->crash || !kv->waiters)
            break;
        lock_release(&kv->sync_mu);
        (void)kv_serve_waiters(kv);
        lock_acquire(&kv->sync_mu);
    }
    lock_release(&kv->sync_mu);
    return NULL;
}

/* Is a checkpoint due? Sets *at to when it will be (INT64_MAX: when something changes). */
static bool checkpoint_due(struct kv *kv, int64_t *at)
{
    *at = INT64_MAX;
    if (atomic_load(&kv->mark) == atomic_load(&kv->seq) || atomic_load(&kv->ckpt_err) < 0)
        return false;
    int64_t now = clock_mono_ns();
    if (kv->ckpt_due == INT64_MAX)
        kv->ckpt_due = now + (int64_t)kv->conf.checkpoint_ms * NS_PER_MS;
    *at = kv->ckpt_due;
    if (now >= kv->ckpt_due)
        return true;
    return !kv->ckpt_waits && atomic_load(&kv->overlay_bytes) > kv->conf.overlay_bytes_max;
}

/* After a checkpoint: the clock starts with the next change; after a failed one it runs at once. */
static void checkpoint_done(struct kv *kv, int r)
{
    kv->ckpt_waits = r < 0;
    kv->ckpt_due = INT64_MAX;
}

void kv_wake_checkpoint(struct kv *kv)
{
    if (!kv->threads)
        return;
    LOCK_SCOPE(&kv->sync_mu);
    pthread_cond_signal(&kv->ckpt_cond);
}

static void *ckpt_main(void *arg)
{
    struct kv *kv = arg;
    lock_acquire(&kv->sync_mu);
    while (!kv->stop) {
        int64_t at;
        if (checkpoint_due(kv, &at)) {
            lock_release(&kv->sync_mu);
            int r = kv_checkpoint(kv, false);
            lock_acquire(&kv->sync_mu);
            checkpoint_done(kv, r);
        } else if (at == INT64_MAX) {
            lock_wait(&kv->sync_mu, &kv->ckpt_cond);
        } else {
            (void)lock_wait_until(&kv->sync_mu, &kv->ckpt_cond, at);
        }
    }
    lock_release(&kv->sync_mu);
    return NULL;
}

bool kv_step(struct kv *kv)
{
    if (kv_serve_waiters(kv))
        return true;
    lock_acquire(&kv->sync_mu);
    int64_t at;
    bool due = checkpoint_due(kv, &at);
    lock_release(&kv->sync_mu);
    if (!due)
        return false;
    int r = kv_checkpoint(kv, false);
    LOCK_SCOPE(&kv->sync_mu);
    checkpoint_done(kv, r);
    return true;
}

int kv_threads_start(struct kv *kv)
{
    int r = pthread_create(&kv->sync_thread, NULL, sync_main, kv);
    if (r)
        return -r;
    pthread_setname_np(kv->sync_thread, "kv-sync");
    r = pthread_create(&kv->ckpt_thread, NULL, ckpt_main, kv);
    if (r) {
        lock_acquire(&kv->sync_mu);
        kv->stop = true;
        pthread_cond_signal(&kv->sync_cond);
        lock_release(&kv->sync_mu);
        pthread_join(kv->sync_thread, NULL);
        return -r;
    }
    pthread_setname_np(kv->ckpt_thread, "kv-checkpoint");
    kv->threads = true;
    return 0;
}

void kv_threads_stop(struct kv *kv)
{
    if (!kv->threads)
        return;
    lock_acquire(&kv->sync_mu);
    kv->stop = true;
    pthread_cond_signal(&kv->sync_cond);
    pthread_cond_signal(&kv->ckpt_cond);
    lock_release(&kv->sync_mu);
    pthread_join(kv->sync_thread, NULL);
    pthread_join(kv->ckpt_thread, NULL);
    kv->threads = false;
}
