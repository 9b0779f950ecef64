#!/usr/bin/env python3
"""A device that answers EIO for a while: what fsync acknowledged before, meanwhile and afterwards is there.

The device directory is on a file system on cutdisk, the state directory elsewhere. At a moment that the seed
chooses requests fail for a while: only writes of data (the file system goes on and calls the pages
clean that could not be written), or writes, flushes, everything (the file system gives up and has to be mounted
anew). Workers end at their first error. When the device is well again every file is flushed; where that
succeeds, all of it counts as acknowledged. Then the daemon is killed and the file system mounted anew, so
that only what is on the disk is left.

    eio.py [--rounds N] [--fs ext4,xfs] [--profile topics,broker] [--seed N]
"""
import argparse
import contextlib
import errno
import os
import random
import sys
import time

import disks
import load
import memory
from cuts import CUTDISK, WORKERS, Companion, PowerWorld, some_settings, tiering, write_back
from kit import check, finish, note, skip
import kit


def sync_again(w, m):
    """Files whose flush succeeds now; how many did, and how many did not."""
    good = bad = 0
    for name in sorted(m.now):
        key = m.now[name]
        if isinstance(m.things[key], memory.Dir):
            continue
        try:
            fd = os.open(w.path(name), os.O_RDONLY)
        except OSError:
            bad += 1
            continue
        try:
            os.fsync(fd)
            m.covered(key)
            good += 1
        except OSError:
            bad += 1
        finally:
            os.close(fd)
    return good, bad


def one(fstype, profile, seed):
    rng = random.Random(f"{fstype}/{profile}/{seed}")
    wrong = []
    with disks.Rig(CUTDISK, fstype) as rig:
        rig.make()
        rig.mount()
        w = PowerWorld(rig, profile)
        w.state = w.outside("state")
        try:
            w.mount(**some_settings(rng))
            memories = [memory.Memory(k, profile) for k in range(WORKERS)]
            for m in memories:
                os.mkdir(w.path(m.root))
                m.things[0] = memory.Dir(os.stat(w.path(m.root)).st_ino)
                m.base[m.root] = m.now[m.root] = 0
            workers = load.Workers(w.mnt, memories, rng.getrandbits(60))
            others = [Companion(write_back, [w.device], rng.getrandbits(60)),
                      Companion(tiering, w.mnt, kit.SLUICEFS, rng.getrandbits(60))]
            time.sleep(rng.uniform(0.2, 0.6))
            what = rng.choice(["data", "data", "data", "write", "flush", "all"])
            rig.order(f"eio {what}")
            time.sleep(rng.uniform(0.05, 0.4))
            rig.order("eio none")
            time.sleep(rng.uniform(0, 0.3))
            for o in others:
                o.end()
            home = workers.end()
            if None in home:
                return what, ["a worker hangs or died"], 0, 0
            wrong += [f"worker {m.number}: {m.error[1]}" for m in home if m.error and not m.error[0]]
            synced = [sync_again(w, m) for m in home]
            if not w.alive():
                wrong.append("the daemon is gone")
            w.kill()
            rig.unmount()
            rig.mount()
            w.mount(**some_settings(rng))
            wrong += [x for m in home for x in memory.judge(w.mnt, m, True)]
            if wrong:
                note("log: " + w.log_tail(20).replace("\n", "\n        "))
            return what, wrong, sum(g for g, _ in synced), sum(b for _, b in synced)
        finally:
            w.close()


def raises(fn):
    try:
        fn()
    except OSError as e:
        return e.errno in (errno.EIO, errno.EROFS)
    return False


def without_device(fstype):
    """A failed device takes no segments until the next mount. With no other, what would have to come back from
    the store for a write has no place: an error, and nobody waits."""
    with disks.Rig(CUTDISK, fstype) as rig:
        rig.make()
        rig.mount()
        w = PowerWorld(rig, "broker")
        w.state = w.outside("state")
        try:
            w.mount(seal_age="10m", local_age="24h")
            cold, data = w.path("cold"), os.urandom(600000)
            for path in (cold, w.path("hot")):
                with open(path, "wb") as f:
                    f.write(data)
                    os.fsync(f.fileno())
            gone = w.tool("evict", cold, seconds=60)
            check(f"{fstype}: evicted", gone.returncode == 0, gone.stderr)
            rig.order("eio data")
            with contextlib.suppress(OSError), open(w.path("hot"), "ab", buffering=0) as f:
                f.write(b"\1" * 300000)
                check(f"{fstype}: an fsync fails", raises(lambda: os.fsync(f.fileno())))
            rig.order("eio none")
            began = time.monotonic()
            with open(cold, "r+b", buffering=0) as f:
                check(f"{fstype}: so does a write into an evicted segment", raises(lambda: f.write(b"x")))
            took = time.monotonic() - began
            check(f"{fstype}: soon ({took:.1f} s)", took < 15)
            with open(cold, "rb") as f:
                check(f"{fstype}: it is read all the same", f.read() == data)
            w.kill()
            w.mount()
            with open(cold, "r+b", buffering=0) as f:
                check(f"{fstype}: a new mount takes the write", f.write(b"x") == 1)
        finally:
            w.close()


def flushed(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def another_daemon(fstype):
    """That a flush failed outlives the daemon and its supervisor, also when the file system of the state directory
    was mounted anew meanwhile: the device's was not, and the kernel calls its lost pages clean."""
    with disks.Rig(CUTDISK, fstype) as rig:
        rig.make()
        rig.mount()
        w = PowerWorld(rig, "topics")
        w.state = w.outside("state")
        os.mkdir(w.state)
        disks.run("mount", "--bind", w.state, w.state)
        try:
            w.mount(seal_age="10m")
            path = w.path("f")
            with open(path, "wb", buffering=0) as f:
                f.write(b"\1" * 100000)
                os.fsync(f.fileno())
                rig.order("eio data")
                f.write(b"\2" * 100000)
                check(f"{fstype}: an fsync fails", raises(lambda: os.fsync(f.fileno())))
                rig.order("eio none")
            w.kill()
            w.mount()
            check(f"{fstype}: so does that of the next daemon", not flushed(path))
            w.kill()
            disks.run("umount", w.state)
            disks.run("mount", "--bind", w.state, w.state)
            w.mount()
            check(f"{fstype}: and after the state directory was mounted anew", not flushed(path))
            w.kill()
            rig.unmount()
            rig.mount()
            w.mount()
            with open(path, "rb") as f:
                left = f.read()
            check(f"{fstype}: with the device mounted anew it is what was flushed, {len(left)} bytes",
                  flushed(path) and len(left) >= 100000 and (b"\1" * 100000 + b"\2" * 100000).startswith(left))
        finally:
            w.close()
            disks.unmount(w.state)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--fs", default="ext4,xfs")
    p.add_argument("--profile", default="topics,broker")
    p.add_argument("--seed", type=int, default=int(os.environ.get("POWER_SEED", 1)))
    a = p.parse_args()
    if not kit.SLUICEFS or not os.access(kit.SLUICEFS, os.X_OK):
        sys.exit("SLUICEFS does not name the program")
    why = disks.skip_reason(CUTDISK)
    if why:
        skip(why)
    note(f"seed {a.seed}")
    for fs in a.fs.split(","):
        why = disks.fs_skip_reason(fs)
        if why:
            note(f"{fs} is left out: {why}")
            continue
        another_daemon(fs)
        if "broker" in a.profile:
            without_device(fs)
        for profile in a.profile.split(","):
            bad, good, refused = [], 0, 0
            for k in range(a.rounds):
                what, wrong, ok, no = one(fs, profile, a.seed * 1000 + k)
                good, refused = good + ok, refused + no
                bad += [f"seed {a.seed} round {k} (EIO for {what}): {x}" for x in wrong]
            check(f"{fs}, {profile}: {a.rounds} times EIO for a while: nothing that fsync acknowledged is lost",
                  not bad, "\n    ".join(bad[:8]))
            check(f"{fs}, {profile}: {good} files could be flushed afterwards, {refused} could not", good > 0)
    finish()


if __name__ == "__main__":
    main()
