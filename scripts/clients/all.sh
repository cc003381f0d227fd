#!/usr/bin/env bash
# Builds and tests the client library of every language (the other scripts of this folder), and says which toolchains
# are missing. Exit code 77 of a script means that this machine lacks the toolchain of its client; that is no failure.
set -uo pipefail
cd "$(dirname "$0")"
skipped=()
failed=()
for script in *.sh; do
  language=${script%.sh}
  [ "$language" != all ] || continue
  began=$SECONDS
  code=0
  "./$script" || code=$?
  case $code in
    0) echo "clients: $language ok in $((SECONDS - began)) s" ;;
    77) skipped+=("$language") ;;
    *) failed+=("$language"); echo "clients: $language failed after $((SECONDS - began)) s" >&2 ;;
  esac
done
[ ${#skipped[@]} -eq 0 ] || echo "clients: skipped, toolchain missing (reason above): ${skipped[*]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "clients: failed: ${failed[*]}" >&2
  exit 1
fi
