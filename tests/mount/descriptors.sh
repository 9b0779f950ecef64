#!/usr/bin/env bash
# More segments are begun than a process may have files open, faster than they are flushed: no write fails, no
# descriptor is wasted, everything can be read and sealed, and the mount stops in time.
. "$(dirname "$0")/lib.sh"
DEVICE=$W/device=4G

# Most of the daemon's descriptors so far. It may be a child of what we started.
daemon_fds() {
    for p in "$PID" $(pgrep -P "$PID"); do find "/proc/$p/fd" 2>/dev/null | wc -l; done | sort -n | tail -n 1
}

# 2,000 small files, held open by nobody; a file of small segments; one of many stretches.
fill() {
    check_py "$1: 2,000 small files" '
for k in range(2000):
    if k % 100 == 0: os.mkdir(f"{m}/'"$1"'{k // 100}")
    with open(f"{m}/'"$1"'{k // 100}/{k}", "wb") as f: f.write(b"%0500d" % k)
'
    check_py "$1: 1,500 segments at once" '
with open(f"{m}/'"$1"'.long", "wb", buffering=0) as f:
    for k in range(24): assert f.write(b"%065536d" % k * 64) == 64 * 65536
'
}

compare() {
    check_py "$1: all of it is there" '
for k in range(2000):
    with open(f"{m}/'"$1"'{k // 100}/{k}", "rb") as f: assert f.read() == b"%0500d" % k, k
with open(f"{m}/'"$1"'.long", "rb") as f:
    for k in range(24): assert f.read(64 * 65536) == b"%065536d" % k * 64, k
'
}

stretches() {
    check_py "stretches: $1" '
want = b"stretch"
f = os.open(f"{m}/sparse", os.O_CREAT | os.O_RDWR, 0o600)
for k in range(2000):
    if "'"$1"'" == "written": assert os.pwrite(f, want, k << 19) == len(want)
    else: assert os.pread(f, 9, k << 19) == want + (b"\0\0" if k < 1999 else b""), k
'
}

ulimit -n 800 || skip "the limit of open files cannot be set"
for profile in topics broker; do
    OPTIONS=(-o "profile=$profile" --set segment_bytes=64K --set mirror_below=0 --set seal_age=1h --set flush_interval=1h)
    start_fs "${OPTIONS[@]}"
    fill $profile
    check "no more descriptors than a process may have, with some to spare" test "$(daemon_fds)" -lt 700
    check "and that is shown" test "$(stat_of device_files_open)" -le 464
    compare $profile
    if [ $profile = broker ]; then
        stretches written
        stretches read
    fi
    umount_in_time
    start_fs "${OPTIONS[@]}"
    compare $profile
    kill_fs
    start_fs "${OPTIONS[@]}"
    compare $profile
    check "what a dead daemon left is sealed" timeout 120 "$SLUICEFS" seal "$MNT"
    check "no segment is open any more" test "$(stat_of 'segments{state="open"}')" = 0
    compare $profile
    [ $profile = topics ] || stretches read
    check "not many descriptors then, either" test "$(daemon_fds)" -lt 700
    umount_in_time
    rm -rf "$W/state" "$W/device" "$W/store"
    mkdir "$W/store"
done
finish
