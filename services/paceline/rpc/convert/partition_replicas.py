"""A leader's view of its followers: `model.client_io` <-> ``paceline.v1`` DescribeReplicas."""

from typing import Any

from paceline.model.client_io import PartitionReplicasView, ReplicaProgressView
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.failures import AddressOf, failure_from_proto, failure_to_proto, no_address
from paceline.v1 import metadata_service_pb2


def partition_replicas_to_proto(
    view: PartitionReplicasView, address_of: AddressOf = no_address
) -> metadata_service_pb2.PartitionReplicas:
    """Return the message of a leader's view of one partition."""
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


def partition_replicas_from_proto(message: metadata_service_pb2.PartitionReplicas) -> PartitionReplicasView:
    """Return a leader's view of one partition."""
    topic_partition = TopicPartition(message.topic, message.partition)
    failure = failure_from_proto(message)
    if failure is not None:
        return PartitionReplicasView(topic_partition, failure)
    return PartitionReplicasView(
        topic_partition,
        None,
        leader=message.leader,
        leader_epoch=message.leader_epoch,
        leader_epoch_start_offset=message.leader_epoch_start_offset,
        high_watermark=message.high_watermark,
        log_start_offset=message.log_start_offset,
        isr=tuple(message.isr),
        maximal_isr=tuple(message.maximal_isr),
        replicas=tuple(
            ReplicaProgressView(
                broker_id=one.broker_id,
                log_end_offset=_optional(one, "log_end_offset"),
                log_start_offset=_optional(one, "log_start_offset"),
                last_caught_up_ago_ms=_optional(one, "last_caught_up_ago_ms"),
                last_fetch_ago_ms=_optional(one, "last_fetch_ago_ms"),
                in_sync=one.in_sync,
                high_watermark=_optional(one, "high_watermark"),
                lag_records=_optional(one, "lag_records"),
                broker_epoch=_optional(one, "broker_epoch"),
                online=one.online,
            )
            for one in message.replicas
        ),
        topic_id=message.topic_id or None,
        zk_version=message.zk_version,
        adding_replicas=tuple(message.adding_replicas),
        removing_replicas=tuple(message.removing_replicas),
        min_insync_replicas=message.min_insync_replicas,
        under_replicated=message.under_replicated,
        bytes_in=message.bytes_in,
        bytes_out=message.bytes_out,
    )


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None
