/* kv_lmdb.c: the only file that knows LMDB. Two tables: "kv" (key -> value, then u64 hash over key and
 * value) and "sys" (format version, mark). Errors leave as -errno (lm_err).
 *
 * Read transactions are pooled (MDB_NOTLS: they belong to no thread): reset after use so that no
 * snapshot pins old pages, renewed before it. `gate` is held for reading while one is in use and for
 * writing while the map grows, which LMDB allows only without readers; it is a leaf, held over page
 * faults of the map and nothing else.
 *
 * After a write that failed for another reason than space, LMDB may have lost pages that the kernel
 * has marked clean: `failed` then refuses all further writes.
 *
 * The environment is opened after any fork of the daemon, and once per process: the flock on its
 * directory refuses a second opener, also in the same process. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bounds.h"
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/log.h"
#include "fs/meta/kv_priv.h"

enum {
    SMALL_KEYS = 64,
    SMALL_BYTES = 64 * 1024,
    POOL_MAX = 64,
    READERS_MAX = 512,
    LM_VERSION = 1,
    HASH_BYTES = 8,
    SYS_BYTES = 16
};
#define MAP_BYTES_MAX (4 * TiB)
#define NEED_MIN      (64 * KiB)

struct lm {
    MDB_env *env;
    MDB_dbi kv, sys;
    int guard_fd;
    uint64_t map_bytes, reserve;
    _Atomic bool tight;
    bool failed; /* the writer's */
    pthread_rwlock_t gate;
    struct lock pool_mu;
    MDB_txn *pool[POOL_MAX];
    unsigned pool_n;
};

static int lm_err(int rc)
{
    switch (rc) {
    case MDB_SUCCESS:
        return 0;
    case MDB_NOTFOUND:
        return -ENOENT;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_INCOMPATIBLE:
        return -EBADMSG;
    case MDB_VERSION_MISMATCH:
        return -EPROTONOSUPPORT;
    case MDB_MAP_FULL:
        return -ENOSPC;
    case MDB_READERS_FULL:
        return -EBUSY;
    default:
        return rc > 0 ? -rc : -EIO;
    }
}

static uint64_t value_hash(const void *key, size_t klen, const void *val, size_t vlen)
{
    uint8_t b[16];
    put_le64(b, hash64(key, klen));
    put_le64(b + 8, hash64(val, vlen));
    return hash64(b, sizeof b);
}

ssize_t lm_check(const void *key, size_t klen, const void *raw, size_t rlen)
{
    if (rlen < HASH_BYTES)
        return -EBADMSG;
    size_t vlen = rlen - HASH_BYTES;
    if (get_le64((const uint8_t *)raw + vlen) != value_hash(key, klen, raw, vlen))
        return -EBADMSG;
    return (ssize_t)vlen;
}

/* ---- opening ---- */

static MDB_val val_of(const void *p, size_t len)
{
    return (MDB_val){.mv_size = len, .mv_data = (void *)(uintptr_t)p};
}

static int sys_get(struct lm *lm, MDB_txn *txn, const char *name, uint64_t *ret)
{
    MDB_val k = val_of(name, strlen(name)), v;
    int rc = mdb_get(txn, lm->sys, &k, &v);
    if (rc)
        return lm_err(rc);
    const uint8_t *p = v.mv_data;
    if (v.mv_size != SYS_BYTES || get_le64(p + 8) != value_hash(name, strlen(name), p, 8))
        return -EBADMSG;
    *ret = get_le64(p);
    return 0;
}

static int sys_put(struct lm *lm, MDB_txn *txn, const char *name, uint64_t value)
{
    uint8_t b[SYS_BYTES];
    put_le64(b, value);
    put_le64(b + 8, value_hash(name, strlen(name), b, 8));
    MDB_val k = val_of(name, strlen(name)), v = val_of(b, sizeof b);
    return mdb_put(txn, lm->sys, &k, &v, 0);
}

/* Tables, version, mark. A new environment gets version 1 and mark 0. */
static int open_tables(struct lm *lm, uint64_t *mark, char *why, size_t why_cap)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(lm->env, NULL, 0, &txn);
    if (rc) {
        snprintf(why, why_cap, "metadata: cannot begin: %s", mdb_strerror(rc));
        return lm_err(rc);
    }
    int r = 0;
    uint64_t version = 0;
    rc = mdb_dbi_open(txn, "kv", MDB_CREATE, &lm->kv);
    if (!rc)
        rc = mdb_dbi_open(txn, "sys", MDB_CREATE, &lm->sys);
    if (rc) {
        r = lm_err(rc);
        snprintf(why, why_cap, "metadata: cannot open its tables: %s", mdb_strerror(rc));
        goto out;
    }
    r = sys_get(lm, txn, "version", &version);
    if (r == -ENOENT) {
        *mark = 0;
        rc = sys_put(lm, txn, "version", LM_VERSION);
        if (!rc)
            rc = sys_put(lm, txn, "mark", 0);
        if (!rc) {
            rc = mdb_txn_commit(txn);
            txn = NULL;
        }
        r = lm_err(rc);
        if (r < 0)
            snprintf(why, why_cap, "metadata: cannot create: %s", mdb_strerror(rc));
    } else if (r == 0 && version != LM_VERSION) {
        snprintf(why, why_cap, "metadata: format version %llu is newer than this program",
                 (unsigned long long)version);
        r = -EPROTONOSUPPORT;
    } else if (r == 0) {
        r = sys_get(lm, txn, "mark", mark);
        if (r == 0) {
            rc = mdb_txn_commit(txn); /* keeps the table handles */
            txn = NULL;
            r = lm_err(rc);
        }
    }
    if (r == -ENOENT || r == -EBADMSG) {
        snprintf(why, why_cap, "metadata: the record of its state is damaged");
        r = -EBADMSG;
    }
out:
    if (txn)
        mdb_txn_abort(txn);
    return r;
}

/* The directory, made durable, and the guard against a second opener. */
static int open_dir(struct lm *lm, const struct kv_conf *conf, const char *path, char *why,
                    size_t why_cap)
{
    int r = 0;
    if (mkdir(path, 0700) == 0) {
        if (!conf->lmdb_nosync) {
            int fd = open(conf->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (fd < 0 || fsync(fd) != 0)
                r = -errno;
            if (fd >= 0)
                close(fd);
        }
    } else if (errno != EEXIST) {
        r = -errno;
    }
    if (r == 0) {
        lm->guard_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (lm->guard_fd < 0)
            r = -errno;
    }
    if (r < 0) {
        snprintf(why, why_cap, "metadata: %s: %s", path, strerror(-r));
        return r;
    }
    if (flock(lm->guard_fd, LOCK_EX | LOCK_NB) != 0) {
        r = errno == EWOULDBLOCK ? -EBUSY : -errno;
        snprintf(why, why_cap, "metadata: %s is in use", path);
    }
    return r;
}

int lm_open(const struct kv_conf *conf, struct lm **ret, uint64_t *mark, char *why, size_t why_cap)
{
    char *path = NULL;
    struct lm *lm = calloc(1, sizeof *lm);
    if (!lm || asprintf(&path, "%s/meta", conf->dir) < 0) {
        free(lm);
        snprintf(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    pthread_rwlockattr_t a;
    pthread_rwlockattr_init(&a);
    pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lm->gate, &a);
    pthread_rwlockattr_destroy(&a);
    lock_init(&lm->pool_mu, "kv.readers", RANK_KV_SYNC, false);
    lm->guard_fd = -1;
    lm->map_bytes = conf->map_bytes ? conf->map_bytes : GiB;
    lm->reserve = 2 * MiB + 4 * conf->overlay_bytes_max; /* twice bound, pages half full */

    int r = open_dir(lm, conf, path, why, why_cap);
    if (r == 0) {
        int dead, rc = mdb_env_create(&lm->env);
        if (!rc)
            rc = mdb_env_set_maxdbs(lm->env, 2);
        if (!rc)
            rc = mdb_env_set_maxreaders(lm->env, READERS_MAX);
        if (!rc)
            rc = mdb_env_set_mapsize(lm->env, lm->map_bytes);
        if (!rc)
            rc =
                mdb_env_open(lm->env, path, MDB_NOTLS | (conf->lmdb_nosync ? MDB_NOSYNC : 0), 0600);
        if (!rc)
            rc = mdb_reader_check(lm->env, &dead);
        if (rc) {
            snprintf(why, why_cap, "metadata: %s: %s", path, mdb_strerror(rc));
            r = lm_err(rc);
        }
    }
    if (r == 0) {
        MDB_envinfo info;
        mdb_env_info(lm->env, &info);
        lm->map_bytes = info.me_mapsize; /* LMDB raises it to what the file needs */
        r = open_tables(lm, mark, why, why_cap);
    }
    free(path);
    if (r < 0) {
        lm_close(lm);
        return r;
    }
    atomic_store(&lm->tight, true); /* until the first batch asks and the reserve is there */
    *ret = lm;
    return 0;
}

void lm_close(struct lm *lm)
{
    if (!lm)
        return;
    while (lm->pool_n)
        mdb_txn_abort(lm->pool[--lm->pool_n]);
    if (lm->env)
        mdb_env_close(lm->env);
    if (lm->guard_fd >= 0)
        close(lm->guard_fd);
    lock_destroy(&lm->pool_mu);
    pthread_rwlock_destroy(&lm->gate);
    free(lm);
}

/* ---- reading ---- */

static int read_begin(struct lm *lm, MDB_txn **ret)
{
    pthread_rwlock_rdlock(&lm->gate);
    MDB_txn *txn = NULL;
    lock_acquire(&lm->pool_mu);
    if (lm->pool_n)
        txn = lm->pool[--lm->pool_n];
    lock_release(&lm->pool_mu);
    int rc = txn ? mdb_txn_renew(txn) : mdb_txn_begin(lm->env, NULL, MDB_RDONLY, &txn);
    if (rc) {
        if (txn)
            mdb_txn_abort(txn);
        pthread_rwlock_unlock(&lm->gate);
        return lm_err(rc);
    }
    *ret = txn;
    return 0;
}

static void read_end(struct lm *lm, MDB_txn *txn)
{
    mdb_txn_reset(txn);
    lock_acquire(&lm->pool_mu);
    if (lm->pool_n < POOL_MAX) {
        lm->pool[lm->pool_n++] = txn;
        txn = NULL;
    }
    lock_release(&lm->pool_mu);
    if (txn)
        mdb_txn_abort(txn);
    pthread_rwlock_unlock(&lm->gate);
}

static ssize_t copy_out(const MDB_val *k, const MDB_val *v, void *buf, size_t cap)
{
    ssize_t n = lm_check(k->mv_data, k->mv_size, v->mv_data, v->mv_size);
    if (n > 0 && (size_t)n <= cap)
        memcpy(buf, v->mv_data, (size_t)n);
    return n;
}

ssize_t lm_get(struct lm *lm, const void *key, size_t klen, void *buf, size_t cap)
{
    MDB_txn *txn = NULL;
    int r = read_begin(lm, &txn);
    if (r < 0)
        return r;
    MDB_val k = val_of(key, klen), v;
    int rc = mdb_get(txn, lm->kv, &k, &v);
    ssize_t n = rc ? lm_err(rc) : copy_out(&k, &v, buf, cap);
    read_end(lm, txn);
    return n;
}

int lm_rows(struct lm *lm, uint64_t *ret)
{
    MDB_txn *txn = NULL;
    MDB_stat st;
    int r = read_begin(lm, &txn);
    if (r < 0)
        return r;
    int rc = mdb_stat(txn, lm->kv, &st);
    read_end(lm, txn);
    if (!rc)
        *ret = st.ms_entries;
    return lm_err(rc);
}

int lm_scan(struct lm *lm, const void *from, size_t flen,
            int (*each)(void *arg, const void *key, size_t klen, const void *raw, size_t rlen),
            void *arg)
{
    MDB_txn *txn = NULL;
    int r = read_begin(lm, &txn);
    if (r < 0)
        return r;
    MDB_cursor *cur;
    int rc = mdb_cursor_open(txn, lm->kv, &cur);
    if (!rc) {
        MDB_val k = val_of(from, flen), v;
        rc = mdb_cursor_get(cur, &k, &v, MDB_SET_RANGE);
        while (!rc && each(arg, k.mv_data, k.mv_size, v.mv_data, v.mv_size) == 0)
            rc = mdb_cursor_get(cur, &k, &v, MDB_NEXT);
        mdb_cursor_close(cur);
    }
    read_end(lm, txn);
    return rc == MDB_NOTFOUND ? 0 : lm_err(rc);
}

ssize_t lm_last(struct lm *lm, const void *prefix, size_t plen, const void *upto, size_t ulen,
                bool below, const void *floor, size_t floor_len, void *key, size_t key_cap,
                size_t *ret_klen, void *buf, size_t cap)
{
    MDB_txn *txn = NULL;
    int r = read_begin(lm, &txn);
    if (r < 0)
        return r;
    ssize_t n = -ENOENT;
    MDB_cursor *cur;
    int rc = mdb_cursor_open(txn, lm->kv, &cur);
    if (!rc) {
        MDB_val k = val_of(upto, ulen), v;
        rc = mdb_cursor_get(cur, &k, &v, MDB_SET_RANGE);
        if (rc == MDB_NOTFOUND)
            rc = mdb_cursor_get(cur, &k, &v, MDB_LAST);
        else if (!rc && (below || key_cmp(k.mv_data, k.mv_size, upto, ulen) != 0))
            rc = mdb_cursor_get(cur, &k, &v, MDB_PREV);
        if (rc)
            n = lm_err(rc);
        else if (k.mv_size < plen || memcmp(k.mv_data, prefix, plen) != 0 ||
                 key_cmp(k.mv_data, k.mv_size, floor, floor_len) <= 0)
            n = -ENOENT;
        else if (k.mv_size > key_cap)
            n = -ENOBUFS;
        else {
            memcpy(key, k.mv_data, k.mv_size);
            *ret_klen = k.mv_size;
            n = copy_out(&k, &v, buf, cap);
        }
        mdb_cursor_close(cur);
    } else {
        n = lm_err(rc);
    }
    read_end(lm, txn);
    return n;
}

uint64_t lm_bytes(struct lm *lm)
{
    MDB_envinfo info;
    MDB_stat st;
    if (mdb_env_info(lm->env, &info) || mdb_env_stat(lm->env, &st))
        return 0;
    return (info.me_last_pgno + 1) * (uint64_t)st.ms_psize;
}

/* ---- writing ---- */

/* A run of overlay nodes: from `first` up to, not including, `end`. */
struct run {
    const struct onode *first, *end;
    uint64_t keys, bytes;
};

static int write_run(struct lm *lm, const struct run *run, const uint64_t *mark)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(lm->env, NULL, 0, &txn);
    if (rc)
        return rc;
    for (const struct onode *n = run->first; n != run->end && !rc; n = n->next[0]) {
        MDB_val k = val_of(onode_key(n), n->klen), v;
        if (n->dead) {
            rc = mdb_del(txn, lm->kv, &k, NULL);
            if (rc == MDB_NOTFOUND)
                rc = 0;
            continue;
        }
        v.mv_size = n->vlen + HASH_BYTES;
        rc = mdb_put(txn, lm->kv, &k, &v, MDB_RESERVE);
        if (!rc) {
            uint8_t *p = v.mv_data;
            memcpy(p, onode_val(n), n->vlen);
            put_le64(p + n->vlen, value_hash(onode_key(n), n->klen, onode_val(n), n->vlen));
        }
    }
    if (!rc && mark)
        rc = sys_put(lm, txn, "mark", *mark);
    if (rc) {
        mdb_txn_abort(txn);
        return rc;
    }
    return mdb_txn_commit(txn);
}

static int grow(struct lm *lm)
{
    if (lm->map_bytes > MAP_BYTES_MAX / 2)
        return MDB_MAP_FULL;
    pthread_rwlock_wrlock(&lm->gate);
    int rc = mdb_env_set_mapsize(lm->env, lm->map_bytes * 2);
    pthread_rwlock_unlock(&lm->gate);
    if (!rc) {
        lm->map_bytes *= 2;
        log_info(LC_META, "metadata: map grown to %llu MiB",
                 (unsigned long long)(lm->map_bytes / MiB));
    }
    return rc;
}

static bool space_at(struct lm *lm, uint64_t len)
{
    int fd;
    if (mdb_env_get_fd(lm->env, &fd) ||
        fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)lm_bytes(lm), (off_t)len) == 0)
        return true;
    return errno != ENOSPC && errno != EDQUOT; /* not supported: try without */
}

/* Pages inside the file that later transactions may use, in bytes: LMDB's list of free pages is its
 * table 0, each record a count and that many page numbers. */
static uint64_t free_bytes(struct lm *lm)
{
    MDB_txn *txn = NULL;
    MDB_cursor *cur;
    uint64_t pages = 0;
    if (read_begin(lm, &txn) < 0)
        return 0;
    if (mdb_cursor_open(txn, 0, &cur) == 0) {
        MDB_val k, v;
        while (mdb_cursor_get(cur, &k, &v, MDB_NEXT) == 0) {
            size_t n = 0;
            if (v.mv_size >= sizeof n)
                memcpy(&n, v.mv_data, sizeof n);
            pages += n;
        }
        mdb_cursor_close(cur);
    }
    read_end(lm, txn);
    return pages * 4096;
}

/* Room for `need` and, beyond it, the reserve: behind the end of the file or, since the file never
 * shrinks, in its free pages. What is needed at once must be behind the end: free pages may lie
 * scattered, and large values want neighbours. */
static bool roomy(struct lm *lm, uint64_t need)
{
    return space_at(lm, need + lm->reserve) ||
           (space_at(lm, need) && free_bytes(lm) >= need + lm->reserve);
}

bool lm_tight(struct lm *lm)
{
    if (atomic_load(&lm->tight) && roomy(lm, NEED_MIN))
        atomic_store(&lm->tight, false);
    return atomic_load(&lm->tight);
}

/* File space that a transaction may take. Worst case: each key copies its own leaf page, branches add
 * a quarter, values split pages. It is reserved beforehand, since LMDB that meets a full disk in the
 * middle of a transaction says EIO. */
static uint64_t need_of(struct lm *lm, const struct run *run)
{
    uint64_t pages = min_u64(run->keys, lm_bytes(lm) / 4096 + 1);
    return pages * 4096 * 5 / 4 + 2 * run->bytes + NEED_MIN;
}

/* On a nearly full disk: small transactions, each of which can use what an earlier one has freed.
 * The mark comes with the last; until then replay would only do the same once more. */
static int write_small(struct lm *lm, const struct overlay *o, uint64_t mark)
{
    struct run run = {.first = o->head[0], .end = o->head[0]};
    do {
        run = (struct run){.first = run.end, .end = run.end};
        while (run.end && run.keys < SMALL_KEYS && run.bytes < SMALL_BYTES) {
            run.keys++;
            run.bytes += run.end->klen + run.end->vlen;
            run.end = run.end->next[0];
        }
        if (!space_at(lm, need_of(lm, &run)))
            return ENOSPC;
        int rc = write_run(lm, &run, run.end ? NULL : &mark);
        if (rc)
            return rc;
    } while (run.end);
    return 0;
}

int lm_write(struct lm *lm, const struct overlay *o, uint64_t mark, bool split)
{
    assert(lock_disk_ok());
    if (lm->failed)
        return -EIO;
    struct run all = {.first = o->head[0], .keys = o->keys, .bytes = o->bytes};
    uint64_t need = need_of(lm, &all);
    bool tight = !roomy(lm, need);
    atomic_store(&lm->tight, tight);
    bool whole = !tight || space_at(lm, need);
    if (!whole && !split)
        return -ENOSPC;
    int rc;
    while ((rc = whole ? write_run(lm, &all, &mark) : write_small(lm, o, mark)) == MDB_MAP_FULL) {
        rc = grow(lm);
        if (rc)
            break;
    }
    if (rc && rc != MDB_MAP_FULL && rc != ENOSPC && rc != ENOMEM && rc != EDQUOT)
        lm->failed = true;
    if (rc && lm->failed)
        log_err(LC_META, "metadata: checkpoint failed: %s; changes stay in the journal, remount",
                mdb_strerror(rc));
    else if (rc)
        log_rate(LC_META, LOG_LV_WARN, 60, "metadata: checkpoint failed: %s; will be tried again",
                 mdb_strerror(rc));
    return lm_err(rc);
}
