"""The credentials of controllers and brokers at ZooKeeper: SASL DIGEST-MD5, access lists, TLS."""

import datetime
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from paceline.coordination.credentials import ZooKeeperSecurity
from paceline.coordination.errors import JavaNotFoundError, ZooKeeperJarsNotFoundError
from paceline.coordination.interface import Create, Exists, GetChildren, ZkCode
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.coordination.kazoo.probe import lost_data
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.runtime import embedded_zookeeper as embedded
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from paceline.security.certificates import CertificateAuthority
from tests.integration.real_time import PumpedScheduler
from tests.support.embedded_zookeeper import embedded_zookeeper
from tests.support.zookeeper.recorder import Recorder

pytestmark = pytest.mark.zookeeper

PASSWORD = "planted-zookeeper-password"
OURS = ZooKeeperSecurity("paceline", PASSWORD, set_acl=True)


@pytest.fixture
def java() -> None:
    """Skip a test on a machine without Java or ZooKeeper."""
    try:
        embedded.java_path()
        embedded.jars_path()
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        pytest.skip(str(error))


@pytest.fixture
def server(java: None, tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """Start a server that accepts only the user ``paceline``."""
    with embedded_zookeeper(tmp_path / "zk", heap_mib=64, user=("paceline", PASSWORD)) as one:
        yield one


def client_of(server: EmbeddedZooKeeper, security: ZooKeeperSecurity, scheduler: PumpedScheduler) -> KazooZooKeeper:
    return KazooZooKeeper(f"{server.address}/paceline", 10_000, scheduler.post, security=security)


def test_new_nodes_can_be_changed_and_secrets_read_only_by_paceline(server: EmbeddedZooKeeper) -> None:
    scheduler = PumpedScheduler()
    client = client_of(server, OURS, scheduler)
    recorder = Recorder(client)
    made = recorder.submit(
        Create("/topics", b"1"), Create("/config", None), Create("/config/users", None), Create("/config/users/a", b"x")
    )
    scheduler.run_until(lambda: bool(made))
    assert [answer.code for answer in made] == [ZkCode.OK] * 4
    lists = KazooClient(
        hosts=server.address,
        sasl_options={"mechanism": "DIGEST-MD5", "username": "paceline", "password": PASSWORD},
    )
    lists.start()
    try:
        shown = {
            path: sorted((acl.id.scheme, acl.id.id, acl.perms) for acl in lists.get_acls(f"/paceline{path}")[0])
            for path in ("", "/topics", "/config/users", "/config/users/a")
        }
    finally:
        lists.stop()
        lists.close()
    readable = [("sasl", "paceline", 31), ("world", "anyone", 1)]
    assert shown == {
        "": readable,
        "/topics": readable,
        "/config/users": [("sasl", "paceline", 31)],
        "/config/users/a": [("sasl", "paceline", 31)],
    }
    client.close()


def test_session_survives_a_restart_of_the_server(server: EmbeddedZooKeeper) -> None:
    scheduler = PumpedScheduler()
    client = client_of(server, OURS, scheduler)
    recorder = Recorder(client)
    made = recorder.submit(Create("/e", b"", ephemeral=True))
    scheduler.run_until(lambda: bool(made))
    session_id = client.session_id
    server.kill()
    scheduler.run_until(lambda: not client.connected)
    server.start()
    scheduler.run_until(lambda: client.connected)
    found = recorder.submit(Exists("/e"))
    scheduler.run_until(lambda: bool(found))
    assert found[0].code is ZkCode.OK and client.session_id == session_id
    client.close()


@pytest.mark.parametrize("security", [ZooKeeperSecurity(), ZooKeeperSecurity("paceline", "wrong-password")])
def test_other_clients_are_refused_and_the_log_names_the_setting(
    server: EmbeddedZooKeeper, security: ZooKeeperSecurity, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = PumpedScheduler()
    client = client_of(server, security, scheduler)
    recorder = Recorder(client)
    answers = recorder.submit(Create("/theirs", b""))
    with caplog.at_level(logging.WARNING):
        if security.username:
            scheduler.run_until(lambda: "check zookeeper.sasl.username" in caplog.text)
        scheduler.run_for(1_000)
    client.close()
    assert not any(answer.code is ZkCode.OK for answer in answers)
    assert "wrong-password" not in caplog.text
    ours = client_of(server, OURS, scheduler)
    seen = Recorder(ours).submit(GetChildren("/"))
    scheduler.run_until(lambda: bool(seen))
    assert "theirs" not in seen[0].children
    ours.close()


def test_tls_carries_large_answers_and_refuses_foreign_authorities(java: None, tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    CertificateAuthority.create(tmp_path / "other")
    files = authority.issue(
        Identity(authority.trust_domain, Role.BROKER, "1"), ["127.0.0.1"], tmp_path / "ca", datetime.timedelta(days=1)
    )
    tls = TlsFiles(tmp_path / "ca" / "ca.crt", files.certificate, files.key)
    ours, theirs = (
        ZooKeeperSecurity("paceline", PASSWORD, True, True, str(tmp_path / ca / "ca.crt")) for ca in ("ca", "other")
    )
    scheduler = PumpedScheduler()
    with embedded_zookeeper(tmp_path / "zk", heap_mib=64, user=("paceline", PASSWORD), tls=tls) as server:
        client, foreign = client_of(server, ours, scheduler), client_of(server, theirs, scheduler)
        recorder = Recorder(client)
        Recorder(foreign)
        names = [f"/{index:04d}-{'x' * 200}" for index in range(2_000)]
        made = recorder.submit(*(Create(name, b"y" * 100) for name in names))
        scheduler.run_until(lambda: len(made) == len(names))
        listed = recorder.submit(GetChildren("/"))
        scheduler.run_until(lambda: bool(listed))
        assert len(listed[0].children) == len(names) and not foreign.connected
        later = [lost_data([(server.host, server.port)], 2**62, 10.0, each) for each in (ours, theirs)]
        assert "and we have seen 0x4000000000000000" in (later[0] or "") and later[1] is None
        client.close()
        foreign.close()
