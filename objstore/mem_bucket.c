/* mem_bucket.c: what the memory store keeps, and what requests do to it; see mem.h.
 *
 * A bucket is an array of slots ordered by key. A slot is never removed: a deleted object leaves its
 * slot with data == NULL, so that `puts` can prove that a key was used once. Uploads in progress are
 * a list. No lock: the bucket belongs to the stepping thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/list.h"
#include "fs/base/log.h"
#include "objstore/layer.h"
#include "objstore/mem_bucket.h"

struct slot {
    char *key;
    uint8_t *data; /* NULL: no such object now */
    uint64_t len;
    char etag[OBJ_ETAG_MAX];
    int64_t modified_ms;
    unsigned puts;
};

struct part {
    unsigned no;
    uint8_t *data;
    uint64_t len;
    char etag[40];
};

struct upload {
    struct list link;
    char *key, id[24];
    int64_t started_ms;
    struct part *part;
    unsigned n;
};

struct mem_bucket {
    struct slot *slot;
    unsigned n, cap;
    struct list uploads;
    uint64_t next_id;
    unsigned weak;
};

static int64_t wall_ms(void)
{
    return clock_wall_ns() / NS_PER_MS;
}

/* The index of `key`, or where it would be inserted. */
static bool slot_find(struct mem_bucket *b, const char *key, unsigned *ret)
{
    unsigned lo = 0, hi = b->n;
    while (lo < hi) {
        unsigned mid = lo + (hi - lo) / 2;
        int c = strcmp(b->slot[mid].key, key);
        if (c == 0) {
            *ret = mid;
            return true;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *ret = lo;
    return false;
}

static struct slot *slot_get(struct mem_bucket *b, const char *key)
{
    unsigned i;
    return slot_find(b, key, &i) && b->slot[i].data ? &b->slot[i] : NULL;
}

static char *copy_text(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(layer_alloc(n), s, n);
}

/* Takes over `data`. */
static struct slot *slot_put(struct mem_bucket *b, const char *key, uint8_t *data, uint64_t len,
                             const char *etag)
{
    unsigned i;
    if (!slot_find(b, key, &i)) {
        if (b->n == b->cap) {
            b->cap = b->cap ? b->cap * 2 : 64;
            b->slot = realloc(b->slot, b->cap * sizeof *b->slot);
            if (!b->slot)
                abort();
        }
        memmove(b->slot + i + 1, b->slot + i, (b->n - i) * sizeof *b->slot);
        memset(&b->slot[i], 0, sizeof b->slot[i]);
        b->slot[i].key = copy_text(key);
        b->n++;
    }
    struct slot *s = &b->slot[i];
    free(s->data);
    s->data = data;
    s->len = len;
    snprintf(s->etag, sizeof s->etag, "%s", etag);
    s->modified_ms = wall_ms();
    s->puts++;
    return s;
}

/* Gathers the body. NULL: a file range could not be read, r->err says why. */
static uint8_t *body_take(struct obj_req *r, uint64_t *ret_len)
{
    uint64_t len = obj_body_len(r), at = 0;
    uint8_t *p = layer_alloc(len + 1);
    for (unsigned i = 0; i < r->body_n; i++) {
        const struct obj_body *b = &r->body[i];
        if (b->mem) {
            memcpy(p + at, b->mem, b->len);
        } else if (b->len) {
            int e = io_pread_full(b->fd, p + at, b->len, b->off);
            if (e < 0) {
                layer_fail(r, -EIO, false, err_name(e), "the body could not be read");
                free(p);
                return NULL;
            }
        }
        at += b->len;
    }
    *ret_len = len;
    return p;
}

static bool sum_ok(struct mem_bucket *b, struct obj_req *r, const uint8_t *p, uint64_t len)
{
    uint8_t sum[SHA256_BYTES];
    if (!(r->flags & OBJ_HAS_SHA256) || (b->weak & MEM_NO_CHECKSUM))
        return true;
    sha256_once(p, len, sum);
    if (!memcmp(sum, r->sha256, sizeof sum))
        return true;
    layer_fail(r, -EBADMSG, false, "BadDigest", "the body does not have the SHA-256 that was sent");
    return false;
}

/* May the object under r->key be created or replaced? */
static bool cond_ok(struct mem_bucket *b, struct obj_req *r)
{
    const struct slot *s = slot_get(b, r->key);
    if ((r->flags & OBJ_IF_ABSENT) && s && !(b->weak & MEM_NO_IF_ABSENT)) {
        layer_fail(r, -EEXIST, false, "PreconditionFailed", "the object exists");
        r->diag.http_status = 412;
        return false;
    }
    if ((r->flags & OBJ_IF_MATCH) && !(b->weak & MEM_NO_IF_MATCH)) {
        if (!s) {
            layer_fail(r, -ENOENT, false, "NoSuchKey", "the object does not exist");
            r->diag.http_status = 404;
            return false;
        }
        if (strcmp(s->etag, r->etag) != 0) {
            layer_fail(r, -EEXIST, false, "PreconditionFailed", "the object has another ETag");
            r->diag.http_status = 412;
            return false;
        }
    }
    return true;
}

static void fill_info(struct obj_req *r, const struct slot *s)
{
    r->info.size = s->len;
    snprintf(r->info.etag, sizeof r->info.etag, "%s", s->etag);
}

static void no_key(struct obj_req *r)
{
    layer_fail(r, -ENOENT, false, "NoSuchKey", "the object does not exist");
    r->diag.http_status = 404;
}

static void do_put(struct mem_bucket *b, struct obj_req *r)
{
    uint64_t len;
    char etag[40];
    uint8_t *p = body_take(r, &len);
    if (!p)
        return;
    if (!sum_ok(b, r, p, len) || !cond_ok(b, r)) {
        free(p);
        return;
    }
    struct hash128 h = hash128(p, len);
    snprintf(etag, sizeof etag, "\"%016llx%016llx\"", (unsigned long long)h.hi,
             (unsigned long long)h.lo);
    fill_info(r, slot_put(b, r->key, p, len, etag));
}

static void do_get(struct mem_bucket *b, struct obj_req *r)
{
    struct slot *s = slot_get(b, r->key);
    uint64_t end;
    if (!s) {
        no_key(r);
        return;
    }
    if ((r->flags & OBJ_IF_MATCH) && strcmp(s->etag, r->etag) != 0) {
        layer_fail(r, -EEXIST, false, "PreconditionFailed", "the object has another ETag");
        r->diag.http_status = 412;
        return;
    }
    if (add_u64(r->off, r->len, &end) || end > s->len) {
        layer_fail(r, -EBADMSG, false, "InvalidRange", "the range does not lie inside the object");
        r->diag.http_status = 416;
        return;
    }
    uint64_t from = (b->weak & MEM_NO_RANGE) ? 0 : r->off, left = r->len;
    fill_info(r, s);
    for (unsigned i = 0; i < r->iov_n && left; i++) {
        uint64_t n = min_u64(r->iov[i].iov_len, left);
        memcpy(r->iov[i].iov_base, s->data + from, n);
        from += n;
        left -= n;
    }
    if (r->progress)
        r->progress(r, r->len);
}

static void do_head(struct mem_bucket *b, struct obj_req *r)
{
    const struct slot *s = slot_get(b, r->key);
    if (s)
        fill_info(r, s);
    else
        no_key(r);
}

static void do_list(struct mem_bucket *b, struct obj_req *r)
{
    const char *prefix = r->key ? r->key : "", *after = r->token ? r->token : r->start_after;
    unsigned max = r->max_keys ? r->max_keys : 1000, i, rows = 0;
    if (after && strcmp(after, prefix) > 0)
        i = slot_find(b, after, &i) ? i + 1 : i;
    else
        (void)slot_find(b, prefix, &i);
    const char *last = NULL;
    for (; i < b->n && !strncmp(b->slot[i].key, prefix, strlen(prefix)); i++) {
        const struct slot *s = &b->slot[i];
        if (!s->data)
            continue;
        if (rows == max) {
            r->next_token = copy_text(last);
            return;
        }
        rows++;
        last = s->key;
        r->each(r,
                &(struct obj_entry){.key = s->key, .size = s->len, .modified_ms = s->modified_ms});
    }
}

static void slot_delete(struct mem_bucket *b, const char *key)
{
    struct slot *s = slot_get(b, key);
    if (s) {
        free(s->data);
        s->data = NULL;
        s->len = 0;
    }
}

static void do_delete(struct mem_bucket *b, struct obj_req *r)
{
    const struct slot *s = slot_get(b, r->key);
    if (s && (r->flags & OBJ_IF_MATCH) && strcmp(s->etag, r->etag) != 0) {
        layer_fail(r, -EEXIST, false, "PreconditionFailed", "the object has another ETag");
        r->diag.http_status = 412;
        return;
    }
    slot_delete(b, r->key);
}

static void upload_free(struct upload *u)
{
    list_del(&u->link);
    for (unsigned i = 0; i < u->n; i++)
        free(u->part[i].data);
    free(u->part);
    free(u->key);
    free(u);
}

static struct upload *upload_find(struct mem_bucket *b, struct obj_req *r)
{
    list_each(&b->uploads, it)
    {
        struct upload *u = list_entry(it, struct upload, link);
        if (!strcmp(u->id, r->upload_id) && !strcmp(u->key, r->key))
            return u;
    }
    layer_fail(r, -ENOENT, false, "NoSuchUpload", "the upload does not exist");
    r->diag.http_status = 404;
    return NULL;
}

static void do_mp_create(struct mem_bucket *b, struct obj_req *r)
{
    struct upload *u = layer_alloc(sizeof *u);
    u->key = copy_text(r->key);
    u->started_ms = wall_ms();
    snprintf(u->id, sizeof u->id, "u%llu", (unsigned long long)++b->next_id);
    list_add_tail(&b->uploads, &u->link);
    r->new_upload_id = copy_text(u->id);
}

static void do_mp_part(struct mem_bucket *b, struct obj_req *r)
{
    uint64_t len;
    struct upload *u = upload_find(b, r);
    uint8_t *p = u ? body_take(r, &len) : NULL;
    if (!p)
        return;
    if (!sum_ok(b, r, p, len)) {
        free(p);
        return;
    }
    unsigned i = 0;
    while (i < u->n && u->part[i].no < r->part_no)
        i++;
    if (i == u->n || u->part[i].no != r->part_no) {
        u->part = realloc(u->part, (u->n + 1) * sizeof *u->part);
        if (!u->part)
            abort();
        memmove(u->part + i + 1, u->part + i, (u->n - i) * sizeof *u->part);
        u->n++;
    } else {
        free(u->part[i].data);
    }
    struct part *pt = &u->part[i];
    *pt = (struct part){.no = r->part_no, .data = p, .len = len};
    snprintf(pt->etag, sizeof pt->etag, "\"%016llx\"", (unsigned long long)hash64(p, len));
    snprintf(r->info.etag, sizeof r->info.etag, "%s", pt->etag);
    r->info.size = len;
}

static void do_mp_complete(struct mem_bucket *b, struct obj_req *r)
{
    struct upload *u = upload_find(b, r);
    uint64_t len = 0;
    if (!u)
        return;
    for (unsigned i = 0; i < r->parts_n; i++) {
        if (i >= u->n || u->part[i].no != i + 1 || strcmp(u->part[i].etag, r->part_etags[i])) {
            layer_fail(r, -EIO, false, "InvalidPart", "a part is missing or has another ETag");
            r->diag.http_status = 400;
            return;
        }
        if (i + 1 < r->parts_n && u->part[i].len < S3_PART_BYTES_MIN) {
            layer_fail(r, -EIO, false, "EntityTooSmall", "a part but the last is below 5 MiB");
            r->diag.http_status = 400;
            return;
        }
        len += u->part[i].len;
    }
    if (!cond_ok(b, r))
        return;
    uint8_t *p = layer_alloc(len + 1);
    uint64_t at = 0, sums[2] = {r->parts_n, 0};
    for (unsigned i = 0; i < r->parts_n; i++) {
        memcpy(p + at, u->part[i].data, u->part[i].len);
        at += u->part[i].len;
        sums[1] = hash64(u->part[i].etag, strlen(u->part[i].etag)) ^ (sums[1] << 1 | sums[1] >> 63);
    }
    char etag[40];
    snprintf(etag, sizeof etag, "\"%016llx-%u\"", (unsigned long long)hash64(sums, sizeof sums),
             r->parts_n);
    fill_info(r, slot_put(b, r->key, p, len, etag));
    upload_free(u);
}

static int upload_order(const void *a, const void *b)
{
    const struct upload *x = *(struct upload *const *)a, *y = *(struct upload *const *)b;
    int c = strcmp(x->key, y->key);
    return c ? c : strcmp(x->id, y->id);
}

static void do_mp_list(struct mem_bucket *b, struct obj_req *r)
{
    const char *prefix = r->key ? r->key : "";
    unsigned n = 0, cap = 0;
    list_each(&b->uploads, it) cap++;
    struct upload **all = layer_alloc((cap + 1) * sizeof(struct upload *));
    list_each(&b->uploads, it)
    {
        struct upload *u = list_entry(it, struct upload, link);
        if (!strncmp(u->key, prefix, strlen(prefix)))
            all[n++] = u;
    }
    qsort(all, n, sizeof *all, upload_order);
    for (unsigned i = 0; i < n; i++)
        r->each(r, &(struct obj_entry){.key = all[i]->key,
                                       .upload_id = all[i]->id,
                                       .modified_ms = all[i]->started_ms});
    free(all);
}

void mem_perform(struct mem_bucket *b, struct obj_req *r)
{
    switch (r->op) {
    case OBJ_PUT:
        do_put(b, r);
        break;
    case OBJ_GET:
        do_get(b, r);
        break;
    case OBJ_HEAD:
        do_head(b, r);
        break;
    case OBJ_LIST:
        do_list(b, r);
        break;
    case OBJ_DELETE:
        do_delete(b, r);
        break;
    case OBJ_DELETE_BATCH:
        for (unsigned i = 0; i < r->keys_n; i++)
            slot_delete(b, r->keys[i]);
        break;
    case OBJ_MP_CREATE:
        do_mp_create(b, r);
        break;
    case OBJ_MP_PART:
        do_mp_part(b, r);
        break;
    case OBJ_MP_COMPLETE:
        do_mp_complete(b, r);
        break;
    case OBJ_MP_ABORT:
        if (upload_find(b, r))
            upload_free(upload_find(b, r));
        else
            layer_clear(r); /* a missing upload is success */
        break;
    case OBJ_MP_LIST:
        do_mp_list(b, r);
        break;
    case OBJ_OP_COUNT:
        abort();
    }
}

int mem_bucket_open(struct mem_bucket **ret)
{
    struct mem_bucket *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    list_init(&b->uploads);
    *ret = b;
    return 0;
}

void mem_bucket_close(struct mem_bucket *b)
{
    if (!b)
        return;
    for (unsigned i = 0; i < b->n; i++) {
        free(b->slot[i].key);
        free(b->slot[i].data);
    }
    list_each_safe(&b->uploads, it, tmp) upload_free(list_entry(it, struct upload, link));
    free(b->slot);
    free(b);
}

const uint8_t *mem_object(struct objstore *os, const char *key, uint64_t *ret_len)
{
    const struct slot *s = slot_get(mem_bucket_of(os), key);
    if (!s)
        return NULL;
    if (ret_len)
        *ret_len = s->len;
    return s->data;
}

int mem_damage(struct objstore *os, const char *key, uint64_t off)
{
    struct slot *s = slot_get(mem_bucket_of(os), key);
    if (!s)
        return -ENOENT;
    if (off >= s->len)
        return -ERANGE;
    s->data[off] ^= 0x10;
    return 0;
}

int mem_lose(struct objstore *os, const char *key)
{
    if (!slot_get(mem_bucket_of(os), key))
        return -ENOENT;
    slot_delete(mem_bucket_of(os), key);
    return 0;
}

unsigned mem_puts(struct objstore *os, const char *key)
{
    struct mem_bucket *b = mem_bucket_of(os);
    unsigned i;
    return slot_find(b, key, &i) ? b->slot[i].puts : 0;
}

unsigned mem_count(struct objstore *os)
{
    struct mem_bucket *b = mem_bucket_of(os);
    unsigned n = 0;
    for (unsigned i = 0; i < b->n; i++)
        n += b->slot[i].data != NULL;
    return n;
}

const char *mem_key(struct objstore *os, unsigned n)
{
    struct mem_bucket *b = mem_bucket_of(os);
    for (unsigned i = 0; i < b->n; i++)
        if (b->slot[i].data && n-- == 0)
            return b->slot[i].key;
    return NULL;
}

void mem_weaken(struct objstore *os, unsigned flags)
{
    mem_bucket_of(os)->weak = flags;
}
