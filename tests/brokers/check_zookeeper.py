#!/usr/bin/env python3
"""ZooKeeper in a directory of a mount: its transaction logs are sparse files of 64 MiB that it writes into with
an fdatasync each. Nodes are created, killed, everything evicted, replayed; overwritten, killed together
with the daemon, replayed; stopped cleanly, replayed. Snapshots every 100 to 200 transactions.
"""
import os

from kazoo.client import KazooClient

from brokerkit import FULL, KIB, Churn, Failed, check, du, files_under, free_port, record, run, step

N = int(os.environ.get("BROKERS_N", 20000 if FULL else 1500))


class ZooKeeper:
    def __init__(self, w):
        self.w, self.port = w, free_port()
        self.conf = os.path.join(w.run, "zoo.cfg")
        for d in ("snap", "log"):
            os.makedirs(os.path.join(w.data, d))
        with open(self.conf, "w") as f:
            f.write(f"tickTime=2000\ndataDir={w.data}/snap\ndataLogDir={w.data}/log\nclientPort={self.port}\n"
                    "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n")
        self.start()

    def start(self):
        # The second line comes too when it gives up; "binding to port" comes before the nodes are loaded.
        self.w.start(["java", "-Xmx512m", "-Dzookeeper.snapCount=200", "-cp", os.environ["ZOOKEEPER_CLASSPATH"],
                      "org.apache.zookeeper.server.quorum.QuorumPeerMain", self.conf],
                     ["PrepRequestProcessor .*started", "ZooKeeper audit is"])
        self.c = KazooClient(f"127.0.0.1:{self.port}", timeout=60)
        self.c.start(300)

    def leave(self):
        self.c.stop()
        self.c.close()

    def kill(self):
        self.leave()
        self.w.proc.kill()

    def write(self, call, ids):
        """At most 50 on their way; each answer is awaited."""
        for k in range(ids.start, ids.stop, 50):
            for r in [call(i) for i in range(k, min(k + 50, ids.stop))]:
                r.get(timeout=300)

    def create(self, ids):
        self.write(lambda i: self.c.create_async(f"/n/{i}", record(i)), ids)

    def overwrite(self, ids):
        self.write(lambda i: self.c.set_async(f"/n/{i}", record(i + N)), ids)

    def verify(self, n, of, what):
        rs = [self.c.get_async(f"/n/{i}") for i in range(n)]
        wrong = [i for i, r in enumerate(rs) if r.get(timeout=300)[0] != record(of(i))]
        check(f"{what}: all {n} nodes, byte for byte", not wrong, wrong[:5])
        if wrong or len(self.c.get_children("/n")) != n:
            raise Failed(f"{what}: {len(self.c.get_children('/n'))} nodes, {len(wrong)} differ")


def main(w):
    s = ZooKeeper(w)
    s.c.create("/n")
    with Churn(w):
        s.create(range(N))
    step(f"{N} nodes created")
    s.kill()
    w.all_to_store("after kill -9")
    logs = files_under(os.path.join(w.data, "log"))
    size, stored = sum(map(os.path.getsize, logs)), du(os.path.join(w.data, "log"))
    check(f"{len(logs)} sparse logs: {size // KIB} KiB long, {stored // KIB} KiB stored", stored < size / 4)
    s.start()
    s.verify(N, lambda i: i, "replayed after kill -9")
    w.came_back("replay", N * 20)
    with Churn(w):
        s.overwrite(range(N))
    s.kill()
    w.remount()
    w.all_to_store("overwritten, after kill -9")
    s.start()
    s.verify(N, lambda i: i + N, "replayed, overwritten")
    w.came_back("replay", N * 20)
    s.leave()
    w.proc.stop()
    w.remount(kill=False)
    w.all_to_store("after a clean stop")
    s.start()
    s.verify(N, lambda i: i + N, "replayed after a clean stop")
    w.came_back("replay", N * 20)
    s.leave()
    w.proc.stop()
    enough = 2 * sum(len(record(i)) for i in range(N)) // 65536
    w.used(uploads=enough, evictions=enough)
    w.server_log_clean(r"^\[[^]]*\] (WARN|ERROR|FATAL)|Exception",
                       "Either no config or no quorum defined|Too busy to snap|maxCnxns is not configured")


run(main)
