/* control_int.h: what the files of the control server share. */
#ifndef SLUICE_VOLUME_CONTROL_INT_H
#define SLUICE_VOLUME_CONTROL_INT_H

#include <pthread.h>
#include "fs/base/lock.h"
#include "fs/volume/control.h"

enum { CODE_OK = 0, CODE_FAILED = 1, CODE_USAGE = 2, CODE_REFUSED = 4 };
enum { PROGRESS_MS = 100, DATA_BYTES = 256 * 1024 };

struct control {
    struct control_ops ops;
    void *stop_ctx;
    int state_fd, listen_fd;
    int stop_fd; /* eventfd; readable from control_stop on */
    pthread_t thread;
    struct lock mu;
    pthread_cond_t changed;
    unsigned connections, commands;
};

struct conn {
    struct control *c;
    int fd;
};

/* Until when a client may take to read an answer. */
int64_t control_send_deadline(void);
/* The RESULT. Not cut short by a stop. */
int control_answer(struct conn *n, int code, uint64_t ino, const char *text);
int control_answer_error(struct conn *n, uint64_t ino, int err);

/* ---- control_check.c ---- */
bool control_is_check(const struct control *c, const char *request);
void control_check(struct conn *n, const char *request);

#endif
