#!/usr/bin/env bash
# Little room: many small files do not use up a small device.
. "$(dirname "$0")/lib.sh"

# Each of them could grow to a segment: together far more than the device.
DEVICE=$W/device=48MiB
start_fs --set segment_bytes=4MiB --set seal_age=1h
check_py "1,500 files with 4 KiB each stay open on a device of twelve segments" '
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
for d in range(15): os.mkdir(f"{m}/{d}")
f = [os.open(f"{m}/{k % 15}/{k}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600) for k in range(1500)]
for part in range(4):
    for k, x in enumerate(f): assert os.write(x, b"%01024d" % k) == 1024
for k, x in enumerate(f): assert open(f"{m}/{k % 15}/{k}", "rb").read() == b"%01024d" % k * 4, k
'
check "nobody was slowed or refused" test "$(stat_of writes_slowed_total) $(stat_of writes_refused_total)" = "0 0"
finish
