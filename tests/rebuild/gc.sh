#!/usr/bin/env bash
# gc removes what nothing names: objects whose manifest never came about because state and daemon were lost
# in between, 20 times; old manifest pages; uploads in parts. And nothing else.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='was not written|store is (down|degraded)|503|fence|another mount|newer epoch'
cat >"$W/plan" <<PLAN
trigger $W/no-manifests
fail op=put key=topics/* count=all err=403
PLAN
gc_off() {
    "$SLUICEFS" gc --state "$W/state" --device "$W/device" --store "dir://$W/store" "$@" >"$W/gc" 2>&1
}
objects() { (cd "$W/store" && find segments -type f | sort); }

start_fs --set segment_bytes=64KiB
make_tree "$MNT"
upload_all
stop_fs
objects >"$W/good"
for i in $(seq 20); do
    touch "$W/no-manifests"
    start_fs --fault-plan "$W/plan" --set segment_bytes=64KiB
    head -c 3000 /dev/urandom >"$MNT/lost-$i"
    head -c 70000 /dev/urandom >>"$MNT/single"
    "$SLUICEFS" seal "$MNT/lost-$i" "$MNT/single"
    uploaded() { test "$(stat_of 'uploads_total{outcome="ok"}')" -ge 2; }
    wait_for 20 uploaded || fail "round $i: nothing was uploaded"
    kill_fs
    rm -rf "$W/state" "$W/device" "$W/no-manifests"
    restore_fs || fail "round $i: restore"
done
objects >"$W/all"
orphans=$(comm -13 "$W/good" "$W/all" | wc -l)
check "there are orphans" test "$orphans" -ge 40
start_fs
facts "$MNT" >"$W/before"
check "gc beside a daemon takes nothing young" "$SLUICEFS" gc "$MNT" --json
check "and says so" test "$(json "$W/out" 'd["orphans"], d["young"] >= 40')" = "(0, True)"
stop_fs

check "the grace of a day is the default" gc_off --json
check "so nothing goes" test "$(json "$W/gc" 'd["orphans"], d["deleted"]')" = "(0, 0)"
touch "$W/store/segments/not-ours"
mkdir -p "$W/store/segments/aa" && echo x >"$W/store/segments/aa/strange"
check "a dry run" gc_off --set gc_grace=0 --dry-run --json
check "finds them all" test "$(json "$W/gc" 'd["orphans"] >= int('"$orphans"') and d["deleted"] == 0 and d["foreign"] == 2')" = True
objects | grep -v -e strange -e not-ours >"$W/now"
check "and deletes none" diff "$W/all" "$W/now"
check "gc" gc_off --set gc_grace=0
objects | grep -v -e strange -e not-ours >"$W/now"
check "exactly the orphans are gone" diff "$W/good" "$W/now"
check "what is not ours is left alone" test -e "$W/store/segments/aa/strange" -a -e "$W/store/segments/not-ours"
check "again finds nothing" gc_off --set gc_grace=0 --json
check "nothing at all" test "$(json "$W/gc" 'd["orphans"]')" = 0
check "all is whole" "$SLUICEFS" fsck --deep --state "$W/state" --device "$W/device" --store "dir://$W/store"
start_fs
facts "$MNT" >"$W/after"
check "live data is as it was" diff "$W/before" "$W/after"
stop_fs

# Uploads in parts that killed daemons left.
printf 'fail op=mp-part count=all stall\n' >"$W/parts"
BIG=(--set segment_bytes=20MiB --set multipart_above=16MiB --set delete_delay=0s)
unfinished() { find "$W/store/.tmp" -path '*/mp-*/key' | wc -l; }
for i in 1 2 3; do
    start_fs --fault-plan "$W/parts" "${BIG[@]}"
    was=$(unfinished)
    head -c 20M /dev/zero >"$MNT/large-$i"
    began() { [ "$(unfinished)" -ge $((was + i)) ]; } # the others as well
    wait_for 60 began || fail "no upload in parts began"
    kill_fs
done
start_fs "${BIG[@]}"
check "the files go up in the end" "$SLUICEFS" upload "$MNT"
idle() { grep -q '"delete":0' "$MNT/.sluice/status.json"; }
wait_for 30 idle || fail "keys of failed uploads are not deleted"
check "the parts of the dead stay" test "$(unfinished)" = 6
check "gc beside the daemon" "$SLUICEFS" gc --json "$MNT"
check "finds them too young" test "$(json "$W/out" 'd["uploads"], d["young"] >= 6')" = "(0, True)"
stop_fs
check "gc" gc_off --set gc_grace=0 --json
check "counts them" test "$(json "$W/gc" 'd["uploads"]')" = 6
check "and none is left" test "$(unfinished)" = 0

# Not while a manifest cannot be read, and not by one who was fenced.
cp -a "$W/state" "$W/old-state"
root=$(find "$W/store/topics" -name manifest | sort | head -n 1)
cp "$root" "$W/root"
printf x | dd of="$root" bs=1 seek=99 conv=notrunc 2>/dev/null
check "a damaged manifest: refused" expect_code 4 gc_off --set gc_grace=0
cp "$W/root" "$root"
rm -rf "$W/state" "$W/device"
restore_fs || fail restore
rm -rf "$W/state" && mv "$W/old-state" "$W/state"
check "a state directory that was fenced: refused" expect_code 4 gc_off --set gc_grace=0
check "and said" grep -q "another mount or rebuild owns" "$W/gc"
finish
