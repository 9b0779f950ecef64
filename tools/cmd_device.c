/* cmd_device.c: devices of a mounted volume: list, add, drain, remove. The list is the one of the status
 * document; everything else is asked of the daemon, the path in hex, so that names of any bytes work. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "tools/bar.h"
#include "tools/human.h"
#include "tools/json.h"
#include "tools/mounts.h"
#include "tools/tool.h"

enum { WHY_BYTES = 1024 };

struct device_args {
    bool json, cancel, no_wait, lost;
    const char *verb;
};

/* ---- list ---- */

static void put_plain(const char *v, int width)
{
    AUTO_FREE char *s = json_text(v);
    for (char *p = s; p && *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    printf("%-*s", width, s ? s : "?");
}

static void put_state(const char *v)
{
    AUTO_FREE char *s = json_text(v);
    printf("%-9s", !s ? "?" : !strcmp(s, "ok") ? "in use" : s);
}

/* The array as it stands in the document. */
static void put_array(const char *v)
{
    int depth = 0;
    bool text = false;
    for (const char *p = v; p && *p; p++) {
        putchar(*p);
        if (text && *p == '\\' && p[1])
            putchar(*++p);
        else if (*p == '"')
            text = !text;
        else if (!text)
            depth += *p == '[' || *p == '{' ? 1 : *p == ']' || *p == '}' ? -1 : 0;
        if (depth == 0)
            return;
    }
}

static int list(const struct target *t, bool json)
{
    const char *devices = json_get(t->status, "devices");
    char a[32], b[32];
    if (json) {
        printf("{\"devices\":");
        put_array(devices);
        printf("}\n");
        return tool_out_end();
    }
    printf("%-4s %-9s %-10s %-10s %s\n", "ID", "STATE", "USED", "BUDGET", "DIRECTORY");
    for (const char *v = json_first(devices); v; v = json_next(v)) {
        const char *drain = json_get(v, "drain");
        printf("%-4llu ", (unsigned long long)json_u64(json_get(v, "id")));
        put_state(json_get(v, "state"));
        printf(" %-10s %-10s ", human_bytes(json_u64(json_get(v, "used")), a, sizeof(a)),
               human_bytes(json_u64(json_get(v, "budget")), b, sizeof(b)));
        put_plain(json_get(v, "path"), 0);
        if (!json_null(drain) && json_u64(json_get(drain, "left")))
            printf(", %llu %% drained, %s left",
                   (unsigned long long)json_u64(json_get(drain, "percent")),
                   human_bytes(json_u64(json_get(drain, "left")), a, sizeof(a)));
        if (!json_null(drain) && !json_null(json_get(drain, "waits"))) {
            printf(": ");
            put_plain(json_get(drain, "waits"), 0);
        } else if (!json_null(json_get(v, "error"))) {
            printf(": ");
            put_plain(json_get(v, "error"), 0);
        }
        printf("\n");
    }
    return tool_out_end();
}

/* ---- requests ---- */

/* "device VERB HEX[ WORD]", malloc'ed. */
static char *make_request(const char *verb, const char *path, const char *word)
{
    size_t n = strlen(path), cap = 64 + 2 * n;
    char *out = malloc(cap);
    if (!out)
        return NULL;
    size_t at = (size_t)snprintf(out, cap, "device %s ", verb);
    for (size_t k = 0; k < n; k++)
        at += (size_t)snprintf(out + at, cap - at, "%02x", (unsigned char)path[k]);
    snprintf(out + at, cap - at, "%s%s", *word ? " " : "", word);
    return out;
}

static int ask(const struct target *t, const struct device_args *o, const char *path,
               const char *word)
{
    AUTO_FREE char *request = make_request(o->verb, path, word);
    AUTO_CLOSE int stop_fd = signals_as_fd();
    struct bar bar = {.verb = o->verb, .on = isatty(STDERR_FILENO)};
    struct ask a = {.request = request, .stop_fd = stop_fd, .progress = bar_draw, .arg = &bar};
    struct reply r;
    bool said;
    if (!request)
        return tool_fail(EXIT_FAILED, "device: no memory; free some");
    int code = control_ask(t, &a, &r, &said);
    bar_end(&bar);
    if (r.document)
        fputs(r.document, stdout);
    int out = tool_out_end();
    const char *text = strncmp(r.text, "device ", 7) ? r.text
                                                     : r.text + 7; /* said once is enough */
    if (code && !said)
        (void)tool_fail(code,
                        strchr(r.text, ';') || strchr(r.text, ':')
                            ? "device %s: %s"
                            : "device %s: %s; see sluicefs device list",
                        o->verb, text);
    reply_free(&r);
    return code ? code : out;
}

/* DIR[=SIZE] as at mount: absolute, and what is to be sent behind it. */
static int parse_device(const struct device_args *o, const char *text, struct config *c,
                        char *ret_word, size_t cap)
{
    char why[WHY_BYTES];
    if (config_set(c, "device", text, "command line", why, sizeof(why)) ||
        config_paths(c, why, sizeof(why)))
        return tool_fail(EXIT_USAGE, "%s", why);
    const struct config_device *d = &c->device[0];
    if (d->budget && strcmp(o->verb, "add") != 0)
        return tool_fail(EXIT_USAGE, "device %s: %s: a size is of use for add only; leave it out",
                         o->verb, text);
    snprintf(ret_word, cap, "%s", "");
    if (d->budget)
        snprintf(ret_word, cap, "%llu", (unsigned long long)d->budget);
    else if (!strcmp(o->verb, "drain") && !o->no_wait)
        snprintf(ret_word, cap, "%s", o->cancel ? "cancel" : "wait");
    else if (!strcmp(o->verb, "remove") && o->lost)
        snprintf(ret_word, cap, "lost");
    return EXIT_OK;
}

static int change(const struct target *t, const struct device_args *o, const char *text)
{
    struct config c;
    char word[32];
    config_init(&c);
    int code = parse_device(o, text, &c, word, sizeof(word));
    if (!code)
        code = ask(t, o, c.device[0].path, word);
    config_done(&c);
    return code;
}

/* ---- the command ---- */

static int check_words(const struct device_args *o, int words)
{
    bool is_list = !strcmp(o->verb, "list"), is_drain = !strcmp(o->verb, "drain");
    if (!is_list && !is_drain && strcmp(o->verb, "add") != 0 && strcmp(o->verb, "remove") != 0)
        return tool_fail(EXIT_USAGE, "device %s: not known; write list, add, drain or remove",
                         o->verb);
    if (words != (is_list ? 1 : 2))
        return tool_fail(EXIT_USAGE, "device %s: write sluicefs device %s MOUNTPOINT%s", o->verb,
                         o->verb, is_list ? "" : " DIR");
    if ((o->json && !is_list) || ((o->cancel || o->no_wait) && !is_drain) ||
        (o->lost && strcmp(o->verb, "remove") != 0))
        return tool_fail(EXIT_USAGE, "device %s: takes no such option; see sluicefs device --help",
                         o->verb);
    if (o->cancel && o->no_wait)
        return tool_fail(EXIT_USAGE,
                         "device drain: --cancel waits for nothing; leave --no-wait out");
    return EXIT_OK;
}

static int device_run(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"cancel", no_argument, NULL, 'c'},
        {"lost", no_argument, NULL, 'l'}, {"no-wait", no_argument, NULL, 'n'},
        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct device_args o = {0};
    struct target t;
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":jh", options, NULL)) != -1) {
        switch (opt) {
        case 'j':
            o.json = true;
            break;
        case 'c':
            o.cancel = true;
            break;
        case 'l':
            o.lost = true;
            break;
        case 'n':
            o.no_wait = true;
            break;
        case 'h':
            return tool_help(&cmd_device);
        default:
            return tool_bad_option(&cmd_device, opt, argv[optind - 1]);
        }
    }
    if (optind == argc)
        return tool_fail(EXIT_USAGE,
                         "device: write sluicefs device list MOUNTPOINT, or add, drain, "
                         "remove");
    o.verb = argv[optind++];
    int code = check_words(&o, argc - optind);
    if (code)
        return code;
    code = target_find(argv[optind], &t);
    if (code)
        return code;
    if (!t.is_root)
        code =
            tool_fail(EXIT_USAGE, "%s: is not a mount point; name %s", argv[optind], t.mountpoint);
    else
        code = !strcmp(o.verb, "list") ? list(&t, o.json) : change(&t, &o, argv[optind + 1]);
    target_free(&t);
    return code;
}

const struct tool_cmd cmd_device = {
    .name = "device",
    .usage = "list [--json] MOUNTPOINT | add MOUNTPOINT DIR[=SIZE] |\n"
             "       sluicefs device drain [--no-wait | --cancel] MOUNTPOINT DIR |\n"
             "       sluicefs device remove [--lost] MOUNTPOINT DIR",
    .summary = "add, drain and remove devices of a mounted volume",
    .help =
        "list     The devices, and whether they are in use, draining, drained, failed or "
        "missing.\n"
        "add      Takes an empty or new directory in; it is used at once, and at every later "
        "mount.\n"
        "drain    No new segments on it; what is on it moves to other devices or, where they have "
        "no\n"
        "         room, to the store. Goes on in the background, after a crash and after a new "
        "mount,\n"
        "         too; the command waits for the end (Ctrl-C only ends the waiting).\n"
        "remove   Of a drained device. The volume forgets it, and the directory is free again. A "
        "mount\n"
        "         whose command line still names it leaves it alone.\n\n"
        "  -j, --json      list, for programs\n"
        "      --no-wait   drain: only begin\n"
        "      --cancel    drain: end it; the device is used again, what has moved stays where it "
        "is\n"
        "      --lost      remove: of a failed or missing device with bytes that are nowhere else: "
        "they\n"
        "                  are given up and listed, and read as EIO; without it they are listed "
        "and\n"
        "                  nothing is done\n",
    .run = device_run,
};
