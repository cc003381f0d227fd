"""ISR churn, under-replicated time, leader imbalance and failover phases, from events in topic order.

Events of a partition are ordered by controller epoch, leader epoch and ZooKeeper version. Durations between events of
different processes include the difference of their clocks; negative durations are omitted, and
`Failovers.negative_spans` counts them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline.pipeline.jobs.analyse.events import EventRow

FLAP_MS: Final = 60_000
"""A replica that rejoins the ISR within this time has flapped."""
NOTICE_MS: Final = 60_000
"""An election that comes later than this after the detection of a dead leader is attributed to another cause."""
MINUTE_MS: Final = 60_000
PHASES: Final = ("detect", "elect", "propagate", "recover")

Partition = tuple[str, int]


@dataclass(slots=True)
class IsrChurn:
    """Changes of a partition's ISR."""

    shrinks: int = 0
    expands: int = 0
    flaps: int = 0


def isr_churn(events: Iterable[EventRow]) -> dict[Partition, IsrChurn]:
    """Count ISR changes; leader and controller both report a change, so each ZooKeeper version counts once."""
    churn: dict[Partition, IsrChurn] = defaultdict(IsrChurn)
    left_ms: dict[tuple[Partition, int], int] = {}
    seen: set[tuple[Partition, int, int]] = set()
    for event in events:
        if event.kind not in ("isr_shrunk", "isr_expanded"):
            continue
        version = (event.where, event.leader_epoch, event.zk_version)
        if event.zk_version >= 0 and version in seen:
            continue
        seen.add(version)
        counted = churn[event.where]
        if event.kind == "isr_shrunk":
            counted.shrinks += 1
            for broker_id in set(event.old_isr) - set(event.isr):
                left_ms[event.where, broker_id] = event.time_ms
        else:
            counted.expands += 1
            for broker_id in set(event.isr) - set(event.old_isr):
                left = left_ms.pop((event.where, broker_id), None)
                counted.flaps += left is not None and event.time_ms - left <= FLAP_MS
    return dict(churn)


@dataclass(frozen=True, slots=True)
class UnderReplicated:
    """Time for which a partition's ISR was smaller than its number of replicas."""

    total_ms: int
    longest_ms: int
    replicas: int
    """The largest number of replicas in any event."""
    still: bool
    """Whether the partition is under-replicated after its last event."""


def under_replicated(events: Sequence[EventRow], end_ms: int | None = None) -> dict[Partition, UnderReplicated]:
    """Add up the under-replicated time of each partition, up to ``end_ms`` or the time of the last event."""
    end_ms = max((event.time_ms for event in events), default=0) if end_ms is None else end_ms
    by_partition: dict[Partition, list[EventRow]] = defaultdict(list)
    for event in events:
        if event.isr and event.kind not in ("isr_proposed", "isr_refused", "isr_unknown", "became_follower"):
            by_partition[event.where].append(event)
    found = {}
    for where, states in by_partition.items():
        states.sort(key=lambda each: (each.controller_epoch, each.leader_epoch, each.zk_version))
        replicas = max(max(len(each.isr), len(each.old_isr), each.replica_count) for each in states)
        total = longest = 0
        since: int | None = None
        for state in states:
            small = len(state.isr) < replicas
            if small and since is None:
                since = state.time_ms
            elif not small and since is not None:
                total, longest, since = total + state.time_ms - since, max(longest, state.time_ms - since), None
        still = since is not None
        if since is not None:
            total, longest = total + max(end_ms - since, 0), max(longest, end_ms - since)
        if total or still:
            found[where] = UnderReplicated(max(total, 0), max(longest, 0), replicas, still)
    return found


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Leaders per broker at the end of a minute."""

    minute_ms: int
    leaders: Mapping[int, int]

    @property
    def ratio(self) -> float:
        """Return the largest number of leaders on a broker, divided by the mean of all brokers."""
        return max(self.leaders.values()) * len(self.leaders) / max(sum(self.leaders.values()), 1)


def leader_imbalance(events: Iterable[EventRow]) -> list[Imbalance]:
    """Return the leaders per broker for every minute in which a leader changed."""
    leaders: dict[Partition, tuple[int, int]] = {}
    brokers: set[int] = set()
    minutes: dict[int, dict[int, int]] = {}
    for event in events:
        if event.kind == "became_leader" and event.broker_id is not None:
            brokers.add(event.broker_id)
            if event.leader_epoch >= leaders.get(event.where, (-1, -1))[0]:
                leaders[event.where] = (event.leader_epoch, event.broker_id)
            counts = Counter(broker_id for _, broker_id in leaders.values())
            minutes[event.time_ms // MINUTE_MS * MINUTE_MS] = {b: counts.get(b, 0) for b in sorted(brokers)}
        elif event.kind == "topic_deleted":
            leaders = {where: led for where, led in leaders.items() if where[0] != event.topic}
    return [Imbalance(minute, counts) for minute, counts in sorted(minutes.items())]


@dataclass(frozen=True, slots=True)
class Failover:
    """Phases of a partition's failover, in milliseconds; None when an event is missing."""

    where: Partition
    leader_epoch: int
    cause: str
    time_ms: int
    """Time of the election."""
    detect_ms: int | None
    """From the last heartbeat of the old leader to the controller's detection that it is dead."""
    elect_ms: int | None
    """From the detection to the election."""
    propagate_ms: int | None
    """From the election to the event in which the new leader reports that it became leader."""
    recover_ms: int | None
    """From that event to the new leader's first committed record."""


@dataclass(slots=True)
class Failovers:
    """All changes of leaders."""

    all: list[Failover] = field(default_factory=list)
    negative_spans: int = 0
    """Number of phases with a negative duration, because the clocks of two processes differ."""

    def percentiles(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return p50, p95 and p99 in milliseconds by cause and phase."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for cause in sorted({each.cause for each in self.all}):
            chosen = [each for each in self.all if each.cause == cause]
            found[cause] = {}
            for phase in PHASES:
                values = sorted(v for each in chosen if (v := getattr(each, f"{phase}_ms")) is not None)
                if values:
                    found[cause][phase] = {
                        f"p{p}": values[min(len(values) * p // 100, len(values) - 1)] for p in (50, 95, 99)
                    }
        return found


def failovers(events: Iterable[EventRow]) -> Failovers:
    """Join each election with the detection before it and the new leader's events after it."""
    result = Failovers()
    down: dict[int, EventRow] = {}
    elected: dict[tuple[Partition, int], tuple[EventRow, EventRow | None]] = {}
    started: dict[tuple[Partition, int], EventRow] = {}
    committed: dict[tuple[Partition, int], EventRow] = {}
    leaders: dict[Partition, dict[int, int | None]] = defaultdict(dict)
    # The topic orders the events of one process; events of different processes may be out of order.
    events = list(events)
    for event in events:
        key = (event.where, event.leader_epoch)
        if event.kind == "became_leader":
            started.setdefault(key, event)
            leaders[event.where][event.leader_epoch] = event.broker_id
        elif event.kind == "first_commit":
            committed.setdefault(key, event)
        elif event.kind == "leader_elected":
            leaders[event.where][event.leader_epoch] = event.leader
    for event in events:
        if event.kind == "broker_suspected" and event.broker_id is not None:
            down[event.broker_id] = event
        elif event.kind == "broker_down" and event.broker_id is not None:
            suspected = down.get(event.broker_id)
            if suspected is None or event.time_ms - suspected.time_ms > NOTICE_MS:
                down[event.broker_id] = event
        elif event.kind == "broker_up" and event.broker_id is not None:
            down.pop(event.broker_id, None)
        elif event.kind == "leader_elected" and event.leader is not None:
            earlier = [epoch for epoch in leaders[event.where] if epoch < event.leader_epoch]
            before = leaders[event.where][max(earlier)] if earlier else None
            if before is not None and before != event.leader:
                notice = down.get(before)
                if notice is not None and event.time_ms - notice.time_ms > NOTICE_MS:
                    notice = None
                elected[event.where, event.leader_epoch] = (event, notice)
    for key, (election, notice) in elected.items():
        start, commit = started.get(key), committed.get(key)
        spans = [
            None if notice is None else notice.silent_ms,
            None if notice is None else election.time_ms - notice.time_ms,
            None if start is None else start.time_ms - election.time_ms,
            None if start is None or commit is None else commit.time_ms - start.time_ms,
        ]
        result.negative_spans += sum(span is not None and span < 0 for span in spans)
        clean = [None if span is None or span < 0 else span for span in spans]
        cause = "broker failure" if notice is not None else election.cause.partition(":")[0] or "unknown"
        result.all.append(Failover(key[0], key[1], cause, election.time_ms, *clean))
    return result
