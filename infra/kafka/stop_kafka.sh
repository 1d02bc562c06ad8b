#!/usr/bin/env bash
# stop_kafka.sh DIR [--wipe]: stops what start_kafka.sh or start_registry.sh left in DIR; --wipe removes its data too. Idempotent.
# STOP_TENTHS: tenths of a second after which it is killed (default: 100).
set -euo pipefail
DIR=${1:?folder}
if [ -s "$DIR/pid" ]; then
  PID=$(cat "$DIR/pid")
  # The pid may belong to another process by now: only what was started here is ended.
  ours() { case "$(ps -ww -o args= -p "$PID" 2>/dev/null)" in *"kafka.Kafka "* | *apicurio-registry*) ;; *) return 1 ;; esac; }
  if ours; then
    kill "$PID" 2>/dev/null || true
    kill -CONT "$PID" 2>/dev/null || true  # one that is held would not hear that it is to end
    for _ in $(seq "${STOP_TENTHS:-100}"); do ours || break; sleep 0.1; done
    if ours; then
      echo "process $PID of $DIR did not end within ${STOP_TENTHS:-100} tenths of a second and was killed" >&2
      kill -9 "$PID" 2>/dev/null || true
    fi
  fi
  rm -f "$DIR/pid"
fi
if [ "${2:-}" = --wipe ]; then rm -rf "$DIR/data"; fi
