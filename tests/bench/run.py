#!/usr/bin/env python3
"""Measures the figures of the design beside their floors.

    tests/bench/run.py [--build DIR] [--work DIR] [--only 1,3,...] [--quick] [--json OUT]

Every figure is a ratio between SluiceFS and a floor or a peer in the same run, on the same file
system, with the same store behind the same latency, in interleaved pairs. See README.md.

Exit: 0 all figures that could be measured were reached, 1 some were not, 2 some failed to run.
"""
import argparse
import collections
import contextlib
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import benchkit
import kafkabench
from benchkit import MIB, Failed, Skip, bound, compare, interleaved

FIGURES = collections.OrderedDict()
# Nothing is sealed by size or age, so that no upload runs beside what figures 1 to 3 measure.
LOCAL_ONLY = {"segment_bytes": "4G", "seal_age": "24h"}


def figure(number, title):
    def register(function):
        FIGURES[number] = (title, function)
        return function

    return register


def optional_proxy(kit):
    """Figures of local data need a store only because a volume has one."""
    try:
        return kit.proxy()
    except Skip:
        return None


@figure(1, "append through the mount ÷ bare FUSE pass-through")
def figure_1(kit):
    rows = []
    count = 2 if kit.quick else 21  # Many short runs: others on the machine then hit both alike.
    with kit.mount("append", proxy=optional_proxy(kit), settings=LOCAL_ONLY) as mount, \
            benchkit.bare_mount(kit) as bare:
        (mount.mnt / "append").mkdir()
        for size, total in (("4K", 64), ("1M", 256)):
            def run(root, size=size, total=total):
                return kit.load("appendbench", root / "file", "--size", size, "--bytes",
                                f"{total}M")

            run(bare)  # The first run of a size pays for what later runs find ready.
            run(mount.mnt / "append")
            pairs = interleaved(count, lambda i: run(mount.mnt / "append"), lambda i: run(bare))
            rows.append(compare(1, f"append {size}", "op/s",
                                [(x["ops_per_s"], y["ops_per_s"]) for x, y in pairs], 0.9))
            rows.append(compare(1, f"append {size}, one over the median latency", "op/s",
                                [(1e6 / x["p50_us"], 1e6 / y["p50_us"]) for x, y in pairs], 0.9))
    return rows


@figure(2, "append 1 KiB + fdatasync: 1 writer ÷ bare FUSE, 16 writers ÷ native")
def figure_2(kit):
    rows = []
    count = 2 if kit.quick else 7
    seconds = 0.5 if kit.quick else 2
    native = kit.fresh("native")
    with kit.mount("fsync", proxy=optional_proxy(kit), settings=LOCAL_ONLY) as mount, \
            benchkit.bare_mount(kit) as bare:
        (mount.mnt / "fsync").mkdir()
        for threads, floor, name in ((1, bare, "bare FUSE"), (16, native, "native"),
                                     (16, bare, "bare FUSE")):
            def run(root, threads=threads):
                return kit.load("appendbench", root / "file", "--size", "1K", "--seconds", seconds,
                                "--threads", threads, "--fdatasync")["ops_per_s"]

            pairs = interleaved(count, lambda i: run(mount.mnt / "fsync"),
                                lambda i, floor=floor: run(floor))
            rows.append(compare(2, f"append 1K + fdatasync, {threads} at once ÷ {name}", "op/s",
                                pairs, 0.9))
    return rows


@figure(3, "read and sendfile of hot data ÷ native; READ requests")
def figure_3(kit):
    rows = []
    count = 2 if kit.quick else 8
    size, repeat = (64, 2) if kit.quick else (256, 4)
    native = kit.fresh("native")
    with kit.mount("hot", proxy=optional_proxy(kit), settings=LOCAL_ONLY) as mount, \
            benchkit.bare_mount(kit) as bare:
        hot = mount.mnt / "hot"
        hot.mkdir()
        for piece in ("4K", "1M"):
            # What is written later may get pages that are read faster: two sets, in both orders.
            sets = [[root / f"file-{piece}-{n}" for root in (hot, native, bare)] for n in range(2)]
            for n, files in enumerate(sets):
                for path in files if n == 0 else reversed(files):
                    kit.load("appendbench", path, "--size", piece, "--bytes", f"{size}M", "--keep")
            for extra in ((), ("--sendfile",)):
                rows += hot_reads(kit, mount, sets, piece, count, ("--repeat", repeat, *extra))
            for path in sets[0] + sets[1]:
                path.unlink()
    return rows


def hot_reads(kit, mount, sets, piece, count, options):
    """Rows for one way of reading: against both floors, and the READ requests of it.

    The rate is that of the reader's CPU time: it waits for nobody, and others on the machine do not
    count."""
    what = f"hot {'sendfile' if '--sendfile' in options else 'read'}, written in {piece} pieces"

    def counter():
        return mount.stats("fuse_requests_total", op="read")

    counter()
    first = counter()
    before = counter()
    _, requests = benchkit.count_read_requests(
        kit, mount, [kit.tool("readbench"), "seq", sets[0][0], *options])
    after = counter()

    def rate(which):
        def run(i):
            out = kit.load("readbench", "seq", sets[i % 2][which], *options)
            return out["bytes"] / max(out["cpu_s"], 1e-6) / 1e6
        return run

    # Kernels keep large appends of ext4 in large folios and those of FUSE in single pages.
    note = "native may hold these in large folios" if piece == "1M" else ""
    rows = [compare(3, f"{what} ÷ native", "MB/CPU s", interleaved(count, rate(0), rate(1)), 0.95,
                    note=note),
            compare(3, f"{what} ÷ bare FUSE", "MB/CPU s", interleaved(count, rate(0), rate(2)),
                    0.95)]
    if requests is not None:
        rows.append(bound(3, f"{what}: READ requests (tracepoint)", "requests", requests, 0,
                          "appends were whole pages"))
    if after is not None:
        rows.append(bound(3, f"{what}: READ requests (own counter)", "requests",
                          (after - before) - (before - first), 0,
                          "less those that reading the counter takes"))
    return rows


def raw_list(kit, mount):
    """The objects that the mount has read, as a list for rawget."""
    # The proxy writes its log when it is idle.
    objects = benchkit.wait_for("requests in the proxy's log", mount.objects, 5)
    path = kit.fresh("list") / "urls"
    path.write_text("".join(f"{mount.proxy.endpoint}{key} {size}\n" for key, size in objects))
    return path


def in_flight(requests):
    """Mean number of GETs under way while any was, and their mean size in MiB."""
    gets = [r for r in requests if r[0] == "GET" and r[4] > 0]
    if not gets:
        return 0, 0
    return len(gets), sum(r[4] for r in gets) / len(gets) / MIB


@figure(4, "cold sequential read, one reader ÷ raw ranged GETs")
def figure_4(kit):
    rows = []
    count = 2 if kit.quick else 5
    # The start, when the window grows, is part of it: a scan that is worth the name.
    size = 128 if kit.quick else 1024
    plans = [("256M", 16, 0.93)] if kit.quick else [("256M", 8, 0.93), ("256M", 16, 0.93),
                                                    ("256M", 28, 0.93), ("64M", 14, 0.8)]
    proxy = kit.proxy()
    with kit.mount("cold", proxy=proxy) as mount:
        if not mount.cold:
            raise Skip("the stand-in has no cold data")
        files = mount.write_cold([f"cold/{i}" for i in range(count)], f"{size}M")
        for pool, flight, reach in plans:
            mount.again(pool=pool, window_max=f"{flight * 4}M", connections=flight + 4)
            shape, cpu = [], collections.Counter()

            def ours(i, shape=shape, cpu=cpu):
                mark, before = proxy.position(), benchkit.cpu_seconds(mount.process.pid)
                out = kit.load("readbench", "seq", files[i])
                requests = proxy.requests(mark)
                if sum(r[4] for r in requests if r[0] == "GET") < 0.9 * out["bytes"]:
                    raise Failed("the read was not cold: too few bytes came through the proxy")
                shape.append(in_flight(requests))
                cpu["mount"] += benchkit.cpu_seconds(mount.process.pid) - before
                return out["mb_per_s"]

            def floor(i, flight=flight, cpu=cpu):
                out = kit.load("rawget", "--urls", raw_list(kit, mount), "--range", "4M",
                               "--inflight", flight, "--bytes", f"{size}M")
                cpu["raw"] += out["cpu_s"]
                return out["mb_per_s"]

            pairs = interleaved(count, ours, floor)
            gets = statistics.mean(s[0] for s in shape)
            mean_mib = statistics.mean(s[1] for s in shape)
            rows.append(compare(
                4, f"cold read, pool {pool}, {flight} × 4 MiB in flight", "MB/s", pairs, reach,
                note=f"{gets:.0f} GETs of {mean_mib:.1f} MiB a file; CPU s: mount "
                     f"{cpu['mount']:.1f}, raw {cpu['raw']:.1f}"))
        kit.run([kit.tool("records"), "verify", files[0], "--seed", 1, "--bytes", f"{size}M"])
    return rows


@figure(5, "first cold byte − one GET")
def figure_5(kit):
    # A constant latency: with a drawn one the lottery would be larger than the difference sought.
    proxy = kit.proxy(median=70, p999=70)
    count = 10 if kit.quick else 40
    size = 128 if kit.quick else 512
    with kit.mount("first", proxy=proxy) as mount:
        if not mount.cold:
            raise Skip("the stand-in has no cold data")
        path = mount.write_cold(["first/file"], f"{size}M")[0]
        mount.again()
        places = [i * 4 * MIB for i in range(1, size // 4)]
        random.Random(5).shuffle(places)
        kit.load("readbench", "first", path, "--from", 0, "--block", "4K")
        raw = raw_list(kit, mount)
        ours, floor = [], []
        for place in places[:min(count, len(places))]:
            mark = proxy.position()
            ours.append(kit.load("readbench", "first", path, "--from", place, "--block",
                                 "4K")["first_ms"])
            if not any(r[0] == "GET" for r in proxy.requests(mark)):
                raise Failed("a read that should be cold caused no GET")
            floor.append(kit.load("rawget", "--urls", raw, "--range", "256K", "--inflight", 1,
                                  "--bytes", "512K")["p50_ms"])
    extra = statistics.median(ours) - statistics.median(floor)
    row = bound(5, "first cold byte − one GET of 256 KiB", "ms", extra, 2.0,
                f"ours {statistics.median(ours):.2f} ms [{min(ours):.2f}–{max(ours):.2f}], GET "
                f"{statistics.median(floor):.2f} ms; constant 70 ms")
    row["pairs"] = list(zip(ours, floor))
    return [row]


class Scanner:
    """Reads a cold file through the mount over and over, until told to stop."""

    def __init__(self, kit, path):
        self.kit, self.path = kit, path
        self.done = threading.Event()
        self.process = self.error = None
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def loop(self):
        while not self.done.is_set():
            self.process = subprocess.Popen(
                [str(self.kit.tool("readbench")), "seq", str(self.path)],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.kit.env)
            _, err = self.process.communicate()
            if self.process.returncode > 0:
                self.error = err
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
        self.thread.join(60)
        if self.error and not exc[0]:
            raise Failed(f"the scan failed: {self.error}")


def residue(kit, mount):
    """Bytes of page cache that the mount, its device and its state hold."""
    topics = [p for p in mount.mnt.iterdir() if p.name != ".sluice"]
    out = kit.load("residue", *topics, mount.device, mount.state)
    return out["bytes"]


@figure(7, "append beside a cold scan ÷ append beside the same raw GETs; residue of a scan")
def figure_7(kit):
    count = 2 if kit.quick else 5
    seconds = 1.5 if kit.quick else 4
    size = "256M" if kit.quick else "2G"
    proxy = kit.proxy()
    rows = []
    # One segment is larger than what a run appends, so no upload runs beside it.
    with kit.mount("scan", proxy=proxy, settings={"segment_bytes": "4G"}) as mount:
        if not mount.cold:
            raise Skip("the stand-in has no cold data")
        path = mount.write_cold(["scan/file"], size)[0]
        mount.again()
        before = residue(kit, mount)
        out = kit.load("readbench", "seq", path)
        grown = residue(kit, mount) - before
        rows.append(bound(7, "page cache left by a cold scan", "MiB", grown / MIB, 4,
                          f"{out['bytes'] // MIB} MiB read by one reader"))
        raw = raw_list(kit, mount)
        (mount.mnt / "append").mkdir()
        rates = []

        def append():
            return kit.load("appendbench", mount.mnt / "append/file", "--size", "4K", "--seconds",
                            seconds)

        def beside_scan(_):
            with Scanner(kit, path):
                mark, start = proxy.position(), time.monotonic()
                result = append()
                got = sum(r[4] for r in proxy.requests(mark) if r[0] == "GET")
                rates.append(got / (time.monotonic() - start))
            return result

        def beside_raw(_):
            rate = max(int(statistics.median(rates)), 1)
            log = kit.fresh("raw") / "log"
            process = kit.start([kit.tool("rawget"), "--urls", raw, "--range", "4M", "--inflight",
                                 16, "--rate", rate, "--seconds", 600], log)
            time.sleep(0.3)
            result = append()
            kit.stop(process)
            if not re.search(r'"errors":0,', benchkit.tail(log)):
                raise Failed(f"the raw load failed: {benchkit.tail(log)}")
            return result

        results = interleaved(count, beside_scan, beside_raw)
    note = f"scan {statistics.median(rates) / 1e6:.0f} MB/s"
    rows.append(compare(7, "append 4K, p99", "µs",
                        [(a["p99_us"], b["p99_us"]) for a, b in results], 1.1, at_least=False,
                        note=note))
    rows.append(compare(7, "append 4K, throughput", "op/s",
                        [(a["ops_per_s"], b["ops_per_s"]) for a, b in results], 0.98, note=note))
    return rows


@figure(8, "peak RssAnon + RssShmem with many open readers")
def figure_8(kit):
    readers = 1000 if kit.quick else 10000
    pool = 256
    with kit.mount("readers", proxy=kit.proxy(), pool=f"{pool}M") as mount:
        files = mount.write_cold([f"readers/{i}" for i in range(20 if kit.quick else 100)], "8M")
        mount.again()
        with benchkit.PeakMemory(mount.process.pid) as memory:
            out = kit.load("readbench", "many", *files, "--readers", readers, "--block", "4K",
                           timeout=600)
    if out["reads"] < readers:
        raise Failed(f"only {out['reads']} of {readers} readers read")
    return [bound(8, f"peak memory with {readers} open readers", "MiB", memory.peak / MIB,
                  pool + 64, f"pool {pool} MiB, {memory.first / MIB:.0f} MiB after the mount")]


def count_puts(requests):
    """(all writes to the bucket, those of segments) among requests."""
    puts = [r for r in requests if r[0] in ("PUT", "POST") and r[3] < 500]
    return len(puts), sum("/segments/" in r[1] for r in puts)


@figure(9, "PUT per GiB in, GET per GiB read cold by readers started together")
def figure_9(kit):
    gib = 0.25 if kit.quick else 1
    size = f"{int(gib * 1024)}M"
    groups = (1, 4) if kit.quick else (1, 4, 16)
    proxy = kit.proxy()
    rows = []
    with kit.mount("count", proxy=proxy) as mount:
        if not mount.cold:
            raise Skip("the stand-in has no cold data")
        time.sleep(1)  # What the mount itself writes is not caused by the bytes.
        mark = proxy.position()
        own = mount.stats("store_requests_total", op="put")
        files = mount.write_cold([f"count/{n}" for n in groups], size)
        volume = gib * len(groups)
        puts, segments = count_puts(proxy.requests(mark))
        note = f"{segments} of {puts} were segments, in full segments of {volume:g} GiB"
        if own is not None:
            note += f"; own counter {mount.stats('store_requests_total', op='put') - own:.0f}"
        rows.append(bound(9, "PUT per GiB in", "requests", puts / volume, 20, note))
        mount.again()
        for path, readers in zip(files, groups):
            mark = proxy.position()
            out = kit.load("readbench", "together", path, "--readers", readers, "--block", "128K")
            requests = [r for r in proxy.requests(mark) if r[0] == "GET"]
            fetched = sum(r[4] for r in requests)
            if fetched < 0.9 * gib * 1024 * MIB:
                raise Failed("the read was not cold: too few bytes came through the proxy")
            rows.append(bound(9, f"GET per GiB, {readers} readers together", "requests",
                              len(requests) / gib, 270,
                              f"{fetched / MIB / 1024:.2f} GiB fetched, {out['mb_per_s']:.0f} MB/s "
                              "to all readers"))
    return rows


figure(14, "Kafka on the mount ÷ Kafka on the device's own file system")(kafkabench.figure_14)


def show(row):
    reach = f"{'≥' if row.get('at_least') else '≤'} {row['reach']:g}"
    if "ratio" in row:
        value = (f"{row['ratio']:.3f} [{row['low']:.3f}–{row['high']:.3f}]  ours "
                 f"{row['ours']:.4g}, floor {row['floor']:.4g} {row['unit']}")
    else:
        value = f"{row['ours']:.4g} {row['unit']}"
    mark = "reached" if row["ok"] else "MISSED "
    print(f"{row['figure']:>2}  {mark}  {reach:<7} {value:<62} {row['what']}"
          + (f"  ({row['note']})" if row["note"] else ""), flush=True)


def measure(kit, number):
    """Runs one figure; its rows, or one row that says why there are none."""
    title, function = FIGURES[number]
    print(f"--- figure {number}: {title}", flush=True)
    start = time.monotonic()
    try:
        rows = function(kit)
        for row in rows:
            show(row)
    except Skip as reason:
        rows = [{"figure": number, "what": title, "skipped": str(reason)}]
        print(f"{number:>2}  skipped: {reason}", flush=True)
    except (Failed, OSError) as error:
        rows = [{"figure": number, "what": title, "failed": str(error)}]
        print(f"{number:>2}  FAILED: {error}", flush=True)
    for row in rows:
        row["seconds"] = round(time.monotonic() - start, 1)
    return rows


def parse_arguments():
    root = pathlib.Path(__file__).resolve().parents[2]
    p = argparse.ArgumentParser(description="Measures the design's figures beside their floors.")
    p.add_argument("--build", type=pathlib.Path, default=root / "build",
                   help="build directory (default: build in the source tree)")
    p.add_argument("--work", type=pathlib.Path,
                   help="existing directory on the device to measure (default: a temporary one)")
    p.add_argument("--only", help="figures to measure, for example 1,3")
    p.add_argument("--quick", action="store_true", help="small and few: tries it out, no figures")
    p.add_argument("--json", type=pathlib.Path, help="write everything to this file")
    p.add_argument("--stand-in", action="store_true",
                   help="mount the bare pass-through instead: tests this program")
    args = p.parse_args()
    try:
        args.only = [int(n) for n in args.only.split(",")] if args.only else list(FIGURES)
    except ValueError:
        p.error("--only wants numbers")
    unknown = [n for n in args.only if n not in FIGURES]
    if unknown:
        p.error(f"no figure {unknown[0]}; there are {', '.join(map(str, FIGURES))}")
    return args


def main():
    args = parse_arguments()
    benchkit.exit_on_signals()
    about = benchkit.machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=args.work,
                                     ignore_cleanup_errors=True) as work:
        kit = benchkit.Kit(args.build.resolve(), pathlib.Path(work).resolve(), args.quick,
                           args.stand_in)
        with kit.stack:
            for number in args.only:
                rows += measure(kit, number)
                if args.json:  # After each, so that a run that is broken off leaves something.
                    args.json.write_text(json.dumps({"machine": about, "quick": args.quick,
                                                     "stand_in": args.stand_in, "rows": rows},
                                                    indent=1))
    missed = [r for r in rows if r.get("ok") is False]
    failed = [r for r in rows if "failed" in r]
    skipped = [r for r in rows if "skipped" in r]
    print(f"{len(rows) - len(missed) - len(failed) - len(skipped)} reached, {len(missed)} missed, "
          f"{len(failed)} failed, {len(skipped)} skipped")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
