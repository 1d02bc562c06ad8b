#!/usr/bin/env bash
# stop_with_owner.sh DIR…: waits until its input ends, which is when the process that started it is gone, however that
# came; then stops what start_kafka.sh and start_registry.sh left in the folders.
set -euo pipefail
cat >/dev/null
for folder in "$@"; do
  bash "$(dirname "$0")/stop_kafka.sh" "$folder" || true
done
