#!/usr/bin/env python3
"""Kafka (one KRaft node) with the root of a mount as its log directory. Several topics and partitions are
written while a consumer follows and everything is sealed and evicted; killed, evicted, read from offset 0;
transactions, compaction, retention, deletion of records and of a topic; killed together with the daemon;
stopped cleanly. Each acknowledged record has to be at its partition and offset, byte for byte.

--full: more than 3 GiB in segments of 64 MiB on a device of 1 GiB, and another GiB by Kafka's perf tool.
"""
import glob
import os
import re
import subprocess
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from brokerkit import (FULL, MIB, Churn, Failed, check, files_under, free_port, note, number, record, run,
                       step, wait_for)

N = int(os.environ.get("BROKERS_N", 1700000 if FULL else 8000))
PERF = int(os.environ.get("BROKERS_PERF", 1 << 20 if FULL else 0))
SEGMENT = 64 * MIB if FULL else MIB             # 1 MiB is the least that 4.x takes
PARTITIONS = 6 if FULL else 3
READY = r"\[KafkaRaftServer nodeId=1\] Kafka Server started"
# A healthy run says these: at each start; at some ends; when two ask for the first group at once; on a busy machine (2);
# and when after a kill the leaders of before are fenced while their partitions are still being loaded.
KNOWN = "Performing controller activation|Attempting to close NetworkClient that has already been closed|" \
    "Auto topic creation failed for __consumer_offsets with error 'TOPIC_ALREADY_EXISTS'|" \
    "Exceptionally slow controller event|processExpiredBrokerHeartbeat|" \
    "Failed to load metadata from __.* because the partition is not online"
SMALL = {"segment.bytes": str(SEGMENT), "file.delete.delay.ms": "500",
         **({} if FULL else {"segment.index.bytes": "4096", "index.interval.bytes": "1024"})}
LITTLE = {**SMALL, "segment.bytes": str(MIB)}
TOPICS = {
    "plain": (PARTITIONS, SMALL),
    "synced": (1, {**LITTLE, "flush.messages": "1"}),
    "tx": (1, LITTLE),
    "compact": (1, {**LITTLE, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
                    "segment.ms": "1000"}),
    "retain": (1, {**LITTLE, "retention.bytes": str(2 * MIB)}),
}
LOG4J = """appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = {}
rootLogger.appenderRef.out.ref = out
"""


class Kafka:
    def __init__(self, w):
        self.w, port = w, free_port(2)
        self.address = f"127.0.0.1:{port}"
        self.client = {"bootstrap.servers": self.address, "log_level": 2}
        self.conf = self.file("server.properties", f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{port + 1}
listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{port + 1}
advertised.listeners=PLAINTEXT://{self.address}
controller.listener.names=CONTROLLER
log.dirs={w.data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
log.cleaner.backoff.ms=300
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=500
log.flush.offset.checkpoint.interval.ms=1000
""")
        self.log4j = self.file("log4j2.properties", LOG4J.format("INFO"))
        self.tool_log4j = self.file("tool-log4j2.properties", LOG4J.format("ERROR"))
        self.tool("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", self.conf)
        self.start()

    def file(self, name, text):
        path = os.path.join(self.w.run, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def java(self, log4j, *args):
        return ["java", f"-Dlog4j2.configurationFile=file:{log4j}",
                f"-XX:ErrorFile={self.w.run}/hs_err_%p.log", "-cp", os.environ["KAFKA_CLASSPATH"], *args]

    def tool(self, *args, seconds=1200):
        r = subprocess.run(self.java(self.tool_log4j, *args), capture_output=True, text=True,
                           timeout=seconds, stdin=subprocess.DEVNULL)
        if r.returncode:
            raise Failed(f"{args[0]}: {r.stdout}{r.stderr}"[-1500:])
        return r.stdout

    def start(self):
        argv = self.java(self.log4j, "kafka.Kafka", self.conf)
        argv[1:1] = ["-Xms256m", "-Xmx1g" if FULL else "-Xmx512m"]
        self.w.start(argv, READY)
        self.admin = AdminClient(self.client)

    def all(self, futures):
        for f in futures.values():
            f.result(300)

    def create(self, topics):
        self.all(self.admin.create_topics([NewTopic(t, p, 1, config=c) for t, (p, c) in topics.items()],
                                          operation_timeout=300, request_timeout=300))

    def produce(self, topic, ids, acked=None, key=lambda i: b"%d" % i, **conf):
        p = Producer({**self.client, "acks": "all", "linger.ms": 5, "delivery.timeout.ms": 600000,
                      "request.timeout.ms": 300000, "enable.idempotence": True, **conf})
        bad = []

        def answered(err, m):
            if err:
                bad.append(err)
            elif acked is not None:
                acked[number(m.value())] = (m.partition(), m.offset())
        for i in ids:
            while True:
                try:
                    p.produce(topic, record(i), key=key(i), on_delivery=answered)
                    break
                except BufferError:
                    p.poll(0.1)
            p.poll(0)
        if p.flush(600) or bad:
            raise Failed(f"produce to {topic}: {bad[:1] or 'not all sent'}")

    def messages(self, topic, isolation="read_uncommitted"):
        """Every message between the low and the high mark of each partition."""
        c = Consumer({**self.client, "group.id": "check", "enable.auto.commit": False,
                      "isolation.level": isolation, "enable.partition.eof": True, "check.crcs": True})
        parts = [TopicPartition(topic, q) for q in c.list_topics(topic, 300).topics[topic].partitions]
        for q in parts:
            q.offset = self.low_mark(c, q)
        c.assign(parts)
        left = len(parts)
        while left:
            m = c.poll(300)
            if m is None:
                raise Failed(f"{topic}: nothing comes")
            if not m.error():
                yield m
            elif m.error().name() == "_PARTITION_EOF":
                left -= 1
            else:
                raise Failed(f"{topic}: {m.error()}")
        c.close()

    def low_mark(self, c, part):
        """Just after a start a partition may be without its leader for a moment."""
        def ask():
            try:
                return c.get_watermark_offsets(part, 300)
            except KafkaException as e:
                if not e.args[0].retriable() and e.args[0].name() != "NOT_LEADER_FOR_PARTITION":
                    raise
                return None
        marks = wait_for(300, ask, 0.1)
        if not marks:
            raise Failed(f"{part.topic} {part.partition} has no leader")
        return marks[0]

    def verify(self, topic, acked, what):
        """Each acknowledged record is where it was acknowledged, and nothing else is there."""
        began, wrong, seen, size = time.monotonic(), [], 0, 0
        for m in self.messages(topic):
            i = number(m.value())
            size += len(m.value())
            if m.value() != record(i) or acked.get(i) != (m.partition(), m.offset()):
                wrong.append((i, m.partition(), m.offset()))
            else:
                seen += 1
        check(f"{what}: {topic}: all {len(acked)} acknowledged records where they were, byte for byte",
              not wrong and seen == len(acked), f"{seen} seen, {len(wrong)} wrong, first {wrong[:2]}")
        if wrong or seen != len(acked):
            raise Failed(topic)
        if FULL:
            note(f"read and compared {size / MIB:.0f} MiB in {time.monotonic() - began:.0f} s")

    def files(self, topic, end=""):
        return [p for p in files_under(self.w.data)
                if os.path.basename(os.path.dirname(p)).startswith(f"{topic}-") and p.endswith(end)]

    def committed(self, topic, group):
        c = Consumer({**self.client, "group.id": group})
        offset = c.committed([TopicPartition(topic, 0)], 300)[0].offset
        c.close()
        return offset


class Follower:
    """A consumer that reads live what is produced, and compares it."""

    def __init__(self, s, topic, n):
        self.s, self.topic, self.n = s, topic, n
        self.seen, self.wrong = 0, []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        c = Consumer({**self.s.client, "group.id": "live", "enable.auto.commit": False, "check.crcs": True})
        c.assign([TopicPartition(self.topic, q, 0) for q in range(PARTITIONS)])
        while self.seen < self.n and not self.wrong:
            for m in c.consume(1000, 300) or [None]:
                if m is None or m.error():
                    self.wrong.append(str(m and m.error()))
                elif m.value() != record(number(m.value())):
                    self.wrong.append(number(m.value()))
                else:
                    self.seen += 1
        c.close()

    def end(self):
        self.thread.join(1200)
        check(f"a live consumer saw all {self.n} records, byte for byte",
              self.seen == self.n and not self.wrong, f"{self.seen}, {self.wrong[:2]}")


def transactions(s):
    p = Producer({**s.client, "transactional.id": "t1", "transaction.timeout.ms": 600000})
    p.init_transactions(300)
    for k in range(30):
        p.begin_transaction()
        for i in range(k * 20, k * 20 + 20):
            p.produce("tx", record(i))
        p.flush(300)
        if k % 3 == 2:
            p.abort_transaction(300)
        else:
            p.commit_transaction(300)
    c = Consumer({**s.client, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    c.subscribe(["tx"])
    c.commit(c.consume(100, 300)[-1], asynchronous=False)
    c.close()
    return s.committed("tx", "g")


def verify_transactions(s, what):
    want = [record(i) for i in range(600) if i // 20 % 3 != 2]
    got = [m.value() for m in s.messages("tx", "read_committed")]
    check(f"{what}: of 600 records in 30 transactions the 400 committed ones", got == want, len(got))


def compaction(s):
    s.produce("compact", range(3000), key=lambda i: b"k%d" % (i % 100))

    def compacted():
        s.produce("compact", [3000], key=lambda i: b"roll")   # a later record lets segment.ms roll
        return sum(1 for _ in s.messages("compact")) < 600
    check("a topic is compacted", wait_for(300, compacted, 0.2))


def verify_compact(s, what):
    last = {m.key(): m.value() for m in s.messages("compact")}
    wrong = [i for i in range(2900, 3000) if last.get(b"k%d" % (i % 100)) != record(i)]
    check(f"{what}: the compacted topic has the newest record of each key", not wrong, wrong[:5])


def retention(s):
    s.produce("retain", range(6000))
    kept = wait_for(300, lambda: len(s.files("retain", ".log")) <= 4 and not s.files("retain", ".deleted"), 0.1)
    check("retention by size", kept, s.files("retain"))


def delete_records(s, acked):
    """The first half of each partition goes, with its files."""
    before = len(s.files("plain", ".log"))
    cut = {q: max(o for p, o in acked.values() if p == q) // 2 for q in range(PARTITIONS)}
    s.all(s.admin.delete_records([TopicPartition("plain", q, o) for q, o in cut.items()],
                                 operation_timeout=300, request_timeout=300))
    fewer = wait_for(300, lambda: len(s.files("plain", ".log")) < before and not s.files("plain", ".deleted"),
                     0.1)
    check("deleted records take their files along", fewer, f"{before} files before")
    return {i: at for i, at in acked.items() if at[1] >= cut[at[0]]}


def delete_topics(s):
    s.all(s.admin.delete_topics(["retain", "synced"], operation_timeout=300, request_timeout=300))
    gone = wait_for(300, lambda: not [d for d in os.listdir(s.w.data) if re.match("(retain|synced)-", d)], 0.1)
    check("the directories of deleted topics go", gone, os.listdir(s.w.data))


def perf(s):
    """Kafka's own tool; counted, since its records are its own."""
    if not PERF:
        return
    s.create({"perf": (PARTITIONS, SMALL)})
    out = s.tool("org.apache.kafka.tools.ProducerPerformance", "--topic", "perf", "--num-records", str(PERF),
                 "--record-size", "1024", "--throughput", "-1", "--bootstrap-server", s.address,
                 "--command-property", "acks=all", "batch.size=262144", "linger.ms=5")
    note("perf tool: " + out.strip().splitlines()[-1])


def verify_perf(s, what):
    if PERF:
        n = sum(1 for _ in s.messages("perf"))
        check(f"{what}: all {PERF} records of the perf tool, with right checksums", n == PERF, n)


def log_clean(w):
    w.server_log_clean(r"^\[[^]]*\] (WARN|ERROR|FATAL) ", KNOWN)
    check("no JVM crashed", not glob.glob(os.path.join(w.run, "hs_err_*")))


def main(w):
    size = sum(len(record(i)) for i in range(1000)) * N // 1000
    acked, synced = {}, {}
    s = Kafka(w)
    s.create(TOPICS)
    live = Follower(s, "plain", N)
    began = time.monotonic()
    with Churn(w):
        s.produce("plain", range(N), acked)
        step(f"{N} records, {size / MIB:.0f} MiB, {size / MIB / (time.monotonic() - began):.1f} MiB/s, "
             f"{len(s.files('plain', '.log'))} log segments")
        s.produce("synced", range(300), synced, **{"linger.ms": 0, "batch.num.messages": 1})
        live.end()
    perf(s)
    w.proc.kill()
    w.all_to_store("after kill -9")
    s.start()
    s.verify("plain", acked, "recovered after kill -9")
    s.verify("synced", synced, "recovered after kill -9")
    verify_perf(s, "recovered after kill -9")
    w.came_back("replay", size)
    with Churn(w):
        offset = transactions(s)
        compaction(s)
        retention(s)
        acked = delete_records(s, acked)
        delete_topics(s)
    step("transactions, compaction, retention, deletions")
    w.proc.kill()
    w.remount()
    w.all_to_store("after the second kill -9")
    s.start()
    s.verify("plain", acked, "recovered after the second kill -9")
    verify_transactions(s, "recovered after the second kill -9")
    verify_compact(s, "recovered after the second kill -9")
    w.came_back("replay", size // 2)
    w.proc.stop()
    w.remount(kill=False)
    w.all_to_store("after a clean stop")
    s.start()
    s.verify("plain", acked, "after a clean stop")
    verify_transactions(s, "after a clean stop")
    verify_compact(s, "after a clean stop")
    verify_perf(s, "after a clean stop")
    check("a group's offset is kept", s.committed("tx", "g") == offset, f"{s.committed('tx', 'g')}, {offset}")
    w.came_back("replay", size // 2)
    w.proc.stop()
    unit = 16 * MIB if FULL else 65536
    w.used(uploads=size // unit, evictions=size // unit)
    log_clean(w)


if __name__ == "__main__":
    if FULL:
        run(main, directory="", budget=1024 * MIB, segment_bytes="16M", seal_age="10s", local_age="10s",
            mirror_below="1M", pool="256M")
    else:
        run(main, directory="")
