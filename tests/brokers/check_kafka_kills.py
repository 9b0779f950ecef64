#!/usr/bin/env python3
"""Kafka produces and consumes while the daemon below its log directory is killed again and again, the
supervisor stays, and everything is sealed, uploaded and evicted: a producer, a consumer of what is new and one that
reads from offset 0 over and over, mostly from the store. No client sees an error, nor does the broker; in the end
every acknowledged record is at its offset, byte for byte.

A kill every 15 s, three times; --full: every 20 s for 10 minutes (KILLS_SECONDS, KILLS_EVERY).
"""
import os
import signal
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from brokerkit import FULL, MIB, Churn, check, note, number, record, run, wait_for
from check_kafka import LITTLE, SMALL, Kafka, log_clean

SECONDS = int(os.environ.get("KILLS_SECONDS", 600 if FULL else 45))
EVERY = int(os.environ.get("KILLS_EVERY", 20 if FULL else 15))
PARTITIONS = 3
RATE = 400          # records a second, of 2 KiB in the mean


class Client(threading.Thread):
    def __init__(self, s, over):
        super().__init__(daemon=True)
        self.s, self.over = s, over
        self.errors, self.done = [], 0
        self.conf = {**s.client, "error_cb": lambda e: self.errors.append(str(e))}
        self.start()

    def run(self):
        try:
            self.work()
        except Exception as e:  # whatever it is, it is told
            self.errors.append(repr(e))

    def end(self, what):
        self.join(900)
        check(f"{what} saw no error", not self.is_alive() and not self.errors, self.errors[:3])


class Writer(Client):
    """Each record once, without retries of the client: an error of the broker is an error here."""

    def __init__(self, s, over):
        self.acked, self.slowest = {}, 0.0
        super().__init__(s, over)

    def work(self):
        p = Producer({**self.conf, "acks": "all", "linger.ms": 5, "retries": 0, "enable.idempotence": False,
                      "request.timeout.ms": 60000, "delivery.timeout.ms": 60000})
        began = time.monotonic()

        def answered(err, m):
            if err:
                self.errors.append(str(err))
                return
            self.slowest = max(self.slowest, m.latency())
            self.acked[number(m.value())] = (m.partition(), m.offset())
        while not self.over.is_set():
            p.produce("plain", record(self.done), key=b"%d" % self.done, on_delivery=answered)
            self.done += 1
            p.poll(0)
            ahead = self.done / RATE - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        if p.flush(120):
            self.errors.append("not all was sent")


class Reader(Client):
    """again: from offset 0, and so again when the end is reached; else what is new, until all was read."""

    def __init__(self, s, over, writer, again):
        self.writer, self.again, self.rounds = writer, again, 0
        super().__init__(s, over)

    def work(self):
        c = Consumer({**self.conf, "group.id": "reader", "enable.auto.commit": False, "check.crcs": True,
                      "enable.partition.eof": self.again})
        parts = [TopicPartition("plain", q, 0) for q in range(PARTITIONS)]
        c.assign(parts)
        ends = 0
        while not self.finished():
            for m in c.consume(500, 1):
                if m.error() and m.error().name() == "_PARTITION_EOF":
                    ends += 1
                elif m.error():
                    self.errors.append(str(m.error()))
                elif m.value() != record(number(m.value())):
                    self.errors.append(f"record {number(m.value())} differs")
                else:
                    self.done += 1
            if ends >= PARTITIONS:
                ends, self.rounds = 0, self.rounds + 1
                self.s.w.forget_pages()
                c.assign(parts)
        c.close()

    def finished(self):
        if self.errors:
            return True
        return self.over.is_set() and (self.again or
                                       not self.writer.is_alive() and self.done >= len(self.writer.acked))


def kill_daemons(w):
    """One each EVERY seconds; each is replaced. Longest time until the next one was there."""
    slowest, kills, end = 0.0, 0, time.monotonic() + SECONDS
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(EVERY, left))
        old = w.daemon_pid()
        if not old:
            break
        began = time.monotonic()
        os.kill(old, signal.SIGKILL)
        if not wait_for(60, lambda o=old: w.daemon_pid() not in (0, o) or not w.alive(), 0.005):
            break
        wait_for(60, lambda: os.path.isdir(w.data) and w.status(), 0.005)
        slowest = max(slowest, time.monotonic() - began)
        kills += 1
    check(f"the daemon was killed {kills} times and replaced each time", w.alive() and kills >= SECONDS // EVERY,
          w.log_tail(3))
    return slowest


def judge(w, s, writer, reader):
    """Nothing was lost on the way, and all of it comes back from the store."""
    check("all that was produced was acknowledged", len(writer.acked) == writer.done)
    check("the consumer of what is new read all of it", reader.done == writer.done, reader.done)
    check("the broker lives", w.proc.p.poll() is None)
    w.proc.stop()
    w.all_to_store("in the end")
    s.start()
    s.verify("plain", writer.acked, "in the end")
    size = sum(len(record(i)) for i in range(1000)) * writer.done // 1000
    w.came_back("replay", size)
    note(f"{size / MIB:.0f} MiB of records")
    w.proc.stop()
    log_clean(w)


def main(w):
    check("the mount is supervised", wait_for(10, lambda: w.status().get("supervised")))
    s = Kafka(w)
    s.create({"plain": (PARTITIONS, {**(SMALL if FULL else LITTLE)})})
    over = threading.Event()
    writer = Writer(s, over)
    readers = [Reader(s, over, writer, False), Reader(s, over, writer, True)]
    with Churn(w):
        slowest = kill_daemons(w)
        over.set()
        writer.end(f"a producer of {writer.done} records")
        readers[0].end(f"a consumer of what is new, {readers[0].done} records,")
        readers[1].end(f"a consumer from offset 0, {readers[1].done} records in {readers[1].rounds} rounds,")
    note(f"longest from a kill to the next daemon's answer {slowest:.2f} s, slowest acknowledgement "
         f"{writer.slowest:.2f} s")
    judge(w, s, writer, readers[0])


if __name__ == "__main__":
    KILLED = "the daemon was ended by signal 9"
    if FULL:
        run(main, KILLED, directory="", budget=1024 * MIB, segment_bytes="1M", pool="64M")
    else:
        run(main, KILLED, directory="")
