#!/usr/bin/env bash
# start_registry.sh PORT DIR [DIST]: Apicurio Registry on 127.0.0.1:PORT, schemas in DIR, Confluent's routes at /apis/ccompat/v7. Idempotent.
# DIST is the folder that fetch.sh filled (default: .kafka beside infra/).
set -euo pipefail
PORT=${1:?port}; DIR=${2:?folder}
HERE=$(cd "$(dirname "$0")" && pwd)
DIST=${3:-$HERE/../../.kafka}
mkdir -p "$DIR"; DIR=$(cd "$DIR" && pwd)

answers() {
  (exec 3<>"/dev/tcp/127.0.0.1/$PORT" && printf 'GET /apis/ccompat/v7/subjects HTTP/1.0\r\n\r\n' >&3 &&
    read -r status <&3 && [[ $status == *" 200"* ]]) 2>/dev/null
}
alive() {
  [ -s "$DIR/pid" ] || return 1
  case "$(ps -ww -o args= -p "$(cat "$DIR/pid")" 2>/dev/null)" in *"quarkus.http.port=$PORT "*) ;; *) return 1 ;; esac
}

if alive && answers; then exit 0; fi
if ! alive && (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
  echo "port $PORT is taken by another process" >&2; exit 1
fi
[ -f "$DIST/complete" ] || { echo "no registry in $DIST: run $HERE/fetch.sh $DIST" >&2; exit 1; }

if ! alive; then
  SESSION=(env); if command -v setsid >/dev/null; then SESSION=(setsid); fi
  "${SESSION[@]}" nohup java -Xms64m "-Xmx${REGISTRY_HEAP:-320m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dquarkus.http.host=127.0.0.1 "-Dquarkus.http.port=$PORT" -Dquarkus.log.level=WARN -Dapicurio.log.level=WARN \
    -Dquarkus.http.access-log.enabled=false -Dquarkus.banner.enabled=false \
    -Dapicurio.storage.kind=sql -Dapicurio.storage.sql.kind=h2 "-Dapicurio.datasource.url=jdbc:h2:file:$DIR/data/schemas" \
    -jar "$(ls "$DIST"/registry/*runner.jar)" </dev/null >"$DIR/registry.log" 2>&1 &
  echo $! >"$DIR/pid"
fi
for _ in $(seq 1200); do
  answers && exit 0
  kill -0 "$(cat "$DIR/pid")" 2>/dev/null || break
  sleep 0.1
done
echo "the registry did not start; the end of $DIR/registry.log:" >&2
tail -20 "$DIR/registry.log" >&2
exit 1
