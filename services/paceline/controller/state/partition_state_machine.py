"""States of partitions: New, Online, Offline, NonExistent, and the elections between them.

Decisions use cached state, which the conditional write verifies. The node is read before the decision only when no
replica in the cached state can lead, or after a write lost against a newer version.

Source: docs/protocol/controller.md#partition-states; docs/protocol/zookeeper.md#cached-decisions; Kafka 2.8
PartitionStateMachine.scala.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState
from paceline.controller.errors import ControllerMovedError, IllegalStateError
from paceline.controller.state.election_settings import ElectionSettings
from paceline.controller.state.leader_election import (
    NOT_ELECTED,
    Election,
    ElectionStrategy,
    elect_for_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.controller.state_change_log import Cause, StateChangeLog
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

UNCLEAN = "unclean"
_KINDS = {
    ElectionStrategy.OFFLINE: "offline",
    ElectionStrategy.OFFLINE_UNCLEAN: "offline",
    ElectionStrategy.REASSIGN: "reassignment",
    ElectionStrategy.PREFERRED: "preferred",
    ElectionStrategy.CONTROLLED_SHUTDOWN: "controlled_shutdown",
}

VALID_PREVIOUS_STATES: dict[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}


@dataclass(frozen=True, slots=True)
class ElectionFailure:
    """Reason why no leader was elected for a partition."""

    reason: str


ElectionResult = LeaderAndIsr | ElectionFailure


class PartitionStateMachine:
    """Moves partitions between states, in batches."""

    def __init__(
        self,
        context: ControllerContext,
        writer: StateWriter,
        batch: RequestBatch,
        election_settings: ElectionSettings,
        log: StateChangeLog,
    ) -> None:
        self._context = context
        self._writer = writer
        self._batch = batch
        self._election_settings = election_settings
        self._log = log
        kinds = dict.fromkeys([*_KINDS.values(), UNCLEAN])
        self.elections = {(kind, cause.value): 0 for kind in kinds for cause in Cause}
        """Number of leaders elected since the process started, by kind and cause."""

    def start(self) -> Flow[None]:
        """Set the state of every partition after a failover, then elect missing leaders.

        The initial states are not transitions, so they are not recorded in the state-change log.
        """
        context = self._context
        for topic_partition in context.partitions():
            known = context.leadership.get(topic_partition)
            if known is None:
                context.partition_states[topic_partition] = PartitionState.NEW
            elif context.is_replica_online(known.leader, topic_partition):
                context.partition_states[topic_partition] = PartitionState.ONLINE
            else:
                context.partition_states[topic_partition] = PartitionState.OFFLINE
        yield from self.trigger_online()

    def trigger_online(self, topic: str | None = None) -> Flow[dict[TopicPartition, ElectionResult]]:
        """Try to elect a leader for every New or Offline partition, of one topic or of all.

        Skips topics that are being deleted.
        """
        waiting = [
            topic_partition
            for topic_partition, state in self._context.partition_states.items()
            if state in (PartitionState.NEW, PartitionState.OFFLINE)
            and not self._context.is_queued_for_deletion(topic_partition.topic)
            and topic in (None, topic_partition.topic)
        ]
        return (yield from self.handle_state_changes(waiting, PartitionState.ONLINE, ElectionStrategy.OFFLINE))

    def handle_state_changes(
        self,
        topic_partitions: Sequence[TopicPartition],
        target: PartitionState,
        strategy: ElectionStrategy | None = None,
    ) -> Flow[dict[TopicPartition, ElectionResult]]:
        """Move partitions to ``target`` and send the resulting requests.

        Returns the results of elections; partitions initialised from New are not included.

        Raises:
            ControllerMovedError: the fence failed.
            IllegalStateError: requests of an earlier step were never sent.
        """
        if not topic_partitions:
            return {}
        try:
            self._batch.new_batch()
            results = yield from self._apply(list(dict.fromkeys(topic_partitions)), target, strategy)
            self._batch.send()
        except (ControllerMovedError, IllegalStateError):
            raise
        except Exception as error:
            LOG.exception("state change failed: partitions=%d target=%s", len(topic_partitions), target.value)
            return {topic_partition: ElectionFailure(str(error)) for topic_partition in topic_partitions}
        return results

    def _apply(
        self, topic_partitions: list[TopicPartition], target: PartitionState, strategy: ElectionStrategy | None
    ) -> Flow[dict[TopicPartition, ElectionResult]]:
        valid = self._valid(topic_partitions, target)
        if target is not PartitionState.ONLINE:
            for topic_partition in valid:
                self._set(topic_partition, target)
            return {}
        new = [tp for tp in valid if self._context.partition_state(tp) is PartitionState.NEW]
        others = [tp for tp in valid if self._context.partition_state(tp) is not PartitionState.NEW]
        if new:
            others.extend((yield from self._initialise(new)))
        if not others:
            return {}
        assert strategy is not None, "electing a leader needs a strategy"
        return (yield from self._elect_all(others, strategy))

    def _valid(self, topic_partitions: Iterable[TopicPartition], target: PartitionState) -> list[TopicPartition]:
        valid = []
        for topic_partition in topic_partitions:
            state = self._context.partition_states.setdefault(topic_partition, PartitionState.NON_EXISTENT)
            if state in VALID_PREVIOUS_STATES[target]:
                valid.append(topic_partition)
            else:
                LOG.error(
                    "invalid state change: partition=%s from=%s to=%s", topic_partition, state.value, target.value
                )
        return valid

    def _set(
        self, topic_partition: TopicPartition, state: PartitionState, kind: StateChangeKind = StateChangeKind.TRANSITION
    ) -> None:
        before = self._context.partition_state(topic_partition)
        if state is PartitionState.NON_EXISTENT:
            self._context.partition_states.pop(topic_partition, None)
        else:
            self._context.partition_states[topic_partition] = state
        if before is not state or kind is not StateChangeKind.TRANSITION:
            self._log.record(topic_partition, before, state, kind=kind)

    # New -> Online

    def _initialise(self, topic_partitions: Sequence[TopicPartition]) -> Flow[list[TopicPartition]]:
        """Create state nodes; return the partitions that need an election: their node exists, their leader is offline.

        Partitions without an online replica stay New.
        """
        context = self._context
        writes = []
        for topic_partition in topic_partitions:
            live = context.online_replicas(topic_partition, context.assignment(topic_partition).replicas)
            if live:
                leader = context.reached_first(live)[0]
                writes.append(StateWrite(topic_partition, LeaderAndIsr(leader, 0, live, 0, context.epoch)))
            else:
                LOG.error("partition stays New, no replica is online: partition=%s", topic_partition)
        if not writes:
            return []
        leaderless = []
        with_state = {topic_partition.topic for topic_partition in context.leadership}
        outcome = yield from self._writer.create(writes, with_state)
        for topic_partition in topic_partitions:
            state = outcome.written.get(topic_partition)
            if state is None:
                found = outcome.conflicted.get(topic_partition)
                if found is not None and not self._adopt_existing(topic_partition, found):
                    leaderless.append(topic_partition)
                elif found is None and topic_partition in outcome.conflicted:
                    LOG.error("partition stays New, its state node could not be created: partition=%s", topic_partition)
                continue
            context.remember(topic_partition, state)
            assignment = context.assignment(topic_partition)
            recipients = (*state.isr, *self._without_lease(topic_partition))
            self._batch.add_leader_and_isr(recipients, topic_partition, state, assignment, is_new=True)
            self._set(topic_partition, PartitionState.ONLINE)
        return leaderless

    def _adopt_existing(self, topic_partition: TopicPartition, found: LeaderAndIsr) -> bool:
        """Use the existing state of a partition whose topic node, or state, could not be read before.

        Returns whether the leader is online. If so, the replicas get the state; a replica that has it ignores it.
        """
        context = self._context
        LOG.warning("partition already exists, using its state: partition=%s state=%s", topic_partition, found)
        context.remember(topic_partition, found)
        if not context.is_replica_online(found.leader, topic_partition):
            self._set(topic_partition, PartitionState.OFFLINE)
            return False
        assignment = context.assignment(topic_partition)
        self._batch.add_leader_and_isr(assignment.replicas, topic_partition, found, assignment, is_new=False)
        self._set(topic_partition, PartitionState.ONLINE)
        return True

    # Online, Offline -> Online

    def _elect_all(
        self, topic_partitions: Sequence[TopicPartition], strategy: ElectionStrategy
    ) -> Flow[dict[TopicPartition, ElectionResult]]:
        results: dict[TopicPartition, ElectionResult] = {}
        remaining = list(topic_partitions)
        limit = self._writer.chunk_limit
        while remaining:
            elections = yield from self._decide(remaining, strategy, results)
            writes = [
                StateWrite(topic_partition, election.leader_and_isr, forget_history=election.unclean)
                for topic_partition, election in elections.items()
                if election.leader_and_isr is not None
            ]
            outcome = yield from self._writer.commit(writes, limit)
            for topic_partition, state in outcome.written.items():
                kind = UNCLEAN if elections[topic_partition].unclean else _KINDS[strategy]
                self.elections[kind, self._log.cause_of_election.value] += 1
                self._elected(topic_partition, state, elections[topic_partition])
                results[topic_partition] = state
            for topic_partition, code in outcome.refused.items():
                results[topic_partition] = ElectionFailure(f"ZooKeeper refused to write the state: {code.name}")
            remaining = []
            for topic_partition, found in outcome.conflicted.items():
                if found is None:
                    results[topic_partition] = ElectionFailure("the state node is missing")
                else:
                    self._context.remember(topic_partition, found)
                    remaining.append(topic_partition)
            limit = max(1, limit // 2)
        for topic_partition, result in results.items():
            if isinstance(result, ElectionFailure):
                LOG.info(
                    "no leader elected: partition=%s strategy=%s reason=%s",
                    topic_partition,
                    strategy.name,
                    result.reason,
                )
        return results

    def _elected(self, topic_partition: TopicPartition, state: LeaderAndIsr, election: Election) -> None:
        self._context.remember(topic_partition, state)
        assignment = self._context.assignment(topic_partition)
        recipients = tuple(dict.fromkeys((*election.recipients, *self._without_lease(topic_partition))))
        self._batch.add_leader_and_isr(recipients, topic_partition, state, assignment, is_new=False)
        self._set(topic_partition, PartitionState.ONLINE, StateChangeKind.LEADER_ELECTED)

    def _without_lease(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """Return the replicas on brokers without a lease: they cannot lead, but their requests wait in the channel."""
        context = self._context
        replicas = context.assignment(topic_partition).replicas
        apart = [r for r in replicas if r in context.without_lease and r not in context.shutting_down]
        return context.online_replicas(topic_partition, apart, include_shutting_down=True)

    def _decide(
        self,
        topic_partitions: Sequence[TopicPartition],
        strategy: ElectionStrategy,
        results: dict[TopicPartition, ElectionResult],
    ) -> Flow[dict[TopicPartition, Election]]:
        """Return the elections to write; partitions without a candidate get their failure in ``results``."""
        forced = strategy is ElectionStrategy.OFFLINE_UNCLEAN
        elections: dict[TopicPartition, Election] = {}
        doubtful = []
        for topic_partition in topic_partitions:
            election = self._strategy(topic_partition, strategy, unclean_allowed=False)
            if election.leader_and_isr is not None:
                elections[topic_partition] = election
            else:
                doubtful.append(topic_partition)
        yield from self._writer.refresh(doubtful)
        complete = yield from self._with_complete_former_members(doubtful)
        hopeless = []
        for topic_partition in doubtful:
            election = self._strategy(topic_partition, strategy, forced, topic_partition in complete)
            if election.leader_and_isr is not None:
                elections[topic_partition] = election
            else:
                hopeless.append(topic_partition)
        if strategy is ElectionStrategy.OFFLINE and hopeless:
            allowed = yield from self._election_settings.allowed_topics({tp.topic for tp in hopeless})
            for topic_partition in hopeless:
                if topic_partition.topic in allowed:
                    elections[topic_partition] = self._strategy(topic_partition, strategy, unclean_allowed=True)
        for topic_partition in topic_partitions:
            found = elections.get(topic_partition, NOT_ELECTED).leader_and_isr
            reason = self._refusal(topic_partition, found)
            if reason is not None:
                elections.pop(topic_partition, None)
                results[topic_partition] = ElectionFailure(reason)
        return elections

    def decide(
        self, topic_partitions: Sequence[TopicPartition], strategy: ElectionStrategy
    ) -> Flow[dict[TopicPartition, Election]]:
        """Return the leaders that would be elected now; omits partitions without a candidate."""
        return (yield from self._decide(list(dict.fromkeys(topic_partitions)), strategy, {}))

    def _refusal(self, topic_partition: TopicPartition, elected: LeaderAndIsr | None) -> str | None:
        known = self._context.leadership.get(topic_partition)
        if known is None:
            return "the state node is missing"
        if known.controller_epoch > self._context.epoch:
            return f"the state was written by a controller with the newer epoch {known.controller_epoch}"
        return "no replica qualifies" if elected is None else None

    def _with_complete_former_members(self, topic_partitions: Sequence[TopicPartition]) -> Flow[set[TopicPartition]]:
        """Return the partitions whose last ISR member lost data while their former members have all committed records.

        While the ISR is smaller than ``min.insync.replicas``, no record is committed. If the setting is at least two,
        no record was committed after the former members left, because the ISR has had a single member since then.
        """
        asked = []
        for topic_partition in topic_partitions:
            history = self._context.isr_history(topic_partition)
            if history.unclean and history.former:
                asked.append(topic_partition)
        if not asked:
            return set()
        minimum = yield from self._election_settings.min_insync_replicas({tp.topic for tp in asked})
        return {tp for tp in asked if minimum.get(tp.topic, 1) > 1}

    def _strategy(
        self,
        topic_partition: TopicPartition,
        strategy: ElectionStrategy,
        unclean_allowed: bool,
        former_are_complete: bool = False,
    ) -> Election:
        context = self._context
        current = context.leadership.get(topic_partition)
        if current is None:
            return NOT_ELECTED
        assignment = context.assignment(topic_partition)
        replicas = context.reached_first(assignment.replicas)
        online = context.online_replicas(topic_partition, replicas)
        history = context.isr_history(topic_partition)
        if history.unclean and strategy not in (ElectionStrategy.OFFLINE, ElectionStrategy.OFFLINE_UNCLEAN):
            return NOT_ELECTED
        if strategy is ElectionStrategy.REASSIGN:
            return elect_reassigned(current, context.reached_first(assignment.target), online, context.epoch)
        if strategy is ElectionStrategy.PREFERRED:
            if assignment.replicas[0] in context.unreached:
                return NOT_ELECTED
            return elect_preferred(current, replicas, online, context.epoch)
        if strategy is ElectionStrategy.CONTROLLED_SHUTDOWN:
            reachable = context.online_replicas(topic_partition, replicas, include_shutting_down=True)
            return elect_for_controlled_shutdown(current, replicas, reachable, context.retiring, context.epoch)
        complete = [r for r in history.former if r not in assignment.adding] if former_are_complete else ()
        return elect_offline(current, replicas, online, unclean_allowed, context.epoch, history.unclean, complete)
