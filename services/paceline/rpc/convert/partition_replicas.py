"""A leader's view of its followers: `model.client_io` <-> ``paceline.v1`` DescribeReplicas."""

from paceline.model.client_io import PartitionReplicasView
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
    return metadata_service_pb2.PartitionReplicas(
        topic=topic,
        partition=partition,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        leader_epoch_start_offset=view.leader_epoch_start_offset,
        high_watermark=view.high_watermark,
        log_start_offset=view.log_start_offset,
        isr=view.isr,
        maximal_isr=view.maximal_isr,
        replicas=[
            metadata_service_pb2.ReplicaProgress(
                broker_id=one.broker_id,
                log_end_offset=one.log_end_offset,
                log_start_offset=one.log_start_offset,
                last_caught_up_ago_ms=one.last_caught_up_ago_ms,
                last_fetch_ago_ms=one.last_fetch_ago_ms,
                in_sync=one.in_sync,
                high_watermark=one.high_watermark,
                lag_records=one.lag_records,
                broker_epoch=one.broker_epoch,
                online=one.online,
            )
            for one in view.replicas
        ],
        topic_id=view.topic_id or "",
        zk_version=view.zk_version,
        adding_replicas=view.adding_replicas,
        removing_replicas=view.removing_replicas,
        min_insync_replicas=view.min_insync_replicas,
        under_replicated=view.under_replicated,
        bytes_in=view.bytes_in,
        bytes_out=view.bytes_out,
    )
