/* move.c: a sealed segment goes from a device that is being drained to another one, whatever its state in
 * the store is.
 *
 *   step                                             a crash after it leaves
 *   ----------------------------------------------   --------------------------------------------------
 *   1 new device file, its bytes, sealed, flushed    a file that nothing names: fs/data/orphans.c
 *   2 compared with the segment's hash               the same
 *   3 record names the new file; old file in 'L'     a file to unlink, after the record is durable
 *
 * Version, block hashes and object stay what they are: only the place changes. So an upload under way goes
 * on with its descriptor, and a reader that finds the old file gone looks again. A write that opens the
 * segment meanwhile raises its version: then the copy is thrown away.
 */
#include "fs/tier/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/seg/dev.h"
#include "fs/seg/segfile.h"

enum { CHUNK_BYTES = 1024 * 1024, NAME_TRIES = 64 };

struct move {
    struct seg_rec rec; /* as at the start */
    struct segfile_id from, to;
};

static int record_move(struct tier *t, struct seg_change *c, struct kv_batch *b, void *arg)
{
    (void)t;
    const struct move *m = arg;
    if (!c->now.local || c->now.state == SEG_OPEN || c->now.version != m->rec.version ||
        c->now.end != m->rec.end || c->now.device != m->from.device ||
        c->now.file_version != m->from.version)
        return -ESTALE;
    c->now.device = m->to.device;
    c->now.file_version = m->to.version;
    c->now.header_bytes = m->to.header_bytes;
    c->now.capacity = max_u64(c->now.capacity, c->now.end - c->base);
    seg_queue_unlink(b, c->ino, c->base, &c->old);
    return 1;
}

/* The topic of birth, as far as it is known. */
static uint64_t birth_topic(struct tier *t, uint64_t ino, const struct seg_rec *rec)
{
    uint64_t topic = 0;
    if (rec->has_object)
        return rec->object.topic;
    if (rec->has_pending)
        return rec->pending.topic;
    (void)topic_of(t->v->ns, ino, &topic); /* an unlinked file: 0 */
    return topic;
}

static bool given_up(struct tier *t, const struct move *m)
{
    return atomic_load(&t->stopping) || !dev_is_draining(t->v->devs, m->from.device);
}

/* *ret_source: the error came from the device that is drained. */
static int copy_bytes(struct tier *t, const struct move *m, struct segfile *sf, bool *ret_source)
{
    struct segfd *fd = NULL;
    uint64_t len = m->rec.end - m->from.base;
    uint8_t *buf = aligned_alloc(4096, CHUNK_BYTES);
    if (!buf)
        return -ENOMEM;
    int r = segfd_get(t->v->segfds, &m->from, true, &fd);
    *ret_source = r < 0;
    for (uint64_t pos = 0; r == 0 && pos < len; pos += CHUNK_BYTES) {
        size_t part = (size_t)min_u64(CHUNK_BYTES, len - pos), done = 0;
        r = given_up(t, m) ? -ECANCELED : 0;
        if (r == 0) {
            r = segfd_read(fd, pos, buf, part);
            *ret_source = r < 0;
        }
        if (r == 0)
            r = segfile_append(sf, buf, part, &done);
        if (r == 0)
            segfile_hash(sf, pos, buf, part);
    }
    if (fd)
        segfd_put(t->v->segfds, fd);
    free(buf);
    return r;
}

static int copy_file(struct tier *t, struct move *m, struct segfile *sf, bool *ret_source)
{
    uint64_t *hashes = NULL;
    size_t n = 0;
    int r = copy_bytes(t, m, sf, ret_source);
    if (r == 0)
        r = segfile_seal(sf, &hashes, &n);
    if (r == 0) {
        struct hash128 h = seg_hash(hashes, n);
        *ret_source = memcmp(&h, &m->rec.hash, sizeof h) != 0;
        r = *ret_source ? -EBADMSG : segfile_sync(sf);
    }
    free(hashes);
    return r;
}

static int create_copy(struct tier *t, struct move *m, struct segfile **ret)
{
    int r = -EEXIST;
    uint64_t capacity = max_u64(m->rec.capacity, m->rec.end - m->from.base);
    for (unsigned tries = 0; r == -EEXIST && tries < NAME_TRIES; tries++) {
        m->to.version++;
        r = segfile_create(t->v->devs, t->v->id, &m->to, capacity, ret);
    }
    return r;
}

/* Is the segment still what was read? Else its device is not to blame for what it delivered. */
static bool changed(struct tier *t, const struct move *m)
{
    struct seg_rec now;
    return seg_get(t->v->kv, m->from.ino, m->from.base, &now) < 0 ||
           now.version != m->rec.version || !now.local || now.device != m->from.device ||
           now.file_version != m->from.version;
}

static int move_to(struct tier *t, struct move *m)
{
    struct segfile *sf = NULL;
    bool source = false;
    int r = create_copy(t, m, &sf);
    if (r == 0)
        r = copy_file(t, m, sf, &source);
    if (sf) {
        segfile_release_cache(sf, 0);
        segfile_close(sf);
    }
    if (r == 0)
        r = seg_update(t, m->from.ino, m->from.base, record_move, m);
    if (r < 0 && sf)
        (void)segfile_unlink(t->v->devs, t->v->segfds, &m->to); /* nothing names it */
    if (r < 0 && r != -ECANCELED && changed(t, m))
        return -ESTALE;
    if (r < 0 && source && r != -ENOMEM) {
        log_rate(LC_TIER, LOG_LV_ERR, 10,
                 "inode %016llx: the segment at %llu cannot be moved: device %u: %s",
                 (unsigned long long)m->from.ino, (unsigned long long)m->from.base, m->from.device,
                 r == -EBADMSG ? "its bytes do not match their hash" : err_name(r));
        return -EBADMSG;
    }
    return r;
}

int move_segment(struct tier *t, uint64_t ino, uint64_t base, double level)
{
    struct move m = {0};
    int r = seg_get(t->v->kv, ino, base, &m.rec);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (!m.rec.local || m.rec.state == SEG_OPEN || !dev_is_draining(t->v->devs, m.rec.device))
        return 0;
    m.from = seg_file_id(0, ino, base, &m.rec);
    m.to = m.from;
    m.to.topic = birth_topic(t, ino, &m.rec);
    r = dev_pick_other(t->v->devs, m.rec.device, m.rec.header_bytes + (m.rec.end - base), level,
                       &m.to.device);
    if (r < 0)
        return r;
    struct data_making making;
    data_making_begin(t->v->data, &making, ino, base);
    r = move_to(t, &m);
    data_making_end(t->v->data, &making);
    dev_unpick(t->v->devs, m.to.device);
    return r;
}
