/* device_remove.c: taking a device out of a volume (devices.h), and giving up what only a dead one had; the
 * requests of the control socket.
 *
 * Removing asks three times whether something is there: before the device is retired, for a plain answer;
 * after it, when nobody can begin anything there; and the journal is flushed before the list forgets it,
 * so that no loss of power brings a record back that names it.
 */
#include "fs/volume/devices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/data/data.h"
#include "fs/meta/kv.h"
#include "fs/tier/internal.h"
#include "fs/volume/device_int.h"
#include "fs/ns/path.h"
#include "fs/volume/volume_int.h"

#define LLU(v) ((unsigned long long)(v))

enum { ROUND = 64, RETIRE_TRIES = 250, RETIRE_MS = 20, WAIT_SEAL_TRIES = 500 };

/* ---- what is only there ---- */

struct listed {
    uint64_t ino, base;
    struct seg_rec rec;
};

struct list_of {
    uint32_t device;
    uint64_t ino, base; /* where the next round goes on */
    unsigned n;
    struct listed row[ROUND];
    int err;
};

static int take_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct list_of *l = arg;
    struct listed *x = &l->row[l->n];
    l->err = key_parse_seg(key, klen, &x->ino, &x->base) ? seg_rec_decode(val, vlen, &x->rec)
                                                         : -EBADMSG;
    if (l->err < 0)
        return 1;
    l->ino = x->ino;
    l->base = x->base + 1;
    l->n += x->rec.local && x->rec.device == l->device;
    return l->n == ROUND;
}

/* The next segments of a device, up to ROUND. 1: there may be more; 0: these are the last; -errno. */
static int next_rows(struct volume *v, struct list_of *l)
{
    struct key all = key_prefix('S'), from = key_seg(l->ino, l->base);
    l->n = 0;
    int r = kv_walk(v->kv, all.b, all.len, from.b, from.len, take_row, l);
    return l->err < 0 ? l->err : r;
}

static const char *path_of(struct volume *v, uint64_t ino, char *buf, size_t cap)
{
    if (inode_path(v->kv, ino, buf, cap) < 0)
        snprintf(buf, cap, "inode %016llx", LLU(ino));
    return buf;
}

static void tell_lost(struct volume *v, FILE *f, uint64_t ino, uint64_t off, uint64_t len,
                      bool open, const char *what)
{
    char path[4096];
    fprintf(f, "%s: %s: bytes %llu-%llu%s\n", what, path_of(v, ino, path, sizeof path), LLU(off),
            LLU(off + len), open ? " and what was appended behind them" : "");
}

/* Lists what would be lost. */
static int list_lost(struct volume *v, uint32_t device, FILE *f)
{
    struct list_of *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->device = device;
    int more = 1;
    while (more > 0 && (more = next_rows(v, l)) >= 0)
        for (unsigned k = 0; k < l->n; k++) {
            const struct listed *x = &l->row[k];
            if (x->rec.state == SEG_OPEN || x->rec.state == SEG_SEALED)
                tell_lost(v, f, x->ino, x->base, x->rec.end - x->base, x->rec.state == SEG_OPEN,
                          "only there");
        }
    free(l);
    return more;
}

static int give_up_one(struct volume *v, uint32_t device, const struct listed *x, FILE *f,
                       uint64_t *ret_lost)
{
    struct data_lost lost;
    struct inode *i;
    uint64_t freed;
    if (x->rec.state == SEG_COMMITTED)
        return evict_segment(v->tier, x->ino, x->base, &freed);
    if (x->rec.state == SEG_UPLOADED)
        return 0; /* its manifest comes */
    int r = inode_get(v->ns, x->ino, &i);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = data_give_up(v->data, i, x->base, device, &lost);
    inode_put(v->ns, i);
    if (r == 0 && (lost.len || lost.unknown_end)) {
        *ret_lost += lost.len;
        tell_lost(v, f, x->ino, lost.off, lost.len, lost.unknown_end, "lost");
        log_warn(LC_MAIN, "inode %016llx: bytes %llu-%llu%s were only on device %u and are lost",
                 LLU(x->ino), LLU(lost.off), LLU(lost.off + lost.len),
                 lost.unknown_end ? " and what was appended behind them" : "", device);
    }
    return r;
}

static int give_up_all(struct volume *v, uint32_t device, FILE *f)
{
    struct list_of *l = calloc(1, sizeof *l);
    uint64_t lost = 0;
    if (!l)
        return -ENOMEM;
    l->device = device;
    int more = 1, r = 0;
    while (more > 0 && r == 0 && (more = next_rows(v, l)) >= 0)
        for (unsigned k = 0; k < l->n && r == 0; k++)
            r = give_up_one(v, device, &l->row[k], f, &lost);
    free(l);
    if (r == 0 && more >= 0)
        r = kv_sync(v->kv, kv_seq(v->kv));
    return more < 0 ? more : r;
}

/* ---- remove ---- */

/* Files of a device that is not readable need not be unlinked. */
struct drop {
    uint32_t device;
    struct kv_batch b;
};

static int drop_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct drop *x = arg;
    struct segfile_id id;
    if (unlink_decode(val, vlen, &id) == 0 && id.device == x->device)
        kv_del(&x->b, key, klen);
    return 0;
}

static int drop_unlinks(struct volume *v, uint32_t device)
{
    struct drop x = {.device = device};
    kv_batch_init(&x.b);
    struct key k = key_prefix('L');
    int r = kv_walk(v->kv, k.b, k.len, k.b, k.len, drop_row, &x);
    if (r >= 0 && x.b.n)
        r = kv_apply(v->kv, &x.b, NULL, NULL);
    kv_batch_done(&x.b);
    return r < 0 ? r : 0;
}

/* 0: nothing is on it; -EBUSY with `why`. */
static int check_empty(struct volume *v, const struct dev_info *info, FILE *f, char *why,
                       size_t cap)
{
    struct drain_look l;
    int r = tier_drain_look(v, info->id, &l);
    if (r < 0) {
        snprintf(why, cap, "%s: the metadata cannot be read (%s); run sluicefs fsck", info->path,
                 err_name(r));
        return r;
    }
    if (l.segments == 0 && (l.unlinks == 0 || info->state != DEV_OK))
        return 0;
    uint64_t only = l.open + l.sealed - l.uploaded;
    if (l.segments == 0)
        snprintf(why, cap, "%s: %llu files on it are still being removed; try again", info->path,
                 LLU(l.unlinks));
    else if (!info->draining && info->state == DEV_OK)
        snprintf(why, cap,
                 "%s is in use: %llu segments with %llu bytes are on it; drain it first: sluicefs "
                 "device drain MOUNTPOINT DIR",
                 info->path, LLU(l.segments), LLU(l.bytes));
    else if (info->state == DEV_OK || only == 0)
        snprintf(why, cap, "%s is not drained: %llu segments with %llu bytes are on it; %s",
                 info->path, LLU(l.segments), LLU(l.bytes),
                 info->draining ? "wait for sluicefs device drain"
                                : "drain it first: sluicefs device drain MOUNTPOINT DIR");
    else
        snprintf(
            why, cap,
            "%s is %s and holds the only copy of %llu segments, %llu of them open ones, listed "
            "above; bring it back, or give them up with --lost",
            info->path, info->state == DEV_FAILED ? "failed" : "missing", LLU(only), LLU(l.open));
    if (info->state != DEV_OK && only)
        (void)list_lost(v, info->id, f);
    return -EBUSY;
}

static int others_take(struct volume *v, const struct dev_info *info, char *why, size_t cap)
{
    for (unsigned k = 0; k < devs_count(v->devs); k++) {
        struct dev_info o;
        if (devs_info(v->devs, k, &o) && o.id != info->id && dev_takes_new(v->devs, o.id))
            return 0;
    }
    snprintf(
        why, cap,
        "%s: no other device takes segments; add one first: sluicefs device add MOUNTPOINT DIR",
        info->path);
    return -EBUSY;
}

static int retire(struct volume *v, uint32_t id)
{
    int r = dev_retire(v->devs, id);
    for (unsigned k = 0; r == -EBUSY && k < RETIRE_TRIES; k++) {
        volume_pause(v, RETIRE_MS * NS_PER_MS);
        r = dev_retire(v->devs, id);
    }
    return r;
}

/* The list forgets it. Retired by then. */
static int forget(struct volume *v, const struct dev_info *info, FILE *f, char *why, size_t cap)
{
    struct ident next;
    int at = device_find(v, info->path, why, cap);
    int r = at < 0 ? at : check_empty(v, info, f, why, cap);
    if (r == 0)
        r = drop_unlinks(v, info->id);
    if (r == 0)
        r = kv_sync(v->kv, kv_seq(v->kv));
    if (r < 0) {
        if (!*why)
            snprintf(why, cap, "%s: the journal cannot be written (%s); see the daemon's log",
                     info->path, err_name(r));
        return r;
    }
    r = ident_copy(&volume_priv(v)->ident, &next);
    if (r < 0)
        return r;
    ident_remove(&next, (unsigned)at);
    return device_store(v, &next, why, cap);
}

static int do_remove(struct volume *v, const char *path, bool give_up, FILE *f, char *why,
                     size_t cap)
{
    struct dev_info info;
    bool left;
    int at = device_find(v, path, why, cap);
    if (at < 0)
        return at;
    if (!dev_info_of(v->devs, volume_priv(v)->ident.id[at], &info))
        return -ENOENT;
    int r = others_take(v, &info, why, cap);
    if (r == 0 && give_up && info.state == DEV_OK && !info.drain_stuck) {
        snprintf(why, cap, "%s works: nothing on it needs to be lost; drain it, then remove it",
                 path);
        r = -EBUSY;
    }
    if (r == 0 && give_up) {
        dev_drain(v->devs, info.id, true, info.used); /* nothing new comes meanwhile */
        r = give_up_all(v, info.id, f);
    }
    if (r == 0)
        r = check_empty(v, &info, f, why, cap);
    if (r == 0) {
        r = retire(v, info.id);
        if (r < 0)
            snprintf(why, cap, "%s: files on it are still open; try again", path);
        else
            r = forget(v, &info, f, why, cap);
        if (r < 0)
            dev_retire_undo(v->devs, info.id);
    }
    if (r < 0) {
        if (!*why)
            snprintf(why, cap, "%s: failed (%s); see the daemon's log", path, err_name(r));
        if (give_up && !volume_priv(v)->ident.draining[at])
            dev_drain(v->devs, info.id, false, 0);
        return r == -ENODEV ? -EBUSY : r;
    }
    dev_forget(v->devs, info.id, &left);
    log_info(LC_MAIN, "device %u (%s) was removed", info.id, path);
    if (left && info.state == DEV_OK)
        fprintf(f,
                "%s: some files in it are not of this program's making, or in quarantine/; they "
                "stay\n",
                path);
    if (session_store(v, false) < 0) /* an entry about nothing stays in it */
        log_warn(LC_MAIN, "the session could not be recorded");
    return 0;
}

int volume_device_remove(struct volume *v, const char *path, bool give_up, FILE *f, char *why,
                         size_t cap)
{
    *why = 0;
    int r = device_begin(v, why, cap);
    if (r < 0)
        return r;
    r = do_remove(v, path, give_up, f, why, cap);
    device_end(v);
    return r;
}

/* ---- requests ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* malloc'ed, or NULL: not the hex of a path. */
static char *path_of_hex(const char *hex)
{
    size_t n = strlen(hex) / 2;
    char *out = strlen(hex) % 2 || n == 0 || n >= 4096 ? NULL : malloc(n + 1);
    for (size_t k = 0; out && k < n; k++) {
        int a = hex_digit(hex[2 * k]), b = hex_digit(hex[2 * k + 1]);
        out[k] = (char)(a << 4 | b);
        if (a < 0 || b < 0 || !out[k]) {
            free(out);
            return NULL;
        }
    }
    if (out)
        out[n] = 0;
    return out;
}

static int request_drain(struct volume *v, const char *path, const char *word,
                         _Atomic bool *cancelled,
                         void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                         char *text, size_t cap)
{
    if (*word && strcmp(word, "wait") != 0 && strcmp(word, "cancel") != 0)
        return -EINVAL;
    int r = volume_device_drain(v, path, strcmp(word, "cancel") != 0, text, cap);
    return r == 0 && !strcmp(word, "wait")
               ? volume_device_wait(v, path, cancelled, progress, arg, text, cap)
               : r;
}

int volume_device_request(struct volume *v, const char *request, _Atomic bool *cancelled,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                          FILE *f, char *text, size_t cap)
{
    AUTO_FREE char *words = strdup(request);
    char *p = words, *end;
    if (!words)
        return -ENOMEM;
    const char *device = strsep(&p, " "), *verb = strsep(&p, " "), *hex = strsep(&p, " ");
    const char *word = p ? p : "";
    AUTO_FREE char *path = hex ? path_of_hex(hex) : NULL;
    if (strcmp(device, "device") != 0 || !path)
        return -EINVAL;
    if (!strcmp(verb, "drain"))
        return request_drain(v, path, word, cancelled, progress, arg, text, cap);
    if (!strcmp(verb, "remove") && (!*word || !strcmp(word, "lost")))
        return volume_device_remove(v, path, *word != 0, f, text, cap);
    errno = 0;
    uint64_t budget = *word ? strtoull(word, &end, 10) : 0;
    if (strcmp(verb, "add") != 0 || (*word && (errno || *end || *word < '0' || *word > '9')))
        return -EINVAL;
    return volume_device_add(v, path, budget, text, cap);
}
