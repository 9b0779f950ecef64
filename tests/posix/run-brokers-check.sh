#!/usr/bin/env bash
# What brokers ask of a data directory, in the root of the mount and in a directory of it.
. "$(dirname "$0")/lib.sh"
start_tiered
check "nothing in a fresh mount that the broker did not make" test -z "$(ls -A "$MNT")"
churn_start 1
for dir in "$MNT" "$MNT/data"; do
    mkdir -p "$dir"
    bash "$HERE/brokers-check.sh" "$dir" >"$W/checks"
    failed=$?
    grep -v '^ok' "$W/checks"
    [ "$failed" = 0 ] || fail "$failed checks in $dir"
done
churn_stop
assert_tiered 1 0
check "another user sees the space" setpriv --reuid=65534 --regid=65534 --clear-groups df -kP "$MNT"
finish
