/* config_int.h: what the files of the configuration share: the table of all settings, and where each
 * value came from. Private to config*.c. Pure data and functions, one thread. */
#ifndef SLUICE_VOLUME_CONFIG_INT_H
#define SLUICE_VOLUME_CONFIG_INT_H

#include "fs/volume/config.h"

enum config_kind {
    KIND_SIZE,
    KIND_TIME,
    KIND_NUMBER,
    KIND_BOOL,
    KIND_PROFILE,
    KIND_TEXT,
    KIND_DEVICE
};

struct config_row {
    const char *name;
    enum config_kind kind;
    size_t offset; /* in struct config; of the devices: unused */
    uint64_t def, min, max;
    const char *help;
    bool hidden; /* tests only: not printed unless set */
};

enum { CONFIG_VALUE_BYTES = 4096, CONFIG_SOURCE_BYTES = 4096 + 16 };

extern const struct config_row config_rows[];
extern const size_t config_rows_n;

const struct config_row *config_find(const char *name);
/* The setting that was probably meant, or NULL. */
const char *config_nearest(const char *name);

/* "default" when nobody has set it. */
void config_source(const struct config *c, const char *name, char *out, size_t cap);
/* 0 or -ENOMEM. */
int config_source_put(struct config *c, const char *name, const char *source);

/* Text as it may be typed: 128MiB, 10m, 70. Returns out. */
const char *size_text(uint64_t v, char *out, size_t cap);
const char *duration_text(uint64_t ms, char *out, size_t cap);

/* What a user typed, fit for one line of an error: no control characters, shortened. Returns out. */
const char *printable(const char *text, char *out, size_t cap);
/* Cuts blanks off both ends, in place. */
char *trimmed(char *s);

/* The value of a row as text; of the device row: the device `nth`. Returns out. */
const char *config_value(const struct config *c, const struct config_row *r, unsigned nth,
                         char *out, size_t cap);
const char *config_bounds(const struct config_row *r, char *out, size_t cap);

#endif
