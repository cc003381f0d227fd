# Prometheus from Debian's package, for machines that cannot pull the official image; the same user and folders as there.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="paceline-prometheus" \
      org.opencontainers.image.description="Prometheus as packaged by Debian, for Paceline's compose file"
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /usr/share/doc/* /var/lib/prometheus \
 && install -d -o 65534 -g 65534 -m 0750 /prometheus
USER 65534:65534
WORKDIR /prometheus
VOLUME /prometheus
EXPOSE 9090
