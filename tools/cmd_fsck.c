/* cmd_fsck.c: checks a volume, through its daemon where one runs. Exit codes as of fsck(8). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/volume/fsck.h"
#include "tools/bar.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { WHY_BYTES = 2048 };

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    bool *drawn = arg;
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\rfsck: segment %llu of %llu\033[K", (unsigned long long)done,
            (unsigned long long)total);
    *drawn = true;
}

static void end_progress(bool drawn)
{
    if (drawn)
        fputs("\r\033[K", stderr);
}

/* ---- through the daemon ---- */

static int online(const struct target *t, const struct mount_args *a)
{
    AUTO_CLOSE int stop_fd = signals_as_fd();
    bool drawn = false, said;
    char request[64];
    snprintf(request, sizeof(request), "fsck%s%s%s", a->deep ? " deep" : "",
             a->repair ? " repair" : "", a->json ? " json" : "");
    struct ask ask = {
        .request = request, .stop_fd = stop_fd, .progress = show_progress, .arg = &drawn};
    struct reply r;
    int code = control_ask(t, &ask, &r, &said);
    end_progress(drawn);
    if (code && !said)
        (void)tool_fail(FSCK_FAILED, "%s: fsck: %s", t->mountpoint, r.text);
    if (code) {
        code = FSCK_FAILED;
    } else {
        /* The text of an answer without error is the exit code of the check. */
        code = (int)strtol(r.text, NULL, 10);
        fputs(r.document ? r.document : "", stdout);
    }
    reply_free(&r);
    return code;
}

/* ---- without ---- */

static int offline(struct mount_args *a)
{
    bool drawn = false;
    char why[WHY_BYTES];
    struct fsck_report rep;
    struct fsck_options o = {
        .deep = a->deep, .repair = a->repair, .progress = show_progress, .arg = &drawn};
    if (mount_args_places(&cmd_fsck, a))
        return FSCK_FAILED;
    int code = fsck_offline(&a->conf, &o, &rep, why, sizeof(why));
    end_progress(drawn);
    if (code == FSCK_FAILED)
        (void)tool_fail(code, "%s", why);
    else if (a->json)
        fsck_json(&rep, stdout);
    else
        fsck_text(&rep, stdout);
    fsck_report_done(&rep);
    return code;
}

static int fsck_command(int argc, char **argv)
{
    struct mount_args a;
    int code = mount_args_parse(&cmd_fsck, argc, argv, false, &a);
    if (!code && a.help) {
        code = tool_help(&cmd_fsck);
    } else if (code) {
        code = FSCK_FAILED;
    } else {
        struct target t;
        struct mount_list l;
        bool mounted = a.conf.mountpoint && !mounts_read(&l);
        if (mounted) {
            mounted = mounts_at(&l, a.conf.mountpoint) != NULL;
            mounts_free(&l);
        }
        if (!mounted) {
            code = offline(&a);
        } else if (target_find(a.conf.mountpoint, &t)) {
            code = FSCK_FAILED;
        } else {
            code = online(&t, &a);
            target_free(&t);
        }
    }
    mount_args_done(&a);
    int out = tool_out_end();
    return out ? FSCK_FAILED : code;
}

const struct tool_cmd cmd_fsck = {
    .name = "fsck",
    .usage = "[--deep] [--repair] [--json] MOUNTPOINT | OPTIONS OF MOUNT",
    .summary = "compare metadata, devices and bucket; mend what one of them has lost",
    .help =
        "Of a mount point: through its daemon, while it works. Else the volume of --state, "
        "--device\n"
        "and --store is opened for the check alone.\n\n"
        "      --deep     read all bytes of devices and objects, and all manifests\n"
        "      --repair   mend: damaged device copies from objects, lost objects from device "
        "copies,\n"
        "                 metadata from either; set aside what nothing explains. Nothing is "
        "deleted\n"
        "      --json     for programs\n\n"
        "What is damaged is named with path, range, segment and key. Without --repair nothing is\n"
        "changed.\n\n"
        "Exit codes: 0 clean; 1 mended; 4 damage is left; 8 could not run.\n",
    .run = fsck_command,
};
