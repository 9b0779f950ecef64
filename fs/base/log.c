/* log.c: the sink is one write(2) per line, so lines of several threads do not mix and no lock is
 * needed. */
#include "fs/base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "fs/base/clock.h"

static const char *const comp_names[LC_COUNT] = {"main", "fuse", "ns",    "meta",  "seg",
                                                 "data", "tier", "cache", "store", "control"};
static const char *const level_names[] = {"error", "warning", "info", "debug"};

static _Atomic int sink_fd = STDERR_FILENO;
static _Atomic unsigned base_level = LOG_LV_INFO;
static _Atomic unsigned debug_mask;

bool log_on(enum log_comp c, enum log_level lv)
{
    if ((unsigned)lv <= atomic_load_explicit(&base_level, memory_order_relaxed))
        return true;
    return atomic_load_explicit(&debug_mask, memory_order_relaxed) >> c & 1;
}

void log_set_level(enum log_level lv)
{
    atomic_store(&base_level, (unsigned)lv);
}

void log_set_fd(int fd)
{
    atomic_store(&sink_fd, fd);
}

int log_set_debug(const char *components)
{
    unsigned mask = 0;
    while (*components) {
        size_t n = strcspn(components, ",");
        unsigned c = 0;
        while (c < LC_COUNT &&
               !(strlen(comp_names[c]) == n && !strncmp(comp_names[c], components, n)))
            c++;
        if (c == LC_COUNT)
            return -EINVAL;
        mask |= 1u << c;
        components += n + (components[n] == ',');
    }
    atomic_store(&debug_mask, mask);
    return 0;
}

/* C0, DEL, and the first byte of C1 in UTF-8, which terminals obey as well. */
static bool is_control(const unsigned char *p, size_t left)
{
    return *p < 0x20 || *p == 0x7f || (*p == 0xc2 && left > 1 && p[1] >= 0x80 && p[1] < 0xa0);
}

void log_write(enum log_comp c, enum log_level lv, const char *fmt, ...)
{
    int saved = errno;
    char line[1200];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s %s: ", ts.tv_nsec / 1000000,
                          level_names[lv], comp_names[c]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0)
        n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    for (size_t i = 0; i < n; i++)
        if (is_control((const unsigned char *)line + i, n - i))
            line[i] = '?'; /* a hostile name cannot forge a line */
    line[n++] = '\n';
    ssize_t w = write(atomic_load(&sink_fd), line, n);
    (void)w; /* nowhere left to report a failure */
    errno = saved;
}

bool log_rate_pass(struct log_rate *r, int seconds)
{
    long long now = clock_mono_ns(), next = atomic_load(&r->next_ns);
    if (now < next ||
        !atomic_compare_exchange_strong(&r->next_ns, &next, now + seconds * NS_PER_SEC)) {
        atomic_fetch_add(&r->left_out, 1);
        return false;
    }
    unsigned n = atomic_exchange(&r->left_out, 0);
    if (n)
        log_write(LC_MAIN, LOG_LV_INFO, "%u similar lines were left out before the next one", n);
    return true;
}

const char *err_name(int err)
{
    const char *s = strerrorname_np(err < 0 && err > INT_MIN ? -err : err);
    return s ? s : "E?";
}
