#!/usr/bin/env bash
# make_tls.sh DIR: a CA of its own, a broker's and a client's key and certificate for 127.0.0.1, and a password, in DIR. Idempotent.
# For a local broker's SASL_SSL listener; nothing here is for use on a network.
set -euo pipefail
DIR=${1:?folder}
command -v openssl >/dev/null || { echo "openssl is missing: it makes the certificates of the SASL_SSL listener" >&2; exit 1; }
umask 077
mkdir -p "$DIR" && cd "$DIR"
[ -f complete ] && exit 0
DAYS=3650

openssl_() { openssl "$@" >openssl.log 2>&1 || { cat openssl.log >&2; exit 1; }; }
key() { openssl_ genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"; }

key ca
openssl_ req -x509 -new -key ca.key -subj "/CN=spanloop local CA" -days $DAYS -out ca.crt
for name in broker client; do
  key $name
  openssl_ req -new -key $name.key -subj "/CN=$name" -out $name.csr
  openssl_ x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days $DAYS -out $name.crt \
    -extfile <(echo "subjectAltName=IP:127.0.0.1,DNS:localhost")
done
# Kafka takes key and chain from one PEM file.
cat broker.key broker.crt ca.crt >broker.pem
openssl rand -hex 16 | tr -d '\n' >password
rm -f ./*.csr ca.key ca.srl broker.key broker.crt openssl.log
# Last, so that an interrupted run is done again.
touch complete
