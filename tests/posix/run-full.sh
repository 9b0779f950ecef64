#!/usr/bin/env bash
# A full device in the broker profile, with the store away so that nothing can be evicted: write(2) is told
# ENOSPC, a store through a mapping of a preallocated file is not lost, statfs never promised its room.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='store|nearly full|upload of|device .* full|similar lines'
printf 'trigger %s\nfail op=any nth=1 count=all err=503\n' "$W/away" >"$W/plan"
"$SLUICEFS" mount --profile broker --state "$W/state" --device "$W/device=24M" \
    --store "dir://$W/store" -f --fault-plan "$W/plan" --set segment_bytes=1M --set mirror_below=0 \
    --set slow_spread=1s "$MNT" >>"$LOG" 2>&1 &
PID=$!
wait_for 30 mount_answers || fail "the mount did not come up"
touch "$W/away"
check_py "a mapped store is kept when the device is full" '
import errno, mmap
f = os.open(m + "/index", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(f, 4 << 20)
a = mmap.mmap(f, 4 << 20)
a[0:10] = b"0123456789"; a.flush()
w = os.open(m + "/log", os.O_CREAT | os.O_RDWR, 0o600)
at = 0
try:
    while at < 64 << 20: at += os.pwrite(w, b"x" * 65536, at)
    raise SystemExit("no ENOSPC")
except OSError as e:
    assert e.errno == errno.ENOSPC, e
assert at > 16 << 20, at
for k in range(0, 512 * 1024, 4096): a[k:k + 8] = b"%08d" % k
a.flush(); os.fsync(f)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
for k in range(0, 512 * 1024, 4096): assert os.pread(f, 8, k) == b"%08d" % k, k
s = os.statvfs(m)
assert s.f_bavail * s.f_frsize < 1 << 20, s.f_bavail * s.f_frsize
os.ftruncate(w, 0)
'
rm "$W/away"
finish
