/* pageversions.c: readers never see less than what a write of before them was acknowledged for.
 *
 *   pageversions FILE SECONDS SEED
 *
 * A file of 256 pages, each filled with its version. Two processes write (each its own pages: the next version, then it is
 * "acknowledged" in shared memory), three read: with read(2), with O_DIRECT, through a shared mapping. A version below the
 * acknowledged one of before the read, above the submitted one of after it, or two in one page, is printed and counts. In the
 * end every page must have its last version, both ways of reading. Exit: 0, 1 something was wrong, 2 usage or an error. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 256, PAGE = 4096, WORDS = PAGE / 4, WRITERS = 2, READERS = 3 };

struct shared {
    _Atomic unsigned acked[PAGES], submitted[PAGES];
    _Atomic unsigned long reads, writes, wrong;
};

static struct shared *all;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "pageversions: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static time_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static void writer(int fd, unsigned *buf, unsigned which, time_t end)
{
    for (unsigned n = 1; now() < end; n++) {
        unsigned page = (unsigned)rand() % (PAGES / WRITERS) * WRITERS + which;
        unsigned version = all->acked[page] + 1;
        for (unsigned k = 0; k < WORDS; k++)
            buf[k] = version;
        all->submitted[page] = version;
        if (pwrite(fd, buf, PAGE, (off_t)page * PAGE) != PAGE)
            die("pwrite");
        all->acked[page] = version;
        all->writes++;
        if (which == 0 && n % 50 == 0 && fsync(fd))
            die("fsync");
        if (n % 10 == 0)
            usleep(2000);
    }
}

static void judge(const char *how, unsigned page, const unsigned *words, unsigned least)
{
    unsigned first = words[0], last = words[WORDS - 1], most = all->submitted[page];
    bool mixed = false;
    for (unsigned k = 0; how[0] != 'm' && k < WORDS; k++) /* a mapping changes while one looks */
        mixed |= words[k] != first;
    all->reads++;
    if (mixed || first < least || first > most || last < least) {
        all->wrong++;
        printf("%s: page %u has %u to %u, acknowledged %u, submitted %u\n", how, page, first, last,
               least, most);
    }
}

static void reader(int fd, unsigned *buf, const unsigned *map, const char *how, time_t end)
{
    while (now() < end) {
        unsigned page = (unsigned)rand() % PAGES, least = all->acked[page];
        if (!map && pread(fd, buf, PAGE, (off_t)page * PAGE) != PAGE)
            die("pread");
        judge(how, page, map ? map + (size_t)page * WORDS : buf, least);
        usleep(300);
    }
}

static void child(const char *path, unsigned k, unsigned seed, time_t end)
{
    static const char *const how[READERS] = {"read", "direct", "mapped"};
    bool direct = k == WRITERS + 1, mapped = k == WRITERS + 2;
    unsigned *buf;
    srand(seed + k);
    int fd = open(path, O_RDWR | (direct ? O_DIRECT : 0));
    if (fd < 0 || posix_memalign((void **)&buf, PAGE, PAGE))
        die(path);
    unsigned *map = mapped ? mmap(NULL, (size_t)PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (map == MAP_FAILED)
        die("mmap");
    if (k < WRITERS)
        writer(fd, buf, k, end);
    else
        reader(fd, buf, map, how[k - WRITERS], end);
    _exit(0);
}

static void settled(const char *path, int flags, const char *how)
{
    unsigned *buf;
    int fd = open(path, O_RDONLY | flags);
    if (fd < 0 || posix_memalign((void **)&buf, PAGE, PAGE))
        die(path);
    for (unsigned page = 0; page < PAGES; page++) {
        if (pread(fd, buf, PAGE, (off_t)page * PAGE) != PAGE)
            die("pread");
        judge(how, page, buf, all->acked[page]);
    }
    free(buf);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 4 || atoi(argv[2]) <= 0) {
        fprintf(stderr, "usage: pageversions FILE SECONDS SEED\n");
        return 2;
    }
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (all == MAP_FAILED || fd < 0 || ftruncate(fd, (off_t)PAGES * PAGE))
        die(argv[1]);
    close(fd);
    setvbuf(stdout, NULL, _IOLBF, 0);
    time_t end = now() + atoi(argv[2]);
    for (unsigned k = 0; k < WRITERS + READERS; k++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0)
            child(argv[1], k, (unsigned)atoi(argv[3]), end);
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    settled(argv[1], 0, "read in the end");
    settled(argv[1], O_DIRECT, "direct in the end");
    printf("%lu writes, %lu reads, %lu wrong\n", all->writes, all->reads, all->wrong);
    return failed ? 2 : all->wrong ? 1 : 0;
}
