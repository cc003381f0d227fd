#!/usr/bin/env bash
# Writes the Python stubs from protos/ into the folder given (default: services).
# requirements-protos.lock pins old generators, with hashes: stubs work with the protobuf runtime of their generator and
# with newer ones, never with an older one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-services}
google=${2:-protos/google/rpc}
lock=requirements-protos.lock
venv=build/protos-venv-$(sha256sum "$lock" | cut -c1-12)
if [ ! -f "$venv/complete" ]; then
  python=""
  for candidate in python3.11 python3.12 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'; then
      python=$candidate
      break
    fi
  done
  if [ -z "$python" ]; then
    echo "make protos needs Python 3.11 or 3.12: grpcio-tools 1.62.3 has no wheel for newer ones" >&2
    exit 1
  fi
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$lock"
  touch "$venv/complete"
fi
mapfile -t files < <(find protos/paceline -name '*.proto' | sort)
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -I protos \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${files[@]}"
# Copy the google.rpc protos from the locked googleapis-common-protos, for generators of other languages that lack them.
mkdir -p "$google"
for name in status error_details code; do
  cp "$(.venv/bin/python -c 'import google.rpc; print(list(google.rpc.__path__)[0])')/$name.proto" "$google/"
done
for package in v1 internal internal/v1; do
  printf '"""Generated from protos/ by make protos; do not edit."""\n' > "$out/paceline/$package/__init__.py"
done
