#!/usr/bin/env python3
"""kill -9 at any moment, again and again: nothing that any call acknowledged is lost, nothing is mixed up.

The workers, the judge and the movements between device and store are those of the power cuts (load.py,
cuts.py). Three kinds of death, as the seed chooses:

    daemon      the daemon only: its supervisor starts the next one, no worker sees an error
    all         the supervisor, and the daemon with it: the workers end, the volume is mounted again, and
                everything is exactly as acknowledged; the call that was cut off happened or not
    paused      the daemon is stopped for a moment (SIGSTOP), and goes on, or is killed while it is stopped

After each `all`, and at the end, sluicefs fsck says 0; from time to time everything must reach the store, no
queue item be left, and an offline fsck --deep say 0.

    kills.py [--long] [--profile topics,broker] [--kills N] [--seed N]

--kills is the number for all together (CI: 200, --long: 10,000).
"""
import argparse
import contextlib
import os
import random
import signal
import time

import cuts
import load
import memory
from cuts import WORKERS, Companion, some_settings, tiering
from kit import MIB, World, check, finish, need, note, wait_for
import kit

REMOUNT = 0.25   # share of deaths that take the supervisor with them
RENEW = 250


class Killed(World):
    def __init__(self, profile):
        super().__init__(budget=96 * MIB, profile=profile, pool="16M", slice="256K", window_min="256K",
                         segment_bytes="256K", mirror_below="0", restarts="1000")


class Run:
    def __init__(self, profile, seed):
        self.profile, self.seed = profile, seed
        self.world, self.workers, self.commands = None, None, None
        self.wrong, self.count = [], {"daemon": 0, "all": 0, "paused": 0}
        self.ops = self.drains = 0
        self.slowest = 0.0

    def fresh(self, rng):
        self.close()
        w = self.world = Killed(self.profile)
        w.mount(**some_settings(rng))
        self.supervised = wait_for(5, lambda: w.status().get("supervised"))
        self.memories = [memory.Memory(k, self.profile) for k in range(WORKERS)]
        for m in self.memories:
            os.mkdir(w.path(m.root))
            m.things[0] = memory.Dir(os.stat(w.path(m.root)).st_ino)
            m.base[m.root] = m.now[m.root] = 0
        self.start(rng)

    def start(self, rng):
        self.workers = load.Workers(self.world.mnt, self.memories, rng.getrandbits(60))
        self.commands = Companion(tiering, self.world.mnt, kit.SLUICEFS, rng.getrandbits(60))

    def close(self):
        if self.commands:
            self.commands.end()
        if self.world:
            self.world.close()
        if self.workers:
            self.workers.end()
        self.world = self.workers = self.commands = None

    # ---- deaths ----

    def signal_daemon(self, sig):
        pid = wait_for(20, self.world.daemon_pid, 0.005)
        if not pid:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
        return pid

    def next_daemon(self, old):
        began = time.monotonic()
        ok = wait_for(30, lambda: self.world.daemon_pid() not in (0, old) or not self.world.alive(), 0.005)
        self.slowest = max(self.slowest, time.monotonic() - began)
        return [] if ok and self.world.alive() else [f"no daemon took over: {self.world.log_tail(3)}"]

    def one(self, n):
        rng = random.Random(f"{self.seed}/{self.profile}/{n}")
        if n % RENEW == 0 or not self.world:
            self.fresh(rng)
        time.sleep(rng.uniform(0.02, 0.5))
        how = "all" if rng.random() < REMOUNT or not self.supervised else \
            rng.choice(["daemon", "daemon", "daemon", "paused"])
        self.count[how] += 1
        wrong = []
        if how == "all":
            wrong = self.die_and_mount(rng, drain=rng.random() < 0.2)
        else:
            pid = self.signal_daemon(signal.SIGSTOP if how == "paused" else signal.SIGKILL)
            if not pid:  # and 0 would be this process and all its siblings
                wrong = [f"no daemon is there: {self.world.log_tail(3)}"]
            elif how == "paused":
                time.sleep(rng.uniform(0.02, 0.4))
                how += " and killed" if rng.random() < 0.5 else ""
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if how != "paused" else signal.SIGCONT)
            if pid and how != "paused":
                wrong = self.next_daemon(pid)
            wrong += self.ended_early()
        self.report(n, how, wrong)

    def ended_early(self):
        """A worker ends only when it is asked to, or when a call failed."""
        early = [p for p in self.workers.all if self.workers.has_ended(p)]
        if not early:
            return []
        self.commands.end()
        home = self.workers.end()
        return [f"worker {m.number}: {m.error[1]}" if m else "a worker died"
                for m in home if m is None or m.error]

    def report(self, n, how, wrong):
        for x in wrong:
            note(f"WRONG {self.profile} seed {self.seed} kill {n} ({how}): {x}")
        if wrong:
            self.wrong += [f"{self.profile} seed {self.seed} kill {n} ({how}): {x}" for x in wrong]
            note("log: " + self.world.log_tail(12).replace("\n", "\n        "))
            self.close()

    def die_and_mount(self, rng, drain=False):
        w = self.world
        self.commands.end()
        home = cuts.die(w, self.workers)
        wrong = [f"worker {k} hangs or died" for k, m in enumerate(home) if m is None]
        wrong += [f"worker {m.number}: {m.error[1]}" for m in home
                  if m and m.error and m.error[0] not in load.GONE]
        if wrong:
            return wrong
        self.memories = home
        self.ops += sum(m.ops for m in home)
        began = time.monotonic()
        w.mount(**some_settings(rng))
        self.slowest = max(self.slowest, time.monotonic() - began)
        for m in home:
            m.ops = m.syncs = 0
            wrong += memory.judge(w.mnt, m, False)
        fsck = w.tool("fsck", w.mnt)
        if fsck.returncode:
            wrong.append(f"fsck: exit {fsck.returncode}: {(fsck.stdout + fsck.stderr).strip()[-600:]}")
        wrong += [x for x in w.log_text()[w.log_from:].splitlines() if kit.BAD_LOG.search(x)][:3]
        if not wrong and drain:
            wrong = cuts.Run.drain(self, rng)
        if not wrong:
            self.start(rng)
        return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--long", action="store_true")
    p.add_argument("--profile", default="topics,broker")
    p.add_argument("--kills", type=int)
    p.add_argument("--seed", type=int, default=int(os.environ.get("POWER_SEED", 1)))
    a = p.parse_args()
    need()
    total = a.kills or (10000 if a.long else 200)
    profiles = a.profile.split(",")
    note(f"seed {a.seed}, {total} kills")
    for profile in profiles:
        run, began, n = Run(profile, a.seed), time.monotonic(), total // len(profiles)
        try:
            for k in range(n):
                run.one(k)
                if len(run.wrong) > 20:
                    break
            if run.world and not run.wrong:
                rng = random.Random(a.seed)
                run.report(n, "all", run.die_and_mount(rng, drain=True))
        finally:
            run.close()
        check(f"{profile}: {sum(run.count.values())} kills {run.count}, {run.ops} operations: all is as acknowledged",
              not run.wrong and run.ops > 0, "\n    ".join(run.wrong[:10]))
        note(f"{(time.monotonic() - began) / n:.2f} s a kill, slowest mount or takeover {run.slowest:.2f} s, "
             f"{run.drains} times drained and checked offline")
    finish()


if __name__ == "__main__":
    main()
