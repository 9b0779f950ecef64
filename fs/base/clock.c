/* clock.c: see clock.h. `virtual_ns` 0 means the real clocks. */
#include "fs/base/clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic int64_t virtual_ns;

static int64_t read_clock(clockid_t id)
{
    int64_t v = atomic_load_explicit(&virtual_ns, memory_order_relaxed);
    if (v)
        return v;
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * NS_PER_SEC + ts.tv_nsec;
}

int64_t clock_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_boot_ns(void)
{
    return read_clock(CLOCK_BOOTTIME);
}

int64_t clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void clock_virtual_set(int64_t start_ns)
{
    atomic_store(&virtual_ns, start_ns);
}

void clock_virtual_advance(int64_t ns)
{
    atomic_fetch_add(&virtual_ns, ns);
}
