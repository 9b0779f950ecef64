#!/usr/bin/env python3
"""NATS JetStream in a directory of a mount, flushing at each message, then as it comes (sync_interval). Three
streams: one that keeps all, one that keeps the last of each subject (its blocks are rewritten), one
bounded in bytes (its blocks go). Killed, everything evicted, replayed; purged and deleted while cold.
"""
import asyncio
import os

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from brokerkit import (FULL, MIB, Churn, Failed, all_there, check, free_port, number, record, run, step,
                       wait_for)

N = int(os.environ.get("BROKERS_N", 200000 if FULL else 4000))
KEYS = 50
BOUND = 2 * MIB


class Nats:
    def __init__(self, w, sync):
        self.w, self.port = w, free_port()
        self.data = os.path.join(w.data, f"sync-{sync}")
        self.conf = os.path.join(w.run, "nats.conf")
        with open(self.conf, "w") as f:
            f.write(f'listen: "127.0.0.1:{self.port}"\nserver_name: t\njetstream {{ store_dir: '
                    f'"{self.data}", sync_interval: {sync}, max_file_store: 8GB }}\n')
        self.start()

    def start(self):
        self.w.start([os.environ["NATS_SERVER"], "-c", self.conf], "Server is ready")

    def do(self, work, *args):
        async def session():
            nc = await nats.connect(f"nats://127.0.0.1:{self.port}", allow_reconnect=False)
            try:
                return await work(nc.jetstream(timeout=300), *args)
            finally:
                await nc.close()
        return asyncio.run(session())


async def create(js):
    for name, more in (("all", {"max_bytes": 1 << 32}), ("last", {"max_msgs_per_subject": 1}),
                       ("short", {"max_bytes": BOUND})):
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE, **more))


async def publish(js, stream, ids):
    """At most 100 in flight; each is acknowledged. A message that was already there is an error."""
    for k in range(ids.start, ids.stop, 100):
        acks = await asyncio.gather(*(js.publish(f"{stream}.{i % KEYS}", record(i))
                                      for i in range(k, min(k + 100, ids.stop))))
        if any(a.duplicate for a in acks):
            raise Failed("an acknowledgement says duplicate")


async def read(js, stream):
    """Every message of a stream, in order."""
    n = (await js.stream_info(stream)).state.messages
    sub = await js.pull_subscribe(f"{stream}.>", stream=stream,
                                  config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    got = []
    while len(got) < n:
        got += [m.data for m in await sub.fetch(min(500, n - len(got)), timeout=300)]
    await sub.unsubscribe()
    return got


def tail_there(what, got, n):
    """got are the last of the records 0..n-1, without a gap."""
    ids = [number(d) for d in got]
    check(f"{what}: the last {len(got)} of {n} records, byte for byte",
          got and ids == list(range(n - len(got), n)) and all(d == record(i) for i, d in zip(ids, got)),
          f"{ids[:3]}..{ids[-3:]}")


def verify(s, n, what):
    all_there(f"{what}: stream all", s.do(read, "all"), n)
    got = s.do(read, "last")
    check(f"{what}: stream last has the newest of each of {KEYS} subjects",
          sorted(got) == sorted(record(i) for i in range(n - KEYS, n)),
          f"{sorted(number(d) for d in got)[:5]}")
    got = s.do(read, "short")
    tail_there(f"{what}: stream short", got, n)
    check(f"{what}: stream short is nearly full", BOUND // 2 < sum(map(len, got)) <= BOUND, sum(map(len, got)))


def produce(s, ids):
    for stream in ("all", "last", "short"):
        s.do(publish, stream, ids)


def stream_files(s):
    """The server renames a deleted stream and removes it in the background."""
    return [p for p in (os.path.join(d, x) for d, ds, fs in os.walk(s.data) for x in ds + fs)
            if "/streams/" in p]


def life(w, sync):
    half = N // 2
    size = sum(len(record(i)) for i in range(half))
    s = Nats(w, sync)
    s.do(create)
    with Churn(w):
        produce(s, range(half))
    step(f"{half} records in each stream, sync {sync}")
    w.proc.kill()
    w.all_to_store("after kill -9")
    s.start()
    verify(s, half, f"replayed after kill -9 ({sync})")
    w.came_back("replay", size)
    with Churn(w):
        produce(s, range(half, N))
    w.proc.kill()
    w.remount()
    w.all_to_store("after the second kill -9")
    s.start()
    verify(s, N, f"replayed after the second kill -9 ({sync})")
    w.came_back("replay", 2 * size)
    code = w.proc.stop()
    check("clean shutdown", code == 0, code)
    w.remount(kill=False)
    w.all_to_store("after a clean shutdown")
    s.start()
    verify(s, N, f"replayed after a clean shutdown ({sync})")
    w.came_back("replay", 2 * size)
    w.tool("evict", w.mnt)

    async def drop(js):
        await js.purge_stream("all", keep=10)
        return await read(js, "all")
    tail_there("purged while evicted", s.do(drop), N)

    async def delete(js):
        for stream in ("all", "last", "short"):
            await js.delete_stream(stream)
    s.do(delete)
    check("the files of deleted streams go", wait_for(120, lambda: not stream_files(s)),
          stream_files(s)[:3])
    w.proc.stop()


def main(w):
    life(w, "always")
    life(w, "2m")
    enough = 4 * sum(len(record(i)) for i in range(N)) // 65536
    w.used(uploads=enough, evictions=enough)
    w.server_log_clean(r"\[(WRN|ERR|FTL)\]")


run(main, budget=8192 * MIB if FULL else 1024 * MIB)
