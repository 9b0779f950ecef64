#!/usr/bin/env bash
# config.sh: examples/sluicefs.conf is accepted, means what it says, and mounts; and it names no setting
# that does not exist.
. "$(dirname "$0")/lib.sh"
need_fuse
mkdir -p "$W/etc" "$W/srv/logs" "$W/var/logs"
moved "$ROOT/examples/sluicefs.conf" | sed "s/20G/200M/" >"$W/etc/logs.conf"
"$SLUICEFS" config --config "$W/etc/logs.conf" "$W/srv/logs" >"$W/out" || die "not accepted"
grep -E "^pool +256MiB +.*logs.conf:[0-9]+" "$W/out" || die "pool is not from the file"
grep -E "^allow_other +yes +.*logs.conf:[0-9]+" "$W/out" || die "allow_other is not from the file"
[ "$(id -u)" = 0 ] || grep -qx user_allow_other /etc/fuse.conf 2>/dev/null ||
    skip "allow_other needs root, or user_allow_other in /etc/fuse.conf"
"$SLUICEFS" mount --config "$W/etc/logs.conf" "$W/srv/logs" || die "does not mount"
echo a line >>"$W/srv/logs/file"
"$SLUICEFS" upload "$W/srv/logs/file" || die "does not upload"
find "$W/var/logs/store/segments" -type f | grep -q . || die "the store is not where the file says"
"$SLUICEFS" umount "$W/srv/logs" || die "does not unmount"
