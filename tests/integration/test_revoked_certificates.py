"""Revoked certificates with real TLS processes: a broker, a controller and a gateway."""

import datetime
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.cli.commands import cli
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.model.errors import ClusterAuthorizationError, InvalidRequestError
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.security.client_tls import client_credentials
from paceline.security.certificates import CertificateAuthority, summary_of
from paceline.v1 import log_service_pb2 as pb
from paceline.v1 import log_service_pb2_grpc, metadata_service_pb2_grpc
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline.v1.gateway_service_pb2 import PublishRequest, SubscribeRequest, Subscription
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceStub
from paceline_client import AccessRule, Admin, NewTopic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.cluster]

SETTINGS = {"default.replication.factor": "1", "min.insync.replicas": "1", "offsets.topic.replication.factor": "1"}
EFFECTIVE_S = 60.0


class Secure:
    """A secure cluster, and two certificates of the client alice."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.gateway = cluster.start_gateway()
        authority = CertificateAuthority.load(cluster.certificates)
        alice = Identity(authority.trust_domain, Role.CLIENT, "alice")
        self.stolen, self.other = folder / "stolen", folder / "other"
        for directory in (self.stolen, self.other):
            authority.issue(alice, (), directory, datetime.timedelta(days=1))
        with self.admin() as admin:
            admin.create_topics([NewTopic("rides", 1, 1)])
            rules = [("All", "Topic", "rides"), ("Read", "Group", "g"), ("Describe", "Cluster", "kafka-cluster")]
            admin.create_acls([AccessRule("User:alice", *rule) for rule in rules])

    def admin(self) -> Admin:
        return Admin(self.cluster.bootstrap, tls=self.cluster.client_files("admin"))

    def channel(self, directory: Path, address: str) -> Any:
        files = TlsFiles(directory / "ca.crt", directory / "client-alice.crt", directory / "client-alice.key")
        return open_channel(address, tls=client_credentials(files, {}))

    def calls(self, directory: Path) -> list[Callable[[], object]]:
        """Return a call of each process with a certificate."""

        def describe(address: str) -> object:
            with self.channel(directory, address) as channel:
                stub = metadata_service_pb2_grpc.MetadataServiceStub(channel)
                return stub.DescribeCluster(metadata_pb.DescribeClusterRequest(), timeout=10)

        def publish() -> object:
            with self.channel(directory, self.gateway.client_address) as channel:
                return GatewayServiceStub(channel).Publish(PublishRequest(topic="rides", value=b"x"), timeout=30)

        nodes = (self.cluster.broker(1), self.cluster.controller(0))
        return [*(lambda address=node.client_address: describe(address) for node in nodes), publish]

    def audit(self, **fields: str) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for node in self.cluster.nodes.values():
            path = Path(node.log_path.with_name("audit.log"))
            lines += map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [one for one in lines if fields.items() <= one.items()]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    cluster = LocalCluster(tmp_path / "run", CONFIG_FILE, brokers=1, controllers=1, secure=True, settings=SETTINGS)
    cluster.start()
    try:
        yield Secure(cluster, tmp_path)
    finally:
        cluster.stop(force=True)


def is_refused(call: Callable[[], object], number: str) -> bool:
    """Whether a call is refused because its certificate is revoked."""
    try:
        call()
    except grpc.RpcError as failure:
        error = from_rpc_error(failure)
        if isinstance(error, ClusterAuthorizationError):
            assert error.metadata == {"revoked_serial_number": number} and f"{number} is revoked" in str(error)
            return True
    return False


class OpenStream:
    """A stream that stays open until the server, or its connection, ends it."""

    def __init__(self, responses: Any) -> None:
        self.failure: grpc.RpcError | None = None
        self._responses = responses
        self.received = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for _ in self._responses:
                self.received.set()
        except grpc.RpcError as failure:
            self.failure = failure

    def has_ended(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and self.failure is not None


def open_streams(secure: Secure, directory: Path) -> list[OpenStream]:
    """Open a stream of every kind: requests on a broker, events and health of a controller, a group of the gateway."""
    fetch = pb.FetchRequest(format=pb.FETCH_FORMAT_BATCHES, max_wait_ms=300_000, min_bytes=1 << 20, max_bytes=1 << 20)
    fetch.partitions.add(topic="rides", partition=0, max_bytes=1 << 20)
    first = pb.FetchRequest(format=pb.FETCH_FORMAT_BATCHES, max_bytes=1 << 20, partitions=fetch.partitions)
    fetches: queue.SimpleQueue[pb.FetchRequest] = queue.SimpleQueue()
    fetches.put(first)
    fetches.put(fetch)
    subscribes: queue.SimpleQueue[SubscribeRequest] = queue.SimpleQueue()
    subscribes.put(SubscribeRequest(subscribe=Subscription(topics=["rides"], group="g")))
    broker = secure.channel(directory, secure.cluster.broker(1).client_address)
    controller = secure.channel(directory, secure.cluster.controller(0).client_address)
    gateway = secure.channel(directory, secure.gateway.client_address)
    return [
        OpenStream(log_service_pb2_grpc.LogServiceStub(broker).FetchStream(iter(fetches.get, None))),
        OpenStream(
            metadata_service_pb2_grpc.MetadataServiceStub(controller).WatchEvents(metadata_pb.WatchEventsRequest())
        ),
        OpenStream(health_pb2_grpc.HealthStub(controller).Watch(health_pb2.HealthCheckRequest())),
        OpenStream(GatewayServiceStub(gateway).Subscribe(iter(subscribes.get, None))),
    ]


def test_a_revoked_certificate_loses_its_streams_and_calls_and_another_of_the_name_works(secure: Secure) -> None:
    path = secure.stolen / "client-alice.crt"
    number = summary_of(path).serial_number
    for call in (*secure.calls(secure.stolen), *secure.calls(secure.other)):
        call()
    streams, others = open_streams(secure, secure.stolen), open_streams(secure, secure.other)
    for stream in (*streams[:3], *others[:3]):
        assert stream.received.wait(30)

    admin_files = secure.cluster.client_files("admin")
    environment = {
        "PACELINE_BOOTSTRAP_SERVERS": secure.cluster.bootstrap,
        "PACELINE_SSL_CA_FILE": str(admin_files.ca),
        "PACELINE_SSL_CERTIFICATE_FILE": str(admin_files.certificate),
        "PACELINE_SSL_KEY_FILE": str(admin_files.key),
    }
    begin_s = time.monotonic()
    ran = CliRunner().invoke(cli, ["certs", "revoke", str(path)], env=environment)
    assert ran.exit_code == 0 and f"revoked: {number} User:alice" in ran.output, ran.output
    for stream in streams:
        assert stream.has_ended(EFFECTIVE_S - (time.monotonic() - begin_s))
    for call in secure.calls(secure.stolen):
        eventually(lambda call=call: is_refused(call, number), EFFECTIVE_S, "the call is refused")
    assert time.monotonic() - begin_s < EFFECTIVE_S
    for call in secure.calls(secure.other):
        call()
    assert not any(stream.has_ended(0) for stream in others)

    assert "User:alice" in CliRunner().invoke(cli, ["certs", "revoked"], env=environment).output
    with secure.admin() as admin:
        own = summary_of(Path(str(admin_files.certificate))).serial_number
        with pytest.raises(InvalidRequestError, match="certificate of the caller"):
            admin.revoke_certificate(own)
    (line,) = secure.audit(event="changed", rpc="/paceline.v1.AclService/RevokeCertificate", principal="User:admin")[:1]
    assert line["new"] == {"serial_number": number, "principal": "User:alice"}
    assert secure.audit(event="denied", rule=f"the certificate with serial number {number} is revoked")

    zookeeper = secure.cluster.zookeeper
    assert zookeeper is not None and zookeeper.pid is not None
    os.kill(zookeeper.pid, signal.SIGSTOP)
    try:
        time.sleep(12)  # longer than two reads of the list
        assert all(is_refused(call, number) for call in secure.calls(secure.stolen)[:2])
    finally:
        os.kill(zookeeper.pid, signal.SIGCONT)

    def is_restored() -> bool:
        return CliRunner().invoke(cli, ["certs", "restore", number], env=environment).exit_code == 0

    eventually(is_restored, EFFECTIVE_S, "the certificate is restored")
    for call in secure.calls(secure.stolen):
        eventually(lambda call=call: not is_refused(call, number), EFFECTIVE_S, "the call is accepted")
