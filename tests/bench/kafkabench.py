"""Figure 14: one Kafka node on a mount beside one on the device's own file system.

Both nodes run all the time, on the same file system below, with the same configuration; what is
measured is measured on one after the other, in pairs. The numbers are those that Kafka's own tools
print: latencies at a fixed rate (flat out they tell how long the producer's queue is), the rate flat
out, the rate of a consumer. The mount has the rules for Kafka of examples/policy; once nothing is
sealed meanwhile, once segments of 64 MiB are sealed and uploaded while Kafka writes.
"""
import contextlib
import pathlib
import re
import socket
import statistics
import subprocess
import threading

import benchkit
from benchkit import HERE, MIB, Failed, Skip, bound, compare, interleaved

BROKERS = HERE.parent / "brokers" / "brokers.sh"
POLICY = HERE.parent.parent / "examples" / "policy" / "kafka.ini"
TOOLS = "org.apache.kafka.tools."
RECORD = 1024

SERVER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
log.segment.bytes=67108864
log.segment.delete.delay.ms=500
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
LOG4J = """appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = {}
rootLogger.appenderRef.out.ref = out
"""


def classpath():
    done = subprocess.run(["bash", "-c", '. "$1"; find_kafka || { echo "$BROKER_SKIP"; exit 77; };'
                           ' echo "$KAFKA_CLASSPATH"', "kafka", str(BROKERS)],
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Skip(done.stdout.strip() or done.stderr[-300:])
    return done.stdout.strip()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node:
    """A Kafka node; its files apart from the data are in a folder of its own."""

    def __init__(self, kit, name, data, jars):
        self.kit, self.name, self.jars = kit, name, jars
        self.data = pathlib.Path(data)
        self.folder = kit.fresh(f"kafka-{name}")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        for level in ("WARN", "ERROR"):
            (self.folder / f"{level}.properties").write_text(LOG4J.format(level))
        (self.folder / "INFO.properties").write_text(LOG4J.format("INFO"))
        conf = self.folder / "server.properties"
        conf.write_text(SERVER.format(port=self.port, controller=free_port(), data=self.data))
        self.tool("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", conf)
        log = self.folder / "server.log"
        self.process = kit.start(self.java("INFO", "512m", "kafka.Kafka", conf), log)
        benchkit.wait_for(f"Kafka on {name}", lambda: "Kafka Server started" in log.read_text(),
                          120, self.process, log)

    def java(self, level, heap, *args):
        return ["java", "-Xms256m", f"-Xmx{heap}",
                f"-Dlog4j2.configurationFile=file:{self.folder}/{level}.properties",
                "-cp", self.jars, *args]

    def tool(self, name, *args, timeout=900):
        return self.kit.run(self.java("ERROR", "256m", name, *args), timeout)

    def topic(self, verb, name, partitions=1):
        extra = ("--partitions", partitions) if verb == "--create" else ()
        self.tool(TOOLS + "TopicCommand", "--bootstrap-server", self.address, verb, "--topic", name,
                  *extra)

    def produce(self, topic, count, rate=-1, *properties):
        """What ProducerPerformance says of it: rate in MB/s, latencies in ms."""
        text = self.tool(TOOLS + "ProducerPerformance", "--topic", topic, "--num-records", count,
                         "--record-size", RECORD, "--throughput", rate, "--bootstrap-server",
                         self.address, "--command-property", "acks=all", *properties)
        line = text.strip().splitlines()[-1]
        found = re.search(r"\(([\d.]+) MB/sec\), ([\d.]+) ms avg latency.* (\d+) ms 50th, "
                          r"\d+ ms 95th, (\d+) ms 99th, (\d+) ms 99.9th", line)
        if not found:
            raise Failed(f"ProducerPerformance: {line}")
        return dict(zip(("rate", "avg", "p50", "p99", "p999"), map(float, found.groups())))

    def flat_out(self, topic, count):
        return self.produce(topic, count, -1, "batch.size=262144", "linger.ms=5")["rate"]

    def consumer(self, topic, count):
        return [str(a) for a in self.java(
            "ERROR", "256m", TOOLS + "ConsumerPerformance", "--bootstrap-server", self.address,
            "--topic", topic, "--num-records", count, "--timeout", 120000)]

    def consume(self, topic, count):
        """MB/s as ConsumerPerformance says, without the time to join its group."""
        return consumed(self.kit.run(self.consumer(topic, count), 900), count)

    def size(self, topic):
        return sum(p.stat().st_size for p in self.data.glob(f"{topic}-*/*.log"))


def consumed(text, count):
    line = (text.strip().splitlines() or [""])[-1].split(", ")
    if len(line) < 10 or not line[4].isdigit() or int(line[4]) < count:
        raise Failed(f"ConsumerPerformance: {text[-300:]}")
    return float(line[8])


class Replay:
    """A consumer that reads a topic from its beginning, over and over, until told to stop."""

    def __init__(self, node, topic, count):
        self.node, self.argv, self.count = node, node.consumer(topic, count), count
        self.done, self.process, self.rates, self.error = threading.Event(), None, [], None
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def loop(self):
        while not self.done.is_set():
            self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, text=True,
                                            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            text, _ = self.process.communicate()
            try:
                self.rates.append(consumed(text, self.count))
            except Failed as e:
                self.error = None if self.done.is_set() else e
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        self.thread.join(60)
        if self.error and not exc[0]:
            raise self.error


def reads(mount):
    """READ requests since the mount began, and how many of them reading that number takes."""
    mount.stats("fuse_requests_total", op="read")
    a = mount.stats("fuse_requests_total", op="read") or 0
    b = mount.stats("fuse_requests_total", op="read") or 0
    return b, b - a


def live(node, mount, what, count, rate):
    """Consumers that follow what is produced; READ requests of the mount meanwhile."""
    topic = "live"
    node.topic("--create", topic)
    before, own = reads(mount)
    readers = [subprocess.Popen(node.consumer(topic, count), stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
               for _ in range(2)]
    try:
        node.produce(topic, count, rate, "linger.ms=0")
        for r in readers:
            consumed(r.communicate(timeout=300)[0], count)
    finally:
        for r in readers:
            r.kill()
            r.wait()
    after, _ = reads(mount)
    size = node.size(topic)
    node.topic("--delete", topic)
    return bound(14, f"{what}: two live consumers: READ requests", "requests", after - before - own,
                 size // 4096, f"one per page of {size / MIB:.1f} MiB, produced in parts of pages at "
                 f"{rate} records/s and read twice")


def figure_14(kit):
    jars = classpath()
    try:
        proxy = kit.proxy()
    except Skip:
        proxy = None
    # The second way has the S3 server on the same processors as Kafka and its clients.
    rows = side_by_side(kit, jars, proxy, "nothing sealed", False,
                        {"segment_bytes": "4G", "seal_age": "24h"})
    return rows + side_by_side(kit, jars, proxy, "sealed and uploaded", True,
                               {"segment_bytes": "64M"})


def side_by_side(kit, jars, proxy, what, replay, settings):
    count, pairs = (20000, 1) if kit.quick else (500000, 5)
    steady, rate = (4000, 2000) if kit.quick else (40000, 4000)
    old = 60000 if kit.quick else 2000000
    rows = []
    with contextlib.ExitStack() as stack:
        mount = stack.enter_context(kit.mount("kafka", proxy=proxy, profile="broker",
                                              settings={"policy": POLICY, **settings}))
        if not mount.cold:
            raise Skip("the stand-in has no cold data")
        native = kit.fresh("native")
        (mount.mnt / "kafka").mkdir()
        ours = Node(kit, "mount", mount.mnt / "kafka", jars)
        stack.callback(kit.stop, ours.process)
        floor = Node(kit, "native", native, jars)
        stack.callback(kit.stop, floor.process)

        def run(node):
            def once(i):
                topic = f"perf-{i}"
                node.topic("--create", topic)
                out = node.produce(topic, steady, rate, "linger.ms=0")
                cpu, begun = benchkit.cpu_seconds(mount.process.pid), reads(mount)[0]
                out["flat"] = node.flat_out(topic, count)
                cpu = benchkit.cpu_seconds(mount.process.pid) - cpu
                out["read"] = node.consume(topic, count + steady)
                node.topic("--delete", topic)
                print(f"    {node.name}, {what}: {out}, daemon {cpu:.1f} CPU s, "
                      f"{reads(mount)[0] - begun:.0f} READs", flush=True)
                return out
            return once

        run(ours)(-1), run(floor)(-1)  # What a first run of a JVM pays for.
        got = interleaved(pairs, run(ours), run(floor))
        rows += [compare(14, f"{what}: produce flat out", "MB/s",
                         [(x["flat"], y["flat"]) for x, y in got], 0.95),
                 compare(14, f"{what}: produce at {rate} records/s: p99", "ms",
                         [(x["p99"], y["p99"]) for x, y in got], 1.1, at_least=False),
                 compare(14, f"{what}: produce at {rate} records/s: mean latency", "ms",
                         [(x["avg"], y["avg"]) for x, y in got], 1.1, at_least=False),
                 compare(14, f"{what}: consume what is hot", "MB/s",
                         [(x["read"], y["read"]) for x, y in got], 0.95),
                 live(ours, mount, what, steady, rate)]
        if replay:
            rows += replays(kit, mount, ours, floor, old, steady, rate, 1 if kit.quick else 4)
    return rows


def replays(kit, mount, ours, floor, old, steady, rate, pairs):
    """Producing while a consumer reads a topic from its beginning: from the store here, from the
    device there."""
    for node in (ours, floor):
        node.topic("--create", "old")
        node.flat_out("old", old)
    mount.evict(mount.mnt)
    fast = {ours.name: [], floor.name: []}

    def run(node):
        def once(i):
            topic = f"beside-{i}"
            node.topic("--create", topic)
            benchkit.drop_cache(node.data.glob("old-*/*.log"))
            with Replay(node, "old", old) as replay:
                out = node.produce(topic, steady * 2, rate, "linger.ms=0")
                if not replay.rates:
                    replay.thread.join(1)
            fast[node.name] += replay.rates
            node.topic("--delete", topic)
            print(f"    {node.name} beside a replay: {out}, replayed at {replay.rates} MB/s",
                  flush=True)
            return out
        return once

    before = mount.stats("store_bytes_total", direction="in") or 0
    got = interleaved(pairs, run(ours), run(floor))
    fetched = (mount.stats("store_bytes_total", direction="in") or 0) - before
    if fetched < old * RECORD / 2:
        raise Failed(f"the replay was not cold: {fetched} bytes came from the store")
    note = "replayed at " + ", ".join(
        f"{statistics.median(v):.0f} MB/s ({k})" for k, v in fast.items() if v)
    return [compare(14, f"produce at {rate} records/s beside a replay: p99", "ms",
                    [(x["p99"], y["p99"]) for x, y in got], 1.1, at_least=False, note=note),
            compare(14, "the same: mean latency", "ms", [(x["avg"], y["avg"]) for x, y in got], 1.1,
                    at_least=False)]
