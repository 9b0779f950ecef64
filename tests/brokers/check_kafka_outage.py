#!/usr/bin/env python3
"""Kafka on a mount whose S3 server goes away: a producer and a consumer of what is new go on as if nothing had
happened, the device takes what cannot be uploaded; a consumer from offset 0, most of which is only in the store, waits
and then reads all of it. When the server is back everything is uploaded and every acknowledged record is at
its offset, byte for byte.

The server is away for 20 s; --full: for 10 minutes (OUTAGE_SECONDS).
"""
import os
import threading
import time

from brokerkit import FULL, MIB, check, run, wait_for
from check_kafka import LITTLE, SMALL, Kafka
from check_kafka_kills import PARTITIONS, Reader, Writer, judge

SECONDS = int(os.environ.get("OUTAGE_SECONDS", 600 if FULL else 20))


def main(w):
    s = Kafka(w)
    s.create({"plain": (PARTITIONS, {**(SMALL if FULL else LITTLE)})})
    over, again = threading.Event(), threading.Event()
    writer = Writer(s, over)
    reader = Reader(s, over, writer, False)
    wait_for(300, lambda: writer.done > 4000)
    r = w.tool("evict", w.mnt)
    check("what there is can be evicted", r.returncode == 0, r.stderr.strip())
    w.server.kill()
    began, before = time.monotonic(), writer.done
    down = wait_for(120, lambda: w.status()["store"]["state"] == "down", 0.2)
    time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
    check("status tells that the store is down", down)
    check(f"{writer.done - before} records were produced while the store was away for "
          f"{time.monotonic() - began:.0f} s, the slowest acknowledged after {writer.slowest:.2f} s",
          writer.done > before and not writer.errors, writer.errors[:3])
    old = Reader(s, again, writer, True)      # what it asks for first is in the store only
    time.sleep(2)
    check("what is new is consumed meanwhile", wait_for(60, lambda: reader.done > before + 1000), reader.done)
    w.server.start()
    up = wait_for(120, lambda: w.status()["store"]["state"] == "ok", 0.2)
    check("status tells that it is back", up, w.status()["store"])
    check("who read from offset 0 goes on", wait_for(300, lambda: old.rounds > 0 or old.errors), old.done)
    over.set()
    writer.end(f"a producer of {writer.done} records")
    reader.end(f"a consumer of what is new, {reader.done} records,")
    again.set()
    old.end(f"a consumer from offset 0, {old.done} records,")
    judge(w, s, writer, reader)


if __name__ == "__main__":
    os.environ["BROKERS_STORE"] = os.environ.get("BROKERS_STORE") or "seaweed"
    run(main, "store|tier: |upload|similar lines", directory="", budget=1024 * MIB, pool="64M")
