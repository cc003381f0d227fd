"""Limits of one group, so that no group can fill the memory of its coordinator or stall it.

Every refusal names the setting in the error's metadata ``limit``.
Source: docs/protocol/groups.md#limits-of-a-group.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from paceline.broker.groups.group import Group
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import Protocol
from paceline.model.errors import (
    GroupMaxSizeReachedError,
    InvalidCommitOffsetSizeError,
    InvalidRequestError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import GroupConfig

MAX_UNNAMED_BYTES: Final = 1 << 20
"""Largest size of a group's offsets that FetchOffsets answers without named partitions."""


def check_offsets(group: Group, offsets: Mapping[TopicPartition, OffsetValue], config: GroupConfig) -> None:
    """Refuse a commit that would make the group's offsets too many or too large; commits in progress count.

    Raises:
        InvalidCommitOffsetSizeError: the group would exceed ``group.max.offsets`` or ``group.max.offsets.bytes``.
    """
    pending = group.pending_commits
    added = sum(one not in group.offsets and one not in pending for one in offsets)
    if added:
        count = len(group.offsets) + added + sum(one not in group.offsets for one in pending)
        if count > config.group_max_offsets:
            raise InvalidCommitOffsetSizeError(
                f"with this commit group {group.group_id} has offsets of {count} partitions, "
                f"group.max.offsets is {config.group_max_offsets}"
            ).with_metadata(limit="group.max.offsets")
    growth = group.growth_of(offsets)
    size_bytes = group.offsets.size_bytes + group.pending_bytes + growth
    if growth > 0 and size_bytes > config.group_max_offsets_bytes:
        raise InvalidCommitOffsetSizeError(
            f"with this commit the offsets of group {group.group_id} take {size_bytes} bytes, "
            f"group.max.offsets.bytes is {config.group_max_offsets_bytes}"
        ).with_metadata(limit="group.max.offsets.bytes")


def check_unnamed_fetch(group: Group) -> None:
    """Refuse to return all offsets of a group in one response when they are large.

    Raises:
        InvalidRequestError: the offsets take more than 1 MiB.
    """
    if group.offsets.size_bytes > MAX_UNNAMED_BYTES:
        raise InvalidRequestError(
            f"group {group.group_id} has {len(group.offsets)} offsets of {group.offsets.size_bytes} bytes, more than "
            f"{MAX_UNNAMED_BYTES}: name the partitions, a part of them in each request"
        )


def check_metadata(group: Group, member_id: str, protocols: Iterable[Protocol], config: GroupConfig) -> None:
    """Refuse a member whose subscription and user data are too large for itself or for the group.

    Raises:
        InvalidRequestError: they exceed ``group.member.metadata.max.bytes``.
        GroupMaxSizeReachedError: with them the group exceeds ``group.max.metadata.bytes``.
    """
    size_bytes = sum(len(one.metadata) for one in protocols)
    if size_bytes > config.group_member_metadata_max_bytes:
        raise InvalidRequestError(
            f"the member's subscriptions for its assignors take {size_bytes} bytes, "
            f"group.member.metadata.max.bytes is {config.group_member_metadata_max_bytes}"
        ).with_metadata(limit="group.member.metadata.max.bytes")
    known = group.members.get(member_id)
    total_bytes = group.metadata_bytes - (0 if known is None else known.metadata_bytes) + size_bytes
    if total_bytes > config.group_max_metadata_bytes:
        raise GroupMaxSizeReachedError(
            f"with this member the subscriptions of group {group.group_id} take {total_bytes} bytes, "
            f"group.max.metadata.bytes is {config.group_max_metadata_bytes}"
        ).with_metadata(limit="group.max.metadata.bytes")
