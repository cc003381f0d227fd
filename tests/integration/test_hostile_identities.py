"""Every internal RPC is refused for every wrong identity, on a secure cluster."""

import contextlib
import datetime
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replication_service_pb2 as replication_pb
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.access_rules import ACCESS_RULES
from paceline.rpc.security.client_tls import client_credentials
from paceline.security.certificates import CertificateAuthority
from paceline_client import AccessRule, Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.cluster]

DAY = datetime.timedelta(days=1)
SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (control_pb, "ReplicaManagerService"),
        (replication_pb, "ReplicationService"),
        (controller_pb, "ControllerService"),
    )
]
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
HIGH_EPOCH = 1_000_000
_PARTITION = {"topic": "t", "partition": 0}


@dataclass(frozen=True)
class Forgery:
    """A harmful request, and its listener; ``make`` builds the request in the name of the node with the given id."""

    listener: str
    make: Callable[[int], Any]


def _stamp(controller: int) -> control_pb.ControllerStamp:
    return control_pb.ControllerStamp(controller_id=controller, controller_epoch=1)


FORGERIES: dict[str, Forgery] = {
    "LeaderAndIsr": Forgery(
        "CONTROL",
        lambda claimed: control_pb.LeaderAndIsrRequest(
            stamp=_stamp(claimed),
            partitions=[
                control_pb.LeaderAndIsrPartition(
                    **_PARTITION, leader=2, leader_epoch=HIGH_EPOCH, isr=[2], replicas=[1, 2], zk_version=HIGH_EPOCH
                )
            ],
        ),
    ),
    "StopReplica": Forgery(
        "CONTROL",
        lambda claimed: control_pb.StopReplicaRequest(
            stamp=_stamp(claimed),
            partitions=[control_pb.StopReplicaPartition(**_PARTITION, leader_epoch=HIGH_EPOCH, delete_partition=True)],
        ),
    ),
    "UpdateMetadata": Forgery(
        "CONTROL",
        lambda claimed: control_pb.UpdateMetadataRequest(stamp=_stamp(claimed), is_initial=True),
    ),
    "DescribeLogDirs": Forgery("CONTROL", lambda claimed: control_pb.DescribeLogDirsRequest(stamp=_stamp(claimed))),
    "RetryLogDir": Forgery("CONTROL", lambda claimed: control_pb.RetryLogDirRequest(stamp=_stamp(claimed))),
    "AlterReplicaLogDirs": Forgery(
        "CONTROL", lambda claimed: control_pb.AlterReplicaLogDirsRequest(stamp=_stamp(claimed))
    ),
    "Fetch": Forgery(
        "REPLICATION",
        lambda claimed: replication_pb.FetchRequest(
            replica_id=claimed,
            session_epoch=-1,
            partitions=[replication_pb.FetchPartition(**_PARTITION, fetch_offset=HIGH_EPOCH, max_bytes=1)],
        ),
    ),
    "FetchStream": Forgery("REPLICATION", lambda claimed: replication_pb.FetchRequest(replica_id=claimed)),
    "OffsetsForLeaderEpoch": Forgery(
        "REPLICATION", lambda claimed: replication_pb.OffsetsForLeaderEpochRequest(replica_id=claimed)
    ),
    "ControlledShutdown": Forgery(
        "CONTROLLER",
        lambda claimed: controller_pb.ControlledShutdownRequest(broker_id=claimed, broker_epoch=HIGH_EPOCH),
    ),
    "BrokerHeartbeat": Forgery(
        "CONTROLLER", lambda claimed: controller_pb.BrokerHeartbeatRequest(broker_id=claimed, broker_epoch=HIGH_EPOCH)
    ),
    "CreateInternalTopic": Forgery(
        "CONTROLLER",
        lambda claimed: controller_pb.CreateInternalTopicRequest(
            name="__consumer_offsets", partitions=1, replication_factor=1, broker_id=claimed
        ),
    ),
    "FollowState": Forgery("CONTROLLER", lambda claimed: controller_pb.FollowStateRequest(controller_id=claimed)),
}
"""One forged request per internal RPC; "CONTROLLER" stands for the CONTROL listener of a controller."""

LIMITS = {"max.connections": "200", "max.silent.connections.per.ip": "50"}
HANDSHAKE_FAILS = ("no certificate", "other authority", "expired")
DENIED = ("other cluster", "client as broker", "broker 1 as 2", "standby as active")


class SecureCluster:
    """A secure cluster with a topic, and the certificate files of each wrong identity."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        with Admin(cluster.bootstrap, tls=cluster.client_tls) as admin:
            found = admin.describe_cluster()
            admin.create_topics([NewTopic("t", 1, 2)])
        with Producer(cluster.bootstrap, tls=cluster.client_tls) as producer:
            producer.send("t", b"kept").result(30)
        assert found.controller_id is not None
        self.active = found.controller_id
        (self.standby,) = {1_000_000, 1_000_001} - {self.active}
        home = CertificateAuthority.load(cluster.certificates)
        foreign = CertificateAuthority.create(folder / "foreign")
        ca, elsewhere = cluster.certificates / "ca.crt", "0" * 32

        def issued(
            authority: CertificateAuthority, domain: str, role: Role, name: str, into: str, valid: Any
        ) -> TlsFiles:
            target = folder / into
            made = authority.issue(Identity(domain, role, name), [], target, valid)
            return TlsFiles(ca, made.certificate, made.key)

        own = home.trust_domain
        active = str(self.active)
        self.files = {
            "no certificate": TlsFiles(ca),
            "other authority": issued(foreign, own, Role.CONTROLLER, active, "a", DAY),
            "expired": issued(home, own, Role.CONTROLLER, active, "b", -DAY),
            "other cluster": issued(home, elsewhere, Role.CONTROLLER, active, "c", DAY),
            "other cluster, broker": issued(home, elsewhere, Role.BROKER, "2", "c", DAY),
            "client as broker": cluster.client_tls,
            "broker 1 as 2": self.node_files("broker-1"),
            "standby as active": self.node_files(f"controller-{self.standby}"),
        }

    def node_files(self, name: str) -> TlsFiles:
        folder = self.cluster.certificates
        return TlsFiles(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")

    def target(self, listener: str) -> tuple[str, Node]:
        """Return the address of a listener of broker 1 or of the active controller, and its process."""
        assert self.cluster.ports is not None
        if listener == "CONTROLLER":
            index = self.active - 1_000_000
            port = self.cluster.ports.controllers[index].listeners["CONTROL"]
            return f"127.0.0.1:{port}", self.cluster.controller(index)
        return f"127.0.0.1:{self.cluster.ports.brokers[0].listeners[listener]}", self.cluster.broker(1)

    def state(self) -> Any:
        """Return the cluster state that a forged request could change."""
        with Admin(self.cluster.bootstrap, tls=self.cluster.client_tls) as admin:
            cluster = admin.describe_cluster()
            replicas = admin.describe_replicas("t", [0])
            return (
                sorted(broker.broker_id for broker in cluster.brokers),
                cluster.controller_id,
                cluster.controller_epoch,
                [
                    (p.leader, p.leader_epoch, p.isr, [(r.broker_id, r.in_sync, r.log_end_offset) for r in p.replicas])
                    for p in replicas
                ],
                [(d.broker_id, [len(x.replicas) for x in d.log_dirs]) for d in admin.describe_log_dirs()],
            )


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    folder = tmp_path_factory.mktemp("hostile")
    cluster = LocalCluster(folder / "run", CONFIG_FILE, brokers=2, secure=True, settings=LIMITS)
    cluster.start()
    try:
        yield SecureCluster(cluster, folder)
    finally:
        cluster.stop(force=True)


def call(address: str, method: str, request: Any, files: TlsFiles, **options: Any) -> grpc.StatusCode:
    """Call the method once and return its status code."""
    descriptor = METHODS[method]
    credentials = client_credentials(files, {})
    assert credentials is not None
    options = {"timeout": 10} | options
    with open_channel(address, own_connection=True, tls=credentials) as channel:
        serialize = type(request).SerializeToString
        try:
            if descriptor.client_streaming:
                list(channel.stream_stream(method, serialize)(iter([request]), **options))
            elif descriptor.server_streaming:
                next(channel.unary_stream(method, serialize)(request, **options))
            else:
                channel.unary_unary(method, serialize)(request, **options)
        except grpc.RpcError as failure:
            code: grpc.StatusCode = failure.code()
            return code
    return grpc.StatusCode.OK


def denials(node: Node, method: str) -> list[dict[str, Any]]:
    lines = node.log_path.with_name("audit.log").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == "denied" and one["rpc"] == method]


def test_every_internal_rpc_has_an_access_rule_and_a_row_here() -> None:
    assert set(METHODS) == set(ACCESS_RULES)
    assert {method.rsplit("/", 1)[1] for method in METHODS} == set(FORGERIES)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("enemy", [*HANDSHAKE_FAILS, *DENIED])
def test_wrong_identity_changes_nothing_and_is_logged_in_one_line(
    secure: SecureCluster, enemy: str, method: str
) -> None:
    forgery = FORGERIES[method.rsplit("/", 1)[1]]
    role = ACCESS_RULES[method].role
    # The request claims to come from the active controller or from broker 2. That is false for every enemy here, also
    # for the standby controller and broker 1, whose certificates are valid.
    claimed = secure.active if role is Role.CONTROLLER else 2
    files = secure.files.get(f"{enemy}, {role}", secure.files[enemy])
    address, node = secure.target(forgery.listener)
    before, log_before = secure.state(), len(denials(node, method))
    handshakes_before = node.log_path.read_text(errors="replace").count("Handshake failed")

    code = call(address, method, forgery.make(claimed), files)

    if enemy in HANDSHAKE_FAILS:
        assert code is grpc.StatusCode.UNAVAILABLE
        eventually(
            lambda: node.log_path.read_text(errors="replace").count("Handshake failed") > handshakes_before,
            10,
            "the failed handshake is logged",
        )
        assert len(denials(node, method)) == log_before
    else:
        assert code is grpc.StatusCode.PERMISSION_DENIED
        eventually(lambda: len(denials(node, method)) == log_before + 1, 10, "the denial is logged")
        last = denials(node, method)[-1]
        assert last["count"] == 1 and last["address"] and last["rule"] and last["uri"].startswith("spiffe://")
    assert secure.state() == before


def test_public_rpcs_take_certificates_of_this_cluster_only(secure: SecureCluster) -> None:
    from paceline.v1.metadata_service_pb2 import DescribeClusterRequest
    from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub

    def described(files: TlsFiles) -> grpc.StatusCode:
        with open_channel(secure.cluster.broker(1).client_address, tls=client_credentials(files, {})) as channel:
            try:
                MetadataServiceStub(channel).DescribeCluster(DescribeClusterRequest(), timeout=10)
            except grpc.RpcError as failure:
                code: grpc.StatusCode = failure.code()
                return code
        return grpc.StatusCode.OK

    assert described(secure.files["client as broker"]) is grpc.StatusCode.OK
    assert described(secure.files["other cluster"]) is grpc.StatusCode.PERMISSION_DENIED
    assert described(secure.files["no certificate"]) is grpc.StatusCode.UNAVAILABLE


def test_broker_epochs_are_for_super_users(secure: SecureCluster) -> None:
    authority = CertificateAuthority.load(secure.cluster.certificates)
    authority.issue(Identity(authority.trust_domain, Role.CLIENT, "guest"), [], secure.cluster.certificates, DAY)
    with Admin(secure.cluster.bootstrap, tls=secure.cluster.client_files("admin")) as admin:
        admin.create_acls([AccessRule("User:guest", "Describe", "Topic", "t")])
    shown = {}
    for name in ("admin", "guest"):
        with Admin(secure.cluster.bootstrap, tls=secure.cluster.client_files(name)) as admin:
            eventually(lambda admin=admin: "t" in admin.list_topics(), 10.0, "the broker obeys the rule")
            (partition,) = admin.describe_replicas("t", [0])
            shown[name] = [replica.broker_epoch is not None for replica in partition.replicas]
    assert any(shown["admin"]) and not any(shown["guest"])


def test_registrations_name_the_protocol_of_tls_listeners(secure: SecureCluster) -> None:
    password = (secure.cluster.certificates / "zookeeper.password").read_text().strip()
    assert secure.cluster.ports is not None
    client = KazooClient(
        hosts=f"127.0.0.1:{secure.cluster.ports.zookeeper}",
        sasl_options={"mechanism": "DIGEST-MD5", "username": "paceline", "password": password},
        use_ssl=True,
        ca=str(secure.cluster.certificates / "ca.crt"),
    )
    client.start()
    try:
        registered = json.loads(client.get("/paceline/brokers/ids/1")[0])
    finally:
        client.stop()
        client.close()
    assert set(registered["listener_security_protocol_map"].values()) == {"SSL"}


def test_silent_connections_take_no_places_of_clients_and_nodes(secure: SecureCluster) -> None:
    described = f"/{SERVICES[0].full_name}/DescribeLogDirs"
    stamp = control_pb.DescribeLogDirsRequest(stamp=_stamp(secure.active))
    fetch = replication_pb.FetchRequest(replica_id=2, session_epoch=-1)
    with contextlib.ExitStack() as silent:
        for listener in ("CLIENT", "REPLICATION", "CONTROL"):
            host, port = secure.target(listener)[0].split(":")
            for _ in range(int(LIMITS["max.connections"]) + 20):
                silent.enter_context(socket.create_connection((host, int(port)), 10))
        files = secure.node_files(f"controller-{secure.active}")
        ok = grpc.StatusCode.OK
        for listener, method, request, caller in (
            ("CONTROL", described, stamp, files),
            ("REPLICATION", f"/{SERVICES[1].full_name}/Fetch", fetch, secure.node_files("broker-2")),
        ):
            address = secure.target(listener)[0]
            eventually(lambda a=address, m=method, r=request, c=caller: call(a, m, r, c) is ok, 30, listener)
        eventually(lambda: len(secure.state()[0]) == 2, 30, "a new client connects")
        log = secure.cluster.broker(1).log_path
        eventually(lambda: "limit=max.silent.connections.per.ip" in log.read_text(), 30, "the limit is logged")


@pytest.mark.parametrize("enemy", ["other cluster", "client as broker", "the controller itself"])
def test_calls_without_a_message_delay_no_control_request(secure: SecureCluster, enemy: str) -> None:
    """Half of the requests take at most 100 ms longer than without these calls, all at most 1 s on a busy machine."""
    service = f"/{SERVICES[0].full_name}"
    stamp = control_pb.ControllerStamp(controller_id=secure.active, controller_epoch=secure.state()[2], broker_epoch=-1)
    files = secure.node_files(f"controller-{secure.active}")
    address, node = secure.target("CONTROL")
    tls, enemies_tls = client_credentials(files, {}), client_credentials(secure.files.get(enemy, files), {})
    ended = threading.Event()

    def nothing() -> Iterator[bytes]:
        ended.wait(60)
        yield from ()

    with (
        open_channel(address, own_connection=True, tls=tls) as channel,
        open_channel(address, own_connection=True, tls=enemies_tls) as enemies,
    ):

        def took_s() -> list[float]:
            request, found = control_pb.LeaderAndIsrRequest(stamp=stamp).SerializeToString(), []
            for _ in range(20):
                begin = time.monotonic()
                channel.unary_unary(f"{service}/LeaderAndIsr")(request, timeout=10)
                found.append(time.monotonic() - begin)
            return found

        calm_s = took_s()
        streams = [enemies.stream_stream(f"{service}/DescribeLogDirs")(nothing()) for _ in range(100)]
        try:
            eventually(lambda: sum(one.done() for one in streams) >= 80, 10, "the server ends silent calls")
            attacked_s = took_s()
        finally:
            ended.set()
            for one in streams:
                one.cancel()
    assert statistics.median(attacked_s) < statistics.median(calm_s) + 0.1, (calm_s, attacked_s)
    assert max(attacked_s) < max(calm_s) + 1.0, (calm_s, attacked_s)
    if enemy not in secure.files:
        assert "limit=control.silent.calls.max" in node.log_path.read_text()


def test_listeners_of_nodes_take_no_compressed_and_no_large_messages(secure: SecureCluster) -> None:
    fetch = f"/{SERVICES[1].full_name}/Fetch"
    heartbeat = f"/{SERVICES[2].full_name}/BrokerHeartbeat"
    padded = replication_pb.FetchRequest(replica_id=2, partitions=[{"topic": "t" * 1_000}])
    large = controller_pb.BrokerHeartbeatRequest(broker_id=2, reached_leaders=range(4_096))
    zipped = {"compression": grpc.Compression.Gzip}
    (replication, _), (controller, _) = secure.target("REPLICATION"), secure.target("CONTROLLER")
    broker, client = secure.node_files("broker-2"), secure.files["client as broker"]
    assert call(replication, fetch, padded, broker, **zipped) is grpc.StatusCode.UNIMPLEMENTED
    assert call(controller, heartbeat, large, broker, **zipped) is grpc.StatusCode.UNIMPLEMENTED
    assert call(controller, heartbeat, large, broker) is grpc.StatusCode.RESOURCE_EXHAUSTED
    # The caller's role is checked on the headers, so the server does not receive the message.
    assert call(controller, heartbeat, large, client) is grpc.StatusCode.PERMISSION_DENIED
