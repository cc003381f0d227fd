"""The libraries over TLS: the drivers take the certificate files in `open`."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.tls import TlsFiles
from paceline.runtime.embedded_zookeeper import java_path
from paceline.security.certificates import CA_CERTIFICATE, CertificateAuthority
from tests.conformance.answers import packed
from tests.conformance.clusters import fresh_topic, wait_until
from tests.conformance.driver import Driver, ToolchainMissingError, known_drivers
from tests.integration.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]
VALUES = [packed(b"%d" % number) for number in range(20)]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with TLS on every listener."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(
        tmp_path_factory.mktemp("tls") / "run",
        CONFIG_FILE,
        brokers=1,
        controllers=1,
        ports=free_plan(1, 1),
        heap_mib=64,
        secure=True,
    )
    cluster.start()
    yield cluster
    cluster.stop(force=True)


@pytest.fixture(
    scope="module", params=["go", *(pytest.param(one, marks=pytest.mark.slow) for one in ("java", "python"))]
)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver; a language without its tools is skipped."""
    try:
        running = Driver(known_drivers()[request.param])
    except ToolchainMissingError as error:
        pytest.skip(str(error))
    yield running
    running.close()


def _open(driver: Driver, cluster: LocalCluster, tls: TlsFiles | None, timeout_ms: int = 30_000) -> dict[str, Any]:
    files = {} if tls is None else {"ca_file": str(tls.ca)}
    if tls is not None and tls.certificate is not None:
        files |= {"certificate_file": str(tls.certificate), "key_file": str(tls.key)}
    command = {"command": "open", "bootstrap": cluster.bootstrap.split(","), "delivery_timeout_ms": timeout_ms}
    return driver.ask(command | ({"tls": files} if files else {}), 60.0)


def _ok(answer: dict[str, Any]) -> dict[str, Any]:
    assert "ok" in answer, answer
    found = answer["ok"]
    assert isinstance(found, dict)
    return found


def test_records_and_groups_go_through_a_secure_cluster(driver: Driver, secure: LocalCluster) -> None:
    topic = fresh_topic()

    def ask(command: str, **arguments: Any) -> dict[str, Any]:
        return _ok(driver.ask({"command": command, "topic": topic, "topics": [topic], **arguments}, 90.0))

    _ok(_open(driver, secure, secure.client_tls))
    ask("create_topic", partitions=1, replication_factor=1, configs={"min.insync.replicas": "1"})
    results = ask("produce", records=[{"partition": 0, "value": value} for value in VALUES])["results"]
    assert [result.get("offset") for result in results] == [str(offset) for offset in range(20)]
    ask("consume_open", consumer="c", partition=0)
    assert [record["value"] for record in ask("consume_poll", consumer="c")["records"]] == VALUES
    ask("group_open", member="m", group_id=topic)
    wait_until(
        lambda: len(ask("group_state", member="m")["read"].get(f"{topic}/0", ())) == 20, "the group has read records"
    )
    ask("group_commit", member="m", offsets=None)
    committed = ask("group_committed", member="m", partitions={topic: [0]})["offsets"]
    assert [one["offset"] for one in committed] == ["20"]
    ask("close")


def test_a_client_that_was_started_before_its_cluster_connects_later(driver: Driver, secure: LocalCluster) -> None:
    host, port = secure.bootstrap.split(",")[0].rsplit(":", 1)
    tls = secure.client_tls
    assert tls is not None
    files = {"ca_file": str(tls.ca), "certificate_file": str(tls.certificate), "key_file": str(tls.key)}
    create = {"command": "create_topic", "topic": fresh_topic(), "partitions": 1, "replication_factor": 1}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # Without listen(), connections are refused.
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        _ok(driver.ask({"command": "open", "bootstrap": [address], "tls": files}, 60.0))
        refused = driver.ask(create | {"timeout_ms": 1_500}, 30.0)
        assert refused["error"]["code"] in ("BROKER_NOT_AVAILABLE", "REQUEST_TIMED_OUT"), refused
        listener.listen()
        proxy = TcpProxy(host, int(port), listener)
        try:
            _ok(driver.ask(create | {"timeout_ms": 20_000}, 60.0))
        finally:
            proxy.close()
            driver.ask({"command": "close"}, 60.0)


@pytest.mark.parametrize("fault", ["no TLS", "no certificate", "another authority"])
def test_a_client_without_the_right_files_fails_in_time(
    driver: Driver, secure: LocalCluster, tmp_path: Path, fault: str
) -> None:
    right = secure.client_tls
    assert right is not None
    CertificateAuthority.create(tmp_path)
    wrong = {
        "no TLS": None,
        "no certificate": replace(right, certificate=None, key=None),
        "another authority": replace(right, ca=tmp_path / CA_CERTIFICATE),
    }[fault]

    opened = _open(driver, secure, wrong, timeout_ms=1_500)
    answer = (
        driver.ask({"command": "describe_topic", "topic": "t", "timeout_ms": 1_500}, 30.0) if "ok" in opened else opened
    )

    assert answer["error"]["code"] in ("BROKER_NOT_AVAILABLE", "REQUEST_TIMED_OUT"), answer
    driver.ask({"command": "close"}, 60.0)
