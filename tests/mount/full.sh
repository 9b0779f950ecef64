#!/usr/bin/env bash
# With a device's file system full to its last byte the daemon starts, nothing is lost or deleted, and it drains
# once the store is there. A full state directory is told. (More of that: unit/test_kv_full.)
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='tier: |store|full|No space|ENOSPC|removed the mount of a daemon|similar lines'

DISK=$W/disk
mkdir "$DISK"
mount -t tmpfs -o size=32m none "$DISK" 2>/dev/null || skip "a full file system needs the right to mount a tmpfs"
gone() { # before what lib.sh does at the end
    local code=$?
    [ -z "$PID" ] || kill -9 "$PID"
    umount -l "$DISK"
    umount -l "$W/state" 2>/dev/null
    PID=
    is_mounted && unmount_now
    (exit "$code")
    cleanup
}
trap gone EXIT
fill_up() { cat /dev/zero >>"$DISK/ballast" 2>/dev/null; [ "$(df --output=avail "$DISK" | tail -n 1)" -eq 0 ]; }

DEVICE=$DISK/device
OPTIONS=(--fault-plan "$W/plan" --set segment_bytes=1MiB --set mirror_below=0 --set slow_spread=100ms)
printf 'trigger %s\nfail op=any count=all err=503\n' "$W/away" >"$W/plan"
start_fs "${OPTIONS[@]}"
touch "$W/away"
head -c 6000000 /dev/urandom | tee "$W/data" >"$MNT/f"
sync "$MNT/f"
echo small >"$MNT/to-remove"
check "its file system is full" wait_for 10 fill_up
check_errno "a large write is refused" ENOSPC '
f = os.open(m + "/g", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
for k in range(64): assert os.write(f, bytes(1 << 20)) == 1 << 20'
check "what is there is read" cmp "$W/data" "$MNT/f"
fill_up
kill_fs
fill_up
files() { find "$DISK/device/segments" -type f | sort; }
files >"$W/files"
start_fs "${OPTIONS[@]}"
check "full, without a store, it starts and has everything" cmp "$W/data" "$MNT/f"
check "nothing was taken off the device" diff "$W/files" <(files)
check "a file can be removed" rm "$MNT/to-remove"
check "the daemon lives" test -n "$("$SLUICEFS" status --json "$MNT")"
rm "$W/away"
check "the store is back: everything goes up" timeout 60 "$SLUICEFS" upload "$MNT/f"
check "and leaves the device" timeout 60 "$SLUICEFS" evict "$MNT/f"
has_room() { [ "$(df --output=avail -B1 "$DISK" | tail -n 1)" -gt 4000000 ]; }
check "which has room" wait_for 20 has_room
append() { echo more 2>/dev/null >>"$MNT/f"; }
check "writes go on" wait_for 30 append
echo more >>"$W/data"
check "all of it is right" cmp "$W/data" "$MNT/f"
stop_fs
rm -rf "$W/state" "$DISK/device" "$W/store"/* "$W/store"/.s* "$W/store"/.t*

# The state directory's file system. Who meets ENOSPC is told where.
mkdir "$W/state"
mount -t tmpfs -o size=24m none "$W/state" || exit 1
DEVICE=$W/device
start_fs
check_errno "new names are refused" ENOSPC '
for k in range(100000): os.close(os.open(f"{m}/{k:0200}", os.O_CREAT | os.O_WRONLY, 0o600))'
check "status says so" bash -c "'$SLUICEFS' status '$MNT' | grep -q 'file system of the state directory is full'"
check "df says so" test "$(df --output=avail "$MNT" | tail -n 1)" -eq 0
check "the log says so" grep -q "state directory $W/state: its file system is full" "$LOG"
check "names can be removed" find "$MNT" -mindepth 1 -delete
mount -o remount,size=200m "$W/state"
create() { echo again 2>/dev/null >"$MNT/again"; }
check "and made again when there is room" wait_for 20 create
check "status says no more" bash -c "! '$SLUICEFS' status '$MNT' | grep -q 'state directory is full'"
finish
