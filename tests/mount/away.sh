#!/usr/bin/env bash
# The directory store of an existing volume is not there, since its disk is not mounted: nothing is made in its
# place, the mount comes up, local work goes on, cold reads and uploads wait, and go on when it is back.
. "$(dirname "$0")/lib.sh"
SETTINGS=(-o "segment_bytes=1M,seal_age=200ms,local_age=0s,mirror_below=0,delete_delay=0s,read_deadline=60s")
start_fs "${SETTINGS[@]}"
head -c 3000000 /dev/urandom >"$W/cold"
cp "$W/cold" "$MNT/cold"
check "evicted" timeout 60 "$SLUICEFS" evict "$MNT/cold"
cp "$W/cold" "$MNT/doomed"
check "uploaded" timeout 60 "$SLUICEFS" evict "$MNT/doomed"
stop_fs

away_and_back() { # an empty mount point, or no directory at all
    mv "$W/store" "$W/elsewhere"
    "$@"
    start_fs "${SETTINGS[@]}"
    check "it mounts, and names are there" test -e "$MNT/cold"
    echo "$1" >>"$MNT/hot.$1"
    check "appends and hot reads" grep -q "$1" "$MNT/hot.$1"
    cmp "$MNT/cold" "$W/cold" 2>"$W/reader" &
    READER=$!
    said_down() { "$SLUICEFS" status --json "$MNT" | grep -Eq '"state": *"(down|degraded)"'; }
    check "status says that the store is not there" wait_for 30 said_down
    rm -f "$MNT/doomed"
    check "a cold read waits" kill -0 $READER
    check "nothing is made in its place" test -z "$(ls -A "$W/store" 2>/dev/null)"
    rm -rf "$W/store"
    mv "$W/elsewhere" "$W/store"
    check "it gets its bytes when the store is back" wait $READER
    check "uploads go on" timeout 60 "$SLUICEFS" upload "$MNT"
    stop_fs
}
away_and_back mkdir "$W/store"
away_and_back true
check "fsck finds nothing" timeout 60 "$SLUICEFS" fsck --deep --state "$W/state" --device "$W/device" \
    --store "dir://$W/store"
ALLOW_LOG='store|upload|cannot be read|manifest|delet'
finish
