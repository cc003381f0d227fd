#!/usr/bin/env bash
# scripts/certificate.sh NAME: issues a client certificate of the cluster in containers. Writes ca.crt, client-NAME.crt,
# client-NAME.key and env, which exports their paths and the brokers' addresses, to build/compose/NAME.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-}
if ! [[ "$name" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then
  echo "give the client a name of letters, digits, '.', '_' and '-': make certificate NAME=alice" >&2
  exit 2
fi
folder=${PACELINE_CERTIFICATE_FOLDER:-build/compose}/$name
umask 077
rm -rf "$folder"
mkdir -p "$folder"
if ! scripts/compose.sh run --rm -T --no-deps certificates sh /certificates.sh client "$name" >"$folder/tar" 2>"$folder/log"; then
  cat "$folder/log" >&2
  rm -rf "$folder"
  exit 1
fi
tar -x -C "$folder" -f "$folder/tar"
rm "$folder/log" "$folder/tar"
here=$(cd "$folder" && pwd)
brokers="localhost:${PORT_BROKER_1:-19091},localhost:${PORT_BROKER_2:-19092},localhost:${PORT_BROKER_3:-19093}"
cat >"$folder/env" <<END
export PACELINE_BOOTSTRAP_SERVERS='$brokers'
export PACELINE_SSL_CA_FILE='$here/ca.crt'
export PACELINE_SSL_CERTIFICATE_FILE='$here/client-$name.crt'
export PACELINE_SSL_KEY_FILE='$here/client-$name.key'
END
echo "User:$name: . $folder/env"
