#!/bin/sh
# Prints the login file (JAAS) of ZooKeeper's servers: the user of controllers and brokers, and the one of the quorum.
# Reads their password from stdin. Used by certificates.sh and deploy/kubernetes/secrets.sh.
set -eu
password=$(cat)
cat <<END
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_paceline="$password";
};
QuorumServer {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_quorum="$password";
};
QuorumLearner {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="quorum"
  password="$password";
};
END
