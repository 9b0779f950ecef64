"""What the acceptance checks share: a world of its own for each check (mount point, state, device,
store, server), and the count of what passed.

SLUICEFS and TOOLS name the program under test and the folder of records, residue and lagproxy. Every
wait has a deadline. A world ends what it started and removes what it made, whatever happens.
"""
import atexit
import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(os.path.dirname(HERE), "support")
FULL = "--full" in sys.argv
SLUICEFS = os.environ.get("SLUICEFS", "")
TOOLS = os.environ.get("TOOLS", "")
BAD_LOG = re.compile(r"Assertion|Sanitizer|runtime error|double free|corrupted")

passed = failed = 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # a time limit: worlds are still taken down


def skip(why):
    print("SKIP:", why)
    sys.exit(1 if failed else 77)


def check(name, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
        print(f"ok: {name}", flush=True)
    else:
        failed += 1
        detail = str(detail)[:1500]
        print(f"FAIL: {name}: {detail}" if detail else f"FAIL: {name}", flush=True)
    return ok


def note(text):
    print("  ", text, flush=True)


def finish():
    if not passed + failed:
        skip("nothing of it can be checked here")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def need():
    """Ends the check as skipped when something that every check uses is not there."""
    if not SLUICEFS or not os.access(SLUICEFS, os.X_OK):
        sys.exit("SLUICEFS does not name the program")
    for tool in ("records", "residue", "lagproxy"):
        if not os.access(os.path.join(TOOLS, tool), os.X_OK):
            sys.exit(f"TOOLS has no {tool}")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("no access to /dev/fuse")
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        skip("neither root nor fusermount3")


def wait_for(seconds, fn, step=0.02):
    """The first true value of fn, or its last one when the time is over."""
    end = time.monotonic() + seconds
    while True:
        got = fn()
        if got or time.monotonic() > end:
            return got
        time.sleep(step)


def size(n):
    return f"{n / MIB:.1f} MiB"


def du(path):
    """Bytes allocated to the files under a directory that changes meanwhile."""
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for e in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):
                if e.is_dir(follow_symlinks=False):
                    total += du(e.path)
                elif e.is_file(follow_symlinks=False):
                    total += e.stat(follow_symlinks=False).st_blocks * 512
    return total


def files_under(path):
    return [os.path.join(d, f) for d, _, names in os.walk(path) for f in names]


def snapshot(path):
    """Everything about a tree that a refused command must leave alone."""
    out = {}
    for d, dirs, names in os.walk(path):
        for n in dirs + names:
            p = os.path.join(d, n)
            st = os.lstat(p)
            body = b""
            if os.path.isfile(p) and not os.path.islink(p) and st.st_size < MIB:
                with contextlib.suppress(PermissionError), open(p, "rb") as f:
                    body = f.read()
            out[os.path.relpath(p, path)] = (st.st_mode, st.st_size, body)
    return out


def residue(*paths):
    """Bytes of the files under the paths that are in the page cache."""
    r = subprocess.run([os.path.join(TOOLS, "residue"), *paths], capture_output=True, text=True,
                       timeout=60)
    return json.loads(r.stdout)["bytes"]


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] if values else 0.0


class Ack:
    """The ack file of `records write`: a mapping, so that what was promised survives every kill."""

    def __init__(self, path):
        self.path = path

    def _get(self, at):
        try:
            with open(self.path, "rb") as f:
                m = mmap.mmap(f.fileno(), 32, prot=mmap.PROT_READ)
        except (FileNotFoundError, ValueError):
            return 0
        with m:
            return struct.unpack_from("<Q", m, at)[0]

    acked = property(lambda self: self._get(8))
    synced = property(lambda self: self._get(16))
    done = property(lambda self: self._get(24) == 1)


class Server:
    """A real S3 server on an empty directory of its own, with the bucket `bucket`."""

    def __init__(self, kind, world_dir):
        self.kind = kind
        self.dir = os.path.join(world_dir, kind)
        os.mkdir(self.dir)
        self.port = None
        self.start()
        r = self._bash(f"S3_ENDPOINT={self.endpoint}; make_bucket bucket")
        if r.returncode:
            self.kill()
            raise RuntimeError(f"{kind}: no bucket: {r.stderr}")

    def _bash(self, text):
        script = f". {SUPPORT}/s3servers.sh; {text}"
        with open(os.path.join(self.dir, "start.out"), "w+") as out:
            r = subprocess.run(["bash", "-c", script], stdout=out, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, timeout=400, start_new_session=True)
            out.seek(0)
            r.stdout = r.stderr = out.read()
        return r

    def start(self):
        r = self._bash(f"start_{self.kind} {self.dir} {self.port or ''}; r=$?; "
                       'echo "R=$r $S3_PID $S3_PORT $S3_ENDPOINT"; [ $r = 77 ] && echo "$S3_SKIP"; '
                       "exit $r")
        if r.returncode == 77:
            skip(r.stdout.strip().splitlines()[-1])
        m = re.search(r"R=0 (\d+) (\d+) (\S+)", r.stdout)
        if not m:
            raise RuntimeError(f"{self.kind} did not start: {r.stdout}")
        self.pid, self.port, self.endpoint = int(m[1]), int(m[2]), m[3]

    def signal(self, sig):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, sig)

    def kill(self):
        self.signal(signal.SIGKILL)
        wait_for(5, lambda: not os.path.exists(f"/proc/{self.pid}"))


def have_server(kind):
    find = {"seaweed": "find_weed", "versitygw": "find_versitygw"}[kind]
    r = subprocess.run(["bash", "-c", f". {SUPPORT}/s3servers.sh; {find}"],
                       capture_output=True, timeout=400)
    return r.returncode == 0


def stores():
    """The kinds of store to run against: the directory store, and the servers that are here."""
    kinds = [k for k in (os.environ.get("ACCEPT_STORES") or "dir,seaweed,versitygw").split(",") if k]
    out = []
    for k in kinds:
        if k == "dir" or have_server(k):
            out.append(k)
        else:
            note(f"{k} is not here: left out")
    if not out:
        skip(f"none of {', '.join(kinds)} is here (see tests/support/s3servers.sh)")
    return out


class World:
    def __init__(self, store="dir", budget=64 * MIB, endpoint=None, **settings):
        self.w = tempfile.mkdtemp(prefix="sluice-accept.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.mnt = os.path.join(self.w, "mnt")
        self.log = os.path.join(self.w, "log")
        self.device = os.path.join(self.w, "device")
        self.state = os.path.join(self.w, "state")
        self.store_dir = os.path.join(self.w, "store")
        self.budget = budget
        self.settings = settings
        self.daemon = None
        self.served = None, None
        self.children = []
        self.server = None
        self.env = dict(os.environ)
        self.closed = False
        os.mkdir(self.mnt)
        os.mkdir(self.store_dir)
        atexit.register(self.close)
        if store == "dir":
            self.url = f"dir://{self.store_dir}"
        else:
            self.server = Server(store, self.w)
            self.use_endpoint(endpoint or self.server.endpoint)
        self.env.update(AWS_ACCESS_KEY_ID="testkey", AWS_SECRET_ACCESS_KEY="testsecret",
                        AWS_EC2_METADATA_DISABLED="true")

    def use_endpoint(self, endpoint):
        self.url = f"s3://bucket/v?endpoint={endpoint}&region=us-east-1"

    def path(self, *names):
        return os.path.join(self.mnt, *names)

    def outside(self, *names):
        return os.path.join(self.w, *names)

    # ---- the daemon ----

    def command(self, **settings):
        all_settings = {**self.settings, **settings}
        cmd = [SLUICEFS, "mount", "--state", self.state, "--device",
               f"{self.device}={self.budget}", "--store", self.url]
        for k, v in all_settings.items():
            cmd += ["--set", f"{k}={v}"]
        return cmd + ["-f", self.mnt]

    def mounted(self):
        with open("/proc/self/mounts") as f:
            return f" {self.mnt} fuse.sluicefs " in f.read()

    def mount(self, seconds=30, **settings):
        self.log_from = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(self.command(**settings), stdout=log, stderr=log,
                                           stdin=subprocess.DEVNULL, env=self.env)

        def up():
            if self.daemon.poll() is not None:
                return True
            return self.mounted() and os.path.isdir(self.path(".sluice"))
        wait_for(seconds, up, 0.005)
        if self.daemon.poll() is not None or not self.mounted():
            code = self.daemon.poll()
            raise RuntimeError(f"the mount did not come up (exit {code}): {self.log_tail()}")

    def log_text(self):
        with contextlib.suppress(FileNotFoundError), open(self.log, errors="replace") as f:
            return f.read()
        return ""

    def log_tail(self, n=15):
        return "\n".join(self.log_text().splitlines()[-n:])

    def kill(self):
        """As after a crash: the daemon is gone at once, then its dead mount."""
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = None
        self.detach()

    def detach(self):
        for _ in range(5):
            if not self.mounted():
                return
            if subprocess.run(["umount", "-l", self.mnt], capture_output=True).returncode:
                subprocess.run(["fusermount3", "-u", "-z", self.mnt], capture_output=True)

    def stop(self, seconds=30):
        """SIGTERM. Returns (exit code or None when it did not end, seconds)."""
        began = time.monotonic()
        self.daemon.terminate()
        try:
            code = self.daemon.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            self.daemon.kill()
            self.daemon.wait()
        self.daemon = None
        took = time.monotonic() - began
        self.detach()
        return code, took

    def alive(self):
        return self.daemon is not None and self.daemon.poll() is None

    def status(self):
        with open(self.path(".sluice", "status.json")) as f:
            return json.load(f)

    def metrics(self):
        out = {}
        with open(self.path(".sluice", "stats")) as f:
            for line in f:
                if not line.startswith("#") and " " in line:
                    k, v = line.rsplit(" ", 1)
                    out[k.removeprefix("sluicefs_")] = float(v)
        return out

    def pid(self):
        """The process that serves the mount: a child of the one we started, where that supervises it."""
        if self.served[0] != self.daemon.pid:
            self.served = self.daemon.pid, self.status()["pid"]
        return self.served[1]

    def daemon_pid(self):
        """The daemon below its supervisor, asked of the kernel; 0 while there is none."""
        with contextlib.suppress(OSError), open(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children") as f:
            for pid in f.read().split():
                with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as c:
                    if c.read().strip() == "sluicefs":
                        return int(pid)
        return 0

    def sanitized(self):
        """Built with a sanitizer, whose own memory is most of it."""
        with open(SLUICEFS, "rb") as f:
            return re.search(rb"__[at]san_init", f.read()) is not None

    def memory(self):
        """Bytes of anonymous and shared memory of the daemon."""
        with open(f"/proc/{self.pid()}/status") as f:
            m = dict(re.findall(r"^(\w+):\s+(\d+) kB", f.read(), re.M))
        return (int(m["RssAnon"]) + int(m["RssShmem"])) * KIB

    def drained(self):
        """All bytes committed to the store, and nothing waits in a queue."""
        s = self.status()
        q = s["queues"]
        return s["bytes"]["pending_upload"] == 0 and \
            not any(q[k] for k in ("upload", "uploading", "manifest", "delete", "unlink"))

    def cold(self):
        return self.drained() and self.status()["bytes"]["local"] == 0

    def tool(self, *args, seconds=300):
        return subprocess.run([SLUICEFS, *args], capture_output=True, text=True, timeout=seconds,
                              env=self.env, stdin=subprocess.DEVNULL)

    def drop_kernel_cache(self):
        """The kernel forgets the pages of the mount (and of everything else)."""
        if os.geteuid() == 0:
            with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("1")

    # ---- the tools ----

    def records(self, *args, **kw):
        p = subprocess.Popen([os.path.join(TOOLS, "records"), *map(str, args)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             stdin=subprocess.DEVNULL, **kw)
        self.children.append(p)
        return p

    def log_clean(self, name="the daemon's log has no failed assertion and no sanitizer report"):
        bad = [x for x in self.log_text().splitlines() if BAD_LOG.search(x)]
        check(name, not bad, "\n".join(bad[:10]))

    def close(self):
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        for p in self.children:
            if p.poll() is None:
                p.kill()
                p.wait()
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
        self.detach()
        if self.server:
            self.server.signal(signal.SIGCONT)
            self.server.kill()
        if failed:
            print("--- end of the daemon's log")
            print(self.log_tail(30))
        keep = os.environ.get("ACCEPT_KEEP")
        if keep:
            print("kept:", self.w)
        elif not self.mounted():
            shutil.rmtree(self.w, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0]:
            check("no exception", False, repr(exc[1])[:500])
        self.close()


def result(p, seconds=120):
    """(exit code, output) of a process; it is killed when it takes longer."""
    try:
        out, _ = p.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        out, _ = p.communicate()
        return None, out
    return p.returncode, (out or "").strip()


class Sampler:
    """Calls a function every `step` seconds on a thread of its own until it is stopped."""

    def __init__(self, fn, step=0.05):
        self.fn, self.step = fn, step
        self.ended = threading.Event()
        self.error = None
        self.good = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.ended.is_set():
            try:
                self.fn()
                self.good += 1
            except Exception as e:  # noqa: BLE001 - shown by stop(); a daemon may be away for a moment
                self.error = e
            self.ended.wait(self.step)

    def stop(self):
        self.ended.set()
        self.thread.join(10)
        check("the samples could be taken", self.good > 0, str(self.error))
