"""Plans of moves: where replicas should go, as a pure function, and the file they are kept in.

The rule, in this order:

1. No broker has more than its share of replicas, rounded up; racks, when every broker has one, share a partition's
   replicas evenly.
2. A replica that rule 1 allows stays where it is.
3. What is missing goes to the broker with the fewest replicas, then the lowest id.
4. No broker is the preferred leader of more than its share, rounded up; within that the preferred leader stays.

The file is the one of Kafka's ``kafka-reassign-partitions``: ``{"version":1,"partitions":[{"topic":"t","partition":0,
"replicas":[1,2]}]}``.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Partition = tuple[str, int]
Placement = Mapping[Partition, Sequence[int]]


def plan_moves(
    current: Placement, racks: Mapping[int, str], replication_factor: int | None = None
) -> dict[Partition, tuple[int, ...]]:
    """Return where the replicas of each partition should be, the preferred leader first.

    Args:
        current: replicas now, per partition.
        racks: brokers to use, with their rack, empty when there is none.
        replication_factor: replicas wanted; None keeps each partition's number.

    Raises:
        ValueError: fewer brokers than replicas.
    """
    wanted = {partition: replication_factor or len(current[partition]) for partition in sorted(current)}
    if any(count > len(racks) for count in wanted.values()):
        raise ValueError(f"{max(wanted.values())} replicas do not fit on {len(racks)} brokers")
    placed = _kept(current, wanted, racks)
    load = Counter(broker for replicas in placed.values() for broker in replicas)
    for partition, replicas in placed.items():
        while len(replicas) < wanted[partition]:
            broker = _best_addition(replicas, wanted[partition], racks, load)
            replicas.append(broker)
            load[broker] += 1
    _level(current, placed, racks, load)
    return _with_leaders(current, placed, len(racks))


def differences(current: Placement, planned: Placement) -> dict[Partition, tuple[int, ...]]:
    """Return the partitions whose replicas, or their order, change."""
    return {
        partition: tuple(replicas)
        for partition, replicas in planned.items()
        if tuple(replicas) != tuple(current[partition])
    }


def copies(current: Placement, planned: Placement) -> int:
    """Return how many replicas have to be copied to a broker that has none."""
    return sum(len(set(replicas) - set(current[partition])) for partition, replicas in planned.items())


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
        ValueError: it is not a plan; the message says where.
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
            raise ValueError(f"{path}: entry {number} is not {{topic, partition, replicas}}")
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
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kept(current: Placement, wanted: Mapping[Partition, int], racks: Mapping[int, str]) -> dict[Partition, list[int]]:
    share = _share(sum(wanted.values()), len(racks))
    load: Counter[int] = Counter()
    kept: dict[Partition, list[int]] = {partition: [] for partition in wanted}
    for partition, count in wanted.items():
        for broker in current[partition]:
            fits = len(kept[partition]) < count and load[broker] < share
            if broker in racks and fits and not _crowds_rack(broker, kept[partition], count, racks):
                kept[partition].append(broker)
                load[broker] += 1
    return kept


def _best_addition(replicas: Sequence[int], count: int, racks: Mapping[int, str], load: Mapping[int, int]) -> int:
    candidates = [broker for broker in sorted(racks) if broker not in replicas]
    return min(
        candidates, key=lambda broker: (_crowds_rack(broker, replicas, count, racks), load.get(broker, 0), broker)
    )


def _level(
    current: Placement, placed: Mapping[Partition, list[int]], racks: Mapping[int, str], load: Counter[int]
) -> None:
    """Take replicas off brokers that got more than their share since the last partitions had nowhere else to go."""
    share = _share(sum(load.values()), len(racks))
    while True:
        full = [broker for broker in sorted(racks) if load[broker] > share]
        free = sorted((broker for broker in racks if load[broker] < share), key=lambda broker: (load[broker], broker))
        swaps = [
            (source in current[partition], partition, source, target)
            for source in full
            for target in free
            for partition, replicas in placed.items()
            if source in replicas and target not in replicas and _may_swap(replicas, source, target, racks)
        ]
        if not swaps:
            return
        _, partition, source, target = min(swaps)
        placed[partition][placed[partition].index(source)] = target
        load[source] -= 1
        load[target] += 1


def _may_swap(replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str]) -> bool:
    others = [broker for broker in replicas if broker != source]
    return racks[source] == racks[target] or not _crowds_rack(target, others, len(replicas), racks)


def _crowds_rack(broker: int, replicas: Sequence[int], count: int, racks: Mapping[int, str]) -> bool:
    """Whether the broker's rack has its share of the partition already; without racks no rack is crowded."""
    if not all(racks.values()):
        return False
    there = sum(racks[other] == racks[broker] for other in replicas)
    return there >= _share(count, len(set(racks.values())))


def _with_leaders(
    current: Placement, placed: Mapping[Partition, list[int]], brokers: int
) -> dict[Partition, tuple[int, ...]]:
    share = _share(len(placed), brokers)
    leads: Counter[int] = Counter()
    leaders: dict[Partition, int] = {}
    for partition, replicas in placed.items():
        first = current[partition][0] if current[partition] else None
        if first is not None and first in replicas and leads[first] < share:
            leaders[partition] = first
            leads[first] += 1
    for partition, replicas in placed.items():
        if partition not in leaders:
            present = current[partition]
            leader = min(replicas, key=lambda broker: (leads[broker], broker not in present, replicas.index(broker)))
            leaders[partition] = leader
            leads[leader] += 1
    return {
        partition: (leaders[partition], *(broker for broker in replicas if broker != leaders[partition]))
        for partition, replicas in placed.items()
    }


def _share(total: int, parts: int) -> int:
    return -(-total // parts)
