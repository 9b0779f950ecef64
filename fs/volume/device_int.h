/* device_int.h: what devices.c and device_remove.c share. */
#ifndef SLUICE_VOLUME_DEVICE_INT_H
#define SLUICE_VOLUME_DEVICE_INT_H

#include "fs/volume/devices.h"
#include "fs/volume/ident.h"

/* One change at a time: 0, or -EBUSY with `why`. */
int device_begin(struct volume *v, char *why, size_t cap);
void device_end(struct volume *v);
/* Its index in the identity, or -ENOENT with `why`. */
int device_find(struct volume *v, const char *path, char *why, size_t cap);
/* Makes `next` the volume's identity, durably; takes it over, whatever comes. */
int device_store(struct volume *v, struct ident *next, char *why, size_t cap);

#endif
