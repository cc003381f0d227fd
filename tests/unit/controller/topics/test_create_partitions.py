"""CreatePartitions: refusals, placement of the new partitions, and the time of the answer."""

import itertools
from typing import Any

import pytest

from paceline.controller.admin.admin_requests import CreatePartitions, DescribeConfigs, ListPartitionReassignments
from paceline.controller.topics import create_partitions
from paceline.coordination import znodes
from paceline.coordination.interface import Delete, Multi, SetData
from paceline.model.admin import NewPartitions, NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    ReassignmentInProgressError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from paceline.model.settings import ControllerConfig
from tests.support.reassignments import start_reassignments
from tests.unit.controller.admin_calls import ask, grow, kinds, move
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def started(config: ControllerConfig | None = None) -> Cluster:
    """Brokers 1 to 3; topic ``a`` with one partition on brokers 1 and 2."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    assert cluster.create(NewTopic("a", assignments=((1, 2),)))[0].error is None
    return cluster


def test_new_partitions_get_leaders_and_the_old_partition_is_unchanged() -> None:
    cluster = started()
    before = cluster.data(znodes.topic_path("a"))
    (result,) = grow(cluster, NewPartitions("a", 3, ((2, 3), (3, 1))))
    assert (result.error, result.first_partition, result.assignments) == (None, 1, ((2, 3), (3, 1)))
    after = cluster.data(znodes.topic_path("a"))
    assert after["partitions"] == {"0": [1, 2], "1": [2, 3], "2": [3, 1]}
    assert after["topic_id"] == before["topic_id"]
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"
    assert cluster.state("a-2") == "3/0 isr [3, 1] ce 1 v0"
    described = cluster.controller.describe_topics(["a"])[0]
    assert [partition.leader for partition in described.partitions] == [1, 2, 3]


def test_placement_continues_after_the_last_partition() -> None:
    """Start index: the position of partition 0's first replica; then round robin."""
    cluster = started()
    (result,) = grow(cluster, NewPartitions("a", 4))
    assert [row[0] for row in result.assignments] == [2, 3, 1]
    assert all(len(set(row)) == 2 for row in result.assignments)


@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        (NewPartitions("nosuch", 2), UnknownTopicOrPartitionError, "does not exist"),
        (NewPartitions("a", 1), InvalidPartitionsError, "has 1 partitions"),
        (NewPartitions("a", 0), InvalidPartitionsError, "has 1 partitions"),
        (NewPartitions("a", -5), InvalidPartitionsError, "has 1 partitions"),
        (NewPartitions("a", 200), InvalidPartitionsError, "more than 100"),
        (NewPartitions("a", 2, ((1, 2), (2, 3))), InvalidReplicaAssignmentError, "1 partitions are new, 2 are placed"),
        (NewPartitions("a", 2, ((1,),)), InvalidReplicaAssignmentError, "2 replicas, not 1"),
        (NewPartitions("a", 2, ((1, 1),)), InvalidReplicaAssignmentError, "twice"),
        (NewPartitions("a", 2, ((1, 9),)), InvalidReplicaAssignmentError, "unregistered brokers: [9]"),
        (NewPartitions("a", 2, ((),)), InvalidReplicaAssignmentError, "no replicas"),
    ],
)
def test_bad_requests_change_nothing(wanted: NewPartitions, error: type[Exception], said: str) -> None:
    cluster = started(ControllerConfig(CONTROLLER_ID, max_partitions_per_request=100))
    writes = len(cluster.writes)
    (result,) = grow(cluster, wanted)
    assert type(result.error) is error
    assert said in str(result.error)
    assert len(cluster.writes) == writes


def test_too_few_brokers_are_refused() -> None:
    cluster = started()
    cluster.kill_broker(2, 3)
    cluster.settle()
    (result,) = grow(cluster, NewPartitions("a", 2))
    assert type(result.error) is InvalidReplicationFactorError


def test_a_topic_listed_twice_is_refused_and_other_topics_grow() -> None:
    cluster = started()
    cluster.create(NewTopic("b", assignments=((1, 2),)))
    results = grow(cluster, NewPartitions("a", 2), NewPartitions("b", 2), NewPartitions("a", 3))
    assert kinds(results) == [InvalidRequestError, None, InvalidRequestError]
    assert [result.topic for result in results] == ["a", "b", "a"]
    assert len(cluster.data(znodes.topic_path("a"))["partitions"]) == 1


def test_a_topic_with_a_running_reassignment_does_not_grow() -> None:
    cluster = started()
    move(cluster, ("a-0", (3, 2)))
    (result,) = grow(cluster, NewPartitions("a", 2))
    assert type(result.error) is ReassignmentInProgressError
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    assert kinds(grow(cluster, NewPartitions("a", 2))) == [None]


def test_a_topic_that_is_being_deleted_does_not_grow() -> None:
    cluster = started()
    cluster.brokers.silent.add(1)
    cluster.delete("a", timeout_ms=100)
    assert kinds(grow(cluster, NewPartitions("a", 2))) == [InvalidTopicError]


def test_validation_changes_nothing_and_returns_the_placement() -> None:
    cluster = started()
    writes = len(cluster.writes)
    (result,) = grow(cluster, NewPartitions("a", 3), validate_only=True)
    assert result.error is None
    assert [row[0] for row in result.assignments] == [2, 3]
    assert len(cluster.writes) == writes


def test_the_answer_waits_for_every_new_leader() -> None:
    cluster = started()
    cluster.brokers.silent.add(3)
    (result,) = grow(cluster, NewPartitions("a", 3, ((2, 1), (3, 1))), timeout_ms=300)
    assert type(result.error) is RequestTimedOutError
    assert result.assignments == ((2, 1), (3, 1)), "they exist nevertheless"
    assert cluster.state("a-2").startswith("3/0")
    cluster.brokers.release(3)
    cluster.settle()
    assert kinds(grow(cluster, NewPartitions("a", 4, ((2, 1),)))) == [None]


def test_a_lost_zookeeper_reply_is_still_a_success() -> None:
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    path = znodes.topic_path("a")
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path == path for o in r.operations))
    assert kinds(grow(cluster, NewPartitions("a", 2))) == [None]
    assert len(cluster.data(path)["partitions"]) == 2


def test_a_reply_lost_in_the_last_attempt_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_partitions, "ATTEMPTS", 1)
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    path = znodes.topic_path("a")
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path == path for o in r.operations))
    assert kinds(grow(cluster, NewPartitions("a", 2))) == [RequestTimedOutError]
    assert len(cluster.data(path)["partitions"]) == 2, "it was applied"


def test_partitions_that_another_tool_adds_meanwhile_are_kept() -> None:
    cluster = started()
    path = znodes.topic_path("a")
    topic_id = cluster.data(path)["topic_id"]
    rows = {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((3, 1))}
    cluster.zk(SetData(path, znodes.encode_topic_assignment(znodes.TopicAssignment(rows, topic_id))))
    (result,) = grow(cluster, NewPartitions("a", 3, ((2, 3),)))
    assert (result.error, result.first_partition) == (None, 2)
    assert cluster.data(path)["partitions"] == {"0": [1, 2], "1": [3, 1], "2": [2, 3]}


def test_a_reassignment_queued_after_it_keeps_the_new_partitions() -> None:
    """Both requests rewrite the topic's node; the second rewrites it from memory."""
    cluster = started()
    answers: list[Any] = []
    node = cluster.controller
    node.ask(CreatePartitions((NewPartitions("a", 2, ((2, 3),)),), 5_000, False, reply=answers.append))
    start_reassignments(cluster.controller, {tp("a-0"): (2, 1)}, answers.append)
    cluster.settle()
    assert len(answers) == 2
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [2, 1], "1": [2, 3]}
    assert cluster.state("a-1").startswith("2/0")


def test_a_topic_deleted_while_a_caller_waits_is_answered_as_unknown() -> None:
    cluster = started()
    cluster.brokers.silent.add(3)
    answers: list[Any] = []
    cluster.controller.ask(CreatePartitions((NewPartitions("a", 2, ((3, 1),)),), 60_000, False, reply=answers.append))
    cluster.settle()
    assert answers == []
    for partition in (0, 1):
        cluster.zk(Delete(znodes.partition_state_path(tp(f"a-{partition}"))))
        cluster.zk(Delete(znodes.partition_path(tp(f"a-{partition}"))))
    cluster.zk(Delete(znodes.topic_partitions_path("a")))
    cluster.zk(Delete(znodes.topic_path("a")))
    cluster.settle()
    assert kinds(answers[0]) == [UnknownTopicOrPartitionError]


def test_a_leader_elected_during_the_wait_ends_it() -> None:
    cluster = started()
    cluster.brokers.silent.add(3)
    answers: list[Any] = []
    cluster.controller.ask(CreatePartitions((NewPartitions("a", 2, ((3, 1),)),), 60_000, False, reply=answers.append))
    cluster.settle()
    cluster.kill_broker(3)
    cluster.settle()
    assert kinds(answers[0]) == [None]
    assert cluster.state("a-1").startswith("1/1")


def test_waiting_callers_are_answered_when_the_controller_resigns() -> None:
    cluster = started()
    cluster.brokers.silent.update((1, 2, 3))
    answers: list[Any] = []
    cluster.controller.ask(CreatePartitions((NewPartitions("a", 2),), 60_000, False, reply=answers.append))
    cluster.settle()
    cluster.controllers[CONTROLLER_ID].stop()
    assert kinds(answers[0]) == [RequestTimedOutError]


def test_a_standby_refuses() -> None:
    cluster = started()
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    for call in (
        lambda reply: standby.ask(CreatePartitions((NewPartitions("a", 2),), 1_000, False, reply=reply)),
        lambda reply: standby.ask(ListPartitionReassignments(None, reply=reply)),
        lambda reply: standby.ask(DescribeConfigs((), reply=reply)),
    ):
        with pytest.raises(NotControllerError):
            ask(cluster, call)


@pytest.mark.parametrize("steps", range(40))
def test_a_not_controller_answer_means_that_no_partition_was_created(steps: int) -> None:
    """A repeated request would be refused because the topic already has so many partitions."""
    cluster = started()
    cluster.start_controller(CONTROLLER_ID + 1)
    answers: list[Any] = []
    cluster.controller.ask(CreatePartitions((NewPartitions("a", 2, ((2, 3),)),), 5_000, False, reply=answers.append))
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    cluster.tool.submit([Delete(znodes.CONTROLLER), SetData(znodes.CONTROLLER_EPOCH, b"9")], lambda _: None)
    cluster.settle()
    grown = len(cluster.data(znodes.topic_path("a"))["partitions"]) == 2
    assert len(answers) == 1
    assert not (isinstance(answers[0], NotControllerError) and grown)
