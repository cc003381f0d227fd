#!/usr/bin/env bash
# Fails with a message when Java 17 or newer is missing: the embedded ZooKeeper and Spark need it.
set -euo pipefail
hint="On Debian and Ubuntu: apt-get install openjdk-17-jre-headless"
java=java
[ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java="$JAVA_HOME/bin/java"
if ! command -v "$java" >/dev/null; then
  echo "Paceline needs Java 17 or newer for the embedded ZooKeeper and for Spark, and found none. $hint" >&2
  exit 1
fi
version=$("$java" -version 2>&1 | awk -F'"' '/version/{print $2; exit}')
major=${version%%[.-]*}
if ! [[ $major =~ ^[0-9]+$ ]] || [ "$major" -lt 17 ]; then
  echo "Paceline needs Java 17 or newer and found ${version:-something else}. $hint" >&2
  exit 1
fi
