/* readbench.c: reads files in the ways that figures 3, 4, 5, 8 and 9 ask for.
 *
 *   readbench seq FILE [--block B] [--from OFF] [--bytes N] [--sendfile] [--repeat N]
 *       one sequential reader to the end (or N bytes), N times over: rate, time to the first block
 *   readbench first FILE --from OFF [--block B]
 *       open and read one block at OFF, timed together: the first cold byte
 *   readbench together FILE --readers R [--block B] [--from OFF] [--bytes N]
 *       R threads with a handle each, started by a barrier, read the same range
 *   readbench many FILE... --readers R [--block B] [--hold S]
 *       opens R handles spread over the files, reads one block through each at a place of its own,
 *       reads on round after round for S seconds, then closes them; "open" is printed when all are
 *       open, the JSON line at the end
 *
 * One JSON line on stdout. Threads share only counters that they add to at their end. A reader in
 * `many` is a handle with a position, not a thread: POOL threads serve them all, and each handle
 * is read by one thread only. Exit: 0, 1 a system call failed, 2 usage.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bench/benchlib.h"

enum { MAX_READERS = 1 << 16, POOL = 64 };

static struct {
    char **files;
    unsigned file_count;
    uint64_t block, from, bytes, readers, repeat;
    double hold;
    bool sendfile;
} o = {.block = 1 << 20, .readers = 1, .bytes = UINT64_MAX, .repeat = 1};

struct reader {
    pthread_t thread;
    uint64_t bytes, reads;
    double first_s, seconds;
    int err;
};

static pthread_barrier_t start_line;
static int *handles;
static uint64_t file_size;
static double hold_until;

static int fail(const char *what, int err)
{
    fprintf(stderr, "readbench: %s: %s\n", what, strerror(err));
    return 1;
}

static ssize_t take(int fd, int sink, char *buf, size_t n, off_t *at)
{
    ssize_t got;

    if (sink >= 0) {
        return sendfile(sink, fd, at, n);
    }
    got = pread(fd, buf, n, *at);
    *at += got > 0 ? got : 0;
    return got;
}

static int read_range(struct reader *r, int fd, int sink, char *buf)
{
    double start = bench_now();
    uint64_t passes = 0, done = 0;
    off_t at = (off_t)o.from;

    while (passes < o.repeat) {
        uint64_t left = o.bytes - done;
        ssize_t n = take(fd, sink, buf, left < o.block ? left : o.block, &at);
        if (n < 0) {
            return errno;
        }
        if (n > 0 && r->reads++ == 0) {
            r->first_s = bench_now() - start;
        }
        r->bytes += (uint64_t)n;
        done += (uint64_t)n;
        if (n == 0 || done == o.bytes) {
            passes++;
            done = 0;
            at = (off_t)o.from;
        }
    }
    r->seconds = bench_now() - start;
    return 0;
}

static void *sequential_main(void *arg)
{
    struct reader *r = arg;
    char *buf = malloc(o.block);
    int fd = open(o.files[0], O_RDONLY | O_CLOEXEC);
    int sink = o.sendfile ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;

    r->err = fd < 0 ? errno : buf ? 0 : ENOMEM;
    pthread_barrier_wait(&start_line);
    if (!r->err) {
        r->err = read_range(r, fd, sink, buf);
    }
    free(buf);
    if (sink >= 0) {
        close(sink);
    }
    if (fd >= 0) {
        close(fd);
    }
    return NULL;
}

/* The handles i, i + POOL, i + 2 POOL, ... belong to pool thread i. */
static void *many_main(void *arg)
{
    struct reader *r = arg;
    size_t first = (size_t)(r->err);
    uint64_t spread = file_size > o.block ? file_size - o.block : 1;
    char *buf = malloc(o.block);
    uint64_t round = 0;

    r->err = buf ? 0 : ENOMEM;
    do {
        for (size_t i = first; i < o.readers && !r->err; i += POOL) {
            uint64_t at = (i * 0x9E3779B97F4A7C15u % spread & ~(uint64_t)4095) + round * o.block;
            ssize_t n = pread(handles[i], buf, o.block, (off_t)(at % spread));
            if (n < 0) {
                r->err = errno;
            } else {
                r->bytes += (uint64_t)n;
                r->reads++;
            }
        }
        round++;
    } while (!r->err && bench_now() < hold_until);
    free(buf);
    return NULL;
}

static int run_threads(struct reader *r, size_t n, void *(*body)(void *))
{
    pthread_attr_t small;

    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (size_t i = 0; i < n; i++) {
        if (pthread_create(&r[i].thread, &small, body, &r[i]) != 0) {
            fail("thread", errno);
            exit(1);
        }
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(r[i].thread, NULL);
    }
    pthread_attr_destroy(&small);
    for (size_t i = 0; i < n; i++) {
        if (r[i].err) {
            return fail(o.files[0], r[i].err);
        }
    }
    return 0;
}

static void report(const struct reader *r, size_t n, double seconds)
{
    uint64_t bytes = 0, reads = 0;
    double first = 0;

    for (size_t i = 0; i < n; i++) {
        bytes += r[i].bytes;
        reads += r[i].reads;
        first = r[i].first_s > first ? r[i].first_s : first;
    }
    printf("{\"readers\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"reads\":%" PRIu64
           ",\"seconds\":%.6f,\"mb_per_s\":%.2f,\"first_ms\":%.3f,\"cpu_s\":%.3f}\n",
           o.readers, bytes, reads, seconds, (double)bytes / seconds / 1e6, first * 1e3,
           bench_cpu());
}

static int cmd_together(void)
{
    struct reader *r = calloc(o.readers, sizeof(*r));
    double slowest = 0;
    int rc;

    if (!r || pthread_barrier_init(&start_line, NULL, (unsigned)o.readers) != 0) {
        free(r);
        return fail("start", ENOMEM);
    }
    rc = run_threads(r, o.readers, sequential_main);
    for (size_t i = 0; i < o.readers; i++) {
        slowest = r[i].seconds > slowest ? r[i].seconds : slowest;
    }
    if (rc == 0) {
        report(r, o.readers, slowest);
    }
    free(r);
    return rc;
}

static int cmd_first(void)
{
    struct reader r = {0};
    char *buf = malloc(o.block);
    double start;
    int fd;

    if (!buf) {
        return fail("start", ENOMEM);
    }
    memset(buf, 0, o.block);
    start = bench_now();
    fd = open(o.files[0], O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, buf, o.block, (off_t)o.from);
    r.first_s = bench_now() - start;
    free(buf);
    if (n <= 0) {
        return fail(o.files[0], n < 0 ? errno : ENODATA);
    }
    close(fd);
    r.bytes = (uint64_t)n;
    r.reads = 1;
    report(&r, 1, r.first_s);
    return 0;
}

static int cmd_many(void)
{
    struct reader r[POOL] = {0};
    struct stat st;
    double start = bench_now();
    int rc = 0;
    size_t opened = 0;

    handles = calloc(o.readers, sizeof(*handles));
    if (!handles) {
        return fail("start", ENOMEM);
    }
    file_size = UINT64_MAX;
    for (; opened < o.readers && rc == 0; opened++) {
        const char *file = o.files[opened % o.file_count];
        handles[opened] = open(file, O_RDONLY | O_CLOEXEC);
        if (handles[opened] < 0 || fstat(handles[opened], &st) != 0) {
            rc = fail(file, errno);
            break;
        }
        file_size = (uint64_t)st.st_size < file_size ? (uint64_t)st.st_size : file_size;
    }
    if (rc == 0) {
        puts("open");
        fflush(stdout);
        hold_until = bench_now() + o.hold;
        for (int i = 0; i < POOL; i++) {
            r[i].err = i; /* The thread's number on the way in. */
        }
        rc = run_threads(r, POOL, many_main);
    }
    if (rc == 0) {
        report(r, POOL, bench_now() - start);
    }
    for (size_t i = 0; i < opened; i++) {
        close(handles[i]);
    }
    free(handles);
    return rc;
}

static bool parse(int argc, char **argv)
{
    enum { BLOCK = 1, FROM, BYTES, READERS, REPEAT, HOLD, SENDFILE };
    static const struct option longs[] = {
        {"block", required_argument, NULL, BLOCK},   {"from", required_argument, NULL, FROM},
        {"bytes", required_argument, NULL, BYTES},   {"readers", required_argument, NULL, READERS},
        {"repeat", required_argument, NULL, REPEAT}, {"hold", required_argument, NULL, HOLD},
        {"sendfile", no_argument, NULL, SENDFILE},   {0},
    };
    uint64_t *sizes[] = {[BLOCK] = &o.block,
                         [FROM] = &o.from,
                         [BYTES] = &o.bytes,
                         [READERS] = &o.readers,
                         [REPEAT] = &o.repeat};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == HOLD) {
            o.hold = strtod(optarg, NULL);
        } else if (c == SENDFILE) {
            o.sendfile = true;
        } else if (c < BLOCK || c > REPEAT || !bench_size(optarg, sizes[c])) {
            return false;
        }
    }
    return argc - optind >= 2 && o.block > 0 && o.readers > 0 && o.readers <= MAX_READERS;
}

int main(int argc, char **argv)
{
    const char *cmd;

    if (parse(argc, argv)) {
        cmd = argv[optind];
        o.files = argv + optind + 1;
        o.file_count = (unsigned)(argc - optind - 1);
        if (strcmp(cmd, "seq") == 0 || strcmp(cmd, "together") == 0) {
            o.readers = strcmp(cmd, "seq") == 0 ? 1 : o.readers;
            return cmd_together();
        }
        if (strcmp(cmd, "first") == 0) {
            return cmd_first();
        }
        if (strcmp(cmd, "many") == 0) {
            return cmd_many();
        }
    }
    fputs("usage: readbench seq|first|together|many FILE... [--block B] [--from OFF] [--bytes N]\n"
          "                 [--readers R] [--repeat N] [--hold S] [--sendfile]\n",
          stderr);
    return 2;
}
