#!/usr/bin/env bash
# rabbitmq.sh: a RabbitMQ stream on a mount: messages confirmed, old segments evicted under the running server, and
# the stream read again from its first offset. Ends with "identical" and exit code 0; 77 when it cannot be had.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
begin rabbitmq

# A node of its own beside any other: its name, its ports, its cookie; all data on the mount.
port() {
    "$BROKER_PYTHON" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
export HOME=$W RABBITMQ_NODENAME=example$PORT@localhost RABBITMQ_MNESIA_BASE=$DATA RABBITMQ_LOGS=- \
    RABBITMQ_LOG_BASE=$W RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$PORT \
    ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_PID_FILE=$W/pid \
    RABBITMQ_ENABLED_PLUGINS_FILE=$W/plugins RABBITMQ_CONFIG_FILE=$W/rabbitmq.conf
RABBITMQ_DIST_PORT=$(port)
ERL_EPMD_PORT=$(port)
export RABBITMQ_DIST_PORT ERL_EPMD_PORT
echo '[].' >plugins
echo 'disk_free_limit.absolute = 50MB' >rabbitmq.conf
end_node() {
    local code=$?
    [ -z "${PIDS:-}" ] || finish_server
    epmd -port "$ERL_EPMD_PORT" -kill >/dev/null 2>&1 || true
    (exit $code)
    end_world
}
trap end_node EXIT

show "RabbitMQ on it; 20,000 messages in a stream with segments of 1 MB, each confirmed"
server "$RABBITMQ_SERVER"
ready 'Server startup complete|completed with [0-9]+ plugins'
client "$PORT" <<'P'
import sys, pika
c = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1]), heartbeat=0))
ch = c.channel()
ch.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream",
                                                    "x-stream-max-segment-size-bytes": 1000000})
ch.confirm_delivery()
for i in range(20000):
    ch.basic_publish("", "orders", b"order %06d " % i * 10)
c.close()
P
run find "mnt/rabbitmq" -name '*.segment' -path '*stream*' -printf '%s\t%f\n'

show "Old bytes to the store, while the server runs"
evict_all

show "A consumer reads the stream from its first offset: what is not in the page cache comes from the store"
client "$PORT" <<'P'
import sys, pika
c = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1]), heartbeat=0))
ch = c.channel()
ch.basic_qos(prefetch_count=200)
n = 0
for m, _, body in ch.consume("orders", arguments={"x-stream-offset": "first"}):
    assert body == b"order %06d " % n * 10, n
    ch.basic_ack(m.delivery_tag)
    n += 1
    if n == 20000:
        break
c.close()
print(n, "messages replayed in order: identical")
P
fetched
finish_server
run "$SLUICEFS" umount mnt
