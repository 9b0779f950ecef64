#!/usr/bin/env bash
# The scrub finds damage that nobody has read, says where it is, mends what has another copy, and waits
# while the store is in trouble.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='scrub: |store is (down|degraded)|was not written|upload of .* failed|503'
cat >"$W/plan" <<PLAN
trigger $W/down
fail op=any count=all err=503
PLAN
start_fs --fault-plan "$W/plan" --set segment_bytes=256KiB --set scrub_partial=200ms --set scrub_full=400ms \
    --set scrub_permille=1000
make_tree "$MNT"
upload_all
facts "$MNT" >"$W/before"
of() { python3 -c 'import json, sys
d = json.load(open(sys.argv[1] + "/.sluice/status.json"))["scrub"]
print(eval(sys.argv[2]))' "$MNT" "$1"; }
is() { [ "$(of "$1")" = True ]; }
check "it looks at everything" wait_for 60 is 'd["last_partial"] and d["last_full"] and d["objects"] > 30 and d["bytes"] > 4000000'
check "and finds nothing" test "$(of 'd["healed"], d["left"], d["last_damage"]')" = "(0, 0, None)"

big=topic-0/part-9/00000000000000000009.log
file=$(python3 - "$W/device" "$(stat -c %i "$MNT/$big")" <<'PY'
import glob, sys
print(sorted(glob.glob(f"{sys.argv[1]}/segments/*/{int(sys.argv[2]):016x}-*"))[3])
PY
)
cp "$file" "$W/whole"
python3 - "$file" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(200000)
    b = f.read(1)
    f.seek(200000)
    f.write(bytes([b[0] ^ 1]))
PY
check "a flipped bit on a device is found and mended" wait_for 60 is 'd["healed"] == 1'
check "and named" test "$(of '"'$big'" in d["last_damage"]')" = True
check "the file is whole" cmp "$file" "$W/whole"

segment() { "$SLUICEFS" status --json "$MNT/$1" | python3 -c 'import json, sys
print(json.load(sys.stdin)["segments"][int(sys.argv[1])][sys.argv[2]])' "$2" "$3"; }
key=$(segment $big 5 key)
rm "$W/store/$key"
check "a lost object is found" wait_for 60 is 'd["healed"] == 2'
again() { local k; k=$(segment $big 5 key) && [ "$k" != "$key" ] && [ "$(segment $big 5 state)" = committed ] && [ -e "$W/store/$k" ]; }
check "and uploaded again" wait_for 60 again

"$SLUICEFS" evict "$MNT/topic-1" || fail evict
remote=topic-1/part-7/00000000000000000007.log
key=$(segment $remote 0 key)
mv "$W/store/$key" "$W/object"
check "a lost object without a device copy is said" wait_for 60 is 'd["left"] >= 1'
check "with its key" test "$(of '"'$key'" in d["last_damage"]')" = True
check "in the log, too" grep -q "scrub: $remote: .*$key is missing" "$LOG"
mv "$W/object" "$W/store/$key"

touch "$W/down"
head -c 10 /dev/urandom >"$MNT/more"
"$SLUICEFS" seal "$MNT/more"
paused() { python3 - "$MNT" <<'PY'
import json, sys
d = json.load(open(sys.argv[1] + "/.sluice/status.json"))
sys.exit(not (d["store"]["state"] != "ok" and d["scrub"]["state"] in ("paused", "waiting")))
PY
}
check "it pauses while the store is down" wait_for 60 paused
left=$(of 'd["left"]')
sleep 1 # it would have gone round several times
check "an outage is no damage" test "$(of 'd["left"]')" = "$left"
rm "$W/down"
check "metrics" test "$(stat_of 'scrub_bytes_total')" -gt 4000000
rm "$MNT/more"
facts "$MNT" >"$W/after"
check "all the while nothing changed" diff <(grep -v "^'\.'" "$W/before") <(grep -v "^'\.'" "$W/after")
stop_fs
start_fs --set scrub=off
check "it can be turned off" wait_for 10 is 'd["state"] == "off"'
finish
