#!/usr/bin/env bash
# A rebuild that is killed at any moment is begun again and comes to the same end; and so is a check that
# mends. ROUNDS (default 20).
. "$(dirname "$0")/kit.sh"
start_fs --set segment_bytes=128KiB
make_tree "$MNT"
upload_all
head -c 300000 /dev/urandom >>"$MNT/single" # only on the device
sync -f "$MNT/single"
facts "$MNT" >"$W/before"
stop_fs
cp -a "$W/device" "$W/device.copy"

# How long one takes, undisturbed.
rm -rf "$W/state"
begin=$(date +%s%N)
restore_fs || fail restore
took=$((($(date +%s%N) - begin) / 1000))
killed=0
for i in $(seq "${ROUNDS:-20}"); do
    rm -rf "$W/state" "$W/device"
    cp -a "$W/device.copy" "$W/device"
    # Before, since it takes as long; every second one at the beginning.
    delay=$(python3 -c "import random; print(random.random() * ($took / 1e6 if $i % 2 else 0.02))")
    "$SLUICEFS" restore --state "$W/state" --device "$W/device" --store "dir://$W/store" >"$W/restored" 2>&1 &
    pid=$!
    sleep "$delay"
    kill -9 $pid 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
    if [ ! -e "$W/state/volume" ]; then
        check "round $i: it is begun again" restore_fs
    fi
done
check "some were killed" test $killed -gt 3
# The moments that chance seldom meets: while it wrote that it has begun, and that it has ended.
for left in volume.restoring.tmp89abcdef volume.tmp89abcdef; do
    rm -rf "$W/state" "$W/device"
    cp -a "$W/device.copy" "$W/device"
    mkdir "$W/state"
    : >"$W/state/lock"
    : >"$W/state/$left"
    check "killed while it wrote $left: it is begun again" restore_fs
    check "and leaves nothing of it" test ! -e "$W/state/$left"
done
rm -rf "$W/half"
mkdir "$W/half"
echo 1 >"$W/half/volume.restoring"
"$SLUICEFS" mount --state "$W/half" --device "$W/device" --store "dir://$W/store" "$MNT" 2>"$W/why"
check "a mount of what is half rebuilt is refused" test $? = 4
check "and says what to do" grep -q "sluicefs restore again" "$W/why"
start_fs
facts "$MNT" >"$W/after"
check "all is there" python3 - "$W/before" "$W/after" <<'PY'
import sys
a, b = ([l.rstrip("\n").split(" ") for l in open(p)] for p in sys.argv[1:])
assert len(a) == len(b), (len(a), len(b))
for x, y in zip(a, b):
    if x != y and not ("single" in x[0] and x[:8] + x[10:] == y[:8] + y[10:]):
        sys.exit(f"{x} {y}") # times of bytes that only the device knew are the device file's
PY
upload_all
stop_fs
check "it is whole" "$SLUICEFS" fsck --deep --state "$W/state" --device "$W/device" --store "dir://$W/store"

# Checks that mend, killed.
cp -a "$W/device" "$W/device.good"
facts_of() {
    start_fs
    facts "$MNT" >"$1"
    stop_fs
}
facts_of "$W/before"
begin=$(date +%s%N)
"$SLUICEFS" fsck --deep --repair --state "$W/state" --device "$W/device" --store "dir://$W/store" >"$W/fsck" 2>&1
took=$((($(date +%s%N) - begin) / 1000))
killed=0
for i in $(seq "${ROUNDS:-20}"); do
    python3 - "$W/device" "$i" <<'PY'
import glob, random, sys
random.seed(sys.argv[2])
for f in random.sample(sorted(glob.glob(sys.argv[1] + "/segments/*/*.seg")), 8):
    with open(f, "r+b") as x:
        size = x.seek(0, 2)
        x.seek(random.randrange(8192, size)) # data, behind the header
        b = x.read(1)
        x.seek(-1, 1)
        x.write(bytes([b[0] ^ 8]))
PY
    delay=$(python3 -c "import random; print(random.random() * $took / 1e6)") # before: it takes as long
    "$SLUICEFS" fsck --deep --repair --state "$W/state" --device "$W/device" --store "dir://$W/store" >"$W/fsck" 2>&1 &
    pid=$!
    sleep "$delay"
    kill -9 $pid 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
done
echo "killed: $killed of them"
check "some of those were killed" test $killed -gt 3
"$SLUICEFS" fsck --deep --repair --state "$W/state" --device "$W/device" --store "dir://$W/store" >"$W/fsck" 2>&1
check "the last one mends what is left" test $? -le 1
check "then it is whole" "$SLUICEFS" fsck --deep --state "$W/state" --device "$W/device" --store "dir://$W/store"
facts_of "$W/after"
check "and as it was" diff "$W/before" "$W/after"
finish
