/* cmd_reload.c: reload: the daemon of a mount reads its rules for paths again. */
#include <stdio.h>
#include <string.h>

#include "tools/mounts.h"
#include "tools/tool.h"

enum { RELOAD_WAIT_MS = 30000 };

static int reload(const struct target *t)
{
    struct ask a = {.request = "reload", .wait_ms = RELOAD_WAIT_MS, .stop_fd = -1};
    struct reply r = {0};
    bool said;
    int code = control_ask(t, &a, &r, &said);
    if (code && !said)
        (void)tool_fail(code, "%s: %s", t->mountpoint, r.text);
    else if (!code)
        printf("%s: %s\n", t->mountpoint, r.text);
    reply_free(&r);
    return code ? code : tool_out_end();
}

static int reload_run(int argc, char **argv)
{
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return tool_help(&cmd_reload);
    if (argc > 1 && argv[1][0] == '-')
        return tool_bad_option(&cmd_reload, '?', argv[1]);
    if (argc != 2)
        return tool_fail(EXIT_USAGE, "reload: wants one mount point; see sluicefs reload --help");
    struct target t;
    int code = target_find(argv[1], &t);
    if (!code && !t.is_root)
        code = tool_fail(EXIT_USAGE, "%s: is not a mount point; name %s", argv[1], t.mountpoint);
    if (!code)
        code = reload(&t);
    target_free(&t);
    return code;
}

const struct tool_cmd cmd_reload = {
    .name = "reload",
    .usage = "MOUNTPOINT",
    .summary = "read the rules for paths (--policy) of a live mount again",
    .help =
        "The file of rules that the mount was started with is read again, and holds from now on\n"
        "for every file. A file with a mistake is refused (exit code 2, with its line), and the\n"
        "old rules stay. \"sluicefs status PATH\" shows the rules that matter to a file,\n"
        "\"sluicefs config --policy FILE\" checks a file before. Settings are not read again.\n",
    .run = reload_run,
};
