#!/usr/bin/env bash
# The broker profile: any POSIX change of bytes, shared mappings, O_DIRECT.
. "$(dirname "$0")/lib.sh"
start_fs -o profile=broker

check_py "overwrite, write far behind the end, holes read as zeros" '
f = os.open(m + "/f", os.O_CREAT | os.O_RDWR, 0o600)
os.pwrite(f, b"hello", 0); os.pwrite(f, b"J", 0); os.pwrite(f, b"end", 5 << 20)
assert os.pread(f, 5, 0) == b"Jello" and os.fstat(f).st_size == (5 << 20) + 3
assert os.pread(f, 100, 1000) == bytes(100)
os.ftruncate(f, 3); assert os.pread(f, 10, 0) == b"Jel"
os.ftruncate(f, 10); assert os.pread(f, 20, 0) == b"Jel" + bytes(7)
'
check_py "a shared mapping is coherent with read and write, and durable after msync" '
import mmap
f = os.open(m + "/map", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(f, 1 << 20)
a = mmap.mmap(f, 1 << 20)
a[5000:5004] = b"abcd"
assert os.pread(f, 4, 5000) == b"abcd"
os.pwrite(f, b"Z", 5001); assert a[5000:5004] == b"aZcd"
a.flush(); a.close()
'
check_py "fallocate, punch a hole" '
f = os.open(m + "/fa", os.O_CREAT | os.O_RDWR, 0o600)
os.posix_fallocate(f, 0, 1 << 20)
assert os.fstat(f).st_size == 1 << 20 and os.pread(f, 10, 5000) == bytes(10)
'
check_py "a hole is punched, in place of what was flushed too" '
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int] + [ctypes.c_int64] * 2
f = os.open(m + "/punched", os.O_CREAT | os.O_RDWR, 0o600)
os.pwrite(f, b"p" * 40000, 0); os.fsync(f)
assert libc.fallocate(f, 3, 5000, 20000) == 0, os.strerror(ctypes.get_errno()) # KEEP_SIZE | PUNCH_HOLE
assert os.pread(f, 50000, 0) == b"p" * 5000 + bytes(20000) + b"p" * 15000
assert libc.fallocate(f, 3, -1, 10) == -1 and ctypes.get_errno() == 22
'
check_py "each write with O_DSYNC, appended or in place, is flushed before it returns" '
import mmap, re
def flushes():
    return int(re.search(r"device_sync_seconds_count (\d+)", open(m + "/.sluice/stats").read())[1])
buf = mmap.mmap(-1, 4096); buf.write(b"s" * 4096)
for flags in (os.O_DSYNC, os.O_SYNC, os.O_DIRECT | os.O_DSYNC):
    f = os.open(m + "/sync", os.O_CREAT | os.O_RDWR | flags, 0o600)
    for at in (0, 4096, 0, 0, 4096):
        before = flushes()
        assert os.pwritev(f, [buf], at) == 4096
        assert flushes() > before, (flags, at)
    os.close(f)
'
check_py "O_DIRECT and O_DSYNC" '
import mmap
buf = mmap.mmap(-1, 8192); buf.write(b"d" * 8192)
f = os.open(m + "/dir", os.O_CREAT | os.O_RDWR | os.O_DIRECT | os.O_DSYNC, 0o600)
assert os.pwritev(f, [buf], 0) == 8192 and os.preadv(f, [buf], 0) == 8192 and buf[:4] == b"dddd"
'
# The commands are about what was there when they began, also of a file that is rewritten all the time.
head -c 100000 /dev/urandom >"$MNT/busy"
(while kill -0 $$ 2>/dev/null; do printf x | dd of="$MNT/busy" conv=notrunc seek=50000 bs=1 status=none; done) &
writer=$!
for c in upload evict; do check "$c of a file in use ends" timeout 60 "$SLUICEFS" "$c" "$MNT/busy"; done
kill $writer
wait $writer 2>/dev/null
stop_fs
start_fs -o profile=broker
check_py "all of it after a remount" '
assert open(m + "/f", "rb").read() == b"Jel" + bytes(7)
assert open(m + "/map", "rb").read()[5000:5004] == b"aZcd"
assert open(m + "/dir", "rb").read() == b"d" * 8192
'
finish
