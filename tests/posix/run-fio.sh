#!/usr/bin/env bash
# fio: every block carries its offset, a generation and a checksum; written in four ways, all read back
# and checked, evicted in between, and checked again from the store.
. "$(dirname "$0")/lib.sh"
tool fio
start_tiered
export SIZE=${FIO_SIZE:-8m}
churn_start 5
timeout 400 fio --directory="$MNT" "$HERE/verify.fio" >"$W/fio" 2>&1 || fail "$(grep -m3 -iE 'verify|error' "$W/fio")"
churn_stop
check "everything evicted" "$SLUICEFS" evict "$MNT"
echo 3 >/proc/sys/vm/drop_caches
timeout 200 fio --directory="$MNT" --verify_only "$HERE/verify.fio" >"$W/fio" 2>&1 ||
    fail "from the store: $(grep -m3 -iE 'verify|error' "$W/fio")"
assert_tiered 300 50
finish
