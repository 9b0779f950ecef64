/* recover.c: the segments at mount. All are counted once. After a loss of power, of each open one is kept what can
 * be proven; what follows a part that is lost goes, where it was never flushed itself. One damaged or without
 * its device is left for whoever opens the file: it says so. */
#include "fs/data/internal.h"

#include <errno.h>
#include <string.h>
#include "fs/base/log.h"

struct recovery {
    struct data *d;
    int err;
    uint64_t cut_files, cut_bytes, segments;
    uint64_t ino, end;      /* the segment before, and how far it could be proven */
    struct seg_change last; /* the segment before, as recorded; .has */
    struct only {           /* what is on a device that is not there, and in no committed object */
        uint32_t device;
        uint64_t segments, bytes;
    } only[DEVICES_MAX];
};

static void count_only(struct recovery *rc, const struct seg_change *c)
{
    if (!c->now.local || c->now.state == SEG_COMMITTED ||
        dev_dirfd(rc->d->v->devs, c->now.device) >= 0)
        return;
    for (unsigned k = 0; k < DEVICES_MAX; k++) {
        struct only *o = &rc->only[k];
        if (o->device && o->device != c->now.device)
            continue;
        o->device = c->now.device;
        o->segments++;
        o->bytes += c->now_len;
        return;
    }
}

static void tell_only(struct recovery *rc)
{
    for (unsigned k = 0; k < DEVICES_MAX && rc->only[k].device; k++) {
        const struct only *o = &rc->only[k];
        dev_say_only(rc->d->v->devs, o->device, o->segments, o->bytes);
    }
}

/* *ret_torn: it was begun when the bytes before it, of which some are lost, were not flushed, and never was
 * flushed itself. Nothing in it was ever acknowledged as durable, and keeping it would leave zeros before it. */
static int prove_open(struct recovery *rc, uint64_t ino, uint64_t base, const struct seg_rec *rec,
                      bool *ret_torn)
{
    struct segfile *sf;
    struct segfile_id id = seg_file_id(0, ino, base, rec);
    uint64_t cut = 0;
    int r = segfile_reopen(rc->d->v->devs, rc->d->v->id, &id, false, &sf, &cut);
    if (r == -ENOENT && rec->end == base && !rec->has_object)
        return r;
    if (r < 0) {
        log_err(LC_DATA, "inode %016llx: the open segment at %llu could not be checked: %s",
                (unsigned long long)ino, (unsigned long long)base, err_name(r));
        return r;
    }
    if (cut) {
        rc->cut_files++;
        rc->cut_bytes += cut;
        log_warn(
            LC_DATA,
            "inode %016llx: %llu bytes behind offset %llu were not flushed before the power was "
            "lost and could not be proven; they are gone",
            (unsigned long long)ino, (unsigned long long)cut,
            (unsigned long long)(base + segfile_len(sf)));
    }
    *ret_torn = rec->behind > (rc->ino == ino ? rc->end : 0) && !segfile_was_flushed(sf);
    if (!*ret_torn && segfile_sync(sf) < 0)
        atomic_store(&rc->d->unflushed, true);
    segfile_close(sf);
    return 0;
}

/* An open segment behind one that was cut: fsync flushes all of a file, so nothing in it was ever
 * acknowledged as durable, and keeping it would leave a hole of zeros before it. Nor was anything in one
 * whose device file is not there: the first fsync makes the file's name durable. */
static int drop_open(struct recovery *rc, const struct seg_change *c, bool missing)
{
    struct kv_batch b;
    struct seg_change gone = {.ino = c->ino, .base = c->base};
    kv_batch_init(&b);
    if (!missing)
        seg_queue_unlink(&b, c->ino, c->base, &c->now);
    struct key w = key_open(c->ino, c->base), s = key_seg(c->ino, c->base);
    kv_del(&b, w.b, w.len);
    seg_change_put(&b, &gone);
    uint64_t topic;
    if (topic_of(rc->d->v->ns, c->ino, &topic) ==
        0) /* the manifest may have it as one without object */
        topic_mark(&b, topic, &s);
    int r = kv_apply(rc->d->v->kv, &b, NULL, NULL);
    kv_batch_done(&b);
    log_warn(LC_DATA, "inode %016llx: the unflushed segment at %llu %s and is dropped",
             (unsigned long long)c->ino, (unsigned long long)c->base,
             missing ? "has not reached its device" : "follows a cut one");
    return r;
}

/* Of an open segment whose file is not there: at least so long it was. */
static uint64_t known_len(struct data *d, const struct seg_change *c)
{
    uint8_t buf[16];
    struct key k = key_open(c->ino, c->base);
    ssize_t n = kv_get(d->v->kv, k.b, k.len, buf, sizeof buf);
    uint64_t noted = n > 0 && n <= (ssize_t)sizeof buf ? seg_open_decode(buf, (size_t)n) : 0;
    return max_u64(c->now.end - c->base, noted);
}

static int recover_open(struct recovery *rc, struct seg_change *c, bool *ret_dropped)
{
    bool prove = !rc->d->v->trusted;
    *ret_dropped = prove && rc->d->v->topics_profile && !c->now.has_object && rc->ino == c->ino &&
                   rc->end < c->base;
    struct segfile_id id = seg_file_id(0, c->ino, c->base, &c->now);
    uint64_t bytes = 0;
    int64_t mtime;
    bool missing = false, torn = false;
    if (segfile_stat(rc->d->v->devs, &id, &bytes, &mtime) == 0)
        dev_account(rc->d->v->devs, c->now.device, (int64_t)bytes);
    /* An empty one was never flushed, not even at a clean stop: its header may be torn. */
    bool bare = rc->d->v->restarted && bytes <= c->now.header_bytes;
    if ((prove || bare) && !*ret_dropped) /* accounts what it cuts, or makes anew */
        missing = prove_open(rc, c->ino, c->base, &c->now, &torn) == -ENOENT &&
                  c->now.end == c->base && !c->now.has_object;
    if (segfile_stat(rc->d->v->devs, &id, &bytes, &mtime) < 0)
        c->now_len = known_len(rc->d, c); /* load says so, with the consequence */
    else
        c->now_len = bytes > c->now.header_bytes ? bytes - c->now.header_bytes : 0;
    *ret_dropped |= missing || torn;
    return *ret_dropped ? drop_open(rc, c, missing) : 0;
}

/* Device files that wait to be unlinked still take room. */
static int recover_unlink(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key;
    (void)klen;
    struct recovery *rc = arg;
    struct segfile_id id;
    uint64_t bytes;
    int64_t mtime;
    if (unlink_decode(val, vlen, &id) == 0 &&
        segfile_stat(rc->d->v->devs, &id, &bytes, &mtime) == 0)
        dev_account(rc->d->v->devs, id.device, (int64_t)bytes);
    return 0;
}

/* The last segment of a file may have been opened again and appended to, and the loss of power forgot
 * that it was opened: what is behind its sealed end goes. Called with each segment, and with none at the end. */
static void recover_last(struct recovery *rc, const struct seg_change *c)
{
    struct devs *devs = rc->d->v->devs;
    struct seg_change l = rc->last;
    if (c)
        rc->last = *c;
    if (!l.has || (c && c->ino == l.ino) || l.now.state == SEG_OPEN || !l.now.local)
        return;
    struct segfile_id id = seg_file_id(0, l.ino, l.base, &l.now);
    struct segfile *sf;
    uint64_t bytes, cut, want = l.now.header_bytes + l.now_len;
    int64_t mtime;
    if (segfile_stat(devs, &id, &bytes, &mtime) < 0 || bytes <= want)
        return; /* a missing one is found when it is read */
    dev_account(devs, id.device, (int64_t)(bytes - want));
    int r = segfile_reopen(devs, rc->d->v->id, &id, true, &sf, &cut);
    if (r == 0) {
        r = segfile_truncate(sf, l.now_len);
        if (r == 0)
            r = segfile_sync(sf);
        segfile_close(sf);
    }
    if (r < 0)
        log_err(LC_DATA, "inode %016llx: bytes behind the segment at %llu could not be cut off: %s",
                (unsigned long long)l.ino, (unsigned long long)l.base, err_name(r));
}

static int recover_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct recovery *rc = arg;
    struct seg_change c = {.has = true};
    bool dropped = false;
    int r = key_parse_seg(key, klen, &c.ino, &c.base) ? seg_rec_decode(val, vlen, &c.now)
                                                      : -EBADMSG;
    if (r == 0) {
        c.now_len = c.now.end - c.base;
        if (c.now.state == SEG_OPEN)
            r = recover_open(rc, &c, &dropped);
        else if (c.now.local)
            dev_account(rc->d->v->devs, c.now.device, (int64_t)(c.now.header_bytes + c.now_len));
    }
    if (r == 0 && !rc->d->v->trusted)
        recover_last(rc, &c);
    if (r < 0) {
        rc->err = r;
        return 1;
    }
    if (!dropped) {
        count_only(rc, &c);
        seg_change_done(&rc->d->totals, &c);
        rc->ino = c.ino;
        rc->end = c.base + c.now_len;
    } else if (rc->ino != c.ino) {
        rc->ino = c.ino; /* what follows it is behind a cut one, too */
        rc->end = c.base;
    }
    rc->segments++;
    return 0;
}

int data_recover(struct data *d)
{
    struct recovery rc = {.d = d};
    struct key k = key_prefix('L');
    int r = kv_walk(d->v->kv, k.b, k.len, k.b, k.len, recover_unlink, &rc);
    k = key_prefix('S');
    if (r >= 0)
        r = kv_walk(d->v->kv, k.b, k.len, k.b, k.len, recover_one, &rc);
    if (r >= 0 && !d->v->trusted)
        recover_last(&rc, NULL);
    if (r >= 0)
        r = rc.err;
    if (rc.cut_files)
        log_warn(LC_DATA, "after a loss of power: %llu files lost %llu unflushed bytes in all",
                 (unsigned long long)rc.cut_files, (unsigned long long)rc.cut_bytes);
    tell_only(&rc);
    d->v->trusted = true;
    return r;
}
