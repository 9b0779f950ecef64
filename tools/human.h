/* human.h: numbers for people. All return `out`. */
#ifndef SLUICE_TOOLS_HUMAN_H
#define SLUICE_TOOLS_HUMAN_H

#include <stddef.h>
#include <stdint.h>

const char *human_bytes(uint64_t n, char *out, size_t cap); /* "1.5 GiB", "12 B" */
const char *human_seconds(double s, char *out, size_t cap); /* "3 d 4 h", "12 min", "0.3 s" */

#endif
