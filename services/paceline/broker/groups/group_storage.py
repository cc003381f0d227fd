"""Load, store and drop the groups in the partitions of ``__consumer_offsets`` that this broker leads.

Become-leader starts a load, which reads the partition in small steps. Until the load ends, requests for the
partition's groups get COORDINATOR_LOAD_IN_PROGRESS. The load ends when all records read are committed, so that no
answer contains an offset that a later coordinator may lack. Become-follower drops the groups.

Source: docs/protocol/groups.md#loading-groups; Kafka's GroupMetadataManager.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.hosted_offsets_topic import HostedOffsetsTopic
from paceline.broker.groups.loaded import LoadedGroups
from paceline.broker.groups.metrics import GroupMetrics
from paceline.broker.groups.offsets_topic import partition_for
from paceline.broker.groups.records import (
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    NotCoordinatorError,
    PacelineError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Scheduler
from paceline.model.settings import GroupConfig

LOG = logging.getLogger("paceline.broker.groups")

_LOAD_BYTES: Final = 64 * 1024
"""Bytes read in one step of a load; decoding them takes a few milliseconds."""
_LOAD_POLL_MS: Final = 20
"""Pause between checks of the high watermark, when all records are read and some are not committed."""
_LOAD_RETRY_MS: Final = 500
_TOMBSTONES_AT_ONCE: Final = 100
"""Maximum number of tombstones in a batch; a key has at most about 2 KiB."""
_NOT_AVAILABLE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
}
_MOVED: Final = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR}
_TOO_LARGE: Final = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}

AppendReply = Callable[[int | PacelineError], None]


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """A partition of ``__consumer_offsets`` that this broker leads."""

    leader_epoch: int
    since_ms: float
    loaded: bool = False
    groups: dict[str, Group] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class GroupStorage:
    """Finds groups in memory, and writes them to ``__consumer_offsets``."""

    _config: GroupConfig
    _scheduler: Scheduler
    _topic: HostedOffsetsTopic
    _on_loaded: Callable[[Group], None]
    _metrics: GroupMetrics
    _owned: dict[int, OwnedPartition] = field(default_factory=dict, init=False)

    # Leadership

    def become_leader(self, partition: int, leader_epoch: int) -> None:
        """Load a partition's groups, unless they were loaded in the previous leader epoch, which this broker led."""
        known = self._owned.get(partition)
        if known is not None:
            if leader_epoch <= known.leader_epoch:
                return
            if known.loaded and leader_epoch == known.leader_epoch + 1:
                known.leader_epoch = leader_epoch
                return
            self.become_follower(partition)
        owned = self._owned[partition] = OwnedPartition(leader_epoch, self._scheduler.now_ms())
        LOG.info("loading groups: partition=%d leader_epoch=%d", partition, leader_epoch)
        self._scheduler.call_soon(lambda: self._begin_load(partition, owned))

    def become_follower(self, partition: int) -> None:
        """Drop a partition's groups; waiting calls are answered with NOT_COORDINATOR."""
        owned = self._owned.pop(partition, None)
        if owned is None:
            return
        if owned.groups:
            LOG.info("unloaded groups: partition=%d count=%d", partition, len(owned.groups))
        for group in owned.groups.values():
            self._kill(group, NotCoordinatorError(f"group {group.group_id} has another coordinator"))

    def stop(self) -> None:
        """Drop all groups when the broker stops."""
        for partition in tuple(self._owned):
            self.become_follower(partition)

    def _kill(self, group: Group, error: PacelineError) -> None:
        if not group.is_in(GroupState.DEAD):
            group.transition(GroupState.DEAD, self._scheduler.wall_ms())
        group.fail_waiting(error)

    def _begin_load(self, partition: int, owned: OwnedPartition) -> None:
        if self._owned.get(partition) is not owned:
            return
        try:
            start, _, end = self._topic.bounds(partition)
        except PacelineError as error:
            self._load_failed(partition, owned, error)
            return
        self._load(partition, owned, LoadedGroups(), start, end)

    def _load(self, partition: int, owned: OwnedPartition, found: LoadedGroups, offset: int, end: int) -> None:
        """Read some batches; end the load when all batches are read and committed."""
        if self._owned.get(partition) is not owned:
            return
        try:
            if offset < end:
                data = self._topic.read(partition, offset, _LOAD_BYTES, end)
                following = found.take(data, offset)
                if following <= offset:
                    following = end
                self._scheduler.call_soon(lambda: self._load(partition, owned, found, following, end))
                return
            _, high_watermark, _ = self._topic.bounds(partition)
        except PacelineError as error:
            self._load_failed(partition, owned, error)
            return
        if high_watermark < end:
            self._scheduler.call_later(_LOAD_POLL_MS, lambda: self._load(partition, owned, found, offset, end))
            return
        now_ms = self._scheduler.wall_ms()
        for group in found.groups(partition, now_ms):
            owned.groups[group.group_id] = group
        owned.loaded = True
        self._metrics.loads += 1
        self._metrics.load_ms += self._scheduler.now_ms() - owned.since_ms
        LOG.info("loaded groups: partition=%d count=%d records=%d", partition, len(owned.groups), found.record_count)
        for group in tuple(owned.groups.values()):
            self._on_loaded(group)

    def _load_failed(self, partition: int, owned: OwnedPartition, error: PacelineError) -> None:
        """Retry while this broker leads; become-follower drops a partition that this broker no longer leads."""
        LOG.warning("loading groups failed, retrying: partition=%d error=%s", partition, error)
        self._scheduler.call_later(_LOAD_RETRY_MS, lambda: self._begin_load(partition, owned))

    # Finding groups

    def partition_of(self, group_id: str) -> int:
        """Return the partition that stores a group.

        Raises:
            CoordinatorNotAvailableError: the topic does not exist.
        """
        count = self._topic.partition_count()
        if count is None:
            raise CoordinatorNotAvailableError("the topic __consumer_offsets does not exist")
        return partition_for(group_id, count)

    def owned_partition(self, group_id: str) -> tuple[int, OwnedPartition]:
        """Return the loaded partition that stores a group, if this broker leads it.

        Raises:
            InvalidGroupIdError: the group id is empty.
            NotCoordinatorError: this broker does not lead the partition, or the topic does not exist.
            CoordinatorLoadInProgressError: the partition is being loaded.
        """
        if not group_id:
            raise InvalidGroupIdError("the group id is empty")
        try:
            partition = self.partition_of(group_id)
        except CoordinatorNotAvailableError as error:
            raise NotCoordinatorError(str(error)) from None
        owned = self._owned.get(partition)
        if owned is None or not self._topic.leads(partition, owned.leader_epoch):
            raise NotCoordinatorError(f"this broker does not coordinate group {group_id}")
        if not owned.loaded:
            raise CoordinatorLoadInProgressError(f"the coordinator is loading group {group_id}")
        return partition, owned

    def find(self, group_id: str) -> Group | None:
        """Return a group, None if it does not exist.

        Raises:
            PacelineError: as `owned_partition`.
        """
        return self.owned_partition(group_id)[1].groups.get(group_id)

    def find_or_new(self, group_id: str) -> Group:
        """Return a group, or a new one that does not exist before it is added.

        Raises:
            PacelineError: as `owned_partition`.
        """
        partition, owned = self.owned_partition(group_id)
        found = owned.groups.get(group_id)
        return found or Group(group_id, partition, GroupState.EMPTY, self._scheduler.wall_ms())

    def add(self, group: Group) -> None:
        """Add a group after the checks of a request, in the same callback as `find_or_new`."""
        self._owned[group.partition].groups[group.group_id] = group

    def discard(self, group: Group) -> None:
        """Remove a group that has nothing to store."""
        owned = self._owned.get(group.partition)
        if owned is not None and owned.groups.get(group.group_id) is group:
            del owned.groups[group.group_id]
            self._kill(group, CoordinatorNotAvailableError(f"group {group.group_id} was deleted"))

    def restore(self, group: Group, error: PacelineError) -> None:
        """Restore a group whose deletion could not be stored, unless tombstones may be in the log.

        Such tombstones would remove the offsets of a restored group at the next load.
        """
        if not error.definite:
            return
        owned = self._owned.get(group.partition)
        if owned is not None and group.group_id not in owned.groups and group.is_in(GroupState.DEAD):
            group.state = GroupState.EMPTY
            owned.groups[group.group_id] = group

    def loaded_groups(self) -> Iterator[Group]:
        """Yield all groups of loaded partitions that this broker leads."""
        for partition, owned in tuple(self._owned.items()):
            if owned.loaded and self._topic.leads(partition, owned.leader_epoch):
                yield from tuple(owned.groups.values())

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being loaded."""
        return self.loading_count > 0

    @property
    def loading_count(self) -> int:
        """Number of partitions that are being loaded."""
        return sum(not owned.loaded for owned in self._owned.values())

    # Storing

    def store_group(self, group: Group, assignments: Mapping[str, bytes], on_done: AppendReply) -> None:
        """Write a group's metadata; ``on_done`` receives the offset, or the error for the client."""
        value = encode_group_value(group.to_value(assignments))
        self._append(group, [(encode_group_key(group.group_id), value)], on_done)

    def store_offsets(self, group: Group, offsets: Mapping[TopicPartition, OffsetValue], on_done: AppendReply) -> None:
        """Write committed offsets, and apply them when all in-sync replicas have them."""
        records: list[tuple[bytes, bytes | None]] = [
            (encode_offset_key(group.group_id, topic_partition), encode_offset_value(value))
            for topic_partition, value in offsets.items()
        ]
        growth = group.growth_of(offsets)
        group.pending_bytes += growth
        group.pending_commits.update(offsets.keys())

        def stored(answer: int | PacelineError) -> None:
            group.pending_bytes -= growth
            group.pending_commits.subtract(offsets.keys())
            group.pending_commits += type(group.pending_commits)()
            if not isinstance(answer, PacelineError):
                self._metrics.offset_commits += len(offsets)
                for place, (topic_partition, value) in enumerate(offsets.items()):
                    group.set_offset(topic_partition, value, answer + place)
            on_done(answer)

        self._append(group, records, stored)

    def store_tombstones(
        self, group: Group, offsets: Sequence[TopicPartition], with_group: bool, on_done: AppendReply
    ) -> None:
        """Write tombstones for offsets and, ``with_group``, for the group itself.

        ``on_done`` receives the offset of the first tombstone, or an error, which is `definite` only if no tombstone
        was appended.
        """
        records: list[tuple[bytes, bytes | None]] = [(encode_offset_key(group.group_id, one), None) for one in offsets]
        if with_group:
            records.append((encode_group_key(group.group_id), None))
        # One batch with all tombstones of a large group would be larger than max.message.bytes.
        batches = [records[at : at + _TOMBSTONES_AT_ONCE] for at in range(0, len(records), _TOMBSTONES_AT_ONCE)]
        if not batches:
            on_done(0)
            return
        answers: list[int | PacelineError] = []

        def stored(answer: int | PacelineError) -> None:
            answers.append(answer)
            if len(answers) < len(batches):
                return
            errors = [one for one in answers if isinstance(one, PacelineError)]
            if errors:
                errors[0].definite = len(errors) == len(answers) and all(one.definite for one in errors)
                on_done(errors[0])
            else:
                on_done(min(one for one in answers if not isinstance(one, PacelineError)))

        for batch in batches:
            self._append(group, batch, stored)

    def _append(self, group: Group, records: Sequence[tuple[bytes, bytes | None]], on_done: AppendReply) -> None:
        owned = self._owned.get(group.partition)
        if owned is None:
            on_done(NotCoordinatorError(f"this broker does not coordinate group {group.group_id}"))
            return
        now_ms = self._scheduler.wall_ms()
        batch = encode_batch(NewRecord(now_ms, key, value) for key, value in records)

        def appended(answer: int | PacelineError) -> None:
            on_done(_for_client(answer) if isinstance(answer, PacelineError) else answer)

        self._topic.append(group.partition, owned.leader_epoch, batch, appended)


def _for_client(error: PacelineError) -> PacelineError:
    """Convert the error of a failed write to the offsets topic to the error that the client receives."""
    found = error
    if error.code in _NOT_AVAILABLE:
        found = CoordinatorNotAvailableError(f"the group could not be written: {error}")
    elif error.code in _MOVED:
        found = NotCoordinatorError(f"the group could not be written: {error}")
    elif error.code in _TOO_LARGE:
        found = InvalidCommitOffsetSizeError(str(error))
    found.definite = error.definite
    return found
