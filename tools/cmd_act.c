/* cmd_act.c: seal, upload, evict, warm: the same command with four verbs. Files go to the daemon by
 * inode number, those of one mount together, up to BATCH in a request. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "tools/bar.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { BATCH = 256, REQUEST_BYTES = 16 + BATCH * 21 };

/* ---- one request ---- */

struct batch {
    struct target t; /* of the first file */
    unsigned n;
    uint64_t ino[BATCH];
    const char *path[BATCH];
};

static const char *path_of(const struct batch *b, uint64_t ino)
{
    for (unsigned k = 0; k < b->n; k++)
        if (b->ino[k] == ino)
            return b->path[k];
    return b->t.mountpoint;
}

static int batch_send(struct batch *b, const char *verb, int stop_fd)
{
    if (!b->n)
        return EXIT_OK;
    char request[REQUEST_BYTES];
    size_t len = (size_t)snprintf(request, sizeof(request), "%s", verb);
    for (unsigned k = 0; k < b->n; k++)
        len += (size_t)snprintf(request + len, sizeof(request) - len, " %llu",
                                (unsigned long long)b->ino[k]);
    struct bar bar = {.verb = verb, .on = isatty(STDERR_FILENO)};
    struct ask a = {
        .request = request, .stop_fd = stop_fd, .again = true, .progress = bar_draw, .arg = &bar};
    struct reply r;
    bool said;
    int code = control_ask(&b->t, &a, &r, &said);
    bar_end(&bar);
    if (code && !said) {
        const char *what = path_of(b, r.ino);
        (void)tool_fail(code,
                        strchr(r.text, ';') ? "%s: %s: %s" : "%s: %s: %s; see sluicefs status %s",
                        what, verb, r.text, b->t.mountpoint);
    }
    reply_free(&r);
    return code;
}

static void batch_clear(struct batch *b)
{
    target_free(&b->t);
    b->n = 0;
}

/* ---- the command ---- */

static int check_target(const struct target *t, const char *path)
{
    enum { FIRST_REAL = 16 }; /* below: the root, 1, and what .sluice holds */
    if (t->ino != 1 && t->ino < FIRST_REAL)
        return tool_fail(EXIT_USAGE, "%s: is made up by the daemon; name a file of the volume",
                         path);
    if (S_ISLNK(t->mode))
        return tool_fail(EXIT_USAGE, "%s: is a symbolic link; name what it points to", path);
    if (!S_ISREG(t->mode) && !S_ISDIR(t->mode))
        return tool_fail(EXIT_USAGE, "%s: has no bytes; name a file or a directory", path);
    return EXIT_OK;
}

static bool cancelled(int fd)
{
    struct signalfd_siginfo si;
    return fd >= 0 && read(fd, &si, sizeof(si)) > 0;
}

static int run_all(struct batch *b, const char *verb, int n, char **paths, int stop_fd)
{
    int code = EXIT_OK;
    for (int k = 0; k < n; k++) {
        struct target t;
        if (cancelled(stop_fd))
            return tool_fail(EXIT_FAILED, "%s: cancelled; what was done stays done", verb);
        int r = target_find(paths[k], &t);
        if (!r)
            r = check_target(&t, paths[k]);
        if (!r && b->n && (b->n == BATCH || strcmp(b->t.control, t.control))) {
            int sent = batch_send(b, verb, stop_fd);
            code = code ? code : sent;
            batch_clear(b);
        }
        if (!r) {
            b->ino[b->n] = t.ino;
            b->path[b->n] = paths[k];
            if (!b->n++) {
                b->t = t;
                t = (struct target){0};
            }
        }
        target_free(&t);
        code = code ? code : r;
    }
    int sent = batch_send(b, verb, stop_fd);
    return code ? code : sent;
}

static int act(const struct tool_cmd *c, int argc, char **argv)
{
    int first = 1;
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return tool_help(c);
    if (argc > 1 && !strcmp(argv[1], "--"))
        first = 2;
    else if (argc > 1 && argv[1][0] == '-' && argv[1][1])
        return tool_bad_option(c, '?', argv[1]);
    if (argc <= first)
        return tool_fail(EXIT_USAGE, "%s: no file is given; write sluicefs %s PATH...", c->name,
                         c->name);
    AUTO_CLOSE int stop_fd = signals_as_fd();
    struct batch *b = calloc(1, sizeof(*b));
    if (!b)
        return tool_fail(EXIT_FAILED, "%s: no memory; free some", c->name);
    int code = run_all(b, c->name, argc - first, argv + first, stop_fd);
    batch_clear(b);
    free(b);
    return code;
}

#define ACT(NAME, SUMMARY, HELP)                                                                \
    static int NAME##_run(int argc, char **argv)                                                \
    {                                                                                           \
        return act(&cmd_##NAME, argc, argv);                                                    \
    }                                                                                           \
    const struct tool_cmd cmd_##NAME = {.name = #NAME,                                          \
                                        .usage = "PATH...",                                     \
                                        .summary = SUMMARY,                                     \
                                        .help = HELP                                            \
                                        "\nOf a directory: everything below it. Waits for the " \
                                        "result; Ctrl-C gives up, and what\nwas done by then "  \
                                        "stays done.\n",                                        \
                                        .run = NAME##_run}

ACT(seal, "close open segments, so that they can be uploaded",
    "Closes the open segments of files. They go to the store in the background; the next write\n"
    "begins a new segment.\n");
ACT(upload, "seal, and wait until all bytes are in the store",
    "Seals, uploads and commits: when this ends with exit code 0, every byte that was in the "
    "files\n"
    "is in the object store and in its manifest.\n");
ACT(evict, "upload, then drop the local copies",
    "Uploads what is not in the store yet, then frees the space on the devices. The files stay\n"
    "readable: their bytes come from the store.\n");
ACT(warm, "bring bytes back from the store to a device",
    "Brings segments that are only in the store back to a local device, for readers that come\n"
    "soon.\n");
