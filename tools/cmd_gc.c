/* cmd_gc.c: deletes what nothing names, through the daemon where one runs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/volume/gc.h"
#include "fs/volume/volume_int.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { WHY_BYTES = 2048 };

static int online(const struct target *t, const struct mount_args *a)
{
    char request[32];
    bool said;
    struct reply r;
    snprintf(request, sizeof(request), "gc%s%s", a->dry_run ? " dry-run" : "",
             a->json ? " json" : "");
    struct ask ask = {.request = request, .stop_fd = -1};
    int code = control_ask(t, &ask, &r, &said);
    if (code && !said)
        (void)tool_fail(code, "%s: %s; see sluicefs status %s", t->mountpoint, r.text,
                        t->mountpoint);
    if (!code)
        fputs(r.document ? r.document : "", stdout);
    reply_free(&r);
    return code;
}

static int offline(struct mount_args *a)
{
    char why[WHY_BYTES];
    struct volume *v;
    int code = mount_args_places(&cmd_gc, a);
    if (code)
        return code;
    if (volume_open_offline(&a->conf, &v, why, sizeof(why), &code))
        return tool_fail(code, "%s", why);
    struct gc_report rep = {0};
    struct gc_options o = {.dry_run = a->dry_run};
    int err = gc_run(v, &o, &rep, why, sizeof(why));
    code = EXIT_OK;
    if (err)
        code = tool_fail(err == -EPERM || err == -EUCLEAN ? EXIT_REFUSED : EXIT_FAILED, "%s", why);
    else if (a->json)
        gc_json(&rep, stdout);
    else
        gc_text(&rep, stdout);
    gc_report_done(&rep);
    volume_close(v);
    return code;
}

static int gc_command(int argc, char **argv)
{
    struct mount_args a;
    int code = mount_args_parse(&cmd_gc, argc, argv, false, &a);
    if (!code && a.help) {
        code = tool_help(&cmd_gc);
    } else if (!code) {
        struct target t;
        struct mount_list l;
        bool mounted = a.conf.mountpoint && !mounts_read(&l);
        if (mounted) {
            mounted = mounts_at(&l, a.conf.mountpoint) != NULL;
            mounts_free(&l);
        }
        if (!mounted) {
            code = offline(&a);
        } else if (!(code = target_find(a.conf.mountpoint, &t))) {
            code = online(&t, &a);
            target_free(&t);
        }
    }
    mount_args_done(&a);
    int out = tool_out_end();
    return code ? code : out;
}

const struct tool_cmd cmd_gc = {
    .name = "gc",
    .usage = "[--dry-run] [--json] MOUNTPOINT | OPTIONS OF MOUNT",
    .summary = "delete objects that nothing names any more",
    .help =
        "Remains of uploads and manifest pages whose writer died, and uploads in parts that "
        "nobody\n"
        "goes on with. Reads all manifests and lists the prefix. What cannot be proven dead "
        "stays:\n"
        "what is younger than gc_grace (24 h by the store's clock), what has a name that this\n"
        "program does not make, everything while a manifest cannot be read or another mount owns\n"
        "the volume.\n\n"
        "      --dry-run   only list\n"
        "      --json      for programs\n",
    .run = gc_command,
};
