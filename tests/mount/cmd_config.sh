#!/usr/bin/env bash
# sluicefs mount's options, config, help, version: as people and scripts use them.
. "$(dirname "$0")/lib.sh"

code_of() {
    local want=$1 code=0
    shift
    timeout 60 "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}
complains() { # complains CODE WORD COMMAND...: one line with THING: WHAT; REMEDY and the word
    local want=$1 word=$2 code=0
    shift 2
    timeout 60 "$@" >"$W/stdout" 2>"$W/err" || code=$?
    if [ "$code" != "$want" ] || [ "$(wc -l <"$W/err")" != 1 ] || [ -s "$W/stdout" ] ||
        ! grep -q '^sluicefs: .*[:;] .*; ' "$W/err" || ! grep -qF -e "$word" "$W/err"; then
        echo "exit code $code"
        cat "$W/err"
        return 1
    fi
}
S=$SLUICEFS

check "version" bash -c "'$S' version | grep -Eq '^sluicefs [0-9]+\.[0-9]+'"
check "--version" "$S" --version
check "--help" bash -c "'$S' --help | grep -q 'Exit codes'"
check "no arguments: 2" code_of 2 "$S"
for c in mount umount status seal upload evict warm config reload version; do
    check "$c --help" bash -c "'$S' $c --help | grep -q '^Usage: sluicefs $c'"
    check "help $c" bash -c "'$S' help $c | grep -q '^Usage: sluicefs $c'"
    check "$c with an unknown option: 2" code_of 2 "$S" "$c" --nonsense
done
check "unknown command" complains 2 "not known" "$S" muont
check "help of an unknown command" complains 2 "not known" "$S" help muont

check "config" bash -c "'$S' config | grep -Eq '^pool +256MiB +default +8MiB to 1TiB'"
check "config --json" bash -c "'$S' config --json | python3 -c 'import json, sys; json.load(sys.stdin)'"
printf '[volume]\npool = 64M\nseal_age = 3m\n' >"$W/conf"
export SLUICEFS_POOL=32M SLUICEFS_UPLOADS=2
check "sources" bash -c "'$S' config --config '$W/conf' --set seal_age=4m /mnt/x | python3 -c '
import sys
rows = {l.split()[0]: l for l in sys.stdin if l.strip()}
assert \"64MiB\" in rows[\"pool\"] and \"conf:2\" in rows[\"pool\"], rows[\"pool\"]
assert \"4m\" in rows[\"seal_age\"] and \"command line\" in rows[\"seal_age\"]
assert \"environment\" in rows[\"uploads\"]
assert \"/sluicefs/mnt-x/state\" in rows[\"state\"], rows[\"state\"]'"
unset SLUICEFS_POOL SLUICEFS_UPLOADS
check "typo" complains 2 "did you mean segment_bytes?" "$S" config --set sgement_bytes=1M
check "bounds" complains 2 "8MiB to 1TiB" "$S" mount --pool 1M "$MNT"
check "no value" complains 2 "needs a value" "$S" mount --pool
check "--set without =" complains 2 "NAME=VALUE" "$S" mount --set pool "$MNT"
check "contradiction" complains 2 "evict_to" "$S" mount --set evict_to=90 "$MNT"
check "no mount point" complains 2 "none is given" "$S" mount
check "two mount points" complains 2 "one mount point" "$S" mount "$MNT" "$W"
printf '[volume]\npol = 64M\n' >"$W/bad"
check "file and line" complains 2 "$W/bad:2:" "$S" mount --config "$W/bad" "$MNT"
check "no such file" complains 2 "$W/nofile" "$S" mount --config "$W/nofile" "$MNT"
check "a secret in the URL is not repeated" bash -c "
    '$S' config --store 's3://id:geheim@b/p' 2>'$W/err'; [ \$? = 2 ] && ! grep -q geheim '$W/err'"
check "a device below the mount point" complains 2 "below the mount point" "$S" mount --device "$MNT/d" "$MNT"
check "a setting among -o" complains 2 "8MiB to 1TiB" "$S" mount -o ro,pool=1M "$MNT"
check "cross-checks see -o" complains 2 "evict_to" "$S" mount -o evict_to=90 "$MNT"

start_fs -o noatime,segment_bytes=2M,xattr --set uploads=2
check "options of -o reach the mount" grep -q " $MNT .*noatime" /proc/self/mounts
check "settings of -o reach the volume" python3 -c '
import os, sys
os.makedirs(sys.argv[1] + "/t"); open(sys.argv[1] + "/t/f", "wb").write(b"x" * 5000000)' "$MNT"
check "(segments of 2 MiB)" bash -c "'$S' status --json '$MNT/t/f' | grep -q '\"end\":2097152'"
check "no daemon without mount" is_mounted
finish
