/* order.h: a READ waits for the end of a WRITE of the same pages that came before it. Map: order.c. */
#ifndef SLUICE_DAEMON_ORDER_H
#define SLUICE_DAEMON_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/base/list.h"

struct order;

/* 0 or -ENOMEM. No mark is left and nobody parked when it is closed. */
int order_open(struct order **ret);
void order_close(struct order *o);

/* A WRITE under way. Embedded by the caller. */
struct mark {
    struct list link; /* order's; private */
    uint64_t ino, lo, hi, seq;
    struct list parked;
    bool on, overtaken;
};

/* `unique`: the kernel's number of the request. Never blocks, like all of these. */
void mark_begin(struct order *o, struct mark *m, uint64_t ino, uint64_t lo, uint64_t hi,
                uint64_t unique);
/* `to` takes the place of `from`, which is no mark any more. */
void mark_move(struct order *o, struct mark *to, struct mark *from);
/* It was carried out, or never will be; before the reply. Whoever waited goes on, on this thread, which holds no
 * lock. True: a READ of the same pages was served before it by mistake: what the kernel keeps of them may be
 * older, and is to be dropped. Nothing happens when the mark is not on. */
bool mark_end(struct order *o, struct mark *m);

/* A READ. Embedded by the caller, zeroed before the first call. */
struct parked {
    struct list link;
    uint64_t ino, lo, hi, seq;
    bool waits;
    void (*go)(struct parked *p); /* ask order_read again */
};

/* True: it waits, and `go` is called, once. False: nothing stands in the way. */
bool order_read(struct order *o, struct parked *p, uint64_t ino, uint64_t lo, uint64_t hi,
                uint64_t unique);
/* True: it waited, and does no more; `go` will not be called. */
bool order_leave(struct order *o, struct parked *p);
/* Where the first WRITE under way in [from, to) begins; `to` when there is none. */
uint64_t order_first_in(struct order *o, uint64_t ino, uint64_t from, uint64_t to);

#endif
