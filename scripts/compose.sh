#!/usr/bin/env bash
# Runs Docker Compose, version 2 if it is installed, otherwise version 1.
# INSECURE=1 adds docker-compose.insecure.yml, under the project name paceline-insecure. RACKS=1 adds
# docker-compose.racks.yml, three more brokers. COMPOSE_PROFILES names profiles;
# `down`, `ps` and `logs` take the containers of all profiles, and the brokers of RACKS=1 as long as their volumes exist.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${INSECURE:-0}" != 0 ]; then
  export COMPOSE_FILE=docker-compose.yml:docker-compose.insecure.yml
  export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-paceline-insecure}
elif [ "${RACKS:-0}" != 0 ] || { [[ "${1:-}" =~ ^(down|ps|logs)$ ]] &&
  docker volume inspect "${COMPOSE_PROJECT_NAME:-paceline}_broker-4-data" >/dev/null 2>&1; }; then
  export COMPOSE_FILE=docker-compose.yml:docker-compose.racks.yml
fi
case "${1:-}" in
  down | ps | logs) export COMPOSE_PROFILES=load,obs,grafana,pipeline ;;
esac
# Without an engine Compose 1 prints a traceback. `config` needs no engine.
if [ "${1:-}" != config ] && command -v docker >/dev/null && ! answer=$(timeout 60 docker version 2>&1 >/dev/null); then
  echo "no container engine answers: $(tail -n 1 <<<"$answer")" >&2
  echo "scripts/docker_engine.sh starts one on Debian" >&2
  exit 1
fi
if docker compose version >/dev/null 2>&1; then
  exec docker compose "$@"
elif command -v docker-compose >/dev/null; then
  exec docker-compose "$@"
fi
echo "neither 'docker compose' nor 'docker-compose' is installed. On Debian: apt-get install docker.io docker-compose" >&2
exit 1
