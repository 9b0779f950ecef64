#!/usr/bin/env bash
# append-follow.sh: compiles append_follow.c and lets one process append 20,000 records, synced in
# hundreds, while another follows, and small segments go to a directory store and leave the device
# meanwhile. Ends with "every record arrived in order" and exit code 0.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
find_sluicefs
command -v cc >/dev/null || { echo "SKIP: no C compiler" >&2; exit 77; }
make_world
COUNT=20000

cc -O2 -Wall -o append_follow "$here/append_follow.c"
run "$SLUICEFS" mount --state state --device device=64M --store dir://store \
    --set segment_bytes=64K --set local_age=0 --set mirror_below=0 mnt
mkdir mnt/events
: >mnt/events/log
timeout 60 ./append_follow follow mnt/events/log $COUNT >followed &
PIDS=$!
run timeout 60 ./append_follow append mnt/events/log $COUNT
wait $PIDS
PIDS=''
cmp followed mnt/events/log
run "$SLUICEFS" status mnt/events/log | head -n 12
run "$SLUICEFS" umount mnt
echo "every record arrived in order ($COUNT)"
