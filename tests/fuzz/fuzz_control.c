/* Any bytes on the control socket: a frame comes out only when header, length and hash agree, and then
 * encoding it again gives the same bytes. The stream is read as a server does it, to its end. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/base/clock.h"
#include "fs/base/ctlproto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { STREAM_MAX = 64 * 1024, SECONDS = 5 };
    int p[2];
    size_t at = 0;
    if (size > STREAM_MAX)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p))
        abort();
    if (write(p[0], data, size) != (ssize_t)size)
        abort();
    (void)shutdown(p[0], SHUT_WR);
    struct ctl_frame f;
    while (!ctl_recv(p[1], &f, clock_mono_ns() + SECONDS * NS_PER_SEC, -1)) {
        uint8_t head[CTL_HEADER_BYTES];
        ctl_header_encode(f.type, f.body, f.len, head);
        assert(at + sizeof(head) + f.len <= size);
        assert(!memcmp(head, data + at, sizeof(head)));
        assert(!memcmp(f.body, data + at + sizeof(head), f.len) && !f.body[f.len]);
        at += sizeof(head) + f.len;
        free(f.body);
    }
    (void)close(p[0]);
    (void)close(p[1]);
    return 0;
}
