"""What a person with grpcurl or freshly generated stubs can do: no code of our client library is used here."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from paceline.dev.local_cluster import LocalCluster
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
