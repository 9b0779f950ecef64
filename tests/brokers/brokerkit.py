"""What the checks of real brokers share, on top of ../accept/kit.py.

Broker   a world (mount, state, device, store) with a server in it: starts it and waits for its own
         "ready" line, ends it with SIGTERM or SIGKILL, moves everything to the store while it is down,
         and adds up the mount's counters over remounts.
record   record number i: its number, then bytes that follow from it, so that each byte can be checked.
Churn    seals, uploads and evicts everything at random while the server works.
Every wait has a generous deadline; nothing depends on how fast the machine is.
"""
import contextlib
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "accept"))
from kit import FULL, KIB, MIB, World, check, du, files_under, finish, need, note, residue, wait_for  # noqa: E402

SEED = int(os.environ.get("BROKERS_SEED", 1))
COUNTED = {"uploads": 'uploads_total{outcome="ok"}', "stale": 'uploads_total{outcome="stale"}',
           "evictions": "evictions_total", "damaged": "damaged_blocks_total",
           "fetched": 'cache_fetched_bytes_total{kind="demand"}',
           "ahead": 'cache_fetched_bytes_total{kind="readahead"}',
           "gets": 'store_requests_total{op="get",outcome="ok"}'}
BEGAN = time.monotonic()


class Failed(Exception):
    """The check cannot go on; the reason is its text."""


def step(text):
    note(f"{time.monotonic() - BEGAN:6.1f} s  {text}")


def record(i):
    """Mostly small, every tenth of some KiB: servers keep large ones elsewhere."""
    n = 20 + i * 7919 % 3000 + (5000 if i % 10 == 0 else 0)
    return b"%08d " % i + hashlib.shake_128(b"%d" % i).digest(n)


def number(data):
    return int(data[:8])


def all_there(what, got, n):
    """got are records in any order; each of 0..n-1 must be among them, byte for byte."""
    seen = bytearray(n)
    wrong = []
    for data in got:
        data = bytes(data)
        i = number(data) if data[:8].isdigit() else -1
        if not 0 <= i < n or data != record(i):
            wrong.append(i)
        else:
            seen[i] = 1
    lost = n - sum(seen)
    check(f"{what}: all {n} acknowledged records, byte for byte", not wrong and not lost,
          f"{lost} lost, first {seen.find(0)}; {len(wrong)} differ, first {wrong[:1]}")
    if wrong or lost:
        raise Failed(what)


def free_port(count=1):
    """The first of so many free ports in a row on the loopback address."""
    for _ in range(1000):
        base = random.randrange(20000, 30000)
        try:
            for k in range(count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", base + k))
            return base
        except OSError:
            continue
    raise Failed("no free port")


class Proc:
    """A server in a session of its own, its output in a file."""

    def __init__(self, argv, log, ready, env=None, seconds=300):
        self.log = log
        self.began = os.path.getsize(log) if os.path.exists(log) else 0
        self.name = os.path.basename(argv[0])
        start = time.monotonic()
        with open(log, "ab") as out:
            self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      env={**os.environ, **(env or {})}, start_new_session=True)
        for pattern in [ready] if isinstance(ready, str) else ready:
            self.wait_line(pattern, seconds)
        step(f"{self.name} is ready after {time.monotonic() - start:.1f} s")

    def output(self):
        """What it said since this start."""
        with open(self.log, errors="replace") as f:
            f.seek(self.began)
            return f.read()

    def wait_line(self, pattern, seconds=300):
        rx = re.compile(pattern)
        wait_for(seconds, lambda: rx.search(self.output()) or self.p.poll() is not None)
        if not rx.search(self.output()):
            tail = "\n".join(self.output().splitlines()[-15:])
            raise Failed(f"{self.name} does not say {pattern!r} (exit {self.p.poll()}):\n{tail}")

    def kill(self):
        if self.p.poll() is None:
            os.killpg(self.p.pid, signal.SIGKILL)
            self.p.wait()

    def stop(self, seconds=120):
        self.p.terminate()
        try:
            return self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} does not end within {seconds} s of SIGTERM") from None


class Broker(World):
    """directory: the server's data directory in the mount; "" is the mount's root."""

    def __init__(self, directory="data", budget=1024 * MIB, **settings):
        small = {"segment_bytes": "64K", "mirror_below": "0", "seal_age": "1s", "local_age": "2s",
                 "delete_delay": "1s", "manifest_delay": "50ms", "pool": "32M"}
        super().__init__(store=os.environ.get("BROKERS_STORE") or "dir", budget=budget, profile="broker", **{**small, **settings})
        self.run = self.outside("run")
        os.mkdir(self.run)
        self.data = self.path(directory) if directory else self.mnt
        self.server_log = os.path.join(self.run, "server.log")
        self.proc = None
        self.before = dict.fromkeys(COUNTED, 0)
        self.mark = dict(self.before)

    def mount(self, seconds=60, **settings):
        super().mount(seconds, **settings)
        os.makedirs(self.data, exist_ok=True)

    def start(self, argv, ready, env=None):
        self.proc = Proc(argv, self.server_log, ready, env)
        return self.proc

    # ---- counters ----

    def counters(self):
        """Since the first mount; a daemon that was killed has lost those of its last moments."""
        m = self.metrics()
        return {k: self.before[k] + int(m.get(name, 0)) for k, name in COUNTED.items()}

    def forget_pages(self):
        """The kernel drops its pages of the mount's files, so that reads come to the daemon."""
        for p in files_under(self.mnt):
            with contextlib.suppress(FileNotFoundError):  # a running broker renames and removes
                fd = os.open(p, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    # ---- while the server is down ----

    def remount(self, kill=True):
        """The daemon is killed too, or stopped, and comes back; its pool of slices is empty then."""
        self.before = self.counters()
        if kill:
            self.kill()
        else:
            code, took = self.stop(60)
            check("the mount stops with exit code 0", code == 0, f"{code} after {took:.1f} s")
        self.mount()
        step(f"the daemon was {'killed' if kill else 'stopped'}, the volume is mounted again")

    def all_to_store(self, what):
        """Evicts everything, and sees to it that nothing is left anywhere else."""
        r = self.tool("evict", self.mnt, seconds=1200)
        check(f"{what}: everything can be evicted", r.returncode == 0, r.stderr.strip())
        cold = wait_for(120, lambda: self.status()["bytes"]["local"] == 0, 0.1)
        s = self.status()
        left = {k: v for k, v in s["segments"].items() if k != "remote" and v}
        check(f"{what}: {s['segments']['remote']} segments, {s['bytes']['remote']} bytes, all only in "
              "the store", cold and not left and s["segments"]["remote"] > 0, f"{s['bytes']}, {left}")
        self.forget_pages()
        pages = residue(self.mnt)
        check(f"{what}: nor is any of it in the page cache", pages == 0, pages)
        self.mark = self.counters()

    def came_back(self, what, least):
        """At least so many bytes were fetched since all_to_store."""
        now = self.counters()
        got = now["fetched"] + now["ahead"] - self.mark["fetched"] - self.mark["ahead"]
        check(f"{what}: {got} bytes came from the store", got >= least, f"at least {least} expected")

    # ---- the end ----

    def used(self, uploads, evictions):
        """It was no test of tiering otherwise."""
        c = self.counters()
        note("segments uploaded: {uploads}, written to meanwhile: {stale}, evicted: {evictions}, "
             "fetches: {gets}".format(**c))
        check(f"at least {uploads} segments were uploaded", c["uploads"] >= uploads, c["uploads"])
        check(f"at least {evictions} segments were evicted", c["evictions"] >= evictions, c["evictions"])
        check("no block was damaged", c["damaged"] == 0, c["damaged"])

    def server_log_clean(self, bad, known="^$"):
        with open(self.server_log, errors="replace") as f:
            lines = [x.rstrip() for x in f if re.search(bad, x) and not re.search(known, x)]
        check("the server's log has no error", not lines, "\n".join(lines[:10]))

    def end(self, known="^$"):
        """known: lines of the daemon's log that belong to the check."""
        code, took = self.stop(60)
        check("the daemon stops with exit code 0", code == 0, f"{code} after {took:.1f} s")
        self.log_clean()
        bad = [x for x in self.log_text().splitlines()
               if re.match(r"\S+ (err|error|warn|warning) ", x) and not re.search(known, x)]
        check("the daemon's log has no error and no warning", not bad, "\n".join(bad[:10]))

    def close(self):
        if self.proc and not self.closed:
            self.proc.kill()
        super().close()

    def __exit__(self, *exc):
        if exc[0] and os.path.exists(self.server_log):
            with open(self.server_log, errors="replace") as f:
                print("--- end of the server's log\n" + "".join(f.readlines()[-25:]))
        return super().__exit__(*exc)


class Churn:
    """`with Churn(w):` the tiering commands in random order on everything, one after the other."""

    def __init__(self, w, seed=SEED):
        self.w, self.rng = w, random.Random(seed)
        self.over = threading.Event()
        self.done = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.over.is_set():
            self.w.tool(self.rng.choice(["seal", "upload", "evict", "evict"]), self.w.mnt, seconds=300)
            self.done += 1
            self.over.wait(self.rng.random() / 3)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.thread.join(300)
        if not exc[0]:
            check(f"{self.done} commands of tiering ran meanwhile", self.done > 0)


def run(main, known="^$", **world):
    """The whole of a check: main(world) in a world that is taken down whatever happens."""
    need()
    with Broker(**world) as w:
        try:
            w.mount()
            main(w)
            w.end(known)
        except Failed as e:
            check("the check went to its end", False, str(e))
    finish()
