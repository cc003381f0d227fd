#!/usr/bin/env bash
# Makes the stubs of the samples of a language, and builds them: samples.sh LANGUAGE (cpp kotlin ruby rust typescript).
# Exit code 77: a tool of the language is missing.
set -euo pipefail
language=${1:-}
cd "$(dirname "$0")/../../clients/$language"

need() { # need PACKAGES COMMAND...: exit with 77 when a command is missing
  local packages=$1 command
  shift
  for command in "$@"; do
    command -v "$command" >/dev/null || { echo "the samples in $language need $command: $packages" >&2; exit 77; }
  done
}
is_at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; } # is_at_least LEAST FOUND
quietly() { # quietly COMMAND...: show the output only after a failure
  local output
  output=$("$@" 2>&1) || { printf '%s\n' "$output" >&2; exit 1; }
}

case $language in
  cpp)
    need "apt-get install g++ cmake pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc" \
      g++ cmake protoc grpc_cpp_plugin pkg-config
    pkg-config --exists grpc++ || { echo "the samples in cpp need libgrpc++-dev" >&2; exit 77; }
    quietly cmake -S . -B build -DCMAKE_BUILD_TYPE=Release
    quietly cmake --build build --parallel "$(nproc)"
    ;;
  kotlin)
    need "apt-get install openjdk-17-jdk-headless maven" javac mvn
    # Offline first: when all artifacts are already downloaded, Maven needs no network.
    mvn -o -q -B package >/dev/null 2>&1 || quietly mvn -q -B package
    ;;
  ruby)
    need "apt-get install ruby-grpc protobuf-compiler-grpc protobuf-compiler" ruby protoc grpc_ruby_plugin
    ruby -e 'require "grpc"' 2>/dev/null || { echo "the samples in ruby need ruby-grpc" >&2; exit 77; }
    ./generate.sh
    ;;
  rust)
    need "Debian 12: apt-get install cargo-web" cargo
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(cargo --version | cut -d ' ' -f 2)
    is_at_least "$least" "$found" || { echo "the samples in rust need Rust $least or newer, this is $found" >&2; exit 77; }
    cargo build --quiet --locked
    ;;
  typescript)
    need "Node 20 or newer" node npm
    is_at_least 20 "$(node -p process.versions.node)" || { echo "the samples in typescript need Node 20 or newer" >&2; exit 77; }
    [ node_modules/.package-lock.json -nt package-lock.json ] || quietly npm ci --no-audit --no-fund
    quietly npm run build
    ;;
esac
