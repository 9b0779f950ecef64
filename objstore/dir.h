/* dir.h: parts of the directory backend that its files share. Internal; the map is in dir.c. */
#ifndef SLUICE_OBJSTORE_DIR_H
#define SLUICE_OBJSTORE_DIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include "fs/base/bounds.h"
#include "fs/base/list.h"
#include "objstore/objstore.h"

#define DIR_MARKER ".sluicefs-store"
#define DIR_TMP    ".tmp"

enum { DIR_ALIGN = 4096, DIR_CHUNK = 1024 * 1024, DIR_DEPTH_MAX = 32 };

struct dir;

struct dir_call {
    struct list link; /* urgent, normal or running */
    struct dir *d;
    struct obj_req *r;
    bool queued;
    atomic_bool canceled;
};

/* -ECANCELED or -ETIMEDOUT when the call is to end now. Asked between chunks. */
int dir_call_check(const struct dir_call *c);

/* Fills r->err and diag from -errno; `what` says what was being done. */
void dir_fail(struct obj_req *r, int e, const char *what);
void dir_fail_code(struct obj_req *r, int err, int status, const char *code, const char *text);

/* Is it a key that can be a path below the root? */
bool dir_key_ok(const char *key);

/* Open directories from the root to the one that holds the key. */
struct dir_chain {
    int fd[DIR_DEPTH_MAX];
    unsigned n;
    const char *leaf; /* points into the key */
};

/* Opens them, making missing ones when `create`. -ENOENT, -ENOTDIR, -errno. `root` is borrowed. */
int dir_chain_open(struct dir_chain *ch, int root, const char *key, bool create);
void dir_chain_close(struct dir_chain *ch);

/* Makes the name of an object, and of all folders above it, durable. */
int dir_chain_sync(struct dir *d, const struct dir_chain *ch);

/* A folder, told from one that is made later in its place. made_ns 0: cannot be told. */
struct dir_folder {
    uint64_t dev, ino;
    int64_t made_ns;
};

/* Was the folder's name flushed by this process? */
bool dir_is_durable(struct dir *d, const struct dir_folder *f);
void dir_note_durable(struct dir *d, const struct dir_folder *f);
/* Removes folders that are now empty, innermost first. Best effort. */
void dir_chain_prune(const struct dir_chain *ch, const char *key);

/* ETag of an open object: the content hash noted beside it while size and mtime are those of the
 * note; else made of inode, size and mtime. */
void dir_etag(int fd, const struct stat *st, char ret[static OBJ_ETAG_MAX]);

/* Opens a regular file below `dirfd` for reading, past the page cache when possible. */
int dir_open_object(int dirfd, const char *leaf, struct stat *ret_st, bool *ret_direct);

/* dir_write.c: one body into a new file, past the page cache, hashed on the way. */
struct dir_writer {
    int fd;
    bool direct;
    uint8_t *buf;
    size_t fill;
    uint64_t off; /* bytes written so far */
    struct hash64_stream *xx;
    struct sha256 *sha; /* NULL: not asked for */
};

int dir_writer_open(struct dir_writer *w, int dirfd, const char *name, uint64_t len, bool sha);
/* -EBADF: the body's file could not be read, which is not the store's fault. */
int dir_writer_body(struct dir_writer *w, const struct dir_call *c, const struct obj_body *b);
/* Makes the bytes durable and notes the ETag. sha: the SHA-256, when asked for. */
int dir_writer_finish(struct dir_writer *w, char etag[static OBJ_ETAG_MAX],
                      uint8_t sha[static SHA256_BYTES]);
void dir_writer_done(struct dir_writer *w);

/* Writes r's body to `name`; on failure r says why and the file is gone. True on success. */
bool dir_store_body(const struct dir_call *c, int tmpfd, const char *name);

/* Gives the finished file tmpfd/name the object's name, by the rules of the request. It is gone from
 * tmpfd afterwards, whatever happened. The request holds the result. */
void dir_publish(const struct dir_call *c, int root, int tmpfd, const char *name);

/* Removes the folder `name` of `tmp`, open as fd, and the files in it. 0 or -errno. */
int dir_remove_folder(int tmp, const char *name, int fd);

/* The operations. `root` is open and was found to be a store. */
void dir_put(const struct dir_call *c, int root);
void dir_get(const struct dir_call *c, int root);
void dir_head(const struct dir_call *c, int root);
void dir_delete(const struct dir_call *c, int root);
void dir_delete_batch(const struct dir_call *c, int root);
void dir_list(const struct dir_call *c, int root);
void dir_mp_create(const struct dir_call *c, int root);
void dir_mp_part(const struct dir_call *c, int root);
void dir_mp_complete(const struct dir_call *c, int root);
void dir_mp_abort(const struct dir_call *c, int root);
void dir_mp_list(const struct dir_call *c, int root);

/* Opens the folder of temporary files. fd or -errno. */
int dir_tmp_open(int root);
void dir_random_name(char *buf, size_t cap, const char *prefix);

#endif
