#!/usr/bin/env bash
# A check through the daemon is given up when its client goes or the volume is unmounted, also while the
# store holds its request; meanwhile the mount works. Two at once are refused.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='store is (down|degraded)'
cat >"$W/plan" <<PLAN
trigger $W/stall
fail op=get key=segments/* count=all stall
PLAN
start_fs --fault-plan "$W/plan" --set scrub=off
make_tree "$MNT"
upload_all
touch "$W/stall"
held() { test "$(stat_of 'store_in_flight')" -gt 0; }
"$SLUICEFS" fsck --deep "$MNT" >"$W/fsck" 2>&1 &
one=$!
check "it waits for the store" wait_for 20 held
check "the mount works meanwhile" sh -c "echo more >>'$MNT/single' && tail -c 5 '$MNT/single' | grep -q more"
expect_code 8 "$SLUICEFS" fsck "$MNT" >"$W/second" 2>&1 || fail "a second one is not refused"
check "a second one is told why" grep -q "another check is running" "$W/second"
check "so is gc" expect_code 1 "$SLUICEFS" gc "$MNT"
kill -INT $one
code=0
wait $one || code=$?
check "Ctrl-C ends it" test $code = 8
free() { "$SLUICEFS" gc --dry-run "$MNT" >/dev/null 2>&1; }
check "the daemon gave it up" wait_for 20 free

"$SLUICEFS" fsck --deep "$MNT" >"$W/fsck" 2>&1 &
one=$!
check "again it waits" wait_for 20 held
begin=$(date +%s%N)
stop_fs
check "unmounting does not wait for it" test $((($(date +%s%N) - begin) / 1000000)) -lt 10000
code=0
wait $one || code=$?
check "and it could not run" test $code = 8
rm "$W/stall"
start_fs
check "nothing was harmed" expect_code 0 "$SLUICEFS" fsck --deep "$MNT"
finish
