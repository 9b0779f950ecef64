#!/usr/bin/env bash
# A file with thousands of open segments, more than are sealed as quickly as they are written: writes do not get slower
# with their number, the mount stops in time, and is back at once with everything. And the largest sizes.
. "$(dirname "$0")/lib.sh"
DEVICE=$W/device=4G
OPTIONS=(-o profile=broker --set segment_bytes=64K --set mirror_below=0)

start_fs "${OPTIONS[@]}"
# The bound is wide, since machines are: what fails is a stop that seals or goes through all of it again and again.
check_py "the last stretches of writes are about as quick as the first" '
import time
f = os.open(m + "/sparse", os.O_CREAT | os.O_RDWR, 0o600)
took = []
for part in range(6):
    began = time.process_time(), time.monotonic()
    for k in range(500):
        os.pwrite(f, b"x" * 4096, (part * 500 + k) * 524288)
    took.append(time.monotonic() - began[1])
os.close(f)
print(["%.2f s" % t for t in took])
assert min(took[3:]) < 5 * max(took[:3]) + 1, took
'
# Written faster than it is sealed: the stop leaves the rest to the next mount.
head -c 536870912 /dev/zero | tr '\0' 'k' >"$W/k"
dd if="$W/k" of="$MNT/f" bs=1M status=none
rm "$W/k"
for round in 1 2 3; do
    umount_in_time "round $round"
    start_fs "${OPTIONS[@]}"
    check "all of it is there" test "$(tr -d k <"$MNT/f" | wc -c) $(stat -c %s "$MNT/f")" = "0 536870912"
    check_py "and of the other" '
f = os.open(m + "/sparse", os.O_RDONLY)
for k in range(0, 3000, 7):
    assert os.pread(f, 4097, k * 524288) == b"x" * 4096 + (b"\0" if k < 2999 else b""), k
'
    head -c 67108864 /dev/zero | tr '\0' 'j' >"$MNT/g"
done
# umount(8) does not wait for the daemon; who mounts then waits until it has ended.
umount "$MNT"
check "mounted again at once" "$SLUICEFS" mount --state "$W/state" --device "$DEVICE" --store "dir://$W/store" \
    "${OPTIONS[@]}" "$MNT"
check "with everything" test "$(tr -d j <"$MNT/g" | wc -c) $(stat -c %s "$MNT/g")" = "0 67108864"
wait "$PID"
PID=
check "stopped" "$SLUICEFS" umount "$MNT"

start_fs "${OPTIONS[@]}"
check_py "nothing lies beyond the largest size of a file" '
f = os.open(m + "/big", os.O_CREAT | os.O_RDWR, 0o600)
import errno
def refused(call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == errno.EFBIG, e
        return
    assert False, args
top = 2**63 - 1 - 2**32
refused(os.ftruncate, f, 2**63 - 1)
refused(os.ftruncate, f, top + 1)
refused(os.pwrite, f, b"x", 2**63 - 2)
refused(os.pwrite, f, b"x", top)
refused(os.posix_fallocate, f, top, 1)
assert os.fstat(f).st_size == 0
os.ftruncate(f, top)
assert os.pwrite(f, b"last", top - 4) == 4 and os.pread(f, 10, top - 4) == b"last"
os.unlink(m + "/big")
'
finish
