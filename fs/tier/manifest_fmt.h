/* manifest_fmt.h: the manifest of a topic in the bucket, byte for byte; pure functions.
 *
 * A manifest is a log-structured map from metadata keys (fs/meta/rec.h: I, N, Y, X, S) to values: a
 * root object, replaced by compare-and-set, that holds the newest entries itself and names immutable
 * pages with the older ones. Newer wins: inline entries, then pages from the last to the first. An
 * entry without a value is a tombstone. So one commit writes one small object, never the whole.
 *
 * Root `topics/<id>/manifest`:
 *    0 u32 magic "SLMR"  4 u16 version 1  6 u16 0  8 u32 total length  12 u32 node of the owner
 *   16 16 bytes volume id  32 u64 topic  40 u64 epoch  48 u64 sequence  56 16 bytes nonce
 *   72 u32 number of pages  76 u32 bytes of inline entries  80 u32 inline entries  84 u32 0
 *   88 pages: { u64 id, u32 bytes, u32 entries, u64 xxh3-64 of the page object }, oldest first
 *      entries: { u16 key length, u16 0, u32 value length or 0xffffffff, key, value }
 *      u64 xxh3-64 of everything before
 * Page `topics/<id>/pages/<page id>`:
 *    0 u32 magic "SLMP"  4 u16 version 1  6 u16 0  8 u32 total length  12 u32 entries
 *   16 16 bytes volume id  32 u64 topic  40 u64 page id  48 entries  ... u64 xxh3-64 of all before
 */
#ifndef SLUICE_TIER_MANIFEST_FMT_H
#define SLUICE_TIER_MANIFEST_FMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MANIFEST_ROOT_HEAD = 88,
    MANIFEST_PAGE_HEAD = 48,
    MANIFEST_PAGE_REF = 24,
    MANIFEST_PAGES_MAX = 4096,
    MANIFEST_BYTES_MAX = 8 * 1024 * 1024
};

struct manifest_page_ref {
    uint64_t id, hash;
    uint32_t bytes, entries;
};

struct manifest_root {
    uint8_t volume[16], nonce[16];
    uint32_t node;
    uint64_t topic, epoch, seq;
    struct manifest_page_ref *pages; /* owned */
    uint32_t pages_n;
    uint8_t *inline_buf; /* owned; encoded entries */
    uint32_t inline_len, inline_n;
};

struct manifest_entry {
    const uint8_t *key, *val; /* val NULL: tombstone */
    uint16_t klen;
    uint32_t vlen;
};

void manifest_root_done(struct manifest_root *r);

/* Malloc'ed encoding in *ret. 0 or -ENOMEM. */
int manifest_root_encode(const struct manifest_root *r, uint8_t **ret, size_t *ret_len);
/* 0; -EBADMSG; -EPROTONOSUPPORT; -ENOMEM. On failure *ret is empty. */
int manifest_root_decode(const uint8_t *buf, size_t len, struct manifest_root *ret);

int manifest_page_encode(const uint8_t volume[16], uint64_t topic, uint64_t id,
                         const uint8_t *entries, size_t len, uint32_t n, uint8_t **ret,
                         size_t *ret_len);
/* Checks a page and tells where its entries are. */
int manifest_page_decode(const uint8_t *buf, size_t len, const uint8_t volume[16], uint64_t topic,
                         uint64_t id, const uint8_t **ret_entries, size_t *ret_len,
                         uint32_t *ret_n);

/* Appends an entry to a growing malloc'ed buffer. 0 or -ENOMEM. */
int manifest_entry_add(uint8_t **buf, size_t *len, size_t *cap, const struct manifest_entry *e);
/* The next entry at *pos. 1: got one; 0: end; -EBADMSG. */
int manifest_entry_next(const uint8_t *buf, size_t len, size_t *pos, struct manifest_entry *ret);

void manifest_root_key(uint64_t topic, char *out, size_t cap);
void manifest_page_key(uint64_t topic, uint64_t id, char *out, size_t cap);

#endif
