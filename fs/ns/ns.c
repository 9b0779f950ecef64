/* ns.c: opening and closing a namespace, the counters, and orphans of an earlier life.
 *
 * Inode numbers: counter values are reserved in the store NUMBER_CHUNK at a time, in the same batch as
 * the first change that uses one of them; an opening starts behind the last reservation. So a number
 * is never given twice, whenever the daemon dies; at most a chunk is skipped each time.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "fs/base/stats.h"
#include "fs/ns/ns_int.h"

static int count_inode(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)key, (void)klen, (void)val, (void)vlen;
    ++*(uint64_t *)arg;
    return 0;
}

static int read_counter(struct ns *ns)
{
    uint8_t v[9];
    struct key k = key_setting("next_ino");
    ssize_t n = kv_get(ns->kv, k.b, k.len, v, sizeof v);
    if (n == -ENOENT) {
        ns->next = ns->reserved = NUMBER_FIRST;
        return 0;
    }
    if (n < 0)
        return ns_err(n);
    if (n != sizeof v || v[0] != 1)
        return -EIO;
    ns->next = ns->reserved = get_le64(v + 1);
    return ns->next < NUMBER_FIRST || ns->next > 1ull << NUMBER_BITS ? -EIO : 0;
}

static int make_root(struct ns *ns, mode_t mode, uid_t uid, gid_t gid)
{
    int64_t now = clock_wall_ns();
    struct inode_rec r = {.mode = S_IFDIR | (mode & 07777),
                          .uid = uid,
                          .gid = gid,
                          .nlink = 2,
                          .parent = ROOT_INO,
                          .atime_ns = now,
                          .mtime_ns = now,
                          .ctime_ns = now,
                          .btime_ns = now};
    struct kv_batch b;
    kv_batch_init(&b);
    rec_put(&b, ROOT_INO, &r);
    struct key k = key_inode(ROOT_INO);
    topic_mark(&b, ROOT_INO, &k);
    int e = ns_err(kv_apply(ns->kv, &b, NULL, NULL));
    kv_batch_done(&b);
    return e;
}

/* A store without root but with other inodes is damaged, not empty. */
static int open_root(struct ns *ns, mode_t mode, uid_t uid, gid_t gid)
{
    uint64_t n = 0;
    struct key k = key_prefix('I');
    int e = ns_err(kv_walk(ns->kv, k.b, k.len, k.b, k.len, count_inode, &n));
    if (e < 0)
        return e;
    struct inode_rec r;
    e = rec_get(ns, ROOT_INO, &r);
    if (e == -ENOENT && n == 0) {
        e = make_root(ns, mode, uid, gid);
        n = 1;
    }
    atomic_store(&ns->used, n);
    if (e == 0)
        e = inode_get(ns, ROOT_INO, &ns->root);
    if (e == 0 && ns->root->type != S_IFDIR)
        e = -EIO;
    return e == -ENOENT ? -EIO : e;
}

static double gauge_used(void *arg)
{
    return (double)ns_inodes_used(arg);
}

static double gauge_memory(void *arg)
{
    return (double)inodes_in_memory(arg);
}

int ns_open(const struct ns_conf *conf, mode_t root_mode, uid_t uid, gid_t gid, struct ns **ret)
{
    *ret = NULL;
    if (conf->node > NODE_MAX)
        return -EINVAL;
    struct ns *ns = calloc(1, sizeof *ns);
    if (!ns)
        return -ENOMEM;
    ns->conf = *conf;
    ns->kv = conf->kv;
    lock_init(&ns->mu, "ns", RANK_NS, true);
    int e = itable_open(ns);
    if (e < 0) {
        lock_destroy(&ns->mu);
        free(ns);
        return e;
    }
    e = read_counter(ns);
    if (e == 0)
        e = open_root(ns, root_mode, uid, gid);
    if (e < 0) {
        ns_close(ns);
        return e;
    }
    if (conf->stats) {
        stats_gauge(conf->stats, "ns_inodes_memory", "", "inodes held in memory", gauge_memory, ns);
        stats_gauge(conf->stats, "ns_inodes_used", "", "inodes in the volume", gauge_used, ns);
    }
    *ret = ns;
    return 0;
}

void ns_close(struct ns *ns)
{
    if (!ns)
        return;
    if (ns->root)
        inode_put(ns, ns->root);
    itable_close(ns);
    lock_destroy(&ns->mu);
    free(ns);
}

uint64_t ns_inodes_used(struct ns *ns)
{
    return atomic_load(&ns->used);
}

/* ---- orphans ---- */

enum { PURGE_CHUNK = 512 };

struct orphans {
    uint64_t ino[PURGE_CHUNK];
    unsigned n;
};

static int collect(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    (void)val, (void)vlen;
    struct orphans *o = arg;
    if (!key_parse_ino(key, klen, &o->ino[o->n]))
        return -EBADMSG;
    return ++o->n == PURGE_CHUNK ? 1 : 0;
}

static int purge_one(struct ns *ns, uint64_t ino)
{
    struct inode *i;
    int e = inode_get(ns, ino, &i);
    if (e == 0) {
        inode_put_forgotten(ns, i);
        return 0;
    }
    if (e != -ENOENT)
        return e;
    struct kv_batch b;
    kv_batch_init(&b);
    struct key k = key_orphan(ino);
    kv_del(&b, k.b, k.len);
    e = ns_err(kv_apply(ns->kv, &b, NULL, NULL));
    kv_batch_done(&b);
    return e;
}

int ns_purge_orphans(struct ns *ns)
{
    struct orphans *o = malloc(sizeof *o);
    if (!o)
        return -ENOMEM;
    struct key all = key_prefix('O'), from = all;
    int first = 0, more;
    do {
        o->n = 0;
        more = kv_walk(ns->kv, all.b, all.len, from.b, from.len, collect, o);
        if (more < 0 && first == 0)
            first = ns_err(more);
        for (unsigned k = 0; k < o->n; k++) {
            int e = purge_one(ns, o->ino[k]);
            if (e < 0) {
                log_err(LC_NS,
                        "inode %llu was unlinked and cannot be removed (%s); its space stays taken",
                        (unsigned long long)o->ino[k], err_name(e));
                if (first == 0)
                    first = e;
            }
        }
        if (o->n > 0)
            from = key_orphan(o->ino[o->n - 1] + 1);
    } while (more > 0);
    free(o);
    return first;
}
