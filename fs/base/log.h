/* log.h: one line per event, to standard error or to a file, with level and component.
 *
 * objstore/ and cache/ are silent above debug level: they do not know whether a failure matters. The
 * bottom of each thread's stack logs once, with identifiers a human can search for and with the
 * consequence in words. Never log keys, tokens, signatures or request headers.
 * Arguments are not evaluated when the level is off; errno is preserved.
 */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LV_ERR, LOG_LV_WARN, LOG_LV_INFO, LOG_LV_DEBUG };
enum log_comp {
    LC_MAIN,
    LC_FUSE,
    LC_NS,
    LC_META,
    LC_SEG,
    LC_DATA,
    LC_TIER,
    LC_CACHE,
    LC_STORE,
    LC_CONTROL,
    LC_COUNT
};

bool log_on(enum log_comp c, enum log_level lv);
void log_write(enum log_comp c, enum log_level lv, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Everything at `lv` and more severe is written. */
void log_set_level(enum log_level lv);

/* "fuse,store": debug level for these components only. 0 or -EINVAL for an unknown name. */
int log_set_debug(const char *components);

/* The sink is a descriptor the caller keeps open (default: standard error). */
void log_set_fd(int fd);

#define log_at(c, lv, ...)                                                                         \
    do {                                                                                           \
        if (log_on(c, lv))                                                                         \
            log_write(c, lv, __VA_ARGS__);                                                         \
    } while (0)
#define log_err(c, ...)   log_at(c, LOG_LV_ERR, __VA_ARGS__)
#define log_warn(c, ...)  log_at(c, LOG_LV_WARN, __VA_ARGS__)
#define log_info(c, ...)  log_at(c, LOG_LV_INFO, __VA_ARGS__)
#define log_debug(c, ...) log_at(c, LOG_LV_DEBUG, __VA_ARGS__)

/* At most one line per `seconds` from this place; the next one says how many were left out. */
#define log_rate(c, lv, seconds, ...)                                                              \
    do {                                                                                           \
        static struct log_rate rate_;                                                              \
        if (log_on(c, lv) && log_rate_pass(&rate_, seconds))                                       \
            log_write(c, lv, __VA_ARGS__);                                                         \
    } while (0)

struct log_rate {
    _Atomic long long next_ns;
    _Atomic unsigned left_out;
};
bool log_rate_pass(struct log_rate *r, int seconds);

/* "ENOSPC" for 28 (or -28); "E?" for an unknown number. Static string. */
const char *err_name(int err);

#endif
