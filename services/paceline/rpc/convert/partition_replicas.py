"""A leader's view of its followers: `model.client_io` <-> ``paceline.v1`` DescribeReplicas."""

from paceline.model.admin import ReplicaDescription
from paceline.model.client_io import PartitionReplicasView
from paceline.rpc.convert.common import message_of
from paceline.rpc.convert.failures import AddressOf, failure_to_proto, no_address
from paceline.v1 import metadata_service_pb2 as pb


def partition_replicas_to_proto(
    view: PartitionReplicasView, address_of: AddressOf = no_address
) -> pb.PartitionReplicas:
    """Encode a broker's view of the replicas of one partition."""
    topic, partition = view.topic_partition
    error = None if view.failure is None else failure_to_proto(view.failure, address_of)
    if error is not None and not view.replicas:
        return pb.PartitionReplicas(topic=topic, partition=partition, error=error)
    return message_of(pb.PartitionReplicas, view, error=error, replicas=[_progress(one) for one in view.replicas])


def _progress(view: ReplicaDescription) -> pb.ReplicaProgress:
    epochs = [pb.LeaderEpochStart(leader_epoch=epoch, start_offset=start) for epoch, start in view.leader_epochs]
    return message_of(pb.ReplicaProgress, view, leader_epochs=epochs)
