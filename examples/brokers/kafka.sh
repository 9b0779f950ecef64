#!/usr/bin/env bash
# kafka.sh: one Kafka node (KRaft) with its log directory on a mount: a topic is filled by Kafka's own perf tool, its
# old segments are evicted under the running broker, and a consumer replays it from offset 0. Ends with
# "all records replayed" and exit code 0; 77 when Kafka cannot be had.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
begin kafka
RECORDS=50000

cat >log4j2.properties <<'C'
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = ${sys:level:-INFO}
rootLogger.appenderRef.out.ref = out
C
CONTROLLER=$("$BROKER_PYTHON" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >server.properties <<C
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER
advertised.listeners=PLAINTEXT://127.0.0.1:$PORT
controller.listener.names=CONTROLLER
log.dirs=$DATA
log.segment.bytes=4194304
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
C
kafka() {
    java -Xmx512m -Dlevel=ERROR -Dlog4j2.configurationFile=log4j2.properties \
        -cp "$KAFKA_CLASSPATH" "$@"
}

show "Kafka on it"
kafka kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c server.properties
export KAFKA_CLASSPATH
server bash -c 'exec java -Xmx512m -Dlog4j2.configurationFile=log4j2.properties \
    -cp "$KAFKA_CLASSPATH" kafka.Kafka server.properties'
ready 'Kafka Server started'

show "$RECORDS records of 1 KiB into three partitions, by Kafka's perf tool"
kafka org.apache.kafka.tools.TopicCommand --bootstrap-server "127.0.0.1:$PORT" --create --topic orders \
    --partitions 3
kafka org.apache.kafka.tools.ProducerPerformance --topic orders --num-records $RECORDS --record-size 1024 \
    --throughput -1 --bootstrap-server "127.0.0.1:$PORT" --command-property acks=all
run find mnt/kafka -path '*orders*' -name '*.log' -printf '%s\t%P\n'
run "$SLUICEFS" status mnt/kafka/orders-0/00000000000000000000.log

show "Everything that is written to the store, while the broker runs"
evict_all
run "$SLUICEFS" status mnt/kafka/orders-0/00000000000000000000.log

show "A consumer from offset 0: what is not in the page cache comes from the store"
kafka org.apache.kafka.tools.ConsumerPerformance --bootstrap-server "127.0.0.1:$PORT" --topic orders \
    --num-records $RECORDS --timeout 120000 | tee consumed
grep -E '^[0-9]{4}-' consumed | grep -q ", $RECORDS, "
fetched
finish_server
run "$SLUICEFS" umount mnt
echo "all records replayed ($RECORDS)"
