#!/usr/bin/env bash
# What was just appended is read from the kernel's page cache: no READ reaches the daemon, and stat,
# once asked, stays cached.
. "$(dirname "$0")/lib.sh"
start_fs

reads() { stat_of 'fuse_requests_total{op="read"}'; }

before=$(reads)
dd if=/dev/urandom of="$W/data" bs=1M count=16 status=none
dd if="$W/data" of="$MNT/pages" bs=64K oflag=append conv=notrunc status=none
check "bytes are the same" cmp "$W/data" "$MNT/pages"
cat "$MNT/pages" >/dev/null
dd if="$MNT/pages" of=/dev/null bs=4K status=none
after=$(reads)
# Each look at the statistics costs two READs of its own (the last one finds the end).
mine=$(($(reads) - after))
check "whole pages: no READ (was $before, is $after, $mine for each look)" \
    test $((after - before - mine)) -le 0

before=$(reads)
for i in $(seq 500); do echo "line $i of a log"; done >>"$MNT/lines"
check "small appends come back" test "$(tail -n 1 "$MNT/lines")" = "line 500 of a log"
cat "$MNT/lines" >/dev/null
pages=$((($(stat -c %s "$MNT/lines") + 4095) / 4096))
after=$(reads)
check "small appends: at most a READ per page" test $((after - before - mine)) -le "$pages"

stat "$MNT/pages" >/dev/null
before=$(stat_of 'fuse_requests_total{op="getattr"}')
for i in $(seq 50); do stat "$MNT/pages" >/dev/null; done
after=$(stat_of 'fuse_requests_total{op="getattr"}')
check "stat is cached ($before, $after)" test $((after - before)) -le 5
check "no request asks for security.capability per write" \
    test "$(stat_of 'fuse_requests_total{op="getxattr"}')" -le 2
finish
