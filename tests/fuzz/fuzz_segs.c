/* fuzz_segs.c: values of the queues for unlinking, deleting and open segments, and the object keys in
 * them, on arbitrary bytes. */
#include <assert.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/data/segs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct segfile_id id;
    struct seg_object o;
    uint64_t topic, ino, base, ino2, base2;
    char key[OBJ_KEY_MAX], again[OBJ_KEY_MAX];

    if (unlink_decode(data, size, &id) == 0)
        assert(size == 25 && data[0] == 1 && id.device == get_le32(data + 1) &&
               id.version == get_le32(data + 5) && id.ino == get_le64(data + 9) &&
               id.base == get_le64(data + 17));
    if (seg_open_decode(data, size) != 0)
        assert(size == 9 && data[0] == 1);
    for (size_t cap = 1; cap <= sizeof key; cap = cap < sizeof key ? sizeof key : cap + 1) {
        if (delete_decode(data, size, &topic, &ino, &base, key, cap) < 0)
            continue;
        assert(strlen(key) == size - 25 && size - 25 < cap && !memcmp(key, data + 25, size - 25));
        if (seg_object_key_parse(key, &o, &ino2, &base2) < 0)
            continue;
        assert(seg_object_key(&o, ino2, base2, again, sizeof again) == 0);
        assert(!strcmp(key, again));
    }
    return 0;
}
