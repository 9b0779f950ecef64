#!/usr/bin/env bash
# sluicefs seal, upload, evict, warm: by hand, on files and directories, with and without a store.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='403 AccessDenied'

code_of() {
    local want=$1 code=0
    shift
    timeout 60 "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}
states() { # the distinct segment states of a file
    "$SLUICEFS" status --json "$1" | python3 -c 'import json, sys
print(" ".join(sorted({s["state"] for s in json.load(sys.stdin)["segments"]})))'
}

printf 'trigger %s\nfail op=put nth=1 count=all delay=6000\n' "$W/stall" >"$W/plan"
tier() { python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.sluice.tier").decode())' "$1"; }
start_fs -o xattr --fault-plan "$W/plan" --set segment_bytes=1M --set seal_age=1h
mkdir -p "$MNT/t/sub"
head -c 2500000 /dev/urandom >"$MNT/t/a"
head -c 3000 /dev/urandom >"$MNT/t/sub/b"
cp "$MNT/t/a" "$W/a"

check "the attribute: hot" test "$(tier "$MNT/t/sub/b")" = hot
check "seal" "$SLUICEFS" seal "$MNT/t/a"
check "no open segment is left" bash -c "! '$SLUICEFS' status --json '$MNT/t/a' | grep -q '\"open\"'"
check "sealing what is sealed" "$SLUICEFS" seal "$MNT/t/a"
check "the attribute: warm" test "$(tier "$MNT/t/a")" = warm
check "the file still grows" bash -c "echo more >>'$MNT/t/a'"
echo more >>"$W/a"
check "upload a file" "$SLUICEFS" upload "$MNT/t/a"
check "all is committed" test "$(states "$MNT/t/a")" = committed
check "upload a directory" "$SLUICEFS" upload "$MNT/t"
check "what is below, too" test "$(states "$MNT/t/sub/b")" = committed
check "nothing is pending" bash -c "'$SLUICEFS' status '$MNT' | grep -q 'everything is uploaded'"
check "evict several paths" "$SLUICEFS" evict "$MNT/t/a" "$MNT/t/sub"
check "all is remote" test "$(states "$MNT/t/a") $(states "$MNT/t/sub/b")" = "remote remote"
check "the attribute: cold" test "$(tier "$MNT/t/a")" = cold
check "and readable" cmp "$MNT/t/a" "$W/a"
check "warm" "$SLUICEFS" warm "$MNT/t/a"
check "is local again" test "$(states "$MNT/t/a")" = committed
check "and the same" cmp "$MNT/t/a" "$W/a"
check "the root: everything" "$SLUICEFS" upload "$MNT"
echo one >"$MNT/mixed"
check "evict one that is appended to then" "$SLUICEFS" evict "$MNT/mixed"
echo two >>"$MNT/mixed"
check "the attribute: mixed" test "$(tier "$MNT/mixed")" = mixed
check "relative names" bash -c "cd '$MNT/t' && '$SLUICEFS' seal a sub"
mkdir "$MNT/many"
for k in $(seq 300); do echo "$k" >"$MNT/many/$k"; done
check "more files than one request takes" bash -c "'$SLUICEFS' upload '$MNT'/many/*"

# A log in use: the commands are about what was there when they began.
(while kill -0 $$ 2>/dev/null; do echo more >>"$MNT/t/busy"; done) 2>/dev/null &
writer=$!
check "(a log in use)" wait_for 20 test -s "$MNT/t/busy"
for c in seal upload evict; do check "$c of a log in use ends" code_of 0 "$SLUICEFS" "$c" "$MNT/t/busy"; done
kill $writer
wait $writer 2>/dev/null

check "no path: 2" code_of 2 "$SLUICEFS" seal
check "a path that is not there: 1" code_of 1 "$SLUICEFS" seal "$MNT/none"
check "outside of a mount: 3" code_of 3 "$SLUICEFS" seal "$W/a"
check "a virtual file: 2" code_of 2 "$SLUICEFS" seal "$MNT/.sluice/stats"
ln -s a "$MNT/t/link"
check "a symbolic link: 2" code_of 2 "$SLUICEFS" evict "$MNT/t/link"
check "one wrong path does not stop the others, and is not forgotten" bash -c "
    echo x >>'$MNT/t/sub/b'; '$SLUICEFS' seal '$MNT/none' '$MNT/t/sub/b'; [ \$? = 1 ]"
check "(the other was sealed)" bash -c "! '$SLUICEFS' status --json '$MNT/t/sub/b' | grep -q '\"open\"'"

# The store hangs
touch "$W/stall"
sleep 0.05
echo stalled >>"$MNT/t/a"
timeout 60 "$SLUICEFS" upload "$MNT/t/a" 2>"$W/cancelled" &
waiting=$!
uploading() { "$SLUICEFS" status --json "$MNT" | grep -Eq '"uploading":[1-9]'; }
check "an upload is under way" wait_for 20 uploading
began=$(date +%s%N)
check "status answers while the store hangs" "$SLUICEFS" status "$MNT"
check "of the file as well" "$SLUICEFS" status "$MNT/t/a"
check "and so does seal" "$SLUICEFS" seal "$MNT/t"
check "at once" test $((($(date +%s%N) - began) / 1000000)) -lt 3000
kill -INT "$(pgrep -P "$waiting" sluicefs || echo "$waiting")"
code=0
wait "$waiting" || code=$?
check "Ctrl-C gives up: exit code 1, not $code" test "$code" = 1
check "and says so in one line" bash -c "[ \$(wc -l <'$W/cancelled') = 1 ] && grep -q '^sluicefs: .*;' '$W/cancelled'"
rm "$W/stall"
check "once the store is back, upload succeeds" timeout 60 "$SLUICEFS" upload "$MNT/t/a"
stop_fs

# A store that refuses
printf 'fail op=any nth=1 count=all err=403\n' >"$W/plan"
start_fs --fault-plan "$W/plan" --set segment_bytes=1M --set seal_age=1h
echo refused >>"$MNT/t/a"
check "seal needs no store" "$SLUICEFS" seal "$MNT/t/a"
refusal() { "$SLUICEFS" status --json "$MNT" | grep -Eq '"state":"(degraded|down)","reason":".*403'; }
check "status shows it" wait_for 20 refusal
check "hot reads do not mind" test "$(tail -n 1 "$MNT/t/a")" = refused
finish
