/* kv_journal.c: the format of journal files and the rules of replay; pure functions, no I/O.
 *
 * File state/journal/<16 hex digits of id>.j, ids only grow:
 *    0 "SKVJ"  4 u16 version 1  6 u16 zero  8 u64 id  16 u64 first sequence  24 u64 durable
 *   32 u64 hash of bytes 0..31
 * then batches, back to back:
 *    0 "SKVB"  4 u16 type  6 u16 zero  8 u32 payload length  12 u32 operations or origins
 *   16 u64 sequence  24 u64 durable  32 u64 unique  40 u32 opcode  44 u32 zero  48 u64 result
 *   56 payload, then u64 hash of everything before it, xor a hash of the file's id: a batch is
 *   valid only in its own file, never as a left-over or a copy
 * Payload of type 1, per operation: u8 1 put 2 delete, u16 key length, u32 value length, key, value.
 * Type 2 follows a file's head: the origins remembered so far (32 bytes each), so that older files
 * can go; its sequence is that of the last batch before it.
 *
 * `durable` of a batch or file: everything up to this sequence was durable when it was written.
 *
 * Replay reads the files as one stream and expects sequences without holes after LMDB's mark.
 *   - Sequences up to the mark only give their origins; damage among them costs nothing.
 *   - A batch beyond the expected one means that the expected one is missing. Was it durable (by the
 *     later one's word)? Then this is corruption. Else it is the torn end of a crash: nothing more
 *     counts in this file, but later records are still read for such a word.
 *   - A file whose first sequence is the expected one goes on from there: it was begun after an
 *     earlier replay had ended in the same place. What older files hold from its first sequence on
 *     is therefore void.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/meta/kv_priv.h"

enum { KJ_VERSION = 1, OP_PUT = 1, OP_DEL = 2, OP_HEAD = 7 };

static uint64_t file_salt(uint64_t id)
{
    uint8_t b[8];
    put_le64(b, id);
    return hash64(b, sizeof b);
}

void kj_file_head(uint8_t out[static KJ_FILE_HEAD], uint64_t id, uint64_t first_seq,
                  uint64_t durable)
{
    memcpy(out, "SKVJ", 4);
    put_le16(out + 4, KJ_VERSION);
    put_le16(out + 6, 0);
    put_le64(out + 8, id);
    put_le64(out + 16, first_seq);
    put_le64(out + 24, durable);
    put_le64(out + 32, hash64(out, 32));
}

int kj_file_head_decode(const uint8_t *p, size_t len, uint64_t id, uint64_t *first_seq,
                        uint64_t *durable)
{
    if (len < KJ_FILE_HEAD || memcmp(p, "SKVJ", 4) != 0 || get_le64(p + 32) != hash64(p, 32))
        return -EBADMSG;
    if (get_le16(p + 4) != KJ_VERSION || get_le16(p + 6) != 0)
        return -EPROTONOSUPPORT;
    if (get_le64(p + 8) != id)
        return -EBADMSG;
    *first_seq = get_le64(p + 16);
    *durable = get_le64(p + 24);
    return 0;
}

void kj_seal(uint8_t *rec, const struct kj_batch *b, uint64_t id)
{
    memcpy(rec, "SKVB", 4);
    put_le16(rec + 4, (uint16_t)b->type);
    put_le16(rec + 6, 0);
    put_le32(rec + 8, (uint32_t)b->len);
    put_le32(rec + 12, b->n);
    put_le64(rec + 16, b->seq);
    put_le64(rec + 24, b->durable);
    put_le64(rec + 32, b->who.unique);
    put_le32(rec + 40, b->who.op);
    put_le32(rec + 44, 0);
    put_le64(rec + 48, b->who.result);
    put_le64(rec + KJ_HEAD + b->len, hash64(rec, KJ_HEAD + b->len) ^ file_salt(id));
}

int kj_batch_decode(const uint8_t *p, size_t len, uint64_t id, struct kj_batch *ret,
                    size_t *ret_size)
{
    if (len < KJ_HEAD + KJ_HASH || memcmp(p, "SKVB", 4) != 0)
        return -EBADMSG;
    size_t plen = get_le32(p + 8);
    if (plen > len - KJ_HEAD - KJ_HASH ||
        get_le64(p + KJ_HEAD + plen) != (hash64(p, KJ_HEAD + plen) ^ file_salt(id)))
        return -EBADMSG;
    uint16_t type = get_le16(p + 4);
    if (type != KJ_OPS && type != KJ_ORIGINS)
        return -EBADMSG;
    *ret = (struct kj_batch){
        .type = type,
        .n = get_le32(p + 12),
        .seq = get_le64(p + 16),
        .durable = get_le64(p + 24),
        .who = {.unique = get_le64(p + 32), .op = get_le32(p + 40), .result = get_le64(p + 48)},
        .payload = p + KJ_HEAD,
        .len = plen};
    *ret_size = KJ_HEAD + plen + KJ_HASH;
    return 0;
}

int kj_op_next(const uint8_t *payload, size_t len, size_t *pos, struct kj_op *ret)
{
    if (*pos == len)
        return 0;
    const uint8_t *p = payload + *pos;
    size_t left = len - *pos;
    if (left < OP_HEAD)
        return -EBADMSG;
    size_t klen = get_le16(p + 1), vlen = get_le32(p + 3);
    if ((p[0] != OP_PUT && p[0] != OP_DEL) || klen < 1 || klen > KV_KEY_MAX ||
        vlen > KV_VALUE_MAX || (p[0] == OP_DEL && vlen) || klen + vlen > left - OP_HEAD)
        return -EBADMSG;
    *ret = (struct kj_op){.del = p[0] == OP_DEL,
                          .key = p + OP_HEAD,
                          .klen = klen,
                          .val = p + OP_HEAD + klen,
                          .vlen = vlen};
    *pos += OP_HEAD + klen + vlen;
    return 1;
}

void kj_origin_put(uint8_t out[static KJ_ORIGIN], const struct kv_origin *o)
{
    put_le64(out, o->unique);
    put_le32(out + 8, o->op);
    put_le32(out + 12, 0);
    put_le64(out + 16, o->result);
    put_le64(out + 24, 0);
}

void kj_origin_get(const uint8_t in[static KJ_ORIGIN], struct kv_origin *o)
{
    o->unique = get_le64(in);
    o->op = get_le32(in + 8);
    o->result = get_le64(in + 16);
}

static int __attribute__((format(printf, 2, 3))) damaged(struct kj_replay *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, r->why_cap, fmt, ap);
    va_end(ap);
    return -EBADMSG;
}

static int missing(struct kj_replay *r, uint64_t id)
{
    return damaged(r,
                   "journal: batch %llu is missing or damaged, though file %016llx.j says that it "
                   "was durable",
                   (unsigned long long)r->expected, (unsigned long long)id);
}

static int replay_batch(struct kj_replay *r, uint64_t id, const struct kj_batch *b, uint64_t limit)
{
    if (b->type == KJ_ORIGINS) {
        if (b->len != (size_t)b->n * KJ_ORIGIN)
            return damaged(r, "journal: bad origins in file %016llx.j", (unsigned long long)id);
        struct kv_origin o;
        for (size_t i = 0; !r->gap && i < b->n; i++) {
            kj_origin_get(b->payload + i * KJ_ORIGIN, &o);
            r->origin(r->arg, &o);
        }
        return 0;
    }
    if (r->gap || b->seq > r->expected) {
        if (b->durable >= r->expected)
            return missing(r, id);
        r->gap = true;
        return 0;
    }
    if (b->seq >= limit) {
        r->gap = true;
        return 0;
    }
    if (b->seq <= r->mark) {
        if (b->who.unique)
            r->origin(r->arg, &b->who);
        return 0;
    }
    if (b->seq < r->expected)
        return damaged(r, "journal: batch %llu appears twice (file %016llx.j)",
                       (unsigned long long)b->seq, (unsigned long long)id);
    int e = r->batch(r->arg, b);
    if (e == -EBADMSG)
        return damaged(r, "journal: batch %llu has impossible contents (file %016llx.j)",
                       (unsigned long long)b->seq, (unsigned long long)id);
    if (e < 0)
        return e;
    if (b->who.unique)
        r->origin(r->arg, &b->who);
    r->expected++;
    return 0;
}

int kj_replay_file(struct kj_replay *r, uint64_t id, const uint8_t *buf, size_t len, uint64_t limit)
{
    uint64_t first, durable;
    size_t pos = 0;
    int e = kj_file_head_decode(buf, len, id, &first, &durable);
    if (e == -EPROTONOSUPPORT) {
        snprintf(r->why, r->why_cap, "journal: file %016llx.j was written by a newer version",
                 (unsigned long long)id);
        return e;
    }
    if (e < 0) {
        r->gap = true; /* never flushed: nothing in it is more than a torn end */
    } else {
        if (first > r->expected && durable >= r->expected)
            return missing(r, id);
        r->gap = first > r->expected;
        pos = KJ_FILE_HEAD;
    }
    r->valid_end = r->gap ? 0 : pos;
    while (pos < len) {
        struct kj_batch b;
        size_t size;
        if (kj_batch_decode(buf + pos, len - pos, id, &b, &size) == 0) {
            e = replay_batch(r, id, &b, limit);
            if (e < 0)
                return e;
            pos += size;
            r->valid_end = r->gap ? 0 : pos;
        } else {
            const uint8_t *next = memmem(buf + pos + 1, len - pos - 1, "SKVB", 4);
            pos = next ? (size_t)(next - buf) : len;
        }
    }
    return 0;
}
