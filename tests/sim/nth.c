/* nth.c: every call fails once. For each operation and each kind of fault the 1st, 2nd, 3rd... call to the
 * disk (device files and journal) or request to the store that it causes fails, until there is no nth one
 * any more. Each time in a new world, where everything else is the same.
 *
 *   prepare -> the fault is armed -> the operation -> laws (check_now) -> the fault is gone
 *           -> disk: the daemon is killed, or the power is lost when it was a flush that failed
 *           -> the next daemon: all that was acknowledged is there -> at rest: everything is committed,
 *              the bucket says what the names say, every byte can be read (check_settled)
 *
 * Short writes and EINTR are no errors: with them nothing may fail. That a PUT of a segment times out is the
 * HTTP client's to see (no progress), so of time-outs there is one whose answer is unclear. One process for an operation and a
 * kind of fault, since a crash leaves the dead daemon's memory behind.
 */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "objstore/fault.h"

enum { N_MAX = 2000, SECONDS_MAX = 300 };

struct kind {
    const char *name;
    const char *store; /* action of a fault plan; NULL: a call to the disk */
    enum simdisk_call call;
    int err; /* of the disk; 0: a short write */
};

static const struct kind kinds[] = {
    {"write-EIO", NULL, SD_PWRITE, EIO},
    {"write-ENOSPC", NULL, SD_PWRITE, ENOSPC},
    {"write-short", NULL, SD_PWRITE, 0},
    {"write-EINTR", NULL, SD_PWRITE, EINTR},
    {"flush-EIO", NULL, SD_SYNC, EIO},
    {"open-EIO", NULL, SD_OPEN, EIO},
    {"open-EINTR", NULL, SD_OPEN, EINTR},
    {"read-EIO", NULL, SD_PREAD, EIO},
    {"truncate-EIO", NULL, SD_TRUNCATE, EIO},
    {"stat-EIO", NULL, SD_STAT, EIO},
    {"rename-EIO", NULL, SD_RENAME, EIO},
    {"unlink-EIO", NULL, SD_UNLINK, EIO},
    {"mkdir-ENOSPC", NULL, SD_MKDIR, ENOSPC},
    {"scan-EIO", NULL, SD_SCAN, EIO},
    {"fallocate-ENOSPC", NULL, SD_FALLOCATE, ENOSPC},
    {"503", "err=503", 0, 0},
    {"403", "err=403", 0, 0},
    {"404", "err=404", 0, 0},
    {"reset", "err=reset", 0, 0},
    {"body-reset", "op=get truncate=100", 0, 0},
    {"body-none", "op=get truncate=0", 0, 0},
    {"wrong-body", "corrupt=7", 0, 0},
    {"xml", "op=get xml", 0, 0},
    {"etag", "etag", 0, 0},
    {"lost-reply", "lost-reply", 0, 0},
    {"time-out-get", "op=get stall", 0, 0},
    {"time-out-head", "op=head stall", 0, 0},
    {"time-out-unclear", "err=timeout", 0, 0},
    {"full", "err=ENOSPC", 0, 0},
};

static bool harmless(const struct kind *k)
{
    return !k->store && (k->err == 0 || k->err == EINTR);
}

/* ---- arming ---- */

static const struct kind *fault;
static unsigned fault_n;
static uint64_t failed_before;

static void arm_store(struct world *w)
{
    char plan[120], why[200];
    snprintf(plan, sizeof plan, "fail nth=%u %s\n", fault_n, fault->store);
    if (fault_plan_set(w->v->store, plan, why, sizeof why) < 0)
        sim_fail(w, "%s", why);
    w->store_trouble = true;
}

static void arm(struct world *w)
{
    failed_before = simdisk_failed(w->disk);
    if (!fault->store) {
        (void)simdisk_fail(w->disk, fault->call, NULL, fault_n, 1, fault->err);
        w->disk_trouble = !harmless(fault);
        w->crashed = true; /* what failed may leave files that nobody names */
    } else if (w->v) {
        arm_store(w);
    }
}

static bool was_hit(struct world *w)
{
    return fault->store ? w->v && fault_hits(w->v->store) > 0
                        : simdisk_failed(w->disk) > failed_before;
}

/* ---- operations ---- */

static struct mfile *dir_a, *dir_b, *file;

static void finish(struct world *w)
{
    acts_finish(w);
    world_run(w, 3 * NS_PER_SEC);
}

static void command(struct world *w, enum tier_cmd_kind kind)
{
    act_command(w, kind, file->ino);
    finish(w);
}

static void nothing(struct world *w)
{
    (void)w;
}

static void make_dirty(struct world *w)
{
    act_append(w, file, 10 * KiB);
}

static void upload(struct world *w)
{
    command(w, TIER_UPLOAD);
}

static void evict(struct world *w)
{
    command(w, TIER_EVICT);
}

static void kill_daemon(struct world *w)
{
    make_dirty(w);
    world_crash(w, false);
}

static void lose_power(struct world *w)
{
    make_dirty(w);
    world_crash(w, true);
}

static void append(struct world *w)
{
    act_append(w, file, 100 * KiB);
    world_run(w, NS_PER_SEC);
}

static void sync_file(struct world *w)
{
    act_fsync(w, file);
    finish(w);
}

static void seal(struct world *w)
{
    command(w, TIER_SEAL);
}

static void warm(struct world *w)
{
    command(w, TIER_WARM);
}

static void read_all(struct world *w)
{
    struct inode *i;
    static uint8_t buf[64 * KiB];
    if (inode_get(w->v->ns, file->ino, &i) < 0)
        return;
    for (uint64_t at = 0; at < file->len; at += sizeof buf) {
        int64_t got = read_now(w, i, at, buf, sizeof buf);
        if (got < 0 ? harmless(fault) : memcmp(buf, file->bytes + at, (size_t)got) != 0)
            sim_fail(w, "read at %llu: %s", (unsigned long long)at,
                     got < 0 ? err_name((int)got) : "wrong bytes");
    }
    inode_put(w->v->ns, i);
}

/* As a writer does it that waits for what stands in the way. */
static void until_done(struct world *w, int (*try)(struct world *w))
{
    for (unsigned n = 0; n < 100 && try(w) == -EAGAIN; n++)
        finish(w);
}

static int try_write(struct world *w)
{
    return file->blurred ? 0 : act_write(w, file, 60 * KiB, 8 * KiB);
}

static int try_cut(struct world *w)
{
    return file->blurred ? 0 : act_truncate(w, file, 70 * KiB);
}

static void rewrite(struct world *w)
{
    until_done(w, try_write);
    sync_file(w);
}

static void cut(struct world *w)
{
    until_done(w, try_cut);
    sync_file(w);
}

static int entry_of_file(struct world *w)
{
    struct mnames *n = model_now(&w->m);
    for (unsigned i = 0; i < n->n; i++)
        if (n->e[i].ino == file->ino)
            return (int)i;
    sim_fail(w, "the file has no name");
}

static void unlink_file(struct world *w)
{
    (void)act_unlink(w, entry_of_file(w));
    world_run(w, 10 * NS_PER_SEC);
}

static void rename_file(struct world *w)
{
    (void)act_rename(w, entry_of_file(w), dir_b->ino, "g", 0);
    world_run(w, 10 * NS_PER_SEC);
}

static void mount(struct world *w)
{
    if (world_open(w) < 0)
        return;
    if (fault->store)
        arm_store(w);
    world_run(w, 10 * NS_PER_SEC);
}

static void unmount(struct world *w)
{
    (void)world_stop(w);
}

static const struct scene {
    const char *name;
    bool broker;
    void (*prepare)(struct world *w), (*act)(struct world *w);
} scenes[] = {
    {"append", false, nothing, append},
    {"fsync", false, make_dirty, sync_file},
    {"seal", false, make_dirty, seal},
    {"upload-and-commit", false, make_dirty, upload},
    {"evict", false, upload, evict},
    {"warm", false, evict, warm},
    {"read", false, evict, read_all},
    {"extend", false, upload, append},
    {"rewrite", true, upload, rewrite},
    {"rewrite-remote", true, evict, rewrite},
    {"truncate", true, upload, cut},
    {"truncate-remote", true, evict, cut},
    {"delete", false, upload, unlink_file},
    {"rename", false, upload, rename_file},
    {"mount-after-kill", false, kill_daemon, mount},
    {"mount-after-power", false, lose_power, mount},
    {"mount-after-power-broker", true, lose_power, mount},
    {"unmount", false, make_dirty, unmount},
};

/* ---- one run ---- */

static void calm(struct config *c)
{
    c->segment_bytes = 64 * KiB;
    c->device[0].budget = 64 * MiB;
    c->devices = 1;
    c->seal_age = 20000;
    c->local_age = 3600 * 1000;
    c->delete_delay = 1000;
    c->manifest_delay = 100;
    c->metadata_batch = 10;
    c->flush_interval = 1000;
    c->read_deadline = 60000;
    c->uploads = 2;
    c->mirror_below = 0;
    c->scrub = false;
}

static void after_disk_fault(struct world *w)
{
    bool power = fault->call == SD_SYNC;
    world_faults_off(w);
    if (w->v) {
        world_crash(w, power);
    } else {
        simdisk_crash(w->disk, NULL, power ? SIMDISK_POWER : SIMDISK_KILL, 5);
        w->boot += power;
        world_boot_id(w);
    }
    act_reopen(w, power);
}

/* False: there was no nth call. */
static bool run_one(const struct scene *s)
{
    static struct world w;
    char why[200];
    world_make(&w, 11, s->broker);
    w.verbose = getenv("SLUICE_SIM_VERBOSE") != NULL;
    calm(&w.conf);
    if (world_open(&w) < 0)
        sim_fail(&w, "the first mount");
    dir_a = act_mkdir(&w, ROOT_INO, "a");
    dir_b = act_mkdir(&w, ROOT_INO, "b");
    file = act_create(&w, dir_a->ino, "f");
    act_append(&w, file, 150 * KiB);
    act_fsync(&w, file);
    finish(&w);
    s->prepare(&w);
    sim_note(&w, "---- %s: %s of call %u", s->name, fault->name, fault_n);
    arm(&w);
    s->act(&w);
    bool hit = was_hit(&w);
    sim_note(&w, "---- %s", hit ? "it was hit" : "not reached");
    if (w.v && w.v->tier) /* else it could not be opened, or was closed */
        check_now(&w);
    if (!fault->store)
        after_disk_fault(&w);
    handles_drop(&w);
    if (!world_settle(&w, why, sizeof why))
        sim_fail(&w, "it does not come to rest: %s", why);
    check_settled(&w);
    (void)world_stop(&w);
    world_free(&w);
    return hit;
}

/* ---- all of them ---- */

static int run_kind(const struct scene *s, unsigned only_n, unsigned *at)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(SECONDS_MAX);
        fault_n = only_n ? only_n : 1;
        for (bool more = true; more && fault_n < N_MAX; fault_n++) {
            *at = fault_n;
            more = run_one(s) && !only_n;
        }
        _exit(0);
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    if (status == 0)
        return 0;
    printf("sim: --nth %s %s %u FAILED\n", s->name, fault->name, *at);
    return 1;
}

int nth_main(int argc, char **argv)
{
    const char *scene = argc > 0 ? argv[0] : "", *kind = argc > 1 ? argv[1] : "";
    unsigned n = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 0;
    unsigned *at =
        mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0;
    bool found = false;
    if (at == MAP_FAILED)
        return 1;
    if (!getenv("SLUICE_SIM_VERBOSE"))
        log_set_fd(-1);
    for (size_t s = 0; s < ARRAY_LEN(scenes); s++) {
        unsigned disk = 0, store = 0, ran = 0;
        if (*scene && strcmp(scene, scenes[s].name) != 0)
            continue;
        found = true;
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
            fault = &kinds[k];
            if ((*kind && strcmp(kind, fault->name) != 0) ||
                (fault->store && scenes[s].act == unmount))
                continue;
            failed += run_kind(&scenes[s], n, at);
            *(fault->store ? &store : &disk) += *at - 1;
            ran++;
        }
        printf("sim: nth %s: %u kinds of fault, %u calls to the disk and %u requests failed\n",
               scenes[s].name, ran, disk, store);
    }
    if (!found)
        fprintf(stderr, "sim: --nth: there is no operation '%s'\n", scene);
    return failed != 0 || !found;
}
