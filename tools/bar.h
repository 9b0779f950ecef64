/* bar.h: what commands that wait share: a progress bar, and signals that can be polled for. */
#ifndef SLUICE_TOOLS_BAR_H
#define SLUICE_TOOLS_BAR_H

#include <stdbool.h>
#include <stdint.h>

struct bar {
    const char *verb;
    bool on; /* standard error is a terminal */
    bool drawn;
};

/* Bytes done of bytes to do; as control_ask's progress, with the bar as its argument. */
void bar_draw(void *bar, uint64_t done, uint64_t total);
void bar_end(struct bar *b);

/* SIGINT, SIGTERM and SIGHUP do nothing any more but make this descriptor readable. */
int signals_as_fd(void);

#endif
