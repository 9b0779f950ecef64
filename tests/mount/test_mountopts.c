/* Mount options: what goes to libfuse, what is dropped, what is a setting, what is refused. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "fs/daemon/mountopts.h"

static struct config conf;
static struct mountopts opts;
static char why[512];

static int parse(const char *text)
{
    config_done(&conf);
    config_init(&conf);
    why[0] = '\0';
    return mountopts_parse(text, &conf, &opts, why, sizeof(why));
}

Test(mountopts, nothing_is_nothing)
{
    cr_assert_eq(parse(NULL), 0);
    cr_assert_eq(parse(""), 0);
    cr_assert_eq(parse(",,"), 0);
    cr_assert_str_eq(opts.fuse, "");
}

Test(mountopts, flags_go_on_and_words_of_others_are_dropped)
{
    cr_assert_eq(parse("rw,nosuid,_netdev,noauto,x-systemd.requires=/a,noexec,comment=hi,nofail"),
                 0);
    cr_assert_str_eq(opts.fuse, "nosuid,noexec");
    cr_assert_not(conf.read_only);
}

Test(mountopts, ro_and_later_rw)
{
    cr_assert_eq(parse("ro"), 0);
    cr_assert(conf.read_only);
    cr_assert_eq(parse("ro,rw"), 0);
    cr_assert_not(conf.read_only);
}

Test(mountopts, settings_of_the_volume_are_set)
{
    cr_assert_eq(parse("segment_bytes=8M,noatime,profile=broker,xattr"), 0, "%s", why);
    cr_assert_eq(conf.segment_bytes, 8u << 20);
    cr_assert_eq(conf.profile, PROFILE_BROKER);
    cr_assert(conf.xattr);
    cr_assert_str_eq(opts.fuse, "noatime");
}

Test(mountopts, unknown_words_and_settings_are_named)
{
    cr_assert_neq(parse("nonsense"), 0);
    cr_assert(strstr(why, "nonsense"));
    cr_assert_neq(parse("segmint_bytes=8M"), 0);
    cr_assert(strstr(why, "segmint_bytes"));
    cr_assert_neq(parse("segment_bytes=1"), 0);
    cr_assert(strstr(why, "segment_bytes"));
}

Test(mountopts, commas_in_values_are_escaped_again)
{
    cr_assert_eq(parse("fsname=a\\,b,dev"), 0, "%s", why);
    cr_assert_str_eq(opts.fuse, "fsname=a\\,b,dev");
    cr_assert(opts.fsname_given);
}

Test(mountopts, remount_is_seen)
{
    cr_assert_eq(parse("remount,ro"), 0);
    cr_assert(opts.remount);
}

Test(mountopts, too_long_is_refused)
{
    char text[3 * MOUNTOPTS_BYTES];
    memset(text, 'a', sizeof(text) - 1);
    memcpy(text, "fsname=", 7);
    text[sizeof(text) - 1] = '\0';
    cr_assert_eq(parse(text), -E2BIG);
    char many[3 * MOUNTOPTS_BYTES] = "";
    for (size_t n = 0; n + 8 < sizeof(many); n += 7)
        memcpy(many + n, "nosuid,", 8);
    cr_assert_eq(parse(many), -E2BIG);
}

Test(mountopts, every_mount_gets_permissions_and_a_name)
{
    cr_assert_eq(parse("noatime"), 0);
    cr_assert_eq(mountopts_finish(&conf, &opts), 0);
    cr_assert_str_eq(opts.fuse, "noatime,default_permissions,subtype=sluicefs,fsname=sluicefs");
    cr_assert_eq(parse("ro,allow_other"), 0);
    cr_assert_eq(mountopts_finish(&conf, &opts), 0);
    cr_assert_str_eq(opts.fuse,
                     "default_permissions,subtype=sluicefs,allow_other,ro,fsname=sluicefs");
}

Test(mountopts, a_url_with_secrets_is_not_shown)
{
    cr_assert_eq(parse(NULL), 0);
    conf.store = strdup("s3://key:secret@bucket/x");
    cr_assert_eq(mountopts_finish(&conf, &opts), 0);
    cr_assert_null(strstr(opts.fuse, "secret"));
}
