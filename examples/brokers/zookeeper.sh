#!/usr/bin/env bash
# zookeeper.sh: ZooKeeper's snapshots and transaction logs on a mount. Its logs are sparse files of 64 MiB, of which
# only what is in them is stored. Ends with "identical" and exit code 0; 77 when it cannot be had.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
begin zookeeper

cat >zoo.cfg <<C
dataDir=$DATA/snap
dataLogDir=$DATA/log
clientPort=$PORT
clientPortAddress=127.0.0.1
admin.enableServer=false
C
mkdir "$DATA/snap" "$DATA/log"
start() {
    server java -Xmx256m -Dzookeeper.snapCount=1000 -cp "$ZOOKEEPER_CLASSPATH" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg
    ready 'PrepRequestProcessor .*started'
    ready 'ZooKeeper audit is'
}

show "ZooKeeper on it; 3,000 nodes"
start
client "$PORT" <<'P'
import sys
from kazoo.client import KazooClient
c = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=60)
c.start(60)
c.create("/orders")
for r in [c.create_async(f"/orders/{i}", b"order %d " % i * 20) for i in range(3000)]:
    r.get(60)
c.stop()
P
run find "mnt/zookeeper/log" -type f -printf '%s bytes long, %k KiB stored\t%P\n'
finish_server

show "Everything to the store"
evict_all
run "$SLUICEFS" umount mnt
mount_volume

show "ZooKeeper again: it replays its log from the store"
start
client "$PORT" <<'P'
import sys
from kazoo.client import KazooClient
c = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=60)
c.start(60)
for i, r in enumerate([c.get_async(f"/orders/{i}") for i in range(3000)]):
    assert r.get(60)[0] == b"order %d " % i * 20, i
print("3000 nodes: identical")
c.stop()
P
fetched
finish_server
run "$SLUICEFS" umount mnt
