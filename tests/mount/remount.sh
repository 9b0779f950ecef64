#!/usr/bin/env bash
# Everything acknowledged is there after a clean stop, and after kill -9: bytes, names, attributes,
# times to the nanosecond, inode numbers.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='removed the mount of a daemon'

facts() {
    python3 - "$MNT" <<'PY'
import hashlib, os, sys
m = sys.argv[1]
for d, dirs, files in os.walk(m):
    dirs.sort()
    for n in sorted(dirs + files):
        p = os.path.join(d, n)
        s = os.lstat(p)
        body = ""
        if os.path.islink(p): body = os.readlink(p)
        elif os.path.isfile(p): body = hashlib.sha256(open(p, "rb").read()).hexdigest()
        print(os.path.relpath(p, m), s.st_ino, oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink,
              s.st_size, s.st_mtime_ns, s.st_ctime_ns, body)
PY
}

start_fs
mkdir -p "$MNT/topic/part-0"
for i in $(seq 20); do
    head -c $((i * 3000)) /dev/urandom >"$MNT/topic/part-0/$i.log"
done
head -c 5000000 /dev/urandom >>"$MNT/big"
ln -s topic/part-0 "$MNT/link"
ln "$MNT/topic/part-0/1.log" "$MNT/topic/part-0/hard"
chmod 0751 "$MNT/topic"
[ "$(id -u)" != 0 ] || chown 77:88 "$MNT/topic/part-0/2.log"
python3 -c 'import os,sys; os.utime(sys.argv[1], ns=(1111111111222222222, 1333333333444444444))' "$MNT/topic/part-0/3.log"
rm "$MNT/topic/part-0/4.log"
mv "$MNT/topic/part-0/5.log" "$MNT/topic/five"
facts >"$W/before"
stop_fs

start_fs
facts >"$W/after"
check "after a clean stop all is the same" diff "$W/before" "$W/after"
echo more >>"$MNT/big"
echo new >"$MNT/topic/new"
mv "$MNT/topic/new" "$MNT/topic/newer"
facts >"$W/before"
kill -9 "$PID"
wait "$PID" 2>/dev/null
PID=
check "a dead daemon is told at once" wait_for 2 not_connected

start_fs # takes the dead mount away by itself
facts >"$W/after"
# The times of a file whose last append is known to its device file only are that file's, which a
# kernel keeps by its coarse clock.
check "after kill -9 all is the same" python3 - "$W/before" "$W/after" <<'PY'
import sys
a, b = (open(p).read().splitlines() for p in sys.argv[1:])
assert len(a) == len(b), (len(a), len(b))
for x, y in zip(a, b):
    x, y = x.split(" "), y.split(" ")
    assert x[:7] + x[9:] == y[:7] + y[9:], (x, y)
    assert all(abs(int(x[k]) - int(y[k])) < 20_000_000 for k in (7, 8)), (x, y)
PY

# Flushed bytes go from the device while nothing is mounted.
for how in stop_fs kill_fs; do
    short=$MNT/short-$how
    head -c 1000000 /dev/urandom >"$W/short"
    for from in 0 500000; do
        tail -c +$((from + 1)) "$W/short" | head -c 500000 >>"$short"
        sync "$short"
    done
    ino=$(stat -c %i "$short")
    "$how"
    truncate -s -600000 "$(find "$W/device" -name "$(printf %016x "$ino")-*.seg")"
    code=0
    "$SLUICEFS" fsck --state "$W/state" --device "$W/device" --store "dir://$W/store" >"$W/fsck" 2>&1 || code=$?
    check "after $how fsck finds it" test $code = 4
    check "and names the range" grep -qE "lost flushed bytes: 400000 of [0-9]+ are there" "$W/fsck"
    start_fs
    check "after $how the length is that of what is there" test "$(stat -c %s "$short")" = 400000
    check "and its bytes are right" cmp -n 400000 "$W/short" "$short"
    check "it is said" grep -qE "inode $ino, .* lost flushed bytes: 400000 of " "$LOG"
    check "the file grows on" bash -c "echo more >>'$short' && [ \"\$(tail -c 5 '$short')\" = more ]"
done

# The store refuses everything with 503 at the mount, until we say so.
head -c 3000000 /dev/urandom | tee "$W/cold" >"$MNT/topic/cold"
check "a file leaves the device" "$SLUICEFS" evict "$MNT/topic/cold"
stop_fs
printf 'trigger %s\nfail op=any count=all err=503\n' "$W/burst" >"$W/plan"
touch "$W/burst"
start_fs --fault-plan "$W/plan"
check "local bytes are served" test "$(cat "$MNT/topic/newer")" = new
check "and appended to" bash -c "echo 503 >>'$MNT/topic/newer'"
cmp "$W/cold" "$MNT/topic/cold" >"$W/compared" 2>&1 &
reader=$!
troubled() { grep -qE '"state":"(degraded|down)"' "$MNT/.sluice/status.json"; }
check "the store's state is told" wait_for 30 troubled
rm "$W/burst"
check "who waited for cold bytes gets them" wait "$reader"
check "what was appended goes up" timeout 60 "$SLUICEFS" upload "$MNT"
ALLOW_LOG="$ALLOW_LOG|lost flushed bytes: 40000|503|store is (down|degraded)|was not written|upload of .* failed"
finish
