/* main.c: sluicefs COMMAND ...: finds the command, prints help. */
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "tools/tool.h"

static const struct tool_cmd *const commands[] = {
    &cmd_mount,  &cmd_umount, &cmd_status,  &cmd_seal,    &cmd_upload,
    &cmd_evict,  &cmd_warm,   &cmd_restore, &cmd_fsck,    &cmd_gc,
    &cmd_device, &cmd_config, &cmd_reload,  &cmd_upgrade, &cmd_version,
};

static const struct tool_cmd *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static void print_usage(FILE *f)
{
    fputs("Usage: sluicefs COMMAND [ARGUMENTS]\n\n"
          "A file system whose newest bytes are on local devices and all the others in an object\n"
          "store.\n\nCommands:\n",
          f);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(f, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n\"sluicefs COMMAND --help\" says more.\n\n"
          "Exit codes: 0 done; 1 failed (store, device, I/O); 2 wrong usage or configuration;\n"
          "3 no such mount, or no daemon behind it; 4 refused (in use, foreign, conflicting).\n",
          f);
}

static int help(int argc, char **argv)
{
    const struct tool_cmd *c = argc > 1 ? find(argv[1]) : NULL;
    if (argc > 1 && !c)
        return tool_fail(EXIT_USAGE, "command %s: not known; see sluicefs --help", argv[1]);
    if (c)
        return tool_help(c);
    print_usage(stdout);
    return tool_out_end();
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help"))
        return help(argc - 1, argv + 1);
    if (!strcmp(name, "--version") || !strcmp(name, "-V"))
        name = "version";
    const struct tool_cmd *c = find(name);
    if (!c)
        return tool_fail(EXIT_USAGE, "command %s: not known; see sluicefs --help", name);
    return c->run(argc - 1, argv + 1);
}
