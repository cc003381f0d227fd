#!/usr/bin/env bash
# Starts the cluster of docker-compose.yml, waits until every container is healthy, and prints how to use it.
# SMALL=1 starts one ZooKeeper server instead of three; INSECURE=1 turns TLS off; RACKS=1 starts six brokers;
# PROFILES=load,obs,pipeline adds services.
set -euo pipefail
cd "$(dirname "$0")/.."

scale=()
if [ "${SMALL:-0}" != 0 ]; then
  scale=(--scale zookeeper-2=0 --scale zookeeper-3=0)
fi
make_options=""
if [ "${INSECURE:-0}" != 0 ]; then make_options+=" INSECURE=1"; fi
if [ "${SMALL:-0}" != 0 ]; then make_options+=" SMALL=1"; fi

profiles=${PROFILES:-}
profiles=${profiles// /,}
if [[ ",$profiles," == *,obs,* ]] && docker image inspect grafana/grafana-oss:11.5.2 >/dev/null 2>&1; then
  profiles+=,grafana
fi
export COMPOSE_PROFILES=$profiles

# The services without a profile and those of the given profiles: an earlier `make up` may have left containers of others.
services=$(scripts/compose.sh config | awk -v profiles=",$profiles," '
  /^[a-z]/ { in_services = $1 == "services:"; in_profiles = 0; next }
  !in_services { next }
  /^  [^ ]/ { name = $1; sub(":$", "", name); asked[name] = 1; in_profiles = 0 }
  /^    [^ -]/ { in_profiles = $1 == "profiles:"; if (in_profiles) asked[name] = 0 }
  in_profiles && $1 == "-" { if (index(profiles, "," $2 ",")) asked[name] = 1 }
  END { for (name in asked) if (asked[name]) printf " %s ", name }')

# Prints id, service, status, exit code and health of the containers of these services.
containers() {
  scripts/compose.sh ps -a -q 2>/dev/null | xargs -r docker inspect --format \
    '{{.ID}} {{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} {{if .State.Health}}{{.State.Health.Status}}{{end}}' |
    awk -v services="$services" 'index(services, " " $2 " ")'
}

# Prints the last log lines of containers that exited with an error, are restarting, or are not healthy.
explain() {
  local id name status code health
  containers |
    while read -r id name status code health; do
      if [ "$code" -ne 0 ] || [ "$status" = restarting ] || [ "$status $health" = "running unhealthy" ]; then
        echo "$name is $status${health:+ ($health)}, exit code $code. The end of its log:" >&2
        docker logs --tail 3 "$id" 2>&1 | sed 's/^/  /' >&2
      fi
    done
  echo "'make logs$make_options' shows more; 'make down$make_options' stops everything, and with VOLUMES=1 deletes the data, too" >&2
}

# id SERVICE: the id of its container, whether it runs or not; empty without one.
id() { scripts/compose.sh ps -q "$1" 2>/dev/null | head -n 1; }

# ask WORDS...: runs the command-line client in the container of a broker, with that broker's certificate.
ask() { docker exec -e PACELINE_BOOTSTRAP_SERVERS="$brokers_inside" "$(id "$asked")" paceline "$@"; }

# is_back SERVICE: whether a process serves again and, of a broker, every replica is in sync.
is_back() {
  [ "$(docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{end}}' "$(id "$1")")" = healthy ] || return 1
  case "$1" in
    controller-*) ask controller describe >/dev/null 2>&1 ;;
    broker-*)
      # A removed broker is healthy and has no replicas.
      ask broker describe "${1#broker-}" -o json >build/broker.json 2>/dev/null || [ "$(tr -d ' \n' <build/broker.json)" = "[]" ] ;;
  esac
}

# Re-creates the containers whose image or settings changed, one at a time, each serving and in sync before the next:
# ZooKeeper first, brokers last. The other services have no data and follow at once.
roll() {
  local service before begin_s
  for service in $(scripts/compose.sh config --services | grep -E '^(zookeeper|controller|broker)-[0-9]+$' | sort -t- -k1,1r -k2,2n); do
    before=$(id "$service")
    [ -n "$before" ] || continue
    asked=$service
    if [[ $service != broker-* ]] || [ "$(id broker-1)" = "$before" ]; then asked=broker-2; else asked=broker-1; fi
    scripts/compose.sh up -d --no-deps --no-build "$service" >>build/compose-up.log 2>&1 || { tail -n 5 build/compose-up.log >&2; return 1; }
    begin_s=$SECONDS
    until is_back "$service"; do
      if [ $((SECONDS - begin_s)) -ge 180 ]; then
        echo "$service did not serve in sync within 180 s, so the others stay as they are: scripts/compose.sh logs $service" >&2
        return 1
      fi
      sleep 1
    done
    if [ "$(id "$service")" != "$before" ]; then echo "$service was replaced, and is back after $((SECONDS - begin_s)) s"; fi
  done
}

mkdir -p build
brokers_inside=broker-1:9092,broker-2:9092,broker-3:9092
if [ -n "$(scripts/compose.sh ps -q broker-1 2>/dev/null)" ] && docker inspect --format '{{.State.Running}}' "$(id broker-1)" 2>/dev/null | grep -q true; then
  echo "the cluster runs: replacing what has changed, one process at a time"
  : >build/compose-up.log
  roll
fi
echo "starting the containers: ZooKeeper, controllers, brokers, then the console; each waits until the former are healthy"
if ! scripts/compose.sh up -d --remove-orphans "${scale[@]}" 2>&1 | tee build/compose-up.log; then
  if grep -qE 'port is already allocated|address already in use' build/compose-up.log; then
    address=$(grep -oE '127\.0\.0\.1:[0-9]+' build/compose-up.log | head -n 1) || address=""
    port=${address##*:}
    holder=$(docker ps --filter "publish=${port:-0}" --format '{{.Names}}' | head -n 1)
    variable=$(grep -ohE "PORT_[A-Z0-9_]+:-$port\}" docker-compose*.yml | head -n 1 | cut -d: -f1) || variable=""
    example=PORT_BROKER_1=29091
    [ -z "$variable" ] || example=$variable=$((port + 10000))
    echo "port ${address:-above} is in use${holder:+ by the container $holder}: stop it, or choose other ports:" \
      "$example make up$make_options" >&2
    echo "(the ports are PORT_CONTROLLER_1 and _2, PORT_BROKER_1 to _3, with RACKS=1 to _6, PORT_CONSOLE, PORT_PROMETHEUS," \
      "PORT_GRAFANA and PORT_SPARK)" >&2
  fi
  explain
  exit 1
fi

# Prints the containers that are not healthy yet or, without a health check, not running.
# Containers that exited with code 0 are left out.
waiting_for() {
  containers | awk '
    { state = $3 == "running" && $5 != "" ? $5 : $3 }
    state != "healthy" && state != "running" && !(state == "exited" && $4 == 0) {
      printf "%s%s (%s)", separator, $2, state
      separator = ", "
    }'
}

echo "waiting until every container is healthy"
limit_s=240
begin_s=$SECONDS
told_s=$SECONDS
while :; do
  waiting=$(waiting_for)
  [ -n "$waiting" ] || break
  if [ $((SECONDS - begin_s)) -ge "$limit_s" ]; then
    echo "not healthy after $limit_s s: $waiting" >&2
    explain
    exit 1
  fi
  if [ $((SECONDS - told_s)) -ge 2 ]; then
    echo "waiting for: $waiting"
    told_s=$SECONDS
  fi
  sleep 1
done

brokers="localhost:${PORT_BROKER_1:-19091},localhost:${PORT_BROKER_2:-19092},localhost:${PORT_BROKER_3:-19093}"
if [ "${INSECURE:-0}" != 0 ]; then
  connect="export PACELINE_BOOTSTRAP_SERVERS=$brokers"
  security="without TLS: every user of this machine has all rights"
else
  scripts/certificate.sh admin >/dev/null
  connect=". build/compose/admin/env"
  security="with TLS; build/compose/admin/env names the brokers and the certificate of User:admin
    more certificates: make certificate NAME=alice"
fi
# The images do not need .venv, but the commands below do.
if [ -x .venv/bin/paceline ]; then install=""; else install="
  make install"; fi
cat <<END
up: brokers $brokers
    controllers localhost:${PORT_CONTROLLER_1:-19181},localhost:${PORT_CONTROLLER_2:-19182}
    console $(scripts/compose.sh logs --no-color console | grep -oE 'http://\S+' | tail -n 1)
    $security
try:$install
  $connect
  .venv/bin/paceline topic create rides --partitions 3 --replication-factor 3 --config min.insync.replicas=2
  echo "alice:hello" | .venv/bin/paceline produce rides --key-separator :
  .venv/bin/paceline consume rides --from start --exit-at-end
END
if [[ ",$profiles," == *,load,* ]]; then
  echo "load: scripts/compose.sh logs -f producer consumer"
fi
if [[ ",$profiles," == *,pipeline,* ]]; then
  echo "pipeline: scripts/spark.sh doctor; the master is at http://localhost:${PORT_SPARK:-19480}"
fi
if [[ ",$profiles," == *,obs,* ]]; then
  echo "obs: Prometheus at http://localhost:${PORT_PROMETHEUS:-19490}"
  echo "     Alertmanager at http://localhost:${PORT_ALERTMANAGER:-19493}; config/alertmanager says where alerts go"
fi
if [[ ",$profiles," == *,grafana,* ]]; then
  echo "     Grafana at http://localhost:${PORT_GRAFANA:-19491}/d/paceline"
fi
echo "stop: make down$make_options"
