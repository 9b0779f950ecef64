/* fuzz_segfmt.c: segment identities, proof slots, device identities and file names on arbitrary bytes.
 * What decodes must encode to the same bytes. The first byte chooses the decoder; hashes are made
 * right, or nothing would ever get behind them. */
#include "fs/seg/segfmt.h"

#include <stdlib.h>
#include <string.h>
#include "fs/base/bounds.h"
#include "fs/base/bytes.h"
#include "fs/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const uint8_t *a, const uint8_t *b, size_t n)
{
    if (memcmp(a, b, n) != 0)
        abort();
}

/* The input, cut or filled to n bytes, with its last 8 replaced by the hash of the rest. */
static void sign(const uint8_t *data, size_t size, uint8_t *out, size_t n)
{
    memset(out, 0, n);
    memcpy(out, data, size < n ? size : n);
    put_le64(out + n - 8, hash64(out, n - 8));
}

static void name(const uint8_t *data, size_t size)
{
    char text[256], path[SEG_PATH_BYTES];
    uint64_t ino, base;
    uint32_t version;
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = 0;
    if (!seg_name_parse(text, &ino, &base, &version))
        return;
    seg_path(ino, base, version, path);
    if (strcmp(strrchr(path, '/') + 1, text) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t raw[SEG_IDENT_BYTES], out[SEG_IDENT_BYTES], volume[16];
    struct seg_ident i;
    struct seg_slot s;
    uint32_t id;
    if (size == 0)
        return 0;
    uint8_t which = data[0] % 7;
    data++;
    size--;
    switch (which) {
    case 0:
        (void)seg_ident_decode(data, size, &i);
        break;
    case 1:
        (void)seg_slot_decode(data, size, 42, SEGMENT_BYTES_MAX, &s);
        break;
    case 2:
        (void)dev_ident_decode(data, size, volume, &id);
        break;
    case 3:
        sign(data, size, raw, SEG_IDENT_BYTES);
        if (seg_ident_decode(raw, SEG_IDENT_BYTES, &i) == 0) {
            seg_ident_encode(&i, out);
            same(raw, out, SEG_IDENT_BYTES);
        }
        break;
    case 4:
        sign(data, size, raw, SEG_SLOT_BYTES);
        if (seg_slot_decode(raw, SEG_SLOT_BYTES, get_le64(raw + 48), SEGMENT_BYTES_MAX, &s) == 0) {
            seg_slot_encode(&s, out);
            same(raw, out, SEG_SLOT_BYTES);
        }
        break;
    case 5:
        sign(data, size, raw, DEV_IDENT_BYTES);
        if (dev_ident_decode(raw, DEV_IDENT_BYTES, volume, &id) == 0) {
            dev_ident_encode(volume, id, out);
            same(raw, out, DEV_IDENT_BYTES);
        }
        break;
    default:
        name(data, size);
    }
    return 0;
}
