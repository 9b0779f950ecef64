#!/usr/bin/env bash
# What a rebuild makes of stretches without segment: a hole stays one, also at the end of a file; bytes that were
# never uploaded are EIO or cut, and reported, and never zeros.
. "$(dirname "$0")/kit.sh"
NET=(--profile broker --set segment_bytes=64KiB --set mirror_below=0 --set local_age=24h --set "fault_plan=$W/plan")
state_and_devices_gone() { rm -rf "$W/state" "$W/device"; }

# ---- holes ----
: >"$W/plan"
start_fs "${NET[@]}"
mkdir "$MNT/d"
echo abc >"$MNT/d/tail"
truncate -s 100000 "$MNT/d/tail"
truncate -s 5000000 "$MNT/d/pure"
head -c 70000 /dev/urandom >"$MNT/d/middle"
dd if=/dev/urandom of="$MNT/d/middle" bs=1000 count=70 seek=3000 conv=notrunc status=none
fallocate -l 10485760 "$MNT/d/index"
dd if=/dev/urandom of="$MNT/d/index" bs=4096 count=3 conv=notrunc status=none
head -c 300000 /dev/urandom >"$MNT/d/punched"
fallocate -p -o 65536 -l 131072 "$MNT/d/punched"
fallocate -p -o 250000 -l 50000 "$MNT/d/punched"
head -c 200000 /dev/urandom >"$MNT/d/cut"
truncate -s 100 "$MNT/d/cut"
truncate -s 150000 "$MNT/d/cut"
check "everything is uploaded" "$SLUICEFS" upload "$MNT"
facts "$MNT" >"$W/before"
kill_fs
state_and_devices_gone
check "restore" restore_fs --json
check "nothing is reported as lost" test "$(json "$W/restored" 'd["lost_files"], d["damaged"], len(d["findings"])')" = "(0, 0, 0)"
start_fs "${NET[@]}"
facts "$MNT" >"$W/after"
check "all is as it was, holes too" diff "$W/before" "$W/after"
stop_fs
rm -rf "$W/state" "$W/device" "$W/store"

# ---- bytes that never came there: the second segment of each file, and of one the last ----
NET+=(--set "seal_age=1h")
: >"$W/plan"
start_fs "${NET[@]}"
mkdir "$MNT/d"
python3 -c 'import sys
for name in ("grown", "grown-hole"): open(sys.argv[1] + "/" + name, "wb").write(bytes(1 + k % 251 for k in range(20480)))' "$MNT/d"
check "the first version of two files is uploaded" "$SLUICEFS" upload "$MNT"
stop_fs
cat >"$W/plan" <<PLAN
fail op=put key=segments/*0000000000000000-0000000000007530* count=all err=503
fail op=put key=segments/*-0000000000020000-* count=all err=503
fail op=put key=segments/*0000000000010000-* count=all err=503
fail op=put key=segments/*0000000000000000-0000000000000064* count=all err=503
PLAN
start_fs "${NET[@]}"
python3 - "$MNT/d" <<'PY'
import os, sys
d = sys.argv[1]
def put(name, size, hole=0):
    with open(os.path.join(d, name), "wb") as f:
        f.write(bytes(1 + k % 251 for k in range(size)))
        if hole:
            f.truncate(size + hole)
        os.fsync(f.fileno())
put("between", 196608)
put("end", 120000)
put("end-hole", 120000, 500000)
put("small-hole", 100, 900)
for name, hole in (("grown", 0), ("grown-hole", 60000)):
    with open(os.path.join(d, name), "r+b") as f:
        f.seek(20480)
        f.write(bytes(1 + k % 251 for k in range(20480, 30000)))
        if hole:
            f.truncate(30000 + hole)
        os.fsync(f.fileno())
PY
"$SLUICEFS" seal "$MNT" >/dev/null
settled() {
    "$SLUICEFS" status --json "$MNT" | python3 -c 'import json, sys
d = json.load(sys.stdin)["queues"]
sys.exit(d["manifest"] != 0 or d["upload"] + d["uploading"] != 6)'
}
check "six segments do not get through, all else is in the bucket" wait_for 60 settled
kill_fs
state_and_devices_gone
: >"$W/plan"
check "restore" restore_fs --json
start_fs "${NET[@]}"
judge() {
    python3 - "$MNT/d" <<'PY'
import errno, os, sys
d = sys.argv[1]
data = bytes(1 + k % 251 for k in range(196608))
def read(name, at, n):
    f = os.open(os.path.join(d, name), os.O_RDONLY)
    try:
        return os.pread(f, n, at)
    except OSError as e:
        return e.errno
    finally:
        os.close(f)
def size(name): return os.stat(os.path.join(d, name)).st_size
S = 65536
assert size("between") == 196608
assert read("between", 0, S) == data[:S] and read("between", 2 * S, S) == data[2 * S:]
assert read("between", S, 4096) == errno.EIO and read("between", 2 * S - 4096, 4096) == errno.EIO
assert size("end") == S and read("end", 0, 2 * S) == data[:S], size("end")
assert size("end-hole") == 620000
assert read("end-hole", 0, S) == data[:S] and read("end-hole", S, 4096) == errno.EIO
assert read("end-hole", 400000, 4096) == bytes(4096)
assert size("grown") == 20480 and read("grown", 0, 30000) == data[:20480], size("grown")
assert size("grown-hole") == 90000 and read("grown-hole", 0, 20480) == data[:20480]
assert read("grown-hole", 24576, 4096) == errno.EIO and read("grown-hole", 40960, 4096) == bytes(4096)
assert size("small-hole") == 0 or read("small-hole", 0, 100) == errno.EIO, size("small-hole")
PY
}
check "what is missing is cut or EIO, the rest is right" judge
lost() { json "$W/restored" 'sorted((f["kind"], f.get("off"), f.get("len")) for f in d["findings"])'; }
note_lost=$(lost)
check "it is reported: $note_lost" test "$(json "$W/restored" 'd["lost_files"]')" -ge 6
check "all of it reaches the bucket" "$SLUICEFS" upload "$MNT"
kill_fs
state_and_devices_gone
check "a second restore" restore_fs --json
start_fs "${NET[@]}"
check "says the same" judge
ALLOW_LOG='store|upload|put|nowhere|cannot be read|Input/output|EIO'
finish
