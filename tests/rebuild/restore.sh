#!/usr/bin/env bash
# A volume whose state and devices are gone comes back from its bucket: every uploaded byte, names, modes,
# owners, times, links, attributes, inode numbers. In both profiles.
. "$(dirname "$0")/kit.sh"

for profile in topics broker; do
    start_fs --profile $profile -o xattr --set segment_bytes=512KiB
    make_tree "$MNT" 1
    upload_all
    facts "$MNT" >"$W/before"
    check "the tree is what was meant" grep -q "user.of.a.directory" "$W/before"
    stop_fs
    # Nothing is opened or listed: only the bucket counts.
    rm -rf "$W/state" "$W/device"
    check "restore ($profile)" restore_fs --json
    check "nothing is reported as lost" test "$(json "$W/restored" 'd["lost_files"], d["damaged"], len(d["findings"])')" = "(0, 0, 0)"
    check "the profile is the bucket's" test "$(json "$W/restored" 'd["profile"]')" = $profile
    start_fs --profile $profile -o xattr --set segment_bytes=512KiB
    facts "$MNT" >"$W/after"
    check "all is as it was ($profile)" diff "$W/before" "$W/after"

    # It is a volume like any other: changes, appends, another rebuild.
    head -c 100000 /dev/urandom >>"$MNT/topic-1/part-1/00000000000000000001.log"
    head -c 100000 /dev/urandom >"$MNT/topic-1/new"
    mv "$MNT/topic-0" "$MNT/topic-zero"
    rm "$MNT/single"
    mkdir "$MNT/another"
    head -c 10 /dev/urandom >"$MNT/another/file"
    upload_all
    facts "$MNT" >"$W/before"
    check "new inodes have numbers of the new node" python3 -c 'import os, sys
assert os.stat(sys.argv[1]).st_ino >> 40 == 2, hex(os.stat(sys.argv[1]).st_ino)' "$MNT/another"
    kill_fs
    rm -rf "$W/state" "$W/device"
    check "a second restore, with footers read ($profile)" restore_fs --deep
    start_fs --profile $profile -o xattr
    facts "$MNT" >"$W/after"
    check "all is as it was, again ($profile)" diff "$W/before" "$W/after"
    check "warm and evict" "$SLUICEFS" warm "$MNT/topic-1"
    check "and evict again" "$SLUICEFS" evict "$MNT/topic-1"
    facts "$MNT" >"$W/after"
    check "still as it was ($profile)" diff "$W/before" "$W/after"
    stop_fs
    rm -rf "$W/state" "$W/device" "$W/store"
    mkdir "$W/store"
done
finish
