"""Calls with grpcurl or generated stubs alone, without our client library."""

from collections import Counter

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from paceline.dev.local_cluster import LocalCluster
from paceline.model.errors import InvalidRequestError
from paceline.rpc.errors import from_rpc_error
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import errors_pb2
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline.v1.admin_service_pb2_grpc import AdminServiceStub
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline.v1.record_pb2 import Record, RecordList
from tests.support.stub_client import StubClient

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

BROKER_SERVICES = {"paceline.v1.LogService", "paceline.v1.MetadataService", "grpc.health.v1.Health"}
CONTROLLER_SERVICES = {"paceline.v1.AdminService", "paceline.v1.MetadataService", "grpc.health.v1.Health"}


@pytest.mark.parametrize("listener", ["client", "external"])
def test_reflection_lists_the_services_of_a_broker(local_cluster: LocalCluster, listener: str) -> None:
    node = local_cluster.broker(1)
    address = node.client_address if listener == "client" else node.external_address
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) >= BROKER_SERVICES
        method = DescriptorPool(database).FindServiceByName("paceline.v1.LogService").FindMethodByName("Produce")
        assert method.input_type.full_name == "paceline.v1.ProduceRequest"


def test_reflection_lists_the_services_of_a_controller(local_cluster: LocalCluster) -> None:
    with grpc.insecure_channel(local_cluster.controller_addresses[0]) as channel:
        assert set(ProtoReflectionDescriptorDatabase(channel).get_services()) >= CONTROLLER_SERVICES


def test_a_bare_stub_creates_a_topic_writes_records_and_reads_them_back(local_cluster: LocalCluster) -> None:
    with StubClient(local_cluster.bootstrap.split(",")) as client:
        client.create_topic("stubs-alone", partitions=2, replication_factor=3, min_insync_replicas="2")
        values = [f"value {number}".encode() for number in range(50)]
        for partition in range(2):
            assert client.produce("stubs-alone", partition, values) == 0
            read = client.read_all("stubs-alone", partition, end=50)
            assert [read[offset] for offset in range(50)] == values


def produce_request(topic: str, records: RecordList) -> log_pb.ProduceRequest:
    return log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic=topic, partition=0, records=records)])


def controller_address(cluster: LocalCluster) -> str:
    with StubClient(cluster.bootstrap.split(",")) as client:
        described = client.describe_cluster()
        return f"{described.controller_host}:{described.controller_port}"


def records_of(values: list[bytes], **producer: int) -> RecordList:
    return RecordList(records=[Record(value=value) for value in values], **producer)  # type: ignore[arg-type]


def test_a_repeated_call_after_a_timeout_appends_no_duplicate(local_cluster: LocalCluster) -> None:
    with StubClient(local_cluster.bootstrap.split(",")) as client:
        client.create_topic("repeated", partitions=1, replication_factor=3, min_insync_replicas="2")
        stub = LogServiceStub(grpc.insecure_channel(client.find_leader("repeated", 0)))
        producer = stub.InitProducerId(log_pb.InitProducerIdRequest(), timeout=30)
        expected: list[bytes] = []
        codes: Counter[str] = Counter()
        unknown_outcomes = 0
        for number in range(40):
            values = [b"%d-%d" % (number, index) for index in range(5)]
            records = records_of(
                values,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=len(expected),
            )
            for deadline_s in (0.0005, 0.001, 0.002, 0.004, 30.0, 30.0):
                try:
                    (result,) = stub.Produce(produce_request("repeated", records), timeout=deadline_s).partitions
                except grpc.RpcError as failure:
                    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    unknown_outcomes += 1
                    continue
                if result.HasField("error"):
                    # Only a short deadline may fail: the batch was not replicated in time or, before the first batch,
                    # the broker had not read the topic's settings and appended nothing. Any other error is a bug:
                    # OUT_OF_ORDER_SEQUENCE_NUMBER, for example, would mean that the deduplication is wrong.
                    error = result.error
                    reads_settings = not expected and "the settings of topic repeated" in error.message
                    codes[errors_pb2.ErrorCode.Name(error.code)] += 1
                    assert deadline_s < 1 and (
                        error.code == errors_pb2.ERROR_CODE_REQUEST_TIMED_OUT
                        or (error.code == errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS and reads_settings)
                    ), f"{error} at record {len(expected)} with {deadline_s * 1000:g} ms, codes so far {dict(codes)}"
                    unknown_outcomes += 1
                    continue
                assert result.base_offset == len(expected), "the retry has the offset of the first attempt"
            expected += values
        print(f"codes of attempts that were cut short: {dict(codes)}")
        assert unknown_outcomes, "no call timed out, so no retry with an unknown outcome was tested"
        read = client.read_all("repeated", 0, end=len(expected))
        assert [read[offset] for offset in range(len(expected))] == expected


@pytest.mark.parametrize(
    "producer",
    [
        {"producer_id": 1},
        {"producer_id": 1, "producer_epoch": 0},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 1, "producer_epoch": 32_768, "base_sequence": 0},
        {"producer_id": -1, "producer_epoch": 0, "base_sequence": 0},
    ],
)
def test_a_producer_id_without_epoch_or_sequence_is_refused(
    local_cluster: LocalCluster, producer: dict[str, int]
) -> None:
    with grpc.insecure_channel(local_cluster.broker(1).client_address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            LogServiceStub(channel).Produce(produce_request("any", records_of([b"v"], **producer)), timeout=30)
        assert isinstance(from_rpc_error(refused.value), InvalidRequestError)


def test_a_fetch_answers_before_the_deadline_of_its_call(local_cluster: LocalCluster) -> None:
    with StubClient(local_cluster.bootstrap.split(",")) as client:
        client.create_topic("deadline", partitions=1, replication_factor=1, min_insync_replicas="1")
        stub = LogServiceStub(grpc.insecure_channel(client.find_leader("deadline", 0)))
        request = log_pb.FetchRequest(max_wait_ms=60_000, min_bytes=1_000, partitions=[{"topic": "deadline"}])  # type: ignore[list-item]
        (result,) = stub.Fetch(request, timeout=3.0).partitions
        assert not result.HasField("error") and not result.records.records


def test_lists_are_returned_in_pages(local_cluster: LocalCluster) -> None:
    names = [f"paged-{number}" for number in range(5)]
    with StubClient(local_cluster.bootstrap.split(",")) as client:
        for name in names:
            client.create_topic(name, partitions=2, replication_factor=3, min_insync_replicas="2")
    for address in (local_cluster.broker(1).client_address, controller_address(local_cluster)):
        with grpc.insecure_channel(address) as channel:
            stub = MetadataServiceStub(channel)
            found, token = [], ""
            while True:
                request = metadata_pb.DescribeTopicsRequest(page_size=2, page_token=token)
                answer = stub.DescribeTopics(request, timeout=30)
                assert len(answer.topics) <= 2
                found += [topic.name for topic in answer.topics]
                token = answer.next_page_token
                if not token:
                    break
            assert found == sorted(set(found)) and set(names) <= set(found)
    with grpc.insecure_channel(controller_address(local_cluster)) as channel:
        admin = AdminServiceStub(channel)
        rows, token = [], ""
        while True:
            asked = admin_pb.DescribeLogDirsRequest(
                partitions=[admin_pb.TopicPartition(topic=name, partition=1) for name in names],
                page_size=4,
                page_token=token,
            )
            dirs = admin.DescribeLogDirs(asked, timeout=30)
            page = [
                (broker.broker_id, replica.topic, replica.partition)
                for broker in dirs.brokers
                for log_dir in broker.log_dirs
                for replica in log_dir.replicas
            ]
            assert len(page) <= 4
            rows += page
            token = dirs.next_page_token
            if not token:
                break
        assert rows == [(broker, name, 1) for broker in (1, 2, 3) for name in names]
        resource = admin_pb.ConfigResource(type=admin_pb.CONFIG_RESOURCE_TYPE_TOPIC, name=names[0])
        (described,) = admin.DescribeConfigs(
            admin_pb.DescribeConfigsRequest(resources=[admin_pb.DescribeConfigsResource(resource=resource)]), timeout=30
        ).resources
        entries = {entry.key: entry for entry in described.entries}
        assert (entries["min.insync.replicas"].value, entries["min.insync.replicas"].default_value) == ("2", "1")
        assert entries["cleanup.policy"].type == admin_pb.CONFIG_TYPE_LIST
        assert all(entry.documentation and entry.type for entry in described.entries)
