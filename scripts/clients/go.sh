#!/usr/bin/env bash
# Builds and tests the Go client.
#
#   scripts/clients/go.sh            check the formatting, vet, test
#   scripts/clients/go.sh driver     build the conformance driver
#
# Exit code 77: no Go can build the client. Go 1.21 or newer downloads the version that go.mod names.
set -euo pipefail
cd "$(dirname "$0")/../../clients/go"

case "${1:-}" in
  "" | driver) ;;
  *) echo "unknown argument $1 (known: driver)" >&2; exit 2 ;;
esac
needed=$(sed -n 's/^go //p' go.mod)
is_at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; } # is_at_least LEAST FOUND
command -v go >/dev/null || { echo "the Go client needs Go $needed or newer: go is missing" >&2; exit 77; }
found=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
found=${found#go}
if ! is_at_least "$needed" "$found" && ! { is_at_least 1.21 "$found" && go version >/dev/null 2>&1; }; then
  echo "the Go client needs Go $needed or newer, this is $found" >&2
  exit 77
fi

if [ "${1:-}" = driver ]; then
  exec go build -o ../../build/conformance/go-driver ./conformance
fi
[ -z "$(gofmt -l .)" ] || { echo "gofmt would change:" >&2; gofmt -l . >&2; exit 1; }
go vet ./...
go test ./...
