/* session.c: which machine and which file systems the last daemon ran on, and whether it stopped cleanly.
 *
 * `trusted`: file sizes of open segments hold, because the last daemon stopped cleanly, or it died but
 * machine and file systems stayed up (same boot id, same mounts). Else only what hashes prove is kept.
 *
 * The setting "session": u8 version 2, 36 bytes boot id, u8 clean, u64 mount id of the state directory,
 * then per device { u32 id, u64 mount id }. A device comes into it before it takes its first segment, so
 * one that is not in it holds none, and one that was removed since holds none either: only those that are
 * in both have to be where they were.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/io.h"
#include "fs/base/log.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/volume/volume_int.h"

#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x00004000U
#endif

enum { VERSION = 2, BOOT_BYTES = 36, CLEAN_AT = 1 + BOOT_BYTES, DEVICES_AT = CLEAN_AT + 1 + 8 };
enum { DEVICE_BYTES = 12, SESSION_MAX = DEVICES_AT + DEV_PLACES_MAX * DEVICE_BYTES };

static uint64_t mount_id(int fd)
{
    struct statx sx = {0};
    if (fd >= 0)
        (void)syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_MNT_ID_UNIQUE | STATX_MNT_ID, &sx);
    return sx.stx_mnt_id;
}

/* Length, or -errno: without the boot id nobody can say whether the machine was restarted. */
static ssize_t session_now(struct volume *v, bool clean, uint8_t *buf, size_t cap)
{
    AUTO_FREE char *boot = NULL;
    size_t len = 0;
    struct wr w = {.p = buf, .cap = cap};
    int r = io_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 256, &boot, &len);
    if (r < 0 || len < BOOT_BYTES)
        return r < 0 ? r : -EIO;
    wr_u8(&w, VERSION);
    wr_bytes(&w, boot, BOOT_BYTES);
    wr_u8(&w, clean);
    wr_u64(&w, mount_id(v->state_fd));
    for (unsigned k = 0; k < devs_count(v->devs); k++) {
        struct dev_info info;
        if (!devs_info(v->devs, k, &info))
            continue;
        wr_u32(&w, info.id);
        wr_u64(&w, mount_id(dev_dirfd(v->devs, info.id)));
    }
    return w.bad ? -E2BIG : (ssize_t)w.len;
}

int session_store(struct volume *v, bool clean)
{
    uint8_t buf[SESSION_MAX];
    ssize_t n = session_now(v, clean, buf, sizeof buf);
    if (n < 0)
        return (int)n;
    struct key k = key_setting("session");
    struct kv_batch b;
    kv_batch_init(&b);
    b.frees = true; /* a full disk can still be mounted and drained */
    kv_put(&b, k.b, k.len, buf, (size_t)n);
    uint64_t seq;
    int r = kv_apply(v->kv, &b, NULL, &seq);
    kv_batch_done(&b);
    return r < 0 ? r : kv_sync(v->kv, seq);
}

/* Machine, state directory, and every device that is in both. */
static bool same_place(const uint8_t *was, size_t n, const uint8_t *now, size_t m)
{
    if (n < DEVICES_AT || was[0] != VERSION || memcmp(was, now, CLEAN_AT) != 0 ||
        memcmp(was + CLEAN_AT + 1, now + CLEAN_AT + 1, 8) != 0)
        return false;
    for (size_t i = DEVICES_AT; i + DEVICE_BYTES <= n; i += DEVICE_BYTES)
        for (size_t k = DEVICES_AT; k + DEVICE_BYTES <= m; k += DEVICE_BYTES)
            if (!memcmp(was + i, now + k, 4) && memcmp(was + i + 4, now + k + 4, 8) != 0)
                return false;
    return true;
}

/* What its page cache says of a device is what its medium has, unless a flush failed since it was mounted. */
static void recall_failures(struct volume *v, const uint8_t *was, size_t n, const uint8_t *now,
                            size_t m)
{
    bool same_boot = n >= DEVICES_AT && was[0] == VERSION && memcmp(was, now, CLEAN_AT) == 0;
    for (size_t k = DEVICES_AT; k + DEVICE_BYTES <= m; k += DEVICE_BYTES) {
        bool same = false;
        for (size_t i = DEVICES_AT; same_boot && i + DEVICE_BYTES <= n; i += DEVICE_BYTES)
            same |= memcmp(was + i, now + k, DEVICE_BYTES) == 0;
        dev_recall_failures(v->devs, get_le32(now + k), !same);
    }
}

/* 0 or -errno: what is not known for sure must not let bytes be cut off. */
int session_judge(struct volume *v, bool *ret_stale)
{
    uint8_t was[SESSION_MAX], now[SESSION_MAX];
    struct key k = key_setting("session");
    ssize_t n = kv_get(v->kv, k.b, k.len, was, sizeof was);
    ssize_t m = session_now(v, false, now, sizeof now);
    if (m < 0 || (n < 0 && n != -ENOENT))
        return (int)(m < 0 ? m : n);
    bool whole = n >= DEVICES_AT && n <= (ssize_t)sizeof was && was[0] == VERSION;
    v->clean = n == -ENOENT || (whole && was[CLEAN_AT] == 1);
    v->restarted = n >= 0 && !(whole && same_place(was, (size_t)n, now, (size_t)m));
    v->trusted = v->clean || !v->restarted;
    recall_failures(v, was, whole ? (size_t)n : 0, now, (size_t)m);
    *ret_stale = n != m || memcmp(was, now, (size_t)m) != 0;
    if (!v->trusted)
        log_warn(LC_MAIN,
                 "the last daemon did not stop cleanly and the machine or a file system was "
                 "restarted since; open segments are checked against their hashes");
    return 0;
}
