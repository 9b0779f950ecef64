#!/usr/bin/env bash
# fsck: clean volumes are clean, online and offline; each kind of damage is found, named, and mended where
# another copy has it.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='cannot be read|does not match|damage|upload of .* failed|is missing|was not written|in no record|store is (down|degraded)|are nowhere'

fsck_off() { "$SLUICEFS" fsck --state "$W/state" --device "$W/device" --store "dir://$W/store" "$@" >"$W/fsck" 2>&1; }
fsck_on() { "$SLUICEFS" fsck "$MNT" "$@" >"$W/fsck" 2>&1; }
# found KIND FATE [PATH]: the report of --json has such a finding, and no other kinds.
found() {
    python3 - "$W/fsck" "$@" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
kind, fate = sys.argv[2:4]
path = sys.argv[4] if len(sys.argv) > 4 else None
f = [x for x in d["findings"] if x["kind"] == kind and x["fate"] == fate and path in (None, x["path"])]
if not f or {x["kind"] for x in d["findings"]} != {kind}:
    sys.exit(f"{d['findings']}")
print(f)
PY
}
flip() { # FILE OFFSET (negative: from the end)
    python3 - "$1" "$2" <<'PY'
import os, sys
p, off = sys.argv[1], int(sys.argv[2])
with open(p, "r+b") as f:
    if off < 0:
        off += os.path.getsize(p)
    f.seek(off)
    b = f.read(1)
    f.seek(off)
    f.write(bytes([b[0] ^ 16]))
PY
}
# where FILE: the segment at offset 0 of a file: its key, device file.
key_of() { "$SLUICEFS" status --json "$MNT/$1" | python3 -c 'import json, sys
print(json.load(sys.stdin)["segments"][int(sys.argv[1])]["key"])' "${2:-0}"; }
device_file_of() {
    python3 - "$W/device" "$(stat -c %i "$MNT/$1")" "${2:-0}" <<'PY'
import glob, sys
d, ino, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
f = sorted(glob.glob(f"{d}/segments/*/{ino:016x}-*"))
assert f, glob.glob(f"{d}/segments/*/*")
print(f[n])
PY
}

start_fs --set segment_bytes=512KiB
make_tree "$MNT"
check "online, with open segments" expect_code 0 fsck_on --deep
upload_all
"$SLUICEFS" evict "$MNT/topic-1" || fail evict
check "online" expect_code 0 fsck_on
check "online, deep" expect_code 0 fsck_on --deep --json
check "all of it was read" test "$(json "$W/fsck" 'd["object_bytes"] > 5000000 and d["device_bytes"] > 3000000 and d["manifests"] > 5')" = True
facts "$MNT" >"$W/before"
big=topic-0/part-9/00000000000000000009.log
local=$(device_file_of $big 1)
object=$W/store/$(key_of $big 1)
remote=topic-1/part-7/00000000000000000007.log
remote_object=$W/store/$(key_of $remote)
stop_fs

check "offline" expect_code 0 fsck_off
check "offline, deep" expect_code 0 fsck_off --deep
check "text says so" grep -q '^Clean' "$W/fsck"
check "no such volume: could not run" expect_code 8 "$SLUICEFS" fsck --state "$W/none" --device "$W/device" --store "dir://$W/store"
check "nor with wrong arguments" expect_code 8 "$SLUICEFS" fsck --nonsense

round() { # NAME KIND [PATH]: found, mended, clean
    check "$1 is found" expect_code 4 fsck_off --deep --json
    check "$1 is named" found "$2" left ${3:-}
    check "$1 is mended" expect_code 1 fsck_off --deep --repair --json
    check "$1 was mended" found "$2" healed ${3:-}
}
same() { # and nothing else changed; what waits for an upload is uploaded
    start_fs --set segment_bytes=512KiB
    facts "$MNT" >"$W/after"
    check "after $1 all is the same" diff "$W/before" "$W/after"
    upload_all
    stop_fs
    check "after $1 it is clean" expect_code 0 fsck_off --deep
}

flip "$local" 300000
round "a bit in a device file" device-block $big
flip "$local" 33
round "a bit in its header" device-header $big
flip "$local" 4100
round "a bit in its table" device-header $big
mv "$local" "$W/gone"
check "a missing device file is found without --deep" expect_code 4 fsck_off
round "a missing device file" device-file $big
same "mending devices"

object2=$object
flip "$object2" 100000
check "an object that is the only copy" expect_code 4 fsck_off --deep --repair --json
check "is named with its key" found object left $big
flip "$object2" 100000
check "and flipped back" expect_code 0 fsck_off --deep

start_fs
"$SLUICEFS" warm "$MNT/$big" || fail warm
local=$(device_file_of $big 1)
stop_fs
flip "$object2" 100000
round "a bit in an object with a device copy" object $big
same "mending objects"
start_fs
object2=$W/store/$(key_of $big 1)
stop_fs
flip "$object2" -40
round "a bit in its footer" object $big
same "mending a footer"
start_fs
object2=$W/store/$(key_of $big 1)
stop_fs
rm "$object2"
check "a missing object is found without --deep" expect_code 4 fsck_off
round "a missing object" object $big
same "uploading again"

flip "$remote_object" 5000
start_fs
check "online it is found too" expect_code 4 fsck_on --deep --json
check "and named" found object left $remote
check_errno "the damaged block is EIO" EIO "open(m + '/$remote', 'rb').read(1)"
check_py "other blocks are read" "f = open(m + '/$remote', 'rb'); f.seek(300000); assert len(f.read(10)) == 10"
stop_fs
flip "$remote_object" 5000
check "back again" expect_code 0 fsck_off --deep

root=$(find "$W/store/topics" -name manifest -size +1k | sort | head -n 1)
flip "$root" 200
round "a bit in a manifest" manifest
check "it is as it was committed" expect_code 0 fsck_off --deep
rm "$root"
round "a missing manifest" manifest
check "it is there again" expect_code 0 fsck_off --deep

mkdir -p "$W/device/segments/aa"
echo junk >"$W/device/segments/aa/junk"
check "a foreign file is found" expect_code 4 fsck_off --json
check "and named" found stray-file left
check "and set aside" expect_code 1 fsck_off --repair --json
check "not deleted" test -n "$(find "$W/device/quarantine" -name 'junk*')"
same "everything"

# A row of the metadata store, then the whole store.
stamp() {
    python3 - "$W/state/meta/data.mdb" "$1" <<'PY'
import sys
p, what = sys.argv[1:]
b = bytearray(open(p, "rb").read())
name = what.encode()
hits = [i for i in range(len(b)) if b.startswith(name, i)]
assert hits, "not in there"
for i in hits:
    b[i] ^= 1
open(p, "wb").write(b)
PY
}
stamp "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
round "a damaged link target" metadata-row
same "mending metadata"
start_fs
facts "$MNT" >"$W/before"
stop_fs
python3 - "$W/state/meta/data.mdb" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(2 * 4096)
    f.write(b"\xff" * 4096 * 16)
PY
check "a destroyed store is found" expect_code 4 fsck_off
check "and said" grep -q "beyond reading" "$W/fsck"
check "it is rebuilt" expect_code 1 fsck_off --repair || cat "$W/fsck"
check "the old one is kept" test -n "$(ls -d "$W/state/damaged-"*)"
same "a rebuild"
finish
