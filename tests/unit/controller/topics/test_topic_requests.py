"""CreateTopics and DeleteTopics: refusals, writes, and the time of the answer."""

from typing import Any

import pytest

from paceline.controller.admin.admin_requests import CreateTopics, DeleteTopics
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData, Multi
from paceline.model.admin import NewTopic
from paceline.model.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PacelineError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def started(config: ControllerConfig | None = None) -> Cluster:
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("taken.name", assignments=((1, 2),)))
    return cluster


REFUSED = [
    (NewTopic(""), InvalidTopicError),
    (NewTopic("."), InvalidTopicError),
    (NewTopic(".."), InvalidTopicError),
    (NewTopic("a b"), InvalidTopicError),
    (NewTopic("a/b"), InvalidTopicError),
    (NewTopic("ä"), InvalidTopicError),
    (NewTopic("x" * 250), InvalidTopicError),
    (NewTopic("__consumer_offsets"), InvalidTopicError),
    (NewTopic("__transaction_state"), InvalidTopicError),
    (NewTopic("taken.name"), TopicAlreadyExistsError),
    (NewTopic("taken_name"), TopicAlreadyExistsError),
    (NewTopic("a", partitions=0), InvalidPartitionsError),
    (NewTopic("a", partitions=-1), InvalidPartitionsError),
    (NewTopic("a", partitions=200_001), InvalidPartitionsError),
    (NewTopic("a", partitions=100_000, replication_factor=3), InvalidPartitionsError),
    (NewTopic("a", replication_factor=0), InvalidReplicationFactorError),
    (NewTopic("a", replication_factor=-1), InvalidReplicationFactorError),
    (NewTopic("a", replication_factor=4), InvalidReplicationFactorError),
    (NewTopic("a", assignments=((1, 2), ())), InvalidReplicaAssignmentError),
    (NewTopic("a", assignments=((1, 1),)), InvalidReplicaAssignmentError),
    (NewTopic("a", assignments=((1, 2), (3,))), InvalidReplicaAssignmentError),
    (NewTopic("a", assignments=((1, 9),)), InvalidReplicaAssignmentError),
    (NewTopic("a", assignments=((-1,),)), InvalidReplicaAssignmentError),
    (NewTopic("a", partitions=1, assignments=((1,),)), InvalidRequestError),
    (NewTopic("a", replication_factor=1, assignments=((1,),)), InvalidRequestError),
    (NewTopic("a", configs={"no.such.key": "1"}), InvalidConfigError),
    (NewTopic("a", configs={"retention.ms": "soon"}), InvalidConfigError),
    (NewTopic("a", configs={"min.insync.replicas": "0"}), InvalidConfigError),
]


@pytest.mark.parametrize(("topic", "error"), REFUSED)
def test_an_invalid_topic_is_refused_and_changes_nothing(topic: NewTopic, error: type[PacelineError]) -> None:
    cluster = started()
    writes = len(cluster.writes)
    (result,) = cluster.create(topic)
    assert type(result.error) is error, result
    assert result.topic_id == ""
    assert len(cluster.writes) == writes


def test_each_topic_of_a_request_has_its_own_result() -> None:
    cluster = started()
    results = cluster.create(
        NewTopic("good", partitions=2, replication_factor=2, configs={"retention.ms": "60000"}),
        NewTopic("bad", partitions=0),
        NewTopic("twice"),
        NewTopic("twice"),
        NewTopic("good_2"),
        NewTopic("good.2"),
    )
    kinds = [type(result.error).__name__ for result in results]
    assert kinds == [
        "NoneType",
        "InvalidPartitionsError",
        "InvalidRequestError",
        "InvalidRequestError",
        "NoneType",
        "TopicAlreadyExistsError",
    ]
    good = results[0]
    assert len(good.topic_id) == 22
    assert [len(replicas) for replicas in good.assignments] == [2, 2]
    node = cluster.data(znodes.topic_path("good"))
    assert node["topic_id"] == good.topic_id
    assert node["partitions"] == {str(p): list(replicas) for p, replicas in enumerate(good.assignments)}
    assert cluster.data(znodes.topic_config_path("good"))["config"] == {"retention.ms": "60000"}
    assert set(cluster.children(znodes.TOPICS)) == {"good", "good_2", "taken.name"}


def test_the_number_of_partitions_in_a_request_is_limited() -> None:
    cluster = started(ControllerConfig(CONTROLLER_ID, max_partitions_per_request=5))
    results = cluster.create(NewTopic("x", partitions=3), NewTopic("y", partitions=3), NewTopic("z", partitions=2))
    assert [type(result.error).__name__ for result in results] == ["NoneType", "InvalidPartitionsError", "NoneType"]


def test_a_configuration_that_does_not_fit_is_refused_and_the_other_topics_are_created() -> None:
    cluster = started()
    configs = {"leader.replication.throttled.replicas": ",".join(f"{number}:1" for number in range(150_000))}
    results = cluster.create(NewTopic("a", partitions=1, replication_factor=1, configs=configs), NewTopic("b"))
    assert [type(result.error) for result in results] == [InvalidConfigError, type(None)]
    assert "bytes" in str(results[0].error)
    assert cluster.children(znodes.TOPICS) == ("b", "taken.name")


def test_the_names_of_a_large_request_are_not_all_compared_with_each_other() -> None:
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    cluster = started()
    topics = [NewTopic(Name(f"t{number}"), assignments=((1,),)) for number in range(500)]
    results = cluster.create(*topics, NewTopic("t7"), validate_only=True)
    assert [result.name for result in results if result.error is not None] == ["t7", "t7"]
    assert compared < 10_000


def test_validate_only_returns_the_placement_and_changes_nothing() -> None:
    cluster = started()
    writes = len(cluster.writes)
    results = cluster.create(NewTopic("a", partitions=3), NewTopic("b", partitions=0), validate_only=True)
    assert [type(result.error).__name__ for result in results] == ["NoneType", "InvalidPartitionsError"]
    assert (len(results[0].assignments), results[0].topic_id) == (3, "")
    assert len(cluster.writes) == writes


def test_defaults_come_from_the_configuration() -> None:
    cluster = started(ControllerConfig(CONTROLLER_ID, num_partitions=4, default_replication_factor=3))
    (result,) = cluster.create(NewTopic("a"))
    assert [len(replicas) for replicas in result.assignments] == [3] * 4


def test_a_broker_that_shuts_down_gets_no_new_replicas() -> None:
    cluster = started()
    cluster.controlled_shutdown(2)
    (result,) = cluster.create(NewTopic("a", partitions=6, replication_factor=2))
    assert all(2 not in replicas for replicas in result.assignments)


def test_creation_is_answered_when_every_leader_has_acknowledged() -> None:
    cluster = started()
    cluster.brokers.silent.add(2)
    answers: list[Any] = []
    topic = NewTopic("a", assignments=((1, 2), (2, 1)))
    cluster.controller.ask(CreateTopics((topic,), 5_000, False, reply=answers.append))
    cluster.settle()
    assert cluster.state("a-1") == "2/0 isr [2, 1] ce 1 v0"
    assert answers == [], "the leader of a-1 has not answered"
    cluster.brokers.release(2)
    cluster.settle()
    assert answers[0][0].error is None


def test_a_creation_that_times_out_keeps_the_topic() -> None:
    cluster = started()
    cluster.brokers.silent.add(2)
    results = cluster.create(NewTopic("a", assignments=((2, 1),)), NewTopic("b", assignments=((1,),)), timeout_ms=300)
    assert [type(result.error).__name__ for result in results] == ["RequestTimedOutError", "NoneType"]
    cluster.brokers.release(2)
    cluster.settle()
    assert cluster.controller.describe_topics(["a"])[0].partitions[0].leader == 2


def test_a_stale_answer_to_a_retried_leader_and_isr_counts_as_acknowledgement() -> None:
    """A broker that applied a LeaderAndIsr answers its retry as stale."""
    cluster = started()
    cluster.brokers.epochs[1][tp("a-0")] = 0
    assert cluster.create(NewTopic("a", assignments=((1,),)))[0].error is None


def test_a_creation_whose_reply_was_lost_is_a_success() -> None:
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path == znodes.topic_path("a") for o in r.operations))
    (result,) = cluster.create(NewTopic("a", assignments=((1,),), configs={"retention.ms": "1"}))
    assert result.error is None
    assert cluster.data(znodes.topic_path("a"))["topic_id"] == result.topic_id


def test_a_configuration_node_of_a_deleted_topic_is_replaced() -> None:
    cluster = started()
    cluster.zk(Create(znodes.topic_config_path("a"), znodes.encode_config({"retention.ms": "1"})))
    cluster.create(NewTopic("a", configs={"segment.ms": "7"}))
    assert cluster.data(znodes.topic_config_path("a"))["config"] == {"segment.ms": "7"}


def test_deletion_answers_for_each_topic() -> None:
    cluster = started()
    results = cluster.delete("taken.name", "nosuch")
    assert [type(result.error) for result in results] == [type(None), UnknownTopicOrPartitionError]
    assert cluster.children(znodes.TOPICS) == ()
    assert cluster.children(znodes.DELETE_TOPICS) == ()
    assert not cluster.zk(GetData(znodes.topic_config_path("taken.name")), must_succeed=False).ok


def test_a_deletion_that_times_out_continues() -> None:
    cluster = started()
    cluster.brokers.silent.add(1)
    (result,) = cluster.delete("taken.name", timeout_ms=300)
    assert isinstance(result.error, RequestTimedOutError)
    assert not result.error.definite
    cluster.brokers.release(1)
    cluster.settle()
    assert cluster.children(znodes.TOPICS) == ()


def test_deletion_can_be_disabled() -> None:
    cluster = started(ControllerConfig(CONTROLLER_ID, delete_topic_enable=False))
    (result,) = cluster.delete("taken.name")
    assert isinstance(result.error, TopicDeletionDisabledError)
    assert cluster.children(znodes.DELETE_TOPICS) == ()


def test_a_name_can_be_used_again_after_deletion_with_another_id() -> None:
    cluster = started()
    (first,) = cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert cluster.delete("a")[0].error is None
    (second,) = cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert second.error is None
    assert second.topic_id != first.topic_id


def test_waiting_callers_are_answered_when_the_controller_resigns() -> None:
    cluster = started()
    cluster.brokers.silent.update((1, 2, 3))
    answers: list[Any] = []
    cluster.controller.ask(CreateTopics((NewTopic("a", assignments=((1,),)),), 60_000, False, reply=answers.append))
    cluster.controller.ask(DeleteTopics(("taken.name",), 60_000, reply=answers.append))
    cluster.settle()
    assert answers == []
    cluster.controllers[CONTROLLER_ID].stop()
    assert [type(answer[0].error) for answer in answers] == [RequestTimedOutError] * 2


def test_creating_a_topic_while_it_is_being_deleted_is_refused() -> None:
    cluster = started()
    cluster.brokers.silent.add(1)
    cluster.delete("taken.name", timeout_ms=100)
    (result,) = cluster.create(NewTopic("taken.name"))
    assert isinstance(result.error, TopicAlreadyExistsError)
    assert "being deleted" in str(result.error)


def test_a_name_that_collides_with_a_topic_created_a_moment_before_is_refused() -> None:
    """The controller learns of a topic when it reads the list of topics, after the next queued request."""
    cluster = Cluster()
    cluster.start_broker(1)
    cluster.start_controller()
    answers: list[Any] = []
    for name in ("a.b", "a_b", "a.b"):
        cluster.controller.ask(CreateTopics((NewTopic(name, assignments=((1,),)),), 5_000, False, reply=answers.append))
    cluster.settle()
    errors = {(result.name, type(result.error)) for (result,) in answers}
    assert errors == {("a.b", type(None)), ("a_b", TopicAlreadyExistsError), ("a.b", TopicAlreadyExistsError)}
    assert cluster.children(znodes.TOPICS) == ("a.b",)
    cluster.delete("a.b")
    assert cluster.create(NewTopic("a_b", assignments=((1,),)))[0].error is None
