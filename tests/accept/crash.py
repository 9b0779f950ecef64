#!/usr/bin/env python3
"""kill -9 at any moment loses nothing that write() acknowledged.

Part 1: four writers append through a device budget that is smaller than what they write, so segments
are sealed, uploaded, committed and evicted all the time; the daemon is killed again and again and
mounted again while the writers go on trying. After each mount every acknowledged byte is there; at the
end the queues run empty, nothing is left on the device, the bucket holds one object for each segment,
and the cold bytes are right.

Part 2: create, write without fsync, kill at once: name and bytes are there after the next mount.
"""
import contextlib
import os
import random
import sys
import time

from kit import FULL, KIB, MIB, Ack, World, check, files_under, finish, need, note, result, wait_for

need()
ROUNDS = int(os.environ.get("ACCEPT_ROUNDS", 50 if FULL else 15))
CREATES = int(os.environ.get("ACCEPT_CREATES", 1000 if FULL else 100))
TOTAL = (256 if FULL else 64) * MIB
SEED = int(os.environ.get("ACCEPT_SEED", 1))
rng = random.Random(SEED)
note(f"seed {SEED}")


def verify(w, k, start, ack):
    """The bytes from `start` are right, and none that was acknowledged before is missing."""
    acked = ack.acked
    p = w.records("verify", w.path(f"t{k}", "log"), "--seed", k + 1, "--from", start)
    code, out = result(p, 60)
    end = int(out.rsplit(" ", 1)[1]) if code == 0 else 0
    return code == 0 and end >= acked, end, f"topic {k}: exit {code}, acknowledged {acked}: {out}"


def kills(w):
    w.mount()
    acks, writers = [], []
    for k in range(4):
        os.mkdir(w.path(f"t{k}"))
        acks.append(Ack(w.outside(f"ack{k}")))
        writers.append(w.records("write", w.path(f"t{k}", "log"), "--seed", k + 1, "--bytes",
                                 TOTAL // 4, "--ack", acks[k].path, "--retry", 60,
                                 "--rate", TOTAL // 4 // max(1, ROUNDS // 2),
                                 *(["--sync", 50] if k == 0 else [])))
    checked = [0] * 4
    missing, slow = [], 0.0
    for _ in range(ROUNDS):
        time.sleep(rng.uniform(0.02, 0.8))
        w.kill()
        began = time.monotonic()
        w.mount()
        slow = max(slow, time.monotonic() - began)
        for k in range(4):
            if not os.path.exists(w.path(f"t{k}", "log")):
                if acks[k].acked:
                    missing.append(f"topic {k}: no file, {acks[k].acked} bytes acknowledged")
                continue
            ok, end, why = verify(w, k, max(0, checked[k] - 256 * KIB), acks[k])
            if not ok:
                missing.append(why)
            checked[k] = end
        if missing:
            break
    check(f"nothing acknowledged is missing after {ROUNDS} kills", not missing, "; ".join(missing))
    note(f"slowest mount after a kill {slow:.2f} s; {sum(a.acked for a in acks) // MIB} MiB written")
    for k, p in enumerate(writers):
        code, out = result(p, 120)
        check(f"writer {k} ends well", code == 0, f"exit {code}: {out}")
    return acks


def drain(w, acks):
    code, _ = w.stop()
    check("the daemon stops with exit code 0", code == 0, str(code))
    w.mount(seal_age="100ms", local_age="0s", delete_delay="0s", flush_interval="100ms")
    check("all queues run empty", wait_for(60, w.drained, 0.1), str(w.status()["queues"]))
    check("everything can be evicted", wait_for(30, w.cold, 0.1), str(w.status()["bytes"]))
    s = w.status()
    left = [p for p in files_under(w.device) if os.path.getsize(p) > 64 * KIB]
    check("no segment is left on the device", not left, f"{left[:5]}")
    check("the device is accounted as empty", s["devices"][0]["used"] == 0,
          str(s["devices"][0]["used"]))
    objects = [p for p in files_under(w.store_dir) if "/segments/" in p]
    check("one object for each segment, no orphan",
          wait_for(20, lambda: len([p for p in files_under(w.store_dir) if "/segments/" in p]) ==
                   w.status()["segments"]["remote"], 0.2),
          f"{len(objects)} objects, {s['segments']}")
    for k in range(4):
        ok, end, why = verify(w, k, 0, acks[k])
        check(f"the cold bytes of topic {k} are right", ok and end == TOTAL // 4, why)
    code, _ = w.stop()
    check("the daemon stops with exit code 0", code == 0, str(code))
    w.log_clean()


def creates(w):
    w.mount()
    lost = []
    slow = 0.0
    for n in range(CREATES):
        d = f"d{n % 7}"
        if n < 7:
            os.mkdir(w.path(d))
        body = rng.randbytes(rng.choice([1, 100, 4096, 70000]))
        fd = os.open(w.path(d, f"f{n}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.write(fd, body)
        if n % 3 == 0:
            os.rename(w.path(d, f"f{n}"), w.path(d, f"g{n}"))
        w.kill()
        with contextlib.suppress(OSError): # its connection is gone
            os.close(fd)
        began = time.monotonic()
        w.mount()
        slow = max(slow, time.monotonic() - began)
        name = w.path(d, f"{'g' if n % 3 == 0 else 'f'}{n}")
        try:
            with open(name, "rb") as f:
                got = f.read()
            if got != body or os.stat(name).st_mode & 0o777 != 0o640:
                lost.append(f"{name}: {len(got)} of {len(body)} bytes")
        except OSError as e:
            lost.append(str(e))
    names = sum(len(os.listdir(w.path(f"d{k}"))) for k in range(min(7, CREATES)))
    check(f"{CREATES} times create, write, kill: nothing is missing", not lost, "; ".join(lost[:3]))
    check("no name is missing or doubled", names == CREATES, f"{names} of {CREATES}")
    note(f"slowest mount {slow:.2f} s")
    w.log_clean()


if "creates" not in sys.argv:
    with World(budget=24 * MIB, segment_bytes="1M", pool="16M", seal_age="2s",
               delete_delay="1s") as world:
        drain(world, kills(world))
if "kills" not in sys.argv:
    with World(budget=256 * MIB, segment_bytes="1M", pool="16M") as world:
        creates(world)
finish()
