# ZooKeeper from Debian's package, for machines that cannot pull the official image. It reads /conf/zoo.cfg and keeps
# its data in /data, as the official one does, so docker-compose.yml mounts the same file into either.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="paceline-zookeeper" \
      org.opencontainers.image.description="ZooKeeper as packaged by Debian, for Paceline's compose file"
# Debian's package `zookeeper` adds service scripts and, through them, a desktop's worth of libraries; the jars suffice.
# openjdk's scripts fail where the folder of manual pages is gone, as in slim images.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jre-headless libzookeeper-java \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /usr/share/doc/* \
 && groupadd --gid 1000 zookeeper \
 && useradd --uid 1000 --gid 1000 --home-dir /data --no-create-home --shell /usr/sbin/nologin zookeeper \
 && install -d -o 1000 -g 1000 -m 0750 /data /datalog \
 && install -d -m 0755 /conf /opt/zookeeper \
 && for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple netty-all snappy-java metrics-core commons-cli commons-io; do \
      test -f /usr/share/java/$jar.jar && ln -s /usr/share/java/$jar.jar /opt/zookeeper/ || exit 1; \
    done
USER 1000:1000
WORKDIR /data
VOLUME ["/data", "/datalog"]
EXPOSE 2181 2888 3888
STOPSIGNAL SIGTERM
# bash and /dev/tcp, so that the check needs nothing that an image may lack.
HEALTHCHECK --interval=2s --timeout=3s --start-period=30s --retries=10 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && grep -q ^Mode: <&3"]
ENV JVMFLAGS="-Xmx128m"
CMD ["bash", "-c", "echo ${ZOO_MY_ID:-1} >/data/myid && exec java $JVMFLAGS -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true -cp '/opt/zookeeper/*:/conf' org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg"]
