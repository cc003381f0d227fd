"""Access lists with real processes: a TLS cluster that enforces them, and clients with certificates of their own."""

import datetime
import json
import queue
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.model.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    GroupAuthorizationError,
    PacelineError,
    TopicAuthorizationError,
)
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.security.client_tls import client_credentials
from paceline.security.certificates import CertificateAuthority
from paceline.v1 import log_service_pb2 as pb
from paceline.v1 import log_service_pb2_grpc, metadata_service_pb2_grpc
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline.v1.gateway_service_pb2 import PublishRequest, SubscribeRequest, Subscription
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceStub
from paceline_client import AccessRule, Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.cluster]

SETTINGS = {"default.replication.factor": "1", "min.insync.replicas": "1", "offsets.topic.replication.factor": "1"}
WITHDRAWN_S = 5.0
SETTLED_S = 10.0


class Access:
    """A secure cluster of one broker, and clients by name."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        authority = CertificateAuthority.load(cluster.certificates)
        for name in ("alice", "bob", "carol"):
            identity = Identity(authority.trust_domain, Role.CLIENT, name)
            authority.issue(identity, (), cluster.certificates, datetime.timedelta(days=1))
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("rides", "team-a.in", "open", "ending")])

    def files(self, name: str) -> TlsFiles:
        return self.cluster.client_files(name)

    def admin(self, name: str = "admin", **more: Any) -> Admin:
        return Admin(self.cluster.bootstrap, tls=self.files(name), **more)

    def give(self, name: str, operation: str, kind: str, resource: str, **more: str) -> None:
        """Add a rule about topics, and wait until the broker obeys it."""
        with self.admin() as admin:
            admin.create_acls([AccessRule(f"User:{name}", operation, kind, resource, **more)])
        eventually(lambda: any(one.startswith(resource) for one in self.names(name)), SETTLED_S, "the rule is obeyed")

    def names(self, name: str) -> list[str]:
        """Return the topics that the brokers show to a client."""
        with self.admin(name) as admin:
            return admin.list_topics()

    def write(self, name: str, topic: str, *values: bytes) -> None:
        with Producer(self.cluster.bootstrap, tls=self.files(name), delivery_timeout_ms=20_000) as producer:
            for future in [producer.send(topic, value) for value in values]:
                future.result(30)

    def read(self, name: str, topic: str, group: str | None = None) -> list[bytes | None]:
        with Consumer(self.cluster.bootstrap, tls=self.files(name), group_id=group) as consumer:
            if group is None:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek(TopicPartition(topic, 0), 0)
            else:
                consumer.subscribe([topic])
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                found = [record.value for records in consumer.poll(2_000).values() for record in records]
                if found:
                    return found
        return []

    def audit(self, event: str, **fields: str) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for node in self.cluster.nodes.values():
            path = Path(node.log_path.with_name("audit.log"))
            lines += map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [one for one in lines if one["event"] == event and fields.items() <= one.items()]


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("access") / "run", CONFIG_FILE, brokers=1, controllers=1, secure=True, settings=SETTINGS
    )
    cluster.start()
    try:
        yield Access(cluster)
    finally:
        cluster.stop(force=True)


def refusal(call: Any) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        call()
    error: PacelineError = caught.value
    while not type(error).__name__.endswith("AuthorizationError") and isinstance(error.__cause__, PacelineError):
        error = error.__cause__
    return error


def test_without_rules_a_client_sees_nothing_and_changes_nothing(access: Access) -> None:
    with access.admin("bob", describe_timeout_ms=5_000) as admin:
        assert admin.list_topics() == [] and admin.list_groups() == []
        present, absent = (refusal(lambda name=name: admin.describe_topics([name])) for name in ("open", "gone"))
        assert str(present).replace("open", "gone") == str(absent)
        assert isinstance(present, TopicAuthorizationError)
        topic_calls: tuple[Any, ...] = (
            lambda: admin.create_topics([NewTopic("mine", 1, 1)]),
            lambda: admin.delete_topics(["open"]),
            lambda: admin.delete_topics(["gone"]),
        )
        for call in topic_calls:
            assert isinstance(refusal(call), TopicAuthorizationError)
        everything = AccessRule("User:bob", "All", "Topic", "*")
        calls: tuple[Any, ...] = (admin.describe_acls, admin.describe_log_dirs, lambda: admin.create_acls([everything]))
        for call in calls:
            assert isinstance(refusal(call), ClusterAuthorizationError)
        assert admin.who_am_i().principal == "User:bob" and admin.who_am_i().mode == "enforce"
    eventually(
        lambda: access.audit("denied", principal="User:bob", resource="Topic:LITERAL:open", operation="Delete"),
        SETTLED_S, "the refusal is in the audit log",
    )  # fmt: skip
    with access.admin() as admin:
        assert "open" in admin.list_topics() and "mine" not in admin.list_topics()


def test_two_principals_read_and_write_only_their_own_topics(access: Access) -> None:
    access.give("alice", "Write", "Topic", "rides")
    access.give("bob", "Read", "Topic", "team-", pattern_type="PREFIXED")
    access.write("admin", "team-a.in", b"for the team")
    access.write("alice", "rides", b"one", b"two")
    assert isinstance(refusal(lambda: access.write("alice", "team-a.in", b"no")), TopicAuthorizationError)
    assert access.read("bob", "team-a.in") == [b"for the team"]
    assert isinstance(refusal(lambda: access.read("bob", "rides")), TopicAuthorizationError)
    assert isinstance(refusal(lambda: access.read("alice", "rides")), TopicAuthorizationError)
    with access.admin("bob") as admin:
        assert admin.list_topics() == ["team-a.in"]
    assert access.read("admin", "rides") == [b"one", b"two"]


def test_a_group_needs_a_rule_of_its_own(access: Access) -> None:
    access.write("admin", "team-a.in", b"more")
    access.give("bob", "Read", "Topic", "team-", pattern_type="PREFIXED")
    assert isinstance(refusal(lambda: access.read("bob", "team-a.in", "others")), GroupAuthorizationError)
    with access.admin() as admin:
        admin.create_acls([AccessRule("User:bob", "Read", "Group", "team")])

    def has_read() -> bool:
        try:
            return bool(access.read("bob", "team-a.in", "team"))
        except GroupAuthorizationError:
            return False

    eventually(has_read, 60, "the rule about the group is obeyed")


def test_a_wildcard_allows_every_topic_and_a_deny_wins(access: Access) -> None:
    access.write("admin", "open", b"hello")
    with access.admin() as admin:
        admin.create_acls([
            AccessRule("User:alice", "Read", "Topic", "*"),
            AccessRule("User:alice", "All", "Topic", "open", permission="Deny"),
        ])  # fmt: skip
        assert not admin.check_acl("User:alice", "Read", "Topic", "open").allowed
        eventually(lambda: "rides" in access.names("alice"), SETTLED_S, "the wildcard is obeyed")
        assert access.read("alice", "rides")
        assert isinstance(refusal(lambda: access.read("alice", "open")), TopicAuthorizationError)
        (line, *_) = access.audit("denied", principal="User:alice", resource="Topic:LITERAL:open")
        assert line["rule"] == "Deny User:alice All on Topic:LITERAL:open from *"
        admin.delete_acls(principal="User:alice", permission="Deny")
        admin.delete_acls(principal="User:alice", resource_name="*")
    eventually(lambda: "team-a.in" not in access.names("alice"), SETTLED_S, "the removal is obeyed")
    assert isinstance(refusal(lambda: access.read("alice", "rides")), TopicAuthorizationError)


def test_a_stream_ends_within_five_seconds_of_a_withdrawn_rule(access: Access) -> None:
    access.give("alice", "Read", "Topic", "ending")
    request = pb.FetchRequest(format=pb.FETCH_FORMAT_BATCHES, max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20)
    request.partitions.add(topic="ending", partition=0, max_bytes=1 << 20)
    tls = client_credentials(access.files("alice"), {})
    with open_channel(access.cluster.broker(1).client_address, tls=tls) as channel:
        requests: queue.SimpleQueue[pb.FetchRequest] = queue.SimpleQueue()
        requests.put(request)
        stream = log_service_pb2_grpc.LogServiceStub(channel).FetchStream(iter(requests.get, None), timeout=60)
        assert not next(stream).partitions[0].HasField("error")
        requests.put(request)  # waits for records
        with access.admin() as admin:
            (removed,) = admin.delete_acls(principal="User:alice", resource_name="ending")
        begin = time.monotonic()
        with pytest.raises(grpc.RpcError) as failure:
            for _ in stream:
                requests.put(request)
        assert time.monotonic() - begin < WITHDRAWN_S
    assert removed.operation == "Read"
    call: Any = failure.value
    assert call.code() is grpc.StatusCode.UNAVAILABLE and "access rules" in call.details()
    assert isinstance(refusal(lambda: access.read("alice", "ending")), TopicAuthorizationError)


def test_a_consumer_whose_rule_is_withdrawn_gets_the_refusal_of_that_topic(access: Access) -> None:
    access.write("admin", "open", b"first")
    access.give("alice", "Read", "Topic", "open")
    access.give("alice", "Read", "Topic", "ending")
    with Consumer(access.cluster.bootstrap, tls=access.files("alice")) as consumer:
        consumer.assign([TopicPartition("open", 0), TopicPartition("ending", 0)])
        consumer.seek(TopicPartition("open", 0), 0)
        consumer.seek(TopicPartition("ending", 0), 0)
        eventually(lambda: consumer.poll(1_000), 20, "records arrive")
        with access.admin() as admin:
            admin.delete_acls(principal="User:alice", resource_name="open")

        def refused() -> bool:
            try:
                consumer.poll(500)
            except TopicAuthorizationError as error:
                return "'open'" in str(error)
            return False

        eventually(refused, 20, "the consumer learns of the refusal")


def test_the_audit_log_names_request_rule_old_and_new_value(access: Access) -> None:
    with access.admin() as admin:
        admin.create_acls([AccessRule("User:carl", "Read", "Topic", "open")])
        admin.delete_acls(principal="User:carl")
        admin.create_topics([NewTopic("short", 2, 1)])
        admin.alter_configs({"short": {"retention.ms": "3600000"}})
        admin.delete_topics(["short"])
    access.write("admin", "open", b"one", b"two")
    with access.admin() as admin:
        (start,) = admin.delete_records({TopicPartition("open", 0): 1})
    (trimmed, *_) = access.audit("changed", resource="Topic:LITERAL:open", operation="Delete")
    assert trimmed["old"] == {"log_start_offset": 0} and trimmed["request_id"] and start.error is None
    service = "/paceline.v1.AclService"
    added = access.audit("changed", resource="Topic:LITERAL:open", rpc=f"{service}/CreateAcls")[-1]
    removed = access.audit("changed", resource="Topic:LITERAL:open", rpc=f"{service}/DeleteAcls")[-1]
    assert added["new"] == [*(added["old"] or []), "Allow User:carl Read from *"]
    assert (removed["old"], removed["new"]) == (added["new"], added["old"])
    (altered,) = access.audit("changed", resource="Topic:LITERAL:short", operation="AlterConfigs")
    assert set(altered["old"]) == {"retention.ms"} and altered["old"]["retention.ms"] != "3600000"
    assert "3600000" in str(altered["new"])
    (created,) = access.audit("changed", resource="Topic:LITERAL:short", operation="Create")
    (deleted,) = access.audit("changed", resource="Topic:LITERAL:short", operation="Delete")
    assert (created["principal"], created["rule"]) == ("User:admin", "super user")
    assert created["new"]["partitions"] == 2 and deleted["old"]["partitions"] == 2 and deleted["new"] is None
    assert deleted["address"] and deleted["listener"] in ("CLIENT", "EXTERNAL") and deleted["time"]


def test_a_client_that_could_do_all_may_not_write_the_events_of_the_cluster(access: Access) -> None:
    with access.admin() as admin:
        admin.create_topics([NewTopic("__cluster_events", 1, 1)])
        admin.create_acls([AccessRule("User:bob", "All", "Topic", "__", pattern_type="PREFIXED")])
    eventually(lambda: "__cluster_events" in access.names("bob"), SETTLED_S, "the rule is obeyed")
    assert isinstance(refusal(lambda: access.write("bob", "__cluster_events", b"forged")), TopicAuthorizationError)


@pytest.mark.slow
def test_the_time_of_an_answer_does_not_tell_whether_a_topic_exists(access: Access) -> None:
    """2,000 interleaved calls of a client without rights: the area under the curve of a guess is below 0.55."""
    tls = client_credentials(access.files("bob"), {})
    times: dict[str, list[float]] = {"open": [], "gone": []}
    rng = random.Random(1)
    with open_channel(access.cluster.broker(1).client_address, tls=tls) as channel:
        stub = metadata_service_pb2_grpc.MetadataServiceStub(channel)
        for name in rng.sample([*times] * 1_000, 2_000):
            begin = time.perf_counter()
            (topic,) = stub.DescribeTopics(metadata_pb.DescribeTopicsRequest(topics=[name]), timeout=10).topics
            times[name].append(time.perf_counter() - begin)
            assert topic.error.code == int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ranked = sorted((seconds, name) for name, some in times.items() for seconds in some)
    ranks = sum(rank for rank, (_, name) in enumerate(ranked, 1) if name == "open")
    area = (ranks - 1_000 * 1_001 / 2) / (1_000 * 1_000)
    assert abs(area - 0.5) < 0.05, area


# Through a gateway


def gateway_channel(access: Access, name: str, address: str) -> Any:
    return open_channel(address, tls=client_credentials(access.files(name)))


def published(access: Access, name: str, address: str, topic: str) -> str:
    """Publish a record through a gateway; return the reason of its refusal, empty when it was taken."""
    with gateway_channel(access, name, address) as channel:
        try:
            GatewayServiceStub(channel).Publish(PublishRequest(topic=topic, value=b"by gateway"), timeout=60)
        except grpc.RpcError as failure:
            return from_rpc_error(failure).code.name
    return ""


def test_a_gateway_has_the_rights_of_its_caller_alone(access: Access) -> None:
    access.give("alice", "Write", "Topic", "rides")
    access.give("carol", "Read", "Topic", "rides")
    with access.admin() as admin:
        admin.create_acls([AccessRule("User:carol", "Read", "Group", "readers")])
    address = access.cluster.start_gateway().client_address
    assert published(access, "alice", address, "rides") == ""
    assert published(access, "alice", address, "open") == ErrorCode.TOPIC_AUTHORIZATION_FAILED.name
    assert published(access, "carol", address, "rides") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name

    def received() -> bytes | None:
        with gateway_channel(access, "carol", address) as channel:
            ask = SubscribeRequest(subscribe=Subscription(topics=["rides"], group="readers"))
            requests: queue.SimpleQueue[SubscribeRequest] = queue.SimpleQueue()
            requests.put(ask)
            stream = GatewayServiceStub(channel).Subscribe(iter(requests.get, None), timeout=60)
            found = (record.value for response in stream for record in response.records.records)
            value = next((one for one in found if one == b"by gateway"), None)
            stream.cancel()
            return value

    assert received() == b"by gateway"
    refused = access.audit("denied", principal="User:carol", rpc="/paceline.v1.LogService/InitProducerId")
    assert refused and all(one["uri"].endswith("/gateway/1") for one in refused)


def test_a_subscription_needs_a_rule_for_its_group(access: Access) -> None:
    access.give("carol", "Read", "Topic", "rides")
    address = access.cluster.start_gateway().client_address
    requests: queue.SimpleQueue[SubscribeRequest] = queue.SimpleQueue()
    requests.put(SubscribeRequest(subscribe=Subscription(topics=["rides"], group="of others")))
    with gateway_channel(access, "carol", address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            for _ in GatewayServiceStub(channel).Subscribe(iter(requests.get, None), timeout=60):
                pass
        assert from_rpc_error(refused.value).code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    eventually(
        lambda: access.audit("denied", principal="User:carol", resource="Group:LITERAL:of others"), SETTLED_S, "audited"
    )


def test_only_a_gateway_may_name_another_principal(access: Access) -> None:
    with gateway_channel(access, "carol", access.cluster.bootstrap.split(",")[0]) as channel:
        stub = metadata_service_pb2_grpc.MetadataServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.DescribeTopics(
                metadata_pb.DescribeTopicsRequest(), timeout=30, metadata=[("paceline-principal", "User:alice")]
            )
    assert isinstance(from_rpc_error(caught.value), ClusterAuthorizationError)


def test_a_producer_without_any_right_to_write_fails_at_once(access: Access) -> None:
    access.give("carol", "Read", "Topic", "rides")
    with Producer(access.cluster.bootstrap, tls=access.files("carol"), delivery_timeout_ms=60_000) as producer:
        begin = time.monotonic()
        assert isinstance(refusal(lambda: producer.send("rides", b"no").result(60)), ClusterAuthorizationError)
        assert time.monotonic() - begin < 30
