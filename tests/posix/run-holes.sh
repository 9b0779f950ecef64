#!/usr/bin/env bash
# What holes, cuts and rewrites cost, and that they are right: fetches, stored blocks, objects.
. "$(dirname "$0")/lib.sh"
command -v fallocate >/dev/null || skip "no fallocate"
start_fs -o profile=broker --set segment_bytes=64K --set mirror_below=0 --set seal_age=1h \
    --set local_age=24h --set delete_delay=1s

gets() { counter 'store_requests_total{op="get",outcome="ok"}'; }
forget() { echo 3 >/proc/sys/vm/drop_caches; }
make_cold() { # name, KiB: a file that is only in the store, and a copy of it
    head -c $(($2 * 1024)) /dev/urandom | tee "$W/$1" >"$MNT/$1"
    "$SLUICEFS" evict "$MNT/$1" >/dev/null || fail "evict of $1"
    forget
    BEFORE=$(gets)
}
fetched() { # name, most fetches
    local n=$(($(gets) - BEFORE))
    [ "$n" -le "$2" ] || fail "$1: $n fetches, at most $2 are needed"
}
same() { check "$1: bytes" cmp "$W/$1" "$MNT/$1"; }
both() { # command, file name behind it
    "${@:1:$#-1}" "$W/${!#}" && "${@:1:$#-1}" "$MNT/${!#}" || fail "$*"
}

make_cold border 640
both truncate -s 128K border
fetched "cut at a segment's border" 0
same border
make_cold inside 640
both truncate -s 200000 inside
fetched "cut inside a remote segment" 0
both truncate -s 400000 inside
fetched "grown again" 0
same inside
forget
same inside
printf x | dd of="$W/inside" bs=1 seek=199000 conv=notrunc status=none
printf x | dd of="$MNT/inside" bs=1 seek=199000 conv=notrunc status=none
same inside
check "cut, written to, up again" "$SLUICEFS" evict "$MNT/inside"
forget
same inside

make_cold punch 640
both fallocate -p -o 64K -l 256K punch
fetched "punch of whole remote segments" 0
both fallocate -p -o 400K -l 48K punch
fetched "punch up to the end of a remote segment" 0
same punch
BEFORE=$(gets)
both fallocate -p -o 520K -l 4K punch
fetched "punch inside a remote segment" 1
same punch
both fallocate -z -o 600K -l 100K punch
same punch

make_cold one 1024
printf HELLO | dd of="$W/one" bs=1 seek=500000 conv=notrunc status=none
printf HELLO | dd of="$MNT/one" bs=1 seek=500000 conv=notrunc status=none
fetched "a write into a remote segment" 1
forget
same one
check "rewritten, evicted again" "$SLUICEFS" evict "$MNT/one"
forget
same one

check_py "a preallocated index costs its used pages, on the device and in the bucket" '
import mmap
f = os.open(m + "/index", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(f, 10 << 20)
a = mmap.mmap(f, 10 << 20); a[0:8000] = b"i" * 8000; a.flush(); a.close()
assert os.fstat(f).st_blocks * 512 <= 64 * 1024, os.fstat(f).st_blocks
assert os.fstat(f).st_size == 10 << 20
'
check_py "one byte at 64 MiB, then transactions into the hole" '
f = os.open(m + "/zk", os.O_CREAT | os.O_RDWR, 0o600)
os.pwrite(f, b"Z" * 16, 0); os.pwrite(f, b"\0", 67108879)
for k in range(50): os.pwrite(f, bytes([k + 1]) * 200, 16 + k * 200); os.fdatasync(f)
assert os.fstat(f).st_blocks * 512 <= 128 * 1024, os.fstat(f).st_blocks
assert os.pread(f, 200, 16 + 49 * 200) == bytes([50]) * 200 and os.pread(f, 100, 20000) == bytes(100)
assert os.lseek(f, 1 << 20, os.SEEK_DATA) >= 60 << 20
'
check_py "st_blocks never says less than what is stored, so that nobody takes data for a hole" '
def blocks(name, size, *pieces):
    f = os.open(m + "/" + name, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(f, size)
    for at, n in pieces:
        os.pwrite(f, b"x" * n, at)
    os.fsync(f)
    return os.fstat(f).st_blocks * 512
assert 4096 <= blocks("small", 10 << 20, (0, 5)) <= 65536
assert blocks("two", 2 << 20, (0, 4096), (1 << 20, 4096)) >= 8192
assert blocks("million", 1000000, (0, 1000000)) >= 1000000
assert blocks("none", 1 << 20) == 0
'
mkdir "$W/copy"
check "tar -S keeps it" bash -c "tar -S -C '$MNT' -cf - small two | tar -C '$W/copy' -xf - &&
    cmp '$MNT/small' '$W/copy/small' && cmp '$MNT/two' '$W/copy/two'"
check_py "nothing begins at the end, not even a hole" '
f = os.open(m + "/million", os.O_RDONLY)
assert os.lseek(f, 0, os.SEEK_HOLE) == 1000000
for whence in (os.SEEK_DATA, os.SEEK_HOLE):
    try: os.lseek(f, 1000000, whence)
    except OSError as e: assert e.errno == 6, e
    else: assert False, whence
'
check_py "times far away are cut to the last one there is, and fallocate changes them" '
f = os.open(m + "/million", os.O_RDWR)
os.utime(f, ns=((1 << 34) * 10 ** 9,) * 2)
assert os.fstat(f).st_mtime_ns == 2 ** 63 - 1, os.fstat(f).st_mtime_ns
os.utime(f, ns=(1, 1))
os.posix_fallocate(f, 0, 1000)
assert os.fstat(f).st_mtime_ns > 10 ** 18
'
rm "$MNT/small" "$MNT/two" "$MNT/million" "$MNT/none"
used=$(du -s -B1 "$W/store" | cut -f1)
check "both go up" "$SLUICEFS" upload "$MNT"
grown=$(($(du -s -B1 "$W/store" | cut -f1) - used))
[ "$grown" -le 3000000 ] || fail "11 KiB and 8 KiB became $grown bytes in the bucket"
check_py "fallocate: sizes, unknown modes, no room" '
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True); c.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
def fa(mode, off, n): return 0 if c.fallocate(f, mode, off, n) == 0 else ctypes.get_errno()
f = os.open(m + "/fa", os.O_CREAT | os.O_RDWR, 0o600)
assert fa(1, 0, 100000) == 0 and os.fstat(f).st_size == 0
assert fa(0, 0, 100000) == 0 and os.fstat(f).st_size == 100000
assert fa(16 | 1, 0, 200000) == 0 and os.fstat(f).st_size == 100000
assert fa(16, 0, 200000) == 0 and os.fstat(f).st_size == 200000
assert fa(8, 0, 4096) == errno.EOPNOTSUPP and fa(32, 0, 4096) == errno.EOPNOTSUPP
assert fa(0, 0, 1 << 50) == errno.ENOSPC
'
finish
