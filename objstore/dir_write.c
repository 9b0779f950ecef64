/* dir_write.c: how a body becomes an object's file, and how the file gets its name.
 *
 * The writer sends aligned chunks with O_DIRECT, so that nothing stays in the page cache. Where the
 * file system refuses O_DIRECT (at open or at the first write) it writes through the page cache,
 * waits for each chunk's writeback and drops the pages. The last chunk is padded to the alignment
 * and the file cut to its length afterwards.
 *
 * Publishing: If-None-Match is renameat2(RENAME_NOREPLACE), or link() where that is missing. A
 * replacing PUT compares and renames under the key's flock. A folder may be pruned by a concurrent
 * DELETE between its making and the rename; then it is made again, a bounded number of times.
 * No state of its own; runs on pool threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include "fs/base/bytes.h"
#include "fs/base/io.h"
#include "objstore/dir.h"

#define ETAG_XATTR "user.sluicefs.etag"

enum { PUBLISH_TRIES = 64 };

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

void dir_etag(int fd, const struct stat *st, char ret[static OBJ_ETAG_MAX])
{
    char note[160];
    char tag[80];
    unsigned long long size;
    long long mtime;
    ssize_t n = fgetxattr(fd, ETAG_XATTR, note, sizeof note - 1);
    if (n > 0) {
        note[n] = 0;
        if (sscanf(note, "%79s %llu %lld", tag, &size, &mtime) == 3 &&
            size == (unsigned long long)st->st_size && mtime == mtime_ns(st)) {
            snprintf(ret, OBJ_ETAG_MAX, "\"%s\"", tag);
            return;
        }
    }
    snprintf(ret, OBJ_ETAG_MAX, "\"i%llx-%llx-%llx\"", (unsigned long long)st->st_ino,
             (unsigned long long)st->st_size, (unsigned long long)mtime_ns(st));
}

static int go_buffered(struct dir_writer *w)
{
    int flags = fcntl(w->fd, F_GETFL);
    if (flags < 0 || fcntl(w->fd, F_SETFL, flags & ~O_DIRECT) < 0)
        return -errno;
    w->direct = false;
    return 0;
}

int dir_writer_open(struct dir_writer *w, int dirfd, const char *name, uint64_t len, bool sha)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL;
    *w = (struct dir_writer){.fd = -1, .direct = true};
    void *buf = NULL;
    if (posix_memalign(&buf, DIR_ALIGN, DIR_CHUNK))
        return -ENOMEM;
    w->buf = buf;
    w->xx = hash64_stream_new();
    w->sha = sha ? sha256_new() : NULL;
    if (!w->xx || (sha && !w->sha))
        return -ENOMEM;
    w->fd = io_open(dirfd, name, flags | O_DIRECT, 0600);
    if (w->fd == -EINVAL) {
        (void)io_unlink(dirfd, name, 0); /* some make the file before they refuse */
        w->direct = false;
        w->fd = io_open(dirfd, name, flags, 0600);
    }
    if (w->fd < 0)
        return w->fd;
    (void)flock(w->fd, LOCK_EX | LOCK_NB); /* says "alive" to dir_open's sweep */
    int r = len > DIR_CHUNK ? io_fallocate(w->fd, 0, 0, len) : 0;
    return r == -EOPNOTSUPP ? 0 : r;
}

static int write_out(struct dir_writer *w, const uint8_t *p, size_t n)
{
    int r = io_pwrite_full(w->fd, p, n, w->off, NULL);
    if (r == -EINVAL && w->direct) {
        r = go_buffered(w);
        if (r == 0)
            r = io_pwrite_full(w->fd, p, n, w->off, NULL);
    }
    if (r == 0 && !w->direct) {
        r = io_writeback(w->fd, w->off, n, true);
        (void)io_drop(w->fd, w->off, n); /* again after the flush */
        if (r == -EINVAL || r == -EOPNOTSUPP)
            r = 0;
    }
    if (r == 0)
        w->off += n;
    return r;
}

static void hash_in(struct dir_writer *w, const void *p, size_t n)
{
    hash64_stream_add(w->xx, p, n);
    if (w->sha)
        sha256_add(w->sha, p, n);
}

static int chunk_full(struct dir_writer *w)
{
    hash_in(w, w->buf, w->fill);
    int r = write_out(w, w->buf, w->fill);
    w->fill = 0;
    return r;
}

int dir_writer_body(struct dir_writer *w, const struct dir_call *c, const struct obj_body *b)
{
    uint64_t at = 0;
    while (at < b->len) {
        int r = dir_call_check(c);
        if (r < 0)
            return r;
        const uint8_t *src = b->mem ? (const uint8_t *)b->mem + at : NULL;
        size_t n = (size_t)min_u64(DIR_CHUNK - w->fill, b->len - at);
        if (src && w->fill == 0 && n == DIR_CHUNK && (uintptr_t)src % DIR_ALIGN == 0) {
            hash_in(w, src, n); /* straight from the caller's memory */
            r = write_out(w, src, n);
        } else {
            if (src)
                memcpy(w->buf + w->fill, src, n);
            else
                r = io_pread_full(b->fd, w->buf + w->fill, n, b->off + at) ? -EBADF : 0;
            w->fill += n;
            if (r == 0 && w->fill == DIR_CHUNK)
                r = chunk_full(w);
        }
        if (r < 0)
            return r;
        at += n;
    }
    return 0;
}

/* The ETag is noted with the file's size and mtime: a later edit in place makes the note void. */
static int note_etag(struct dir_writer *w, uint64_t len, char etag[static OBJ_ETAG_MAX])
{
    char note[160];
    struct stat st;
    int r = io_stat(w->fd, &st);
    if (r < 0)
        return r;
    int n = snprintf(note, sizeof note, "%016llx-%llx %llu %lld",
                     (unsigned long long)hash64_stream_value(w->xx), (unsigned long long)len,
                     (unsigned long long)len, (long long)mtime_ns(&st));
    if (fsetxattr(w->fd, ETAG_XATTR, note, (size_t)n, 0) < 0 && errno != EOPNOTSUPP)
        return -errno;
    dir_etag(w->fd, &st, etag);
    return 0;
}

int dir_writer_finish(struct dir_writer *w, char etag[static OBJ_ETAG_MAX],
                      uint8_t sha[static SHA256_BYTES])
{
    uint64_t len = w->off + w->fill;
    int r = 0;
    if (w->fill) {
        size_t padded = w->direct ? (size_t)round_up(w->fill, DIR_ALIGN) : w->fill;
        hash_in(w, w->buf, w->fill);
        memset(w->buf + w->fill, 0, padded - w->fill);
        r = write_out(w, w->buf, padded);
        w->fill = 0;
    }
    if (r == 0)
        r = io_truncate(w->fd, len);
    if (r == 0)
        r = note_etag(w, len, etag);
    if (r == 0)
        r = io_sync(w->fd, false);
    if (r == 0)
        (void)io_drop(w->fd, 0, 0);
    if (w->sha)
        sha256_final(w->sha, sha);
    return r;
}

void dir_writer_done(struct dir_writer *w)
{
    if (w->fd >= 0)
        io_close(w->fd);
    free(w->buf);
    hash64_stream_free(w->xx);
    sha256_free(w->sha);
}

bool dir_store_body(const struct dir_call *c, int tmpfd, const char *name)
{
    struct obj_req *r = c->r;
    struct dir_writer w;
    uint8_t sum[SHA256_BYTES];
    uint64_t len = 0;
    for (unsigned i = 0; i < r->body_n; i++)
        len += r->body[i].len;
    int e = dir_writer_open(&w, tmpfd, name, len, r->flags & OBJ_HAS_SHA256);
    for (unsigned i = 0; e == 0 && i < r->body_n; i++)
        e = dir_writer_body(&w, c, &r->body[i]);
    if (e == 0)
        e = dir_writer_finish(&w, r->info.etag, sum);
    bool bad = e == 0 && (r->flags & OBJ_HAS_SHA256) && memcmp(sum, r->sha256, sizeof sum) != 0;
    if (w.fd >= 0 && (e < 0 || bad))
        (void)io_unlink(tmpfd, name, 0); /* already failing: the first error wins */
    dir_writer_done(&w);
    r->info.size = len;
    if (e == -EBADF)
        dir_fail_code(r, -EIO, 0, "BodyUnreadable", "the file to send cannot be read");
    else if (e < 0)
        dir_fail(r, e, "writing an object");
    else if (bad)
        dir_fail_code(r, -EBADMSG, 400, "BadDigest",
                      "the body does not have the SHA-256 that was sent");
    return e == 0 && !bad;
}

/* Takes the key's lock. Closing the descriptor releases it. */
static int key_lock(int tmpfd, const char *key)
{
    char name[16];
    snprintf(name, sizeof name, "lock-%02x", (unsigned)(hash64(key, strlen(key)) & 0xff));
    int fd = io_open(tmpfd, name, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        return fd;
    while (flock(fd, LOCK_EX) < 0)
        if (errno != EINTR) {
            int e = -errno;
            io_close(fd);
            return e;
        }
    return fd;
}

/* With the key's lock held: does the object have the ETag of the request? */
static bool match_ok(struct obj_req *r, const struct dir_chain *ch)
{
    struct stat st;
    bool direct;
    char etag[OBJ_ETAG_MAX];
    if (!(r->flags & OBJ_IF_MATCH))
        return true;
    int fd = dir_open_object(ch->fd[ch->n - 1], ch->leaf, &st, &direct);
    if (fd == -ENOENT) {
        dir_fail_code(r, -ENOENT, 404, "NoSuchKey", "the object does not exist");
        return false;
    }
    if (fd < 0) {
        dir_fail(r, fd, "opening an object");
        return false;
    }
    dir_etag(fd, &st, etag);
    io_close(fd);
    if (!strcmp(etag, r->etag))
        return true;
    dir_fail_code(r, -EEXIST, 412, "PreconditionFailed", "the object has another ETag");
    return false;
}

static int rename_absent(int tmpfd, const char *name, const struct dir_chain *ch)
{
    int to = ch->fd[ch->n - 1];
    if (renameat2(tmpfd, name, to, ch->leaf, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    return linkat(tmpfd, name, to, ch->leaf, 0) == 0 ? 0 : -errno;
}

/* One try. -ENOENT: a folder vanished, try again. Otherwise r holds the result. */
static int publish_once(const struct dir_call *c, const struct dir_chain *ch, int tmpfd,
                        const char *name)
{
    struct obj_req *r = c->r;
    int e;
    if (r->flags & OBJ_IF_ABSENT) {
        e = rename_absent(tmpfd, name, ch);
        if (e == -EEXIST) {
            dir_fail_code(r, -EEXIST, 412, "PreconditionFailed", "the object exists");
            return 0;
        }
    } else {
        int lock = key_lock(tmpfd, r->key);
        e = lock;
        if (lock >= 0) {
            if (!match_ok(r, ch)) {
                io_close(lock);
                return 0;
            }
            e = io_rename(tmpfd, name, ch->fd[ch->n - 1], ch->leaf);
            io_close(lock);
        }
    }
    if (e == -ENOENT)
        return e;
    if (e < 0) {
        dir_fail(r, e, "naming an object");
        return 0;
    }
    e = dir_chain_sync(c->d, ch);
    if (e < 0) {
        dir_fail(r, e, "flushing a folder");
        r->diag.unknown_outcome = true;
    }
    return 0;
}

void dir_publish(const struct dir_call *c, int root, int tmpfd, const char *name)
{
    struct obj_req *r = c->r;
    int e = -ENOENT;
    for (int i = 0; e == -ENOENT && i < PUBLISH_TRIES; i++) {
        struct dir_chain ch;
        e = dir_chain_open(&ch, root, r->key, true);
        if (e == 0)
            e = publish_once(c, &ch, tmpfd, name);
        else if (e != -ENOENT)
            dir_fail(r, e, "making an object's folder");
        dir_chain_close(&ch);
    }
    if (e == -ENOENT)
        dir_fail(r, -EIO, "an object's folder or temporary file keeps vanishing");
    (void)io_unlink(tmpfd, name, 0); /* gone after a rename, left after a link or a failure */
}

/* ---- PUT and DELETE ---- */

void dir_put(const struct dir_call *c, int root)
{
    char name[64];
    int tmp = dir_tmp_open(root);
    if (tmp < 0) {
        dir_fail(c->r, tmp, "opening the folder of temporary files");
        return;
    }
    dir_random_name(name, sizeof name, "put-");
    if (dir_store_body(c, tmp, name))
        dir_publish(c, root, tmp, name);
    io_close(tmp);
}

/* 0, also when there is no such object; r holds a failure. */
static void delete_key(struct obj_req *r, int root, int tmpfd, const char *key)
{
    struct dir_chain ch;
    int e = dir_chain_open(&ch, root, key, false);
    if (e == 0) {
        int lock = key_lock(tmpfd, key);
        e = lock;
        if (lock >= 0) {
            bool go = match_ok(r, &ch);
            if (go)
                e = io_unlink(ch.fd[ch.n - 1], ch.leaf, 0);
            io_close(lock);
            if (!go && r->err == -ENOENT)
                r->err = 0; /* a missing object is success */
            if (go && e == 0) {
                e = io_sync(ch.fd[ch.n - 1], false);
                dir_chain_prune(&ch, key);
            }
        }
    }
    dir_chain_close(&ch);
    /* EISDIR and EPERM: the name is a folder, so there is no such object. */
    struct stat st;
    if (e == -EPERM && fstatat(root, key, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        e = 0;
    if (e < 0 && e != -ENOENT && e != -ENOTDIR && e != -EISDIR)
        dir_fail(r, e, "removing an object");
}

void dir_delete(const struct dir_call *c, int root)
{
    int tmp = dir_tmp_open(root);
    if (tmp < 0) {
        dir_fail(c->r, tmp, "opening the folder of temporary files");
        return;
    }
    delete_key(c->r, root, tmp, c->r->key);
    io_close(tmp);
}

void dir_delete_batch(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    int tmp = dir_tmp_open(root);
    if (tmp < 0) {
        dir_fail(r, tmp, "opening the folder of temporary files");
        return;
    }
    for (unsigned i = 0; i < r->keys_n; i++) {
        int e = dir_call_check(c);
        if (e < 0) {
            r->failed_n = r->keys_n - i;
            dir_fail(r, e, "removing objects");
            break;
        }
        r->err = 0;
        delete_key(r, root, tmp, r->keys[i]);
        r->failed_n += r->err < 0;
        r->err = 0;
    }
    io_close(tmp);
}
