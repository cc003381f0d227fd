#!/usr/bin/env bash
# Runs Docker Compose, version 2 or 1, whichever is there.
set -euo pipefail
cd "$(dirname "$0")/.."
if docker compose version >/dev/null 2>&1; then
  exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
  exec docker-compose "$@"
fi
echo "neither 'docker compose' nor 'docker-compose' is here. On Debian: apt-get install docker.io docker-compose" >&2
exit 1
