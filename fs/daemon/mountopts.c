/* mountopts.c: sorting of mount options.
 *
 * libfuse mounts nosuid,nodev unless it is told otherwise, whoever mounts; that default stays, `suid`
 * and `dev` lift it. `remount` cannot be done by a FUSE daemon: the kernel changes the flags of a
 * mount alone (mount -i -o remount,ro), so it is only reported here.
 */
#include "fs/daemon/mountopts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"

/* Handed to libfuse, which makes mount flags of them. */
static const char *const passed[] = {"nosuid", "suid", "nodev",   "dev",
                                     "noexec", "exec", "noatime", "dirsync"};

/* For mount(8), systemd or nobody: what a write-through mount does anyway, or cannot matter. */
static const char *const ignored[] = {"defaults",
                                      "auto",
                                      "noauto",
                                      "user",
                                      "nouser",
                                      "users",
                                      "group",
                                      "owner",
                                      "_netdev",
                                      "nofail",
                                      "atime",
                                      "diratime",
                                      "nodiratime",
                                      "relatime",
                                      "async",
                                      "sync",
                                      "strictatime",
                                      "nostrictatime",
                                      "lazytime",
                                      "nolazytime",
                                      "mand",
                                      "nomand",
                                      "iversion",
                                      "noiversion",
                                      "silent",
                                      "norelatime",
                                      "loud",
                                      "rw",
                                      "bg",
                                      "fg",
                                      "default_permissions"};

static bool listed(const char *const *list, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], word))
            return true;
    return false;
}

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

/* Appends one option; commas and backslashes inside it are escaped for libfuse. */
static int add(struct mountopts *m, const char *opt)
{
    size_t len = strlen(m->fuse);
    if (len && len + 1 < sizeof(m->fuse))
        m->fuse[len++] = ',';
    for (const char *p = opt; *p; p++) {
        if (len + 3 > sizeof(m->fuse))
            return -E2BIG;
        if (*p == ',' || *p == '\\')
            m->fuse[len++] = '\\';
        m->fuse[len++] = *p;
    }
    m->fuse[len] = '\0';
    return 0;
}

static int sort_one(char *word, struct config *conf, struct mountopts *ret, char *why,
                    size_t why_cap)
{
    if (listed(passed, ARRAY_LEN(passed), word))
        return add(ret, word);
    if (!strcmp(word, "rw"))
        conf->read_only = false;
    if (listed(ignored, ARRAY_LEN(ignored), word) || begins(word, "x-") ||
        begins(word, "comment=") || begins(word, "X-"))
        return 0;
    if (!strcmp(word, "ro")) {
        conf->read_only = true;
        return 0;
    }
    if (!strcmp(word, "allow_other")) {
        conf->allow_other = true;
        return 0;
    }
    if (!strcmp(word, "xattr")) {
        conf->xattr = true;
        return 0;
    }
    if (!strcmp(word, "remount")) {
        ret->remount = true;
        return 0;
    }
    if (!strcmp(word, "foreground")) {
        ret->foreground = true;
        return 0;
    }
    if (begins(word, "fsname=")) {
        ret->fsname_given = true;
        return add(ret, word);
    }
    char *eq = strchr(word, '=');
    if (!eq) {
        snprintf(why, why_cap,
                 "mount option %s: not known; leave it out or see sluicefs help mount", word);
        return -EINVAL;
    }
    *eq = '\0';
    return config_set(conf, word, eq + 1, "mount option", why, why_cap);
}

int mountopts_parse(const char *text, struct config *conf, struct mountopts *ret, char *why,
                    size_t why_cap)
{
    *ret = (struct mountopts){0};
    if (!text)
        return 0;
    char word[MOUNTOPTS_BYTES];
    const char *p = text;
    while (*p) {
        size_t n = 0;
        for (; *p && *p != ','; p++) {
            if (*p == '\\' && p[1])
                p++;
            if (n + 1 >= sizeof(word))
                goto too_long;
            word[n++] = *p;
        }
        if (*p == ',')
            p++;
        word[n] = '\0';
        if (!n)
            continue;
        int err = sort_one(word, conf, ret, why, why_cap);
        if (err == -E2BIG)
            goto too_long;
        if (err)
            return err;
    }
    return 0;

too_long:
    snprintf(why, why_cap, "mount options: longer than %d bytes; put settings into a file",
             MOUNTOPTS_BYTES);
    return -E2BIG;
}

/* The name df and mount show: the store's URL when it has no secrets and nothing to escape. */
static void source_name(const struct config *conf, char *out, size_t cap)
{
    const char *url = conf->store;
    if (url && *url && !strpbrk(url, "@?,\\ \t\n"))
        snprintf(out, cap, "fsname=%s", url);
    else
        snprintf(out, cap, "fsname=sluicefs");
}

int mountopts_finish(const struct config *conf, struct mountopts *m)
{
    int err = add(m, "default_permissions");
    if (!err)
        err = add(m, "subtype=sluicefs");
    if (!err && conf->allow_other)
        err = add(m, "allow_other");
    if (!err && conf->read_only)
        err = add(m, "ro");
    if (!err && !m->fsname_given) {
        char name[1024];
        source_name(conf, name, sizeof(name));
        err = add(m, name);
    }
    return err;
}
