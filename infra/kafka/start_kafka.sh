#!/usr/bin/env bash
# start_kafka.sh PORT DIR [DIST]: one Kafka node (KRaft) on 127.0.0.1:PORT, controller on PORT+1, data in DIR. Idempotent.
# DIST is the folder that fetch.sh filled (default: .kafka beside infra/). KAFKA_EXTRA: further lines of server.properties.
set -euo pipefail
PORT=${1:?port}; DIR=${2:?folder}
HERE=$(cd "$(dirname "$0")" && pwd)
DIST=${3:-$HERE/../../.kafka}
mkdir -p "$DIR"; DIR=$(cd "$DIR" && pwd)

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
alive() {
  [ -s "$DIR/pid" ] || return 1
  case "$(ps -ww -o args= -p "$(cat "$DIR/pid")" 2>/dev/null)" in *"kafka.Kafka $DIR/server.properties") ;; *) return 1 ;; esac
}

if alive && listens; then exit 0; fi
if ! alive && listens; then echo "port $PORT is taken by another process" >&2; exit 1; fi
[ -f "$DIST/complete" ] || { echo "no Kafka in $DIST: run $HERE/fetch.sh $DIST" >&2; exit 1; }

if ! alive; then
  # Limits: the largest topic takes 20 MiB records (dead-letters), and no request carries more than one of them.
  cat >"$DIR/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((PORT + 1))
listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$((PORT + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$PORT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$DIR/data
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
message.max.bytes=20971520
replica.fetch.max.bytes=22020096
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=2000
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.io.buffer.size=25165824
log.cleaner.backoff.ms=500
log.segment.bytes=67108864
log.index.size.max.bytes=1048576
log.retention.check.interval.ms=5000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
metadata.log.segment.bytes=16777216
${KAFKA_EXTRA:-}
P
  JAVA=(java -Djava.awt.headless=true -Dlog4j2.configurationFile="$HERE/log4j2.properties" -cp "$DIST/broker/*")
  if [ ! -f "$DIR/data/meta.properties" ]; then
    ID=$(head -c16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=' | sed 's/^-/A/')
    "${JAVA[@]}" -Xmx128m -XX:TieredStopAtLevel=1 kafka.tools.StorageTool format -t "$ID" -c "$DIR/server.properties" \
      >"$DIR/format.log" 2>&1 || { cat "$DIR/format.log" >&2; exit 1; }
  fi
  # A session of its own where there is setsid: Ctrl-C must not reach the broker before those who still write to it.
  SESSION=(env); if command -v setsid >/dev/null; then SESSION=(setsid); fi
  "${SESSION[@]}" nohup "${JAVA[@]}" -Xms128m "-Xmx${KAFKA_HEAP:-512m}" -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError \
    -XX:MaxDirectMemorySize=256m kafka.Kafka "$DIR/server.properties" </dev/null >"$DIR/kafka.log" 2>&1 &
  echo $! >"$DIR/pid"
fi
for _ in $(seq 600); do
  listens && exit 0
  kill -0 "$(cat "$DIR/pid")" 2>/dev/null || break
  sleep 0.1
done
echo "Kafka did not start; the end of $DIR/kafka.log:" >&2
tail -20 "$DIR/kafka.log" >&2
exit 1
