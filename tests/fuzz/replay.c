/* replay.c: drives a fuzz target without a fuzzer, so that every build tests it: all saved inputs
 * (files, or directories of files) with all their prefixes, then inputs made from them and from
 * nothing by a fixed generator, for at most two seconds.
 *
 *     replay_NAME [FILE | DIRECTORY]...
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "fs/base/clock.h"
#include "fs/base/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 20, SAVED_MAX = 512, PREFIXES_UP_TO = 4096, RANDOM_RUNS = 20000 };

static struct {
    uint8_t *p;
    size_t len;
} saved[SAVED_MAX];
static unsigned saved_n;

/* On a copy of the exact size, so that a sanitizer sees one byte too far. */
static void run(const uint8_t *p, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);

    if (!exact)
        abort();
    if (n)
        memcpy(exact, p, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static int one(const char *path)
{
    char *data;
    size_t len;
    int r = io_read_file(AT_FDCWD, path, INPUT_MAX, &data, &len);

    if (r < 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return r;
    }
    for (size_t n = 0; n < len && len <= PREFIXES_UP_TO; n++)
        run((uint8_t *)data, n);
    run((uint8_t *)data, len);
    if (saved_n == SAVED_MAX) {
        free(data);
        return 0;
    }
    saved[saved_n].p = (uint8_t *)data;
    saved[saved_n++].len = len;
    return 0;
}

static int each(void *arg, const char *name)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", (const char *)arg, name);
    return one(path);
}

static uint64_t rnd(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* A saved input with some bytes changed, or noise when there is none. */
static size_t make_input(uint8_t *out, size_t cap)
{
    size_t n;

    if (saved_n == 0 || rnd() % 8 == 0) {
        n = rnd() % 600;
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)rnd();
        return n;
    }
    unsigned pick = (unsigned)(rnd() % saved_n);
    n = saved[pick].len < cap ? saved[pick].len : cap;
    memcpy(out, saved[pick].p, n);
    for (uint64_t k = rnd() % 8; n && k > 0; k--)
        out[rnd() % n] = (uint8_t)(rnd() % 4 ? out[rnd() % n] : rnd());
    return rnd() % 4 ? n : rnd() % (n + 1);
}

int main(int argc, char **argv)
{
    static uint8_t buf[INPUT_MAX];
    int64_t end;
    unsigned made = 0;
    int r = 0;

    for (int i = 1; i < argc && r == 0; i++) {
        struct stat st;
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
            r = io_scan(AT_FDCWD, argv[i], each, argv[i]);
        else
            r = one(argv[i]);
    }
    end = clock_mono_ns() + 2 * NS_PER_SEC;
    for (; r == 0 && made < RANDOM_RUNS && clock_mono_ns() < end; made++)
        run(buf, make_input(buf, sizeof(buf)));
    printf("%u saved inputs, %u made ones\n", saved_n, made);
    for (unsigned i = 0; i < saved_n; i++)
        free(saved[i].p);
    return r < 0 || made == 0;
}
