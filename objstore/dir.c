/* dir.c: the store in a directory: life, queue and dispatch. The default store; plain files.
 *
 * On disk, below the root:
 *   .sluicefs-store     marker: this directory is a store. Without it every request is answered
 *                       -ENODEV "NoSuchBucket": the disk is not mounted, and nothing must be
 *                       created in its mount point. dir_open makes root and marker, and only when
 *                       the path does not exist or is an empty directory
 *   .tmp/put-RANDOM     a body being written; its writer holds an flock, so that the next dir_open
 *                       can tell a dead one and remove it
 *   .tmp/lock-XX        256 lock files; a key's is taken (flock, so across processes too) while an
 *                       object is replaced or removed
 *   .tmp/mp-ID/         a multipart upload: `key`, and part-NNNNN
 *   everything else     objects: the key is the path. No component of a key begins with '.'
 *
 * Durability: an object's bytes are flushed, then it gets its name by one rename, then the folder
 * and all folders above are flushed. So a name never shows half an object, and after a success both
 * survive a power cut.
 *
 * Threads: requests run on tasks of the device pool, several at once; `progress` and `done` are
 * called from there. A task is only a turn: it takes the most urgent request that waits. A request
 * keeps its pool thread until it ends, so give the store a pool of its own, or one with threads to
 * spare.
 *
 * A call is in `urgent` or `normal` (queued), or in `running`; then it is unlinked, r->layer is
 * NULL, and `done` runs. Lock: dir.mu (RANK_STORE_LOW) guards lists and counters, held for nothing
 * slow. The struct is freed with its last reference: the owner's, and one for each task.
 */
#include "objstore/dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/io.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"
#include "objstore/layer.h"
#include "objstore/stack.h"

enum { DURABLE_MAX = 512 };

struct dir {
    struct objstore os;
    char path[4096];
    struct exec *pool;
    struct lock mu;
    pthread_cond_t changed; /* live fell to 0, or a request came while closing */
    struct list urgent, normal, running;
    unsigned waiting, live, refs;
    bool closing;
    struct dir_folder durable[DURABLE_MAX]; /* by hash; a lost entry costs one flush */
};

struct turn {
    struct task task;
    struct dir *d;
};

int dir_call_check(const struct dir_call *c)
{
    if (atomic_load_explicit(&c->canceled, memory_order_relaxed))
        return -ECANCELED;
    if (c->r->deadline_ns && clock_mono_ns() >= c->r->deadline_ns)
        return -ETIMEDOUT;
    return 0;
}

void dir_fail_code(struct obj_req *r, int err, int status, const char *code, const char *text)
{
    layer_fail(r, err, false, code, text);
    r->diag.http_status = status;
}

void dir_fail(struct obj_req *r, int e, const char *what)
{
    char text[160];
    int err = -EIO;
    bool retryable = false;
    switch (e) {
    case -ECANCELED:
        err = e;
        break;
    case -ETIMEDOUT: /* the deadline: there is no time for a repetition */
        err = e;
        break;
    case -ENOSPC:
    case -EDQUOT:
    case -EFBIG:
        err = -ENOSPC;
        break;
    case -EACCES:
    case -EPERM:
    case -EROFS:
        err = -EACCES;
        break;
    case -ENAMETOOLONG:
    case -EINVAL:
        err = -EINVAL;
        break;
    case -ENOTDIR:
    case -EISDIR:
    case -EOPNOTSUPP:
        err = -EOPNOTSUPP;
        break;
    default:
        retryable = true;
    }
    snprintf(text, sizeof text, "%s: %s", what, strerror(-e));
    layer_fail(r, err, retryable, err_name(e), text);
}

bool dir_key_ok(const char *key)
{
    size_t len = 0, depth = 1;
    if (!key || strlen(key) >= OBJ_KEY_MAX)
        return false;
    for (const char *p = key;; p++) {
        if (*p == '/' || !*p) {
            if (len == 0 || len > NAME_BYTES_MAX)
                return false;
            len = 0;
            if (!*p)
                return depth < DIR_DEPTH_MAX;
            depth++;
        } else if ((len == 0 && *p == '.') || (unsigned char)*p < 0x21 || *p == 0x7f) {
            return false;
        } else {
            len++;
        }
    }
}

/* Opens the root, if the marker is in it. fd or -errno. */
static int find_store(const char *path)
{
    int fd = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd >= 0 && faccessat(fd, DIR_MARKER, F_OK, 0) == 0)
        return fd;
    int e = fd >= 0 ? -errno : fd;
    io_close(fd);
    return e;
}

/* The same; r says why not. */
static int open_root(struct dir *d, struct obj_req *r)
{
    int e = find_store(d->path);
    if (e >= 0)
        return e;
    if (e == -ENOENT || e == -ENOTDIR)
        dir_fail_code(r, -ENODEV, 404, "NoSuchBucket",
                      "the store's directory or its marker is missing: is its disk mounted?");
    else
        dir_fail(r, e, "opening the store's directory");
    return -1;
}

int dir_tmp_open(int root)
{
    int fd = io_open(root, DIR_TMP, O_RDONLY | O_DIRECTORY, 0);
    if (fd == -ENOENT) {
        int e = io_mkdir(root, DIR_TMP, 0700);
        if (e == 0)
            e = io_sync(root, false); /* uploads in progress live in it */
        if (e < 0 && e != -EEXIST)
            return e;
        fd = io_open(root, DIR_TMP, O_RDONLY | O_DIRECTORY, 0);
    }
    return fd;
}

void dir_random_name(char *buf, size_t cap, const char *prefix)
{
    uint64_t v[2];
    random_bytes(v, sizeof v);
    snprintf(buf, cap, "%s%016llx%016llx", prefix, (unsigned long long)v[0],
             (unsigned long long)v[1]);
}

static struct dir_folder *durable_place(struct dir *d, const struct dir_folder *f)
{
    return &d->durable[hash64(f, sizeof *f) % DURABLE_MAX];
}

bool dir_is_durable(struct dir *d, const struct dir_folder *f)
{
    LOCK_SCOPE(&d->mu);
    return f->made_ns && !memcmp(durable_place(d, f), f, sizeof *f);
}

void dir_note_durable(struct dir *d, const struct dir_folder *f)
{
    LOCK_SCOPE(&d->mu);
    *durable_place(d, f) = *f;
}

static bool keys_ok(const struct obj_req *r)
{
    switch (r->op) {
    case OBJ_LIST:
    case OBJ_MP_LIST:
        return true;
    case OBJ_DELETE_BATCH:
        for (unsigned i = 0; i < r->keys_n; i++)
            if (!dir_key_ok(r->keys[i]))
                return false;
        return true;
    default:
        return dir_key_ok(r->key);
    }
}

static void perform(struct dir_call *c)
{
    static void (*const ops[OBJ_OP_COUNT])(const struct dir_call *, int) = {
        [OBJ_PUT] = dir_put,
        [OBJ_GET] = dir_get,
        [OBJ_HEAD] = dir_head,
        [OBJ_LIST] = dir_list,
        [OBJ_DELETE] = dir_delete,
        [OBJ_DELETE_BATCH] = dir_delete_batch,
        [OBJ_MP_CREATE] = dir_mp_create,
        [OBJ_MP_PART] = dir_mp_part,
        [OBJ_MP_COMPLETE] = dir_mp_complete,
        [OBJ_MP_ABORT] = dir_mp_abort,
        [OBJ_MP_LIST] = dir_mp_list,
    };
    struct obj_req *r = c->r;
    int e = dir_call_check(c);
    if (e < 0) {
        dir_fail(r, e, "waiting for a turn");
        return;
    }
    if (!keys_ok(r)) {
        layer_fail(r, -EINVAL, false, "InvalidKey", "not a key that this store can hold");
        return;
    }
    int root = open_root(c->d, r);
    if (root < 0)
        return;
    ops[r->op](c, root);
    io_close(root);
}

/* The call is unlinked; after this it is gone. */
static void finish(struct dir_call *c)
{
    struct dir *d = c->d;
    struct obj_req *r = c->r;
    free(c);
    r->done(r);
    lock_acquire(&d->mu);
    if (--d->live == 0)
        pthread_cond_broadcast(&d->changed);
    lock_release(&d->mu);
}

static void unlink_locked(struct dir_call *c)
{
    list_del(&c->link);
    c->r->layer = NULL;
}

static struct dir_call *next_locked(struct dir *d)
{
    struct list *from = list_empty(&d->urgent) ? &d->normal : &d->urgent;
    if (list_empty(from))
        return NULL;
    struct dir_call *c = list_entry(from->next, struct dir_call, link);
    list_del(&c->link);
    c->queued = false;
    d->waiting--;
    list_add_tail(&d->running, &c->link);
    return c;
}

/* Gives up one reference. */
static void unref(struct dir *d)
{
    lock_acquire(&d->mu);
    bool last = --d->refs == 0;
    lock_release(&d->mu);
    if (last) {
        pthread_cond_destroy(&d->changed);
        lock_destroy(&d->mu);
        free(d);
    }
}

static void turn_run(struct task *t)
{
    struct turn *turn = container_of(t, struct turn, task);
    struct dir *d = turn->d;
    free(turn);
    lock_acquire(&d->mu);
    struct dir_call *c = d->closing ? NULL : next_locked(d);
    lock_release(&d->mu);
    if (c) {
        perform(c);
        lock_acquire(&d->mu);
        unlink_locked(c);
        lock_release(&d->mu);
        finish(c);
    }
    unref(d);
}

static void dir_submit(struct objstore *os, struct obj_req *r)
{
    struct dir *d = container_of(os, struct dir, os);
    struct dir_call *c = layer_alloc(sizeof *c);
    struct turn *turn = layer_alloc(sizeof *turn);
    c->d = d;
    c->r = r;
    c->queued = true;
    turn->d = d;
    turn->task.run = turn_run;
    LOCK_SCOPE(&d->mu);
    r->layer = c;
    d->live++;
    d->waiting++;
    d->refs++;
    list_add_tail((r->flags & OBJ_URGENT) ? &d->urgent : &d->normal, &c->link);
    if (d->closing)
        pthread_cond_broadcast(&d->changed);
    exec_submit(d->pool, &turn->task);
}

static void dir_cancel(struct objstore *os, struct obj_req *r)
{
    struct dir *d = container_of(os, struct dir, os);
    LOCK_SCOPE(&d->mu);
    struct dir_call *c = r->layer;
    if (!c)
        return;
    atomic_store_explicit(&c->canceled, true, memory_order_relaxed);
    if (c->queued) { /* the next turn answers it */
        list_del(&c->link);
        list_add_head(&d->urgent, &c->link);
    }
}

static void dir_status(struct objstore *os, struct objstore_status *st)
{
    struct dir *d = container_of(os, struct dir, os);
    LOCK_SCOPE(&d->mu);
    st->queued += d->waiting;
    st->in_flight += d->live - d->waiting;
}

static void dir_close(struct objstore *os)
{
    struct dir *d = container_of(os, struct dir, os);
    lock_acquire(&d->mu);
    d->closing = true;
    list_each(&d->running, it) atomic_store(&list_entry(it, struct dir_call, link)->canceled, true);
    while (d->live > 0) {
        struct dir_call *c = next_locked(d);
        if (!c) {
            lock_wait(&d->mu, &d->changed);
            continue;
        }
        unlink_locked(c);
        lock_release(&d->mu);
        layer_fail(c->r, -ECANCELED, false, "", "the store is closed");
        finish(c);
        lock_acquire(&d->mu);
    }
    lock_release(&d->mu);
    unref(d);
}

static const struct objstore_ops dir_ops = {
    .name = "dir",
    .submit = dir_submit,
    .cancel = dir_cancel,
    .status = dir_status,
    .close = dir_close,
};

static int not_empty(void *arg, const char *name)
{
    (void)arg;
    /* A fresh ext4 has the one; a crash while the marker was written leaves the other. */
    return strcmp(name, "lost+found") != 0 && !io_replace_left(name, DIR_MARKER);
}

/* mkdir -p, the last with mode 0700. A parent's new name is flushed. */
static int make_path(const char *path)
{
    char buf[4096];
    snprintf(buf, sizeof buf, "%s", path);
    for (char *p = buf + 1;; p++) {
        if (*p && *p != '/')
            continue;
        bool end = !*p;
        *p = 0;
        int r = io_mkdir(AT_FDCWD, buf, end ? 0700 : 0755);
        if (r == 0) {
            char parent[4096];
            const char *slash = strrchr(buf, '/');
            snprintf(parent, sizeof parent, "%.*s", slash > buf ? (int)(slash - buf) : 1, buf);
            r = io_sync_dir(AT_FDCWD, parent);
        }
        if (r < 0 && r != -EEXIST)
            return r;
        if (end)
            return 0;
        *p = '/';
    }
}

/* Makes the store when there is none and nothing else is there. */
static int make_store(const char *path, char *why, size_t cap)
{
    int root = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (root == -ENOENT) {
        int r = make_path(path);
        if (r < 0) {
            snprintf(why, cap,
                     "store dir://%s: cannot be made (%s); see that its parent directory is there, "
                     "writable, "
                     "and has room",
                     path, strerror(-r));
            return r;
        }
        root = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    }
    if (root < 0) {
        snprintf(
            why, cap,
            "store dir://%s: cannot be opened (%s); give a directory that this user may write to",
            path, strerror(-root));
        return root;
    }
    int r = 0;
    if (faccessat(root, DIR_MARKER, F_OK, 0) < 0) {
        r = io_scan(root, ".", not_empty, NULL);
        if (r > 0) {
            snprintf(why, cap,
                     "store dir://%s: is not empty and has no " DIR_MARKER
                     "; mount its disk, or give an empty directory",
                     path);
            r = -ENOTEMPTY;
        } else if (r == 0) {
            static const char text[] = "SluiceFS object store, format 1\n";
            r = io_replace_file(root, DIR_MARKER, text, sizeof text - 1, 0600);
            if (r < 0)
                snprintf(why, cap,
                         "store dir://%s: its marker cannot be written (%s); check free space and "
                         "permissions",
                         path, strerror(-r));
        }
    }
    if (r < 0)
        io_close(root);
    return r < 0 ? r : root;
}

/* Removes a temporary file, or the folder of an upload that was being made, whose writer is dead. */
static int sweep_one(void *arg, const char *name)
{
    int tmp = *(int *)arg;
    struct stat st;
    if (strncmp(name, "put-", 4) != 0)
        return 0;
    int fd = io_open(tmp, name, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return 0;
    /* If not now, then at the next open. */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && io_stat(fd, &st) == 0)
        (void)(S_ISDIR(st.st_mode) ? dir_remove_folder(tmp, name, fd) : io_unlink(tmp, name, 0));
    io_close(fd);
    return 0;
}

int dir_open(const struct store_conf *conf, struct objstore **ret, char *why, size_t why_cap)
{
    const char *path = conf->url.path;
    if (path[0] != '/' || !conf->device_pool) {
        snprintf(why, why_cap, "a directory store needs an absolute path and a device pool");
        return -EINVAL;
    }
    int root = conf->no_create ? find_store(path) : make_store(path, why, why_cap);
    if (root < 0 && !conf->no_create)
        return root;
    int tmp = root < 0 ? -1 : dir_tmp_open(root);
    if (tmp >= 0)
        (void)io_scan(tmp, ".", sweep_one, &tmp); /* left-overs cost space only */
    io_close(tmp);
    io_close(root);

    struct dir *d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(why, why_cap, "no memory");
        return -ENOMEM;
    }
    d->os.ops = &dir_ops;
    snprintf(d->path, sizeof d->path, "%s", path);
    d->pool = conf->device_pool;
    d->refs = 1;
    lock_init(&d->mu, "dir.mu", RANK_STORE_LOW, false);
    cond_init(&d->changed);
    list_init(&d->urgent);
    list_init(&d->normal);
    list_init(&d->running);
    *ret = &d->os;
    return 0;
}
