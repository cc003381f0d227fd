#!/usr/bin/env bash
# Installs, builds and tests the TypeScript client.
#
#   scripts/clients/typescript.sh            install, build and test
#   scripts/clients/typescript.sh build      install and build
#
# Needs Node 20 or newer and npm. The packages are those of clients/typescript/package-lock.json, with their hashes.
# Exit code 77: no such Node.
set -euo pipefail
cd "$(dirname "$0")/../../clients/typescript"

case "${1:-}" in
  "" | build) ;;
  *) echo "unknown argument $1 (known: build)" >&2; exit 2 ;;
esac
for program in node npm; do
  command -v "$program" >/dev/null || { echo "the TypeScript client needs Node 20 or newer and npm: $program is missing" >&2; exit 77; }
done
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 20 ] || { echo "the TypeScript client needs Node 20 or newer, this is $(node --version)" >&2; exit 77; }

# An installation of the present lock file is kept.
if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
  npm ci --no-audit --no-fund
fi
npm run --silent build
[ "${1:-}" = build ] || npm test --silent
