"""ElectLeaders: the table of errors, the elected replica, and the time of the answer."""

from typing import Any

import pytest

from paceline.controller.admin.admin_requests import ElectLeaders
from paceline.controller.admin.admin_values import ElectionType
from paceline.model.admin import NewTopic
from paceline.model.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from tests.unit.controller.admin_calls import ask, elect, kinds
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, short, tp

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def away_from_home(back_in_sync: bool = True) -> Cluster:
    """Topic ``a`` on brokers 1 and 2, led by 2 because 1 was down; topic ``b`` on 2 and 3, led by 2."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)), NewTopic("b", assignments=((2, 3),)))
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    if back_in_sync:
        cluster.change_isr("a-0", [2, 1])
        cluster.settle()
    return cluster


def leaderless() -> Cluster:
    """Topic ``a`` on brokers 1 and 2: 2 left the ISR, then 1 died, then 2 returned. No replica may lead."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)), NewTopic("b", assignments=((3,),)))
    cluster.kill_broker(2)
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")
    return cluster


def test_the_preferred_replica_leads_again_and_has_acknowledged() -> None:
    cluster = away_from_home()
    (result,) = elect(cluster, PREFERRED, "a-0")
    assert (result.error, result.leader, result.leader_epoch, result.unclean) == (None, 1, 2, False)
    assert cluster.state("a-0").startswith("1/2")
    assert cluster.brokers.epochs[1][tp("a-0")] == 2


def test_a_request_without_partitions_elects_preferred_leaders_where_needed() -> None:
    cluster = away_from_home()
    results = elect(cluster, PREFERRED)
    assert [(short(result.topic_partition), result.leader) for result in results] == [("a-0", 1)]
    assert elect(cluster, PREFERRED) == []


def test_every_partition_has_its_own_error_in_the_order_of_the_request() -> None:
    cluster = away_from_home()
    results = elect(cluster, PREFERRED, "b-0", "nosuch-0", "a-7", "a-0")
    assert kinds(results) == [
        ElectionNotNeededError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        None,
    ]
    assert [short(result.topic_partition) for result in results] == ["b-0", "nosuch-0", "a-7", "a-0"]


def test_a_partition_listed_twice_is_refused() -> None:
    cluster = away_from_home()
    assert kinds(elect(cluster, PREFERRED, "a-0", "a-0")) == [InvalidRequestError] * 2
    assert cluster.state("a-0").startswith("2/1")


def test_a_preferred_replica_outside_the_isr_is_not_elected() -> None:
    cluster = away_from_home(back_in_sync=False)
    (result,) = elect(cluster, PREFERRED, "a-0")
    assert type(result.error) is PreferredLeaderNotAvailableError
    assert "not in the ISR" in str(result.error)
    assert cluster.state("a-0").startswith("2/1")


def test_a_dead_preferred_replica_is_not_elected() -> None:
    cluster = away_from_home()
    cluster.kill_broker(1)
    cluster.settle()
    (result,) = elect(cluster, PREFERRED, "a-0")
    assert type(result.error) is PreferredLeaderNotAvailableError
    assert "not online" in str(result.error)


@pytest.mark.parametrize("election", list(ElectionType))
def test_a_topic_that_is_being_deleted_gets_no_leader(election: ElectionType) -> None:
    cluster = away_from_home()
    cluster.brokers.silent.add(2)
    cluster.delete("a", timeout_ms=100)
    assert kinds(elect(cluster, election, "a-0")) == [InvalidTopicError]


def test_an_unclean_election_is_not_needed_while_a_leader_lives() -> None:
    cluster = away_from_home()
    assert kinds(elect(cluster, UNCLEAN, "a-0")) == [ElectionNotNeededError]
    assert elect(cluster, UNCLEAN) == []


def test_an_unclean_election_elects_an_online_replica_and_is_marked_unclean() -> None:
    cluster = leaderless()
    (result,) = elect(cluster, UNCLEAN, "a-0")
    assert (result.error, result.leader, result.unclean) == (None, 2, True)
    assert cluster.state("a-0").startswith(f"2/{result.leader_epoch} isr [2]")
    assert cluster.controller.elections["unclean", "other"] == 1


def test_validation_returns_the_leader_without_electing_it() -> None:
    cluster = leaderless()
    writes = len(cluster.writes)
    (result,) = elect(cluster, UNCLEAN, validate_only=True)
    assert (result.error, result.leader, result.leader_epoch, result.unclean) == (None, 2, None, True)
    assert len(cluster.writes) == writes
    assert cluster.state("a-0").startswith("-1/")


def test_validation_of_a_preferred_election_has_the_same_errors() -> None:
    cluster = away_from_home()
    (result,) = elect(cluster, PREFERRED, "a-0", validate_only=True)
    assert (result.error, result.leader, result.leader_epoch) == (None, 1, None)
    other = away_from_home(back_in_sync=False)
    assert kinds(elect(other, PREFERRED, "a-0", validate_only=True)) == [PreferredLeaderNotAvailableError]


def test_an_unclean_election_fails_without_an_online_replica() -> None:
    cluster = leaderless()
    cluster.kill_broker(2)
    cluster.settle()
    for validate_only in (True, False):
        results = elect(cluster, UNCLEAN, "a-0", validate_only=validate_only)
        assert kinds(results) == [EligibleLeadersNotAvailableError]


def test_a_partition_whose_assigned_brokers_never_registered_cannot_be_elected() -> None:
    cluster = Cluster()
    cluster.start_broker(3)
    cluster.start_controller()
    cluster.create_topic_node("a", [[1, 2]])
    cluster.settle()
    assert kinds(elect(cluster, PREFERRED, "a-0")) == [PreferredLeaderNotAvailableError]
    assert kinds(elect(cluster, UNCLEAN, "a-0")) == [EligibleLeadersNotAvailableError]


def test_the_answer_waits_for_the_new_leaders_acknowledgement() -> None:
    cluster = away_from_home()
    cluster.brokers.silent.add(1)
    (result,) = elect(cluster, PREFERRED, "a-0", timeout_ms=300)
    assert type(result.error) is RequestTimedOutError
    assert (result.leader, result.leader_epoch) == (1, 2), "it is elected nevertheless"
    assert cluster.state("a-0").startswith("1/2")


def test_waiting_callers_are_answered_when_the_controller_resigns() -> None:
    cluster = away_from_home()
    cluster.brokers.silent.add(1)
    answers: list[Any] = []
    cluster.controller.ask(ElectLeaders(PREFERRED, (tp("a-0"),), 60_000, False, reply=answers.append))
    cluster.settle()
    assert answers == []
    cluster.controllers[CONTROLLER_ID].stop()
    assert kinds(answers[0]) == [RequestTimedOutError]


def test_a_standby_refuses() -> None:
    cluster = away_from_home()
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    with pytest.raises(NotControllerError):
        ask(cluster, lambda reply: standby.ask(ElectLeaders(PREFERRED, None, 1_000, False, reply=reply)))
