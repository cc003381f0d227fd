"""AlterPartitionReassignments and ListPartitionReassignments: errors per partition, and the replicas awaited."""

from dataclasses import replace

import pytest

from paceline.controller.admin.admin_requests import AlterPartitionReassignments
from paceline.controller.admin.admin_values import AwaitedReason
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData, ZkCode
from paceline.model.admin import NewTopic
from paceline.model.errors import (
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    NotControllerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.controller.admin_calls import ask, kinds, move, moves
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, short, tp


def started() -> Cluster:
    """Brokers 1 to 4; ``a`` and ``b`` with one partition each on brokers 1 and 2."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3, 4)
    cluster.start_controller()
    results = cluster.create(NewTopic("a", assignments=((1, 2),)), NewTopic("b", assignments=((1, 2),)))
    assert all(result.error is None for result in results)
    return cluster


def awaited(cluster: Cluster) -> list[tuple[int, AwaitedReason]]:
    (ongoing,) = moves(cluster)
    return [(replica.broker_id, replica.reason) for replica in ongoing.waiting_for]


def test_a_reassignment_is_listed_until_it_completes() -> None:
    cluster = started()
    assert moves(cluster) == []
    assert kinds(move(cluster, ("a-0", (3, 4)))) == [None]
    (ongoing,) = moves(cluster)
    assert ongoing.topic_partition == tp("a-0")
    assert ongoing.assignment.replicas == (3, 4, 1, 2)
    assert (ongoing.assignment.adding, ongoing.assignment.removing) == ((3, 4), (1, 2))
    assert (ongoing.leader, ongoing.isr) == (1, (1, 2))
    assert [(r.broker_id, r.reason) for r in ongoing.waiting_for] == [
        (3, AwaitedReason.NOT_CAUGHT_UP),
        (4, AwaitedReason.NOT_CAUGHT_UP),
    ]
    described = cluster.controller.describe_topics(["a"])[0].partitions[0]
    assert (described.adding_replicas, described.removing_replicas) == ((3, 4), (1, 2))
    cluster.change_isr("a-0", [1, 2, 3, 4], notify=False)
    cluster.settle()
    assert moves(cluster) == []
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 4]}


def test_only_the_requested_partitions_are_listed() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)), ("b-0", (4, 2)))
    assert [short(each.topic_partition) for each in moves(cluster)] == ["a-0", "b-0"]
    assert [short(each.topic_partition) for each in moves(cluster, "b-0", "nosuch-3")] == ["b-0"]


def test_an_invalid_row_fails_alone() -> None:
    cluster = started()
    results = move(
        cluster,
        ("a-0", ()),
        ("a-1", (1, 2)),
        ("b-0", (2, 3)),
        ("nosuch-0", None),
    )
    assert kinds(results) == [
        InvalidReplicaAssignmentError,
        UnknownTopicOrPartitionError,
        None,
        UnknownTopicOrPartitionError,
    ]
    assert [short(each.topic_partition) for each in moves(cluster)] == ["b-0"]


@pytest.mark.parametrize(
    ("target", "said"),
    [((), "empty"), ((3, 3), "twice"), ((-1, 2), "negative"), ((1, 9), "not live: [9]")],
)
def test_a_bad_target_changes_nothing(target: tuple[int, ...], said: str) -> None:
    cluster = started()
    writes = len(cluster.writes)
    (result,) = move(cluster, ("a-0", target))
    assert type(result.error) is InvalidReplicaAssignmentError
    assert said in str(result.error)
    assert len(cluster.writes) == writes


def test_a_partition_listed_twice_is_refused_and_the_other_is_reassigned() -> None:
    cluster = started()
    results = move(cluster, ("a-0", (3, 2)), ("b-0", (3, 2)), ("a-0", (4, 2)))
    assert kinds(results) == [InvalidRequestError, None, InvalidRequestError]
    assert [short(each.topic_partition) for each in moves(cluster)] == ["b-0"]


def test_a_cancellation_without_a_reassignment_is_refused() -> None:
    cluster = started()
    assert kinds(move(cluster, ("a-0", None))) == [NoReassignmentInProgressError]


def test_a_cancelled_reassignment_is_no_longer_listed() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    assert kinds(move(cluster, ("a-0", None))) == [None]
    assert moves(cluster) == []
    assert sorted(cluster.data(znodes.topic_path("a"))["partitions"]["0"]) == [1, 2]


@pytest.mark.parametrize("one", [None, (4, 2)])
def test_a_leader_cannot_add_a_replica_of_a_replaced_target_to_the_isr(one: tuple[int, ...] | None) -> None:
    """The leader's write may be in flight when the target is replaced and the replica's log is deleted."""
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    admission = cluster.zk(GetData(znodes.partition_state_path(tp("a-0"))))
    assert admission.stat is not None
    before = len(cluster.writes)
    move(cluster, ("a-0", one))
    paths = [write.change.path for write in cluster.writes[before:]]
    assert paths[0] == znodes.partition_state_path(tp("a-0"))
    state = znodes.decode_partition_state("", admission.data, admission.stat.version).leader_and_isr
    late = cluster.write_state("a-0", replace(state, isr=(1, 2, 3)), admission.stat.version, must_succeed=False)
    assert late.code is ZkCode.BAD_VERSION


def test_a_reassignment_of_a_topic_that_is_being_deleted_is_refused() -> None:
    cluster = started()
    cluster.brokers.silent.add(1)
    cluster.delete("a", timeout_ms=100)
    assert kinds(move(cluster, ("a-0", (3, 2)))) == [UnknownTopicOrPartitionError]


def test_validation_starts_no_reassignment() -> None:
    cluster = started()
    writes = len(cluster.writes)
    results = move(cluster, ("a-0", (3, 2)), ("b-0", (9,)), ("nosuch-0", None), validate_only=True)
    assert kinds(results) == [None, InvalidReplicaAssignmentError, UnknownTopicOrPartitionError]
    assert len(cluster.writes) == writes
    assert moves(cluster) == []


def test_a_repeated_request_keeps_the_running_reassignment() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    assert kinds(move(cluster, ("a-0", (3, 2)))) == [None]
    (ongoing,) = moves(cluster)
    assert ongoing.assignment.adding == (3,)


@pytest.mark.parametrize("one", [None, (1, 2), (4, 2)])
def test_a_reassignment_whose_new_replicas_alone_are_in_sync_cannot_be_cancelled(one: tuple[int, ...] | None) -> None:
    """Cancelling or replacing it would delete every replica that has all records."""
    cluster = started()
    move(cluster, ("a-0", (3, 4)))
    cluster.change_isr("a-0", [3], notify=False)
    cluster.settle()
    (result,) = move(cluster, ("a-0", one))
    assert type(result.error) is InvalidReplicaAssignmentError
    assert "all in-sync replicas [3]" in str(result.error)
    (ongoing,) = moves(cluster)
    assert ongoing.assignment.adding == (3, 4)


def test_a_reassignment_that_waits_for_a_dead_broker_names_it() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    cluster.kill_broker(3)
    cluster.settle()
    assert awaited(cluster) == [(3, AwaitedReason.BROKER_DEAD)]
    cluster.start_broker(3)
    cluster.settle()
    assert awaited(cluster) == [(3, AwaitedReason.NOT_CAUGHT_UP)]


def test_a_reassignment_that_waits_for_a_stopping_broker_names_it() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    cluster.controlled_shutdown(3)
    assert awaited(cluster) == [(3, AwaitedReason.BROKER_SHUTTING_DOWN)]


def test_a_reassignment_that_waits_for_a_failed_directory_names_its_broker() -> None:
    cluster = started()
    cluster.brokers.failed_dirs[3].add(tp("a-0"))
    move(cluster, ("a-0", (3, 2)))
    cluster.settle()
    assert awaited(cluster) == [(3, AwaitedReason.LOG_DIR_FAILED)]


def test_a_reassignment_without_a_leader_is_listed_as_such() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    cluster.kill_broker(1, 2)
    cluster.settle()
    (ongoing,) = moves(cluster)
    assert ongoing.leader is None
    assert (3, AwaitedReason.NO_LEADER) in awaited(cluster)


def test_listing_reads_the_isr_from_zookeeper() -> None:
    """Leaders notify the controller of ISR changes only seconds later."""
    cluster = started()
    move(cluster, ("a-0", (3, 4)))
    cluster.change_isr("a-0", [1, 2, 4], notify=False)
    assert awaited(cluster) == [(3, AwaitedReason.NOT_CAUGHT_UP)]


def test_a_new_controller_lists_the_reassignments_of_its_predecessor() -> None:
    cluster = started()
    cluster.start_controller(CONTROLLER_ID + 1)
    move(cluster, ("a-0", (3, 2)))
    cluster.controllers[CONTROLLER_ID].stop()
    cluster.settle()
    assert [short(each.topic_partition) for each in moves(cluster)] == ["a-0"]


def test_a_reassignment_requested_in_the_admin_node_runs() -> None:
    cluster = started()
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-0"): (3, 2)})))
    cluster.settle()
    assert [short(each.topic_partition) for each in moves(cluster)] == ["a-0"]


def test_a_standby_refuses() -> None:
    cluster = started()
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    with pytest.raises(NotControllerError):
        ask(cluster, lambda reply: standby.ask(AlterPartitionReassignments((), False, reply=reply)))
