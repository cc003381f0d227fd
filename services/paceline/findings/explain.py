"""The rules: facts about a partition in, findings with one true plain sentence each out.

A rule speaks only of facts that are known. The worst finding comes first; a partition without a problem has the finding
`HEALTHY` first, notes may follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Final

from paceline.findings.facts import BrokerFacts, PartitionFacts, ReplicaFacts

SILENT_MS: Final = 2_000
"""A replica that has not fetched for this long is silent: an idle follower fetches twice a second."""
HELD_MS: Final = 1_000
"""A high watermark that has not moved for this long stands still."""


class Severity(IntEnum):
    """How bad a finding is."""

    OK = 0
    NOTE = 1
    """Nothing is wrong, but a reader may want to know."""
    WARNING = 2
    """Records have fewer copies than they should, or a change does not complete."""
    CRITICAL = 3
    """Some writes or reads are refused."""
    BROKEN = 4
    """A promise of replication does not hold: more disks than replication allows for lost data, or a defect."""


class FindingKind(StrEnum):
    """The rule that a finding comes from."""

    LOST = "lost"
    DEPOSED_CONTROLLER = "deposed-controller"
    CONTROLLER_EPOCH = "controller-epoch"
    ELECTED_FROM_OUTSIDE = "elected-from-outside"
    NO_LEADER = "no-leader"
    LEADER_SILENT = "leader-silent"
    LEADER_WITHOUT_LEASE = "leader-without-lease"
    UNDER_MIN_ISR = "under-min-isr"
    NOT_COMMITTED = "not-committed"
    HIGH_WATERMARK_HELD = "high-watermark-held"
    UNDER_REPLICATED = "under-replicated"
    REASSIGNMENT_STUCK = "reassignment-stuck"
    REASSIGNMENT = "reassignment"
    CONTROL_PENDING = "control-pending"
    BROKER_SILENT = "broker-silent"
    NOT_PREFERRED = "not-preferred"
    TAIL = "tail"
    HEALTHY = "healthy"
    # Of a whole cluster; `cluster.py`.
    ZOOKEEPER = "zookeeper"
    NO_CONTROLLER = "no-controller"
    CONTROLLER_BUSY = "controller-busy"
    NO_STANDBY = "no-standby"
    BROKER_DEAD = "broker-dead"
    NODE_SILENT = "node-silent"
    PEER_UNREACHED = "peer-unreached"
    SUSPECTED = "suspected"
    LEASE = "lease"
    NOT_SERVING = "not-serving"
    REMOVAL = "removal"
    DISK = "disk"
    CERTIFICATE = "certificate"
    CLOCK = "clock"
    UNDECIDED = "undecided"
    FLAPPING = "flapping"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one rule."""

    subject: str
    """The partition, ``topic/partition``."""
    severity: Severity
    kind: FindingKind
    symptom: str
    """A clause about the subject, without it: "has no leader"."""
    cause: str | None = None
    next_command: str | None = None
    """A command that helps, or shows more."""

    @property
    def sentence(self) -> str:
        """The finding in one sentence, without a full stop."""
        return f"{self.subject} {self.symptom}" + (f", because {self.cause}" if self.cause else "")


_Found = Iterator[tuple[Severity, FindingKind, str] | tuple[Severity, FindingKind, str, str | None, str | None]]


def explain(facts: PartitionFacts, now_ms: int) -> list[Finding]:
    """Return the findings about a partition, the worst first; never empty.

    Args:
        facts: the partition at ``now_ms``.
        now_ms: time of the facts, milliseconds since the epoch; times of another day are shown with their date.
    """
    found = [Finding(_name(facts), *parts) for rule in _RULES for parts in rule(facts, now_ms)]
    found.sort(key=lambda finding: -finding.severity)
    if not found or found[0].severity <= Severity.NOTE:
        found.insert(0, Finding(_name(facts), Severity.OK, FindingKind.HEALTHY, _health(facts)))
    return found


# Rules ------------------------------------------------------------------------------------------------------------


def _promises(facts: PartitionFacts, now_ms: int) -> _Found:
    """Every ISR member has each record that was acknowledged or read, and the high watermark is above it."""
    leader, broker = _replica(facts, facts.leader), _broker(facts, facts.leader)
    if leader is None or leader.log_end_offset is None or leader.is_earlier or _offline(facts, leader):
        return
    if broker is not None and broker.answers is False:
        return  # Its offsets are of an earlier moment, too.
    # An election from outside the ISR may lose records: by consent, or when the whole ISR was damaged.
    from_outside = bool(facts.isr_before_election) and facts.leader not in facts.isr_before_election
    lost = Severity.CRITICAL if from_outside else Severity.BROKEN
    promises = (("acknowledged to acks=all", facts.acknowledged_offset), ("read by a consumer", facts.read_offset))
    for promise, end in promises:
        if end is None:
            continue
        told = f"{promise} up to offset {end:,}"
        members = [
            one
            for one in facts.replicas
            if one.broker_id in facts.isr and not one.is_earlier and _offline(facts, one) is None
        ]
        without = [one.broker_id for one in members if one.log_end_offset is not None and one.log_end_offset < end]
        if end > leader.log_end_offset:
            symptom = f"has lost {_count(end - leader.log_end_offset, 'record')} {told}"
            cause = f"the log of its leader, broker {leader.broker_id}, ends at {leader.log_end_offset:,}"
            yield lost, FindingKind.LOST, symptom, cause, None
        elif without:
            symptom = f"has records {told} that ISR members lack: {names_in(without)}"
            yield Severity.BROKEN, FindingKind.NOT_COMMITTED, symptom, None, None
        elif end > (leader.high_watermark or 0):
            # A new or restarted leader learns the high watermark from the next fetch of each follower.
            is_new = facts.leader_since_ms is not None and now_ms - facts.leader_since_ms < SILENT_MS
            silent = {one.broker_id for one in facts.replicas if one.last_fetch_ago_ms is None} - {leader.broker_id}
            is_new = is_new or not silent.isdisjoint(facts.isr)
            symptom = f"has records {told} above the high watermark {leader.high_watermark or 0:,} of its leader"
            yield Severity.NOTE if is_new else Severity.BROKEN, FindingKind.NOT_COMMITTED, symptom, None, None


def _elected_from_outside(facts: PartitionFacts, _now_ms: int) -> _Found:
    before = facts.isr_before_election
    if facts.leader is not None and before and facts.leader not in before:
        symptom = f"is led by broker {facts.leader}, which may lack records"
        cause = f"the ISR before its election was {names_in(before)}"
        severity = Severity.WARNING if facts.unclean_election else Severity.CRITICAL
        yield severity, FindingKind.ELECTED_FROM_OUTSIDE, symptom, cause, None


def _committed_under_min_isr(facts: PartitionFacts, _now_ms: int) -> _Found:
    if facts.committed_under_min_isr is not None:
        before, after = facts.committed_under_min_isr
        symptom = (
            f"has moved its high watermark from {before:,} to {after:,}, although its ISR is {names_in(facts.isr)}"
        )
        cause = f"min.insync.replicas, {facts.min_insync_replicas}, was not obeyed"
        yield Severity.BROKEN, FindingKind.NOT_COMMITTED, symptom, cause, None


def _deposed_controller(facts: PartitionFacts, _now_ms: int) -> _Found:
    for broker, before, epoch in facts.controller_epoch_falls:
        symptom = (
            f"was changed by a deposed controller: broker {broker} applied controller epoch {epoch} after {before}"
        )
        yield Severity.BROKEN, FindingKind.DEPOSED_CONTROLLER, symptom, None, None


def _no_leader(facts: PartitionFacts, now_ms: int) -> _Found:
    if facts.leader is not None:
        return
    offline = {replica.broker_id: reason for replica in facts.replicas if (reason := _offline(facts, replica))}
    command = None
    if len(offline) == len(facts.replicas):
        cause = f"all its replicas are offline: {'; '.join(offline.values())}"
    elif offline.keys() >= set(facts.isr) and facts.unclean_election is not True:
        off = " and unclean.leader.election.enable is false" if facts.unclean_election is False else ""
        reasons = "; ".join(offline[member] for member in facts.isr)
        cause = f"no member of its ISR ({names_in(facts.isr)}) is online{off}: {reasons}"
        command = f"paceline partition elect --unclean --dry-run {_name(facts)}"
    elif facts.controller is None:
        cause = "there is no active controller to elect one"
    else:
        cause = f"controller {facts.controller} has not elected one yet"
    symptom = f"has no leader{_since(facts.leader_since_ms, now_ms)}"
    yield Severity.CRITICAL, FindingKind.NO_LEADER, symptom, cause, command


def _leader_troubles(facts: PartitionFacts, _now_ms: int) -> _Found:
    broker = _broker(facts, facts.leader)
    if broker is None:
        return
    if reason := _death(broker):
        yield Severity.CRITICAL, FindingKind.LEADER_SILENT, "waits for another leader", reason, None
    elif broker.answers is False or broker.refusal:
        cause = broker.refusal or f"its leader, broker {broker.broker_id}, has not answered"
        yield Severity.CRITICAL, FindingKind.LEADER_SILENT, "may take no reads and writes", cause, None
    elif broker.has_lease is False:
        cause = f"its leader, broker {broker.broker_id}, has no lease, or is stopping"
        symptom = "is served only while all its ISR fetches"
        yield Severity.WARNING, FindingKind.LEADER_WITHOUT_LEASE, symptom, cause, None


def _missing_replicas(facts: PartitionFacts, now_ms: int) -> _Found:
    """The ISR is too small for acks=all, or at least smaller than the assignment."""
    least, factor = facts.min_insync_replicas or 1, facts.replication_factor
    if facts.leader is None:
        return
    adding = facts.reassignment.adding if facts.reassignment else ()
    missing = [one for one in facts.replicas if one.broker_id not in facts.isr and one.broker_id not in adding]
    reasons = "; ".join(_behind(facts, replica) for replica in missing)
    command = f"paceline watch {_name(facts)}"
    if len(facts.isr) >= least:
        if missing:
            symptom = f"has {factor - len(missing)} of {factor} replicas in sync{_since(facts.isr_since_ms, now_ms)}"
            yield Severity.WARNING, FindingKind.UNDER_REPLICATED, symptom, reasons, command
        return
    if factor < least:
        cause = f"it has {_count(factor, 'replica')} and min.insync.replicas is {least}"
        command = f"paceline topic alter {facts.topic} --set min.insync.replicas={factor}"
    else:
        alone = " alone" if len(facts.isr) == 1 else ""
        cause = f"its ISR is {names_in(facts.isr)}{alone} and min.insync.replicas is {least}: {reasons}"
    symptom = f"takes no acks=all writes{_since(facts.under_min_isr_since_ms, now_ms)}"
    yield Severity.CRITICAL, FindingKind.UNDER_MIN_ISR, symptom, cause, command


def _high_watermark_held(facts: PartitionFacts, now_ms: int) -> _Found:
    """Silent below ``min.insync.replicas``, where it cannot move, as `_missing_replicas` says."""
    leader = _replica(facts, facts.leader)
    if leader is None or leader.log_end_offset is None or leader.high_watermark is None:
        return
    members = [one for one in facts.replicas if one.broker_id in (facts.maximal_isr or facts.isr) and one is not leader]
    waiting = [one for one in members if one.log_end_offset is None or one.log_end_offset <= leader.high_watermark]
    ages = [one.caught_up_ago_ms or 0 for one in waiting]
    still_ms = max(ages, default=0) if facts.high_watermark_since_ms is None else now_ms - facts.high_watermark_since_ms
    count = leader.log_end_offset - leader.high_watermark
    if count > 0:
        records = _count(count, "record")
        symptom = f"has not committed {records} after offset {leader.high_watermark:,} for {age_text(still_ms)}"
        waiting = waiting if still_ms >= HELD_MS else []
    else:
        symptom = "would not commit a new record now"
        waiting = [one for one in members if (one.last_fetch_ago_ms or 0) >= SILENT_MS]
    if waiting and len(facts.isr) >= (facts.min_insync_replicas or 1):
        cause = "; ".join(f"ISR member {_behind(facts, one)}" for one in waiting)
        yield Severity.WARNING, FindingKind.HIGH_WATERMARK_HELD, symptom, cause, f"paceline watch {_name(facts)}"


def _reassignment(facts: PartitionFacts, _now_ms: int) -> _Found:
    move = facts.reassignment
    if move is None:
        return
    parts = (("adds", move.adding), ("removes", move.removing))
    changes = ", ".join(f"{word} {names_in(brokers)}" for word, brokers in parts if brokers)
    symptom, command = f"is being reassigned ({changes})", "paceline reassign status"
    stuck = "; ".join(awaited.reason for awaited in move.waits_for if awaited.stuck)
    if stuck:
        symptom += " and does not get on"
        command = f"paceline reassign cancel {_name(facts)}   # if the cause stays"
        yield Severity.WARNING, FindingKind.REASSIGNMENT_STUCK, symptom, stuck, command
        return
    waits = "; ".join(awaited.reason for awaited in move.waits_for)
    symptom += f" and waits: {waits}" if waits else " and is about to be done"
    yield Severity.NOTE, FindingKind.REASSIGNMENT, symptom, None, command


def _control_pending(facts: PartitionFacts, _now_ms: int) -> _Found:
    for replica in facts.replicas:
        applied, epoch = replica.applied_leader_epoch, facts.leader_epoch
        if applied is not None and applied < epoch:
            symptom = f"is in leader epoch {epoch}, but broker {replica.broker_id} has applied only {applied}"
            yield Severity.NOTE, FindingKind.CONTROL_PENDING, symptom


def _silent_brokers(facts: PartitionFacts, _now_ms: int) -> _Found:
    for broker in facts.brokers:
        if broker.answers is False and broker.broker_id != facts.leader and _death(broker) is None:
            symptom = f"is known in part: broker {broker.broker_id} has not answered"
            yield Severity.WARNING, FindingKind.BROKER_SILENT, symptom


def _not_preferred(facts: PartitionFacts, _now_ms: int) -> _Found:
    preferred = next(iter(facts.replicas), None)
    if preferred is None or facts.leader in (None, preferred.broker_id):
        return
    symptom, command = f"is led by broker {facts.leader} until its preferred replica {preferred.broker_id}", None
    if preferred.broker_id in facts.isr and _offline(facts, preferred) is None:
        symptom = symptom.replace("until", "instead of") + ", which"
        command = f"paceline partition elect --preferred {_name(facts)}"
    yield Severity.NOTE, FindingKind.NOT_PREFERRED, f"{symptom} is in sync", None, command


def _tail(facts: PartitionFacts, _now_ms: int) -> _Found:
    """Records that would be lost with the leader: its successor is the first live member of the ISR."""
    leader = _replica(facts, facts.leader)
    others = [replica for replica in facts.replicas if replica is not leader]
    if leader is None or leader.log_end_offset is None or not others:
        return
    end = leader.log_end_offset
    members = [one for one in others if one.broker_id in facts.isr and _offline(facts, one) is None]
    if not members:
        copied = max(one.log_end_offset or leader.log_start_offset or 0 for one in others)
        if end > copied:
            records = _count(end - copied, "record")
            symptom = (
                f"has its last {records} on broker {leader.broker_id} alone, the only member of its ISR that can lead"
            )
            yield Severity.NOTE, FindingKind.TAIL, symptom
        return
    start = members[0].log_end_offset
    if start is None or start >= end:
        return
    acknowledged = min(facts.acknowledged_offset or 0, end) - start
    by_leader = min(facts.acknowledged_by_leader_offset or 0, end) - start
    if acknowledged > 0:
        told = f" ({acknowledged:,} of them acknowledged to acks=all)"
    elif by_leader > 0:
        told = f" ({by_leader:,} of them acknowledged to acks=1, none to acks=all)"
    elif facts.acknowledged_offset is not None or (leader.high_watermark or 0) <= start:
        told = ", none of them acknowledged to acks=all"
    else:
        return  # the other broker has answered before the leader, and has had more records since
    symptom = (
        f"would lose {_count(end - start, 'record')}{told}, if broker {leader.broker_id} died now: the log of broker "
        f"{members[0].broker_id}, which would lead next, ends at {start:,}"
    )
    yield Severity.WARNING if acknowledged > 0 else Severity.NOTE, FindingKind.TAIL, symptom


_RULES: Final = (
    _promises,
    _deposed_controller,
    _elected_from_outside,
    _committed_under_min_isr,
    _no_leader,
    _leader_troubles,
    _missing_replicas,
    _high_watermark_held,
    _reassignment,
    _silent_brokers,
    _control_pending,
    _not_preferred,
    _tail,
)


def _health(facts: PartitionFacts) -> str:
    leader, factor = _replica(facts, facts.leader), facts.replication_factor
    copies = "its only replica is in sync" if factor == 1 else f"all {factor} replicas are in sync"
    symptom = f"is healthy: broker {facts.leader} leads in epoch {facts.leader_epoch}, {copies}"
    if leader and leader.high_watermark is not None and leader.high_watermark == leader.log_end_offset:
        symptom += f", and all records up to offset {leader.high_watermark:,} are committed"
    return symptom


# Clauses ----------------------------------------------------------------------------------------------------------


def _behind(facts: PartitionFacts, replica: ReplicaFacts) -> str:
    """Return why a replica is behind its leader, the most fundamental known reason first."""
    name, leader, broker = (
        f"broker {replica.broker_id}",
        _replica(facts, facts.leader),
        _broker(facts, replica.broker_id),
    )
    offline = _offline(facts, replica)
    if offline and (replica.directory_offline or replica.last_fetch_ago_ms is None or (broker and _death(broker))):
        return offline
    if replica.fetch_refused:
        return replica.fetch_refused
    if leader is None or leader.log_end_offset is None:  # without the leader's answer there are no ages
        return f"{name} is not in sync"
    if replica.last_fetch_ago_ms is None:
        return f"{name} has not fetched in leader epoch {facts.leader_epoch}"
    if replica.last_fetch_ago_ms >= SILENT_MS:
        return f"{name} has not fetched for {age_text(replica.last_fetch_ago_ms)}"
    lag = leader.log_end_offset - (leader.log_end_offset if replica.log_end_offset is None else replica.log_end_offset)
    if offline or lag <= 0:
        return offline or f"{name} has caught up and is about to join the ISR"
    return f"{name} lags {_count(lag, 'record')} behind"


def _offline(facts: PartitionFacts, replica: ReplicaFacts) -> str | None:
    """Return why a replica cannot lead; None when it can."""
    broker = _broker(facts, replica.broker_id)
    if broker and (reason := _death(broker)):
        return reason
    if replica.directory_offline:
        return f"the log directory of broker {replica.broker_id} has failed"
    if broker and broker.has_lease is False:
        return f"broker {replica.broker_id} has no lease, or is stopping"
    return None if replica.online else f"the replica on broker {replica.broker_id} is offline"


def _death(broker: BrokerFacts) -> str | None:
    return None if broker.alive else f"broker {broker.broker_id} is not alive"


def _since(moment_ms: int | None, now_ms: int) -> str:
    if moment_ms is None:
        return ""
    moment, now = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (moment_ms, now_ms))
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    return f" since {day}{moment:%H:%M:%S} UTC"


def age_text(age_ms: int) -> str:
    """Return a duration for a sentence, such as ``3 min 5 s``."""
    if age_ms < 60_000:
        return f"{age_ms / 1000:.1f} s"
    minutes, seconds = divmod(age_ms // 1000, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def names_in(brokers: Sequence[object]) -> str:
    """Return ids or names as a list in a sentence, such as ``1, 2 and 3``."""
    names = [str(broker) for broker in brokers]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names) or "empty"


def _name(facts: PartitionFacts) -> str:
    return f"{facts.topic}/{facts.partition}"


def _replica(facts: PartitionFacts, broker_id: int | None) -> ReplicaFacts | None:
    return next((replica for replica in facts.replicas if replica.broker_id == broker_id), None)


def _broker(facts: PartitionFacts, broker_id: int | None) -> BrokerFacts | None:
    return next((broker for broker in facts.brokers if broker.broker_id == broker_id), None)
