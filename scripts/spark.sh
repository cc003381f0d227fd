#!/usr/bin/env bash
# Runs a job of `paceline pipeline` on the Spark cluster in containers (make up PROFILES=pipeline), as the client User:spark:
#
#   scripts/spark.sh doctor
#   scripts/spark.sh ingest rides --to lake/rides
#
# The driver is a container of the workers' image. Tables below lake/ lie in the volume `lake`, which the workers mount too.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- --help
export COMPOSE_PROFILES=driver
exec scripts/compose.sh run --rm --no-deps -T spark-driver paceline pipeline "$1" --master spark://spark-master:7077 "${@:2}"
