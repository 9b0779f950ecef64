/* cleanup.h: scope-exit helpers for leaf resources. */
#ifndef SLUICE_BASE_CLEANUP_H
#define SLUICE_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

#define AUTO_FREE  __attribute__((cleanup(cleanup_free)))
#define AUTO_CLOSE __attribute__((cleanup(cleanup_close)))

/* Moves a descriptor out of an AUTO_CLOSE variable. */
static inline int take_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))

#endif
