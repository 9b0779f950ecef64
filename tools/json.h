/* json.h: reading the JSON documents of the daemon. A document is text in memory; a value is a pointer
 * to where it begins, NULL when it is missing, so that look-ups can be chained. No allocation but for
 * strings. Malformed text gives missing values, never a read past its NUL. */
#ifndef SLUICE_TOOLS_JSON_H
#define SLUICE_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>

/* The member of an object. */
const char *json_get(const char *object, const char *name);
/* First element of an array, and the one behind an element. NULL: no more. */
const char *json_first(const char *array);
const char *json_next(const char *element);

bool json_null(const char *v); /* null or missing */
bool json_true(const char *v);
uint64_t json_u64(const char *v); /* 0 when missing */
double json_number(const char *v, double otherwise);

/* The string as bytes (\udcNN is the byte NN): malloc'ed, "" when missing; NULL without memory. */
char *json_text(const char *v);

#endif
