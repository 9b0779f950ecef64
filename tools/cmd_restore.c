/* cmd_restore.c: a volume made anew from its bucket. */
#include <stdio.h>
#include <string.h>

#include "fs/volume/json.h"
#include "fs/volume/restore.h"
#include "tools/human.h"
#include "tools/tool.h"

enum { WHY_BYTES = 2048 };

static void print_json(const struct restore_report *r)
{
    printf("{\"volume_id\":");
    json_string(stdout, r->volume_id);
    printf(",\"profile\":\"%s\",\"node\":%u,\"epoch\":%llu,\"topics\":%llu,\"files\":%llu,"
           "\"directories\":%llu,\"others\":%llu,\"segments\":%llu,\"bytes\":%llu,"
           "\"adopted_segments\":%llu,\"adopted_bytes\":%llu,\"lost_files\":%llu,"
           "\"lost_bytes\":%llu,\"damaged\":%llu,\"findings\":",
           r->profile, r->node, (unsigned long long)r->epoch, (unsigned long long)r->topics,
           (unsigned long long)r->files, (unsigned long long)r->directories,
           (unsigned long long)r->others, (unsigned long long)r->segments,
           (unsigned long long)r->bytes, (unsigned long long)r->adopted_segments,
           (unsigned long long)r->adopted_bytes, (unsigned long long)r->lost_files,
           (unsigned long long)r->lost_bytes, (unsigned long long)r->found.count[FATE_LEFT]);
    findings_json(&r->found, stdout);
    printf("}\n");
}

static void print_text(const struct restore_report *r, const char *state)
{
    char a[40], b[40];
    for (size_t i = 0; i < r->found.n; i++)
        finding_print(&r->found.row[i], stdout);
    printf("Volume %s (%s): %llu files, %llu directories, %llu links and others; %s in %llu "
           "segments.\n",
           r->volume_id, r->profile, (unsigned long long)r->files,
           (unsigned long long)r->directories, (unsigned long long)r->others,
           human_bytes(r->bytes, a, sizeof(a)), (unsigned long long)r->segments);
    if (r->adopted_segments)
        printf("%s were found on devices; they are uploaded by the next mount.\n",
               human_bytes(r->adopted_bytes, b, sizeof(b)));
    if (r->lost_files)
        printf("%s of %llu files were never uploaded and are gone (listed above).\n",
               human_bytes(r->lost_bytes, b, sizeof(b)), (unsigned long long)r->lost_files);
    printf("Bytes of files that were still being appended to are not known to the bucket.\n"
           "Mount it with --state %s --profile %s.\n",
           state, r->profile);
}

static int restore_run(int argc, char **argv)
{
    struct mount_args a;
    int code = mount_args_parse(&cmd_restore, argc, argv, false, &a);
    if (!code && a.help) {
        code = tool_help(&cmd_restore);
    } else if (!code && !(code = mount_args_places(&cmd_restore, &a))) {
        struct restore_options o = {.deep = a.deep, .partial = a.partial};
        struct restore_report r;
        char why[WHY_BYTES];
        if (volume_restore(&a.conf, &o, &r, why, sizeof(why), &code))
            code = tool_fail(code, "%s", why);
        else if (a.json)
            print_json(&r);
        else
            print_text(&r, a.conf.state);
        restore_report_done(&r);
        if (!code)
            code = tool_out_end();
    }
    mount_args_done(&a);
    return code;
}

const struct tool_cmd cmd_restore = {
    .name = "restore",
    .usage = "[OPTIONS] --state DIR --device DIR --store URL",
    .summary = "make a volume anew from its bucket, after state and devices are gone",
    .help =
        "Reads what the bucket holds and fills an empty state directory, which can then be "
        "mounted.\n"
        "A daemon that still runs with the old state is fenced: it uploads nothing any more. "
        "Files\n"
        "whose last bytes had not been uploaded are listed. Device directories of the volume that\n"
        "survived are given with --device too: what is only on them is taken over and uploaded.\n\n"
        "      --state DIR           empty or absent\n"
        "      --device DIR[=SIZE]   empty, absent, or of this volume; may repeat\n"
        "      --store URL           as for mount\n"
        "      --deep                read the footer of every object now: missing and damaged "
        "ones\n"
        "                            are found; else a footer is read with the first bytes of its\n"
        "                            object\n"
        "      --partial             go on without manifests that are damaged or missing\n"
        "      --json                for programs\n"
        "      --config FILE, --set NAME=VALUE, --aws-profile NAME   as for mount\n\n"
        "Exit codes: 0 done; 1 failed; 2 wrong usage; 4 refused (state directory not empty, no\n"
        "volume under the prefix, device of another volume).\n",
    .run = restore_run,
};
