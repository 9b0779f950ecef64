#!/usr/bin/env bash
# sluicefs status: of all mounts, of a volume, of a file; for people and for programs; and what it says
# when there is no daemon, or one that hangs.
. "$(dirname "$0")/lib.sh"

code_of() {
    local want=$1 code=0
    shift
    timeout 60 "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}
one_line() { # the complaint of a command: one line, THING: WHAT; REMEDY
    timeout 60 "$@" 2>"$W/err" >/dev/null
    [ "$(wc -l <"$W/err")" = 1 ] && grep -q '^sluicefs: .*: .*; ' "$W/err" || { cat "$W/err"; return 1; }
}
json() { # json PATH CODE: d is the document
    "$SLUICEFS" status --json $1 >"$W/json" || return 1
    python3 -c 'import json, os, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
m = sys.argv[2]
exec(sys.argv[3])' "$W/json" "$MNT" "$2"
}

mkdir "$W/elsewhere"
check "not a mount: 3" code_of 3 "$SLUICEFS" status "$W/elsewhere"
check "not a mount: one line" one_line "$SLUICEFS" status "$W/elsewhere"
check "no such path: 1" code_of 1 "$SLUICEFS" status "$W/none"
check "two paths: 2" code_of 2 "$SLUICEFS" status "$W" "$W"
check "unknown option: 2" code_of 2 "$SLUICEFS" status --jsno "$W"

start_fs --set segment_bytes=1M --set evict_to=0
check "the list names the mount" bash -c "'$SLUICEFS' status | grep -q '^ok .* $MNT\$'"
check "the list as JSON" json "" 'assert [x for x in d if x["mountpoint"] == m and x["state"] == "ok"]'

mkdir "$MNT/t"
head -c 2500000 /dev/urandom >"$MNT/t/f"
check "a volume has what tools look for" json "$MNT" '
for k in """volume_id node_id profile version devices bytes oldest_pending_seconds pool store queues segments
            time_to_full_seconds fenced mountpoint pid uptime control""".split():
    assert k in d, k
assert d["mountpoint"] == m and d["profile"] == "topics" and d["fenced"] is False
assert os.path.exists("/proc/%d" % d["pid"]) and d["uptime"] >= 0
assert os.stat(d["control"]).st_mode & 0o777 == 0o600
v = d["devices"][0]
assert v["state"] == "ok" and v["used"] >= 2500000 and v["used"] <= v["budget"]
assert set("logical local remote pending_upload".split()) <= set(d["bytes"])
assert d["bytes"]["logical"] == 2500000
assert set("open sealed uploaded committed remote".split()) <= set(d["segments"])
assert set("url state reason since".split()) <= set(d["store"])
assert d["pool"]["used"] <= d["pool"]["size"]
'
check "the virtual file is the same document" python3 -c '
import json, sys
a, b = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
assert a.keys() == b.keys() and a["volume_id"] == b["volume_id"]' "$W/json" "$MNT/.sluice/status.json"
check "for people" bash -c "'$SLUICEFS' status '$MNT' | grep -q 'bytes .*2.4 MiB in files'"
check "a mount point with a slash behind it" "$SLUICEFS" status "$MNT/"
ln -s "$MNT" "$W/link"
check "below a symbolic link" "$SLUICEFS" status "$W/link/t/f"
check "relative" bash -c "cd '$MNT/t' && '$SLUICEFS' status f && '$SLUICEFS' status ."

check "segments cover the file without gap, the last is open" json "$MNT/t/f" '
s = d["segments"]
assert d["size"] == 2500000 and d["inode"] == os.stat(m + "/t/f").st_ino
assert s[0]["base"] == 0 and s[-1]["end"] == 2500000
assert all(a["end"] == b["base"] for a, b in zip(s, s[1:]))
assert s[-1]["state"] == "open" and all(x["local"] for x in s)
'
check "evict" "$SLUICEFS" evict "$MNT/t/f"
check "then all are remote and their objects are in the bucket" json "$MNT/t/f" '
for s in d["segments"]:
    assert s["state"] == "remote" and s["remote"] and not s["local"] and s["device"] is None
    assert os.path.getsize(os.path.join(sys.argv[2], "../store", s["key"])) >= s["end"] - s["base"]
'
check_py "a name of any bytes" '
open(os.fsencode(m) + b"/t/\xff\n\"x", "wb").write(b"1")
'
check "its status" "$SLUICEFS" status "$MNT/t/"$'\xff\n"x'
check "of a directory" "$SLUICEFS" status "$MNT/t"
mkfifo "$MNT/t/fifo"
check "of a fifo, without opening it" "$SLUICEFS" status "$MNT/t/fifo"
ln -s nowhere "$MNT/t/sym"
check "of a dangling symbolic link" "$SLUICEFS" status "$MNT/t/sym"
check "of nothing: 1" code_of 1 "$SLUICEFS" status "$MNT/t/none"

if [ "$(id -u)" = 0 ] && mkdir "$W/bind" && mount --bind "$MNT/t" "$W/bind" 2>/dev/null; then
    check "through a bind mount of a part" "$SLUICEFS" status "$W/bind/f"
    check "of the bind mount itself" "$SLUICEFS" status "$W/bind"
    umount "$W/bind"
fi

for k in 'fuse_requests_total{op="write"}' 'fuse_request_seconds_count{op="write"}' \
    'store_requests_total{op="put",outcome="ok"}' 'store_bytes_total{direction="out"}' cache_bytes \
    'cache_reads_total{outcome="hit"}' 'readahead_bytes_total{outcome="wasted"}' \
    'device_bytes_total{direction="written"}' upload_lag_bytes upload_lag_seconds 'segments{state="open"}' \
    'store_state{state="ok"}' time_to_full_seconds pool_bytes fenced; do
    check "metric $k" grep -qF "sluicefs_$k " "$MNT/.sluice/stats"
done
check "each metric has its type said once, and no sample twice" python3 - "$MNT/.sluice/stats" <<'PY'
import sys
types, samples = [], []
for line in open(sys.argv[1]):
    if line.startswith("# TYPE"): types.append(line.split()[2])
    elif not line.startswith("#"):
        samples.append(line.rsplit(" ", 1)[0])
        name = samples[-1].split("{")[0]
        for tail in ("_bucket", "_sum", "_count"):
            if name.endswith(tail) and name[:-len(tail)] in types: name = name[:-len(tail)]
        assert name in types, name
        float(line.rsplit(" ", 1)[1])
assert len(types) == len(set(types)), [t for t in types if types.count(t) > 1]
assert len(samples) == len(set(samples)), [s for s in samples if samples.count(s) > 1]
PY

# Another user
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 755 "$W"
    cp "$SLUICEFS" "$W/sluicefs"
    as=(setpriv --reuid 65534 --regid 65534 --clear-groups "$W/sluicefs")
    check "another user sees the volume where the mount lets them" "${as[@]}" status "$MNT"
    check "but gives no commands: 4" code_of 4 "${as[@]}" seal "$MNT/t/f"
    check "and cannot unmount: 4" code_of 4 "${as[@]}" umount "$MNT"
    check "nor stop it: 4" code_of 4 "${as[@]}" umount -l "$MNT"
fi

# A daemon that hangs
hanging=$(grep -o '"pid":[0-9]*' "$MNT/.sluice/status.json" | cut -d: -f2)
kill -STOP "$hanging"
began=$(date +%s)
check "a daemon that hangs: 3" code_of 3 "$SLUICEFS" status "$MNT"
check "said in one line" one_line "$SLUICEFS" seal "$MNT/t/f"
check "the list says it" bash -c "'$SLUICEFS' status | grep -q '^hangs .* $MNT\$'"
check "umount does not hang: 3" code_of 3 "$SLUICEFS" umount "$MNT"
check "in bounded time" test $(($(date +%s) - began)) -le 40
kill -CONT "$hanging"
check "afterwards it answers" "$SLUICEFS" status "$MNT"

# A daemon that died
kill_hard() {
    kill -9 "$PID"
    wait "$PID"
} 2>/dev/null
kill_hard
PID=
check "a dead daemon: 3" code_of 3 "$SLUICEFS" status "$MNT"
check "of a path below: 3" code_of 3 "$SLUICEFS" status "$MNT/t/f"
check "the list says it" bash -c "'$SLUICEFS' status | grep -q '^dead .* $MNT\$'"
check "the remedy works" "$SLUICEFS" umount "$MNT"
check "nothing is left" bash -c "! grep -q ' $MNT ' /proc/self/mounts"
finish
