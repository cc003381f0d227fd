#!/usr/bin/env bash
# Runs a job of `paceline pipeline`, or a Python program, on the Spark cluster in containers (make up PROFILES=pipeline), as
# the client User:spark:
#
#   scripts/spark.sh doctor
#   scripts/spark.sh ingest rides --to lake/rides
#   scripts/spark.sh program.py ARGUMENTS
#
# The driver is a container of the workers' image. Files below lake/ lie in the volume `lake`, which the workers mount too.
# A program reads the master from SPARK_MASTER and the brokers from PACELINE_BOOTSTRAP_SERVERS.
set -euo pipefail
[ $# -gt 0 ] || set -- --help
master=spark://spark-master:7077
export COMPOSE_PROFILES=driver
if [[ $1 == *.py ]]; then
  program=$(realpath -e "$1")
  cd "$(dirname "$0")/.."
  exec scripts/compose.sh run --rm --no-deps -T -v "$program:/srv/paceline/program.py:ro" -e SPARK_MASTER="$master" spark-driver \
    spark-submit --master "$master" --conf spark.log.level=WARN program.py "${@:2}"
fi
cd "$(dirname "$0")/.."
exec scripts/compose.sh run --rm --no-deps -T spark-driver paceline pipeline "$1" --master "$master" "${@:2}"
