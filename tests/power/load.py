"""Workers that change files below a mount point, each in a directory of its own, and remember exactly what
was acknowledged (memory.py). A worker is one process with one thread; it ends at the first call that fails, and
sends its memory home through a pipe. What was acknowledged is in its memory only, which no cut and no kill touches.
"""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import random
import select
import signal
import time

from memory import BIG, FILES, PUNCH, Any, Dir, Log, differs, fallocate, stream


class Worker:
    """Runs in its own process."""

    def __init__(self, mnt, memory, seed, going):
        self.mnt, self.m, self.going = mnt, memory, going
        self.rng = random.Random(seed)
        self.fds = {}
        self.memory = os.open("/proc/self/mem", os.O_RDWR)
        self.broker = memory.profile == "broker"

    def path(self, name):
        return os.path.join(self.mnt, name)

    def new_key(self):
        self.m.next_key += 1
        return self.m.next_key

    def files(self):
        return sorted(n for n, k in self.m.now.items() if not isinstance(self.m.things[k], Dir))

    def dirs(self):
        return sorted(n for n, k in self.m.now.items() if isinstance(self.m.things[k], Dir))

    def fd(self, key, name):
        if key not in self.fds:
            if len(self.fds) >= 6:
                os.close(self.fds.pop(next(iter(self.fds))))
            flags = os.O_RDWR | (0 if self.broker else os.O_APPEND)
            self.fds[key] = os.open(self.path(name), flags)
        return self.fds[key]

    def changed(self, fn, *pairs):
        """Carries out a change of names."""
        self.m.cut_off = pairs
        r = fn()
        self.m.cut_off = ()
        self.m.note(*pairs)
        return r

    def free_name(self):
        if self.broker and self.rng.random() < 0.2:
            return f"{self.m.top}{self.rng.randrange(3)}"
        return f"{self.rng.choice(self.dirs())}/n{self.rng.randrange(40)}"

    # ---- operations; each returns at once when it does not fit ----

    def create(self):
        name = self.free_name()
        if name in self.m.now or len(self.files()) >= FILES:
            return None
        return self.create_as(name)

    def create_as(self, name):
        key = self.new_key()
        thing = self.m.things[key] = (Any if self.broker else Log)(key, None)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | (0 if self.broker else os.O_APPEND)
        fd = self.changed(lambda: os.open(self.path(name), flags, 0o600), (name, key))
        thing.ino = os.fstat(fd).st_ino
        if len(self.fds) >= 6:
            os.close(self.fds.pop(next(iter(self.fds))))
        self.fds[key] = fd
        return key

    def append(self, name=None):
        name = name or self.rng.choice(self.files() or [""])
        if not name:
            return self.create()
        key = self.m.now[name]
        f, fd = self.m.things[key], self.fd(key, name)
        n = self.rng.choice([1, 17, 200, 4096, 4096, 30000, 70000, 270000])
        if self.broker:
            return self.write(f, fd, len(f.now), n)
        body = stream(key, f.len, n)
        f.tried = f.len + n
        done = os.write(fd, body)
        f.len += done
        self.whole(done, n)
        return done

    @staticmethod
    def whole(done, n):
        """A short write: the error comes with the next one. The rest may be there or not."""
        if done < n:
            raise OSError(errno.EIO, f"short write, {done} of {n}")

    def write(self, f, fd, off, n):
        body = stream(self.new_key(), off, n)
        f.unsure("w", off, body)
        done = os.pwrite(fd, body, off)
        if done < n:
            f.change("w", off, body[:done])
            f.unsure("w", off + done, body[done:])
        self.whole(done, n)
        f.changes.pop()
        f.change("w", off, body)
        return done

    def rewrite(self):
        name = self.rng.choice(self.files() or [""])
        if not name or not self.broker:
            return self.append()
        key = self.m.now[name]
        f, fd = self.m.things[key], self.fd(key, name)
        off = self.rng.choice([self.rng.randrange(len(f.now) + 1),
                               self.rng.randrange(BIG["broker"]) // 4096 * 4096])
        return self.write(f, fd, off, self.rng.choice([1, 100, 4096, 8192, 66000]))

    def truncate(self):
        name = self.rng.choice(self.files() or [""])
        if not name or not self.broker:
            return None
        key = self.m.now[name]
        f, fd = self.m.things[key], self.fd(key, name)
        n = self.rng.choice([0, self.rng.randrange(len(f.now) + 1), len(f.now) + 5000])
        f.unsure("t", n)
        os.ftruncate(fd, n)
        f.changes.pop()
        f.change("t", n)
        return n

    def punch(self):
        name = self.rng.choice(self.files() or [""])
        if not name or not self.broker:
            return None
        key = self.m.now[name]
        f, fd = self.m.things[key], self.fd(key, name)
        off, n = self.rng.randrange(len(f.now) + 1), self.rng.choice([100, 4096, 70000])
        f.unsure("z", off, n)
        fallocate(fd, PUNCH, off, n)
        f.changes.pop()
        f.change("z", off, n)
        return n

    def store_mapped(self):
        """Through a mapping, and msync: durable as after fsync, as far as this file goes."""
        name = self.rng.choice(self.files() or [""])
        if not name or not self.broker:
            return None
        key = self.m.now[name]
        f, fd = self.m.things[key], self.fd(key, name)
        if len(f.now) < 4096:
            return None
        off = self.rng.randrange(len(f.now) - 100)
        body = stream(self.new_key(), off, self.rng.randrange(1, 100))
        f.unsure("w", off, body)
        with mmap.mmap(fd, len(f.now)) as view:
            # Not a store: a page that cannot be read any more would end this process with SIGBUS.
            start = ctypes.addressof(ctypes.c_char.from_buffer(view))
            os.pwrite(self.memory, body, start + off)
            view.flush()
        f.changes.pop()
        f.change("w", off, body)
        self.m.covered(key)
        return len(body)

    def sync(self):
        name = self.rng.choice(self.files() or [""])
        if not name:
            return None
        return self.sync_name(name, os.fsync if self.rng.random() < 0.5 else os.fdatasync)

    def sync_name(self, name, how=os.fsync):
        key = self.m.now[name]
        how(self.fd(key, name))
        self.m.covered(key)
        return 0

    def sync_dir(self):
        name = self.rng.choice(self.dirs())
        fd = os.open(self.path(name), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.m.covered(self.m.now[name])
        return 0

    def dsync_append(self):
        name = self.rng.choice(self.files() or [""])
        if not name or self.broker:
            return None
        key = self.m.now[name]
        f = self.m.things[key]
        body = stream(key, f.len, self.rng.choice([64, 5000]))
        fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
        try:
            f.tried = f.len + len(body)
            done = os.write(fd, body)
            f.len += done
            self.whole(done, len(body))
        finally:
            os.close(fd)
        self.m.covered(key)
        return len(body)

    def replace(self):
        """As programs write a checkpoint: a new file, fsync, rename over the old one, at times fsync of
        the directory."""
        name, tmp = f"{self.m.top}check", f"{self.m.top}tmp"
        if not self.broker:
            name, tmp = f"{self.m.root}/check", f"{self.m.root}/tmp"
        if tmp not in self.m.now:
            self.create_as(tmp)
        self.append(tmp)
        self.sync_name(tmp)
        key = self.m.now[tmp]
        self.changed(lambda: os.rename(self.path(tmp), self.path(name)), (tmp, None), (name, key))
        if self.rng.random() < 0.3:
            self.sync_name(name)
        return 0

    def rename(self):
        name, new = self.rng.choice(self.files() or [""]), self.free_name()
        if not name or name == new or self.m.now.get(new) == self.m.now[name]:
            return None
        if new in self.m.now and isinstance(self.m.things[self.m.now[new]], Dir):
            return None
        key = self.m.now[name]
        if name.split("/")[0] != new.split("/")[0] and list(self.m.now.values()).count(key) > 1:
            return None  # its other name would be in another topic: EXDEV
        return self.changed(lambda: os.rename(self.path(name), self.path(new)), (name, None), (new, key))

    def link(self):
        name, new = self.rng.choice(self.files() or [""]), self.free_name()
        if not name or new in self.m.now or len(self.files()) >= FILES or \
                name.split("/")[0] != new.split("/")[0]:
            return None
        return self.changed(lambda: os.link(self.path(name), self.path(new)), (new, self.m.now[name]))

    def unlink(self, name=None):
        name = name or self.rng.choice(self.files() or [""])
        if not name:
            return None
        return self.changed(lambda: os.unlink(self.path(name)), (name, None))

    def make_dir(self):
        name = f"{self.m.root}/d{self.rng.randrange(4)}"
        if name in self.m.now:
            if any(n.startswith(name + "/") for n in self.m.now):
                return None
            return self.changed(lambda: os.rmdir(self.path(name)), (name, None))
        key = self.new_key()
        self.m.things[key] = Dir(None)
        self.changed(lambda: os.mkdir(self.path(name)), (name, key))
        self.m.things[key].ino = os.stat(self.path(name)).st_ino
        return 0

    def look(self):
        name = self.rng.choice(self.files() or [""])
        if not name:
            return None
        key = self.m.now[name]
        f = self.m.things[key]
        size = len(f.now) if self.broker else f.len
        off, n = self.rng.randrange(size + 1), self.rng.choice([100, 5000, 300000])
        fd = os.open(self.path(name), os.O_RDONLY)
        try:
            got = os.pread(fd, n, off)
            while len(got) < n:  # shorter before an error, or at the end
                more = os.pread(fd, n - len(got), off + len(got))
                if not more:
                    break
                got += more
        finally:
            os.close(fd)
        want = f.expect(off, n)
        if got != want:
            raise AssertionError(f"{name} from {off}: {differs(got, want)}")
        return len(got)

    def run(self):
        ops = {self.append: 30, self.rewrite: 12, self.sync: 9, self.create: 9, self.rename: 4, self.unlink: 3,
               self.look: 14, self.replace: 3, self.link: 1, self.make_dir: 2, self.sync_dir: 2,
               self.dsync_append: 3, self.truncate: 3, self.punch: 2, self.store_mapped: 2}
        calls, weights = list(ops), list(ops.values())
        # Some lives hardly ever ask for a flush: much is then under way when the power goes.
        if self.rng.random() < 0.4:
            weights = [w * (0.1 if c in (self.sync, self.sync_dir, self.replace, self.dsync_append,
                                         self.store_mapped) else 1) for c, w in zip(calls, weights)]
        while self.going():
            call = self.rng.choices(calls, weights)[0]
            self.m.last = call.__name__
            if call() is not None:
                self.m.ops += 1
            big = [n for n in self.files() if self.size(n) > BIG[self.m.profile]]
            if big:
                self.m.last = "unlink"
                self.unlink(big[0])

    def size(self, name):
        f = self.m.things[self.m.now[name]]
        return len(f.now) if self.broker else f.len

    def close(self):
        for fd in self.fds.values():
            with contextlib.suppress(OSError):
                os.close(fd)


# How a call may fail whose disk or daemon has just gone.
GONE = {errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.EROFS, errno.ENODEV}


class Workers:
    """The workers of one life of the mount."""

    def __init__(self, mnt, memories, seed):
        self.all = []
        self.stop_r, self.stop_w = os.pipe()
        for m in memories:
            r, w = os.pipe()
            fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20)
            pid = os.fork()
            if not pid:
                self._child(mnt, m, f"{seed}/{m.number}", w)
            os.close(w)
            self.all.append((pid, r))

    def _child(self, mnt, m, seed, out):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self.stop_r, select.POLLHUP | select.POLLIN)
        w = Worker(mnt, m, seed, lambda: not poll.poll(0))
        m.error = None
        m.cut_off = ()
        try:
            w.run()
        except OSError as e:
            m.error = (e.errno, f"{m.last}: {e}")
        except BaseException as e:  # noqa: BLE001 - told at home
            m.error = (0, f"{m.last}: {type(e).__name__}: {e}")
        w.close()
        data = pickle.dumps(m)
        while data:
            data = data[os.write(out, data):]
        os._exit(0)

    @staticmethod
    def has_ended(worker):
        poll = select.poll()
        poll.register(worker[1], select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))

    def end(self, seconds=20):
        """Their memories, in order; None for one that does not come home."""
        if not self.all:
            return []
        os.write(self.stop_w, b"x")  # closing does not do: others inherited it
        end = time.monotonic() + seconds
        out = []
        for pid, r in self.all:
            data = []
            poll = select.poll()
            poll.register(r, select.POLLIN | select.POLLHUP)
            while True:
                if not poll.poll(max(0, (end - time.monotonic()) * 1000)):
                    out.append(None)
                    os.kill(pid, signal.SIGKILL)
                    break
                piece = os.read(r, 1 << 20)
                if not piece:
                    out.append(pickle.loads(b"".join(data)) if data else None)
                    os.waitpid(pid, 0)
                    break
                data.append(piece)
            os.close(r)
        os.close(self.stop_w)
        os.close(self.stop_r)
        self.all = []
        return out
