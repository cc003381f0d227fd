"""Invalid requests over bare stubs: a real cluster returns a typed error and changes nothing."""

import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from paceline.dev.local_cluster import LocalCluster
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc as control_grpc
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import admin_service_pb2_grpc as admin_grpc
from paceline.v1 import errors_pb2 as errors
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import log_service_pb2_grpc as log_grpc
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

TOPIC = "bad-input"


@pytest.fixture(scope="module")
def client(local_cluster: LocalCluster) -> Iterator[StubClient]:
    with StubClient(local_cluster.bootstrap.split(",")) as client:
        client.create_topic(TOPIC, partitions=1, replication_factor=3, min_insync_replicas="2")
        client.produce(TOPIC, 0, [b"first"])
        yield client


@pytest.fixture(scope="module")
def leader(local_cluster: LocalCluster, client: StubClient) -> Iterator[log_grpc.LogServiceStub]:
    (partition,) = client.describe_topic(TOPIC).partitions
    with grpc.insecure_channel(local_cluster.broker(partition.leader).client_address) as channel:
        yield log_grpc.LogServiceStub(channel)


@pytest.fixture(scope="module")
def admin(local_cluster: LocalCluster, client: StubClient) -> Iterator[admin_grpc.AdminServiceStub]:
    cluster = client.describe_cluster()
    with grpc.insecure_channel(f"{cluster.controller_host}:{cluster.controller_port}") as channel:
        yield admin_grpc.AdminServiceStub(channel)


@pytest.fixture(autouse=True)
def nothing_changes(client: StubClient) -> Iterator[None]:
    topics = [topic.name for topic in client.describe_topics()]
    yield
    eventually(lambda: [topic.name for topic in client.describe_topics()] == topics, 60.0, f"the topics are {topics}")
    assert client.read_all(TOPIC, 0) == {0: b"first"}


def _reason(failure: grpc.RpcError) -> str:
    status = rpc_status.from_call(failure)
    assert status is not None, failure
    info = error_details_pb2.ErrorInfo()
    (detail,) = [each for each in status.details if each.Is(info.DESCRIPTOR)]
    detail.Unpack(info)
    assert info.domain == "paceline"
    return str(info.reason)


# --- topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"name": ""}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "."}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": ".."}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "a/b"}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "a\\b"}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "a\x00b"}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "x" * 250}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "flüge"}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": "аpples"}, errors.ERROR_CODE_INVALID_TOPIC),
        ({"name": TOPIC}, errors.ERROR_CODE_TOPIC_ALREADY_EXISTS),
        ({"name": "no-partitions", "partitions": 0}, errors.ERROR_CODE_INVALID_PARTITIONS),
        ({"name": "less-than-none", "partitions": -3}, errors.ERROR_CODE_INVALID_PARTITIONS),
        ({"name": "too-many", "partitions": 2_000_000}, errors.ERROR_CODE_INVALID_PARTITIONS),
        ({"name": "no-replicas", "replication_factor": 0}, errors.ERROR_CODE_INVALID_REPLICATION_FACTOR),
        ({"name": "four-of-three", "replication_factor": 4}, errors.ERROR_CODE_INVALID_REPLICATION_FACTOR),
        ({"name": "odd-config", "configs": {"min.insink.replicas": "2"}}, errors.ERROR_CODE_INVALID_CONFIG),
        ({"name": "odd-value", "configs": {"min.insync.replicas": "two"}}, errors.ERROR_CODE_INVALID_CONFIG),
        (
            {"name": "twice", "assignments": [admin_pb.ReplicaAssignment(broker_ids=[1, 1])]},
            errors.ERROR_CODE_INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"name": "nobody", "assignments": [admin_pb.ReplicaAssignment(broker_ids=[])]},
            errors.ERROR_CODE_INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"name": "uneven", "assignments": [admin_pb.ReplicaAssignment(broker_ids=ids) for ids in ([1, 2], [3])]},
            errors.ERROR_CODE_INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_an_invalid_topic_is_refused(admin: admin_grpc.AdminServiceStub, topic: dict[str, Any], code: int) -> None:
    (result,) = admin.CreateTopics(admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(**topic)]), timeout=60).topics
    assert result.error.code == code, result
    assert result.error.message


def test_deleting_an_unknown_topic_is_an_error(admin: admin_grpc.AdminServiceStub) -> None:
    (result,) = admin.DeleteTopics(admin_pb.DeleteTopicsRequest(topics=["never-was"]), timeout=60).topics
    assert result.error.code == errors.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION


def test_a_standby_controller_names_the_active_one(local_cluster: LocalCluster, client: StubClient) -> None:
    cluster = client.describe_cluster()
    active = f"{cluster.controller_host}:{cluster.controller_port}"
    (standby,) = [address for address in local_cluster.controller_addresses if address != active]
    with grpc.insecure_channel(standby) as channel, pytest.raises(grpc.RpcError) as raised:
        admin_grpc.AdminServiceStub(channel).CreateTopics(
            admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(name="elsewhere")]), timeout=20
        )
    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    assert _reason(raised.value) == "NOT_CONTROLLER"


# --- produce ---------------------------------------------------------------------------------------------------------


def _batch(*values: bytes) -> bytearray:
    return bytearray(encode_batch(NewRecord(1_000, None, value) for value in values))


def _flip_crc(batch: bytearray) -> bytearray:
    batch[17] ^= 0xFF
    return batch


def _flip_payload(batch: bytearray) -> bytearray:
    batch[-2] ^= 0x01
    return batch


def _with(offset: int, layout: str, value: int) -> Any:
    def change(batch: bytearray) -> bytearray:
        struct.pack_into(layout, batch, offset, value)
        return batch

    return change


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (_flip_crc, {errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (_flip_payload, {errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (_with(8, ">i", 1_000_000), {errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (_with(8, ">i", -1), {errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (_with(16, ">b", 1), {errors.ERROR_CODE_CORRUPT_MESSAGE, errors.ERROR_CODE_INVALID_RECORD}),
        (_with(0, ">q", 7), {errors.ERROR_CODE_INVALID_RECORD, errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (lambda batch: batch[:-3], {errors.ERROR_CODE_CORRUPT_MESSAGE}),
        (lambda batch: batch + b"tail", {errors.ERROR_CODE_CORRUPT_MESSAGE, errors.ERROR_CODE_INVALID_RECORD}),
        (lambda batch: bytearray(), {errors.ERROR_CODE_CORRUPT_MESSAGE, errors.ERROR_CODE_INVALID_RECORD}),
        (lambda batch: bytearray(b"not a batch at all"), {errors.ERROR_CODE_CORRUPT_MESSAGE}),
    ],
    ids=["crc", "payload", "too-long", "negative-length", "magic", "base-offset", "cut", "tail", "empty", "garbage"],
)
def test_a_damaged_batch_is_refused(leader: log_grpc.LogServiceStub, change: Any, codes: set[int]) -> None:
    batch = bytes(change(_batch(b"one", b"two")))
    part = log_pb.ProducePartition(topic=TOPIC, partition=0, batch=batch)
    assert _outcome(leader, log_pb.ProduceRequest(partitions=[part])) in codes


def test_a_batch_beyond_the_limit_is_refused(leader: log_grpc.LogServiceStub) -> None:
    part = log_pb.ProducePartition(topic=TOPIC, partition=0, batch=bytes(_batch(bytes(1_100_000))))
    assert _outcome(leader, log_pb.ProduceRequest(partitions=[part])) == errors.ERROR_CODE_MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("topic", "partition"), [("never-was", 0), (TOPIC, 1), (TOPIC, 1_000_000), (TOPIC, -1), ("..", 0), ("a/b", 0)]
)
def test_an_unknown_partition_is_refused(leader: log_grpc.LogServiceStub, topic: str, partition: int) -> None:
    part = log_pb.ProducePartition(topic=topic, partition=partition, batch=bytes(_batch(b"one")))
    expected = {
        errors.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
        errors.ERROR_CODE_INVALID_TOPIC,
        errors.ERROR_CODE_INVALID_REQUEST,
    }
    assert _outcome(leader, log_pb.ProduceRequest(partitions=[part])) in expected


def test_an_unknown_acks_value_is_refused(leader: log_grpc.LogServiceStub) -> None:
    part = log_pb.ProducePartition(topic=TOPIC, partition=0, batch=bytes(_batch(b"one")))
    request = log_pb.ProduceRequest(acks=17, partitions=[part])  # type: ignore[arg-type]
    assert _outcome(leader, request) == errors.ERROR_CODE_INVALID_REQUIRED_ACKS


def _outcome(leader: log_grpc.LogServiceStub, request: log_pb.ProduceRequest) -> int:
    try:
        (result,) = leader.Produce(request, timeout=60).partitions
    except grpc.RpcError as failure:
        return int(errors.ErrorCode.Value(f"ERROR_CODE_{_reason(failure)}"))
    assert result.HasField("error")
    assert result.error.message
    return int(result.error.code)


# --- fetch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
def test_an_offset_out_of_range_is_answered_with_the_range(leader: log_grpc.LogServiceStub, offset: int) -> None:
    part = log_pb.FetchPartition(topic=TOPIC, partition=0, fetch_offset=offset)
    try:
        (result,) = leader.Fetch(log_pb.FetchRequest(partitions=[part]), timeout=60).partitions
    except grpc.RpcError as failure:
        assert offset < 0
        assert _reason(failure) in {"OFFSET_OUT_OF_RANGE", "INVALID_REQUEST"}
        return
    assert result.error.code == errors.ERROR_CODE_OFFSET_OUT_OF_RANGE
    assert result.error.log_start_offset == 0
    assert result.error.high_watermark == 1


# --- control ---------------------------------------------------------------------------------------------------------


def test_a_control_request_of_an_old_controller_or_for_an_earlier_registration_is_refused(
    local_cluster: LocalCluster, client: StubClient
) -> None:
    (partition,) = client.describe_topic(TOPIC).partitions
    node = local_cluster.broker(partition.leader)
    assert local_cluster.ports is not None
    port = local_cluster.ports.brokers[partition.leader - 1].listeners["CONTROL"]
    before = client.describe_cluster()
    stopped = local_cluster.nodes[f"controller-{before.controller_id}"]
    assert local_cluster.terminate(stopped) == 0
    cluster = eventually(
        lambda: next((c for c in [client.describe_cluster()] if c.controller_epoch > before.controller_epoch), None),
        120.0,
        "the other controller takes over",
    )
    assert cluster is not None
    local_cluster.restart(stopped)
    entry = control_pb.LeaderAndIsrPartition(
        topic=TOPIC, partition=0, leader=-1, leader_epoch=99, isr=[1], replicas=[1, 2, 3], controller_epoch=1
    )
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = control_grpc.ReplicaManagerServiceStub(channel)
        old_controller = control_pb.ControllerStamp(controller_id=9, controller_epoch=cluster.controller_epoch - 1)
        answer = stub.LeaderAndIsr(control_pb.LeaderAndIsrRequest(stamp=old_controller, partitions=[entry]), timeout=60)
        assert answer.error == errors.ERROR_CODE_STALE_CONTROLLER_EPOCH
        old_life = control_pb.ControllerStamp(
            controller_id=9, controller_epoch=cluster.controller_epoch, broker_epoch=1
        )
        answer = stub.LeaderAndIsr(control_pb.LeaderAndIsrRequest(stamp=old_life, partitions=[entry]), timeout=60)
        assert answer.error == errors.ERROR_CODE_STALE_BROKER_EPOCH
    assert node.running
    assert client.describe_topic(TOPIC).partitions[0].leader_epoch == partition.leader_epoch
