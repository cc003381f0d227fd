#!/usr/bin/env bash
# Builds the images of docker-compose.yml: paceline:dev and paceline-zookeeper:dev.
#
# Bases: PACELINE_BASE_IMAGE if it is set; otherwise the official images, if they are local or can be pulled within
# PACELINE_PULL_TIMEOUT_S seconds (20); otherwise a base that debootstrap builds from Debian packages, which needs root once.
# Wheels are downloaded on this machine into build/wheelhouse, with hash checks, because a container may not trust the
# registry that this machine uses. The local base and complete wheels are used again; `--fresh` deletes them first.
# Arguments name profiles whose images are built, too: `pipeline` (paceline-pipeline:dev, Spark) and `obs`
# (paceline-prometheus:dev). Grafana has no Debian package, so its image is only pulled.
set -euo pipefail
cd "$(dirname "$0")/.."

official_python=python:3.11-slim-bookworm
official_zookeeper=zookeeper:3.9
local_base=paceline-base:bookworm
local_base_packages=python3,python3-venv,ca-certificates
pull_timeout_s=${PACELINE_PULL_TIMEOUT_S:-20}
wheelhouse=build/wheelhouse

say() { echo "images: $*" >&2; }
fail() { say "$*"; exit 1; }

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# can_pull IMAGE: whether the image is here or comes within the time limit.
can_pull() {
  if have_image "$1"; then return; fi
  say "trying to pull $1 (at most $pull_timeout_s s)"
  timeout "$pull_timeout_s" docker pull -q "$1" >/dev/null 2>&1
}

run_quietly() {  # run_quietly LOG COMMAND...: writes the output to LOG, and shows its end when the command fails
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail "failed: $1; the whole output is in $log"
  fi
}

make_local_base() {
  if have_image "$local_base"; then return; fi
  [ "$(id -u)" -eq 0 ] || fail "no official image can be pulled, and building $local_base with debootstrap needs root"
  if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null || fail "no official image can be pulled, and debootstrap is not installed"
    run_quietly build/apt-debootstrap.log apt-get update
    run_quietly build/apt-debootstrap.log apt-get install -y --no-install-recommends debootstrap
  fi
  say "building $local_base from Debian packages (about a minute)"
  local root
  root=$(mktemp -d build/debootstrap.XXXXXX)
  run_quietly build/debootstrap.log debootstrap --variant=minbase --include="$local_base_packages" bookworm "$root"
  tar -C "$root" --numeric-owner --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/cache/apt/*.bin' \
    --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
    --exclude='./usr/share/locale/*' --exclude='./var/log/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' -c . |
    docker import --change 'CMD ["bash"]' - "$local_base" >/dev/null
  rm -rf --one-file-system "$root"
}

find_pip() {  # sets pip, the command on this machine, and platforms, the platform tags of the images
  local machine minor
  machine=$(docker version --format '{{.Server.Arch}}')
  case "$machine" in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
  esac
  pip=(.venv/bin/python -m pip)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then
    [ -x build/images-venv/bin/pip ] || python3 -m venv build/images-venv
    pip=(build/images-venv/bin/python -m pip)
  fi
  platforms=(--platform "manylinux2014_$machine")
  for minor in 17 24 27 28 31 34 35 36; do platforms+=(--platform "manylinux_2_${minor}_$machine"); done
}

download() {  # download FOLDER LOCK
  run_quietly build/wheelhouse.log "${pip[@]}" download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: --implementation cp --python-version 3.11 "${platforms[@]}" --dest "$1" -r "$2"
}

fill_wheelhouse() {
  local stamp=build/wheelhouse.stamp now
  now="$(docker version --format '{{.Server.Arch}}') $(cat requirements-services.lock requirements-build.lock | sha256sum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]; then return; fi
  say "downloading wheels into $wheelhouse"
  rm -rf "$wheelhouse" "$stamp"
  find_pip
  download "$wheelhouse" requirements-services.lock
  download "$wheelhouse" requirements-build.lock
  echo "$now" >"$stamp"
}

# The packages of the extra `pipeline` that the services' image lacks; requirements.lock has their versions. PySpark is
# published only as source, so its wheel is built here.
pipeline_packages="arro3-core deltalake deprecated numpy pandas py4j pyarrow python-dateutil pytz tzdata wrapt zstandard"
fill_pipeline_wheelhouse() {
  local context=build/image-pipeline stamp=build/image-pipeline.stamp now
  now="$(docker version --format '{{.Server.Arch}}') $(sha256sum <requirements.lock)"
  mkdir -p "$context"
  cp services/pipeline.Dockerfile "$context/Dockerfile"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]; then return; fi
  say "downloading Spark and its wheels into $context (a few minutes)"
  rm -rf "$context/wheels" "$stamp"
  find_pip
  awk -v names=" $pipeline_packages " '/^[a-z]/ {split($1, part, "=="); wanted = index(names, " " part[1] " ")} wanted' \
    requirements.lock >"$context/wheels.lock"
  awk '/^[a-z]/ {wanted = /^pyspark==/} wanted' requirements.lock >"$context/pyspark.lock"
  download "$context/wheels" "$context/wheels.lock"
  run_quietly build/wheelhouse.log "${pip[@]}" wheel --quiet --disable-pip-version-check --require-hashes --no-deps \
    --wheel-dir "$context/wheels" -r "$context/pyspark.lock"
  echo "$now" >"$stamp"
}

build_pipeline() {
  fill_pipeline_wheelhouse
  say "building paceline-pipeline:dev on paceline:dev"
  run_quietly build/image-pipeline.log docker build --force-rm "${labels[@]}" --build-arg BASE_IMAGE=paceline:dev -t paceline-pipeline:dev \
    build/image-pipeline
}

build_obs() {
  local official_prometheus=prom/prometheus:v2.53.4 official_alertmanager=prom/alertmanager:v0.28.1 official_grafana=grafana/grafana-oss:11.5.2
  if can_pull "$official_prometheus" && can_pull "$official_alertmanager"; then
    docker tag "$official_prometheus" paceline-prometheus:dev
    docker tag "$official_alertmanager" paceline-alertmanager:dev
    say "paceline-prometheus:dev is $official_prometheus, paceline-alertmanager:dev $official_alertmanager"
  else
    make_local_base
    say "building paceline-prometheus:dev and paceline-alertmanager:dev from Debian's packages"
    run_quietly build/image-prometheus.log docker build --force-rm "${labels[@]}" --build-arg BASE_IMAGE="$local_base" \
      -f services/prometheus.Dockerfile -t paceline-prometheus:dev -t paceline-alertmanager:dev .
  fi
  can_pull "$official_grafana" || say "$official_grafana cannot be pulled: Grafana will not start; config/grafana has its dashboard"
}

fresh=""
profiles=()
for argument in "$@"; do
  case "$argument" in
    --fresh) fresh=1 ;;
    pipeline | obs) profiles+=("$argument") ;;
    load) ;;
    *) fail "unknown profile $argument: the profiles are load, obs and pipeline" ;;
  esac
done

mkdir -p build
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' services/paceline/__init__.py)
# `-dirty` behind the commit: the working tree has changes.
commit=$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
labels=(--label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$commit")
scripts/docker_engine.sh
# One run at a time: two runs would empty each other's wheelhouse. The lock is taken after the start of the engine, because
# the engine would inherit it and hold it.
if command -v flock >/dev/null; then
  exec 9>build/images.lock
  flock -w 900 9 || fail "another run has held build/images.lock for 15 minutes"
fi

if [ -n "$fresh" ]; then
  rm -rf "$wheelhouse" build/wheelhouse.stamp build/image-pipeline build/image-pipeline.stamp
  docker image rm "$local_base" >/dev/null 2>&1 || true
fi

python_base=${PACELINE_BASE_IMAGE:-}
if [ -z "$python_base" ]; then
  if can_pull "$official_python"; then
    python_base=$official_python
  else
    make_local_base
    python_base=$local_base
  fi
fi
fill_wheelhouse
say "building paceline:dev on $python_base"
run_quietly build/image-paceline.log \
  docker build --force-rm "${labels[@]}" --build-arg BASE_IMAGE="$python_base" -f services/Dockerfile -t paceline:dev .

if can_pull "$official_zookeeper"; then
  docker tag "$official_zookeeper" paceline-zookeeper:dev
  say "paceline-zookeeper:dev is $official_zookeeper"
else
  make_local_base
  say "building paceline-zookeeper:dev from Debian's package"
  run_quietly build/image-zookeeper.log \
    docker build --force-rm "${labels[@]}" --build-arg BASE_IMAGE="$local_base" -f services/zookeeper.Dockerfile -t paceline-zookeeper:dev .
fi
for profile in "${profiles[@]}"; do "build_$profile"; done
# Delete the images that this build has replaced, but their build stages, the cache of the next build, only after a day.
docker image prune -f --filter label=org.opencontainers.image.title=paceline >/dev/null
docker image prune -f --filter label=io.paceline.stage=build --filter until=24h >/dev/null
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep -E '^paceline(-[a-z]+)?:dev ' | sed 's/^/images: /' >&2
