/* The log: one line a call whatever is in it, levels, components, and errno left alone. */
#include <criterion/criterion.h>
#include <errno.h>
#include <regex.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"

static int fd;
static char text[64 * 1024];

static void sink(void)
{
    fd = memfd_create("log", MFD_CLOEXEC);
    log_set_fd(fd);
}

TestSuite(log, .init = sink);

static const char *written(void)
{
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static unsigned lines(void)
{
    unsigned n = 0;
    for (const char *p = written(); *p; p++)
        n += *p == '\n';
    return n;
}

Test(log, a_line_has_time_level_component_and_words)
{
    regex_t re;
    log_warn(LC_STORE, "bucket %s: %d parts", "b", 3);
    cr_assert_eq(regcomp(&re,
                         "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                         "warning store: bucket b: 3 parts\n$",
                         REG_EXTENDED | REG_NOSUB),
                 0);
    cr_assert_eq(regexec(&re, written(), 0, NULL, 0), 0, "%s", text);
    regfree(&re);
}

Test(log, a_hostile_name_cannot_forge_a_line_or_move_the_cursor)
{
    log_err(LC_NS, "name %s.",
            "a\nb\rc\033[2Jd\te\x7f"
            "f\xc2\x9b"
            "31m");
    cr_assert_eq(lines(), 1);
    for (const char *p = written(); *p && *p != '\n'; p++)
        cr_assert((unsigned char)*p >= 0x20 && *p != 0x7f && *(const unsigned char *)p != 0xc2,
                  "byte %02x", (unsigned char)*p);
    cr_assert(strstr(text, "name a?b?c?[2Jd?e?f?"), "%s", text);
}

Test(log, bytes_of_utf8_stay_as_they_are)
{
    log_err(LC_NS, "%s", "gr\xc3\xbc\xc3\x9f");
    cr_assert(strstr(written(), "gr\xc3\xbc\xc3\x9f\n"));
}

Test(log, a_long_line_is_cut_and_still_ends)
{
    char big[5000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    log_err(LC_MAIN, "%s", big);
    log_err(LC_MAIN, "next");
    cr_assert_eq(lines(), 2);
    cr_assert_lt(strchr(text, '\n') - text, 1200);
    cr_assert_gt(strchr(text, '\n') - text, 1000);
}

Test(log, levels_and_components_decide)
{
    cr_assert(log_on(LC_FUSE, LOG_LV_INFO));
    cr_assert_not(log_on(LC_FUSE, LOG_LV_DEBUG));
    cr_assert_eq(log_set_debug("fuse,store"), 0);
    cr_assert(log_on(LC_FUSE, LOG_LV_DEBUG) && log_on(LC_STORE, LOG_LV_DEBUG));
    cr_assert_not(log_on(LC_META, LOG_LV_DEBUG));
    cr_assert_eq(log_set_debug("fuse,nonsense"), -EINVAL);
    cr_assert_eq(log_set_debug("fus"), -EINVAL, "a part of a name is not a name");
    cr_assert(log_on(LC_STORE, LOG_LV_DEBUG), "a refused list changes nothing");
    cr_assert_eq(log_set_debug(""), 0);
    cr_assert_not(log_on(LC_STORE, LOG_LV_DEBUG));
    log_set_level(LOG_LV_ERR);
    cr_assert(log_on(LC_MAIN, LOG_LV_ERR) && !log_on(LC_MAIN, LOG_LV_WARN));
    log_set_level(LOG_LV_DEBUG);
    for (unsigned c = 0; c < LC_COUNT; c++)
        cr_assert(log_on((enum log_comp)c, LOG_LV_DEBUG));
}

Test(log, arguments_are_not_evaluated_when_the_level_is_off)
{
    int n = 0;
    log_debug(LC_MAIN, "%d", ++n);
    cr_assert_eq(n, 0);
    cr_assert_eq(lines(), 0);
}

Test(log, errno_is_preserved_even_when_the_sink_fails)
{
    errno = ENOSPC;
    log_err(LC_MAIN, "one");
    cr_assert_eq(errno, ENOSPC);
    log_set_fd(-1);
    log_err(LC_MAIN, "two");
    cr_assert_eq(errno, ENOSPC);
}

static void noisy(int i)
{
    log_rate(LC_DATA, LOG_LV_WARN, 10, "event %d", i);
}

Test(log, a_rate_lets_one_line_through_and_counts_the_others)
{
    clock_virtual_set(1000 * NS_PER_SEC);
    for (int i = 0; i < 50; i++)
        noisy(i);
    cr_assert_eq(lines(), 1);
    cr_assert(strstr(text, "event 0\n"));
    clock_virtual_advance(10 * NS_PER_SEC - 1);
    noisy(50);
    cr_assert_eq(lines(), 1);
    clock_virtual_advance(1);
    noisy(51);
    cr_assert_eq(lines(), 3);
    cr_assert(strstr(text, "50 similar lines were left out"), "%s", text);
    cr_assert(strstr(text, "event 51\n"));
    clock_virtual_advance(20 * NS_PER_SEC);
    noisy(52);
    cr_assert_eq(lines(), 4, "nothing was left out, so nothing is said of it");
}

Test(log, errors_have_names)
{
    cr_assert_str_eq(err_name(ENOSPC), "ENOSPC");
    cr_assert_str_eq(err_name(-EBADMSG), "EBADMSG");
    cr_assert_str_eq(err_name(99999), "E?");
    cr_assert_str_eq(err_name(INT32_MIN), "E?");
}
