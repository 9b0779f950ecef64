#!/usr/bin/env bash
# A reader already at the end of a file sees what is appended later; tail -F survives rotation; listings, from
# which the kernel learns sizes, show no reader bytes that are not there yet.
. "$(dirname "$0")/lib.sh"
start_fs

echo first >"$MNT/log"
tail -n +1 -s 0.05 -F "$MNT/log" >"$W/seen" 2>/dev/null &
TAIL=$!
disown "$TAIL"
has() { grep -qx "$1" "$W/seen"; }
check "the first line" wait_for 10 has first
for i in $(seq 100); do echo "line $i" >>"$MNT/log"; done
check "later lines" wait_for 10 has "line 100"
mv "$MNT/log" "$MNT/log.1"
echo rotated >"$MNT/log"
check "the new file after rotation" wait_for 10 has rotated
kill "$TAIL"
check "each line once, in order" cmp "$W/seen" <(echo first; seq -f 'line %g' 100; echo rotated)

check_py "a held descriptor reads on at the end of file" '
w = open(m + "/held", "ab", buffering=0); r = open(m + "/held", "rb", buffering=0)
for k in range(300):
    rec = b"%d " % k * (k % 50 + 1)
    w.write(rec)
    assert r.read(1 << 16) == rec, k
    assert r.read(10) == b""
'
check "opened, appended to and closed all the time, while others list and read the end" python3 - "$MNT" <<'PY'
import os, select, struct, sys, time, zlib
d = sys.argv[1] + "/events"
os.mkdir(d)
go, end = os.pipe() # closed by the writer when it has written all

def record(k):
    r = struct.pack("<Q52s", k, b"%052d" % k)
    return r + struct.pack("<I", zlib.crc32(r))

def going():
    return not select.select([go], [], [], 0)[0]

def lister():
    n = 0
    while going():
        n += sum(e.stat().st_size >= 0 for e in os.scandir(d))
    return n

def reader(last_only):
    at, sizes = 0, set()
    while True:
        more = going()
        fd = os.open(d + "/log", os.O_RDONLY)
        size = os.fstat(fd).st_size
        assert size % 64 == 0 and size >= at, (size, at)
        if last_only:
            at = max(at, size - 64)
        data, until = b"", time.monotonic() + 20
        while len(data) < size - at: # the kernel lets fstat see an append before its writer has returned, read not
            data += os.pread(fd, size - at - len(data), at + len(data))
            assert time.monotonic() < until, (len(data), size, at)
        os.close(fd)
        for k in range(0, len(data), 64):
            assert data[k:k + 64] == record((at + k) // 64), ((at + k) // 64, data[k:k + 64])
        at = size
        sizes.add(size)
        if not more:
            return len(sizes)

def child(body):
    pid = os.fork()
    if pid == 0:
        os.close(end)
        code = 1
        try:
            n = body()
            code = 0 if n > 20 else 2
        except BaseException as e:
            print(repr(e), flush=True)
        os._exit(code)
    return pid

open(d + "/log", "x").close()
kids = [child(lister), child(lambda: reader(True)), child(lambda: reader(False))]
for k in range(3000):
    with open(d + "/log", "ab", buffering=0) as f:
        f.write(record(k))
os.close(end)
codes = [os.waitpid(p, 0)[1] >> 8 for p in kids]
assert codes == [0, 0, 0], codes
assert os.path.getsize(d + "/log") == 3000 * 64
PY
finish
