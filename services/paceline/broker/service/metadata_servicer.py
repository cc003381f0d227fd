"""MetadataService of one listener, for clients. It describes the cluster from the broker's cache."""

from collections.abc import Callable
from typing import Any

from paceline import __version__
from paceline.broker.metadata_cache import MetadataSnapshot
from paceline.broker.service.node_handle import Listener, NodeHandle
from paceline.model.control import UpdateMetadataPartition
from paceline.model.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    PacelineError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import validate_topic_name
from paceline.model.node_description import NodeDescription
from paceline.rpc.convert import common, control, failures, partition_replicas
from paceline.rpc.pages import topics_page
from paceline.rpc.security.guard import current_caller
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.rpc.watch.watch_servicer import WatchServicer
from paceline.v1 import errors_pb2
from paceline.v1 import metadata_service_pb2 as metadata_pb


class MetadataServicer(WatchServicer):
    """Describes the cluster from the broker's cache."""

    def __init__(
        self,
        core: NodeHandle,
        listener: str,
        node_id: Callable[[], int],
        hub: WatchHub,
        describe_node: Callable[[], NodeDescription] | None = None,
    ) -> None:
        super().__init__(hub, describe_node)
        self._core = core
        self._listener = Listener(listener, core)
        self._node_id = node_id

    async def DescribeCluster(  # noqa: N802
        self, request: metadata_pb.DescribeClusterRequest, context: Any
    ) -> metadata_pb.DescribeClusterResponse:
        """List live brokers and the controller."""
        core = self._core.get()
        snapshot = core.metadata.snapshot
        brokers = [snapshot.brokers[broker_id] for broker_id in sorted(snapshot.brokers)]
        controller = self._listener.controller_address()
        silent_ms, connected = core.contacts()
        return self._shown(
            metadata_pb.DescribeClusterResponse(
                cluster_id=core.cluster_id or "",
                brokers=[control.broker_info_to_proto(broker, self._listener.name) for broker in brokers],
                controller_id=snapshot.controller_id,
                controller_epoch=snapshot.controller_epoch,
                controller_host=controller.host if controller else "",
                controller_port=controller.port if controller else 0,
                server_version=__version__,
                node_id=self._node_id(),
                controller_silent_ms=silent_ms,
                zookeeper_connected=connected,
            )
        )

    async def DescribeTopics(  # noqa: N802
        self, request: metadata_pb.DescribeTopicsRequest, context: Any
    ) -> metadata_pb.DescribeTopicsResponse:
        """Return a page of the requested topics, or of all topics."""
        topics = self._received_metadata().topics
        common.bounded(request.topics, common.MAX_CLIENT_PARTITIONS, "topics")
        return topics_page(request, lambda: sorted(topics), lambda name: _topic_description(name, topics.get(name)))

    def _received_metadata(self) -> MetadataSnapshot:
        """Return the metadata, but not before the first UpdateMetadata: every topic would look unknown.

        Raises:
            BrokerNotAvailableError: this broker has not received metadata yet.
        """
        snapshot = self._core.get().metadata.snapshot
        if not snapshot.version:
            raise BrokerNotAvailableError("this broker has not received metadata from a controller yet")
        return snapshot

    def _check_active(self) -> None:
        snapshot, endpoint = self._core.get().metadata.snapshot, self._listener.controller_address()
        error = NotControllerError("a broker is not a controller")
        if snapshot.controller_id is not None:
            error = error.with_metadata(controller_id=snapshot.controller_id)
        if endpoint is not None:
            error = error.with_metadata(host=endpoint.host, port=endpoint.port, address=endpoint.address)
        raise error

    async def DescribeReplicas(  # noqa: N802
        self, request: metadata_pb.DescribeReplicasRequest, context: Any
    ) -> metadata_pb.DescribeReplicasResponse:
        """Show a leader's view of its followers; of a partition that another broker leads, the own replica."""
        validate_topic_name(request.topic)
        partitions = list(common.bounded(request.partitions, common.MAX_CLIENT_PARTITIONS, "partitions"))
        if any(partition < 0 for partition in partitions) or len(set(partitions)) != len(partitions):
            raise InvalidRequestError("partitions must be distinct and not negative")
        views = self._core.get().describe_replicas(request.topic, partitions)
        described = [partition_replicas.partition_replicas_to_proto(view, self._listener.address_of) for view in views]
        if not current_caller().is_super:
            for replica in (replica for partition in described for replica in partition.replicas):
                replica.ClearField("broker_epoch")
        return metadata_pb.DescribeReplicasResponse(partitions=described)


def _topic_description(name: str, partitions: Any) -> metadata_pb.TopicDescription:
    if partitions is None:
        error = _why_unknown(name)
        return metadata_pb.TopicDescription(
            name=name,
            error=common.error_to_proto(errors_pb2.TopicError, error),
        )
    described = [_partition_description(partitions[index]) for index in sorted(partitions)]
    topic_id = next((state.topic_id for state in partitions.values() if state.topic_id), None)
    return metadata_pb.TopicDescription(name=name, topic_id=topic_id or "", partitions=described)


def _why_unknown(name: str) -> PacelineError:
    try:
        validate_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError("there is no such topic, or this broker has not heard of it yet")


def _partition_description(state: UpdateMetadataPartition) -> metadata_pb.PartitionDescription:
    return metadata_pb.PartitionDescription(
        partition=state.topic_partition.partition,
        leader=state.leader if state.leader >= 0 else None,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        offline_replicas=state.offline_replicas,
        error=None if state.leader >= 0 else failures.no_leader_to_proto(state.topic_partition),
    )
