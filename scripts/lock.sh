#!/usr/bin/env bash
# Writes the hash-checked lock files from pyproject.toml, for Python 3.11 to 3.13.
#
#   scripts/lock.sh            update the locks to match pyproject.toml; locked versions stay where they still match
#   scripts/lock.sh --upgrade  take the newest versions that pyproject.toml allows
#   scripts/lock.sh --check    change nothing: exit 1 if a lock does not match pyproject.toml
#
# requirements.lock           development and CI: extra `dev`, and the build tools of the wheel
# requirements-services.lock  the container image: extras `services` and `console`, the same versions
# requirements-build.lock     the build tools of the wheel, for the image's build stage, the same versions
# requirements-protos.lock    the generators of the Python stubs: extra `protos` alone
# requirements-dist.lock      the tools of make dist: extra `dist` alone
# requirements-browser.lock   Playwright and axe-core for tests/browser: extra `browser` alone
# requirements-s3.lock        the S3 server of tests/integration/test_pipeline_ingest_s3.py: extra `s3` alone
# requirements-benchmarks.lock  the Kafka clients that make bench WHAT=python measures, from benchmarks/requirements.in
#
# Install with `pip install --require-hashes -r requirements.lock`, then Paceline itself with
# `pip install --no-deps --no-build-isolation -e .`: hatchling is locked too, so nothing unlocked is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=""
for candidate in .venv/bin/uv "$(command -v uv || true)"; do
  if [ -n "$candidate" ] && [ -x "$candidate" ]; then uv=$candidate; break; fi
done
if [ -z "$uv" ]; then
  [ -x build/lock-venv/bin/uv ] || {
    python3 -m venv build/lock-venv
    build/lock-venv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
  }
  uv=build/lock-venv/bin/uv
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mode=${1:-}
case "$mode" in
  "" | --check) upgrade=() ;;
  --upgrade) upgrade=(--upgrade) ;;
  *) echo "unknown argument $mode (known: --check, --upgrade)" >&2; exit 2 ;;
esac

# Read the build requirements from pyproject.toml, so that no other file repeats them.
grep '^requires = ' pyproject.toml | grep -o '"[^"]*"' | tr -d '"' >"$work/build.in"
grep -q '^hatchling' "$work/build.in" || { echo "cannot read [build-system] requires from pyproject.toml" >&2; exit 1; }

# Some extras are installed in environments of their own, without Paceline.
for extra in protos dist browser s3; do
  python3 - "$extra" >"$work/$extra.in" <<'PROGRAM'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
PROGRAM
done

compile() {  # compile NAME SOURCES...: writes $work/NAME, starting from the committed one
  local name=$1
  shift
  if [ -f "$name" ]; then cp "$name" "$work/$name"; fi
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --custom-compile-command scripts/lock.sh --no-annotate "${upgrade[@]}" --output-file "$work/$name" "$@"
}

compile requirements.lock --extra dev pyproject.toml "$work/build.in"
compile requirements-services.lock --extra services --extra console --constraint "$work/requirements.lock" pyproject.toml
compile requirements-build.lock --constraint "$work/requirements.lock" "$work/build.in"
compile requirements-protos.lock "$work/protos.in"
compile requirements-dist.lock "$work/dist.in"
compile requirements-browser.lock "$work/browser.in"
compile requirements-s3.lock "$work/s3.in"
compile requirements-benchmarks.lock benchmarks/requirements.in

status=0
for name in requirements.lock requirements-services.lock requirements-build.lock requirements-protos.lock requirements-dist.lock requirements-browser.lock requirements-s3.lock requirements-benchmarks.lock; do
  if grep -n -E '^\s*(-i|-f|--index-url|--extra-index-url|--find-links)|://' "$work/$name"; then
    echo "$name names an index; locks must not" >&2
    exit 1
  fi
  if [ "$mode" = "--check" ]; then
    if ! diff -u "$name" "$work/$name"; then
      echo "$name does not match pyproject.toml: run scripts/lock.sh" >&2
      status=1
    fi
  else
    cp "$work/$name" "$name"
  fi
done
exit $status
