#!/usr/bin/env bash
# Broker profile while the store is gone: a write, a cut or a punch that needs a remote segment waits, can
# be killed, and goes on when the store is back; nothing else waits.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='cannot be brought back yet|store|similar lines'
printf "trigger %s\nfail op=any nth=1 count=all err=503\n" "$W/away" >"$W/plan"
start_fs -o profile=broker --fault-plan "$W/plan" --set segment_bytes=64K --set mirror_below=0
head -c 300000 /dev/urandom | tee "$W/f" >"$MNT/f"
cp "$W/f" "$MNT/g"
check "evicted" "$SLUICEFS" evict "$MNT"
touch "$W/away"

put() { exec python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_WRONLY); os.pwrite(f, b"X", int(sys.argv[2]))' "$@"; }
put "$MNT/f" 100000 &
writer=$!
put "$MNT/g" 100000 &
victim=$!
# Readers of the page that the writer waits to change come after it: they wait for it, one until it is killed.
look() { exec python3 -c 'import mmap, os, sys
b = mmap.mmap(-1, 4096)
f = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
assert os.preadv(f, [b], 98304) == 4096 and b[100000 - 98304] == ord("X"), b[100000 - 98304]' "$@"; }
sleep 1
look "$MNT/f" &
reader=$!
look "$MNT/f" &
killed=$!
check "appending elsewhere goes on" timeout 5 bash -c "echo tail >>'$MNT/log'; sync '$MNT/log'"
check "listing goes on" timeout 5 ls -l "$MNT"
sleep 2
kill -0 "$writer" 2>/dev/null || fail "the write did not wait for the store"
kill -9 "$victim"
gone() { ! kill -0 "$victim" 2>/dev/null; }
wait_for 5 gone || fail "a killed writer hangs"
wait "$victim" 2>/dev/null
kill -0 "$reader" 2>/dev/null || fail "a reader did not wait for the write before it"
kill -9 "$killed"
gone() { ! kill -0 "$killed" 2>/dev/null; }
wait_for 5 gone || fail "a killed reader hangs"
wait "$killed" 2>/dev/null
check "a cut at a border needs no store" timeout 5 truncate -s 192K "$MNT/g"
check "nor does one inside" timeout 5 truncate -s 150000 "$MNT/g"
rm "$W/away"
gone() { ! kill -0 "$writer" 2>/dev/null; }
wait_for 60 gone || fail "the write did not go on when the store was back"
wait "$writer" || fail "the write failed"
wait "$reader" || fail "a reader did not see the write before it"
(put "$W/f" 100000)
check "bytes" cmp "$W/f" "$MNT/f"
check "bytes of what was cut" cmp -n 100000 "$W/f" "$MNT/g"
finish
