/* simdisk.c: which disk is in use, its faults and its crashes; see simdisk.h and simdisk_int.h. */
#include "tests/sim/simdisk_int.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct simdisk *sd_in_use;

static int leave(struct simdisk *d, int r)
{
    pthread_mutex_unlock(&d->mu);
    return r;
}

/* ---- faults ---- */

int sd_fault(struct simdisk *d, enum simdisk_call call, const char *path)
{
    int err = 0;
    d->calls[call]++;
    d->calls[SD_ANY]++;
    if (d->freeze_in && --d->freeze_in == 0)
        d->frozen = true;
    if (d->frozen)
        return -EIO;
    for (int i = 0; i < PLANS; i++) {
        struct plan *p = &d->plans[i];
        if (!p->on || (p->call != SD_ANY && p->call != call) ||
            (p->match[0] && !strstr(path, p->match)))
            continue;
        if (p->nth > 1) {
            p->nth--;
            continue;
        }
        if (!err)
            err = p->err ? -p->err : SD_FAULT_SHORT;
        d->failed++;
        if (--p->times == 0)
            p->on = false;
    }
    return err;
}

/* ---- control ---- */

struct simdisk *simdisk_new(void)
{
    struct simdisk *d = sd_must(calloc(1, sizeof *d));
    pthread_mutex_init(&d->mu, NULL);
    d->next_ino = 1;
    d->ext4_names = true;
    d->root = sd_node_new(d, S_IFDIR | 0755, NULL);
    return d;
}

void simdisk_free(struct simdisk *d)
{
    for (int i = 0; i < FDS; i++)
        free(d->fds[i].path);
    for (size_t i = 0; i < d->pend_n; i++) {
        free(d->pend[i].from);
        free(d->pend[i].to);
    }
    free(d->pend);
    for (struct node *n = d->all, *next; n; n = next) {
        next = n->all;
        sd_node_free(d, n);
    }
    pthread_mutex_destroy(&d->mu);
    free(d);
}

void simdisk_use(struct simdisk *d)
{
    sd_in_use = d;
    io_use(d ? &sd_ops : NULL);
}

int simdisk_root(struct simdisk *d)
{
    pthread_mutex_lock(&d->mu);
    return leave(d, sd_fd_new(d, d->root, O_RDONLY | O_DIRECTORY, "/"));
}

void simdisk_ext4_names(struct simdisk *d, bool on)
{
    d->ext4_names = on;
}

void simdisk_space(struct simdisk *d, uint64_t bytes)
{
    pthread_mutex_lock(&d->mu);
    d->space = bytes;
    leave(d, 0);
}

void simdisk_crash(struct simdisk *d, const char *path, enum simdisk_crash kind, uint64_t seed)
{
    pthread_mutex_lock(&d->mu);
    d->freeze_in = 0;
    d->frozen = false;
    struct node *top = d->root;
    if (path) {
        char name[256];
        int r = sd_resolve(d, AT_FDCWD, path, &top, name);
        assert(r == 0);
        (void)r;
        top = sd_child(top, name);
        assert(top);
    }
    sd_scope_set(d, top);
    if (kind == SIMDISK_POWER)
        sd_power(d, seed);
    for (int i = 0; i < FDS; i++)
        if (d->fds[i].node && (!path || d->fds[i].node->scope))
            sd_fd_free(d, FD_BASE + i);
    sd_sweep(d);
    leave(d, 0);
}

void simdisk_freeze(struct simdisk *d, unsigned nth)
{
    pthread_mutex_lock(&d->mu);
    d->freeze_in = nth;
    leave(d, 0);
}

bool simdisk_frozen(struct simdisk *d)
{
    pthread_mutex_lock(&d->mu);
    bool frozen = d->frozen;
    leave(d, 0);
    return frozen;
}

bool simdisk_fail(struct simdisk *d, enum simdisk_call call, const char *match, unsigned nth,
                  unsigned times, int err)
{
    bool done = false;
    pthread_mutex_lock(&d->mu);
    for (int i = 0; i < PLANS && !done; i++) {
        struct plan *p = &d->plans[i];
        if (p->on)
            continue;
        *p = (struct plan){.on = true, .call = call, .nth = nth, .times = times, .err = err};
        snprintf(p->match, sizeof p->match, "%s", match ? match : "");
        done = true;
    }
    leave(d, 0);
    return done;
}

void simdisk_fail_none(struct simdisk *d)
{
    pthread_mutex_lock(&d->mu);
    memset(d->plans, 0, sizeof d->plans);
    leave(d, 0);
}

void simdisk_short_writes(struct simdisk *d, unsigned one_in, uint64_t seed)
{
    pthread_mutex_lock(&d->mu);
    d->short_one_in = one_in;
    d->short_rng = seed;
    leave(d, 0);
}

uint64_t simdisk_calls(struct simdisk *d, enum simdisk_call call)
{
    pthread_mutex_lock(&d->mu);
    uint64_t n = d->calls[call];
    leave(d, 0);
    return n;
}

uint64_t simdisk_failed(struct simdisk *d)
{
    pthread_mutex_lock(&d->mu);
    uint64_t n = d->failed;
    leave(d, 0);
    return n;
}

static void list_node(const struct node *n, const char *path, FILE *f)
{
    if (S_ISREG(n->mode)) {
        size_t dirty_n = 0, lost_n = 0;
        for (uint64_t s = 0; s < n->cap / SECTOR; s++) {
            dirty_n += n->state[s] == DIRTY;
            lost_n += n->state[s] == LOST;
        }
        fprintf(f, "%s size %llu durable %llu dirty %zu lost %zu\n", path,
                (unsigned long long)n->size, (unsigned long long)n->dsize, dirty_n, lost_n);
        return;
    }
    fprintf(f, "%s/\n", path);
    for (size_t i = 0; i < n->cur_names.n; i++) {
        char *sub;
        if (asprintf(&sub, "%s/%s", path, n->cur_names.v[i].name) < 0)
            abort();
        list_node(n->cur_names.v[i].node, sub, f);
        free(sub);
    }
}

void simdisk_list(struct simdisk *d, FILE *f)
{
    pthread_mutex_lock(&d->mu);
    list_node(d->root, "", f);
    leave(d, 0);
}
