/* dir_read.c: folders on the way to an object, GET, HEAD and LIST of the directory store.
 *
 * GET reads with O_DIRECT into the caller's pieces where offset, address and length are aligned, and
 * through an aligned bounce buffer elsewhere (heads, tails, odd pieces). Where the file system
 * refuses O_DIRECT it reads through the page cache and drops the object's pages afterwards.
 *
 * LIST walks the tree in key order: inside a folder the names are sorted with a '/' behind those of
 * folders, which makes the walk's order the byte order of the keys. No state; pool threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/io.h"
#include "objstore/dir.h"
#include "objstore/layer.h"

/* ---- folders ---- */

int dir_chain_open(struct dir_chain *ch, int root, const char *key, bool create)
{
    char name[NAME_BYTES_MAX + 1];
    *ch = (struct dir_chain){.leaf = key};
    ch->fd[0] = io_open(root, ".", O_RDONLY | O_DIRECTORY, 0);
    if (ch->fd[0] < 0)
        return ch->fd[0];
    ch->n = 1;
    for (const char *slash; (slash = strchr(ch->leaf, '/')); ch->leaf = slash + 1) {
        int at = ch->fd[ch->n - 1];
        size_t len = (size_t)(slash - ch->leaf);
        memcpy(name, ch->leaf, len);
        name[len] = 0;
        int fd = io_open(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd == -ENOENT && create) {
            int e = io_mkdir(at, name, 0700);
            if (e < 0 && e != -EEXIST)
                return e;
            fd = io_open(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        }
        if (fd < 0)
            return fd;
        ch->fd[ch->n++] = fd;
    }
    return 0;
}

void dir_chain_close(struct dir_chain *ch)
{
    while (ch->n > 0)
        io_close(ch->fd[--ch->n]);
}

static void folder_id(int fd, struct dir_folder *ret)
{
    struct statx sx;
    *ret = (struct dir_folder){0};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &sx) == 0 &&
        (sx.stx_mask & STATX_BTIME))
        *ret = (struct dir_folder){
            .dev = (uint64_t)sx.stx_dev_major << 32 | sx.stx_dev_minor,
            .ino = sx.stx_ino,
            .made_ns = sx.stx_btime.tv_sec * 1000000000 + sx.stx_btime.tv_nsec,
        };
}

int dir_chain_sync(struct dir *d, const struct dir_chain *ch)
{
    int e = io_sync(ch->fd[ch->n - 1], false);
    /* Folders that were there before may have been made a moment ago by another request, or another
     * process, that has not flushed their names yet: only those that we flushed are left out. */
    for (unsigned i = ch->n - 1; e == 0 && i > 0; i--) {
        struct dir_folder f;
        folder_id(ch->fd[i], &f);
        if (dir_is_durable(d, &f))
            continue;
        e = io_sync(ch->fd[i - 1], false);
        if (e == 0)
            dir_note_durable(d, &f);
    }
    return e;
}

void dir_chain_prune(const struct dir_chain *ch, const char *key)
{
    char path[OBJ_KEY_MAX];
    size_t len = (size_t)(ch->leaf - key);
    memcpy(path, key, len);
    while (len > 0) {
        path[len - 1] = 0;
        if (io_unlink(ch->fd[0], path, AT_REMOVEDIR) < 0)
            return; /* not empty, or somebody else was faster */
        const char *slash = strrchr(path, '/');
        len = slash ? (size_t)(slash - path) + 1 : 0;
    }
}

/* ---- GET and HEAD ---- */

int dir_open_object(int dirfd, const char *leaf, struct stat *ret_st, bool *ret_direct)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
    *ret_direct = true;
    int fd = io_open(dirfd, leaf, flags | O_DIRECT, 0);
    if (fd == -EINVAL) {
        *ret_direct = false;
        fd = io_open(dirfd, leaf, flags, 0);
    }
    if (fd < 0)
        return fd == -ENOTDIR || fd == -ELOOP || fd == -ENXIO ? -ENOENT : fd;
    int e = io_stat(fd, ret_st);
    if (e == 0 && !S_ISREG(ret_st->st_mode))
        e = -ENOENT;
    if (e < 0) {
        io_close(fd);
        return e;
    }
    return fd;
}

/* Opens the object of r->key and fills r->info. fd, or r says why not. */
static int open_key(struct obj_req *r, int root, struct stat *st, bool *direct)
{
    struct dir_chain ch;
    *st = (struct stat){0};
    int fd = dir_chain_open(&ch, root, r->key, false);
    if (fd == 0)
        fd = dir_open_object(ch.fd[ch.n - 1], ch.leaf, st, direct);
    dir_chain_close(&ch);
    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP) {
        dir_fail_code(r, -ENOENT, 404, "NoSuchKey", "the object does not exist");
        return -1;
    }
    if (fd < 0) {
        dir_fail(r, fd, "opening an object");
        return -1;
    }
    r->info.size = (uint64_t)st->st_size;
    dir_etag(fd, st, r->info.etag);
    return fd;
}

void dir_head(const struct dir_call *c, int root)
{
    struct stat st;
    bool direct;
    int fd = open_key(c->r, root, &st, &direct);
    if (fd >= 0)
        io_close(fd);
}

struct reader {
    int fd;
    bool direct;
    uint8_t *bounce; /* DIR_CHUNK bytes, made when first needed */
};

/* -EINVAL from O_DIRECT: go on through the page cache. */
static bool go_buffered(struct reader *rd, int e)
{
    if (e != -EINVAL || !rd->direct)
        return false;
    int flags = fcntl(rd->fd, F_GETFL);
    rd->direct = false;
    return flags >= 0 && fcntl(rd->fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Reads a part of [pos, pos+len) that does not fit O_DIRECT's rules. Returns its length or -errno. */
static ssize_t read_bounced(struct reader *rd, uint8_t *to, uint64_t pos, size_t len)
{
    uint64_t from = pos / DIR_ALIGN * DIR_ALIGN;
    size_t head = (size_t)(pos - from);
    if (!rd->bounce) {
        void *p = NULL;
        if (posix_memalign(&p, DIR_ALIGN, DIR_CHUNK))
            return -ENOMEM;
        rd->bounce = p;
    }
    size_t want = (size_t)min_u64(round_up(head + len, DIR_ALIGN), DIR_CHUNK);
    ssize_t n = io_pread(rd->fd, rd->bounce, want, from);
    if (n < 0)
        return n;
    if ((size_t)n <= head)
        return -ENODATA;
    size_t take = (size_t)min_u64((size_t)n - head, len);
    memcpy(to, rd->bounce + head, take);
    return (ssize_t)take;
}

static ssize_t read_some(struct reader *rd, uint8_t *to, uint64_t pos, size_t len)
{
    len = (size_t)min_u64(len, DIR_CHUNK);
    ssize_t n;
    if (rd->direct) {
        bool fits = pos % DIR_ALIGN == 0 && (uintptr_t)to % DIR_ALIGN == 0 && len >= DIR_ALIGN;
        n = fits ? io_pread(rd->fd, to, len / DIR_ALIGN * DIR_ALIGN, pos)
                 : read_bounced(rd, to, pos, len);
        if (!go_buffered(rd, (int)n))
            return n == 0 ? -ENODATA : n;
    }
    n = io_pread(rd->fd, to, len, pos);
    return n == 0 ? -ENODATA : n;
}

static int read_range(const struct dir_call *c, struct reader *rd)
{
    struct obj_req *r = c->r;
    uint64_t got = 0;
    for (unsigned i = 0; i < r->iov_n; i++) {
        for (size_t at = 0; at < r->iov[i].iov_len;) {
            int e = dir_call_check(c);
            if (e < 0)
                return e;
            ssize_t n = read_some(rd, (uint8_t *)r->iov[i].iov_base + at, r->off + got,
                                  r->iov[i].iov_len - at);
            if (n < 0)
                return (int)n;
            at += (size_t)n;
            got += (uint64_t)n;
            if (r->progress)
                r->progress(r, got);
        }
    }
    return 0;
}

void dir_get(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    struct stat st;
    uint64_t end;
    struct reader rd = {0};
    rd.fd = open_key(r, root, &st, &rd.direct);
    if (rd.fd < 0)
        return;
    if ((r->flags & OBJ_IF_MATCH) && strcmp(r->etag, r->info.etag) != 0) {
        dir_fail_code(r, -EEXIST, 412, "PreconditionFailed", "the object has another ETag");
    } else if (add_u64(r->off, r->len, &end) || end > r->info.size) {
        dir_fail_code(r, -EBADMSG, 416, "InvalidRange", "the range does not lie inside the object");
    } else {
        if (!rd.direct)
            (void)posix_fadvise(rd.fd, 0, 0, POSIX_FADV_RANDOM); /* no pages beyond the range */
        int e = read_range(c, &rd);
        if (!rd.direct)
            (void)io_drop(rd.fd, 0, 0);
        if (e < 0)
            dir_fail(r, e, "reading an object");
    }
    free(rd.bounce);
    io_close(rd.fd);
}

/* ---- LIST ---- */

struct row {
    char *key;
    uint64_t size;
    int64_t modified_ms;
};

struct walk {
    const struct dir_call *c;
    const char *prefix, *after; /* after: NULL or a key; rows behind it only */
    unsigned max, n;
    struct row *row;
    bool more; /* another row would follow */
};

struct names {
    int fd;
    char **name; /* folders end in '/' */
    size_t n, cap;
};

static int name_add(void *arg, const char *name)
{
    struct names *ns = arg;
    struct stat st;
    size_t len = strlen(name);
    if (name[0] == '.' || !dir_key_ok(name))
        return 0;
    if (fstatat(ns->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0;
    if (ns->n == ns->cap) {
        size_t cap = ns->cap ? ns->cap * 2 : 64;
        char **more = realloc(ns->name, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        ns->name = more;
        ns->cap = cap;
    }
    char *copy = malloc(len + 2);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, name, len + 1);
    if (S_ISDIR(st.st_mode))
        memcpy(copy + len, "/", 2);
    ns->name[ns->n++] = copy;
    return 0;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int walk_file(struct walk *w, int fd, const char *name, const char *key)
{
    struct stat st;
    size_t pre = strlen(w->prefix);
    if (strncmp(key, w->prefix, pre) != 0 || (w->after && strcmp(key, w->after) <= 0))
        return 0;
    if (w->n == w->max) {
        w->more = true;
        return 0;
    }
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    struct row *row = &w->row[w->n];
    row->key = strdup(key);
    if (!row->key)
        return -ENOMEM;
    row->size = (uint64_t)st.st_size;
    row->modified_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    w->n++;
    return 0;
}

/* Can the folder, whose path ends in '/', hold rows that are asked for? */
static bool folder_matters(const struct walk *w, const char *path)
{
    size_t len = strlen(path), pre = strlen(w->prefix);
    if (strncmp(path, w->prefix, len < pre ? len : pre) != 0)
        return false;
    return !w->after || strncmp(path, w->after, len) >= 0;
}

/* Depth is bounded by the longest key: each level has its name in `path`. */
static int walk_folder(struct walk *w, int dirfd, const char *rel, char *path, size_t len)
{
    struct names ns = {.fd = io_open(dirfd, rel, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0)};
    if (ns.fd < 0)
        return ns.fd == -ENOENT ? 0 : ns.fd;
    int e = io_scan(ns.fd, ".", name_add, &ns);
    if (e == -ENOENT)
        e = 0; /* the folder was pruned meanwhile */
    if (ns.n > 1)
        qsort(ns.name, ns.n, sizeof *ns.name, name_order);
    for (size_t i = 0; e == 0 && i < ns.n && !w->more; i++) {
        size_t n = strlen(ns.name[i]);
        if (len + n >= OBJ_KEY_MAX)
            continue;
        memcpy(path + len, ns.name[i], n + 1);
        e = dir_call_check(w->c);
        if (e < 0)
            break;
        if (path[len + n - 1] != '/') {
            e = walk_file(w, ns.fd, ns.name[i], path);
        } else if (folder_matters(w, path) && !(len == 0 && !strcmp(path, "lost+found/"))) {
            ns.name[i][n - 1] = 0;
            e = walk_folder(w, ns.fd, ns.name[i], path, len + n);
        }
    }
    for (size_t i = 0; i < ns.n; i++)
        free(ns.name[i]);
    free(ns.name);
    io_close(ns.fd);
    return e;
}

void dir_list(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    char path[OBJ_KEY_MAX] = "";
    struct walk w = {.c = c,
                     .prefix = r->key ? r->key : "",
                     .after = r->token ? r->token : r->start_after,
                     .max = r->max_keys && r->max_keys < 1000 ? r->max_keys : 1000};
    w.row = layer_alloc(w.max * sizeof *w.row);
    int e = walk_folder(&w, root, ".", path, 0);
    if (e < 0)
        dir_fail(r, e, "listing");
    for (unsigned i = 0; e == 0 && i < w.n; i++)
        r->each(r, &(struct obj_entry){.key = w.row[i].key,
                                       .size = w.row[i].size,
                                       .modified_ms = w.row[i].modified_ms});
    for (unsigned i = 0; i < w.n; i++) {
        if (e == 0 && w.more && i + 1 == w.n)
            r->next_token = w.row[i].key;
        else
            free(w.row[i].key);
    }
    free(w.row);
}
