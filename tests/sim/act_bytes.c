/* act_bytes.c: what users do to the bytes of files: appends, writes anywhere, truncates, and what must be
 * refused. */
#include "tests/sim/act_int.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"
#include "fs/seg/dev.h"

static bool nearly_full(struct world *w, uint64_t n)
{
    for (unsigned k = 0; k < devs_count(w->v->devs); k++) {
        struct dev_info info;
        devs_info(w->v->devs, k, &info);
        if ((double)(info.used + n + 64 * KiB) > 0.80 * (double)info.budget)
            return true;
    }
    return false;
}

static void fill(struct world *w, uint8_t *p, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += 8) {
        uint64_t x = rnd64(w);
        memcpy(p + at, &x, n - at < 8 ? n - at : 8);
    }
}

static void patch_add(struct mfile *f, uint64_t off, const uint8_t *buf, uint64_t len)
{
    struct patch *more = realloc(f->patch, (f->patches + 1) * sizeof *more);
    assert(more);
    f->patch = more;
    struct patch *p = &f->patch[f->patches++];
    *p = (struct patch){.off = off, .len = len};
    if (buf) {
        p->buf = malloc(len + 1);
        memcpy(p->buf, buf, len);
    }
}

/* Broker: the disk failed a write, and a part of it may have changed bytes that were there. Which ones is
 * asked at once; a file that cannot answer is left alone until the next crash. */
static void write_failed(struct world *w, struct mfile *f, struct inode *i, uint64_t off,
                         const uint8_t *buf, uint64_t n)
{
    n = off < f->len ? min_u64(n, f->len - off) : 0;
    if (n == 0)
        return;
    patch_add(f, off, buf, n);
    uint8_t *is = malloc(n);
    if (read_now(w, i, off, is, n) != (int64_t)n || simdisk_frozen(w->disk)) {
        f->blurred = true;
    } else {
        for (uint64_t at = 0; at < n; at++)
            if (is[at] != buf[at] && is[at] != f->bytes[off + at])
                sim_fail(w, "byte %llu of %llx after a write that failed is %02x",
                         (unsigned long long)(off + at), (unsigned long long)f->ino, is[at]);
        memcpy(f->bytes + off, is, n);
        patch_add(f, off, is, n);
    }
    free(is);
}

/* One WRITE request. Returns what data_write_begin said; *ret_done bytes are acknowledged. */
static int write_piece(struct world *w, struct mfile *f, struct inode *i, uint64_t fh, uint64_t off,
                       uint8_t *buf, size_t n, size_t *ret_done)
{
    struct data_write wr = {.i = i, .fh = fh, .off = off, .buf = buf, .len = n};
    bool full = nearly_full(w, n);
    model_grow(f, off + n);
    int r = data_write_begin(w->v->data, &wr);
    *ret_done = r == 0 ? wr.done : 0;
    if (r == 0)
        data_write_end(w->v->data, &wr);
    bool frozen = simdisk_frozen(w->disk);
    if (w->broker) {
        if (*ret_done) {
            memcpy(f->bytes + off, buf, *ret_done);
            f->len = max_u64(f->len, off + *ret_done);
            patch_add(f, off, buf, *ret_done);
        }
        if (*ret_done < n && frozen) {
            patch_add(f, off, buf, n);
            f->blurred = true;
        } else if (*ret_done < n && w->disk_trouble) {
            write_failed(w, f, i, off + *ret_done, buf + *ret_done, n - *ret_done);
        }
        f->max = f->len;
    } else {
        memcpy(f->bytes + off, buf, n);
        f->len = off + *ret_done;
        f->max = frozen ? off + n : f->len;
    }
    w->count.writes++;
    w->written += *ret_done;
    if (*ret_done == n || explained(w, r) || (w->disk_trouble && *ret_done > 0))
        return r;
    if ((r == -ENOSPC || (r == 0 && *ret_done > 0)) && full)
        return r;
    if (w->broker && (r == -EAGAIN || (r == 0 && *ret_done > 0)))
        return r;
    sim_fail(w, "write of %zu at %llu to %llx: %s, %zu written", n, (unsigned long long)off,
             (unsigned long long)f->ino, err_name(r), *ret_done);
}

static void append(struct world *w, struct mfile *f, struct inode *i, uint64_t fh, uint64_t n)
{
    if (f->blurred)
        return;
    uint64_t before = f->len;
    uint8_t *buf = malloc(FUSE_IO_BYTES_MAX);
    int r = 0;
    size_t done = 1, part = 1;
    for (; n && r == 0 && done == part; n -= done) {
        part = (size_t)min_u64(n, FUSE_IO_BYTES_MAX);
        fill(w, buf, part);
        r = write_piece(w, f, i, fh, f->len, buf, part, &done);
    }
    free(buf);
    sim_note(w, "append to %llx: %llu..%llu: %s", (unsigned long long)f->ino,
             (unsigned long long)before, (unsigned long long)f->len, err_name(r));
}

void act_append(struct world *w, struct mfile *f, uint64_t n)
{
    struct inode *i;
    int r = inode_get(w->v->ns, f->ino, &i);
    if (r < 0) {
        if (!explained(w, r))
            sim_fail(w, "inode %llx: %s", (unsigned long long)f->ino, err_name(r));
        return;
    }
    append(w, f, i, 0, n);
    inode_put(w->v->ns, i);
}

static uint64_t pick_length(struct world *w)
{
    switch (rnd(w, 8)) {
    case 0:
        return 1;
    case 1:
        return 4096;
    case 2:
        return 1 + rnd(w, 3 * MiB);
    case 3:
        return 256 * KiB;
    default:
        return 1 + rnd(w, 60000);
    }
}

enum { WRITTEN_MAX = 96 * MiB, FILE_BYTES_MAX = 12 * MiB };

void do_append(struct world *w, bool by_handle)
{
    uint64_t n = pick_length(w);
    if (w->written > WRITTEN_MAX)
        return;
    if (!by_handle) {
        struct mfile *f = pick_file(w);
        if (f && f->len + n < FILE_BYTES_MAX)
            act_append(w, f, n);
        return;
    }
    struct mhandle *h = &w->handle[rnd(w, HANDLES_MAX)];
    if (h->i && h->f->len + n < FILE_BYTES_MAX)
        append(w, h->f, h->i, h->fh, n);
}

int act_write(struct world *w, struct mfile *f, uint64_t off, size_t n)
{
    struct inode *i;
    size_t done = 0;
    int r = inode_get(w->v->ns, f->ino, &i);
    if (r < 0)
        return r;
    uint8_t *buf = malloc(n);
    fill(w, buf, n);
    r = write_piece(w, f, i, 0, off, buf, n, &done);
    free(buf);
    inode_put(w->v->ns, i);
    sim_note(w, "write to %llx at %llu+%zu: %s %zu", (unsigned long long)f->ino,
             (unsigned long long)off, n, err_name(r), done);
    if (r == -EAGAIN)
        act_command(w, TIER_WARM, f->ino);
    return r < 0 || done == n ? r : -EAGAIN;
}

static void truncated(struct mfile *f, uint64_t off)
{
    model_grow(f, off);
    if (off < f->len)
        memset(f->bytes + off, 0, f->len - off);
    f->len = f->max = off;
    patch_add(f, off, NULL, 0);
}

int act_truncate(struct world *w, struct mfile *f, uint64_t off)
{
    struct inode *i;
    struct stat st;
    int r = inode_get(w->v->ns, f->ino, &i);
    if (r < 0)
        return r;
    r = data_truncate(w->v->data, i, off, NULL);
    sim_note(w, "truncate %llx from %llu to %llu: %s", (unsigned long long)f->ino,
             (unsigned long long)f->len, (unsigned long long)off, err_name(r));
    if (r == 0) {
        truncated(f, off);
    } else if (r == -EAGAIN) {
        data_stat(w->v->data, i, &st);
        if ((uint64_t)st.st_size != f->len)
            sim_fail(w, "a truncate that said EAGAIN left size %lld of %llu", (long long)st.st_size,
                     (unsigned long long)f->len);
        act_command(w, TIER_WARM, f->ino);
    } else if (explained(w, r)) {
        patch_add(f, off, NULL, 0);
        f->blurred = true;
    } else {
        sim_fail(w, "truncate: %s", err_name(r));
    }
    inode_put(w->v->ns, i);
    return r;
}

static void refused(struct world *w, struct mfile *f, uint64_t off, size_t n)
{
    struct inode *i;
    uint8_t buf[20000] = {0};
    if (inode_get(w->v->ns, f->ino, &i) < 0)
        return;
    struct data_write wr = {.i = i, .off = off, .buf = buf, .len = n};
    int r = off == f->len ? -EPERM : data_write_begin(w->v->data, &wr);
    if (r != -EPERM && !explained(w, r))
        sim_fail(w, "a write at %llu of %llu: %s", (unsigned long long)off,
                 (unsigned long long)f->len, err_name(r));
    r = data_truncate(w->v->data, i, off, NULL);
    if (r != (off == f->len ? 0 : -EPERM))
        sim_fail(w, "truncate: %s", err_name(r));
    inode_put(w->v->ns, i);
}

void do_refused(struct world *w)
{
    struct mfile *f = pick_file(w);
    if (!f || f->blurred || f->reading)
        return;
    size_t n = 1 + rnd(w, 20000);
    uint64_t off = rnd(w, (uint32_t)f->len + 30000);
    if (!w->broker)
        refused(w, f, off, n);
    else if (rnd(w, 3) == 0)
        (void)act_truncate(w, f, off);
    else if (off + n < FILE_BYTES_MAX)
        (void)act_write(w, f, off, n);
}
