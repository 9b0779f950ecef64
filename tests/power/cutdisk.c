/* cutdisk.c: disks whose power can be cut, for machines without a device mapper.
 *
 *   cutdisk MOUNTPOINT ATOM IMAGE...        in the foreground; SIGTERM or an unmount ends it
 *
 * MOUNTPOINT shows a file `disk0`, `disk1`... for each IMAGE (which has the size of the disk) and a file
 * `ctl`. A loop device over such a file carries any file system: the loop driver turns every flush and
 * every forced write into an fsync of the file. All disks hang on one power supply.
 *
 * A disk has a write cache. What was written and not flushed since is held in memory as `versions`: a
 * version is what one write put into one block of 4 KiB, and a block may have several, newest first.
 * All versions of all disks also stand in the order of their writes. A flush moves those of its disk to
 * the image. So does a cache that is full, with the oldest: a drive may write what it holds at any time.
 *
 * A cut decides for each version, or each ATOM bytes of it (512 or 4096: what this disk writes whole),
 * whether it reaches the image, and forgets the rest. Applying in the order of the writes makes an older
 * version survive where the newer one does not. Until the power is back every request fails with EIO.
 *
 * Words for ctl (one write each; reading it shows state and counts):
 *   cut SEED [POLICY]           now
 *   cutat N SEED [POLICY]       at the Nth write or flush from now, before it is carried out
 *   lie                         flushes are acknowledged and ignored, until the power is back
 *   eio write|flush|read|all    such requests fail (words may repeat); `eio none` ends it
 *   eio data                    writes fail that hold a block without a zero byte: the data of these tests,
 *                               never the metadata of a file system
 *   on                          power is back; nothing lies or fails any more
 * POLICY: none, all, prefix, suffix, writes, atoms; without it the seed chooses.
 *   none     all that was not flushed is lost         all     nothing is
 *   prefix   the writes up to some moment survive, the one at that moment in part
 *   suffix   the writes from some moment on survive: newer ones without the older ones
 *   writes   each write survives or not, whole        atoms   each atom of each version does
 *
 * One thread, so no locks. Invariants: a version is in its block's list and in the order, or nowhere;
 * reading a disk shows the newest version of each sector, else the image. Nothing here is of the
 * project's code, so it cannot share its mistakes.
 */
#define FUSE_USE_VERSION 312

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, SECTOR = 512, SECTORS = BLOCK / SECTOR, MAX_DISKS = 4, CTL_BYTES = 256 };
enum { CACHE_VERSIONS = 32768 }; /* 128 MiB */
enum { EIO_WRITE = 1, EIO_FLUSH = 2, EIO_READ = 4, EIO_DATA = 8 };

enum policy { P_NONE, P_ALL, P_PREFIX, P_SUFFIX, P_WRITES, P_ATOMS, POLICIES };
static const char *const policy_name[POLICIES] = {"none",   "all",    "prefix",
                                                  "suffix", "writes", "atoms"};

struct version {
    struct version *older;       /* of the same block */
    struct version *next, *prev; /* in the order of writes */
    uint64_t write;              /* the request that made it */
    uint32_t disk;
    uint32_t block;
    uint8_t sectors; /* a bit for each sector that the write touched */
    uint8_t data[BLOCK];
};

struct disk {
    int fd;
    off_t size;
    struct version **newest; /* by block */
};

static struct disk disks[MAX_DISKS];
static unsigned n_disks;
static unsigned atom = SECTOR;
static struct version *first, *last;
static uint64_t held, writes, flushes, cuts, survived, lost;
static bool dead, lying;
static unsigned failing; /* EIO_* */
static uint64_t armed;   /* requests until the cut; 0: none */
static uint64_t armed_seed;
static int armed_policy = -1;

/* ---- chance ---- */

struct dice {
    uint64_t x;
};

static uint64_t roll(struct dice *d)
{
    uint64_t z = d->x += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t below(struct dice *d, uint64_t n)
{
    return n ? roll(d) % n : 0;
}

/* ---- versions ---- */

/* Writes those sectors of the version that are in `keep`. */
static int to_image(const struct version *v, unsigned keep)
{
    off_t at = (off_t)v->block * BLOCK;
    int r = 0;
    for (unsigned s = 0; s < SECTORS;) {
        unsigned n = 0;
        while (s + n < SECTORS && (keep & v->sectors) >> (s + n) & 1)
            n++;
        size_t bytes = (size_t)n * SECTOR;
        if (n && pwrite(disks[v->disk].fd, v->data + s * SECTOR, bytes, at + s * SECTOR) !=
                     (ssize_t)bytes)
            r = -EIO;
        s += n ? n : 1;
    }
    return r;
}

static void forget(struct version *v)
{
    struct version **p = &disks[v->disk].newest[v->block];
    while (*p != v)
        p = &(*p)->older;
    *p = v->older;
    *(v->prev ? &v->prev->next : &first) = v->next;
    *(v->next ? &v->next->prev : &last) = v->prev;
    held--;
    free(v);
}

static int flush_disk(unsigned disk)
{
    int r = 0;
    for (struct version *v = first, *next; v; v = next) {
        next = v->next;
        if (v->disk == disk) {
            if (to_image(v, 0xFF) < 0)
                r = -EIO;
            forget(v);
        }
    }
    return r;
}

static int hold(unsigned disk, const char *buf, size_t n, off_t off)
{
    while (n) {
        struct version *v = malloc(sizeof *v);
        if (!v)
            return -ENOMEM;
        size_t at = (size_t)(off % BLOCK), part = BLOCK - at < n ? BLOCK - at : n;
        v->write = writes;
        v->disk = disk;
        v->block = (uint32_t)(off / BLOCK);
        v->sectors = (uint8_t)(((1u << part / SECTOR) - 1) << at / SECTOR);
        memcpy(v->data + at, buf, part);
        v->older = disks[disk].newest[v->block];
        disks[disk].newest[v->block] = v;
        v->next = NULL;
        v->prev = last;
        *(last ? &last->next : &first) = v;
        last = v;
        held++;
        buf += part;
        off += (off_t)part;
        n -= part;
    }
    while (held > CACHE_VERSIONS && !lying) {
        if (to_image(first, 0xFF) < 0)
            return -EIO;
        forget(first);
    }
    return 0;
}

/* ---- the cut ---- */

/* The sectors that a version keeps if each of its atoms is kept with `permille`. */
static unsigned some_atoms(struct dice *d, uint64_t permille)
{
    unsigned keep = 0;
    for (unsigned s = 0; s < SECTORS; s += atom / SECTOR)
        if (below(d, 1000) < permille)
            keep |= ((1u << atom / SECTOR) - 1) << s;
    return keep;
}

static void cut(uint64_t seed, int policy)
{
    struct dice d = {seed};
    static const uint64_t share[] = {30, 200, 500, 800, 970};
    enum policy p = (enum policy)below(&d, POLICIES);
    uint64_t permille = share[below(&d, 5)], from = first ? first->write : 0;
    uint64_t moment = from + below(&d, writes - from + 1), write = 0;
    bool whole = false;
    if (policy >= 0)
        p = (enum policy)policy;
    while (first) {
        struct version *v = first;
        unsigned keep = p == P_ALL ? 0xFF : 0;
        if (v->write != write) {
            write = v->write;
            whole = below(&d, 1000) < permille;
        }
        if (p == P_PREFIX)
            keep = v->write < moment ? 0xFF : v->write == moment ? some_atoms(&d, 500) : 0;
        else if (p == P_SUFFIX)
            keep = v->write >= moment ? 0xFF : 0;
        else if (p == P_WRITES)
            keep = whole ? 0xFF : 0;
        else if (p == P_ATOMS)
            keep = some_atoms(&d, permille);
        if (keep & v->sectors && to_image(v, keep) < 0)
            perror("cutdisk: image");
        if (keep & v->sectors)
            survived++;
        else
            lost++;
        forget(v);
    }
    armed = 0;
    dead = true;
    cuts++;
}

/* A request that changes the medium. True: the power is gone. */
static bool spent(void)
{
    if (armed && --armed == 0)
        cut(armed_seed, armed_policy);
    return dead;
}

/* ---- ctl ---- */

static int policy_of(const char *name, int *ret)
{
    *ret = -1;
    for (int p = 0; p < POLICIES; p++)
        if (!strcmp(name, policy_name[p]))
            *ret = p;
    return *name && *ret < 0 ? -EINVAL : 0;
}

static int order_eio(char *words)
{
    unsigned what = 0;
    char *save;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        unsigned one = !strcmp(w, "write")   ? EIO_WRITE
                       : !strcmp(w, "flush") ? EIO_FLUSH
                       : !strcmp(w, "read")  ? EIO_READ
                       : !strcmp(w, "data")  ? EIO_DATA
                       : !strcmp(w, "all")   ? EIO_WRITE | EIO_FLUSH | EIO_READ
                                             : 0;
        if (!one && strcmp(w, "none") != 0)
            return -EINVAL;
        what |= one;
    }
    failing = what;
    return 0;
}

static int order(const char *buf, size_t n)
{
    char line[CTL_BYTES] = "", name[16] = "";
    unsigned long long count = 0, seed = 0;
    int policy;
    if (n >= sizeof line)
        return -EINVAL;
    memcpy(line, buf, n);
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "on")) {
        dead = lying = false;
        failing = 0;
        armed = 0;
    } else if (!strcmp(line, "lie")) {
        lying = true;
    } else if (!strncmp(line, "eio ", 4)) {
        return order_eio(line + 4);
    } else if (sscanf(line, "cut %llu %15s", &seed, name) >= 1) {
        int r = policy_of(name, &policy);
        if (r < 0)
            return r;
        cut(seed, policy);
    } else if (sscanf(line, "cutat %llu %llu %15s", &count, &seed, name) >= 2 && count) {
        int r = policy_of(name, &policy);
        if (r < 0)
            return r;
        armed = count;
        armed_seed = seed;
        armed_policy = policy;
    } else {
        return -EINVAL;
    }
    return 0;
}

static int show(char *out, size_t cap)
{
    return snprintf(
        out, cap, "%s held=%llu writes=%llu flushes=%llu cuts=%llu survived=%llu lost=%llu\n",
        dead      ? "dead"
        : lying   ? "lying"
        : failing ? "failing"
                  : "alive",
        (unsigned long long)held, (unsigned long long)writes, (unsigned long long)flushes,
        (unsigned long long)cuts, (unsigned long long)survived, (unsigned long long)lost);
}

/* ---- operations ---- */

static int disk_of(const char *path)
{
    unsigned n;
    char rest;
    return sscanf(path, "/disk%u%c", &n, &rest) == 1 && n < n_disks ? (int)n : -1;
}

static bool is_ctl(const char *path)
{
    return !strcmp(path, "/ctl");
}

static int op_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    int d = disk_of(path);
    (void)fi;
    memset(st, 0, sizeof *st);
    st->st_nlink = 1;
    st->st_mode = S_IFREG | 0600;
    if (!strcmp(path, "/")) {
        st->st_mode = S_IFDIR | 0700;
    } else if (is_ctl(path)) {
        st->st_size = CTL_BYTES;
    } else if (d >= 0) {
        st->st_size = disks[d].size;
        st->st_blksize = BLOCK;
    } else {
        return -ENOENT;
    }
    return 0;
}

static int op_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t off,
                      struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
    char name[16];
    (void)path, (void)off, (void)fi, (void)flags;
    fill(buf, ".", NULL, 0, 0);
    fill(buf, "..", NULL, 0, 0);
    fill(buf, "ctl", NULL, 0, 0);
    for (unsigned d = 0; d < n_disks; d++) {
        snprintf(name, sizeof name, "disk%u", d);
        fill(buf, name, NULL, 0, 0);
    }
    return 0;
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    fi->direct_io = 1; /* no page cache: what a cut takes must be gone here, too */
    return 0;
}

static int op_truncate(const char *path, off_t n, struct fuse_file_info *fi)
{
    (void)n, (void)fi;
    return is_ctl(path) ? 0 : -EPERM;
}

static int op_read(const char *path, char *buf, size_t n, off_t off, struct fuse_file_info *fi)
{
    int d = disk_of(path);
    (void)fi;
    if (d < 0) {
        char line[CTL_BYTES];
        int len = show(line, sizeof line);
        if (off >= len)
            return 0;
        n = n < (size_t)(len - off) ? n : (size_t)(len - off);
        memcpy(buf, line + off, n);
        return (int)n;
    }
    if (dead || failing & EIO_READ)
        return -EIO;
    if (off >= disks[d].size)
        return 0;
    if ((off_t)n > disks[d].size - off)
        n = (size_t)(disks[d].size - off);
    if (pread(disks[d].fd, buf, n, off) != (ssize_t)n)
        return -EIO;
    for (off_t at = off / SECTOR * SECTOR; at < off + (off_t)n; at += SECTOR) {
        const struct version *v = disks[d].newest[at / BLOCK];
        while (v && !(v->sectors >> at % BLOCK / SECTOR & 1))
            v = v->older;
        if (!v)
            continue;
        off_t from = at < off ? off : at;
        off_t to = at + SECTOR < off + (off_t)n ? at + SECTOR : off + (off_t)n;
        memcpy(buf + (from - off), v->data + from % BLOCK, (size_t)(to - from));
    }
    return (int)n;
}

static bool holds_data(const char *buf, size_t n)
{
    for (size_t at = 0; at + BLOCK <= n; at += BLOCK)
        if (!memchr(buf + at, 0, BLOCK))
            return true;
    return false;
}

static int op_write(const char *path, const char *buf, size_t n, off_t off,
                    struct fuse_file_info *fi)
{
    int d = disk_of(path), r;
    (void)fi;
    if (d < 0) {
        r = order(buf, n);
        return r < 0 ? r : (int)n;
    }
    if (off % SECTOR || n % SECTOR || off + (off_t)n > disks[d].size)
        return -EINVAL; /* a loop device sends whole sectors */
    writes++;
    if (spent() || failing & EIO_WRITE || (failing & EIO_DATA && holds_data(buf, n)))
        return -EIO;
    r = hold((unsigned)d, buf, n, off);
    return r < 0 ? r : (int)n;
}

static int op_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
    int d = disk_of(path);
    (void)datasync, (void)fi;
    if (d < 0)
        return 0;
    flushes++;
    if (spent() || failing & EIO_FLUSH)
        return -EIO;
    return lying ? 0 : flush_disk((unsigned)d);
}

static void *op_init(struct fuse_conn_info *conn, struct fuse_config *cfg)
{
    (void)conn;
    cfg->attr_timeout = cfg->entry_timeout = cfg->negative_timeout = 0;
    return NULL;
}

static const struct fuse_operations ops = {
    .init = op_init,
    .getattr = op_getattr,
    .readdir = op_readdir,
    .open = op_open,
    .truncate = op_truncate,
    .read = op_read,
    .write = op_write,
    .fsync = op_fsync,
};

int main(int argc, char **argv)
{
    if (argc < 4 || argc - 3 > MAX_DISKS) {
        fprintf(stderr, "usage: cutdisk MOUNTPOINT 512|4096 IMAGE...\n");
        return 2;
    }
    atom = !strcmp(argv[2], "4096") ? BLOCK : SECTOR;
    for (int i = 3; i < argc; i++) {
        struct disk *d = &disks[n_disks++];
        struct stat st;
        d->fd = open(argv[i], O_RDWR | O_CLOEXEC);
        if (d->fd < 0 || fstat(d->fd, &st) < 0) {
            perror(argv[i]);
            return 1;
        }
        d->size = st.st_size / BLOCK * BLOCK;
        d->newest = calloc((size_t)(d->size / BLOCK) + 1, sizeof(struct version *));
        if (!d->newest) {
            perror("cutdisk");
            return 1;
        }
    }
    char *args[] = {argv[0], "-f", "-s", argv[1], NULL};
    return fuse_main(4, args, &ops, NULL);
}
