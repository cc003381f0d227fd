"""The Compose file is secure by default: TLS everywhere, secrets in private files, two networks."""

import re
import subprocess

import grpc
import pytest

from paceline.v1 import metadata_service_pb2, metadata_service_pb2_grpc
from tests.containers.compose import BROKERS, CONTROLLERS, ZOOKEEPERS, ComposeCluster, run
from tests.support.console_visitor import ConsoleVisitor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

NODES = (*BROKERS.values(), *CONTROLLERS.values())


def _listens(cluster: ComposeCluster, network: str, host: str, port: int) -> bool:
    """Return whether a container attached to this network alone can connect to the port."""
    script = f"import socket; socket.create_connection(({host!r}, {port}), 5)"
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        f"{cluster.project}_{network}",
        "paceline:dev",
        "python",
        "-c",
        script,
    ]
    return subprocess.run(command, capture_output=True, timeout=120.0).returncode == 0


def test_a_client_without_a_certificate_is_refused(cluster: ComposeCluster) -> None:
    ca = cluster.tls.ca.read_bytes()
    for service in NODES:
        for credentials in (None, grpc.ssl_channel_credentials(ca)):
            address = cluster.address(service)
            channel = (
                grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
            )
            with channel, pytest.raises(grpc.RpcError) as failure:
                metadata_service_pb2_grpc.MetadataServiceStub(channel).DescribeCluster(
                    metadata_service_pb2.DescribeClusterRequest(), timeout=20.0
                )
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


def test_each_node_has_its_own_secrets_in_files_that_it_alone_can_read(cluster: ComposeCluster) -> None:
    keys = set()
    for service in NODES:
        container = cluster.container(service)
        listing = run(["docker", "exec", container, "sh", "-c", "cd /run/paceline && stat -c '%n %a %u' . *"]).split(
            "\n"
        )
        found = dict(line.split(" ", 1) for line in listing if line)
        assert found == {
            ".": "700 10001",
            "ca.crt": "600 10001",
            "node.crt": "600 10001",
            "node.key": "600 10001",
            "zookeeper.password": "600 10001",
        }
        keys.add(run(["docker", "exec", container, "cat", "/run/paceline/node.key"]))
    assert len(keys) == len(NODES)
    for service in ZOOKEEPERS:
        listing = run(["docker", "exec", cluster.container(service), "stat", "-c", "%a %u", "/run/paceline/jaas.conf"])
        assert listing.strip() == "600 1000"


def test_no_secret_is_in_a_log_or_in_what_the_engine_shows(cluster: ComposeCluster) -> None:
    containers = [cluster.container(service) for service in (*NODES, *ZOOKEEPERS, "certificates")]
    secrets = {run(["docker", "exec", containers[0], "cat", "/run/paceline/zookeeper.password"]).strip()}
    for service in NODES:
        key = run(["docker", "exec", cluster.container(service), "cat", "/run/paceline/node.key"])
        secrets.add("".join(key.splitlines()[1:-1])[60:100])
    assert all(len(secret) >= 40 for secret in secrets)
    shown = run(["docker", "inspect", *containers]) + run(["docker", "history", "--no-trunc", "paceline:dev"])
    for container in containers:
        done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, timeout=120.0)
        shown += done.stdout + done.stderr
    assert [secret[:4] for secret in secrets if secret in shown] == []


def test_zookeeper_and_the_ports_between_nodes_cannot_be_reached_from_the_network_of_clients(
    cluster: ComposeCluster,
) -> None:
    assert _listens(cluster, "front", "broker-1", 9092)
    assert _listens(cluster, "front", "controller-1", 9082)
    for host, port in (("broker-1", 9093), ("broker-1", 9094), ("broker-1", 9101), ("controller-1", 9084)):
        assert not _listens(cluster, "front", host, port), f"{host}:{port}"
        assert _listens(cluster, "back", f"{host}-back", port), f"{host}-back:{port}"
    assert not _listens(cluster, "front", "zookeeper-1", 2181)
    assert _listens(cluster, "back", "zookeeper-1", 2181)


def test_zookeeper_refuses_callers_without_the_password(cluster: ComposeCluster) -> None:
    script = """
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
client = KazooClient("zookeeper-1:2181")
try:
    client.start(10)
    client.get_children("/")
except (KazooException, KazooTimeoutError) as failure:
    print("refused")
"""
    assert run(["docker", "exec", cluster.container("broker-1"), "python", "-c", script]).strip() == "refused"


def test_the_znodes_can_be_changed_by_nodes_alone(cluster: ComposeCluster) -> None:
    script = """
from kazoo.client import KazooClient
password = open("/run/paceline/zookeeper.password").read().strip()
options = {"mechanism": "DIGEST-MD5", "username": "paceline", "password": password}
client = KazooClient("zookeeper-1:2181", sasl_options=options)
client.start(30)
waiting, count = ["/paceline"], 0
while waiting:
    path = waiting.pop()
    entries, _ = client.get_acls(path)
    changers = {entry.id.id for entry in entries if entry.perms & ~1}
    assert changers == {"paceline"}, (path, entries)
    count += 1
    waiting += [f"{path}/{child}" for child in client.get_children(path)]
print(count)
client.stop()
"""
    assert int(run(["docker", "exec", cluster.container("broker-1"), "python", "-c", script])) > 10


def test_the_console_shows_the_brokers_as_a_client_with_its_own_certificate(cluster: ComposeCluster) -> None:
    addresses = re.findall(r"http://\S+", cluster.log("console", 100))
    visitor = ConsoleVisitor(addresses[-1])
    with cluster.client() as client:
        client.create_topic("in-the-console", 1, 3)

    def ends() -> list[int | None]:
        if "in-the-console/0" not in visitor.partitions():
            return []
        return [one["log_end_offset"] for one in visitor.get("/partition/in-the-console/0")["replicas"]]

    eventually(lambda: ends() == [0, 0, 0], 60.0, "every broker describes its replica")
    listing = run(["docker", "exec", cluster.container("console"), "ls", "/run/paceline"])
    assert set(listing.split()) == {"ca.crt", "client.crt", "client.key"}
    assert run(["docker", "exec", cluster.container("console"), "id", "-u"]) == "10001\n"
