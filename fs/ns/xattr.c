/* xattr.c: user.* extended attributes: one key each. Changes go through ns.mu like all others. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include "fs/ns/ns_int.h"

static int check_name_of(const char *name, size_t *len)
{
    *len = strlen(name);
    if (*len > NAME_BYTES_MAX)
        return -ERANGE;
    return strncmp(name, "user.", 5) || *len == 5 ? -EOPNOTSUPP : 0;
}

ssize_t ns_getxattr(struct ns *ns, uint64_t ino, const char *name, void *buf, size_t cap)
{
    size_t len;
    int e = check_name_of(name, &len);
    if (e < 0)
        return e;
    struct key k = key_xattr(ino, name, len);
    ssize_t n = kv_get(ns->kv, k.b, k.len, buf, cap);
    if (n == -ENOENT)
        return -ENODATA;
    if (n < 0)
        return ns_err(n);
    return cap > 0 && (size_t)n > cap ? -ERANGE : n;
}

struct names {
    char *buf;
    size_t cap, len;
};

static int list_one(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct names *l = arg;
    const uint8_t *name;
    size_t n;
    if (!key_parse_name(key, klen, NULL, &name, &n))
        return -EBADMSG;
    if (l->cap > 0) {
        if (l->cap - l->len < n + 1)
            return -ERANGE;
        memcpy(l->buf + l->len, name, n);
        l->buf[l->len + n] = 0;
    }
    l->len += n + 1;
    return 0;
}

ssize_t ns_listxattr(struct ns *ns, uint64_t ino, char *buf, size_t cap)
{
    struct names l = {.buf = buf, .cap = cap};
    struct key k = key_xattr(ino, NULL, 0);
    int e = ns_err(kv_walk(ns->kv, k.b, k.len, k.b, k.len, list_one, &l));
    return e < 0 ? e : (ssize_t)l.len;
}

/* Puts (val) or takes away (NULL); the times and the mark go into the same batch. */
static int change(struct txn *t, struct inode *i, const char *name, size_t nlen, const void *val,
                  size_t len, int flags, const struct kv_origin *who)
{
    struct ns *ns = t->ns;
    struct key k = key_xattr(i->ino, name, nlen);
    ssize_t old = kv_get(ns->kv, k.b, k.len, NULL, 0);
    if (old < 0 && old != -ENOENT)
        return ns_err(old);
    if (old >= 0 && (flags & XATTR_CREATE))
        return -EEXIST;
    if (old < 0 && (flags & XATTR_REPLACE))
        return -ENODATA;
    if (old < 0 && val) {
        ssize_t all = ns_listxattr(ns, i->ino, NULL, 0);
        if (all < 0)
            return (int)all;
        if ((size_t)all + nlen + 1 > XATTR_LIST_MAX_BYTES)
            return -ENOSPC;
    }
    struct inode_rec *r = txn_rec(t, i);
    uint64_t topic = 0;
    int e = topic_of(ns, i->ino, &topic);
    if (e < 0 && !(e == -ENOENT && r->nlink == 0))
        return e;
    if (val)
        kv_put(&t->b, k.b, k.len, val, len);
    else
        kv_del(&t->b, k.b, k.len);
    if (e < 0)
        topic = 0; /* Unlinked: the manifest has forgotten it. */
    else
        topic_mark(&t->b, topic, &k);
    r->ctime_ns = t->now;
    txn_touch(t, i, topic);
    return txn_apply(t, who, 0);
}

static int change_pinned(struct ns *ns, uint64_t ino, const char *name, const void *val, size_t len,
                         int flags, const struct kv_origin *who)
{
    size_t nlen;
    struct inode *i;
    int e = check_name_of(name, &nlen);
    if (e == 0)
        e = inode_get(ns, ino, &i);
    if (e < 0)
        return e;
    struct txn t;
    txn_begin(&t, ns, &i, 1);
    e = change(&t, i, name, nlen, val, len, flags, who);
    txn_end(&t);
    inode_put(ns, i);
    return e;
}

int ns_setxattr(struct ns *ns, uint64_t ino, const char *name, const void *val, size_t len,
                int flags, const struct kv_origin *who)
{
    if (len > XATTR_VALUE_MAX)
        return -E2BIG;
    if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
        return -EINVAL;
    return change_pinned(ns, ino, name, val ? val : "", len, flags, who);
}

int ns_removexattr(struct ns *ns, uint64_t ino, const char *name, const struct kv_origin *who)
{
    return change_pinned(ns, ino, name, NULL, 0, XATTR_REPLACE, who);
}
