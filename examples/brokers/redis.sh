#!/usr/bin/env bash
# redis.sh: Redis with an append-only file on a mount: written, stopped, evicted, and loaded again from the
# object store. Ends with "identical" and exit code 0; 77 when Redis cannot be had.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
begin redis

start() {
    server "$REDIS_SERVER" --port "$PORT" --bind 127.0.0.1 --dir "$DATA" --appendonly yes \
        --appendfsync everysec --save ''
    ready 'Ready to accept connections'
}
digest() {
    client "$PORT" <<'P'
import hashlib, sys, redis
r = redis.Redis(port=int(sys.argv[1]))
keys = sorted(r.scan_iter(count=1000))
print(len(keys), hashlib.sha256(b"".join(k + v for k, v in zip(keys, r.mget(keys)))).hexdigest())
P
}

show "Redis on it; 20,000 keys, and its append-only file rewritten once"
start
client "$PORT" <<'P'
import sys, time, redis
r = redis.Redis(port=int(sys.argv[1]))
for k in range(0, 20000, 500):
    with r.pipeline(transaction=False) as q:
        for i in range(k, k + 500):
            q.set(f"key:{i}", f"value of {i}, " * 10)
        q.execute()
r.bgrewriteaof()
while r.info("persistence")["aof_rewrite_in_progress"]:
    time.sleep(0.1)
P
run find "mnt/redis" -type f -size +0 -printf '%s\t%P\n'
before=$(digest)
finish_server

show "Everything to the store: Redis is down, nothing is left on the device"
evict_all
run "$SLUICEFS" umount mnt
mount_volume

show "Redis again: it loads its file from the store"
start
after=$(digest)
fetched
finish_server
run "$SLUICEFS" umount mnt
[ "$before" = "$after" ]
echo "all keys before and after: identical ($after)"
