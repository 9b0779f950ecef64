/* segcheck.c: see segcheck.h. No state. */
#include "fs/seg/segcheck.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/seg/segfmt.h"

static int open_file(struct devs *d, const struct segfile_id *id, int flags)
{
    char path[SEG_PATH_BYTES];
    int dirfd = dev_dirfd(d, id->device);
    if (dirfd < 0)
        return dirfd;
    seg_path(id->ino, id->base, id->version, path);
    return io_open(dirfd, path, flags | O_NOFOLLOW, 0);
}

static bool all_zero(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i])
            return false;
    return true;
}

/* The header page: identity whole and ours, slots whole or never written, the rest zeros. */
static void check_page(const uint8_t *page, const uint8_t volume[16], const struct segfile_id *id,
                       struct segcheck *ret)
{
    struct seg_ident i;
    struct seg_slot slot;
    if (seg_ident_decode(page, SEG_PAGE_BYTES, &i) < 0) {
        ret->bad_header = true;
        return;
    }
    if (memcmp(i.volume, volume, 16) != 0 || i.ino != id->ino || i.base != id->base ||
        i.version != id->version || i.header_bytes != id->header_bytes) {
        ret->foreign = true;
        return;
    }
    for (unsigned k = 0; k < 2; k++) {
        const uint8_t *p = page + SEG_SLOT_AT * (1 + k);
        if (!all_zero(p, SEG_SLOT_BYTES) &&
            seg_slot_decode(p, SEG_SLOT_BYTES, seg_ident_hash(&i), i.capacity, &slot) < 0)
            ret->bad_header = true;
    }
    size_t first = SEG_SLOT_AT, second = SEG_SLOT_AT * 2;
    if (!all_zero(page + SEG_IDENT_BYTES, first - SEG_IDENT_BYTES) ||
        !all_zero(page + first + SEG_SLOT_BYTES, second - first - SEG_SLOT_BYTES) ||
        !all_zero(page + second + SEG_SLOT_BYTES, SEG_PAGE_BYTES - second - SEG_SLOT_BYTES))
        ret->bad_header = true;
}

/* Reads header page and table into a malloc'ed buffer. */
static uint8_t *read_header(int fd, const struct segfile_id *id, uint64_t size,
                            struct segcheck *ret)
{
    uint8_t *head = NULL;
    if (size < id->header_bytes || id->header_bytes < SEG_PAGE_BYTES) {
        ret->shorter = true;
        return NULL;
    }
    ret->size = size - id->header_bytes;
    head = malloc(id->header_bytes);
    ret->err = head ? io_pread_full(fd, head, id->header_bytes, 0) : -ENOMEM;
    if (ret->err < 0) {
        ret->unreadable = true;
        free(head);
        return NULL;
    }
    return head;
}

static int begin(struct devs *d, const struct segfile_id *id, uint64_t *ret_size,
                 struct segcheck *ret)
{
    struct stat st = {0};
    *ret = (struct segcheck){0};
    int fd = open_file(d, id, O_RDONLY);
    if (fd >= 0)
        ret->err = io_stat(fd, &st);
    if (fd < 0 || ret->err < 0) {
        ret->missing = fd == -ENOENT;
        ret->unreadable = !ret->missing;
        if (fd < 0)
            ret->err = fd;
        io_close(fd);
        return -1;
    }
    *ret_size = (uint64_t)st.st_size;
    return fd;
}

static void check_block(int fd, const struct segfile_id *id, uint64_t block, size_t n,
                        uint64_t want, uint8_t *buf, struct segcheck *ret,
                        void (*each)(void *arg, uint64_t block), void *arg)
{
    int r = io_pread_full(fd, buf, n, id->header_bytes + block * BLOCK_BYTES);
    ret->bytes += n;
    if (r == 0 && hash64(buf, n) == want)
        return;
    if (!ret->bad_blocks++)
        ret->bad_first = block;
    ret->bad_last = block;
    if (each)
        each(arg, block);
}

void segcheck_sealed(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                     uint64_t len, const uint64_t *hashes, size_t n, bool deep,
                     void (*each)(void *arg, uint64_t block), void *arg, struct segcheck *ret)
{
    uint64_t size;
    int fd = begin(d, id, &size, ret);
    if (fd < 0)
        return;
    AUTO_FREE uint8_t *head = read_header(fd, id, size, ret);
    AUTO_FREE uint8_t *buf = malloc(BLOCK_BYTES);
    if (head && buf) {
        check_page(head, volume, id, ret);
        ret->shorter = ret->size < len;
        size_t room = (id->header_bytes - SEG_PAGE_BYTES) / 8;
        for (size_t b = 0; hashes && b < n && b < room; b++) {
            uint64_t have = get_le64(head + SEG_PAGE_BYTES + b * 8);
            if (have && have != hashes[b]) /* 0: not known, which is legal */
                ret->bad_header = true;
        }
        for (size_t b = 0; deep && hashes && b < n && !ret->shorter; b++)
            check_block(fd, id, b, (size_t)min_u64(BLOCK_BYTES, len - b * BLOCK_BYTES), hashes[b],
                        buf, ret, each, arg);
        if (deep)
            (void)io_drop(fd, 0, 0);
    }
    io_close(fd);
}

/* The valid slots of a header, seq 0 for others. */
static void read_slots(const uint8_t *head, struct seg_slot slot[static 2])
{
    struct seg_ident i;
    memset(slot, 0, 2 * sizeof slot[0]);
    if (seg_ident_decode(head, SEG_PAGE_BYTES, &i) < 0)
        return;
    for (unsigned k = 0; k < 2; k++)
        if (seg_slot_decode(head + SEG_SLOT_AT * (1 + k), SEG_SLOT_BYTES, seg_ident_hash(&i),
                            i.capacity, &slot[k]) < 0)
            slot[k].seq = 0;
}

/* What the newer proof slot says of the unfinished block, if it covers all of the file: 0: nothing. */
static uint64_t tail_hash(const struct seg_slot slot[static 2], uint64_t size)
{
    const struct seg_slot *s = &slot[slot[1].seq > slot[0].seq];
    return s->seq && s->len == size && !(s->flags & SLOT_FLUSHED) ? s->tail_hash : 0;
}

void segcheck_open(struct devs *d, const uint8_t volume[16], const struct segfile_id *id, bool deep,
                   struct segcheck *ret)
{
    uint64_t size;
    int fd = begin(d, id, &size, ret);
    if (fd < 0)
        return;
    AUTO_FREE uint8_t *head = read_header(fd, id, size, ret);
    AUTO_FREE uint8_t *buf = malloc(BLOCK_BYTES);
    if (head && buf) {
        struct seg_slot slot[2];
        check_page(head, volume, id, ret);
        read_slots(head, slot);
        ret->flushed = seg_slots_flushed(slot);
        ret->shorter = ret->size < ret->flushed;
        size_t room = (id->header_bytes - SEG_PAGE_BYTES) / 8;
        for (size_t b = 0; deep && b < ret->size / BLOCK_BYTES && b < room; b++) {
            uint64_t want = get_le64(head + SEG_PAGE_BYTES + b * 8);
            if (want)
                check_block(fd, id, b, BLOCK_BYTES, want, buf, ret, NULL, NULL);
        }
        uint64_t tail = deep ? tail_hash(slot, ret->size) : 0;
        if (tail && ret->size % BLOCK_BYTES)
            check_block(fd, id, ret->size / BLOCK_BYTES, (size_t)(ret->size % BLOCK_BYTES), tail,
                        buf, ret, NULL, NULL);
    }
    io_close(fd);
}

int segcheck_hashes(struct devs *d, const struct segfile_id *id, uint64_t len, bool from_data,
                    uint64_t **ret, size_t *ret_n)
{
    size_t n = (size_t)((len + BLOCK_BYTES - 1) / BLOCK_BYTES);
    int fd = open_file(d, id, O_RDONLY);
    if (fd < 0)
        return fd;
    uint64_t *h = malloc((n + 1) * sizeof *h);
    AUTO_FREE uint8_t *buf = malloc(max_u64(BLOCK_BYTES, n * 8));
    int r = h && buf ? 0 : -ENOMEM;
    if (r == 0 && !from_data)
        r = io_pread_full(fd, buf, n * 8, SEG_PAGE_BYTES);
    for (size_t b = 0; r == 0 && b < n; b++) {
        size_t part = (size_t)min_u64(BLOCK_BYTES, len - b * BLOCK_BYTES);
        if (from_data)
            r = io_pread_full(fd, buf, part, id->header_bytes + b * BLOCK_BYTES);
        if (r == 0)
            h[b] = from_data ? hash64(buf, part) : get_le64(buf + b * 8);
    }
    io_close(fd);
    if (r < 0) {
        free(h);
        return r;
    }
    *ret = h;
    *ret_n = n;
    return 0;
}

int segcheck_write_header(struct devs *d, const uint8_t volume[16], const struct segfile_id *id,
                          uint64_t capacity, uint64_t len, const uint64_t *hashes, size_t n)
{
    struct seg_ident i = {.topic = id->topic,
                          .ino = id->ino,
                          .base = id->base,
                          .capacity = capacity,
                          .version = id->version,
                          .header_bytes = id->header_bytes};
    memcpy(i.volume, volume, 16);
    if (id->header_bytes < SEG_PAGE_BYTES || n > (id->header_bytes - SEG_PAGE_BYTES) / 8)
        return -EINVAL;
    AUTO_FREE uint8_t *head = calloc(1, id->header_bytes);
    if (!head)
        return -ENOMEM;
    seg_ident_encode(&i, head);
    struct seg_slot s = {.seq = 1,
                         .len = len,
                         .tail_hash = len % BLOCK_BYTES ? hashes[n - 1] : 0,
                         .mtime_ns = clock_wall_ns(),
                         .ident_hash = seg_ident_hash(&i),
                         .flags = SLOT_SEALED};
    seg_slot_encode(&s, head + SEG_SLOT_AT);
    for (size_t b = 0; b < n; b++)
        put_le64(head + SEG_PAGE_BYTES + b * 8, hashes[b]);
    int fd = open_file(d, id, O_WRONLY);
    if (fd < 0)
        return fd;
    int r = io_pwrite_full(fd, head, id->header_bytes, 0, NULL);
    if (r == 0)
        r = io_sync(fd, true);
    io_close(fd);
    return r;
}

int segcheck_write_data(struct devs *d, const struct segfile_id *id, uint64_t pos, const void *buf,
                        size_t len)
{
    int fd = open_file(d, id, O_WRONLY);
    if (fd < 0)
        return fd;
    int r = io_pwrite_full(fd, buf, len, id->header_bytes + pos, NULL);
    if (r == 0)
        r = io_sync(fd, true);
    io_close(fd);
    return r;
}
