#!/usr/bin/env bash
# start_kafka.sh PORT DIR [DIST]: one Kafka node (KRaft) on 127.0.0.1:PORT, controller on PORT+1, data in DIR. Idempotent.
# DIST is the folder that fetch.sh filled (default: .kafka beside infra/). KAFKA_EXTRA: further lines of server.properties.
# One of several: KAFKA_NODE (its number), KAFKA_VOTERS (number@host:port of each controller), KAFKA_REPLICAS, KAFKA_CLUSTER_ID.
# KAFKA_TLS: what make_tls.sh filled; then SASL_SSL (user spanloop; PLAIN, SCRAM-SHA-256, SCRAM-SHA-512) on PORT+2 as well.
# KAFKA_USERS: further users of it (PLAIN, the same password), who may do only what access rules allow; all others may do all.
set -euo pipefail
PORT=${1:?port}; DIR=${2:?folder}
HERE=$(cd "$(dirname "$0")" && pwd)
DIST=${3:-$HERE/../../.kafka}
NODE=${KAFKA_NODE:-1}; VOTERS=${KAFKA_VOTERS:-$NODE@127.0.0.1:$((PORT + 1))}; REPLICAS=${KAFKA_REPLICAS:-1}
# Of three replicas two must have a record before it counts as written.
MIN_ISR=$((REPLICAS > 1 ? REPLICAS - 1 : 1))
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
  LISTENERS="PLAINTEXT://127.0.0.1:$PORT"; SECURED=""; SCRAM=()
  if [ -n "${KAFKA_TLS:-}" ]; then
    PASSWORD=$(cat "$KAFKA_TLS/password")
    LISTENERS="$LISTENERS,SASL_SSL://127.0.0.1:$((PORT + 2))"
    LOGIN=org.apache.kafka.common.security
    USERS=""; for user in spanloop ${KAFKA_USERS:-}; do USERS="$USERS user_$user=\"$PASSWORD\""; done
    SECURED="sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=$LOGIN.plain.PlainLoginModule required$USERS;
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=$LOGIN.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=$LOGIN.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location=$KAFKA_TLS/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location=$KAFKA_TLS/ca.crt
listener.name.sasl_ssl.ssl.client.auth=requested"
    if [ -n "${KAFKA_USERS:-}" ]; then
      SECURED="$SECURED
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:spanloop;User:ANONYMOUS"
    fi
    for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
      SCRAM+=(--add-scram "$mechanism=[name=spanloop,password=$PASSWORD]")
    done
  fi
  umask 077  # the password is in the file
  # Limits: the largest topic takes 20 MiB records (dead-letters), and no request carries more than one of them.
  cat >"$DIR/server.properties" <<P
process.roles=broker,controller
node.id=$NODE
controller.quorum.voters=$VOTERS
listeners=$LISTENERS,CONTROLLER://127.0.0.1:$((PORT + 1))
advertised.listeners=$LISTENERS
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
$SECURED
log.dirs=$DIR/data
auto.create.topics.enable=false
default.replication.factor=$REPLICAS
min.insync.replicas=$MIN_ISR
offsets.topic.replication.factor=$REPLICAS
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$REPLICAS
transaction.state.log.min.isr=$MIN_ISR
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$REPLICAS
share.coordinator.state.topic.min.isr=$MIN_ISR
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
broker.session.timeout.ms=$((REPLICAS > 1 ? 6000 : 3000))
replica.lag.time.max.ms=10000
broker.heartbeat.interval.ms=500
metadata.log.segment.bytes=16777216
${KAFKA_EXTRA:-}
P
  JAVA=(java -Djava.awt.headless=true -Dlog4j2.configurationFile="$HERE/log4j2.properties" -cp "$DIST/broker/*")
  if [ ! -f "$DIR/data/meta.properties" ]; then
    ID=${KAFKA_CLUSTER_ID:-$(head -c16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=' | sed 's/^-/A/')}
    "${JAVA[@]}" -Xmx128m -XX:TieredStopAtLevel=1 kafka.tools.StorageTool format -t "$ID" -c "$DIR/server.properties" \
      ${SCRAM[@]+"${SCRAM[@]}"} >"$DIR/format.log" 2>&1 || { cat "$DIR/format.log" >&2; exit 1; }
  fi
  # A session of its own where there is setsid: Ctrl-C must not reach the broker before those who still write to it.
  SESSION=(env); if command -v setsid >/dev/null; then SESSION=(setsid); fi
  "${SESSION[@]}" nohup "${JAVA[@]}" -Xms128m "-Xmx${KAFKA_HEAP:-512m}" -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError \
    -XX:MaxDirectMemorySize=256m kafka.Kafka "$DIR/server.properties" </dev/null >"$DIR/kafka.log" 2>&1 &
  echo $! >"$DIR/pid"
fi
for _ in $(seq 1200); do
  listens && exit 0
  kill -0 "$(cat "$DIR/pid")" 2>/dev/null || break
  sleep 0.1
done
echo "Kafka did not start; the end of $DIR/kafka.log:" >&2
tail -20 "$DIR/kafka.log" >&2
exit 1
