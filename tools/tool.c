/* tool.c: errors and help of all commands. */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int tool_fail(int code, const char *fmt, ...)
{
    char line[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    (void)fflush(stdout);
    fprintf(stderr, "sluicefs: %s\n", line);
    return code;
}

int tool_help(const struct tool_cmd *c)
{
    printf("Usage: sluicefs %s%s%s\n\n%s", c->name, *c->usage ? " " : "", c->usage, c->help);
    return tool_out_end();
}

int tool_bad_option(const struct tool_cmd *c, int opt, const char *word)
{
    if (opt == ':')
        return tool_fail(EXIT_USAGE, "option %s: needs a value; see sluicefs %s --help", word,
                         c->name);
    return tool_fail(EXIT_USAGE, "option %s: not known; see sluicefs %s --help", word, c->name);
}

int tool_out_end(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return EXIT_OK;
    return tool_fail(EXIT_FAILED, "standard output: cannot be written (%s); free some space",
                     strerror(errno));
}

static int version_run(int argc, char **argv)
{
    (void)argv;
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return tool_help(&cmd_version);
    if (argc > 1)
        return tool_fail(EXIT_USAGE, "version: takes no arguments; leave %s out", argv[1]);
    puts("sluicefs " SLUICE_VERSION);
    return tool_out_end();
}

const struct tool_cmd cmd_version = {
    .name = "version",
    .usage = "",
    .summary = "print the version",
    .help = "Prints the version of this program. The version of the daemon behind a mount is in\n"
            "\"sluicefs status MOUNTPOINT\".\n",
    .run = version_run,
};
