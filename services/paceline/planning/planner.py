"""Place the replicas of partitions: hard rules first, then the goals in order; no goal undoes an earlier goal.

1. A replica stays if its broker may be used and its rack does not have more than its share of the partition. Racks
   share the replicas of a partition evenly; a broker without a rack counts as a rack of its own.
2. A missing replica goes to a broker whose rack has room, in a tie to the broker with the lowest load, then id.
3. Goals of replicas: a broker above its limits, or above its share while another broker is below its limits, gives
   replicas to brokers below their share. Moves that copy nothing come first, then those that relieve most load for
   each copied byte.
4. Goals of leaders move leadership in the same way among the replicas of a partition; nothing is copied. Numbers of
   leaders are passed on along chains of brokers where no direct move helps.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from paceline.planning.goals import DISK, Balance, Goal, Level, Partition, Placement


@dataclass(frozen=True, slots=True)
class Plan:
    """A better placement."""

    placement: dict[Partition, tuple[int, ...]]
    before: list[Balance]
    after: list[Balance]
    crowded: int
    """Partitions with more replicas in a rack than its share, because the other racks have too few brokers."""


def make_plan(
    current: Placement,
    racks: Mapping[int, str],
    goals: Sequence[Goal],
    replication_factor: int | None = None,
) -> Plan:
    """Return the new replicas of each partition; nothing changes when all loads are within their limits.

    Args:
        current: present replicas of each partition.
        racks: brokers to use, with their rack, empty for a broker without a rack.
        goals: loads to balance, by priority.
        replication_factor: new number of replicas; None keeps each partition's number.

    Raises:
        ValueError: fewer brokers than replicas.
    """
    planner = _Planner(current, racks, goals, replication_factor)
    before = [Level(goal, planner.current, racks).balance() for goal in goals]
    planner.keep()
    planner.fill([Level(goal, planner.rows, racks) for goal in goals if not goal.of_leaders])
    levels = [Level(goal, planner.rows, racks) for goal in goals]
    for number, level in enumerate(levels):
        planner.balance(level, levels[:number], levels)
    crowded = sum(planner.is_crowded(row) for row in range(len(planner.rows)))
    placement = {name: tuple(replicas) for name, replicas in zip(planner.names, planner.rows, strict=True)}
    return Plan(placement, before, [level.balance() for level in levels], crowded)


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


class _Planner:
    def __init__(
        self,
        current: Placement,
        racks: Mapping[int, str],
        goals: Sequence[Goal],
        replication_factor: int | None,
    ) -> None:
        self.names = sorted(current)
        self.current = [current[name] for name in self.names]
        self.rows: list[list[int]] = [[] for _ in self.names]
        self._wanted = [replication_factor or len(replicas) for replicas in self.current]
        self._brokers = sorted(racks)
        self._racks: dict[int, object] = {broker: racks[broker] or broker for broker in self._brokers}
        self._rack_count = len(set(self._racks.values()))
        self._sizes = next((goal.weights for goal in goals if goal.name == DISK), [0.0] * len(self.names))
        self._mean_size = sum(self._sizes) / max(1, len(self._sizes)) or 1.0
        most = max(self._wanted, default=0)
        if most > len(racks):
            raise ValueError(f"{most} replicas do not fit on {len(racks)} brokers")

    def keep(self) -> None:
        """Begin with the present replicas that the rules allow."""
        for row, (present, replicas) in enumerate(zip(self.current, self.rows, strict=True)):
            for broker in present:
                if broker in self._racks and len(replicas) < self._wanted[row] and self._has_room(row, broker):
                    replicas.append(broker)

    def fill(self, levels: Sequence[Level]) -> None:
        """Add the missing replicas."""

        def load(broker: int, row: int) -> tuple[bool, float]:
            return not self._has_room(row, broker), sum(level.loads[broker] / level.total for level in levels)

        for row, replicas in enumerate(self.rows):
            while len(replicas) < self._wanted[row]:
                others = (broker for broker in self._brokers if broker not in replicas)
                added = min(others, key=lambda broker: load(broker, row))
                replicas.append(added)
                for level in levels:
                    level.loads[added] += level.goal.weights[row]

    def balance(self, level: Level, earlier: Sequence[Level], levels: Sequence[Level]) -> None:
        """Bring the brokers within the limits of a goal, without taking them out of the limits of earlier goals."""
        if not level.goal.of_leaders:
            while self._move(level, earlier, levels, may_copy=False):
                pass
        while self._move(level, earlier, levels, may_copy=True):
            pass
        if level.goal.of_leaders and len(set(level.goal.weights)) == 1:
            self._pass_leaders_on(level, earlier, levels)

    def is_crowded(self, row: int) -> bool:
        """Whether a rack has more replicas of the partition than its share."""
        held = Counter(self._racks[broker] for broker in self.rows[row])
        return max(held.values(), default=0) > self._rack_share(row)

    def _move(self, level: Level, earlier: Sequence[Level], levels: Sequence[Level], may_copy: bool) -> bool:
        """Let brokers above their share give replicas, or leaderships, to brokers below it.

        Returns:
            Whether a move was made; the next call may find more.
        """
        loads, weights, of_leaders = level.loads, level.goal.weights, level.goal.of_leaders
        over, under = set(filter(level.is_over, loads)), set(filter(level.is_under, loads))
        # A broker within its limits gives leaderships, which is free, or to a broker below its limits.
        givers = over if not (under or (over and of_leaders)) else {b for b in loads if loads[b] > level.share}
        takers = sorted((broker for broker in loads if loads[broker] < level.share), key=lambda broker: loads[broker])
        moved = False
        for row, source in self._candidates(level, levels, givers):
            weight, replicas, present = weights[row], self.rows[row], self.current[row]
            if loads[source] <= level.share:
                continue
            is_leader = source == replicas[0]
            guarded = _affected(earlier, not of_leaders, is_leader)
            if of_leaders:
                targets = sorted(replicas[1:], key=loads.__getitem__)
            elif may_copy or source not in present:
                targets = [broker for broker in takers if broker not in replicas]
            else:
                targets = [broker for broker in present if broker in loads and broker not in replicas]
            for target in targets:
                if (
                    (of_leaders or source in over or target in under)
                    and weight < loads[source] - loads[target] - level.slack
                    and level.admits(weight, source, target)
                    and (of_leaders or self._has_room(row, target, source))
                    and _admitted(guarded, row, source, target)
                ):
                    break
            else:
                continue
            if of_leaders:
                replicas.remove(target)
                replicas.insert(0, target)
            else:
                replicas[replicas.index(source)] = target
            _shift(_affected(levels, not of_leaders, is_leader), row, source, target)
            takers.sort(key=lambda taker: loads[taker])
            moved = True
        return moved

    def _candidates(self, level: Level, levels: Sequence[Level], givers: Collection[int]) -> list[tuple[int, int]]:
        """Return the partitions and their replicas on the givers; the most relief for each copied byte comes first."""
        weights = level.goal.weights
        rows = [(row, replicas) for row, replicas in enumerate(self.rows) if weights[row] > 0]
        if level.goal.of_leaders:
            return [(row, replicas[0]) for row, replicas in rows if replicas[0] in givers]
        # A broker with a full disk must also give large replicas: there every byte of relief costs one copied byte.
        full = {broker for disk in levels if disk.goal.name == DISK for broker in filter(disk.is_over, disk.loads)}
        candidates = []
        for row, replicas in rows:
            relief = -weights[row] / (self._sizes[row] + 0.01 * self._mean_size)
            for source in replicas:
                if source in givers:
                    key = -weights[row] / self._mean_size if source in full else relief
                    candidates.append((key, row, source))
        return [(row, source) for _, row, source in sorted(candidates)]

    def _pass_leaders_on(self, level: Level, earlier: Sequence[Level], levels: Sequence[Level]) -> None:
        """Move preferred leaders along chains of brokers, until no broker has too many or no chain is left."""
        earlier, levels = _affected(earlier, False, True), _affected(levels, False, True)
        led: dict[int, set[int]] = {broker: set() for broker in self._brokers}
        for row, replicas in enumerate(self.rows):
            led[replicas[0]].add(row)
        for source in filter(level.is_over, self._brokers):
            while level.is_over(source):
                came_by: dict[int, tuple[int, int]] = {source: (-1, source)}
                queue = deque([source])
                target = None
                while queue and target is None:
                    broker = queue.popleft()
                    for row in sorted(led[broker]):
                        for other in self.rows[row][1:]:
                            if other not in came_by and _admitted(earlier, row, broker, other):
                                came_by[other] = (row, broker)
                                queue.append(other)
                    target = next((other for other in queue if level.admits(1.0, source, other)), None)
                if target is None:
                    break
                while target != source:
                    row, broker = came_by[target]
                    self.rows[row].remove(target)
                    self.rows[row].insert(0, target)
                    led[broker].remove(row)
                    led[target].add(row)
                    _shift(levels, row, broker, target)
                    target = broker

    def _rack_share(self, row: int) -> int:
        return -(-self._wanted[row] // self._rack_count)

    def _has_room(self, row: int, broker: int, source: int | None = None) -> bool:
        """Whether the broker's rack may take one more replica of the partition, in place of the source's replica."""
        rack = self._racks[broker]
        if source is not None and self._racks[source] == rack:
            return True
        return sum(self._racks[other] == rack for other in self.rows[row]) < self._rack_share(row)


def _affected(levels: Sequence[Level], moves_replica: bool, moves_leader: bool) -> list[Level]:
    return [level for level in levels if (moves_leader if level.goal.of_leaders else moves_replica)]


def _admitted(levels: Sequence[Level], row: int, source: int, target: int) -> bool:
    return all(level.admits(level.goal.weights[row], source, target) for level in levels)


def _shift(levels: Sequence[Level], row: int, source: int, target: int) -> None:
    for level in levels:
        level.shift(level.goal.weights[row], source, target)
