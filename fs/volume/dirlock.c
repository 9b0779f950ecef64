/* dirlock.c: a directory is of one mount at a time: the state directory, and each device (two mounts of
 * copies of one state directory would write the same segment files). An flock on the directory, which ends
 * with its holder however that dies. No state. */
#include <errno.h>
#include <sys/file.h>
#include <time.h>
#include "fs/base/clock.h"
#include "fs/volume/volume_int.h"

enum { LOCK_WAIT_MS = 1500 };

int dir_lock_soon(int fd)
{
    int64_t until = clock_mono_ns() + LOCK_WAIT_MS * NS_PER_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || clock_mono_ns() >= until)
            return -errno;
        struct timespec nap = {.tv_nsec = 5 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    return 0;
}
