#!/usr/bin/env bash
# Builds the Java client with its unit tests, samples and conformance driver; `java.sh driver` builds without tests.
set -euo pipefail
cd "$(dirname "$0")/../../clients/java"
for program in java mvn; do
  command -v "$program" >/dev/null || { echo "the Java client needs $program: apt-get install openjdk-17-jdk-headless maven" >&2; exit 1; }
done
options=(-q -B)
[ "${1:-}" = driver ] && options+=(-DskipTests)
# Without the network first: Maven asks for nothing when every part is there already.
if ! output=$(mvn -o "${options[@]}" package 2>&1); then
  grep -q "offline mode" <<<"$output" || { printf '%s\n' "$output" >&2; exit 1; }
  mvn "${options[@]}" package
fi
