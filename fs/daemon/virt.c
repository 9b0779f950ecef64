/* virt.c: the directory .sluice in the root: what the daemon knows, readable with cat.
 *
 *   .sluice/stats         metrics, Prometheus text
 *   .sluice/status.json   the document of `sluicefs status --json`
 *
 * The directory is not listed (brokers refuse directories they do not know), but can be entered. Its
 * inode numbers are below the first that a node gives out. A file's text is taken at open, so that
 * one reader sees one moment; sizes are not known before and shown as 0, which direct_io handles do
 * not mind. A handle that is not known (another daemon gave it out, or SNAPSHOTS_MAX are open) gets
 * a text of its own at each read.
 *
 * Lock: mu (RANK_REPLY), for the table of snapshots.
 */
#include "fs/daemon/ops.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"

enum { SNAPSHOTS_MAX = 64 };

struct snapshot {
    uint64_t fh;      /* 0: free */
    unsigned readers; /* reads that use the text now */
    bool closed;      /* free it when they have ended */
    char *text;
    size_t len;
};

struct virt {
    struct daemon *d;
    struct lock mu;
    uint64_t next_fh;
    int64_t born_ns; /* wall clock: the times that stat shows */
    struct snapshot snap[SNAPSHOTS_MAX];
};

static const struct {
    uint64_t ino;
    const char *name;
} files[] = {{VIRT_STATS, "stats"}, {VIRT_STATUS, "status.json"}};

bool virt_owns(fuse_ino_t parent, const char *name)
{
    return parent == ROOT_INO && !strcmp(name, VIRT_NAME);
}

int virt_open_all(struct daemon *d, struct virt **ret)
{
    struct virt *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->d = d;
    w->born_ns = clock_wall_ns();
    /* Numbers of an earlier daemon's handles must not meet ours. */
    w->next_fh = (uint64_t)w->born_ns;
    lock_init(&w->mu, "virt", RANK_REPLY, false);
    *ret = w;
    return 0;
}

void virt_close_all(struct virt *w)
{
    if (!w)
        return;
    for (unsigned k = 0; k < SNAPSHOTS_MAX; k++)
        free(w->snap[k].text);
    lock_destroy(&w->mu);
    free(w);
}

static bool fill_stat(struct daemon *d, fuse_ino_t ino, struct stat *st)
{
    *st = (struct stat){.st_ino = ino, .st_uid = d->uid, .st_gid = d->gid, .st_blksize = 4096};
    if (ino == VIRT_DIR) {
        st->st_mode = S_IFDIR | 0555;
        st->st_nlink = 2;
    } else if (ino == VIRT_STATS || ino == VIRT_STATUS) {
        st->st_mode = S_IFREG | 0444;
        st->st_nlink = 1;
    } else {
        return false;
    }
    struct timespec born = {.tv_sec = d->virt->born_ns / NS_PER_SEC,
                            .tv_nsec = d->virt->born_ns % NS_PER_SEC};
    st->st_atim = st->st_mtim = st->st_ctim = born;
    return true;
}

static uint64_t find_name(fuse_ino_t parent, const char *name)
{
    if (virt_owns(parent, name) || (parent == VIRT_DIR && !strcmp(name, ".")))
        return VIRT_DIR;
    if (parent != VIRT_DIR)
        return 0;
    for (size_t k = 0; k < ARRAY_LEN(files); k++)
        if (!strcmp(files[k].name, name))
            return files[k].ino;
    return 0;
}

void virt_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param e = {.generation = 1};
    e.ino = find_name(parent, name);
    if (!e.ino || !fill_stat(daemon_of(req), e.ino, &e.attr))
        reply_err(req, -ENOENT);
    else
        (void)fuse_reply_entry(req, &e);
}

void virt_getattr(fuse_req_t req, fuse_ino_t ino)
{
    struct stat st;
    if (fill_stat(daemon_of(req), ino, &st))
        (void)fuse_reply_attr(req, &st, 0);
    else
        reply_err(req, -ENOENT);
}

/* The text of a file as of now. */
static int snapshot_take(struct daemon *d, fuse_ino_t ino, char **ret, size_t *ret_len)
{
    FILE *f = open_memstream(ret, ret_len);
    if (!f)
        return -ENOMEM;
    int err = 0;
    if (ino == VIRT_STATS)
        volume_metrics(d->v, f);
    else
        err = volume_status_json(d->v, f);
    if (fclose(f) && !err)
        err = -ENOMEM;
    if (err)
        free(*ret);
    return err;
}

void virt_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = daemon_of(req);
    struct virt *w = d->virt;
    struct stat st;
    char *text = NULL;
    size_t len = 0;
    int err = 0;
    if (!fill_stat(d, ino, &st))
        err = -ENOENT;
    else if (S_ISDIR(st.st_mode))
        err = -EISDIR;
    else if ((fi->flags & O_ACCMODE) != O_RDONLY)
        err = -EACCES;
    else
        err = snapshot_take(d, ino, &text, &len);
    if (err) {
        reply_err(req, err);
        return;
    }
    fi->fh = 0;
    fi->direct_io = 1;
    lock_acquire(&w->mu);
    for (unsigned k = 0; k < SNAPSHOTS_MAX && !fi->fh; k++) {
        if (w->snap[k].fh)
            continue;
        fi->fh = ++w->next_fh;
        w->snap[k] = (struct snapshot){.fh = fi->fh, .text = text, .len = len};
        text = NULL;
    }
    lock_release(&w->mu);
    free(text);
    (void)fuse_reply_open(req, fi);
}

static struct snapshot *find_locked(struct virt *w, uint64_t fh)
{
    for (unsigned k = 0; fh && k < SNAPSHOTS_MAX; k++)
        if (w->snap[k].fh == fh)
            return &w->snap[k];
    return NULL;
}

static char *free_if_unused_locked(struct snapshot *s)
{
    if (s->readers || !s->closed)
        return NULL;
    char *text = s->text;
    *s = (struct snapshot){0};
    return text;
}

static void reply_part(fuse_req_t req, const char *text, size_t len, size_t size, off_t off)
{
    if (off < 0 || (size_t)off >= len)
        (void)fuse_reply_buf(req, NULL, 0);
    else
        (void)fuse_reply_buf(req, text + off, size < len - (size_t)off ? size : len - (size_t)off);
}

void virt_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, uint64_t fh)
{
    struct daemon *d = daemon_of(req);
    struct virt *w = d->virt;
    lock_acquire(&w->mu);
    struct snapshot *s = find_locked(w, fh);
    if (s)
        s->readers++;
    lock_release(&w->mu);

    char *text = NULL;
    if (s) {
        reply_part(req, s->text, s->len, size, off);
        lock_acquire(&w->mu);
        s->readers--;
        text = free_if_unused_locked(s);
        lock_release(&w->mu);
    } else {
        size_t len = 0;
        int err = snapshot_take(d, ino, &text, &len);
        if (err)
            reply_err(req, err);
        else
            reply_part(req, text, len, size, off);
        if (err)
            text = NULL;
    }
    free(text);
}

void virt_release(fuse_req_t req, fuse_ino_t ino, uint64_t fh)
{
    (void)ino;
    struct virt *w = daemon_of(req)->virt;
    char *text = NULL;
    lock_acquire(&w->mu);
    struct snapshot *s = find_locked(w, fh);
    if (s) {
        s->closed = true;
        text = free_if_unused_locked(s);
    }
    lock_release(&w->mu);
    free(text);
    reply_err(req, 0);
}

static size_t add_entry(fuse_req_t req, char *buf, size_t room, uint64_t ino, const char *name,
                        off_t next, bool plus)
{
    struct fuse_entry_param e = {0}; /* node 0: a name only, the kernel asks for the rest */
    e.attr.st_ino = ino;
    e.attr.st_mode = ino == VIRT_STATS || ino == VIRT_STATUS ? S_IFREG : S_IFDIR;
    return plus ? fuse_add_direntry_plus(req, buf, room, name, &e, next)
                : fuse_add_direntry(req, buf, room, name, &e.attr, next);
}

void virt_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
    char buf[1024];
    size_t cap = size < sizeof(buf) ? size : sizeof(buf), len = 0;
    if (ino != VIRT_DIR) {
        reply_err(req, -ENOTDIR);
        return;
    }
    for (uint64_t k = (uint64_t)off; k < 2 + ARRAY_LEN(files); k++) {
        const char *name = k == 0 ? "." : k == 1 ? ".." : files[k - 2].name;
        uint64_t n = k == 0 ? VIRT_DIR : k == 1 ? ROOT_INO : files[k - 2].ino;
        size_t need = add_entry(req, buf + len, cap - len, n, name, (off_t)(k + 1), plus);
        if (need > cap - len)
            break;
        len += need;
    }
    (void)fuse_reply_buf(req, buf, len);
}
