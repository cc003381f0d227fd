#!/usr/bin/env bash
# Creates a certificate authority, a certificate per controller and broker, and ZooKeeper's password, and prints Secrets:
#
#   deploy/kubernetes/secrets.sh DIRECTORY [BROKERS] [CONTROLLERS] | kubectl apply -f -
#
# DIRECTORY keeps the files, the authority's key among them: protect it from other users. Each run issues the certificates
# again; they are valid for a year. A pod copies its certificate when it starts, so restart the pods after a renewal
# (kubectl -n paceline rollout restart statefulset/broker statefulset/controller).
# The client `admin` is a super user: DIRECTORY/client-admin.crt and .key. Needs `paceline`, which `make install` installs.
set -euo pipefail
directory=${1:?usage: secrets.sh DIRECTORY [BROKERS] [CONTROLLERS]}
brokers=${2:-3}
controllers=${3:-2}
namespace=${NAMESPACE:-paceline}
domain=$namespace.svc.cluster.local
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$here/../../.venv/bin:$PATH
if ! command -v paceline >/dev/null; then
  echo "there is no command paceline: run make install first" >&2
  exit 1
fi
umask 077
mkdir -p "$directory"

[ -f "$directory/ca.crt" ] || paceline certs ca "$directory" >&2
[ -s "$directory/zookeeper.password" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$directory/zookeeper.password"
for ((id = 0; id < brokers; id++)); do
  paceline certs node "$directory" "broker/$id" --host "broker-$id.broker.$domain" --host "bootstrap.$domain" \
    --host "bootstrap.$namespace" --host bootstrap --out "$directory" >&2
done
for ((id = 0; id < controllers; id++)); do
  paceline certs node "$directory" "controller/$((1000000 + id))" --host "controller-$id.controller.$domain" \
    --out "$directory" >&2
done
paceline certs node "$directory" gateway/1 --host "gateway.$domain" --host "gateway.$namespace" --host gateway \
  --out "$directory" >&2
[ -s "$directory/gateway.keys" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$directory/gateway.keys"
paceline certs client "$directory" admin --out "$directory" >&2

sh "$here/../../config/compose/zookeeper_login.sh" <"$directory/zookeeper.password" >"$directory/jaas.conf"

secret() { # secret NAME FILE...: print a Secret with these files
  local name=$1 file
  shift
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\ntype: Opaque\ndata:\n' \
    "$name" "$namespace"
  for file in "$@"; do
    printf '  %s: %s\n' "$file" "$(base64 -w0 "$directory/$file")"
  done
}

files=()
for ((id = 0; id < brokers; id++)); do files+=("broker-$id.crt" "broker-$id.key"); done
secret broker ca.crt zookeeper.password "${files[@]}"
files=()
for ((id = 1000000; id < 1000000 + controllers; id++)); do files+=("controller-$id.crt" "controller-$id.key"); done
secret controller ca.crt zookeeper.password "${files[@]}"
secret gateway ca.crt gateway-1.crt gateway-1.key gateway.keys
secret zookeeper jaas.conf
