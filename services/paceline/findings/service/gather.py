"""Gather the facts about the partitions of a topic with public calls; `facts_of` turns the answers into facts.

A process that does not answer becomes a fact. What matters only to a partition with a problem is asked only then.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from paceline.findings.facts import (
    AwaitedFacts,
    BrokerFacts,
    PartitionFacts,
    ReassignmentFacts,
    ReplicaFacts,
)
from paceline.model.errors import ErrorCode, NotControllerError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind

if TYPE_CHECKING:
    from paceline_client import (
        Admin,
        PartitionDescription,
        PartitionReplicasDescription,
        Reassignment,
        TopicDescription,
    )

CALL_MS: Final = 2_000
"""Longest wait for a broker."""
_MIN_ISR, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_KINDS = StateChangeKind
_ISR_KINDS: Final = (_KINDS.ISR_SHRUNK, _KINDS.ISR_EXPANDED, _KINDS.BECAME_LEADER, _KINDS.LEADER_ELECTED)
HISTORY_KINDS: Final = (*_ISR_KINDS, _KINDS.TRANSITION, _KINDS.FETCH_FENCED)
"""Kinds of events that `facts_of` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of the cluster about one topic, all of about the same time."""

    topic: "TopicDescription"
    alive: Collection[int]
    """Ids of the registered brokers."""
    controller: int | None
    controller_epoch: int
    hosts: "Mapping[int, Mapping[TopicPartition, PartitionReplicasDescription]]"
    """Result of `Admin.describe_hosts`."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    reassignments: "Sequence[Reassignment]" = ()
    events: Sequence[StateChange] = ()
    """Past events of the topic, of any processes."""


def gather(admin: "Admin", topic: "TopicDescription") -> list[PartitionFacts]:
    """Return the facts about the partitions of ``topic``, in their order.

    Args:
        admin: a client of the cluster.
        topic: result of `Admin.describe_topics`; remove partitions that are not needed.

    Raises:
        BootstrapError: no address answered.
    """
    cluster = admin.describe_cluster()
    answers = Answers(
        topic=topic,
        alive={broker.broker_id for broker in cluster.brokers},
        controller=cluster.controller_id,
        controller_epoch=cluster.controller_epoch,
        hosts=admin.describe_hosts([topic], CALL_MS),
    )
    views = [_view(answers, partition) for partition in topic.partitions]
    try:
        if None in views:
            entries = admin.describe_configs(topic.name, [_MIN_ISR, _UNCLEAN], timeout_ms=CALL_MS)[topic.name]
            answers = replace(answers, configs={entry.key: entry.value for entry in entries})
        if any(view and (view.adding_replicas or view.removing_replicas) for view in views):
            where = [(topic.name, partition.partition) for partition in topic.partitions]
            found = admin.list_partition_reassignments(where, timeout_ms=CALL_MS)
            answers = replace(answers, reassignments=found)
    except PacelineError as error:
        if isinstance(error, NotControllerError):
            answers = replace(answers, controller=None)
    if any(view is None or len(view.isr) < len(view.replicas) for view in views):
        events: list[StateChange] = []
        leaders: set[int | None] = {view.leader for view in views if view}
        for broker_id in leaders | ({None} if answers.controller is not None else set()):
            with suppress(PacelineError):
                events += admin.past_events(
                    topics=[topic.name], kinds=HISTORY_KINDS, broker_id=broker_id, timeout_ms=CALL_MS
                )
        answers = replace(answers, events=events)
    return [facts_of(answers, partition) for partition in topic.partitions]


def facts_of(answers: Answers, partition: "PartitionDescription") -> PartitionFacts:
    """Return the facts about one partition of ``answers.topic``."""
    where = TopicPartition(answers.topic.name, partition.partition)
    view = _view(answers, partition)
    now = view or partition
    at_leader = {replica.broker_id: replica for replica in view.replicas} if view else {}
    hosts = {broker_id: views.get(where) for broker_id, views in answers.hosts.items()}
    events = sorted((one for one in answers.events if one.topic_partition == where), key=lambda one: one.wall_ms)
    minimum, unclean = answers.configs.get(_MIN_ISR), answers.configs.get(_UNCLEAN)
    least = view.min_insync_replicas if view else None if minimum is None else int(minimum)
    isr_since_ms, under_min_isr_since_ms = _isr_times(events, now.isr, least)
    refused = {
        one.replica: one.cause
        for one in events
        if one.kind is _KINDS.FETCH_FENCED and one.leader_epoch == now.leader_epoch
    }
    return PartitionFacts(
        topic=where.topic,
        partition=where.partition,
        leader=now.leader,
        leader_epoch=now.leader_epoch,
        controller=answers.controller,
        controller_epoch=answers.controller_epoch,
        isr=now.isr,
        maximal_isr=view.maximal_isr if view else (),
        replicas=tuple(
            _replica(one, at_leader.get(one), hosts.get(one), one not in partition.offline_replicas, refused.get(one))
            for one in partition.replicas
        ),
        brokers=tuple(_broker(one, hosts.get(one), partition, answers) for one in partition.replicas),
        min_insync_replicas=least,
        unclean_election=None if unclean is None else unclean == "true",
        isr_since_ms=isr_since_ms,
        under_min_isr_since_ms=under_min_isr_since_ms,
        leader_since_ms=_leader_lost_ms(events) if now.leader is None else None,
        reassignment=_reassignment(view, [one for one in answers.reassignments if one.topic_partition == where]),
    )


def _view(answers: Answers, partition: "PartitionDescription") -> "PartitionReplicasDescription | None":
    """Return the view of the leader, which may be newer than the metadata."""
    where = TopicPartition(answers.topic.name, partition.partition)
    views = [view for host in answers.hosts.values() if (view := host.get(where)) and view.error is None]
    newest = max(views, key=lambda view: view.leader_epoch, default=None)
    known = (partition.leader_epoch, partition.leader)
    is_current = newest and (newest.leader_epoch > known[0] or (newest.leader_epoch, newest.leader) == known)
    return newest if is_current else None


def _replica(broker_id: int, at_leader: Any, host: Any, online: bool, refused: str | None) -> ReplicaFacts:
    """Return the facts of a replica: offsets of one moment as the leader knows them, the others of its own broker."""
    own = host.replicas[0] if host and host.error and host.replicas else at_leader
    ends = [one.log_end_offset for one in (at_leader, own) if one and one.log_end_offset is not None]
    return ReplicaFacts(
        broker_id=broker_id,
        log_start_offset=own and own.log_start_offset,
        high_watermark=own and own.high_watermark,
        log_end_offset=ends[0] if ends else None,
        applied_leader_epoch=host.leader_epoch if host and host.replicas else None,
        last_fetch_ago_ms=at_leader and at_leader.last_fetch_ago_ms,
        caught_up_ago_ms=at_leader and at_leader.last_caught_up_ago_ms,
        online=at_leader.online if at_leader else online,
        directory_offline=_directory_failed(host),
        fetch_refused=refused if at_leader and at_leader.last_fetch_ago_ms is None else None,
    )


def _broker(broker_id: int, host: Any, partition: "PartitionDescription", answers: Answers) -> BrokerFacts:
    alive = broker_id in answers.alive
    offline = broker_id in partition.offline_replicas and not _directory_failed(host)
    refuses = host and host.error and host.leader == partition.leader == broker_id
    return BrokerFacts(
        broker_id=broker_id,
        alive=alive,
        answers=bool(answers.hosts.get(broker_id)) if alive else None,
        has_lease=False if alive and offline else None,
        refusal=str(host.error) if refuses else None,
    )


def _directory_failed(host: "PartitionReplicasDescription | None") -> bool:
    return host is not None and host.error is not None and host.error.code is ErrorCode.KAFKA_STORAGE_ERROR


def _isr_times(events: Iterable[StateChange], isr: tuple[int, ...], least: int | None) -> tuple[int | None, int | None]:
    """Return the times of the latest change of the ISR, and of its fall below the minimum; None without the event."""
    since_ms = under_ms = before = None
    for event in events:
        if event.kind not in _ISR_KINDS or event.isr is None:
            continue
        old, before = before or event.old_isr, event.isr
        if old and set(old) != set(event.isr):
            since_ms = event.wall_ms
            was_under = least is not None and len(old) < least
            under_ms = None if least is None or len(event.isr) >= least else under_ms if was_under else since_ms
    return (since_ms, under_ms) if before and set(before) == set(isr) else (None, None)


def _leader_lost_ms(events: Iterable[StateChange]) -> int | None:
    """Return the time at which the partition lost its leader, None without the event."""
    lost_ms = None
    for event in events:
        if event.kind is _KINDS.LEADER_ELECTED:
            lost_ms = None
        elif event.replica is None and event.to_state == "OfflinePartition":
            lost_ms = lost_ms or event.wall_ms
    return lost_ms


def _reassignment(view: Any, found: "Sequence[Reassignment]") -> ReassignmentFacts | None:
    if found:
        waits = [(one.broker_id, one.message, one.reason != "NOT_CAUGHT_UP") for one in found[0].waiting_for]
        awaited = tuple(AwaitedFacts(broker_id=one, reason=text, stuck=stuck) for one, text, stuck in waits)
        return ReassignmentFacts(adding=found[0].adding, removing=found[0].removing, waits_for=awaited)
    if view and (view.adding_replicas or view.removing_replicas):
        return ReassignmentFacts(adding=view.adding_replicas, removing=view.removing_replicas)
    return None
