#!/usr/bin/env bash
# Writes the Go stubs from protos/ into clients/go/gen, or into the folder given.
#
#   scripts/gen_go.sh          write clients/go/gen
#   scripts/gen_go.sh --check  change nothing: exit 1 if clients/go/gen is out of date
#
# Needs Go and buf (extra `dev`). The two plugins are pinned and hashed in scripts/go-tools. Only the public package is
# generated: paceline.internal.v1 is for calls between brokers and controllers.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/clients/go/gen

command -v go >/dev/null || { echo "the Go stubs need the Go toolchain (1.25 or newer)" >&2; exit 1; }
buf=$PWD/.venv/bin/buf
[ -x "$buf" ] || buf=$(command -v buf || true)
[ -n "$buf" ] || { echo "the Go stubs need buf: pip install -e '.[dev]'" >&2; exit 1; }

check=false
case "${1:-}" in
  "") ;;
  --check) check=true; out=$(mktemp -d); trap 'rm -rf "$out"' EXIT ;;
  -*) echo "unknown argument $1 (known: --check, or a folder)" >&2; exit 2 ;;
  *) out=$(realpath -m "$1") ;;
esac

plugins=$PWD/build/go-plugins/$(cat scripts/go-tools/go.mod scripts/go-tools/go.sum | sha256sum | cut -c1-12)
if [ ! -x "$plugins/protoc-gen-go" ] || [ ! -x "$plugins/protoc-gen-go-grpc" ]; then
  mkdir -p "$plugins"
  go build -C scripts/go-tools -mod=readonly -o "$plugins/" \
    google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
fi

mkdir -p "$out"
rm -rf "${out:?}/paceline"
(cd protos && PATH="$plugins:$PATH" "$buf" generate --path paceline/v1 --output "$out" --template "{
  \"version\": \"v2\",
  \"plugins\": [
    {\"local\": \"protoc-gen-go\", \"out\": \".\", \"opt\": \"paths=source_relative\"},
    {\"local\": \"protoc-gen-go-grpc\", \"out\": \".\", \"opt\": \"paths=source_relative\"}
  ]
}")

if $check && ! diff -ru clients/go/gen "$out"; then
  echo "clients/go/gen is out of date: run scripts/gen_go.sh" >&2
  exit 1
fi
