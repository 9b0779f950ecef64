/* Devices of a small world: added, drained and removed while files are on them; with the store up and
 * down, with a crash and with a failing call at every step; devices that fail or are missing. After each:
 * every byte that was acknowledged is there, or was given up by name. */
#include "fs/seg/segfmt.h"
#include "fs/volume/devices.h"
#include "tests/unit/small_world.h"

enum { NONE = 0 };

static struct {
    uint64_t open, sealed, committed; /* three files, by what most of their segments are */
    char why[512];
} D;

/* A world with three files on two devices. */
static void build(bool broker, uint64_t budget)
{
    small_make(broker);
    W.many = 2;
    W.conf.device[0].budget = budget;
    W.conf.seal_age = 3600 * 1000;
    W.conf.local_age = 24 * 3600 * 1000;
    small_open();
    D.committed = small_create(ROOT_INO, "committed", S_IFREG);
    small_append(D.committed, 700 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, D.committed), 0);
    small_plan("fail op=put count=all err=503");
    D.sealed = small_create(ROOT_INO, "sealed", S_IFREG);
    small_append(D.sealed, 700 * KiB, 2);
    cr_assert_eq(small_command(TIER_SEAL, D.sealed), 0);
    D.open = small_create(ROOT_INO, "open", S_IFREG);
    small_append(D.open, 600 * KiB, 3);
    cr_assert_eq(small_fsync(D.open), 0);
}

static void check_files(void)
{
    small_check(D.committed, 0, 700 * KiB, 1);
    small_check(D.sealed, 0, 700 * KiB, 2);
    small_check(D.open, 0, 600 * KiB, 3);
}

static struct dev_info info_of(const char *path)
{
    struct dev_info i = {0};
    for (unsigned k = 0; k < devs_count(W.v->devs); k++)
        if (devs_info(W.v->devs, k, &i) && !strcmp(i.path, path))
            return i;
    return (struct dev_info){0};
}

static struct drain_look on(const char *path)
{
    struct drain_look l;
    cr_assert_eq(tier_drain_look(W.v, info_of(path).id, &l), 0);
    return l;
}

static bool drained(void)
{
    return info_of("/dev0").drained;
}

static bool stuck(void)
{
    return info_of("/dev0").drain_stuck;
}

static int drain(const char *path, bool go)
{
    return volume_device_drain(W.v, path, go, D.why, sizeof D.why);
}

static int take_out(const char *path, bool lost)
{
    return volume_device_remove(W.v, path, lost, stderr, D.why, sizeof D.why);
}

static void reopen(void)
{
    small_stop();
    small_open();
}

TestSuite(drain, .fini = small_free, .timeout = 300);

/* ---- the plain way ---- */

Test(drain, a_drained_device_holds_nothing_is_removed_and_forgotten)
{
    build(false, 256 * MiB);
    cr_assert(on("/dev0").segments > 0 && on("/dev1").segments > 0, "both are in use");
    small_plan("");
    cr_assert_eq(take_out("/dev0", false), -EBUSY);
    cr_assert(strstr(D.why, "drain it first"), "%s", D.why);
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    _Atomic bool never = false;
    cr_assert_eq(volume_device_wait(W.v, "/dev0", &never, NULL, NULL, D.why, sizeof D.why), 0);
    cr_assert(on("/dev0").segments == 0 && on("/dev0").unlinks == 0);
    cr_assert_eq(info_of("/dev0").used, 0);
    check_files();
    small_append(D.open, 600 * KiB, 3);
    cr_assert_eq(on("/dev0").segments, 0, "no new segments on it");
    cr_assert_eq(take_out("/dev0", false), 0, "%s", D.why);
    cr_assert_eq(info_of("/dev0").id, NONE);
    cr_assert_eq(drain("/dev0", true), -ENOENT);
    reopen(); /* the command line still names it */
    cr_assert_eq(info_of("/dev0").id, NONE);
    small_check(D.open, 0, 1200 * KiB, 3);
    small_settle();
    small_check(D.sealed, 0, 700 * KiB, 2);
}

Test(drain, a_removed_directory_can_be_added_again_under_a_new_id)
{
    build(false, 256 * MiB);
    uint32_t was = info_of("/dev0").id;
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(drained));
    cr_assert_eq(take_out("/dev0", false), 0, "%s", D.why);
    cr_assert_eq(volume_device_add(W.v, "/dev0", 64 * MiB, D.why, sizeof D.why), 0, "%s", D.why);
    cr_assert_eq(volume_device_add(W.v, "/dev0", 0, D.why, sizeof D.why), -EEXIST);
    struct dev_info i = info_of("/dev0");
    cr_assert(i.id != was && i.id > info_of("/dev1").id && i.budget == 64 * MiB);
    cr_assert_eq(volume_device_add(W.v, "/dev2", 512 * MiB, D.why, sizeof D.why), 0);
    uint64_t f = small_create(ROOT_INO, "new", S_IFREG);
    small_append(f, 700 * KiB, 9);
    cr_assert_gt(on("/dev2").segments, 0, "used at once");
    reopen();
    cr_assert_eq(info_of("/dev0").id, i.id);
    cr_assert_eq(info_of("/dev2").budget, 512 * MiB, "remembered without a command line");
    small_check(f, 0, 700 * KiB, 9);
    check_files();
}

Test(drain, with_the_store_down_everything_is_copied_and_nothing_is_evicted)
{
    build(false, 256 * MiB);
    small_plan("fail op=any count=all err=reset");
    small_run(30 * NS_PER_SEC);
    cr_assert(tier_store_down(W.v->tier));
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(drained), "%s", info_of("/dev0").drain_note);
    cr_assert(small_seg(D.committed, 0).local);
    check_files(); /* no read needs the store */
    cr_assert_eq(take_out("/dev0", false), 0, "%s", D.why);
    small_plan("");
    small_settle();
    check_files();
}

Test(drain, without_room_elsewhere_it_goes_to_the_store_and_is_evicted)
{
    build(false, 256 * MiB);
    small_plan("");
    W.conf.evict_from = 1; /* of 256 MiB: what the other one has already */
    W.conf.evict_to = 0;
    dev_account(W.v->devs, info_of("/dev1").id, 3 * MiB);
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(drained), "%s", info_of("/dev0").drain_note);
    cr_assert_eq(on("/dev0").segments, 0);
    check_files();
}

Test(drain, it_is_refused_where_nothing_else_takes_segments)
{
    build(false, 24 * MiB);
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert_eq(drain("/dev1", true), -EBUSY, "the other one is being drained");
    cr_assert(strstr(D.why, "device add"), "%s", D.why);
    cr_assert_eq(drain("/dev0", false), 0, "%s", D.why);
    dev_account(W.v->devs, info_of("/dev1").id, 23 * (int64_t)MiB);
    cr_assert_eq(drain("/dev0", true), -EBUSY, "the other one is full");
    cr_assert(strstr(D.why, "full") && strstr(D.why, "device add"), "%s", D.why);
    dev_account(W.v->devs, info_of("/dev1").id, -2 * (int64_t)MiB);
    small_plan("fail op=any count=all err=reset");
    small_run(30 * NS_PER_SEC);
    cr_assert_eq(drain("/dev0", true), -EBUSY, "the store is down, and there is no room for it");
    cr_assert(strstr(D.why, "not uploaded"), "%s", D.why);
    dev_account(W.v->devs, info_of("/dev1").id, -21 * (int64_t)MiB);
    cr_assert_eq(take_out("/dev1", false), -EBUSY);
    cr_assert_eq(drain("/dev9", true), -ENOENT);
}

Test(drain, a_cancelled_one_is_used_again)
{
    build(false, 256 * MiB);
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    for (unsigned k = 0; k < 40; k++)
        (void)small_step();
    cr_assert_eq(drain("/dev0", false), 0);
    uint64_t left = on("/dev0").segments;
    small_run(10 * NS_PER_SEC);
    cr_assert_eq(on("/dev0").segments, left, "it has stopped");
    cr_assert(dev_takes_new(W.v->devs, info_of("/dev0").id));
    check_files();
    reopen();
    cr_assert(!info_of("/dev0").draining);
    check_files();
}

static int request(const char *text)
{
    static _Atomic bool never;
    return volume_device_request(W.v, text, &never, NULL, NULL, stderr, D.why, sizeof D.why);
}

Test(drain, requests_are_read_strictly)
{
    static const char *const junk[] = {
        "device",
        "device ",
        "device add",
        "device  add 2f61",
        "device add 2f6",
        "device add 2F61",
        "device add 2f00",
        "device add /dev2",
        "device add 2f64657632 12x",
        "device add 2f64657632 -1",
        "device add 2f64657632 99999999999999999999",
        "device grow 2f64657630",
        "device drain 2f64657630 soon",
        "device drain 2f64657630 wait wait",
        "device remove 2f64657630 force",
        "devices add 2f61",
    };
    build(false, 256 * MiB);
    for (unsigned k = 0; k < ARRAY_LEN(junk); k++)
        cr_assert_eq(request(junk[k]), -EINVAL, "%s", junk[k]);
    cr_assert(!info_of("/dev0").draining && !info_of("/dev2").id);
    cr_assert_eq(request("device add 2f64657632 67108864"), 0, "%s", D.why);
    cr_assert_eq(info_of("/dev2").budget, 64 * MiB);
    cr_assert_eq(request("device drain 2f64657630"), 0, "%s", D.why);
    cr_assert_eq(request("device drain 2f64657630 cancel"), 0, "%s", D.why);
    cr_assert(!info_of("/dev0").draining);
    cr_assert_eq(request("device drain 2f64657630 wait"), 0, "%s", D.why);
    cr_assert_eq(request("device remove 2f64657630"), 0, "%s", D.why);
    cr_assert_eq(request("device add 2f6465763 "), -EINVAL);
}

/* A copy without a record is left alone while it is being made; then it is no loss. */
Test(drain, a_copy_in_the_making_is_not_taken_for_a_file_that_nothing_names)
{
    build(false, 256 * MiB);
    struct seg_rec rec = small_seg(D.sealed, 0);
    struct segfile_id id = seg_file_id(0, D.sealed, 0, &rec);
    struct data_making making;
    struct segfile *sf;
    uint64_t bytes;
    size_t done;
    id.device = rec.device == info_of("/dev0").id ? info_of("/dev1").id : info_of("/dev0").id;
    id.version++;
    data_making_begin(W.v->data, &making, D.sealed, 0);
    cr_assert_eq(segfile_create(W.v->devs, W.v->id, &id, rec.capacity, &sf), 0);
    cr_assert_eq(segfile_append(sf, "begun", 5, &done), 0);
    segfile_close(sf);
    data_find_orphans(W.v->data);
    small_idle();
    cr_assert_eq(segfile_stat(W.v->devs, &id, &bytes, NULL), 0, "it was taken away");
    data_making_end(W.v->data, &making);
    data_find_orphans(W.v->data);
    small_idle();
    cr_assert_eq(segfile_stat(W.v->devs, &id, &bytes, NULL), -ENOENT, "its maker is gone");
    check_files();
}

/* ---- broker profile ---- */

static bool rewritten_bytes(uint64_t ino, uint64_t off, uint8_t v)
{
    uint8_t b;
    return small_read(ino, off, &b, 1) == 1 && b == v;
}

Test(drain, a_write_to_what_is_on_it_moves_that_segment_first)
{
    build(true, 256 * MiB);
    uint64_t base = 0;
    while (small_seg(D.sealed, base).device != info_of("/dev0").id)
        base = small_seg(D.sealed, base).end;
    dev_drain(W.v->devs, info_of("/dev0").id, true, 0); /* and nobody works on it yet */
    size_t done;
    struct inode *i;
    uint64_t at = NONE;
    struct data_wait w = {0};
    int r = small_write_some(D.sealed, base + 100, 50, 7, &done, NULL);
    cr_assert_eq(r, -EAGAIN, "%s", err_name(r));
    cr_assert_eq(inode_get(W.v->ns, D.sealed, &i), 0);
    cr_assert_eq(data_blocked(W.v->data, i, base + 100, 50, &w, &at), DATA_REMOTE);
    inode_put(W.v->ns, i);
    cr_assert_eq(at, base);
    cr_assert_eq(small_command(TIER_WARM, D.sealed), 0, "the store is not asked");
    cr_assert_eq(small_seg(D.sealed, base).device, info_of("/dev1").id);
    cr_assert_eq(small_write_some(D.sealed, base + 100, 50, 7, &done, NULL), 0);
    small_check(D.sealed, base + 100, 50, 7);
    small_check(D.sealed, base, 100, 2);
    uint8_t want[200];
    small_fill(want, D.sealed, base + 150, 1, 2);
    cr_assert(rewritten_bytes(D.sealed, base + 150, want[0]));
}

Test(drain, a_file_that_is_rewritten_all_the_time_leaves_too)
{
    build(true, 256 * MiB);
    uint64_t hot = small_create(ROOT_INO, "hot", S_IFREG);
    small_append(hot, 100 * KiB, 4);
    dev_drain(W.v->devs, info_of("/dev1").id, small_seg(hot, 0).device == info_of("/dev1").id, 0);
    const char *path = small_seg(hot, 0).device == info_of("/dev1").id ? "/dev1" : "/dev0";
    dev_drain(W.v->devs, info_of("/dev1").id, false, 0);
    cr_assert_eq(drain(path, true), 0, "%s", D.why);
    for (unsigned k = 0; k < 3000 && !info_of(path).drained; k++) {
        size_t done;
        int r = small_write_some(hot, 1000, 500, 4, &done, NULL);
        cr_assert(r == 0 || r == -EAGAIN, "%s", err_name(r));
        if (r == -EAGAIN)
            (void)small_command(TIER_WARM, hot);
        small_run(10 * NS_PER_MS);
    }
    cr_assert(info_of(path).drained, "%s", info_of(path).drain_note);
    small_check(hot, 0, 100 * KiB, 4);
    check_files();
}

/* ---- every call fails once; a crash at every step ---- */

/* The device is gone in the end, whatever came between, and everything is there. */
static void finish_removal(const char *what, unsigned nth)
{
    if (info_of("/dev0").id) {
        cr_assert_eq(drain("/dev0", true), 0, "%s %u: %s", what, nth, D.why);
        cr_assert(small_until(drained), "%s %u: %s", what, nth, info_of("/dev0").drain_note);
        cr_assert_eq(take_out("/dev0", false), 0, "%s %u: %s", what, nth, D.why);
    }
    check_files();
    reopen();
    cr_assert_eq(info_of("/dev0").id, NONE, "%s %u", what, nth);
    check_files();
}

/* Drains and removes; true: both came to their end. */
static bool try_all(void)
{
    if (drain("/dev0", true) < 0)
        return false;
    for (unsigned k = 0; k < 3000 && !simdisk_frozen(W.disk) && !drained() && !stuck(); k++)
        small_run(20 * NS_PER_MS);
    return drained() && take_out("/dev0", false) == 0 && !simdisk_frozen(W.disk);
}

static void crash_everywhere(bool power)
{
    for (unsigned nth = 1;; nth++) {
        build(false, 256 * MiB);
        simdisk_freeze(W.disk, nth);
        bool all = try_all();
        small_crash(power);
        small_open();
        check_files();
        finish_removal(power ? "power" : "kill", nth);
        small_free();
        if (all) {
            cr_assert_gt(nth, 50, "only %u calls were made", nth);
            break;
        }
    }
    small_make(false); /* for .fini */
}

Test(drain, a_daemon_killed_at_any_step_goes_on_where_it_was)
{
    crash_everywhere(false);
}

Test(drain, power_lost_at_any_step_loses_nothing)
{
    crash_everywhere(true);
}

Test(drain, every_call_to_the_disk_fails_once)
{
    static const int errs[] = {EIO, ENOSPC};
    for (unsigned e = 0; e < ARRAY_LEN(errs); e++) {
        for (unsigned nth = 1;; nth++) {
            build(false, 256 * MiB);
            uint64_t before = simdisk_calls(W.disk, SD_ANY);
            cr_assert(simdisk_fail(W.disk, SD_ANY, NULL, nth, 1, errs[e]));
            bool all = try_all();
            bool struck = simdisk_calls(W.disk, SD_ANY) - before >= nth;
            simdisk_fail_none(W.disk);
            cr_assert(all || struck);
            reopen(); /* a device that failed is tried again */
            check_files();
            finish_removal(err_name(-errs[e]), nth);
            small_free();
            if (!struck)
                break;
        }
    }
    small_make(false);
}

/* ---- dead devices ---- */

static void break_files(uint64_t ino)
{
    uint64_t base = 0;
    struct seg_rec r;
    for (; seg_after(W.v->kv, ino, base, &base, &r) == 0; base++) {
        char path[SEG_PATH_BYTES];
        if (!r.local || r.device != info_of("/dev0").id)
            continue;
        seg_path(ino, base, r.file_version, path);
        cr_assert(simdisk_fail(W.disk, SD_ANY, strrchr(path, '/') + 1, 1, 1000000, EIO));
    }
}

/* Every call to a file on it fails from now on. */
static void break_dev0(void)
{
    break_files(D.committed);
    break_files(D.sealed);
    break_files(D.open);
    dev_fail(W.v->devs, info_of("/dev0").id, "the test", -EIO);
}

Test(drain, of_a_failed_device_what_is_committed_goes_and_the_rest_is_given_up_by_name)
{
    build(false, 256 * MiB);
    struct inode *i;
    uint8_t b[10];
    break_dev0();
    cr_assert_eq(take_out("/dev0", false), -EBUSY);
    cr_assert(strstr(D.why, "--lost"), "%s", D.why);
    small_plan(
        "fail op=put key=segments/* count=all err=403"); /* the store is up, nothing new gets in */
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(stuck), "%s", info_of("/dev0").drain_note);
    cr_assert_gt(on("/dev0").segments, 0);
    cr_assert_eq(take_out("/dev0", false), -EBUSY);
    uint64_t gone = UINT64_MAX, kept = UINT64_MAX, end = 0;
    for (uint64_t at = 0; at < 700 * KiB; at = end) {
        struct seg_rec r = small_seg(D.sealed, at);
        *(r.device == info_of("/dev0").id ? &gone : &kept) = at;
        end = r.end;
    }
    cr_assert(gone != UINT64_MAX && kept != UINT64_MAX);
    uint64_t size = small_size(D.open);
    cr_assert_eq(take_out("/dev0", true), 0, "%s", D.why);
    simdisk_fail_none(W.disk);
    cr_assert_eq(info_of("/dev0").id, NONE);
    small_check(D.committed, 0, 700 * KiB, 1);
    small_check(D.sealed, kept, 1000, 2);
    cr_assert_eq(small_read(D.sealed, gone, b, sizeof b), -EIO, "never zeros");
    cr_assert_eq(small_size(D.sealed), 700 * KiB);
    cr_assert_eq(small_size(D.open), size, "no file got shorter");
    small_plan("");
    small_append(D.open, 300 * KiB, 3);
    small_check(D.open, size, 300 * KiB, 3);
    reopen();
    cr_assert_eq(small_read(D.sealed, gone, b, sizeof b), -EIO);
    cr_assert_eq(small_size(D.open), size + 300 * KiB);
    small_settle();
    small_check(D.open, size, 300 * KiB, 3);
    cr_assert_eq(inode_get(W.v->ns, D.sealed, &i), 0);
    inode_put(W.v->ns, i);
}

Test(drain, a_failed_device_whose_bytes_are_all_in_the_bucket_needs_no_force)
{
    build(false, 256 * MiB);
    small_plan("");
    cr_assert_eq(small_command(TIER_UPLOAD, ROOT_INO), 0);
    break_dev0();
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(drained), "%s", info_of("/dev0").drain_note);
    cr_assert_eq(take_out("/dev0", false), 0, "%s", D.why);
    check_files();
}

Test(drain, what_a_missing_device_holds_does_not_hold_up_other_uploads)
{
    build(false, 256 * MiB);
    for (unsigned k = 0; k < 12; k++) { /* more than are uploaded at once */
        char name[8];
        snprintf(name, sizeof name, "m%u", k);
        uint64_t f = small_create(ROOT_INO, name, S_IFREG);
        small_append(f, 200 * KiB, 5);
        cr_assert_eq(small_command(TIER_SEAL, f), 0);
    }
    cr_assert_geq(on("/dev0").sealed, 5);
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/dev0", AT_FDCWD, "/elsewhere"), 0);
    small_open();
    D.open = small_create(ROOT_INO, "later", S_IFREG);
    small_append(D.open, 200 * KiB, 6);
    cr_assert_eq(small_command(TIER_SEAL, D.open), 0);
    small_run(20 * NS_PER_SEC);
    cr_assert_eq(small_seg(D.open, 0).state, SEG_COMMITTED);
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/elsewhere", AT_FDCWD, "/dev0"), 0);
    small_open();
    small_settle();
    cr_assert_eq(on("/dev0").sealed, 0, "back, and uploaded");
}

static void keep_sealed(void)
{
    small_put_file("/rules.ini", "[sealed]\ntiered = no\n");
    W.conf.policy = strdup("/rules.ini");
    small_stop();
    small_open();
    small_plan("");
    small_settle();
}

Test(drain, what_a_rule_keeps_local_is_copied_and_never_waits_for_the_store)
{
    build(false, 256 * MiB);
    keep_sealed();
    cr_assert_gt(on("/dev0").sealed, 0, "some of it is there");
    unsigned before = small_rows('K');
    cr_assert_eq(drain("/dev0", true), 0, "%s", D.why);
    cr_assert(small_until(drained));
    cr_assert_eq(small_rows('K'), before);
    check_files();
    cr_assert_eq(small_seg(D.sealed, 0).state, SEG_SEALED);
    cr_assert_eq(take_out("/dev0", false), 0, "%s", D.why);
    check_files();
}

Test(drain, what_a_rule_kept_local_and_is_given_up_leaves_its_queue)
{
    build(false, 256 * MiB);
    keep_sealed();
    uint64_t there = on("/dev0").sealed;
    unsigned before = small_rows('K');
    cr_assert(there > 0 && before > there, "on both devices: %u, %llu", before,
              (unsigned long long)there);
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/dev0", AT_FDCWD, "/elsewhere"), 0);
    small_open();
    cr_assert_eq(take_out("/dev0", true), 0, "%s", D.why);
    cr_assert_eq(small_rows('K'), before - there);
}

Test(drain, a_missing_device_is_named_and_can_be_given_up)
{
    build(false, 256 * MiB);
    cr_assert_eq(small_command(TIER_SEAL, D.open), 0);
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/dev0", AT_FDCWD, "/elsewhere"), 0);
    small_open();
    struct dev_info i = info_of("/dev0");
    cr_assert_eq(i.state, DEV_MISSING);
    cr_assert(strstr(i.error, "only"), "says what is only there: %s", i.error);
    cr_assert_eq(take_out("/dev0", false), -EBUSY);
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/elsewhere", AT_FDCWD, "/dev0"), 0);
    small_open();
    check_files(); /* it is back, and nothing was lost */
    small_stop();
    cr_assert_eq(io_rename(AT_FDCWD, "/dev0", AT_FDCWD, "/elsewhere"), 0);
    small_open();
    cr_assert_eq(take_out("/dev0", true), 0, "%s", D.why);
    uint8_t b[10];
    unsigned lost = 0;
    for (uint64_t at = 0; at < 700 * KiB; at += 10 * KiB) {
        int64_t r = small_read(D.sealed, at, b, sizeof b);
        cr_assert(r == sizeof b || r == -EIO);
        lost += r == -EIO;
    }
    cr_assert_gt(lost, 0);
    small_check(D.committed, 0, 700 * KiB, 1);
}
