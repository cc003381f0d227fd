#!/usr/bin/env bash
# Builds and tests the libraries, builds the samples of the other languages (the other scripts of this folder), and says
# which toolchains are missing. Exit code 77 of a script means that this machine lacks the toolchain; that is no failure.
set -uo pipefail
cd "$(dirname "$0")"
skipped=()
failed=()
for language in go java cpp kotlin ruby rust typescript; do
  command=("./$language.sh")
  [ -x "${command[0]}" ] || command=(./samples.sh "$language")
  began=$SECONDS
  code=0
  "${command[@]}" || code=$?
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
