/* keys.c: keys of the metadata store, see rec.h: a letter for the table, then numbers, big-endian so that they
 * sort, then names. Pure functions. */
#include "fs/meta/rec.h"

#include <assert.h>
#include <string.h>
#include "fs/base/bytes.h"

static void key_be64(struct key *k, uint64_t v)
{
    assert(k->len + 8 <= sizeof k->b);
    put_be64(k->b + k->len, v);
    k->len += 8;
}

static void key_raw(struct key *k, const void *p, size_t len)
{
    assert(len <= sizeof k->b - k->len);
    if (len)
        memcpy(k->b + k->len, p, len);
    k->len += len;
}

/* Times are wall clock; those before 1970 would sort behind all others and count as 1970. */
static uint64_t key_time(int64_t ns)
{
    return ns < 0 ? 0 : (uint64_t)ns;
}

struct key key_prefix(char table)
{
    struct key k = {.len = 1};
    k.b[0] = (uint8_t)table;
    return k;
}

static struct key key_1(char table, uint64_t a)
{
    struct key k = key_prefix(table);
    key_be64(&k, a);
    return k;
}

static struct key key_3(char table, uint64_t a, uint64_t b, uint64_t c)
{
    struct key k = key_1(table, a);
    key_be64(&k, b);
    key_be64(&k, c);
    return k;
}

struct key key_inode(uint64_t ino)
{
    return key_1('I', ino);
}

struct key key_name(uint64_t parent, const void *name, size_t len)
{
    struct key k = key_1('N', parent);
    key_raw(&k, name, len);
    return k;
}

struct key key_dirent(uint64_t parent, uint64_t cookie)
{
    struct key k = key_1('C', parent);
    key_be64(&k, cookie);
    return k;
}

struct key key_symlink(uint64_t ino)
{
    return key_1('Y', ino);
}

struct key key_xattr(uint64_t ino, const void *name, size_t len)
{
    struct key k = key_1('X', ino);
    key_raw(&k, name, len);
    return k;
}

struct key key_seg(uint64_t ino, uint64_t base)
{
    struct key k = key_1('S', ino);
    key_be64(&k, base);
    return k;
}

struct key key_blocks(uint64_t ino, uint64_t base, uint32_t version)
{
    struct key k = key_1('B', ino);
    key_be64(&k, base);
    put_be32(k.b + k.len, version);
    k.len += 4;
    return k;
}

struct key key_open(uint64_t ino, uint64_t base)
{
    struct key k = key_1('W', ino);
    key_be64(&k, base);
    return k;
}

struct key key_upload(int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    return key_3('U', key_time(sealed_ns), ino, base);
}

struct key key_kept(int64_t sealed_ns, uint64_t ino, uint64_t base)
{
    return key_3('K', key_time(sealed_ns), ino, base);
}

struct key key_dirty(uint64_t topic, const void *key, size_t len)
{
    struct key k = key_1('M', topic);
    key_raw(&k, key, len);
    return k;
}

struct key key_topic(uint64_t topic)
{
    return key_1('T', topic);
}

struct key key_evict(int64_t committed_ns, uint64_t ino, uint64_t base)
{
    return key_3('E', key_time(committed_ns), ino, base);
}

struct key key_delete(int64_t not_before_ns, uint64_t id)
{
    struct key k = key_1('D', key_time(not_before_ns));
    key_be64(&k, id);
    return k;
}

struct key key_unlink(uint64_t id)
{
    return key_1('L', id);
}

struct key key_orphan(uint64_t ino)
{
    return key_1('O', ino);
}

struct key key_setting(const char *name)
{
    struct key k = key_prefix('v');
    key_raw(&k, name, strlen(name));
    return k;
}

static bool table_is(const uint8_t *key, size_t len, const char *tables)
{
    return len > 0 && key[0] && strchr(tables, key[0]);
}

bool key_parse_ino(const void *key, size_t len, uint64_t *ino)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "IYOLT") || len != 9)
        return false;
    if (ino)
        *ino = get_be64(k + 1);
    return true;
}

bool key_parse_seg(const void *key, size_t len, uint64_t *ino, uint64_t *base)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "SW") || len != 17)
        return false;
    if (ino)
        *ino = get_be64(k + 1);
    if (base)
        *base = get_be64(k + 9);
    return true;
}

bool key_parse_name(const void *key, size_t len, uint64_t *parent, const uint8_t **name,
                    size_t *name_len)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "NX") || len < 10 || len > 9 + NAME_BYTES_MAX)
        return false;
    if (parent)
        *parent = get_be64(k + 1);
    if (name)
        *name = k + 9;
    if (name_len)
        *name_len = len - 9;
    return true;
}

bool key_parse_dirent(const void *key, size_t len, uint64_t *parent, uint64_t *cookie)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "C") || len != 17)
        return false;
    if (parent)
        *parent = get_be64(k + 1);
    if (cookie)
        *cookie = get_be64(k + 9);
    return true;
}

bool key_parse_queue(const void *key, size_t len, int64_t *when, uint64_t *a, uint64_t *b)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "UKED") || len != (k[0] == 'D' ? 17u : 25u))
        return false;
    uint64_t ns = get_be64(k + 1);
    if (ns > INT64_MAX)
        return false;
    if (when)
        *when = (int64_t)ns;
    if (a)
        *a = get_be64(k + 9);
    if (b)
        *b = len == 25 ? get_be64(k + 17) : 0;
    return true;
}

bool key_parse_dirty(const void *key, size_t len, uint64_t *topic, const uint8_t **inner,
                     size_t *inner_len)
{
    const uint8_t *k = key;
    if (!table_is(k, len, "M") || len < 10)
        return false;
    if (topic)
        *topic = get_be64(k + 1);
    if (inner)
        *inner = k + 9;
    if (inner_len)
        *inner_len = len - 9;
    return true;
}
