#!/usr/bin/env bash
# fstab.sh: each line of examples/fstab, given to the mount helper as mount(8) does it.
. "$(dirname "$0")/lib.sh"
need_fuse
[ "$(id -u)" = 0 ] || skip "mount(8) mounts for root only"
export SLUICEFS
mkdir -p "$W/etc" "$W/var/logs" "$W/var/events"
moved "$ROOT/examples/sluicefs.conf" | sed "s/20G/200M/" >"$W/etc/logs.conf"
moved "$ROOT/examples/fstab" | grep -v '^ *#' | grep . >"$W/fstab"
# The second line's state and device are at their default place, which a test must not use.
n=0
while read -r source point type options _; do
    n=$((n + 1))
    [ "$type" = fuse.sluicefs ] || die "type $type"
    case $source in dir:*) options=$options,state=$W/s$n,device=$W/d$n=64M ;; esac
    mkdir -p "$point"
    # mount(8) and systemd keep these options for themselves.
    options=$(tr ',' '\n' <<<"$options" | grep -vx 'nofail' | paste -sd,)
    "$ROOT/tools/mount.fuse.sluicefs" "$source" "$point" -o "rw,$options" || die "line $n does not mount"
    mountpoint -q "$point" || die "line $n: nothing is mounted"
    grep -q " $point fuse.sluicefs .*noatime" /proc/self/mounts || die "line $n: no noatime"
    echo line >>"$point/file"
    [ "$(cat "$point/file")" = line ] || die "line $n: cannot be used"
    umount "$point" || die "line $n: umount"
done <"$W/fstab"
[ $n = 2 ] || die "$n lines, not 2"
