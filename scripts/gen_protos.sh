#!/usr/bin/env bash
# Writes the Python stubs from protos/ into the folder given (default: services).
# The generator is pinned low: stubs load on any newer protobuf runtime, never on an older one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-services}
venv=build/protos-venv
if [ ! -x "$venv/bin/protoc-gen-mypy" ]; then
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
  "$venv/bin/pip" install --quiet grpcio-tools==1.62.3 mypy-protobuf==3.6.0 'protobuf==4.25.9' 'setuptools<80'
fi
mapfile -t files < <(find protos -name '*.proto' | sort)
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -I protos \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${files[@]}"
for package in v1 internal internal/v1; do
  printf '"""Generated from protos/ by make protos; do not edit."""\n' > "$out/paceline/$package/__init__.py"
done
