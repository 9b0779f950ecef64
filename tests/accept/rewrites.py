#!/usr/bin/env python3
"""Broker profile: files are overwritten, cut, extended, renamed and removed while tiering moves them away
and brings them back, and the daemon is killed in between. A model in memory knows every byte that was
acknowledged; each file is compared with it after each kill, and parts of them all the time.

Everything is sealed after a moment and evicted at once, so that most writes meet segments that are
sealed, uploaded or only in the store.
"""
import contextlib
import os
import random
import time

from kit import FULL, KIB, MIB, World, check, files_under, finish, need, note, wait_for

need()
ROUNDS = int(os.environ.get("ACCEPT_ROUNDS", 60 if FULL else 12))
OPS = 120
SEED = int(os.environ.get("ACCEPT_SEED", 1))
rng = random.Random(SEED)
note(f"seed {SEED}")
LIMIT = 3 * MIB
history = []


class Files:
    def __init__(self, w):
        self.w = w
        self.bytes = {}
        self.n = 0

    def name(self):
        return rng.choice(sorted(self.bytes)) if self.bytes else self.create()

    def create(self):
        self.n += 1
        name = f"d{self.n % 3}/f{self.n}"
        os.close(os.open(self.w.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self.bytes[name] = bytearray()
        return name

    def write(self, name):
        have = self.bytes[name]
        off = rng.choice([len(have), rng.randrange(len(have) + 1), rng.randrange(LIMIT),
                          rng.randrange(LIMIT) // 4096 * 4096])
        body = rng.randbytes(rng.choice([1, 100, 4096, 65536, 300000]))
        fd = os.open(self.w.path(name), os.O_RDWR)
        try:
            done = os.pwrite(fd, body, off)
        finally:
            os.close(fd)
        if len(have) < off:
            have.extend(bytes(off - len(have)))
        have[off:off + done] = body[:done]
        return f"pwrite {name} {off} {done}"

    def truncate(self, name):
        have = self.bytes[name]
        n = rng.choice([0, rng.randrange(len(have) + 1), rng.randrange(LIMIT)])
        os.truncate(self.w.path(name), n)
        if n <= len(have):
            del have[n:]
        else:
            have.extend(bytes(n - len(have)))
        return f"truncate {name} {n}"

    def rename(self, name):
        self.n += 1
        new = f"d{self.n % 3}/r{self.n}"
        if rng.random() < 0.3 and len(self.bytes) > 1:
            new = rng.choice([n for n in sorted(self.bytes) if n != name])
        os.rename(self.w.path(name), self.w.path(new))
        self.bytes[new] = self.bytes.pop(name)
        return f"rename {name} {new}"

    def unlink(self, name):
        os.unlink(self.w.path(name))
        del self.bytes[name]
        return f"unlink {name}"

    def sync(self, name):
        fd = os.open(self.w.path(name), os.O_RDWR)
        os.fsync(fd)
        os.close(fd)
        return f"fsync {name}"

    def look(self, name):
        """None, or what is wrong with a part of the file."""
        have = self.bytes[name]
        off = rng.randrange(len(have) + 1)
        n = rng.choice([100, 70000, 600000])
        with open(self.w.path(name), "rb", 0) as f:
            got = os.pread(f.fileno(), n, off)
        return self.differs(name, got, bytes(have[off:off + n]), off)

    def differs(self, name, got, want, off=0):
        if got == want:
            return None
        at = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        ops = [h for h in history if name in h][-12:]
        return f"{name} differs at {off + at}: {len(got)} bytes, wanted {len(want)}; last: {ops}"

    def compare_all(self):
        wrong = []
        there = {os.path.relpath(p, self.w.mnt) for p in files_under(self.w.mnt)}
        if there != set(self.bytes):
            wrong.append(f"names differ: {sorted(there ^ set(self.bytes))[:5]}")
        for name in sorted(self.bytes):
            try:
                with open(self.w.path(name), "rb") as f:
                    why = self.differs(name, f.read(), bytes(self.bytes[name]))
            except OSError as e:
                why = f"{name}: {e}"
            if why:
                wrong.append(why)
        return wrong


def step(files):
    kind = rng.choices(["write", "truncate", "rename", "unlink", "create", "sync", "look"],
                       [50, 8, 4, 2, 5, 6, 25])[0]
    if kind == "create":
        if len(files.bytes) < 12:
            history.append(f"create {files.create()}")
        return None
    name = files.name()
    if kind == "look":
        return files.look(name)
    history.append(getattr(files, kind)(name))
    return None


def main(w):
    w.mount()
    for k in range(3):
        os.mkdir(w.path(f"d{k}"))
    files = Files(w)
    wrong, slow, evicted = [], [0, ""], 0
    for n in range(ROUNDS):
        for _ in range(OPS):
            began = time.monotonic()
            try:
                why = step(files)
            except OSError as e:
                why = f"operation failed: {e}; last {history[-1:]}"
            took = time.monotonic() - began
            if took > slow[0]:
                slow[:] = [took, history[-1] if history else ""]
            if why:
                wrong.append(why)
                break
            if rng.random() < 0.02:
                time.sleep(rng.uniform(0.05, 0.3))      # tiering gets its turn
        history.append(f"kill {n}")
        if wrong:
            break
        evicted += w.metrics().get("evictions_total", 0)
        w.kill()
        w.mount(local_age=rng.choice(["0s", "300ms", "1s", "2s"]))
        wrong += files.compare_all()
        if wrong:
            break
    check(f"{ROUNDS} rounds of {OPS} operations and a kill: every byte is as acknowledged", not wrong,
          "; ".join(wrong[:2]))
    if wrong:
        return
    m = w.metrics()
    check("meanwhile segments left the device", evicted > 0)
    note(f"slowest operation: {slow[0]:.2f} s, near {slow[1]}")
    note(f"since the last mount: {m.get('evictions_total', 0):.0f} segments evicted")
    # By hand: small files that are rewritten are sealed by age at most once a minute.
    up = w.tool("upload", w.mnt)
    check("everything can be uploaded", up.returncode == 0, up.stderr.strip())
    check("all queues run empty", wait_for(60, w.drained, 0.1), str(w.status()["queues"]))
    wrong = files.compare_all()
    check("the files are right when everything has settled", not wrong, "; ".join(wrong[:2]))
    objects = [p for p in files_under(w.store_dir) if "/segments/" in p]
    check("the bucket holds one object for each segment",
          wait_for(20, lambda: len([p for p in files_under(w.store_dir) if "/segments/" in p]) ==
                   w.status()["segments"]["committed"] + w.status()["segments"]["remote"], 0.2),
          f"{len(objects)} objects, {w.status()['segments']}")
    code, _ = w.stop()
    check("the daemon stops with exit code 0", code == 0, str(code))
    w.log_clean()


with contextlib.ExitStack() as stack:
    world = stack.enter_context(World(budget=64 * MIB, profile="broker", segment_bytes="512K",
                                      pool="16M", seal_age="300ms", local_age="1s", mirror_below="0",
                                      delete_delay="1s", flush_interval="100ms",
                                      manifest_delay="50ms"))
    main(world)
finish()
