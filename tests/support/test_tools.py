#!/usr/bin/env python3
"""Tests of the test tools: test_tools.py BUILD_DIR_OF_TOOLS [barefuse|lagproxy|records|residue].

Exit: 0, 1 a test failed, 77 everything that was asked for had to be skipped.
"""
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOOLS = pathlib.Path(".")
TIMEOUT = 60
# SHA-256 of the first MiB of the stream of seed 7.
GOLDEN_SEED_7 = "e3392d73e45c1da5bc2a8c7240fe31acd52cfa1692790208f9fa5fb0c527c25c"


def tool(name, *args, **kw):
    kw.setdefault("timeout", TIMEOUT)
    return subprocess.run([TOOLS / name, *map(str, args)], capture_output=True, check=False, **kw)


class Workdir(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="sluice-tools-")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)


class TestRecords(Workdir):
    def records(self, *args, want=0):
        done = tool("records", *args)
        self.assertEqual(done.returncode, want, done.stderr)
        return done.stdout

    def test_stream_stays_the_same_for_ever(self):
        stream = self.records("gen", "--seed", 7, "--bytes", "1M")
        self.assertEqual(len(stream), 1 << 20)
        self.assertEqual(stream[:4], b"SLRC")
        self.assertEqual(hashlib.sha256(stream).hexdigest(), GOLDEN_SEED_7)
        self.assertEqual(self.records("gen", "--seed", 7, "--bytes", "1K", "--from", 777777),
                         stream[777777:777777 + 1024])

    def test_written_file_is_the_stream_and_its_counters_are_true(self):
        file, ack = self.dir / "f", self.dir / "ack"
        self.records("write", file, "--seed", 3, "--bytes", 300001, "--ack", ack, "--sync", 4)
        self.assertEqual(file.read_bytes(), self.records("gen", "--seed", 3, "--bytes", 300001))
        self.records("verify", file, "--seed", 3, "--bytes", 300001, "--ack", ack, "--synced")
        self.records("verify", file, "--seed", 3, "--from", 100, "--length", 5000)
        self.records("verify", file, "--seed", 3, "--bytes", 300002, want=1)
        self.records("verify", file, "--seed", 4, want=1)

    def test_resume_continues_a_cut_record_and_refuses_lost_bytes(self):
        file, ack = self.dir / "f", self.dir / "ack"
        self.records("write", file, "--seed", 5, "--bytes", 100003, "--ack", ack)
        self.records("write", file, "--seed", 5, "--bytes", 200000, "--ack", ack, "--resume",
                     "--chunk", "64K")
        self.records("verify", file, "--seed", 5, "--bytes", 200000, "--ack", ack)
        os.truncate(file, 199999)
        self.records("verify", file, "--seed", 5, "--ack", ack, want=1)
        self.records("write", file, "--seed", 5, "--bytes", 300000, "--ack", ack, "--resume",
                     want=1)

    def test_one_zero_byte_is_found_and_named(self):
        file = self.dir / "f"
        self.records("write", file, "--seed", 9, "--bytes", 90000)
        with open(file, "r+b") as f:
            f.seek(54321)
            self.assertNotEqual(f.read(1), b"\0")
            f.seek(54321)
            f.write(b"\0")
        for command in (("verify", file), ("follow", file, "--until", 90000)):
            done = tool("records", *command, "--seed", 9)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"offset 54321 ", done.stderr)

    def test_follower_keeps_up_with_a_writer_that_is_killed_and_resumed(self):
        file, ack = self.dir / "f", self.dir / "ack"
        follow = subprocess.Popen([TOOLS / "records", "follow", file, "--seed", "2", "--until-ack",
                                   ack, "--strict-ack", "--timeout", "30"],
                                  stdout=subprocess.DEVNULL)
        write = [TOOLS / "records", "write", file, "--seed", "2", "--bytes", "4M", "--ack", ack,
                 "--rate", "8M", "--resume"]
        with subprocess.Popen(write) as first:
            deadline = time.monotonic() + 20
            while not (file.exists() and file.stat().st_size > 1 << 20):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)
            first.send_signal(signal.SIGKILL)
        self.assertEqual(subprocess.run(write, timeout=TIMEOUT, check=False).returncode, 0)
        self.assertEqual(follow.wait(TIMEOUT), 0)
        self.records("verify", file, "--seed", 2, "--bytes", "4M", "--ack", ack)

    def test_follower_gives_up_when_nothing_comes(self):
        file = self.dir / "f"
        self.records("write", file, "--seed", 1, "--bytes", 1000)
        self.records("follow", file, "--seed", 1, "--until", 2000, "--timeout", "0.2", want=4)


class TestResidue(Workdir):
    def count(self, *args):
        done = tool("residue", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_counts_what_was_read_and_nothing_after_it_was_dropped(self):
        (self.dir / "sub").mkdir()
        for name in ("a", "sub/b \"quoted\""):
            with open(self.dir / name, "wb") as f:
                f.write(bytes(1 << 20))
                f.flush()
                os.fsync(f.fileno())
        for args in ((), ("--mincore",)):
            both = self.count(*args, self.dir, self.dir / "a")
            self.assertEqual([p["bytes"] for p in both["paths"]], [2 << 20, 1 << 20])
            self.assertEqual(both["files"], 3)
        with open(self.dir / "a", "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        fs_type = subprocess.run(["stat", "-f", "-c", "%T", self.dir], capture_output=True,
                                 check=True, text=True).stdout.strip()
        if fs_type != "tmpfs":
            self.assertEqual(self.count(self.dir / "a")["bytes"], 0)
        self.assertEqual(self.count(self.dir / "sub")["bytes"], 1 << 20)

    def test_names_what_is_missing(self):
        self.assertEqual(tool("residue", self.dir / "none").returncode, 1)


class TestBarefuse(Workdir):
    def setUp(self):
        super().setUp()
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            self.skipTest("no /dev/fuse")
        self.source, self.mnt = self.dir / "source", self.dir / "mnt"
        self.source.mkdir()
        self.mnt.mkdir()
        self.daemon = subprocess.Popen([TOOLS / "barefuse", self.source, self.mnt],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.stop)
        if self.daemon.stdout.readline() != b"ready\n":
            self.skipTest(f"cannot mount: {self.daemon.stderr.read()}")

    def stop(self):
        self.daemon.terminate()
        try:
            self.daemon.wait(10)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
            subprocess.run(["fusermount3", "-uz", self.mnt], check=False)
        self.daemon.stdout.close()
        self.daemon.stderr.close()

    def test_files_and_names_behave(self):
        file = self.mnt / "f"
        with open(file, "ab") as f:
            f.write(b"one ")
        with open(file, "ab") as f:
            f.write(b"two")
            f.flush()
            os.fsync(f.fileno())
        self.assertEqual(file.read_bytes(), b"one two")
        self.assertEqual((self.source / "f").read_bytes(), b"one two")
        (self.mnt / "d").mkdir()
        os.rename(file, self.mnt / "d/g")
        os.chmod(self.mnt / "d/g", 0o600)
        os.utime(self.mnt / "d/g", (1, 2))
        os.truncate(self.mnt / "d/g", 3)
        st = os.stat(self.mnt / "d/g")
        self.assertEqual((st.st_size, st.st_mode & 0o777), (3, 0o600))
        self.assertEqual(sorted(p.name for p in self.mnt.iterdir()), ["d"])
        self.assertEqual((self.mnt / "d/g").read_bytes(), b"one")
        with open(self.mnt / "d/g", "wb") as f:
            f.write(b"new")
        self.assertEqual((self.mnt / "d/g").read_bytes(), b"new")
        os.unlink(self.mnt / "d/g")
        with self.assertRaises(FileNotFoundError):
            os.stat(self.mnt / "d/g")
        self.assertGreater(os.statvfs(self.mnt).f_blocks, 0)
        with self.assertRaises(OSError):
            os.getxattr(self.mnt / "d", "user.x")

    def test_many_names_are_listed_once_each(self):
        names = {f"file-{i:04d}" for i in range(1500)}
        for name in names:
            (self.mnt / name).touch()
        listed = [p.name for p in self.mnt.iterdir()]
        self.assertEqual(sorted(listed), sorted(names))

    def test_records_written_through_it_are_right(self):
        self.assertEqual(tool("records", "write", self.mnt / "r", "--seed", 1, "--bytes", "8M",
                              "--sync", 200).returncode, 0)
        self.assertEqual(tool("records", "verify", self.mnt / "r", "--seed", 1, "--bytes",
                              "8M").returncode, 0)
        self.assertEqual(tool("records", "verify", self.source / "r", "--seed", 1, "--bytes",
                              "8M").returncode, 0)


class Origin(http.server.BaseHTTPRequestHandler):
    """A server with every way to end an answer."""

    protocol_version = "HTTP/1.1"
    data = bytes(range(256)) * 16384

    def log_message(self, *args):
        pass

    def answer(self, status, body, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self.answer(200, b"", ("Content-Length", str(len(self.data))))

    def do_GET(self):
        if self.path == "/chunked":
            parts = (self.data[:10], self.data[:300000], self.data[:1])
            body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
            self.answer(200, body + b"0\r\n\r\n", ("Transfer-Encoding", "chunked"))
        elif self.path == "/close":
            self.answer(200, self.data[:500000], ("Connection", "close"))
            self.close_connection = True
        elif self.path == "/204":
            self.answer(204, b"")
        elif self.path == "/host":
            host = self.headers["Host"].encode()
            self.answer(200, host, ("Content-Length", str(len(host))))
        elif self.headers.get("Range"):
            low, high = map(int, self.headers["Range"].split("=")[1].split("-"))
            body = self.data[low:high + 1]
            self.answer(206, body, ("Content-Length", str(len(body))))
        else:
            self.answer(200, self.data, ("Content-Length", str(len(self.data))))

    def do_PUT(self):
        got = self.rfile.read(int(self.headers["Content-Length"]))
        text = hashlib.sha256(got).hexdigest().encode()
        self.answer(200, text, ("Content-Length", str(len(text))))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Clients that go away in the middle are part of the tests."""


class TestLagproxy(Workdir):
    def start(self, *args):
        server = Server(("127.0.0.1", 0), Origin)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.log = self.dir / "log"
        self.proxy = subprocess.Popen([TOOLS / "lagproxy", "--upstream",
                                       f"127.0.0.1:{server.server_port}", "--log", self.log, *args],
                                      stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop)
        self.port = int(self.proxy.stdout.readline().split(":")[1])

    def stop(self):
        self.proxy.terminate()
        self.proxy.communicate(timeout=10)

    def client(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(c.close)
        return c

    def get(self, client, path, method="GET", body=None, **headers):
        client.request(method, path, body=body, headers=headers)
        start = time.monotonic()
        answer = client.getresponse()
        first = time.monotonic() - start
        return answer.status, answer.read(), first

    def log_lines(self, count):
        deadline = time.monotonic() + 10
        while True:
            lines = self.log.read_text().splitlines()
            if len(lines) >= count or time.monotonic() > deadline:
                return lines
            time.sleep(0.01)

    def test_every_kind_of_answer_passes_whole_over_one_connection(self):
        self.start("--median", "5", "--p999", "6")
        c, data = self.client(), Origin.data
        self.assertEqual(self.get(c, "/")[:2], (200, data))
        self.assertEqual(self.get(c, "/", Range="bytes=5-99")[:2], (206, data[5:100]))
        self.assertEqual(self.get(c, "/chunked")[1], data[:10] + data[:300000] + data[:1])
        self.assertEqual(self.get(c, "/x", "HEAD")[:2], (200, b""))
        self.assertEqual(self.get(c, "/204")[:2], (204, b""))
        self.assertEqual(self.get(c, "/host")[1], f"127.0.0.1:{self.port}".encode())
        want = hashlib.sha256(data).hexdigest().encode()
        self.assertEqual(self.get(c, "/put?a=b", "PUT", data)[1], want)
        self.assertEqual(self.get(c, "/close")[1], data[:500000])
        lines = [line.split() for line in self.log_lines(8)]
        self.assertEqual([x[:5] for x in lines], [
            ["GET", "/", "-", "200", str(len(data))],
            ["GET", "/", "bytes=5-99", "206", "95"],
            ["GET", "/chunked", "-", "200", "300011"],
            ["HEAD", "/x", "-", "200", "0"],
            ["GET", "/204", "-", "204", "0"],
            ["GET", "/host", "-", "200", str(len(f"127.0.0.1:{self.port}"))],
            ["PUT", "/put?a=b", "-", "200", "64"],
            ["GET", "/close", "-", "200", "500000"],
        ])

    def test_100_continue_passes_at_once_and_the_final_answer_waits(self):
        self.start("--median", "150", "--p999", "151")
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as s:
            s.sendall(b"PUT /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                      b"Expect: 100-continue\r\n\r\n")
            start = time.monotonic()
            self.assertIn(b" 100 ", s.recv(100))
            self.assertLess(time.monotonic() - start, 0.14)
            s.sendall(b"abc")
            start = time.monotonic()
            self.assertIn(b" 200 ", s.recv(1000))
            self.assertGreater(time.monotonic() - start, 0.14)

    def test_pipelined_requests_are_answered_in_order_each_after_its_own_delay(self):
        self.start("--median", "100", "--p999", "101")
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as s:
            start = time.monotonic()
            s.sendall(b"GET /204 HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
            got = b""
            while got.count(b"HTTP/1.1 204") < 20:
                part = s.recv(4096)
                self.assertTrue(part)
                got += part
            self.assertGreater(time.monotonic() - start, 0.095)
            self.assertLess(time.monotonic() - start, 1.0)

    def test_delay_is_drawn_per_request_from_the_distribution(self):
        self.start("--median", "20", "--p999", "40", "--seed", "3")

        def run():
            c = self.client()
            for _ in range(40):
                self.get(c, "/", Range="bytes=0-9")

        threads = [threading.Thread(target=run) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        first = sorted(float(line.split()[6]) for line in self.log_lines(640))
        self.assertEqual(len(first), 640)
        self.assertAlmostEqual(first[320], 20, delta=3)
        self.assertGreater(first[600], 26)
        self.assertLess(first[600], 40)
        self.assertLess(first[20], 17)

    def test_bandwidth_is_shared_by_all_connections(self):
        self.start("--median", "0", "--bandwidth", str(20 << 20))
        start = time.monotonic()
        threads = [threading.Thread(target=lambda: self.get(self.client(), "/"))
                   for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertAlmostEqual(time.monotonic() - start, 0.8, delta=0.35)

    def test_what_a_client_gives_up_is_logged_as_cut(self):
        self.start("--median", "5000", "--p999", "5001")
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as s:
            s.sendall(b"GET /given-up HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.1)  # Long enough to arrive, far from being answered.
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line = self.log_lines(1)[0].split()
        self.assertEqual((line[1], line[4], line[-1]), ("/given-up", "0", "cut"))

    def test_server_that_is_gone_is_a_closed_connection(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.proxy = subprocess.Popen([TOOLS / "lagproxy", "--upstream", f"127.0.0.1:{port}"],
                                      stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop)
        self.port = int(self.proxy.stdout.readline().split(":")[1])
        with self.assertRaises((ConnectionError, http.client.RemoteDisconnected)):
            self.get(self.client(), "/")


def main():
    global TOOLS
    TOOLS = pathlib.Path(sys.argv[1]).resolve()
    cases = {"records": TestRecords, "residue": TestResidue, "barefuse": TestBarefuse,
             "lagproxy": TestLagproxy}
    suite = unittest.TestSuite()
    for name in sys.argv[2:] or cases:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(cases[name]))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
