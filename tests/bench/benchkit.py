"""What the figures are measured with: processes, mounts, the store behind its proxy, and ratios.

Everything that is started is stopped again by its process id, also after an error or a signal, and
every wait has a deadline. A figure that cannot be measured here raises Skip with the reason; a
program that fails or is late raises Failed.
"""
import contextlib
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import statistics
import subprocess
import threading
import time

KEY, SECRET, BUCKET = "testkey", "testsecret", "bench"
HERE = pathlib.Path(__file__).resolve().parent
SUPPORT = HERE.parent / "support"
MIB = 1 << 20


class Skip(Exception):
    """The figure cannot be measured on this machine; the text says why."""


class Failed(Exception):
    """A program failed or took too long; the text says which and what it said."""


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Failed(f"no JSON in the output: {text[-200:]!r}")


def tail(path, size=800):
    try:
        return pathlib.Path(path).read_text(errors="replace")[-size:]
    except OSError:
        return ""


def raise_descriptor_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_for(what, check, timeout, process=None, log=None):
    deadline = time.monotonic() + timeout
    while True:
        value = check()
        if value:
            return value
        if process is not None and process.poll() is not None:
            raise Failed(f"{what}: ended with {process.returncode}: {tail(log) if log else ''}")
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {timeout} s: {tail(log) if log else ''}")
        time.sleep(0.02)


def process_tree(pid):
    """The process and all below it."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(
                    int(entry.name))
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, []))
    return found


def cpu_seconds(pid):
    ticks = 0
    for one in process_tree(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid):
    """RssAnon + RssShmem of the process and all below it."""
    total = 0
    for one in process_tree(pid):
        with contextlib.suppress(OSError):
            text = pathlib.Path(f"/proc/{one}/status").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", text,
                                                      re.M)) * 1024
    return total


class PeakMemory:
    """Samples a process at 20 Hz between enter and exit; VmHWM would count file pages too."""

    def __init__(self, pid):
        self.pid, self.first, self.peak = pid, rss_bytes(pid), 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, rss_bytes(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.peak = max(self.peak, rss_bytes(self.pid))
        self.stop.set()
        self.thread.join()


class Signals:
    """A signal ends the program as an exception, but not while a process is being started: what
    exists then is not in the list of what has to be stopped yet."""

    held, pending = 0, None


def exit_on_signals():
    def leave(number, _):
        if Signals.held:
            Signals.pending = number
        else:
            raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


@contextlib.contextmanager
def signals_later():
    Signals.held += 1
    try:
        yield
    finally:
        Signals.held -= 1
    if Signals.pending and not Signals.held:
        raise SystemExit(128 + Signals.pending)


class Kit:
    """Tools, the work directory and everything that runs."""

    def __init__(self, build, work, quick, stand_in):
        self.build, self.work, self.quick, self.stand_in = build, work, quick, stand_in
        self.stack = contextlib.ExitStack()
        self.env = dict(os.environ, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
        self.names = 0
        self.server_port = self.server_pid = None
        self.store_reason = None

    def tool(self, name):
        for folder in ("", "tests/support", "tests/bench", "tools"):
            path = self.build / folder / name
            if path.is_file() and os.access(path, os.X_OK):
                return path
        raise Skip(f"{name} is not built in {self.build}")

    def fresh(self, name):
        self.names += 1
        path = self.work / f"{self.names:02d}-{name}"
        path.mkdir()
        return path

    def start(self, argv, log):
        with open(log, "ab") as out, signals_later():
            process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=out, env=self.env,
                                       preexec_fn=raise_descriptor_limit)
            self.stack.callback(self.stop, process)
        return process

    @staticmethod
    def stop(process, timeout=15):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode

    def run(self, argv, timeout=300):
        """Runs a program to its end and returns what it printed."""
        argv = [str(a) for a in argv]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout,
                                  env=self.env, check=False, stdin=subprocess.DEVNULL,
                                  preexec_fn=raise_descriptor_limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(argv[:3])}: not done within {timeout} s") from None
        if done.returncode != 0:
            raise Failed(f"{' '.join(argv[:3])}: exit {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def load(self, name, *args, timeout=300):
        return last_json(self.run([self.tool(name), *args], timeout))

    def server(self):
        """Starts the store once; its port. The shell that holds it ends it when we are gone."""
        if self.store_reason:
            raise Skip(self.store_reason)
        if self.server_port:
            return self.server_port
        script = SUPPORT / "s3servers.sh"
        if not script.exists():
            self.store_reason = "tests/support/s3servers.sh is missing"
            raise Skip(self.store_reason)
        reasons = []
        for kind in ("versitygw", "seaweed"):
            folder = self.fresh(kind)
            with signals_later():
                shell = subprocess.Popen(
                    ["bash", "-c", f'. "$1"; start_{kind} "$2" ||'
                     ' { echo "skip ${S3_SKIP:-failed}"; exit 1; };'
                     ' make_bucket "$3" >/dev/null || { echo "skip no bucket"; exit 1; };'
                     ' echo "up $S3_PORT $S3_PID"; read -r _; stop_server "$S3_PID"',
                     "store", str(script), str(folder), BUCKET],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    text=True, start_new_session=True)
                self.stack.callback(self.stop_server, shell)
            line = shell.stdout.readline().split(maxsplit=1)
            if line and line[0] == "up":
                self.server_port, self.server_pid = (int(v) for v in line[1].split())
                return self.server_port
            reasons.append(line[1].strip() if len(line) > 1 else f"{kind} did not start")
            self.stop_server(shell)
        self.store_reason = "; ".join(reasons)
        raise Skip(self.store_reason)

    @staticmethod
    def stop_server(shell):
        with contextlib.suppress(OSError, ValueError):
            shell.stdin.close()  # The shell reads its end from this; a second call finds it gone.
        try:
            shell.wait(20)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait()
        shell.stdout.close()

    def proxy(self, median=70, p999=120):
        return Proxy(self, median, p999)

    def mount(self, name, **kw):
        kind = StandIn if self.stand_in else Mount
        return kind(self, name, **kw)


class Proxy:
    """The store seen through injected latency. Its log is the outside count of requests."""

    def __init__(self, kit, median, p999):
        folder = kit.fresh("proxy")
        self.log = folder / "requests"
        self.process = kit.start([kit.tool("lagproxy"), "--upstream",
                                  f"127.0.0.1:{kit.server()}", "--median", median, "--p999", p999,
                                  "--log", self.log], folder / "out")

        def port():
            found = re.search(r"^listening \S+:(\d+)$", tail(folder / "out"), re.M)
            return found and int(found.group(1))

        self.endpoint = f"http://127.0.0.1:{wait_for('lagproxy', port, 10, self.process)}"

    def url(self, prefix):
        return (f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"
                "&addressing=path")

    def position(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def requests(self, since=0):
        """(method, path, range, status, bytes, ms, first_ms) of every request since a position."""
        out = []
        with open(self.log, encoding="utf-8", errors="replace") as f:
            f.seek(since)
            for line in f:
                part = line.split()
                if len(part) >= 7:
                    out.append((part[0], part[1], part[2], int(part[3]), int(part[4]),
                                float(part[5]), float(part[6])))
        return out


def take_away(mnt):
    """Takes away a mount whose process is gone without having done it, or was killed."""
    listed = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    if any(line.split()[1] == str(mnt) for line in listed):
        subprocess.run(["umount", "-l", mnt], check=False, timeout=30)


class Mount:
    """A SluiceFS volume of its own: state, device, bucket prefix and mount point."""

    cold = True

    def __init__(self, kit, name, proxy=None, pool="256M", device_size="32G", settings=None,
                 profile="topics"):
        self.kit, self.name, self.proxy, self.pool = kit, name, proxy, pool
        self.folder = kit.fresh(name)
        self.mnt, self.device, self.state = (self.folder / d for d in ("mnt", "device", "state"))
        for path in (self.mnt, self.device, self.state):
            path.mkdir()
        self.log = self.folder / "log"
        self.device_size, self.settings = device_size, dict(settings or {})
        self.profile = profile
        self.process = None
        if proxy:
            self.url = proxy.url(self.folder.name)
        else:
            (self.folder / "store").mkdir()
            self.url = f"dir://{self.folder}/store"

    def argv(self):
        config = self.folder / "sluicefs.conf"
        config.write_text("[volume]\n" + "".join(f"{k} = {v}\n" for k, v in self.settings.items()))
        return [self.kit.tool("sluicefs"), "mount", "--config", config, "--state", self.state,
                "--device", f"{self.device}={self.device_size}", "--store", self.url,
                "--pool", self.pool, "--profile", self.profile, "-f", self.mnt]

    def __enter__(self):
        outside = os.stat(self.folder).st_dev
        self.process = self.kit.start(self.argv(), self.log)
        wait_for(f"mount {self.name}", lambda: os.stat(self.mnt).st_dev != outside, 30,
                 self.process, self.log)
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            with contextlib.suppress(Failed):
                self.umount()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kit.stop(self.process)
        take_away(self.mnt)

    def umount(self):
        self.kit.run([self.kit.tool("sluicefs"), "umount", self.mnt], 120)

    def again(self, pool=None, **settings):
        """The same volume, mounted anew: nothing is left in the pool or the page cache."""
        self.__exit__()
        self.pool = pool or self.pool
        self.settings.update(settings)
        return self.__enter__()

    def upload(self, *paths):
        self.kit.run([self.kit.tool("sluicefs"), "upload", *paths], 900)

    def evict(self, *paths):
        self.kit.run([self.kit.tool("sluicefs"), "evict", *paths], 300)

    def stats(self, name, **labels):
        """The sum of all values of a metric whose labels fit; None when there is none."""
        try:
            text = (self.mnt / ".sluice/stats").read_text()
        except OSError:
            return None
        total = None
        for line in text.splitlines():
            found = re.fullmatch(r"(?:sluicefs_)?(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found.group(1) == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', found.group(2) or ""))
                if all(have.get(k) == v for k, v in labels.items()):
                    total = (total or 0) + float(found.group(3))
        return total

    def write_cold(self, names, size):
        """Files of known content that are in the store only. Their paths."""
        paths = []
        for seed, name in enumerate(names, 1):
            path = self.mnt / name
            path.parent.mkdir(exist_ok=True)
            self.kit.run([self.kit.tool("records"), "write", path, "--seed", seed, "--bytes", size,
                          "--chunk", "1M"])
            paths.append(path)
        self.upload(*paths)
        self.evict(*paths)
        drop_cache(paths)
        return paths

    def objects(self):
        """(path in the bucket, bytes) of the segments read so far, from the proxy's log."""
        seen = {}
        for method, path, span, _, _, _, _ in self.proxy.requests():
            if method == "GET" and "/segments/" in path and span.startswith("bytes="):
                high = span.rpartition("-")[2]
                if high.isdigit():
                    seen[path] = max(seen.get(path, 0), int(high) + 1)
        return sorted(seen.items())


class StandIn(Mount):
    """A bare pass-through in place of SluiceFS: tries the driver and nothing else."""

    cold = False

    def argv(self):
        return [self.kit.tool("barefuse"), self.device, self.mnt]

    def umount(self):
        self.process.terminate()

    def upload(self, *paths):
        pass

    def evict(self, *paths):
        drop_cache(self.device / p.relative_to(self.mnt) for p in paths)

    def stats(self, name, **labels):
        return None

    def objects(self):
        return []


@contextlib.contextmanager
def bare_mount(kit):
    """The floor: a bare FUSE pass-through on the same file system. Yields its mount point."""
    folder = kit.fresh("bare")
    (folder / "source").mkdir()
    (folder / "mnt").mkdir()
    process = kit.start([kit.tool("barefuse"), folder / "source", folder / "mnt"], folder / "log")
    try:
        wait_for("barefuse", lambda: "ready" in tail(folder / "log"), 10, process, folder / "log")
        yield folder / "mnt"
    finally:
        kit.stop(process)
        take_away(folder / "mnt")


def drop_cache(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def count_read_requests(kit, mount, argv):
    """Runs a load; (its JSON, FUSE READ requests of this mount meanwhile or None)."""
    argv = [str(a) for a in argv]
    if not shutil.which("perf"):
        return last_json(kit.run(argv)), None
    out = kit.fresh("perf") / "count"
    minor = os.minor(os.stat(mount.mnt).st_dev)
    text = kit.run(["perf", "stat", "-x", ",", "-o", out, "-a", "-e", "fuse:fuse_request_send",
                    "--filter", f"opcode == 15 && connection == {minor}", "--", *argv])
    found = re.search(r"^(\d+),", out.read_text(), re.M)
    return last_json(text), int(found.group(1)) if found else None


def interleaved(pairs, ours, floor):
    """Runs both in turns (A B, B A, A B...); the list of (ours, floor)."""
    out = []
    for i in range(pairs):
        first = ours(i) if i % 2 == 0 else None
        second = floor(i)
        out.append((first if i % 2 == 0 else ours(i), second))
    return out


def compare(figure, what, unit, pairs, reach, at_least=True, note=""):
    """A row from pairs of numbers: medians, and median and range of the ratios of the pairs."""
    ratios = [a / b for a, b in pairs if b]
    row = {"figure": figure, "what": what, "unit": unit, "reach": reach, "at_least": at_least,
           "ours": statistics.median(a for a, _ in pairs),
           "floor": statistics.median(b for _, b in pairs),
           "pairs": pairs, "note": note}
    if ratios:
        row.update(ratio=statistics.median(ratios), low=min(ratios), high=max(ratios))
        row["ok"] = row["ratio"] >= reach if at_least else row["ratio"] <= reach
    else:
        row.update(ok=False, note=f"{note} the floor is 0".strip())
    return row


def bound(figure, what, unit, value, reach, note=""):
    """A row for a number that must not be above `reach`."""
    return {"figure": figure, "what": what, "unit": unit, "ours": value, "reach": reach,
            "at_least": False, "ok": value <= reach, "note": note}


def machine():
    def ask(*argv):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
            return (done.stdout or done.stderr).strip()
        except OSError:
            return ""

    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    fuse = ask("pkg-config", "--modversion", "fuse3") or ask("fusermount3", "--version")
    return {"cpu": cpu.group(1) if cpu else platform.machine(), "cores": os.cpu_count(),
            "memory_mib": int(memory.group(1)) // 1024 if memory else None,
            "kernel": platform.release(), "libfuse": fuse.rpartition(" ")[2],
            "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
            "load": os.getloadavg(),
            "commit": ask("git", "-C", str(HERE), "describe", "--always", "--dirty")}
