"""What workers (load.py) remember of the files that they change, and the judge who compares what is there after a
cut or a kill with it.

What a worker remembers of its names (`Names`): the state that its last acknowledged fsync covers, and each
change since. After a loss of power the names are those of one moment of this history; after a kill, of its
end. Of a file's bytes (`Log`: only grows; `Any`: written anywhere): the bytes at its last acknowledged
fsync, and each change since. After a loss of power

  Log   the file is a prefix of what was written, at least as long as at its last fsync
  Any   each byte is one that was there at the last fsync or was written there since; the size is one that
        the file could have had since

and after a kill it is exactly as acknowledged. The call that was cut off may have happened or not, a
write of it in part.

Bytes are never zero and tell file and place (or write and place), so that zeros that nobody wrote and
bytes of another file or another moment are seen. The inode number, which is never used again, tells which
file a name means.
"""
import ctypes
import os
import random

PERIOD = (1 << 20) - 3
_pad = random.Random(20).randbytes(PERIOD).replace(b"\0", b"\x5a")
_PAD = _pad * 3
BIG = {"topics": 2 << 20, "broker": 1 << 20}  # a file that is longer is removed
FILES = 8
libc = ctypes.CDLL(None, use_errno=True)
PUNCH = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def stream(key, off, n):
    """n bytes of the stream `key` from `off` on."""
    out = []
    while n > 0:
        at = (key * 7919017 + off) % PERIOD
        part = min(n, 2 * PERIOD)
        out.append(_PAD[at:at + part])
        off += part
        n -= part
    return b"".join(out)


def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


class Dir:
    def __init__(self, ino):
        self.ino = ino

    def durable(self):
        pass


class Log:
    """A file that only grows: its bytes are those of its stream."""

    def __init__(self, key, ino):
        self.key, self.ino = key, ino
        self.len = self.synced = 0  # acknowledged by write, by fsync
        self.tried = 0              # asked for

    def durable(self):
        self.synced = self.len

    def adopt(self, data):
        self.len = self.synced = self.tried = len(data)

    def judge(self, got, power):
        least = self.synced if power else self.len
        if len(got) < least:
            return f"{len(got)} bytes; fsync covers {self.synced}, write {self.len}"
        if len(got) > self.tried:
            return f"{len(got)} bytes, but only {self.tried} were ever written"
        want = stream(self.key, 0, len(got))
        return differs(got, want) if got != want else None

    def expect(self, off, n):
        return stream(self.key, off, min(n, max(0, self.len - off)))


class Any:
    """A file written anywhere. A change is (kind, offset, bytes): w a write, t a truncation to the offset, z
    zeros over a length, u a write that nobody knows about."""

    def __init__(self, key, ino):
        self.key, self.ino = key, ino
        self.base = b""
        self.now = bytearray()
        self.changes = []

    def durable(self):
        if self.changes:
            self.base = bytes(self.now)
            self.changes = []

    def adopt(self, data):
        self.base, self.now, self.changes = data, bytearray(data), []

    def change(self, kind, off, what=b""):
        self.changes.append((kind, off, what))
        self.apply(self.now, kind, off, what)

    @staticmethod
    def apply(now, kind, off, what):
        if kind == "t":
            if off <= len(now):
                del now[off:]
            else:
                now.extend(bytes(off - len(now)))
        elif kind == "z":
            end = min(off + what, len(now))
            if off < end:
                now[off:end] = bytes(end - off)
        else:
            if len(now) < off:
                now.extend(bytes(off - len(now)))
            now[off:off + len(what)] = what

    def unsure(self, kind, off, what=b""):
        """The call failed: it may have happened, in part."""
        self.changes.append(("u" + kind, off, what))

    def expect(self, off, n):
        return bytes(self.now[off:off + n])

    def judge(self, got, power):
        if not power:
            now = self.now
            unsure = [c for c in self.changes if c[0][0] == "u"]
            if got == now:
                return None
            if not unsure:
                return differs(got, now)
            return self.each_byte(bytes(now), unsure, got)
        return self.each_byte(self.base, self.changes, got)

    def each_byte(self, base, changes, got):
        sizes, zeros, marks, size = [len(base)], [], {0, len(base), len(got)}, len(base)
        for kind, off, what in changes:
            was = size
            if kind[-1] == "t":
                size = off
                if off > was:
                    zeros.append((was, off))
            elif kind[-1] == "z":
                zeros.append((off, off + what))
            else:
                if off > was:
                    zeros.append((was, off))
                size = max(size, off + len(what))
                marks.add(off + len(what))
            if kind[0] == "u":
                sizes.append(was)
            marks.add(off)
            sizes.append(size)
        for a, b in zeros:
            marks |= {a, b}
        if not min(sizes) <= len(got) <= max(sizes):
            return f"{len(got)} bytes; since its last fsync it had {min(sizes)} to {max(sizes)}" + \
                self.story(base, changes)
        marks = sorted(m for m in marks if m <= len(got))
        for a, b in zip(marks, marks[1:]):
            may = [base[a:b]] if a < len(base) else []
            may += [w[a - off:b - off] for k, off, w in changes
                    if k[-1] == "w" and off <= a and b <= off + len(w)]
            if any(x <= a and b <= y for x, y in zeros):
                may.append(bytes(b - a))
            why = one_of(got[a:b], may)
            if why is not None:
                return f"{why[1]} at {a + why[0]} of {len(got)}, which nothing wrote there since the last fsync" + \
                    self.story(base, changes)
        return None

    @staticmethod
    def story(base, changes):
        told = [(k, o, len(w) if isinstance(w, bytes) else w) for k, o, w in changes]
        return f"; {len(base)} bytes at that fsync, then {told[:3]}{'...' if len(told) > 9 else ''}{told[3:][-6:]}"


def one_of(got, may):
    """None when each byte is that of one of the candidates; else (place, what)."""
    if any(got == m for m in may):
        return None
    for at in range(0, len(got), 512):
        piece = got[at:at + 512]
        if any(piece == m[at:at + 512] for m in may):
            continue
        for k, byte in enumerate(piece):
            if not any(m[at + k] == byte for m in may):
                zeros = len(got) - at - k - len(got[at + k:].lstrip(b"\0"))
                return at + k, f"{zeros} zeros" if zeros else f"byte {byte:02x}"
    return None


def differs(got, want):
    n = min(len(got), len(want))
    if got[:n] == want[:n]:
        return f"{len(got)} bytes instead of {len(want)}"
    at = next(k for k in range(0, n, 4096) if got[k:k + 4096] != want[k:k + 4096])
    at += next(k for k in range(4096) if got[at + k] != want[at + k])
    zeros = len(got) - at - len(got[at:].lstrip(b"\0"))
    return f"at {at} of {len(got)}: " + (f"{zeros} zeros" if zeros else f"byte {got[at]:02x}") + \
        f" instead of {want[at]:02x}"


class Memory:
    """What a worker knows. Picklable."""

    def __init__(self, number, profile):
        self.number, self.profile = number, profile
        self.root = f"w{number}"
        self.top = f"top{number}-"  # its files directly in the root
        self.base = {}       # name -> key, as the last fsync covers it
        self.now = {}
        self.history = []    # changes since: [(name, key or None), ...]
        self.things = {}     # key -> Dir, Log, Any
        self.next_key = number << 32
        self.ops = self.syncs = 0
        self.last = ""       # the operation under way
        self.cut_off = ()    # the change of names under way
        self.error = None    # (errno or 0, text): what ended it

    def mine(self, name):
        return name == self.root or name.startswith((self.root + "/", self.top))

    def note(self, *pairs):
        self.history.append(pairs)
        self._put(self.now, pairs)

    @staticmethod
    def _put(names, pairs):
        for name, key in pairs:
            if key is None:
                names.pop(name, None)
            else:
                names[name] = key

    def covered(self, key):
        """An fsync of `key` was acknowledged that began after everything in the history."""
        self.base = dict(self.now)
        self.history = []
        self.things[key].durable()
        self.syncs += 1

    def moments(self):
        names = dict(self.base)
        yield names
        for pairs in self.history:
            self._put(names, pairs)
            yield names

    def judge(self, there, power):
        """there: name -> (inode number, mode is a directory). (names of the moment, None) or (None, why)."""
        nearest, best = None, None
        moments = list(map(dict, self.moments())) if power else [dict(self.now)]
        for names in reversed(moments + self.maybe(moments[-1])):
            wrong = [n for n in there.keys() | names.keys() if n not in there or n not in names or
                     self.things[names[n]].ino not in (None, there[n])]
            if not wrong:
                return names, None
            if best is None or len(wrong) < best:
                best = len(wrong)
                nearest = [(n, there.get(n), self.things[names[n]].ino if n in names else None)
                           for n in sorted(wrong)[:4]]
        return None, f"names are of no moment since the last fsync ({len(self.history)} changes); nearest: {nearest}"

    def maybe(self, names):
        """The state after the call that was cut off, when that was a change of names."""
        if not self.cut_off:
            return []
        names = dict(names)
        self._put(names, self.cut_off)
        return [names]


def tree(mnt, memory):
    """name -> inode number of everything that belongs to the worker."""
    out = {}
    for e in os.scandir(mnt):
        if memory.mine(e.name):
            out[e.name] = e.inode()
    todo = [memory.root] if memory.root in out else []
    while todo:
        d = todo.pop()
        for e in os.scandir(os.path.join(mnt, d)):
            name = f"{d}/{e.name}"
            out[name] = e.inode()
            if e.is_dir(follow_symlinks=False):
                todo.append(name)
    return out


def judge(mnt, memory, power):
    """What is wrong, as a list of lines. When nothing is, the memory is as what is there, all of it durable."""
    try:
        there = tree(mnt, memory)
    except OSError as e:
        return [f"worker {memory.number}: {e}"]
    names, why = memory.judge(there, power)
    if why:
        return [f"worker {memory.number}: {why}"]
    wrong, data = [], {}
    for name, key in names.items():
        thing = memory.things[key]
        thing.ino = there[name]
        if isinstance(thing, Dir) or key in data:
            continue
        try:
            with open(os.path.join(mnt, name), "rb") as f:
                data[key] = f.read()
        except OSError as e:
            wrong.append(f"worker {memory.number}: {name}: {e}")
            continue
        why = thing.judge(data[key], power)
        if why:
            wrong.append(f"worker {memory.number}: {name} (inode {thing.ino:x}): {why}")
    if not wrong:
        memory.things = {k: memory.things[k] for k in set(names.values())}
        for key, body in data.items():
            memory.things[key].adopt(body)
        memory.now, memory.base, memory.history, memory.cut_off = dict(names), dict(names), [], ()
    return wrong
