/* objconform.h: the behaviour that all stores share, as checks over an open stack. Uses Criterion's
 * asserts; include it in a test program. Every check leaves the store empty. */
#ifndef SLUICE_TESTS_OBJCONFORM_H
#define SLUICE_TESTS_OBJCONFORM_H

#include "tests/support/objtest.h"

static inline void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((i * 2654435761u + seed * 40503u) >> 7);
}

static inline void c_put_get_head(struct objstore *os)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 262144, 1048576, 1048577, 3000001};
    uint8_t *a = malloc(3000001), *b = malloc(3000001);
    struct obj_req r;
    struct obj_info info;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        fill(a, sizes[i], (unsigned)i);
        cr_assert_eq(ot_put(os, "a/size", a, sizes[i], OBJ_HAS_SHA256, NULL, &r), 0);
        cr_assert_eq(ot_head(os, "a/size", &info), 0);
        cr_assert_eq(info.size, sizes[i]);
        cr_assert_str_eq(info.etag, r.info.etag);
        cr_assert_eq(info.etag[0], '"');
        if (!sizes[i])
            continue;
        memset(b, 0xee, sizes[i]);
        cr_assert_eq(ot_get(os, "a/size", 0, b, sizes[i], &r), 0);
        cr_assert_eq(memcmp(a, b, sizes[i]), 0, "size %zu", sizes[i]);
        cr_assert_str_eq(info.etag, r.info.etag);
    }
    cr_assert_eq(ot_delete(os, "a/size", 0, NULL), 0);
    cr_assert_eq(ot_head(os, "a/size", &info), -ENOENT);
    cr_assert_eq(ot_get(os, "a/size", 0, b, 1, NULL), -ENOENT);
    cr_assert_eq(ot_delete(os, "a/size", 0, NULL), 0, "deleting what is not there is success");
    free(a);
    free(b);
}

static inline void c_ranges(struct objstore *os)
{
    static const struct {
        uint64_t off;
        size_t len;
    } cut[] = {{0, 1},           {1, 1},        {4095, 2},    {4096, 4096}, {5, 1000000},
               {262144, 262144}, {1048570, 20}, {1500000, 1}, {0, 1500001}, {1499999, 2}};
    const size_t n = 1500001;
    uint8_t *a = malloc(n), *b = malloc(n + 2);
    fill(a, n, 7);
    cr_assert_eq(ot_put(os, "r", a, n, 0, NULL, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(cut); i++) {
        struct obj_req r;
        memset(b, 0xee, cut[i].len + 1);
        cr_assert_eq(ot_get(os, "r", cut[i].off, b, cut[i].len, &r), 0);
        cr_assert_eq(memcmp(a + cut[i].off, b, cut[i].len), 0, "range %zu", i);
        cr_assert_eq(b[cut[i].len], 0xee, "nothing behind the range is written");
        cr_assert_eq(r.info.size, n);
    }
    cr_assert_lt(ot_get(os, "r", n, b, 1, NULL), 0);
    cr_assert_lt(ot_get(os, "r", n - 1, b, 2, NULL), 0);
    ot_delete(os, "r", 0, NULL);
    free(a);
    free(b);
}

/* Pieces of odd lengths and addresses, and of the sizes of pool frames. */
static inline void c_scatter(struct objstore *os)
{
    const size_t n = 2 * 1024 * 1024 + 12345;
    uint8_t *a = malloc(n), *b;
    struct iovec iov[64];
    unsigned k = 0;
    if (posix_memalign((void **)&b, 4096, n + 64 * 4096))
        abort();
    fill(a, n, 3);
    cr_assert_eq(ot_put(os, "s", a, n, OBJ_HAS_SHA256, NULL, NULL), 0);
    size_t at = 0;
    uint8_t *to = b;
    for (size_t want; at < n; at += want, k++) {
        want = k % 3 == 0 ? 262144 : k % 3 == 1 ? 4096 + 13 : 77777;
        if (want > n - at)
            want = n - at;
        iov[k] = (struct iovec){.iov_base = to, .iov_len = want};
        to += (want + 4095) / 4096 * 4096 + (k % 2);
    }
    struct ot_async g = {0};
    g.r = (struct obj_req){.op = OBJ_GET,
                           .key = "s",
                           .len = n,
                           .iov = iov,
                           .iov_n = k,
                           .done = ot_async_done,
                           .progress = ot_async_progress};
    obj_submit(os, &g.r);
    ot_until(atomic_load(&g.done));
    cr_assert_eq(g.r.err, 0);
    cr_assert_eq(atomic_load(&g.got), n, "progress reaches the end");
    at = 0;
    for (unsigned i = 0; i < k; at += iov[i++].iov_len)
        cr_assert_eq(memcmp(a + at, iov[i].iov_base, iov[i].iov_len), 0, "piece %u", i);
    ot_delete(os, "s", 0, NULL);
    free(a);
    free(b);
}

static inline void c_gathered_body(struct objstore *os)
{
    char got[64];
    FILE *file = tmpfile();
    cr_assert_not_null(file);
    int fd = fileno(file);
    cr_assert_eq(write(fd, "0123456789", 10), 10);
    struct obj_body b[3] = {{.mem = "head-", .fd = -1, .len = 5},
                            {.fd = fd, .off = 3, .len = 4},
                            {.mem = "-tail", .fd = -1, .len = 5}};
    struct obj_req r = {.op = OBJ_PUT, .key = "g", .body = b, .body_n = 3};
    cr_assert_eq(obj_run(os, &r), 0);
    cr_assert_eq(ot_get(os, "g", 0, got, 14, NULL), 0);
    cr_assert_eq(memcmp(got, "head-3456-tail", 14), 0);
    ot_delete(os, "g", 0, NULL);
    fclose(file);
}

static inline void c_checksum(struct objstore *os)
{
    struct obj_body b = {.mem = "right", .fd = -1, .len = 5};
    struct obj_req r = {
        .op = OBJ_PUT, .key = "sum", .flags = OBJ_HAS_SHA256, .body = &b, .body_n = 1};
    sha256_once("wrong", 5, r.sha256);
    cr_assert_eq(obj_run(os, &r), -EBADMSG);
    cr_assert_eq(ot_head(os, "sum", NULL), -ENOENT, "a refused PUT stores nothing");
}

static inline void c_conditions(struct objstore *os)
{
    struct obj_req r;
    struct obj_info info;
    char old[OBJ_ETAG_MAX], got[4];
    cr_assert_eq(ot_put(os, "c", "one", 3, OBJ_IF_ABSENT, NULL, &r), 0);
    memcpy(old, r.info.etag, sizeof old);
    cr_assert_eq(ot_put(os, "c", "two", 3, OBJ_IF_ABSENT, NULL, NULL), -EEXIST);
    cr_assert_eq(ot_put(os, "c", "two", 3, OBJ_IF_MATCH, old, &r), 0);
    cr_assert_str_neq(r.info.etag, old, "new content has a new ETag");
    cr_assert_eq(ot_put(os, "c", "six", 3, OBJ_IF_MATCH, old, NULL), -EEXIST);
    cr_assert_eq(ot_get(os, "c", 0, got, 3, NULL), 0);
    cr_assert_eq(memcmp(got, "two", 3), 0, "a refused PUT changes nothing");
    cr_assert_eq(ot_head(os, "c", &info), 0);
    cr_assert_str_eq(info.etag, r.info.etag);

    struct iovec iov = {.iov_base = got, .iov_len = 3};
    struct obj_req g = {.op = OBJ_GET,
                        .key = "c",
                        .flags = OBJ_IF_MATCH,
                        .etag = old,
                        .len = 3,
                        .iov = &iov,
                        .iov_n = 1};
    cr_assert_eq(obj_run(os, &g), -EEXIST);
    g.etag = info.etag;
    cr_assert_eq(obj_run(os, &g), 0);
    int e = ot_put(os, "absent", "x", 1, OBJ_IF_MATCH, old, NULL);
    cr_assert(e == -ENOENT || e == -EEXIST);
    cr_assert_eq(ot_head(os, "absent", NULL), -ENOENT);
    ot_delete(os, "c", 0, NULL);
}

static inline void c_list(struct objstore *os)
{
    /* In byte order: '-' and '.' sort before '/', '0' behind it. */
    static const char *const keys[] = {"l/a",   "l/a-b",         "l/a.c", "l/a0", "l/b-/x", "l/b/1",
                                       "l/b/2", "l/b/3/deep/er", "l/b0",  "l/c",  "m/1"};
    struct ot_rows rows;
    char *token, *token2;
    for (size_t i = ARRAY_LEN(keys); i-- > 0;)
        cr_assert_eq(ot_put(os, keys[i], "xyz", i % 4, 0, NULL, NULL), 0);
    cr_assert_eq(ot_list(os, "l/", NULL, NULL, 0, &rows, &token), 0);
    cr_assert_str_eq(rows.text, "l/a:0 l/a-b:1 l/a.c:2 l/a0:3 l/b-/x:0 l/b/1:1 l/b/2:2 "
                                "l/b/3/deep/er:3 l/b0:0 l/c:1 ");
    cr_assert_null(token);
    cr_assert_eq(ot_list(os, "l/b", NULL, NULL, 0, &rows, NULL), 0);
    cr_assert_str_eq(rows.text, "l/b-/x:0 l/b/1:1 l/b/2:2 l/b/3/deep/er:3 l/b0:0 ");
    cr_assert_eq(ot_list(os, "l/b/3/d", NULL, NULL, 0, &rows, NULL), 0);
    cr_assert_str_eq(rows.text, "l/b/3/deep/er:3 ");
    cr_assert_eq(ot_list(os, "l/zzz", NULL, NULL, 0, &rows, NULL), 0);
    cr_assert_eq(rows.n, 0);
    cr_assert_eq(ot_list(os, "l/", "l/b/2", NULL, 0, &rows, NULL), 0);
    cr_assert_str_eq(rows.text, "l/b/3/deep/er:3 l/b0:0 l/c:1 ");

    char all[8192] = "";
    unsigned pages = 0;
    token = NULL;
    do {
        cr_assert_eq(ot_list(os, "l/", NULL, token, 3, &rows, &token2), 0);
        cr_assert_leq(rows.n, 3);
        strcat(all, rows.text);
        free(token);
        token = token2;
        pages++;
    } while (token);
    cr_assert_eq(pages, 4);
    cr_assert_str_eq(all, "l/a:0 l/a-b:1 l/a.c:2 l/a0:3 l/b-/x:0 l/b/1:1 l/b/2:2 "
                          "l/b/3/deep/er:3 l/b0:0 l/c:1 ");

    struct obj_req d = {.op = OBJ_DELETE_BATCH, .keys = keys, .keys_n = ARRAY_LEN(keys)};
    cr_assert_eq(obj_run(os, &d), 0);
    cr_assert_eq(d.failed_n, 0);
    cr_assert_eq(ot_list(os, NULL, NULL, NULL, 0, &rows, NULL), 0);
    cr_assert_eq(rows.n, 0);
}

static inline int c_part(struct objstore *os, const char *key, const char *id, unsigned no,
                         const void *p, size_t len, char *etag)
{
    struct obj_body b = {.mem = p, .fd = -1, .len = len};
    struct obj_req r = {.op = OBJ_MP_PART,
                        .key = key,
                        .upload_id = id,
                        .part_no = no,
                        .body = &b,
                        .body_n = 1,
                        .flags = OBJ_HAS_SHA256};
    sha256_once(p, len, r.sha256);
    int e = obj_run(os, &r);
    memcpy(etag, r.info.etag, OBJ_ETAG_MAX);
    return e;
}

static inline void c_multipart(struct objstore *os)
{
    const size_t part = 5 * 1024 * 1024, last = 12345;
    uint8_t *a = malloc(part * 2 + last), *b = malloc(part * 2 + last);
    char etag[3][OBJ_ETAG_MAX];
    const char *etags[3] = {etag[0], etag[1], etag[2]};
    struct ot_rows rows;
    fill(a, part * 2 + last, 9);
    struct obj_req c = {.op = OBJ_MP_CREATE, .key = "mp/x"};
    cr_assert_eq(obj_run(os, &c), 0);
    char *id = c.new_upload_id;
    c.new_upload_id = NULL;
    cr_assert_not_null(id);
    cr_assert_eq(c_part(os, "mp/x", id, 3, a + 2 * part, last, etag[2]), 0);
    cr_assert_eq(c_part(os, "mp/x", id, 1, a, part, etag[0]), 0);
    cr_assert_eq(c_part(os, "mp/x", id, 2, a + 7, part, etag[1]), 0);
    cr_assert_eq(c_part(os, "mp/x", id, 2, a + part, part, etag[1]), 0, "a part may be replaced");
    cr_assert_eq(ot_head(os, "mp/x", NULL), -ENOENT, "an upload is no object yet");
    cr_assert_eq(ot_mp_list(os, "mp/", &rows), 0);
    cr_assert_eq(rows.n, 1);
    cr_assert_str_eq(rows.last_upload, id);
    cr_assert_eq(ot_mp_list(os, "other/", &rows), 0);
    cr_assert_eq(rows.n, 0);

    const char *bad[3] = {etag[0], etag[2], etag[1]};
    struct obj_req f = {
        .op = OBJ_MP_COMPLETE, .key = "mp/x", .upload_id = id, .part_etags = bad, .parts_n = 3};
    cr_assert_lt(obj_run(os, &f), 0, "wrong ETags are refused");
    f.part_etags = etags;
    cr_assert_eq(obj_run(os, &f), 0);
    cr_assert_eq(ot_get(os, "mp/x", 0, b, part * 2 + last, NULL), 0);
    cr_assert_eq(memcmp(a, b, part * 2 + last), 0);
    cr_assert_eq(ot_mp_list(os, NULL, &rows), 0);
    cr_assert_eq(rows.n, 0, "a completed upload is gone");

    struct obj_req ab = {.op = OBJ_MP_ABORT, .key = "mp/x", .upload_id = id};
    cr_assert_eq(obj_run(os, &ab), 0, "a missing upload is success");
    cr_assert_lt(c_part(os, "mp/x", id, 1, a, 10, etag[0]), 0);
    free(id);

    cr_assert_eq(obj_run(os, &c), 0);
    id = c.new_upload_id;
    c.new_upload_id = NULL;
    cr_assert_eq(c_part(os, "mp/x", id, 1, a, 100, etag[0]), 0);
    f.upload_id = id;
    f.parts_n = 1;
    f.flags = OBJ_IF_ABSENT;
    cr_assert_eq(obj_run(os, &f), -EEXIST, "conditions hold for multipart too");
    ab.upload_id = id;
    cr_assert_eq(obj_run(os, &ab), 0);
    cr_assert_eq(ot_mp_list(os, NULL, &rows), 0);
    cr_assert_eq(rows.n, 0, "an aborted upload is gone");
    free(id);
    ot_delete(os, "mp/x", 0, NULL);
    free(a);
    free(b);
}

static inline void c_cancel(struct objstore *os)
{
    struct ot_async a[16];
    static char bytes[65536];
    memset(a, 0, sizeof a);
    for (int i = 0; i < 16; i++)
        ot_start(os, &a[i], OBJ_PUT, "cancel", 0, bytes, sizeof bytes);
    for (int i = 15; i >= 0; i--)
        if (!atomic_load(&a[i].done))
            obj_cancel(os, &a[i].r);
    for (int i = 0; i < 16; i++) {
        ot_until(atomic_load(&a[i].done));
        cr_assert(a[i].r.err == 0 || a[i].r.err == -ECANCELED);
    }
    ot_sleep_ms(5);
    for (int i = 0; i < 16; i++)
        cr_assert_eq(atomic_load(&a[i].done), 1, "done comes once");
    ot_delete(os, "cancel", 0, NULL);
}

static inline void objconform_all(struct objstore *os)
{
    c_put_get_head(os);
    c_ranges(os);
    c_scatter(os);
    c_gathered_body(os);
    c_checksum(os);
    c_conditions(os);
    c_list(os);
    c_multipart(os);
    c_cancel(os);
}

#endif
