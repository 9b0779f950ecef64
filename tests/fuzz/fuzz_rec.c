/* fuzz_rec.c: decoders of records, keys and footers on arbitrary bytes. What decodes must encode to
 * the same bytes. */
#include "fs/meta/rec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const uint8_t *data, size_t size, const uint8_t *out, size_t n)
{
    if (size != n || memcmp(data, out, n) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t out[REC_SEG_MAX > REC_DIRENT_MAX ? REC_SEG_MAX : REC_DIRENT_MAX];
    struct inode_rec i;
    struct name_rec n;
    struct seg_rec s;
    struct dirent_rec d;
    if (inode_rec_decode(data, size, &i) == 0)
        same(data, size, out, inode_rec_encode(&i, out));
    if (name_rec_decode(data, size, &n) == 0)
        same(data, size, out, name_rec_encode(&n, out));
    if (dirent_rec_decode(data, size, &d) == 0)
        same(data, size, out, dirent_rec_encode(&d, out));
    if (seg_rec_decode(data, size, &s) == 0)
        same(data, size, out, seg_rec_encode(&s, out));

    uint64_t a, b;
    int64_t when;
    const uint8_t *p;
    size_t len;
    (void)key_parse_ino(data, size, &a);
    (void)key_parse_seg(data, size, &a, &b);
    (void)key_parse_queue(data, size, &when, &a, &b);
    if (key_parse_name(data, size, &a, &p, &len) && p + len != data + size)
        abort();
    if (key_parse_dirty(data, size, &a, &p, &len) && p + len != data + size)
        abort();

    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    struct seg_object o;
    char key[OBJ_KEY_MAX];
    if (seg_object_key_parse(text, &o, &a, &b) == 0 &&
        (seg_object_key(&o, a, b, key, sizeof key) < 0 || strcmp(key, text) != 0))
        abort();
    free(text);

    uint64_t scratch[64];
    struct seg_footer f;
    if (seg_footer_decode(data, size, scratch, 64, &f) == 0) {
        uint8_t *again = malloc(size);
        if (!again)
            return 0;
        seg_footer_encode(&f, again);
        same(data, size, again, size);
        free(again);
    }
    return 0;
}
