/* residue.c: prints how many bytes of files are in the page cache.
 *
 *   residue [--mincore] PATH...
 *
 * Directories are walked, without leaving their file system. One JSON object on stdout:
 *   {"method":"cachestat","files":2,"bytes":8192,"dirty_bytes":0,
 *    "paths":[{"path":"a","bytes":4096},...]}
 * with one entry for each PATH given. cachestat(2) needs kernel 6.5; without it (or with --mincore)
 * every file is mapped and mincore(2) asked, which cannot tell dirty pages (dirty_bytes is null).
 * Asking brings nothing into the cache. A directory's own pages are not counted: none of the file
 * systems of interest keeps them where a user can ask.
 *
 * Exit: 0, 1 when a path could not be examined (the others are printed), 2 usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* The same on every architecture; older headers lack it. */
#endif

enum { WALK_FDS = 32, MINCORE_STEP = 1 << 16 /* pages asked about in one call */ };

struct range {
    uint64_t off, len;
};

struct cached {
    uint64_t cache, dirty, writeback, evicted, recently_evicted;
};

static struct {
    uint64_t files, pages, dirty_pages;
} total;
static bool use_mincore;
static bool failed;
static long page_size;

static int count_cachestat(int fd, struct cached *out)
{
    struct range whole = {0, 0}; /* A length of 0 means to the end. */

    memset(out, 0, sizeof(*out));
    return syscall(SYS_cachestat, fd, &whole, out, 0) == 0 ? 0 : -errno;
}

static int count_mincore(int fd, uint64_t size, struct cached *out)
{
    unsigned char *vec = malloc(MINCORE_STEP);
    uint64_t step = (uint64_t)MINCORE_STEP * (uint64_t)page_size;
    int rc = vec ? 0 : -ENOMEM;

    memset(out, 0, sizeof(*out));
    for (uint64_t at = 0; rc == 0 && at < size; at += step) {
        size_t len = size - at < step ? (size_t)(size - at) : (size_t)step;
        size_t pages = (len + (size_t)page_size - 1) / (size_t)page_size;
        void *p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)at);
        if (p == MAP_FAILED) {
            rc = -errno;
            break;
        }
        if (mincore(p, len, vec) != 0) {
            rc = -errno;
        }
        for (size_t i = 0; rc == 0 && i < pages; i++) {
            out->cache += vec[i] & 1;
        }
        munmap(p, len);
    }
    free(vec);
    return rc;
}

static int count_file(const char *path, const struct stat *st)
{
    struct cached c;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME);

    if (fd < 0 && errno == EPERM) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (fd < 0) {
        return -errno;
    }
    if (!use_mincore) {
        rc = count_cachestat(fd, &c);
        if (rc == -ENOSYS || rc == -EOPNOTSUPP || rc == -EPERM) {
            use_mincore = true;
        }
    }
    if (use_mincore) {
        rc = count_mincore(fd, (uint64_t)st->st_size, &c);
    }
    close(fd);
    if (rc == 0) {
        total.files++;
        total.pages += c.cache;
        total.dirty_pages += c.dirty;
    }
    return rc;
}

/* A file that went away during the walk holds no pages that could be asked for. */
static int visit(const char *path, const struct stat *st, int type, struct FTW *at)
{
    int rc = 0;

    (void)at;
    if (type == FTW_F && S_ISREG(st->st_mode)) {
        rc = count_file(path, st);
    } else if (type == FTW_DNR || type == FTW_NS) {
        rc = -EACCES;
    }
    if (rc != 0 && rc != -ENOENT) {
        fprintf(stderr, "residue: %s: %s\n", path, strerror(-rc));
        failed = true;
    }
    return 0;
}

static void print_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') {
            printf("\\%c", *s);
        } else if ((unsigned char)*s < 0x20) {
            printf("\\u%04x", (unsigned)*s);
        } else {
            putchar(*s);
        }
    }
    putchar('"');
}

int main(int argc, char **argv)
{
    int first = 1;
    uint64_t *bytes;

    if (argc > 1 && strcmp(argv[1], "--mincore") == 0) {
        use_mincore = true;
        first = 2;
    }
    if (first >= argc) {
        fputs("usage: residue [--mincore] PATH...\n", stderr);
        return 2;
    }
    page_size = sysconf(_SC_PAGESIZE);
    bytes = calloc((size_t)argc, sizeof(*bytes));
    if (!bytes) {
        return 1;
    }
    for (int i = first; i < argc; i++) {
        uint64_t before = total.pages;
        if (nftw(argv[i], visit, WALK_FDS, FTW_PHYS | FTW_MOUNT) != 0) {
            fprintf(stderr, "residue: %s: %s\n", argv[i], strerror(errno));
            failed = true;
        }
        bytes[i] = (total.pages - before) * (uint64_t)page_size;
    }
    printf("{\"method\":\"%s\",\"files\":%" PRIu64 ",\"bytes\":%" PRIu64 ",",
           use_mincore ? "mincore" : "cachestat", total.files, total.pages * (uint64_t)page_size);
    if (use_mincore) {
        fputs("\"dirty_bytes\":null,\"paths\":[", stdout);
    } else {
        printf("\"dirty_bytes\":%" PRIu64 ",\"paths\":[", total.dirty_pages * (uint64_t)page_size);
    }
    for (int i = first; i < argc; i++) {
        fputs(i > first ? ",{\"path\":" : "{\"path\":", stdout);
        print_string(argv[i]);
        printf(",\"bytes\":%" PRIu64 "}", bytes[i]);
    }
    puts("]}");
    free(bytes);
    return failed ? 1 : 0;
}
