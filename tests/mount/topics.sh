#!/usr/bin/env bash
# The topics profile: files only grow. Any other change of bytes is EPERM, and changes nothing.
. "$(dirname "$0")/lib.sh"
start_fs -o profile=topics

printf 'hello world' >"$MNT/f"
check_errno "a write in the middle" EPERM 'f = os.open(m + "/f", os.O_WRONLY); os.pwrite(f, b"X", 3)'
check_errno "a write behind the end" EPERM 'f = os.open(m + "/f", os.O_WRONLY); os.pwrite(f, b"X", 100)'
check_errno "a shorter truncate" EPERM 'os.truncate(m + "/f", 5)'
check_errno "a longer truncate" EPERM 'os.truncate(m + "/f", 500)'
check_errno "O_TRUNC of a file with content" EPERM 'os.open(m + "/f", os.O_WRONLY | os.O_TRUNC)'
check_errno "fallocate" EOPNOTSUPP '
import ctypes
f = os.open(m + "/f", os.O_WRONLY)
libc = ctypes.CDLL(None, use_errno=True)
if libc.fallocate(f, 0, ctypes.c_long(0), ctypes.c_long(4096)): raise OSError(ctypes.get_errno(), "fallocate")'
check "the file is what it was" test "$(cat "$MNT/f")" = "hello world"
check_py "a truncate to the same size, O_TRUNC of an empty file" '
os.truncate(m + "/f", 11)
open(m + "/empty", "w").close()
open(m + "/empty", "w").close()
'
check_py "writes at the end need no O_APPEND" '
f = os.open(m + "/f", os.O_WRONLY)
os.pwrite(f, b"!", 11)
assert open(m + "/f").read() == "hello world!"
'
check "shell redirections" bash -c "echo one >'$MNT/sh' && echo two >>'$MNT/sh' && [ \"\$(cat '$MNT/sh')\" = \$'one\ntwo' ]"
check_py "rename and unlink work" '
os.rename(m + "/sh", m + "/sh2"); os.unlink(m + "/sh2")
'
# A store needs no request. What the kernel writes back of it is refused, and then readers see what is stored.
check_py "a store through a shared mapping is undone when it would be written back" '
import errno, mmap, time
with open(m + "/map", "wb") as f: f.write(b"a" * 10000)
f = os.open(m + "/map", os.O_RDWR)
p = mmap.mmap(f, 10000)
p[5000] = ord("X")
try: p.flush()
except OSError as e: assert e.errno == errno.EPERM, e
else: assert False, "msync says that it is stored"
def same(): return open(m + "/map", "rb").read() == b"a" * 10000
end = time.monotonic() + 20
while not same():
    assert time.monotonic() < end, "readers go on seeing the store"
    time.sleep(0.01)
p[0] = ord("Y")
p.close()
os.close(f)
while not same():
    assert time.monotonic() < end, "and after the mapping is gone"
    time.sleep(0.01)
'
finish
