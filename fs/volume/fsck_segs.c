/* fsck_segs.c: every segment record: its queue entries, its block hashes, its device file, its object; then
 * the files on devices that no record names.
 *
 * What a device file lost comes back from the object block by block, each proven by its hash before it is
 * written, under the inode's lock and only while the record is unchanged. A file that is missing or too
 * short is given up when its object holds the same version; the segment is then remote. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/data.h"
#include "fs/data/footer.h"
#include "fs/ns/ns.h"
#include "fs/seg/segcheck.h"
#include "fs/seg/segfmt.h"
#include "fs/volume/fsck_int.h"

#define LLU(v) ((unsigned long long)(v))

enum { BAD_BLOCKS_MAX = 4096 };

/* ---- block hashes ---- */

static bool proven(const struct seg_rec *rec, const uint64_t *h, size_t n)
{
    struct hash128 have = seg_hash(h, n);
    return have.lo == rec->hash.lo && have.hi == rec->hash.hi;
}

static bool has_same_object(const struct seg_rec *rec)
{
    return rec->has_object && rec->object.version == rec->version;
}

static int hashes_of_footer(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_object *o,
                            uint64_t **ret, size_t *ret_n)
{
    char key[OBJ_KEY_MAX];
    if (!f->b.store || !footer_len_ok(o, base))
        return -ENOENT;
    uint8_t *buf = malloc(o->footer_len);
    int r = buf ? seg_object_key(o, ino, base, key, sizeof key) : -ENOMEM;
    if (r == 0)
        r = bucket_read(&f->b, key, o->end - base, buf, o->footer_len);
    if (r == 0)
        r = footer_check(f->v->id, ino, base, o, buf, ret, ret_n);
    free(buf);
    return r;
}

int fsck_hashes(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                uint64_t **ret, size_t *ret_n)
{
    struct segfile_id id = seg_file_id(0, ino, base, rec);
    for (int from = 0; from < 4; from++) {
        uint64_t *h = NULL;
        size_t n = 0;
        int r = -ENOENT;
        if (from == 0)
            r = seg_blocks(f->v->kv, ino, base, rec->version, &h, &n);
        else if (from == 1 && has_same_object(rec))
            r = hashes_of_footer(f, ino, base, &rec->object, &h, &n);
        else if (from > 1 && rec->local)
            r = segcheck_hashes(f->v->devs, &id, rec->end - base, from == 3, &h, &n);
        if (r == 0 && proven(rec, h, n)) {
            *ret = h;
            *ret_n = n;
            return from;
        }
        if (r == 0)
            free(h);
        if (r == -ENOMEM || r == -ECANCELED)
            return r;
    }
    return -ENOENT;
}

struct put_hashes {
    const uint64_t *h;
    size_t n;
};

static int write_hashes(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)f;
    struct put_hashes *p = arg;
    seg_blocks_put(b, c->ino, c->base, c->now.version, p->h, p->n);
    return 0;
}

/* ---- one segment ---- */

struct seg {
    struct fsck *f;
    uint64_t ino, base;
    struct seg_rec rec;
    uint64_t *hashes;
    size_t n;
    uint64_t *bad; /* damaged blocks of the device file */
    size_t bads;
    char path[FSCK_PATH];
};

static const char *name_of(struct seg *s)
{
    if (!*s->path)
        (void)fsck_path(s->f, s->ino, s->path, sizeof s->path);
    return s->path;
}

#define TELL(s, kind, fate, off, len, fmt, ...)             \
    fsck_told((s)->f, kind, fate, (s)->ino, off, len, NULL, \
              "%s: bytes %llu-%llu (segment at %llu"        \
              "): " fmt,                                    \
              name_of(s), LLU(off), LLU((off) + (len)), LLU((s)->base), ##__VA_ARGS__)

static int put_queue(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)f;
    const struct key *k = arg;
    if (k->b[0] == 'W')
        seg_open_put(b, c->ino, c->base, 0);
    else
        kv_put(b, k->b, k->len, "\1", 1);
    return 0;
}

/* Without its entry in a queue a segment stays for ever where it is. */
static int check_queue(struct seg *s)
{
    const struct seg_rec *r = &s->rec;
    uint8_t buf[16];
    struct key k;
    const char *what;
    if (r->state == SEG_OPEN) {
        k = key_open(s->ino, s->base);
        what = "open segments";
    } else if (r->state == SEG_SEALED) {
        k = key_upload(r->sealed_ns, s->ino, s->base);
        what = "uploads";
    } else if (r->state == SEG_COMMITTED && r->local) {
        k = key_evict(r->committed_ns, s->ino, s->base);
        what = "evictions";
    } else {
        return 0;
    }
    ssize_t n = kv_get(s->f->v->kv, k.b, k.len, buf, sizeof buf);
    if (n == -ENOENT && r->state == SEG_SEALED) { /* or a rule keeps it from the store */
        struct key kept = key_kept(r->sealed_ns, s->ino, s->base);
        n = kv_get(s->f->v->kv, kept.b, kept.len, buf, sizeof buf);
    }
    if (n >= 0 || n == -EBADMSG || !fsck_still(s->f, s->ino, s->base, r))
        return 0;
    int e = s->f->o->repair ? fsck_change(s->f, s->ino, s->base, r, put_queue, &k) : 0;
    if (e == -ESTALE)
        return 0;
    TELL(s, "queue", s->f->o->repair && e == 0 ? FATE_HEALED : FATE_LEFT, s->base, r->end - s->base,
         "was missing from the queue of %s", what);
    return e;
}

static void note_block(void *arg, uint64_t block)
{
    struct seg *s = arg;
    if (!s->bad)
        s->bad = malloc(BAD_BLOCKS_MAX * sizeof *s->bad);
    if (s->bad && s->bads < BAD_BLOCKS_MAX)
        s->bad[s->bads++] = block;
}

struct block {
    uint64_t pos;
    const uint8_t *buf;
    size_t len;
};

static int write_block(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)b;
    struct block *x = arg;
    struct segfile_id id = seg_file_id(0, c->ino, c->base, &c->now);
    return segcheck_write_data(f->v->devs, &id, x->pos, x->buf, x->len);
}

/* 1: mended from the object; 0: there is none, or it is damaged too. */
static int mend_block(struct seg *s, uint64_t block)
{
    struct fsck *f = s->f;
    char key[OBJ_KEY_MAX];
    uint64_t pos = block * BLOCK_BYTES;
    if (!f->o->repair || !f->b.store || !has_same_object(&s->rec) ||
        seg_object_key(&s->rec.object, s->ino, s->base, key, sizeof key) < 0)
        return 0;
    size_t len = (size_t)min_u64(BLOCK_BYTES, s->rec.end - s->base - pos);
    uint8_t *buf = malloc(BLOCK_BYTES);
    int r = buf ? bucket_read(&f->b, key, pos, buf, len) : -ENOMEM;
    if (r == 0 && hash64(buf, len) != s->hashes[block])
        r = -EBADMSG;
    struct block x = {pos, buf, len};
    if (r == 0)
        r = fsck_change(f, s->ino, s->base, &s->rec, write_block, &x);
    free(buf);
    return r == 0;
}

static int write_head(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)b;
    struct seg *s = arg;
    struct segfile_id id = seg_file_id(0, c->ino, c->base, &c->now);
    if (fsck_topic(f, c->ino, &id.topic) < 0)
        id.topic = c->now.object.topic;
    return segcheck_write_header(f->v->devs, f->v->id, &id, c->now.capacity, c->now.end - c->base,
                                 s->hashes, s->n);
}

static int drop_local(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)arg;
    struct key e = key_evict(c->now.committed_ns, c->ino, c->base);
    char path[SEG_PATH_BYTES];
    seg_path(c->ino, c->base, c->now.file_version, path);
    kv_del(b, e.b, e.len);
    c->now.local = false;
    int r = segfile_quarantine(f->v->devs, c->now.device, path + strlen("segments/"));
    return r == -ENOENT || r == -ENODEV ? 0 : r;
}

/* The device file is of no use; is the object? */
static int give_up_local(struct seg *s, const char *what)
{
    struct fsck *f = s->f;
    bool heal = f->o->repair && f->b.store && s->rec.state == SEG_COMMITTED &&
                has_same_object(&s->rec) && s->rec.object.end == s->rec.end;
    char key[OBJ_KEY_MAX];
    struct obj_info info;
    if (heal)
        heal = seg_object_key(&s->rec.object, s->ino, s->base, key, sizeof key) == 0 &&
               bucket_head(&f->b, key, &info) == 0 &&
               info.size == s->rec.end - s->base + s->rec.object.footer_len;
    int r = heal ? fsck_change(f, s->ino, s->base, &s->rec, drop_local, NULL) : 0;
    if (r == -ESTALE)
        return 0;
    TELL(s, "device-file", heal && r == 0 ? FATE_HEALED : FATE_LEFT, s->base, s->rec.end - s->base,
         "its file on device %u %s%s", s->rec.device, what,
         heal && r == 0 ? "; its object is the only copy now" : "");
    if (heal && r == 0)
        s->rec.local = false;
    return r;
}

static int tell_blocks(struct seg *s, const struct segcheck *c)
{
    size_t mended = 0;
    for (size_t i = 0; i < s->bads; i++) {
        uint64_t off = s->base + s->bad[i] * BLOCK_BYTES;
        uint64_t len = min_u64(BLOCK_BYTES, s->rec.end - off);
        bool good = mend_block(s, s->bad[i]);
        mended += good;
        TELL(s, "device-block", good ? FATE_HEALED : FATE_LEFT, off, len,
             "the file on device %u does not match its hash%s", s->rec.device,
             good ? "; written again from the object" : "");
    }
    return mended == s->bads && s->bads == c->bad_blocks;
}

/* *ret_good: every block of the device file was compared and is whole now. */
static int check_file(struct seg *s, bool *ret_good)
{
    struct fsck *f = s->f;
    struct segfile_id id = seg_file_id(0, s->ino, s->base, &s->rec);
    uint64_t len = s->rec.end - s->base;
    struct segcheck c;
    *ret_good = false;
    f->rep->device_files++;
    segcheck_sealed(f->v->devs, f->v->id, &id, len, s->hashes, s->n, f->o->deep, note_block, s, &c);
    f->rep->device_bytes += c.bytes;
    if (!(c.missing || c.unreadable || c.foreign || c.shorter || c.bad_header || c.bad_blocks)) {
        *ret_good = f->o->deep && s->hashes;
        return 0;
    }
    if (!fsck_still(f, s->ino, s->base, &s->rec))
        return 0;
    if (c.missing)
        return give_up_local(s, "is missing");
    if (c.unreadable)
        return give_up_local(s, err_name(c.err));
    if (c.foreign)
        return give_up_local(s, "belongs to another segment");
    if (c.shorter)
        return give_up_local(s, "is too short");
    bool whole = c.bad_blocks ? tell_blocks(s, &c) : f->o->deep && s->hashes;
    if (c.bad_header) {
        int r = f->o->repair && s->hashes ? fsck_change(f, s->ino, s->base, &s->rec, write_head, s)
                                          : -ENOENT;
        TELL(s, "device-header", r == 0 ? FATE_HEALED : FATE_LEFT, s->base, len,
             "the header of its file on device %u is damaged%s", s->rec.device,
             r == 0 ? "; written again" : "");
    }
    *ret_good = whole;
    return 0;
}

static int check_open(struct seg *s)
{
    struct fsck *f = s->f;
    struct segfile_id id = seg_file_id(0, s->ino, s->base, &s->rec);
    struct segcheck c;
    f->rep->device_files++;
    /* Beside a daemon its bytes and hashes change while we look: only that it is there. */
    segcheck_open(f->v->devs, f->v->id, &id, f->o->deep && !f->v->ns, &c);
    f->rep->device_bytes += c.bytes;
    if (!(c.missing || c.unreadable || c.foreign || c.bad_blocks ||
          (!f->v->ns && (c.bad_header || c.shorter))) ||
        !fsck_still(f, s->ino, s->base, &s->rec))
        return 0;
    if (c.bad_blocks)
        TELL(s, "device-block", FATE_LEFT, s->base + c.bad_first * BLOCK_BYTES,
             (c.bad_last - c.bad_first + 1) * BLOCK_BYTES,
             "the open file on device %u does not match its hashes in %llu blocks", s->rec.device,
             LLU(c.bad_blocks));
    else if (c.shorter && c.flushed)
        TELL(s, "device-file", FATE_LEFT, s->base + c.size, c.flushed - c.size,
             "its open file on device %u lost flushed bytes: %llu of %llu are there", s->rec.device,
             LLU(c.size), LLU(c.flushed));
    else
        TELL(s, "device-file", FATE_LEFT, s->base, c.size, "its open file on device %u %s",
             s->rec.device,
             c.missing      ? "is missing"
             : c.unreadable ? err_name(c.err)
             : c.foreign    ? "belongs to another segment"
             : c.shorter    ? "is too short"
                            : "has a damaged header");
    return 0;
}

static int check_sealed(struct seg *s)
{
    struct fsck *f = s->f;
    bool local_good = false;
    int r = 0;
    if (f->o->deep || s->rec.local) {
        int from = fsck_hashes(f, s->ino, s->base, &s->rec, &s->hashes, &s->n);
        if (from == -ENOMEM || from == -ECANCELED)
            return from;
        struct put_hashes p = {s->hashes, s->n};
        uint64_t *none = NULL;
        size_t none_n;
        bool absent = from > 0 && seg_blocks(f->v->kv, s->ino, s->base, s->rec.version, &none,
                                             &none_n) == -ENOENT;
        free(none);
        /* A remote segment of a rebuilt volume has them in its footer only: that is all right. */
        bool wrong = from > 0 && (!absent || s->rec.local);
        if (wrong || from < 0) {
            if (!fsck_still(f, s->ino, s->base, &s->rec))
                return 0;
            r = wrong && f->o->repair ? fsck_change(f, s->ino, s->base, &s->rec, write_hashes, &p)
                                      : 0;
            TELL(s, "block-hashes", wrong && f->o->repair && r == 0 ? FATE_HEALED : FATE_LEFT,
                 s->base, s->rec.end - s->base, "its block hashes are %s%s",
                 absent ? "missing" : "damaged",
                 from < 0 ? ", and nothing else proves its bytes" : "");
            r = 0;
        }
    }
    if (s->rec.local)
        r = check_file(s, &local_good);
    if (r == 0 && s->rec.has_object && f->b.store)
        r = fsck_object(f, s->ino, s->base, &s->rec, s->hashes, s->n, local_good);
    return r;
}

static int check_seg(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct fsck *f = arg;
    struct seg s = {.f = f};
    if (fsck_cancelled(f))
        return -ECANCELED;
    f->rep->segments++;
    if (f->o->progress)
        f->o->progress(f->o->arg, ++f->done, f->total);
    if (!key_parse_seg(key, klen, &s.ino, &s.base) || seg_rec_decode(val, vlen, &s.rec) < 0 ||
        (s.rec.state != SEG_OPEN && s.rec.end < s.base)) {
        fsck_told(f, "segment", FATE_LEFT, s.ino, s.base, 0, NULL,
                  "the record of the segment at %llu of inode %llx makes no sense", LLU(s.base),
                  LLU(s.ino));
        return 0;
    }
    int r = check_queue(&s);
    if (r == 0 && s.rec.state == SEG_OPEN) {
        r = check_open(&s);
    } else if (r == 0 && s.rec.has_object && s.rec.object.end == s.base && !s.rec.local) {
        TELL(&s, "gap", FATE_LEFT, s.base, s.rec.end - s.base,
             "were never uploaded; they were lost with a device");
    } else if (r == 0) {
        r = check_sealed(&s);
    }
    free(s.hashes);
    free(s.bad);
    return r == -EBADMSG ? -EIO : r;
}

int fsck_segment(struct volume *v, uint64_t ino, uint64_t base, const struct fsck_options *o,
                 struct fsck_report *ret)
{
    struct fsck f = {.v = v, .o = o, .rep = ret, .b = fsck_bucket(v, o)};
    struct key k = key_seg(ino, base);
    uint8_t buf[REC_SEG_MAX];
    ssize_t n = kv_get(v->kv, k.b, k.len, buf, sizeof buf);
    if (n < 0 || n > (ssize_t)sizeof buf)
        return n == -EBADMSG || n > 0 ? -EIO : (int)n;
    return check_seg(&f, k.b, k.len, buf, (size_t)n);
}

static int count_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen, (void)val, (void)vlen;
    ++*(uint64_t *)arg;
    return 0;
}

int fsck_segs(struct fsck *f)
{
    struct key k = key_prefix('S');
    int r = f->o->progress ? fsck_walk(f, &k, count_row, &f->total) : 0;
    return r < 0 ? r : fsck_walk(f, &k, check_seg, f);
}

/* ---- files that no record names ---- */

struct stray {
    char name[300];
    struct segfile_id id;
};

struct strays {
    struct fsck *f;
    uint32_t device;
    struct stray *list;
    size_t n, cap;
};

struct queued {
    const struct segfile_id *id;
};

static int is_queued(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen;
    const struct segfile_id *id = ((struct queued *)arg)->id;
    struct segfile_id at;
    return unlink_decode(val, vlen, &at) == 0 && at.ino == id->ino && at.base == id->base &&
           at.version == id->version && at.device == id->device;
}

/* 1: a record or the unlink queue names it, or will. */
static int is_named(struct fsck *f, const struct segfile_id *id)
{
    if (data_is_making(f->v->data, id->ino, id->base))
        return 1;
    struct seg_rec rec;
    int r = seg_get(f->v->kv, id->ino, id->base, &rec);
    if (r == -EBADMSG)
        return 1; /* who knows */
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && rec.local && rec.device == id->device && rec.file_version == id->version)
        return 1;
    struct key k = key_prefix('L');
    struct queued q = {id};
    return fsck_walk(f, &k, is_queued, &q);
}

static int see_file(void *arg, const struct segfile_id *id, const char *name, uint64_t bytes)
{
    (void)bytes;
    struct strays *x = arg;
    struct segfile_id by_name = {.device = x->device};
    const char *file = strchr(name, '/');
    if (fsck_cancelled(x->f))
        return -ECANCELED;
    if (seg_name_parse(file ? file + 1 : name, &by_name.ino, &by_name.base, &by_name.version)) {
        int named = is_named(x->f, &by_name);
        if (named)
            return named < 0 ? named : 0;
    }
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 16;
        struct stray *more = realloc(x->list, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        x->list = more;
        x->cap = cap;
    }
    struct stray *s = &x->list[x->n++];
    s->id = id->ino ? *id : by_name;
    snprintf(s->name, sizeof s->name, "%s", name);
    return 0;
}

static int put_away(struct strays *x, struct stray *s)
{
    struct fsck *f = x->f;
    struct inode *i = NULL;
    int r = 0;
    /* Beside a daemon, creation and warming hold this lock, or end it within minutes. */
    if (f->v->ns && s->id.ino) {
        uint64_t bytes;
        int64_t mtime;
        if (segfile_stat(f->v->devs, &s->id, &bytes, &mtime) < 0 ||
            clock_wall_ns() - mtime < 600 * NS_PER_SEC)
            return 0;
        r = inode_get(f->v->ns, s->id.ino, &i);
        if (r < 0 && r != -ENOENT)
            return r;
    }
    if (i)
        lock_acquire(&i->io);
    r = s->id.ino ? is_named(f, &s->id) : 0;
    bool stray = r == 0;
    if (stray && f->o->repair)
        r = segfile_quarantine(f->v->devs, x->device, s->name);
    if (i) {
        lock_release(&i->io);
        inode_put(f->v->ns, i);
    }
    if (stray)
        fsck_told(f, "stray-file", f->o->repair && r == 0 ? FATE_QUARANTINED : FATE_LEFT, s->id.ino,
                  s->id.base, 0, NULL, "device %u: file %s is in no record", x->device, s->name);
    return 0;
}

int fsck_strays(struct fsck *f)
{
    struct strays x = {.f = f};
    int r = 0;
    for (unsigned k = 0; r == 0 && k < devs_count(f->v->devs); k++) {
        struct dev_info info;
        if (!devs_info(f->v->devs, k, &info))
            continue;
        if (info.state == DEV_MISSING) {
            fsck_told(f, "device", FATE_LEFT, 0, 0, 0, NULL, "device %s: %s", info.path,
                      info.error);
            continue;
        }
        x.device = info.id;
        x.n = 0;
        r = segfile_scan(f->v->devs, info.id, see_file, &x);
        for (size_t i = 0; r == 0 && i < x.n; i++)
            r = put_away(&x, &x.list[i]);
    }
    free(x.list);
    return r;
}
