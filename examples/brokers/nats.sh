#!/usr/bin/env bash
# nats.sh: NATS JetStream on a mount: messages published, everything evicted under the running server, and all
# of it replayed from the object store. Ends with "identical" and exit code 0; 77 when it cannot be had.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
begin nats

show "NATS with its JetStream store on the mount; 20,000 messages"
cat >nats.conf <<C
listen: "127.0.0.1:$PORT"
jetstream { store_dir: "$DATA", max_file_store: 1GB }
C
server "$NATS_SERVER" -c nats.conf
ready 'Server is ready'
client "$PORT" <<'P'
import asyncio, sys, nats
async def main():
    nc = await nats.connect(f"nats://127.0.0.1:{sys.argv[1]}")
    js = nc.jetstream(timeout=60)
    await js.add_stream(name="orders", subjects=["orders.>"])
    for k in range(0, 20000, 200):
        await asyncio.gather(*(js.publish(f"orders.{i % 5}", b"order %06d " % i * 10) for i in range(k, k + 200)))
    await nc.close()
asyncio.run(main())
P
run find "mnt/nats" -name '*.blk' -printf '%s\t%P\n'

show "Old bytes to the store, while the server runs"
evict_all

show "A new consumer replays everything: what is not in the page cache comes from the store"
client "$PORT" <<'P'
import asyncio, sys, nats
from nats.js.api import AckPolicy, ConsumerConfig
async def main():
    nc = await nats.connect(f"nats://127.0.0.1:{sys.argv[1]}")
    sub = await nc.jetstream(timeout=60).pull_subscribe(
        "orders.>", stream="orders", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    n = 0
    while n < 20000:
        for m in await sub.fetch(500, timeout=60):
            assert m.data == b"order %06d " % n * 10, n
            n += 1
    print(n, "messages replayed in order: identical")
    await nc.close()
asyncio.run(main())
P
fetched
finish_server
run "$SLUICEFS" umount mnt
