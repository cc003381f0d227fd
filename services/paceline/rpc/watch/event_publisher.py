"""Publish the events of a process to the topic ``__cluster_events``, with ordinary CreateTopics and Produce requests.

The publisher reads the process's event ring at its own speed, as every watcher does, and sends one request at a time.
While the cluster accepts no events the process continues, and events that the ring overwrites are counted as lost. A
record's key is the name of the process, its value the ClusterEvent; its header ``event-id`` is the same in every
attempt.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    BrokerNotAvailableError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.state_change import StateChange
from paceline.rpc.convert.events import event_to_proto
from paceline.rpc.retry import RetryPolicy, call_with_retry_async
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    log_service_pb2,
    log_service_pb2_grpc,
    metadata_service_pb2,
    metadata_service_pb2_grpc,
    record_pb2,
)

LOG = logging.getLogger("paceline.events")

CLUSTER_EVENTS_TOPIC: Final = "__cluster_events"
EVENT_ID_HEADER: Final = "event-id"
MAX_EVENTS: Final = 100
"""Maximum number of events in a request: converting more would block the event loop for too long."""
LINGER_S: Final = 0.2
"""Time to collect events before a request."""
RPC_TIMEOUT_S: Final = 10.0
RETENTION_MS: Final = 7 * 24 * 3600 * 1000
_IDLE_S: Final = 60.0
_RETRY: Final = RetryPolicy(initial_backoff_ms=250, max_backoff_ms=5_000, deadline_ms=None, max_attempts=1 << 62)


class EventPublisher:
    """Publishes one process's events until its hub closes."""

    def __init__(
        self,
        hub: WatchHub,
        brokers: Callable[[], Sequence[str]],
        open_channel: Callable[[str], Any],
        replication_factor: int,
    ) -> None:
        """Publish the events of ``hub``.

        Args:
            hub: the process's events.
            brokers: returns ``host:port`` of the live brokers that the process knows.
            open_channel: opens an asyncio channel to an address.
            replication_factor: replicas of the topic; it is created once at least this many brokers are live.
        """
        self._hub = hub
        self._brokers = brokers
        self._open_channel = open_channel
        self._replication_factor = replication_factor
        self._leader: str | None = None
        self._failures = 0
        self._channels: dict[str, Any] = {}
        self.published = 0
        self.lost = 0
        """Events that the ring dropped before they were published."""

    async def run(self) -> None:
        """Publish the events in the ring, then new events, until the hub closes.

        Raises:
            Exception: the hub closed while a request was being retried; the last failure.
        """
        ring = self._hub.ring
        position = ring.begin
        try:
            while not self._hub.is_closed:
                if position >= ring.end:
                    await self._hub.wait_for_wake(_IDLE_S)
                    await asyncio.sleep(LINGER_S)
                    continue
                found = ring.read(position, MAX_EVENTS)
                if found.lost_count:
                    self.lost += found.lost_count
                    LOG.warning("events lost before they were published: count=%d", found.lost_count)
                await self._until_published(found.events, found.next_position - len(found.events))
                position = found.next_position
                self.published += len(found.events)
                await asyncio.sleep(0)
        finally:
            await self._close_channels()

    async def _until_published(self, events: Sequence[StateChange], first_position: int) -> None:
        records = [self._record(event, first_position + number) for number, event in enumerate(events)]

        async def attempt(_: float | None) -> None:
            try:
                await self._publish(records)
            except grpc.RpcError:
                # Open channels again: a channel keeps the certificates of its opening, which may have expired.
                await self._close_channels()
                raise

        def forget(error: BaseException, _pause_s: float) -> None:
            LOG.debug("events not published yet: count=%d error=%s", len(records), error)
            self._leader = None
            self._failures += 1

        await call_with_retry_async(
            _RETRY,
            attempt,
            should_retry=lambda error: isinstance(error, Exception),
            is_over=lambda: self._hub.is_closed,
            on_retry=forget,
        )

    def _record(self, event: StateChange, position: int) -> record_pb2.Record:
        event_id = f"{self._hub.instance}.{position}".encode("ascii")
        return record_pb2.Record(
            key=event.who.encode("utf-8"),
            value=event_to_proto(event).SerializeToString(),
            timestamp_ms=event.wall_ms,
            headers=[record_pb2.Header(key=EVENT_ID_HEADER, value=event_id)],
        )

    async def _publish(self, records: Sequence[record_pb2.Record]) -> None:
        if self._leader is None:
            self._leader = await self._find_leader()
        request = log_service_pb2.ProduceRequest(acks=log_service_pb2.ACKS_ALL, timeout_ms=int(RPC_TIMEOUT_S * 1000))
        partition = request.partitions.add(topic=CLUSTER_EVENTS_TOPIC, partition=0)
        partition.records.records.extend(records)
        stub: Any = log_service_pb2_grpc.LogServiceStub(self._channel(self._leader))
        answer = await stub.Produce(request, timeout=RPC_TIMEOUT_S)
        (result,) = answer.partitions
        if result.HasField("error"):
            raise error_for(result.error.code, result.error.message)

    async def _find_leader(self) -> str:
        """Return the leader's address; create the topic when it is missing.

        Raises:
            PacelineError: no live broker is known, too few are live to create the topic, or it has no leader yet.
            grpc.RpcError: no broker responded; the failure of the last broker.
        """
        brokers = self._brokers()
        if not brokers:
            raise BrokerNotAvailableError("no live broker is known")
        failure: Exception = BrokerNotAvailableError("no broker answered")
        # Begin at another broker after each failure: a broker may describe a dead leader, or no topic, for a long time.
        first = self._failures % len(brokers)
        for address in (*brokers[first:], *brokers[:first]):
            stub: Any = metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))
            try:
                cluster = await stub.DescribeCluster(
                    metadata_service_pb2.DescribeClusterRequest(), timeout=RPC_TIMEOUT_S
                )
                described = await stub.DescribeTopics(
                    metadata_service_pb2.DescribeTopicsRequest(topics=[CLUSTER_EVENTS_TOPIC]), timeout=RPC_TIMEOUT_S
                )
            except grpc.RpcError as error:
                failure = error
                continue
            (topic,) = described.topics
            if topic.HasField("error"):
                found = error_for(topic.error.code, topic.error.message)
                if not isinstance(found, UnknownTopicOrPartitionError):
                    raise found
                await self._create_topic(cluster)
                raise LeaderNotAvailableError(f"{CLUSTER_EVENTS_TOPIC} was just created")
            addresses = {broker.id: address_of(broker.host, broker.port) for broker in cluster.brokers}
            leader = topic.partitions[0].leader if topic.partitions[0].HasField("leader") else None
            if leader not in addresses:
                raise LeaderNotAvailableError(f"{CLUSTER_EVENTS_TOPIC} has no leader")
            return addresses[leader]
        raise failure

    async def _create_topic(self, cluster: metadata_service_pb2.DescribeClusterResponse) -> None:
        if len(cluster.brokers) < self._replication_factor or not cluster.controller_host:
            raise BrokerNotAvailableError(
                f"{CLUSTER_EVENTS_TOPIC} needs {self._replication_factor} brokers and a controller, "
                f"{len(cluster.brokers)} brokers are live"
            )
        request = admin_service_pb2.CreateTopicsRequest(timeout_ms=int(RPC_TIMEOUT_S * 1000))
        request.topics.add(
            name=CLUSTER_EVENTS_TOPIC,
            partitions=1,
            replication_factor=self._replication_factor,
            configs={"retention.ms": str(RETENTION_MS)},
        )
        address = address_of(cluster.controller_host, cluster.controller_port)
        stub: Any = admin_service_pb2_grpc.AdminServiceStub(self._channel(address))
        answer = await stub.CreateTopics(request, timeout=RPC_TIMEOUT_S)
        for result in answer.topics:
            if result.HasField("error"):
                error = error_for(result.error.code, result.error.message)
                if not isinstance(error, TopicAlreadyExistsError):
                    raise error

    async def _close_channels(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _channel(self, address: str) -> Any:
        if address not in self._channels:
            self._channels[address] = self._open_channel(address)
        return self._channels[address]
