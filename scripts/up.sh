#!/usr/bin/env bash
# Starts the cluster of docker-compose.yml, waits until every container is healthy, and prints how to use it.
# SMALL=1 starts one ZooKeeper server instead of three.
set -euo pipefail
cd "$(dirname "$0")/.."

scale=()
if [ "${SMALL:-0}" != 0 ]; then
  export PACELINE_ZOOKEEPER_CONFIG=./config/zookeeper.cfg PACELINE_ZOOKEEPER_CONNECT=zookeeper-1:2181/paceline
  scale=(--scale zookeeper-2=0 --scale zookeeper-3=0)
fi
scripts/compose.sh up -d --remove-orphans "${scale[@]}"

limit_s=120
waited_s=0
while :; do
  waiting=$(scripts/compose.sh ps -q | xargs -r docker inspect \
    --format '{{index .Config.Labels "com.docker.compose.service"}} {{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' |
    awk '$2 != "healthy" {printf "%s%s (%s)", separator, $1, $2; separator = ", "}')
  [ -n "$waiting" ] || break
  if [ "$waited_s" -ge "$limit_s" ]; then
    echo "not healthy after $limit_s s: $waiting. 'make logs' shows why; 'make down' stops everything" >&2
    exit 1
  fi
  [ $((waited_s % 4)) -ne 2 ] || echo "waiting for: $waiting"
  sleep 1
  waited_s=$((waited_s + 1))
done

brokers="localhost:${PORT_BROKER_1:-19091},localhost:${PORT_BROKER_2:-19092},localhost:${PORT_BROKER_3:-19093}"
cat <<END
up: brokers $brokers
    controllers localhost:${PORT_CONTROLLER_1:-19181},localhost:${PORT_CONTROLLER_2:-19182}
try:
  export PACELINE_BOOTSTRAP_SERVERS=$brokers
  .venv/bin/paceline topic create rides --partitions 3 --replication-factor 3 --config min.insync.replicas=2
  echo "alice:hello" | .venv/bin/paceline produce rides --key-separator :
  .venv/bin/paceline consume rides --from start --exit-at-end
stop: make down
END
