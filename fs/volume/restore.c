/* restore.c: see restore.h. This file: the state directory, the claim of node and epoch, and the order of
 * it all; restore_replay.c reads manifests, restore_devices.c devices, restore_tree.c puts the tree in
 * order. */
#include "fs/volume/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/data/footer.h"
#include "fs/data/segs.h"
#include "fs/ns/ns_int.h" /* NUMBER_FIRST, NODE_MAX */
#include "fs/volume/restore_int.h"
#include "fs/volume/volobj.h"

enum { CLAIM_TRIES = 100, EPOCH_TRIES = 20 };

int restore_apply(struct restore *r, unsigned min)
{
    if (r->batch.n < min)
        return r->batch.failed ? -ENOMEM : 0;
    int e = kv_apply(r->v->kv, &r->batch, NULL, NULL);
    kv_batch_reset(&r->batch);
    return e;
}

uint64_t restore_number(struct restore *r)
{
    return (uint64_t)r->rep->node << NUMBER_BITS | r->next++;
}

__attribute__((format(printf, 4, 5))) static int fail(struct restore *r, int err, int *ret_exit,
                                                      const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!*r->why)
        vsnprintf(r->why, r->why_cap, fmt, ap);
    va_end(ap);
    if (ret_exit)
        *ret_exit = VOL_REFUSED;
    return err;
}

/* ---- the state directory ---- */

struct look {
    int dirfd;
    bool restoring, other;
};

static int see(void *arg, const char *name)
{
    struct look *l = arg;
    if (!strcmp(name, IDENT_RESTORING))
        l->restoring = true;
    else if (io_replace_left(name, IDENT_RESTORING) || io_replace_left(name, IDENT_NAME))
        return io_unlink(l->dirfd, name,
                         0); /* a rebuild that died while it wrote it; we have the lock */
    else if (strcmp(name, "lock") != 0 && strcmp(name, "log") != 0 &&
             strncmp(name, "damaged-", strlen("damaged-")) != 0) /* set aside by fsck */
        l->other = true;
    return 0;
}

struct wipe {
    int dirfd;
    const char *dir;
};

static int wipe_one(void *arg, const char *name)
{
    struct wipe *w = arg;
    char path[512];
    snprintf(path, sizeof path, "%s/%.255s", w->dir, name);
    return io_unlink(w->dirfd, path, 0);
}

/* What a rebuild that did not come to its end left behind. */
static int wipe(int state_fd)
{
    static const char *const dirs[] = {"meta", "journal"};
    for (unsigned k = 0; k < 2; k++) {
        struct wipe w = {state_fd, dirs[k]};
        int e = io_scan(state_fd, dirs[k], wipe_one, &w);
        if (e == 0)
            e = io_unlink(state_fd, dirs[k], AT_REMOVEDIR);
        if (e < 0 && e != -ENOENT)
            return e;
    }
    return 0;
}

static int take_state(struct restore *r, int *ret_exit)
{
    struct volume *v = r->v;
    struct volume_priv *p = volume_priv(v);
    struct look l = {.dirfd = -1};
    *ret_exit = VOL_FAILED;
    int e = volume_lock_state(v, r->why, r->why_cap, ret_exit);
    if (e == -ENOENT) {
        e = volume_make_dirs(v->conf->state);
        if (e < 0)
            return fail(r, e, NULL, "state directory %s: cannot be created (%s); check its parent",
                        v->conf->state, err_name(e));
        p->made_state = true;
        e = volume_lock_state(v, r->why, r->why_cap, ret_exit);
    }
    if (e < 0)
        return e;
    l.dirfd = v->state_fd;
    e = io_scan(v->state_fd, ".", see, &l);
    if (e < 0)
        return fail(r, e, NULL, "state directory %s: cannot be listed (%s); check its permissions",
                    v->conf->state, err_name(e));
    if (l.other && !l.restoring)
        return fail(r, -ENOTEMPTY, ret_exit,
                    "state directory %s: is not empty; give an empty one, or move what is in it "
                    "away",
                    v->conf->state);
    struct ident done;
    if (l.restoring && ident_load(v->state_fd, IDENT_NAME, &done) == 0) {
        ident_done(&done);
        return fail(r, -ENOTEMPTY, ret_exit, "state directory %s: was rebuilt already; mount it",
                    v->conf->state);
    }
    e = l.restoring ? wipe(v->state_fd) : 0;
    if (e == 0)
        e = io_replace_file(v->state_fd, IDENT_RESTORING, "1\n", 2, 0600);
    return e < 0 ? fail(r, e, NULL, "state directory %s: cannot be written (%s); check free space",
                        v->conf->state, err_name(e))
                 : 0;
}

/* Refused before anything was made: the directory is as it was. */
static void give_back(struct restore *r)
{
    struct volume *v = r->v;
    if (v->state_fd < 0)
        return;
    (void)io_unlink(v->state_fd, IDENT_RESTORING, 0);
    if (volume_priv(v)->made_state) {
        (void)io_unlink(v->state_fd, "lock", 0);
        (void)io_unlink(AT_FDCWD, v->conf->state, AT_REMOVEDIR);
    }
}

/* ---- the bucket ---- */

static int store_failed(struct restore *r, int e)
{
    return fail(r, e, NULL, "store: %s; check the store URL and credentials, then try again",
                r->b.why);
}

static int read_volobj(struct restore *r, struct volobj *ret, char etag[OBJ_ETAG_MAX],
                       int *ret_exit)
{
    uint8_t *buf = NULL;
    size_t len;
    int e = bucket_get(&r->b, VOLOBJ_KEY, 4096, &buf, &len, etag);
    if (e == -ENOENT)
        return fail(r, e, ret_exit,
                    "store: no volume lives under %s (no object `%s`); check the prefix",
                    r->v->conf->store, VOLOBJ_KEY);
    if (e < 0 && e != -EFBIG)
        return store_failed(r, e);
    if (e == 0)
        e = volobj_decode(buf, len, ret);
    free(buf);
    if (e < 0)
        return fail(r, e, ret_exit,
                    e == -EPROTONOSUPPORT
                        ? "store: the volume was made by a newer version; use that version"
                        : "store: the object `" VOLOBJ_KEY
                          "` is damaged or not of this program; restore it from a copy");
    return 0;
}

static int highest_node(void *arg, const struct obj_entry *e)
{
    uint32_t *top = arg;
    unsigned node;
    int used = 0;
    if (sscanf(e->key, "nodes/%8x%n", &node, &used) == 1 && !e->key[used] && node <= NODE_MAX &&
        node > *top)
        *top = node;
    return 0;
}

/* A node number that no mount ever had: numbers of inodes that the lost state gave are not given again. */
static int claim_node(struct restore *r, const struct volobj *now)
{
    struct store_caps *caps = &volume_priv(r->v)->ident.caps;
    uint32_t top = now->node;
    uint8_t buf[VOLOBJ_BYTES];
    int e = bucket_list(&r->b, "nodes/", false, highest_node, &top);
    volobj_encode(now, buf);
    for (int tries = 0; e == 0 && tries < CLAIM_TRIES; tries++) {
        char key[64];
        if (++top > NODE_MAX)
            return fail(r, -ENOSPC, NULL, "store: all node numbers of this volume are used up");
        snprintf(key, sizeof key, "nodes/%08x", top);
        if (!caps->if_absent && bucket_head(&r->b, key, NULL) == 0)
            continue;
        e = bucket_put(&r->b, key, buf, sizeof buf, caps->if_absent ? OBJ_IF_ABSENT : 0, NULL,
                       NULL);
        if (e == 0) {
            r->rep->node = top;
            return 0;
        }
        if (e == -EEXIST || r->b.unclear) /* taken, perhaps by us: the next one then */
            e = 0;
    }
    return e < 0 ? store_failed(r, e)
                 : fail(r, -EBUSY, NULL, "store: no node number could be claimed; try again");
}

static int raise_epoch(struct restore *r, int *ret_exit)
{
    struct store_caps *caps = &volume_priv(r->v)->ident.caps;
    random_bytes(r->nonce, sizeof r->nonce);
    for (int tries = 0; tries < EPOCH_TRIES; tries++) {
        struct volobj o;
        char etag[OBJ_ETAG_MAX];
        uint8_t buf[VOLOBJ_BYTES];
        int e = read_volobj(r, &o, etag, ret_exit);
        if (e < 0)
            return e;
        if (memcmp(o.volume, r->v->id, 16) != 0)
            return fail(r, -EEXIST, ret_exit, "store: another volume took this prefix just now");
        if (!memcmp(o.nonce, r->nonce, sizeof r->nonce)) { /* a write whose answer was lost */
            r->epoch = o.epoch;
            return 0;
        }
        o.epoch++;
        o.node = r->rep->node;
        memcpy(o.nonce, r->nonce, sizeof r->nonce);
        volobj_encode(&o, buf);
        e = bucket_put(&r->b, VOLOBJ_KEY, buf, sizeof buf, caps->if_match ? OBJ_IF_MATCH : 0, etag,
                       NULL);
        if (e == 0) {
            r->epoch = o.epoch;
            return 0;
        }
        if (e != -EEXIST && !r->b.unclear)
            return store_failed(r, e);
    }
    return fail(r, -EBUSY, NULL,
                "store: the epoch changes all the time; end the mounts of this volume");
}

static int open_bucket(struct restore *r, struct volobj *now, int *ret_exit)
{
    struct volume *v = r->v;
    struct ident *i = &volume_priv(v)->ident;
    struct store_url url;
    char etag[OBJ_ETAG_MAX];
    int e = volume_open_store(v, &url, false, r->why, r->why_cap, ret_exit);
    if (e < 0)
        return e;
    r->b = (struct bucket){.store = v->store, .timeout_ms = (unsigned)v->conf->store_timeout};
    e = read_volobj(r, now, etag, ret_exit);
    if (e == 0)
        e = store_probe(v->store, (unsigned)v->conf->store_timeout, &i->caps, r->why, r->why_cap);
    if (e < 0)
        return e;
    memcpy(i->volume, now->volume, 16);
    memcpy(v->id, now->volume, 16);
    volume_id_text(v->id, v->id_text);
    snprintf(r->rep->volume_id, sizeof r->rep->volume_id, "%s", v->id_text);
    i->created_ns = now->created_ns;
    i->profile = now->profile != 0;
    v->topics_profile = i->profile == 0;
    r->rep->profile = i->profile ? "broker" : "topics";
    snprintf(i->url, sizeof i->url, "%s", v->conf->store);
    return 0;
}

/* ---- the end ---- */

static int read_footer(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct restore *r = arg;
    uint64_t ino, base, *hashes = NULL;
    struct seg_rec rec;
    char object[OBJ_KEY_MAX];
    if (!key_parse_seg(key, klen, &ino, &base) || seg_rec_decode(val, vlen, &rec) < 0)
        return -EBADMSG;
    if (rec.local || !rec.has_object || rec.object.version != rec.version)
        return 0;
    size_t n = 0;
    uint8_t *buf = malloc(rec.object.footer_len + 1);
    int e = buf ? seg_object_key(&rec.object, ino, base, object, sizeof object) : -ENOMEM;
    if (e == 0 && !footer_len_ok(&rec.object, base))
        e = -EBADMSG;
    if (e == 0)
        e = bucket_read(&r->b, object, rec.object.end - base, buf, rec.object.footer_len);
    if (e == 0)
        e = footer_check(r->v->id, ino, base, &rec.object, buf, &hashes, &n);
    free(buf);
    if (e == -ENOMEM)
        return e;
    if (e < 0 && e != -EBADMSG && e != -ENOENT && e != -EIO)
        return store_failed(r, e);
    if (e < 0) {
        findings_add(&r->rep->found,
                     &(struct finding){.kind = "bad-object",
                                       .fate = FATE_LEFT,
                                       .ino = ino,
                                       .off = base,
                                       .len = rec.end - base,
                                       .key = object},
                     "object %s: %s; the bytes of inode %llx from %llu to %llu cannot be read",
                     object, e == -ENOENT ? "is missing" : "its footer is damaged",
                     (unsigned long long)ino, (unsigned long long)base,
                     (unsigned long long)rec.end);
        return 0;
    }
    seg_blocks_put(&r->batch, ino, base, rec.version, hashes, n);
    free(hashes);
    return restore_apply(r, 100);
}

static int put_settings(struct restore *r)
{
    uint8_t n[9] = {1}, e[24];
    put_le64(n + 1, round_up(r->next, NUMBER_CHUNK));
    struct key k = key_setting("next_ino");
    kv_put(&r->batch, k.b, k.len, n, sizeof n);
    put_le64(e, r->epoch);
    memcpy(e + 8, r->nonce, 16);
    k = key_setting("epoch");
    kv_put(&r->batch, k.b, k.len, e, sizeof e);
    return restore_apply(r, 1);
}

static int build(struct restore *r)
{
    struct volume *v = r->v;
    struct kv_conf kc = {
        .dirfd = v->state_fd,
        .dir = v->conf->state,
        .checkpoint_ms = 1000,
        .threaded = true,
        .stats = v->stats,
    };
    int e = kv_open(&kc, &v->kv, r->why, r->why_cap);
    if (e == 0)
        e = restore_replay(r);
    if (e == 0)
        e = restore_devices(r);
    if (e == 0)
        e = restore_tree(r);
    struct key k = key_prefix('S');
    if (e == 0 && r->o->deep)
        e = kv_walk(v->kv, k.b, k.len, k.b, k.len, read_footer, r);
    if (e == 0)
        e = put_settings(r);
    if (e == 0)
        e = kv_sync(v->kv, kv_seq(v->kv));
    return e;
}

static int run(struct restore *r, int *ret_exit)
{
    struct volume *v = r->v;
    struct ident *i = &volume_priv(v)->ident;
    struct volobj now;
    int e = volume_threads(v, r->why, r->why_cap);
    if (e == 0)
        e = take_state(r, ret_exit);
    if (e < 0)
        return e;
    *ret_exit = VOL_FAILED;
    e = open_bucket(r, &now, ret_exit);
    if (e == 0) {
        e = volume_open_devices(v, r->why, r->why_cap);
        if (e == -EEXIST || e == -ENOTEMPTY || e == -EBUSY)
            *ret_exit = VOL_REFUSED;
    }
    if (e < 0) {
        give_back(r);
        return e;
    }
    e = claim_node(r, &now);
    if (e == 0)
        e = raise_epoch(r, ret_exit);
    if (e < 0)
        return e;
    i->node = v->node = r->rep->node;
    r->rep->epoch = r->epoch;
    e = build(r);
    if (e == 0)
        e = ident_store(v->state_fd, IDENT_NAME, i);
    if (e == 0)
        (void)io_unlink(v->state_fd, IDENT_RESTORING, 0);
    return e;
}

int volume_restore(const struct config *conf, const struct restore_options *o,
                   struct restore_report *ret, char *why, size_t cap, int *ret_exit)
{
    struct restore r = {.o = o, .rep = ret, .why = why, .why_cap = cap, .next = NUMBER_FIRST};
    *ret = (struct restore_report){0};
    *why = 0;
    *ret_exit = VOL_FAILED;
    kv_batch_init(&r.batch);
    int e = volume_new(conf, &r.v);
    if (e == 0) {
        volume_priv(r.v)->first = true;
        e = run(&r, ret_exit);
        volume_close(r.v);
    }
    if (e == 0)
        *ret_exit = 0;
    else if (!*why)
        snprintf(why, cap, "restore: failed (%s); see the log", err_name(e));
    kv_batch_done(&r.batch);
    free(r.ino);
    free(r.rival);
    free(r.owed);
    return e;
}

void restore_report_done(struct restore_report *r)
{
    findings_done(&r->found);
}
