# Prometheus and Alertmanager from Debian's packages, for machines that cannot pull the official images; the same user and
# folders as there. Debian's Alertmanager has no web page: `amtool` and its API show the alerts.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="paceline-prometheus" \
      org.opencontainers.image.description="Prometheus and Alertmanager as packaged by Debian, for Paceline's compose file"
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus prometheus-alertmanager \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /usr/share/doc/* /var/lib/prometheus \
 && ln -s prometheus-alertmanager /usr/bin/alertmanager \
 && install -d -o 65534 -g 65534 -m 0750 /prometheus /alertmanager
USER 65534:65534
WORKDIR /prometheus
VOLUME /prometheus
EXPOSE 9090 9093
