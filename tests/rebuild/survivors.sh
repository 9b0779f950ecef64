#!/usr/bin/env bash
# State lost: what was only on the devices comes back from them. Devices lost too: what had not been
# uploaded is named, with its range.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='upload of .* failed|was not written|damaged or of another volume|store is (down|degraded)'

cat >"$W/plan" <<PLAN
trigger $W/no-uploads
fail op=put key=segments/* count=all err=403
PLAN

start_fs --fault-plan "$W/plan" --set segment_bytes=512KiB
mkdir "$MNT/logs"
head -c 1500000 /dev/urandom >"$MNT/logs/a"
head -c 10000 /dev/urandom >"$MNT/logs/b"
upload_all
touch "$W/no-uploads"
# Behind the uploaded bytes: whole segments and an unfinished one; a file that the bucket has no byte of.
head -c 1300000 /dev/urandom >>"$MNT/logs/a"
head -c 777 /dev/urandom >>"$MNT/logs/b"
head -c 700000 /dev/urandom >"$MNT/logs/new"
"$SLUICEFS" seal "$MNT/logs/a"
sync -f "$MNT/logs/a" "$MNT/logs/b" "$MNT/logs/new"
# The manifest has the names and sizes of what was sealed: first it owes them, then no more.
queue_is() {
    test "$(stat_of 'queue_length{queue="manifest"}')" "$1" 0
}
wait_for 30 queue_is -gt || fail "nothing is marked for the manifest"
wait_for 30 queue_is -eq || fail "the manifest was not written"
facts "$MNT" >"$W/before"
kill_fs
cp -a "$W/store" "$W/store.copy"
cp -a "$W/device" "$W/device.copy"

rm -rf "$W/state"
dd if=/dev/urandom of="$W/device/segments/00/garbage" bs=1000 count=1 2>/dev/null ||
    { mkdir -p "$W/device/segments/00" && head -c 1000 /dev/urandom >"$W/device/segments/00/garbage"; }
check "restore with the device" restore_fs --json
check "bytes were adopted" test "$(json "$W/restored" 'd["adopted_bytes"] >= 2000000 and d["lost_files"] == 0')" = True
check "garbage was set aside" test "$(json "$W/restored" '[f["fate"] for f in d["findings"] if f["kind"] == "device-file"]')" = "['quarantined']"
check "and is still there" test -n "$(ls "$W/device/quarantine")"
rm "$W/no-uploads"
start_fs --set segment_bytes=512KiB
facts "$MNT" >"$W/after"
# The times of bytes that only the device knew are those of its files.
check "everything is there" python3 - "$W/before" "$W/after" <<'PY'
import ast, sys
a, b = ([l.rstrip("\n") for l in open(p)] for p in sys.argv[1:])
assert len(a) == len(b), (len(a), len(b))
def cut(l):
    t = l.split(" ")
    return t[:8] + t[10:]
for x, y in zip(a, b):
    assert cut(x) == cut(y), (x, y)
PY
upload_all
facts "$MNT" >"$W/before"
stop_fs
rm -rf "$W/state" "$W/device"
check "and it was uploaded" restore_fs
start_fs
facts "$MNT" >"$W/after"
check "all of it" diff "$W/before" "$W/after"
stop_fs

# Everything local is gone.
rm -rf "$W/state" "$W/device" "$W/store"
mv "$W/store.copy" "$W/store"
check "restore without the device" restore_fs --json
check "the lost range is named" python3 - "$W/restored" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
lost = {f["path"]: (f["offset"], f["bytes"]) for f in d["findings"] if f["kind"] == "never-uploaded"}
assert lost["logs/a"] == (1500000, 1300000), lost
assert set(lost) <= {"logs/a", "logs/b", "logs/new"}, lost
assert d["lost_bytes"] >= 1300000
PY
start_fs
check "a file ends where its bytes end" test "$(stat -c %s "$MNT/logs/a") $(stat -c %s "$MNT/logs/b")" = "1500000 10000"
check "appending goes on there" sh -c "echo more >>'$MNT/logs/a'"
check "and is read" test "$(tail -c 5 "$MNT/logs/a")" = more
stop_fs
finish
