"""A group member's commits and heartbeats when its membership changes under them."""

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from paceline.model.errors import (
    FencedInstanceIdError,
    InvalidTransitionError,
    PacelineError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownServerError,
)
from paceline.model.identifiers import TopicPartition
from paceline.v1.group_service_pb2 import (
    CommitOffsetsResponse,
    ConsumerAssignment,
    ConsumerSubscription,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
    TopicPartitions,
)
from paceline_client.assignors import assignors_of
from paceline_client.errors import CommitFailedError
from paceline_client.groups import committer as committer_module
from paceline_client.groups.committer import Committer
from paceline_client.groups.heartbeats import Heartbeats
from paceline_client.groups.membership import GroupMembership, MemberState
from paceline_client.groups.values import GroupSettings, OffsetAndMetadata, Offsets, RebalanceListener

ONE = TopicPartition("t", 0)


class Ended:
    """A call with a response."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def done(self) -> bool:
        return True

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Any:
        return None

    def result(self, timeout: float = 0.0) -> Any:
        return self._answer


class InFlight:
    """A call that the test cancels."""

    def add_done_callback(self, callback: Any) -> None:
        self._callback = callback

    def cancelled(self) -> bool:
        return True

    def end(self) -> None:
        self._callback(self)


def test_thousands_of_queued_commits_fail_in_order_when_the_membership_is_lost() -> None:
    first = InFlight()
    stub = SimpleNamespace(CommitOffsets=SimpleNamespace(future=lambda _request, timeout: first))
    coordinator: Any = SimpleNamespace(group_id="g", stub=lambda _timeout_s: stub)
    member = True

    def request_of(_offsets: Offsets) -> None:
        if not member:
            raise CommitFailedError("this member is in no generation of its group")

    committer = Committer(coordinator, request_of, lambda: None)
    failed: list[int] = []
    for offset in range(5_000):
        committer.send({ONE: OffsetAndMetadata(offset)}, lambda offsets, _error: failed.append(offsets[ONE].offset))
    member = False
    first.end()
    assert not committer.is_busy
    committer.call_back()
    assert failed == list(range(5_000))


def test_commits_that_waited_longer_than_their_time_limit_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[InFlight] = []

    def send(_request: None, timeout: float) -> InFlight:
        calls.append(InFlight())
        return calls[-1]

    stub = SimpleNamespace(CommitOffsets=SimpleNamespace(future=send))
    coordinator: Any = SimpleNamespace(group_id="g", stub=lambda _timeout_s: stub)
    committer = Committer(coordinator, lambda _offsets: None, lambda: None)
    failed: list[PacelineError | None] = []
    for offset in range(3):
        committer.send({ONE: OffsetAndMetadata(offset)}, lambda _offsets, error: failed.append(error))
        monkeypatch.setattr(committer_module, "COMMIT_TIMEOUT_S", 0.0)
    calls[0].end()
    committer.call_back()
    assert (len(calls), committer.is_busy) == (1, False)
    assert [type(error) for error in failed[1:]] == [RequestTimedOutError] * 2
    assert all(error is not None and error.definite for error in failed[1:])


def test_a_commit_does_not_overtake_an_earlier_commit_that_has_not_ended() -> None:
    first, sent = InFlight(), list[int]()

    def called(_method: str, offset: int, _timeout_ms: float) -> CommitOffsetsResponse:
        sent.append(offset)
        return CommitOffsetsResponse()

    stub = SimpleNamespace(CommitOffsets=SimpleNamespace(future=lambda _request, timeout: first))
    coordinator: Any = SimpleNamespace(group_id="g", stub=lambda _timeout_s: stub, call=called)
    committer = Committer(coordinator, lambda offsets: offsets[ONE].offset, lambda: None)
    committer.send({ONE: OffsetAndMetadata(5)}, lambda _offsets, _error: None)
    with pytest.raises(RequestTimedOutError, match="not sent") as refused:
        committer.sync({ONE: OffsetAndMetadata(9)}, timeout_ms=20)
    assert refused.value.definite
    assert sent == []
    first.end()
    committer.sync({ONE: OffsetAndMetadata(9)}, timeout_ms=60_000)
    assert sent == [9]


class Group:
    """A coordinator of one member, which gets the partition; each join begins a generation."""

    def __init__(self, later: Sequence[int] = ()) -> None:
        """``later`` are the partitions of the second generation and after it."""
        self.generation = 0
        self.later = later
        self.left: list[str] = []
        self.on_leave: Any = None
        self.JoinGroup = SimpleNamespace(future=self._join)
        self.SyncGroup = SimpleNamespace(future=self._sync)

    def stub(self, _timeout_s: float) -> "Group":
        return self

    def _join(self, _request: Any, timeout: float) -> Any:
        self.generation += 1
        return Ended(JoinGroupResponse(member_id=f"member-{self.generation}", generation_id=self.generation))

    def _sync(self, _request: Any, timeout: float) -> Ended:
        indexes = self.later if self.later and self.generation > 1 else [ONE.partition]
        partitions = [TopicPartitions(topic=ONE.topic, partitions=indexes)]
        return Ended(SyncGroupResponse(assignment=ConsumerAssignment(partitions=partitions)))

    def call(self, _method: str, request: Any, _timeout_ms: float, sends_again: bool) -> None:
        self.left += [one.member_id for one in request.members]
        self.on_leave()


class Partitions:
    def __init__(self) -> None:
        self._assigned: list[TopicPartition] = []

    def assignment(self) -> list[TopicPartition]:
        return self._assigned

    def take_assignment(self, partitions: Sequence[TopicPartition]) -> None:
        self._assigned = list(partitions)

    def consumed(self) -> Offsets:
        return {}


def member(
    group: Group,
    partitions: Partitions | None = None,
    *,
    instance_id: str = "",
    assignor: str = "range",
    max_poll_interval_ms: int = 60_000,
) -> GroupMembership:
    """Return a member of the group that has subscribed to ``t`` and has not joined yet."""
    settings = GroupSettings(
        "g", instance_id, "c", "", 60_000, 20_000, max_poll_interval_ms, True, 5_000, assignors_of([assignor])
    )
    subscription: Any = SimpleNamespace(
        is_empty=False,
        topics=frozenset({"t"}),
        refresh=lambda at_once=False: False,
        metadata=SimpleNamespace(cluster=SimpleNamespace(version=0)),
    )
    return GroupMembership(settings, group, subscription, partitions or Partitions(), lambda *_: None, lambda: None)  # type: ignore[arg-type]


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.lost: list[TopicPartition] = []

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.lost += partitions


def test_member_that_polls_again_while_its_leave_is_under_way_keeps_its_new_membership() -> None:
    group, left = Group(), threading.Event()
    membership = member(group, max_poll_interval_ms=1)
    membership.listener = listener = Listener()
    membership.poll(time.monotonic() + 60)

    def poll_again() -> None:
        membership.poll(time.monotonic() + 60)
        left.set()

    group.on_leave = poll_again
    membership.last_poll -= 1
    heartbeats = Heartbeats(membership, "test-heartbeat")
    assert left.wait(60)
    heartbeats.close()
    assert group.left == ["member-1"]
    assert (membership.member_id, membership.generation) == ("member-2", 2)
    assert listener.lost == [ONE]


def test_member_that_was_fenced_joins_again_after_it_has_left() -> None:
    membership = member(Group(), instance_id="static")
    membership.poll(time.monotonic() + 60)
    membership.lose(FencedInstanceIdError("another process has taken over"), forget_member=True, generation=1)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            membership.poll(time.monotonic() + 60)
    membership.leave(1_000)
    membership.poll(time.monotonic() + 60)
    assert (membership.member_id, membership.generation) == ("member-2", 2)


def test_a_late_refusal_of_a_heartbeat_does_not_end_the_next_membership() -> None:
    membership = member(Group())
    membership.poll(time.monotonic() + 60)
    membership.rejoin()
    membership.poll(time.monotonic() + 60)
    membership.lose(UnknownMemberIdError("member-1 was removed"), forget_member=True, generation=1)
    assert (membership.member_id, membership.generation) == ("member-2", 2)
    assert not membership.wants_poll


class LedGroup(Group):
    """A coordinator of a group led by member ``m``, which may be static and rejoin the group."""

    def __init__(self, skip_assignment: bool = False, others: Sequence[str] = ()) -> None:
        """``others`` are the topics of another member."""
        super().__init__()
        self.assigned: list[Any] = []
        self.joins = 0
        members = [JoinGroupMember(member_id="m", subscription=ConsumerSubscription(topics=["t"]))]
        if others:
            members.append(JoinGroupMember(member_id="other", subscription=ConsumerSubscription(topics=others)))
        self._joined = JoinGroupResponse(
            member_id="m",
            leader="m",
            generation_id=1,
            protocol_name="range",
            members=members,
            skip_assignment=skip_assignment,
        )

    def _join(self, _request: Any, timeout: float) -> Ended:
        self.joins += 1
        return Ended(self._joined)

    def _sync(self, request: Any, timeout: float) -> Ended:
        self.assigned = [
            index
            for member in request.assignments
            for one in member.assignment.partitions
            for index in one.partitions
            if member.member_id == "m"
        ]
        return super()._sync(request, timeout)


def leader(group: LedGroup, subscription: Any) -> GroupMembership:
    settings = GroupSettings("g", "", "c", "", 60_000, 20_000, 60_000, True, 5_000, assignors_of(["range"]))
    return GroupMembership(settings, group, subscription, Partitions(), lambda *_: None, lambda: None)  # type: ignore[arg-type]


def test_a_leader_assigns_new_partitions_that_the_broker_it_asks_does_not_know_yet() -> None:
    """The counts are compared again only after the next change of the metadata, which may be hours away."""
    cluster = SimpleNamespace(version=1, partition_count=lambda topic: {"t": 3}[topic])
    subscription: Any = SimpleNamespace(
        is_empty=False,
        topics=frozenset({"t"}),
        refresh=lambda at_once=False: False,
        partition_counts=lambda _topics: {"t": 1},
        metadata=SimpleNamespace(cluster=cluster, want=lambda _topics: None),
    )
    group = LedGroup()
    membership = leader(group, subscription)
    membership.poll(time.monotonic() + 60)
    assert group.assigned == [0, 1, 2]
    cluster.version = 2
    membership.poll(time.monotonic() + 60)
    assert not membership.wants_poll, "the counts have not changed"


@pytest.mark.parametrize("skip_assignment", [False, True])
def test_a_leader_looks_for_new_partitions_of_all_members_although_it_keeps_the_assignment(
    skip_assignment: bool,
) -> None:
    counts, watched = {"t": 1, "u": 1}, set[str]()
    cluster = SimpleNamespace(version=1, partition_count=lambda topic: counts[topic] if topic in watched else 0)
    subscription: Any = SimpleNamespace(
        is_empty=False,
        topics=frozenset({"t"}),
        refresh=lambda at_once=False: False,
        partition_counts=lambda topics: {topic: counts[topic] for topic in topics},
        metadata=SimpleNamespace(cluster=cluster, want=watched.update),
    )
    group = LedGroup(skip_assignment, others=["u"])
    membership = leader(group, subscription)
    membership.poll(time.monotonic() + 60)
    assert group.assigned == ([] if skip_assignment else [0])
    membership.poll(time.monotonic() + 60)
    assert group.joins == 1
    counts["u"], cluster.version = 2, 2
    membership.poll(time.monotonic() + 60)
    assert group.joins == 2


class RefusedJoin(grpc.RpcError):  # type: ignore[misc]
    """The second JoinGroup, refused because the coordinator has removed the member."""


class ForgetfulGroup(Group):
    """A coordinator that removes the member before its second JoinGroup."""

    def __init__(self, partitions: "Partitions") -> None:
        super().__init__()
        self.kept: list[list[TopicPartition]] = []
        self._partitions = partitions

    def _join(self, request: Any, timeout: float) -> Any:
        self.kept.append(list(self._partitions.assignment()))
        return Refused() if len(self.kept) == 2 else super()._join(request, timeout)

    def failed(self, _failure: grpc.RpcError) -> PacelineError:
        return UnknownMemberIdError("the member was removed")


class Refused(Ended):
    """A call that ended with a refusal."""

    def __init__(self) -> None:
        super().__init__(None)

    def exception(self) -> Any:
        return RefusedJoin()

    def result(self, timeout: float = 0.0) -> Any:
        raise RefusedJoin


def test_a_cooperative_member_that_was_removed_before_it_joins_again_loses_the_partitions_it_has_kept() -> None:
    """Their new owner may have committed other offsets, which a later commit of the old positions would replace."""
    partitions = Partitions()
    group = ForgetfulGroup(partitions)
    membership = member(group, partitions, assignor="cooperative-sticky")
    membership.listener = listener = Listener()
    membership.poll(time.monotonic() + 60)
    membership.rejoin()
    membership.poll(time.monotonic() + 60)
    assert group.kept == [[], [ONE], []]
    assert listener.lost == [ONE]
    assert partitions.assignment() == [ONE]


class Failing(RebalanceListener):
    """Raises the error of another member's group once, for example from a commit."""

    def __init__(self, method: str) -> None:
        self._method: str | None = method

    def _fail(self, method: str) -> None:
        if self._method == method:
            self._method = None
            raise UnknownMemberIdError("another group does not know its member")

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._fail("revoked")

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._fail("assigned")


@pytest.mark.parametrize("method", ["revoked", "assigned"])
def test_poll_raises_an_error_of_the_listener_and_the_member_keeps_its_place_in_the_group(method: str) -> None:
    group, partitions = Group(), Partitions()
    membership = member(group, partitions)
    membership.listener = Failing(method)
    if method == "revoked":
        membership.poll(time.monotonic() + 60)
        membership.rejoin()
    with pytest.raises(UnknownMemberIdError, match="another group"):
        membership.poll(time.monotonic() + 60)
    membership.poll(time.monotonic() + 60)
    assert (membership.generation, membership.member_id) == (group.generation, f"member-{group.generation}")
    assert partitions.assignment() == [ONE]
    assert not membership.wants_poll


def test_new_partitions_are_read_although_the_listener_raises_when_others_are_revoked() -> None:
    group, partitions = Group(later=[1]), Partitions()
    membership = member(group, partitions, assignor="cooperative-sticky")
    membership.poll(time.monotonic() + 60)
    membership.listener = Failing("revoked")
    membership.rejoin()
    with pytest.raises(UnknownMemberIdError):
        membership.poll(time.monotonic() + 60)
    membership.poll(time.monotonic() + 60)
    assert partitions.assignment() == [TopicPartition("t", 1)]


class Unanswered:
    """A JoinGroup that is answered after the member has cancelled it."""

    def __init__(self) -> None:
        self.answer: Any = None

    def add_done_callback(self, callback: Any) -> None:
        self._callback = callback

    def result(self, timeout: float) -> Any:
        raise grpc.FutureTimeoutError

    def cancel(self) -> None:
        """Come too late."""

    def end(self, answer: JoinGroupResponse) -> None:
        self._callback(Ended(answer))


def test_a_response_that_arrives_after_the_member_has_left_does_not_bring_it_back() -> None:
    group, call = Group(), Unanswered()
    group.JoinGroup = SimpleNamespace(future=lambda _request, timeout: call)
    membership = member(group)
    membership.poll(time.monotonic())
    assert membership.state is MemberState.JOINING
    membership.leave(1_000)
    call.end(JoinGroupResponse(member_id="member-1", generation_id=1))
    assert (membership.member_id, membership.generation, membership.is_beating) == ("", -1, False)
    assert membership.state is MemberState.UNJOINED


def test_a_member_reaches_each_state_only_from_its_predecessors() -> None:
    membership = member(Group())
    seen = [membership.state]
    real = membership._move

    def moved(target: MemberState) -> None:
        real(target)
        seen.append(target)

    membership._move = moved  # type: ignore[method-assign]
    membership.poll(time.monotonic() + 60)
    membership.rejoin()
    joined = [MemberState.PREPARED, MemberState.JOINING, MemberState.SYNCING, MemberState.STABLE]
    assert seen == [MemberState.UNJOINED, *joined, MemberState.UNJOINED]
    membership.rejoin()
    assert len(seen) == 6, "the member already joins again"
    for target in (MemberState.SYNCING, MemberState.STABLE, MemberState.JOINING):
        with pytest.raises(InvalidTransitionError):
            real(target)
    assert membership.state is MemberState.UNJOINED


def test_a_refused_join_is_sent_again_without_a_second_revocation() -> None:
    group = Group()
    real, refused = group.JoinGroup.future, Refused()
    calls: list[Any] = [refused]
    group.JoinGroup = SimpleNamespace(future=lambda request, timeout: calls.pop() if calls else real(request, timeout))
    group.failed = lambda failure: UnknownServerError("the coordinator is busy")  # type: ignore[attr-defined]
    membership = member(group, owner := Partitions(), assignor="cooperative-sticky")
    owner.take_assignment([ONE])
    membership.generation = 3
    membership.poll(time.monotonic())
    assert membership.state is MemberState.PREPARED
    assert membership.is_beating, "the member keeps its generation until the coordinator accepts its join"
    membership.poll(time.monotonic() + 60)
    assert membership.state is MemberState.STABLE
