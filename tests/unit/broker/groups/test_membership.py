"""Members of a group: joining, syncing, heartbeats, leaving, fencing, static members (docs/protocol/groups.md)."""

import random

import pytest

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.member import Member
from paceline.broker.groups.requests import JoinRequest, JoinResult, Protocol, SyncResult
from paceline.model.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    NotEnoughReplicasError,
    PacelineError,
)
from paceline.model.settings import GroupConfig
from tests.support.group_cluster import CONFIG, REBALANCE_MS, SESSION_MS, GroupCluster


def code(answer: object) -> str:
    assert isinstance(answer, PacelineError), answer
    return answer.code.name


def test_new_member_joins_again_with_its_assigned_member_id() -> None:
    cluster = GroupCluster()
    (joined,) = cluster.join()
    assert isinstance(joined, JoinResult)
    assert (joined.member_id, joined.leader, joined.generation) == ("client-0001", "client-0001", 1)
    assert [one.member_id for one in joined.members] == ["client-0001"]
    assert cluster.state() == "COMPLETING_REBALANCE"


def test_assignments_of_the_leader_reach_every_member() -> None:
    cluster = GroupCluster()
    leader, other = cluster.stable(2)
    assert [one.member_id for one in leader.members] == [leader.member_id, other.member_id]
    assert other.members == ()
    (mine,) = cluster.sync(other)
    assert isinstance(mine, SyncResult)
    assert mine.assignment == b"a1"


def test_sync_of_a_member_waits_for_the_leader() -> None:
    cluster = GroupCluster()
    first = cluster.join()[0]
    waiting = cluster.join()
    leader = cluster.join(first.member_id)[0]
    synced = cluster.sync(waiting[0])
    assert synced == []
    cluster.sync(leader, {waiting[0].member_id: b"x"})
    assert synced[0].assignment == b"x"


def test_initial_delay_gathers_members_that_start_together() -> None:
    cluster = GroupCluster(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = cluster.join()
    cluster.time.run_for(2_000)
    second = cluster.join()
    cluster.time.run_for(2_000)
    assert not first
    assert not second
    cluster.time.run_for(3_000)
    assert {first[0].generation, second[0].generation} == {1}
    assert len(first[0].members) == 2


def test_member_that_does_not_join_again_is_removed_after_the_rebalance_timeout() -> None:
    cluster = GroupCluster()
    leader, other = cluster.stable(2)
    joining = cluster.join()
    cluster.heartbeat(other)
    again = cluster.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        cluster.time.run_for(5_000)
        assert code(cluster.heartbeat(other)) == "REBALANCE_IN_PROGRESS"
    assert not again
    cluster.time.run_for(6_000)
    assert {one.member_id for one in again[0].members} == {leader.member_id, joining[0].member_id}
    assert code(cluster.heartbeat(other)) == "UNKNOWN_MEMBER_ID"


def test_member_without_heartbeats_is_removed_and_the_others_rebalance() -> None:
    cluster = GroupCluster()
    leader, silent = cluster.stable(2)
    for _ in range(3):
        cluster.time.run_for(SESSION_MS / 2 - 100)
        cluster.heartbeat(leader)
    assert code(cluster.heartbeat(leader)) == "REBALANCE_IN_PROGRESS"
    (again,) = cluster.join(leader.member_id)
    assert [one.member_id for one in again.members] == [leader.member_id]
    assert code(cluster.heartbeat(silent)) == "UNKNOWN_MEMBER_ID"


def test_member_with_heartbeats_stays() -> None:
    cluster = GroupCluster()
    leader, other = cluster.stable(2)
    for _ in range(20):
        cluster.time.run_for(SESSION_MS / 2)
        assert cluster.heartbeat(leader) is None
        assert cluster.heartbeat(other) is None


def test_last_member_that_leaves_empties_the_group() -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    assert cluster.leave(only.member_id) == [None]
    assert cluster.state() == "EMPTY"
    assert code(cluster.leave(only.member_id)[0]) == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize(
    ("generation_off", "member", "expected"),
    [
        (0, "", "UNKNOWN_MEMBER_ID"),
        (0, "nobody", "UNKNOWN_MEMBER_ID"),
        (-1, None, "ILLEGAL_GENERATION"),
        (1, None, "ILLEGAL_GENERATION"),
    ],
)
def test_requests_with_an_unknown_member_or_another_generation_are_fenced(
    generation_off: int, member: str | None, expected: str
) -> None:
    cluster = GroupCluster()
    (only,) = cluster.stable(1)
    member_id = only.member_id if member is None else member
    stale = JoinResult(member_id, only.generation + generation_off, "consumer", "range", only.leader)
    assert code(cluster.heartbeat(stale)) == expected
    assert code(cluster.sync(stale)[0]) == expected
    if member != "":
        assert code(cluster.commit(5, stale)[0]) == expected
    assert cluster.committed() is None


@pytest.mark.parametrize(
    ("session_ms", "expected"), [(5_999, "INVALID_SESSION_TIMEOUT"), (1_800_001, "INVALID_SESSION_TIMEOUT")]
)
def test_session_timeout_outside_the_bounds_is_refused(session_ms: int, expected: str) -> None:
    assert code(GroupCluster().join(session_ms=session_ms)[0]) == expected


def test_member_without_a_common_assignor_is_refused() -> None:
    cluster = GroupCluster()
    cluster.stable(1)
    assert code(cluster.join(protocols=("sticky",))[0]) == "INCONSISTENT_GROUP_PROTOCOL"
    assert cluster.join(protocols=("sticky", "range")) == []  # waits for the rebalance


def test_assignor_with_most_votes_is_chosen() -> None:
    cluster = GroupCluster()
    first = cluster.join(protocols=("range", "sticky"))[0]
    others = [cluster.join(protocols=("sticky", "range")) for _ in range(2)]
    again = cluster.join(first.member_id, protocols=("range", "sticky"))
    assert [one[0].protocol for one in (again, *others)] == ["sticky"] * 3


def test_group_of_the_largest_size_refuses_more_members() -> None:
    cluster = GroupCluster(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    cluster.stable(1)
    assert code(cluster.join()[0]) == "GROUP_MAX_SIZE_REACHED"


def test_lost_join_response_is_repeated() -> None:
    cluster = GroupCluster()
    (joined,) = cluster.join()
    (again,) = cluster.join(joined.member_id)
    assert again == joined


def test_failed_write_of_the_assignments_fails_every_sync_and_rebalances() -> None:
    cluster = GroupCluster()
    (leader,) = cluster.join()
    cluster.append_error = NotEnoughReplicasError("too few")
    (answer,) = cluster.sync(leader, {leader.member_id: b"a"})
    assert isinstance(answer, CoordinatorNotAvailableError)
    assert cluster.state() == "PREPARING_REBALANCE"


def test_a_repeated_sync_of_the_leader_does_not_change_the_stored_assignments() -> None:
    """Its first answer was lost, and it has assigned again, with other metadata. Members have the first assignments."""
    cluster = GroupCluster()
    (joined,) = cluster.join()
    cluster.hold_appends = True
    earlier = cluster.sync(joined, {joined.member_id: b"first"})
    answers = cluster.sync(joined, {joined.member_id: b"second"})
    assert [code(one) for one in earlier] == ["REBALANCE_IN_PROGRESS"], (
        "the replaced call does not wait for its deadline"
    )
    cluster.release_appends()
    assert [one.assignment for one in answers] == [b"first"] and len(earlier) == 1
    cluster.fail_over()
    assert [one.assignment for one in cluster.sync(joined)] == [b"first"]


def test_the_leader_assigns_again_in_the_generation_after_a_failed_write() -> None:
    cluster = GroupCluster()
    (joined,) = cluster.join()
    cluster.append_error = NotEnoughReplicasError("too few")
    cluster.sync(joined, {joined.member_id: b"first"})
    cluster.append_error = None
    (again,) = cluster.join(joined.member_id)
    (answer,) = cluster.sync(again, {joined.member_id: b"second"})
    assert answer.assignment == b"second"


def test_member_without_sync_is_removed_after_the_rebalance_timeout() -> None:
    cluster = GroupCluster()
    leader, silent = cluster.stable(2)
    joining = cluster.join()
    again = cluster.join(leader.member_id)
    cluster.join(silent.member_id)
    cluster.sync(again[0], {})
    cluster.sync(joining[0])
    for _ in range(REBALANCE_MS // 5_000 + 1):
        cluster.time.run_for(5_000)
        for one in (again[0], joining[0]):
            cluster.heartbeat(one)
        cluster.heartbeat(JoinResult(silent.member_id, again[0].generation, "", "", ""))
    assert code(cluster.heartbeat(JoinResult(silent.member_id, again[0].generation, "", "", ""))) == "UNKNOWN_MEMBER_ID"


def test_caller_that_disconnects_while_joining_is_removed_after_its_session() -> None:
    cluster = GroupCluster()
    leader, other = cluster.stable(2)
    from paceline.broker.groups.requests import JoinRequest, Protocol

    metadata = leader.members[0].metadata
    request = JoinRequest(
        "g", other.member_id, None, "client", "", REBALANCE_MS, SESSION_MS, "consumer", (Protocol("range", metadata),)
    )
    cluster.join()
    answers: list[object] = []
    cancel = cluster.coordinator.join(request, answers.append)
    assert cancel is not None
    cancel()
    again = cluster.join(leader.member_id)
    cluster.time.run_for(SESSION_MS + 1)
    assert {one.member_id for one in again[0].members} == {leader.member_id, "client-0003"}
    assert answers == []


# Static members


def test_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    cluster = GroupCluster()
    (first,) = cluster.join(instance_id="i")
    cluster.sync(first, {first.member_id: b"mine"}, "i")
    (second,) = cluster.join(instance_id="i")
    assert second.member_id != first.member_id
    assert (second.generation, second.skip_assignment) == (1, True)
    assert cluster.sync(second, instance_id="i")[0].assignment == b"mine"
    assert code(cluster.heartbeat(first, "i")) == "FENCED_INSTANCE_ID"
    assert code(cluster.sync(first, instance_id="i")[0]) == "FENCED_INSTANCE_ID"


def test_static_member_stays_when_it_does_not_join_again_in_time() -> None:
    cluster = GroupCluster()
    (kept,) = cluster.join(instance_id="i", session_ms=600_000)
    cluster.sync(kept, {kept.member_id: b"mine"}, "i")
    joining = cluster.join()
    cluster.time.run_for(REBALANCE_MS + 1)
    assert {one.member_id for one in joining[0].members} == {kept.member_id, joining[0].member_id}
    assert joining[0].leader == joining[0].member_id


def test_static_member_can_be_removed_by_its_instance_id() -> None:
    from paceline.broker.groups.requests import LeavingMember

    cluster = GroupCluster()
    (first,) = cluster.join(instance_id="i")
    cluster.sync(first, {first.member_id: b"mine"}, "i")
    assert cluster.coordinator.leave("g", [LeavingMember("", "i")]) == [None]
    assert cluster.state() == "EMPTY"


def test_every_error_of_the_coordinator_has_kafkas_number() -> None:
    assert (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID) == (22, 25)
    assert (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID) == (27, 82)
    assert (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR) == (14, 16)
    assert CONFIG.offsets_topic_num_partitions == 50


def test_the_common_assignors_follow_every_change_of_the_members() -> None:
    rng = random.Random(5)
    group = Group("g", 0, GroupState.EMPTY, 0)

    def protocols() -> tuple[Protocol, ...]:
        return tuple(Protocol(name, b"") for name in ("a", "b", "c") if rng.random() < 0.8)

    for number in range(300):
        step = rng.random()
        if step < 0.5 or not group.members:
            group.add(Member(f"m{number}", None, "client", "/host", 1, 1, protocols()))
        elif step < 0.7:
            group.remove(rng.choice(sorted(group.members)))
        elif step < 0.85:
            group.set_protocols(group.members[rng.choice(sorted(group.members))], protocols())
        else:
            member = group.members[rng.choice(sorted(group.members))]
            again = JoinRequest("g", member.member_id, None, "client", "/host", 1, 1, "consumer", protocols())
            group.update(member, again, None)
        wanted = [{one.name for one in member.protocols} for member in group.members.values()]
        assert group.common_protocols() == (set.intersection(*wanted) if wanted else set())
