#!/usr/bin/env python3
"""Bad input: one clear line, the right exit code, and nothing is changed.

Exit codes: 1 the store, a device or an operation failed; 2 wrong usage or configuration; 4 refused, in
use, foreign or conflicting. The tree below the world's directory is compared before and after.
"""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

from kit import SUPPORT, World, check, files_under, finish, have_server, need, note, skip, snapshot

need()
# What servers keep for themselves, and the scratch space of the directory store.
IGNORED = ("versitygw/", "seaweed/", "store/.tmp/")


def refused(w, what, want, *words, args=None, env=None, seconds=60, same=True, roots=None):
    """The mount is refused with that code, by one line with these words, and leaves no trace."""
    roots = roots or [w.w]
    before = [snapshot(r) for r in roots]
    cmd = args or w.command()
    try:
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=seconds,
                           env={**w.env, **(env or {})}, stdin=subprocess.DEVNULL)
        code, err = r.returncode, r.stderr
    except subprocess.TimeoutExpired:
        code, err = None, ""
    w.detach()
    lines = [x for x in err.splitlines() if x.strip()]
    after = [snapshot(r) for r in roots]
    check(f"{what}: exit code {want}", code == want, f"{code}: {err[:500]}")
    ours = [x for x in lines if x.startswith("sluicefs: ")]
    check(f"{what}: one line", len(lines) == 1 and len(ours) == 1, err[:800])
    line = (ours or [""])[0]
    check(f"{what}: it names {', '.join(words)}", all(x.lower() in line.lower() for x in words), line)
    if same:
        changed = [k for b, a in zip(before, after) for k in b.keys() | a.keys()
                   if b.get(k) != a.get(k) and not k.startswith(IGNORED)]
        check(f"{what}: nothing is changed", not changed, str(sorted(changed)[:10]))
    note(line or "(no line)")


def local():
    with World() as w:
        refused(w, "unknown setting", 2, "segmentbytes", "segment_bytes",
                args=w.command(segmentbytes="1M"))
        refused(w, "size without sense", 2, "pool", args=w.command(pool="many"))
        refused(w, "size too large", 2, "pool", "8", args=w.command(pool="900000T"))
        refused(w, "size too small", 2, "segment_bytes", args=w.command(segment_bytes="1"))
        refused(w, "percent above 100", 2, "evict_from", args=w.command(evict_from="150"))
        refused(w, "stops above its start", 2, "evict_to",
                args=w.command(evict_from="50", evict_to="80"))
        with open(w.outside("conf"), "w") as f:
            f.write("[volume]\npool = 64M\nsegment_byte = 1M\n")
        refused(w, "typo in the file", 2, "conf:3", "segment_bytes",
                args=w.command()[:-2] + ["--config", w.outside("conf"), "-f", w.mnt])
        refused(w, "no such mount point", 2, "nowhere",
                args=w.command()[:-1] + [w.outside("nowhere")])
        refused(w, "unknown kind of store", 2, "ftp",
                args=[x.replace("dir://", "ftp://") if x == w.url else x for x in w.command()])
        refused(w, "unknown option", 2, "--storage", args=[*w.command(), "--storage", "x"])
        os.makedirs(w.outside("real"))
        os.symlink("real", w.outside("link"))
        for what, args in (
                ("store is the state directory", [x.replace(w.store_dir, w.state) for x in w.command()]),
                ("store below a device", [x.replace(w.store_dir, w.device + "/x") for x in w.command()]),
                ("state below a device", [x.replace(w.state, w.device + "/x") for x in w.command()]),
                ("store is the state directory, through a link",
                 [x.replace(w.store_dir, w.outside("link") + "/store") for x in w.command()[:-2]] +
                 ["--state", os.path.join(w.w, "real/store"), "-f", w.mnt]),
                ("device is the state directory", [x.replace(w.device, w.state) for x in w.command()])):
            refused(w, what, 2, "outside", args=args)
        refused(w, "log into nowhere", 2, "log_file", "nowhere",
                args=[*w.command()[:-1], "--log", w.outside("nowhere/log"), w.mnt])
        open(w.outside("file"), "w").close()
        refused(w, "device is a file", 1, "file",
                args=[x.replace(w.device, w.outside("file")) for x in w.command()])
        shutil.rmtree(w.store_dir)
        with open(w.store_dir, "w") as f:
            f.write("not a directory")
        refused(w, "store is a file", 1, "store")


def unwritable():
    with World() as w:
        if os.geteuid() == 0:
            ro = w.outside("ro")
            os.mkdir(ro)
            if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", ro],
                              capture_output=True).returncode:
                skip("no tmpfs can be mounted for unwritable and full devices")
            try:
                refused(w, "unwritable device", 1, "ro",
                        args=[x.replace(w.device, ro) for x in w.command()])
                refused(w, "unwritable state directory", 1, "ro",
                        args=[x.replace(w.state, ro + "/state") for x in w.command()])
            finally:
                subprocess.run(["umount", "-l", ro])
            full = w.outside("full")
            os.mkdir(full)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", full])
            try:
                with contextlib.suppress(OSError), open(os.path.join(full, "fill"), "wb") as f:
                    while True:
                        f.write(b"x" * 4096)
                        f.flush()
                refused(w, "full device", 1, "full",
                        args=[x.replace(w.device, os.path.join(full, "device"))
                              for x in w.command()])
            finally:
                subprocess.run(["umount", "-l", full])


def foreign():
    with World() as w:
        os.mkdir(w.state)
        with open(os.path.join(w.state, "precious"), "w") as f:
            f.write("of somebody else")
        refused(w, "foreign state directory", 4, w.state)
        refused(w, "foreign state directory, in the background", 4, w.state,
                args=[x for x in w.command() if x != "-f"])
        shutil.rmtree(w.state)
        os.mkdir(w.device)
        with open(os.path.join(w.device, "precious"), "w") as f:
            f.write("of somebody else")
        refused(w, "foreign device directory", 4, w.device)
        shutil.rmtree(w.device)
        w.mount()
        w.stop()
        os.rename(w.store_dir, w.store_dir + ".away")
        os.mkdir(w.store_dir)
        w.mount(seal_age="100ms")
        with open(w.path("late"), "w") as f:
            f.write("while the store's disk is not mounted")
        time.sleep(1.5)
        put = [p for p in files_under(w.store_dir) if "/segments/" in p or "/topics/" in p]
        check("a store directory that is not mounted: no object is put into its mount point",
              not put, str(put[:5]))
        w.stop()
        shutil.rmtree(w.store_dir)
        os.rename(w.store_dir + ".away", w.store_dir)
        refused(w, "state of one volume, store of another", 4, "store",
                args=[x.replace("/store", "/other") if x == w.url else x for x in w.command()])
        refused(w, "another profile", 4, "profile",
                args=[*w.command()[:-2], "--profile", "broker", "-f", w.mnt])
        second = w.outside("second")
        refused(w, "new state for a store that has a volume", 4, "store",
                args=[x.replace(w.state, second).replace(w.device, second + "-device")
                      for x in w.command()])
        w.mount()
        with open(w.path("file"), "w") as f:
            f.write("still here")
        os.mkdir(w.outside("mnt2"))
        args = [*w.command()[:-1], w.outside("mnt2")]
        r = subprocess.run(args, capture_output=True, text=True, timeout=30, env=w.env)
        check("second mount of the same state: exit code 4", r.returncode == 4, r.stderr)
        check("second mount of the same state: one line", len(r.stderr.splitlines()) == 1, r.stderr)
        check("second mount of the same state: the first one is not fenced", not w.status()["fenced"])
        note(r.stderr.strip())
        copy = w.outside("copy")
        shutil.copytree(w.state, copy, ignore=shutil.ignore_patterns("*.sock"))
        r = subprocess.run([x.replace(w.state, copy) for x in args], capture_output=True, text=True,
                           timeout=30, env=w.env)
        check("a copy of its state beside it: exit code 4, one line that names the device",
              r.returncode == 4 and len(r.stderr.splitlines()) == 1 and w.device in r.stderr,
              f"{r.returncode} {r.stderr}")
        note(r.stderr.strip())
        r = subprocess.run(w.command(), capture_output=True, text=True, timeout=30, env=w.env)
        check("mount on a mount: exit code 4, one line",
              r.returncode == 4 and len(r.stderr.splitlines()) == 1, f"{r.returncode} {r.stderr}")
        note(r.stderr.strip())
        with open(w.path("file")) as f:
            check("the first mount goes on", f.read() == "still here")
        w.stop()


def remote():
    kind = next((k for k in ("versitygw", "seaweed") if have_server(k)), None)
    if not kind:
        skip("no S3 server is here (see tests/support/s3servers.sh)")
    with World(kind) as w:
        good = w.url
        roots = [w.w]
        w.url = good.replace("s3://bucket/", "s3://nobucket/")
        refused(w, "wrong bucket", 1, "nobucket", roots=roots)
        w.url = good
        refused(w, "wrong key", 1, "key", env={"AWS_ACCESS_KEY_ID": "nobody"}, roots=roots)
        refused(w, "wrong secret", 1, "signature",
                env={"AWS_SECRET_ACCESS_KEY": "wrong"}, roots=roots)
        refused(w, "no credentials", 1, "no credentials",
                env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": w.outside("home"),
                     "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": ""}, roots=roots)
        if kind == "versitygw":
            w.url = good.replace("us-east-1", "eu-nowhere-9")
            refused(w, "wrong region", 1, "region", roots=roots)
            w.url = good
        w.url = "s3://bucket/v?endpoint=http://127.0.0.1:1&region=us-east-1"
        w.settings["store_timeout"] = "3s"
        refused(w, "unreachable endpoint", 1, "127.0.0.1", roots=roots, seconds=20)
        w.url = "s3://bucket/v?endpoint=http://no.such.host.invalid&region=us-east-1"
        refused(w, "unknown host", 1, "no.such.host.invalid", roots=roots, seconds=20)


def expired():
    """A strict server that finds the token too old, and one that wants another region."""
    with World() as w:
        fake = subprocess.Popen([sys.executable, os.path.join(SUPPORT, "fakes3.py"), "--bucket",
                                 "bucket", "--access-key", "testkey", "--secret-key", "testsecret",
                                 "--region", "us-east-1", "--until-eof"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        try:
            port, control = map(int, fake.stdout.readline().split()[1::2])
            w.url = f"s3://bucket/v?endpoint=http://127.0.0.1:{port}&region=eu-nowhere-9"
            refused(w, "wrong region", 1, "region")
            w.url = f"s3://bucket/v?endpoint=http://127.0.0.1:{port}&region=us-east-1"
            order = json.dumps({"count": 0, "status": 400, "code": "ExpiredToken",
                                "message": "The provided token has expired."}).encode()
            urllib.request.urlopen(f"http://127.0.0.1:{control}/orders", order, timeout=10).close()
            refused(w, "expired token", 1, "expired", env={"AWS_SESSION_TOKEN": "old"})
            with urllib.request.urlopen(f"http://127.0.0.1:{control}/state", timeout=10) as f:
                check("the bucket stays empty", not json.load(f)["objects"])
        finally:
            fake.stdin.close()
            fake.wait(10)


PART = os.environ.get("ACCEPT_STORES", "")      # dir or s3; both without it
if PART != "s3":
    local()
    foreign()
    expired()
    unwritable()
if PART != "dir":
    remote()
finish()
