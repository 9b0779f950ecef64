/* fsck.c: see fsck.h.
 *
 *   looked at                 against                                     mended with
 *   ------------------------  ------------------------------------------  -----------------------------
 *   every row of metadata     its hash, its format                        the rows, files and manifests
 *                                                                         that say the same (fsck_meta.c)
 *   names                     inodes, rows of listings, link counts       the other rows
 *   segments on devices       file, header, length; deep: block hashes    the object, block by block
 *   files on devices          segment records, the unlink queue           quarantine
 *   objects                   length; deep: footer, block hashes          the device copy: uploaded again
 *   manifests (deep)          pages' hashes, the root as last committed   metadata: written again
 *   the object `volume`       this volume
 *
 * Damage that no other copy mends stays, with topic, path, range, segment and key; readers of that range
 * get EIO. Beside a running daemon a record is compared again before anything is said of it. */
#include "fs/volume/fsck.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/data/data.h"
#include "fs/ns/ns.h"
#include "fs/ns/path.h"
#include "fs/tier/internal.h"
#include "fs/volume/fsck_int.h"
#include "fs/volume/restore.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume_int.h"

/* ---- helpers of all parts ---- */

const char *fsck_path(struct fsck *f, uint64_t ino, char *buf, size_t cap)
{
    if (inode_path(f->v->kv, ino, buf, cap) < 0)
        snprintf(buf, cap, "inode %llx", (unsigned long long)ino);
    return buf;
}

int fsck_topic(struct fsck *f, uint64_t ino, uint64_t *ret)
{
    for (unsigned depth = 0; depth < 4096; depth++) {
        uint8_t buf[REC_INODE_MAX];
        struct inode_rec i;
        struct key k = key_inode(ino);
        if (ino == ROOT_INO) {
            *ret = ROOT_INO;
            return 0;
        }
        ssize_t n = kv_get(f->v->kv, k.b, k.len, buf, sizeof buf);
        if (n < 0 || n > (ssize_t)sizeof buf || inode_rec_decode(buf, (size_t)n, &i) < 0 ||
            !i.parent)
            return -ENOENT;
        if (i.parent == ROOT_INO) {
            *ret = !f->v->topics_profile && !S_ISDIR(i.mode) ? ROOT_INO : ino;
            return 0;
        }
        ino = i.parent;
    }
    return -ENOENT;
}

void fsck_told(struct fsck *f, const char *kind, enum finding_fate fate, uint64_t ino, uint64_t off,
               uint64_t len, const char *key, const char *fmt, ...)
{
    char path[FSCK_PATH], *text = NULL;
    bool named = ino && inode_path(f->v->kv, ino, path, sizeof path) == 0;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    findings_add(&f->rep->found,
                 &(struct finding){.kind = kind,
                                   .fate = fate,
                                   .ino = ino,
                                   .off = off,
                                   .len = len,
                                   .path = named ? path : NULL,
                                   .key = (char *)(uintptr_t)key},
                 "%s", text ? text : kind);
    free(text);
}

int fsck_apply(struct fsck *f, struct kv_batch *b)
{
    uint64_t seq;
    b->frees = true;
    int r = b->n ? kv_apply(f->v->kv, b, NULL, &seq) : 0;
    if (r == 0 && b->n)
        r = kv_sync(f->v->kv, seq);
    kv_batch_reset(b);
    return r;
}

static bool same(const struct seg_rec *a, const struct seg_rec *b)
{
    uint8_t x[REC_SEG_MAX], y[REC_SEG_MAX];
    size_t n = seg_rec_encode(a, x), m = seg_rec_encode(b, y);
    return n == m && !memcmp(x, y, n);
}

bool fsck_still(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *was)
{
    struct seg_rec now;
    return seg_get(f->v->kv, ino, base, &now) == 0 && same(&now, was);
}

int fsck_change(struct fsck *f, uint64_t ino, uint64_t base, const struct seg_rec *was,
                int (*fn)(struct fsck *f, struct seg_change *c, struct kv_batch *b, void *arg),
                void *arg)
{
    struct inode *i = NULL;
    struct kv_batch b;
    int r = f->v->ns ? inode_get(f->v->ns, ino, &i) : 0;
    if (r < 0)
        return r == -ENOENT ? -ESTALE : r;
    struct seg_change c = {.ino = ino, .base = base, .had = true, .has = true};
    kv_batch_init(&b);
    b.frees = true;
    if (i)
        lock_acquire(&i->io);
    r = seg_get(f->v->kv, ino, base, &c.old);
    if (r == 0 && !same(&c.old, was))
        r = -ESTALE;
    if (r == 0) {
        c.now = c.old;
        c.old_len = c.now_len = c.old.end - base;
        r = fn(f, &c, &b, arg);
    }
    if (r == 0 && !same(&c.now, &c.old)) {
        seg_change_put(&b, &c);
        r = kv_apply(f->v->kv, &b, NULL, NULL);
        if (r == 0 && f->v->data)
            seg_change_done(data_totals(f->v->data), &c);
    } else if (r == 0 && b.n) {
        r = kv_apply(f->v->kv, &b, NULL, NULL);
    }
    if (i) {
        lock_release(&i->io);
        inode_put(f->v->ns, i);
    }
    kv_batch_done(&b);
    if (r == 0)
        r = kv_sync(f->v->kv, kv_seq(f->v->kv));
    return r;
}

struct bucket fsck_bucket(struct volume *v, const struct fsck_options *o)
{
    return (struct bucket){.store = v->store,
                           .timeout_ms = (unsigned)v->conf->store_timeout,
                           .cancelled = o->cancelled,
                           .stepped = v->pump ? v : NULL};
}

/* ---- the order of it all ---- */

/* Is the bucket there, and of this volume? 1: yes; 0: cannot be asked now. */
static int look_at_bucket(struct fsck *f)
{
    uint8_t *buf = NULL;
    size_t len;
    struct volobj o;
    int r = bucket_get(&f->b, VOLOBJ_KEY, 4096, &buf, &len, NULL);
    if (r == 0)
        r = volobj_decode(buf, len, &o);
    free(buf);
    if (r == 0 && memcmp(o.volume, f->v->id, 16) == 0)
        return 1;
    if (r == 0) {
        fsck_told(f, "bucket", FATE_LEFT, 0, 0, 0, VOLOBJ_KEY,
                  "the bucket prefix belongs to another volume; nothing in it is looked at");
        return 0;
    }
    if (r == -EBADMSG || r == -ENOENT || r == -EFBIG || r == -EPROTONOSUPPORT) {
        fsck_told(f, "bucket", FATE_LEFT, 0, 0, 0, VOLOBJ_KEY, "the object `%s` %s", VOLOBJ_KEY,
                  r == -ENOENT ? "is missing" : "is damaged");
        return 1;
    }
    f->rep->store_silent = true;
    fsck_told(f, "bucket", FATE_LEFT, 0, 0, 0, NULL,
              "the store does not answer, so the bucket is not checked: %s", f->b.why);
    return 0;
}

int fsck_run(struct volume *v, const struct fsck_options *o, struct fsck_report *ret, char *why,
             size_t cap)
{
    struct fsck f = {.v = v, .o = o, .rep = ret, .b = fsck_bucket(v, o)};
    *why = 0;
    int bucket = look_at_bucket(&f);
    if (!bucket)
        f.b.store = NULL;
    int r = fsck_meta(&f);
    if (r == 0)
        r = fsck_segs(&f);
    if (r == 0)
        r = fsck_strays(&f);
    if (r == 0 && bucket && o->deep)
        r = fsck_manifests(&f);
    if (r == 0 && v->tier && o->repair)
        tier_kick(v->tier);
    free(f.bad);
    if (r < 0)
        snprintf(why, cap, "fsck: %s",
                 r == -ECANCELED ? "given up"
                 : *f.b.why      ? f.b.why
                                 : err_name(r));
    return r;
}

int fsck_code(const struct fsck_report *r)
{
    return r->found.count[FATE_LEFT]                                        ? FSCK_LEFT
           : r->found.count[FATE_HEALED] + r->found.count[FATE_QUARANTINED] ? FSCK_REPAIRED
                                                                            : FSCK_CLEAN;
}

void fsck_report_done(struct fsck_report *r)
{
    findings_done(&r->found);
}

void fsck_json(const struct fsck_report *r, FILE *f)
{
    fprintf(f,
            "{\"code\":%d,\"rows\":%llu,\"inodes\":%llu,\"segments\":%llu,\"device_files\":%llu,"
            "\"objects\":%llu,\"manifests\":%llu,\"device_bytes\":%llu,\"object_bytes\":%llu,"
            "\"store_silent\":%s,\"healed\":%llu,\"quarantined\":%llu,\"left\":%llu,\"findings\":",
            fsck_code(r), (unsigned long long)r->rows, (unsigned long long)r->inodes,
            (unsigned long long)r->segments, (unsigned long long)r->device_files,
            (unsigned long long)r->objects, (unsigned long long)r->manifests,
            (unsigned long long)r->device_bytes, (unsigned long long)r->object_bytes,
            r->store_silent ? "true" : "false", (unsigned long long)r->found.count[FATE_HEALED],
            (unsigned long long)r->found.count[FATE_QUARANTINED],
            (unsigned long long)r->found.count[FATE_LEFT]);
    findings_json(&r->found, f);
    (void)fputs("}\n", f);
}

void fsck_text(const struct fsck_report *r, FILE *f)
{
    for (size_t i = 0; i < r->found.n; i++)
        finding_print(&r->found.row[i], f);
    unsigned long long compared = r->device_bytes + r->object_bytes;
    fprintf(
        f,
        "%llu rows, %llu inodes, %llu segments, %llu device files, %llu objects, %llu manifests; "
        "%llu bytes read and compared.\n",
        (unsigned long long)r->rows, (unsigned long long)r->inodes, (unsigned long long)r->segments,
        (unsigned long long)r->device_files, (unsigned long long)r->objects,
        (unsigned long long)r->manifests, compared);
    if (fsck_code(r) == FSCK_CLEAN)
        (void)fputs("Clean.\n", f);
    else
        fprintf(f, "%llu healed, %llu quarantined, %llu left.\n",
                (unsigned long long)r->found.count[FATE_HEALED],
                (unsigned long long)r->found.count[FATE_QUARANTINED],
                (unsigned long long)r->found.count[FATE_LEFT]);
}

/* ---- without a daemon ---- */

static int ignore_row(void *arg, const void *key, size_t klen)
{
    (void)arg, (void)key, (void)klen;
    return 0;
}

static int ignore_value(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    (void)arg, (void)key, (void)klen;
    return 0;
}

/* LMDB trusts its pages: one that is damaged can end the process that looks at it. So a child looks first,
 * opening the volume as we are about to. Exit codes of the child. */
enum { CHILD_GOOD = 0, CHILD_BAD = 1, CHILD_OTHER = 2 };

static int child_look(struct config *conf)
{
    struct volume *v;
    char why[512];
    int code;
    int r = volume_open_offline(conf, &v, why, sizeof why, &code);
    if (r < 0)
        return r == -EBADMSG && (strstr(why, "metadata:") || strstr(why, "journal:")) ? CHILD_BAD
                                                                                      : CHILD_OTHER;
    r = kv_check(v->kv, ignore_row, NULL, NULL);
    if (r ==
        0) { /* also through the other way of reading; a damaged value ends it, which is no crash */
        r = kv_walk(v->kv, "", 0, "", 0, ignore_value, NULL);
        r = r == -EBADMSG ? 0 : r;
    }
    return r < 0 ? CHILD_BAD : CHILD_GOOD; /* not closed: it must write nothing */
}

static int look_in_child(struct config *conf)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        return CHILD_GOOD; /* the check itself will say what is wrong */
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)prctl(PR_SET_DUMPABLE, 0);
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null >= 0)
            (void)dup2(null, STDERR_FILENO); /* an assertion's last words: the parent says it */
        _exit(child_look(conf));
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_BAD;
}

/* Sets the damaged metadata aside and builds it anew. */
static int rebuild(struct config *conf, const struct fsck_options *o, struct fsck_report *ret,
                   char *why, size_t cap)
{
    static const char *const parts[] = {"meta", "journal", IDENT_NAME};
    char dir[64], to[128];
    struct ident ident;
    int fd = io_open(AT_FDCWD, conf->state, O_RDONLY | O_DIRECTORY, 0);
    int r = fd < 0 ? fd : ident_load(fd, IDENT_NAME, &ident);
    if (r < 0) {
        io_close(fd);
        snprintf(why, cap,
                 "state directory %s: its identity cannot be read (%s); use sluicefs "
                 "restore",
                 conf->state, err_name(r));
        return r;
    }
    for (unsigned k = 0; k < conf->devices; k++)
        free(conf->device[k].path);
    conf->devices = 0;
    for (unsigned k = 0; r == 0 && k < ident.devices && k < CONFIG_DEVICES_MAX; k++) {
        conf->device[k] = (struct config_device){strdup(ident.path[k]), ident.budget[k]};
        conf->devices++;
        r = conf->device[k].path ? 0 : -ENOMEM;
    }
    ident_done(&ident);
    snprintf(dir, sizeof dir, "damaged-%lld", (long long)(clock_wall_ns() / NS_PER_SEC));
    if (r == 0)
        r = io_mkdir(fd, dir, 0700);
    for (unsigned k = 0; r == 0 && k < 3; k++) {
        snprintf(to, sizeof to, "%s/%s", dir, parts[k]);
        r = io_rename(fd, parts[k], fd, to);
        r = r == -ENOENT ? 0 : r;
    }
    if (r == 0)
        r = io_sync_dir(fd, ".");
    io_close(fd);
    if (r < 0) {
        snprintf(why, cap, "state directory %s: the damaged metadata cannot be set aside (%s)",
                 conf->state, err_name(r));
        return r;
    }
    struct restore_options ro = {.deep = o->deep};
    struct restore_report rr;
    int code;
    r = volume_restore(conf, &ro, &rr, why, cap, &code);
    for (size_t i = 0; i < rr.found.n; i++)
        findings_add(&ret->found, &rr.found.row[i], "%s",
                     rr.found.row[i].text ? rr.found.row[i].text : rr.found.row[i].kind);
    if (r == 0)
        findings_add(&ret->found, &(struct finding){.kind = "metadata", .fate = FATE_HEALED},
                     "the metadata was rebuilt from bucket and devices; what it was is in %s/%s",
                     conf->state, dir);
    restore_report_done(&rr);
    return r;
}

int fsck_offline(struct config *conf, const struct fsck_options *o, struct fsck_report *ret,
                 char *why, size_t cap)
{
    struct volume *v;
    int code;
    *ret = (struct fsck_report){0};
    *why = 0;
    int seen = look_in_child(conf);
    if (seen == CHILD_BAD && !o->repair) {
        findings_add(
            &ret->found, &(struct finding){.kind = "metadata", .fate = FATE_LEFT},
            "the metadata store in %s is damaged beyond reading; --repair rebuilds it from "
            "bucket and devices",
            conf->state);
        return FSCK_LEFT;
    }
    if (seen == CHILD_BAD && rebuild(conf, o, ret, why, cap) < 0)
        return FSCK_FAILED;
    int r = volume_open_offline(conf, &v, why, cap, &code);
    if (r < 0)
        return FSCK_FAILED;
    r = fsck_run(v, o, ret, why, cap);
    volume_close(v);
    return r < 0 ? FSCK_FAILED : fsck_code(ret);
}
