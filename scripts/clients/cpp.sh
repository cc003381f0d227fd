#!/usr/bin/env bash
# Builds the C++ client into build/cpp.
#
#   scripts/clients/cpp.sh            library, samples, unit tests, conformance driver; runs the tests
#   scripts/clients/cpp.sh driver     library and conformance driver
#
# Needs the packages below, of Debian 12 or newer. Exit code 77: one of them is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages="g++ cmake pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc nlohmann-json3-dev doctest-dev"

case "${1:-}" in
  "") targets=(all) ;;
  driver) targets=(conformance_driver) ;;
  *) echo "unknown argument $1 (known: driver)" >&2; exit 2 ;;
esac
for program in g++ cmake protoc grpc_cpp_plugin; do
  command -v "$program" >/dev/null || { echo "the C++ client needs $program: apt-get install $packages" >&2; exit 77; }
done
for header in google/protobuf/message.h grpcpp/grpcpp.h nlohmann/json.hpp doctest/doctest.h; do
  echo "#include <$header>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ||
    { echo "the C++ client needs the header $header: apt-get install $packages" >&2; exit 77; }
done

if ! output=$(cmake -S clients/cpp -B build/cpp -DCMAKE_BUILD_TYPE=Release -DPACELINE_BUILD_CONFORMANCE=ON \
    -DPACELINE_WARNINGS_AS_ERRORS=ON 2>&1); then
  printf '%s\n' "$output" >&2
  exit 1
fi
output=$(cmake --build build/cpp --parallel "$(nproc)" --target "${targets[@]}" 2>&1) || { printf '%s\n' "$output" >&2; exit 1; }
[ "${1:-}" = driver ] || ctest --test-dir build/cpp --output-on-failure --no-tests=error
