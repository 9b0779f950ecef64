/* barefuse.c: the least a FUSE program can do over a directory; the floor that mounts are measured
 * against.
 *
 *   barefuse SOURCE MOUNTPOINT [--timeout SECONDS] [--direct-io] [-o MOUNT_OPTIONS]
 *
 * Stays in the foreground and prints "ready" once the kernel has sent INIT. SIGTERM, SIGINT or an
 * unmount end it.
 *
 * What makes it a fair floor: write-through cached handles that keep their pages (no
 * AUTO_INVAL_DATA, FOPEN_KEEP_CACHE), getxattr answered ENOSYS once, long attribute and entry
 * timeouts, one thread per busy request. It is no reference for POSIX: names changed behind its
 * back are not noticed.
 *
 * Inodes: the nodeid is the inode number of the source file (the root is 1). `table` maps it to a
 * node that holds an O_PATH descriptor while the kernel knows the inode, so the number cannot be
 * given to another file meanwhile. A source that spans devices is refused with EXDEV.
 *
 * Locks: `table_lock` protects the chains and the lookup counts, and is held over no system call
 * but close. A node that a request names cannot go: the kernel holds a lookup on it.
 */
#define FUSE_USE_VERSION 312

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <getopt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TABLE_SIZE = 1 << 14, MAX_THREADS = 16, MAX_BACKGROUND = 64, PROC_PATH = 40 };

struct node {
    struct node *next;
    ino_t ino;
    int path_fd;
    uint64_t lookups;
};

static struct node *table[TABLE_SIZE];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct node root;
static dev_t source_dev;
static double timeout_s = 3600.0;
static bool direct_io;

static struct node **chain_of(ino_t ino)
{
    return &table[(ino * 0x9E3779B97F4A7C15u) >> 50 & (TABLE_SIZE - 1)];
}

static int fd_of(fuse_ino_t ino)
{
    int fd = -1;

    if (ino == FUSE_ROOT_ID) {
        return root.path_fd;
    }
    pthread_mutex_lock(&table_lock);
    for (struct node *n = *chain_of(ino); n; n = n->next) {
        if (n->ino == ino) {
            fd = n->path_fd;
            break;
        }
    }
    pthread_mutex_unlock(&table_lock);
    return fd;
}

static const char *proc_path(fuse_ino_t ino, char buf[static PROC_PATH])
{
    snprintf(buf, PROC_PATH, "/proc/self/fd/%d", fd_of(ino));
    return buf;
}

static void fix_attr(struct stat *st)
{
    if (st->st_ino == root.ino) {
        st->st_ino = FUSE_ROOT_ID;
    }
}

/* Looks a name up and takes one lookup on its node. 0 or an errno (positive, for
 * fuse_reply_err). */
static int take(fuse_ino_t parent, const char *name, struct fuse_entry_param *e)
{
    struct node *n, **chain;
    int fd;

    memset(e, 0, sizeof(*e));
    fd = openat(fd_of(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    if (fstatat(fd, "", &e->attr, AT_EMPTY_PATH) != 0) {
        int err = errno;
        close(fd);
        return err;
    }
    if (e->attr.st_dev != source_dev) {
        close(fd);
        return EXDEV;
    }
    e->attr_timeout = e->entry_timeout = timeout_s;
    e->ino = e->attr.st_ino;

    chain = chain_of(e->attr.st_ino);
    pthread_mutex_lock(&table_lock);
    for (n = *chain; n && n->ino != e->attr.st_ino; n = n->next) {
    }
    if (n) {
        close(fd);
    } else if ((n = calloc(1, sizeof(*n)))) {
        n->next = *chain;
        n->ino = e->attr.st_ino;
        n->path_fd = fd;
        *chain = n;
    } else {
        close(fd);
    }
    if (n) {
        n->lookups++;
    }
    pthread_mutex_unlock(&table_lock);
    return n ? 0 : ENOMEM;
}

static void give_back(fuse_ino_t ino, uint64_t lookups)
{
    if (ino == FUSE_ROOT_ID) {
        return;
    }
    pthread_mutex_lock(&table_lock);
    for (struct node **at = chain_of(ino); *at; at = &(*at)->next) {
        struct node *n = *at;
        if (n->ino != ino) {
            continue;
        }
        n->lookups -= lookups < n->lookups ? lookups : n->lookups;
        if (n->lookups == 0) {
            *at = n->next;
            close(n->path_fd);
            free(n);
        }
        break;
    }
    pthread_mutex_unlock(&table_lock);
}

static void reply_status(fuse_req_t req, int rc)
{
    fuse_reply_err(req, rc == 0 ? 0 : errno);
}

static void drop_feature(struct fuse_conn_info *conn, uint32_t flag)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    fuse_unset_feature_flag(conn, flag);
#else
    conn->want &= ~flag;
#endif
}

static void op_init(void *user, struct fuse_conn_info *conn)
{
    (void)user;
    drop_feature(conn, FUSE_CAP_AUTO_INVAL_DATA);
    drop_feature(conn, FUSE_CAP_ATOMIC_O_TRUNC);
    drop_feature(conn, FUSE_CAP_WRITEBACK_CACHE);
    drop_feature(conn, FUSE_CAP_SPLICE_READ);
    drop_feature(conn, FUSE_CAP_SPLICE_WRITE);
    drop_feature(conn, FUSE_CAP_SPLICE_MOVE);
    conn->max_background = MAX_BACKGROUND;
    puts("ready");
    fflush(stdout);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param e;
    int err = take(parent, name, &e);

    if (err) {
        fuse_reply_err(req, err);
    } else if (fuse_reply_entry(req, &e) != 0) {
        give_back(e.ino, 1);
    }
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
    give_back(ino, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++) {
        give_back(forgets[i].ino, forgets[i].nlookup);
    }
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;

    (void)fi;
    if (fstatat(fd_of(ino), "", &st, AT_EMPTY_PATH) != 0) {
        fuse_reply_err(req, errno);
        return;
    }
    fix_attr(&st);
    fuse_reply_attr(req, &st, timeout_s);
}

static struct timespec time_to_set(int to_set, int given, int now, struct timespec value)
{
    if (to_set & now) {
        return (struct timespec){.tv_nsec = UTIME_NOW};
    }
    return to_set & given ? value : (struct timespec){.tv_nsec = UTIME_OMIT};
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    char path[PROC_PATH];
    int rc = 0;

    proc_path(ino, path);
    if (to_set & FUSE_SET_ATTR_MODE) {
        rc = chmod(path, attr->st_mode);
    }
    if (rc == 0 && (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))) {
        rc = chown(path, to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
                   to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1);
    }
    if (rc == 0 && (to_set & FUSE_SET_ATTR_SIZE)) {
        rc = fi ? ftruncate((int)fi->fh, attr->st_size) : truncate(path, attr->st_size);
    }
    if (rc == 0 && (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
                              FUSE_SET_ATTR_MTIME_NOW))) {
        struct timespec times[2] = {
            time_to_set(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, attr->st_atim),
            time_to_set(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, attr->st_mtim),
        };
        rc = utimensat(AT_FDCWD, path, times, 0);
    }
    if (rc != 0) {
        fuse_reply_err(req, errno);
    } else {
        op_getattr(req, ino, fi);
    }
}

static void set_handle(struct fuse_file_info *fi, int fd)
{
    fi->fh = (uint64_t)fd;
    fi->direct_io = direct_io;
    fi->keep_cache = !direct_io;
}

/* The kernel computes the offset of an append and serves O_DIRECT itself, so neither flag is kept;
 * a write-only handle may still have to read the page around an unaligned write. */
static int source_flags(int flags)
{
    flags &= ~(O_APPEND | O_DIRECT | O_NOFOLLOW);
    return (flags & O_ACCMODE) == O_WRONLY ? (flags & ~O_ACCMODE) | O_RDWR : flags;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    char path[PROC_PATH];
    int fd = open(proc_path(ino, path), source_flags(fi->flags) | O_CLOEXEC);

    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    set_handle(fi, fd);
    if (fuse_reply_open(req, fi) != 0) {
        close(fd);
    }
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    struct fuse_entry_param e;
    int err, fd;

    fd = openat(fd_of(parent), name, source_flags(fi->flags) | O_CREAT | O_CLOEXEC, mode);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    err = take(parent, name, &e);
    if (err) {
        close(fd);
        fuse_reply_err(req, err);
        return;
    }
    set_handle(fi, fd);
    if (fuse_reply_create(req, &e, fi) != 0) {
        close(fd);
        give_back(e.ino, 1);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    struct fuse_bufvec buf = FUSE_BUFVEC_INIT(size);

    (void)ino;
    buf.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    buf.buf[0].fd = (int)fi->fh;
    buf.buf[0].pos = offset;
    fuse_reply_data(req, &buf, FUSE_BUF_NO_SPLICE);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    ssize_t n = pwrite((int)fi->fh, data, size, offset);

    (void)ino;
    if (n < 0) {
        fuse_reply_err(req, errno);
    } else {
        fuse_reply_write(req, (size_t)n);
    }
}

/* Closing a duplicate reports what a close of the file itself would report. */
static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    int fd = dup((int)fi->fh);

    (void)ino;
    reply_status(req, fd < 0 ? -1 : close(fd));
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    close((int)fi->fh);
    fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino;
    reply_status(req, datasync ? fdatasync((int)fi->fh) : fsync((int)fi->fh));
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    reply_status(req, unlinkat(fd_of(parent), name, 0));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    reply_status(req, unlinkat(fd_of(parent), name, AT_REMOVEDIR));
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned flags)
{
    reply_status(req, renameat2(fd_of(parent), name, fd_of(new_parent), new_name, flags));
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    if (mkdirat(fd_of(parent), name, mode) != 0) {
        fuse_reply_err(req, errno);
    } else {
        op_lookup(req, parent, name);
    }
}

static DIR *dir_of(const struct fuse_file_info *fi)
{
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): op_opendir put the pointer there. */
    return (DIR *)(uintptr_t)fi->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    int fd = openat(fd_of(ino), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir) {
        fuse_reply_err(req, errno);
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    fi->fh = (uintptr_t)dir;
    if (fuse_reply_open(req, fi) != 0) {
        closedir(dir);
    }
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    DIR *dir = dir_of(fi);
    size_t used = 0;
    char *out = malloc(size);

    (void)ino;
    if (!out) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    seekdir(dir, offset);
    for (;;) {
        struct dirent *d = readdir(dir);
        if (!d) {
            break;
        }
        struct stat st = {.st_ino = d->d_ino, .st_mode = (mode_t)d->d_type << 12};
        fix_attr(&st);
        size_t n = fuse_add_direntry(req, out + used, size - used, d->d_name, &st, d->d_off);
        if (n > size - used) {
            break;
        }
        used += n;
    }
    fuse_reply_buf(req, out, used);
    free(out);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    closedir(dir_of(fi));
    fuse_reply_err(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs v;

    (void)ino;
    if (fstatvfs(root.path_fd, &v) != 0) {
        fuse_reply_err(req, errno);
    } else {
        fuse_reply_statfs(req, &v);
    }
}

static const struct fuse_lowlevel_ops ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .open = op_open,
    .create = op_create,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .mkdir = op_mkdir,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
    .statfs = op_statfs,
};

static int open_source(const char *source)
{
    struct stat st;

    root.path_fd = open(source, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.path_fd < 0 || fstatat(root.path_fd, "", &st, AT_EMPTY_PATH) != 0) {
        return -errno;
    }
    root.ino = st.st_ino;
    source_dev = st.st_dev;
    return 0;
}

/* Mounts, serves until told to stop, unmounts. Returns the exit status. */
static int serve(struct fuse_args *args, const char *mountpoint)
{
    struct fuse_loop_config *config = NULL;
    struct fuse_session *se = fuse_session_new(args, &ops, sizeof(ops), NULL);
    int status = 1;

    if (!se) {
        return 1;
    }
    if (fuse_set_signal_handlers(se) == 0) {
        if (fuse_session_mount(se, mountpoint) == 0) {
            config = fuse_loop_cfg_create();
            fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
            fuse_loop_cfg_set_clone_fd(config, 0);
            status = fuse_session_loop_mt(se, config) < 0 ? 1 : 0;
            fuse_loop_cfg_destroy(config);
            fuse_session_unmount(se);
        }
        fuse_remove_signal_handlers(se);
    }
    fuse_session_destroy(se);
    return status;
}

static int usage(void)
{
    fputs("usage: barefuse SOURCE MOUNTPOINT [--timeout S] [--direct-io] [-o OPTIONS]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"timeout", required_argument, NULL, 't'},
        {"direct-io", no_argument, NULL, 'd'},
        {0},
    };
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    int c, err, status;

    fuse_opt_add_arg(&args, argv[0]);
    fuse_opt_add_arg(&args, "-ofsname=barefuse,subtype=barefuse,default_permissions");
    if (geteuid() == 0) {
        fuse_opt_add_arg(&args, "-oallow_other");
    }
    while ((c = getopt_long(argc, argv, "o:", longs, NULL)) != -1) {
        switch (c) {
        case 't':
            timeout_s = strtod(optarg, NULL);
            break;
        case 'd':
            direct_io = true;
            break;
        case 'o':
            fuse_opt_add_arg(&args, "-o");
            fuse_opt_add_arg(&args, optarg);
            break;
        default:
            return usage();
        }
    }
    if (argc - optind != 2) {
        return usage();
    }
    err = open_source(argv[optind]);
    if (err) {
        fprintf(stderr, "barefuse: %s: %s\n", argv[optind], strerror(-err));
        return 1;
    }
    umask(0);
    status = serve(&args, argv[optind + 1]);
    fuse_opt_free_args(&args);
    return status;
}
