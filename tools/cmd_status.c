/* cmd_status.c: the documents of the daemon, as they are or laid out for people. A volume's comes from
 * the mount's own virtual file and needs no right but to read it; a file's from the control socket. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/volume/json.h"
#include "tools/human.h"
#include "tools/json.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { INODE_WAIT_MS = 30000 };

/* A string of the document, fit for a terminal. */
static void put_text(const char *v, int width)
{
    AUTO_FREE char *s = json_text(v);
    for (char *p = s; p && *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    printf("%-*s", width, s ? s : "?");
}

static const char *bytes(const char *object, const char *name, char *out, size_t cap)
{
    return human_bytes(json_u64(json_get(object, name)), out, cap);
}

/* ---- a volume ---- */

static void show_head(const char *d)
{
    char t[40];
    put_text(json_get(d, "mountpoint"), 0);
    printf("\n  volume    ");
    put_text(json_get(d, "volume_id"), 0);
    printf(", profile ");
    put_text(json_get(d, "profile"), 0);
    printf(", node %llu%s\n  daemon    pid %llu, version ",
           (unsigned long long)json_u64(json_get(d, "node_id")),
           json_true(json_get(d, "read_only")) ? ", read-only" : "",
           (unsigned long long)json_u64(json_get(d, "pid")));
    put_text(json_get(d, "version"), 0);
    printf(", up %s\n  state     ",
           human_seconds(json_number(json_get(d, "uptime"), 0), t, sizeof(t)));
    put_text(json_get(d, "state_directory"), 0);
    printf("\n");
    if (json_true(json_get(d, "fenced")))
        printf("  FENCED    another mount took this volume over: nothing is uploaded any more;\n"
               "            unmount here\n");
}

static void show_store(const char *d)
{
    const char *s = json_get(d, "store");
    char t[40];
    printf("  store     ");
    put_text(json_get(s, "url"), 0);
    printf("\n            ");
    put_text(json_get(s, "state"), 0);
    if (!json_null(json_get(s, "since"))) {
        printf(" since ");
        put_text(json_get(s, "since"), 0);
    }
    if (!json_null(json_get(s, "reason"))) {
        printf(": ");
        put_text(json_get(s, "reason"), 0);
    }
    if (!json_null(json_get(s, "next_probe_seconds")))
        printf("; tried again in %s",
               human_seconds(json_number(json_get(s, "next_probe_seconds"), 0), t, sizeof(t)));
    printf("\n");
}

static void put_state(const char *v)
{
    AUTO_FREE char *s = json_text(v);
    printf("%s", !s ? "?" : !strcmp(s, "ok") ? "in use" : s);
}

static void show_drain(const char *drain)
{
    char a[32];
    if (json_null(drain))
        return;
    if (json_u64(json_get(drain, "percent")) < 100)
        printf(", %llu %% drained, %s left",
               (unsigned long long)json_u64(json_get(drain, "percent")),
               bytes(drain, "left", a, sizeof(a)));
    if (!json_null(json_get(drain, "waits"))) {
        printf(": ");
        put_text(json_get(drain, "waits"), 0);
    }
}

static void show_devices(const char *d)
{
    const char *title = "devices";
    char a[32], b[32];
    for (const char *v = json_first(json_get(d, "devices")); v; v = json_next(v)) {
        uint64_t used = json_u64(json_get(v, "used")), budget = json_u64(json_get(v, "budget"));
        uint64_t most = min_u64(budget, used + json_u64(json_get(v, "filesystem_free")));
        printf("  %-9s ", title);
        put_text(json_get(v, "path"), 0);
        printf("\n            ");
        put_state(json_get(v, "state"));
        printf(", %s of %s (%.0f %%), file system has %s free", human_bytes(used, a, sizeof(a)),
               bytes(v, "budget", b, sizeof(b)), most ? (double)used / (double)most * 100 : 0.0,
               human_bytes(json_u64(json_get(v, "filesystem_free")), (char[32]){0}, 32));
        if (!json_null(json_get(v, "error"))) {
            printf(": ");
            put_text(json_get(v, "error"), 0);
        }
        show_drain(json_get(v, "drain"));
        printf("\n");
        title = "";
    }
    if (json_true(json_get(json_get(d, "metadata"), "full")))
        printf("            the file system of the state directory is full: make room there\n");
    double full = json_number(json_get(d, "time_to_full_seconds"), -1);
    if (full >= 0)
        printf("            full in %s at the present rate\n", human_seconds(full, a, sizeof(a)));
}

static void show_policy(const char *d)
{
    char t[40];
    const char *p = json_get(d, "policy");
    if (json_null(p))
        return;
    printf("  policy    ");
    put_text(json_get(json_get(p, "policy"), "file"), 0);
    printf(", %llu sections, read %s ago\n", (unsigned long long)json_u64(json_get(p, "sections")),
           human_seconds(json_number(json_get(p, "loaded_seconds_ago"), 0), t, sizeof(t)));
}

static void show_volume(const char *d)
{
    const char *b = json_get(d, "bytes"), *g = json_get(d, "segments"), *q = json_get(d, "queues"),
               *pool = json_get(d, "pool");
    char t[5][40];
    show_head(d);
    show_policy(d);
    show_store(d);
    show_devices(d);
    printf("  bytes     %s in files; %s on devices, %s in the store\n",
           bytes(b, "logical", t[0], 40), bytes(b, "local", t[1], 40),
           bytes(b, "remote", t[2], 40));
    double oldest = json_number(json_get(d, "oldest_pending_seconds"), 0);
    if (json_u64(json_get(b, "pending_upload")))
        printf("            %s not uploaded, the oldest for %s\n",
               bytes(b, "pending_upload", t[3], 40), human_seconds(oldest, t[4], 40));
    else
        printf("            everything is uploaded\n");
    if (json_u64(json_get(b, "kept")))
        printf("            %s kept from the store by rules\n", bytes(b, "kept", t[3], 40));
    static const char *const states[] = {"open", "sealed", "uploaded", "committed", "remote"};
    printf("  segments ");
    for (size_t k = 0; k < ARRAY_LEN(states); k++)
        printf(" %llu %s%s", (unsigned long long)json_u64(json_get(g, states[k])), states[k],
               k + 1 < ARRAY_LEN(states) ? "," : "\n");
    static const char *const queues[] = {"upload", "uploading", "manifest", "delete", "unlink"};
    printf("  queues   ");
    for (size_t k = 0; k < ARRAY_LEN(queues); k++)
        printf(" %s %llu%s", queues[k], (unsigned long long)json_u64(json_get(q, queues[k])),
               k + 1 < ARRAY_LEN(queues) ? "," : "\n");
    printf("  pool      %s of %s\n", bytes(pool, "used", t[0], 40), bytes(pool, "size", t[1], 40));
}

/* ---- a file ---- */

/* What rules say for a file, and where they stand. Nothing without rules. */
static void show_rules(const char *d)
{
    const char *rules = json_get(d, "rules");
    if (json_null(rules))
        return;
    const char *r = json_first(rules), *title = "rules";
    if (!r)
        printf("  %-9s none matches this path%s\n", title,
               json_true(json_get(d, "tiered")) ? "" : "; it has no name and is not uploaded");
    for (; r; r = json_next(r)) {
        printf("  %-9s ", title);
        put_text(json_get(r, "setting"), 0);
        printf(" = ");
        put_text(json_get(r, "value"), 0);
        printf(", line %llu, [", (unsigned long long)json_u64(json_get(r, "line")));
        put_text(json_get(r, "glob"), 0);
        printf("]\n");
        title = "";
    }
}

static void show_file(const char *path, const char *d)
{
    char a[40], b[40];
    const char *seg = json_first(json_get(d, "segments"));
    printf("%s\n  inode %llu, ", path, (unsigned long long)json_u64(json_get(d, "inode")));
    put_text(json_get(d, "type"), 0);
    printf(", %s, %s stored\n", bytes(d, "size", a, sizeof(a)),
           bytes(d, "stored_bytes", b, sizeof(b)));
    show_rules(d);
    if (seg)
        printf("\n  %-16s %-16s %-9s %-10s %-6s %s\n", "FROM", "TO", "BYTES", "STATE", "STORE",
               "WHERE");
    for (; seg; seg = json_next(seg)) {
        uint64_t from = json_u64(json_get(seg, "base")), to = json_u64(json_get(seg, "end"));
        printf("  %-16llu %-16llu %-9s ", (unsigned long long)from, (unsigned long long)to,
               human_bytes(to > from ? to - from : 0, a, sizeof(a)));
        put_text(json_get(seg, "state"), 10);
        printf(" %-6s ", json_true(json_get(seg, "remote")) ? "yes" : "no");
        bool local = json_true(json_get(seg, "local")), key = !json_null(json_get(seg, "key"));
        if (local)
            put_text(json_get(seg, "device"), 0);
        printf("%s", local && key ? ", " : "");
        if (key)
            put_text(json_get(seg, "key"), 0);
        printf("\n");
    }
}

static int status_of_path(const char *path, bool json)
{
    struct target t;
    struct reply r = {0};
    int code = target_find(path, &t);
    if (!code && t.is_root) {
        if (json)
            fputs(t.status, stdout);
        else
            show_volume(t.status);
    } else if (!code) {
        char request[40];
        bool said;
        snprintf(request, sizeof(request), "inode %llu", (unsigned long long)t.ino);
        struct ask a = {.request = request, .wait_ms = INODE_WAIT_MS, .stop_fd = -1, .again = true};
        code = control_ask(&t, &a, &r, &said);
        if (code && !said)
            (void)tool_fail(code, "%s: %s", path, r.text);
        else if (!code && json)
            fputs(r.document ? r.document : "", stdout);
        else if (!code)
            show_file(path, r.document);
    }
    reply_free(&r);
    target_free(&t);
    return code ? code : tool_out_end();
}

/* ---- all mounts ---- */

static const char *state_word(int err)
{
    return !err                ? "ok"
           : err == -ENOTCONN  ? "dead"
           : err == -ETIMEDOUT ? "hangs"
           : err == -EACCES    ? "foreign"
                               : "unreadable";
}

static void list_one(const struct mount_row *m, bool json, bool first)
{
    char a[40], b[40];
    AUTO_FREE char *d = NULL;
    int err = mount_status(m->path, &d);
    const char *bytes_of = json_get(d, "bytes");
    if (json) {
        printf("%s\n {\"mountpoint\":", first ? "" : ",");
        json_string(stdout, m->path);
        printf(",\"source\":");
        json_string(stdout, m->source);
        printf(",\"state\":\"%s\",\"status\":%s}", state_word(err), d ? d : "null");
        return;
    }
    if (first)
        printf("%-10s %-10s %-10s %-12s %s\n", "STATE", "STORE", "BYTES", "NOT UPLOADED",
               "MOUNT POINT");
    printf("%-10s ", state_word(err));
    put_text(d ? json_get(json_get(d, "store"), "state") : "\"-\"", 10);
    printf(" %-10s %-12s ", d ? bytes(bytes_of, "logical", a, sizeof(a)) : "-",
           d ? bytes(bytes_of, "pending_upload", b, sizeof(b)) : "-");
    for (const char *p = m->path; *p; p++)
        putchar((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p);
    putchar('\n');
}

static int status_of_all(bool json)
{
    struct mount_list l;
    int code = mounts_read(&l);
    if (code)
        return code;
    if (json)
        printf("[");
    for (unsigned k = 0; k < l.n; k++)
        list_one(&l.row[k], json, !k);
    if (json)
        printf("%s]\n", l.n ? "\n" : "");
    else if (!l.n)
        printf("No sluicefs is mounted.\n");
    mounts_free(&l);
    return tool_out_end();
}

static int status_run(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int opt;
    bool json = false;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":jh", options, NULL)) != -1) {
        if (opt == 'h')
            return tool_help(&cmd_status);
        if (opt != 'j')
            return tool_bad_option(&cmd_status, opt, argv[optind - 1]);
        json = true;
    }
    if (argc - optind > 1)
        return tool_fail(EXIT_USAGE, "status: one path at a time; leave %s out", argv[optind + 1]);
    return optind < argc ? status_of_path(argv[optind], json) : status_of_all(json);
}

const struct tool_cmd cmd_status = {
    .name = "status",
    .usage = "[--json] [MOUNTPOINT|PATH]",
    .summary = "show a volume, a file's segments, or all mounts",
    .help =
        "Of a mount point: the volume, its store, devices, queues and what is not uploaded yet.\n"
        "Of a path below one: where the bytes of that file are. Without a path: all mounts.\n"
        "Answers at once, also while the store hangs.\n\n"
        "  -j, --json   for programs; bytes that are not UTF-8 are written as \\udcNN\n",
    .run = status_run,
};
