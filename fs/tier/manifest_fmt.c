/* manifest_fmt.c: see manifest_fmt.h. */
#include "fs/tier/manifest_fmt.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"

enum { ROOT_MAGIC = 0x524d4c53, PAGE_MAGIC = 0x504d4c53, VERSION = 1 }; /* "SLMR", "SLMP" */
#define NO_VALUE UINT32_MAX

void manifest_root_done(struct manifest_root *r)
{
    free(r->pages);
    free(r->inline_buf);
    memset(r, 0, sizeof *r);
}

int manifest_root_encode(const struct manifest_root *r, uint8_t **ret, size_t *ret_len)
{
    size_t len = MANIFEST_ROOT_HEAD + (size_t)r->pages_n * MANIFEST_PAGE_REF + r->inline_len + 8;
    assert(len <= MANIFEST_BYTES_MAX && r->pages_n <= MANIFEST_PAGES_MAX);
    uint8_t *buf = malloc(len);
    if (!buf)
        return -ENOMEM;
    struct wr w = {.p = buf, .cap = len};
    wr_u32(&w, ROOT_MAGIC);
    wr_u16(&w, VERSION);
    wr_u16(&w, 0);
    wr_u32(&w, (uint32_t)len);
    wr_u32(&w, r->node);
    wr_bytes(&w, r->volume, 16);
    wr_u64(&w, r->topic);
    wr_u64(&w, r->epoch);
    wr_u64(&w, r->seq);
    wr_bytes(&w, r->nonce, 16);
    wr_u32(&w, r->pages_n);
    wr_u32(&w, r->inline_len);
    wr_u32(&w, r->inline_n);
    wr_u32(&w, 0);
    for (uint32_t i = 0; i < r->pages_n; i++) {
        wr_u64(&w, r->pages[i].id);
        wr_u32(&w, r->pages[i].bytes);
        wr_u32(&w, r->pages[i].entries);
        wr_u64(&w, r->pages[i].hash);
    }
    wr_bytes(&w, r->inline_buf, r->inline_len);
    wr_u64(&w, hash64(buf, w.len));
    assert(!w.bad && w.len == len);
    *ret = buf;
    *ret_len = len;
    return 0;
}

static int count_entries(const uint8_t *buf, size_t len, uint32_t want)
{
    size_t pos = 0;
    struct manifest_entry e;
    uint32_t n = 0;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) > 0)
        n++;
    return r < 0 ? r : n == want ? 0 : -EBADMSG;
}

int manifest_root_decode(const uint8_t *buf, size_t len, struct manifest_root *ret)
{
    memset(ret, 0, sizeof *ret);
    struct rd r = {.p = buf, .len = len};
    if (len < MANIFEST_ROOT_HEAD + 8 || len > MANIFEST_BYTES_MAX || rd_u32(&r) != ROOT_MAGIC)
        return -EBADMSG;
    if (rd_u16(&r) != VERSION)
        return -EPROTONOSUPPORT;
    (void)rd_u16(&r);
    if (rd_u32(&r) != len || get_le64(buf + len - 8) != hash64(buf, len - 8))
        return -EBADMSG;
    struct manifest_root v = {.node = rd_u32(&r)};
    memcpy(v.volume, rd_room(&r, 16), 16);
    v.topic = rd_u64(&r);
    v.epoch = rd_u64(&r);
    v.seq = rd_u64(&r);
    memcpy(v.nonce, rd_room(&r, 16), 16);
    v.pages_n = rd_u32(&r);
    v.inline_len = rd_u32(&r);
    v.inline_n = rd_u32(&r);
    (void)rd_u32(&r);
    if (v.pages_n > MANIFEST_PAGES_MAX ||
        MANIFEST_ROOT_HEAD + (uint64_t)v.pages_n * MANIFEST_PAGE_REF + v.inline_len + 8 != len)
        return -EBADMSG;
    v.pages = calloc(v.pages_n + 1, sizeof *v.pages);
    v.inline_buf = malloc(v.inline_len + 1);
    int e = v.pages && v.inline_buf ? 0 : -ENOMEM;
    for (uint32_t i = 0; e == 0 && i < v.pages_n; i++) {
        v.pages[i].id = rd_u64(&r);
        v.pages[i].bytes = rd_u32(&r);
        v.pages[i].entries = rd_u32(&r);
        v.pages[i].hash = rd_u64(&r);
    }
    if (e == 0) {
        memcpy(v.inline_buf, rd_room(&r, v.inline_len), v.inline_len);
        e = count_entries(v.inline_buf, v.inline_len, v.inline_n);
    }
    if (e < 0) {
        manifest_root_done(&v);
        return e;
    }
    *ret = v;
    return 0;
}

int manifest_page_encode(const uint8_t volume[16], uint64_t topic, uint64_t id,
                         const uint8_t *entries, size_t n_bytes, uint32_t n, uint8_t **ret,
                         size_t *ret_len)
{
    size_t len = MANIFEST_PAGE_HEAD + n_bytes + 8;
    assert(len <= MANIFEST_BYTES_MAX);
    uint8_t *buf = malloc(len);
    if (!buf)
        return -ENOMEM;
    struct wr w = {.p = buf, .cap = len};
    wr_u32(&w, PAGE_MAGIC);
    wr_u16(&w, VERSION);
    wr_u16(&w, 0);
    wr_u32(&w, (uint32_t)len);
    wr_u32(&w, n);
    wr_bytes(&w, volume, 16);
    wr_u64(&w, topic);
    wr_u64(&w, id);
    wr_bytes(&w, entries, n_bytes);
    wr_u64(&w, hash64(buf, w.len));
    assert(!w.bad);
    *ret = buf;
    *ret_len = len;
    return 0;
}

int manifest_page_decode(const uint8_t *buf, size_t len, const uint8_t volume[16], uint64_t topic,
                         uint64_t id, const uint8_t **ret_entries, size_t *ret_len, uint32_t *ret_n)
{
    struct rd r = {.p = buf, .len = len};
    if (len < MANIFEST_PAGE_HEAD + 8 || len > MANIFEST_BYTES_MAX || rd_u32(&r) != PAGE_MAGIC)
        return -EBADMSG;
    if (rd_u16(&r) != VERSION)
        return -EPROTONOSUPPORT;
    (void)rd_u16(&r);
    if (rd_u32(&r) != len || get_le64(buf + len - 8) != hash64(buf, len - 8))
        return -EBADMSG;
    uint32_t n = rd_u32(&r);
    if (memcmp(buf + 16, volume, 16) != 0 || get_le64(buf + 32) != topic ||
        get_le64(buf + 40) != id)
        return -EBADMSG;
    *ret_entries = buf + MANIFEST_PAGE_HEAD;
    *ret_len = len - MANIFEST_PAGE_HEAD - 8;
    *ret_n = n;
    return count_entries(*ret_entries, *ret_len, n);
}

int manifest_entry_add(uint8_t **buf, size_t *len, size_t *cap, const struct manifest_entry *e)
{
    size_t need = *len + 8 + e->klen + (e->val ? e->vlen : 0);
    if (need > *cap) {
        size_t grown = need * 2 + 1024;
        uint8_t *more = realloc(*buf, grown);
        if (!more)
            return -ENOMEM;
        *buf = more;
        *cap = grown;
    }
    struct wr w = {.p = *buf, .cap = *cap, .len = *len};
    wr_u16(&w, e->klen);
    wr_u16(&w, 0);
    wr_u32(&w, e->val ? e->vlen : NO_VALUE);
    wr_bytes(&w, e->key, e->klen);
    if (e->val)
        wr_bytes(&w, e->val, e->vlen);
    assert(!w.bad);
    *len = w.len;
    return 0;
}

int manifest_entry_next(const uint8_t *buf, size_t len, size_t *pos, struct manifest_entry *ret)
{
    if (*pos == len)
        return 0;
    struct rd r = {.p = buf, .len = len, .pos = *pos};
    struct manifest_entry e = {.klen = rd_u16(&r)};
    (void)rd_u16(&r);
    uint32_t vlen = rd_u32(&r);
    e.key = rd_room(&r, e.klen);
    if (vlen != NO_VALUE) {
        e.vlen = vlen;
        e.val = rd_room(&r, vlen);
    }
    if (r.bad || e.klen == 0)
        return -EBADMSG;
    *pos = r.pos;
    *ret = e;
    return 1;
}

void manifest_root_key(uint64_t topic, char *out, size_t cap)
{
    snprintf(out, cap, "topics/%016llx/manifest", (unsigned long long)topic);
}

void manifest_page_key(uint64_t topic, uint64_t id, char *out, size_t cap)
{
    snprintf(out, cap, "topics/%016llx/pages/%016llx", (unsigned long long)topic,
             (unsigned long long)id);
}
