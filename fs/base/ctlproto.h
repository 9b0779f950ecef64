/* ctlproto.h: frames on the control socket, for both of its ends.
 *
 *    0 u32 magic "SLCP"   4 u16 version 1   6 u16 type   8 u32 length of the body   12 u32 zero
 *   16 u64 xxh3-64 of bytes 0..15 plus (modulo 2^64) xxh3-64 of the body; little-endian. Then the body.
 *
 * One connection carries one request and its answer:
 *     client  REQUEST   "VERB ARGUMENT ...", ASCII, one blank between
 *     server  DATA      any number: pieces of a document
 *             PROGRESS  any number: "DONE TOTAL", bytes
 *             RESULT    last: "CODE INODE TEXT": exit code of the command; the inode it is about, or 0;
 *                       for people, on one line
 * A client that hangs up before the RESULT gives the request up.
 *
 * The descriptors must be non-blocking. Every wait has a deadline (clock_mono_ns), and ends early when
 * `stop_fd` (-1: none) becomes readable. Errors: -ETIMEDOUT; -ECANCELED (stop_fd); -ENODATA (the
 * other end closed before a frame began); -EPIPE (in the middle of one, or while sending);
 * -EBADMSG, -EPROTONOSUPPORT (another version), -EMSGSIZE, -ENOMEM, or what the socket said.
 */
#ifndef SLUICE_BASE_CTLPROTO_H
#define SLUICE_BASE_CTLPROTO_H

#include <stddef.h>
#include <stdint.h>

enum { CTL_VERSION = 1, CTL_HEADER_BYTES = 24, CTL_BODY_MAX = 1024 * 1024 - CTL_HEADER_BYTES };
enum ctl_type { CTL_REQUEST = 1, CTL_DATA, CTL_PROGRESS, CTL_RESULT };

#define CTL_SOCKET_NAME "control.sock"

struct ctl_header {
    uint16_t type;
    uint32_t len;
    uint64_t hash;
};

/* Pure. The decoder refuses what no correct end sends; the body is checked by ctl_body_check. */
void ctl_header_encode(uint16_t type, const void *body, uint32_t len,
                       uint8_t out[static CTL_HEADER_BYTES]);
int ctl_header_decode(const uint8_t in[static CTL_HEADER_BYTES], struct ctl_header *ret);
int ctl_body_check(const uint8_t in[static CTL_HEADER_BYTES], const void *body, uint32_t len);

struct ctl_frame {
    uint16_t type;
    uint32_t len;
    char *body; /* a NUL is put behind it; free() it */
};

int ctl_send(int fd, uint16_t type, const void *body, size_t len, int64_t until_ns, int stop_fd);
int ctl_recv(int fd, struct ctl_frame *ret, int64_t until_ns, int stop_fd);

/* Sockets by a path of any length. Descriptor or -errno. ctl_listen replaces a socket that a dead
 * daemon left: the caller holds the lock of the directory. Mode 0600. ctl_connect waits a few seconds
 * where the server is busy (-EAGAIN). */
int ctl_listen(int dirfd);
int ctl_connect(const char *path);

#endif
