#!/usr/bin/env bash
# Names, attributes, directories and links behave as on any local file system.
. "$(dirname "$0")/lib.sh"
start_fs

check "a fresh mount shows nothing" test -z "$(ls -A "$MNT")"

# create, append, read
check_py "appended bytes come back" '
for n in (1, 100, 4096, 70000, 3 * 1024 * 1024 + 17):
    p = f"{m}/append-{n}"
    data = bytes((i * 7 + n) & 255 for i in range(n))
    for k in range(0, n, 65537):
        with open(p, "ab") as f: f.write(data[k:k + 65537])
    assert os.stat(p).st_size == n
    assert open(p, "rb").read() == data
'
check_py "a hole is never made by appending through two descriptors" '
a = os.open(m + "/two", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
b = os.open(m + "/two", os.O_WRONLY | os.O_APPEND)
for k in range(200): os.write(a if k % 2 else b, b"%04d\n" % k)
assert open(m + "/two").read() == "".join("%04d\n" % k for k in range(200))
'
check_py "nor through two names of one file, opened for each line" '
open(m + "/name1", "x").close(); os.link(m + "/name1", m + "/name2")
for k in range(300):
    with open(m + "/name%d" % (k % 2 + 1), "ab", buffering=0) as f: f.write(b"%04d\n" % k)
assert open(m + "/name1").read() == "".join("%04d\n" % k for k in range(300))
'
check "records of parallel appenders stay whole" python3 - "$MNT/shared.log" <<'PY'
import os, sys
p, writers, records = sys.argv[1], 8, 300
kids = []
for w in range(writers):
    pid = os.fork()
    if pid == 0:
        f = os.open(p, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        for r in range(records):
            line = (f"{w} {r} " + chr(97 + w) * (17 + 13 * r % 5000)).encode() + b"\n"
            if os.write(f, line) != len(line): os._exit(1)
        os._exit(0)
    kids.append(pid)
assert all(os.waitpid(k, 0)[1] == 0 for k in kids)
seen = {}
for line in open(p):
    w, r, text = line.rstrip("\n").split(" ")
    w, r = int(w), int(r)
    assert seen.get(w, -1) == r - 1, (w, r)
    assert text == chr(97 + w) * (17 + 13 * r % 5000)
    seen[w] = r
assert all(seen[w] == records - 1 for w in range(writers))
PY

# names
check_py "names of 255 odd bytes" '
mb = os.fsencode(m)
odd = bytes(c for c in range(1, 256) if c != 47)
for name in (odd + b"x", b"-rf", b" ", b"\n", b"\xff\xfe", b"*?[", b"a" * 255):
    open(mb + b"/" + name, "xb").close()
    assert name in os.listdir(mb)
    os.unlink(mb + b"/" + name)
'
check_errno "a name of 256 bytes" ENAMETOOLONG 'open(m + "/" + "a" * 256, "x")'
check_errno "no such file" ENOENT 'os.stat(m + "/none")'
check_errno "exclusive create of an existing file" EEXIST \
    'open(m + "/ex", "x").close(); open(m + "/ex", "x")'
check_py "a negative answer is forgotten at create" '
assert not os.path.exists(m + "/later")
open(m + "/later", "x").close()
assert os.path.exists(m + "/later")
os.unlink(m + "/later")
assert not os.path.exists(m + "/later")
'

# directories
check_py "a tree of directories" '
os.makedirs(m + "/d/e/f")
open(m + "/d/e/f/x", "w").write("x")
assert os.stat(m + "/d").st_nlink == 3
assert sorted(os.listdir(m + "/d/e")) == ["f"]
'
check_errno "rmdir of a directory that is not empty" ENOTEMPTY 'os.rmdir(m + "/d/e")'
check_errno "unlink of a directory" EISDIR 'os.unlink(m + "/d")'
check_errno "rmdir of a file" ENOTDIR 'os.rmdir(m + "/ex")'
check_errno "a file as a directory" ENOTDIR 'open(m + "/ex/y", "x")'
check_py "3000 names, listed once each, also while they go" '
os.mkdir(m + "/many")
for k in range(3000): open(f"{m}/many/{k}", "x").close()
assert sorted(map(int, os.listdir(m + "/many"))) == list(range(3000))
n = 0
with os.scandir(m + "/many") as it:
    for e in it:
        assert e.is_file(follow_symlinks=False) and e.stat().st_size == 0
        os.unlink(e.path); n += 1
assert n == 3000 and not os.listdir(m + "/many")
os.rmdir(m + "/many")
'

# rename
check_py "rename: same inode, over an existing target, of a full directory" '
open(m + "/r1", "w").write("one"); open(m + "/r2", "w").write("two")
ino = os.stat(m + "/r1").st_ino
f = open(m + "/r2")
os.rename(m + "/r1", m + "/r2")
assert open(m + "/r2").read() == "one" and os.stat(m + "/r2").st_ino == ino
assert f.read() == "two" and not os.path.exists(m + "/r1")
os.rename(m + "/d/e", m + "/d2")
assert open(m + "/d2/f/x").read() == "x"
'
check_errno "a directory into itself" EINVAL 'os.rename(m + "/d2", m + "/d2/f/g")'
check "rename flags NOREPLACE and EXCHANGE" python3 - "$MNT" <<'PY'
import ctypes, errno, os, sys
m = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(a, b, flags):
    if libc.renameat2(-100, os.fsencode(m + a), -100, os.fsencode(m + b), flags):
        return ctypes.get_errno()
    return 0
open(m + "/n1", "w").write("1"); open(m + "/n2", "w").write("2")
assert renameat2("/n1", "/n2", 1) == errno.EEXIST
assert renameat2("/n1", "/n2", 2) == 0
assert open(m + "/n1").read() == "2" and open(m + "/n2").read() == "1"
assert renameat2("/n1", "/n3", 1) == 0
PY

# links
check_py "hard link, symbolic link" '
open(m + "/h1", "w").write("h")
os.link(m + "/h1", m + "/h2")
assert os.stat(m + "/h2").st_nlink == 2 and os.path.samefile(m + "/h1", m + "/h2")
os.unlink(m + "/h1")
assert os.stat(m + "/h2").st_nlink == 1 and open(m + "/h2").read() == "h"
os.symlink("h2", m + "/s"); os.symlink("x" * 4000, m + "/long")
assert os.readlink(m + "/s") == "h2" and open(m + "/s").read() == "h"
assert os.readlink(m + "/long") == "x" * 4000 and os.lstat(m + "/long").st_size == 4000
'
check_py "fifo and socket nodes" '
os.mkfifo(m + "/fifo", 0o640)
assert stat.S_ISFIFO(os.stat(m + "/fifo").st_mode)
os.mknod(m + "/sock", stat.S_IFSOCK | 0o600)
assert stat.S_ISSOCK(os.stat(m + "/sock").st_mode)
'

# attributes
check_py "chmod and umask" '
old = os.umask(0o027)
open(m + "/mode", "x").close()
os.umask(old)
assert stat.S_IMODE(os.stat(m + "/mode").st_mode) == 0o640
os.chmod(m + "/mode", 0o4711)
assert stat.S_IMODE(os.stat(m + "/mode").st_mode) == 0o4711
'
check_py "times in nanoseconds" '
open(m + "/time", "x").close()
os.utime(m + "/time", ns=(1234567890123456789, 987654321987654321))
s = os.stat(m + "/time")
assert (s.st_atime_ns, s.st_mtime_ns) == (1234567890123456789, 987654321987654321)
os.utime(m + "/time", ns=(-1500000000, 5))
assert os.stat(m + "/time").st_atime_ns == -1500000000
before = os.stat(m + "/time")
with open(m + "/time", "ab") as f: f.write(b"x")
after = os.stat(m + "/time")
assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns
open(m + "/time").read()
assert os.stat(m + "/time").st_mtime_ns == after.st_mtime_ns
'
if [ "$(id -u)" = 0 ]; then
    check_py "chown" '
open(m + "/own", "x").close()
os.chown(m + "/own", 1234, 4321)
s = os.stat(m + "/own")
assert (s.st_uid, s.st_gid) == (1234, 4321)
'
    check_py "a new file takes the group of a setgid directory" '
os.mkdir(m + "/sg"); os.chown(m + "/sg", 0, 4321); os.chmod(m + "/sg", 0o2775)
open(m + "/sg/f", "x").close()
assert os.stat(m + "/sg/f").st_gid == 4321
'
fi

# open and unlinked
check_py "an unlinked open file stays readable and writable, without a leftover name" '
f = os.open(m + "/gone", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
os.write(f, b"before ")
os.unlink(m + "/gone")
os.write(f, b"after")
assert os.fstat(f).st_nlink == 0 and os.pread(f, 100, 0) == b"before after"
assert not [n for n in os.listdir(m) if n.startswith(".")]
os.close(f)
'

# durability calls, space
check_py "fsync, fdatasync, fsync of a directory" '
f = os.open(m + "/sync", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
os.write(f, b"x" * 5000); os.fdatasync(f); os.write(f, b"y"); os.fsync(f); os.close(f)
d = os.open(m, os.O_RDONLY | os.O_DIRECTORY); os.fsync(d); os.close(d)
f = os.open(m + "/osync", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_SYNC, 0o600)
os.write(f, b"z" * 9000); os.close(f)
assert os.stat(m + "/osync").st_size == 9000
'
check_py "statfs is true" '
s = os.statvfs(m)
assert s.f_blocks > 0 and 0 < s.f_bavail <= s.f_blocks and s.f_namemax == 255 and s.f_bsize >= 512
'
check "df lists the mount unasked" bash -c "df -k | grep -q ' $MNT\$'"
check_py "what files hold counts as used, on a device and in the store" '
import subprocess
def used():
    s = os.statvfs(m)
    return (s.f_blocks - s.f_bfree) * s.f_frsize
before = used()
with open(m + "/space", "wb") as f: f.write(os.urandom(5 << 20))
assert used() - before == 5 << 20, used() - before
subprocess.run([os.environ["SLUICEFS"], "evict", m + "/space"], check=True)
assert used() - before == 5 << 20, used() - before
os.unlink(m + "/space")
'
check_errno "locks are the kernel'\''s: a second writer is refused" EAGAIN '
import fcntl
a = open(m + "/lock", "w"); fcntl.flock(a, fcntl.LOCK_EX)
b = open(m + "/lock"); fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)'
check_errno "extended attributes are off unless asked for" EOPNOTSUPP \
    'os.getxattr(m + "/ex", "user.x")'
check_py "sparse views: SEEK_DATA, SEEK_HOLE" '
f = os.open(m + "/append-70000", os.O_RDONLY)
assert os.lseek(f, 10, os.SEEK_DATA) == 10 and os.lseek(f, 10, os.SEEK_HOLE) == 70000
'
check_py "a private mapping of a file being appended" '
import mmap
f = open(m + "/append-4096", "rb")
assert mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:] == open(m + "/append-4096", "rb").read()
'
finish
