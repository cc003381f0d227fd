"""`GroupMembership`: a consumer's place in its group.

The polling thread joins, assigns partitions when it leads the group, and calls the listener; `heartbeats.py` keeps the
session alive between polls. A JoinGroup or SyncGroup in flight at the end of a poll is continued by the next poll.

    UNJOINED --commit, revoke--> PREPARED --JoinGroup--> JOINING --response--> SYNCING --SyncGroup--> STABLE
    JOINING --refused--> PREPARED; STABLE --REBALANCE_IN_PROGRESS--> UNJOINED

Source: Kafka's AbstractCoordinator and ConsumerCoordinator, KIP-429 (cooperative rebalance), KIP-345 (static members).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol

import grpc

from paceline.model.consumer_protocol import by_topic
from paceline.model.errors import ErrorCode, InvalidTransitionError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.v1.group_service_pb2 import (
    ConsumerAssignment,
    ConsumerSubscription,
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicPartitions,
)
from paceline_client.assignors.base import GroupMember
from paceline_client.errors import CommitFailedError
from paceline_client.groups.committed import LOST, commit_request
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.groups.subscriptions import GroupSubscription
from paceline_client.groups.values import GroupSettings, OffsetAndMetadata, Offsets, RebalanceListener

LOG = logging.getLogger("paceline.client")

_PAUSE_S: Final = 0.1
_JOIN_GRACE_S: Final = 30.0
_SYNC_TIMEOUT_S: Final = 60.0
_FATAL: Final = {
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class MemberState(Enum):
    """How far a member has come on its way into a generation."""

    UNJOINED = auto()
    PREPARED = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()


VALID_PREVIOUS_STATES: Final = {
    MemberState.UNJOINED: frozenset(MemberState),
    MemberState.PREPARED: frozenset({MemberState.UNJOINED, MemberState.JOINING}),
    MemberState.JOINING: frozenset({MemberState.PREPARED, MemberState.JOINING, MemberState.SYNCING}),
    MemberState.SYNCING: frozenset({MemberState.JOINING}),
    MemberState.STABLE: frozenset({MemberState.SYNCING}),
}


class _ListenerError(Exception):
    """Carries an error of the rebalance listener past the handlers of the coordinator's errors."""

    def __init__(self, error: PacelineError) -> None:
        super().__init__(str(error))
        self.error = error


class AssignedPartitions(Protocol):
    """The part of the consumer that its group uses."""

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""

    def take_assignment(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions; new partitions wait for their committed offsets."""

    def consumed(self) -> Offsets:
        """Return the positions after the records returned by `poll`."""

    def awaiting_committed(self) -> list[TopicPartition]:
        """Return partitions whose committed offset has not been fetched yet."""

    def begin_at(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Start at the committed offsets; without a committed offset, apply ``auto_offset_reset``."""


class GroupMembership:
    """Joins the group, assigns partitions as leader, keeps the member id and the generation."""

    def __init__(
        self,
        settings: GroupSettings,
        coordinator: GroupCoordinator,
        subscription: GroupSubscription,
        host: AssignedPartitions,
        commit_sync: Callable[[Offsets, float], None],
        on_news: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.coordinator = coordinator
        self.subscription = subscription
        self.changed = threading.Condition()
        """Guards the fields shared with the heartbeat thread."""
        self.member_id = ""
        self.generation = -1
        self.listener = RebalanceListener()
        self.last_poll = time.monotonic()
        self._host = host
        self._commit_sync = commit_sync
        self._on_news = on_news
        self.state = MemberState.UNJOINED
        self._lost = False
        """Whether other members may own this member's partitions."""
        self._pending: Any = None
        """JoinGroup or SyncGroup in flight."""
        self._wanted: frozenset[str] = frozenset()
        """Topics in the subscription of the current generation."""
        self._previous: list[TopicPartition] = []
        self._previous_generation = -1
        self._counts: dict[str, int] = {}
        """Partition counts of all members' topics when this member joined as leader; empty for other members."""
        self._watched_version = -1
        self._quiet_until = 0.0
        self._fatal: PacelineError | None = None

    # For the heartbeats ------------------------------------------------------------------------------------------

    @property
    def is_beating(self) -> bool:
        """Whether the coordinator expects heartbeats; it does not while a JoinGroup is under way."""
        return self.generation >= 0 and self.state is not MemberState.JOINING

    @property
    def wants_poll(self) -> bool:
        """Whether the polling thread has group work to do."""
        if (pending := self._pending) is not None:
            return bool(pending.done())
        joins = self.state is not MemberState.STABLE and time.monotonic() >= self._quiet_until
        return joins or self._fatal is not None

    def rejoin(self) -> None:
        """Join again on the next poll."""
        with self.changed:
            if self.state is MemberState.STABLE:
                self._move(MemberState.UNJOINED)
        self._on_news()

    def _move(self, target: MemberState) -> None:
        if self.state not in VALID_PREVIOUS_STATES[target]:
            raise InvalidTransitionError(f"{self.state} does not precede {target}")
        self.state = target

    def lose(self, error: PacelineError, forget_member: bool, generation: int) -> None:
        """Record that the membership was lost and other members may own this member's partitions.

        Do nothing if the member has joined another generation since: the error belongs to ``generation``.
        """
        with self.changed:
            if self.generation != generation:
                return
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self._fatal = error
            self.generation = -1
            if forget_member:
                self.member_id = ""
            self._lost = True
        self.rejoin()

    # Polling -----------------------------------------------------------------------------------------------------

    def poll(self, deadline: float) -> None:
        """Join the group if necessary; while no partitions are assigned, wait for the rebalance until the deadline.

        Raises:
            FencedInstanceIdError: another process has taken over the group instance id.
            PacelineError: the coordinator permanently refuses this member, or the rebalance listener raised this error.
        """
        with self.changed:
            self.last_poll = time.monotonic()
            self.changed.notify_all()
        if self._fatal is not None:
            raise self._fatal
        if self.subscription.is_empty:
            return
        self._check_metadata()
        while self.state is not MemberState.STABLE:
            try:
                if not self._step(deadline):
                    return
            except _ListenerError as failure:
                raise failure.error from None
            except PacelineError as error:
                if error.code in _FATAL:
                    raise
                self._wait_after(error)

    def _check_metadata(self) -> None:
        """Join again when the topics of the pattern, or for the leader their partition counts, have changed."""
        cluster = self.subscription.metadata.cluster
        version = cluster.version
        if self.subscription.refresh():
            self.rejoin()
        if version != self._watched_version:
            self._watched_version = version
            if any(cluster.partition_count(topic) not in (0, count) for topic, count in self._counts.items()):
                LOG.info("partition counts changed, joining again: group=%s", self.settings.group_id)
                self.rejoin()

    def _step(self, deadline: float) -> bool:
        """Perform one step of joining; return False when the next step must wait for a later poll."""
        now = time.monotonic()
        if now < self._quiet_until:
            if self._quiet_until >= deadline:
                return False
            time.sleep(self._quiet_until - now)
        if self._pending is None:
            if self.state is MemberState.UNJOINED:
                self._prepare()
                self._move(MemberState.PREPARED)
            self._send_join(deadline)
        pending = self._pending
        # With assigned partitions, `poll` continues to return records; the response wakes it.
        wait_s = 0.0 if self._host.assignment() else max(0.0, deadline - time.monotonic())
        try:
            answer = pending.result(timeout=wait_s)
        except grpc.FutureTimeoutError:
            return False
        except (grpc.FutureCancelledError, grpc.RpcError) as failure:
            answer = failure
        self._join_answered(pending)  # gRPC may call it only after this thread has seen the response.
        self._pending = None
        if isinstance(answer, grpc.RpcError):
            raise self.coordinator.failed(answer) from answer
        if isinstance(answer, JoinGroupResponse):
            self._joined(answer)
        elif isinstance(answer, SyncGroupResponse):
            self._synced(answer)
        return True

    def _wait_after(self, error: PacelineError) -> None:
        """Handle an error after which the member joins again, after a pause if the cause needs time."""
        if error.code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = error.metadata.get("member_id", "")
            return
        LOG.debug("joining again: group=%s error=%s", self.settings.group_id, error)
        if error.code in LOST:
            # A cooperative member kept its partitions during the rebalance; other members may own them by now.
            self.lose(error, error.code is ErrorCode.UNKNOWN_MEMBER_ID, self.generation)
            self._move(MemberState.UNJOINED)
            return
        self._quiet_until = time.monotonic() + _PAUSE_S

    # Joining -----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Before a JoinGroup: commit, and revoke the partitions that the next generation may move."""
        with self.changed:
            lost, self._lost = self._lost, False
        owned = self._host.assignment()
        self.subscription.refresh(at_once=True)
        if lost:
            self._drop(owned, [], self.listener.on_partitions_lost)
            return
        self.commit_consumed(self.settings.session_timeout_ms / 2)
        kept = [one for one in owned if self.settings.cooperative and one.topic in self.subscription.topics]
        self._drop([one for one in owned if one not in kept], kept, self.listener.on_partitions_revoked)

    def _drop(
        self,
        partitions: Sequence[TopicPartition],
        kept: Sequence[TopicPartition],
        notify: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        if partitions:
            try:
                _call_listener(notify, partitions)
            finally:
                self._host.take_assignment(kept)

    def commit_consumed(self, timeout_ms: float) -> None:
        """Commit the consumed positions if commits are automatic; log a failure."""
        if not self.settings.enable_auto_commit or self.generation < 0:
            return
        offsets = self._host.consumed()
        if not offsets:
            return
        try:
            self._commit_sync(offsets, timeout_ms)
        except PacelineError as error:
            LOG.warning("automatic commit failed: group=%s error=%s", self.settings.group_id, error)

    def commit_request(self, offsets: Offsets) -> Any:
        """Return the request that commits offsets with this member's id and generation.

        Raises:
            CommitFailedError: the member is in no generation. A group without members would accept the offsets, as it
                does from callers that are not members.
        """
        with self.changed:
            if self.generation < 0 and not self.subscription.is_empty:
                raise CommitFailedError(
                    f"group {self.settings.group_id}: the offsets were not committed because this member is in no "
                    f"generation of its group; call poll until it has partitions"
                )
            return commit_request(
                self.settings.group_id, offsets, self.generation, self.member_id, self.settings.group_instance_id
            )

    def _send_join(self, deadline: float) -> None:
        settings = self.settings
        owned = self._host.assignment()
        with self.changed:
            member_id, generation = self.member_id, self.generation
        protocols = [
            GroupProtocol(
                name=one.name,
                subscription=ConsumerSubscription(
                    topics=sorted(self.subscription.topics),
                    user_data=one.user_data(self._previous, self._previous_generation),
                    owned_partitions=_to_wire(owned),
                    generation_id=generation if owned and generation >= 0 else None,
                    rack_id=settings.client_rack,
                ),
            )
            for one in settings.assignors
        ]
        request = JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=settings.group_instance_id,
            protocols=protocols,
            client_id=settings.client_id,
        )
        stub = self.coordinator.stub(max(0.05, min(5.0, deadline - time.monotonic())))
        with self.changed:
            self._move(MemberState.JOINING)
            self._wanted = self.subscription.topics
        timeout_s = settings.max_poll_interval_ms / 1000 + _JOIN_GRACE_S
        self._pending = stub.JoinGroup.future(request, timeout=timeout_s)
        self._pending.add_done_callback(self._join_answered)

    def _join_answered(self, call: Any) -> None:
        """Store member id and generation immediately, so that heartbeats begin before the next poll."""
        with self.changed:
            if call is self._pending and self.state is MemberState.JOINING:
                failed = call.cancelled() or call.exception() is not None
                if not failed:
                    self.member_id, self.generation = call.result().member_id, call.result().generation_id
                self._move(MemberState.PREPARED if failed else MemberState.SYNCING)
            self.changed.notify_all()
        self._on_news()

    def _joined(self, answer: JoinGroupResponse) -> None:
        """Assign the partitions when this member leads the group, and request this member's assignment.

        A static leader that rejoins does not assign, but it is the only member that looks for new partitions (KIP-814).
        """
        assignments: list[MemberAssignment] = []
        self._counts = {}
        if answer.leader == answer.member_id:
            counts = self._count_partitions(answer)
            if not answer.skip_assignment:
                assignments = self._assign(answer, counts)
        request = SyncGroupRequest(
            group_id=self.settings.group_id,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            group_instance_id=self.settings.group_instance_id,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignments=assignments,
        )
        self._pending = self.coordinator.stub(1.0).SyncGroup.future(request, timeout=_SYNC_TIMEOUT_S)
        self._pending.add_done_callback(lambda _call: self._on_news())

    def _count_partitions(self, answer: JoinGroupResponse) -> dict[str, int]:
        """Return the partition counts of all members' topics that exist, and watch the counts for changes."""
        topics = {topic for member in answer.members for topic in member.subscription.topics}
        metadata = self.subscription.metadata
        metadata.want(topics)  # this member may not subscribe to all of them itself
        answered = self.subscription.partition_counts(topics) if topics else {}
        # The broker that answered may not know partitions yet that this client has learned of from another broker.
        counts = {topic: max(count, metadata.cluster.partition_count(topic)) for topic, count in answered.items()}
        self._counts = {topic: counts.get(topic, 0) for topic in topics}
        return counts

    def _assign(self, answer: JoinGroupResponse, counts: dict[str, int]) -> list[MemberAssignment]:
        assignor = next(one for one in self.settings.assignors if one.name == answer.protocol_name)
        members = [
            GroupMember(
                one.member_id,
                frozenset(one.subscription.topics),
                tuple(
                    TopicPartition(owned.topic, index)
                    for owned in one.subscription.owned_partitions
                    for index in owned.partitions
                ),
                one.subscription.generation_id if one.subscription.HasField("generation_id") else -1,
                one.group_instance_id,
                one.subscription.user_data,
            )
            for one in answer.members
        ]
        assigned = assignor.assign(members, counts)
        LOG.info(
            "assigned partitions: group=%s generation=%d assignor=%s members=%d partitions=%d",
            self.settings.group_id,
            answer.generation_id,
            assignor.name,
            len(members),
            sum(map(len, assigned.values())),
        )
        return [
            MemberAssignment(member_id=member_id, assignment=ConsumerAssignment(partitions=_to_wire(partitions)))
            for member_id, partitions in assigned.items()
        ]

    def _synced(self, answer: SyncGroupResponse) -> None:
        """Apply the assignment: revoke partitions that are not in it, then add the new partitions."""
        assigned = [
            TopicPartition(one.topic, index) for one in answer.assignment.partitions for index in one.partitions
        ]
        owned = self._host.assignment()
        with self.changed:
            self._move(MemberState.STABLE)
            again = self._lost or self.subscription.topics != self._wanted
            self._previous, self._previous_generation = assigned, self.generation
            self.changed.notify_all()
        revoked = [one for one in owned if one not in assigned]
        added = [one for one in assigned if one not in owned]
        if again or revoked:
            # Revoked only with a cooperative assignor: the next rebalance assigns these partitions to other members.
            # Request it before the listener runs: if the listener raises, this member does not take new partitions.
            self.rejoin()
        if revoked:
            self._drop(revoked, [one for one in owned if one in assigned], self.listener.on_partitions_revoked)
        self._host.take_assignment(assigned)
        LOG.info(
            "joined group: group=%s generation=%d partitions=%d", self.settings.group_id, self.generation, len(assigned)
        )
        _call_listener(self.listener.on_partitions_assigned, added)

    # Leaving -----------------------------------------------------------------------------------------------------

    def leave(self, timeout_ms: float) -> None:
        """Commit, revoke and leave; a static member keeps its assignment until its session timeout."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self.commit_consumed(timeout_ms / 2)
        owned = self._host.assignment()
        try:
            notify = self.listener.on_partitions_lost if self._lost else self.listener.on_partitions_revoked
            self._drop(owned, [], notify)
        except _ListenerError as failure:
            raise failure.error from None
        finally:
            self.send_leave(timeout_ms / 2)
            with self.changed:
                self._move(MemberState.UNJOINED)
                self._fatal = None  # it belongs to the membership that has ended

    def send_leave(self, timeout_ms: float, lost: bool = False) -> None:
        """Send LeaveGroup for a dynamic member; a failure is only logged.

        ``lost`` records, before the call, that other members may own this member's partitions: the polling thread may
        join again during the call.
        """
        with self.changed:
            member_id, self.member_id = self.member_id, ""
            self.generation = -1
            self._lost = self._lost or lost
        self.rejoin()
        if not member_id or self.settings.group_instance_id:
            return
        request = LeaveGroupRequest(group_id=self.settings.group_id, members=[LeavingMember(member_id=member_id)])
        try:
            self.coordinator.call("LeaveGroup", request, timeout_ms, sends_again=False)
        except PacelineError as error:
            LOG.info("leaving the group failed: group=%s error=%s", self.settings.group_id, error)


def _call_listener(notify: Callable[[Sequence[TopicPartition]], None], partitions: Sequence[TopicPartition]) -> None:
    try:
        notify(partitions)
    except PacelineError as error:
        raise _ListenerError(error) from error


def _to_wire(partitions: Sequence[TopicPartition]) -> list[TopicPartitions]:
    return [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()]
