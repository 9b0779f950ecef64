# lib.sh: sourced by every test of this folder. A test gets a world of its own: a temporary directory
# with mount point, state, device and store; all of it goes at the end, whatever happens.
#
#   SLUICEFS     the program under test
#   start_fs [mount arguments...]   mounts in the foreground, waits until it answers; DEVICE: directory[=SIZE]
#   stop_fs                         SIGTERM; must end by itself with exit code 0
#   umount_in_time [WHAT]           by command, within 10 s: two checks
#   kill_fs                         kill -9 and unmount, as after a crash
#   check NAME COMMAND...           runs it; a failure is counted and shown
#   ALLOW_LOG    pattern of warnings and errors that this test expects in the daemon's log
# Exit codes: 0 passed, 1 failed, 77 skipped (something is missing, said why).
set -u
: "${SLUICEFS:?set SLUICEFS to the sluicefs program}"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() {
    echo "SKIP: $*"
    exit 77
}
[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no access to /dev/fuse"
command -v python3 >/dev/null || skip "no python3"

W=$(mktemp -d "${TMPDIR:-/tmp}/sluice-mount.XXXXXX")
MNT=$W/mnt
LOG=$W/log
PID=
FAILED=0
PASSED=0
mkdir "$MNT" "$W/store"

unmount_now() {
    umount -l "$MNT" 2>/dev/null || fusermount3 -u -z "$MNT" 2>/dev/null || true
}

is_mounted() {
    grep -q " $MNT fuse.sluicefs " /proc/self/mounts
}

cleanup() {
    local code=$?
    trap - EXIT
    if [ -n "$PID" ] && kill -0 "$PID" 2>/dev/null; then
        kill -9 "$PID"
        wait "$PID" 2>/dev/null
    fi
    is_mounted && unmount_now
    if [ "$code" != 0 ] && [ "$code" != 77 ] && [ -s "$LOG" ]; then
        echo "--- daemon log"
        tail -n 40 "$LOG"
    fi
    rm -rf --one-file-system "$W"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# wait_for SECONDS COMMAND...: polls until the command succeeds; fails after that time.
wait_for() {
    local end=$(($(date +%s%N) + $1 * 1000000000))
    shift
    until "$@"; do
        [ "$(date +%s%N)" -lt "$end" ] || return 1
        sleep 0.02
    done
}

mount_answers() {
    kill -0 "$PID" 2>/dev/null || return 0
    # Not only mounted: a dead daemon's mount is that too, until the new one takes it away.
    case $(stat -f -c %T "$MNT" 2>/dev/null) in fuse*) is_mounted ;; *) false ;; esac
}

start_fs() {
    "$SLUICEFS" mount --state "$W/state" --device "${DEVICE:-$W/device}" --store "dir://$W/store" -f "$@" \
        "$MNT" >>"$LOG" 2>&1 &
    PID=$!
    if ! wait_for 30 mount_answers || ! is_mounted; then
        echo "FAIL: the mount did not come up"
        exit 1
    fi
}

# The daemon must end by itself, with exit code 0, within the given time.
wait_end() {
    local code=0
    if ! wait_for "${1:-15}" daemon_gone; then
        echo "FAIL: the daemon did not end within ${1:-15} s"
        exit 1
    fi
    wait "$PID" || code=$?
    PID=
    [ "$code" = 0 ] || fail "the daemon ended with exit code $code"
}

daemon_gone() {
    [ ! -e "/proc/$PID" ] || grep -q '^State:.Z' "/proc/$PID/status" 2>/dev/null
}

stop_fs() {
    kill -TERM "$PID"
    wait_end
    is_mounted && fail "still mounted after the daemon ended"
    return 0
}

umount_in_time() {
    local began ms
    began=$(date +%s%N)
    check "it stops${1:+, $1}" timeout 20 "$SLUICEFS" umount "$MNT"
    ms=$((($(date +%s%N) - began) / 1000000))
    wait "$PID"
    PID=
    echo "stopped after $ms ms"
    check "within 10 s" test $ms -lt 10000
}

kill_fs() {
    kill -9 "$PID"
    wait "$PID" 2>/dev/null
    PID=
    unmount_now
}

fail() {
    echo "FAIL: $*"
    FAILED=$((FAILED + 1))
}

check() {
    local name=$1
    shift
    if "$@" >"$W/out" 2>&1; then
        PASSED=$((PASSED + 1))
    else
        fail "$name: $*"
        head -n 20 "$W/out"
    fi
}

# check_errno NAME ERRNO CODE: the Python code (os imported, m is the mount point) fails with it.
check_errno() {
    check "$1" python3 - "$MNT" "$2" "$3" <<'PY'
import errno, os, sys
m, want, code = sys.argv[1:]
try:
    exec(code)
except OSError as e:
    if e.errno != getattr(errno, want):
        sys.exit(f"got {errno.errorcode.get(e.errno, e.errno)}, wanted {want}")
    sys.exit(0)
sys.exit(f"succeeded, wanted {want}")
PY
}

# check_py NAME CODE: the Python code (os imported, m is the mount point) runs without an exception.
check_py() {
    check "$1" python3 - "$MNT" "$2" <<'PY'
import os, stat, sys
m, code = sys.argv[1:]
exec(code)
PY
}

# The daemon is dead. What is under way while the kernel notices gets ECONNABORTED.
not_connected() { LC_ALL=C stat "$MNT/x" 2>&1 | grep -q 'not connected'; }

# The value of a metric: stat_of 'fuse_requests_total{op="read"}'. One that is not there equals nothing.
stat_of() {
    awk -v k="sluicefs_$1" '$1 == k { print $2; found = 1 }
        END { if (!found) { srand(); print "no " k " " rand() } }' "$MNT/.sluice/stats"
}

finish() {
    [ -z "$PID" ] || stop_fs
    if grep -E '^[^ ]+ (err|error|warn|warning) ' "$LOG" | grep -Ev "${ALLOW_LOG:-^$}"; then
        fail "the daemon's log has errors or warnings (above)"
    fi
    if grep -nE 'Assertion|Sanitizer|runtime error' "$LOG"; then
        fail "the daemon's log has a failed assertion or a sanitizer report"
    fi
    [ $((PASSED + FAILED)) -gt 0 ] || fail "nothing was checked"
    echo "$PASSED checks passed, $FAILED failed"
    [ "$FAILED" = 0 ]
    exit $?
}
