/* Devices: identity, room, choice, failures. */
#include <errno.h>
#include "fs/base/stats.h"
#include "tests/support/faultio.c"
#include "tests/support/segdir.h"

static int open_as(const uint8_t volume[16], const char *path, bool create, uint32_t *id,
                   struct devs **d, char why[256])
{
    struct dev_conf c = {.path = path, .budget = 100 * MiB};
    why[0] = 0;
    *d = NULL;
    return devs_open(volume, &c, 1, create, id, NULL, d, why, 256);
}

Test(dev, identity_is_made_once_and_kept)
{
    struct segdir t;
    char why[256];
    segdir_make(&t);
    cr_assert_eq(t.id, 1);
    devs_close(t.devs);
    uint32_t id = 0;
    cr_assert_eq(open_as(VOLUME, t.path, false, &id, &t.devs, why), 0, "%s", why);
    cr_assert_eq(id, 1, "found again without a record");
    segdir_done(&t);
}

Test(dev, refusals_name_the_directory_and_what_helps)
{
    static const uint8_t other[16] = "another volume..";
    struct segdir t;
    struct devs *d;
    char why[256], path[160];
    uint32_t id = 0;
    segdir_make(&t);
    cr_assert_eq(open_as(other, t.path, true, &id, &d, why), -EEXIST);
    cr_assert(strstr(why, t.path) && strstr(why, "another volume"), "%s", why);
    id = 2;
    cr_assert_eq(open_as(VOLUME, t.path, false, &id, &d, why), -EEXIST);
    cr_assert_not_null(strstr(why, "device 1"), "%s", why);

    snprintf(path, sizeof path, "%s/segments", t.path); /* has no identity */
    id = 0;
    cr_assert_eq(open_as(VOLUME, path, false, &id, &d, why), -ENOENT);
    snprintf(path, sizeof path, "%s/segments/x", t.path);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    path[strlen(path) - 2] = 0;
    cr_assert_eq(open_as(VOLUME, path, true, &id, &d, why), -ENOTEMPTY);
    cr_assert(strstr(why, path) && strstr(why, "empty"), "%s", why);

    /* Killed while it wrote the identity: as empty as before. */
    snprintf(path, sizeof path, "%s/begun", t.path);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/begun/sluicefs-device.tmp89abcdef", t.path);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    *strrchr(path, '/') = 0;
    cr_assert_eq(open_as(VOLUME, path, true, &id, &d, why), 0, "%s", why);
    devs_close(d);
    id = 0;

    snprintf(path, sizeof path, "%s/no/such", t.path);
    cr_assert_eq(open_as(VOLUME, path, true, &id, &d, why), -ENOENT);
    snprintf(path, sizeof path, "%s/sluicefs-device", t.path);
    cr_assert_eq(open_as(VOLUME, path, true, &id, &d, why), -ENOTDIR);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "x", 1, 20), 1);
    close(fd);
    id = 1;
    cr_assert_eq(open_as(VOLUME, t.path, false, &id, &d, why), -EBADMSG);
    cr_assert_not_null(strstr(why, "damaged"), "%s", why);
    segdir_done(&t);
}

Test(dev, a_known_device_that_is_gone_is_missing_and_others_work)
{
    struct segdir t;
    char gone[96], why[256] = "";
    struct devs *d;
    struct dev_info info;
    segdir_make(&t);
    devs_close(t.devs);
    snprintf(gone, sizeof gone, "%s-gone", t.path);
    struct dev_conf c[2] = {{.path = t.path}, {.path = gone}};
    uint32_t ids[2] = {1, 2}, id;
    cr_assert_eq(devs_open(VOLUME, c, 2, false, ids, NULL, &d, why, sizeof why), 0, "%s", why);
    devs_info(d, 1, &info);
    cr_assert_eq(info.state, DEV_MISSING);
    cr_assert_neq(info.error[0], 0);
    cr_assert_eq(dev_dirfd(d, 2), -ENODEV);
    cr_assert_eq(dev_room(d, 2, 1), -ENODEV);
    cr_assert_eq(dev_pick(d, &id), 0);
    cr_assert_eq(id, 1);
    devs_close(d);
    cr_assert_eq(devs_open(VOLUME, c, 2, true, ids, NULL, &d, why, sizeof why), -ENOENT,
                 "never made anew under a known id");
    ids[1] = 0;
    cr_assert_eq(devs_open(VOLUME, c, 2, true, ids, NULL, &d, why, sizeof why), 0, "%s", why);
    cr_assert_eq(ids[1], 2);
    devs_close(d);
    c[1].path = t.path;
    ids[1] = 0;
    cr_assert_eq(devs_open(VOLUME, c, 2, true, ids, NULL, &d, why, sizeof why), -EEXIST);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", gone);
    cr_assert_eq(system(cmd), 0);
    segdir_open(&t);
    segdir_done(&t);
}

Test(dev, room_ends_at_the_refuse_level_and_fill_follows)
{
    struct segdir t;
    char why[256];
    uint32_t id = 1;
    segdir_make(&t);
    devs_close(t.devs);
    cr_assert_eq(open_as(VOLUME, t.path, false, &id, &t.devs, why), 0);
    cr_assert_eq(dev_room(t.devs, 1, 95 * MiB), 0);
    cr_assert_eq(dev_room(t.devs, 1, 95 * MiB + 1), -ENOSPC);
    cr_assert_eq(dev_room(t.devs, 1, UINT64_MAX), -ENOSPC);
    dev_account(t.devs, 1, 50 * (int64_t)MiB);
    cr_assert_float_eq(dev_fill(t.devs, 1), 0.5, 1e-9);
    cr_assert_float_eq(devs_fill(t.devs), 0.5, 1e-9);
    cr_assert_eq(dev_room(t.devs, 1, 45 * MiB), 0);
    cr_assert_eq(dev_room(t.devs, 1, 46 * MiB), -ENOSPC);
    dev_account(t.devs, 1, 50 * (int64_t)MiB);
    cr_assert_eq(dev_pick(t.devs, &id), -ENOSPC);
    dev_account(t.devs, 1, -100 * (int64_t)MiB);
    cr_assert_eq(devs_used(t.devs), 0);
    cr_assert_eq(dev_pick(t.devs, &id), 0);
    segdir_done(&t);
}

static uint64_t fake_avail;

static int fake_fsinfo(int fd, uint64_t *total, uint64_t *avail, uint32_t *bsize)
{
    (void)fd;
    *total = 1000 * MiB;
    *avail = fake_avail;
    *bsize = 4096;
    return 0;
}

Test(dev, a_budget_beyond_the_file_system_is_bounded_by_its_free_space)
{
    struct segdir t;
    char why[256];
    struct io_ops ops = io_posix;
    struct dev_conf c = {.budget = 100 * GiB};
    uint32_t id = 1;
    segdir_make(&t);
    devs_close(t.devs);
    ops.fsinfo = fake_fsinfo;
    fake_avail = 100 * MiB;
    io_use(&ops);
    c.path = t.path;
    cr_assert_eq(devs_open(VOLUME, &c, 1, false, &id, NULL, &t.devs, why, sizeof why), 0);
    cr_assert_eq(dev_room(t.devs, 1, 90 * MiB), 0, "1 %% stays free");
    cr_assert_eq(dev_room(t.devs, 1, 91 * MiB), -ENOSPC);
    dev_account(t.devs, 1, 90 * (int64_t)MiB); /* counted at once, before the next question */
    cr_assert_eq(dev_room(t.devs, 1, 1), -ENOSPC);
    cr_assert_float_eq(dev_fill(t.devs, 1), 1.0, 1e-9, "full in fact, whatever the budget");
    devs_close(t.devs);
    c.budget = 0;
    cr_assert_eq(devs_open(VOLUME, &c, 1, false, &id, NULL, &t.devs, why, sizeof why), 0);
    cr_assert_eq(devs_budget(t.devs), 900 * MiB);
    io_use(NULL);
    segdir_done(&t);
}

Test(dev, every_call_fails_once_while_opening)
{
    for (long at = 1;; at++) {
        struct segdir t;
        struct devs *d = NULL;
        char path[96], why[256];
        uint32_t id = 0;
        segdir_make(&t);
        snprintf(path, sizeof path, "%s/segments/new", t.path);
        faultio_start((struct faultio){.mask = FAULT_ANY, .at = at, .err = EIO});
        int r = open_as(VOLUME, path, true, &id, &d, why);
        bool struck = faultio_calls() >= at;
        faultio_stop();
        cr_assert(r == 0 || (r == -EIO && strstr(why, path)), "call %ld: %d %s", at, r, why);
        devs_close(d);
        id = 0;
        cr_assert_eq(open_as(VOLUME, path, true, &id, &d, why), 0, "call %ld: %s", at, why);
        devs_close(d);
        segdir_done(&t);
        if (!struck)
            break;
    }
}

Test(dev, failure_is_kept_and_counted_bytes_are_shown)
{
    struct segdir t;
    struct stats *st;
    struct dev_conf c = {0};
    struct dev_info info;
    struct segfile *s;
    char why[256], *text = NULL;
    size_t n = 0;
    uint32_t id = 1;
    segdir_make(&t);
    devs_close(t.devs);
    c.path = t.path;
    cr_assert_eq(stats_open(&st), 0);
    cr_assert_eq(devs_open(VOLUME, &c, 1, false, &id, st, &t.devs, why, sizeof why), 0);
    struct segfile_id sid = segdir_id(&t, 5);
    cr_assert_eq(segfile_create(t.devs, VOLUME, &sid, MiB, &s), 0);
    segdir_append(s, 1234);
    cr_assert_eq(segfile_sync(s), 0);
    segfile_close(s);
    FILE *f = open_memstream(&text, &n);
    stats_print(st, f);
    fclose(f);
    cr_assert_not_null(strstr(text, "sluicefs_device_bytes_total{direction=\"written\"} 1234"),
                       "%s", text);
    cr_assert_not_null(strstr(text, "sluicefs_device_sync_seconds_count 1"), "%s", text);
    free(text);
    dev_fail(t.devs, 1, "flushing", -EIO);
    dev_fail(t.devs, 1, "later", -ENOSPC);
    devs_info(t.devs, 0, &info);
    cr_assert_eq(info.state, DEV_FAILED);
    cr_assert_str_eq(info.error, "flushing: EIO");
    cr_assert_eq(devs_budget(t.devs), 0);
    cr_assert_eq(dev_pick(t.devs, &id), -EIO);
    segdir_done(&t);
    stats_close(st);
}
