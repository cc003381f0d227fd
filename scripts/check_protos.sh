#!/usr/bin/env bash
# Fails when the committed stubs are not what protos/ gives.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
scripts/gen_protos.sh "$fresh" "$fresh/google/rpc"
if ! diff -ru protos/google/rpc "$fresh/google/rpc"; then
  echo "protos/google/rpc is not what the locked googleapis-common-protos has: run make protos" >&2
  exit 1
fi
for package in v1 internal; do
  if ! diff -ru -x __pycache__ "services/paceline/$package" "$fresh/paceline/$package"; then
    echo "the stubs in services/paceline/$package are not what protos/ gives: run make protos" >&2
    exit 1
  fi
done
