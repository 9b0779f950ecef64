"""Programs that must not notice that the daemon behind their mount is killed or replaced.

    takeover.py storm MNT SUPERVISOR KILLS COLD_DIR LIMIT_MS   all workers below, KILLS times kill -9
    takeover.py upgrade MNT SUPERVISOR PROGRAM LIMIT_MS        writer and hot reader, PROGRAM upgrade MNT
    takeover.py broker MNT SUPERVISOR KILLS                    rewrites and a mapping, against a model
    takeover.py kill SUPERVISOR                                kill -9 of the daemon; waits for its end
    takeover.py fill FILE BYTES                                a file of records

Every worker is a process. It reports the longest time that one of its system calls took, and the first
thing that was not as promised. Exit code 0: all was as promised.
"""
import json, mmap, os, random, signal, struct, subprocess, sys, time, zlib

HEAD = struct.Struct("<QIII")


def record(seq):
    n = 64 + seq * 7919 % 4000
    body = bytes((seq + k) & 0xFF or 1 for k in range(16)) * (n // 16 + 1)
    body = body[:n]
    return HEAD.pack(seq, n, zlib.crc32(body), 0x52454343) + body


def check_records(data, first=0):
    """The number behind the last whole record; the data must be records from `first` on."""
    at, seq = 0, first
    while at < len(data):
        want = record(seq)
        got = data[at:at + len(want)]
        assert got == want[:len(got)], f"record {seq} at byte {at} is wrong"
        at += len(want)
        seq += 1
    return seq


class Clock:
    def __init__(self):
        self.worst = 0.0

    def __call__(self, fn, *args):
        began = time.monotonic()
        r = fn(*args)
        self.worst = max(self.worst, time.monotonic() - began)
        return r


# ---- the daemon ----

def daemon(sup):
    with open(f"/proc/{sup}/task/{sup}/children") as f:
        pids = f.read().split()
    for p in pids:
        try:
            if open(f"/proc/{p}/comm").read() == "sluicefs\n":
                return int(p)
        except OSError:
            pass
    return 0


def wait_for(what, seconds=10):
    end = time.monotonic() + seconds
    while True:
        r = what()
        if r:
            return r
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def kill_daemon(sup):
    pid = wait_for(lambda: daemon(sup))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: daemon(sup) not in (0, pid))


def restarts(mnt):
    return json.load(open(f"{mnt}/.sluice/status.json"))["restarts"]


# ---- workers: each runs until `going` is False, and returns what it has done ----

def appender(mnt, going, clock):
    fd = os.open(f"{mnt}/load/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    seq = 0
    while going():
        r = record(seq)
        assert clock(os.write, fd, r) == len(r), "a short write"
        seq += 1
        if seq % 512 == 0:
            os.fdatasync(fd)  # not counted: the device's time
    os.close(fd)
    data = open(f"{mnt}/load/log", "rb").read()
    assert check_records(data) == seq and data.endswith(record(seq - 1)), "the last record is cut"
    return seq


def hot_reader(mnt, going, clock):
    path = f"{mnt}/load/log"
    wait_for(lambda: os.path.exists(path))
    fd = os.open(path, os.O_RDONLY)
    n = 0
    buf, base, seq = b"", 0, 0
    while going():
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # asks the daemon, not the page cache
        got = clock(os.pread, fd, 65536, base + len(buf))
        if not got:
            time.sleep(0.001)
        buf += got
        while len(buf) >= HEAD.size and len(buf) >= len(record(seq)):
            want = record(seq)
            assert buf[:len(want)] == want, f"record {seq} is wrong"
            buf, base, seq = buf[len(want):], base + len(want), seq + 1
        n += 1
    os.close(fd)
    return n


def cold_reader(mnt, going, clock, where):
    files = sorted(os.listdir(where))
    n = 0
    while going():
        path = f"{where}/{files[n % len(files)]}"
        with open(path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            data = b""
            while True:
                got = clock(f.read, 1 << 20)
                if not got:
                    break
                data += got
        check_records(data)
        n += 1
    return n


def namer(mnt, going, clock):
    """Every call succeeds, and exactly once: what is there afterwards is what the model says."""
    d = f"{mnt}/load/names"
    os.mkdir(d)
    n = 0
    while going():
        a, b, c, s = (f"{d}/{x}{n}" for x in "abcs")
        fd = clock(os.open, a, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        assert clock(os.write, fd, b"%d" % n) > 0
        clock(os.close, fd)
        clock(os.rename, a, b)
        clock(os.link, b, a)
        assert os.stat(b).st_nlink == 2, "nlink"
        clock(os.chmod, b, 0o640)
        clock(os.unlink, a)
        clock(os.symlink, b, s)
        clock(os.mkdir, c)
        clock(os.rename, c, c + "x")
        clock(os.rmdir, c + "x")
        if n % 3 == 0:
            clock(os.unlink, s)
            clock(os.unlink, b)
        n += 1
    want = {f"{x}{k}" for k in range(n) if k % 3 for x in "bs"}
    got = set(os.listdir(d))
    assert got == want, f"names: {sorted(got ^ want)[:5]}"
    for k in range(n):
        if k % 3:
            p = f"{d}/b{k}"
            st = os.stat(p)
            assert (st.st_nlink, st.st_mode & 0o777) == (1, 0o640), (p, st)
            assert open(f"{d}/s{k}").read() == str(k), p
    return n


def lister(mnt, going, clock):
    d = f"{mnt}/load/list"
    os.mkdir(d)
    for k in range(700):
        open(f"{d}/entry-{k:04}", "w").close()
    want = sorted(f"entry-{k:04}" for k in range(700))
    n = 0
    while going():
        assert sorted(clock(os.listdir, d)) == want, "a name is missing or doubled"
        n += 1
    return n


class Workers:
    def __init__(self):
        self.stop_r, self.stop_w = os.pipe()
        self.all = []

    def start(self, fn, *args):
        r, w = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(r)
            os.close(self.stop_w)
            os.set_blocking(self.stop_r, False)
            ended = []

            def going():
                if not ended:
                    try:
                        ended.extend([1] if os.read(self.stop_r, 1) == b"" else [])
                    except BlockingIOError:
                        pass
                return not ended
            clock = Clock()
            out = {"name": fn.__name__}
            try:
                out["n"] = fn(args[0], going, clock, *args[1:])
            except BaseException as e:  # noqa: whatever it is, it is told
                out["error"] = f"{type(e).__name__}: {e} (line {e.__traceback__.tb_next.tb_lineno if e.__traceback__.tb_next else 0})"
            out["worst_ms"] = round(clock.worst * 1000)
            os.write(w, json.dumps(out).encode())
            os._exit(0)
        os.close(w)
        self.all.append((pid, r))

    def end(self):
        os.close(self.stop_w)
        outs = []
        for pid, r in self.all:
            outs.append(json.loads(open(r, "rb").read()))
            os.waitpid(pid, 0)
        return outs


def report(outs, limit_ms, limited):
    bad = False
    for o in outs:
        late = o["name"] in limited and o["worst_ms"] > limit_ms
        print(f"{o['name']}: {o.get('n', 0)} rounds, longest call {o['worst_ms']} ms"
              f"{'  TOO LONG' if late else ''}{'  ERROR ' + o['error'] if 'error' in o else ''}")
        bad |= late or "error" in o or not o.get("n")
    sys.exit(bad)


# ---- tests ----

def storm(mnt, sup, kills, cold, limit):
    os.makedirs(f"{mnt}/load", exist_ok=True)
    w = Workers()
    for fn in (appender, hot_reader, namer, lister):
        w.start(fn, mnt)
    w.start(cold_reader, mnt, cold)
    dice = random.Random(int(os.environ.get("SEED", time.time_ns())))
    before = restarts(mnt)
    for _ in range(int(kills)):
        time.sleep(dice.uniform(0.02, 0.7))
        kill_daemon(sup)
    time.sleep(0.5)
    outs = w.end()
    n = restarts(mnt) - before
    print(f"{n} restarts")
    assert n == int(kills)
    report(outs, int(limit), ("appender", "hot_reader"))


def upgrade(mnt, sup, program, limit):
    os.makedirs(f"{mnt}/load", exist_ok=True)
    if os.path.exists(f"{mnt}/load/log"):
        os.unlink(f"{mnt}/load/log")
    w = Workers()
    w.start(appender, mnt)
    w.start(hot_reader, mnt)
    time.sleep(1)
    for _ in range(3):
        old = daemon(sup)
        out = subprocess.run([program, "upgrade", mnt], stdout=subprocess.PIPE, timeout=60, text=True)
        print(out.stdout, end="")
        assert out.returncode == 0, out.returncode
        assert f"process {old} -> version" in out.stdout, out.stdout
        assert daemon(sup) != old
        time.sleep(0.5)
    report(w.end(), int(limit), ("appender", "hot_reader"))


def broker(mnt, sup, kills):
    """One process, so that a model in memory says what every byte must be."""
    dice = random.Random(int(os.environ.get("SEED", time.time_ns())))
    size = 3 << 20
    path = f"{mnt}/t/data"
    os.makedirs(f"{mnt}/t", exist_ok=True)
    if os.path.exists(path):
        os.unlink(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    model = bytearray(size)
    m = mmap.mmap(fd, size)
    pid = os.fork()
    if not pid:  # the killer
        for _ in range(int(kills)):
            time.sleep(dice.uniform(0.05, 0.4))
            kill_daemon(sup)
        os._exit(0)
    n = 0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        off = dice.randrange(size - 70000)
        data = dice.randbytes(dice.choice((10, 4096, 70000)))
        model[off:off + len(data)] = data
        if n % 3:
            assert os.pwrite(fd, data, off) == len(data)
        else:
            m[off:off + len(data)] = data
        if n % 50 == 0:
            m.flush()
        n += 1
    m.flush()
    assert bytes(m) == bytes(model), "the mapping shows something else"
    m.close()
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, size, 0) == bytes(model), "the file has something else"
    os.close(fd)
    print(f"{n} changes")
    with open(os.environ["MODEL"], "wb") as f:
        f.write(model)


def fill(path, n):
    with open(path, "wb") as f:
        seq = 0
        while f.tell() < int(n):
            f.write(record(seq))
            seq += 1


if __name__ == "__main__":
    name, *args = sys.argv[1:]
    try:
        {"storm": storm, "upgrade": upgrade, "broker": broker, "kill": kill_daemon, "fill": fill}[name](*args)
    except OSError as e:
        print(e)
        sys.exit(1)
