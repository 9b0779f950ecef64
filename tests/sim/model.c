/* model.c: names as a list of (parent, name, inode, mode) with their history, bytes as one array per
 * file.
 *
 * After a kill the present must be there, or what a call in flight may have made of it. After loss of
 * power some moment of the history must be there, not before the last one that an fsync acknowledged; a
 * file then is a prefix of its bytes (topics), or every byte is one that was written there since the last
 * fsync or was there then (broker). */
#include "tests/sim/sim.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/log.h"

struct mfile *model_file(struct model *m, uint64_t ino)
{
    for (unsigned i = m->files; i-- > 0;)
        if (m->file[i]->ino == ino)
            return m->file[i];
    return NULL;
}

struct mfile *model_file_add(struct world *w, uint64_t ino, bool dir)
{
    struct model *m = &w->m;
    struct mfile *before = model_file(m, ino);
    if (before && before->unsure)
        before->ino = 0;
    else if (before)
        sim_fail(w, "inode number %llx was given twice", (unsigned long long)ino);
    if (m->files == FILES_MAX)
        sim_fail(w, "too many files for the model");
    struct mfile *f = calloc(1, sizeof *f);
    f->ino = ino;
    f->dir = dir;
    m->file[m->files++] = f;
    return f;
}

static void patches_free(struct mfile *f, unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        free(f->patch[k].buf);
    memmove(f->patch, f->patch + n, (f->patches - n) * sizeof *f->patch);
    f->patches -= n;
}

void model_free(struct model *m)
{
    for (unsigned i = 0; i < m->files; i++) {
        struct mfile *f = m->file[i];
        if (f->patches)
            patches_free(f, f->patches);
        free(f->patch);
        free(f->bytes);
        free(f->old);
        free(f);
    }
    free(m->v);
}

void model_grow(struct mfile *f, uint64_t len)
{
    if (len <= f->cap)
        return;
    uint64_t cap = f->cap ? f->cap : 64 * KiB;
    while (cap < len)
        cap *= 2;
    f->bytes = realloc(f->bytes, cap);
    f->old = realloc(f->old, cap);
    assert(f->bytes && f->old);
    memset(f->bytes + f->cap, 0, cap - f->cap);
    memset(f->old + f->cap, 0, cap - f->cap);
    f->cap = cap;
}

/* ---- names ---- */

struct mnames *model_now(struct model *m)
{
    return &m->v[m->now];
}

int names_find(const struct mnames *n, uint64_t parent, const char *name)
{
    for (unsigned i = 0; i < n->n; i++)
        if (n->e[i].parent == parent && !strcmp(n->e[i].name, name))
            return (int)i;
    return -1;
}

unsigned names_links(const struct mnames *n, uint64_t ino)
{
    unsigned k = 0;
    for (unsigned i = 0; i < n->n; i++)
        k += n->e[i].ino == ino;
    return k;
}

struct mnames model_next(struct model *m)
{
    struct mnames n = m->v[m->now];
    n.acked = false;
    return n;
}

void model_push(struct model *m, const struct mnames *n, bool acked)
{
    if (m->n == m->cap) {
        unsigned drop = m->durable;
        if (drop > m->cap / 2) { /* what is older than the durable one is not needed */
            for (unsigned v = 0; v < drop; v++)
                for (unsigned k = 0; k < m->v[v].n; k++)
                    if (m->v[v].e[k].ino)
                        model_file(m, m->v[v].e[k].ino)->durable_made = true;
            memmove(m->v, m->v + drop, (m->n - drop) * sizeof *m->v);
            m->n -= drop;
            m->now -= drop;
            m->durable -= drop;
            m->dropped += drop;
        } else {
            m->cap *= 2;
            m->v = realloc(m->v, m->cap * sizeof *m->v);
            assert(m->v);
        }
    }
    m->v[m->n] = *n;
    m->v[m->n].acked = acked;
    if (acked)
        m->now = m->n;
    m->n++;
}

/* ---- what the volume says ---- */

struct seen {
    struct world *w;
    uint64_t dir;
    struct mnames n;
};

static int see(void *arg, const char *name, uint64_t ino, unsigned type, uint64_t next)
{
    struct seen *s = arg;
    (void)type;
    (void)next;
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return 0;
    if (s->n.n == ENTRIES_MAX || strlen(name) >= NAME_MAX_SIM)
        sim_fail(s->w, "names that nobody made: %s", name);
    struct mentry *e = &s->n.e[s->n.n++];
    e->parent = s->dir;
    e->ino = ino;
    snprintf(e->name, sizeof e->name, "%s", name);
    return 0;
}

static void tree(struct world *w, struct seen *s)
{
    *s = (struct seen){.w = w, .dir = ROOT_INO};
    for (unsigned at = 0;; at++) {
        int r = ns_readdir(w->v->ns, s->dir, 0, see, s);
        if (simdisk_frozen(w->disk))
            return;
        if (r < 0)
            sim_fail(w, "readdir of %llx: %s", (unsigned long long)s->dir, err_name(r));
        struct inode *i = NULL;
        for (; at < s->n.n; at++) {
            r = inode_get(w->v->ns, s->n.e[at].ino, &i);
            if (simdisk_frozen(w->disk)) {
                if (r == 0)
                    inode_put(w->v->ns, i);
                return;
            }
            if (r < 0)
                sim_fail(w, "inode %llx of name %s: %s", (unsigned long long)s->n.e[at].ino,
                         s->n.e[at].name, err_name(r));
            s->n.e[at].mode = i->rec.mode & 07777;
            if (i->type == S_IFDIR)
                break;
            inode_put(w->v->ns, i);
            i = NULL;
        }
        if (!i)
            break;
        s->dir = i->ino;
        inode_put(w->v->ns, i);
    }
    for (unsigned k = 0; k < s->n.n; k++) {
        struct inode *i;
        if (inode_get(w->v->ns, s->n.e[k].ino, &i) < 0)
            continue;
        if (i->type == S_IFREG && i->rec.nlink != names_links(&s->n, i->ino))
            sim_fail(w, "inode %llx: nlink %u, names %u", (unsigned long long)i->ino, i->rec.nlink,
                     names_links(&s->n, i->ino));
        inode_put(w->v->ns, i);
    }
}

/* NULL: the same. */
static const char *differs(const struct mnames *is, const struct mnames *want, char *text,
                           size_t cap)
{
    for (unsigned k = 0; k < want->n; k++) {
        const struct mentry *e = &want->e[k];
        int at = names_find(is, e->parent, e->name);
        if (at < 0)
            snprintf(text, cap, "%llx/%s is missing", (unsigned long long)e->parent, e->name);
        else if (e->ino && (is->e[at].ino != e->ino || is->e[at].mode != e->mode))
            snprintf(text, cap, "%llx/%s is %llx mode %o, not %llx mode %o",
                     (unsigned long long)e->parent, e->name, (unsigned long long)is->e[at].ino,
                     is->e[at].mode, (unsigned long long)e->ino, e->mode);
        else
            continue;
        return text;
    }
    if (is->n == want->n)
        return NULL;
    for (unsigned k = 0; k < is->n; k++)
        if (names_find(want, is->e[k].parent, is->e[k].name) < 0)
            snprintf(text, cap, "%llx/%s is there (%llx)", (unsigned long long)is->e[k].parent,
                     is->e[k].name, (unsigned long long)is->e[k].ino);
    return text;
}

void model_compare(struct world *w)
{
    struct seen s;
    char text[200];
    tree(w, &s);
    const char *d = differs(&s.n, model_now(&w->m), text, sizeof text);
    if (simdisk_frozen(w->disk))
        return;
    if (d)
        sim_fail(w, "names: %s", d);
    for (unsigned k = 0; k < s.n.n; k++) {
        struct mfile *f = model_file(&w->m, s.n.e[k].ino);
        struct inode *i;
        if (f->dir || inode_get(w->v->ns, f->ino, &i) < 0)
            continue;
        struct stat st;
        data_stat(w->v->data, i, &st);
        inode_put(w->v->ns, i);
        if (simdisk_frozen(w->disk))
            return; /* the planned crash came while the inode was loaded */
        if ((uint64_t)st.st_size != f->len && !f->blurred)
            sim_fail(w, "%s (%llx): size %lld, not %llu", s.n.e[k].name, (unsigned long long)f->ino,
                     (long long)st.st_size, (unsigned long long)f->len);
    }
}

/* ---- bytes ---- */

static void wrong_byte(struct world *w, struct mfile *f, const uint8_t *is, uint64_t len,
                       const char *when)
{
    uint64_t at = 0;
    while (at < len && is[at] == f->bytes[at])
        at++;
    uint64_t zeros = 0;
    while (at + zeros < len && is[at + zeros] == 0)
        zeros++;
    sim_fail(w,
             "%s: inode %llx differs at %llu of %llu (is %02x, should be %02x; %llu zeros there)",
             when, (unsigned long long)f->ino, (unsigned long long)at, (unsigned long long)len,
             is[at], f->bytes[at], (unsigned long long)zeros);
}

static uint8_t *read_all(struct world *w, struct inode *i, uint64_t len)
{
    uint8_t *buf = malloc(len + 1);
    for (uint64_t at = 0; at < len;) {
        size_t n = (size_t)min_u64(len - at, FUSE_IO_BYTES_MAX);
        int64_t got = read_now(w, i, at, buf + at, n);
        if (got != (int64_t)n)
            sim_fail(w, "reading inode %llx at %llu of %llu: %s (%lld)", (unsigned long long)i->ino,
                     (unsigned long long)at, (unsigned long long)len,
                     got < 0 ? err_name((int)got) : "short", (long long)got);
        at += n;
    }
    return buf;
}

void model_compare_bytes(struct world *w)
{
    for (unsigned k = 0; k < w->m.files; k++) {
        struct mfile *f = w->m.file[k];
        struct inode *i;
        if (f->dir || f->blurred || (!names_links(model_now(&w->m), f->ino) && !f->held))
            continue;
        int r = inode_get(w->v->ns, f->ino, &i);
        if (r < 0)
            sim_fail(w, "inode %llx: %s", (unsigned long long)f->ino, err_name(r));
        uint8_t *is = read_all(w, i, f->len);
        if (memcmp(is, f->bytes ? f->bytes : is, f->len) != 0)
            wrong_byte(w, f, is, f->len, "everything read");
        free(is);
        inode_put(w->v->ns, i);
    }
}

/* ---- recovery ---- */

static bool may_be(const struct mfile *f, uint64_t at, uint8_t is)
{
    if (is == (at < f->old_len ? f->old[at] : 0))
        return true;
    for (unsigned k = 0; k < f->patches; k++) {
        const struct patch *p = &f->patch[k];
        if (!p->buf ? (at >= p->off && is == 0)
                    : (at >= p->off && at < p->off + p->len && is == p->buf[at - p->off]))
            return true;
    }
    return false;
}

/* Sizes that the file has had since its last fsync. */
static void size_range(const struct mfile *f, uint64_t *ret_least, uint64_t *ret_most)
{
    uint64_t size = f->old_len;
    *ret_least = *ret_most = size;
    for (unsigned k = 0; k < f->patches; k++) {
        const struct patch *p = &f->patch[k];
        size = !p->buf ? p->off : max_u64(size, p->off + p->len);
        *ret_least = min_u64(*ret_least, size);
        *ret_most = max_u64(*ret_most, size);
    }
}

static void recover_broker(struct world *w, struct mfile *f, const uint8_t *is, uint64_t size,
                           bool power)
{
    if (!power && !f->blurred) {
        if (size != f->len)
            sim_fail(w, "after a kill inode %llx has %llu bytes, not %llu",
                     (unsigned long long)f->ino, (unsigned long long)size,
                     (unsigned long long)f->len);
        if (size && memcmp(is, f->bytes, size) != 0)
            wrong_byte(w, f, is, size, "after a kill");
        return;
    }
    uint64_t least, most;
    size_range(f, &least, &most);
    if (size < least || size > most)
        sim_fail(w, "inode %llx has %llu bytes, and had %llu to %llu since its last fsync",
                 (unsigned long long)f->ino, (unsigned long long)size, (unsigned long long)least,
                 (unsigned long long)most);
    for (uint64_t at = 0; at < size; at++)
        if (!may_be(f, at, is[at]))
            sim_fail(w, "inode %llx: byte %llu of %llu is %02x, which was never written there",
                     (unsigned long long)f->ino, (unsigned long long)at, (unsigned long long)size,
                     is[at]);
}

/* What was found after a loss of power is what the medium has: nothing else can come back. */
static void on_medium(struct world *w, struct mfile *f)
{
    f->durable = f->len;
    if (!w->broker)
        return;
    if (f->patches)
        patches_free(f, f->patches);
    model_grow(f, 1);
    memcpy(f->old, f->bytes, f->cap);
    f->old_len = f->len;
}

static void recover_file(struct world *w, struct mfile *f, bool power)
{
    struct inode *i;
    int r = inode_get(w->v->ns, f->ino, &i);
    if (r < 0)
        sim_fail(w, "after a crash inode %llx: %s", (unsigned long long)f->ino, err_name(r));
    uint64_t size = atomic_load(&i->size), least = power ? f->durable : f->len;
    if (!power && !f->blurred && size == f->len && size == f->max && rnd(w, 2)) {
        inode_put(w->v->ns, i); /* as it is: reading it would flush it */
        return;
    }
    if (!w->broker && (size < least || size > f->max))
        sim_fail(w, "after %s inode %llx has %llu bytes; synced %llu, written %llu, tried %llu",
                 power ? "loss of power" : "a kill", (unsigned long long)f->ino,
                 (unsigned long long)size, (unsigned long long)f->durable,
                 (unsigned long long)f->len, (unsigned long long)f->max);
    uint8_t *is = read_all(w, i, size);
    inode_put(w->v->ns, i);
    model_grow(f, size);
    if (w->broker)
        recover_broker(w, f, is, size, power);
    else if (memcmp(is, f->bytes ? f->bytes : is, size) != 0)
        wrong_byte(w, f, is, size, power ? "after loss of power" : "after a kill");
    if (f->bytes) {
        memcpy(f->bytes, is, size);
        memset(f->bytes + size, 0, f->cap - size);
    }
    free(is);
    f->len = f->max = size;
    if (w->broker && f->blurred && !power) {
        struct patch *more = realloc(f->patch, (f->patches + 2) * sizeof *more);
        assert(more); /* as it is now, on top of what may be lost */
        f->patch = more;
        f->patch[f->patches++] = (struct patch){.off = size};
        uint8_t *copy = malloc(size + 1);
        memcpy(copy, f->bytes ? f->bytes : copy, size);
        f->patch[f->patches++] = (struct patch){.len = size, .buf = copy};
    }
    f->blurred = false;
    if (power)
        on_medium(w, f);
    else
        f->durable = min_u64(f->durable, size);
}

/* All up to here is on the medium. */
void model_synced(struct world *w, struct mfile *f, uint64_t len, unsigned patches)
{
    f->durable = max_u64(f->durable, len);
    if (!w->broker || f->dir)
        return;
    for (unsigned k = 0; k < patches && k < f->patches; k++) {
        struct patch *p = &f->patch[k];
        if (!p->buf) {
            model_grow(f, p->off);
            if (p->off < f->old_len)
                memset(f->old + p->off, 0, f->old_len - p->off);
            f->old_len = p->off;
        } else {
            model_grow(f, p->off + p->len);
            memcpy(f->old + p->off, p->buf, p->len);
            f->old_len = max_u64(f->old_len, p->off + p->len);
        }
    }
    if (patches)
        patches_free(f, patches < f->patches ? patches : f->patches);
}

static void adopt(struct world *w, const struct mnames *is)
{
    struct model *m = &w->m;
    for (unsigned k = 0; k < is->n; k++) {
        struct mfile *f = model_file(m, is->e[k].ino);
        if (!f) { /* made by the call that the crash cut off */
            struct inode *i;
            int r = inode_get(w->v->ns, is->e[k].ino, &i);
            if (r < 0)
                sim_fail(w, "new inode: %s", err_name(r));
            f = model_file_add(w, is->e[k].ino, i->type == S_IFDIR);
            inode_put(w->v->ns, i);
        }
    }
}

/* Files made after the (earliest) moment that was found may never have existed: their numbers may be
 * given again. */
static void forget_unmade(struct model *m, const struct mnames *is, unsigned at)
{
    for (unsigned k = 0; k < m->files; k++) {
        struct mfile *f = m->file[k];
        bool made = f->ino == ROOT_INO || names_links(is, f->ino) || f->durable_made;
        for (unsigned v = 0; !made && v <= at; v++)
            made = names_links(&m->v[v], f->ino);
        f->unsure = !made;
        f->durable_made = made;
    }
}

void model_recover(struct world *w, bool power)
{
    struct model *m = &w->m;
    struct seen s;
    char text[200] = "";
    tree(w, &s);
    unsigned from = power ? m->durable : m->now, at = m->n;
    while (at > from) {
        at--;
        if ((m->v[at].acked || at > m->now) && !differs(&s.n, &m->v[at], text, sizeof text))
            goto found;
    }
    differs(&s.n, &m->v[m->now], text, sizeof text);
    sim_fail(w,
             "after %s the names are of no moment %u..%u of the history; against the present: %s",
             power ? "loss of power" : "a kill", from, m->n - 1, text);
found:
    if (power) {
        unsigned least = at; /* the same names may have been there before */
        for (unsigned k = at; k-- > from;)
            if (!differs(&s.n, &m->v[k], text, sizeof text))
                least = k;
        forget_unmade(m, &s.n, least);
    }
    sim_note(w, "names: moment %u of %u..%u", at, from, m->n - 1);
    adopt(w, &s.n);
    if (power) {
        m->v[0] = s.n;
        m->v[0].acked = true;
        m->n = 1;
        m->now = m->durable = 0;
    } else {
        s.n.acked = true;
        if (at > m->now) {
            m->n = m->now + 1;
            model_push(m, &s.n, true);
        } else {
            m->n = m->now + 1;
        }
    }
    for (unsigned k = 0; k < m->files; k++) {
        struct mfile *f = m->file[k];
        f->held = f->reading = 0;
        if (!f->dir && names_links(&s.n, f->ino))
            recover_file(w, f, power);
    }
}
