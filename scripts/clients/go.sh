#!/usr/bin/env bash
# Builds and tests the Go client.
set -euo pipefail
cd "$(dirname "$0")/../../clients/go"
[ -z "$(gofmt -l .)" ] || { echo "gofmt would change:" >&2; gofmt -l . >&2; exit 1; }
go vet ./...
go test ./...
