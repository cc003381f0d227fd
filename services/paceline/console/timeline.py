"""All that is known of a cluster over time, by partition, from a recording or a live cluster."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.console.recording import ACKNOWLEDGED, EVENT, FAULT, GAP, READ, SAMPLE, VERDICT, Entry, Header
from paceline.model.identifiers import TopicPartition

_ISR_KINDS: Final = frozenset({"isr-shrunk", "isr-expanded", "leader-elected", "became-leader", "transition"})
"""Events whose leader and ISR are in ZooKeeper."""


def _t(entry: Entry) -> int:
    return entry.t


class Series:
    """Entries in the order of time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Add an entry; most come in the order of time."""
        if self.entries and entry.t < self.entries[-1].t:
            insort(self.entries, entry, key=_t)
        else:
            self.entries.append(entry)

    def until(self, t: int) -> list[Entry]:
        """Return the entries up to a time, inclusive."""
        return self.entries[: bisect_right(self.entries, t, key=_t)]

    def latest(self, t: int, count: int) -> list[Entry]:
        """Return the last ``count`` entries up to a time, inclusive."""
        end = bisect_right(self.entries, t, key=_t)
        return self.entries[max(end - count, 0) : end]

    def last(self, t: int) -> Entry | None:
        """Return the last entry up to a time, inclusive."""
        index = bisect_right(self.entries, t, key=_t)
        return self.entries[index - 1] if index else None

    def between(self, begin: int, end: int) -> list[Entry]:
        """Return the entries from ``begin`` to ``end``, both inclusive."""
        return self.entries[bisect_left(self.entries, begin, key=_t) : bisect_right(self.entries, end, key=_t)]

    def forget(self, before: int, keep_last: bool = True) -> None:
        """Forget the entries before a time, but not the last of them: it tells the state at that time."""
        first = bisect_left(self.entries, before, key=_t)
        del self.entries[: max(first - keep_last, 0)]


@dataclass(frozen=True, slots=True)
class IsrSpan:
    """A time during which leader and ISR did not change."""

    begin: int
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    offsets: dict[int, int]
    """Log ends at the beginning, by broker, as far as the reporter knew them."""
    cause: str


@dataclass(slots=True)
class Track:
    """One partition over time."""

    topic_partition: TopicPartition
    samples: Series = field(default_factory=Series)
    events: Series = field(default_factory=Series)
    acknowledged: Series = field(default_factory=Series)
    read: Series = field(default_factory=Series)
    _spans: list[IsrSpan] | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry about this partition."""
        if entry.kind in (ACKNOWLEDGED, READ):
            (self.acknowledged if entry.kind == ACKNOWLEDGED else self.read).add(entry)
            return
        (self.samples if entry.kind == SAMPLE else self.events).add(entry)
        self._spans = None

    def spans(self) -> list[IsrSpan]:
        """Return leader and ISR over time, as ZooKeeper had them."""
        if self._spans is None:
            self._spans = list(self._find_spans())
        return self._spans

    def _find_spans(self) -> Iterable[IsrSpan]:
        events = [one for one in self.events.entries if one.value.get("kind") in _ISR_KINDS]
        newest = (-1, -1)
        topic_id, former = "", set[str]()
        before: tuple[int | None, int, tuple[int, ...]] | None = None
        # At equal times the event comes first: it knows offsets and cause.
        for entry in sorted([*events, *self.samples.entries], key=lambda one: (one.t, one.kind != EVENT)):
            value = entry.value
            epoch, isr = value.get("leader_epoch"), value.get("isr")
            if epoch is None or not isr:
                continue
            # A topic of the same name begins again at epoch 0.
            if (identity := value.get("topic_id") or topic_id) != topic_id:
                if identity in former:
                    continue
                former.add(topic_id)
                topic_id, newest = identity, (-1, -1)
            version = value.get("zk_version")
            # A deposed leader and a late reporter tell of the past.
            if (epoch, newest[1] if version is None else version) < newest:
                continue
            newest = (epoch, newest[1] if version is None else version)
            leader = value.get("leader")
            now = (None if leader is None or leader < 0 else leader, epoch, tuple(sorted(isr)))
            if now == before:
                continue
            before = now
            ends = {
                one["broker_id"]: one["log_end_offset"]
                for one in value.get("replicas", ())
                if one.get("log_end_offset") is not None
            }
            yield IsrSpan(entry.t, *now, ends, str(value.get("cause") or value.get("kind", "")))


class Timeline:
    """All partitions and the cluster over time. Not thread-safe."""

    def __init__(self, header: Header, entries: Iterable[Entry] = ()) -> None:
        self.header = header
        self.tracks: dict[TopicPartition, Track] = {}
        self.cluster = Series()
        """Events that are not about a partition."""
        self.terms = Series()
        """Those about the terms of controllers; they are in `cluster`, too."""
        self.faults = Series()
        self.gaps = Series()
        self.verdict: dict[str, Any] | None = None
        self.begin: int | None = None
        self.end = 0
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        value = entry.value
        self.begin = entry.t if self.begin is None else min(self.begin, entry.t)
        self.end = max(self.end, entry.t)
        if entry.kind == FAULT:
            self.faults.add(entry)
        elif entry.kind == GAP:
            self.gaps.add(entry)
        elif entry.kind == VERDICT:
            self.verdict = value
        elif "partition" in value:
            self.track(TopicPartition(str(value["topic"]), int(value["partition"]))).add(entry)
        else:
            self.cluster.add(entry)
            if value.get("kind") in ("controller-elected", "controller-resigned"):
                self.terms.add(entry)

    def track(self, topic_partition: TopicPartition) -> Track:
        """Return the track of a partition, which is created if it does not exist."""
        if topic_partition not in self.tracks:
            self.tracks[topic_partition] = Track(topic_partition)
        return self.tracks[topic_partition]

    def forget(self, events_before: int, samples_before: int) -> None:
        """Forget entries older than these times, to bound the memory of a live console."""
        self.begin = max(self.begin or 0, events_before)
        for series in (self.cluster, self.terms, self.faults, self.gaps):
            series.forget(events_before, keep_last=False)
        for track in self.tracks.values():
            track.events.forget(events_before)
            track.samples.forget(samples_before)
            track.acknowledged.forget(samples_before)
            track.read.forget(samples_before)
            track._spans = None
