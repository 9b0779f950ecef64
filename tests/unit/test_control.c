/* The control socket against clients of every kind: commands, a status while all else hangs, clients
 * that hang up, send rubbish, half a frame or too much, too many of them, and the end of the server. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/ctlproto.h"
#include "fs/base/hash.h"
#include "fs/base/lock.h"
#include "fs/volume/control.h"

enum { WAIT_MS = 10000 };

/* ---- a volume that does what the test says ---- */

struct world {
    char dir[256];
    int dirfd;
    struct control *c;
    pthread_mutex_t mu;
    struct tier_cmd *held[64]; /* commands that have not been answered */
    unsigned held_n, cancels, stops, handovers;
    bool alone; /* no daemon could take over */
    bool answer_at_once;
    size_t document; /* bytes */
};
static struct world w;

static int fake_status(void *ctx, FILE *f)
{
    (void)ctx;
    cr_expect(lock_none_mine());
    for (size_t i = 0; i < w.document; i++)
        fputc('a' + (int)(i % 26), f);
    return 0;
}

static int fake_inode(void *ctx, uint64_t ino, FILE *f)
{
    (void)ctx;
    if (ino == 404)
        return -ENOENT;
    fprintf(f, "inode %llu", (unsigned long long)ino);
    return 0;
}

static void fake_command(void *ctx, struct tier_cmd *c)
{
    (void)ctx;
    cr_expect(lock_none_mine());
    if (w.answer_at_once) {
        c->progress(c, 5, 10);
        c->done(c, c->ino == 13 ? -EIO : 0, c->ino == 13 ? "the store\nis down" : "");
        return;
    }
    pthread_mutex_lock(&w.mu);
    w.held[w.held_n++] = c;
    pthread_mutex_unlock(&w.mu);
}

static void fake_cancel(void *ctx, struct tier_cmd *c)
{
    (void)ctx;
    pthread_mutex_lock(&w.mu);
    w.cancels++;
    bool held = false;
    for (unsigned k = 0; k < w.held_n; k++) {
        if (w.held[k] != c)
            continue;
        w.held[k] = w.held[--w.held_n];
        held = true;
        break;
    }
    pthread_mutex_unlock(&w.mu);
    if (held)
        c->done(c, -ECANCELED, "given up");
}

static bool fake_hand_over(void *ctx, bool now)
{
    cr_expect_eq(ctx, &w.stops);
    pthread_mutex_lock(&w.mu);
    bool can = !w.alone;
    w.handovers += now;
    pthread_mutex_unlock(&w.mu);
    return can;
}

static int fake_reload(void *ctx, char *text, size_t cap)
{
    (void)ctx;
    cr_expect(lock_none_mine());
    snprintf(text, cap, w.alone ? "f.ini:3: x: there is no such setting; write y" : "2 sections");
    return w.alone ? -EINVAL : 0;
}

static void fake_stop(void *ctx)
{
    cr_expect_eq(ctx, &w.stops);
    pthread_mutex_lock(&w.mu);
    w.stops++;
    pthread_mutex_unlock(&w.mu);
}

static unsigned read_u(unsigned *v)
{
    pthread_mutex_lock(&w.mu);
    unsigned n = *v;
    pthread_mutex_unlock(&w.mu);
    return n;
}

static void wait_until(unsigned *v, unsigned want)
{
    int64_t until = clock_mono_ns() + WAIT_MS * NS_PER_MS;
    while (read_u(v) != want && clock_mono_ns() < until)
        usleep(1000);
    cr_assert_eq(read_u(v), want);
}

static void start(void)
{
    w = (struct world){.document = 100};
    pthread_mutex_init(&w.mu, NULL);
    snprintf(w.dir, sizeof(w.dir), "/tmp/sluice-control-XXXXXX");
    cr_assert(mkdtemp(w.dir));
    w.dirfd = open(w.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct control_ops ops = {.status = fake_status,
                              .inode = fake_inode,
                              .command = fake_command,
                              .cancel = fake_cancel,
                              .reload = fake_reload,
                              .stop = fake_stop,
                              .hand_over = fake_hand_over};
    cr_assert_eq(control_open(w.dirfd, &ops, &w.stops, &w.c), 0);
}

static void finish(void)
{
    control_close(w.c);
    close(w.dirfd);
    cr_expect_eq(rmdir(w.dir), 0, "the socket was left behind");
}

TestSuite(control, .init = start, .fini = finish, .timeout = 60);

/* ---- clients ---- */

static int64_t soon(void)
{
    return clock_mono_ns() + WAIT_MS * NS_PER_MS;
}

static int dial(void)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/control.sock", w.dir);
    int fd = ctl_connect(path);
    cr_assert(fd >= 0, "connect: %s", strerror(-fd));
    return fd;
}

static void say(int fd, const char *request)
{
    cr_assert_eq(ctl_send(fd, CTL_REQUEST, request, strlen(request), soon(), -1), 0);
}

/* Reads to the RESULT, which is copied to `text`; returns its exit code. */
static int hear(int fd, char *text, size_t cap, size_t *data, unsigned *progress)
{
    for (;;) {
        struct ctl_frame f;
        int err = ctl_recv(fd, &f, soon(), -1);
        cr_assert_eq(err, 0, "no answer: %s", strerror(-err));
        if (f.type == CTL_DATA && data)
            *data += f.len;
        if (f.type == CTL_PROGRESS && progress)
            ++*progress;
        if (f.type != CTL_RESULT) {
            free(f.body);
            continue;
        }
        snprintf(text, cap, "%s", f.body);
        free(f.body);
        return atoi(text);
    }
}

static int ask(const char *request, char *text, size_t cap)
{
    int fd = dial();
    say(fd, request);
    int code = hear(fd, text, cap, NULL, NULL);
    struct ctl_frame f;
    cr_expect_eq(ctl_recv(fd, &f, soon(), -1), -ENODATA, "the server ends the connection");
    close(fd);
    return code;
}

/* ---- what it is for ---- */

Test(control, a_document_arrives_whole_however_long)
{
    static const size_t sizes[] = {0, 1, 256 * 1024, 256 * 1024 + 1, 5 * 1024 * 1024};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char text[200];
        size_t got = 0;
        w.document = sizes[i];
        int fd = dial();
        say(fd, "status");
        cr_expect_eq(hear(fd, text, sizeof(text), &got, NULL), 0, "%s", text);
        cr_expect_eq(got, sizes[i]);
        close(fd);
    }
}

Test(control, a_file_that_has_gone_is_said)
{
    char text[200];
    cr_expect_eq(ask("inode 404", text, sizeof(text)), 1);
    cr_expect(strstr(text, "404 the file has gone"), "%s", text);
    cr_expect_eq(ask("inode 5", text, sizeof(text)), 0);
}

Test(control, a_command_ends_with_the_result_and_names_the_file_that_failed)
{
    char text[300];
    w.answer_at_once = true;
    cr_expect_eq(ask("seal 5 6 7", text, sizeof(text)), 0);
    cr_expect_eq(ask("upload 5 13 7", text, sizeof(text)), 1);
    cr_expect_str_eq(text, "1 13 the store is down");
}

Test(control, progress_is_the_sum_over_all_files)
{
    int fd = dial();
    struct ctl_frame f;
    say(fd, "warm 5 6");
    wait_until(&w.held_n, 2);
    w.held[0]->progress(w.held[0], 10, 100);
    w.held[1]->progress(w.held[1], 20, 200);
    bool sum = false;
    while (!sum) {
        cr_assert_eq(ctl_recv(fd, &f, soon(), -1), 0);
        cr_assert_eq(f.type, CTL_PROGRESS);
        sum = !strcmp(f.body, "30 300");
        free(f.body);
    }
    struct tier_cmd *a = w.held[0], *b = w.held[1];
    w.held_n = 0;
    a->done(a, 0, "");
    b->done(b, 0, "");
    char text[200];
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, NULL), 0);
    close(fd);
}

Test(control, many_reports_of_progress_become_few_frames)
{
    int fd = dial();
    unsigned frames = 0;
    char text[200];
    say(fd, "upload 5");
    wait_until(&w.held_n, 1);
    struct tier_cmd *c = w.held[0];
    w.held_n = 0;
    int64_t begin = clock_mono_ns();
    for (uint64_t k = 1; k <= 100000; k++)
        c->progress(c, k, 100000);
    c->done(c, 0, "");
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, &frames), 0);
    int64_t tenths = (clock_mono_ns() - begin) / (100 * NS_PER_MS);
    cr_expect_leq(frames, 2 + tenths, "%u frames in %lld tenths", frames, (long long)tenths);
    close(fd);
}

Test(control, a_client_that_hangs_up_gives_its_command_up)
{
    int fd = dial();
    say(fd, "upload 5 6 7");
    wait_until(&w.held_n, 3);
    close(fd);
    wait_until(&w.cancels, 3);
    wait_until(&w.held_n, 0);
}

Test(control, a_client_that_shuts_its_side_still_hears_how_it_ended)
{
    int fd = dial();
    char text[200];
    say(fd, "evict 5");
    wait_until(&w.held_n, 1);
    shutdown(fd, SHUT_WR);
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, NULL), 1);
    cr_expect_str_eq(text, "1 5 given up");
    close(fd);
}

Test(control, a_status_is_answered_while_commands_hang)
{
    int fd[CONTROL_COMMANDS_MAX];
    char text[200];
    for (unsigned k = 0; k < CONTROL_COMMANDS_MAX; k++) {
        fd[k] = dial();
        say(fd[k], "upload 5");
    }
    wait_until(&w.held_n, CONTROL_COMMANDS_MAX);
    cr_expect_eq(ask("upload 6", text, sizeof(text)), 4, "one more command than fits");
    int64_t begin = clock_mono_ns();
    cr_expect_eq(ask("status", text, sizeof(text)), 0);
    cr_expect_lt(clock_mono_ns() - begin, 2 * NS_PER_SEC);
    for (unsigned k = 0; k < CONTROL_COMMANDS_MAX; k++)
        close(fd[k]);
    wait_until(&w.cancels, CONTROL_COMMANDS_MAX);
}

Test(control, stop_is_answered_and_passed_on)
{
    char text[200];
    cr_expect_eq(ask("stop", text, sizeof(text)), 0);
    wait_until(&w.stops, 1);
}

Test(control, a_handover_is_answered_and_passed_on)
{
    char text[200];
    cr_expect_eq(ask("handover", text, sizeof(text)), 0);
    wait_until(&w.handovers, 1);
    w.alone = true;
    cr_expect_eq(ask("handover", text, sizeof(text)), 4);
    cr_expect(strchr(text, ';'), "no remedy: %s", text);
    cr_expect_eq(ask("handover 1", text, sizeof(text)), 2);
    cr_expect_eq(read_u(&w.handovers), 1);
}

Test(control, a_reload_says_what_came_of_it)
{
    char text[200];
    cr_expect_eq(ask("reload", text, sizeof(text)), 0);
    cr_expect_str_eq(text, "0 0 2 sections");
    w.alone = true;
    cr_expect_eq(ask("reload", text, sizeof(text)), 2);
    cr_expect(strstr(text, "f.ini:3"), "%s", text);
    cr_expect_eq(ask("reload 1", text, sizeof(text)), 2);
}

/* ---- what it must stand ---- */

Test(control, requests_that_make_no_sense_are_refused)
{
    static const char *const bad[] = {
        "",         " ",        "nonsense", "status 5", "inode",    "inode 5 6",
        "inode 0",  "inode -5", "inode 5x", "inode x",  "seal",     "seal ",
        "seal 5 x", "seal  5",  "stop 1",   "STATUS",   "status\n", "inode 18446744073709551616",
        "seal 5\n", "sealx 5",  "seal\t5",  "inode +5", "\xff\xff", "seal 0x5"};
    char text[300];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        cr_expect_eq(ask(bad[i], text, sizeof(text)), 2, "%s: %s", bad[i], text);
    cr_expect_eq(read_u(&w.held_n), 0);
    cr_expect_eq(read_u(&w.stops), 0);
}

Test(control, the_number_of_files_is_bounded)
{
    char request[16 + (CONTROL_FILES_MAX + 1) * 2 + 1] = "seal", text[200];
    w.answer_at_once = true;
    for (int k = 0; k < CONTROL_FILES_MAX; k++)
        strcat(request, " 5");
    cr_expect_eq(ask(request, text, sizeof(text)), 0);
    strcat(request, " 5");
    cr_expect_eq(ask(request, text, sizeof(text)), 2);
}

static void put_frame(uint8_t *out, uint16_t type, const char *body)
{
    ctl_header_encode(type, body, (uint32_t)strlen(body), out);
    memcpy(out + CTL_HEADER_BYTES, body, strlen(body));
}

Test(control, every_changed_byte_of_a_frame_is_noticed)
{
    uint8_t good[CTL_HEADER_BYTES + 4];
    put_frame(good, CTL_REQUEST, "stop");
    for (size_t at = 0; at < sizeof(good); at++) {
        uint8_t bad[sizeof(good)];
        memcpy(bad, good, sizeof(good));
        bad[at] ^= 0x41;
        int fd = dial();
        cr_assert_eq(write(fd, bad, sizeof(bad)), (ssize_t)sizeof(bad));
        shutdown(fd, SHUT_WR);
        struct ctl_frame f;
        int err = ctl_recv(fd, &f, soon(), -1);
        cr_expect(err == -ENODATA || err == -EPIPE || (!err && f.body[0] == '2'), "byte %zu", at);
        if (!err)
            free(f.body);
        close(fd);
    }
    cr_expect_eq(read_u(&w.stops), 0, "a damaged request was obeyed");
}

Test(control, a_frame_that_claims_too_much_is_refused_before_it_is_read)
{
    uint8_t head[CTL_HEADER_BYTES];
    char text[300];
    ctl_header_encode(CTL_REQUEST, "", 0, head);
    put_le32(head + 8, CTL_BODY_MAX + 1);
    int fd = dial();
    cr_assert_eq(write(fd, head, sizeof(head)), (ssize_t)sizeof(head));
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, NULL), 2);
    close(fd);
}

Test(control, another_version_is_told_so)
{
    uint8_t head[CTL_HEADER_BYTES];
    char text[300];
    ctl_header_encode(CTL_REQUEST, "", 0, head);
    put_le16(head + 4, CTL_VERSION + 1);
    int fd = dial();
    cr_assert_eq(write(fd, head, sizeof(head)), (ssize_t)sizeof(head));
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, NULL), 2);
    cr_expect(strstr(text, "version"), "%s", text);
    close(fd);
}

Test(control, half_a_request_is_given_up_after_its_time)
{
    uint8_t frame[CTL_HEADER_BYTES + 6];
    put_frame(frame, CTL_REQUEST, "status");
    int fd = dial();
    cr_assert_eq(write(fd, frame, sizeof(frame) - 1), (ssize_t)sizeof(frame) - 1);
    int64_t begin = clock_mono_ns();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    cr_expect_eq(poll(&p, 1, CONTROL_REQUEST_MS + WAIT_MS), 1);
    int64_t ms = (clock_mono_ns() - begin) / NS_PER_MS;
    cr_expect(ms >= CONTROL_REQUEST_MS - 100, "given up after %lld ms", (long long)ms);
    close(fd);
}

Test(control, rubbish_of_all_kinds_leaves_the_server_well)
{
    uint64_t seed = 42;
    char text[200];
    for (int round = 0; round < 300; round++) {
        uint8_t buf[256];
        for (size_t i = 0; i < sizeof(buf); i++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            buf[i] = (uint8_t)(seed >> 56);
        }
        size_t len = buf[0];
        if (round % 3 == 1) /* a good header, a wrong length or body behind it */
            ctl_header_encode((uint16_t)(buf[1] % 6), buf + CTL_HEADER_BYTES,
                              buf[2] % (sizeof(buf) - CTL_HEADER_BYTES), buf);
        if (round % 3 == 2)
            put_frame(buf, CTL_REQUEST, "inode 5");
        int fd = dial();
        (void)!write(fd, buf, len);
        if (round % 2)
            shutdown(fd, SHUT_WR);
        close(fd);
    }
    /* All of them go away by themselves. */
    int64_t until = soon();
    int code;
    while ((code = ask("status", text, sizeof(text))) == 4 && clock_mono_ns() < until)
        usleep(5000);
    cr_expect_eq(code, 0, "%s", text);
    cr_expect_eq(read_u(&w.stops), 0);
}

Test(control, more_clients_than_fit_are_turned_away_and_those_inside_stay)
{
    int fd[CONTROL_CONNECTIONS_MAX];
    char text[200];
    for (unsigned k = 0; k < CONTROL_CONNECTIONS_MAX; k++)
        fd[k] = dial();
    int extra = dial();
    cr_expect_eq(hear(extra, text, sizeof(text), NULL, NULL), 4);
    close(extra);
    say(fd[0], "status");
    cr_expect_eq(hear(fd[0], text, sizeof(text), NULL, NULL), 0);
    for (unsigned k = 0; k < CONTROL_CONNECTIONS_MAX; k++)
        close(fd[k]);
}

Test(control, closing_ends_commands_and_idle_clients_soon)
{
    int idle = dial(), busy = dial();
    char text[200];
    say(busy, "upload 5");
    wait_until(&w.held_n, 1);
    int64_t begin = clock_mono_ns();
    control_close(w.c);
    w.c = NULL;
    cr_expect_lt(clock_mono_ns() - begin, 3 * NS_PER_SEC);
    cr_expect_eq(hear(busy, text, sizeof(text), NULL, NULL), 1);
    cr_expect_eq(read_u(&w.cancels), 1);
    close(idle);
    close(busy);
}

Test(control, a_client_that_does_not_read_does_not_stop_the_end)
{
    w.document = 64 * 1024 * 1024;
    int fd = dial();
    say(fd, "status");
    struct pollfd p = {.fd = fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    int64_t begin = clock_mono_ns();
    control_close(w.c);
    w.c = NULL;
    cr_expect_lt(clock_mono_ns() - begin, 3 * NS_PER_SEC);
    close(fd);
}

Test(control, the_socket_is_the_owners_alone)
{
    struct stat st;
    cr_assert_eq(fstatat(w.dirfd, CTL_SOCKET_NAME, &st, 0), 0);
    cr_expect(S_ISSOCK(st.st_mode));
    cr_expect_eq(st.st_mode & 0777, 0600);
}

/* A child with another user id gets round the mode by a descriptor made before. */
Test(control, another_user_is_not_heard)
{
    if (geteuid() != 0)
        cr_skip_test("needs root to become another user");
    cr_assert_eq(fchmodat(w.dirfd, CTL_SOCKET_NAME, 0666, 0), 0);
    cr_assert_eq(fchmod(w.dirfd, 0755), 0);
    int p[2];
    cr_assert_eq(pipe(p), 0);
    pid_t pid = fork();
    if (!pid) {
        char path[300], code = '?';
        struct ctl_frame f;
        snprintf(path, sizeof(path), "%s/control.sock", w.dir);
        int fd = setuid(65534) ? -1 : ctl_connect(path);
        if (fd >= 0) {
            (void)ctl_send(fd, CTL_REQUEST, "stop", 4, soon(), -1);
            if (!ctl_recv(fd, &f, soon(), -1))
                code = f.body[0];
        }
        (void)!write(p[1], &code, 1);
        _exit(0);
    }
    char code = 0;
    cr_expect_eq(read(p[0], &code, 1), 1);
    cr_expect_eq(code, '4');
    cr_expect_eq(read_u(&w.stops), 0);
}

Test(control, a_socket_left_by_a_dead_daemon_is_replaced)
{
    struct control *second;
    char text[200];
    struct control_ops ops = {.status = fake_status};
    int dead = openat(w.dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    control_close(w.c);
    int fd = ctl_listen(w.dirfd); /* bound, then its owner dies */
    cr_assert(fd >= 0);
    close(fd);
    cr_assert_eq(control_open(dead, &ops, NULL, &second), 0);
    cr_expect_eq(ask("status", text, sizeof(text)), 0);
    control_close(second);
    close(dead);
    w.c = NULL;
}

Test(control, a_path_longer_than_an_address_holds_works)
{
    char path[512], name[128];
    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    cr_assert_eq(mkdirat(w.dirfd, name, 0700), 0);
    int dir = openat(w.dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct control_ops ops = {.status = fake_status};
    struct control *far;
    cr_assert_eq(control_open(dir, &ops, NULL, &far), 0);
    snprintf(path, sizeof(path), "%s/%s/control.sock", w.dir, name);
    int fd = ctl_connect(path);
    cr_assert(fd >= 0, "%s", strerror(-fd));
    char text[200];
    say(fd, "status");
    cr_expect_eq(hear(fd, text, sizeof(text), NULL, NULL), 0);
    close(fd);
    control_close(far);
    close(dir);
    cr_assert_eq(unlinkat(w.dirfd, name, AT_REMOVEDIR), 0);
}

/* ---- the format ---- */

Test(control_format, a_frame_is_these_bytes)
{
    uint8_t head[CTL_HEADER_BYTES];
    static const uint8_t want[16] = {'S', 'L', 'C', 'P', 1, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0};
    ctl_header_encode(CTL_REQUEST, "status", 6, head);
    cr_expect_arr_eq(head, want, sizeof(want));
    cr_expect_eq(get_le64(head + 16), 0x96a5754364d111acull, "%llx",
                 (unsigned long long)get_le64(head + 16));
}
