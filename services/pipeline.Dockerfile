# The services image with PySpark, the other packages of the pipeline jobs, and a Java runtime, for Spark's master,
# workers and drivers (profile `pipeline` of docker-compose.yml). Built by `scripts/images.sh pipeline`, in a folder with
# the locked wheels.
ARG BASE_IMAGE=paceline:dev

FROM ${BASE_IMAGE} AS build
LABEL io.paceline.stage=build
USER 0:0
COPY wheels /wheels/
RUN python3 -m venv /tmp/builder \
 && /tmp/builder/bin/pip --python /opt/paceline/bin/python3 install --no-cache-dir --disable-pip-version-check --no-deps \
      --no-index /wheels/*.whl \
 && /tmp/builder/bin/pip --python /opt/paceline/bin/python3 check

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="paceline" \
      org.opencontainers.image.description="Paceline's Spark jobs: master, workers and drivers"
USER 0:0
# The folder of manual pages, which slim images lack, is needed by openjdk's install scripts; ps (procps) by Spark's.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /usr/share/doc/* \
 && install -d -o 10001 -g 10001 -m 0750 /srv/paceline/lake
# Not below /var/lib/paceline: that is a volume of the base image, so a folder created there would be lost.
WORKDIR /srv/paceline
COPY --from=build /opt/paceline /opt/paceline
ENV SPARK_LOCAL_DIRS=/tmp \
    PYSPARK_PYTHON=/opt/paceline/bin/python
USER 10001:10001
HEALTHCHECK NONE
CMD ["paceline", "pipeline", "--help"]
