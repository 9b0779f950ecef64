/* tool.h: what the commands of `sluicefs` share: the table of commands, errors, options of a mount.
 *
 * A command gets its own arguments (argv[0] is its name) and returns the exit code of the process:
 * enum daemon_exit of fs/daemon/daemon.h. An error is one line on standard error,
 * "sluicefs: THING: WHAT IS WRONG; REMEDY". Commands run on the main thread alone.
 */
#ifndef SLUICE_TOOLS_TOOL_H
#define SLUICE_TOOLS_TOOL_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/daemon/daemon.h"
#include "fs/volume/config.h"

struct tool_cmd {
    const char *name;
    const char *usage;   /* behind "sluicefs NAME" */
    const char *summary; /* one line of `sluicefs --help` */
    const char *help;    /* the text below the usage */
    int (*run)(int argc, char **argv);
};

extern const struct tool_cmd cmd_mount, cmd_umount, cmd_status, cmd_seal, cmd_upload, cmd_evict,
    cmd_warm, cmd_restore, cmd_fsck, cmd_gc, cmd_device, cmd_config, cmd_upgrade, cmd_reload,
    cmd_version;

/* Prints the line and returns `code`. Control characters become '?'. */
int tool_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints the help of a command to standard output. Returns EXIT_OK. */
int tool_help(const struct tool_cmd *c);

/* For getopt's '?' and ':': names the option that was wrong. `word` is argv[optind - 1]. */
int tool_bad_option(const struct tool_cmd *c, int opt, const char *word);

/* Flushes standard output: EXIT_OK, or EXIT_FAILED with a line when it could not be written. */
int tool_out_end(void);

/* ---- options of a mount ---- */
struct mount_args {
    struct config conf;
    bool foreground;
    bool json;            /* all but `mount` */
    bool deep, partial;   /* restore, fsck; restore */
    bool repair, dry_run; /* fsck; gc */
    bool help;
};

/* Reads arguments, configuration file and environment, and finishes the configuration. `mountpoint`
 * is needed by `mount` only. Returns an exit code, having said why; done with mount_args_done. */
int mount_args_parse(const struct tool_cmd *c, int argc, char **argv, bool need_mountpoint,
                     struct mount_args *ret);
void mount_args_done(struct mount_args *a);
/* State, store and at least one device are given: EXIT_OK, or EXIT_USAGE, having said which is not. */
int mount_args_places(const struct tool_cmd *c, const struct mount_args *a);

#endif
