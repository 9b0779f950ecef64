/* check.c: see check.h. Two checks at once would mend the same twice: the second is refused. */
#include "fs/volume/check.h"

#include <errno.h>
#include <string.h>
#include "fs/volume/devices.h"
#include "fs/volume/fsck.h"
#include "fs/volume/gc.h"
#include "fs/volume/volume.h"

/* Takes `word` out of the front of *p. */
static bool take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0 || ((*p)[n] && (*p)[n] != ' '))
        return false;
    *p += n;
    *p += **p == ' ';
    return true;
}

static int do_fsck(struct volume *v, const char *words, struct fsck_options *o, FILE *f, char *text,
                   size_t cap)
{
    struct fsck_report rep = {0};
    o->deep = take(&words, "deep");
    o->repair = take(&words, "repair");
    bool json = take(&words, "json");
    if (*words)
        return -EINVAL;
    int r = fsck_run(v, o, &rep, text, cap);
    if (r == 0) {
        if (json)
            fsck_json(&rep, f);
        else
            fsck_text(&rep, f);
        snprintf(text, cap, "%d", fsck_code(&rep));
    }
    fsck_report_done(&rep);
    return r;
}

static int do_gc(struct volume *v, const char *words, _Atomic bool *cancelled, FILE *f, char *text,
                 size_t cap)
{
    struct gc_report rep = {0};
    struct gc_options o = {.cancelled = cancelled};
    o.dry_run = take(&words, "dry-run");
    bool json = take(&words, "json");
    if (*words)
        return -EINVAL;
    int r = gc_run(v, &o, &rep, text, cap);
    if (r == 0) {
        if (json)
            gc_json(&rep, f);
        else
            gc_text(&rep, f);
        snprintf(text, cap, "0");
    }
    gc_report_done(&rep);
    return r;
}

int volume_check(struct volume *v, const char *request, _Atomic bool *cancelled,
                 void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, FILE *f,
                 char *text, size_t cap)
{
    const char *words = request;
    if (take(&words, "device"))
        return volume_device_request(v, request, cancelled, progress, arg, f, text, cap);
    static _Atomic bool busy; /* one volume in a process */
    struct fsck_options o = {.cancelled = cancelled, .progress = progress, .arg = arg};
    if (atomic_exchange(&busy, true)) {
        snprintf(text, cap, "another check is running; wait for its end");
        return -EBUSY;
    }
    int r = take(&words, "fsck") ? do_fsck(v, words, &o, f, text, cap)
            : take(&words, "gc") ? do_gc(v, words, cancelled, f, text, cap)
                                 : -EINVAL;
    atomic_store(&busy, false);
    return r;
}
