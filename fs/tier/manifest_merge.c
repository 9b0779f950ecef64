/* manifest_merge.c: many small pages become few large ones, so that the root stays small and a rebuild
 * reads little.
 *
 * Pages are in three classes by size. When the newest MERGE_PAGES pages are of one class,
 * they are read back one after another, merged (the newest entry of a key wins), and written as pages
 * of up to PAGE_BYTES_MAX. Tombstones go only if nothing older remains. Pages of the largest class are
 * left alone. The replaced pages go to the delete queue when the root that no longer names them is
 * recorded. At most one merge runs at a time; its memory is MERGE_PAGES + 1 pages.
 *
 * A merge that fails changes nothing: the job goes on with the pages it has.
 */
#include "fs/tier/manifest_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"

enum { MERGE_PAGES = 8, PAGE_BYTES_MAX = 1024 * 1024, LARGE = 2 };

struct row {
    struct manifest_entry e;
    unsigned age; /* 0: oldest page */
};

struct merge {
    void (*then)(struct manifest_job *j);
    uint32_t first; /* pages [first, first + MERGE_PAGES) of the root */
    unsigned got;   /* read back so far */
    uint8_t *page[MERGE_PAGES];
    struct row *rows;
    size_t rows_n, rows_cap, at; /* at: rows written so far */
    struct manifest_page_ref *out;
    unsigned out_n;
};

/* 0: as spilled from a root; 1: merged once; 2: large enough. */
static unsigned class_of(uint32_t bytes)
{
    return bytes <= 4 * MANIFEST_INLINE_MAX ? 0 : bytes <= PAGE_BYTES_MAX / 4 * 3 ? 1 : 2;
}

void manifest_merge_free(struct manifest_job *j)
{
    struct merge *m = j->merge;
    if (!m)
        return;
    for (unsigned i = 0; i < MERGE_PAGES; i++)
        free(m->page[i]);
    free(m->rows);
    free(m->out);
    free(m);
    j->merge = NULL;
}

static void merge_end(struct manifest_job *j, int err)
{
    void (*then)(struct manifest_job *) = j->merge->then;
    if (err < 0 && err != -ECANCELED) /* unmounting: the next mount merges */
        log_rate(LC_TIER, LOG_LV_WARN, 60,
                 "pages of the manifest of topic %016llx were not merged: %s",
                 (unsigned long long)j->topic, err_name(err));
    manifest_merge_free(j);
    obj_req_done(&j->call.req);
    free(j->buf); /* the last page that was written */
    j->buf = NULL;
    then(j);
}

/* ---- write ---- */

static void write_page(struct manifest_job *j);

static void merged(struct manifest_job *j)
{
    struct merge *m = j->merge;
    struct manifest_root *r = &j->root;
    uint64_t *old = calloc(MERGE_PAGES, sizeof *old);
    struct manifest_page_ref *pages = calloc(m->first + m->out_n + 1, sizeof *pages);
    if (!old || !pages) {
        free(old);
        free(pages);
        merge_end(j, -ENOMEM);
        return;
    }
    for (unsigned i = 0; i < MERGE_PAGES; i++)
        old[i] = r->pages[m->first + i].id;
    memcpy(pages, r->pages, m->first * sizeof *pages);
    memcpy(pages + m->first, m->out, m->out_n * sizeof *pages);
    free(r->pages);
    r->pages = pages;
    r->pages_n = m->first + m->out_n;
    free(j->replaced);
    j->replaced = old;
    j->replaced_n = MERGE_PAGES;
    merge_end(j, 0);
}

static void page_written(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    if (call->req.err < 0) {
        merge_end(j, call->req.err);
        return;
    }
    obj_req_done(&call->req);
    j->merge->out_n++;
    write_page(j);
}

static bool same_key(const struct row *a, const struct row *b)
{
    return a->e.klen == b->e.klen && !memcmp(a->e.key, b->e.key, a->e.klen);
}

/* Rows are sorted by key, newest first: the first of each key is the one that counts. */
static int fill_page(struct merge *m, uint8_t **buf, size_t *len, uint32_t *n)
{
    size_t cap = 0;
    while (m->at < m->rows_n && *len < PAGE_BYTES_MAX - 16 * 1024) {
        const struct row *r = &m->rows[m->at++];
        if (m->at > 1 && same_key(r, &m->rows[m->at - 2]))
            continue;
        if (!r->e.val && m->first == 0)
            continue; /* nothing older: a tombstone says nothing */
        int e = manifest_entry_add(buf, len, &cap, &r->e);
        if (e < 0)
            return e;
        ++*n;
    }
    return 0;
}

static void write_page(struct manifest_job *j)
{
    struct merge *m = j->merge;
    uint8_t *buf = NULL;
    size_t len = 0;
    uint32_t n = 0;
    struct manifest_page_ref ref = {.id = queue_id()};
    int r = fill_page(m, &buf, &len, &n);
    if (r == 0 && n == 0) {
        free(buf);
        merged(j);
        return;
    }
    free(j->buf);
    j->buf = NULL;
    if (r == 0)
        r = manifest_page_encode(j->t->v->id, j->topic, ref.id, buf, len, n, &j->buf, &j->len);
    free(buf);
    struct manifest_page_ref *more = r == 0 ? realloc(m->out, (m->out_n + 1) * sizeof *more) : NULL;
    if (!more) {
        merge_end(j, r < 0 ? r : -ENOMEM);
        return;
    }
    m->out = more;
    ref.bytes = (uint32_t)j->len;
    ref.entries = n;
    ref.hash = hash64(j->buf, j->len);
    m->out[m->out_n] = ref;
    manifest_page_key(j->topic, ref.id, j->key, sizeof j->key);
    j->body = (struct obj_body){.mem = j->buf, .fd = -1, .len = j->len};
    j->call = (struct store_call){.done = page_written};
    j->call.req = (struct obj_req){
        .op = OBJ_PUT,
        .flags = OBJ_HAS_SHA256 | (j->t->caps.if_absent ? OBJ_IF_ABSENT : 0),
        .key = j->key,
        .body = &j->body,
        .body_n = 1,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    sha256_once(j->buf, j->len, j->call.req.sha256);
    call_submit(j->t, &j->call);
}

/* ---- read ---- */

static int by_key_newest_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    size_t n = x->e.klen < y->e.klen ? x->e.klen : y->e.klen;
    int c = memcmp(x->e.key, y->e.key, n);
    if (c == 0)
        c = (x->e.klen > y->e.klen) - (x->e.klen < y->e.klen);
    return c ? c : (x->age < y->age) - (x->age > y->age);
}

/* Entries of one page; a later entry of a key in it is newer than an earlier one. */
static int add_rows(struct merge *m, const uint8_t *entries, size_t len, uint32_t n, unsigned page)
{
    if (m->rows_n + n > m->rows_cap) {
        size_t cap = (m->rows_n + n) * 2;
        struct row *more = realloc(m->rows, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        m->rows = more;
        m->rows_cap = cap;
    }
    size_t pos = 0;
    struct manifest_entry e;
    int r;
    for (unsigned i = 0; (r = manifest_entry_next(entries, len, &pos, &e)) > 0; i++)
        m->rows[m->rows_n++] = (struct row){e, page << 24 | i};
    return r;
}

static void read_page(struct manifest_job *j);

static void page_read(struct store_call *call)
{
    struct manifest_job *j = container_of(call, struct manifest_job, call);
    struct merge *m = j->merge;
    const struct manifest_page_ref *ref = &j->root.pages[m->first + m->got];
    const uint8_t *entries;
    size_t len;
    uint32_t n;
    int r = call->req.err;
    if (r == 0 && hash64(m->page[m->got], ref->bytes) != ref->hash)
        r = -EBADMSG;
    if (r == 0)
        r = manifest_page_decode(m->page[m->got], ref->bytes, j->t->v->id, j->topic, ref->id,
                                 &entries, &len, &n);
    if (r == 0)
        r = add_rows(m, entries, len, n, m->got);
    if (r < 0) {
        merge_end(j, r);
        return;
    }
    obj_req_done(&call->req);
    if (++m->got < MERGE_PAGES) {
        read_page(j);
        return;
    }
    qsort(m->rows, m->rows_n, sizeof *m->rows, by_key_newest_first);
    write_page(j);
}

static void read_page(struct manifest_job *j)
{
    struct merge *m = j->merge;
    const struct manifest_page_ref *ref = &j->root.pages[m->first + m->got];
    m->page[m->got] = malloc(ref->bytes);
    if (!m->page[m->got]) {
        merge_end(j, -ENOMEM);
        return;
    }
    manifest_page_key(j->topic, ref->id, j->key, sizeof j->key);
    j->iov = (struct iovec){m->page[m->got], ref->bytes};
    j->call = (struct store_call){.done = page_read};
    j->call.req = (struct obj_req){
        .op = OBJ_GET,
        .key = j->key,
        .len = ref->bytes,
        .iov = &j->iov,
        .iov_n = 1,
        .deadline_ns = clock_mono_ns() + 60 * NS_PER_SEC,
    };
    call_submit(j->t, &j->call);
}

bool manifest_merge(struct manifest_job *j, void (*then)(struct manifest_job *j))
{
    struct manifest_root *r = &j->root;
    if (r->pages_n < MERGE_PAGES)
        return false;
    uint32_t first = r->pages_n - MERGE_PAGES;
    unsigned c = class_of(r->pages[first].bytes);
    for (uint32_t i = first; i < r->pages_n; i++)
        if (class_of(r->pages[i].bytes) != c || r->pages[i].bytes > MANIFEST_BYTES_MAX)
            return false;
    if (c == LARGE)
        return false;
    list_each(&j->t->manifests, l) if (list_entry(l, struct manifest_job, link)
                                           ->merge) return false; /* one at a time: memory */
    j->merge = calloc(1, sizeof *j->merge);
    if (!j->merge)
        return false;
    j->merge->then = then;
    j->merge->first = first;
    read_page(j);
    return true;
}
