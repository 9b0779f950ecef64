#!/usr/bin/env bash
# sluicefs umount: waits for the end; refuses while files are open and says whose; -l; dead mounts.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='could not be answered'

code_of() {
    local want=$1 code=0
    shift
    timeout 60 "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}
gone() { ! grep -q " $MNT " /proc/self/mounts; }
# A daemon that nobody has reaped yet has ended.
ended() { [ ! -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status"; }
pid_of() { grep -o '"pid":[0-9]*' "$MNT/.sluice/status.json" | cut -d: -f2; }
mount_bg() {
    timeout 60 "$SLUICEFS" mount --state "$W/state" --device "$W/device" --store "dir://$W/store" "$@" "$MNT"
}

check "no mount there: 3" code_of 3 "$SLUICEFS" umount "$MNT"
check "no path: 2" code_of 2 "$SLUICEFS" umount
check "two: 2" code_of 2 "$SLUICEFS" umount "$MNT" "$W"

check "mount in the background" mount_bg
daemon=$(pid_of)
echo one >"$MNT/f"
check "umount" "$SLUICEFS" umount "$MNT"
check "it is gone" gone
check "and so is the daemon, by then" ended "$daemon"
check "and its socket" test ! -e "$W/state/control.sock"

check "mount again" mount_bg
check "what was written is there" test "$(cat "$MNT/f")" = one
exec 7>>"$MNT/f"
check "a file is open: 4" code_of 4 "$SLUICEFS" umount "$MNT"
"$SLUICEFS" umount "$MNT" 2>"$W/err"
check "not the mount's own processes" test "$(grep -c sluicefs-super "$W/err") $(grep -c "(sluicefs, " "$W/err")" = "0 0"
check "it says who, and what helps" grep -q "in use by .*$$ (.*open file).*; .*umount -l" "$W/err"
check "nothing happened" bash -c "echo two >>'$MNT/f'"
exec 7>&-
(cd "$MNT" && exec sleep 30) &
sleeper=$!
in_mount() { [ "$(readlink "/proc/$sleeper/cwd")" = "$MNT" ]; }
wait_for 10 in_mount
check "a working directory in it: 4" code_of 4 "$SLUICEFS" umount "$MNT"
"$SLUICEFS" umount "$MNT" 2>"$W/err"
check "it says so" grep -q "$sleeper (sleep, working directory)" "$W/err"
kill "$sleeper"
wait "$sleeper" 2>/dev/null
daemon=$(pid_of)
exec 7>>"$MNT/f"
echo three >&7
check "-l does it with an open file" "$SLUICEFS" umount -l "$MNT"
check "it is gone" gone
check "the daemon, too" ended "$daemon"
check "the open file fails" bash -c '! echo lost >&7 2>/dev/null'
exec 7>&-

check "by a symbolic link and a slash" bash -c "ln -s '$MNT' '$W/link'"
check "mount" mount_bg
check "all of it is durable" test "$(cat "$MNT/f")" = $'one\ntwo\nthree'
check "umount the link" "$SLUICEFS" umount "$W/link/"
check "it is gone" gone

check "mount" mount_bg --set supervise=no
kill -9 "$(pid_of)"
dead() { ! stat "$MNT" >/dev/null 2>&1; }
check "the daemon dies" wait_for 10 dead
check "a dead mount is taken away" "$SLUICEFS" umount "$MNT"
check "it is gone" gone

if [ "$(id -u)" = 0 ] && mkdir "$W/bind" && mount_bg && mount --bind "$MNT" "$W/bind" 2>/dev/null; then
    daemon=$(pid_of)
    check "one of two places" "$SLUICEFS" umount "$W/bind"
    check "leaves the other" test -e "$MNT/f"
    check "and the daemon" test -e "/proc/$daemon"
    check "the last one ends it" "$SLUICEFS" umount "$MNT"
    check "the daemon has gone" ended "$daemon"
fi
gone || "$SLUICEFS" umount -l "$MNT"

# Under another user, through fusermount3.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && command -v fusermount3 >/dev/null; then
    chmod 755 "$W"
    cp "$SLUICEFS" "$W/sluicefs"
    mkdir -m 777 "$W/home" "$W/home/mnt"
    chown 65534 "$W/home" "$W/home/mnt"
    as() { HOME=$W/home setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    if as "$W/sluicefs" mount "$W/home/mnt" 2>"$W/err"; then
        check "a user's mount has its default places" test -d "$W"/home/.local/share/sluicefs/*/state
        check "the user's status" as "$W/sluicefs" status "$W/home/mnt"
        check "root's status of a user's mount: 4 or an answer" bash -c "
            '$SLUICEFS' status '$W/home/mnt'; [ \$? = 4 ] || [ \$? = 0 ]"
        as touch "$W/home/mnt/x"
        check "the user unmounts" as "$W/sluicefs" umount "$W/home/mnt"
        check "it is gone" bash -c "! grep -q '$W/home/mnt ' /proc/self/mounts"
    elif grep -q "kernel refused\|fusermount3" "$W/err"; then
        echo "a user's mount is not possible here: $(cat "$W/err")"
    else
        fail "a user's mount: $(cat "$W/err")"
    fi
fi
LOG=$W/state/log
finish
