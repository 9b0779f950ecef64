/* A configuration file of any bytes is taken or refused with one line that names it; whatever was
 * taken can be printed, and passes or fails the checks without harm. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/volume/config_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const char *why)
{
    assert(*why && strlen(why) < 2048 && !strchr(why, '\n'));
    for (const char *p = why; *p; p++)
        assert((unsigned char)*p >= 0x20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], why[2048] = "", *text = NULL;
    size_t len;
    int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct config c;
    config_init(&c);
    if (config_load_file(&c, path, why, sizeof(why))) {
        check_line(why);
        assert(strstr(why, path));
    } else {
        c.mountpoint = strdup("/nonexistent/mnt");
        why[0] = '\0';
        if (config_finish(&c, why, sizeof(why)))
            check_line(why);
    }
    assert(c.pool >= 8 * MiB && c.pool <= TiB && c.devices <= CONFIG_DEVICES_MAX);
    for (int json = 0; json < 2; json++) {
        FILE *f = open_memstream(&text, &len);
        config_print(&c, f, json);
        (void)fclose(f);
        free(text);
    }
    config_done(&c);
    (void)close(fd);
    return 0;
}
