#!/usr/bin/env python3
"""Shows that the power cuts can find something: what cutdisk does to sectors, and that a disk which
acknowledges flushes without carrying them out is caught by the judge on every file system."""
import os
import random
import sys
import time

import cuts
import disks
import load
import memory
from cuts import CUTDISK, Companion, die, write_back
from kit import check, finish, note, skip
import kit

SECTOR, BLOCK = 512, 4096


class Raw:
    """The first disk of a rig as a file, without a file system."""

    def __init__(self, atom=512, count=1):
        self.rig = disks.Rig(CUTDISK, "ext4", disks=count, size=1 << 20, atom=atom)
        self.fds = [os.open(os.path.join(self.rig.cut_dir, f"disk{k}"), os.O_RDWR) for k in range(count)]

    def write(self, byte, at=0, n=SECTOR, disk=0):
        os.pwrite(self.fds[disk], bytes([byte]) * n, at)

    def read(self, at=0, n=SECTOR, disk=0):
        return os.pread(self.fds[disk], n, at)

    def cut(self, seed, policy=""):
        self.rig.order(f"cut {seed} {policy}")
        self.rig.order("on")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for fd in self.fds:
            os.close(fd)
        self.rig.close()


def fails(fn):
    try:
        fn()
    except OSError:
        return True
    return False


def what_a_cut_does():
    with Raw() as d:
        d.write(1)
        os.fsync(d.fds[0])
        d.write(2)
        d.write(3)
        check("a reader sees the newest bytes", d.read() == b"\3" * SECTOR)
        d.cut(1, "none")
        check("what was not flushed is lost", d.read() == b"\1" * SECTOR)
        seen, order, torn = set(), set(), set()
        for seed in range(60):
            d.write(1)
            os.fsync(d.fds[0])
            d.write(2)
            d.write(3)
            d.cut(seed, "atoms")
            seen.add(d.read()[0])
            d.write(0, 0, 3 * BLOCK)
            os.fsync(d.fds[0])
            for k in (1, 2):
                d.write(k, k * BLOCK)
            d.cut(seed, "writes")
            order.add((d.read(BLOCK)[0], d.read(2 * BLOCK)[0]))
            d.write(7, 0, BLOCK)
            d.cut(seed, "atoms")
            torn.add(len(set(d.read(0, BLOCK))))
            d.write(0, 0, BLOCK)
            os.fsync(d.fds[0])
        check("an older unflushed version comes back, too", seen == {1, 2, 3}, str(seen))
        check("writes are reordered", order == {(0, 0), (1, 0), (0, 2), (1, 2)}, str(order))
        check("a write is torn", 2 in torn, str(torn))
        got = set()
        for seed in range(40):
            d.write(0, 0, 3 * BLOCK)
            os.fsync(d.fds[0])
            for k in (1, 2):
                d.write(k, k * BLOCK)
            d.cut(seed, "prefix")
            got.add((d.read(BLOCK)[0], d.read(2 * BLOCK)[0]))
        check("a prefix is one", (0, 2) not in got and len(got) > 1, str(got))
        d.write(5)
        os.fsync(d.fds[0])
        d.rig.order("cutat 2 1 none")
        d.write(6)
        check("a cut comes at the request that was named", fails(lambda: d.write(6)))
        check("without power nothing answers", fails(d.read) and fails(lambda: os.fsync(d.fds[0])))
        d.rig.order("on")
        check("and what was flushed is there afterwards", d.read() == b"\5" * SECTOR)
        d.rig.order("lie")
        d.write(6)
        os.fsync(d.fds[0])
        d.cut(1, "none")
        check("a lie is one", d.read() == b"\5" * SECTOR)
        d.rig.order("eio flush")
        d.write(6)
        failed = fails(lambda: os.fsync(d.fds[0]))
        d.rig.order("eio write")
        check("chosen requests fail", failed and fails(lambda: d.write(7)) and d.read()[0] == 6)
        d.rig.order("eio none")
        os.fsync(d.fds[0])
        check("and work again", d.read()[0] == 6)
    with Raw(atom=BLOCK, count=2) as d:
        torn = set()
        for seed in range(40):
            d.write(0, 0, BLOCK)
            os.fsync(d.fds[0])
            d.write(7, 0, BLOCK)
            d.cut(seed, "atoms")
            torn.add(len(set(d.read(0, BLOCK))))
        check("a disk that writes blocks whole tears none", torn == {1}, str(torn))
        d.write(1, 0, SECTOR, 1)
        os.fsync(d.fds[0])
        d.cut(1, "none")
        check("a flush is of its own disk only", d.read(0, SECTOR, 1) == bytes(SECTOR))


def caught(fstype, profile, seed):
    """(what the judge says about a disk that lies, None), or (None, why it could say nothing)."""
    rng = random.Random(seed)
    run = cuts.Run(fstype, profile, seed)
    try:
        run.fresh(rng)
        w = run.world
        run.rig.order("lie")
        workers = load.Workers(w.mnt, run.memories, seed)
        pages = Companion(write_back, [w.device, w.state], seed)
        time.sleep(0.7 * seed)  # long enough for some fsync on a machine of any speed
        run.rig.order(f"cut {seed} none")
        pages.end()
        home = die(w, workers)
        if None in home:
            return None, "a worker died"
        if not sum(m.syncs for m in home):
            return None, "nothing was flushed in this time"
        run.memories = home
        try:
            run.rig.power_on()
        except disks.Unmountable as e:
            return None, str(e)
        try:
            w.mount()
        except RuntimeError as e:
            return f"no mount: {e}"[:160], None
        wrong = [x for m in run.memories for x in memory.judge(w.mnt, m, True)]
        return (wrong[0][:160], None) if wrong else (None, "the judge finds nothing wrong")
    finally:
        run.close()


def main():
    if not kit.SLUICEFS or not os.access(kit.SLUICEFS, os.X_OK):
        sys.exit("SLUICEFS does not name the program")
    why = disks.skip_reason(CUTDISK)
    if why:
        skip(why)
    what_a_cut_does()
    for fs in ("ext4", "xfs", "btrfs"):
        why = disks.fs_skip_reason(fs)
        if why:
            note(f"{fs} is left out: {why}")
            continue
        for profile in ("topics", "broker"):
            said, why_not = None, []
            for seed in range(1, 7):
                said, why = caught(fs, profile, seed)
                if said:
                    break
                why_not.append(why)
            check(f"{fs}, {profile}: a disk that lies about flushes is caught", bool(said), "; ".join(why_not))
            note(said or "never")
    finish()


if __name__ == "__main__":
    main()
