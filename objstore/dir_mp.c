/* dir_mp.c: multipart uploads of the directory store.
 *
 * An upload is the folder .tmp/mp-ID with the file `key` and one file per part. It is made under another
 * name (put-..., swept by dir_open when its maker died) and renamed with its key. Completing writes
 * the parts one after another into a new file, publishes that like a PUT, and removes the folder.
 * A crash in between leaves the upload as it was, or the object and an upload that gc aborts.
 * No state; pool threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include "fs/base/io.h"
#include "objstore/dir.h"
#include "objstore/layer.h"

enum { ID_LEN = 32 };

static void part_name(char buf[static 16], unsigned no)
{
    snprintf(buf, 16, "part-%05u", no);
}

static bool id_ok(const char *id)
{
    return strlen(id) == ID_LEN && strspn(id, "0123456789abcdef") == ID_LEN;
}

static void no_upload(struct obj_req *r)
{
    dir_fail_code(r, -ENOENT, 404, "NoSuchUpload", "the upload does not exist");
}

/* Opens the upload's folder and compares its key. fd, or r says why not. */
static int upload_open(struct obj_req *r, int tmpfd)
{
    char name[ID_LEN + 4], *key = NULL;
    if (!id_ok(r->upload_id)) {
        no_upload(r);
        return -1;
    }
    snprintf(name, sizeof name, "mp-%s", r->upload_id);
    int fd = io_open(tmpfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    int e = fd < 0 ? fd : io_read_file(fd, "key", OBJ_KEY_MAX, &key, NULL);
    if (e == -ENOENT || (e == 0 && strcmp(key, r->key) != 0))
        no_upload(r);
    else if (e < 0)
        dir_fail(r, e, "opening an upload");
    free(key);
    if (r->err < 0) {
        io_close(fd);
        return -1;
    }
    return fd;
}

static int remove_one(void *arg, const char *name)
{
    int e = io_unlink(*(int *)arg, name, 0);
    return e == -ENOENT ? 0 : e;
}

int dir_remove_folder(int tmp, const char *name, int fd)
{
    int e = -ENOTEMPTY;
    for (int i = 0; e == -ENOTEMPTY && i < 3; i++) { /* a part may arrive meanwhile */
        e = io_scan(fd, ".", remove_one, &fd);
        if (e == 0)
            e = io_unlink(tmp, name, AT_REMOVEDIR);
    }
    return e == -ENOENT ? 0 : e;
}

static int upload_remove(int tmp, int fd, const char *id)
{
    char name[ID_LEN + 4];
    snprintf(name, sizeof name, "mp-%s", id);
    return dir_remove_folder(tmp, name, fd);
}

static int tmp_of(struct obj_req *r, int root)
{
    int tmp = dir_tmp_open(root);
    if (tmp < 0)
        dir_fail(r, tmp, "opening the folder of temporary files");
    return tmp;
}

/* A folder with its key file, under a name that dir_open's sweep takes away when we die meanwhile; an
 * upload is there with its key or not at all. */
static int make_upload(int tmp, const char *made, const char *name, const char *key)
{
    int e = io_mkdir(tmp, made, 0700);
    int fd = e < 0 ? e : io_open(tmp, made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0) {
        if (e == 0)
            (void)io_unlink(tmp, made, AT_REMOVEDIR); /* already failing: the first error wins */
        return fd;
    }
    (void)flock(fd, LOCK_EX | LOCK_NB); /* says "alive" */
    e = io_replace_file(fd, "key", key, strlen(key), 0600);
    if (e == 0)
        e = io_rename(tmp, made, tmp, name);
    if (e < 0)
        (void)dir_remove_folder(tmp, made, fd); /* else the sweep */
    io_close(fd);
    if (e == 0 && (e = io_sync(tmp, false)) < 0) {
        fd = io_open(tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd >= 0)
            (void)dir_remove_folder(tmp, name, fd); /* else gc */
        io_close(fd);
    }
    return e;
}

void dir_mp_create(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    char made[64], name[64];
    int tmp = tmp_of(r, root);
    if (tmp < 0)
        return;
    dir_random_name(made, sizeof made, "put-");
    dir_random_name(name, sizeof name, "mp-");
    int e = make_upload(tmp, made, name, r->key);
    if (e < 0) {
        dir_fail(r, e, "starting an upload");
    } else {
        r->new_upload_id = layer_alloc(ID_LEN + 1);
        memcpy(r->new_upload_id, name + 3, ID_LEN);
    }
    io_close(tmp);
}

void dir_mp_part(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    char tmp_name[64], name[16];
    int tmp = tmp_of(r, root);
    int fd = tmp < 0 ? -1 : upload_open(r, tmp);
    if (fd >= 0) {
        dir_random_name(tmp_name, sizeof tmp_name, "new-");
        part_name(name, r->part_no);
        if (dir_store_body(c, fd, tmp_name)) {
            int e = io_rename(fd, tmp_name, fd, name);
            if (e == 0)
                e = io_sync(fd, false);
            if (e < 0)
                dir_fail(r, e, "naming a part");
        }
    }
    io_close(fd);
    io_close(tmp);
}

/* Appends one part to the object. 0 or -errno; r says more when the part is not acceptable. */
static int append_part(const struct dir_call *c, struct dir_writer *w, int fd, unsigned i)
{
    struct obj_req *r = c->r;
    char name[16], etag[OBJ_ETAG_MAX];
    struct stat st;
    part_name(name, i + 1);
    int pf = io_open(fd, name, O_RDONLY | O_NOFOLLOW, 0);
    int e = pf < 0 ? pf : io_stat(pf, &st);
    if (e == 0)
        dir_etag(pf, &st, etag);
    if (e == -ENOENT || (e == 0 && strcmp(etag, r->part_etags[i]) != 0)) {
        dir_fail_code(r, -EIO, 400, "InvalidPart", "a part is missing or has another ETag");
        e = -EINVAL;
    } else if (e == 0 && i + 1 < r->parts_n && (uint64_t)st.st_size < S3_PART_BYTES_MIN) {
        dir_fail_code(r, -EIO, 400, "EntityTooSmall", "a part but the last is below 5 MiB");
        e = -EINVAL;
    } else if (e == 0) {
        struct obj_body b = {.fd = pf, .len = (uint64_t)st.st_size};
        e = dir_writer_body(w, c, &b);
        r->info.size += b.len;
        (void)io_drop(pf, 0, 0);
    }
    io_close(pf);
    return e;
}

void dir_mp_complete(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    char name[64];
    struct dir_writer w;
    uint8_t sum[SHA256_BYTES];
    int tmp = tmp_of(r, root);
    int fd = tmp < 0 ? -1 : upload_open(r, tmp);
    if (fd >= 0) {
        dir_random_name(name, sizeof name, "put-");
        int e = dir_writer_open(&w, tmp, name, 0, false);
        for (unsigned i = 0; e == 0 && i < r->parts_n; i++)
            e = append_part(c, &w, fd, i);
        if (e == 0)
            e = dir_writer_finish(&w, r->info.etag, sum);
        if (e == 0) {
            dir_publish(c, root, tmp, name);
        } else {
            if (r->err == 0)
                dir_fail(r, e, "joining parts");
            (void)io_unlink(tmp, name, 0); /* already failing: the first error wins */
        }
        dir_writer_done(&w);
        if (r->err == 0)
            (void)upload_remove(tmp, fd, r->upload_id); /* what is left shows in MP_LIST */
    }
    io_close(fd);
    io_close(tmp);
}

void dir_mp_abort(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    int tmp = tmp_of(r, root);
    int fd = tmp < 0 ? -1 : upload_open(r, tmp);
    if (fd >= 0) {
        int e = upload_remove(tmp, fd, r->upload_id);
        if (e < 0)
            dir_fail(r, e, "removing an upload");
    } else if (r->err == -ENOENT) {
        r->err = 0; /* a missing upload is success */
        r->diag = (struct obj_diag){0};
    }
    io_close(fd);
    io_close(tmp);
}

struct found {
    char *key, id[ID_LEN + 1];
    int64_t started_ms;
};

struct scan {
    int tmp;
    const char *prefix;
    struct found *row;
    size_t n, cap;
};

static int scan_one(void *arg, const char *name)
{
    struct scan *s = arg;
    char path[ID_LEN + 16], *key = NULL;
    struct stat st;
    if (strncmp(name, "mp-", 3) != 0 || !id_ok(name + 3))
        return 0;
    snprintf(path, sizeof path, "mp-%.*s/key", ID_LEN, name + 3);
    int e = io_read_file(s->tmp, path, OBJ_KEY_MAX, &key, NULL);
    if (e == -ENOENT)
        return 0;
    if (e < 0)
        return e;
    if (strncmp(key, s->prefix, strlen(s->prefix)) != 0 || fstatat(s->tmp, path, &st, 0) < 0) {
        free(key);
        return 0;
    }
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 16;
        s->row = realloc(s->row, s->cap * sizeof *s->row);
        if (!s->row)
            abort();
    }
    struct found *f = &s->row[s->n++];
    f->key = key;
    memcpy(f->id, name + 3, ID_LEN + 1);
    f->started_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    return 0;
}

static int found_order(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : strcmp(x->id, y->id);
}

void dir_mp_list(const struct dir_call *c, int root)
{
    struct obj_req *r = c->r;
    struct scan s = {.tmp = tmp_of(r, root), .prefix = r->key ? r->key : ""};
    if (s.tmp < 0)
        return;
    int e = io_scan(s.tmp, ".", scan_one, &s);
    if (e < 0)
        dir_fail(r, e, "listing uploads");
    if (s.n > 1)
        qsort(s.row, s.n, sizeof *s.row, found_order);
    for (size_t i = 0; i < s.n; i++) {
        if (e == 0)
            r->each(r, &(struct obj_entry){.key = s.row[i].key,
                                           .upload_id = s.row[i].id,
                                           .modified_ms = s.row[i].started_ms});
        free(s.row[i].key);
    }
    free(s.row);
    io_close(s.tmp);
}
