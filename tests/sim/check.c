/* check.c: what must hold. The disk is looked at through simdisk_list and the bucket through a client of
 * our own, so that looking neither costs calls of the disk nor meets its faults. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/base/log.h"
#include "fs/data/internal.h"
#include "fs/meta/kv.h"
#include "fs/seg/segfmt.h"
#include "fs/tier/internal.h"
#include "fs/tier/manifest_fmt.h"

/* ---- device files, as the disk has them ---- */

struct on_disk {
    unsigned dev;
    char path[SEG_PATH_BYTES];
    uint64_t size;
    bool named;
};

struct disk_look {
    struct on_disk *v;
    size_t n, cap;
};

static void disk_look(struct world *w, struct disk_look *l)
{
    char *text = NULL, *save;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    simdisk_list(w->disk, f);
    fclose(f);
    *l = (struct disk_look){0};
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        struct on_disk o = {0};
        char path[SEG_PATH_BYTES];
        unsigned long long size;
        if (sscanf(line, "/dev%u/%63s size %llu", &o.dev, path, &size) != 3 ||
            strncmp(path, "segments/", 9) != 0)
            continue;
        snprintf(o.path, sizeof o.path, "%s", path);
        o.size = size;
        if (l->n == l->cap) {
            l->cap = l->cap ? l->cap * 2 : 64;
            l->v = realloc(l->v, l->cap * sizeof *l->v);
        }
        l->v[l->n++] = o;
    }
    free(text);
}

static unsigned dev_index(struct world *w, uint32_t id)
{
    for (unsigned i = 0; i < w->conf.devices; i++)
        if (w->dev_id[i] == id)
            return i;
    sim_fail(w, "device %u in a record", id);
}

static struct on_disk *disk_find(struct world *w, struct disk_look *l, uint64_t ino, uint64_t base,
                                 uint32_t version, uint32_t dev)
{
    char path[SEG_PATH_BYTES];
    seg_path(ino, base, version, path);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].dev == dev_index(w, dev) && !strcmp(l->v[i].path, path))
            return &l->v[i];
    return NULL;
}

/* ---- objects ---- */

/* `until`: the file's bytes from base to there are the object's; 0: they may have changed since. */
static void object_holds(struct world *w, const struct seg_object *o, uint64_t ino, uint64_t base,
                         uint64_t until, const char *who)
{
    char key[OBJ_KEY_MAX];
    uint64_t len = 0;
    if (seg_object_key(o, ino, base, key, sizeof key) < 0)
        sim_fail(w, "no object key");
    const uint8_t *p = mem_object(w->look, key, &len);
    if (!p) {
        struct seg_rec rec = {0};
        int r = w->v ? seg_get(w->v->kv, ino, base, &rec) : -ENOENT;
        sim_fail(w,
                 "object %s, named by %s, is not in the bucket (record: %s state %d version %u "
                 "object %d "
                 "%" PRIx64 " pending %d %" PRIx64 "; M/m owed here %d)",
                 key, who, err_name(r), rec.state, rec.version, rec.has_object, rec.object.attempt,
                 rec.has_pending, rec.pending.attempt,
                 w->v ? manifest_owes(w->v->tier, o->topic, ino, base) : 0);
    }
    uint64_t n = o->end - base;
    if (len != n + o->footer_len)
        sim_fail(w, "object %s, named by %s, has %" PRIu64 " bytes, not %" PRIu64 "+%u", key, who,
                 len, n, o->footer_len);
    size_t blocks = (size_t)((n + BLOCK_BYTES - 1) / BLOCK_BYTES);
    uint64_t *hash = calloc(blocks + 1, sizeof *hash);
    struct seg_footer f;
    if (seg_footer_decode(p + n, o->footer_len, hash, blocks, &f) < 0 || f.ino != ino ||
        f.base != base || f.end != o->end || f.blocks_n != blocks)
        sim_fail(w, "object %s, named by %s: wrong footer", key, who);
    for (size_t b = 0; b < blocks; b++)
        if (hash64(p + b * BLOCK_BYTES, (size_t)min_u64(BLOCK_BYTES, n - b * BLOCK_BYTES)) !=
            f.blocks[b])
            sim_fail(w, "object %s, named by %s: block %zu does not match its hash", key, who, b);
    free(hash);
    struct mfile *file = model_file(&w->m, ino);
    if (!file)
        sim_fail(w, "object %s, named by %s, is of a file nobody made", key, who);
    if (w->broker && (!until || file->blurred))
        return;
    if (!file->bytes || o->end > file->cap)
        sim_fail(w, "object %s, named by %s, is longer than the file ever was", key, who);
    if (w->broker) /* it may have been cut while it was remote */
        n = min_u64(n, until - base);
    for (uint64_t at = 0; at < n; at++)
        if (p[at] != file->bytes[base + at])
            sim_fail(w, "object %s, named by %s: byte %" PRIu64 " is %02x, not %02x", key, who, at,
                     p[at], file->bytes[base + at]);
}

/* ---- records ---- */

struct kv_look {
    struct world *w;
    struct disk_look disk;
    struct totals sum;
    uint64_t used[DEVS_MAX];
    uint64_t next_ino, next_base; /* segments of a file do not overlap */
};

static int look_seg(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct kv_look *l = arg;
    struct world *w = l->w;
    struct seg_change c = {.has = true};
    if (!key_parse_seg(key, klen, &c.ino, &c.base) || seg_rec_decode(val, vlen, &c.now) < 0)
        sim_fail(w, "a segment record is damaged");
    struct seg_rec *r = &c.now;
    c.now_len = r->end - c.base;
    if (r->local) {
        struct on_disk *o = disk_find(w, &l->disk, c.ino, c.base, r->file_version, r->device);
        if (!o && !w->disk_trouble)
            sim_fail(w, "segment %" PRIx64 "/%" PRIu64 " (state %d) has no device file", c.ino,
                     c.base, r->state);
        if (o) {
            o->named = true;
            if (r->state == SEG_OPEN)
                c.now_len = o->size > r->header_bytes ? o->size - r->header_bytes : 0;
            else if (o->size < r->header_bytes + c.now_len)
                sim_fail(w, "segment %" PRIx64 "/%" PRIu64 ": device file too short", c.ino,
                         c.base);
        }
    } else if (r->state != SEG_COMMITTED || !r->has_object || r->object.version != r->version ||
               r->object.end < r->end) {
        sim_fail(w, "segment %" PRIx64 "/%" PRIu64 " has no local copy and no object (state %d)",
                 c.ino, c.base, r->state);
    }
    if (c.ino == l->next_ino && c.base < l->next_base)
        sim_fail(w, "segments of %" PRIx64 " overlap at %" PRIu64, c.ino, c.base);
    l->next_ino = c.ino;
    l->next_base = c.base + c.now_len;
    if (r->has_object)
        object_holds(w, &r->object, c.ino, c.base,
                     r->state == SEG_COMMITTED && r->object.version == r->version ? r->end : 0,
                     "its record");
    if (r->state == SEG_UPLOADED)
        object_holds(w, &r->pending, c.ino, c.base, r->end, "an uploaded record");
    seg_change_done(&l->sum, &c);
    return 0;
}

static int look_unlink(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    struct kv_look *l = arg;
    struct segfile_id id;
    if (unlink_decode(val, vlen, &id) < 0)
        sim_fail(l->w, "an unlink entry is damaged");
    struct on_disk *o = disk_find(l->w, &l->disk, id.ino, id.base, id.version, id.device);
    if (o)
        o->named = true;
    return 0;
}

static void check_totals(struct world *w, struct kv_look *l)
{
    struct totals *t = data_totals(w->v->data);
    const struct {
        const char *name;
        int64_t is, want;
    } v[] = {
        {"logical", t->logical, l->sum.logical},
        {"local", t->local, l->sum.local},
        {"remote", t->remote, l->sum.remote},
        {"pending", t->pending, l->sum.pending},
        {"open", t->open, l->sum.open},
        {"sealed", t->sealed, l->sum.sealed},
        {"uploaded", t->uploaded, l->sum.uploaded},
        {"committed", t->committed, l->sum.committed},
        {"evicted", t->evicted, l->sum.evicted},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        if (v[i].is != v[i].want)
            sim_fail(w, "total %s is %" PRId64 ", the records say %" PRId64, v[i].name, v[i].is,
                     v[i].want);
}

static void check_devices(struct world *w, struct kv_look *l)
{
    uint64_t sum[DEVS_MAX] = {0};
    for (size_t i = 0; i < l->disk.n; i++) {
        struct on_disk *o = &l->disk.v[i];
        if (o->named)
            sum[o->dev] += o->size;
        else if (!w->crashed && !w->disk_trouble)
            sim_fail(w, "device file /dev%u/%s is named by nothing", o->dev, o->path);
    }
    for (unsigned i = 0; i < devs_count(w->v->devs); i++) {
        struct dev_info info;
        devs_info(w->v->devs, i, &info);
        unsigned k = dev_index(w, info.id);
        for (size_t n = 0; info.used != sum[k] && n < l->disk.n; n++)
            if (l->disk.v[n].named)
                sim_note(w, "named: /dev%u/%s %" PRIu64, l->disk.v[n].dev, l->disk.v[n].path,
                         l->disk.v[n].size);
        if (info.used != sum[k])
            sim_fail(w, "device %u: %" PRIu64 " bytes accounted, %" PRIu64 " on the disk", info.id,
                     info.used, sum[k]);
    }
}

/* ---- manifests ---- */

struct row {
    uint64_t topic;
    uint8_t *key, *val;
    size_t klen, vlen;
    bool dead, seen;
};

struct map {
    struct row *v;
    size_t n, cap;
};

static struct row *map_find(struct map *m, uint64_t topic, const void *key, size_t klen)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->v[i].topic == topic && m->v[i].klen == klen && !memcmp(m->v[i].key, key, klen))
            return &m->v[i];
    return NULL;
}

static void map_set(struct map *m, uint64_t topic, const struct manifest_entry *e)
{
    struct row *r = map_find(m, topic, e->key, e->klen);
    if (!r) {
        if (m->n == m->cap) {
            m->cap = m->cap ? m->cap * 2 : 64;
            m->v = realloc(m->v, m->cap * sizeof *m->v);
        }
        r = &m->v[m->n++];
        *r = (struct row){.topic = topic, .key = malloc(e->klen), .klen = e->klen};
        memcpy(r->key, e->key, e->klen);
    }
    free(r->val);
    r->val = NULL;
    r->dead = !e->val;
    r->vlen = e->val ? e->vlen : 0;
    if (e->val) {
        r->val = malloc(e->vlen + 1);
        memcpy(r->val, e->val, e->vlen);
    }
}

static void map_free(struct map *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->v[i].key);
        free(m->v[i].val);
    }
    free(m->v);
}

static void map_add(struct world *w, struct map *m, uint64_t topic, const uint8_t *buf, size_t len)
{
    struct manifest_entry e;
    size_t pos = 0;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) == 1)
        map_set(m, topic, &e);
    if (r < 0)
        sim_fail(w, "entries of the manifest of %" PRIx64 " are damaged", topic);
}

/* Pages of all manifests that there are; named ones are marked by their keys in `named`. */
static void load_manifest(struct world *w, struct map *m, const char *name, struct map *named)
{
    uint64_t len;
    const uint8_t *p = mem_object(w->look, name, &len);
    struct manifest_root root;
    if (manifest_root_decode(p, len, &root) < 0)
        sim_fail(w, "%s cannot be decoded", name);
    for (uint32_t k = 0; k < root.pages_n; k++) {
        char key[OBJ_KEY_MAX];
        manifest_page_key(root.topic, root.pages[k].id, key, sizeof key);
        const uint8_t *page = mem_object(w->look, key, &len), *entries;
        size_t elen;
        uint32_t n;
        if (!page || len != root.pages[k].bytes || hash64(page, len) != root.pages[k].hash ||
            manifest_page_decode(page, len, root.volume, root.topic, root.pages[k].id, &entries,
                                 &elen, &n) < 0)
            sim_fail(w, "page %s of a manifest is missing or wrong", key);
        map_add(w, m, root.topic, entries, elen);
        struct manifest_entry e = {(const uint8_t *)key, NULL, (uint16_t)strlen(key), 0};
        map_set(named, 0, &e);
    }
    map_add(w, m, root.topic, root.inline_buf, root.inline_len);
    manifest_root_done(&root);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* What the bucket says by itself: every object that a manifest names is there and right; nothing was
 * ever written twice under one key. */
static void check_bucket(struct world *w, struct map *m, struct map *named)
{
    for (unsigned k = 0; k < mem_count(w->look); k++) {
        const char *name = mem_key(w->look, k);
        if (ends_with(name, "/manifest"))
            load_manifest(w, m, name, named);
        else if (strcmp(name, "volume") != 0 && mem_puts(w->look, name) != 1)
            sim_fail(w, "object %s was stored %u times", name, mem_puts(w->look, name));
    }
    for (size_t i = 0; i < m->n; i++) {
        struct row *r = &m->v[i];
        uint64_t ino, base;
        struct seg_rec rec;
        if (r->dead || r->key[0] != 'S')
            continue;
        if (!key_parse_seg(r->key, r->klen, &ino, &base) ||
            seg_rec_decode(r->val, r->vlen, &rec) < 0 || rec.local ||
            (!rec.has_object && (rec.state != SEG_SEALED || rec.end <= base)))
            sim_fail(w, "a segment in a manifest is damaged");
        if (rec.has_object) /* else it says that the bytes are not in the bucket */
            object_holds(w, &rec.object, ino, base, 0, "a manifest");
    }
}

void check_now(struct world *w)
{
    if (!w->v || simdisk_frozen(w->disk))
        return;
    w->count.checks++;
    struct kv_look l = {.w = w};
    disk_look(w, &l.disk);
    char t = 'S';
    int r = kv_walk(w->v->kv, &t, 1, &t, 1, look_seg, &l);
    if (r < 0)
        sim_fail(w, "segment records cannot be read: %s", err_name(r));
    t = 'L';
    (void)kv_walk(w->v->kv, &t, 1, &t, 1, look_unlink, &l);
    if (!w->disk_trouble) {
        check_totals(w, &l);
        check_devices(w, &l);
        model_compare(w);
    }
    free(l.disk.v);
    struct map m = {0}, named = {0};
    check_bucket(w, &m, &named);
    map_free(&m);
    map_free(&named);
}

/* ---- settled ---- */

struct settled {
    struct world *w;
    struct map *m, *objects;
};

static bool topic_of_row(struct world *w, const uint8_t *key, size_t klen, const void *val,
                         size_t vlen, uint64_t *ret)
{
    uint64_t ino = 0, parent;
    struct name_rec n;
    switch (key[0]) {
    case 'N':
        if (!key_parse_name(key, klen, &parent, NULL, NULL) || name_rec_decode(val, vlen, &n) < 0)
            return false;
        ino = parent == ROOT_INO ? n.ino : parent;
        break;
    case 'S':
        if (!key_parse_seg(key, klen, &ino, NULL))
            return false;
        break;
    default:
        if (!key_parse_ino(key, klen, &ino))
            return false;
    }
    return topic_of(w->v->ns, ino, ret) == 0;
}

static int settled_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct settled *s = arg;
    struct world *w = s->w;
    const uint8_t *k = key;
    uint64_t topic, ino = 0, base = 0;
    if (k[0] == 'I' && key_parse_ino(key, klen, &ino) && ino == ROOT_INO)
        return 0;
    if (k[0] == 'S') {
        struct seg_rec rec;
        char name[OBJ_KEY_MAX];
        if (!key_parse_seg(key, klen, &ino, &base) || seg_rec_decode(val, vlen, &rec) < 0)
            sim_fail(w, "a segment record is damaged");
        if (rec.state != SEG_COMMITTED || rec.has_pending)
            sim_fail(w, "segment %" PRIx64 "/%" PRIu64 " is stuck in state %d", ino, base,
                     rec.state);
        (void)seg_object_key(&rec.object, ino, base, name, sizeof name);
        struct manifest_entry e = {(const uint8_t *)name, NULL, (uint16_t)strlen(name), 0};
        map_set(s->objects, 0, &e);
        if (!model_file(&w->m, ino) ||
            (!names_links(model_now(&w->m), ino) && !model_file(&w->m, ino)->held))
            sim_fail(w, "segment %" PRIx64 "/%" PRIu64 " is of a removed file", ino, base);
    }
    if (!topic_of_row(w, key, klen, val, vlen, &topic))
        return 0;
    struct row *r = map_find(s->m, topic, key, klen);
    if (!r || r->dead)
        sim_fail(w, "the manifest of %" PRIx64 " lacks a '%c' row of %" PRIx64 "/%" PRIu64, topic,
                 k[0], ino, base);
    r->seen = true;
    if (k[0] == 'S') {
        struct seg_rec a, b;
        if (seg_rec_decode(val, vlen, &a) < 0 || seg_rec_decode(r->val, r->vlen, &b) < 0 ||
            a.end != b.end || a.object.attempt != b.object.attempt)
            sim_fail(w, "the manifest of %" PRIx64 " names another object for %" PRIx64 "/%" PRIu64,
                     topic, ino, base);
    } else if (r->vlen != vlen || memcmp(r->val, val, vlen) != 0) {
        struct inode_rec a = {0}, b = {0};
        if (k[0] == 'I') {
            (void)inode_rec_decode(val, vlen, &a);
            (void)inode_rec_decode(r->val, r->vlen, &b);
        }
        sim_fail(w,
                 "the manifest of %" PRIx64 " has an old '%c' row of %" PRIx64
                 ": nlink %u %u size %" PRIu64 " %" PRIu64 " mtime %" PRId64 " %" PRId64
                 " ctime %" PRId64 " %" PRId64 " parent %" PRIx64 " %" PRIx64,
                 topic, k[0], ino, a.nlink, b.nlink, a.size, b.size, a.mtime_ns, b.mtime_ns,
                 a.ctime_ns, b.ctime_ns, a.parent, b.parent);
    }
    return 0;
}

void check_settled(struct world *w)
{
    check_now(w);
    struct map m = {0}, named = {0}, objects = {0};
    check_bucket(w, &m, &named);
    struct settled s = {w, &m, &objects};
    for (const char *t = "INYXS"; *t; t++)
        (void)kv_walk(w->v->kv, t, 1, t, 1, settled_row, &s);
    for (size_t i = 0; i < m.n; i++)
        if (!m.v[i].dead && !m.v[i].seen && m.v[i].topic != ROOT_INO)
            sim_fail(w, "the manifest of %" PRIx64 " has a '%c' row that is no longer true",
                     m.v[i].topic, m.v[i].key[0]);
    for (unsigned k = 0; k < mem_count(w->look); k++) {
        const char *name = mem_key(w->look, k);
        if (!strncmp(name, "segments/", 9) && !map_find(&objects, 0, name, strlen(name)))
            sim_fail(w, "object %s is left over", name);
        if (strstr(name, "/pages/") && !map_find(&named, 0, name, strlen(name)) && !w->crashed)
            sim_note(w, "page %s is left over", name);
        if (ends_with(name, "/manifest")) {
            uint64_t topic = strtoull(name + 7, NULL, 16);
            struct key t = key_topic(topic);
            uint8_t b[1];
            if (kv_get(w->v->kv, t.b, t.len, b, sizeof b) == -ENOENT)
                sim_fail(w, "%s is left over", name);
        }
    }
    map_free(&m);
    map_free(&named);
    map_free(&objects);
    model_compare_bytes(w);
}
