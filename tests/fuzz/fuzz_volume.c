/* fuzz_volume.c: the volume's object in the bucket and its file in the state directory on arbitrary
 * bytes; hashes are made right in half of the cases. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/hash.h"
#include "fs/volume/ident.h"
#include "fs/volume/volobj.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void object(const uint8_t *p, size_t n)
{
    struct volobj v;
    uint8_t again[VOLOBJ_BYTES];
    if (volobj_decode(p, n, &v) < 0)
        return;
    assert(n == VOLOBJ_BYTES && v.profile <= 1 && v.epoch < UINT64_MAX);
    volobj_encode(&v, again);
    /* All but the reserved fields and the hash over them. */
    assert(!memcmp(again, p, 6) && !memcmp(again + 8, p + 8, 64));
}

static void file(const uint8_t *p, size_t n)
{
    static struct ident i;
    char path[64];
    int fd = memfd_create("ident", MFD_CLOEXEC);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ident_load(AT_FDCWD, path, &i) == 0) {
        assert(i.devices > 0 && i.devices <= DEVICES_MAX && i.profile <= 1);
        assert(strlen(i.url) < sizeof i.url);
        for (unsigned k = 0; k < i.devices; k++)
            assert(i.path[k] && *i.path[k]);
    } else {
        for (unsigned k = 0; k < DEVICES_MAX; k++)
            assert(!i.path[k]);
    }
    ident_done(&i);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t which = data[0] % 4;
    data++;
    size--;
    if (which == 0)
        object(data, size);
    if (which == 1)
        file(data, size);
    if (which == 2) {
        uint8_t buf[VOLOBJ_BYTES] = {0};
        memcpy(buf, data, size < sizeof buf ? size : sizeof buf);
        put_le64(buf + 80, hash64(buf, 80));
        object(buf, sizeof buf);
    }
    if (which == 3 && size >= 20) {
        uint8_t *buf = malloc(size);
        memcpy(buf, data, size);
        put_le32(buf, 0x53564c53);
        put_le16(buf + 4, 1);
        put_le32(buf + 8, (uint32_t)size);
        put_le64(buf + size - 8, hash64(buf, size - 8));
        file(buf, size);
        free(buf);
    }
    return 0;
}
