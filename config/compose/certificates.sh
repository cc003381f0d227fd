#!/bin/sh
# Makes the secrets of docker-compose.yml, in its service `certificates`: the authority and ZooKeeper's password once, a
# certificate for each node when it has none, the last one is 30 days old, or RENEW is set. Nodes use a new certificate
# without a restart.
#
#   certificates.sh               all of these; each folder of /secrets is the volume of one service
#   certificates.sh client NAME   issue a certificate for the client User:NAME and write it to stdout as a tar archive
set -eu
umask 077
authority=/secrets/authority

if [ "${1:-}" = client ]; then
  [ -f "$authority/ca.key" ] || { echo "there is no authority yet: make up makes it" >&2; exit 1; }
  paceline certs client "$authority" "$2" --out "/tmp/$2" >/dev/null
  exec tar -c -C "/tmp/$2" ca.crt "client-$2.crt" "client-$2.key"
fi

node() {  # node ROLE ID SERVICE: its files, which only the user of its container can read
  folder=/secrets/$3
  if [ -n "${RENEW:-}" ] || [ -z "$(find "$folder" -name node.crt -mtime -30)" ]; then
    paceline certs node "$authority" "$1/$2" --host "$3" --host "$3-back" --host localhost --out "$folder"
    mv "$folder/$1-$2.key" "$folder/node.key"
    mv "$folder/$1-$2.crt" "$folder/node.crt"
  fi
  case $1 in
    gateway) cp "$authority/gateway.keys" "$folder/" ;;
    *) cp "$authority/zookeeper.password" "$folder/" ;;
  esac
  chown -R 10001:10001 "$folder"
  chmod 700 "$folder"
}

[ -f "$authority/ca.crt" ] || paceline certs ca "$authority" 2>/dev/null
[ -s "$authority/zookeeper.password" ] ||
  python -c 'import secrets; print(secrets.token_hex(24))' >"$authority/zookeeper.password"

[ -s "$authority/gateway.keys" ] ||
  python -c 'import secrets; print(secrets.token_hex(32))' >"$authority/gateway.keys"

sh /zookeeper_login.sh <"$authority/zookeeper.password" >/secrets/zookeeper/jaas.conf
chown -R 1000:1000 /secrets/zookeeper
chmod 700 /secrets/zookeeper

# client NAME: the certificate of a service that is a client.
client() {
  folder=/secrets/$1
  if [ -n "${RENEW:-}" ] || [ -z "$(find "$folder" -name client.crt -mtime -30)" ]; then
    paceline certs client "$authority" "$1" --out "$folder" >/dev/null
    mv "$folder/client-$1.key" "$folder/client.key"
    mv "$folder/client-$1.crt" "$folder/client.crt"
  fi
  chown -R 10001:10001 "$folder"
  chmod 700 "$folder"
}

# Spark's master, workers and drivers prove to each other that they know this password, and encrypt with it.
if [ ! -s /secrets/spark/spark-defaults.conf ]; then
  cat >/secrets/spark/spark-defaults.conf <<END
spark.master spark://spark-master:7077
spark.authenticate true
spark.authenticate.secret $(python -c 'import secrets; print(secrets.token_hex(24))')
spark.network.crypto.enabled true
spark.executor.memory 768m
spark.driver.memory 768m
END
fi

# NODES: role/id=service of each controller, broker and gateway.
for entry in $NODES; do
  identity=${entry%%=*}
  node "${identity%%/*}" "${identity##*/}" "${entry##*=}"
done
client admin
client console
client load
client spark
