"""AdminService, MetadataService and ControllerService: what clients and brokers call on a controller.

A servicer decides nothing: it checks and converts, asks the node on its event loop, and answers.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Final, TypeVar

from paceline import __version__
from paceline.controller.node import ControllerNode, TopicDescription
from paceline.controller.topic_admin import CreateTopicResult, DeleteTopicResult, NewTopic
from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline.model.control import ControlledShutdownResponse, Endpoint
from paceline.model.errors import (
    InvalidRequestError,
    NotControllerError,
    NotLeaderOrFollowerError,
    PacelineError,
    RequestTimedOutError,
    ShuttingDownError,
)
from paceline.rpc import convert
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import (
    admin_service_pb2_grpc,
    errors_pb2,
    metadata_service_pb2_grpc,
)
from paceline.v1 import metadata_service_pb2 as metadata_pb

T = TypeVar("T")

MAX_TOPICS: Final = 10_000
MAX_TIMEOUT_MS: Final = 600_000
DEFAULT_TIMEOUT_MS: Final = 30_000
ANSWER_GRACE_MS: Final = 10_000
"""How much longer than its own timeout a request waits for the node, which always answers."""
CONTROLLED_SHUTDOWN_TIMEOUT_S: Final = 30.0


class NodeHandle:
    """The node, once it exists: listeners are bound before it, so that it knows its ports."""

    def __init__(self) -> None:
        self._node: ControllerNode | None = None

    def set(self, node: ControllerNode) -> None:
        """Let calls through."""
        self._node = node

    def get(self) -> ControllerNode:
        """Return the node.

        Raises:
            ShuttingDownError: it is not there yet.
        """
        if self._node is None:
            raise ShuttingDownError("the controller is starting")
        return self._node


def active_address(node: ControllerNode, listener: str) -> Endpoint | None:
    """Return the active controller's address on a listener, on CLIENT where it lacks that one; None when not known."""
    active = node.active_controller
    by_listener = {} if active is None else {endpoint.listener: endpoint for endpoint in active.endpoints}
    return by_listener.get(listener) or by_listener.get("CLIENT")


def not_controller(node: ControllerNode, listener: str) -> NotControllerError:
    """Return the error that sends a caller to the active controller."""
    active, endpoint = node.active_controller, active_address(node, listener)
    error = NotControllerError("this controller is not active")
    if active is not None:
        error = error.with_metadata(controller_id=active.controller_id)
    if endpoint is not None:
        error = error.with_metadata(host=endpoint.host, port=endpoint.port, address=endpoint.address)
    return error


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Changes to topics; bound to one listener."""

    def __init__(self, handle: NodeHandle, listener: str) -> None:
        self._handle = handle
        self._listener = listener

    async def CreateTopics(  # noqa: N802
        self, request: admin_pb.CreateTopicsRequest, context: Any
    ) -> admin_pb.CreateTopicsResponse:
        """Create topics."""
        topics = [_new_topic(topic) for topic in convert.bounded(request.topics, MAX_TOPICS, "topics")]
        timeout_ms = _timeout_ms(request.timeout_ms)
        node = self._handle.get()
        results: list[CreateTopicResult] = await self._ask(
            lambda reply: node.create_topics(topics, timeout_ms, request.validate_only, reply), timeout_ms
        )
        return admin_pb.CreateTopicsResponse(topics=[_created(result) for result in results])

    async def DeleteTopics(  # noqa: N802
        self, request: admin_pb.DeleteTopicsRequest, context: Any
    ) -> admin_pb.DeleteTopicsResponse:
        """Delete topics."""
        names = list(convert.bounded(request.topics, MAX_TOPICS, "topics"))
        timeout_ms = _timeout_ms(request.timeout_ms)
        node = self._handle.get()
        results: list[DeleteTopicResult] = await self._ask(
            lambda reply: node.delete_topics(names, timeout_ms, reply), timeout_ms
        )
        return admin_pb.DeleteTopicsResponse(
            topics=[
                admin_pb.DeleteTopicResult(name=result.name, error=_topic_error(result.error)) for result in results
            ]
        )

    async def _ask(self, call: Callable[[Callable[[T | Exception], None]], None], timeout_ms: int) -> T:
        """Call the node and wait for its reply.

        Raises:
            NotControllerError: with the active controller's address.
            RequestTimedOutError: the node did not answer; that would be a bug, but no caller waits for ever.
        """
        future: asyncio.Future[T | Exception] = asyncio.get_running_loop().create_future()
        call(lambda answer: None if future.done() else future.set_result(answer))
        try:
            answer = await asyncio.wait_for(future, (timeout_ms + ANSWER_GRACE_MS) / 1000)
        except TimeoutError:
            raise RequestTimedOutError("the controller did not answer in time") from None
        if isinstance(answer, NotControllerError):
            raise not_controller(self._handle.get(), self._listener)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _timeout_ms(asked_ms: int) -> int:
    if asked_ms < 0:
        raise InvalidRequestError(f"the timeout is {asked_ms} ms")
    return min(asked_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS)


def _new_topic(message: admin_pb.NewTopic) -> NewTopic:
    return NewTopic(
        name=message.name,
        partitions=message.partitions if message.HasField("partitions") else None,
        replication_factor=message.replication_factor if message.HasField("replication_factor") else None,
        assignments=tuple(tuple(assignment.broker_ids) for assignment in message.assignments),
        configs=dict(message.configs),
    )


def _created(result: CreateTopicResult) -> admin_pb.CreateTopicResult:
    return admin_pb.CreateTopicResult(
        name=result.name,
        error=_topic_error(result.error),
        topic_id=result.topic_id,
        assignments=[admin_pb.ReplicaAssignment(broker_ids=replicas) for replicas in result.assignments],
    )


def _topic_error(error: PacelineError | None) -> errors_pb2.TopicError | None:
    if error is None:
        return None
    return errors_pb2.TopicError(code=int(error.code), message=str(error))  # type: ignore[arg-type]


class MetadataServicer(metadata_service_pb2_grpc.MetadataServiceServicer):
    """The cluster as a controller knows it; bound to one listener."""

    def __init__(self, handle: NodeHandle, listener: str, node_id: int) -> None:
        self._handle = handle
        self._listener = listener
        self._node_id = node_id

    async def DescribeCluster(  # noqa: N802
        self, request: metadata_pb.DescribeClusterRequest, context: Any
    ) -> metadata_pb.DescribeClusterResponse:
        """List the live brokers and name the active controller; one that is not active knows no brokers."""
        node = self._handle.get()
        cluster = node.describe_cluster()
        controller = active_address(node, self._listener)
        brokers = []
        for broker in cluster.brokers:
            endpoint = broker.endpoint(self._listener) or broker.endpoint("CLIENT")
            brokers.append(
                metadata_pb.BrokerInfo(
                    id=broker.broker_id,
                    host=endpoint.host if endpoint else "",
                    port=endpoint.port if endpoint else 0,
                    rack=broker.rack or "",
                )
            )
        return metadata_pb.DescribeClusterResponse(
            cluster_id=cluster.cluster_id,
            brokers=brokers,
            controller_id=cluster.active_controller.controller_id if cluster.active_controller else None,
            controller_epoch=cluster.controller_epoch,
            controller_host=controller.host if controller else "",
            controller_port=controller.port if controller else 0,
            server_version=__version__,
            node_id=self._node_id,
        )

    async def DescribeTopics(  # noqa: N802
        self, request: metadata_pb.DescribeTopicsRequest, context: Any
    ) -> metadata_pb.DescribeTopicsResponse:
        """Describe topics."""
        node = self._handle.get()
        names = list(convert.bounded(request.topics, MAX_TOPICS, "topics"))
        try:
            topics = node.describe_topics(names)
        except NotControllerError:
            raise not_controller(node, self._listener) from None
        return metadata_pb.DescribeTopicsResponse(topics=[_described(topic) for topic in topics])

    async def DescribeReplicas(  # noqa: N802
        self, request: metadata_pb.DescribeReplicasRequest, context: Any
    ) -> metadata_pb.DescribeReplicasResponse:
        """Leaders know this, controllers do not."""
        raise NotLeaderOrFollowerError("a controller hosts no replicas; ask the partition's leader")


def _described(topic: TopicDescription) -> metadata_pb.TopicDescription:
    return metadata_pb.TopicDescription(
        name=topic.name,
        error=_topic_error(topic.error),
        topic_id=topic.topic_id,
        partitions=[
            metadata_pb.PartitionDescription(
                partition=partition.partition,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                offline_replicas=partition.offline_replicas,
            )
            for partition in topic.partitions
        ],
    )


class ControllerServicer(controller_service_pb2_grpc.ControllerServiceServicer):
    """What brokers call; runs on the CONTROL listener's threads and asks the node on its event loop."""

    def __init__(self, handle: NodeHandle, post: Callable[[Callable[[], None]], None]) -> None:
        self._handle = handle
        self._post = post

    def ControlledShutdown(  # noqa: N802
        self, request: controller_pb.ControlledShutdownRequest, context: Any
    ) -> controller_pb.ControlledShutdownResponse:
        """Move leadership off a broker that is about to stop."""
        asked = convert.controlled_shutdown_from_proto(request)
        node = self._handle.get()
        future: concurrent.futures.Future[ControlledShutdownResponse | Exception] = concurrent.futures.Future()
        self._post(lambda: node.controlled_shutdown(asked, future.set_result))
        try:
            answer = future.result(CONTROLLED_SHUTDOWN_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise RequestTimedOutError("the controller did not answer in time") from None
        if isinstance(answer, NotControllerError):
            raise not_controller(node, "CONTROL")
        if isinstance(answer, Exception):
            raise answer
        return convert.controlled_shutdown_response_to_proto(answer)
