"""Reads, appends and creation of ``__consumer_offsets`` on this broker."""

import logging
from collections.abc import Callable
from typing import Final

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.interfaces import BrokerTransport
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.control import InternalTopic, control_endpoint
from paceline.model.errors import (
    LogDirFullError,
    NotLeaderOrFollowerError,
    PacelineError,
    TopicAlreadyExistsError,
    error_for,
)
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.replication.purgatory import Cancel

LOG = logging.getLogger("paceline.broker.groups")

_CREATE_TIMEOUT_MS: Final = 10_000


Append = Callable[[RequiredAcks, int, list[ProduceData], Callable[[list[ProduceResult]], None], bool], Cancel | None]
"""The broker's own produce call: acks, timeout in milliseconds, batches, reply, and whether a client sent them."""


class HostedOffsetsTopic:
    """The offsets topic on this broker. End offsets are exclusive."""

    def __init__(self, hosted: HostedPartitions, transport: BrokerTransport, append: Append) -> None:
        self._broker_id = hosted.broker_id
        self._config = hosted.config.groups
        self._hosted = hosted
        self._transport = transport
        self._append = append
        self._creating = False

    def partition_count(self) -> int | None:
        """Return the number of partitions of the topic, None when it does not exist.

        The metadata lacks partitions that never had a leader, but these partitions count: otherwise groups would map to
        other partitions, and lose their offsets, when these partitions get a leader.
        """
        partitions = self._hosted.metadata.snapshot.topics.get(OFFSETS_TOPIC)
        return max(partitions) + 1 if partitions else None

    def leader_of(self, partition: int) -> int | None:
        """Return the live broker that leads a partition, None without a live leader."""
        snapshot = self._hosted.metadata.snapshot
        state = snapshot.partition(TopicPartition(OFFSETS_TOPIC, partition))
        if state is None or state.leader == NO_LEADER or state.leader not in snapshot.brokers:
            return None
        return state.leader

    def leads(self, partition: int, leader_epoch: int) -> bool:
        """Whether this broker leads the partition in that epoch, and can prove its leadership."""
        hosted = self._hosted.online.get(TopicPartition(OFFSETS_TOPIC, partition))
        if hosted is None or not hosted.is_leader or hosted.leader_epoch != leader_epoch:
            return False
        return hosted.is_leadership_proved

    def is_known(self, topic_partition: TopicPartition) -> bool:
        """Whether the metadata of this broker has this partition of any topic."""
        return self._hosted.metadata.snapshot.partition(topic_partition) is not None

    def bounds(self, partition: int) -> tuple[int, int, int]:
        """Return log start offset, high watermark and log end offset.

        Raises:
            PacelineError: this broker does not lead the partition.
        """
        log = self._hosted.lookup(TopicPartition(OFFSETS_TOPIC, partition)).leader_log()
        return log.log_start_offset, log.high_watermark, log.log_end_offset

    def read(self, partition: int, offset: int, max_bytes: int, limit_offset: int) -> bytes:
        """Return whole batches from ``offset`` onwards, at least one batch, none at or above ``limit_offset``.

        Raises:
            PacelineError: this broker does not lead the partition, or the log cannot be read.
        """
        log = self._hosted.lookup(TopicPartition(OFFSETS_TOPIC, partition)).leader_log()
        return log.read(offset, max_bytes, limit_offset)

    def check_room(self, partition: int) -> None:
        """Refuse commits while the disk of a partition is short of room.

        Raises:
            LogDirFullError: it is; members and deletions of groups may still be written.
        """
        hosted = self._hosted.online.get(TopicPartition(OFFSETS_TOPIC, partition))
        if hosted is not None and hosted.log is not None:
            try:
                hosted.log.directory.space.check(uses_reserve=False)
            except LogDirFullError as error:
                raise LogDirFullError(f"broker {self._broker_id} has no room for offsets: {error}") from None

    def append(
        self, partition: int, leader_epoch: int, batch: bytes, on_done: Callable[[int | PacelineError], None]
    ) -> None:
        """Append with acks=all; ``on_done`` gets the offset of the first record, or the error."""
        topic_partition = TopicPartition(OFFSETS_TOPIC, partition)
        if not self.leads(partition, leader_epoch):
            refusal = NotLeaderOrFollowerError(f"this broker does not lead {topic_partition} in epoch {leader_epoch}")
            refusal.definite = True
            on_done(refusal)
            return

        def done(results: list[ProduceResult]) -> None:
            failure = results[0].failure
            on_done(results[0].base_offset if failure is None else error_for(failure.code, failure.message))

        data = [ProduceData(topic_partition, None, batch)]
        self._append(RequiredAcks.ALL, self._config.offsets_commit_timeout_ms, data, done, False)

    def create(self) -> None:
        """Ask the controller to create the topic, unless a request is in flight or too few brokers live (KIP-115)."""
        config, snapshot = self._config, self._hosted.metadata.snapshot
        controller = control_endpoint(snapshot.controller_endpoints)
        if self._creating or controller is None or len(snapshot.brokers) < config.offsets_topic_replication_factor:
            return
        self._creating = True
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        if config.offsets_topic_replication_factor < self._hosted.config.min_insync_replicas:
            # With fewer replicas than the brokers' default min.insync.replicas no commit would be accepted.
            configs["min.insync.replicas"] = str(config.offsets_topic_replication_factor)
        topic = InternalTopic(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs,
            self._broker_id,
        )
        LOG.info("creating topic: name=%s partitions=%d", topic.name, topic.partitions)
        self._transport.create_internal_topic(controller, topic, _CREATE_TIMEOUT_MS, self._created)

    def _created(self, error: Exception | None) -> None:
        self._creating = False
        if error is not None and not isinstance(error, TopicAlreadyExistsError):
            LOG.warning("topic was not created: name=%s error=%s", OFFSETS_TOPIC, error)
