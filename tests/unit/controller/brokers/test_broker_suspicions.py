"""Suspicion: a broker that refuses connects counts as dead until its next heartbeat."""

import pytest

from paceline.controller.brokers.broker_suspicions import FIRST_DAMPING_MS, Evidence
from paceline.model.admin import NewTopic
from paceline.model.state_change import StateChangeKind
from tests.unit.controller.cluster import Cluster


def started(*topics: tuple[str, tuple[int, ...]], brokers: int = 3, **config: str) -> Cluster:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.start_broker(*range(1, brokers + 1))
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=(replicas,), configs=config) for name, replicas in topics))
    cluster.told()
    return cluster


def refuse(cluster: Cluster, broker_id: int) -> None:
    found(cluster, broker_id, Evidence.REFUSED)


def found(cluster: Cluster, broker_id: int, evidence: Evidence) -> None:
    cluster.controller.evidence_of_death(broker_id, cluster.broker_epoch(broker_id), evidence)
    cluster.settle()


def test_leaders_move_off_a_suspected_broker_at_once() -> None:
    cluster = started(("a", (1, 2, 3)), ("u", (1,)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "2/1 isr [2, 3] ce 1 v1"
    assert cluster.state("u-0") == "1/0 isr [1] ce 1 v0", "no in-sync alternative: nothing moves"
    assert not any(line.startswith("SR") for lines in cluster.told().values() for line in lines), "no StopReplica"


def test_a_suspected_follower_leaves_isrs_that_keep_two_members() -> None:
    cluster = started(("a", (2, 1, 3)), ("b", (2, 1)))
    refuse(cluster, 1)
    assert cluster.state("a-0").startswith("2/1 isr [2, 3]")
    assert cluster.state("b-0") == "2/0 isr [2, 1] ce 1 v0", "an ISR with a single member is too small"


@pytest.mark.parametrize("reported", [[2, 3], [2, 1]])
def test_a_suspected_follower_leaves_an_isr_whose_growth_has_not_been_reported(reported: list[int]) -> None:
    """A leader reports a larger ISR seconds later; until then acks=all would wait for a dead follower."""
    cluster = started(("a", (2, 1, 3)))
    cluster.change_isr("a-0", reported)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1, 3], notify=False)
    refuse(cluster, 1)
    assert cluster.state("a-0").startswith("2/1 isr [2, 3]")


def test_a_suspected_follower_stays_in_an_isr_whose_shrinking_has_not_been_reported() -> None:
    cluster = started(("a", (2, 1, 3)))
    cluster.change_isr("a-0", [2, 1], notify=False)
    refuse(cluster, 1)
    assert cluster.state("a-0") == "2/0 isr [2, 1] ce 1 v1", "an ISR with a single member is too small"


def test_a_suspected_follower_stays_in_isrs_at_min_insync_replicas() -> None:
    cluster = started(("a", (2, 1, 3)), **{"min.insync.replicas": "3"})
    refuse(cluster, 1)
    assert cluster.state("a-0") == "2/0 isr [2, 1, 3] ce 1 v0"


def test_a_heartbeat_ends_a_suspicion_and_damps_the_next_one() -> None:
    cluster = started(("a", (1, 2, 3)))
    refuse(cluster, 1)
    cluster.heartbeat(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 3, 1])
    cluster.settle()
    cluster.told()
    refuse(cluster, 1)
    assert cluster.told() == {}, "the last suspicion of this broker was false"
    for _ in range(FIRST_DAMPING_MS // 3_000 + 1):
        cluster.heartbeat(1)
        cluster.heartbeat(2)
        cluster.heartbeat(3)
        cluster.time.run_for(3_000)
    refuse(cluster, 2)
    assert cluster.state("a-0").startswith("1/2 isr [3, 1]"), "suspicions of another broker are not damped"


def test_evidence_about_an_earlier_registration_is_ignored() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.controller.evidence_of_death(1, cluster.broker_epoch(1) - 1, Evidence.REFUSED)
    cluster.settle()
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_a_controller_ignores_evidence_against_more_than_a_third_of_its_brokers() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 3, 1)))
    refuse(cluster, 1)
    refuse(cluster, 2)
    assert cluster.state("b-0").startswith("2/"), "one of three brokers is the limit"


def test_a_broker_whose_registration_ends_no_longer_counts_against_the_limit() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 3, 1)))
    refuse(cluster, 1)
    cluster.kill_broker(1)
    cluster.settle()
    refuse(cluster, 2)
    assert cluster.state("b-0").startswith("3/")


def test_no_broker_is_suspected_when_suspicion_is_disabled() -> None:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.suspect_ms = 0
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


def test_no_broker_is_suspected_without_leases_because_no_heartbeat_could_end_it() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


def report(cluster: Cluster, follower: int, *leaders: int) -> None:
    cluster.heartbeat(follower, broken_leaders=leaders)
    cluster.settle()


def causes(cluster: Cluster) -> list[str | None]:
    return [change.cause for change in cluster.state_changes if change.kind is StateChangeKind.LEADER_ELECTED]


@pytest.mark.parametrize("evidence", [one for one in Evidence if not one.is_conclusive])
@pytest.mark.parametrize("report_comes_first", [True, False])
def test_weak_evidence_counts_only_with_the_report_of_a_follower(evidence: Evidence, report_comes_first: bool) -> None:
    cluster = started(("a", (1, 2, 3)))
    if report_comes_first:
        report(cluster, 2, 1)
    found(cluster, 1, evidence)
    cluster.settle()
    if not report_comes_first:
        assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0", "no suspicion without the report of a follower"
        report(cluster, 2, 1)
    assert cluster.state("a-0") == "2/1 isr [2, 3] ce 1 v1"
    assert causes(cluster)[-1] == f"suspicion: {evidence.value}, and the fetch connection of broker 2 to it broke"


def test_reports_of_followers_alone_move_no_leader() -> None:
    cluster = started(("a", (1, 2, 3)))
    report(cluster, 2, 1)
    report(cluster, 3, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_a_report_ends_with_the_next_heartbeat_without_it() -> None:
    cluster = started(("a", (1, 2, 3)))
    report(cluster, 2, 1)
    report(cluster, 2)
    found(cluster, 1, Evidence.UNREACHABLE)
    cluster.settle()
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_a_brokers_report_about_itself_is_ignored() -> None:
    cluster = started(("a", (1, 2, 3)))
    report(cluster, 1, 1)
    found(cluster, 1, Evidence.UNREACHABLE)
    cluster.settle()
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_the_report_of_a_suspected_follower_is_ignored() -> None:
    cluster = started(("a", (1, 2, 3)), brokers=6)
    report(cluster, 2, 1)
    refuse(cluster, 2)
    found(cluster, 1, Evidence.UNREACHABLE)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/")


@pytest.mark.parametrize("sign", ["heartbeat", "connection"])
def test_a_heartbeat_or_connection_drops_evidence_that_waits_for_a_follower(sign: str) -> None:
    cluster = started(("a", (1, 2, 3)))
    found(cluster, 1, Evidence.UNREACHABLE)
    if sign == "heartbeat":
        cluster.heartbeat(1)
    else:
        cluster.controller.broker_connected(1, cluster.broker_epoch(1))
    report(cluster, 2, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_an_unregistered_process_at_the_address_proves_that_the_registered_process_is_dead() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.brokers.unregistered.add(1)
    cluster.controller.broker_connection_closed(1, cluster.broker_epoch(1))
    cluster.settle()
    assert cluster.state("a-0") == "2/1 isr [2, 3] ce 1 v1"
    assert causes(cluster)[-1] == f"suspicion: {Evidence.NOT_REGISTERED.value}"


def test_a_broker_that_has_not_read_its_registration_yet_is_not_suspected() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.brokers.unregistered.add(4)
    cluster.start_broker(4)
    cluster.settle()
    assert not any(change.kind is StateChangeKind.BROKER_SUSPECTED for change in cluster.state_changes)


def test_the_heartbeat_of_the_next_registration_confirms_a_suspicion_and_damps_nothing() -> None:
    cluster = started(("a", (1, 2, 3)))
    refuse(cluster, 1)
    cluster.bounce_broker(1)
    cluster.heartbeat(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 3, 1])
    cluster.settle()
    refuse(cluster, 1)
    assert cluster.state("a-0").startswith("2/2 isr [2, 3]"), "suspected again, without damping"


def test_each_cause_of_an_election_has_its_log_word_and_its_metric() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 3, 1)))
    refuse(cluster, 1)
    cluster.kill_broker(1)
    cluster.settle()
    cluster.kill_broker(2)
    cluster.settle()
    words = [(cause or "").partition(":")[0] for cause in causes(cluster)]
    assert words.count("suspicion") == 1 and words.count("session") == 2
    counted = {labels: count for labels, count in cluster.controller.elections.items() if count}
    assert counted == {("controlled_shutdown", "suspicion"): 1, ("offline", "session"): 2}
