#!/usr/bin/env bash
# Fails when the committed stubs differ from freshly generated stubs.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
scripts/gen_protos.sh "$fresh" "$fresh/google/rpc"
if ! diff -ru protos/google/rpc "$fresh/google/rpc"; then
  echo "protos/google/rpc differs from the locked googleapis-common-protos: run make protos" >&2
  exit 1
fi
if ! .venv/bin/python scripts/errors_table.py --check; then
  echo "the table of errors in docs/clients.md or protos/paceline/v1/errors.json is out of date: run make protos" >&2
  exit 1
fi
for package in v1 internal; do
  if ! diff -ru -x __pycache__ "services/paceline/$package" "$fresh/paceline/$package"; then
    echo "the stubs in services/paceline/$package are out of date: run make protos" >&2
    exit 1
  fi
done
