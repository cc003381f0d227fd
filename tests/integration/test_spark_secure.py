"""Spark and the pipeline jobs on a secure cluster, with certificates from options or from the driver's environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.model.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsFiles
from paceline.pipeline.jobs.analyse import job as analyse
from paceline.pipeline.jobs.ingest import job as ingest
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline_client import Admin, NewTopic, Producer
from paceline_client.process_channels import close_channels
from tests.support.spark import spark  # noqa: F401
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.cluster]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("spark-secure") / "run"
    settings = {"cluster.events.topic.enable": "true", "cluster.events.topic.replication.factor": "2"}
    cluster = LocalCluster(directory, CONFIG_FILE, brokers=2, secure=True, settings=settings)
    cluster.start()
    try:
        with Admin(cluster.bootstrap, tls=cluster.client_tls) as admin:
            admin.create_topics([NewTopic("rides", 2, 2)])
        with Producer(cluster.bootstrap, tls=cluster.client_tls) as producer:
            for number in range(1_000):
                producer.send("rides", b"%d" % number)
        yield cluster
    finally:
        close_channels()
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


JOBS = ("ingest", "analyse")


def check_job(job: str, spark: Any, cluster: LocalCluster, tls: TlsFiles | None, folder: Path) -> None:  # noqa: F811
    servers = tuple(cluster.bootstrap.split(","))
    if job == "ingest":
        table = folder / "table"
        assert ingest.run(spark, IngestConfig(servers, ("rides",), str(table), tls=tls)).summary["rows"] == 1_000
        assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 1_000
    else:
        with Admin(cluster.bootstrap, tls=cluster.client_tls) as admin:
            eventually(lambda: analyse.EVENTS_TOPIC in admin.list_topics(), 120, "the topic of the events exists")
        config = analyse.AnalyseConfig(servers, tls=tls)
        eventually(lambda: analyse.run(spark, config).summary["events"] > 0, 60, "events", pause_s=0.5)


@pytest.mark.parametrize("job", JOBS)
def test_jobs_read_a_secure_cluster_with_the_certificates_of_their_config(
    spark: Any,  # noqa: F811
    secure: LocalCluster,
    tmp_path: Path,
    job: str,
) -> None:
    check_job(job, spark, secure, secure.client_tls, tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_certificates_of_the_drivers_environment_reach_the_tasks_of_a_job(
    spark: Any,  # noqa: F811
    secure: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
) -> None:
    """The Python workers do not have the variables, because Spark started before the test set them."""
    tls = secure.client_tls
    assert tls is not None
    for name, file in ((CA_FILE, tls.ca), (CERTIFICATE_FILE, tls.certificate), (KEY_FILE, tls.key)):
        monkeypatch.setenv(name, str(file))
    check_job(job, spark, secure, None, tmp_path)
