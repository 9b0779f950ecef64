#!/usr/bin/env python3
"""Four writers append several times the device budget while four followers read behind them.

At all times the devices hold no more than their budget (as du sees it and as the status says), no
append fails, and every follower sees the stream without a gap. Afterwards everything is evicted, and
the cold files are what was written. Runs on each kind of store that is here.
"""
import hashlib
import os
import subprocess
import sys
import time

from kit import (FULL, GIB, MIB, TOOLS, Ack, Sampler, World, check, du, finish, need, note, result,
                 size, stores, wait_for)

need()
TOTAL = int(os.environ.get("ACCEPT_BYTES", 2 * GIB if FULL else 192 * MIB))
BUDGET = int(os.environ.get("ACCEPT_BUDGET", 512 * MIB if FULL else 64 * MIB))
LIMIT = 1200 if FULL else 180


def expected(seed, n):
    h = hashlib.md5()
    with subprocess.Popen([os.path.join(TOOLS, "records"), "gen", "--seed", str(seed), "--bytes",
                           str(n)], stdout=subprocess.PIPE) as p:
        while chunk := p.stdout.read(MIB):
            h.update(chunk)
    return h.hexdigest()


def md5(path):
    h = hashlib.md5()
    with open(path, "rb") as f:
        while chunk := f.read(MIB):
            h.update(chunk)
    return h.hexdigest()


def run(kind):
    settings = {} if FULL else {"segment_bytes": "4M", "pool": "32M", "slice": "1M"}
    with World(kind, budget=BUDGET, seal_age="5s", delete_delay="1s", **settings) as w:
        w.mount()
        each = TOTAL // 4
        peak = {"du": 0, "status": 0}

        def look():
            peak["du"] = max(peak["du"], du(w.device))
            peak["status"] = max(peak["status"], sum(d["used"] for d in w.status()["devices"]))

        sampler = Sampler(look)
        began = time.monotonic()
        writers, followers = [], []
        for k in range(4):
            os.mkdir(w.path(f"t{k}"))
            ack = Ack(w.outside(f"ack{k}"))
            writers.append(w.records("write", w.path(f"t{k}", "log"), "--seed", k + 1, "--bytes",
                                     each, "--ack", ack.path))
            followers.append(w.records("follow", w.path(f"t{k}", "log"), "--seed", k + 1, "--ack",
                                       ack.path, "--until-ack", ack.path, "--strict-ack",
                                       "--timeout", LIMIT))
        for k, p in enumerate(writers):
            code, out = result(p, LIMIT)
            check(f"{kind}: no append of writer {k} fails", code == 0, f"exit {code}: {out}")
        took = time.monotonic() - began
        for k, p in enumerate(followers):
            code, out = result(p, LIMIT)
            check(f"{kind}: follower {k} saw every byte in order", code == 0, f"exit {code}: {out}")
        m = w.metrics()
        note(f"{size(TOTAL)} in {took:.1f} s; writes slowed "
             f"{m.get('writes_slowed_total', 0):.0f}, refused {m.get('writes_refused_total', 0):.0f}")
        code, _ = w.stop()
        check(f"{kind}: the daemon stops with exit code 0", code == 0, str(code))
        w.mount(seal_age="100ms", local_age="0s", flush_interval="100ms")
        check(f"{kind}: everything reaches the store and can be evicted",
              wait_for(120, w.cold, 0.2), f"{w.status()['bytes']} {w.status()['queues']}")
        sampler.stop()
        # A directory's own blocks and what a file system adds to a file are no bytes of segments.
        check(f"{kind}: the devices stay within their budget", peak["du"] <= BUDGET,
              f"peak {size(peak['du'])} of {size(BUDGET)}")
        check(f"{kind}: so says the status", 0 < peak["status"] <= BUDGET, size(peak["status"]))
        note(f"peak on the device: du {size(peak['du'])}, status {size(peak['status'])}")
        began = time.monotonic()
        for k in range(4):
            check(f"{kind}: cold file {k} is what was written",
                  md5(w.path(f"t{k}", "log")) == expected(k + 1, each))
        note(f"read cold in {time.monotonic() - began:.1f} s")
        check(f"{kind}: reading brought nothing onto the devices", w.status()["bytes"]["local"] == 0,
              str(w.status()["bytes"]))
        code, _ = w.stop()
        check(f"{kind}: the daemon stops with exit code 0", code == 0, str(code))
        w.log_clean()


for store in sys.argv[1:] if sys.argv[1:] and "--full" not in sys.argv else stores():
    run(store)
finish()
