#!/usr/bin/env bash
# Starting and stopping: background, readiness, exit codes, busy mounts, umount from outside.
. "$(dirname "$0")/lib.sh"

run() { # exit code and message of a start that should fail
    timeout 60 "$SLUICEFS" mount --state "$W/state" --device "$W/device" --store "dir://$W/store" "$@"
}
code_of() {
    local want=$1 code=0
    shift
    "$@" || code=$?
    [ "$code" = "$want" ] || { echo "exit code $code, wanted $want"; return 1; }
}

check "mount point missing: usage" code_of 2 run "$W/none"
touch "$W/file"
check "mount point a file: usage" code_of 2 run "$W/file"
run "$W/file" >"$W/reason" 2>&1
check "the reason is one line: thing, what is wrong, remedy" \
    bash -c "[ \$(wc -l <'$W/reason') = 1 ] && grep -q '^sluicefs: mount point $W/file: .*; ' '$W/reason'"
check "unknown mount option: usage" code_of 2 run -o nonsense "$MNT"
check "nothing is mounted after a refusal" test -z "$(grep " $MNT " /proc/self/mounts)"

start_fs
check "mounted twice at one place: refused" code_of 4 run "$MNT"
mkdir "$W/mnt2"
check "one state, two mounts: refused" code_of 4 run "$W/mnt2"
check "the first one still works" test "$(echo x >"$MNT/x" && cat "$MNT/x")" = x
umount "$MNT" 2>/dev/null || fusermount3 -u "$MNT"
wait_end

start_fs
exec 7>>"$MNT/held"
echo kept >&7
began=$(date +%s)
stop_fs # with a file open
check "a busy mount ends in 10 s" test $(($(date +%s) - began)) -le 10
check "whoever holds a file is told" bash -c '! echo lost >&7 2>/dev/null'
exec 7>&-
start_fs
check "what was written is there" test "$(cat "$MNT/held")" = kept
stop_fs

# Several at once at one place, each with a volume of its own: one of them is there, and nothing below it.
together() {
    local k code=0 good=0 pids=()
    for k in 1 2 3 4; do
        timeout 60 "$SLUICEFS" mount --state "$W/at-once/s$k" --device "$W/at-once/d$k" \
            --store "dir://$W/at-once/o$k" "$MNT" 2>"$W/at-once-$k" &
        pids+=($!)
    done
    for k in "${pids[@]}"; do
        code=0
        wait "$k" || code=$?
        [ $code != 0 ] || good=$((good + 1))
        [ $code = 0 ] || [ $code = 4 ] || { echo "exit code $code"; return 1; }
    done
    [ "$good" = 1 ] || { echo "$good of 4 were mounted"; return 1; }
    [ "$(grep -c " $MNT " /proc/self/mounts)" = 1 ]
}
for round in 1 2 3; do
    mkdir "$W/at-once"
    check "four mounts at once, round $round" together
    while grep -q " $MNT " /proc/self/mounts; do
        umount "$MNT" 2>/dev/null || fusermount3 -u "$MNT" || break
    done
    rm -rf "$W/at-once"
done

# In the background: the command returns when the mount answers.
check "background" run "$MNT"
check "it answers at once" bash -c "echo y >'$MNT/y' && [ -e '$MNT/y' ]"
PID=$(fuser -v "$W/state/"* 2>/dev/null | tr -s ' ' '\n' | grep -m1 '^[0-9]' || true)
check "its log is in the state directory" grep -q "is mounted at" "$W/state/log"
umount "$MNT" 2>/dev/null || fusermount3 -u "$MNT"
PID=
stopped() { grep -q ': stopped' "$W/state/log"; }
check "umount ends it" wait_for 10 stopped

# sd_notify
check "READY=1 and STOPPING=1 are told" python3 - "$SLUICEFS" "$W" "$MNT" <<'PY'
import os, signal, socket, subprocess, sys
prog, w, m = sys.argv[1:]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(w + "/notify"); s.settimeout(30)
p = subprocess.Popen([prog, "mount", "--state", w + "/state", "--device", w + "/device", "--store",
                      "dir://" + w + "/store", "-f", m], env=dict(os.environ, NOTIFY_SOCKET=w + "/notify"),
                     stderr=subprocess.DEVNULL)
assert s.recv(100) == b"READY=1"
assert os.path.ismount(m)
p.send_signal(signal.SIGTERM)
assert s.recv(100) == b"STOPPING=1"
assert p.wait(15) == 0
PY
ALLOW_LOG='requests could not be answered'
finish
