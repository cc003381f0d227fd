#!/usr/bin/env bash
# Builds the Java client with its unit tests, samples and conformance driver; `java.sh driver` builds without tests.
# Exit code 77: no JDK 17 or newer, or no Maven.
set -euo pipefail
cd "$(dirname "$0")/../../clients/java"
for program in java javac mvn; do
  command -v "$program" >/dev/null || { echo "the Java client needs $program: apt-get install openjdk-17-jdk-headless maven" >&2; exit 77; }
done
version=$(javac -version 2>&1 | sed 's/^javac \([0-9]*\).*/\1/')
[ "$version" -ge 17 ] || { echo "the Java client needs a JDK 17 or newer, this is $version" >&2; exit 77; }
options=(-q -B)
[ "${1:-}" = driver ] && options+=(-DskipTests)
# Build offline first: when all artifacts are already downloaded, Maven needs no network.
if ! output=$(mvn -o "${options[@]}" package 2>&1); then
  grep -q "offline mode" <<<"$output" || { printf '%s\n' "$output" >&2; exit 1; }
  mvn "${options[@]}" package
fi
