"""Spark reads a secure cluster: with options, and with the variables of the driver's environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Admin, NewTopic, Producer
from tests.support.spark import spark  # noqa: F401

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.cluster]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("spark-secure") / "run", CONFIG_FILE, brokers=2, secure=True)
    cluster.start()
    try:
        with Admin(cluster.bootstrap, tls=cluster.client_tls) as admin:
            admin.create_topics([NewTopic("rides", 2, 2)])
        with Producer(cluster.bootstrap, tls=cluster.client_tls) as producer:
            for number in range(1_000):
                producer.send("rides", b"%d" % number)
        yield cluster
    finally:
        cluster.stop(force=True)


def reader(spark: Any, cluster: LocalCluster) -> Any:  # noqa: F811
    return (
        spark.read.format("paceline")
        .option("paceline.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", "rides")
    )


def options_of(cluster: LocalCluster) -> dict[str, str]:
    tls = cluster.client_tls
    assert tls is not None
    return {
        "paceline.ssl.ca.file": str(tls.ca),
        "paceline.ssl.certificate.file": str(tls.certificate),
        "paceline.ssl.key.file": str(tls.key),
    }


def test_options_name_certificate_files_and_plans_show_no_key(spark: Any, secure: LocalCluster) -> None:  # noqa: F811
    frame = reader(spark, secure).options(**options_of(secure)).load()
    assert frame.count() == 1_000
    plan = frame._jdf.queryExecution().toString()
    tls = secure.client_tls
    assert tls is not None and tls.key is not None
    key = Path(tls.key).read_text().splitlines()[1][20:]
    assert key not in plan


def test_without_certificates_the_error_names_them(spark: Any, secure: LocalCluster) -> None:  # noqa: F811
    with pytest.raises(Exception, match="PACELINE_SSL_CA_FILE"):
        reader(spark, secure).option("fetchOffset.numRetries", "0").load().count()
