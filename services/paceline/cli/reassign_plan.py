"""Plans of a reassignment: even numbers of replicas and leaders, the difference to the present, and the plan's file.

The file has the format of Kafka's ``kafka-reassign-partitions``:
``{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}``.
An entry may have ``log_dirs``, with a directory for each replica, or ``any``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.cli.numbers import MAX_INT32
from paceline.planning.goals import Partition, Placement, count_goals
from paceline.planning.planner import copies, differences, make_plan

__all__ = ["Partition", "copies", "differences", "encode_plan", "plan_moves", "read_log_dirs", "read_plan"]


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
    rows = _read_rows(path)
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


def read_log_dirs(path: Path) -> dict[tuple[str, int, int], str]:
    """Return the log directory of each replica in a plan, by topic, partition and broker, without replicas of ``any``.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a plan, or an entry does not have a directory for each of its replicas.
    """
    found = {}
    for number, row in enumerate(_read_rows(path)):
        log_dirs = row.get("log_dirs", []) if _is_move(row) else []
        if not isinstance(log_dirs, list) or not all(isinstance(one, str) and one for one in log_dirs):
            raise ValueError(f"{path}: log_dirs of entry {number} is not a list of directories")
        if log_dirs and len(log_dirs) != len(row["replicas"]):
            raise ValueError(f"{path}: entry {number} has {len(row['replicas'])} replicas and {len(log_dirs)} log_dirs")
        for broker, log_dir in zip(row["replicas"] if log_dirs else (), log_dirs, strict=True):
            if log_dir != "any":
                found[row["topic"], row["partition"], broker] = log_dir
    return found


def _read_rows(path: Path) -> list[Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    rows = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(rows, list) or content.get("version", 1) != 1:
        raise ValueError(f'{path} is not a plan: {{"version": 1, "partitions": [...]}} is expected')
    return rows


def _is_move(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("topic"), str) or not _is_id(row.get("partition")):
        return False
    replicas = row.get("replicas")
    return isinstance(replicas, list) and bool(replicas) and all(_is_id(broker) for broker in replicas)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT32
