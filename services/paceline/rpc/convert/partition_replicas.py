"""A leader's view of its followers: `model.client_io` <-> ``paceline.v1`` DescribeReplicas."""

from paceline.model.client_io import PartitionReplicasView
from paceline.rpc.convert.common import message_of
from paceline.rpc.convert.failures import AddressOf, failure_to_proto, no_address
from paceline.v1 import metadata_service_pb2


def partition_replicas_to_proto(
    view: PartitionReplicasView, address_of: AddressOf = no_address
) -> metadata_service_pb2.PartitionReplicas:
    """Encode a leader's view of the replicas of one partition."""
    topic, partition = view.topic_partition
    if view.failure is not None:
        return metadata_service_pb2.PartitionReplicas(
            topic=topic, partition=partition, error=failure_to_proto(view.failure, address_of)
        )
    return message_of(
        metadata_service_pb2.PartitionReplicas,
        view,
        error=None,
        replicas=[message_of(metadata_service_pb2.ReplicaProgress, one) for one in view.replicas],
    )
