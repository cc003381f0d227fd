"""Plans of a reassignment: even numbers of replicas and leaders, the difference to the present, and the plan's file.

The file has the format of Kafka's ``kafka-reassign-partitions``:
``{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.cli.numbers import MAX_INT32
from paceline.planning.goals import Partition, Placement, count_goals
from paceline.planning.planner import copies, differences, make_plan

__all__ = ["Partition", "copies", "differences", "encode_plan", "plan_moves", "read_plan"]


def plan_moves(
    current: Placement, racks: Mapping[int, str], replication_factor: int | None = None
) -> dict[Partition, tuple[int, ...]]:
    """Return the new replicas of each partition, the preferred leader first.

    Args:
        current: present replicas of each partition.
        racks: brokers to use, with their rack, empty for a broker without a rack.
        replication_factor: new number of replicas; None keeps each partition's number.

    Raises:
        ValueError: fewer brokers than replicas.
    """
    return make_plan(current, racks, count_goals(len(current)), replication_factor=replication_factor).placement


def encode_plan(moves: Placement) -> str:
    """Return a plan as the text of its file."""
    rows = [
        {"topic": topic, "partition": index, "replicas": list(replicas)}
        for (topic, index), replicas in sorted(moves.items())
    ]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{{"version": 1, "partitions": [\n  {lines}\n]}}\n' if rows else '{"version": 1, "partitions": []}\n'


def read_plan(path: Path) -> dict[Partition, tuple[int, ...]]:
    """Read a plan.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a plan; the message has the position.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    rows = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(rows, list) or content.get("version", 1) != 1:
        raise ValueError(f'{path} is not a plan: {{"version": 1, "partitions": [...]}} is expected')
    moves: dict[Partition, tuple[int, ...]] = {}
    for number, row in enumerate(rows):
        if not _is_move(row):
            raise ValueError(
                f"{path}: entry {number} is not {{topic, partition, replicas}} with numbers from 0 to {MAX_INT32}"
            )
        partition = (row["topic"], row["partition"])
        if partition in moves:
            raise ValueError(f"{path}: {partition[0]}/{partition[1]} is listed twice")
        moves[partition] = tuple(row["replicas"])
    return moves


def _is_move(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("topic"), str) or not _is_id(row.get("partition")):
        return False
    replicas = row.get("replicas")
    return isinstance(replicas, list) and bool(replicas) and all(_is_id(broker) for broker in replicas)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT32
