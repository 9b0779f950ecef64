/* cmd_mount.c: mount and config, which take the same options. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/daemon/mountopts.h"
#include "tools/tool.h"

enum { WHY_BYTES = 2048 };

/* ---- the options ---- */

enum {
    OPT_NAMED = 256,
    OPT_CONFIG,
    OPT_SET,
    OPT_JSON,
    OPT_DEEP,
    OPT_PARTIAL,
    OPT_REPAIR,
    OPT_DRY_RUN
};

static const struct option long_options[] = {
    {"state", required_argument, NULL, OPT_NAMED},
    {"device", required_argument, NULL, OPT_NAMED},
    {"store", required_argument, NULL, OPT_NAMED},
    {"pool", required_argument, NULL, OPT_NAMED},
    {"profile", required_argument, NULL, OPT_NAMED},
    {"policy", required_argument, NULL, OPT_NAMED},
    {"log", required_argument, NULL, OPT_NAMED},
    {"debug", required_argument, NULL, OPT_NAMED},
    {"aws-profile", required_argument, NULL, OPT_NAMED},
    {"fault-plan", required_argument, NULL, OPT_NAMED},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"set", required_argument, NULL, OPT_SET},
    {"options", required_argument, NULL, 'o'},
    {"foreground", no_argument, NULL, 'f'},
    {"json", no_argument, NULL, OPT_JSON},
    {"deep", no_argument, NULL, OPT_DEEP},
    {"partial", no_argument, NULL, OPT_PARTIAL},
    {"repair", no_argument, NULL, OPT_REPAIR},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char source_command[] = "command line";

/* Options that only some commands take. */
static bool taken_by(const struct tool_cmd *c, int opt)
{
    switch (opt) {
    case OPT_JSON:
        return c != &cmd_mount;
    case OPT_DEEP:
        return c == &cmd_restore || c == &cmd_fsck;
    case OPT_PARTIAL:
        return c == &cmd_restore;
    case OPT_REPAIR:
        return c == &cmd_fsck;
    case OPT_DRY_RUN:
        return c == &cmd_gc;
    default:
        return true;
    }
}

static int append_options(struct config *conf, const char *more)
{
    char *joined;
    if (!*more)
        return 0;
    if (asprintf(&joined, "%s%s%s", conf->fuse_options ? conf->fuse_options : "",
                 conf->fuse_options ? "," : "", more) < 0)
        return -1;
    free(conf->fuse_options);
    conf->fuse_options = joined;
    return 0;
}

/* Settings among the mount options are applied here, so that the checks of config_finish see them;
 * what is left goes on to the daemon. */
static int take_mount_options(struct mount_args *a, const char *text)
{
    char why[WHY_BYTES] = "";
    struct mountopts *m = malloc(sizeof(*m));
    if (!m)
        return tool_fail(EXIT_FAILED, "options: no memory; free some");
    int code = EXIT_OK;
    if (mountopts_parse(text, &a->conf, m, why, sizeof(why)))
        code = tool_fail(EXIT_USAGE, "%s", why);
    else if (append_options(&a->conf, m->fuse) ||
             append_options(&a->conf, m->remount ? "remount" : ""))
        code = tool_fail(EXIT_FAILED, "options: no memory; free some");
    else
        a->foreground = a->foreground || m->foreground;
    free(m);
    return code;
}

static int take_named(struct config *conf, const char *option, const char *value)
{
    char name[32], why[WHY_BYTES] = "";
    snprintf(name, sizeof(name), "%s", option);
    for (char *p = name; *p; p++)
        if (*p == '-')
            *p = '_';
    if (config_set(conf, name, value, source_command, why, sizeof(why)))
        return tool_fail(EXIT_USAGE, "%s", why);
    return EXIT_OK;
}

static int take_set(struct config *conf, const char *text)
{
    char why[WHY_BYTES] = "";
    const char *eq = strchr(text, '=');
    if (!eq || eq == text)
        return tool_fail(EXIT_USAGE, "option --set %s: not a setting; write --set NAME=VALUE",
                         text);
    AUTO_FREE char *name = strndup(text, (size_t)(eq - text));
    if (!name)
        return tool_fail(EXIT_FAILED, "option --set: no memory; free some");
    if (config_set(conf, name, eq + 1, source_command, why, sizeof(why)))
        return tool_fail(EXIT_USAGE, "%s", why);
    return EXIT_OK;
}

static int take_option(struct mount_args *a, int opt, int index)
{
    const char *value = optarg ? optarg : "";
    switch (opt) {
    case OPT_NAMED:
        return take_named(&a->conf, long_options[index].name, value);
    case OPT_SET:
        return take_set(&a->conf, value);
    case 'o':
        return take_mount_options(a, value);
    case 'f':
        a->foreground = true;
        break;
    case OPT_JSON:
        a->json = true;
        break;
    case OPT_DEEP:
        a->deep = true;
        break;
    case OPT_PARTIAL:
        a->partial = true;
        break;
    case OPT_REPAIR:
        a->repair = true;
        break;
    case OPT_DRY_RUN:
        a->dry_run = true;
        break;
    }
    return EXIT_OK;
}

/* First pass: only what must be known before the options are applied. */
static int scan(const struct tool_cmd *c, int argc, char **argv, struct mount_args *a,
                const char **ret_file)
{
    int opt;
    optind = 0; /* getopt starts afresh */
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":o:fh", long_options, NULL)) != -1) {
        if (opt == '?' || opt == ':')
            return tool_bad_option(c, opt, argv[optind - 1]);
        if (opt == 'h')
            a->help = true;
        if (!taken_by(c, opt))
            return tool_bad_option(c, '?', argv[optind - 1]);
        if (opt == OPT_CONFIG && *ret_file)
            return tool_fail(EXIT_USAGE, "option --config: given twice; leave one out");
        if (opt == OPT_CONFIG)
            *ret_file = optarg;
    }
    return EXIT_OK;
}

static int take_all(int argc, char **argv, struct mount_args *a, const char *file)
{
    char why[WHY_BYTES] = "";
    if (config_load_env(&a->conf, why, sizeof(why)) ||
        (file && config_load_file(&a->conf, file, why, sizeof(why))))
        return tool_fail(EXIT_USAGE, "%s", why);
    int opt, index = 0, code = EXIT_OK;
    optind = 0;
    while (!code && (opt = getopt_long(argc, argv, ":o:fh", long_options, &index)) != -1)
        code = take_option(a, opt, index);
    return code;
}

int mount_args_parse(const struct tool_cmd *c, int argc, char **argv, bool need_mountpoint,
                     struct mount_args *ret)
{
    char why[WHY_BYTES] = "";
    const char *file = NULL;
    *ret = (struct mount_args){0};
    config_init(&ret->conf);
    int code = scan(c, argc, argv, ret, &file);
    if (code || ret->help)
        return code;
    code = take_all(argc, argv, ret, file);
    if (code)
        return code;
    if (argc - optind > 1)
        return tool_fail(EXIT_USAGE, "argument %s: one mount point is enough; leave it out",
                         argv[optind + 1]);
    if (argc - optind == 1) {
        ret->conf.mountpoint = strdup(argv[optind]);
        if (!ret->conf.mountpoint)
            return tool_fail(EXIT_FAILED, "mount point: no memory; free some");
    }
    const char *mp = ret->conf.mountpoint;
    if (need_mountpoint && (!mp || !*mp))
        return tool_fail(EXIT_USAGE, "mount point: none is given; write sluicefs %s DIRECTORY",
                         c->name);
    if (c == &cmd_mount && daemon_inherit_into(&ret->conf))
        return tool_fail(EXIT_FAILED, "mount point: no memory; free some");
    if (config_finish(&ret->conf, why, sizeof(why)))
        return tool_fail(EXIT_USAGE, "%s", why);
    return EXIT_OK;
}

void mount_args_done(struct mount_args *a)
{
    config_done(&a->conf);
}

int mount_args_places(const struct tool_cmd *c, const struct mount_args *a)
{
    const struct config *f = &a->conf;
    const char *missing = !f->state     ? "--state"
                          : !f->store   ? "--store"
                          : !f->devices ? "--device"
                                        : NULL;
    return missing ? tool_fail(EXIT_USAGE,
                               "%s: %s is not given; write sluicefs %s --state DIR "
                               "--device DIR --store URL",
                               c->name, missing, c->name)
                   : EXIT_OK;
}

/* ---- mount ---- */

static int mount_run(int argc, char **argv)
{
    /* Kept to the end of the process: threads that the daemon leaves behind may still read it. */
    static struct mount_args a;
    if (!daemon_inherit())
        return tool_fail(EXIT_FAILED, "SLUICEFS_ATTACH: is not of this version; unset it");
    int code = mount_args_parse(&cmd_mount, argc, argv, true, &a);
    if (!code && !a.help)
        return daemon_main(&a.conf, a.foreground, "sluicefs");
    if (!code)
        code = tool_help(&cmd_mount);
    mount_args_done(&a);
    return code;
}

const struct tool_cmd cmd_mount = {
    .name = "mount",
    .usage = "[OPTIONS] MOUNTPOINT",
    .summary = "mount a volume; its first mount creates it",
    .help =
        "Mounts a volume and goes to the background when the mount answers. With only a mount\n"
        "point, state, one device and a store in a directory are made at a default place:\n"
        "/var/lib/sluicefs/NAME for root, ~/.local/share/sluicefs/NAME for others.\n\n"
        "  -f, --foreground          stay in the foreground, log to standard error\n"
        "      --state DIR           metadata and journal\n"
        "      --device DIR[=SIZE]   local directory for segments, with its budget (default:\n"
        "                            90 % of its file system); may repeat\n"
        "      --store URL           s3://BUCKET/PREFIX?endpoint=URL&region=NAME or dir:///PATH\n"
        "      --pool SIZE           memory for slices\n"
        "      --profile NAME        topics (append only) or broker (files may be rewritten)\n"
        "      --policy FILE         rules for paths: [GLOB], then name = value; see \"sluicefs\n"
        "                            reload\" and share/sluicefs/policy\n"
        "      --config FILE         configuration file: [volume], then name = value\n"
        "      --set NAME=VALUE      any setting; may repeat; \"sluicefs config\" lists them\n"
        "  -o OPTION[,OPTION...]     of mount(8) and FUSE: ro, allow_other, xattr, nosuid...;\n"
        "                            settings too, as name=value\n"
        "      --log FILE            log file (default in the background: STATE/log)\n"
        "      --debug COMPONENTS    debug log: main,fuse,ns,meta,seg,data,tier,cache,store,\n"
        "                            control\n"
        "      --aws-profile NAME    profile of the shared AWS configuration files\n\n"
        "Command line goes before configuration file, that before the environment\n"
        "(SLUICEFS_NAME=VALUE). Credentials come from the environment or the AWS files, never\n"
        "from the URL.\n\n"
        "Example:\n"
        "  sluicefs mount --device /mnt/nvme=200G --store 's3://bucket/logs?region=eu-west-1' \\\n"
        "      /srv/logs\n",
    .run = mount_run,
};

/* ---- config ---- */

static int config_run(int argc, char **argv)
{
    struct mount_args a;
    int code = mount_args_parse(&cmd_config, argc, argv, false, &a);
    if (!code && a.help)
        code = tool_help(&cmd_config);
    else if (!code) {
        config_print(&a.conf, stdout, a.json);
        code = tool_out_end();
    }
    mount_args_done(&a);
    return code;
}

const struct tool_cmd cmd_config = {
    .name = "config",
    .usage = "[--json] [OPTIONS OF MOUNT] [MOUNTPOINT]",
    .summary = "show and check the settings that a mount would have",
    .help =
        "Prints every setting with its value, where the value came from, its bounds and what it\n"
        "is for, and the rules for paths (--policy). Takes the options of \"sluicefs mount\" and "
        "checks them in the same way, without\n"
        "mounting. Of a mount that runs, \"sluicefs status\" tells more.\n\n"
        "      --json   for programs\n",
    .run = config_run,
};
