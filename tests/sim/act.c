/* act.c: what happens in a run: choosing, faults, crashes. Each seed gives every action a weight or leaves
 * it out, so that some runs are all appends and crashes and others all renames and a failing store. */
#include "tests/sim/act_int.h"

#include <errno.h>
#include <stdio.h>
#include "fs/base/clock.h"
#include "fs/base/log.h"
#include "objstore/fault.h"

enum action {
    A_STEP,
    A_TIME,
    A_CREATE,
    A_MKDIR,
    A_APPEND,
    A_APPEND_HANDLE,
    A_READ,
    A_READ_HANDLE,
    A_CANCEL,
    A_FSYNC,
    A_FSYNC_DIR,
    A_OPEN,
    A_RELEASE,
    A_UNLINK,
    A_RENAME,
    A_LINK,
    A_SETATTR,
    A_REFUSED,
    A_COMMAND,
    A_STORE_FAULT,
    A_STORE_DOWN,
    A_STORE_WELL,
    A_DISK_FAULT,
    A_DISK_SHORT,
    A_KILL,
    A_POWER,
    A_FROZEN_CRASH,
    A_REMOUNT,
    A_CHECK,
    A_COUNT
};

static const uint8_t usual[A_COUNT] = {
    [A_STEP] = 120,     [A_TIME] = 20,         [A_CREATE] = 6,       [A_MKDIR] = 1,
    [A_APPEND] = 20,    [A_APPEND_HANDLE] = 8, [A_READ] = 10,        [A_READ_HANDLE] = 10,
    [A_CANCEL] = 1,     [A_FSYNC] = 6,         [A_FSYNC_DIR] = 1,    [A_OPEN] = 4,
    [A_RELEASE] = 3,    [A_UNLINK] = 3,        [A_RENAME] = 3,       [A_LINK] = 1,
    [A_SETATTR] = 1,    [A_REFUSED] = 1,       [A_COMMAND] = 3,      [A_STORE_FAULT] = 2,
    [A_STORE_DOWN] = 1, [A_STORE_WELL] = 2,    [A_DISK_FAULT] = 1,   [A_DISK_SHORT] = 1,
    [A_KILL] = 1,       [A_POWER] = 1,         [A_FROZEN_CRASH] = 2, [A_REMOUNT] = 1,
    [A_CHECK] = 6,
};

void act_choose(struct world *w)
{
    for (unsigned a = 0; a < A_COUNT; a++) {
        unsigned u = usual[a];
        if (a > A_APPEND && a != A_CHECK && rnd(w, 3) == 0)
            u = 0;
        if ((a == A_DISK_FAULT || a == A_DISK_SHORT) && rnd(w, 3) != 0)
            u = 0;
        w->weight[a] = u * (1 + rnd(w, 4));
    }
    if (w->broker)
        w->weight[A_REFUSED] = w->weight[A_APPEND];
}

bool explained(struct world *w, int r)
{
    return simdisk_frozen(w->disk) ||
           (w->disk_trouble && (r == -EIO || r == -ENOSPC || r == -EROFS || r == -EBADMSG));
}
/* ---- faults ---- */

static void do_store_fault(struct world *w)
{
    static const char *const what[] = {
        "op=put err=503",
        "op=put err=timeout",
        "op=put lost-reply",
        "op=get corrupt=7",
        "op=get truncate=3000",
        "op=get err=404",
        "op=any err=403",
        "op=head err=500",
        "op=put err=reset",
        "op=get delay=4000",
        "op=put delay=9000",
        "op=put corrupt=11",
        "op=batch err=503",
        "op=batch lost-reply",
        "op=any stall",
        "op=head err=404",
        "op=put err=EEXIST",
        "key=topics/* op=put lost-reply",
        "key=volume op=any err=500",
        "key=topics/* op=put err=timeout",
        "key=segments/* op=put err=ENOSPC",
    };
    char plan[400], why[200];
    int at = 0;
    for (unsigned n = 1 + rnd(w, 3); n; n--)
        at += snprintf(plan + at, sizeof plan - (size_t)at, "fail %s nth=%u count=%u\n",
                       what[rnd(w, sizeof what / sizeof *what)], 1 + rnd(w, 4), 1 + rnd(w, 8));
    sim_note(w, "store: %s", plan);
    if (fault_plan_set(w->v->store, plan, why, sizeof why) < 0)
        sim_fail(w, "%s", why);
    w->store_trouble = true;
}

static void set_plan(struct world *w, const char *plan)
{
    char why[200];
    sim_note(w, "store: %s", *plan ? plan : "well");
    if (fault_plan_set(w->v->store, plan, why, sizeof why) < 0)
        sim_fail(w, "%s", why);
    if (*plan)
        w->store_trouble = true;
}

static void do_disk_fault(struct world *w)
{
    static const enum simdisk_call calls[] = {SD_PWRITE, SD_SYNC, SD_OPEN, SD_PREAD, SD_UNLINK};
    static const int errs[] = {EIO, ENOSPC};
    enum simdisk_call call = calls[rnd(w, 5)];
    bool state = rnd(w, 3) == 0;
    if (call == SD_SYNC) /* of a segment: bytes are lost, and reads may say so (unit tests) */
        state = true;
    int err = call == SD_PWRITE || call == SD_OPEN ? errs[rnd(w, 2)] : EIO;
    sim_note(w, "disk: call %d fails with %s %s", call, err_name(err),
             state ? "journal" : "segments");
    (void)simdisk_fail(w->disk, call, state ? "journal" : "segments", 1 + rnd(w, 5), 1 + rnd(w, 2),
                       err);
    w->disk_trouble = w->crashed = true; /* what failed may leave files that nobody names, too */
}

/* ---- crashes ---- */

void act_reopen(struct world *w, bool power)
{
    for (unsigned tries = 0;; tries++) {
        unsigned chance = tries < 3 && w->weight[A_FROZEN_CRASH] ? rnd(w, 3) : 1;
        if (chance == 0) /* the next crash comes while it opens */
            simdisk_freeze(w->disk, 1 + rnd(w, 200));
        int r = world_open(w);
        if (r == 0 && !simdisk_frozen(w->disk)) {
            simdisk_freeze(w->disk, 0);
            break;
        }
        bool again = rnd(w, 2);
        world_crash(w, again);
        power |= again;
    }
    model_recover(w, power);
    check_now(w);
}

static void do_crash(struct world *w, bool power)
{
    world_crash(w, power);
    act_reopen(w, power);
}

static void do_remount(struct world *w)
{
    sim_note(w, "stop");
    world_faults_off(w);
    bool clean = world_stop(w), power = rnd(w, 2), died = simdisk_frozen(w->disk);
    if (died || (power && clean)) { /* after a clean stop nothing may be lost */
        simdisk_crash(w->disk, NULL, power ? SIMDISK_POWER : SIMDISK_KILL, rnd64(w));
        w->crashed = true; /* device files whose removal was not durable are back */
        sim_note(w, "%s %s a stop", power ? "power off" : "killed", died ? "within" : "after");
    }
    if (power && (died || clean)) {
        w->boot++;
        world_boot_id(w);
    }
    act_reopen(w, died && power);
}

/* ---- choosing ---- */

static void do_steps(struct world *w)
{
    for (unsigned n = 1 + rnd(w, 12); n; n--)
        (void)world_step(w);
    if (rnd(w, 3) == 0)
        clock_virtual_advance((int64_t)(1 + rnd(w, 50)) * NS_PER_MS);
}

static void do_one(struct world *w, enum action a)
{
    switch (a) {
    case A_STEP:
        do_steps(w);
        break;
    case A_TIME:
        if (rnd(w, 6) == 0)
            world_run(w, (int64_t)rnd(w, 20) * NS_PER_SEC);
        else
            clock_virtual_advance((int64_t)rnd(w, 2000) * NS_PER_MS);
        break;
    case A_CREATE:
        do_create(w, S_IFREG | 0640);
        break;
    case A_MKDIR:
        do_create(w, S_IFDIR | 0750);
        break;
    case A_APPEND:
        do_append(w, false);
        break;
    case A_APPEND_HANDLE:
        do_append(w, true);
        break;
    case A_READ:
        do_read(w);
        break;
    case A_READ_HANDLE:
        do_read_handle(w);
        break;
    case A_CANCEL:
        do_cancel(w);
        break;
    case A_FSYNC: {
        struct mfile *f = pick_file(w);
        if (f)
            act_fsync(w, f);
        break;
    }
    case A_FSYNC_DIR:
        act_fsync(w, model_file(&w->m, pick_dir(w)));
        break;
    case A_OPEN:
        do_open(w);
        break;
    case A_RELEASE:
        release(w, &w->handle[rnd(w, HANDLES_MAX)]);
        break;
    case A_UNLINK:
        do_unlink(w);
        break;
    case A_RENAME:
        do_rename(w);
        break;
    case A_LINK:
        do_link(w);
        break;
    case A_SETATTR:
        do_setattr(w);
        break;
    case A_REFUSED:
        do_refused(w);
        break;
    case A_COMMAND:
        do_command(w);
        break;
    case A_STORE_FAULT:
        do_store_fault(w);
        break;
    case A_STORE_DOWN:
        set_plan(w, rnd(w, 2) ? "fail op=any count=all err=reset\n"
                              : "fail op=any count=all err=503\n");
        break;
    case A_STORE_WELL:
        set_plan(w, "");
        break;
    case A_DISK_FAULT:
        do_disk_fault(w);
        break;
    case A_DISK_SHORT:
        simdisk_short_writes(w->disk, 3, rnd64(w));
        break;
    case A_KILL:
    case A_POWER:
        if (rnd(w, 4) == 0)
            do_crash(w, a == A_POWER);
        break;
    case A_FROZEN_CRASH:
        simdisk_freeze(w->disk, 1 + rnd(w, 60));
        break;
    case A_REMOUNT:
        if (rnd(w, 4) == 0)
            do_remount(w);
        break;
    case A_CHECK:
        check_now(w);
        break;
    case A_COUNT:
        break;
    }
}

void act_one(struct world *w)
{
    unsigned sum = 0;
    for (unsigned a = 0; a < A_COUNT; a++)
        sum += w->weight[a];
    unsigned pick = rnd(w, sum);
    enum action a = 0;
    while (pick >= w->weight[a])
        pick -= w->weight[a++];
    if (simdisk_frozen(w->disk))
        do_crash(w, w->weight[A_POWER] && rnd(w, 2));
    else
        do_one(w, a);
}
