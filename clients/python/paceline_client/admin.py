"""`Admin`: administration of a cluster.

This module has topics, cluster and replica descriptions; `admin_partitions.py` has partitions, reassignments and
elections, `admin_configs.py` configuration, `admin_acls.py` access rules, `admin_quotas.py` quotas,
`admin_log_dirs.py` log directories, `admin_digests.py` digests of stored records, `admin_watch.py` event streams,
`admin_connection.py` the choice of server and retries.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from paceline.model.addresses import address_of
from paceline.model.admin import NewTopic, PartitionDescription, ReplicaDescription, TopicResult
from paceline.model.errors import (
    ErrorCode,
    LeaderNotAvailableError,
    PacelineError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import NodeDescription
from paceline.rpc.convert.common import value_of
from paceline.rpc.convert.nodes import node_from_proto
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.admin_service_pb2 import CreateTopicsRequest, DeleteTopicsRequest, ReplicaAssignment
from paceline.v1.admin_service_pb2 import NewTopic as WireNewTopic
from paceline.v1.errors_pb2 import TopicError
from paceline.v1.metadata_service_pb2 import (
    DescribeClusterResponse,
    DescribeNodeRequest,
    DescribeReplicasRequest,
    DescribeTopicsRequest,
    PartitionReplicas,
)
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.admin_acls import AclAdmin
from paceline_client.admin_configs import ConfigAdmin
from paceline_client.admin_connection import (
    ONE_CALL_S,
    checked,
    describe_cluster_once,
    described_topics,
    named,
    names_anybody,
    names_in,
)
from paceline_client.admin_digests import DigestAdmin
from paceline_client.admin_groups import GroupAdmin
from paceline_client.admin_log_dirs import LogDirAdmin
from paceline_client.admin_partitions import PartitionAdmin
from paceline_client.admin_quotas import QuotaAdmin
from paceline_client.admin_records import RecordAdmin
from paceline_client.admin_watch import WatchAdmin
from paceline_client.errors import sendable
from paceline_client.metadata import Broker, TopicDescription, broker_of, topic_of


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster in the metadata of one process."""

    cluster_id: str
    brokers: tuple[Broker, ...]
    controller_id: int | None
    controller_epoch: int
    controller_address: str
    """``host:port`` of the active controller, empty when not known."""
    server_version: str
    node_id: int
    """Id of the process that answered."""
    controller_silent_ms: int | None = None
    """Since the active controller last answered a heartbeat of that process; None from a controller."""


@dataclass(frozen=True, slots=True)
class PartitionReplicasDescription:
    """A leader's view of one partition; offsets are exclusive ends.

    With an ``error`` the answering broker does not lead the partition, and describes only its own replica, if any.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    leader_epoch_start_offset: int
    high_watermark: int
    log_start_offset: int
    isr: tuple[int, ...]
    maximal_isr: tuple[int, ...]
    replicas: tuple[ReplicaDescription, ...]
    topic_id: str = ""
    zk_version: int = -1
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    under_replicated: bool = False
    bytes_in: int = 0
    """Bytes that producers have appended since this broker began to host the partition; restarts from 0 with it."""
    bytes_out: int = 0
    """Bytes that consumers have read from this broker, counted in the same way."""
    error: PacelineError | None = None


class Admin(
    AclAdmin, QuotaAdmin, PartitionAdmin, RecordAdmin, GroupAdmin, ConfigAdmin, LogDirAdmin, DigestAdmin, WatchAdmin
):
    """Administration client. Thread-safe; close it, or use it with ``with``.

    A call without a response after two seconds logs the cause of the wait, from a thread that ends with the call.
    ``bootstrap`` may list brokers or controllers. Calls that change something find the active controller and follow it
    after a failover. A change whose result is unknown is not sent again: the error has ``definite`` False, and a
    describe call shows the current state.
    """

    # Changing ----------------------------------------------------------------------------------------------------

    def create_topics(
        self,
        topics: Iterable[NewTopic] | Mapping[str, tuple[int, int] | tuple[int, int, Mapping[str, str]]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[TopicResult]:
        """Create topics; returns when each has a leader for every partition.

        Args:
            topics: `NewTopic`s, or ``{name: (partitions, replication factor[, configs])}``.
            validate_only: check without creating anything.
            timeout_ms: longest wait; after a timeout the topic exists, and its creation continues.
            raise_errors: raise the first topic's error; False returns errors in the results.

        Raises:
            TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError,
            InvalidConfigError, PolicyViolationError: the topic was refused.
            RequestTimedOutError: not completed in time.
            BootstrapError: no address answered.
        """
        with sendable():
            request = CreateTopicsRequest(
                topics=[_wire_topic(topic) for topic in _new_topics(topics)],
                validate_only=validate_only,
            )
        answered = self._change_topics("CreateTopics", request, timeout_ms)
        results = [
            TopicResult(
                each.name,
                _topic_error(each.name, each.error) if each.HasField("error") else None,
                each.topic_id,
                tuple(tuple(assigned.broker_ids) for assigned in each.assignments),
            )
            for each in answered
        ]
        return checked(results, raise_errors)

    def delete_topics(
        self, topics: Iterable[str], *, timeout_ms: int | None = None, raise_errors: bool = True
    ) -> list[TopicResult]:
        """Delete topics; returns when they are deleted.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            TopicDeletionDisabledError: ``delete.topic.enable`` is false.
            RequestTimedOutError: not completed in time; the deletion continues.
        """
        with sendable():
            request = DeleteTopicsRequest(topics=names_in(topics))
        answered = self._change_topics("DeleteTopics", request, timeout_ms)
        results = [
            TopicResult(each.name, _topic_error(each.name, each.error) if each.HasField("error") else None)
            for each in answered
        ]
        return checked(results, raise_errors)

    # Describing --------------------------------------------------------------------------------------------------

    def describe_cluster(self, timeout_ms: int | None = None) -> ClusterDescription:
        """Return the live brokers and the active controller.

        Raises:
            BootstrapError: no address answered.
        """
        answer = self._anywhere(describe_cluster_once, timeout_ms, names_anybody)
        if not answer.brokers and answer.controller_host:
            # A standby controller only knows the active controller.
            limit_ms = self._describe_timeout_ms if timeout_ms is None else timeout_ms
            answer = self._on_controller(describe_cluster_once, limit_ms, only_reads=True)
        return _cluster(answer)

    def describe_node(self, address: str, timeout_ms: int = 2_000) -> NodeDescription:
        """Return what the broker or controller at an address knows about itself, with a single call.

        Args:
            address: ``host:port`` of its CLIENT or EXTERNAL listener.
            timeout_ms: longest wait.

        Raises:
            PacelineError: it did not answer; the message has the address and the cause.
        """
        try:
            stub = MetadataServiceStub(self._channel(address))
            return node_from_proto(stub.DescribeNode(DescribeNodeRequest(), timeout=timeout_ms / 1000))
        except grpc.RpcError as failure:
            raise named(address, failure) from failure

    def list_topics(self, timeout_ms: int | None = None) -> list[str]:
        """Return the names of all topics, sorted."""
        return [topic.name for topic in self.describe_topics(timeout_ms=timeout_ms)]

    def describe_topics(
        self, topics: Iterable[str] | None = None, timeout_ms: int | None = None, *, from_controller: bool = False
    ) -> list[TopicDescription]:
        """Return topics with their partitions; all, sorted by name, when ``topics`` is None.

        Metadata of brokers may be out of date; ``from_controller`` reads from the active controller, which also knows
        adding and removing replicas of reassignments. A topic unknown to brokers is always looked up at the controller.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            BootstrapError: no address answered.
        """
        names = None if topics is None else names_in(topics)
        if names == []:
            return []
        with sendable():
            request = DescribeTopicsRequest(topics=names or [])

        call = described_topics(request)
        limit_ms = self._describe_timeout_ms if timeout_ms is None else timeout_ms
        if from_controller:
            answer = self._on_controller(call, limit_ms, only_reads=True)
        else:
            answer = self._anywhere(call, timeout_ms, lambda found: bool(found.topics))
            if any(int(wire.error.code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for wire in answer.topics):
                # A new topic may reach the brokers a moment after CreateTopics returned; the controller knows it.
                with contextlib.suppress(PacelineError):
                    answer = self._on_controller(call, limit_ms, only_reads=True)
        found = []
        for wire in answer.topics:
            if wire.HasField("error"):
                raise _topic_error(wire.name, wire.error)
            found.append(topic_of(wire))
        return found

    def describe_replicas(
        self, topic: str, partitions: Iterable[int] | None = None, timeout_ms: int | None = None
    ) -> list[PartitionReplicasDescription]:
        """Return the replica progress reported by the leaders of a topic, by partition.

        Raises:
            UnknownTopicOrPartitionError: the topic or partition does not exist.
            LeaderNotAvailableError: a partition has no leader.
        """
        timeout_ms = self._describe_timeout_ms if timeout_ms is None else timeout_ms
        wanted = None if partitions is None else sorted(set(partitions))

        def once(left_s: float | None) -> list[PartitionReplicasDescription]:
            return self._describe_replicas_once(topic, wanted, min(left_s or ONE_CALL_S, ONE_CALL_S))

        return call_with_retry(RetryPolicy(deadline_ms=timeout_ms), once)

    def describe_leaders(
        self, topics: Iterable[TopicDescription], timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReplicasDescription]:
        """Return the replica progress of many topics with a single call to each leader.

        Meant for monitoring a whole cluster: omits a partition without a leader, or whose leader does not answer or no
        longer leads it.

        Args:
            topics: result of `describe_topics`; remove partitions that are not needed.
            timeout_ms: longest wait for one leader.

        Raises:
            BootstrapError: no address answered.
        """
        answers = self._ask_brokers(topics, lambda partition: (partition.leader,), timeout_ms)
        return {where: view for views in answers.values() for where, view in views.items() if view.error is None}

    def describe_hosts(
        self, topics: Iterable[TopicDescription], timeout_ms: int | None = None
    ) -> dict[int, dict[TopicPartition, PartitionReplicasDescription]]:
        """Return the view of each live broker of its replicas of these topics, by broker.

        A broker that leads a partition has the progress of all replicas; any other view has an ``error``, and the
        broker's own replica. A broker that does not answer has no views. Arguments and errors: see `describe_leaders`.
        """
        return self._ask_brokers(topics, lambda partition: partition.replicas, timeout_ms)

    def _ask_brokers(
        self,
        topics: Iterable[TopicDescription],
        chosen: Callable[[PartitionDescription], Iterable[int | None]],
        timeout_ms: int | None,
    ) -> dict[int, dict[TopicPartition, PartitionReplicasDescription]]:
        """Return the views of the chosen live brokers, with one call for each topic, all at the same time."""
        limit_s = min((self._describe_timeout_ms if timeout_ms is None else timeout_ms) / 1000, ONE_CALL_S)
        brokers = {broker.broker_id: broker for broker in self.describe_cluster().brokers}
        wanted: dict[int, dict[str, list[int]]] = {}
        for topic in topics:
            for partition in topic.partitions:
                for broker_id in brokers.keys() & set(chosen(partition)):
                    wanted.setdefault(broker_id, {}).setdefault(topic.name, []).append(partition.partition)
        calls = []
        for broker_id, by_topic in sorted(wanted.items()):
            stub = MetadataServiceStub(self._channel(brokers[broker_id].address))
            for name, indexes in by_topic.items():
                with sendable():
                    request = DescribeReplicasRequest(topic=name, partitions=indexes)
                calls.append((broker_id, stub.DescribeReplicas.future(request, timeout=limit_s)))
        found: dict[int, dict[TopicPartition, PartitionReplicasDescription]] = {one: {} for one in wanted}
        for broker_id, call in calls:
            with contextlib.suppress(grpc.RpcError):
                for wire in call.result().partitions:
                    found[broker_id][TopicPartition(wire.topic, wire.partition)] = _replicas(wire)
        return found

    def _describe_replicas_once(
        self, topic: str, wanted: list[int] | None, timeout_s: float
    ) -> list[PartitionReplicasDescription]:
        budget_ms = int(timeout_s * 1000)
        brokers = {broker.broker_id: broker for broker in self.describe_cluster(budget_ms).brokers}
        (described,) = self.describe_topics([topic], budget_ms)
        chosen = _chosen(described, wanted)
        by_leader: dict[int, list[int]] = {}
        for partition in chosen:
            if partition.leader is None or partition.leader not in brokers:
                raise LeaderNotAvailableError(f"{topic}/{partition.partition} has no leader")
            by_leader.setdefault(partition.leader, []).append(partition.partition)
        found = []
        for leader, indexes in sorted(by_leader.items()):
            with sendable():
                request = DescribeReplicasRequest(topic=topic, partitions=indexes)
            stub = MetadataServiceStub(self._channel(brokers[leader].address))
            try:
                answer = stub.DescribeReplicas(request, timeout=timeout_s)
            except grpc.RpcError as failure:
                raise named(str(brokers[leader]), failure) from failure
            for wire in answer.partitions:
                if wire.HasField("error"):
                    raise error_for(wire.error.code, f"{topic}/{wire.partition}: {wire.error.message}")
                found.append(_replicas(wire))
        return sorted(found, key=lambda each: each.partition)


class _NoSuchPartitionError(UnknownTopicOrPartitionError):
    """The metadata shows that the partition does not exist, so that a retry is useless."""

    retriable = False


def _new_topics(topics: Iterable[NewTopic] | Mapping[str, Any]) -> list[NewTopic]:
    if isinstance(topics, Mapping):
        return [
            NewTopic(name, given[0], given[1], configs=given[2] if len(given) > 2 else {})
            for name, given in topics.items()
        ]
    return list(topics)


def _wire_topic(topic: NewTopic) -> WireNewTopic:
    return WireNewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[ReplicaAssignment(broker_ids=ids) for ids in topic.assignments],
        configs=dict(topic.configs),
    )


def _topic_error(name: str, wire: TopicError) -> PacelineError:
    return error_for(wire.code, wire.message if repr(name) in wire.message else f"topic {name}: {wire.message}")


def _cluster(answer: DescribeClusterResponse) -> ClusterDescription:
    known = bool(answer.controller_host and answer.controller_port)
    address = address_of(answer.controller_host, answer.controller_port) if known else ""
    brokers = tuple(broker_of(info) for info in answer.brokers)
    return value_of(ClusterDescription, answer, brokers=brokers, controller_address=address)


def _chosen(topic: TopicDescription, wanted: list[int] | None) -> list[PartitionDescription]:
    if wanted is None:
        return list(topic.partitions)
    by_index = {partition.partition: partition for partition in topic.partitions}
    missing = [index for index in wanted if index not in by_index]
    if missing:
        raise _NoSuchPartitionError(f"topic {topic.name} has {len(by_index)} partitions, no partition {missing[0]}")
    return [by_index[index] for index in wanted]


def _replicas(wire: PartitionReplicas) -> PartitionReplicasDescription:
    replicas = tuple(
        value_of(
            ReplicaDescription,
            replica,
            leader_epochs=tuple((each.leader_epoch, each.start_offset) for each in replica.leader_epochs),
        )
        for replica in wire.replicas
    )
    error = error_for(wire.error.code, wire.error.message) if wire.HasField("error") else None
    return value_of(PartitionReplicasDescription, wire, replicas=replicas, error=error)
