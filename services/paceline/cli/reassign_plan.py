"""Compute the placement of replicas, as a pure function, and read and write its file.

The rule, in this order:

1. Racks, when every broker has one, share a partition's replicas evenly.
2. A replica that rule 1 allows stays; a missing replica goes to the broker with the fewest replicas, in a tie to the
   broker with the lowest id.
3. A broker with more than its share of replicas, rounded up, gives the surplus away, as far as rule 1 allows.
4. A broker that is the preferred leader of more than its share gives those leaderships away; the others stay.

The file has the format of Kafka's ``kafka-reassign-partitions``:
``{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}``.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cli.numbers import MAX_INT32

Partition = tuple[str, int]
Placement = Mapping[Partition, Sequence[int]]


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
    """Return the partitions whose replicas or replica order change."""
    return {
        partition: tuple(replicas)
        for partition, replicas in planned.items()
        if tuple(replicas) != tuple(current[partition])
    }


def copies(current: Placement, planned: Placement) -> int:
    """Return the number of replicas that must be copied to a broker that does not have them."""
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


def _kept(current: Placement, wanted: Mapping[Partition, int], racks: Mapping[int, str]) -> dict[Partition, list[int]]:
    kept: dict[Partition, list[int]] = {partition: [] for partition in wanted}
    for partition, count in wanted.items():
        replicas = kept[partition]
        for broker in current[partition]:
            if broker in racks and len(replicas) < count and not _crowds_rack(broker, replicas, count, racks):
                replicas.append(broker)
    return kept


def _best_addition(replicas: Sequence[int], count: int, racks: Mapping[int, str], load: Mapping[int, int]) -> int:
    candidates = [broker for broker in sorted(racks) if broker not in replicas]
    return min(
        candidates, key=lambda broker: (_crowds_rack(broker, replicas, count, racks), load.get(broker, 0), broker)
    )


def _level(
    current: Placement, placed: Mapping[Partition, list[int]], racks: Mapping[int, str], load: Counter[int]
) -> None:
    """Move replicas off brokers with more than their share; moves that need no copy come first."""
    share = _share(sum(load.values()), len(racks))
    for may_copy in (False, True):
        changed = True
        while changed:
            changed = False
            for partition, replicas in placed.items():
                for place, source in enumerate(replicas):
                    if load[source] <= share:
                        continue
                    moved = source in current[partition]
                    targets = [
                        target
                        for target in racks
                        if load[target] < share
                        and target not in replicas
                        and (may_copy or not moved or target in current[partition])
                        and _may_swap(replicas, source, target, racks)
                    ]
                    if targets:
                        target = min(targets, key=lambda broker: (load[broker], broker))
                        replicas[place] = target
                        load[source] -= 1
                        load[target] += 1
                        changed = True


def _may_swap(replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str]) -> bool:
    others = [broker for broker in replicas if broker != source]
    return racks[source] == racks[target] or not _crowds_rack(target, others, len(replicas), racks)


def _crowds_rack(broker: int, replicas: Sequence[int], count: int, racks: Mapping[int, str]) -> bool:
    """Whether the broker's rack already has its share of the partition; always False without racks."""
    if not all(racks.values()):
        return False
    there = sum(racks[other] == racks[broker] for other in replicas)
    return there >= _share(count, len(set(racks.values())))


def _with_leaders(
    current: Placement, placed: Mapping[Partition, list[int]], brokers: int
) -> dict[Partition, tuple[int, ...]]:
    leads: Counter[int] = Counter()
    leaders: dict[Partition, int] = {}
    for partition, replicas in placed.items():
        present = current[partition]
        kept = present[:1] and present[0] in replicas
        leader = present[0] if kept else min(replicas, key=lambda broker: (leads[broker], broker not in present))
        leaders[partition] = leader
        leads[leader] += 1
    _share_leaders(placed, leaders, leads, _share(len(placed), brokers))
    return {
        partition: (leaders[partition], *(broker for broker in replicas if broker != leaders[partition]))
        for partition, replicas in placed.items()
    }


def _share_leaders(
    placed: Mapping[Partition, list[int]], leaders: dict[Partition, int], leads: Counter[int], share: int
) -> None:
    """Move preferred leaders, along chains of brokers where needed, until no broker has more than its share."""
    for source in sorted(leads):
        while leads[source] > share:
            came_by: dict[int, Partition] = {}
            queue = [source]
            target: int | None = None
            while queue and target is None:
                broker = queue.pop(0)
                for partition in (each for each, leader in leaders.items() if leader == broker):
                    for other in placed[partition]:
                        if other != source and other not in came_by:
                            came_by[other] = partition
                            queue.append(other)
                target = next((other for other in queue if leads[other] < share), None)
            if target is None:
                break
            leads[source] -= 1
            leads[target] += 1
            while target != source:
                partition = came_by[target]
                target, leaders[partition] = leaders[partition], target


def _share(total: int, parts: int) -> int:
    return -(-total // parts)
