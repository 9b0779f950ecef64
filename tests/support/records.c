/* records.c: writes, follows and checks a stream of records that is known from its seed.
 *
 *   records write  FILE --seed S --bytes N [--ack A] [--sync N] [--chunk B] [--rate B/s] [--resume]
 *                       [--retry SECONDS]
 *   records follow FILE --seed S --timeout SECONDS (--until BYTES | --until-ack A) [--from OFF]
 *                       [--strict-ack] [--reopen]
 *   records verify FILE --seed S [--bytes N] [--ack A [--synced]] [--from OFF] [--length N]
 *   records gen         --seed S --bytes N [--from OFF]
 *
 * The stream of a seed is endless and the same everywhere: record after record of a 24 byte header
 * {magic u32, length u32, seq u64, xxh3-64 u64 of the rest with the hash as 0}, little-endian, then
 * a payload without a zero byte. A record is 64..8192 bytes long, drawn from seed and seq. A file is
 * right when it is a prefix of the stream, so the place in a file tells every byte that follows, a
 * cut record is no special case, and a resumed writer needs nothing but the file's length.
 *
 * `write` appends with O_APPEND, one record (or --chunk bytes) a write(), and after each write()
 * that returned raises `acked` in the ack file; after each fdatasync (every --sync writes and at
 * the end) `synced`. The ack file is a shared mapping that lives outside of what is tested: what was stored
 * there survives the kill of the writer and of the file system. `done` is set when N is reached.
 *
 * `follow` reads behind the writer and fails at the first byte that is not the stream's. With
 * --strict-ack a byte that was acknowledged before the read started must be there.
 *
 * Exit: 0 as promised, 1 the bytes are wrong or missing (the offset is named), 2 usage, 3 a system
 * call failed, 4 out of time. One thread, no locks.
 */
#include "tests/support/recstream.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20 };
enum { OK = 0, WRONG = 1, USAGE = 2, FAILED = 3, LATE = 4 };
static const uint64_t ack_magic = 0x314B43414C53u; /* "SLACK1" */
static const uint64_t no_limit = UINT64_MAX;

struct ack {
    uint64_t magic;
    _Atomic uint64_t acked;
    _Atomic uint64_t synced;
    _Atomic uint64_t done;
};

struct options {
    const char *file;
    uint64_t seed, bytes, from, length, sync, chunk, rate;
    double timeout, retry;
    const char *ack_path;
    bool resume, strict_ack, reopen, synced, until_ack;
};

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void sleep_s(double s)
{
    struct timespec ts = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};

    nanosleep(&ts, NULL);
}

/* Says what is wrong on standard error; the value is the exit status to return. */
#define complain(status, ...) \
    (fputs("records: ", stderr), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), (status))

static size_t zero_run(const uint8_t *p, size_t len)
{
    size_t n = 0;

    while (n < len && p[n] == 0) {
        n++;
    }
    return n;
}

/* Compares what was read at the stream's place with the stream and moves on. OK or WRONG. */
static int stream_check(struct stream *s, const uint8_t *got, size_t n)
{
    while (n > 0) {
        size_t part, i = 0;
        const uint8_t *want = stream_peek(s, &part);
        if (part > n) {
            part = n;
        }
        if (memcmp(want, got, part) != 0) {
            while (want[i] == got[i]) {
                i++;
            }
            return complain(WRONG,
                            "wrong byte at offset %" PRIu64 " (record %" PRIu64 " byte %" PRIu32
                            "): 0x%02x, expected 0x%02x; zeros from there in this read: %zu",
                            s->offset + i, s->seq, s->at + (uint32_t)i, got[i], want[i],
                            zero_run(got + i, n - i));
        }
        stream_skip(s, part);
        got += part;
        n -= part;
    }
    return OK;
}

/* Maps the ack file; a writer creates and starts it anew unless it resumes. NULL: errno. */
static struct ack *ack_open(const char *path, bool writer, bool resume)
{
    int fd = open(path, writer ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDWR | O_CLOEXEC, 0644);
    struct ack *a = MAP_FAILED;

    if (fd < 0) {
        return NULL;
    }
    if (!writer || ftruncate(fd, sizeof(*a)) == 0) {
        a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (a == MAP_FAILED) {
        return NULL;
    }
    if (writer && !(resume && a->magic == ack_magic)) {
        atomic_store(&a->acked, 0);
        atomic_store(&a->synced, 0);
        a->magic = ack_magic;
    }
    if (writer) {
        atomic_store(&a->done, 0);
    }
    return a;
}

/* A follower may start before its writer. */
static struct ack *ack_wait(const char *path, double deadline)
{
    struct stat st;

    for (;;) {
        if (stat(path, &st) == 0 && st.st_size >= (off_t)sizeof(struct ack)) {
            struct ack *a = ack_open(path, false, false);
            if (a && a->magic == ack_magic) {
                return a;
            }
            if (a) {
                munmap(a, sizeof(*a));
            }
        }
        if (now_s() > deadline) {
            return NULL;
        }
        sleep_s(0.01);
    }
}

/* ---- write ---- */

struct writer {
    const struct options *o;
    struct stream s;
    struct ack *ack;
    uint8_t *buf;
    uint64_t unsynced;
    int fd;
};

/* The file's length is the writer's place. The bytes of the record it was cut in are checked. */
static int writer_open(struct writer *w)
{
    const struct options *o = w->o;
    uint8_t tail[RECORD_MAX];
    struct stat st;
    ssize_t n;

    w->fd = open(o->file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (o->resume ? 0 : O_EXCL), 0644);
    if (w->fd < 0 || fstat(w->fd, &st) != 0) {
        return FAILED;
    }
    stream_seek(&w->s, o->seed, (uint64_t)st.st_size);
    if (w->ack && w->s.offset < atomic_load(&w->ack->acked)) {
        return complain(WRONG, "%s ends at %" PRIu64 ", %" PRIu64 " bytes were acknowledged",
                        o->file, w->s.offset, atomic_load(&w->ack->acked));
    }
    if (w->s.at > 0) {
        n = pread(w->fd, tail, w->s.at, (off_t)(w->s.offset - w->s.at));
        if (n < 0) {
            return FAILED;
        }
        if ((uint32_t)n != w->s.at || memcmp(tail, w->s.rec, w->s.at) != 0) {
            return complain(WRONG, "the record before the end at %" PRIu64 " is not the stream's",
                            w->s.offset);
        }
    }
    return OK;
}

static int writer_sync(struct writer *w)
{
    if (fdatasync(w->fd) != 0) {
        return FAILED;
    }
    w->unsynced = 0;
    if (w->ack) {
        atomic_store(&w->ack->synced, w->s.offset);
    }
    return OK;
}

static int write_once(struct writer *w)
{
    const struct options *o = w->o;
    struct stream before = w->s;
    size_t n = w->s.len - w->s.at;
    ssize_t written;

    if (o->chunk) {
        n = o->chunk;
    }
    if (n > o->bytes - w->s.offset) {
        n = o->bytes - w->s.offset;
    }
    stream_take(&w->s, w->buf, n);
    written = write(w->fd, w->buf, n);
    if (written < 0) {
        w->s = before;
        return FAILED;
    }
    if ((size_t)written < n) {
        stream_seek(&w->s, o->seed, before.offset + (uint64_t)written);
    }
    if (w->ack) {
        atomic_store(&w->ack->acked, w->s.offset);
    }
    if (o->sync && ++w->unsynced >= o->sync) {
        return writer_sync(w);
    }
    return OK;
}

static int write_all(struct writer *w)
{
    const struct options *o = w->o;
    double start = now_s();
    uint64_t first = w->s.offset;
    int rc = OK;

    while (rc == OK && w->s.offset < o->bytes) {
        rc = write_once(w);
        if (o->rate) {
            double ahead = (double)(w->s.offset - first) / (double)o->rate - (now_s() - start);
            if (ahead > 0) {
                sleep_s(ahead);
            }
        }
    }
    return rc == OK && o->sync ? writer_sync(w) : rc;
}

/* A failed call is retried on a new descriptor from the file's real end: a write that failed may
 * have left some of its bytes. */
static int cmd_write(const struct options *o)
{
    struct options local = *o;
    struct writer w = {.o = &local, .fd = -1};
    double give_up = 0;
    int rc;

    w.buf = malloc(o->chunk > RECORD_MAX ? o->chunk : RECORD_MAX);
    if (!w.buf) {
        return complain(FAILED, "no memory");
    }
    if (o->ack_path && !(w.ack = ack_open(o->ack_path, true, o->resume))) {
        free(w.buf);
        return complain(FAILED, "%s: %s", o->ack_path, strerror(errno));
    }
    for (;;) {
        uint64_t before = w.s.offset;
        rc = writer_open(&w);
        if (rc == OK) {
            local.resume = true; /* The file exists now. */
            rc = write_all(&w);
        }
        int err = errno;
        if (w.fd >= 0) {
            if (close(w.fd) != 0 && rc == OK) {
                err = errno;
                rc = FAILED;
            }
            w.fd = -1;
        }
        if (rc != FAILED) {
            break;
        }
        if (give_up == 0 || w.s.offset > before) {
            give_up = now_s() + o->retry;
        }
        if (now_s() >= give_up) {
            rc = complain(FAILED, "%s: %s at offset %" PRIu64, o->file, strerror(err), w.s.offset);
            break;
        }
        sleep_s(0.02);
    }
    if (rc == OK && w.ack) {
        atomic_store(&w.ack->done, 1);
    }
    free(w.buf);
    return rc;
}

/* ---- follow and verify ---- */

static int open_for_reading(const struct options *o, double deadline)
{
    int fd;

    if (strcmp(o->file, "-") == 0) {
        return dup(STDIN_FILENO);
    }
    while ((fd = open(o->file, O_RDONLY | O_CLOEXEC)) < 0 && now_s() < deadline) {
        sleep_s(0.005);
    }
    if (fd >= 0 && o->from && lseek(fd, (off_t)o->from, SEEK_SET) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool followed_enough(const struct options *o, const struct ack *ack, uint64_t offset)
{
    if (o->until_ack) {
        return atomic_load(&ack->done) && offset >= atomic_load(&ack->acked);
    }
    return offset >= o->bytes;
}

static int follow_fd(const struct options *o, struct ack *ack, struct stream *s, int *fd,
                     uint8_t *buf, double deadline)
{
    while (!followed_enough(o, ack, s->offset)) {
        uint64_t acked = ack ? atomic_load(&ack->acked) : 0;
        ssize_t n = read(*fd, buf, BUFFER);

        if (n > 0) {
            if (stream_check(s, buf, (size_t)n) != OK) {
                return WRONG;
            }
            continue;
        }
        if (n == 0 && o->strict_ack && s->offset < acked) {
            return complain(WRONG, "end of file at %" PRIu64 ", but %" PRIu64 " were acknowledged",
                            s->offset, acked);
        }
        if (n < 0 && !o->reopen) {
            return complain(FAILED, "%s: %s at offset %" PRIu64, o->file, strerror(errno),
                            s->offset);
        }
        if (now_s() > deadline) {
            return complain(LATE,
                            "still at %" PRIu64 " when time ran out (acknowledged %" PRIu64 ")",
                            s->offset, acked);
        }
        if (n < 0) {
            struct options at = *o;
            at.from = s->offset;
            close(*fd);
            *fd = open_for_reading(&at, deadline);
            if (*fd < 0) {
                return complain(LATE, "%s: cannot be opened again: %s", o->file, strerror(errno));
            }
        }
        sleep_s(0.002);
    }
    return OK;
}

static int cmd_follow(const struct options *o)
{
    double deadline = now_s() + o->timeout;
    struct ack *ack = NULL;
    struct stream s;
    uint8_t *buf;
    int fd, rc;

    if (o->ack_path && !(ack = ack_wait(o->ack_path, deadline))) {
        return complain(LATE, "%s: no ack file", o->ack_path);
    }
    fd = open_for_reading(o, deadline);
    if (fd < 0) {
        return complain(FAILED, "%s: %s", o->file, strerror(errno));
    }
    buf = malloc(BUFFER);
    if (!buf) {
        close(fd);
        return complain(FAILED, "no memory");
    }
    stream_seek(&s, o->seed, o->from);
    rc = follow_fd(o, ack, &s, &fd, buf, deadline);
    if (rc == OK) {
        printf("followed to %" PRIu64 "\n", s.offset);
    }
    free(buf);
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

static int verify_length(const struct options *o, const struct ack *ack, uint64_t end)
{
    uint64_t promised = 0;

    if (ack) {
        promised = atomic_load(o->synced ? &ack->synced : &ack->acked);
    }
    if (end < promised) {
        return complain(WRONG, "%s ends at %" PRIu64 ", %" PRIu64 " bytes were %s", o->file, end,
                        promised, o->synced ? "synced" : "acknowledged");
    }
    if (o->bytes != no_limit && o->length == no_limit && end != o->bytes) {
        return complain(WRONG, "%s ends at %" PRIu64 ", expected %" PRIu64, o->file, end, o->bytes);
    }
    if (o->length != no_limit && end != o->from + o->length) {
        return complain(WRONG, "%s ends at %" PRIu64 " within the range asked for", o->file, end);
    }
    return OK;
}

static int cmd_verify(const struct options *o)
{
    struct ack *ack = NULL;
    struct stream s;
    uint8_t *buf;
    ssize_t n = 0;
    int rc = OK, fd;

    if (o->ack_path && !(ack = ack_wait(o->ack_path, 0))) {
        return complain(FAILED, "%s: no ack file", o->ack_path);
    }
    fd = open_for_reading(o, 0);
    if (fd < 0) {
        return complain(FAILED, "%s: %s", o->file, strerror(errno));
    }
    buf = malloc(BUFFER);
    if (!buf) {
        close(fd);
        return complain(FAILED, "no memory");
    }
    stream_seek(&s, o->seed, o->from);
    while (rc == OK) {
        uint64_t left = o->length == no_limit ? BUFFER : o->from + o->length - s.offset;
        n = read(fd, buf, left < BUFFER ? left : BUFFER);
        if (n <= 0) {
            break;
        }
        rc = stream_check(&s, buf, (size_t)n);
    }
    if (n < 0) {
        rc = complain(FAILED, "%s: %s at offset %" PRIu64, o->file, strerror(errno), s.offset);
    }
    if (rc == OK) {
        rc = verify_length(o, ack, s.offset);
    }
    if (rc == OK) {
        printf("verified to %" PRIu64 "\n", s.offset);
    }
    free(buf);
    close(fd);
    return rc;
}

static int cmd_gen(const struct options *o)
{
    uint64_t left = o->bytes;
    struct stream s;
    uint8_t *buf = malloc(BUFFER);
    int rc = OK;

    if (!buf) {
        return complain(FAILED, "no memory");
    }
    stream_seek(&s, o->seed, o->from);
    while (left > 0) {
        size_t n = left < BUFFER ? left : BUFFER;
        stream_take(&s, buf, n);
        if (fwrite(buf, 1, n, stdout) != n) {
            break;
        }
        left -= n;
    }
    if (left > 0 || fflush(stdout) != 0) {
        rc = complain(FAILED, "stdout: %s", strerror(errno));
    }
    free(buf);
    return rc;
}

/* ---- command line ---- */

static int usage(void)
{
    return complain(USAGE, "usage: records write|follow|verify|gen [FILE] --seed S ... "
                           "(the file's head says the rest)");
}

/* A number with an optional K, M or G (powers of 1024). */
static bool parse_size(const char *text, uint64_t *out)
{
    char *end;
    uint64_t v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || errno != 0 || text[0] == '-') {
        return false;
    }
    switch (*end) {
    case 'G':
        v <<= 10;
        /* fall through */
    case 'M':
        v <<= 10;
        /* fall through */
    case 'K':
        v <<= 10;
        end++;
        break;
    default:
        break;
    }
    *out = v;
    return *end == '\0';
}

static bool parse(int argc, char **argv, struct options *o)
{
    enum {
        SEED = 1,
        BYTES,
        FROM,
        LENGTH,
        SYNC,
        CHUNK,
        RATE,
        TIMEOUT,
        RETRY,
        ACK,
        UNTIL_ACK,
        RESUME,
        STRICT,
        REOPEN,
        SYNCED
    };
    static const struct option longs[] = {
        {"seed", required_argument, NULL, SEED},
        {"bytes", required_argument, NULL, BYTES},
        {"until", required_argument, NULL, BYTES},
        {"from", required_argument, NULL, FROM},
        {"length", required_argument, NULL, LENGTH},
        {"sync", required_argument, NULL, SYNC},
        {"chunk", required_argument, NULL, CHUNK},
        {"rate", required_argument, NULL, RATE},
        {"timeout", required_argument, NULL, TIMEOUT},
        {"retry", required_argument, NULL, RETRY},
        {"ack", required_argument, NULL, ACK},
        {"until-ack", required_argument, NULL, UNTIL_ACK},
        {"resume", no_argument, NULL, RESUME},
        {"strict-ack", no_argument, NULL, STRICT},
        {"reopen", no_argument, NULL, REOPEN},
        {"synced", no_argument, NULL, SYNCED},
        {0},
    };
    uint64_t *sizes[] = {
        [SEED] = &o->seed, [BYTES] = &o->bytes, [FROM] = &o->from, [LENGTH] = &o->length,
        [SYNC] = &o->sync, [CHUNK] = &o->chunk, [RATE] = &o->rate};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case TIMEOUT:
            o->timeout = strtod(optarg, NULL);
            break;
        case RETRY:
            o->retry = strtod(optarg, NULL);
            break;
        case UNTIL_ACK:
            o->until_ack = true;
            /* fall through */
        case ACK:
            o->ack_path = optarg;
            break;
        case RESUME:
            o->resume = true;
            break;
        case STRICT:
            o->strict_ack = true;
            break;
        case REOPEN:
            o->reopen = true;
            break;
        case SYNCED:
            o->synced = true;
            break;
        default:
            if (c < SEED || c > RATE || !parse_size(optarg, sizes[c])) {
                return false;
            }
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.bytes = no_limit, .length = no_limit, .timeout = 60};
    const char *cmd;

    if (!parse(argc, argv, &o) || optind >= argc) {
        return usage();
    }
    cmd = argv[optind];
    if (strcmp(cmd, "gen") == 0) {
        return optind + 1 == argc && o.bytes != no_limit ? cmd_gen(&o) : usage();
    }
    if (optind + 2 != argc) {
        return usage();
    }
    o.file = argv[optind + 1];
    if (strcmp(cmd, "write") == 0) {
        return o.bytes != no_limit ? cmd_write(&o) : usage();
    }
    if (strcmp(cmd, "follow") == 0) {
        bool has_end = o.until_ack || o.bytes != no_limit;
        return has_end && !(o.strict_ack && !o.ack_path) ? cmd_follow(&o) : usage();
    }
    return strcmp(cmd, "verify") == 0 ? cmd_verify(&o) : usage();
}
