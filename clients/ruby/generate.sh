#!/bin/sh
# Writes the stubs of the gateway into gen/.
set -eu
cd "$(dirname "$0")"
mkdir -p gen
protoc -I ../../protos --ruby_out=gen --grpc_out=gen --plugin=protoc-gen-grpc="$(command -v grpc_ruby_plugin)" \
  paceline/v1/gateway_service.proto paceline/v1/errors.proto paceline/v1/record.proto
