/* bar.c: see bar.h. */
#include "tools/bar.h"

#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>

#include "tools/human.h"

void bar_draw(void *arg, uint64_t done, uint64_t total)
{
    enum { CELLS = 30 };
    struct bar *b = arg;
    char a[32], z[32];
    if (!b->on || !total)
        return;
    unsigned cells = done >= total ? CELLS : (unsigned)((double)done / (double)total * CELLS);
    fprintf(stderr, "\r%s [%.*s%*s] %3u %%  %s of %s\033[K", b->verb, (int)cells,
            "##############################", (int)(CELLS - cells), "",
            (unsigned)((double)(done < total ? done : total) / (double)total * 100),
            human_bytes(done, a, sizeof(a)), human_bytes(total, z, sizeof(z)));
    b->drawn = true;
}

void bar_end(struct bar *b)
{
    if (b->drawn)
        fputs("\r\033[K", stderr);
    b->drawn = false;
}

int signals_as_fd(void)
{
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGINT);
    sigaddset(&s, SIGTERM);
    sigaddset(&s, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &s, NULL);
    return signalfd(-1, &s, SFD_CLOEXEC | SFD_NONBLOCK);
}
