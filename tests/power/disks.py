"""Disks whose power can be cut: cutdisk, loop devices over its files, a file system on each.

A Rig is the hardware: `disks` many disks on one power supply. Everything it made is gone after close(),
also when a process under test left something open. `skip_reason` tells what is missing here.
"""
import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import time

MIB = 1 << 20
SIZE = 400 * MIB  # XFS is made from 300 MiB on

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-J", "size=16"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-K", "-s", "4096"],
}
# What a disk must write whole for the file system alone to survive every cut. XFS believes the number at
# the head of a block of metadata for all of it, btrfs has superblocks of 4 KiB.
ATOM = {"ext4": 512, "xfs": 4096, "btrfs": 4096}


def run(*args, check=True, seconds=60):
    r = subprocess.run(args, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    if check and r.returncode:
        raise RuntimeError(f"{' '.join(args)}: exit {r.returncode}: {(r.stderr or r.stdout).strip()[:400]}")
    return r


def skip_reason(cutdisk):
    """Why nothing can be done here, or None."""
    if not cutdisk or not os.access(cutdisk, os.X_OK):
        return "no cutdisk (TOOLS)"
    if os.geteuid() != 0:
        return "needs root: loop devices and mounts"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    for program in ("losetup", "mount", "umount"):
        if not shutil.which(program):
            return f"no {program}"
    if run("losetup", "-f", check=False).returncode:
        return "no loop device is free"
    return None


def fs_skip_reason(fstype):
    if not shutil.which(MKFS[fstype][0]):
        return f"no {MKFS[fstype][0]}"
    with open("/proc/filesystems") as f:
        if fstype not in f.read().split():
            return f"the kernel has no {fstype}"
    return None


def unmount(path, lazy_after=5.0):
    """True when it is unmounted; who keeps it busy gets some time to end."""
    end = time.monotonic() + lazy_after
    while os.path.ismount(path) or in_mounts(path):
        if not run("umount", path, check=False).returncode:
            continue
        if time.monotonic() > end:
            run("umount", "-l", path, check=False)
            return False
        time.sleep(0.005)
    return True


def in_mounts(path):
    with open("/proc/self/mounts") as f:
        return any(line.split(" ")[1] == path for line in f)


class Unmountable(Exception):
    """The file system below did not survive, which no program above it can be blamed for."""


class Rig:
    def __init__(self, cutdisk, fstype, disks=1, size=SIZE, atom=None):
        self.fstype = fstype
        self.w = tempfile.mkdtemp(prefix="sluice-power.", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.cut_dir = os.path.join(self.w, "cut")
        self.dirs = [os.path.join(self.w, f"fs{k}") for k in range(disks)]
        self.loops = [None] * disks
        self.closed = False
        self.daemon = None
        atexit.register(self.close)
        os.mkdir(self.cut_dir)
        images = []
        for k in range(disks):
            os.mkdir(self.dirs[k])
            images.append(os.path.join(self.w, f"image{k}"))
            with open(images[k], "wb") as f:
                f.truncate(size)
        self.daemon = subprocess.Popen([cutdisk, self.cut_dir, str(atom or ATOM[fstype]), *images],
                                       stdin=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not os.path.exists(os.path.join(self.cut_dir, "ctl")):
            if self.daemon.poll() is not None or time.monotonic() > end:
                raise RuntimeError("cutdisk did not come up")
            time.sleep(0.005)

    def order(self, words):
        with open(os.path.join(self.cut_dir, "ctl"), "w") as f:
            f.write(words)

    def state(self):
        """(state, counts)"""
        # One read: a second one, of a file that has grown meanwhile, would add a piece of other numbers.
        with open(os.path.join(self.cut_dir, "ctl"), "rb", buffering=0) as f:
            word, *counts = f.read(4096).decode().split()
        return word, {k: int(v) for k, v in (c.split("=") for c in counts)}

    def dead(self):
        return self.state()[0] == "dead"

    def attach(self):
        for k, loop in enumerate(self.loops):
            if loop is None:
                self.loops[k] = run("losetup", "-f", "--show", "--direct-io=on",
                                    os.path.join(self.cut_dir, f"disk{k}")).stdout.strip()

    def detach(self):
        for k, loop in enumerate(self.loops):
            if loop:
                run("losetup", "-d", loop, check=False)
                self.loops[k] = None

    def make(self):
        """New, empty file systems."""
        self.attach()
        for loop in self.loops:
            run(*MKFS[self.fstype], loop)

    def mount(self):
        self.attach()
        for loop, where in zip(self.loops, self.dirs):
            r = run("mount", "-t", self.fstype, "-o", "noatime", loop, where, check=False)
            if r.returncode:
                self.unmount()
                raise Unmountable(f"{self.fstype}: {(r.stderr or r.stdout).strip().splitlines()[:1]}")

    def unmount(self):
        ok = all([unmount(d) for d in self.dirs])
        self.detach()
        return ok

    def power_on(self):
        """After a cut: what the kernel kept of the disks goes, power is back, the file systems recover."""
        if not self.unmount():
            raise RuntimeError(f"a file system stays busy: {users_of(self.dirs)}")
        self.order("on")
        self.mount()

    def close(self):
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self.order("on")
        self.unmount()
        unmount(self.cut_dir)
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
        unmount(self.cut_dir)
        if not any(in_mounts(d) for d in [self.cut_dir, *self.dirs]):
            shutil.rmtree(self.w, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def users_of(dirs):
    """Processes with something open below the directories, for a message."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if any(target.startswith(d + "/") for d in dirs):
                        with open(f"/proc/{pid}/comm") as f:
                            out.append(f"{pid} {f.read().strip()} {target}")
    return out[:5]
