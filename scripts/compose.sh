#!/usr/bin/env bash
# Runs Docker Compose, version 2 if it is installed, otherwise version 1.
# INSECURE=1 adds docker-compose.insecure.yml, under the project name paceline-insecure. RACKS=1 adds
# docker-compose.racks.yml, three more brokers. SMALL=1 starts one ZooKeeper server instead of three, under a project name
# of its own, so that the two kinds of cluster never meet each other's data. COMPOSE_PROFILES names profiles;
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
if [ "${SMALL:-0}" != 0 ]; then
  export PACELINE_ZOOKEEPER_CONFIG=./config/zookeeper.cfg PACELINE_ZOOKEEPER_CONNECT=zookeeper-1:2181/paceline
  project=paceline
  if [ "${INSECURE:-0}" != 0 ]; then project=paceline-insecure; fi
  # The name in the environment is that of INSECURE=1, or one that the caller has chosen.
  if [ "${COMPOSE_PROJECT_NAME:-$project}" = "$project" ]; then export COMPOSE_PROJECT_NAME=$project-small; fi
fi
# A mounted file is no part of a container's configuration. The digest is, so that a changed setting restarts the processes.
PACELINE_SETTINGS_DIGEST=$(cat config/dev.properties "${PACELINE_ZOOKEEPER_CONFIG:-config/zookeeper-ensemble.cfg}" | sha256sum | cut -c1-16)
export PACELINE_SETTINGS_DIGEST
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
