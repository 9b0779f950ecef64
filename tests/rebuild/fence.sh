#!/usr/bin/env bash
# A daemon that survived is fenced by a rebuild: it changes nothing in the bucket any more. And what a
# rebuild refuses.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='fence|another mount|newer epoch|was not written'

start_fs
mkdir "$MNT/t"
echo one >"$MNT/t/a"
upload_all
"$SLUICEFS" restore --state "$W/state2" --device "$W/device2" --store "dir://$W/store" >"$W/restored" 2>&1
check "a rebuild beside a living daemon" test $? = 0

echo two >"$MNT/t/b"
"$SLUICEFS" seal "$MNT/t/b"
fenced() { grep -q '"fenced":true' "$MNT/.sluice/status.json"; }
check "the old daemon finds out" wait_for 30 fenced
check "its local bytes are still read" test "$(cat "$MNT/t/b")" = two
stop_fs

"$SLUICEFS" mount --state "$W/state2" --device "$W/device2" --store "dir://$W/store" -f "$MNT" >>"$LOG" 2>&1 &
PID=$!
wait_for 30 mount_answers && is_mounted || fail "the rebuilt volume does not mount"
check "the rebuilt volume has what was uploaded" test "$(cat "$MNT/t/a")" = one
check "and not what came later" test ! -e "$MNT/t/b"
echo three >"$MNT/t/c"
check "it uploads" "$SLUICEFS" upload "$MNT"
stop_fs

check "a directory that is not empty is refused" expect_code 4 restore_fs
mkdir "$W/other" && touch "$W/other/file"
check "so is one with anything in it" expect_code 4 "$SLUICEFS" restore --state "$W/other" --device "$W/d3" --store "dir://$W/store"
check "and a store that is not there" expect_code 1 "$SLUICEFS" restore --state "$W/s3" --device "$W/d3" --store "dir://$W/nothing"
check "which is not made" test ! -e "$W/nothing"
mkdir "$W/nothing" && cp "$W/store/.sluicefs-store" "$W/nothing"
check "and an empty prefix" expect_code 4 "$SLUICEFS" restore --state "$W/s3" --device "$W/d3" --store "dir://$W/nothing"
check "which leaves nothing behind" test ! -e "$W/s3" -a ! -e "$W/d3"
check "a device of another volume is refused" expect_code 4 sh -c "
    mkdir '$W/store4' && '$SLUICEFS' mount --state '$W/s4' --device '$W/d4' --store 'dir://$W/store4' '$MNT' &&
    '$SLUICEFS' umount '$MNT' && '$SLUICEFS' restore --state '$W/s5' --device '$W/d4' --store 'dir://$W/store'"
check "no arguments is wrong usage" expect_code 2 "$SLUICEFS" restore
check "an option of mount's that it does not take" expect_code 2 "$SLUICEFS" restore --dry-run

# A manifest with a flipped bit: named, and refused, or left out when asked to.
root=$(find "$W/store/topics" -name manifest | sort | tail -n 1)
python3 - "$root" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(100)
    b = f.read(1)
    f.seek(100)
    f.write(bytes([b[0] ^ 4]))
PY
rm -rf "$W/state2" "$W/device2"
again() {
    "$SLUICEFS" restore --state "$W/state2" --device "$W/device2" --store "dir://$W/store" "$@" >"$W/restored" 2>&1
}
check "a damaged manifest is refused" expect_code 1 again
check "and named" grep -q "topics/.*/manifest is damaged" "$W/restored"
check "a rebuild that failed begins again" expect_code 1 again
check "--partial goes on without it" expect_code 0 again --partial --json
check "and says so" grep -q bad-manifest "$W/restored"
finish
