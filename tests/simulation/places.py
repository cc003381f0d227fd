"""Places: situations in the services' code that few runs reach, counted, and ambushed by faults.

A guard that no run reaches is not tested, whatever the invariants say. `Places.probes` wraps methods of the real code,
as `control_checks` does, and counts each place. An ambush waits at a place and strikes the brokers there
(docs/protocol/simulator.md#places).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.broker.control.admission import LeaderAndIsrAdmission
from paceline.broker.control.request_fence import RequestFence
from paceline.broker.control.stop_replica import StopReplicaHandler
from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.fetcher.replica_fetcher import Activity, ReplicaFetcher
from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.group import Group
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.loaded import LoadedGroups
from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.groups.records import OffsetKey, decode_key
from paceline.broker.groups.requests import CommitRequest
from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.node import BrokerNode
from paceline.broker.partition.isr_proposal import IsrProposal
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.produce import DelayedProduce
from paceline.controller.state.leader_election import Election
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.coordination.interface import SessionState
from paceline.log.future_logs import FutureLogs
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import Record
from paceline.model.errors import ErrorCode, OffsetNotAvailableError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.replication.isr import JoinRefusal

PLACES: dict[str, tuple[int, int]] = {
    "a replica is about to join an ISR": (107, 131),
    "an ISR write that adds a replica is applied": (107, 130),
    "a replica joins a leader that was alone": (0, 0),
    "a replica below the high watermark may not join": (82, 110),
    "a replica below the epoch's start may not join": (36, 48),
    "a replica below the log start may not join": (14, 10),
    "a replica that is shut down may not join": (36, 44),
    "the result of an ISR write is unknown": (0, 7),
    "an ISR write meets another state": (6, 30),
    "an ISR write is refused for its joiner": (0, 0),
    "a leader reads that it was deposed": (0, 0),
    "a lease is renewed late": (0, 0),
    "a client asks where a leader epoch ended": (0, 0),
    "a static member is replaced": (0, 0),
    "a replaced static member is refused": (0, 0),
    "a leadership is announced": (150, 150),
    "a live leader is replaced": (0, 0),
    "a leader begins a new session": (21, 42),
    "a leadership is not proved": (20, 35),
    "a high watermark is below the epoch's start": (50, 65),
    "a produce waits when the leadership ends": (45, 47),
    "a batch is repeated": (71, 86),
    "a request of an earlier controller": (0, 7),
    "a request for an earlier registration": (7, 36),
    "a LeaderAndIsr of an earlier epoch": (127, 141),
    "a StopReplica of an earlier epoch": (0, 0),
    "an overtaken UpdateMetadata": (0, 0),
    "a follower diverges": (32, 48),
    "a follower restarts at its leader's start": (4, 12),
    "an answer to an earlier fetch": (82, 111),
    "a deletion is resumed": (35, 68),
    "a load meets the tombstone of an offset": (4, 32),
    "a load waits for the high watermark": (15, 54),
    "a coordinator keeps its groups for the next epoch": (22, 82),
    "committed offsets expire": (18, 56),
    "a commit follows a tombstone that is not stored yet": (0, 0),
    "a commit without members": (19, 61),
    "a member of an earlier generation": (0, 10),
    "a replica has moved to another directory": (50, 0),
    "a truncation is repeated on a future log": (0, 0),
    "a segment of a move is copied": (44, 0),
    "a copy of a segment is void": (0, 0),
    "a failed directory is taken back": (6, 0),
}
"""Floors: in how many of 300 ordinary seeds, and of 300 wild ones, a place is reached at least: about half as
many as usual, a quarter for rare places. A place with 0 is counted without a floor.
"""


def below_floor(reached_in: Mapping[str, int], seeds: int, wild: bool) -> list[str]:
    """Return the places that too few seeds reached; the floors are in proportion, and looser below 300 seeds."""

    def floor(place: str) -> float:
        scaled = PLACES[place][wild] * seeds / 300
        return scaled - (2 * math.sqrt(scaled) if seeds < 300 else 0)

    return [place for place in PLACES if reached_in[place] < floor(place)]


AMBUSHES: dict[str, tuple[tuple[str, ...], ...]] = {
    "a replica is about to join an ISR": (("zk-lost-reply",), ("zk-cut",), ("bounce-broker",)),
    "an ISR write that adds a replica is applied": (("zk-cut",),),
    # The leader loses its session, and requests of the controller, before it learns that its successor has joined.
    "a replica joins a leader that was alone": (("cut-control", "zk-expire", "zk-cut"),),
    "the result of an ISR write is unknown": (("cut-control",), ("kill-active-controller",)),
    "a leadership is announced": (("pause-broker",), ("stop-broker",)),
    "a live leader is replaced": (("lose-control-requests",),),
    "a leader begins a new session": (("cut-control",), ("kill-active-controller",)),
    "a leadership is not proved": (("crash-broker",), ("cut-control",)),
    "a high watermark is below the epoch's start": (("crash-broker",), ("cut-replication",)),
    "a follower diverges": (("crash-broker",), ("power-loss",)),
    "a load waits for the high watermark": (("crash-broker",), ("cut-replication",)),
    "committed offsets expire": (("cut-replication",),),
    "a commit follows a tombstone that is not stored yet": (("crash-broker",), ("zk-expire",)),
}
"""Places with a broker, and sometimes a second one, that an ambush may strike. The faults of one of the tuples, which
fit the place, strike the place's broker.
"""

_REFUSALS = {
    JoinRefusal.BELOW_HIGH_WATERMARK: "a replica below the high watermark may not join",
    JoinRefusal.BELOW_EPOCH_START: "a replica below the epoch's start may not join",
    JoinRefusal.BELOW_LOG_START: "a replica below the log start may not join",
    JoinRefusal.SHUTTING_DOWN: "a replica that is shut down may not join",
}
_STALE_REQUESTS = {
    ErrorCode.STALE_CONTROLLER_EPOCH: "a request of an earlier controller",
    ErrorCode.STALE_BROKER_EPOCH: "a request for an earlier registration",
}

_STALE_EPOCHS = (ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)

Strike = Callable[[int, int | None], None]
"""Called with the broker at the place, and another broker that is involved."""
Probe = Callable[..., None]
Wrap = Callable[[type, str, Callable[[Any], Any]], None]


class Places:
    """Counts the places that one run reaches."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = dict.fromkeys(PLACES, 0)
        self._ambushes: defaultdict[str, list[Strike]] = defaultdict(list)

    def reach(self, place: str, broker_id: int | None = None, other_id: int | None = None) -> None:
        """Count a place; the ambush that has waited there longest strikes."""
        self.reached[place] += 1
        if self._ambushes[place] and broker_id is not None:
            self._ambushes[place].pop(0)(broker_id, other_id)

    def wait_at(self, place: str, strike: Strike) -> None:
        """Let an ambush wait at a place."""
        self._ambushes[place].append(strike)

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Count places while open."""
        saved: list[tuple[type, str, Any]] = []

        def wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
            saved.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, wrapper(owner.__dict__[name]))

        def probe(owner: type, name: str, before: Callable[..., None], after: Callable[..., None] = _nothing) -> None:
            def wrapper(real: Callable[..., Any]) -> Callable[..., Any]:
                def probed(*args: Any, **named: Any) -> Any:
                    before(*args)
                    try:
                        result = real(*args, **named)
                    except PacelineError as error:
                        after(error, *args)
                        raise
                    after(result, *args)
                    return result

                return probed

            wrap(owner, name, wrapper)

        try:
            self._probe_replicas(probe)
            self._probe_requests(probe)
            self._probe_groups(probe, wrap)
            yield
        finally:
            for owner, name, real in reversed(saved):
                setattr(owner, name, real)

    def _probe_replicas(self, probe: Probe) -> None:
        reach = self.reach

        def proposed(updates: IsrUpdates, _partition: Partition, _isr: Any, joiners: Any, *_: Any) -> None:
            for broker_id, _epoch in joiners:
                reach("a replica is about to join an ISR", updates._host.broker_id, broker_id)

        def answered(place: str) -> Callable[..., None]:
            def current(updates: IsrUpdates, partition: Partition, proposal: IsrProposal, *_: Any) -> None:
                if partition.proposal is proposal:
                    joiner = next((broker_id for broker_id, _ in proposal.joiners), None)
                    reach(place, updates._host.broker_id, joiner)

            return current

        def refused(refusal: JoinRefusal | None, *_: Any) -> None:
            if refusal in _REFUSALS:
                reach(_REFUSALS[refusal])

        def asked(partition: Partition, *_: Any) -> None:
            if partition.is_leader and not partition.is_deposed and not partition.is_leadership_proved:
                reach("a leadership is not proved", partition._host.broker_id)

        def unavailable(result: object, partition: Partition) -> None:
            if isinstance(result, OffsetNotAvailableError):
                reach("a high watermark is below the epoch's start", partition._host.broker_id)

        def session_changed(node: BrokerNode, event: Any) -> None:
            is_new = event.state is SessionState.CONNECTED and event.session_id != node._registration.session_id
            led = [one for one in node.replica_manager.hosted.online.values() if one.is_leader]
            if is_new and led:
                member = next((one for one in led[0].isr if one != led[0].leader_id), None)
                reach("a leader begins a new session", led[0].leader_id, member)

        def diverged(fetcher: ReplicaFetcher, *_: Any) -> None:
            reach("a follower diverges", fetcher._config.broker_id, fetcher.leader.broker_id)

        def fetch_answered(fetcher: ReplicaFetcher, request: Any, *_: Any) -> None:
            if fetcher._activity is not Activity.FETCHING or fetcher._latest is not request:
                reach("an answer to an earlier fetch")

        def repeats(log: PartitionLog, *_: Any) -> None:
            if log.future is not None and log.future.log_end_offset > log.log_end_offset:
                reach("a truncation is repeated on a future log")

        probe(PartitionLog, "_repeat", repeats)

        def adopted(is_in_place: object, *_: Any) -> None:
            if isinstance(is_in_place, bool):
                reach("a segment of a move is copied" if is_in_place else "a copy of a segment is void")

        def retried(error: object, *_: Any) -> None:
            if error is None:
                reach("a failed directory is taken back")

        probe(FutureLogs, "adopt", _nothing, adopted)
        probe(LogManager, "finish_retry", _nothing, retried)
        probe(FutureLogs, "swap", _nothing, lambda *_: reach("a replica has moved to another directory"))
        probe(IsrUpdates, "_propose", proposed)
        probe(IsrUpdates, "unknown", answered("the result of an ISR write is unknown"))
        probe(IsrUpdates, "conflict", answered("an ISR write meets another state"))
        probe(IsrUpdates, "refused", answered("an ISR write is refused for its joiner"))
        probe(IsrUpdates, "why_not_join", _nothing, refused)
        probe(Partition, "serving_log", asked)
        probe(Partition, "check_high_watermark_is_current", _nothing, unavailable)
        probe(BrokerNode, "_session_changed", session_changed)
        probe(ReplicaFetcher, "_diverged", diverged)
        probe(ReplicaFetcher, "_answered", fetch_answered)
        probe(FollowerLog, "restart_at", lambda *_: reach("a follower restarts at its leader's start"))

    def _probe_requests(self, probe: Probe) -> None:
        reach = self.reach

        def fenced(result: object, *_: Any) -> None:
            if result in _STALE_REQUESTS:
                reach(_STALE_REQUESTS[result])  # type: ignore[index]

        def stale(place: str) -> Callable[..., None]:
            return lambda result, *_: reach(place) if result in _STALE_EPOCHS else None

        def elected(
            machine: PartitionStateMachine, partition: TopicPartition, new: LeaderAndIsr, how: Election
        ) -> None:
            old = machine._context.leadership[partition].leader
            if old != new.leader and old in how.recipients:
                reach("a live leader is replaced", old, new.leader)

        def decided(result: object, operation: DelayedProduce, waiting: Any) -> None:
            if result is True and waiting.result.failure is not None:
                reach("a produce waits when the leadership ends")

        def resumed(deletion: TopicDeletionManager, *_: Any) -> None:
            if deletion._context.deletion_queued:
                reach("a deletion is resumed")

        probe(RequestFence, "check", _nothing, fenced)
        probe(LeaderAndIsrAdmission, "_check", _nothing, stale("a LeaderAndIsr of an earlier epoch"))
        probe(StopReplicaHandler, "_check", _nothing, stale("a StopReplica of an earlier epoch"))
        probe(
            MetadataCache,
            "is_overtaken",
            _nothing,
            lambda result, *_: reach("an overtaken UpdateMetadata") if result else None,
        )
        probe(DelayedProduce, "_decided", _nothing, decided)
        probe(
            ProducerStateManager,
            "find_duplicate",
            _nothing,
            lambda result, *_: reach("a batch is repeated") if result is not None else None,
        )
        probe(TopicDeletionManager, "resume", resumed)
        probe(PartitionStateMachine, "_elected", elected)

    def _probe_groups(self, probe: Probe, wrap: Wrap) -> None:
        reach = self.reach
        unstored: Counter[Group] = Counter()
        """Tombstones of offsets that were appended, and not stored yet, by group."""

        def loads(groups: LoadedGroups, record: Record) -> None:
            key = None if record.key is None or record.value is not None else decode_key(record.key)
            if isinstance(key, OffsetKey) and key.topic_partition in groups._offsets.get(key.group_id, ()):
                reach("a load meets the tombstone of an offset")

        def reads(storage: GroupStorage, partition: int, _owned: Any, _found: Any, offset: int, end: int) -> None:
            topic = storage._topic
            hosted = topic._hosted.online.get(TopicPartition(OFFSETS_TOPIC, partition))
            if offset >= end and hosted is not None and hosted.log is not None and hosted.log.high_watermark < end:
                reach("a load waits for the high watermark", topic._broker_id)

        def leads(storage: GroupStorage, partition: int, leader_epoch: int) -> None:
            known = storage._owned.get(partition)
            if known is not None and known.loaded and leader_epoch == known.leader_epoch + 1:
                reach("a coordinator keeps its groups for the next epoch", storage._topic._broker_id)

        def commits(storage: GroupStorage, group: Group, *_: Any) -> None:
            if unstored[group]:
                reach("a commit follows a tombstone that is not stored yet", storage._topic._broker_id)

        def committed(result: object, _: object, request: CommitRequest) -> None:
            if request.generation < 0 and isinstance(result, Group):
                reach("a commit without members")

        def checked(result: object, *_: Any) -> None:
            if isinstance(result, PacelineError):
                reach("a member of an earlier generation")

        def store_tombstones(real: Callable[..., None]) -> Callable[..., None]:
            def probed(storage: GroupStorage, group: Group, offsets: Any, with_group: bool, on_done: Any) -> None:
                def stored(answer: object) -> None:
                    unstored[group] -= len(offsets)
                    on_done(answer)

                unstored[group] += len(offsets)
                if offsets and not with_group:
                    reach("committed offsets expire", storage._topic._broker_id)
                real(storage, group, offsets, with_group, stored)

            return probed

        probe(LoadedGroups, "_record", loads)
        probe(GroupStorage, "_load", reads)
        probe(GroupStorage, "become_leader", leads)
        probe(GroupStorage, "store_offsets", commits)
        probe(GroupCoordinator, "_group_to_commit", _nothing, committed)
        probe(Group, "check_generation", _nothing, checked)
        wrap(GroupStorage, "store_tombstones", store_tombstones)


def _nothing(*_: Any) -> None:
    """Observe nothing."""
