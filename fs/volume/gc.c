/* gc.c: see gc.h. What is named is a set of hashes of keys, collected first from the metadata store and all
 * manifests, so memory is 16 bytes an object. Just before a key is deleted the metadata store is asked
 * again. */
#include "fs/volume/gc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/segs.h"
#include "fs/meta/rec.h"
#include "fs/tier/manifest_fmt.h"
#include "fs/volume/bucket.h"
#include "fs/volume/json.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume.h"

#define LLU(v) ((unsigned long long)(v))

enum { BATCH = 500 };

struct doomed {
    char *key, *upload_id;
    uint64_t size;
};

struct gc {
    struct volume *v;
    const struct gc_options *o;
    struct gc_report *rep;
    struct bucket b;
    char *why;
    size_t cap;
    uint64_t epoch;
    int64_t now_ms, grace_ms; /* by the store's clock */
    struct hash128 *slot;     /* open addressing */
    size_t slots, named;
    struct doomed doomed[BATCH];
    unsigned n;
};

/* ---- the set of what is named ---- */

static struct hash128 *slot_of(struct hash128 *slot, size_t slots, struct hash128 h)
{
    size_t i = h.lo & (slots - 1);
    while ((slot[i].lo || slot[i].hi) && (slot[i].lo != h.lo || slot[i].hi != h.hi))
        i = (i + 1) & (slots - 1);
    return &slot[i];
}

static int name_key(struct gc *g, const char *key)
{
    if (g->named * 2 >= g->slots) {
        size_t slots = g->slots ? g->slots * 2 : 4096;
        struct hash128 *more = calloc(slots, sizeof *more);
        if (!more)
            return -ENOMEM;
        for (size_t i = 0; i < g->slots; i++)
            if (g->slot[i].lo || g->slot[i].hi)
                *slot_of(more, slots, g->slot[i]) = g->slot[i];
        free(g->slot);
        g->slot = more;
        g->slots = slots;
    }
    struct hash128 h = hash128(key, strlen(key)), *at = slot_of(g->slot, g->slots, h);
    if (!at->lo && !at->hi) {
        *at = h;
        g->named++;
    }
    return 0;
}

static bool is_named(const struct gc *g, const char *key)
{
    if (!g->slots)
        return false;
    struct hash128 *at = slot_of(g->slot, g->slots, hash128(key, strlen(key)));
    return at->lo || at->hi;
}

static int name_object(struct gc *g, const struct seg_object *o, uint64_t ino, uint64_t base)
{
    char key[OBJ_KEY_MAX];
    int r = seg_object_key(o, ino, base, key, sizeof key);
    return r < 0 ? r : name_key(g, key);
}

static int name_seg(struct gc *g, const void *key, size_t klen, const void *val, size_t vlen)
{
    uint64_t ino, base;
    struct seg_rec rec;
    int r = key_parse_seg(key, klen, &ino, &base) ? seg_rec_decode(val, vlen, &rec) : -EBADMSG;
    if (r == 0 && rec.has_object)
        r = name_object(g, &rec.object, ino, base);
    if (r == 0 && rec.has_pending)
        r = name_object(g, &rec.pending, ino, base);
    return r;
}

static int see_seg(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    return name_seg(arg, key, klen, val, vlen);
}

static int see_delete(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen;
    uint64_t topic, ino, base;
    char name[OBJ_KEY_MAX];
    int r = delete_decode(val, vlen, &topic, &ino, &base, name, sizeof name);
    return r < 0 ? r : name_key(arg, name);
}

static int name_pages(struct gc *g, const struct manifest_root *root)
{
    char key[OBJ_KEY_MAX];
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < root->pages_n; i++) {
        manifest_page_key(root->topic, root->pages[i].id, key, sizeof key);
        r = name_key(g, key);
    }
    return r;
}

/* Table T: u8 version, u16 length of the ETag, ETag, root. */
static int see_root(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen;
    struct gc *g = arg;
    struct rd rd = {.p = val, .len = vlen};
    struct manifest_root root = {0};
    (void)rd_u8(&rd);
    (void)rd_room(&rd, rd_u16(&rd));
    int r = rd.bad ? -EBADMSG
                   : manifest_root_decode((const uint8_t *)val + rd.pos, vlen - rd.pos, &root);
    if (r == 0)
        r = name_pages(g, &root);
    manifest_root_done(&root);
    return r;
}

static int name_entries(struct gc *g, const uint8_t *buf, size_t len)
{
    struct manifest_entry e;
    size_t pos = 0;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) > 0)
        if (e.key[0] == 'S' && e.val && (r = name_seg(g, e.key, e.klen, e.val, e.vlen)) < 0)
            return r;
    return r;
}

/* ---- manifests in the bucket ---- */

static int unreadable(struct gc *g, const char *key, int r)
{
    if (r != -EBADMSG && r != -ENOENT && r != -EPROTONOSUPPORT && r != -EFBIG)
        return r;
    snprintf(g->why, g->cap,
             "gc: the manifest object %s %s, so what it named cannot be known; mend it with fsck "
             "first",
             key, r == -ENOENT ? "is missing" : "cannot be read");
    return -EUCLEAN;
}

static int read_manifest(struct gc *g, const char *key, uint64_t topic)
{
    uint8_t *buf = NULL;
    size_t len;
    struct manifest_root root = {0};
    char name[OBJ_KEY_MAX];
    int r = bucket_get(&g->b, key, MANIFEST_BYTES_MAX, &buf, &len, NULL);
    if (r == 0)
        r = manifest_root_decode(buf, len, &root);
    free(buf);
    if (r == 0 && (memcmp(root.volume, g->v->id, 16) != 0 || root.topic != topic))
        r = -EBADMSG;
    if (r < 0)
        return unreadable(g, key, r);
    r = name_pages(g, &root);
    if (r == 0)
        r = name_entries(g, root.inline_buf, root.inline_len);
    for (uint32_t i = 0; r == 0 && i < root.pages_n; i++) {
        const uint8_t *entries;
        size_t entries_len;
        uint32_t n;
        buf = NULL;
        manifest_page_key(topic, root.pages[i].id, name, sizeof name);
        r = bucket_get(&g->b, name, MANIFEST_BYTES_MAX, &buf, &len, NULL);
        if (r == 0)
            r = manifest_page_decode(buf, len, g->v->id, topic, root.pages[i].id, &entries,
                                     &entries_len, &n);
        if (r == 0)
            r = name_entries(g, entries, entries_len);
        else
            r = unreadable(g, name, r);
        free(buf);
    }
    manifest_root_done(&root);
    return r;
}

static int see_manifest(void *arg, const struct obj_entry *e)
{
    struct gc *g = arg;
    unsigned long long topic;
    char again[OBJ_KEY_MAX];
    if (sscanf(e->key, "topics/%16llx/", &topic) != 1)
        return 0;
    manifest_root_key(topic, again, sizeof again);
    return strcmp(again, e->key) ? 0 : read_manifest(g, e->key, topic);
}

static int collect(struct gc *g)
{
    static const struct {
        char table;
        int (*see)(void *, const void *, size_t, const void *, size_t);
    } tables[] = {{'S', see_seg}, {'D', see_delete}, {'T', see_root}};
    int r = bucket_list(&g->b, "topics/", false, see_manifest, g);
    for (unsigned t = 0; r == 0 && t < 3; t++) {
        struct key k = key_prefix(tables[t].table);
        r = kv_walk(g->v->kv, k.b, k.len, k.b, k.len, tables[t].see, g);
        if (r == -EBADMSG) {
            snprintf(g->why, g->cap, "gc: the metadata is damaged; mend it with fsck first");
            r = -EUCLEAN;
        }
    }
    return r;
}

/* ---- may we? ---- */

static int check_epoch(struct gc *g)
{
    static const char *const names[] = {"epoch", "epoch_next"};
    uint8_t *buf = NULL, mine[24];
    size_t len;
    struct volobj o;
    int r = bucket_get(&g->b, VOLOBJ_KEY, 4096, &buf, &len, NULL);
    if (r == 0)
        r = volobj_decode(buf, len, &o);
    free(buf);
    if (r < 0)
        return r;
    bool ours = false;
    for (unsigned k = 0; k < 2; k++) {
        struct key key = key_setting(names[k]);
        ours |= kv_get(g->v->kv, key.b, key.len, mine, sizeof mine) == sizeof mine &&
                get_le64(mine) == o.epoch && !memcmp(mine + 8, o.nonce, 16);
    }
    if (!ours || memcmp(o.volume, g->v->id, 16) != 0) {
        snprintf(g->why, g->cap, "gc: another mount or rebuild owns this volume now; run it there");
        return -EPERM;
    }
    g->epoch = o.epoch;
    return 0;
}

static int take_time(void *arg, const struct obj_entry *e)
{
    int64_t *ms = arg;
    *ms = e->modified_ms;
    return 1;
}

static int ask_time(struct gc *g)
{
    char key[64];
    uint64_t n = queue_id();
    const char *keys[] = {key};
    snprintf(key, sizeof key, "probe/gc-%016llx", LLU(n));
    int r = bucket_put(&g->b, key, "t", 1, 0, NULL, NULL);
    if (r == 0)
        r = bucket_list(&g->b, key, false, take_time, &g->now_ms);
    (void)bucket_delete(&g->b, keys, 1); /* left behind: the next run takes it */
    if (r >= 0 && g->now_ms <= 0) {
        snprintf(g->why, g->cap, "gc: the store does not say when an object was written");
        return -EOPNOTSUPP;
    }
    return r < 0 ? r : 0;
}

/* ---- deleting ---- */

/* Between collecting and now a daemon may have begun to use it. */
static bool used_now(struct gc *g, const char *key)
{
    struct seg_object o;
    uint64_t ino, base;
    struct seg_rec rec;
    if (seg_object_key_parse(key, &o, &ino, &base) < 0)
        return false;
    int r = seg_get(g->v->kv, ino, base, &rec);
    if (r < 0)
        return r != -ENOENT;
    return (rec.has_object && rec.object.attempt == o.attempt) ||
           (rec.has_pending && rec.pending.attempt == o.attempt);
}

static int flush(struct gc *g)
{
    const char *keys[BATCH];
    unsigned n = 0;
    int r = 0;
    for (unsigned i = 0; i < g->n && !g->o->dry_run; i++) {
        struct doomed *d = &g->doomed[i];
        if (used_now(g, d->key))
            continue;
        if (!d->upload_id)
            keys[n++] = d->key;
        else if (r == 0)
            r = bucket_abort(&g->b, d->key, d->upload_id);
    }
    if (r == 0 && n)
        r = bucket_delete(&g->b, keys, n);
    if (r == 0)
        g->rep->deleted += n;
    for (unsigned i = 0; i < g->n; i++) {
        free(g->doomed[i].key);
        free(g->doomed[i].upload_id);
    }
    g->n = 0;
    return r;
}

static int doom(struct gc *g, const struct obj_entry *e, const char *what)
{
    struct doomed *d = &g->doomed[g->n];
    *d = (struct doomed){.key = strdup(e->key), .size = e->size};
    d->upload_id = e->upload_id ? strdup(e->upload_id) : NULL;
    if (!d->key || (e->upload_id && !d->upload_id)) {
        free(d->key);
        return -ENOMEM;
    }
    g->n++;
    if (e->upload_id) {
        g->rep->uploads++;
    } else {
        g->rep->orphans++;
        g->rep->bytes += e->size;
    }
    findings_add(&g->rep->found,
                 &(struct finding){.kind = "orphan",
                                   .fate = g->o->dry_run ? FATE_TOLD : FATE_HEALED,
                                   .len = e->size,
                                   .key = (char *)(uintptr_t)e->key},
                 "%s: %s%s", e->key, what, g->o->dry_run ? "" : "; deleted");
    return g->n == BATCH ? flush(g) : 0;
}

/* Of a form that this program makes, and not of a later epoch? */
static bool is_form(struct gc *g, const char *key)
{
    struct seg_object o;
    uint64_t ino, base;
    unsigned long long topic, page;
    char again[OBJ_KEY_MAX];
    if (seg_object_key_parse(key, &o, &ino, &base) == 0)
        return o.epoch <= g->epoch;
    if (sscanf(key, "topics/%16llx/pages/%16llx", &topic, &page) == 2) {
        manifest_page_key(topic, page, again, sizeof again);
        return !strcmp(again, key);
    }
    return !strncmp(key, "probe/", strlen("probe/"));
}

static int judge(void *arg, const struct obj_entry *e)
{
    struct gc *g = arg;
    g->rep->listed++;
    unsigned long long topic;
    char again[OBJ_KEY_MAX];
    if (sscanf(e->key, "topics/%16llx/", &topic) == 1) {
        manifest_root_key(topic, again, sizeof again);
        if (!strcmp(again, e->key)) {
            g->rep->named++; /* roots go with their topic, through the delete queue */
            return 0;
        }
    }
    if (!is_form(g, e->key)) {
        g->rep->foreign++;
        return 0;
    }
    if (is_named(g, e->key)) {
        g->rep->named++;
        return 0;
    }
    if (e->modified_ms <= 0 || g->now_ms - e->modified_ms < g->grace_ms) {
        g->rep->young++;
        return 0;
    }
    return doom(g, e,
                e->upload_id ? "an upload in parts that nobody goes on with"
                             : "nothing names this object");
}

static int run(struct gc *g)
{
    static const char *const prefixes[] = {"segments/", "topics/", "probe/"};
    int r = check_epoch(g);
    if (r == 0)
        r = ask_time(g);
    if (r == 0)
        r = collect(g);
    for (unsigned k = 0; r == 0 && k < 3; k++)
        r = bucket_list(&g->b, prefixes[k], false, judge, g);
    if (r == 0)
        r = bucket_list(&g->b, "segments/", true, judge, g);
    r = r == -EOPNOTSUPP ? 0 : r; /* a store without multipart uploads has none left over */
    if (r == 0)
        r = check_epoch(g); /* still ours */
    if (r == 0)
        r = flush(g);
    for (unsigned i = 0; i < g->n; i++) {
        free(g->doomed[i].key);
        free(g->doomed[i].upload_id);
    }
    return r;
}

int gc_run(struct volume *v, const struct gc_options *o, struct gc_report *ret, char *why,
           size_t cap)
{
    struct gc *g = calloc(1, sizeof *g);
    *why = 0;
    if (!g) {
        snprintf(why, cap, "gc: no memory");
        return -ENOMEM;
    }
    *g = (struct gc){.v = v, .o = o, .rep = ret, .why = why, .cap = cap};
    g->b = (struct bucket){.store = v->store,
                           .timeout_ms = (unsigned)v->conf->store_timeout,
                           .cancelled = o->cancelled};
    g->grace_ms = (int64_t)v->conf->gc_grace;
    if (v->ns && g->grace_ms < GC_ONLINE_MS)
        g->grace_ms = GC_ONLINE_MS;
    ret->dry_run = o->dry_run;
    int r = run(g);
    if (r < 0 && !*why)
        snprintf(why, cap, "gc: %s",
                 r == -ECANCELED ? "given up"
                 : *g->b.why     ? g->b.why
                                 : err_name(r));
    free(g->slot);
    free(g);
    return r;
}

void gc_report_done(struct gc_report *r)
{
    findings_done(&r->found);
}

void gc_json(const struct gc_report *r, FILE *f)
{
    fprintf(f,
            "{\"dry_run\":%s,\"listed\":%llu,\"named\":%llu,\"young\":%llu,\"foreign\":%llu,"
            "\"orphans\":%llu,\"bytes\":%llu,\"deleted\":%llu,\"uploads\":%llu,\"findings\":",
            r->dry_run ? "true" : "false", LLU(r->listed), LLU(r->named), LLU(r->young),
            LLU(r->foreign), LLU(r->orphans), LLU(r->bytes), LLU(r->deleted), LLU(r->uploads));
    findings_json(&r->found, f);
    (void)fputs("}\n", f);
}

void gc_text(const struct gc_report *r, FILE *f)
{
    for (size_t i = 0; i < r->found.n; i++) {
        for (const char *p = r->found.row[i].text ? r->found.row[i].text : ""; *p; p++)
            (void)fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, f);
        (void)fputc('\n', f);
    }
    fprintf(f, "%llu objects: %llu in use, %llu too young to judge, %llu not of this program.\n",
            LLU(r->listed), LLU(r->named), LLU(r->young), LLU(r->foreign));
    fprintf(f, "%llu orphans of %llu bytes and %llu uploads in parts%s.\n", LLU(r->orphans),
            LLU(r->bytes), LLU(r->uploads), r->dry_run ? " would be deleted" : " deleted");
}
