/* fuzz_manifest.c: roots, pages and entries of manifests on arbitrary bytes. The first byte chooses;
 * lengths and hashes are made right in half of the cases, or nothing would ever get behind them. What a
 * root decodes to must encode to the same bytes. */
#include "fs/tier/manifest_fmt.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t volume[16] = "0123456789abcdef";

/* Touches every byte that the entries claim to have. */
static uint32_t entries(const uint8_t *buf, size_t len, bool must_be_whole)
{
    struct manifest_entry e;
    size_t pos = 0, was = 0;
    uint32_t n = 0;
    uint8_t sum = 0;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) > 0) {
        assert(pos > was && pos <= len && e.klen > 0);
        was = pos;
        for (unsigned i = 0; i < e.klen; i++)
            sum ^= e.key[i];
        for (uint32_t i = 0; e.val && i < e.vlen; i++)
            sum ^= e.val[i];
        n++;
    }
    (void)sum;
    assert(!must_be_whole || (r == 0 && pos == len));
    return n;
}

static void root(const uint8_t *buf, size_t len)
{
    struct manifest_root r;
    if (manifest_root_decode(buf, len, &r) < 0) {
        assert(!r.pages && !r.inline_buf);
        return;
    }
    assert(entries(r.inline_buf, r.inline_len, true) == r.inline_n);
    uint8_t *again;
    size_t n;
    if (manifest_root_encode(&r, &again, &n) < 0)
        abort();
    assert(n == len);
    /* All but the two reserved fields and the hash over them. */
    assert(!memcmp(again, buf, 6) && !memcmp(again + 8, buf + 8, 76) &&
           !memcmp(again + MANIFEST_ROOT_HEAD, buf + MANIFEST_ROOT_HEAD,
                   len - MANIFEST_ROOT_HEAD - 8));
    free(again);
    manifest_root_done(&r);
}

static void page(const uint8_t *buf, size_t len)
{
    const uint8_t *e;
    size_t n;
    uint32_t count;
    if (manifest_page_decode(buf, len, volume, 0x1122, 0x33, &e, &n, &count) == 0) {
        assert(e >= buf && e + n <= buf + len);
        assert(entries(e, n, true) == count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t which = data[0] % 5;
    data++;
    size--;
    if (which == 0)
        root(data, size);
    else if (which == 1)
        page(data, size);
    else if (which == 2)
        (void)entries(data, size, false);
    if (which < 3 || size < 24)
        return 0;
    uint8_t *buf = malloc(size);
    memcpy(buf, data, size);
    put_le32(buf, which == 3 ? 0x524d4c53 : 0x504d4c53);
    put_le16(buf + 4, 1);
    put_le32(buf + 8, (uint32_t)size);
    if (which == 4 && size >= MANIFEST_PAGE_HEAD + 8) {
        memcpy(buf + 16, volume, 16);
        put_le64(buf + 32, 0x1122);
        put_le64(buf + 40, 0x33);
    }
    if (which == 3 && size >= MANIFEST_ROOT_HEAD + 8) {
        /* The number of pages as given if possible; the rest is inline. */
        size_t room = size - MANIFEST_ROOT_HEAD - 8;
        uint32_t pages = get_le32(buf + 72) % 8;
        if (pages <= room / MANIFEST_PAGE_REF) {
            put_le32(buf + 72, pages);
            put_le32(buf + 76, (uint32_t)(room - pages * MANIFEST_PAGE_REF));
        }
    }
    put_le64(buf + size - 8, hash64(buf, size - 8));
    if (which == 3)
        root(buf, size);
    else
        page(buf, size);
    free(buf);
    return 0;
}
