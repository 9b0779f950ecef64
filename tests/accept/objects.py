#!/usr/bin/env python3
"""An object, fetched by another S3 client, begins with exactly the file's bytes of its range.

The other client is curl. Every object under segments/ is named
segments/SPREAD/TOPIC/INODE/BASE-END.EPOCH.ATTEMPT; the ranges of a file's objects follow each other
without a gap from 0 to its size, and `sluicefs status` names the same keys. Also for the directory
store, whose objects are files of these names.
"""
import json
import os
import re
import subprocess
import urllib.parse
import xml.etree.ElementTree as ET

from kit import MIB, World, check, files_under, finish, need, result, stores, wait_for

need()
KEY = re.compile(r"^segments/[0-9a-f]{2}/([0-9a-f]{16})/([0-9a-f]{16})/"
                 r"([0-9a-f]{16})-([0-9a-f]{16})\.([0-9a-f]{16})\.([0-9a-f]{16})$")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Dir:
    def __init__(self, w):
        self.root = w.store_dir

    def list(self):
        return [os.path.relpath(p, self.root) for p in files_under(self.root)]

    def get(self, key):
        with open(os.path.join(self.root, key), "rb") as f:
            return f.read()


class Curl:
    """Prefix v of the bucket, by curl's own signing."""

    def __init__(self, w):
        self.base = w.server.endpoint + "/bucket"

    def _get(self, path):
        r = subprocess.run(["curl", "-sf", "--user", "testkey:testsecret", "--aws-sigv4",
                            "aws:amz:us-east-1:s3", "-H", f"x-amz-content-sha256: {EMPTY}",
                            self.base + path], capture_output=True, timeout=60)
        if r.returncode:
            raise RuntimeError(f"curl {path}: exit {r.returncode}")
        return r.stdout

    def list(self):
        tree = ET.fromstring(self._get("?list-type=2&prefix=v%2F"))
        ns = tree.tag.partition("}")[0] + "}"
        return [urllib.parse.unquote(k.text).removeprefix("v/") for k in tree.iter(ns + "Key")]

    def get(self, key):
        return self._get("/v/" + urllib.parse.quote(key))


def run(kind):
    with World(kind, budget=256 * MIB, segment_bytes="1M", pool="16M", delete_delay="0s") as w:
        w.mount()
        health = w.status()["store"]
        check(f"{kind}: the store is well after the first mount", health["state"] == "ok", str(health))
        sizes = {1: 5 * MIB + 12345, 2: 1, 3: MIB}
        for k, n in sizes.items():
            os.mkdir(w.path(f"t{k}"))
            code, out = result(w.records("write", w.path(f"t{k}", "log"), "--seed", k, "--bytes", n))
            check(f"{kind}: file {k} is written", code == 0, out)
        r = w.tool("upload", w.mnt)
        check(f"{kind}: sluicefs upload", r.returncode == 0, r.stderr)
        client = Dir(w) if kind == "dir" else Curl(w)
        keys = [k for k in client.list() if k.startswith("segments/")]
        bad = [k for k in keys if not KEY.match(k)]
        check(f"{kind}: keys are laid out as documented", keys and not bad, str(bad or keys)[:300])
        for k, n in sizes.items():
            name = w.path(f"t{k}", "log")
            ino = os.stat(name).st_ino
            with open(name, "rb") as f:
                data = f.read()
            mine = []
            for key in keys:
                m = KEY.match(key)
                if m and int(m[2], 16) == ino:
                    mine.append((int(m[3], 16), int(m[4], 16), key))
            mine.sort()
            at, wrong = 0, []
            for base, end, key in mine:
                body = client.get(key)
                if base != at or end <= base or body[:end - base] != data[base:end]:
                    wrong.append(key)
                if len(body) <= end - base:
                    wrong.append(f"{key}: no footer")
                at = end
            check(f"{kind}: the objects of file {k} are its bytes ({len(mine)} objects)",
                  at == n and not wrong, f"they end at {at} of {n}; wrong: {wrong[:3]}")
            r = w.tool("status", "--json", name)
            try:
                told = {s["key"] for s in json.loads(r.stdout)["segments"]}
            except (ValueError, KeyError, TypeError):
                told = {r.stdout[:300] + r.stderr[:200]}
            check(f"{kind}: sluicefs status names the same keys", told == {x[2] for x in mine},
                  str(told)[:400])
        check(f"{kind}: the queues are empty", wait_for(20, w.drained, 0.1), str(w.status()["queues"]))
        code, _ = w.stop()
        check(f"{kind}: the daemon stops with exit code 0", code == 0, str(code))
        w.log_clean()


for store in stores():
    run(store)
finish()
