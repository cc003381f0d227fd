"""MetadataService and ControllerService of a controller; `admin_servicer.py` has the AdminService.

A servicer makes no decisions: it checks and converts requests, calls the node on its event loop, and answers.
"""

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from paceline import __version__
from paceline.controller.admin.admin_requests import CreateTopics
from paceline.controller.events import ControlledShutdown, Request
from paceline.controller.node import ControllerNode, TopicDescription
from paceline.controller.service.standby_transport import stream_states
from paceline.coordination.access_lists import AccessListReader
from paceline.coordination.client_quotas import QuotaReader
from paceline.coordination.flow import Flow
from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline.model.admin import NewTopic
from paceline.model.control import Endpoint
from paceline.model.errors import (
    NotControllerError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    ShuttingDownError,
    ThrottledError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import NodeDescription
from paceline.rpc.convert import common, control, failures
from paceline.rpc.convert.common import error_to_proto, message_of
from paceline.rpc.event_loop import Post, run_on_loop
from paceline.rpc.pages import topics_page
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.rpc.watch.watch_servicer import WatchServicer
from paceline.v1 import errors_pb2
from paceline.v1 import metadata_service_pb2 as metadata_pb

T = TypeVar("T")

MAX_TOPICS: Final = 10_000
CONTROLLED_SHUTDOWN_TIMEOUT_S: Final = 30.0
INTERNAL_TOPIC_WAIT_MS: Final = 1_000
"""Longest wait for leaders of an internal topic; the topic exists even after a timeout."""
MAX_WAITING_CALLS: Final = 64
"""Maximum number of calls of brokers, besides heartbeats, that wait for the event queue; a broker makes one call at a
time and retries a refused call."""
HEARTBEAT_TIMEOUT_S: Final = 3.0
"""Longest wait for the event loop; by then the broker has already sent the next heartbeat."""


class NodeHandle:
    """Holds the node once it exists; listeners are bound before the node is created, so that it knows their ports."""

    def __init__(self) -> None:
        self._node: ControllerNode | None = None
        self._is_loaded = True
        self.access_lists: AccessListReader | None = None
        """Reads and writes the access lists; None until the node exists, and if they are ignored."""
        self.on_session: Callable[[Flow[Any], float], Awaitable[Any]] | None = None
        """Runs a flow over the node's ZooKeeper session, within seconds; None until the node exists."""
        self.quotas: QuotaReader | None = None
        """Reads and writes the client quotas; None until the node exists."""

    def set_loaded(self, is_loaded: bool) -> None:
        """Set whether the node has loaded the cluster after its election; without a call it counts as loaded."""
        self._is_loaded = is_loaded

    @property
    def is_loading(self) -> bool:
        """Whether the node was elected and has not loaded the cluster yet."""
        return self._node is not None and self._node.is_active and not self._is_loaded

    def set(self, node: ControllerNode) -> None:
        """Set the node and accept calls."""
        self._node = node

    def get(self) -> ControllerNode:
        """Return the node.

        Raises:
            ShuttingDownError: the node does not exist yet.
        """
        if self._node is None:
            raise ShuttingDownError("the controller is starting")
        return self._node


def active_address(node: ControllerNode, listener: str) -> Endpoint | None:
    """Return the active controller's address on a listener, otherwise on CLIENT; None when not known."""
    active = node.active_controller
    by_listener = {} if active is None else {endpoint.listener: endpoint for endpoint in active.endpoints}
    return by_listener.get(listener) or by_listener.get("CLIENT")


def not_controller(node: ControllerNode, listener: str) -> NotControllerError:
    """Return the error that redirects a caller to the active controller.

    If this process is the active controller, the error requests a retry instead.
    """
    active, endpoint = node.active_controller, active_address(node, listener)
    error = NotControllerError(
        "this controller is loading the cluster" if node.is_active else "this controller is not active"
    )
    if active is not None:
        error = error.with_metadata(controller_id=active.controller_id)
    if endpoint is not None:
        error = error.with_metadata(host=endpoint.host, port=endpoint.port, address=endpoint.address)
    return error


class MetadataServicer(WatchServicer):
    """The cluster metadata of a controller; serves one listener."""

    def __init__(
        self,
        handle: NodeHandle,
        listener: str,
        node_id: int,
        hub: WatchHub,
        describe_node: Callable[[], NodeDescription] | None = None,
    ) -> None:
        super().__init__(hub, describe_node)
        self._handle = handle
        self._listener = listener
        self._node_id = node_id

    async def DescribeCluster(  # noqa: N802
        self, request: metadata_pb.DescribeClusterRequest, context: Any
    ) -> metadata_pb.DescribeClusterResponse:
        """List live brokers and the active controller; a controller that is not active returns no brokers."""
        node = self._handle.get()
        if self._handle.is_loading:
            raise not_controller(node, self._listener)
        cluster = node.describe_cluster()
        controller = active_address(node, self._listener)
        return self._shown(
            metadata_pb.DescribeClusterResponse(
                cluster_id=cluster.cluster_id,
                brokers=[control.broker_info_to_proto(broker, self._listener) for broker in cluster.brokers],
                controller_id=cluster.active_controller.controller_id if cluster.active_controller else None,
                controller_epoch=cluster.controller_epoch,
                controller_host=controller.host if controller else "",
                controller_port=controller.port if controller else 0,
                server_version=__version__,
                node_id=self._node_id,
                zookeeper_connected=cluster.zookeeper_connected,
            )
        )

    async def DescribeTopics(  # noqa: N802
        self, request: metadata_pb.DescribeTopicsRequest, context: Any
    ) -> metadata_pb.DescribeTopicsResponse:
        """Return a page of the requested topics, or of all topics."""
        common.bounded(request.topics, MAX_TOPICS, "topics")
        self._check_active()
        node = self._handle.get()
        return topics_page(request, node.topic_names, lambda name: _described(node.describe_topics([name])[0]))

    def _check_active(self) -> None:
        node = self._handle.get()
        if not node.is_active or self._handle.is_loading:
            raise not_controller(node, self._listener)

    async def DescribeReplicas(  # noqa: N802
        self, request: metadata_pb.DescribeReplicasRequest, context: Any
    ) -> metadata_pb.DescribeReplicasResponse:
        """Refuse: only leaders know the progress of replicas."""
        raise NotLeaderOrFollowerError("a controller hosts no replicas; ask the partition's leader")


def _described(topic: TopicDescription) -> metadata_pb.TopicDescription:
    return message_of(
        metadata_pb.TopicDescription,
        topic,
        error=error_to_proto(errors_pb2.TopicError, topic.error),
        partitions=[
            message_of(
                metadata_pb.PartitionDescription,
                partition,
                error=None
                if partition.leader is not None
                else failures.no_leader_to_proto(TopicPartition(topic.name, partition.partition)),
            )
            for partition in topic.partitions
        ],
    )


class ControllerServicer(controller_service_pb2_grpc.ControllerServiceServicer):
    """Serves brokers and standbys; runs on the CONTROL listener's threads and calls the node on its event loop."""

    def __init__(self, handle: NodeHandle, post: Post) -> None:
        self._handle = handle
        self._post = post
        self._may_wait = threading.BoundedSemaphore(MAX_WAITING_CALLS)

    def ControlledShutdown(  # noqa: N802
        self, request: controller_pb.ControlledShutdownRequest, context: Any
    ) -> controller_pb.ControlledShutdownResponse:
        """Move leadership off a broker that is about to stop."""
        asked = control.controlled_shutdown_from_proto(request)
        return control.controlled_shutdown_response_to_proto(self._ask(partial(ControlledShutdown, asked)))

    def CreateInternalTopic(  # noqa: N802
        self, request: controller_pb.CreateInternalTopicRequest, context: Any
    ) -> controller_pb.CreateInternalTopicResponse:
        """Create an internal topic for a broker; waits for its leaders only briefly."""
        asked = control.internal_topic_from_proto(request)
        topic = NewTopic(asked.name, asked.partitions, asked.replication_factor, configs=asked.configs)
        (result,) = self._ask(partial(CreateTopics, (topic,), INTERNAL_TOPIC_WAIT_MS, False, internal=True))
        return controller_pb.CreateInternalTopicResponse(error=error_to_proto(errors_pb2.TopicError, result.error))

    def _ask(self, request: Callable[..., Request[T]]) -> T:
        node = self._handle.get()
        future: concurrent.futures.Future[T | Exception] = concurrent.futures.Future()
        if not self._may_wait.acquire(blocking=False):
            raise ThrottledError.at("MAX_WAITING_CALLS", f"{MAX_WAITING_CALLS} calls of brokers wait; try again")
        try:
            self._post(lambda: node.ask(request(reply=future.set_result)))
            answer = future.result(CONTROLLED_SHUTDOWN_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise RequestTimedOutError("the controller did not answer in time") from None
        finally:
            self._may_wait.release()
        if isinstance(answer, NotControllerError):
            raise not_controller(node, "CONTROL")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def BrokerHeartbeat(  # noqa: N802
        self, request: controller_pb.BrokerHeartbeatRequest, context: Any
    ) -> controller_pb.BrokerHeartbeatResponse:
        """Renew a broker's lease."""
        asked = control.broker_heartbeat_from_proto(request)
        node = self._handle.get()
        try:
            response = run_on_loop(self._post, lambda: node.broker_heartbeat(asked), HEARTBEAT_TIMEOUT_S)
        except NotControllerError:
            raise not_controller(node, "CONTROL") from None
        return control.broker_heartbeat_response_to_proto(response)

    def FollowState(  # noqa: N802
        self, request: controller_pb.FollowStateRequest, context: Any
    ) -> Iterator[controller_pb.FollowStateResponse]:
        """Stream the partition states to a standby controller."""
        node = self._handle.get()
        try:
            yield from stream_states(node, self._post, request.controller_id, context)
        except NotControllerError:
            raise not_controller(node, "CONTROL") from None
