#!/usr/bin/env bash
# Writers on a device that is nearly full are slowed down; none waits longer than ten seconds, however many
# they are, and one that is killed ends at once. The store is away, so no room is made. What waits is on the
# device, not in memory.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='tier: (upload of|manifest of topic|volume .* cannot be read)'
DEVICE=$W/device=64MiB
SANITIZED=$(grep -acE '__[at]san_init' "$SLUICEFS") # whose memory is mostly the sanitizer's
export SANITIZED
start_fs --set segment_bytes=1MiB --set slow_spread=1h
mv "$W/store" "$W/store.away"
check_py "appends go on until writers are slowed, and stop when the first is" '
import json, re, threading
def memory():
    pid = json.load(open(m + "/.sluice/status.json"))["pid"]
    return int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) >> 10
def slowed():
    return int(re.search(r"writes_slowed_total (\d+)", open(m + "/.sluice/stats").read())[1])
done = threading.Event()
def fill():
    f = os.open(m + "/fill", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    while slowed() == 0:
        os.write(f, bytes(256 << 10))
    done.set()
before = memory()
t = threading.Thread(target=fill, daemon=True); t.start()
assert done.wait(100), "nobody was slowed"
assert os.path.getsize(m + "/fill") > 50 << 20
assert os.environ["SANITIZED"] != "0" or memory() - before < 16, f"what waits for the store is kept in memory: {before} MiB, then {memory()}"
'
check_py "a slowed writer ends within a second of a fatal signal" '
import re, signal, subprocess, time
def slowed():
    return int(re.search(r"writes_slowed_total (\d+)", open(m + "/.sluice/stats").read())[1])
for i in range(3):
    before = slowed()
    p = subprocess.Popen(["dd", "if=/dev/zero", "of=" + m + f"/killed{i}", "bs=64K", "count=1", "oflag=append",
                          "conv=notrunc"], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while slowed() == before and p.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    assert p.poll() is None, "it did not wait"
    began = time.monotonic()
    p.kill(); p.wait(20)
    assert time.monotonic() - began < 1.5, time.monotonic() - began
    assert os.path.getsize(m + f"/killed{i}") == 65536 # it was written: only the answer waited
'
check_py "of twenty writers none waits for the others" '
import subprocess, time
began = time.monotonic()
p = [subprocess.Popen(["dd", "if=/dev/zero", "of=" + m + f"/many{i}", "bs=4K", "count=1"], stderr=subprocess.DEVNULL)
     for i in range(20)]
for x in p:
    assert x.wait(30) == 0
took = time.monotonic() - began
assert 5 < took < 14, took
'
mv "$W/store.away" "$W/store"
check "the store is back: writers go on" wait_for 60 python3 - "$MNT" <<'PY'
import os, sys, time
began = time.monotonic()
with open(sys.argv[1] + "/after", "ab") as f:
    f.write(b"x")
sys.exit(time.monotonic() - began > 0.5)
PY
finish
