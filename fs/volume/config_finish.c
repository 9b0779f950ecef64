/* config_finish.c: what remains when every source was read: default places, absolute paths, and the
 * checks that need several settings. Looks at the local file system to resolve paths and reads
 * the policy file, changes nothing.
 *
 * Default places, each only where none was given:
 *     root     /var/lib/sluicefs/NAME/{state,device,store}
 *     others   $XDG_DATA_HOME (~/.local/share)/sluicefs/NAME/{state,device,store}
 * NAME is the mount point with / as - and all unusual bytes as +XX, so two never share a place.
 */
#include "fs/volume/config_int.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/hash.h"
#include "fs/policy/policy.h"
#include "objstore/stack.h"

static const char dir_url[] = "dir://";

/* ---- paths ---- */

/* In place: no empty and no "." components, ".." taken back. The path is absolute. */
static void normalise(char *path)
{
    char *out = path;
    for (char *p = path; *p;) {
        while (*p == '/')
            p++;
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            while (out > path && *--out != '/')
                ;
        } else if (n && !(n == 1 && *p == '.')) {
            *out++ = '/';
            memmove(out, p, n);
            out += n;
        }
        p += n;
    }
    if (out == path)
        *out++ = '/';
    *out = '\0';
}

static int absolute(char **path, size_t skip)
{
    if (!*path || (*path)[skip] == '/')
        return 0;
    AUTO_FREE char *cwd = getcwd(NULL, 0);
    char *full;
    if (!cwd || asprintf(&full, "%.*s%s/%s", (int)skip, *path, cwd, *path + skip) < 0)
        return -ENOMEM;
    free(*path);
    *path = full;
    return 0;
}

/* The mount point without symbolic links. Its last component may be a dead mount, which cannot be
 * looked into, or not exist yet. */
static int resolve_mountpoint(char **path)
{
    int err = absolute(path, 0);
    if (err)
        return err;
    char *full = realpath(*path, NULL);
    if (!full) {
        normalise(*path);
        char *slash = strrchr(*path, '/');
        *slash = '\0';
        AUTO_FREE char *dir = realpath(**path ? *path : "/", NULL);
        *slash = '/';
        if (!dir)
            return 0;
        if (asprintf(&full, "%s%s", strcmp(dir, "/") ? dir : "", slash) < 0)
            return -ENOMEM;
    }
    free(*path);
    *path = full;
    return 0;
}

bool path_within(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    if (!strcmp(dir, "/"))
        return true;
    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

char *path_resolved(const char *path)
{
    AUTO_FREE char *head = strdup(path);
    char *full = NULL, *slash;
    if (!head)
        return NULL;
    AUTO_FREE char *real = realpath(head, NULL);
    while (!real && (slash = strrchr(head, '/')) && slash > head) {
        *slash = '\0';
        real = realpath(head, NULL);
    }
    if (!real)
        return strdup(path);
    const char *rest = path + strlen(head);
    return asprintf(&full, "%s%s", strcmp(real, "/") || !*rest ? real : "", rest) < 0 ? NULL : full;
}

/* ---- default places ---- */

static void place_name(const char *mountpoint, char out[static NAME_BYTES_MAX + 1])
{
    enum { KEEP = 200 };
    size_t n = 0;
    const char *p = mountpoint + strspn(mountpoint, "/");
    for (; *p && n < KEEP; p++) {
        if (isalnum((unsigned char)*p) || *p == '_' || (*p == '.' && n))
            out[n++] = *p;
        else if (*p == '/')
            out[n++] = '-';
        else
            n += (size_t)snprintf(out + n, 4, "+%02X", (unsigned char)*p);
    }
    out[n] = '\0';
    if (*p)
        snprintf(out + n, 32, "+%016llx",
                 (unsigned long long)hash64(mountpoint, strlen(mountpoint)));
    if (!n)
        snprintf(out, 8, "+root");
}

/* The URL of a directory: what has a meaning there stands as %XX. */
static char *url_of_dir(const char *path)
{
    char *url = malloc(sizeof dir_url + 3 * strlen(path));
    if (!url)
        return NULL;
    memcpy(url, dir_url, sizeof dir_url);
    char *to = url + strlen(dir_url);
    for (; *path; path++) {
        if (*path == '%' || *path == '?')
            to += snprintf(to, 4, "%%%02X", (unsigned char)*path);
        else
            *to++ = *path;
    }
    *to = 0;
    return url;
}

static int default_places(struct config *c, char *why, size_t cap)
{
    char name[NAME_BYTES_MAX + 1], base[PATH_MAX];
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (!c->mountpoint || (c->state && c->store && c->devices))
        return 0;
    place_name(c->mountpoint, name);
    int n;
    if (geteuid() == 0)
        n = snprintf(base, sizeof(base), "/var/lib/sluicefs/%s", name);
    else if (xdg && *xdg == '/')
        n = snprintf(base, sizeof(base), "%s/sluicefs/%s", xdg, name);
    else if (home && *home == '/')
        n = snprintf(base, sizeof(base), "%s/.local/share/sluicefs/%s", home, name);
    else {
        snprintf(why, cap,
                 "default place: neither XDG_DATA_HOME nor HOME is set; set HOME, or give "
                 "--state, --device and --store");
        return -EINVAL;
    }
    if ((size_t)n >= sizeof(base)) {
        snprintf(why, cap,
                 "default place: its path is too long; give --state, --device and --store");
        return -EINVAL;
    }
    if (!c->state && asprintf(&c->state, "%s/state", base) < 0)
        c->state = NULL;
    AUTO_FREE char *store = NULL;
    if (!c->store && asprintf(&store, "%s/store", base) >= 0)
        c->store = url_of_dir(store);
    if (!c->devices && asprintf(&c->device[0].path, "%s/device", base) >= 0) {
        c->devices = 1;
        c->devices_by_default = true;
    }
    if (!c->state || !c->store || !c->devices) {
        snprintf(why, cap, "default place: no memory; free some");
        return -ENOMEM;
    }
    return 0;
}

int config_paths(struct config *c, char *why, size_t cap)
{
    int err = absolute(&c->state, 0);
    for (unsigned k = 0; !err && k < c->devices; k++) {
        err = absolute(&c->device[k].path, 0);
        if (!err)
            normalise(c->device[k].path);
    }
    if (!err && c->state)
        normalise(c->state);
    if (!err)
        err = absolute(&c->log_file, 0);
    if (!err)
        err = absolute(&c->fault_plan, 0);
    if (!err)
        err = absolute(&c->policy, 0);
    if (!err && c->store && !strncmp(c->store, dir_url, strlen(dir_url)))
        err = absolute(&c->store, strlen(dir_url));
    if (err)
        snprintf(why, cap, "paths: the current directory cannot be named; change to another one");
    return err;
}

/* ---- checks ---- */

static int refuse_place(char *why, size_t cap, const char *what, const char *path,
                        const char *mountpoint)
{
    char a[256], b[256];
    snprintf(why, cap, "%s %s: lies below the mount point %s; choose a place outside of it", what,
             printable(path, a, sizeof(a)), printable(mountpoint, b, sizeof(b)));
    return -EINVAL;
}

struct place {
    const char *what, *path;
};

/* None may lie in another one: each takes what it finds in its directory for its own. */
static int check_apart(const struct config *c, const struct place *p, unsigned n, char *why,
                       size_t cap)
{
    char a[256], b[256], *real[CONFIG_DEVICES_MAX + 2] = {NULL};
    int err = 0;
    if (c->connection_survived) /* was checked; a link into the mount would wait for us */
        return 0;
    for (unsigned i = 0; i < n; i++) {
        real[i] = path_resolved(p[i].path);
        if (!real[i] && !err) {
            snprintf(why, cap, "setting %s: no memory; free some", p[i].what);
            err = -ENOMEM;
        }
    }
    for (unsigned i = 0; !err && i < n; i++) {
        for (unsigned j = 0; !err && j < n; j++) {
            if (i == j || !path_within(real[i], real[j]))
                continue;
            bool same = !strcmp(real[i], real[j]);
            snprintf(why, cap, "setting %s: %s is %s of %s%s%s; choose a place outside of it",
                     p[i].what, printable(p[i].path, a, sizeof a),
                     same ? "the directory" : "below that", p[j].what, same ? "" : ", ",
                     same ? "" : printable(p[j].path, b, sizeof b));
            err = -EINVAL;
        }
    }
    for (unsigned i = 0; i < n; i++)
        free(real[i]);
    return err;
}

static int check_places(const struct config *c, char *why, size_t cap)
{
    struct place places[CONFIG_DEVICES_MAX + 2];
    unsigned n = 0;
    char shown[256];
    const char *mp = c->mountpoint;
    if (c->state)
        places[n++] = (struct place){"state", c->state};
    if (mp && c->state && path_within(c->state, mp))
        return refuse_place(why, cap, "setting state", c->state, mp);
    for (unsigned i = 0; i < c->devices; i++) {
        if (mp && path_within(c->device[i].path, mp))
            return refuse_place(why, cap, "setting device", c->device[i].path, mp);
        for (unsigned j = 0; j < i; j++) {
            if (strcmp(c->device[i].path, c->device[j].path))
                continue;
            snprintf(why, cap, "setting device: %s is given twice; leave one out",
                     printable(c->device[i].path, shown, sizeof(shown)));
            return -EINVAL;
        }
        places[n++] = (struct place){"device", c->device[i].path};
    }
    if (!c->store)
        return check_apart(c, places, n, why, cap);
    struct store_url *u = malloc(sizeof(*u));
    if (!u) {
        snprintf(why, cap, "setting store: no memory; free some");
        return -ENOMEM;
    }
    int err = store_url_parse(c->store, u, why, cap);
    if (!err && mp && u->kind == STORE_DIR && path_within(u->path, mp))
        err = refuse_place(why, cap, "setting store", u->path, mp);
    if (!err && u->kind == STORE_DIR)
        places[n++] = (struct place){"store", u->path};
    if (!err)
        err = check_apart(c, places, n, why, cap);
    free(u);
    return err;
}

static int check_numbers(const struct config *c, char *why, size_t cap)
{
    char a[32], b[32];
    if (c->slice % BLOCK_BYTES)
        snprintf(why, cap, "setting slice: %s is not a multiple of 256KiB; round it",
                 size_text(c->slice, a, sizeof(a)));
    else if (c->segment_bytes % SEGMENT_BYTES_MIN)
        snprintf(why, cap, "setting segment_bytes: %s is not a multiple of 64KiB; round it",
                 size_text(c->segment_bytes, a, sizeof(a)));
    else if (c->pool < 2 * c->slice)
        snprintf(why, cap,
                 "setting pool: %s holds less than two slices of %s; raise pool or lower "
                 "slice",
                 size_text(c->pool, a, sizeof(a)), size_text(c->slice, b, sizeof(b)));
    else if (c->window_min > c->window_max)
        snprintf(why, cap, "setting window_min: %s is above window_max, %s; lower it",
                 size_text(c->window_min, a, sizeof(a)), size_text(c->window_max, b, sizeof(b)));
    else if (c->evict_to >= c->evict_from)
        snprintf(why, cap, "setting evict_to: %llu %% is not below evict_from, %llu %%; lower it",
                 (unsigned long long)c->evict_to, (unsigned long long)c->evict_from);
    else
        return 0;
    return -EINVAL;
}

/* A daemon that takes a mount over must not fail here: it has the rules that the last one took. */
static int check_policy(const struct config *c, char *why, size_t cap)
{
    struct policy_set *set;
    if (!c->policy || c->connection_survived)
        return 0;
    int err = policy_read(c->policy, c->profile == PROFILE_BROKER, &set, NULL, why, cap);
    policy_set_unref(set);
    return err;
}

/* A broker gives a data directory up for good at its first EIO: a cold read waits, unless told otherwise. */
static int profile_defaults(struct config *c)
{
    char source[64];
    config_source(c, "read_deadline", source, sizeof source);
    if (c->profile != PROFILE_BROKER || strcmp(source, "default"))
        return 0;
    c->read_deadline = 0;
    return config_source_put(c, "read_deadline", "profile broker");
}

/* The mounts of root are the system's, as other file systems' are. */
static int user_defaults(struct config *c)
{
    char source[64];
    config_source(c, "allow_other", source, sizeof source);
    if (geteuid() != 0 || strcmp(source, "default") || c->allow_other) /* true: by -o */
        return 0;
    c->allow_other = true;
    return config_source_put(c, "allow_other", "root");
}

int config_finish(struct config *c, char *why, size_t why_cap)
{
    /* Under a mount that waits for us nobody may look. */
    if (c->mountpoint && !c->connection_survived && resolve_mountpoint(&c->mountpoint)) {
        snprintf(why, why_cap, "mount point: cannot be made absolute; give it as /PATH");
        return -EINVAL;
    }
    int err = profile_defaults(c);
    if (!err)
        err = user_defaults(c);
    if (!err)
        err = default_places(c, why, why_cap);
    if (!err)
        err = config_paths(c, why, why_cap);
    if (!err)
        err = check_numbers(c, why, why_cap);
    if (!err)
        err = check_places(c, why, why_cap);
    if (!err)
        err = check_policy(c, why, why_cap);
    return err;
}
