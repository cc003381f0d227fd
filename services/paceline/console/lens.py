"""One moment of one partition: its replicas' logs, the ISR, the controller, and the findings.

`frame_at` is a pure function of a `Timeline` and a time; the pages, their JSON twin and the SVG files draw its result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from paceline.console.recording import EVENT, FAULT, SAMPLE_MS, Entry
from paceline.console.timeline import IsrSpan, Timeline, Track
from paceline.findings.explain import explain
from paceline.findings.facts import BrokerFacts, PartitionFacts, ReplicaFacts
from paceline.model.identifiers import TopicPartition

OLD_MS: Final = 4 * SAMPLE_MS
"""A sample that is older than this does not show the present."""
WINDOW_MS: Final = 120_000
_CUT_MARK_MS: Final = 5_000
_REQUESTS, _EVENTS = 14, 14
_REQUEST: Final = "control-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFrame:
    """One replica. Offsets are exclusive ends, except the log start; None means not known."""

    broker_id: int
    state: str
    """``leads``, ``follows``, ``paused``, ``dead``, ``does not answer`` or ``idle``."""
    in_isr: bool
    log_start_offset: int | None
    high_watermark: int | None
    log_end_offset: int | None
    epochs: tuple[tuple[int, int, int], ...]
    """Leader epochs of its log with the first offset and the end of each."""
    known_ms: int
    """Time of the sample that the offsets are from: for a dead replica the last before its death."""
    applied_leader: int | None
    applied_leader_epoch: int | None
    applied_controller_epoch: int | None
    last_fetch_ago_ms: int | None
    truncated_from: int | None
    """Log end before a truncation of the last five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpan:
    """A time during which a controller took itself for the active one."""

    controller: str
    controller_epoch: int
    begin: int
    end: int | None
    """None while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A partition at a time. Times are milliseconds since the beginning of the recording."""

    topic: str
    partition: int
    t: int
    begin: int
    end: int
    began_ms: int
    """Unix time of ``t`` 0."""
    clock: str
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    min_insync_replicas: int | None
    high_watermark: int | None
    """The leader's."""
    acknowledged: int | None
    """Exclusive end of the records that a producer knows to be acknowledged with acks=all."""
    acknowledged_by_leader: int | None
    """The same for any acks."""
    read: int | None
    """Exclusive end of the records that a consumer has received."""
    controller: int | None
    controller_epoch: int
    sample_age_ms: int | None
    """None before the first sample."""
    replicas: tuple[ReplicaFrame, ...]
    spans: tuple[IsrSpan, ...]
    controllers: tuple[ControllerSpan, ...]
    applied: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """For each broker the controller epochs that it applied, with their times."""
    requests: tuple[dict[str, Any], ...]
    """The latest control requests for the partition, oldest first."""
    events: tuple[dict[str, Any], ...]
    """The latest events, oldest first."""
    faults: tuple[tuple[int, str], ...]
    truncations: tuple[tuple[int, int, str], ...]
    """Time, broker and description of each truncation that removed records."""
    gaps: tuple[tuple[int, int, str], ...]
    findings: tuple[tuple[str, str, str], ...]
    """Severity, sentence and command of each finding, the worst first."""

    @property
    def window(self) -> tuple[int, int]:
        """Begin and end of the time that the strips show: all of it, or two minutes around the present."""
        if self.end - self.begin <= WINDOW_MS:
            return self.begin, max(self.end, self.begin + 1)
        begin = min(max(self.t - WINDOW_MS * 3 // 4, self.begin), self.end - WINDOW_MS)
        return begin, begin + WINDOW_MS


def clock_text(began_ms: int, t: int) -> str:
    """Return a time of the recording as a clock shows it, UTC; a simulation begins at 00:00:00."""
    return f"{datetime.fromtimestamp((began_ms + t) / 1000, UTC):%H:%M:%S.%f}"[:-3]


def frame_at(timeline: Timeline, topic_partition: TopicPartition, t: int) -> Frame:
    """Return the known state of a partition at time ``t``; only the two strips show later times, too.

    The ISR strip with truncations and faults, and the controller track, cover the whole recording: a reader sees where
    to go.
    """
    track = timeline.track(topic_partition)
    sample = track.samples.last(t)
    value = sample.value if sample else {}
    span = next((one for one in reversed(track.spans()) if one.begin <= t), None)
    replicas = tuple(_replicas(track, sample, t))
    controllers = tuple(_controllers(timeline, track))
    active = max((one for one in controllers if one.begin <= t), key=lambda one: one.controller_epoch, default=None)
    leading = next((one for one in replicas if span and one.broker_id == span.leader), None)
    # As of the sample: a later acknowledgement would show as a record that the older sample lacks.
    acknowledged, read = (
        [
            one
            for one in series.until(sample.t if sample else t)
            if one.value.get("topic_id") in (None, value.get("topic_id"))
        ]
        for series in (track.acknowledged, track.read)
    )
    begin = timeline.begin or 0
    parts: dict[str, Any] = {
        "topic": topic_partition.topic,
        "partition": topic_partition.partition,
        "t": t,
        "begin": begin,
        "end": timeline.end,
        "began_ms": timeline.header.began_ms,
        "clock": clock_text(timeline.header.began_ms, t),
        "leader": span.leader if span else None,
        "leader_epoch": span.leader_epoch if span else -1,
        "isr": span.isr if span else (),
        "min_insync_replicas": value.get("min_insync_replicas"),
        "high_watermark": leading.high_watermark if leading else None,
        "acknowledged": max((one.value["end"] for one in acknowledged if one.value.get("acks") == "all"), default=None),
        "acknowledged_by_leader": max((one.value["end"] for one in acknowledged), default=None),
        "read": max((one.value["end"] for one in read), default=None),
        "controller": active and _number(active.controller) if active else value.get("controller"),
        "controller_epoch": max(active.controller_epoch if active else -1, value.get("controller_epoch", -1)),
        "sample_age_ms": t - sample.t if sample else None,
        "replicas": replicas,
        "spans": tuple(track.spans()),
        "controllers": controllers,
        "applied": tuple(_applied(track)),
        "requests": tuple(_requests(timeline, track, t)),
        "events": tuple(_events(timeline, track, t)),
        "faults": tuple((one.t, f"{one.value.get('who')} {one.value.get('what')}") for one in timeline.faults.entries),
        "truncations": tuple(_truncations(track)),
        "gaps": tuple(
            (int(one.value.get("from", one.t)), one.t, str(one.value.get("why"))) for one in timeline.gaps.entries
        ),
    }  # fmt: skip
    facts = _facts(parts, value, track, t, timeline.header.began_ms)
    found = explain(facts, timeline.header.began_ms + t) if facts else []
    findings = tuple((one.severity.name.lower(), one.sentence + ".", one.next_command or "") for one in found)
    return Frame(**parts, findings=findings)


# Replicas -------------------------------------------------------------------------------------------------------------


def _replicas(track: Track, sample: Entry | None, t: int) -> Iterator[ReplicaFrame]:
    if sample is None:
        return
    isr = next((one.isr for one in reversed(track.spans()) if one.begin <= t), ())
    cuts = [one for one in track.events.between(t - _CUT_MARK_MS, t) if one.value.get("kind") == "truncated"]
    for value in sample.value.get("replicas", ()):
        broker = value["broker_id"]
        known, at = value, sample.t
        if value.get("log_end_offset") is None:
            known, at = _last_known(track, broker, sample) or (value, sample.t)
        applied = value.get("applied") or {}
        yield ReplicaFrame(
            broker_id=broker,
            state=_state(value),
            in_isr=broker in isr,
            log_start_offset=known.get("log_start_offset"),
            high_watermark=known.get("high_watermark"),
            log_end_offset=known.get("log_end_offset"),
            epochs=tuple(_epochs(known)),
            known_ms=at,
            applied_leader=applied.get("leader"),
            applied_leader_epoch=applied.get("leader_epoch"),
            applied_controller_epoch=value.get("controller_epoch"),
            last_fetch_ago_ms=value.get("last_fetch_ago_ms"),
            truncated_from=max((end for one in cuts if (end := _end_before(one.value, broker))), default=None),
        )


def _state(value: dict[str, Any]) -> str:
    if not value.get("alive", True):
        return "dead"
    if value.get("paused"):
        return "paused"
    if value.get("answers") is False:
        return "does not answer"
    return {"leader": "leads", "follower": "follows"}.get(str(value.get("role")), "idle")


def _last_known(track: Track, broker: int, sample: Entry) -> tuple[dict[str, Any], int] | None:
    topic_id = sample.value.get("topic_id")
    for entry in reversed(track.samples.until(sample.t)):
        if topic_id and (entry.value.get("topic_id") or topic_id) != topic_id:
            return None
        for value in entry.value.get("replicas", ()):
            if value["broker_id"] == broker and value.get("log_end_offset") is not None:
                return value, entry.t
    return None


def _epochs(value: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    starts = [tuple(one) for one in value.get("leader_epochs", ())]
    end = value.get("log_end_offset")
    for index, (epoch, start) in enumerate(starts):
        following = starts[index + 1][1] if index + 1 < len(starts) else end
        first = max(start, value.get("log_start_offset") or 0)
        if following is not None and following >= first:
            yield epoch, first, following


def _truncations(track: Track) -> Iterator[tuple[int, int, str]]:
    for one in track.events.entries:
        broker = next((replica["broker_id"] for replica in one.value.get("replicas", ())), None)
        if one.value.get("kind") == "truncated" and broker is not None:
            before, after = _end_before(one.value, broker), one.value.get("end_offset")
            if before is not None and after is not None:
                yield one.t, broker, f"broker {broker} truncates its log from {before:,} to {after:,}"


def _end_before(event: dict[str, Any], broker: int) -> int | None:
    """Return the log end of a replica before this truncation, None when the event is about another replica."""
    own = next(iter(event.get("replicas", ())), None)
    if own is None or own["broker_id"] != broker or own.get("log_end_offset") == event.get("end_offset"):
        return None
    end: int | None = own.get("log_end_offset")
    return end


# Controllers ----------------------------------------------------------------------------------------------------------


def _controllers(timeline: Timeline, track: Track) -> Iterator[ControllerSpan]:
    """Yield the times of the controllers: two of them overlap while a deposed one does not know it yet.

    A real cluster reports only its active controller, so an election ends the time of the one before.
    """
    is_live = timeline.header.origin != "simulation"
    open_: dict[str, tuple[int, int]] = {}
    elected = {one.value.get("controller_epoch") for one in timeline.terms.entries if _is_election(one)}
    seen = [*timeline.terms.entries]
    for one in track.samples.entries:
        # Elected before the recording began, or while nothing was recorded.
        if one.value.get("controller") is not None and one.value.get("controller_epoch") not in elected:
            elected.add(one.value["controller_epoch"])
            who = f"controller-{one.value['controller']}"
            epoch = one.value["controller_epoch"]
            seen.append(Entry(one.t, EVENT, {"who": who, "kind": "controller-elected", "controller_epoch": epoch}))
    seen += [
        Entry(one.t, FAULT, {"who": one.value.get("who"), "kind": "controller-resigned"})
        for one in timeline.faults.entries
        if one.value.get("what") in ("crashes", "stops")
    ]
    for entry in sorted(seen, key=lambda one: one.t):
        kind, who = entry.value.get("kind"), str(entry.value.get("who"))
        is_first = kind == "controller-elected" and is_live
        for former in [one for one in open_ if one == who or is_first]:
            epoch, begin = open_.pop(former)
            yield ControllerSpan(controller=former, controller_epoch=epoch, begin=begin, end=entry.t)
        if kind == "controller-elected":
            open_[who] = (int(entry.value.get("controller_epoch") or 0), entry.t)
    for who, (epoch, begin) in open_.items():
        yield ControllerSpan(controller=who, controller_epoch=epoch, begin=begin, end=None)


def _is_election(entry: Entry) -> bool:
    return entry.value.get("kind") == "controller-elected"


def _number(process: str) -> int | None:
    text = process.rpartition("-")[2]
    return int(text) if text.isdecimal() else None


def _applied(track: Track) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    steps: dict[int, list[tuple[int, int]]] = {}

    def step(broker: int | None, epoch: int | None, t: int) -> None:
        known = steps.setdefault(broker, []) if broker is not None else None
        if known is not None and epoch and epoch > 0 and (not known or known[-1][0] != epoch):
            known.append((epoch, t))

    for entry in sorted([*track.samples.entries, *track.events.entries], key=lambda one: one.t):
        for replica in entry.value.get("replicas", ()) if entry.kind == "sample" else ():
            step(replica["broker_id"], replica.get("controller_epoch"), entry.t)
        who = str(entry.value.get("who", ""))
        if entry.value.get("kind") == _REQUEST and who.startswith("broker-"):
            # Other events have the controller epoch of the partition's state, which may be older.
            # A refused request has the epoch of its sender, and apart from it the newer one that the broker knows.
            known = "known_controller_epoch" if entry.value.get("error") else "controller_epoch"
            step(_number(who), entry.value.get(known), entry.t)
    yield from sorted((broker, tuple(each)) for broker, each in steps.items())


def _requests(timeline: Timeline, track: Track, t: int) -> Iterator[dict[str, Any]]:
    asked = [one for one in track.events.until(t) if one.value.get("kind") == _REQUEST]
    for entry in asked[-_REQUESTS:]:
        yield {"t": entry.t, "clock": clock_text(timeline.header.began_ms, entry.t), **entry.value}


def _events(timeline: Timeline, track: Track, t: int) -> Iterator[dict[str, Any]]:
    own = [
        one
        for one in track.events.until(t)
        if one.value.get("kind") != _REQUEST
        and (one.value.get("kind") != "transition" or one.value.get("to_state") == "OfflineReplica")
    ]
    both = sorted([*own[-_EVENTS:], *timeline.cluster.latest(t, _EVENTS)], key=lambda one: one.t)
    for entry in both[-_EVENTS:]:
        yield {"t": entry.t, "clock": clock_text(timeline.header.began_ms, entry.t), **entry.value}


# Findings -------------------------------------------------------------------------------------------------------------


def _facts(parts: dict[str, Any], sample: dict[str, Any], track: Track, t: int, began_ms: int) -> PartitionFacts | None:
    """Return the facts for the rules of `paceline.findings`, None before the first sample."""
    if not sample:
        return None
    spans = [one for one in track.spans() if one.begin <= t]
    isr_since = leader_since = under_min_since = None
    before_election: tuple[int, ...] = ()
    least = parts["min_insync_replicas"] or 0
    for before, after in pairwise(spans):
        if len(after.isr) < least <= len(before.isr):
            under_min_since = after.begin
        isr_since = after.begin if after.isr != before.isr else isr_since
        leader_since = after.begin if after.leader != before.leader else leader_since
        before_election = before.isr if after.leader_epoch > before.leader_epoch else before_election
    raw = {one["broker_id"]: one for one in sample.get("replicas", ())}
    replicas = [
        ReplicaFacts(
            broker_id=one.broker_id,
            log_start_offset=one.log_start_offset,
            high_watermark=one.high_watermark,
            log_end_offset=one.log_end_offset,
            applied_leader_epoch=one.applied_leader_epoch,
            last_fetch_ago_ms=one.last_fetch_ago_ms,
            caught_up_ago_ms=raw[one.broker_id].get("last_caught_up_ago_ms"),
            is_earlier=one.known_ms < t - parts["sample_age_ms"],
            online=bool(raw[one.broker_id].get("registered", raw[one.broker_id].get("online", True))),
        )
        for one in parts["replicas"]
    ]
    brokers = [
        BrokerFacts(
            broker_id=one.broker_id,
            alive=bool(raw[one.broker_id].get("registered", one.state != "dead")),
            answers=False if one.state in ("dead", "does not answer", "paused") else None,
        )
        for one in parts["replicas"]
    ]
    return PartitionFacts(
        topic=parts["topic"],
        partition=parts["partition"],
        leader=parts["leader"],
        leader_epoch=parts["leader_epoch"],
        controller=parts["controller"],
        controller_epoch=parts["controller_epoch"],
        isr=parts["isr"],
        maximal_isr=tuple(sample.get("maximal_isr", ())),
        replicas=tuple(replicas),
        brokers=tuple(brokers),
        min_insync_replicas=parts["min_insync_replicas"],
        unclean_election=sample.get("unclean_election"),
        acknowledged_offset=parts["acknowledged"],
        acknowledged_by_leader_offset=parts["acknowledged_by_leader"],
        read_offset=parts["read"],
        isr_before_election=before_election,
        committed_under_min_isr=_committed_under_min_isr(parts, track, t, under_min_since, leader_since),
        controller_epoch_falls=tuple(
            (broker, before, epoch)
            for broker, steps in parts["applied"]
            for (before, _), (epoch, when) in pairwise(steps)
            if epoch < before and when <= t
        ),
        isr_since_ms=None if isr_since is None else began_ms + isr_since,
        under_min_isr_since_ms=None if under_min_since is None else began_ms + under_min_since,
        leader_since_ms=None if leader_since is None else began_ms + leader_since,
        high_watermark_since_ms=_high_watermark_since(parts, track, t, began_ms),
    )


def _committed_under_min_isr(
    parts: dict[str, Any], track: Track, t: int, under_min_since: int | None, leader_since: int | None
) -> tuple[int, int] | None:
    """Return the leader's high watermark before and after it moved, if its ISR has been too small all the time."""
    if len(parts["isr"]) >= (parts["min_insync_replicas"] or 0) or under_min_since is None:
        return None
    own = [
        one["high_watermark"]
        for entry in track.samples.between(max(under_min_since, leader_since or 0), t)
        for one in entry.value.get("replicas", ())
        if one["broker_id"] == parts["leader"] and one.get("high_watermark") is not None
    ]
    return (own[0], own[-1]) if own and own[-1] > own[0] else None


def _high_watermark_since(parts: dict[str, Any], track: Track, t: int, began_ms: int) -> int | None:
    """Return since when the leader's high watermark has stood where it is."""
    leader, now = parts["leader"], parts["high_watermark"]
    since = None
    for entry in reversed(track.samples.until(t)):
        replicas = entry.value.get("replicas", ())
        if now not in [one.get("high_watermark") for one in replicas if one["broker_id"] == leader]:
            break
        since = entry.t
    return None if since is None or now is None else began_ms + since
