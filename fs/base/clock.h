/* clock.h: the two clocks of the product, replaceable by a virtual one.
 *
 * Monotonic time (never jumps, used for every wait and deadline) is CLOCK_MONOTONIC; boot time
 * (goes on through suspend, used for leases) is CLOCK_BOOTTIME; wall time is for stored time stamps
 * only. The simulation sets a virtual clock: then all three move only by clock_virtual_advance.
 */
#ifndef SLUICE_BASE_CLOCK_H
#define SLUICE_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_MS  1000000ll
#define NS_PER_SEC 1000000000ll

int64_t clock_mono_ns(void);
int64_t clock_boot_ns(void);
int64_t clock_wall_ns(void);

/* Test builds of the core only: `start_ns` is the virtual "now" of all clocks. */
void clock_virtual_set(int64_t start_ns);
void clock_virtual_advance(int64_t ns);

#endif
