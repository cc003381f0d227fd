#!/usr/bin/env bash
# Builds and tests every client library whose toolchain is here, and says which toolchains are missing.
set -uo pipefail
cd "$(dirname "$0")"
failed=()
run() { # run LANGUAGE COMMAND...: run LANGUAGE.sh when every command is there
  local language=$1 command
  shift
  for command in "$@"; do
    if ! command -v "$command" >/dev/null; then
      echo "clients: $language skipped, $command is missing"
      return
    fi
  done
  if "./$language.sh"; then echo "clients: $language ok"; else failed+=("$language"); fi
}
run go go
run java java mvn
run typescript node npm
if [ ${#failed[@]} -gt 0 ]; then
  echo "clients: failed: ${failed[*]}" >&2
  exit 1
fi
