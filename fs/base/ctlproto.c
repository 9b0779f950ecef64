/* ctlproto.c: see ctlproto.h. No state, no locks.
 *
 * A socket's address holds 107 bytes of path; both ends therefore name it through a descriptor of its
 * directory: /proc/self/fd/N/control.sock.
 */
#include "fs/base/ctlproto.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/bytes.h"
#include "fs/base/cleanup.h"
#include "fs/base/clock.h"
#include "fs/base/hash.h"

enum { CTL_MAGIC = 0x50434c53 /* "SLCP" */, HASHED_BYTES = 16, CONNECT_MS = 5000 };

/* ---- frames ---- */

static uint64_t frame_hash(const uint8_t *header, const void *body, uint32_t len)
{
    return hash64(header, HASHED_BYTES) + hash64(body, len);
}

void ctl_header_encode(uint16_t type, const void *body, uint32_t len,
                       uint8_t out[static CTL_HEADER_BYTES])
{
    put_le32(out, CTL_MAGIC);
    put_le16(out + 4, CTL_VERSION);
    put_le16(out + 6, type);
    put_le32(out + 8, len);
    put_le32(out + 12, 0);
    put_le64(out + 16, frame_hash(out, body, len));
}

int ctl_header_decode(const uint8_t in[static CTL_HEADER_BYTES], struct ctl_header *ret)
{
    if (get_le32(in) != CTL_MAGIC)
        return -EBADMSG;
    if (get_le16(in + 4) != CTL_VERSION)
        return -EPROTONOSUPPORT;
    *ret = (struct ctl_header){get_le16(in + 6), get_le32(in + 8), get_le64(in + 16)};
    if (ret->type < CTL_REQUEST || ret->type > CTL_RESULT || get_le32(in + 12))
        return -EBADMSG;
    return ret->len > CTL_BODY_MAX ? -EMSGSIZE : 0;
}

int ctl_body_check(const uint8_t in[static CTL_HEADER_BYTES], const void *body, uint32_t len)
{
    return get_le64(in + 16) == frame_hash(in, body, len) ? 0 : -EBADMSG;
}

/* ---- waiting ---- */

static int wait_for(int fd, short events, int64_t until_ns, int stop_fd)
{
    for (;;) {
        int64_t left = until_ns - clock_mono_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = stop_fd, .events = POLLIN}};
        int64_t ms = left / NS_PER_MS + 1;
        int n = poll(p, 2, ms > 1000000 ? 1000000 : (int)ms);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && p[1].revents)
            return -ECANCELED;
        if (n > 0)
            return 0;
    }
}

static int read_all(int fd, void *buf, size_t len, int64_t until_ns, int stop_fd, size_t *got)
{
    for (*got = 0; *got < len;) {
        ssize_t n = recv(fd, (char *)buf + *got, len - *got, 0);
        if (n > 0) {
            *got += (size_t)n;
            continue;
        }
        if (n == 0)
            return -EPIPE;
        if (errno == ECONNRESET)
            return -EPIPE;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int err = errno == EINTR ? 0 : wait_for(fd, POLLIN, until_ns, stop_fd);
        if (err)
            return err;
    }
    return 0;
}

int ctl_recv(int fd, struct ctl_frame *ret, int64_t until_ns, int stop_fd)
{
    uint8_t head[CTL_HEADER_BYTES];
    struct ctl_header h;
    size_t got;
    *ret = (struct ctl_frame){0};
    int err = read_all(fd, head, sizeof(head), until_ns, stop_fd, &got);
    if (err)
        return err == -EPIPE && !got ? -ENODATA : err;
    err = ctl_header_decode(head, &h);
    if (err)
        return err;
    AUTO_FREE char *body = malloc((size_t)h.len + 1);
    if (!body)
        return -ENOMEM;
    err = read_all(fd, body, h.len, until_ns, stop_fd, &got);
    if (!err)
        err = ctl_body_check(head, body, h.len);
    if (err)
        return err;
    body[h.len] = '\0';
    *ret = (struct ctl_frame){h.type, h.len, body};
    body = NULL;
    return 0;
}

int ctl_send(int fd, uint16_t type, const void *body, size_t len, int64_t until_ns, int stop_fd)
{
    uint8_t head[CTL_HEADER_BYTES];
    if (len > CTL_BODY_MAX)
        return -EMSGSIZE;
    ctl_header_encode(type, body, (uint32_t)len, head);
    size_t total = sizeof(head) + len;
    for (size_t sent = 0; sent < total;) {
        struct iovec iov[2];
        struct msghdr m = {.msg_iov = iov};
        if (sent < sizeof(head))
            iov[m.msg_iovlen++] = (struct iovec){head + sent, sizeof(head) - sent};
        size_t from = sent < sizeof(head) ? 0 : sent - sizeof(head);
        iov[m.msg_iovlen++] = (struct iovec){(char *)body + from, len - from};
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (n >= 0) {
            sent += (size_t)n;
            continue;
        }
        if (errno == ECONNRESET)
            return -EPIPE;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int err = errno == EINTR ? 0 : wait_for(fd, POLLOUT, until_ns, stop_fd);
        if (err)
            return err;
    }
    return 0;
}

/* ---- sockets ---- */

static struct sockaddr_un address(int dirfd, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%.64s", dirfd, name);
    return a;
}

int ctl_listen(int dirfd)
{
    enum { BACKLOG = 64 };
    struct sockaddr_un a = address(dirfd, CTL_SOCKET_NAME);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (unlinkat(dirfd, CTL_SOCKET_NAME, 0) && errno != ENOENT)
        return -errno;
    /* The mode of a socket before it is bound is that of its name: nobody else gets in between. */
    if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, BACKLOG))
        return -errno;
    return take_fd(&fd);
}

int ctl_connect(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || !slash[1])
        return -EINVAL;
    AUTO_FREE char *dir = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    if (!dir)
        return -ENOMEM;
    AUTO_CLOSE int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return -errno;
    struct sockaddr_un a = address(dirfd, slash + 1);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int64_t until = clock_mono_ns() + CONNECT_MS * NS_PER_MS;
    while (connect(fd, (struct sockaddr *)&a, sizeof(a))) {
        /* The server's backlog is full; nothing tells when it is not. */
        if (errno != EAGAIN || clock_mono_ns() > until)
            return -errno;
        struct timespec nap = {.tv_nsec = 5 * NS_PER_MS};
        (void)nanosleep(&nap, NULL);
    }
    return take_fd(&fd);
}
