#!/usr/bin/env python3
"""Tests of the loads and of the driver: test_bench.py BUILD_DIR.

Nothing here judges speed. Exit: 0, 1 a test failed, 77 everything had to be skipped.
"""
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import benchkit

BUILD = pathlib.Path(".")
RUN = pathlib.Path(__file__).resolve().parent / "run.py"
SIZE = 1 << 20


class Origin(http.server.BaseHTTPRequestHandler):
    """Answers ranges of a megabyte; /short ends too early, /no refuses."""

    protocol_version = "HTTP/1.1"
    seen = []

    def log_message(self, *args):
        pass

    def do_GET(self):
        low, high = map(int, self.headers["Range"].split("=")[1].split("-"))
        self.seen.append((self.path, low, high, self.headers.get("Authorization", "")))
        self.send_response(403 if self.path == "/no" else 206)
        length = (high - low + 1) // (2 if self.path == "/short" else 1)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(bytes(length))


class TestLoads(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="sluice-bench-test-")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)
        self.kit = benchkit.Kit(BUILD, self.dir, True, True)
        self.addCleanup(self.kit.stack.close)

    def test_appendbench_counts_what_it_wrote(self):
        out = self.kit.load("appendbench", self.dir / "f", "--size", "4K", "--bytes", "1M",
                            "--keep")
        self.assertEqual((out["ops"], out["bytes"]), (256, SIZE))
        self.assertEqual((self.dir / "f").stat().st_size, SIZE)
        self.assertLessEqual(out["p50_us"], out["p99_us"])
        out = self.kit.load("appendbench", self.dir / "g", "--size", "1K", "--seconds", "0.2",
                            "--threads", 3, "--fdatasync")
        self.assertGreater(out["ops"], 0)
        self.assertEqual([p.name for p in self.dir.iterdir() if p.name.startswith("g")], [])

    def test_appendbench_fails_when_a_file_is_there_already(self):
        (self.dir / "f").touch()
        with self.assertRaisesRegex(benchkit.Failed, "File exists"):
            self.kit.load("appendbench", self.dir / "f", "--bytes", "4K")

    def test_readbench_reads_all_of_it_in_every_way(self):
        path = self.dir / "f"
        path.write_bytes(os.urandom(SIZE))
        out = self.kit.load("readbench", "seq", path, "--block", "10000", "--repeat", 3)
        self.assertEqual(out["bytes"], 3 * SIZE)
        self.assertEqual(self.kit.load("readbench", "seq", path, "--sendfile")["bytes"], SIZE)
        out = self.kit.load("readbench", "seq", path, "--from", "512K", "--bytes", "64K")
        self.assertEqual(out["bytes"], 64 << 10)
        self.assertEqual(self.kit.load("readbench", "together", path, "--readers",
                                       5)["bytes"], 5 * SIZE)
        out = self.kit.load("readbench", "first", path, "--from", "8K", "--block", "4K")
        self.assertEqual(out["bytes"], 4096)
        out = self.kit.load("readbench", "many", path, path, "--readers", 100, "--block", "4K")
        self.assertEqual(out["reads"], 100)
        with self.assertRaises(benchkit.Failed):
            self.kit.load("readbench", "first", path, "--from", "2M")

    def rawget(self, path, *args):
        Origin.seen.clear()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        urls = self.dir / "urls"
        urls.write_text("".join(f"http://127.0.0.1:{server.server_port}{path}{i} {SIZE}\n"
                                if path == "/o" else
                                f"http://127.0.0.1:{server.server_port}{path} {SIZE}\n"
                                for i in range(2)))
        return self.kit.load("rawget", "--urls", urls, *args)

    def test_rawget_reads_the_list_once_signed_and_in_order(self):
        out = self.rawget("/o", "--range", "300K", "--inflight", 1)
        self.assertEqual((out["bytes"], out["requests"], out["errors"]), (2 * SIZE, 8, 0))
        step = 300 << 10
        want = [(f"/o{i}", at, min(at + step, SIZE) - 1) for i in range(2)
                for at in range(0, SIZE, step)]
        self.assertEqual([s[:3] for s in Origin.seen], want)
        self.assertTrue(all(s[3].startswith("AWS4-HMAC-SHA256 ") for s in Origin.seen))

    def test_rawget_keeps_to_a_rate(self):
        start = time.monotonic()
        out = self.rawget("/o", "--range", "64K", "--inflight", 8, "--rate", "2M", "--bytes", "1M")
        self.assertEqual(out["bytes"], SIZE)
        self.assertGreater(time.monotonic() - start, 0.45)

    def test_rawget_fails_on_a_refusal_and_on_a_short_answer(self):
        for path in ("/no", "/short"):
            with self.assertRaises(benchkit.Failed):
                self.rawget(path, "--range", "64K", "--inflight", 2)


class TestDriver(unittest.TestCase):
    def setUp(self):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            self.skipTest("no /dev/fuse")
        holder = tempfile.TemporaryDirectory(prefix="sluice-bench-test-")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)
        self.argv = [sys.executable, RUN, "--build", BUILD, "--work", self.dir, "--quick",
                     "--stand-in"]

    def mounts(self):
        return str(self.dir) in pathlib.Path("/proc/self/mounts").read_text()

    def test_a_run_prints_its_rows_and_leaves_nothing(self):
        out = self.dir / "out.json"
        done = subprocess.run([*self.argv, "--only", "2", "--json", out], capture_output=True,
                              text=True, timeout=90, check=False)
        self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
        result = json.loads(out.read_text())
        self.assertEqual([r["figure"] for r in result["rows"]], [2, 2, 2])
        self.assertTrue(all(r["ratio"] > 0 for r in result["rows"]))
        self.assertIn("kernel", result["machine"])
        self.assertEqual([p.name for p in self.dir.iterdir()], ["out.json"])
        self.assertFalse(self.mounts())

    def test_a_run_that_is_ended_leaves_no_mount(self):
        run = subprocess.Popen([*self.argv, "--only", "1"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not self.mounts():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 128 + signal.SIGTERM)
        self.assertFalse(self.mounts())
        self.assertEqual(list(self.dir.iterdir()), [])


class TestSignals(unittest.TestCase):
    # The signal comes while the process is being started: between fork and exec.
    SCRIPT = """if True:
        import os, pathlib, signal, sys
        import benchkit
        benchkit.exit_on_signals()
        benchkit.raise_descriptor_limit = lambda: os.kill(os.getppid(), signal.SIGTERM)
        kit = benchkit.Kit(pathlib.Path("."), pathlib.Path("."), True, True)
        with kit.stack:
            kit.start(["sleep", sys.argv[1]], os.devnull)
            print("went on")
    """

    def test_a_process_that_is_being_started_is_stopped_too(self):
        mark = f"1000.{os.getpid()}"
        done = subprocess.run([sys.executable, "-c", self.SCRIPT, mark], capture_output=True,
                              text=True, timeout=60, check=False,
                              cwd=pathlib.Path(__file__).parent)
        self.assertEqual((done.returncode, done.stdout), (128 + signal.SIGTERM, ""), done.stderr)
        left = subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], check=False,
                              stdout=subprocess.DEVNULL).returncode
        self.assertEqual(left, 1)


class TestArithmetic(unittest.TestCase):
    def test_ratio_is_the_median_of_the_ratios_of_pairs(self):
        row = benchkit.compare(1, "w", "u", [(9, 10), (12, 10), (10, 10)], 0.95)
        self.assertEqual((row["ratio"], row["low"], row["high"], row["ok"]), (1.0, 0.9, 1.2, True))
        row = benchkit.compare(1, "w", "u", [(12, 10)], 1.1, at_least=False)
        self.assertFalse(row["ok"])
        self.assertFalse(benchkit.compare(1, "w", "u", [(1, 0)], 1)["ok"])

    def test_pairs_change_who_goes_first(self):
        order = []
        pairs = benchkit.interleaved(3, lambda i: order.append("a") or i,
                                     lambda i: order.append("b") or -i)
        self.assertEqual("".join(order), "abbaab")
        self.assertEqual(pairs, [(0, 0), (1, -1), (2, -2)])


def main():
    global BUILD
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
