"""Moves of replicas between the log directories of their brokers: parse, plan, and carry out."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import click

from paceline.cli.connection import parse_partition
from paceline.cli.output import Row, error_fields
from paceline.model.errors import ErrorCode

if TYPE_CHECKING:
    from paceline_client import Admin, BrokerLogDirs

Replica = tuple[str, int, int]
"""Topic, partition and broker."""
_TOLERANCE: Final = 0.05
"""Directories whose sizes differ by less than this share of their mean count as balanced."""


def parse_move(text: str) -> tuple[tuple[str, int], str]:
    """Split ``topic/3=/path`` into partition and directory."""
    name, _, path = text.partition("=")
    topic, index = parse_partition(name)
    if index is None or not path:
        raise click.BadParameter(f"{text!r} is not TOPIC/PARTITION=DIRECTORY")
    return (topic, index), path


def named_moves(found: Iterable["BrokerLogDirs"], wanted: Mapping[tuple[str, int], str]) -> dict[Replica, str]:
    """Return the directory for every replica of the wanted partitions on these brokers.

    Raises:
        ValueError: no broker has a replica of a partition.
    """
    moves = {
        (*replica.topic_partition, broker.broker_id): wanted[tuple(replica.topic_partition)]  # type: ignore[index]
        for broker in found
        for log_dir in broker.log_dirs
        for replica in log_dir.replicas
        if tuple(replica.topic_partition) in wanted
    }
    for topic, index in wanted:
        if not any(one[:2] == (topic, index) for one in moves):
            raise ValueError(f"none of these brokers has a replica of {topic}/{index}")
    return moves


def balancing_moves(broker: "BrokerLogDirs") -> dict[Replica, str]:
    """Return moves after which the live directories of a broker have about the same size.

    Each step moves the largest replica that brings the largest and the smallest directory closer. A replica that moves
    already counts for its new directory.
    """
    moving = {
        replica.topic_partition for log_dir in broker.log_dirs for replica in log_dir.replicas if replica.is_future
    }
    sizes = {
        log_dir.path: {
            replica.topic_partition: replica.size_bytes
            for replica in log_dir.replicas
            if replica.is_future or replica.topic_partition not in moving
        }
        for log_dir in broker.log_dirs
        if log_dir.error is None
    }
    moves: dict[Replica, str] = {}
    while len(sizes) > 1:
        totals = {path: sum(replicas.values()) for path, replicas in sizes.items()}
        fullest, emptiest = max(totals, key=lambda path: totals[path]), min(totals, key=lambda path: totals[path])
        gap = totals[fullest] - totals[emptiest]
        fitting = {
            tp: size for tp, size in sizes[fullest].items() if 0 < size < gap and (*tp, broker.broker_id) not in moves
        }
        if gap <= _TOLERANCE * sum(totals.values()) / len(totals) or not fitting:
            break
        chosen = min(fitting, key=lambda tp: (abs(gap / 2 - fitting[tp]), tp))
        sizes[emptiest][chosen] = sizes[fullest].pop(chosen)
        if chosen not in moving:
            moves[(*chosen, broker.broker_id)] = emptiest
    return moves


def plan_rows(found: Iterable["BrokerLogDirs"], moves: Mapping[Replica, str]) -> list[Row]:
    """Return a row for each move that changes something, with the present directory and the size."""
    rows: list[Row] = []
    for broker in found:
        for log_dir in broker.log_dirs:
            for replica in log_dir.replicas:
                target = moves.get((*replica.topic_partition, broker.broker_id))
                if target is not None and not replica.is_future:
                    rows.append(
                        {
                            "broker": broker.broker_id,
                            "partition": str(replica.topic_partition),
                            "from": log_dir.path,
                            "to": target,
                            "bytes": replica.size_bytes,
                        }
                    )
    return rows


def carry_out(admin: "Admin", moves: Mapping[Replica, str]) -> list[Row]:
    """Start moves; return a row for each, with the error."""
    return [
        {
            "broker": one.broker_id,
            "partition": str(one.topic_partition),
            "started": one.error is None,
            **error_fields(one.error),
        }
        for one in admin.alter_replica_log_dirs(moves, raise_errors=False)
    ]


def prepare_directories(admin: "Admin", log_dirs: Mapping[Replica, str]) -> None:
    """Start the moves of existing replicas, and let brokers remember the directories of replicas to be created.

    Raises:
        PacelineError: a broker refused a directory.
    """
    for one in admin.alter_replica_log_dirs(log_dirs, raise_errors=False):
        if one.error is not None and one.error.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
            raise one.error
