"""AdminService of a controller: administrative requests of operators and clients.

It makes no decisions: it checks and converts requests, calls the node on its event loop, and answers.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

from paceline.controller.admin.admin_requests import (
    AlterPartitionReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeConfigs,
    ElectLeaders,
    IncrementalAlterConfigs,
    ListPartitionReassignments,
)
from paceline.controller.admin.admin_values import (
    ConfigAlteration,
    ConfigEntry,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    DescribeConfigsResult,
    ElectionType,
    OngoingReassignment,
    RequestedReassignment,
    ResourceType,
)
from paceline.controller.events import Request
from paceline.controller.node import TopicDescription
from paceline.controller.service.log_dirs_servicer import (
    AskingController,
    alter_replica_log_dirs,
    describe_log_dirs,
    retry_log_dir,
)
from paceline.controller.service.metadata_servicer import (
    MAX_TOPICS,
    NodeHandle,
    not_controller,
)
from paceline.controller.service.quota_servicer import within_mutation_quota
from paceline.internal.v1.replica_manager_service_pb2 import ControllerStamp
from paceline.log.topic_key_descriptions import TOPIC_KEY_DESCRIPTIONS
from paceline.model.admin import NewPartitions, NewPartitionsResult, NewTopic, PartitionDescription, TopicResult
from paceline.model.broker_dynamic_config import BROKER_KEY_DESCRIPTIONS
from paceline.model.control import LiveBroker
from paceline.model.errors import (
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert import common
from paceline.rpc.convert.common import error_to_proto, message_of
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.pages import page_in_key_order, page_in_request_order
from paceline.rpc.security.authorizer import current_call
from paceline.rpc.security.credentials import TlsCredentials
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import admin_service_pb2_grpc, errors_pb2

T = TypeVar("T")

MAX_PARTITIONS: Final = 200_000
MAX_TIMEOUT_MS: Final = 600_000
DEFAULT_TIMEOUT_MS: Final = 30_000
ANSWER_GRACE_MS: Final = 10_000
"""Extra wait beyond the timeout of a request that the node itself answers at its timeout."""

E = TypeVar("E", bound=Enum)
M = TypeVar("M")


def _by_number(numbers: Any, prefix: str, members: type[E]) -> dict[int, E]:
    """Map the number of each protobuf value to the enum member with the same name."""
    return {numbers.Value(f"{prefix}_{member.name}"): member for member in members}


ELECTION_TYPES: Final = _by_number(admin_pb.ElectionType, "ELECTION_TYPE", ElectionType)
RESOURCE_TYPES: Final = _by_number(admin_pb.ConfigResourceType, "CONFIG_RESOURCE_TYPE", ResourceType)
CONFIG_OPERATIONS: Final = _by_number(admin_pb.ConfigOperation, "CONFIG_OPERATION", ConfigOperation)


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Serves the administrative requests of one listener."""

    def __init__(
        self, handle: NodeHandle, listener: str, tls: TlsCredentials | None = None, num_partitions: int = 1
    ) -> None:
        self._handle = handle
        self._num_partitions = num_partitions
        self._listener = listener
        self._tls = tls

    async def CreateTopics(  # noqa: N802
        self, request: admin_pb.CreateTopicsRequest, context: Any
    ) -> admin_pb.CreateTopicsResponse:
        topics = tuple(_new_topic(topic) for topic in common.bounded(request.topics, MAX_TOPICS, "topics"))
        timeout_ms = _timeout_ms(request.timeout_ms, context)
        default = self._num_partitions
        sizes = [len(one.assignments) or (default if one.partitions is None else one.partitions) for one in topics]
        results, throttle_ms = await within_mutation_quota(
            topics,
            self._charged(sizes, request.validate_only),
            lambda allowed: self._ask(
                partial(CreateTopics, allowed, timeout_ms, request.validate_only), timeout_ms, ANSWER_GRACE_MS
            ),
            lambda topic, error: TopicResult(topic.name, error),
        )
        return admin_pb.CreateTopicsResponse(
            topics=[_created(admin_pb.CreateTopicResult, one, one.name) for one in results], throttle_ms=throttle_ms
        )

    async def DeleteTopics(  # noqa: N802
        self, request: admin_pb.DeleteTopicsRequest, context: Any
    ) -> admin_pb.DeleteTopicsResponse:
        names = tuple(common.bounded(request.topics, MAX_TOPICS, "topics"))
        self._note_old(names, lambda topic: {"topic_id": topic.topic_id, "partitions": len(topic.partitions)})
        timeout_ms = _timeout_ms(request.timeout_ms, context)
        results, throttle_ms = await within_mutation_quota(
            names,
            self._charged(self._partition_counts(names)),
            lambda allowed: self._ask(partial(DeleteTopics, allowed, timeout_ms), timeout_ms, ANSWER_GRACE_MS),
            TopicResult,
        )
        return admin_pb.DeleteTopicsResponse(
            topics=[message_of(admin_pb.DeleteTopicResult, one, error=_topic_error(one)) for one in results],
            throttle_ms=throttle_ms,
        )

    async def CreatePartitions(  # noqa: N802
        self, request: admin_pb.CreatePartitionsRequest, context: Any
    ) -> admin_pb.CreatePartitionsResponse:
        """Add partitions to topics."""
        topics = tuple(
            NewPartitions(topic.name, topic.count, _rows(topic.assignments))
            for topic in common.bounded(request.topics, MAX_TOPICS, "topics")
        )
        self._note_old([topic.topic for topic in topics], lambda topic: {"count": len(topic.partitions)})
        timeout_ms = _timeout_ms(request.timeout_ms, context)
        present = self._partition_counts([topic.topic for topic in topics])
        results, throttle_ms = await within_mutation_quota(
            topics,
            self._charged(
                [one.count - count for one, count in zip(topics, present, strict=True)], request.validate_only
            ),
            lambda allowed: self._ask(
                partial(CreatePartitions, allowed, timeout_ms, request.validate_only), timeout_ms, ANSWER_GRACE_MS
            ),
            lambda topic, error: NewPartitionsResult(topic.topic, error),
        )
        return admin_pb.CreatePartitionsResponse(
            topics=[_created(admin_pb.CreatePartitionsResult, one, one.topic) for one in results],
            throttle_ms=throttle_ms,
        )

    async def AlterPartitionReassignments(  # noqa: N802
        self, request: admin_pb.AlterPartitionReassignmentsRequest, context: Any
    ) -> admin_pb.AlterPartitionReassignmentsResponse:
        """Start, replace or cancel reassignments."""
        requested = tuple(
            RequestedReassignment(
                TopicPartition(partition.topic, partition.partition),
                tuple(partition.target.broker_ids) if partition.HasField("target") else None,
            )
            for partition in common.bounded(request.partitions, MAX_PARTITIONS, "partitions")
        )
        self._note_old_partitions([one.topic_partition for one in requested], lambda one: {"replicas": one.replicas})
        results = await self._ask(
            partial(AlterPartitionReassignments, requested, request.validate_only),
            _timeout_ms(request.timeout_ms, context),
        )
        return admin_pb.AlterPartitionReassignmentsResponse(
            partitions=[_partition_result(admin_pb.AlterPartitionReassignmentResult, result) for result in results]
        )

    async def ListPartitionReassignments(  # noqa: N802
        self, request: admin_pb.ListPartitionReassignmentsRequest, context: Any
    ) -> admin_pb.ListPartitionReassignmentsResponse:
        """List running reassignments."""
        wanted = _topic_partitions(request.partitions)
        moves = await self._ask(partial(ListPartitionReassignments, wanted), _timeout_ms(request.timeout_ms, context))
        found, token = page_in_key_order(
            moves,
            lambda move: tuple(move.topic_partition),
            (str, int),
            request.page_size,
            request.page_token,
            _ongoing,
        )
        return admin_pb.ListPartitionReassignmentsResponse(reassignments=found, next_page_token=token)

    async def ElectLeaders(  # noqa: N802
        self, request: admin_pb.ElectLeadersRequest, context: Any
    ) -> admin_pb.ElectLeadersResponse:
        """Elect preferred leaders, or unclean leaders, of the named partitions or of all partitions."""
        election = ELECTION_TYPES.get(request.type)
        if election is None:
            raise InvalidRequestError("the election type is missing or unknown")
        wanted = _topic_partitions(request.partitions)
        self._note_old_partitions(wanted or (), lambda one: {"leader": one.leader})
        timeout_ms = _timeout_ms(request.timeout_ms, context)
        results = await self._ask(
            partial(ElectLeaders, election, wanted, timeout_ms, request.validate_only),
            timeout_ms,
            ANSWER_GRACE_MS,
        )
        return admin_pb.ElectLeadersResponse(
            partitions=[_partition_result(admin_pb.ElectLeaderResult, result) for result in results]
        )

    async def DescribeConfigs(  # noqa: N802
        self, request: admin_pb.DescribeConfigsRequest, context: Any
    ) -> admin_pb.DescribeConfigsResponse:
        """Return the effective configuration of topics and brokers, each value with its source."""
        resources = tuple(
            (_resource(wanted.resource), tuple(wanted.keys))
            for wanted in common.bounded(request.resources, MAX_TOPICS, "resources")
        )
        results = await self._ask(partial(DescribeConfigs, resources), _timeout_ms(request.timeout_ms, context))
        found, token = page_in_request_order(results, request.page_size, request.page_token, _described_configs)
        return admin_pb.DescribeConfigsResponse(resources=found, next_page_token=token)

    async def IncrementalAlterConfigs(  # noqa: N802
        self, request: admin_pb.IncrementalAlterConfigsRequest, context: Any
    ) -> admin_pb.IncrementalAlterConfigsResponse:
        """Set, delete, append or subtract single keys of the configuration of topics and brokers."""
        alterations = tuple(
            ConfigAlteration(_resource(wanted.resource), tuple(_change(change) for change in wanted.changes))
            for wanted in common.bounded(request.resources, MAX_TOPICS, "resources")
        )
        await self._note_old_configs(alterations, _timeout_ms(request.timeout_ms, context))
        results = await self._ask(
            partial(IncrementalAlterConfigs, alterations, request.validate_only),
            _timeout_ms(request.timeout_ms, context),
        )
        return admin_pb.IncrementalAlterConfigsResponse(
            resources=[
                admin_pb.AlterConfigsResult(
                    resource=_wire_resource(result.resource),
                    error=error_to_proto(admin_pb.ConfigError, result.error),
                )
                for result in results
            ]
        )

    async def DescribeLogDirs(  # noqa: N802
        self, request: admin_pb.DescribeLogDirsRequest, context: Any
    ) -> admin_pb.DescribeLogDirsResponse:
        """Describe the log directories of brokers."""
        partitions = common.bounded(request.partitions, MAX_PARTITIONS, "partitions")
        named = common.bounded(request.broker_ids, MAX_TOPICS, "brokers")
        timeout_s = _timeout_ms(request.timeout_ms, context) / 1000
        brokers = self._live_brokers()
        found, token = await describe_log_dirs(
            brokers, list(named), partitions, timeout_s, request.page_size, request.page_token, self._asking()
        )
        return admin_pb.DescribeLogDirsResponse(brokers=found, next_page_token=token)

    async def AlterReplicaLogDirs(  # noqa: N802
        self, request: admin_pb.AlterReplicaLogDirsRequest, context: Any
    ) -> admin_pb.AlterReplicaLogDirsResponse:
        """Assign replicas to log directories of their brokers."""
        requested = common.bounded(request.replicas, MAX_PARTITIONS, "replicas")
        timeout_s = _timeout_ms(request.timeout_ms, context) / 1000
        results = await alter_replica_log_dirs(self._live_brokers(), requested, timeout_s, self._asking())
        return admin_pb.AlterReplicaLogDirsResponse(results=results)

    async def RetryLogDir(  # noqa: N802
        self, request: admin_pb.RetryLogDirRequest, context: Any
    ) -> admin_pb.RetryLogDirResponse:
        """Let a broker take a failed log directory back."""
        timeout_s = _timeout_ms(request.timeout_ms, context) / 1000
        broker = self._live_brokers().get(request.broker_id)
        error = await retry_log_dir(broker, request, timeout_s, self._asking())
        return admin_pb.RetryLogDirResponse(error=error_to_proto(admin_pb.LogDirError, error))

    def _charged(self, sizes: Iterable[int], validate_only: bool = False) -> list[int]:
        """Return the partitions to charge for each topic: none for a check, and none on a standby, which answers so."""
        counts = self._handle.get().is_active and not validate_only
        return [max(0, size) if counts else 0 for size in sizes]

    def _partition_counts(self, names: Sequence[str]) -> list[int]:
        """Return the present number of partitions of each topic, 0 for an unknown one."""
        node = self._handle.get()
        return (
            [len(node.describe_topics([name])[0].partitions) for name in names] if node.is_active else [0] * len(names)
        )

    def _note_old(self, names: Iterable[str], shown: Callable[[TopicDescription], Any]) -> None:
        """Give the audit log what topics were before a change."""
        node = self._handle.get()
        for name in names if node.is_active else ():
            (topic,) = node.describe_topics([name])
            if topic.error is None:
                current_call().note_old(name, shown(topic))

    def _note_old_partitions(
        self, partitions: Iterable[TopicPartition], shown: Callable[[PartitionDescription], Any]
    ) -> None:
        node, call, named = self._handle.get(), current_call(), frozenset(partitions)
        names = dict.fromkeys(one.topic for one in named)
        for topic in node.describe_topics(list(names)) if node.is_active and names else ():
            for one in topic.partitions:
                if TopicPartition(topic.name, one.partition) in named:
                    call.note_old(f"{topic.name}/{one.partition}", shown(one))

    async def _note_old_configs(self, alterations: tuple[ConfigAlteration, ...], timeout_ms: int) -> None:
        asked = tuple((one.resource, tuple(change.key for change in one.changes)) for one in alterations)
        for result in await self._ask(partial(DescribeConfigs, asked), timeout_ms):
            values = {entry.key: entry.value for entry in result.entries}
            current_call().note_old(result.resource.name, None if result.error is not None else values)

    def _asking(self) -> AskingController:
        cluster = self._handle.get().describe_cluster()
        active = cluster.active_controller
        stamp = ControllerStamp(
            controller_id=active.controller_id if active is not None else -1, controller_epoch=cluster.controller_epoch
        )
        return AskingController(stamp, self._tls)

    def _live_brokers(self) -> dict[int, LiveBroker]:
        node = self._handle.get()
        if not node.is_active or self._handle.is_loading:
            raise not_controller(node, self._listener)
        return {broker.broker_id: broker for broker in node.describe_cluster().brokers}

    async def _ask(self, request: Callable[..., Request[T]], timeout_ms: int, grace_ms: int = 0) -> T:
        """Send a request to the node and wait for its reply.

        ``request`` creates the request from a ``reply`` callback. ``grace_ms`` is added to the wait for requests that
        the node itself answers at the timeout.

        Raises:
            NotControllerError: this controller is not active; the error has the active controller's address.
            RequestTimedOutError: the node has not answered in time; the change may still be made.
        """
        future: asyncio.Future[T | Exception] = asyncio.get_running_loop().create_future()

        def reply(answer: T | Exception) -> None:
            if not future.done():
                future.set_result(answer)

        self._handle.get().ask(request(reply=reply))
        try:
            answer = await asyncio.wait_for(future, (timeout_ms + grace_ms) / 1000)
        except TimeoutError:
            raise RequestTimedOutError("the controller did not answer in time") from None
        if isinstance(answer, NotControllerError):
            raise not_controller(self._handle.get(), self._listener)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _timeout_ms(asked_ms: int, context: Any) -> int:
    if asked_ms < 0:
        raise InvalidRequestError(f"the timeout is {asked_ms} ms")
    return wait_within_deadline(min(asked_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS), context)


def _new_topic(message: admin_pb.NewTopic) -> NewTopic:
    return NewTopic(
        name=message.name,
        partitions=message.partitions if message.HasField("partitions") else None,
        replication_factor=message.replication_factor if message.HasField("replication_factor") else None,
        assignments=_rows(message.assignments),
        configs=dict(sorted(message.configs.items())),  # the order of a protobuf map differs between processes
    )


def _topic_error(result: Any) -> errors_pb2.TopicError | None:
    return error_to_proto(errors_pb2.TopicError, result.error)


def _created(kind: type[M], result: TopicResult | NewPartitionsResult, name: str) -> M:
    rows = [admin_pb.ReplicaAssignment(broker_ids=replicas) for replicas in result.assignments]
    return message_of(kind, result, name=name, error=_topic_error(result), assignments=rows)


def _rows(assignments: Iterable[admin_pb.ReplicaAssignment]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(assignment.broker_ids) for assignment in assignments)


def _topic_partitions(messages: Sequence[admin_pb.TopicPartition]) -> tuple[TopicPartition, ...] | None:
    named = common.bounded(messages, MAX_PARTITIONS, "partitions")
    return tuple(TopicPartition(each.topic, each.partition) for each in named) or None


def _partition_result(kind: type[M], result: Any) -> M:
    return message_of(kind, result, error=error_to_proto(errors_pb2.PartitionError, result.error))


def _ongoing(move: OngoingReassignment) -> admin_pb.OngoingReassignment:
    return message_of(
        admin_pb.OngoingReassignment,
        move,
        replicas=move.assignment.replicas,
        adding_replicas=move.assignment.adding,
        removing_replicas=move.assignment.removing,
        waiting_for=[
            message_of(
                admin_pb.AwaitedReplica,
                awaited,
                reason=admin_pb.AwaitedReason.Value(f"AWAITED_REASON_{awaited.reason.name}"),
            )
            for awaited in move.waiting_for
        ],
    )


def _described_configs(result: DescribeConfigsResult) -> admin_pb.DescribeConfigsResult:
    return admin_pb.DescribeConfigsResult(
        resource=_wire_resource(result.resource),
        error=error_to_proto(admin_pb.ConfigError, result.error),
        entries=[_config_entry(entry) for entry in result.entries],
    )


def _config_entry(entry: ConfigEntry) -> admin_pb.ConfigEntry:
    known = TOPIC_KEY_DESCRIPTIONS.get(entry.key) or BROKER_KEY_DESCRIPTIONS[entry.key]
    return message_of(
        admin_pb.ConfigEntry,
        entry,
        source=admin_pb.ConfigSource.Value(f"CONFIG_SOURCE_{entry.source.name}"),
        type=admin_pb.ConfigType.Value(f"CONFIG_TYPE_{known.type.name}"),
        default_value=known.default,
        documentation=known.documentation,
    )


def _resource(message: admin_pb.ConfigResource) -> ConfigResource:
    return ConfigResource(RESOURCE_TYPES.get(message.type), message.name)


def _wire_resource(resource: ConfigResource) -> admin_pb.ConfigResource:
    name = "UNSPECIFIED" if resource.kind is None else resource.kind.name
    return admin_pb.ConfigResource(
        type=admin_pb.ConfigResourceType.Value(f"CONFIG_RESOURCE_TYPE_{name}"), name=resource.name
    )


def _change(message: admin_pb.ConfigChange) -> ConfigKeyChange:
    return ConfigKeyChange(
        message.key,
        CONFIG_OPERATIONS.get(message.operation),
        message.value if message.HasField("value") else None,
    )
