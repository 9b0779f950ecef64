/* check.h: the checks that a running daemon does on request: fsck and gc; see control.h for the
 * words. One at a time in a volume. */
#ifndef SLUICE_VOLUME_CHECK_H
#define SLUICE_VOLUME_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct volume;

/* As control_ops.check. Blocks on the store and devices. */
int volume_check(struct volume *v, const char *request, _Atomic bool *cancelled,
                 void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, FILE *f,
                 char *text, size_t cap);

#endif
