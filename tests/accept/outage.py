#!/usr/bin/env python3
"""The store stops answering: killed, stopped (accepts and stays silent), or gone behind a proxy.

Appends, hot reads, ls, stat, df and status go on as with the store; a cold read fails with EIO at its
deadline, its reader obeys a fatal signal at once, and reads work again when the store is back, without
a new mount. An existing volume mounts without its store and serves what is local; unmounting without
the store takes less than ten seconds.
"""
import errno
import os
import signal
import subprocess
import sys
import time

from kit import (FULL, MIB, World, check, finish, have_server, need, note, percentile, result, skip,
                 wait_for)

need()
KIND = next((k for k in ("versitygw", "seaweed") if have_server(k)), None)
if not KIND:
    skip("no S3 server is here (see tests/support/s3servers.sh)")
DEADLINE = 3
SAMPLES = 3000 if FULL else 600
# Small runs share their machine with other tests; who waited for the store would take seconds.
SLACK = 0.0005 if FULL else 0.02


def local_work(w, n):
    """What must not notice that the store is gone. Seconds of each single call, by kind."""
    times = {k: [] for k in ("append", "hot read", "ls", "stat", "df", "status")}

    def timed(kind, fn):
        began = time.monotonic()
        fn()
        times[kind].append(time.monotonic() - began)

    out = os.open(w.path("t", "hot"), os.O_WRONLY | os.O_APPEND)
    inp = os.open(w.path("t", "hot"), os.O_RDONLY)
    block = os.urandom(4096)
    for i in range(n):
        timed("append", lambda: os.write(out, block))
        timed("hot read", lambda: os.pread(inp, 4096, os.fstat(inp).st_size // 8192 * 4096))
        timed("ls", lambda: os.listdir(w.path("t")))
        timed("stat", lambda: os.stat(w.path("t", f"new{i % 50}")) if i > 60 else None)
        timed("df", lambda: os.statvfs(w.mnt))
        if i % 20 == 0:
            timed("status", w.status)
        if i < 50:
            with open(w.path("t", f"new{i}"), "ab") as f:
                f.write(block)
    os.close(out)
    os.close(inp)
    return times


def compare(what, w, with_store):
    """On a machine that others use too, one run of several must show what the file system can do."""
    best = {}
    for _ in range(5):
        for k, values in local_work(w, SAMPLES).items():
            best[k] = min(best.get(k, 1e9), percentile(values, 99))
        if all(best[k] <= 1.5 * p for k, p in with_store.items()):
            break
    for k, p in with_store.items():
        check(f"{what}: {k} goes on (p99 {best[k] * 1e3:.2f} ms, with the store {p * 1e3:.2f} ms)",
              best[k] <= max(1.5 * p, p + SLACK))


def baseline(w):
    return {k: percentile(v, 99) for k, v in local_work(w, SAMPLES).items()}


def cpu_seconds(w):
    with open(f"/proc/{w.pid()}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_cold(w, name, at=0):
    """(errno or 0, seconds) of a cold read."""
    began = time.monotonic()
    fd = os.open(w.path("t", name), os.O_RDONLY)
    try:
        got = os.pread(fd, 4096, at)
        err = 0 if len(got) == 4096 else -1
    except OSError as e:
        err = e.errno
    finally:
        os.close(fd)
    return err, time.monotonic() - began


def reader_obeys(w, what, name, at):
    p = subprocess.Popen([sys.executable, "-c",
                          "import os,sys; fd=os.open(sys.argv[1],os.O_RDONLY);"
                          "print(flush=True); os.pread(fd,4096,int(sys.argv[2]))",
                          w.path("t", name), str(at)], stdout=subprocess.PIPE)
    p.stdout.readline()
    time.sleep(0.3)
    check(f"{what}: a reader of cold bytes waits", p.poll() is None)
    began = time.monotonic()
    p.send_signal(signal.SIGKILL)
    try:
        p.wait(5)
    except subprocess.TimeoutExpired:
        pass
    took = time.monotonic() - began
    check(f"{what}: a reader that waits ends within 1 s of a fatal signal",
          took < 1 and p.returncode == -signal.SIGKILL, f"{p.returncode} after {took:.2f} s")


def outage(w, what, name, down, up, base):
    """`name` is a cold file that nobody has read yet: none of it is in the pool."""
    down()
    compare(what, w, base)
    err, took = read_cold(w, name, 8 * MIB)
    check(f"{what}: a cold read fails with EIO at its deadline",
          err == errno.EIO and DEADLINE - 0.2 < took < DEADLINE + 1.5, f"errno {err} after {took:.2f} s")
    reader_obeys(w, what, name, 12 * MIB)
    cpu, began = cpu_seconds(w), time.monotonic()
    time.sleep(2)
    used = (cpu_seconds(w) - cpu) / (time.monotonic() - began)
    check(f"{what}: nothing spins while it waits", used < 0.1, f"{used * 100:.0f} % of a processor")
    # Nothing was asked for since the cold reads ended: one that waits shows what is the matter.
    p = subprocess.Popen(["cat", w.path("t", name)], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    ill = wait_for(20, lambda: w.status()["store"]["state"] != "ok" or p.poll() is not None)
    reason = w.status()["store"]
    check(f"{what}: status tells", ill and reason["state"] in ("degraded", "down"), str(reason))
    p.kill()
    p.wait()
    r = w.tool("status", w.mnt)
    check(f"{what}: sluicefs status answers", r.returncode == 0, r.stderr)
    note(f"{what}: the store is {reason['state']}: {reason['reason']}")
    up()
    ok = wait_for(40, lambda: read_cold(w, name, 8 * MIB)[0] == 0, 0.2)
    check(f"{what}: cold reads work again without a new mount", ok)
    code, out = result(w.records("verify", w.path("t", name), "--seed", 3), 60)
    check(f"{what}: and give the right bytes", code == 0, out)


def main(w):
    w.mount()
    os.mkdir(w.path("t"))
    for name in ("cold", "colder"):
        code, out = result(w.records("write", w.path("t", name), "--seed", 3, "--bytes", 24 * MIB,
                                     "--chunk", MIB), 60)
        check(f"the {name} file is written", code == 0, out)
        r = w.tool("evict", w.path("t", name))
        check("sluicefs evict", r.returncode == 0, r.stderr)
        # Appended to just now it would be opened cached, and read without the store.
        os.utime(w.path("t", name), (time.time() - 3600, time.time() - 3600))
    with open(w.path("t", "hot"), "wb") as f:
        f.write(os.urandom(MIB))
    local_work(w, 60)                   # what happens only once is done
    base = baseline(w)
    outage(w, "stopped", "cold", lambda: w.server.signal(signal.SIGSTOP),
           lambda: w.server.signal(signal.SIGCONT), base)
    base = baseline(w)
    outage(w, "killed", "colder", w.server.kill, w.server.start, base)

    # Without the store: unmount with appends not yet uploaded, mount, read what is local.
    with open(w.path("t", "late"), "wb") as f:
        f.write(b"late" * 300000)
    w.server.signal(signal.SIGSTOP)
    with open(w.path("t", "late2"), "wb") as f:
        f.write(b"more" * 300000)
    reader = subprocess.Popen(["cat", w.path("t", "cold")], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    code, took = w.stop()
    check("silent store: the daemon stops within 10 s, exit code 0", code == 0 and took < 10,
          f"exit {code} after {took:.1f} s")
    note(f"stopped in {took:.2f} s")
    wait_for(5, lambda: reader.poll() is not None)
    check("its reader ends", reader.poll() is not None)
    began = time.monotonic()
    w.mount()
    check("silent store: an existing volume mounts", True)
    note(f"mounted in {time.monotonic() - began:.2f} s")
    with open(w.path("t", "late"), "rb") as f, open(w.path("t", "late2"), "rb") as g:
        check("what is local is served", f.read() == b"late" * 300000 and g.read() == b"more" * 300000)
    with open(w.path("t", "late"), "ab") as f:
        f.write(b"!")
    check("and appended to", os.path.getsize(w.path("t", "late")) == 1200001)
    began = time.monotonic()
    r = w.tool("umount", w.mnt, seconds=30)
    took = time.monotonic() - began
    check("silent store: sluicefs umount within 10 s", r.returncode == 0 and took < 10,
          f"exit {r.returncode} after {took:.1f} s: {r.stderr}")
    check("the daemon ends with it", w.daemon.wait(5) == 0)
    w.daemon = None
    w.server.kill()
    w.mount()
    check("dead store: an existing volume mounts", os.path.exists(w.path("t", "late2")))
    code, took = w.stop()
    check("dead store: the daemon stops within 10 s", code == 0 and took < 10, f"{code}, {took:.1f} s")
    w.log_clean()


with World(KIND, budget=512 * MIB, segment_bytes="2M", pool="16M", slice="1M",
           read_deadline=f"{DEADLINE}s") as world:
    main(world)
finish()
