/* ops_attr.c: stat, chmod and friends, truncate, extended attributes, statfs.
 *
 * Attributes are cached by the kernel for long: it drops them itself after each change that went
 * through it, and nothing else changes what stat shows.
 *
 * Extended attributes exist with -o xattr only. Without it getxattr answers ENOSYS once and the
 * kernel never asks again; otherwise each write would be preceded by a request for
 * security.capability. With it, two read-only attributes tell where a file's bytes are:
 * user.sluice.tier (hot, warm, cold or mixed) and user.sluice.segments (JSON).
 */
#include "fs/daemon/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "fs/base/log.h"

enum { XATTR_BYTES_MAX = 64 * 1024 };

#define XATTR_TIER     "user.sluice.tier"
#define XATTR_SEGMENTS "user.sluice.segments"
#define XATTR_OURS     "user.sluice."

void reply_attr(fuse_req_t req, struct inode *i)
{
    struct daemon *d = daemon_of(req);
    struct stat st;
    data_stat(d->v->data, i, &st);
    inode_put(d->v->ns, i);
    (void)fuse_reply_attr(req, &st, OWNER_TIMEOUT);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    if (is_virt(ino)) {
        virt_getattr(req, ino);
        return;
    }
    struct inode *i;
    int err = inode_get(daemon_of(req)->v->ns, ino, &i);
    if (err)
        reply_err(req, err);
    else
        reply_attr(req, i);
}

/* Times are 64 bits of ns: 1677 to 2262; beyond that the nearest one, as other file systems do. */
static int64_t ns_of(const struct timespec *t)
{
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)t->tv_sec, (int64_t)NS_PER_SEC, &ns) ||
        __builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns))
        return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

int set_attributes(struct daemon *d, struct inode *i, const struct stat *attr, int to_set,
                   const struct kv_origin *who)
{
    struct ns_set s = {.mode = attr->st_mode, .uid = attr->st_uid, .gid = attr->st_gid};
    int64_t now = clock_wall_ns();

    if (to_set & FUSE_SET_ATTR_SIZE) {
        if (!S_ISREG(i->type))
            return -EINVAL;
        if (attr->st_size < 0)
            return -EINVAL;
        int err = data_truncate(d->v->data, i, (uint64_t)attr->st_size, who);
        if (err)
            return err;
    }
    if (to_set & FUSE_SET_ATTR_MODE)
        s.mask |= NS_SET_MODE;
    if (to_set & FUSE_SET_ATTR_UID)
        s.mask |= NS_SET_UID;
    if (to_set & FUSE_SET_ATTR_GID)
        s.mask |= NS_SET_GID;
    if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW)) {
        s.mask |= NS_SET_ATIME;
        s.atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW ? now : ns_of(&attr->st_atim);
    }
    if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)) {
        s.mask |= NS_SET_MTIME;
        s.mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW ? now : ns_of(&attr->st_mtim);
    }
    /* FUSE_SET_ATTR_CTIME is the kernel's idea of a change time: ours is kept with the change. */
    return s.mask ? ns_setattr(d->v->ns, i, &s, who) : 0;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi)
{
    (void)fi;
    struct daemon *d = daemon_of(req);
    struct inode *i;
    int err = is_virt(ino) ? -EPERM : inode_get(d->v->ns, ino, &i);
    if (err) {
        reply_err(req, err);
        return;
    }
    struct kv_origin was, who = origin_now();
    /* A length is set again: it may have been the first half of what was asked for. */
    if (!(to_set & FUSE_SET_ATTR_SIZE) && done_before(d, &was)) {
        reply_attr(req, i);
        return;
    }
    if ((to_set & FUSE_SET_ATTR_SIZE) && !d->v->topics_profile) {
        err = later_setattr(req, i, attr, to_set, &who);
        if (!err)
            return;
    } else {
        err = set_attributes(d, i, attr, to_set, &who);
    }
    if (err) {
        inode_put(d->v->ns, i);
        reply_err(req, err);
    } else {
        reply_attr(req, i);
    }
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct statvfs st = {0};
    data_statfs(daemon_of(req)->v->data, &st);
    if (!st.f_namemax)
        st.f_namemax = NAME_BYTES_MAX;
    (void)fuse_reply_statfs(req, &st);
}

/* ---- extended attributes ---- */

static bool xattr_off(fuse_req_t req)
{
    if (daemon_of(req)->conf->xattr)
        return false;
    reply_err(req, -ENOSYS);
    return true;
}

static bool is_user(const char *name)
{
    return !strncmp(name, "user.", 5) && name[5];
}

/* The value of "tier":"..." in the inode's document, which this program wrote itself. */
static int tier_from_json(const char *json, char *out, size_t cap)
{
    static const char mark[] = "\"tier\":";
    const char *p = strstr(json, mark);
    if (!p)
        return -ENODATA;
    p += sizeof(mark) - 1;
    p += strspn(p, " \"");
    size_t n = strcspn(p, "\"");
    if (!n || n >= cap)
        return -ENODATA;
    memcpy(out, p, n);
    out[n] = '\0';
    return 0;
}

static void reply_virtual_xattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    char *json = NULL;
    size_t len = 0;
    char tier[32];
    FILE *f = open_memstream(&json, &len);
    int err = f ? volume_inode_json(daemon_of(req)->v, ino, f) : -ENOMEM;
    if (f && fclose(f) && !err)
        err = -ENOMEM;
    const char *value = json;
    if (!err && !strcmp(name, XATTR_TIER)) {
        err = tier_from_json(json, tier, sizeof(tier));
        value = tier;
        len = err ? 0 : strlen(tier);
    } else if (!err && strcmp(name, XATTR_SEGMENTS)) {
        err = -ENODATA;
    }
    if (!err && len > XATTR_BYTES_MAX)
        err = -E2BIG;
    if (err)
        reply_err(req, err);
    else if (!size)
        (void)fuse_reply_xattr(req, len);
    else if (len > size)
        reply_err(req, -ERANGE);
    else
        (void)fuse_reply_buf(req, value, len);
    free(json);
}

/* Runs one of the two calls that return a value, with a buffer of the size the caller has. */
static void reply_value(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct ns *ns = daemon_of(req)->v->ns;
    size_t cap = size && size < XATTR_BYTES_MAX ? size : XATTR_BYTES_MAX;
    char *buf = malloc(cap);
    ssize_t n = -ENOMEM;
    if (buf)
        n = name ? ns_getxattr(ns, ino, name, buf, cap) : ns_listxattr(ns, ino, buf, cap);
    if (n < 0)
        reply_err(req, (int)n);
    else if (!size)
        (void)fuse_reply_xattr(req, (size_t)n);
    else if ((size_t)n > size)
        reply_err(req, -ERANGE);
    else
        (void)fuse_reply_buf(req, buf, (size_t)n);
    free(buf);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    if (xattr_off(req))
        return;
    if (is_virt(ino) || !is_user(name))
        reply_err(req, is_virt(ino) || !strncmp(name, "security.", 9) ? -ENODATA : -EOPNOTSUPP);
    else if (!strncmp(name, XATTR_OURS, strlen(XATTR_OURS)))
        reply_virtual_xattr(req, ino, name, size);
    else
        reply_value(req, ino, name, size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    if (xattr_off(req))
        return;
    if (!is_virt(ino))
        reply_value(req, ino, NULL, size);
    else if (!size)
        (void)fuse_reply_xattr(req, 0);
    else
        (void)fuse_reply_buf(req, NULL, 0);
}

/* 0, or why this attribute cannot be changed. */
static int may_change(fuse_ino_t ino, const char *name)
{
    if (is_virt(ino) || !strncmp(name, XATTR_OURS, strlen(XATTR_OURS)))
        return -EPERM;
    return is_user(name) ? 0 : -EOPNOTSUPP;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *val, size_t size,
                 int flags)
{
    if (xattr_off(req))
        return;
    struct kv_origin was, who = origin_now();
    int err = may_change(ino, name);
    if (!err && !done_before(daemon_of(req), &was))
        err = ns_setxattr(daemon_of(req)->v->ns, ino, name, val, size, flags, &who);
    reply_err(req, err);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    if (xattr_off(req))
        return;
    struct kv_origin was, who = origin_now();
    int err = may_change(ino, name);
    if (!err && !done_before(daemon_of(req), &was))
        err = ns_removexattr(daemon_of(req)->v->ns, ino, name, &who);
    reply_err(req, err);
}
