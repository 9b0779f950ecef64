#!/usr/bin/env bash
# demo.sh [--keep]: the whole life of some bytes on the embedded store (a directory), at no cost:
# appended with >>, followed with tail -F, sealed, uploaded, evicted, read back, and found again after a
# restart, each time with where every byte is. Needs /dev/fuse, no root. Ends with "identical" and exit
# code 0. With --keep the volume stays, and the way to mount it again is printed.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
find_sluicefs
make_world
LINES_IN_ALL=60000

show "Mount: state, one local device with a budget, and a directory as the object store"
run "$SLUICEFS" mount --state state --device device=256M --store dir://store \
    --set segment_bytes=1M mnt

show "Append with >> while tail -F follows"
mkdir mnt/orders
: >mnt/orders/today.log
tail -n +1 -s 0.1 -F mnt/orders/today.log >followed 2>tail.err &
PIDS=$!
for part in 1 2 3; do
    seq -f "order %08.0f of the demo, 40 bytes a line" $(((part - 1) * LINES_IN_ALL / 3 + 1)) \
        $((part * LINES_IN_ALL / 3)) | tee -a original >>mnt/orders/today.log
done
for _ in $(seq 100); do
    cmp -s original followed && break
    sleep 0.1
done
kill $PIDS
PIDS=''
cmp original followed
echo "tail -F saw the same $(wc -l <followed) lines"

show "Where is each byte? On the local device; full segments are on their way to the store"
run "$SLUICEFS" status mnt/orders/today.log

show "Close the open segment and wait until everything is in the store"
run "$SLUICEFS" seal mnt/orders/today.log
run "$SLUICEFS" upload mnt/orders/today.log
run "$SLUICEFS" status mnt/orders/today.log

show "Free the local space: the bytes are only in the store now"
run du -sh --apparent-size device store
run "$SLUICEFS" evict mnt/orders/today.log
run "$SLUICEFS" status mnt/orders/today.log
run du -sh --apparent-size device store

show "Objects begin with the plain bytes of the file"
first=$(find store/segments -type f -name '0000000000000000-*' | head -n 1)
run head -n 2 "$first"

show "Read it back: the same file, the same name, from the store"
run md5sum original mnt/orders/today.log
cmp original mnt/orders/today.log
run grep -c 0042 mnt/orders/today.log

show "Unmount, mount again: everything is still there"
run "$SLUICEFS" umount mnt
run "$SLUICEFS" mount --state state --device device=256M --store dir://store mnt
cmp original mnt/orders/today.log
echo "one more line after the restart" | tee -a original >>mnt/orders/today.log
cmp original mnt/orders/today.log
run "$SLUICEFS" status mnt

if [ "${1:-}" = --keep ]; then
    run "$SLUICEFS" umount mnt
    keep_world
    printf '\nThe volume is kept. Mount it again with:\n  %s\n' \
        "cd $W && $SLUICEFS mount --state state --device device=256M --store dir://store mnt"
fi
printf '\nappended, uploaded, evicted, read back: identical (%s lines, %s bytes)\n' \
    "$(wc -l <original)" "$(stat -c %s original)"
