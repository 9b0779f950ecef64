#!/usr/bin/env bash
# sluicefs device: added, drained and removed under load; the store stopped; the daemon killed in the middle;
# restarts and upgrades know the list; a device that is missing or fails.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='another one takes the mount over|removed the mount of a daemon|was removed from this volume and is not used|injected fault|only on it and cannot be read|is not on device|could not be checked: ENODEV|are nowhere|only on device|cannot be moved|device [0-9]+ \(.*\): '

code_of() {
    local want=$1 code=0
    shift
    "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}
dev() { # what it said is in $W/said
    local code=0
    timeout 100 "$SLUICEFS" device "$@" >"$W/said" 2>&1 || code=$?
    cat "$W/said"
    return "$code"
}
state_of() { # of a device; empty: not in the list
    "$SLUICEFS" device list --json "$MNT" | python3 -c 'import json, sys
print("".join(d["state"] for d in json.load(sys.stdin)["devices"] if d["path"] == sys.argv[1]))' "$1"
}
is_state() { [ "$(state_of "$1")" = "$2" ]; }
files_on() { find "$1/segments" -type f 2>/dev/null | wc -l; }

# Appends numbered lines to a few files for as long as the file `go` is there; what it wrote is what `verify`
# expects. At most 3 MB a second: each drain moves all that was written, which should not depend on how
# fast the machine is.
load() {
    python3 - "$MNT/load$1" "$W/go" "$W/wrote$1" <<'PY'
import os, sys, time
d, go, out = sys.argv[1:]
os.makedirs(d, exist_ok=True)
f = [open(f"{d}/{k}", "ab", buffering=0) for k in range(4)]
n = 0
while os.path.exists(go):
    line = b"%012d " % n + b"x" * 2000 + b"\n"
    f[n % 4].write(line)
    if n % 64 == 0:
        os.fsync(f[n % 4].fileno())
        time.sleep(0.04)
    n += 1
open(out, "w").write(str(n))
PY
}
LOADS=0
start_load() {
    LOADS=$((LOADS + 1))
    touch "$W/go"
    load "$LOADS" 2>"$W/load.err" &
    LOAD=$!
    wait_for 20 test -s "$MNT/load$LOADS/3" || fail "the load does not start"
}
end_load() { # no append failed, and every byte is there
    rm "$W/go"
    check "no append failed" wait "$LOAD"
    cat "$W/load.err"
    check "every byte is there" verify
}
verify() { # all loads so far
    local k
    for k in $(seq "$LOADS"); do
        verify_one "$MNT/load$k" "$(cat "$W/wrote$k")" || return 1
    done
}
verify_one() {
    python3 - "$@" <<'PY'
import sys
d, total = sys.argv[1], int(sys.argv[2])
for k in range(4):
    want = range(k, total, 4)
    with open(f"{d}/{k}", "rb") as f:
        for n in want:
            line = f.read(2014)
            assert line == b"%012d " % n + b"x" * 2000 + b"\n", (k, n, line[:40])
        assert f.read(1) == b"", f"{k} is too long"
PY
}

printf 'trigger %s\nfail op=any nth=1 count=all err=reset\n' "$W/down" >"$W/plan"
start_fs --fault-plan "$W/plan" --set segment_bytes=1M --set restarts=1000

# ---- add ----
check "list" dev list "$MNT"
check "it shows the device" grep -q "in use .*$W/device" "$W/said"
check "add" dev add "$MNT" "$W/second"
check "is used at once" is_state "$W/second" ok
check "a directory twice: refused" code_of 4 dev add "$MNT" "$W/second"
mkdir "$W/full" && touch "$W/full/file"
check "a directory with files: refused" code_of 4 dev add "$MNT" "$W/full"
check "below the mount: refused" code_of 4 dev add "$MNT" "$MNT/d"
check "in the state directory, in the store, in a device, around them: refused" bash -c "for d in state/d store/d device/d .; do
    '$SLUICEFS' device add '$MNT' '$W'/\$d 2>/dev/null; [ \$? = 4 ] || exit 1; done; [ ! -e '$W/state/d' ]"
check "a path that cannot be: failed" code_of 1 dev add "$MNT" "$W/no/such/place"
check "not a device: failed" code_of 1 dev drain "$MNT" "$W/full"
check "not a mount: 3" code_of 3 dev list "$W"
check "usage: 2" code_of 2 dev drain "$MNT"
check "usage: 2" code_of 2 dev shrink "$MNT" "$W/second"
check "an option of another verb: 2" code_of 2 dev add --lost "$MNT" "$W/third"
check "relative paths" bash -c "cd '$W' && '$SLUICEFS' device add '$MNT' with\ blank"
check "blanks in them" is_state "$W/with blank" ok

# ---- drain and remove under load ----
start_load
both() { [ "$(files_on "$W/device")" -gt 0 ] && [ "$(files_on "$W/second")" -gt 0 ]; }
check "both hold files" wait_for 20 both
check "remove one in use: refused" code_of 4 dev remove "$MNT" "$W/device"
check "it says what to do" grep -q 'drain it first' "$W/said"
check "drain" dev drain "$MNT" "$W/device"
check "is drained" is_state "$W/device" drained
check "no file is left on it" test "$(files_on "$W/device")" = 0
check "status says so" bash -c "'$SLUICEFS' status '$MNT' | grep -q '^ *drained'"
check "remove" dev remove "$MNT" "$W/device"
check "is forgotten" is_state "$W/device" ""
check "its directory is empty" test -z "$(ls -A "$W/device")"
check "and free" dev add "$MNT" "$W/device"
check "drain another" dev drain "$MNT" "$W/with blank"
check "remove it" dev remove "$MNT" "$W/with blank"
end_load

# ---- the store is stopped ----
touch "$W/down"
start_load
is_down() { "$SLUICEFS" status --json "$MNT" | grep -Eq '"state":"down"'; }
"$SLUICEFS" seal "$MNT/load1"
check "the store is down" wait_for 60 is_down
check "drain with the store down" dev drain "$MNT" "$W/second"
check "is drained" is_state "$W/second" drained
check "no file is left on it" test "$(files_on "$W/second")" = 0
end_load
check "cancel" dev drain --cancel "$MNT" "$W/second"
check "is used again" is_state "$W/second" ok
rm "$W/down"

# ---- upgrade and kill in the middle ----
pid_now() { "$SLUICEFS" status --json "$MNT" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
supervised=$(grep -c '"supervised":true' "$MNT/.sluice/status.json")
if [ "$supervised" = 1 ]; then
    start_load
    for k in 1 2 3 4 5 6; do
        [ $((k % 2)) = 1 ] && away=$W/device || away=$W/second
        "$SLUICEFS" device drain --no-wait "$MNT" "$away"
        old=$(pid_now)
        case $k in
        3) "$SLUICEFS" upgrade "$MNT" ;;
        *) sleep "0.0$k"; kill -9 "$old" ;;
        esac
        other() { [ "$(pid_now 2>/dev/null)" != "$old" ] && [ -n "$(pid_now 2>/dev/null)" ]; }
        wait_for 20 other || fail "nobody took over"
        check "drain $k goes on after the daemon's death" dev drain "$MNT" "$away"
        check "remove" dev remove "$MNT" "$away"
        kill -9 "$(pid_now)"
        wait_for 20 is_state "$away" "" || fail "the next daemon brought $away back"
        check "add it again" dev add "$MNT" "$away"
    done
    end_load
fi

# ---- a mount with the old command line, and one without any ----
check "drain" dev drain "$MNT" "$W/device"
check "remove" dev remove "$MNT" "$W/device"
stop_fs
start_fs
check "the old command line does not bring it back" is_state "$W/device" ""
check "the log says so" grep -q "device $W/device was removed from this volume" "$LOG"
check "all is there" verify
stop_fs
"$SLUICEFS" mount --state "$W/state" --store "dir://$W/store" -f "$MNT" >>"$LOG" 2>&1 &
PID=$!
wait_for 30 mount_answers || fail "the mount without --device does not come up"
check "a mount without devices knows them" is_state "$W/second" ok
check "and only them" test "$("$SLUICEFS" device list "$MNT" | wc -l)" = 2
check "all is there" verify

# ---- a device that is missing ----
check "add" dev add "$MNT" "$W/third"
printf 'fail op=put nth=1 count=all err=403\n' >"$W/plan"
stop_fs
start_fs --fault-plan "$W/plan" --set segment_bytes=1M
for k in 1 2 3 4 5 6; do head -c 1500000 /dev/urandom >"$W/f$k"; cp "$W/f$k" "$MNT/f$k"; done
check "it holds some of them" test "$(files_on "$W/third")" -gt 0
stop_fs
mv "$W/third" "$W/away"
start_fs --fault-plan "$W/plan" --set segment_bytes=1M
check "is missing" is_state "$W/third" missing
check "status says what is only on it" bash -c "'$SLUICEFS' status '$MNT' | grep -q 'bytes, are only on it'"
check "remove without --lost: refused, and listed" code_of 4 dev remove "$MNT" "$W/third"
check "(the list)" grep -q 'only there: f[1-6]: bytes' "$W/said"
stop_fs
mv "$W/away" "$W/third"
start_fs --fault-plan "$W/plan" --set segment_bytes=1M
for k in 1 2 3 4 5 6; do check "it is back, nothing was lost" cmp "$W/f$k" "$MNT/f$k"; done
stop_fs
mv "$W/third" "$W/away"
start_fs --fault-plan "$W/plan" --set segment_bytes=1M
check "remove --lost" dev remove --lost "$MNT" "$W/third"
check "names what is lost" grep -q 'lost: f[1-6]: bytes' "$W/said"
lost=$(grep -o 'f[1-6]' "$W/said" | sort -u)
for k in 1 2 3 4 5 6; do
    if grep -q "f$k" <<<"$lost"; then
        check_errno "a lost range is EIO" EIO "open(m + '/f$k', 'rb').read()"
    else
        check "the others are whole" cmp "$W/f$k" "$MNT/f$k"
    fi
    check "and can grow" bash -c "echo more >>'$MNT/f$k'"
done
check "what was uploaded is whole" verify
finish
