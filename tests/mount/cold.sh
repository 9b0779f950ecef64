#!/usr/bin/env bash
# Cold bytes: read back whole, leave nothing in the page cache, and a store that answers nothing stops
# nobody but the reader of cold bytes, who can be killed.
. "$(dirname "$0")/lib.sh"
COLD=(-o "segment_bytes=4M,seal_age=200ms,local_age=0s,mirror_below=0,delete_delay=0s,fault_plan=$W/plan,read_deadline=60s")
cat >"$W/plan" <<PLAN
trigger $W/outage
fail op=get count=all stall
PLAN

all_remote() { [ -z "$(find "$W/device" -type f -size +64k)" ]; }
# How many KiB of the file the kernel caches; the largest seen while PID runs.
cached_kib() {
    python3 - "$@" <<'PY'
import ctypes, os, sys, time
path, pid = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
libc = ctypes.CDLL(None, use_errno=True)
f = os.open(path, os.O_RDWR)
size = os.fstat(f).st_size
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = libc.mmap(None, size, 1, 1, f, 0)
assert at != ctypes.c_void_p(-1).value
vec = (ctypes.c_ubyte * ((size + 4095) // 4096))()
def now():
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), vec) == 0
    return 4 * bytes(vec).count(1)
most = now()
while pid and os.path.exists(f"/proc/{pid}") and "State:\tZ" not in open(f"/proc/{pid}/status").read():
    most = max(most, now())
    time.sleep(0.002)
print(most)
PY
}

start_fs "${COLD[@]}"
head -c 100000000 /dev/urandom >"$W/data"
cp "$W/data" "$MNT/f"
echo hot >"$MNT/hot"
check "everything moves to the store" wait_for 60 all_remote
stop_fs
start_fs "${COLD[@]}"

# A cached handle (opened for writing too), as brokers hold it.
before=$(stat_of 'fuse_requests_total{op="read"}')
exec 5<>"$MNT/f"
cat <&5 >"$W/copy" &
CAT=$!
most=$(cached_kib "$MNT/f" "$CAT")
wait "$CAT"
after=$(stat_of 'fuse_requests_total{op="read"}')
check "the bytes are right" cmp "$W/data" "$W/copy"
# Two read-ahead windows, and what comes while the invalidating thread waits for a processor.
check "while reading only a little is cached ($most KiB)" test "$most" -le 16384
check "pages are read once ($((after - before)) READs)" test $((after - before)) -le 900
no_residue() { [ "$(cached_kib "$MNT/f")" -le 64 ]; }
check "afterwards nothing is" wait_for 5 no_residue
exec 5>&-
check "a random reader leaves no more than its last pages" python3 - "$MNT/f" "$W/data" <<'PY'
import os, random, sys
f, g = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[2], os.O_RDONLY)
random.seed(1)
for _ in range(500):
    at = random.randrange(0, 100000000 - 4096)
    assert os.pread(f, 4096, at) == os.pread(g, 4096, at)
PY
check "nor after its end" wait_for 5 no_residue

cat "$MNT/f" >"$W/copy"
check "the same through a read-only handle" cmp "$W/data" "$W/copy"

check_py "cold bytes can be mapped; shared, too, through a handle opened for writing" '
import mmap
want = open(m + "/../data", "rb").read(20 << 20)
for flags, how in ((os.O_RDONLY, mmap.MAP_PRIVATE), (os.O_RDWR, mmap.MAP_PRIVATE), (os.O_RDWR, mmap.MAP_SHARED)):
    f = os.open(m + "/f", flags)
    with mmap.mmap(f, len(want), how, mmap.PROT_READ) as a: assert a[:] == want, (flags, how)
    os.close(f)
'
check "files that are removed while they are open stay whole: cold, sealed and open ones" \
    python3 - "$MNT" "$W/data" "$SLUICEFS" <<'PY'
import json, os, subprocess, sys, time
m, data, prog = sys.argv[1:]
body = open(data, "rb").read(5 << 20) # a segment and a part of one
held = []
for state in ("cold", "sealed", "open"):
    p = f"{m}/gone-{state}"
    with open(p, "wb") as f:
        f.write(body)
    if state != "open":
        subprocess.run([prog, "evict" if state == "cold" else "seal", p], check=True)
    held += [(state, os.open(p, flags)) for flags in (os.O_RDONLY, os.O_RDWR)]
    os.unlink(p)
subprocess.run([prog, "upload", m], check=True) # manifests without these names are written
status = lambda: json.load(open(m + "/.sluice/status.json"))
def wait(what):
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, status()
        time.sleep(0.05)
wait(lambda: not any(status()["queues"][k] for k in ("upload", "uploading", "manifest", "delete")))
for state, f in held:
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.fstat(f).st_nlink == 0 and os.pread(f, len(body) + 1, 0) == body, state
objects = lambda: sum("segments" in d for d, _, names in os.walk(m + "/../store") for _ in names)
before = objects()
for _, f in held:
    os.close(f)
wait(lambda: objects() < before)
PY

# The store does not answer.
stop_fs
start_fs "${COLD[@]}"
touch "$W/outage"
# $CAT is cat by now, and in read(2) (its number on x86_64 and on arm64).
stalled() { [ "$(cat "/proc/$CAT/comm")" = cat ] && grep -qE '^(0|63) ' "/proc/$CAT/syscall"; }
for how in '<' '<>'; do
    for sig in INT TERM KILL; do
        # bash ignores SIGINT in its background jobs
        bash -c "exec python3 -c 'import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(\"cat\", [\"cat\"])' $how'$MNT/f'" >/dev/null 2>&1 &
        CAT=$!
        wait_for 20 stalled || fail "a cat $how does not read"
        began=$(date +%s%N)
        kill -$sig $CAT || fail "a cat $how did not stall"
        wait $CAT 2>/dev/null
        [ $? -gt 128 ] || fail "a stalled cat $how did not die of $sig"
        took=$((($(date +%s%N) - began) / 1000000))
        check "a stalled cat $how dies of $sig ($took ms)" test $took -le 1000
    done
done
# It answers, but not before 15 s have passed. Far more readers wait than there are threads.
rm "$W/outage"
printf 'trigger %s\nfail op=get count=all delay=15000\n' "$W/outage" >"$W/plan"
touch "$W/outage"
python3 - "$MNT/f" "$W/storm" <<'PY' &
import os, signal, sys, threading, time
# A reader that gets harmless signals all the time must wait, not fail.
for s in (signal.SIGURG, signal.SIGCHLD, signal.SIGUSR1):
    signal.signal(s, lambda *_: None)
    signal.siginterrupt(s, False)
def storm():
    while True:
        for s in (signal.SIGURG, signal.SIGCHLD, signal.SIGUSR1):
            os.kill(os.getpid(), s)
        time.sleep(0.01)
threading.Thread(target=storm, daemon=True).start()
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
f = os.open(sys.argv[1], os.O_RDONLY)
buf = ctypes.create_string_buffer(4096)
n = libc.pread(f, buf, 4096, ctypes.c_long(50 << 20))  # Python's own would hide EINTR
open(sys.argv[2], "w").write(f"{n} {ctypes.get_errno() if n < 0 else 0}")
PY
STORM=$!
python3 - "$MNT/f" "$W/data" "$W/many" <<'PY' &
import mmap, os, sys, threading
f, g = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), os.open(sys.argv[2], os.O_RDONLY)
right = []
def read(at):
    buf = mmap.mmap(-1, 4096) # aligned; each is a request of its own
    if os.preadv(f, [buf], at) == 4096 and buf[:] == os.pread(g, 4096, at): right.append(at)
t = [threading.Thread(target=read, args=((80 + k) << 18,)) for k in range(300)]
for x in t: x.start()
for x in t: x.join()
open(sys.argv[3], "w").write(str(len(right)))
PY
waiting() { [ "$(stat_of fuse_reads_pending)" -ge 300 ]; }
check "300 readers wait" wait_for 13 waiting
quick() { timeout 1 "$@"; }
check "stat, ls, df and appends go on" quick bash -c "stat '$MNT/f' && ls -l '$MNT' && df '$MNT' && echo x >>'$MNT/hot2'"
sleep 1
check "the reader under signals still waits" kill -0 $STORM
rm "$W/outage"
check "cold reads go on" timeout 20 dd if="$MNT/f" of=/dev/null bs=1M skip=80 count=1
wait_for 30 test -s "$W/storm"
check "and gets its bytes ($(cat "$W/storm"))" grep -qx '4096 0' "$W/storm"

wait_for 30 test -s "$W/many"
check "so do the 300 ($(cat "$W/many"))" grep -qx 300 "$W/many"

# Stopping does not wait for the store.
printf 'trigger %s\nfail op=any count=all stall\n' "$W/outage" >"$W/plan"
touch "$W/outage"
cat "$MNT/f" >/dev/null 2>&1 &
cat <>"$MNT/f" >/dev/null 2>&1 &
sleep 0.5
began=$(date +%s%N)
stop_fs
took=$((($(date +%s%N) - began) / 1000000))
check "stopped while the store hangs and readers wait ($took ms)" test $took -le 10000
readers_gone() { ! jobs -r | grep -q cat; }
check "the readers were told" wait_for 5 readers_gone
ALLOW_LOG='store|upload|read at'
finish
