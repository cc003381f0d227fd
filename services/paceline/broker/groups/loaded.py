"""Decode the records of a partition of ``__consumer_offsets`` into groups."""

import logging
from collections.abc import Iterator

from paceline.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets
from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.member import member_from_value
from paceline.broker.groups.records import (
    GroupKey,
    GroupValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from paceline.log.record_batch import Record, decode_batch, iterate_headers
from paceline.model.errors import InvalidRequestError

LOG = logging.getLogger("paceline.broker.groups")


class LoadedGroups:
    """Collects the last value of every key."""

    def __init__(self) -> None:
        self._values: dict[str, GroupValue] = {}
        self._offsets: dict[str, CommittedOffsets] = {}
        self.record_count = 0

    def take(self, data: bytes, from_offset: int) -> int:
        """Add batches and return the offset after the last batch; skips records below ``from_offset``."""
        following = from_offset
        for position, header in iterate_headers(data):
            following = max(following, header.last_offset + 1)
            if header.is_control:
                continue
            for record in decode_batch(data[position : position + header.size]):
                if record.offset >= from_offset:
                    self._record(record)
        return following

    def _record(self, record: Record) -> None:
        self.record_count += 1
        if record.key is None:
            return
        try:
            key = decode_key(record.key)
            if isinstance(key, GroupKey):
                if record.value is None:
                    self._values.pop(key.group_id, None)
                else:
                    self._values[key.group_id] = decode_group_value(record.value)
                return
            offsets = self._offsets.setdefault(key.group_id, CommittedOffsets())
            if record.value is None:
                offsets.pop(key.topic_partition, None)
            else:
                offsets[key.topic_partition] = CommittedOffset(decode_offset_value(record.value), record.offset)
        except InvalidRequestError as error:
            LOG.warning("ignoring unreadable group record: offset=%d error=%s", record.offset, error)

    def groups(self, partition: int, now_wall_ms: int) -> Iterator[Group]:
        """Yield the stored groups; a group with only offsets is EMPTY."""
        for group_id, value in self._values.items():
            group = _group(group_id, partition, value, now_wall_ms)
            self._add_offsets(group)
            yield group
        for group_id, offsets in self._offsets.items():
            if group_id not in self._values and offsets:
                group = Group(group_id, partition, GroupState.EMPTY, now_wall_ms)
                group.state_timestamp = None
                self._add_offsets(group)
                yield group

    def _add_offsets(self, group: Group) -> None:
        # The group takes the collection over, so that the end of a load does not stall the loop for a large group.
        group.offsets = self._offsets.get(group.group_id, group.offsets)


def _group(group_id: str, partition: int, value: GroupValue, now_wall_ms: int) -> Group:
    state = GroupState.STABLE if value.members else GroupState.EMPTY
    group = Group(group_id, partition, state, now_wall_ms)
    group.state_timestamp = value.current_state_timestamp if value.current_state_timestamp >= 0 else None
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    group.generation = value.generation
    for member in value.members:
        group.add(member_from_value(member, value.protocol))
    group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
    group.read_subscriptions()
    return group
