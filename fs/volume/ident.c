/* ident.c: see ident.h. */
#include "fs/volume/ident.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/hash.h"
#include "fs/base/io.h"

enum { MAGIC = 0x53564c53, IDENT_BYTES_MAX = 256 * 1024 }; /* "SLVS" */

void ident_done(struct ident *i)
{
    for (unsigned k = 0; k < DEVICES_MAX; k++) {
        free(i->path[k]);
        free(i->gone[k]);
        i->path[k] = i->gone[k] = NULL;
    }
    i->devices = i->removed = 0;
}

static unsigned caps_bits(const struct store_caps *c)
{
    return c->if_absent | c->if_match << 1 | c->checksum << 2 | c->range << 3;
}

static void wr_text(struct wr *w, const char *text)
{
    wr_u16(w, (uint16_t)strlen(text));
    wr_bytes(w, text, strlen(text));
}

uint32_t ident_next(const struct ident *i)
{
    uint32_t next = i->next_id ? i->next_id : 1;
    for (unsigned k = 0; k < i->devices; k++)
        if (i->id[k] >= next)
            next = i->id[k] + 1;
    return next;
}

int ident_store(int dirfd, const char *name, const struct ident *i)
{
    AUTO_FREE uint8_t *buf = malloc(IDENT_BYTES_MAX);
    if (!buf)
        return -ENOMEM;
    if (i->devices == 0 || i->devices > DEVICES_MAX)
        return -EINVAL;
    for (unsigned k = 0; k < i->devices; k++)
        if (!*i->path[k] || strlen(i->path[k]) > UINT16_MAX)
            return -ENAMETOOLONG;
    struct wr w = {.p = buf, .cap = IDENT_BYTES_MAX};
    wr_u32(&w, MAGIC);
    wr_u16(&w, 2);
    wr_u16(&w, (uint16_t)caps_bits(&i->caps));
    wr_u32(&w, 0); /* length, below */
    wr_u32(&w, i->node);
    wr_bytes(&w, i->volume, 16);
    wr_u64(&w, (uint64_t)i->created_ns);
    wr_u8(&w, i->profile);
    wr_u8(&w, (uint8_t)i->devices);
    wr_text(&w, i->url);
    wr_u32(&w, ident_next(i));
    for (unsigned k = 0; k < i->devices; k++) {
        wr_u32(&w, i->id[k]);
        wr_u64(&w, i->budget[k]);
        wr_u8(&w, i->draining[k]);
        wr_u64(&w, i->drain_total[k]);
        wr_text(&w, i->path[k]);
    }
    wr_u8(&w, (uint8_t)i->removed);
    for (unsigned k = 0; k < i->removed; k++)
        wr_text(&w, i->gone[k]);
    if (w.bad || w.len + 8 > IDENT_BYTES_MAX)
        return -ENAMETOOLONG;
    put_le32(buf + 8, (uint32_t)(w.len + 8));
    wr_u64(&w, hash64(buf, w.len));
    return io_replace_file(dirfd, name, buf, w.len, 0600);
}

static int rd_path(struct rd *r, char **ret)
{
    size_t n = rd_u16(r);
    const uint8_t *path = rd_room(r, n);
    if (!path || n == 0 || memchr(path, 0, n))
        return -EBADMSG;
    *ret = dup_text(path, n);
    return *ret ? 0 : -ENOMEM;
}

static int decode(const uint8_t *buf, size_t len, struct ident *v)
{
    struct rd r = {.p = buf, .len = len};
    if (len < 52 || rd_u32(&r) != MAGIC)
        return -EBADMSG;
    unsigned version = rd_u16(&r);
    if (version != 1 && version != 2)
        return -EPROTONOSUPPORT;
    unsigned caps = rd_u16(&r);
    if (rd_u32(&r) != len || get_le64(buf + len - 8) != hash64(buf, len - 8))
        return -EBADMSG;
    r.len -= 8;
    v->caps = (struct store_caps){caps & 1, caps & 2, caps & 4, caps & 8};
    v->node = rd_u32(&r);
    memcpy(v->volume, rd_room(&r, 16), 16);
    v->created_ns = (int64_t)rd_u64(&r);
    v->profile = rd_u8(&r);
    v->devices = rd_u8(&r);
    size_t n = rd_u16(&r);
    const uint8_t *url = rd_room(&r, n);
    if (!url || n >= sizeof v->url || memchr(url, 0, n) || v->devices == 0 ||
        v->devices > DEVICES_MAX || v->profile > 1)
        return -EBADMSG;
    memcpy(v->url, url, n);
    v->url[n] = 0;
    if (version > 1)
        v->next_id = rd_u32(&r);
    int e = 0;
    for (unsigned k = 0; e == 0 && k < v->devices; k++) {
        v->id[k] = rd_u32(&r);
        v->budget[k] = rd_u64(&r);
        unsigned flags = version > 1 ? rd_u8(&r) : 0;
        v->drain_total[k] = version > 1 ? rd_u64(&r) : 0;
        v->draining[k] = flags & 1;
        e = flags > 1 ? -EBADMSG : rd_path(&r, &v->path[k]);
    }
    v->removed = e == 0 && version > 1 ? rd_u8(&r) : 0;
    if (v->removed > DEVICES_MAX)
        return -EBADMSG;
    for (unsigned k = 0; e == 0 && k < v->removed; k++)
        e = rd_path(&r, &v->gone[k]);
    if (e < 0)
        return e;
    v->next_id = ident_next(v);
    return rd_left(&r) ? -EBADMSG : 0;
}

int ident_load(int dirfd, const char *name, struct ident *ret)
{
    AUTO_FREE char *buf = NULL;
    size_t len;
    int r = io_read_file(dirfd, name, IDENT_BYTES_MAX, &buf, &len);
    if (r < 0)
        return r;
    memset(ret, 0, sizeof *ret);
    r = decode((const uint8_t *)buf, len, ret);
    if (r < 0)
        ident_done(ret);
    return r;
}

/* ---- changing ---- */

static int find(char *const *list, unsigned n, const char *path)
{
    for (unsigned k = 0; k < n; k++)
        if (!strcmp(list[k], path))
            return (int)k;
    return -1;
}

int ident_find(const struct ident *i, const char *path)
{
    return find(i->path, i->devices, path);
}

int ident_find_gone(const struct ident *i, const char *path)
{
    return find(i->gone, i->removed, path);
}

static void forget_gone(struct ident *i, unsigned k)
{
    free(i->gone[k]);
    for (i->removed--; k < i->removed; k++)
        i->gone[k] = i->gone[k + 1];
    i->gone[i->removed] = NULL;
}

int ident_add(struct ident *i, const char *path, uint64_t budget, uint32_t id)
{
    unsigned k = i->devices;
    if (k == DEVICES_MAX)
        return -E2BIG;
    i->path[k] = strdup(path);
    if (!i->path[k])
        return -ENOMEM;
    i->id[k] = id;
    i->budget[k] = budget;
    i->draining[k] = false;
    i->drain_total[k] = 0;
    i->devices++;
    i->next_id = ident_next(i);
    int was = ident_find_gone(i, path);
    if (was >= 0)
        forget_gone(i, (unsigned)was);
    return 0;
}

void ident_remove(struct ident *i, unsigned k)
{
    if (i->removed == DEVICES_MAX)
        forget_gone(i, 0);
    i->next_id = ident_next(i);
    i->gone[i->removed++] = i->path[k];
    for (i->devices--; k < i->devices; k++) {
        i->id[k] = i->id[k + 1];
        i->budget[k] = i->budget[k + 1];
        i->draining[k] = i->draining[k + 1];
        i->drain_total[k] = i->drain_total[k + 1];
        i->path[k] = i->path[k + 1];
    }
    i->path[i->devices] = NULL;
}

int ident_copy(const struct ident *from, struct ident *ret)
{
    *ret = *from;
    bool good = true;
    for (unsigned k = 0; k < DEVICES_MAX; k++) {
        ret->path[k] = from->path[k] ? strdup(from->path[k]) : NULL;
        ret->gone[k] = from->gone[k] ? strdup(from->gone[k]) : NULL;
        good &= (!from->path[k] || ret->path[k]) && (!from->gone[k] || ret->gone[k]);
    }
    if (!good)
        ident_done(ret);
    return good ? 0 : -ENOMEM;
}
