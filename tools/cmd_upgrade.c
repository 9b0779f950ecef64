/* cmd_upgrade.c: lets another daemon take over a live mount: the program file as it is now.
 *
 * The daemon answers at once and then ends by itself; its supervisor starts the next one. Here the
 * end of the first is waited for, then the first answer of the second through the mount.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "tools/json.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { ASK_MS = 5000, END_MS = 10000, TAKEN_MS = 40000 };

static int daemon_process(const struct target *t)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    AUTO_CLOSE int fd = control_connect(t);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || who.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, who.pid, 0);
}

static int ask_to_hand_over(const struct target *t)
{
    struct reply r;
    bool said;
    struct ask a = {.request = "handover", .wait_ms = ASK_MS, .stop_fd = -1};
    int code = control_ask(t, &a, &r, &said);
    if (code && !said)
        (void)tool_fail(code, "%s: %s", t->mountpoint, r.text);
    reply_free(&r);
    return code;
}

/* True: the process has ended by then. */
static bool ends_soon(int process)
{
    int64_t until = clock_mono_ns() + END_MS * NS_PER_MS;
    for (;;) {
        struct pollfd p = {.fd = process, .events = POLLIN};
        int64_t left = (until - clock_mono_ns()) / NS_PER_MS;
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

/* The status of another daemon than `pid`: 0 or -errno. */
static int next_status(const char *mountpoint, uint64_t pid, char **ret)
{
    int64_t until = clock_mono_ns() + TAKEN_MS * NS_PER_MS;
    for (;;) {
        int err = mount_status(mountpoint, ret);
        if (!err && json_u64(json_get(*ret, "pid")) != pid)
            return 0;
        if (!err)
            free(*ret);
        *ret = NULL;
        if (err == -ENOTCONN || clock_mono_ns() >= until)
            return err ? err : -ETIMEDOUT;
        struct timespec nap = {.tv_nsec = 20 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
}

static int upgrade(const struct target *t)
{
    uint64_t pid = json_u64(json_get(t->status, "pid"));
    AUTO_FREE char *was = json_text(json_get(t->status, "version"));
    AUTO_CLOSE int process = daemon_process(t);
    int code = ask_to_hand_over(t);
    if (code)
        return code;
    if (process >= 0 && !ends_soon(process))
        return tool_fail(EXIT_FAILED,
                         "%s: the daemon (process %llu) did not hand over; see its log, try again",
                         t->mountpoint, (unsigned long long)pid);
    char *now = NULL;
    int err = next_status(t->mountpoint, pid, &now);
    if (err)
        return tool_fail(EXIT_FAILED, "%s: no other daemon has taken over (%s); see its log",
                         t->mountpoint, strerror(-err));
    AUTO_FREE char *is = json_text(json_get(now, "version"));
    printf("%s: version %s, process %llu -> version %s, process %llu\n", t->mountpoint,
           was ? was : "?", (unsigned long long)pid, is ? is : "?",
           (unsigned long long)json_u64(json_get(now, "pid")));
    free(now);
    return tool_out_end();
}

static int upgrade_run(int argc, char **argv)
{
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return tool_help(&cmd_upgrade);
    if (argc > 1 && argv[1][0] == '-')
        return tool_bad_option(&cmd_upgrade, '?', argv[1]);
    if (argc != 2)
        return tool_fail(EXIT_USAGE, "upgrade: wants one mount point; see sluicefs upgrade --help");
    struct target t;
    int code = target_find(argv[1], &t);
    if (!code && !t.is_root)
        code = tool_fail(EXIT_USAGE, "%s: is not a mount point; name %s", argv[1], t.mountpoint);
    if (!code)
        code = upgrade(&t);
    target_free(&t);
    return code;
}

const struct tool_cmd cmd_upgrade = {
    .name = "upgrade",
    .usage = "MOUNTPOINT",
    .summary = "let the program as it is now installed take a live mount over",
    .help =
        "Starts the program file that the mount was started from anew and lets it take the mount\n"
        "over. Programs keep their open files and see a short pause, no error. Settings are those\n"
        "of the command line the mount was started with. Prints old and new version and process.\n"
        "A mount without supervise, or of a kernel before 6.9, refuses (exit code 4).\n",
    .run = upgrade_run,
};
