/* volume_offline.c: a volume that no daemon has, opened to be looked at: identity, store, devices, metadata,
 * and none of what would change anything. The journal is replayed, as any opening does. */
#include <errno.h>
#include <string.h>
#include "fs/base/log.h"
#include "fs/meta/kv.h"
#include "fs/seg/segfile.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume_int.h"

static int open_offline(struct volume *v, struct config *conf, char *why, size_t cap, int *ret_exit)
{
    struct volume_priv *p = volume_priv(v);
    struct store_url url;
    int r = volume_threads(v, why, cap);
    if (r == 0)
        r = volume_lock_state(v, why, cap, ret_exit);
    if (r == 0)
        r = volume_read_identity(v, why, cap, ret_exit);
    if (r == -ENOENT || (r == 0 && p->first)) {
        snprintf(why, cap,
                 "state directory %s: no volume is in it; check the path, or rebuild one "
                 "with sluicefs restore",
                 v->conf->state);
        *ret_exit = VOL_REFUSED;
        return -ENOENT;
    }
    if (r == 0)
        r = volume_open_store(v, &url, false, why, cap, ret_exit);
    if (r == 0) {
        conf->profile = p->ident.profile ? PROFILE_BROKER : PROFILE_TOPICS;
        r = volume_check_identity(v, &url, why, cap);
        *ret_exit = r < 0 ? VOL_REFUSED : VOL_FAILED;
    }
    for (unsigned k = 0; r == 0 && k < v->conf->devices && !v->conf->devices_by_default; k++) {
        const char *path = v->conf->device[k].path;
        if (ident_find(&p->ident, path) < 0 && ident_find_gone(&p->ident, path) < 0) {
            snprintf(why, cap, "device %s: is not of this volume; leave it out", path);
            *ret_exit = VOL_REFUSED;
            r = -EEXIST;
        }
    }
    if (r == 0)
        r = volume_open_devices(v, why, cap);
    if (r == -EBUSY)
        *ret_exit = VOL_REFUSED;
    if (r < 0)
        return r;
    memcpy(v->id, p->ident.volume, 16);
    volume_id_text(v->id, v->id_text);
    v->node = p->ident.node;
    v->topics_profile = p->ident.profile == 0;
    struct kv_conf kc = {
        .dirfd = v->state_fd,
        .dir = v->conf->state,
        .checkpoint_ms = (unsigned)v->conf->metadata_batch,
        .threaded = true,
        .stats = v->stats,
    };
    r = kv_open(&kc, &v->kv, why, cap);
    return r < 0 ? r : segfds_open(v->devs, &v->segfds);
}

int volume_open_offline(struct config *conf, struct volume **ret, char *why, size_t cap,
                        int *ret_exit)
{
    struct volume *v;
    *why = 0;
    *ret_exit = VOL_FAILED;
    int r = volume_new(conf, &v);
    if (r < 0)
        return r;
    r = open_offline(v, conf, why, cap, ret_exit);
    if (r < 0) {
        if (!*why)
            snprintf(why, cap, "volume: cannot be opened (%s)", err_name(r));
        volume_close(v);
        return r;
    }
    *ret = v;
    return 0;
}
