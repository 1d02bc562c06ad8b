#!/usr/bin/env bash
# fetch.sh [DIR]: gets Apache Kafka and the Apicurio registry from Maven into DIR (default: .kafka beside infra/). Idempotent.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
DIR=${1:-$HERE/../../.kafka}
APICURIO=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all

command -v java >/dev/null || { echo "java is missing: install a Java 17 runtime" >&2; exit 1; }
mkdir -p "$DIR" && DIR=$(cd "$DIR" && pwd)
[ -f "$DIR/complete" ] && exit 0
command -v mvn >/dev/null || { echo "mvn is missing: install Maven, or copy a filled folder to $DIR" >&2; exit 1; }

# Maven writes target folders beside the pom: it gets a copy, since HERE may be read-only.
cp "$HERE/pom.xml" "$DIR/pom.xml"
mvn -q -B -f "$DIR/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$DIR/broker"
mvn -q -B -f "$DIR/pom.xml" dependency:copy -Dartifact="$APICURIO" -DoutputDirectory="$DIR/download"
mkdir -p "$DIR/registry"
tar -xzf "$DIR"/download/*.tar.gz -C "$DIR/registry"
rm -rf "$DIR/download"
# Last, so that an interrupted fetch is done again.
touch "$DIR/complete"
echo "fetched into $DIR"
