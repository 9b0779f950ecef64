/* first.c: see first.h. The volume object is created with If-None-Match where the store honours it, so
 * that two first mounts of one prefix cannot both win. */
#include "fs/volume/first.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/base/clock.h"
#include "fs/volume/volobj.h"

static int64_t deadline(unsigned timeout_ms)
{
    return clock_mono_ns() + (int64_t)timeout_ms * NS_PER_MS;
}

/* The volume object as it is. 0, -ENOENT, -errno. */
static int read_volobj(struct objstore *store, unsigned timeout_ms, struct volobj *ret, char *why,
                       size_t cap)
{
    uint8_t buf[VOLOBJ_BYTES];
    struct iovec iov = {buf, sizeof buf};
    struct obj_req req = {
        .op = OBJ_GET,
        .flags = OBJ_URGENT,
        .key = VOLOBJ_KEY,
        .len = sizeof buf,
        .iov = &iov,
        .iov_n = 1,
        .deadline_ns = deadline(timeout_ms),
    };
    int r = obj_run(store, &req);
    char text[320];
    if (r < 0 && r != -ENOENT)
        snprintf(why, cap, "store: the object `%s` cannot be read: %s", VOLOBJ_KEY,
                 obj_diag_text(&req, text, sizeof text));
    obj_req_done(&req);
    if (r == 0) {
        r = volobj_decode(buf, sizeof buf, ret);
        if (r < 0)
            snprintf(why, cap,
                     "store: the object `%s` under this prefix is not of this program; choose "
                     "another prefix",
                     VOLOBJ_KEY);
    }
    return r;
}

int first_look(struct objstore *store, unsigned timeout_ms, struct ident *i, char *why, size_t cap)
{
    char found[512] = "";
    int r = store_probe(store, timeout_ms, &i->caps, found, sizeof found);
    if (r < 0) {
        snprintf(why, cap, "store %s: %s", i->url, found);
        return r;
    }
    struct volobj have;
    r = read_volobj(store, timeout_ms, &have, why, cap);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r == -EBADMSG ? -EEXIST : r;
    if (!memcmp(have.volume, i->volume, 16))
        return 0;
    char id[37];
    volume_id_text(have.volume, id);
    snprintf(
        why, cap,
        "store: this prefix already holds volume %s, of another state directory; mount with that "
        "state directory, or choose another prefix",
        id);
    return -EEXIST;
}

static int put_small(struct objstore *store, unsigned timeout_ms, const char *key, const void *buf,
                     size_t len, bool if_absent, char *why, size_t cap)
{
    struct obj_body body = {.mem = buf, .fd = -1, .len = len};
    struct obj_req req = {
        .op = OBJ_PUT,
        .flags = OBJ_URGENT | OBJ_HAS_SHA256 | (if_absent ? OBJ_IF_ABSENT : 0),
        .key = key,
        .body = &body,
        .body_n = 1,
        .deadline_ns = deadline(timeout_ms),
    };
    sha256_once(buf, len, req.sha256);
    int r = obj_run(store, &req);
    char text[320];
    if (r < 0)
        snprintf(why, cap, "store: the object `%s` cannot be created: %s", key,
                 obj_diag_text(&req, text, sizeof text));
    obj_req_done(&req);
    return r;
}

int first_claim(struct objstore *store, unsigned timeout_ms, const struct ident *i, char *why,
                size_t cap)
{
    struct volobj v = {
        .node = i->node,
        .epoch = 1,
        .created_ns = i->created_ns,
        .profile = i->profile,
    };
    memcpy(v.volume, i->volume, 16);
    memcpy(v.nonce, i->volume, 16); /* epoch 1 is recognised by the volume id itself */
    uint8_t buf[VOLOBJ_BYTES];
    volobj_encode(&v, buf);
    int r = put_small(store, timeout_ms, VOLOBJ_KEY, buf, sizeof buf, i->caps.if_absent, why, cap);
    if (r == -EEXIST) { /* ours from an earlier try, or somebody was faster */
        struct volobj have;
        r = read_volobj(store, timeout_ms, &have, why, cap);
        if (r == 0 && memcmp(have.volume, i->volume, 16) != 0) {
            snprintf(why, cap,
                     "store: another first mount has just taken this prefix; choose another");
            r = -EEXIST;
        }
    }
    if (r < 0)
        return r;
    char key[64];
    snprintf(key, sizeof key, "nodes/%08x", i->node);
    r = put_small(store, timeout_ms, key, buf, sizeof buf, i->caps.if_absent, why, cap);
    return r == -EEXIST ? 0 : r;
}
