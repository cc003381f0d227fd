"""Committed offsets of a group, its lag, and the offsets of a reset."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paceline.model.errors import GroupIdNotFoundError, InvalidRequestError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.operations.times import parse_moment

TARGETS: Final = "start|end|OFFSET|+N|-N|TIME"
_OFFSETS_AT_ONCE: Final = 500
"""Partitions in one request for the offsets of a large group; with long names and texts they take about 2 MiB."""


def committed_offsets(admin: Any, group_id: str) -> dict[TopicPartition, Any]:
    """Return all committed offsets of a group, in several requests if they are too large for one response."""
    try:
        return dict(admin.group_offsets(group_id))
    except InvalidRequestError:
        names = [(topic.name, one.partition) for topic in admin.describe_topics() for one in topic.partitions]
    found: dict[TopicPartition, Any] = {}
    for at in range(0, len(names), _OFFSETS_AT_ONCE):
        found |= admin.group_offsets(group_id, partitions=names[at : at + _OFFSETS_AT_ONCE])
    return found


def group_lag(admin: Any, group: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return the description of a group and its lag per partition.

    Raises:
        PacelineError: the cluster did not answer.
    """
    (described,) = admin.describe_groups([group])
    committed = committed_offsets(admin, group)
    assigned = {tp for member in described.members for tp in member.assignment}
    return described, lag_rows(described, committed, _ends(admin, {*committed, *assigned}))


def _ends(admin: Any, wanted: set[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermarks of partitions that exist and whose leaders answer."""
    names = sorted({tp.topic for tp in wanted})
    try:
        topics = admin.describe_topics(names)
    except UnknownTopicOrPartitionError:  # one of them was deleted
        topics = [topic for topic in admin.describe_topics() if topic.name in names]
    chosen = [
        replace(topic, partitions=tuple(one for one in topic.partitions if (topic.name, one.partition) in wanted))
        for topic in topics
    ]
    return {tp: view.high_watermark for tp, view in admin.describe_leaders(chosen).items()}


def lag_rows(described: Any, committed: Mapping[TopicPartition, Any], ends: Mapping[TopicPartition, int]) -> list[Any]:
    """Return a row per partition of a described group.

    The lag is None without a committed offset, and for a partition that no longer exists.
    """
    owners = {tp: member for member in described.members for tp in member.assignment}
    rows = []
    for tp in sorted(committed.keys() | owners.keys()):
        offset, end, owner = committed.get(tp), ends.get(tp), owners.get(tp)
        rows.append(
            {
                "group": described.group_id,
                "partition": str(tp),
                "committed": None if offset is None else offset.offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset.offset),
                "member": None if owner is None else owner.member_id,
                "client_id": None if owner is None else owner.client_id,
                "metadata": "" if offset is None else offset.metadata,
            }
        )
    return rows


def parse_target(text: str) -> tuple[str, int]:
    """Return the kind of a reset (start, end, offset, shift or time) and its number; a time is in ms since 1970.

    Raises:
        ValueError: the text is no target.
    """
    if text in ("start", "end"):
        return text, 0
    if re.fullmatch(r"[+-]\d{1,18}", text):
        return "shift", int(text)
    plain = text.removeprefix("@")
    if re.fullmatch(r"[0-9]{1,18}", plain):
        return ("time" if text.startswith("@") else "offset"), int(plain)
    moment_ms = parse_moment(plain)
    if moment_ms is None:
        raise ValueError(
            f"{text!r} is none of start, end, OFFSET, +N, -N, a time ago like 10m, a time like 2026-11-21T17:00, @MS"
        )
    return "time", moment_ms


def partitions_to_reset(
    admin: Any, group_id: str, which: Sequence[tuple[str, int | None]], committed: Mapping[TopicPartition, Any]
) -> list[TopicPartition]:
    """Return the named partitions, or without names every partition with a committed offset; None names all of a topic.

    Raises:
        UnknownTopicOrPartitionError: a named partition does not exist.
        GroupIdNotFoundError: nothing is named and the group has no offsets.
    """
    partitions = []
    for topic, index in which:
        (found,) = admin.describe_topics([topic])
        count = len(found.partitions)
        if index is not None and index not in [one.partition for one in found.partitions]:
            raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, no partition {index}")
        partitions += [
            TopicPartition(topic, one.partition) for one in found.partitions if index in (None, one.partition)
        ]
    partitions = sorted(set(partitions) or committed.keys())
    if not partitions:
        raise GroupIdNotFoundError(f"group {group_id} has no committed offsets; name topics to commit their offsets")
    return partitions


def reset_offsets(
    consumer: Any,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, Any],
    target: tuple[str, int],
) -> dict[Any, int]:
    """Return the offset for each partition, limited to the range from its first record to its end."""
    kind, number = target
    first, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    if kind == "start":
        return dict(first)
    if kind == "end":
        return dict(ends)
    if kind == "time":
        found = consumer.offsets_for_times(dict.fromkeys(partitions, number))
        return {tp: ends[tp] if place is None else place.offset for tp, place in found.items()}
    wanted = {
        tp: number if kind == "offset" else (committed[tp].offset if tp in committed else first[tp]) + number
        for tp in partitions
    }
    return {tp: min(max(offset, first[tp]), ends[tp]) for tp, offset in wanted.items()}


def reset_rows(
    group_id: str, committed: Mapping[TopicPartition, Any], offsets: Mapping[TopicPartition, int]
) -> list[dict[str, Any]]:
    """Return the offsets of each partition before and after a reset."""
    return [
        {
            "group": group_id,
            "partition": str(tp),
            "before": committed[tp].offset if tp in committed else None,
            "after": offset,
        }
        for tp, offset in sorted(offsets.items())
    ]
