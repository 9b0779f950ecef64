/* segdir.h: a device in a temporary directory, for tests of segment files. */
#ifndef SLUICE_TEST_SEGDIR_H
#define SLUICE_TEST_SEGDIR_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/seg/segfile.h"
#include "fs/seg/segfmt.h"

static const uint8_t VOLUME[16] = "0123456789abcdef";

struct segdir {
    char path[64];
    struct devs *devs;
    uint32_t id;
};

static inline void segdir_open(struct segdir *t)
{
    char why[256] = "";
    struct dev_conf c = {.path = t->path};
    uint32_t id = t->id;
    int r = devs_open(VOLUME, &c, 1, true, &id, NULL, &t->devs, why, sizeof why);
    cr_assert_eq(r, 0, "%s", why);
    t->id = id;
}

static inline void segdir_make(struct segdir *t)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(t->path, sizeof t->path, "%s/sluice-seg-XXXXXX", tmp ? tmp : "/var/tmp");
    cr_assert_not_null(mkdtemp(t->path));
    t->id = 0;
    segdir_open(t);
}

static inline void segdir_done(struct segdir *t)
{
    char cmd[96];
    devs_close(t->devs);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", t->path);
    cr_assert_eq(system(cmd), 0);
}

static inline struct segfile_id segdir_id(const struct segdir *t, uint64_t ino)
{
    return (struct segfile_id){.topic = 7, .ino = ino, .base = 4096, .version = 1, .device = t->id};
}

/* A descriptor of the device file itself, to damage it. */
static inline int segdir_raw(const struct segdir *t, const struct segfile_id *id)
{
    char rel[SEG_PATH_BYTES], path[160];
    seg_path(id->ino, id->base, id->version, rel);
    snprintf(path, sizeof path, "%s/%s", t->path, rel);
    int fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0, "%s", path);
    return fd;
}

static inline uint8_t segdir_byte(uint64_t pos)
{
    uint64_t x = pos * 0x9e3779b97f4a7c15ull;
    return (uint8_t)(x >> 40 ^ x >> 17);
}

static inline void segdir_fill(uint8_t *p, uint64_t pos, size_t len)
{
    for (size_t i = 0; i < len; i++)
        p[i] = segdir_byte(pos + i);
}

/* Appends and hashes `len` bytes of the pattern. */
static inline void segdir_append(struct segfile *s, size_t len)
{
    uint8_t *p = malloc(len + 1);
    size_t done;
    uint64_t pos = segfile_len(s);
    segdir_fill(p, pos, len);
    cr_assert_eq(segfile_append(s, p, len, &done), 0);
    cr_assert_eq(done, len);
    segfile_hash(s, pos, p, len);
    free(p);
}

/* All data is the pattern. */
static inline void segdir_check(struct segfile *s)
{
    size_t len = segfile_len(s);
    uint8_t *p = malloc(len + 1);
    cr_assert_eq(segfile_read(s, 0, p, len), 0);
    for (size_t i = 0; i < len; i++)
        if (p[i] != segdir_byte(i))
            cr_assert_fail("byte %zu of %zu differs", i, len);
    free(p);
}

static inline struct segfile *segdir_create(struct segdir *t, struct segfile_id *id, uint64_t capacity)
{
    struct segfile *s;
    cr_assert_eq(segfile_create(t->devs, VOLUME, id, capacity, &s), 0);
    return s;
}

static inline struct segfile *segdir_reopen(struct segdir *t, const struct segfile_id *id, bool trusted,
                              uint64_t *cut)
{
    struct segfile *s;
    cr_assert_eq(segfile_reopen(t->devs, VOLUME, id, trusted, &s, cut), 0);
    return s;
}

static inline void segdir_seal_matches(struct segfile *s)
{
    uint64_t *hashes;
    size_t n, len = segfile_len(s);
    cr_assert_eq(segfile_seal(s, &hashes, &n), 0);
    cr_assert_eq(n, (len + BLOCK_BYTES - 1) / BLOCK_BYTES);
    uint8_t *p = malloc(len + 1);
    cr_assert_eq(segfile_read(s, 0, p, len), 0);
    for (size_t b = 0; b < n; b++) {
        size_t at = b * BLOCK_BYTES;
        cr_assert_eq(hashes[b], hash64(p + at, min_u64(BLOCK_BYTES, len - at)), "block %zu", b);
    }
    free(p);
    free(hashes);
}

#endif
