#!/usr/bin/env python3
"""Random operations on a mount and on an ordinary file system side by side.

usage: model.py --sluicefs PROGRAM --work DIR [--seed N] [--ops N] [--set NAME=VALUE ...]

The same call goes to both; result, errno, attributes and bytes must be the same. In between, the mount's
files are sealed, uploaded, evicted and brought back, and its daemon is stopped or killed (-9) and
started again: what was acknowledged must be there, with the same inode numbers and times. Or only
the daemon is killed under the mount, and open files and mappings must go on without an error.
A failure prints the seed and the last operations; the same seed repeats the same operations.
Last line: "N operations, N failed" and what tiering did.
"""
import argparse
import ctypes
import errno
import mmap
import os
import random
import signal
import stat
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP, PUNCH, ZERO = 1, 2, 16
NOREPLACE, EXCHANGE = 1, 2
FILE_MAX = 2 << 20
NAMES = [f"f{k}" for k in range(8)] + ["long-" + "n" * 30, "$G", "a b"]
DIRS = ["d0", "d1", "d2"]


class Mismatch(Exception):
    pass


def fallocate(fd, mode, off, length):
    if LIBC.fallocate(fd, mode, off, length):
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err))


def renameat2(old, new, flags):
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err))


class Mount:
    """The daemon under test and its directory."""

    def __init__(self, program, work, settings):
        self.program, self.work = program, work
        self.root = os.path.join(work, "mnt")
        self.log = open(os.path.join(work, "daemon.log"), "ab")
        self.settings = settings
        self.process = None
        self.counters = {}
        for name in ("mnt", "store"):
            os.makedirs(os.path.join(work, name), exist_ok=True)

    def start(self):
        args = [self.program, "mount", "--state", f"{self.work}/state", "--device",
                f"{self.work}/device", "--store", f"dir://{self.work}/store", "-f",
                "-o", "profile=broker"]
        for s in self.settings:
            args += ["--set", s]
        self.process = subprocess.Popen(args + [self.root], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Mismatch(f"the daemon ended with {self.process.returncode} at its start")
            if os.path.ismount(self.root):
                try:
                    os.stat(self.root)
                    return
                except OSError:
                    pass
            time.sleep(0.02)
        raise Mismatch("the mount did not come up")

    def note_counters(self):
        """Counters begin at zero with each daemon: sums over all of them."""
        try:
            with open(f"{self.root}/.sluice/stats", encoding="ascii") as f:
                for line in f:
                    if not line.startswith("#"):
                        name, value = line.rsplit(" ", 1)
                        if "_total" in name:
                            self.counters[name] = self.counters.get(name, 0) + float(value)
        except OSError:
            pass

    def counter(self, name):
        return int(self.counters.get("sluicefs_" + name, 0))

    def stop(self, how):
        self.note_counters()
        self.process.send_signal(how)
        code = self.process.wait(60)
        if how == signal.SIGKILL:
            subprocess.run(["umount", "-l", self.root], check=False)
        elif code != 0:
            raise Mismatch(f"the daemon ended with {code}")

    def kill_daemon(self):
        """Only the daemon: the supervisor above it keeps the mount and starts the next one."""
        self.note_counters()
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            children = f.read().split()
        threads = {int(c): len(os.listdir(f"/proc/{c}/task")) for c in children}
        daemon = max(threads, key=threads.get, default=0)
        if threads.get(daemon, 0) < 3:
            return False  # it is not supervised, or the next one is only just starting
        os.kill(daemon, signal.SIGKILL)
        return True

    def command(self, name, path):
        done = subprocess.run([self.program, name, path], capture_output=True, timeout=60,
                              check=False)
        if done.returncode:
            raise Mismatch(f"{name} {path}: {done.stderr.decode()}")


class Model:
    def __init__(self, mount, reference, seed):
        # One directory of the top level: hard links between those are refused.
        self.mount, self.roots = mount, (f"{mount.root}/data", reference)
        self.rnd = random.Random(seed)
        self.handles = []  # [fd on the mount, fd on the reference, writable]
        self.history = []
        self.trace = None
        self.count = {}
        self.replaced = False
        self.ops = [
            (30, self.op_write), (14, self.op_read), (8, self.op_truncate), (8, self.op_map),
            (6, self.op_punch), (3, self.op_zero), (3, self.op_allocate), (8, self.op_open),
            (3, self.op_close), (5, self.op_create), (4, self.op_unlink), (5, self.op_rename),
            (2, self.op_exchange), (3, self.op_link), (2, self.op_mkdir), (2, self.op_rmdir),
            (2, self.op_symlink), (2, self.op_chmod), (2, self.op_utime), (4, self.op_sync),
            (3, self.op_copy), (4, self.op_seek), (6, self.op_forget), (4, self.op_stat),
            (2, self.op_list), (2, self.op_append), (6, self.op_tier), (0.15, self.op_restart),
            (0.15, self.op_replace),
        ]

    # -- helpers --

    def note(self, text):
        self.history.append(text)
        del self.history[:-40]
        if self.trace:
            print(text, file=self.trace, flush=True)

    def both(self, what, call):
        """call(root index, root) on both sides; the same result or errno."""
        out = []
        for k, root in enumerate(self.roots):
            try:
                out.append(call(k, root))
            except OSError as e:
                out.append(e)
        a, b = out
        self.note(f"{what}: {b if isinstance(b, OSError) or b is None else 'ok'}")
        ea, eb = (x.errno if isinstance(x, OSError) else 0 for x in out)
        if ea != eb:
            raise Mismatch(f"{what}: mount {errno.errorcode.get(ea, ea)}, "
                           f"reference {errno.errorcode.get(eb, eb)}")
        if ea == 0 and a != b:
            raise Mismatch(f"{what}: {describe(a, b)}")
        return None if ea else b

    def paths(self, want):
        found = []
        ref = self.roots[1]
        for base, dirs, files in os.walk(ref):
            rel = os.path.relpath(base, ref)
            for name in dirs if want == "dir" else files:
                path = os.path.normpath(os.path.join(rel, name))
                link = os.path.islink(os.path.join(ref, path))
                if (want == "link") == link:
                    found.append(path)
        return sorted(found)

    def pick(self, want):
        found = self.paths(want)
        return self.rnd.choice(found) if found else None

    def fresh(self):
        """A path that may or may not exist."""
        dirs = [""] + self.paths("dir")
        return os.path.join(self.rnd.choice(dirs), self.rnd.choice(NAMES))

    def offset(self):
        r = self.rnd
        return r.choice([r.randrange(FILE_MAX), r.randrange(FILE_MAX), r.randrange(4096),
                         r.randrange(32) * 65536, r.randrange(512) * 4096])

    def length(self):
        r = self.rnd
        return r.choice([1, r.randrange(1, 5000), r.randrange(1, 5000), 4096, 65536,
                         r.randrange(1, 200000)])

    def handle(self, write=False):
        usable = [h for h in self.handles if h[2] or not write]
        return self.rnd.choice(usable) if usable else None

    # -- bytes --

    def op_write(self):
        h = self.handle(True)
        if h:
            off, data = self.offset(), self.rnd.randbytes(self.length())
            self.both(f"pwrite {h[3]} {off}+{len(data)}", lambda k, _: os.pwrite(h[k], data, off))

    def op_append(self):
        path = self.pick("file")
        if path:
            data = self.rnd.randbytes(self.length())

            def call(_, root):
                fd = os.open(f"{root}/{path}", os.O_WRONLY | os.O_APPEND)
                try:
                    if os.fstat(fd).st_size > FILE_MAX:
                        return 0
                    return os.write(fd, data)
                finally:
                    os.close(fd)
            self.both(f"append {path} {len(data)}", call)

    def op_read(self):
        h = self.handle()
        if h:
            off, n = self.offset(), self.length()
            self.both(f"pread {h[3]} {off}+{n}", lambda k, _: os.pread(h[k], n, off))

    def op_truncate(self):
        h = self.handle(True)
        if h:
            size = self.rnd.choice([0, self.offset(), self.offset(), self.rnd.randrange(100)])
            self.both(f"ftruncate {h[3]} {size}", lambda k, _: os.ftruncate(h[k], size))

    def op_map(self):
        h = self.handle(True)
        if not h:
            return
        off, data = self.offset(), self.rnd.randbytes(self.length())
        grow = self.rnd.random() < 0.3
        flush = self.rnd.random() < 0.5

        def call(k, _):
            size = os.fstat(h[k]).st_size
            if grow and size < off + len(data):
                os.ftruncate(h[k], off + len(data))
                size = off + len(data)
            if size == 0:
                return None
            with mmap.mmap(h[k], size) as m:
                end = min(size, off + len(data))
                if off < end:
                    m[off:end] = data[:end - off]
                if flush:
                    m.flush()
                return m[max(0, off - 10):end + 10]
        self.both(f"map {h[3]} {off}+{len(data)}{' grow' if grow else ''}", call)

    def op_punch(self):
        h = self.handle(True)
        if h:
            off, n = self.offset(), self.rnd.choice([self.length(), 65536, 262144, FILE_MAX])
            self.both(f"punch {h[3]} {off}+{n}",
                      lambda k, _: fallocate(h[k], PUNCH | KEEP, off, n))

    def op_zero(self):
        h = self.handle(True)
        if h:
            off, n, mode = self.offset(), self.length(), ZERO | self.rnd.choice([0, KEEP])
            self.both(f"zero {h[3]} {off}+{n} {mode}", lambda k, _: fallocate(h[k], mode, off, n))

    def op_allocate(self):
        h = self.handle(True)
        if h:
            off, n, mode = self.offset(), self.length(), self.rnd.choice([0, KEEP])
            self.both(f"fallocate {h[3]} {off}+{n} {mode}",
                      lambda k, _: fallocate(h[k], mode, off, n))

    def op_copy(self):
        a, b = self.handle(), self.handle(True)
        if a and b and a is not b:
            src, dst, n = self.offset(), self.offset(), self.length()
            same = os.fstat(a[1]).st_ino == os.fstat(b[1]).st_ino
            if not (same and abs(src - dst) < n):
                self.both(f"copy {a[3]} {src} to {b[3]} {dst}+{n}",
                          lambda k, _: copy(a[k], b[k], n, src, dst))

    def op_seek(self):
        """Holes may be wherever zeros are, so only what must hold is compared."""
        h = self.handle()
        if not h:
            return
        size = os.fstat(h[0]).st_size
        at = 0
        while at < size:
            try:
                data = os.lseek(h[0], at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                data = size
            if os.pread(h[1], data - at, at).strip(b"\0"):
                raise Mismatch(f"SEEK_DATA of {h[3]} from {at} skips data before {data}")
            if data == size:
                break
            at = os.lseek(h[0], data, os.SEEK_HOLE)
            if at <= data:
                raise Mismatch(f"SEEK_HOLE of {h[3]} from {data} says {at}")
        self.note(f"seek {h[3]}")

    # -- names --

    def op_open(self):
        path = self.pick("file")
        if not path:
            self.op_create()
            return
        write = self.rnd.random() < 0.8
        if len(self.handles) >= 8:
            self.op_close()
        flags = os.O_RDWR if write else os.O_RDONLY
        if write and self.rnd.random() < 0.1:
            flags |= os.O_DSYNC
        fds = []
        self.both(f"open {path}", lambda k, root: fds.append(os.open(f"{root}/{path}", flags)))
        if len(fds) == 2:
            self.handles.append([fds[0], fds[1], write, path])

    def op_close(self):
        if self.handles:
            h = self.handles.pop(self.rnd.randrange(len(self.handles)))
            self.both(f"close {h[3]}", lambda k, _: os.close(h[k]))

    def op_create(self):
        path = self.fresh()
        flags = os.O_CREAT | os.O_RDWR | self.rnd.choice([0, os.O_EXCL, os.O_TRUNC])
        mode = self.rnd.choice([0o644, 0o600, 0o400])
        fds = []
        self.both(f"create {path}",
                  lambda k, root: fds.append(os.open(f"{root}/{path}", flags, mode)))
        if len(fds) == 2:
            self.handles.append([fds[0], fds[1], True, path])
            if len(self.handles) > 8:
                self.op_close()

    def op_unlink(self):
        path = self.pick("file") if self.rnd.random() < 0.8 else self.fresh()
        if path:
            self.both(f"unlink {path}", lambda _, root: os.unlink(f"{root}/{path}"))

    def op_rename(self):
        a = self.pick(self.rnd.choice(["file", "file", "dir", "link"]))
        b = self.fresh()
        flags = self.rnd.choice([0, 0, NOREPLACE])
        if a:
            self.both(f"rename {a} {b} {flags}",
                      lambda _, root: renameat2(f"{root}/{a}", f"{root}/{b}", flags))

    def op_exchange(self):
        a, b = self.pick("file"), self.pick(self.rnd.choice(["file", "dir"]))
        if a and b:
            self.both(f"exchange {a} {b}",
                      lambda _, root: renameat2(f"{root}/{a}", f"{root}/{b}", EXCHANGE))

    def op_link(self):
        a = self.pick("file")
        if a:
            b = os.path.join(os.path.dirname(a), self.rnd.choice(NAMES))
            self.both(f"link {a} {b}", lambda _, root: os.link(f"{root}/{a}", f"{root}/{b}"))

    def op_mkdir(self):
        parents = [""] + [d for d in self.paths("dir") if d.count("/") < 2]
        path = os.path.join(self.rnd.choice(parents), self.rnd.choice(DIRS))
        self.both(f"mkdir {path}", lambda _, root: os.mkdir(f"{root}/{path}"))

    def op_rmdir(self):
        path = self.pick("dir")
        if path:
            self.both(f"rmdir {path}", lambda _, root: os.rmdir(f"{root}/{path}"))

    def op_symlink(self):
        path, to = self.fresh(), self.rnd.choice(NAMES)
        self.both(f"symlink {path}", lambda _, root: os.symlink(to, f"{root}/{path}"))

    def op_chmod(self):
        path, mode = self.pick(self.rnd.choice(["file", "dir"])), self.rnd.randrange(0o10000)
        if path:
            self.both(f"chmod {path} {mode:o}",
                      lambda _, root: os.chmod(f"{root}/{path}", mode | 0o700))

    def op_utime(self):
        path, ns = self.pick("file"), self.rnd.randrange(1 << 60)
        if path:
            def call(_, root):
                os.utime(f"{root}/{path}", ns=(ns, ns + 7))
                return os.stat(f"{root}/{path}").st_mtime_ns
            self.both(f"utime {path}", call)

    # -- looking --

    def op_stat(self):
        path = self.pick(self.rnd.choice(["file", "dir", "link"]))
        if path:
            self.both(f"stat {path}", lambda _, root: attributes(f"{root}/{path}"))

    def op_list(self):
        path = self.rnd.choice([""] + self.paths("dir"))
        self.both(f"list {path}", lambda _, root: sorted(os.listdir(f"{root}/{path}")))

    def op_sync(self):
        h = self.handle()
        if h:
            self.both(f"fsync {h[3]}", lambda k, _: os.fsync(h[k]))

    def op_forget(self):
        """The kernel's copy goes, so that reads ask the daemon."""
        h = self.handle()
        if h:
            self.note(f"forget {h[3]}")
            os.fdatasync(h[0])
            os.posix_fadvise(h[0], 0, 0, os.POSIX_FADV_DONTNEED)

    def compare_all(self):
        for path in self.paths("dir") + self.paths("file") + self.paths("link"):
            self.both(f"stat {path}", lambda _, root: attributes(f"{root}/{path}"))
        for path in self.paths("file"):
            self.both(f"read {path}", lambda _, root: whole(f"{root}/{path}"))
        self.both("list", lambda _, root: sorted(os.listdir(root)))

    # -- tiering and the daemon --

    def op_tier(self):
        what = self.rnd.choice(["seal", "upload", "evict", "evict", "evict", "warm"])
        path = self.pick("file") if self.rnd.random() < 0.7 else ""
        path = f"{self.roots[0]}/{path}" if path else self.mount.root
        self.note(f"{what} {path}")
        self.mount.command(what, path)
        self.count[what] = self.count.get(what, 0) + 1

    def op_restart(self):
        how = self.rnd.choice([signal.SIGKILL, signal.SIGTERM])
        while self.handles:
            self.op_close()
        # A page of a mapping is the kernel's until it is written back; it dies with the mount.
        os.sync()
        before = self.identities()
        self.note(f"daemon {how.name}")
        self.mount.stop(how)
        self.mount.start()
        self.count[how.name] = self.count.get(how.name, 0) + 1
        after = self.identities()
        # After a kill the time of an open segment is that of its device file, which the flush of a proof
        # moves; a time set by hand must be there exactly, and is far away from that. The kernel may show the
        # time that a daemon told which was replaced since.
        slack = 5_000_000_000 if how == signal.SIGKILL or self.replaced else 0
        self.replaced = False
        for path, was in before.items():
            now = after.get(path, (0, 0))
            if now[0] != was[0] or abs(now[1] - was[1]) > slack:
                raise Mismatch(f"after {how.name} {path} is {after.get(path)}, was {was}")
        self.compare_all()

    def op_replace(self):
        """The daemon dies under the mount; open files and mappings go on with the next one."""
        if self.mount.kill_daemon():
            self.note("daemon killed under the mount")
            self.replaced = True
            self.count["replaced"] = self.count.get("replaced", 0) + 1

    def identities(self):
        out = {}
        for want in ("file", "dir", "link"):
            for path in self.paths(want):
                st = os.lstat(f"{self.roots[0]}/{path}")
                out[path] = (st.st_ino, st.st_mtime_ns)
        return out

    def run(self, ops):
        weights = [w for w, _ in self.ops]
        calls = [c for _, c in self.ops]
        for n in range(ops):
            try:
                self.rnd.choices(calls, weights)[0]()
                if n % 1000 == 999:
                    self.compare_all()
            except Exception as e:  # whatever it is, the seed and the operations are wanted
                print(f"operation {n}: {type(e).__name__}: {e}")
                for line in self.history:
                    print("   ", line)
                return n
        self.compare_all()
        return ops


def copy(src, dst, n, src_off, dst_off):
    """All of it: how much one call copies is up to the file system."""
    done = 0
    while done < n:
        got = os.copy_file_range(src, dst, n - done, src_off + done, dst_off + done)
        if got == 0:
            break
        done += got
    return done


def whole(path):
    with open(path, "rb") as f:
        return f.read()


def attributes(path):
    st = os.lstat(path)
    size = st.st_size if not stat.S_ISDIR(st.st_mode) else 0
    links = st.st_nlink if not stat.S_ISDIR(st.st_mode) else 0
    return (st.st_mode, links, size, st.st_uid, st.st_gid)


def describe(a, b):
    if not (isinstance(a, bytes) and isinstance(b, bytes)):
        return f"mount {a}, reference {b}"
    first = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return (f"lengths {len(a)} and {len(b)}, first difference at {first}: "
            f"mount {a[first:first + 16].hex()}, reference {b[first:first + 16].hex()}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--sluicefs", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    p.add_argument("--ops", type=int, default=5000)
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--trace", help="write every operation to this file")
    args = p.parse_args()
    os.umask(0o022)
    reference = os.path.join(args.work, "reference")
    os.makedirs(reference)
    mount = Mount(args.sluicefs, args.work, args.set)
    model = Model(mount, reference, args.seed)
    model.trace = open(args.trace, "w", encoding="ascii") if args.trace else None
    print(f"seed {args.seed}", flush=True)
    done = 0
    try:
        mount.start()
        os.mkdir(model.roots[0])
        done = model.run(args.ops)
    finally:
        for h in model.handles:
            os.close(h[0])
        mount.note_counters()
        if mount.process and mount.process.poll() is None:
            mount.process.terminate()
            try:
                mount.process.wait(60)
            except subprocess.TimeoutExpired:
                mount.process.kill()
        if os.path.ismount(mount.root):
            subprocess.run(["umount", "-l", mount.root], check=False)
    evicted = mount.counter("evictions_total")
    fetched = mount.counter('store_requests_total{op="get",outcome="ok"}')
    print(f"seed {args.seed}: {done} operations, {int(done < args.ops)} failed; "
          f"{model.count}; {evicted} segments evicted, {fetched} fetches")
    if done == args.ops and args.ops >= 1000 and (evicted == 0 or fetched == 0):
        print("nothing was evicted or fetched: this was no test")
        return 1
    return int(done < args.ops)


if __name__ == "__main__":
    sys.exit(main())
