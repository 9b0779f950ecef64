/* json.h: writing JSON text. Strings may hold any bytes: valid UTF-8 is written as it is, every other
 * byte 0xNN as the escape \udcNN (a lone low surrogate), from which Python's os.fsencode and our own
 * reader get the byte back. Any thread, no state. */
#ifndef SLUICE_VOLUME_JSON_H
#define SLUICE_VOLUME_JSON_H

#include <stddef.h>
#include <stdio.h>

/* With its quotes. */
void json_bytes(FILE *f, const void *p, size_t len);
void json_string(FILE *f, const char *s); /* NULL: null */

/* A number that JSON can hold; NaN and infinities become null. */
void json_double(FILE *f, double v);

#endif
