#!/usr/bin/env bash
# mount.fuse.sluicefs, as mount(8) calls it: mounts in the background, shows its source, remounts.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "mount(8) mounts for root only"
HELPER=$HERE/../../tools/mount.fuse.sluicefs
export SLUICEFS

shows() { findmnt -rn -o "$1" "$MNT"; }
gone() { ! pgrep -f "$MNT\$" >/dev/null; }
writable() { touch "$MNT/new" 2>/dev/null; }

check "a store URL as source" "$HELPER" "dir://$W/store" "$MNT" -o "rw,noatime,noexec,_netdev,x-systemd.automount,state=$W/state,device=$W/device"
check "type" test "$(shows FSTYPE)" = fuse.sluicefs
check "source" test "$(shows SOURCE)" = "dir://$W/store"
check "mount flags" grep -q 'noexec.*noatime\|noatime.*noexec' <(shows OPTIONS)
check "suid and dev are mount(8)'s defaults" bash -c "! grep -q 'nosuid\|nodev' <<<'$(shows OPTIONS)'"
echo kept >"$MNT/f"
check "remount read-only" "$HELPER" "dir://$W/store" "$MNT" -o remount,ro
check_errno "then nothing can be written" EROFS 'open(m + "/g", "w")'
check "remount read-write" "$HELPER" "dir://$W/store" "$MNT" -o remount,rw
check "then it can" writable
umount "$MNT"
check "the daemon ends" wait_for 15 gone

printf '[volume]\nstate = %s\ndevice = %s\nstore = %s\n' "$W/state" "$W/device" "dir://$W/store" >"$W/vol.conf"
check "a configuration file as source" "$HELPER" "$W/vol.conf" "$MNT" -o ro
check "it is the same volume" test "$(cat "$MNT/f")" = kept
check_errno "ro from the start" EROFS 'open(m + "/g", "w")'
umount "$MNT"
check "the daemon ends again" wait_for 15 gone
check "an unknown option is refused by name" bash -c "'$HELPER' '$W/vol.conf' '$MNT' -o nonsense 2>&1 | grep -q '^sluicefs: .*nonsense.*; '"
check "a missing mount point too" bash -c "! '$HELPER' '$W/vol.conf' '$W/none' 2>'$W/err' && grep -q '^sluicefs: mount point .*; ' '$W/err'"
cp "$W/state/log" "$LOG"
finish
