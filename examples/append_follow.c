/* append_follow.c: appends records to a file in a mount, or follows such a file, with plain POSIX.
 *
 *   append_follow append FILE COUNT [SYNC_EVERY]     each record is one write(2) with O_APPEND
 *   append_follow follow FILE COUNT                  prints records as they come, ends after COUNT
 *
 *   cc -O2 -o append_follow append_follow.c
 *
 * A record is one line "SEQUENCE PAYLOAD". Nothing here knows of tiers. The follower reads to the end,
 * then sleeps in inotify until the file grows; a read may end inside a record, so it keeps the rest.
 * What fdatasync acknowledged survives power loss; what write acknowledged survives the death of the
 * SluiceFS daemon.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static int append(const char *path, long count, long sync_every)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        perror(path);
        return 1;
    }
    for (long i = 1; i <= count; i++) {
        char line[64];
        int n = snprintf(line, sizeof line, "%09ld something that happened\n", i);
        if (write(fd, line, (size_t)n) != n || (i % sync_every == 0 && fdatasync(fd))) {
            perror(path);
            return 1;
        }
    }
    if (fdatasync(fd) || close(fd)) {
        perror(path);
        return 1;
    }
    return 0;
}

static int follow(const char *path, long count)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd < 0 || watch < 0 || inotify_add_watch(watch, path, IN_MODIFY) < 0) {
        perror(path);
        return 1;
    }
    static char buf[1 << 20];
    size_t have = 0;
    long seen = 0;
    while (seen < count) {
        ssize_t n = read(fd, buf + have, sizeof buf - have);
        if (n < 0) {
            perror(path);
            return 1;
        }
        if (n == 0) {
            /* Another machine's appends raise no event here, so look once a second anyway. */
            struct pollfd p = {.fd = watch, .events = POLLIN};
            char events[4096];
            if (poll(&p, 1, 1000) > 0)
                while (read(watch, events, sizeof events) > 0)
                    ;
            continue;
        }
        have += (size_t)n;
        char *line = buf, *end;
        while (seen < count && (end = memchr(line, '\n', have - (size_t)(line - buf)))) {
            if (strtol(line, NULL, 10) != ++seen) {
                fprintf(stderr, "%s: record %ld expected, got: %.*s\n", path, seen,
                        (int)(end - line), line);
                return 1;
            }
            fwrite(line, 1, (size_t)(end - line) + 1, stdout);
            line = end + 1;
        }
        have -= (size_t)(line - buf);
        memmove(buf, line, have);
    }
    return fflush(stdout) ? 1 : 0;
}

int main(int argc, char **argv)
{
    long count = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    long sync_every = argc > 4 ? strtol(argv[4], NULL, 10) : 100;
    if (count > 0 && sync_every > 0 && !strcmp(argv[1], "append"))
        return append(argv[2], count, sync_every);
    if (count > 0 && argc == 4 && !strcmp(argv[1], "follow"))
        return follow(argv[2], count);
    fprintf(stderr, "usage: %s append FILE COUNT [SYNC_EVERY] | follow FILE COUNT\n", argv[0]);
    return 2;
}
