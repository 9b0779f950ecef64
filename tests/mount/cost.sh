#!/usr/bin/env bash
# What an append costs at the store follows from what is appended, not from the size of the file.
. "$(dirname "$0")/lib.sh"

appended() { # MiB that the file has before: 1,000 appends of 1 KiB and their upload
    head -c "$1M" /dev/urandom >"$MNT/log"
    "$SLUICEFS" upload "$MNT/log" || fail "upload of $1 MiB"
    local out in
    out=$(stat_of 'store_bytes_total{direction="out"}')
    in=$(stat_of 'store_bytes_total{direction="in"}')
    check_py "1,000 appends to $1 MiB, each with a descriptor of its own" '
for k in range(1000):
    with open(m + "/log", "ab", buffering=0) as f: f.write(b"%01023d\n" % k)
'
    "$SLUICEFS" upload "$MNT/log" || fail "upload of what was appended to $1 MiB"
    OUT=$(($(stat_of 'store_bytes_total{direction="out"}') - out))
    IN=$(($(stat_of 'store_bytes_total{direction="in"}') - in))
    rm "$MNT/log"
}

for profile in topics broker; do
    start_fs -o "profile=$profile" --set segment_bytes=1M --set seal_age=1h --set mirror_below=0
    for mib in 1 24; do
        appended "$mib"
        # What was appended, at most one segment that it goes on with, manifests.
        check "$profile, $mib MiB: $OUT bytes are sent" test "$OUT" -ge 1024000 -a "$OUT" -le 2300000
        check "$profile, $mib MiB: $IN bytes are fetched" test "$IN" -le 100000
    done
    stop_fs
    rm -rf "$W/state" "$W/device" "$W/store"
    mkdir "$W/store"
done
finish
