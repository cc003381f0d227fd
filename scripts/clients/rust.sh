#!/usr/bin/env bash
# Builds and tests the Rust client.
#
#   scripts/clients/rust.sh          compare the stubs, check the formatting, build samples and driver, test
#   scripts/clients/rust.sh driver   build the conformance driver alone
#   scripts/clients/rust.sh stubs    write the stubs from protos/
#
# Needs a C compiler and at least the Rust version of `rust-version` in clients/rust/Cargo.toml; exit code 77: no such Rust.
# It needs no protoc. Cargo.lock pins the crates with their hashes.
set -euo pipefail
cd "$(dirname "$0")/../../clients/rust"

case "${1:-}" in
  "" | driver | stubs) ;;
  *) echo "unknown argument $1 (known: driver, stubs)" >&2; exit 2 ;;
esac
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || true
if [ "$(printf '%s\n' "$least" "${found:-0}" | sort -V | head -1)" != "$least" ]; then
  echo "the Rust client needs Rust $least or newer (Debian 12: apt-get install cargo-web); cargo is ${found:-missing}" >&2
  exit 77
fi

# Every build has --workspace, so that a crate of several packages is built once, with the features that all of them need.
if [ "${1:-}" = driver ]; then
  cargo build --quiet --locked --workspace --bin paceline-conformance
  exit
fi
generate() { # generate FOLDER: write fresh stubs there
  cargo build --quiet --locked --workspace --bin paceline-generate
  "${CARGO_TARGET_DIR:-target}/debug/paceline-generate" "$1"
}
if [ "${1:-}" = stubs ]; then
  generate src/gen
  exit
fi
cargo fmt --version >/dev/null 2>&1 && cargo fmt --all --check
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
generate "$fresh"
diff -ru src/gen "$fresh" || { echo "clients/rust/src/gen is out of date: run scripts/clients/rust.sh stubs" >&2; exit 1; }
if cargo clippy --version >/dev/null 2>&1; then
  cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
fi
cargo test --quiet --locked --workspace --all-targets
cargo test --quiet --locked --doc
