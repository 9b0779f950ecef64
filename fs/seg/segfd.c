/* segfd.c: descriptors for reading sealed segments, shared, pinned, bounded; and reading past the page
 * cache.
 *
 *   state     in table  in LRU   refs   who moves it on
 *   -------   --------  ------   ----   ------------------------------------------------------
 *   PINNED    yes       no       > 0    last put: IDLE, or closed when doomed or over the bound
 *   IDLE      yes       yes      0      get: PINNED; the bound or unlink: closed
 *   DOOMED    no        no       > 0    last put: closed (its file was unlinked)
 *
 * The bound is SEGFD_MAX open descriptors, or a quarter of those that the process may have; pinned ones are
 * never closed, so more readers at one moment than that go over it for as long as they read.
 * Files are opened and closed outside the lock. Two threads may open the same file at once; the second
 * to come back closes its own. A file that is unlinked while somebody opens it must not stay in the
 * table (its space would not come back): `unlinks` tells.
 *
 * Lock: one, RANK_SEGFD, over table, LRU, counts and refs.
 */
#include "fs/seg/seg_int.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/io.h"
#include "fs/base/list.h"

enum { TABLE_SIZE = 1024, BOUNCE_BYTES = 256 * 1024, DIO_ALIGN_MAX = 4096 };

struct segfd {
    struct segfile_id id;
    bool direct;
    bool doomed;
    int fd;
    uint32_t mem, off; /* alignment of O_DIRECT; 0: ordinary descriptor, drop behind */
    unsigned refs;
    struct devs *devs;
    struct list lru;
    struct segfd *next;
};

struct segfds {
    struct devs *devs;
    struct lock lock;
    struct list lru; /* idle ones, oldest first */
    unsigned n;      /* open descriptors in the table */
    unsigned most;
    uint64_t unlinks;
    struct segfd *table[TABLE_SIZE];
};

/* ---- reading past the page cache ---- */

int seg_open_read(struct dev *v, const char *path, bool direct, uint32_t *mem, uint32_t *off)
{
    *mem = *off = 0;
    if (direct) {
        int fd = io_open(v->dirfd, path, O_RDONLY | O_NOFOLLOW | O_DIRECT, 0);
        if (fd >= 0) {
            io_dio_align(fd, mem, off);
            if (*mem && *off && *mem <= DIO_ALIGN_MAX && *off <= DIO_ALIGN_MAX)
                return fd;
            io_close(fd);
        } else if (fd != -EINVAL) {
            return fd;
        }
        *mem = *off = 0;
    }
    return io_open(v->dirfd, path, O_RDONLY | O_NOFOLLOW, 0);
}

/* One aligned read of up to `len` bytes (a multiple of off), less only at the end of the file. */
static int read_aligned(int fd, uint32_t off, uint64_t at, uint8_t *buf, size_t len, size_t *got)
{
    *got = 0;
    while (*got < len) {
        ssize_t n = io_pread(fd, buf + *got, len - *got, at + *got);
        if (n < 0)
            return (int)n;
        *got += (size_t)n;
        if (n == 0 || n % off != 0)
            break; /* the end */
    }
    return 0;
}

/* Through a bounce buffer: any addresses and lengths. */
static int read_bounced(int fd, uint32_t off, uint64_t at, uint8_t *out, size_t len)
{
    void *bounce;
    size_t cap = min_u64(BOUNCE_BYTES, round_up(len, off) + off);
    if (posix_memalign(&bounce, DIO_ALIGN_MAX, cap) != 0)
        return -ENOMEM;
    int r = 0;
    while (r == 0 && len) {
        uint64_t start = at / off * off;
        size_t skip = at - start, got;
        size_t want = min_u64(cap, round_up(skip + len, off));
        size_t n = min_u64(len, want - skip);
        r = read_aligned(fd, off, start, bounce, want, &got);
        if (r == 0 && got < skip + n)
            r = -ENODATA;
        if (r == 0)
            memcpy(out, (uint8_t *)bounce + skip, n);
        at += n;
        out += n;
        len -= n;
    }
    free(bounce);
    return r;
}

int seg_read_direct(int fd, uint32_t mem, uint32_t off, uint64_t at, void *buf, size_t len)
{
    uint8_t *p = buf;
    size_t head = min_u64(len, round_up(at, off) - at);
    if (((uintptr_t)p + head) % mem != 0)
        return read_bounced(fd, off, at, p, len);
    int r = head ? read_bounced(fd, off, at, p, head) : 0;
    size_t mid = (len - head) / off * off, got = 0;
    if (r == 0 && mid) {
        r = read_aligned(fd, off, at + head, p + head, mid, &got);
        if (r == 0 && got < mid)
            r = -ENODATA;
    }
    size_t tail = len - head - mid;
    return r == 0 && tail ? read_bounced(fd, off, at + head + mid, p + head + mid, tail) : r;
}

/* ---- table ---- */

int segfds_open(struct devs *d, struct segfds **ret)
{
    struct segfds *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->devs = d;
    s->most = (unsigned)min_u64(SEGFD_MAX, io_files_max() / 4);
    lock_init(&s->lock, "segfds", RANK_SEGFD, false);
    list_init(&s->lru);
    *ret = s;
    return 0;
}

static void segfd_free(struct segfd *f)
{
    if (!f)
        return;
    io_close(f->fd);
    free(f);
}

void segfds_close(struct segfds *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < TABLE_SIZE; i++) {
        for (struct segfd *f = s->table[i], *next; f; f = next) {
            next = f->next;
            assert(f->refs == 0);
            segfd_free(f);
        }
    }
    lock_destroy(&s->lock);
    free(s);
}

static unsigned slot_of(const struct segfile_id *id)
{
    uint8_t raw[24];
    put_le64(raw, id->ino);
    put_le64(raw + 8, id->base);
    put_le32(raw + 16, id->version);
    put_le32(raw + 20, id->device);
    return (unsigned)(hash64(raw, sizeof raw) % TABLE_SIZE);
}

static bool same_file(const struct segfile_id *a, const struct segfile_id *b)
{
    return a->ino == b->ino && a->base == b->base && a->version == b->version &&
           a->device == b->device;
}

static struct segfd *find(struct segfds *s, const struct segfile_id *id, bool direct)
{
    assert(lock_is_mine(&s->lock));
    for (struct segfd *f = s->table[slot_of(id)]; f; f = f->next)
        if (f->direct == direct && same_file(&f->id, id))
            return f;
    return NULL;
}

static struct segfd *pin(struct segfd *f)
{
    if (f && f->refs++ == 0)
        list_del(&f->lru);
    return f;
}

static void unhook(struct segfds *s, struct segfd *f)
{
    struct segfd **at = &s->table[slot_of(&f->id)];
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    f->next = NULL;
    list_del(&f->lru);
    s->n--;
}

/* Takes the oldest idle descriptor out when there are more than `bound`; the caller frees it. */
static struct segfd *take_idle(struct segfds *s, unsigned bound)
{
    assert(lock_is_mine(&s->lock));
    if (s->n <= bound || list_empty(&s->lru))
        return NULL;
    struct segfd *f = list_entry(s->lru.next, struct segfd, lru);
    unhook(s, f);
    return f;
}

/* Closes idle descriptors down to `bound`. */
static void trim(struct segfds *s, unsigned bound)
{
    struct segfd *f;
    do {
        lock_acquire(&s->lock);
        f = take_idle(s, bound);
        lock_release(&s->lock);
        segfd_free(f);
    } while (f);
}

int segfd_get(struct segfds *s, const struct segfile_id *id, bool direct, struct segfd **ret)
{
    struct dev *v = dev_get(s->devs, id->device);
    if (!v)
        return -ENODEV;
    uint64_t unlinks;
    {
        LOCK_SCOPE(&s->lock);
        struct segfd *f = pin(find(s, id, direct));
        if (f) {
            *ret = f;
            return 0;
        }
        unlinks = s->unlinks;
    }

    struct segfd *mine = calloc(1, sizeof *mine);
    if (!mine)
        return -ENOMEM;
    char path[SEG_PATH_BYTES];
    seg_path(id->ino, id->base, id->version, path);
    mine->fd = seg_open_read(v, path, direct, &mine->mem, &mine->off);
    if (mine->fd == -EMFILE || mine->fd == -ENFILE) {
        trim(s, 0);
        mine->fd = seg_open_read(v, path, direct, &mine->mem, &mine->off);
    }
    if (mine->fd < 0) {
        int r = mine->fd;
        free(mine);
        if (dev_err_is_bad(r))
            dev_mark_failed(v, "opening a segment for reading", r);
        return r;
    }
    mine->id = *id;
    mine->direct = direct;
    mine->devs = s->devs;
    mine->refs = 1;
    list_init(&mine->lru);

    struct segfd *spare = NULL, *old = NULL;
    {
        LOCK_SCOPE(&s->lock);
        struct segfd *f = pin(find(s, id, direct));
        if (f) {
            spare = mine;
            mine = f;
        } else if (s->unlinks != unlinks) {
            mine->doomed = true; /* perhaps this very file: it must not stay open unnoticed */
        } else {
            struct segfd **at = &s->table[slot_of(id)];
            mine->next = *at;
            *at = mine;
            s->n++;
            old = take_idle(s, s->most);
        }
    }
    segfd_free(spare);
    segfd_free(old);
    *ret = mine;
    return 0;
}

void segfd_put(struct segfds *s, struct segfd *f)
{
    struct segfd *gone = NULL;
    {
        LOCK_SCOPE(&s->lock);
        assert(f->refs > 0);
        if (--f->refs > 0)
            return;
        if (f->doomed) {
            gone = f;
        } else {
            list_add_tail(&s->lru, &f->lru);
            gone = take_idle(s, s->most);
        }
    }
    segfd_free(gone);
}

int segfd_read(struct segfd *f, uint64_t pos, void *buf, size_t len)
{
    uint64_t at;
    if (add_u64(pos, f->id.header_bytes, &at) || at + len < at || at + len > INT64_MAX)
        return -ENODATA;
    int r;
    if (f->mem) {
        r = seg_read_direct(f->fd, f->mem, f->off, at, buf, len);
    } else {
        r = io_pread_full(f->fd, buf, len, at);
        (void)io_drop(f->fd, 0, 0); /* all of it: the kernel read ahead of us too */
    }
    if (r == 0)
        counter_add(f->devs->read, len);
    return r;
}

int segfd_raw(struct segfd *f, uint64_t *ret_data_off)
{
    *ret_data_off = f->id.header_bytes;
    return f->fd;
}

/* ---- removing ---- */

/* Takes both kinds of descriptors of the file out of the table. */
static void forget_file(struct segfds *s, const struct segfile_id *id)
{
    for (int direct = 0; direct < 2; direct++) {
        struct segfd *gone = NULL;
        {
            LOCK_SCOPE(&s->lock);
            s->unlinks++;
            struct segfd *f = find(s, id, direct);
            if (f) {
                unhook(s, f);
                if (f->refs > 0)
                    f->doomed = true;
                else
                    gone = f;
            }
        }
        segfd_free(gone);
    }
}

int segfile_unlink(struct devs *d, struct segfds *s, const struct segfile_id *id)
{
    struct dev *v = dev_get(d, id->device);
    if (!v)
        return -ENODEV;
    char path[SEG_PATH_BYTES];
    uint64_t bytes = 0;
    int r = segfile_stat(d, id, &bytes, NULL);
    if (r == 0) {
        seg_path(id->ino, id->base, id->version, path);
        r = io_unlink(v->dirfd, path, 0);
        if (r == 0)
            dev_account(d, id->device, -(int64_t)bytes);
    }
    if (r == 0 || r == -ENOENT)
        seg_failure_over(v, id->ino, id->base, id->version);
    if (s)
        forget_file(s, id);
    return r == -ENOENT ? 0 : r;
}
