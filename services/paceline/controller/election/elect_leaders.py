"""Serve ElectLeaders: elect preferred leaders or, on request, a leader from outside the ISR.

Source: docs/protocol/controller.md#errors-of-electleaders; KIP-460; Kafka 2.8
KafkaController.processReplicaLeaderElection.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.controller.admin.admin_requests import ElectLeaders
from paceline.controller.admin.admin_values import ElectionType
from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.context import ControllerContext, PartitionState
from paceline.controller.state.leader_election import Election, ElectionStrategy
from paceline.controller.state.partition_state_machine import ElectionFailure, PartitionStateMachine
from paceline.coordination.flow import Flow
from paceline.model.admin import ElectionResult
from paceline.model.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidRequestError,
    InvalidTopicError,
    PacelineError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition

LATE = "elected, but the new leader has not acknowledged yet"

_STRATEGIES = {
    ElectionType.PREFERRED: ElectionStrategy.PREFERRED,
    ElectionType.UNCLEAN: ElectionStrategy.OFFLINE_UNCLEAN,
}


def elect_leaders(
    context: ControllerContext, partitions: PartitionStateMachine, ack_waiters: LeaderAckWaiters, event: ElectLeaders
) -> Flow[None]:
    """Run the requested elections and answer after the acknowledgements; refused partitions get an error at once."""
    asked = _asked(context, event)
    times = Counter(asked)
    refused = {tp: error for tp in asked if (error := _problem(context, event.election, tp)) is not None}
    refused.update({tp: InvalidRequestError(f"{tp} is listed more than once") for tp in asked if times[tp] > 1})
    wanted = [tp for tp in asked if tp not in refused]
    decided: Mapping[TopicPartition, Election] = {}
    if event.validate_only or event.election is ElectionType.UNCLEAN:
        decided = yield from partitions.decide(wanted, _STRATEGIES[event.election])
    if event.validate_only:
        results = {tp: _forecast(context, event.election, tp, decided.get(tp)) for tp in wanted}
    else:
        results = yield from _elect(context, partitions, event.election, wanted, decided)

    def answer(late: Mapping[TopicPartition, PacelineError]) -> None:
        event.reply([_answer(tp, refused.get(tp), results.get(tp), late.get(tp)) for tp in asked])

    epochs = {tp: result.leader_epoch for tp, result in results.items() if result.leader_epoch is not None}
    ack_waiters.wait(epochs, event.timeout_ms, LATE, answer)


def _asked(context: ControllerContext, event: ElectLeaders) -> Sequence[TopicPartition]:
    if event.topic_partitions is not None:
        return event.topic_partitions
    return [tp for tp in sorted(context.partitions()) if _problem(context, event.election, tp) is None]


def _answer(
    topic_partition: TopicPartition,
    refused: PacelineError | None,
    result: ElectionResult | None,
    late: PacelineError | None,
) -> ElectionResult:
    if refused is not None or result is None:
        return ElectionResult(topic_partition, refused)
    if late is None:
        return result
    return ElectionResult(topic_partition, late, result.leader, result.leader_epoch, result.unclean)


def _problem(
    context: ControllerContext, election: ElectionType, topic_partition: TopicPartition
) -> PacelineError | None:
    if not context.knows(topic_partition):
        return UnknownTopicOrPartitionError(f"{topic_partition} does not exist")
    if context.is_queued_for_deletion(topic_partition.topic):
        return InvalidTopicError(f"topic {topic_partition.topic!r} is being deleted")
    known = context.leadership.get(topic_partition)
    if election is ElectionType.UNCLEAN:
        if known is not None and known.has_leader and context.is_live(known.leader):
            return ElectionNotNeededError(f"broker {known.leader} leads {topic_partition}")
        return None
    if known is None:
        return PreferredLeaderNotAvailableError(f"{topic_partition} never had a leader")
    preferred = context.assignment(topic_partition).replicas[0]
    if known.leader == preferred:
        return ElectionNotNeededError(f"the preferred replica {preferred} is already leader")
    return None


def _elect(
    context: ControllerContext,
    partitions: PartitionStateMachine,
    election: ElectionType,
    wanted: Sequence[TopicPartition],
    decided: Mapping[TopicPartition, Election],
) -> Flow[dict[TopicPartition, ElectionResult]]:
    outcomes = yield from partitions.handle_state_changes(wanted, PartitionState.ONLINE, _STRATEGIES[election])
    results = {}
    for topic_partition in wanted:
        # A partition that never had a leader is initialised, not elected; its state shows the result.
        outcome = outcomes.get(topic_partition) or context.leadership.get(topic_partition)
        if outcome is None or isinstance(outcome, ElectionFailure) or not outcome.has_leader:
            reason = outcome.reason if isinstance(outcome, ElectionFailure) else "no replica is online"
            results[topic_partition] = ElectionResult(
                topic_partition, _failure(context, election, topic_partition, reason)
            )
            continue
        unclean = topic_partition in decided and decided[topic_partition].unclean
        results[topic_partition] = ElectionResult(topic_partition, None, outcome.leader, outcome.leader_epoch, unclean)
    return results


def _forecast(
    context: ControllerContext, election: ElectionType, topic_partition: TopicPartition, decided: Election | None
) -> ElectionResult:
    """Return the leaders that would be elected now."""
    if decided is not None and decided.leader_and_isr is not None:
        return ElectionResult(topic_partition, None, decided.leader_and_isr.leader, None, decided.unclean)
    replicas = context.assignment(topic_partition).replicas
    online = context.online_replicas(topic_partition, replicas)
    if online and topic_partition not in context.leadership:
        return ElectionResult(topic_partition, None, online[0])
    return ElectionResult(topic_partition, _failure(context, election, topic_partition, "no replica qualifies"))


def _failure(
    context: ControllerContext, election: ElectionType, topic_partition: TopicPartition, reason: str
) -> PacelineError:
    if election is ElectionType.UNCLEAN:
        return EligibleLeadersNotAvailableError(f"{topic_partition}: {reason}")
    preferred = context.assignment(topic_partition).replicas[0]
    known = context.leadership.get(topic_partition)
    if not context.is_replica_online(preferred, topic_partition):
        reason = f"the preferred replica {preferred} is not online"
    elif known is not None and preferred not in known.isr:
        reason = f"the preferred replica {preferred} is not in the ISR {list(known.isr)}"
    elif preferred in context.unreached:
        reason = f"most followers cannot fetch from broker {preferred}"
    return PreferredLeaderNotAvailableError(f"{topic_partition}: {reason}")
