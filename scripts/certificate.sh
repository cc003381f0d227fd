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
if [ "${INSECURE:-0}" != 0 ]; then
  echo "a cluster without TLS (INSECURE=1) has no certificates" >&2
  exit 2
fi
parent=${PACELINE_CERTIFICATE_FOLDER:-build/compose}
umask 077
mkdir -p "$parent"
# A failure leaves the certificate that was issued earlier.
new=$(mktemp -d "$parent/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
echo "issuing a certificate for User:$name" >&2
if ! scripts/compose.sh run --rm -T --no-deps certificates sh /certificates.sh client "$name" >"$new/tar" 2>"$new/log"; then
  cat "$new/log" >&2
  exit 1
fi
tar -x -C "$new" -f "$new/tar"
rm "$new/log" "$new/tar"
folder=$parent/$name
rm -rf "$folder"
mv "$new" "$folder"
here=$(cd "$folder" && pwd)
brokers="localhost:${PORT_BROKER_1:-19091},localhost:${PORT_BROKER_2:-19092},localhost:${PORT_BROKER_3:-19093}"
cat >"$folder/env" <<END
export PACELINE_BOOTSTRAP_SERVERS='$brokers'
export PACELINE_SSL_CA_FILE='$here/ca.crt'
export PACELINE_SSL_CERTIFICATE_FILE='$here/client-$name.crt'
export PACELINE_SSL_KEY_FILE='$here/client-$name.key'
END
echo "User:$name: . $folder/env"
if [ "$name" != admin ]; then
  echo "User:$name may do nothing yet; a super user lets it read one topic: . $parent/admin/env;" \
    "paceline acl add $name --consumer --topic rides --group $name" >&2
fi
