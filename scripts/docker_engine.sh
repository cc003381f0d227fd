#!/usr/bin/env bash
# Makes sure that a Docker engine answers and that a compose is there, or says why not (exit 1).
#
#   scripts/docker_engine.sh          install what is missing, start an engine where none answers
#   scripts/docker_engine.sh --check  change nothing: exit 0 if engine and compose are ready
#
# An engine that answers is left alone, wherever DOCKER_HOST or the current context says it lives. Installing and
# starting need root on Debian (apt: docker.io, docker-compose). The engine that this script starts logs to
# build/dockerd.log and keeps its pid in build/dockerd.pid; `kill "$(cat build/dockerd.pid)"` ends it.
set -euo pipefail
cd "$(dirname "$0")/.."

start_timeout_s=${PACELINE_DOCKER_START_TIMEOUT_S:-60}
log=build/dockerd.log
pid_file=build/dockerd.pid

say() { echo "docker engine: $*" >&2; }
fail() { say "$*"; exit 1; }

engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
compose_version() { docker compose version --short 2>/dev/null || docker-compose version --short 2>/dev/null; }

need_root() {
  [ "$(id -u)" -eq 0 ] || fail "$1, and that needs root: run as root, or start an engine yourself"
}

apt_install() {
  command -v apt-get >/dev/null || fail "$* missing and there is no apt-get here: install an engine and compose yourself"
  need_root "$* must be installed"
  say "installing $*"
  mkdir -p build
  local apt_log=build/apt-docker.log
  if ! { DEBIAN_FRONTEND=noninteractive apt-get update &&
         DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$apt_log" 2>&1; then
    tail -n 5 "$apt_log" >&2
    fail "apt-get could not install $*; the whole output is in $apt_log"
  fi
}

start_engine() {
  need_root "no engine answers and one must be started"
  if [ -n "${DOCKER_HOST:-}" ]; then
    fail "DOCKER_HOST is $DOCKER_HOST and nothing answers there; start it, or unset DOCKER_HOST"
  fi
  mkdir -p build
  if [ -d /run/systemd/system ] && systemctl start docker 2>/dev/null; then
    say "started the docker service"
    local service_deadline=$((SECONDS + start_timeout_s))
    until engine_answers; do
      [ "$SECONDS" -lt "$service_deadline" ] || fail "the docker service does not answer; see journalctl -u docker"
      read -r -t 0.2 <> <(:) || true
    done
    return
  fi
  if [ -f "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; then
    say "process $(cat "$pid_file") was started earlier and does not answer yet; waiting"
  else
    say "starting dockerd, log in $log"
    # A containerd or dockerd that was killed leaves these behind, and a new one then refuses to start.
    if [ -f /var/run/docker.pid ] && ! kill -0 "$(cat /var/run/docker.pid)" 2>/dev/null; then rm -f /var/run/docker.pid; fi
    setsid nohup dockerd >"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
  fi
  local deadline=$((SECONDS + start_timeout_s))
  until engine_answers; do
    if ! kill -0 "$(cat "$pid_file")" 2>/dev/null; then
      tail -n 10 "$log" >&2
      fail "dockerd ended; its last lines are above, all of them in $log"
    fi
    if [ "$SECONDS" -ge "$deadline" ]; then
      tail -n 10 "$log" >&2
      fail "dockerd did not answer within $start_timeout_s s; its last lines are above"
    fi
    read -r -t 0.2 <> <(:) || true
  done
}

if [ "${1:-}" = "--check" ]; then
  command -v docker >/dev/null || fail "no docker command"
  engine_answers || fail "no engine answers; scripts/docker_engine.sh starts one"
  compose_version >/dev/null || fail "neither 'docker compose' nor docker-compose is there"
  exit 0
elif [ $# -gt 0 ]; then
  fail "unknown argument $1 (only --check is known)"
fi

command -v docker >/dev/null || apt_install docker.io
if ! engine_answers; then
  command -v dockerd >/dev/null || apt_install docker.io
  engine_answers || start_engine
fi
if ! compose=$(compose_version); then
  apt_install docker-compose
  compose=$(compose_version) || fail "compose was installed and still does not run"
fi
say "$(docker version --format 'engine {{.Server.Version}}, client {{.Client.Version}}'), $compose compose"
